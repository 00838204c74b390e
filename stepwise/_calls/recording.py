"""The records of a call, written: its intent, its outcome, its failure, an answer about it.

They are generators: the write is an operation that they yield, so that synchronous callers wait
for the disk, and an event loop goes on meanwhile.  When one returns, its record is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from stepwise._calls.driver import Operation, Result, Write, written
from stepwise._execution.active_run import Scope
from stepwise._execution.location import Helper
from stepwise._execution.outcomes import outcome
from stepwise._execution.steering import ENDINGS
from stepwise._journal.records import Call, Intent, Outcome, Settled, StepStatus
from stepwise._journal.spending import Sums
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import notice
from stepwise._values.buffers import Data
from stepwise._values.codec import Encoded
from stepwise.errors import NotRecordableError, RunStopped

if TYPE_CHECKING:
    from stepwise._execution.call_changes import Recorded

__all__ = ["record_failure", "record_intent", "record_outcome", "record_settled"]

Recording = Generator[Operation, Result, None]


def record_intent(scope: Scope, call: Call, arguments: Encoded | None, ticket: str) -> Recording:
    """Announce a side effect.

    Raises:
        CancelledError: the caller was cancelled meanwhile; the call is recorded as not made.
    """
    active, (payload, form) = scope.run, arguments if arguments is not None else (b"", None)
    write = Write(active, (Intent(call, form, ticket), payload))
    number, cancelled = written(active, (yield write))
    if scope.around:
        active.inner.wrote(scope.around, call, number)
    if cancelled is not None:
        record = outcome(
            active.codec, call, "cancelled", cancelled, inner=(), attempts=0, clean=True
        )
        yield from record_outcome(scope, record, error=cancelled)
        raise cancelled


def record_outcome(
    scope: Scope,
    outcome: tuple[Outcome, Data],
    *,
    error: BaseException | None = None,
    looked: Any = None,
    helper: Helper | None = None,
    awaited: str = "",
    child: Sums | None = None,
) -> Recording:
    """Record how a call ended.

    Args:
        error: what it raised, if it did.
        looked: what its value looked like; see :meth:`ActiveRun.look`.
        helper: through which the workflow made it.
        awaited: see :class:`Outcome`.
        child: what a child run has spent; see :meth:`Performer.child_spent`.

    Raises:
        CancelledError: the caller was cancelled meanwhile; the outcome is recorded.
    """
    active, (record, payload) = scope.run, outcome
    if awaited:
        record = record._replace(awaited=awaited)
    spent = active.account.spent_by(record, child)
    if spent:
        record = record._replace(spent=spent)
    durable = record.call.effect or record.status != "cancelled"
    # A caller that is cancelled while it takes a message would lose it.
    write = Write(active, (record, payload), durable, at_once=bool(record.message))
    number, cancelled = written(active, (yield write))
    active.recorded(scope, number, record, error=error, looked=looked, helper=helper)
    if cancelled is not None:
        # The call's error may be part of the error that ends the run; the call is then retried.
        raise cancelled from (error if record.status == "failed" else None)


def record_settled(scope: Scope, call: Call, settled: tuple[Settled, Data]) -> Recording:
    """Record the answer of a ``reconcile`` function, or the decision to skip."""
    number, cancelled = written(scope.run, (yield Write(scope.run, settled)))
    scope.run.account.settled(settled[0])
    if scope.around:
        scope.run.inner.wrote(scope.around, call, number)
    if cancelled is not None:
        raise cancelled


def record_failure(
    scope: Scope,
    inner: Scope,
    result: Result,
    changes: Callable[[], Recorded | None] | None,
    *,
    clean: bool,
    helper: Helper | None,
    child: Sums | None = None,
) -> Recording:
    """Record the exception of a call, unless it stops the run.

    Args:
        inner: the scope of its last attempt.
        changes: returns what it changed in what it was given, and warns of what cannot be recorded:
            only for a call that gets an outcome.
        helper: through which the workflow made it.
        child: what a child run has spent.
    """
    active, call, error = scope.run, inner.call, result.error
    assert call is not None and error is not None  # noqa: PT018
    if isinstance(error, RunStopped) and not isinstance(error, ENDINGS):
        active.stop(error)
    elif isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) or active.interrupted:
        active.account.cut_off = True  # the call has no outcome: it runs again, or is in doubt
    elif active.suspension is not None and asyncio_state.is_cancellation(error):
        pass  # nobody wanted that: its task is one of the others of a run that suspends
    else:
        cancelled = asyncio_state.is_cancellation(error) or active.steering.ending(error)
        status: StepStatus = "cancelled" if cancelled else "failed"
        if status == "failed":
            from stepwise._calls.retrying import fail_attempt  # on use

            yield from fail_attempt(inner, error)
        try:
            record = outcome(
                active.codec,
                call,
                status,
                error,
                inner=inner.inner,
                attempts=inner.attempt,
                clean=clean,
                changes=changes() if changes is not None else None,
            )
        except NotRecordableError as problem:  # the call stays open
            notice(f"run {active.run_id}: how {call.name} failed is not recorded, since {problem}")
            return
        yield from record_outcome(
            scope, record, error=error, helper=helper, awaited=result.awaited, child=child
        )
