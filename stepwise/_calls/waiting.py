"""A call that waits: for a time, for a signal, for a person.

The record :class:`Waiting` is durable before anything is waited for, so that a resumed run goes on
with the end, and the ticket, that the wait began with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from stepwise._calls.driver import Result, Wait, Write, written
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.suspension import seconds_to_suspension, suspend
from stepwise._execution.waits import Parked
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, RunWait, Waiting
from stepwise._runtime import asyncio_state
from stepwise._runtime.clock import End
from stepwise._values.buffers import Data
from stepwise.errors import ConfigurationError

if TYPE_CHECKING:
    from stepwise._execution.waits import Closes

__all__ = ["Look", "check_may_wait", "waited"]

Look = Callable[[Waiting], Result | None]
"""Returns what a call waits for, once it is there; it is given the wait as it began."""

_LONGEST = 15.0  # seconds until a waiting call looks at the clock again: somebody may have set it


def check_may_wait(scope: Scope, what: str) -> None:
    """Refuse a call that waits inside a step.

    Raises:
        ConfigurationError: it is made there.
    """
    if scope.call is not None:
        raise ConfigurationError(
            f"{what} was called inside {scope.call.name!r}, whose body would run again as a whole: "
            "a step cannot wait. Call it in the workflow's own code, between two steps"
        )


def waited(
    scope: Scope,
    call: Call,
    waiting: Waiting,
    look: Look,
    recorded: RecordedCall | None = None,
    payload: Data = b"",
) -> Generator[Wait | Write, Result, Result | None]:
    """Wait until ``look`` returns a result; ``None`` if the time is over before.

    A cancellation or a Ctrl-C is a result with that error.

    Args:
        waiting: the wait as it begins now.  If it is in progress since an earlier attempt, it keeps
            its beginning, its ticket, and its end, unless that would be earlier now.
        look: called at the beginning, and each time the call was woken: by a message for the run,
            by the clock, by ``active.flows.change()``.
        recorded: the recorded call that this one continues.
        payload: of the record.
    """
    active, known = scope.run, recorded.wait if recorded is not None else None
    if known is not None:
        waiting = _continued(waiting, known)
    if known is None or waiting != known:
        _, cancelled = written(active, (yield Write(active, (waiting, payload))))
        if cancelled is not None:
            return Result(error=cancelled)
    end, bell = End.of(waiting.until, waiting.seconds), active.flows.parked
    wait = RunWait(
        call.number, waiting.kind, waiting.name, waiting.until, waiting.at, waiting.ticket
    )
    parked = Parked(wait, end, asyncio_state.who())
    with active.waits.parked(parked, lambda: _watch(active)), active.account.waiting():
        active.tell("step_waiting", call, wait.text)
        while True:
            seen = bell.changes
            active.check(call.name)
            found = look(waiting)
            if found is not None:
                return found
            left = end.left()
            if left is not None and left <= 0:
                return None
            staying = seconds_to_suspension(active)
            if staying <= 0:
                suspend(active)
                continue
            ahead = min(_LONGEST, staying, _LONGEST if left is None else left)
            woken = yield Wait(bell, seen, active.steering.patience(ahead))
            if woken.error is not None:
                return woken


def _watch(active: ActiveRun) -> Closes:
    """Wake the calls that wait when something may have come for the run."""
    from stepwise._execution.watching import watcher  # on use: few programs wait

    def ring() -> None:
        active.inbox.ring()
        active.steering.look_soon()
        active.flows.parked.ring()

    journal = active.journal
    return watcher.watch(journal.store, journal.seal, active.run_id, ring)


def _continued(waiting: Waiting, known: Waiting) -> Waiting:
    """Return the wait in progress, with an earlier end if the code asks for one now."""
    ends = [each.until for each in (known, waiting) if each.until is not None]
    lengths = [each.seconds for each in (known, waiting) if each.seconds is not None]
    return known._replace(
        until=min(ends, default=None),
        seconds=min(lengths, default=None),
        ticket=known.ticket or waiting.ticket,  # a fork asks anew
        schema=waiting.schema,
    )
