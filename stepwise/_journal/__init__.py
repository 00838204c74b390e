"""The journal of runs: sealed, chained, append-only, with one owner for each run.

The modules, each importing only from those before it::

    seal versions records signatures projection course lease journal log inbox ledger
<<<<<<< HEAD
    limit_store schedule_rows stream summary
=======
    limit_store cache stream summary
>>>>>>> 6d7c9cd575e7c06c2db3ff0acb3802b3c53cdf48
"""
