"""The process: settings, messages, signals, threads, forks, events.

The modules, each importing only from those before it::

    facts clock settings interrupts messages asyncio_state forks observers event
    system_limits retries options
"""
