"""Looking at runs; settling and forking them.

The modules, each importing only from those before it::

    step_stream checkpoints fork_point fork overview settle verify run listing current
"""
