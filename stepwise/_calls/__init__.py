"""One call of a step: look up, run, retry, doubt, record, undo.

The modules, each importing only from those before it::

    doubt driver retrying recording waiting perform terms approvals async_driver elsewhere
    awaitables caches plain steps pauses asking streams parallel compensation spending
"""
