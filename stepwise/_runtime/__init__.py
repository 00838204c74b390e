"""The process: settings, messages, signals, threads, forks, events.

The modules, each importing only from those before it::

    facts clock settings store_urls interrupts messages asyncio_state forks event
    events listening tracing system_limits retries options
"""
