"""The users' callbacks for events.

The module is separate so that programs without a callback do not load :class:`Event`.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwise._runtime.event import Event
from stepwise._runtime.events import listen


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Register ``callback``, which gets an :class:`Event` whenever something happens in a run here.

    The callback is called in the thread of the event, which waits for the callback, after the event
    has been recorded.  An exception of the callback is reported once, and does not disturb the run.

    Returns:
        a function that removes the callback; it may be called twice.
    """
    return listen(callback)
