"""@workflow: which run a call means, where it resumes, how it executes.

The modules, each importing only from those before it::

    loops remade_clients takeover reach complaints module_state definition frame other_runs opening
    resume execute turns starts invoke handles recover workflow host pieces
"""
