"""The operations that a call asks its driver to perform, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Union

from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.concurrency import Flows
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Record
from stepwise._runtime.messages import notice
from stepwise._values.buffers import Data

__all__ = [
    "READY",
    "Attempt",
    "Cancelled",
    "Core",
    "FlowChange",
    "Operation",
    "Ready",
    "Result",
    "Sleep",
    "Write",
    "cancelled_again",
]


class Result:
    """The result of an operation: a value, or an exception that is yet to be raised.

    Exceptions travel as values: thrown through a generator, a ``StopIteration`` would change type.

    Args:
        awaited: as what the body of a plain function handed it out; see :class:`Outcome`.
    """

    __slots__ = ("awaited", "error", "value")

    def __init__(
        self, value: Any = None, error: BaseException | None = None, awaited: str = ""
    ) -> None:
        self.value = value
        self.error = error
        self.awaited = awaited

    def unwrap(self) -> Any:
        """The value; raises the exception."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # no cycle through the traceback


class Attempt(NamedTuple):
    """One try of a body, inside the scope of its call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scope: Scope | None
    name: str
    timeout: float | None = None


class Sleep(NamedTuple):
    """Wait between two attempts."""

    seconds: float


class Cancelled(NamedTuple):
    """Wait to be cancelled again, as the recorded call was; the error is this cancellation.

    The value is true if that did not happen within ``seconds``.  What is not awaited cannot be
    cancelled, and has nothing to wait for.

    Args:
        awaited: as what the body of a plain function handed its outcome out.
    """

    seconds: float
    awaited: str = ""


class FlowChange(NamedTuple):
    """Wait until another flow of control of the run did something; the value says if one did.

    It is false if that did not happen within ``seconds``.
    """

    flows: Flows
    seen: int
    seconds: float


class Ready(NamedTuple):
    """The journal has been asked, and nothing was done yet."""


class Write(NamedTuple):
    """Append a record with its payload to the journal of a run.

    The value of its result is the record's number; with it may come an error that is not the
    journal's: a cancellation of who waited for it.
    """

    run: ActiveRun
    item: tuple[Record, Data]
    durable: bool = True


READY = Ready()

Operation = Union[Attempt, Cancelled, Sleep, FlowChange, Ready, Write]
Core = Generator[Operation, Result, Result]

_LATE = 1.0  # seconds after which a call is not cancelled as it was


def cancelled_again(scope: Scope, recorded: RecordedCall) -> Generator[Cancelled, Result, Result]:
    """Wait for what cancelled the recorded call: a timeout, a task group, the workflow itself.

    Answered at once, ``wait_for`` would raise a cancellation that nobody asked for instead of its
    ``TimeoutError``.  A code that does not cancel any more, or later, has a plain step run again:
    the value of the result is then true.  A side effect is not repeated.
    """
    call, outcome = recorded.call, recorded.outcome
    assert outcome is not None
    took = max(0.0, outcome.at - call.at)
    again = yield Cancelled(took + _LATE, outcome.awaited)
    if again.value and call.effect and not call.child:
        notice(
            f"run {scope.run.run_id}: {call.name} was cancelled the last time, after {took:.1f} s, "
            "and is a side effect that is not repeated: it waits to be cancelled again. If nothing "
            "cancels it any more, stop the program, find out whether it happened, and settle it: "
            f"stepwise resolve {scope.run.run_id} {call.number} --landed JSON | --did-not-happen"
        )
        again = yield Cancelled(math.inf, outcome.awaited)
    return again
