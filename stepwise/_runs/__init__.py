"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    steps overview messages fork questions verify copying run starting export housekeeping finding
    doctor
"""
