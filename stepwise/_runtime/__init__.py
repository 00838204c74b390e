"""The process: settings, messages, signals, threads, forks, group commit, events.

The modules, each importing only from those before it::

    public_names limits forks settings messages interrupts tracebacks asyncio_state thread_context
    group_commit event events listening tracing file_trust retries options
"""
