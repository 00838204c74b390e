"""What is recorded: sealed, chained, append-only; one owner for each run.

The modules, each importing only from those before it::

    cipher seal records heads lease chain marks journal counters
"""
