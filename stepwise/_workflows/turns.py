"""A call of a run that somebody else is executing: refuse it, or wait until the run is free.

The waiting yields operations like a call of a step, so that a thread sleeps and a task awaits.  The
owner may be another process, which rings no bell here: so the lease is looked at, ever less often.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from stepwise._calls.driver import Core, Result, Sleep
from stepwise._execution.active_run import ActiveRun, current_scope, live_runs
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import describe_owner
from stepwise._journal.records import RunFacts
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import notice
from stepwise.errors import RunBusyError, RunOwnedError, RunSkipped
from stepwise.stores import Store

__all__ = ["OnOwned", "live_run", "turn"]

OnOwned = Literal["raise", "wait", "skip"]

_SHORTEST, _LONGEST = 0.01, 0.5  # seconds between two looks

_waiting: list[tuple[ActiveRun, str]] = []  # runs that wait for another one, by its id


def turn(
    take: Callable[[bool], Any],
    store: Store,
    run_id: str,
    on_owned: OnOwned,
    *,
    blocks: bool,
    waits: Callable[[], None] | None = None,
) -> Core:
    """Take a run up as soon as nobody else executes it.

    Args:
        take: takes it up; it gets whether another execution was waited for.
        blocks: the thread sleeps meanwhile, and with it the event loop that it may be running.
        waits: called before each pause.

    Raises:
        RunSkipped: somebody executes it, and ``on_owned`` is ``"skip"``.
        RunBusyError, RunOwnedError: somebody executes it, and it is ``"raise"``; or the owner waits
            for this caller.
        BaseException: the owner failed with it.
    """
    waited, seal = False, seal_for(store)
    while True:
        try:
            return Result(take(waited))
        except (RunBusyError, RunOwnedError) as error:
            if error.run_id != run_id or on_owned == "raise":
                raise
            busy = error
        if on_owned == "skip":
            raise RunSkipped(
                f"run {run_id!r} is being executed {describe_owner(busy.owner)}, and "
                "on_owned='skip' leaves the run alone",
                run_id=run_id,
                owner=busy.owner,
            ) from None
        if not waited:
            before, waited = facts_of(store, seal, run_id), True
            notice(f"{run_id}: waits, since it is being executed {describe_owner(busy.owner)}")
        with _noted(run_id):
            for pause in _until_free(store, run_id, busy, blocks=blocks):
                if waits is not None:
                    waits()
                yield Sleep(pause)
        after = facts_of(store, seal, run_id)
        if after is not None and after.status == "failed" and not _same_end(before, after):
            from stepwise._execution.viewer import error_of  # on use: few programs wait

            failure = error_of(store, seal, after)
            if failure is not None:
                raise failure


def _until_free(
    store: Store, run_id: str, busy: RunBusyError | RunOwnedError, *, blocks: bool
) -> Iterator[float]:
    pause = _SHORTEST
    while True:
        if _waits_for_caller(store, run_id, blocks=blocks):
            raise type(busy)(
                f"run {run_id!r} is being executed {describe_owner(busy.owner)}, which waits for "
                "the caller: on_owned='wait' would wait forever. Call another run there: "
                ".options(run_id=...)",
                run_id=run_id,
                owner=busy.owner,
            )
        if store.owner(run_id) is None:
            return
        yield pause
        pause = min(1.5 * pause, _LONGEST)


# -- the owner may be waiting for the caller -----------------------------------------------------


@contextmanager
def _noted(run_id: str) -> Iterator[None]:
    """Note that the caller's run waits for another run while the block runs."""
    scope = current_scope()
    entry = (scope.run, run_id) if scope is not None else None
    if entry is not None:
        _waiting.append(entry)
    try:
        yield
    finally:
        if entry is not None:
            _waiting.remove(entry)


def _waits_for_caller(store: Store, run_id: str, *, blocks: bool) -> bool:
    owner = live_run(store, run_id)
    if owner is None:
        return False  # the owner is in another process
    scope = current_scope()
    mine = set(scope.run.lineage()) if scope is not None else set()
    if mine and any(run in mine for run in _held_up_by(owner)):
        return True
    here = threading.get_ident()
    if owner.home == here and (blocks or owner.unwinding.main == asyncio_state.who()):
        return True
    me = asyncio_state.current()
    return me is not None and _awaits(owner.task, me)


def live_run(store: Store, run_id: str) -> ActiveRun | None:
    pid = os.getpid()  # runs inherited by a fork are not alive here
    for active in list(live_runs):
        if (active.run_id, active.pid) == (run_id, pid) and active.journal.store is store:
            return active
    return None


def _held_up_by(owner: ActiveRun) -> Iterator[ActiveRun]:
    """The run, those that it or its child runs wait for, and so on."""
    todo, seen = [owner], set[ActiveRun]()
    while todo:
        run = todo.pop()
        if run in seen:
            continue
        seen.add(run)
        yield run
        for waiting, run_id in _waiting:
            awaited = live_run(waiting.journal.store, run_id)
            if awaited is not None and run in waiting.lineage():
                todo.append(awaited)


def _awaits(future: Any, task: Any) -> bool:
    """Return whether an asyncio future waits for a task: directly, or by ``gather``."""
    while future is not None and future is not task:
        if any(_awaits(each, task) for each in getattr(future, "_children", ())):
            return True
        future = getattr(future, "_fut_waiter", None)
    return future is not None


# -- how the owner's attempt ended ---------------------------------------------------------------


def _same_end(before: RunFacts | None, after: RunFacts) -> bool:
    return before is not None and (before.status, before.end) == (after.status, after.end)
