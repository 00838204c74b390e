"""The end of asynchronous runs before their time, and the error of a run that was cancelled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from stepwise._execution.active_run import ActiveRun
from stepwise._execution.steering import Steering, cancelled_error
from stepwise._journal.journal import Position, facts_of, read_entries
from stepwise._journal.projection import Calls
from stepwise._journal.records import Call, RunFacts
from stepwise._journal.seal import Seal
from stepwise._runtime.messages import shell_word
from stepwise.errors import RunCancelled, RunStopped
from stepwise.stores import Store

__all__ = ["cancelled_before", "steered", "with_doubts"]

_SETTLED = 0.5  # seconds after which a new run is watched: most are shorter
_CAUGHT_UP, _PATIENCE = 0.02, 1.0  # seconds between two looks whether it has caught up; at most
_LONGEST = 15.0  # seconds until a timer looks at the clock again: the machine may have been asleep
_SHOWN = 6  # side effects that a message names


class _Steers:
    """Cancels the task of one asynchronous run once it is to end; called in its event loop."""

    def __init__(self, active: ActiveRun, loop: Any, *, is_new: bool) -> None:
        self._active, self._loop, self._steering = active, loop, active.steering
        self._timer: Any = None
        self._starting: Any = None
        self._began = time.monotonic()
        self._keep_time()
        if self._steering.asked is not None:
            self._loop.call_soon(self._catch_up)
        elif active.parent is None:
            delay = _SETTLED if is_new else 0.0
            self._starting = loop.call_later(delay, self._begin_watching)

    def close(self) -> None:
        for each in (self._timer, self._starting):
            if each is not None:
                each.cancel()
        self._steering.close()

    def _catch_up(self) -> None:
        """Cancel a run that is resumed to unwind, once it is where it was.

        A call that the journal does not answer is refused by itself; this is for code that awaits
        something else there.
        """
        records = list(self._active.pool.all)
        behind = any(each.answers and each.call.unwinding is None for each in records)
        if behind and time.monotonic() - self._began < _PATIENCE:
            self._loop.call_later(_CAUGHT_UP, self._catch_up)
        else:
            self._steering.cancel_task()

    def _keep_time(self) -> None:
        left = self._steering.own_left
        if left is not None and left <= 0:
            self._steering.look()
        elif left is not None:
            self._timer = self._loop.call_later(min(left, _LONGEST), self._keep_time)

    def _begin_watching(self) -> None:
        from stepwise._execution.watching import watcher  # on use: most runs end before

        journal = self._active.journal
        watch = watcher.watch(journal.store, journal.seal, journal.run_id, self._ring)
        self._steering.watch = watch

    def _ring(self) -> None:
        """Called in the watcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed
            self._steering.close()

    def _look(self) -> None:
        with contextlib.suppress(RunStopped):  # a failed write: the run's next call raises it
            if not self._active.ended:
                self._steering.look_into_inbox()


@contextlib.contextmanager
def steered(active: ActiveRun, *, is_new: bool) -> Iterator[None]:
    """Cancel the current task when the run is to end, while the block executes the run in it."""
    import asyncio

    task = asyncio.current_task()
    steers = _Steers(active, asyncio.get_running_loop(), is_new=is_new)
    try:
        yield
    finally:
        steers.close()
        mine: Steering = active.steering
        if mine.asked is not None and mine.told is mine.asked and active.parent is not None:
            uncancel = getattr(task, "uncancel", None)  # Python 3.11: the caller is not cancelled
            if uncancel is not None:
                uncancel()


# -- what a cancelled run says -------------------------------------------------------------------


def cancelled_before(store: Store, seal: Seal, facts: RunFacts, *, says_how: bool) -> RunCancelled:
    """Return the error of a run that was cancelled.

    Args:
        says_how: to take it up again.
    """
    from stepwise._execution.viewer import error_of  # on use: hardly a run is cancelled

    error = error_of(store, seal, facts)
    if not isinstance(error, RunCancelled):  # a summary: its class could not be loaded
        error = cancelled_error(facts.run_id, "somebody", "", facts.updated_at)
    if says_how:
        run = shell_word(facts.run_id)
        ways = (
            f"A cancelled run is resumed only if it is asked for: stepwise resume {run}, or "
            f"stepwise.get_run({facts.run_id!r}).resume(). For a new run: "
            f".options(fresh=True), .options(run_id=...), or: stepwise forget {run}"
        )
        error.args = (f"{error}. {ways}",)
    return error


def with_doubts(active: ActiveRun, error: RunStopped) -> RunStopped:
    """Add the side effects in doubt to the error of a run that is cancelled."""
    journal = active.journal
    found = list(_in_doubt(journal.store, journal.seal, active.facts))
    if found and isinstance(error, RunCancelled) and not error.in_doubt:
        calls = [call for _, call in found[:_SHOWN]]
        told = "; ".join(f"{call.number} {call.name}({call.arguments})" for call in calls)
        error.in_doubt = tuple((run_id, call.number) for run_id, call in found)
        doubts = (
            f"Side effects that may or may not have happened, and are not undone: {told}. They are "
            "listed by: stepwise in-doubt"
        )
        error.args = (f"{error}. {doubts}",)
    return error


def _in_doubt(store: Store, seal: Seal, facts: RunFacts) -> Iterator[tuple[str, Call]]:
    """Yield the calls in doubt of a run and of its child runs, each with the id of its run."""
    calls = Calls(read_entries(store, seal, facts.run_id, Position(facts.pruned, None)))
    for each in calls:
        if each.in_doubt:
            yield facts.run_id, each.call
        child = each.call.child and facts_of(store, seal, each.call.child)
        if child:
            yield from _in_doubt(store, seal, child)
