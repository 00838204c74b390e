"""A run in progress: its tasks, threads, call sites, outcomes and totals.

The modules, each importing only from those before it::

    reloading process_memory registry failures location contents
    changes_as_data call_changes
    outcomes inputs concurrency waits cleanup steering surfacing budget account inner_calls
    active_run draining other_tasks suspension outside watching viewer
"""
