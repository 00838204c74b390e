"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    steps checkpoints fork overview verify run page listing current
"""
