"""One event of a run, as a frozen record, and its way to the listeners.

The logger ``stepwise`` also gets every event, as the attribute ``stepwise`` of its records: runs at
level INFO, steps and checkpoints at DEBUG.

The module is loaded with the first listener: most programs have none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwise._runtime import observers
from stepwise._runtime.facts import public
from stepwise._runtime.messages import notice, reports
from stepwise.errors import RunStopped

Kind = Literal[
    "run_started",
    "run_resumed",
    "run_completed",
    "run_failed",
    "run_cancelled",
    "run_interrupted",
    "run_suspended",
    "run_stopped",
    "step_started",
    "step_waiting",
    "step_answered",
    "step_completed",
    "step_failed",
    "step_cancelled",
    "step_in_doubt",
    "checkpoint_taken",
]


@public
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Args:
        kind: the kind of event.  ``step_answered``: a step that was not executed, since it was
            done, or since the cache answered it, as ``detail`` then says.
            ``step_waiting``: a step that waits for a time, a signal, a person or a limit.
            ``run_interrupted``: a run stopped by Ctrl-C, by a cancellation or timeout in its
            caller, or by a used-up budget.
            ``run_suspended``: a run that released its process until something it waits for arrives.
            ``run_stopped``: a run that stopped otherwise, such as by a step in doubt or an exit.
        run_id: the id of the run.
        workflow: the full name of the workflow.
        step: the number of the step; for a checkpoint, the number of done steps.
        name: the name of the step.
        arguments: the arguments of the step, as shortened text.
        detail: the outcome, as shortened text: the result, the exception, the interruption, the
            place where the run resumes, or ``file:line`` of the checkpoint.
        duration: seconds that the step took, or had taken if it is answered; for a run that
            resumes, the seconds of the steps before the place where it resumes.
        lost: seconds that an earlier attempt spent in vain on a step that starts: exact if the
            attempt failed, a lower bound if its process died.
        executed: the number of steps that this attempt has executed so far.
        skipped: the number of steps that it did not execute, since they were done.
        attempts: the number of attempts of a step that ended; 0 in other events.
        limit: for a step that waits for a :class:`Limit`, the name of the limit, without the value
            of its key.
        usage: for a completed or answered model request, the known ones of ``model``, ``provider``
            (texts), ``input_tokens``, ``output_tokens``, ``cached_input_tokens`` (counts) and
            ``cost_usd`` (US dollars); for a run that resumes, the sums of the earlier requests.
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
    lost: float = 0.0
    executed: int = 0
    skipped: int = 0
    attempts: int = 0
    limit: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        what = self.kind.replace("_", " ")
        call = f" {self.step} {self.name}({self.arguments})" if self.name else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.run_id}: {what}{call}{detail}"


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Register ``callback``, which gets an :class:`Event` whenever something happens in a run here.

    The callback is called in the thread of the event, which waits for the callback, after the event
    has been recorded.  An exception of the callback is reported once, and does not disturb the run.

    Returns:
        a function that removes the callback; it may be called twice.
    """
    return observers.listen(callback)


_told: set[int] = set()


@reports
def emit(kind: Kind, run_id: str, workflow: str, **facts: Any) -> None:
    """Notify all listeners; see :class:`Event`.  The caller has asked :func:`.observers.heard`."""
    event = Event(kind, run_id, workflow, **facts)
    level = logging.INFO if event.kind.startswith("run") else logging.DEBUG
    _log(level, event)
    for listener in observers.listeners:
        try:
            listener(event)
        except (Exception, RunStopped) as error:
            _tell_once(listener, error)


@reports
def _log(level: int, event: Event) -> None:
    observers.logger.log(level, "%s", event, extra={"stepwise": event})


@reports
def _tell_once(listener: observers.Listener, error: BaseException) -> None:
    if id(listener) not in _told:
        _told.add(id(listener))
        observers.logger.debug("a callback of on_event raised", exc_info=error)
        name = getattr(listener, "__qualname__", type(listener).__qualname__)
        notice(f"{name}, a callback of stepwise.on_event, raised {error!r}; the run continues")
