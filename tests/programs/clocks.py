"""A clock that a test sets forward, so that what is late does not depend on the machine."""

import asyncio

LIMIT, LATE = 60, 100  # seconds: what is waited for; what passes once a body has begun


def be_late():
    """Set the clock of the running event loop forward: what it was to wait ``LIMIT`` for is due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + LATE
