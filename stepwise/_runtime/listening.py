"""The callbacks of users for events.

A module of its own, so that programs without a callback load no :class:`Event`.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwise._runtime.event import Event
from stepwise._runtime.events import listen


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Have ``callback`` called with an :class:`Event` whenever something happens in a run here.

    It is called in the thread in which that happens, which waits for it, and after what the event
    tells is on record.  What it raises is told once, and does not disturb the run.

    Returns:
        a function that ends this; calling it twice is no error.
    """
    return listen(callback)
