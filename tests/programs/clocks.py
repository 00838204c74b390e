"""Clocks that a test sets forward, so that what is late does not depend on the machine."""

import asyncio
import threading

LIMIT, LATE = 60, 100  # seconds: what is waited for; what passes once a body has begun


def be_late():
    """Set the clock of the running event loop forward: what it was to wait ``LIMIT`` for is due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + LATE


def late_once(monkeypatch, begun):
    """Let the first wait of a thread for ``LIMIT`` seconds be over as soon as an event is set."""
    wait, over = threading.Event.wait, []

    def waiting(event, timeout=None):
        if timeout != LIMIT or over:
            return wait(event, timeout)
        over.append(wait(begun, 300))
        return False

    monkeypatch.setattr(threading.Event, "wait", waiting)
