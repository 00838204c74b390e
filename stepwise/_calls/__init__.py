"""One call of a step: look up, run, retry, doubt, record, undo.

The modules, each importing only from those before it::

    ray_executor doubt edits driver call async_driver executors awaitables
    waiting approvals branching rate_limits limited cached emitting streams steps parallel
    compensation
"""
