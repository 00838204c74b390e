"""@workflow: which run a call means, where it resumes, how it executes.

Agents, graphs, notebooks and integrations use ``host`` (a notebook ``pieces``, too) and no other
module of this room: tests/test_layers.py says what else a public package may import.

The modules, each importing only from those before it::

    loops remade_clients reach complaints cancelling module_state definition takeover usual_save
    frame other_runs opening resume execute turns starts invoke unfinished suspending handles
    recover run_output elsewhere engines supervisor workflow host pieces
"""
