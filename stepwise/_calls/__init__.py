"""One call of a step: look up, run, retry, doubt, record, undo.

The modules, each importing only from those before it::

    doubt driver perform async_driver awaitables caches steps streams parallel
    compensation
"""
