"""The journal of runs: sealed, chained, append-only, with one owner for each run.

The modules, each importing only from those before it::

    seal records persons projection run_facts lease journal logs ledger cache
    schedule_rows stream summary
"""
