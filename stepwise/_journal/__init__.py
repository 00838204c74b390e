"""The journal of runs: sealed, chained, append-only, with one owner for each run.

The modules, each importing only from those before it::

    cipher seal records heads lease chain marks journal counters
"""
