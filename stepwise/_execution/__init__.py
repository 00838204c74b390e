"""A run in progress: its tasks, threads, call sites, outcomes and totals.

The modules, each importing only from those before it::

    process_memory location changes outcomes flows message_watcher waits budget
    account emissions frames replaying active_run inputs tasks suspension viewer loadable
"""
