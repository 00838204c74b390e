"""Registry of event listeners: user callbacks, logging, progress display.

The logger ``stepwise`` also gets every event, as the attribute ``stepwise`` of its records: runs at
level INFO, steps and checkpoints at DEBUG.  Without listeners, no event is created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import notice, reports
from stepwise.errors import RunStopped

if TYPE_CHECKING:
    from stepwise._runtime.event import Event, Kind


Listener = Callable[["Event"], object]
_logger = logging.getLogger("stepwise")
_INFO = logging.INFO
_listeners: tuple[Listener, ...] = ()
_lock = process_lock()
_told: set[int] = set()


def listen(callback: Listener) -> Callable[[], None]:
    """Add a listener; see :func:`stepwise.on_event`."""
    global _listeners  # noqa: PLW0603
    entry: Listener = lambda event: callback(event)  # noqa: E731, PLW0108 -- a new object each time
    with _lock:
        _listeners = (*_listeners, entry)

    def end() -> None:
        global _listeners  # noqa: PLW0603
        with _lock:
            _listeners = tuple(each for each in _listeners if each is not entry)

    return end


def heard() -> bool:
    """Return whether there is any listener; checked before an event is created."""
    return bool(_listeners or _logger.isEnabledFor(_INFO))


@reports
def emit(kind: Kind, run_id: str, workflow: str, **facts: Any) -> None:
    """Notify all listeners; see :class:`Event`."""
    from stepwise._runtime.event import Event  # on use: most programs have no listener

    event = Event(kind, run_id, workflow, **facts)
    level = logging.INFO if event.kind.startswith("run") else logging.DEBUG
    _log(level, event)
    for listener in _listeners:
        try:
            listener(event)
        except (Exception, RunStopped) as error:
            _tell_once(listener, error)


@reports
def _log(level: int, event: Event) -> None:
    _logger.log(level, "%s", event, extra={"stepwise": event})


@reports
def _tell_once(listener: Listener, error: BaseException) -> None:
    if id(listener) not in _told:
        _told.add(id(listener))
        _logger.debug("a callback of on_event raised", exc_info=error)
        name = getattr(listener, "__qualname__", type(listener).__qualname__)
        notice(f"{name}, a callback of stepwise.on_event, raised {error!r}; the run continues")
