"""@workflow: which run a call means, where it resumes, how it executes.

Agents, graphs, notebooks and integrations use ``host`` (a notebook ``pieces``, too) and no other
module of this room: tests/test_layers.py says what else a public package may import.

The modules, each importing only from those before it::

    outlook definition other_runs frame execute resume debugged begin handles rerun
    preflight submitted schedules engines up workflow best_of evaluation host
"""
