"""@workflow: which run a call means, where it resumes, how it executes.

The modules, each importing only from those before it::

    loops remade_clients takeover reach complaints module_state frame definition other_runs opening
    resume execute turns called starts invoke forms handles recover workflow host pieces
"""
