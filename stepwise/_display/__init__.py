"""Text and HTML of runs; live progress.

The modules, each importing only from those before it::

    markup terminal timeline render stops page progress
"""
