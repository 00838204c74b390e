"""Which recorded call answers which call.

The modules, each importing only from those before it::

    subjects callers rulings pool
"""
