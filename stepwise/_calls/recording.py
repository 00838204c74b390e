"""Recording what becomes of a call: it begins, it ended, somebody settled it.

Written as generators: the write is an operation that they yield, so that synchronous callers wait
for the disk, and an event loop goes on meanwhile.  When one returns, its record is durable.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stepwise._calls.operations import Result, Write
from stepwise._execution import outcomes
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Helper
from stepwise._journal.records import Call, Intent, Outcome, Record
from stepwise._values.buffers import Data
from stepwise._values.codec import Encoded
from stepwise.errors import RunStopped

__all__ = ["Recording", "intend", "record_outcome", "record_settled"]

Recording = Generator[Write, Result, None]


def intend(scope: Scope, call: Call, arguments: Encoded | None = None) -> Recording:
    """Announce a side effect.

    Raises:
        CancelledError: the caller was cancelled meanwhile; the call is recorded as not made.
    """
    active, (payload, form) = scope.run, arguments if arguments is not None else (b"", None)
    _, cancelled = _written(active, (yield Write(active, (Intent(call, form), payload))))
    if cancelled is not None:
        outcome = outcomes.outcome(
            active.codec, call, "cancelled", cancelled, inner=(), attempts=0, clean=True
        )
        yield from record_outcome(scope, outcome, error=cancelled)
        raise cancelled


def record_outcome(
    scope: Scope,
    outcome: tuple[Outcome, Data],
    *,
    error: BaseException | None = None,
    looked: Any = None,
    helper: Helper | None = None,
    awaited: str = "",
) -> Recording:
    """Record how a call ended.

    Args:
        error: what it raised, if it did.
        looked: what its value looked like; see :meth:`ActiveRun.look`.
        helper: through which the workflow made it.
        awaited: see :class:`Outcome`.

    Raises:
        CancelledError: the caller was cancelled meanwhile; the outcome is recorded.
    """
    active, (record, payload) = scope.run, outcome
    if awaited:
        record = record._replace(awaited=awaited)
    durable = record.call.effect or record.status != "cancelled"
    number, cancelled = _written(active, (yield Write(active, (record, payload), durable)))
    active.recorded(scope, number, record, error=error, looked=looked, helper=helper)
    if cancelled is not None:
        # The call's error may be part of the error that ends the run; the call is then retried.
        raise cancelled from (error if record.status == "failed" else None)


def record_settled(active: ActiveRun, settled: tuple[Record, Data]) -> Recording:
    """Record the answer of a ``reconcile`` function, or the decision to skip."""
    _, cancelled = _written(active, (yield Write(active, settled)))
    if cancelled is not None:
        raise cancelled


def _written(active: ActiveRun, result: Result) -> tuple[int, BaseException | None]:
    """Return a record's number, and a cancellation that came meanwhile; a failure stops the run."""
    if isinstance(result.error, RunStopped):
        raise active.stop(result.error) from result.error.__cause__
    if result.value is None:
        result.unwrap()
    number: int = result.value
    return number, result.error
