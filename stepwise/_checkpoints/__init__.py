"""Positions with local variables, to bytes and back.

The modules, each importing only from those before it::

    chunks stored_values resources references exceptions given sdk_clients surroundings
    variables graphs checkpoints
"""
