"""The match between calls and recorded calls.

The modules, each importing only from those before it::

    subjects pool
"""
