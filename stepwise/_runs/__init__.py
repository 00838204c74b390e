"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    as_dict stops steps checkpoints messages fork overview deleting verify sending questions
    settling cancelling transfer copying children run page listing program diff housekeeping doctor
    current
"""
