"""Positions with local variables, to bytes and back.

The modules, each importing only from those before it::

    exceptions resources references variables checkpoints
"""
