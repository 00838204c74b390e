"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    as_dict stops steps checkpoints fork overview verify run page listing
    program diff housekeeping doctor current
"""
