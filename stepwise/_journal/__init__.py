"""The journal of runs: sealed, chained, append-only, with one owner for each run.

The modules, each importing only from those before it::

    seal records header_text spending projection questions course run_facts heads lease chain log
    inbox bell journal summary counters
"""
