"""Text and HTML of runs; live progress.

The modules, each importing only from those before it::

    elide terminal render asked text markup timeline page activity progress_terminal
    progress_notebook progress
"""
