"""The observers of runs: listeners of events, and the one tracer of the process.

A listener is a user's callback or a display.  Without listeners, no event is created, and
``event`` is not loaded.

Events report what happened.  A tracer is also called around it, in the thread or task that executes
a run or a body, so that spans of the user's code nest below.  Without a tracer, each hook is one
comparison.  Exceptions of a tracer never reach the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import reports

# -- events ----------------------------------------------------------------------------------------


Listener = Callable[[Any], object]  # of an event, whose module is not loaded for nothing
logger = logging.getLogger("stepwise")
_INFO = logging.INFO
listeners: tuple[Listener, ...] = ()
_lock = process_lock()


def listen(callback: Listener) -> Callable[[], None]:
    """Add a listener; see :func:`stepwise.on_event`."""
    global listeners  # noqa: PLW0603
    entry: Listener = lambda event: callback(event)  # noqa: E731, PLW0108 -- a new object each time
    with _lock:
        listeners = (*listeners, entry)

    def end() -> None:
        global listeners  # noqa: PLW0603
        with _lock:
            listeners = tuple(each for each in listeners if each is not entry)

    return end


def heard() -> bool:
    """Return whether there is any listener; checked before an event is created."""
    return bool(listeners or logger.isEnabledFor(_INFO))


# -- the tracer ------------------------------------------------------------------------------------

Leave = Callable[[BaseException | None], object]

AttemptT = TypeVar("AttemptT")
ResultT = TypeVar("ResultT")


class Tracer(Protocol):
    """The hooks of a tracer."""

    def begin(self, run: Any, previous: Mapping[str, str], scope: Any) -> Mapping[str, str]:
        """Begin the trace of a run that is about to be executed.

        Args:
            run: the run's id, full name and label, as ``run_id``, ``workflow``, ``label``.
            previous: the return value for the previous attempt, in whichever process.
            scope: the scope that calls the run as a child run, or ``None``.

        Returns:
            texts by name, which are recorded with the attempt.
        """

    def enter(self, run_id: str) -> Leave:
        """Enter the code of a run's function.

        Returns:
            a function to call where the code is left.
        """

    def enter_attempt(self, attempt: Any) -> Leave:
        """Enter the body of a step; called twice if the body returns an awaitable.

        Returns:
            a function to call where the body is left, with its exception or ``None``.
        """

    def end(self, run_id: str) -> None:
        """End the trace of a run that the process has released."""


tracer: Tracer | None = None
"""The tracer of the process."""


def set_tracer(new: Tracer | None) -> None:
    """Set the tracer of the process; ``None`` ends tracing."""
    global tracer  # noqa: PLW0603
    tracer = new


def begin_trace(run: Any, previous: Mapping[str, str], scope: Any) -> Mapping[str, str]:
    """Begin the trace of a run that is about to be executed; return the texts to record."""
    if tracer is None:
        return previous
    begun = _ask(tracer.begin, run, previous, scope)
    return begun if begun is not None else previous


def enter_run(run_id: str) -> Leave | None:
    """Enter the function of a run; see :func:`leave`."""
    return _ask(tracer.enter, run_id) if tracer is not None else None


def enter_attempt(attempt: Any) -> Leave | None:
    """Enter the body of a step; see :func:`leave`."""
    if tracer is None or attempt.scope is None:
        return None
    return _ask(tracer.enter_attempt, attempt)


@reports
def leave(left: Leave, error: BaseException | None = None) -> None:
    """Leave the code that was entered; ``error`` is the exception of an attempt."""
    left(error)


def trace(execute: Callable[[AttemptT], ResultT], attempt: AttemptT) -> ResultT:
    """Execute an attempt, whose result holds its exception, while its span is current."""
    left, error = enter_attempt(attempt), None
    try:
        result = execute(attempt)
        error = getattr(result, "error", None)
        return result
    except BaseException as interrupt:
        error = interrupt
        raise
    finally:
        if left is not None:
            leave(left, error)
        del error  # no cycle through its traceback


def end_trace(run_id: str) -> None:
    """Notify the tracer that a run is over in this process."""
    if tracer is not None:
        _ask(tracer.end, run_id)


def _ask(hook: Callable[..., ResultT], *given: Any) -> ResultT | None:
    return reports(hook)(*given)  # each hook separately: a notice names the failed hook
