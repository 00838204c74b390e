"""The process: settings, messages, signals, threads, forks, group commit, events.

The modules, each importing only from those before it::

    facts clock public_names limits forks settings store_urls messages interrupts tracebacks exits
    asyncio_state thread_context group_commit event events listening tracing file_trust retries
    options
"""
