"""What happens in the runs of this process, for who wants to hear of it: hooks, logs, progress.

Every event is one frozen :class:`Event`.  The logger ``stepwise`` gets it too, as the attribute
``stepwise`` of its records: runs at level INFO, steps and checkpoints at DEBUG.  Where nobody
listens, nothing is made.  Imports: notices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from stepwise._notices import notice

__all__ = ["Event", "Kind", "emit", "heard", "on_event"]

Kind = Literal[
    "run_started",
    "run_resumed",
    "run_completed",
    "run_failed",
    "run_stopped",
    "step_started",
    "step_answered",
    "step_completed",
    "step_failed",
    "step_cancelled",
    "step_in_doubt",
    "checkpoint_taken",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Args:
        kind: what; ``step_answered`` is a step that was not executed, since it was done;
            ``run_stopped`` a run that was interrupted, or stopped by something in doubt.
        run_id: of the run.
        workflow: its full name.
        step: the step's number; of a checkpoint, how many steps were done.
        name: of the step.
        arguments: of the step, as shortened text.
        detail: what came of it, as shortened text: the result, the exception, where the run goes
            on, ``file:line`` of the checkpoint.
        duration: seconds that the step took.
        executed: steps that this attempt has executed so far.
        skipped: steps that it did not execute, since they were done.
        at: when it happened, in seconds since 1970.
    """

    kind: Kind
    run_id: str
    workflow: str
    step: int = 0
    name: str = ""
    arguments: str = ""
    detail: str = ""
    duration: float | None = None
    executed: int = 0
    skipped: int = 0
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        what = self.kind.replace("_", " ")
        call = f" {self.step} {self.name}({self.arguments})" if self.name else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.run_id}: {what}{call}{detail}"


Listener = Callable[[Event], object]
_logger = logging.getLogger("stepwise")
_listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()
_told: set[int] = set()


def on_event(callback: Listener) -> Callable[[], None]:
    """Have ``callback`` called with an :class:`Event` whenever something happens in a run here.

    It is called in the thread in which that happens, which waits for it, and after what the event
    tells is on record.  What it raises is told once, and does not disturb the run.

    Returns:
        a function that ends this; calling it twice is no error.
    """
    global _listeners  # noqa: PLW0603
    entry: Listener = lambda event: callback(event)  # noqa: E731, PLW0108 -- one of its own each time
    with _lock:
        _listeners = (*_listeners, entry)

    def end() -> None:
        global _listeners  # noqa: PLW0603
        with _lock:
            _listeners = tuple(each for each in _listeners if each is not entry)

    return end


def heard() -> bool:
    """Whether anybody listens; asked before an event is made."""
    return bool(_listeners) or _logger.isEnabledFor(logging.INFO)


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    level = logging.INFO if event.kind.startswith("run") else logging.DEBUG
    _logger.log(level, "%s", event, extra={"stepwise": event})
    for listener in _listeners:
        try:
            listener(event)
        except Exception as error:
            if id(listener) not in _told:
                _told.add(id(listener))
                _logger.debug("a callback of on_event raised", exc_info=True)
                notice(f"a callback of stepwise.on_event raised {error!r}; the run goes on")
