"""Text and HTML of runs; live progress.

The modules, each importing only from those before it::

    markup terminal words timeline render page progress
"""
