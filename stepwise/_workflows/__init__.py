"""@workflow: which run a call means, where it resumes, how it executes.

The modules, each importing only from those before it::

    loops remade_clients takeover interrupted reach complaints module_state frame resume
    definition renamed reports opened opening execute turns called starts invoke forms handles
    recover workflow
"""
