"""Execution of a workflow function: plain, coroutine, generator, async generator."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

from stepwise._calls.awaitables import check_awaited, noticing_forgotten
from stepwise._calls.driver import drive
from stepwise._execution.active_run import (
    ActiveRun,
    Scope,
    current_scope,
    live_runs,
    scope_variable,
)
from stepwise._execution.draining import end_if_drained
from stepwise._execution.other_tasks import joins, look_again, tasks_of
from stepwise._execution.outside import carrier
from stepwise._journal.records import SUBMITTED, Interrupted, Suspended
from stepwise._runtime import asyncio_state, clock, tracing
from stepwise._runtime.interrupts import sigterms
from stepwise._runtime.messages import notice, reports, warn
from stepwise._workflows.opening import OpenedRun
from stepwise.errors import (
    BudgetExceeded,
    LeaseLostError,
    RunOwnedError,
    RunStopped,
    RunWarning,
    StoreError,
    UnusedRecordWarning,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "execute",
    "execute_async",
    "execute_async_generator",
    "execute_generator",
    "record_end_of_process",
    "record_interruption",
    "record_submission",
]


_LAST_WORDS = 1.0  # seconds
_OUTSIDE = object()


class _Ownership:
    """A run, from its takeover to the release of its lease."""

    def __init__(self, active: ActiveRun) -> None:
        self.active = active
        self._before: Any = _OUTSIDE  # the scope that was left
        self._leave: Any = None  # what ends the span that was entered

    def __enter__(self) -> Self:
        carrier.__enter__()
        sigterms.begin()
        self._sigterms = sigterms.count
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                told = sigterms.count != self._sigterms
                record_interruption(self.active, error, sigterm=told)
        finally:
            try:
                self.active.close()
                _ring_if_suspended(self.active)
            finally:
                carrier.__exit__()
                if not live_runs:
                    sigterms.end()
                    end_if_drained()

    def enter_scope(self) -> None:
        # What is kept is not the token of the change: Ctrl-C may come between the two.
        self._before = current_scope()
        scope_variable.set(Scope(self.active))
        joins()
        self._leave = tracing.enter(self.active.run_id)

    def leave_scope(self) -> None:
        if self._leave is not None:
            tracing.leave(self._leave)
            self._leave = None
        if self._before is not _OUTSIDE:
            scope_variable.set(self._before)
            self._before = _OUTSIDE


def execute(opened: OpenedRun) -> Any:
    """Run a plain workflow function to its end."""
    active = opened.active
    active.executor = sys._getframe()
    with _Ownership(active) as attempt:
        active.unwinding.enter()
        drive(opened.undo_first()).unwrap()
        try:
            attempt.enter_scope()
            with noticing_forgotten(active):
                value = opened.run()
            check_awaited(active, value)
        except BaseException as error:
            active.flows.join(active.run_id)
            opened.conclude(None, error)
            drive(opened.undo_after())
            opened.raise_ending(error)
            raise
        finally:
            attempt.leave_scope()
        active.flows.join(active.run_id)
        opened.conclude(value)
    report_unused(active)
    return value


# -- coroutines ----------------------------------------------------------------------------------


async def execute_async(opened: OpenedRun) -> Any:
    """Run a coroutine workflow function to its end."""
    from stepwise._calls.async_driver import adrive  # a synchronous program does not load asyncio

    active = opened.active
    with _Ownership(active):
        (await adrive(opened.undo_first())).unwrap()
        try:
            value = await (_in_task(opened) if active.parent is None else _inline(opened))
        except BaseException as error:
            await _end_others(active, tell=False)
            opened.conclude(None, error)
            await adrive(opened.undo_after())
            opened.raise_ending(error)
            raise
        await _end_others(active, tell=True)
        opened.conclude(value)
    report_unused(active)
    return value


async def _inline(opened: OpenedRun) -> Any:
    from stepwise._workflows.cancelling import steered  # on use: a plain function needs it not

    active = opened.active
    active.task, active.executor = asyncio_state.current(), sys._getframe()
    active.awaits = True
    active.unwinding.enter()
    token, left = scope_variable.set(Scope(active)), tracing.enter(active.run_id)
    joins()
    try:
        with steered(active, is_new=opened.is_new), noticing_forgotten(active):
            value = await opened.arun()
        check_awaited(active, value)
        return value
    finally:
        if left is not None:
            tracing.leave(left)
        scope_variable.reset(token)


async def _in_task(opened: OpenedRun) -> Any:
    """Run it in a task of its own, to tell a cancellation of the caller from one inside the run.

    Ctrl-C cancels the caller; a timeout or a task group in the workflow cancels the run's own task.
    During the first, cleanup steps must not run (the run resumes later); during the second they do.
    """
    import asyncio

    active, loop = opened.active, asyncio.get_running_loop()
    active.waiter = waiter = loop.create_future()
    active.task = task = loop.create_task(_held(opened))
    caller = asyncio.current_task()
    if caller is not None:
        task.set_name(caller.get_name())

    def ended(_: object) -> None:
        # ``asyncio.run`` cancels the remaining tasks while the exception that ends it propagates.
        active.ending = sys.exc_info()[1]
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(ended)
    try:
        await waiter
    except asyncio.CancelledError:
        task.cancel()
        await _until_done(task)
        if active.detached:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # lets the callback above run
        raise
    except BaseException:  # the caller's coroutine is closed, so nothing can be awaited
        task.cancel()
        raise
    value, interrupt = task.result()
    if interrupt is not None:
        raise interrupt
    return value


async def _held(opened: OpenedRun) -> tuple[Any, BaseException | None]:
    """Run the call and return its result, or the exception that ends the process, unraised."""
    try:
        # Made in here, since a task that is cancelled before it begins would leave it unawaited.
        return await _inline(opened), None
    except (KeyboardInterrupt, SystemExit) as interrupt:
        return None, interrupt


async def _until_done(task: Any) -> None:
    """Wait for a cancelled task, even if the waiting is cancelled in its turn."""
    import asyncio

    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it as never retrieved


async def _end_others(active: ActiveRun, *, tell: bool) -> None:
    """Cancel and await the tasks that are left, which could not record anything any more.

    Those that close a generator, which nobody else could await, come to their end if the run did.
    """
    import asyncio

    if isinstance(sys.exc_info()[1], GeneratorExit):
        return
    if isinstance(active.stopped, BudgetExceeded):
        with contextlib.suppress(asyncio.CancelledError):
            await _until_recorded(active)
    left = tasks_of(active)
    forgotten = [each for each in left if not (tell and asyncio_state.closes_generator(each))]
    for task in forgotten:
        task.cancel()
    for task in left:
        await _until_done(task)
    if active.flows.others_working():  # threads
        await asyncio.get_running_loop().run_in_executor(None, active.flows.join, active.run_id)
    if forgotten and tell:
        names = ", ".join(task.get_name() for task in forgotten[:5])
        warn(
            f"run {active.run_id!r} ended while {len(forgotten)} of its tasks were still running "
            f"({names}); they were cancelled. Await them, or, if they are not part of the run, "
            "start them under `with stepwise.background():`",
            RunWarning,
        )


async def _until_recorded(active: ActiveRun) -> None:
    """Wait for the steps in flight of a run whose budget is used up: they are paid for."""
    import asyncio

    changed, loop, flows = asyncio.Event(), asyncio.get_running_loop(), active.flows

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    with flows.claims.watching(wake):
        while flows.others_working():
            changed.clear()
            if flows.others_working():
                await changed.wait()


# -- generators: resumed by replay, so that they yield everything again --------------------------


def execute_generator(opened: OpenedRun) -> Generator[Any, Any, Any]:
    """Run a generator workflow function; its scope is entered for each piece of it."""
    active = opened.active
    active.thread = 0  # between two pieces, the caller's code runs in it
    active.executor = sys._getframe()
    with _Ownership(active) as attempt:
        active.unwinding.enter()
        drive(opened.undo_first()).unwrap()
        generator = opened.run()
        resume, sent = generator.send, None
        while True:
            try:
                attempt.enter_scope()
                item = resume(sent)
            except StopIteration as stop:
                value = stop.value
                break
            except BaseException as error:
                opened.conclude(None, error)
                drive(opened.undo_after())
                opened.raise_ending(error)
                raise
            finally:
                attempt.leave_scope()
            with active.account.waiting():  # the caller's code runs
                try:
                    sent, resume = (yield item), generator.send
                except BaseException as error:  # GeneratorExit too: the body unwinds in its scope
                    sent, resume = error, generator.throw
        opened.conclude(value, again=True)
    report_unused(active)
    return value


async def execute_async_generator(opened: OpenedRun) -> AsyncGenerator[Any, Any]:
    """Run an asynchronous generator workflow function; see :func:`execute_generator`."""
    from stepwise._calls.async_driver import adrive

    active = opened.active
    active.thread = 0  # between two pieces, the caller's code runs in it
    active.executor = sys._getframe()
    active.awaits = True
    with _Ownership(active) as attempt:
        active.unwinding.enter()
        (await adrive(opened.undo_first())).unwrap()
        generator = opened.run()
        resume, sent = generator.asend, None
        while True:
            try:
                attempt.enter_scope()
                look_again()  # other tasks may share the caller's context, and see the run now
                item = await resume(sent)
            except StopAsyncIteration:
                break
            except BaseException as error:
                opened.conclude(None, error)
                await adrive(opened.undo_after())
                opened.raise_ending(error)
                raise
            finally:
                attempt.leave_scope()
            with active.account.waiting():
                try:
                    sent, resume = (yield item), generator.asend
                except BaseException as error:
                    sent, resume = error, generator.athrow
        await _end_others(active, tell=True)
        opened.conclude(None, again=True)
    report_unused(active)


# -- how it ended --------------------------------------------------------------------------------


def record_interruption(active: ActiveRun, error: BaseException, *, sigterm: bool = False) -> None:
    """Record that an attempt ended with ``error`` in good order, if the run did not end with it.

    Ctrl-C, a cancellation and a consumer that stops iterating are decisions of somebody who is
    there to call again, so that nothing brings the run back by itself.  Neither does it if a budget
    is used up, which a person has to raise.  An exit, SIGTERM, a closed event loop and another call
    that stops the run are not: the run is shown as ``crashed``, like one that was killed, of which
    nothing is recorded.

    Args:
        sigterm: the process got a SIGTERM, whatever came of it.
    """
    stop = active.stopped
    if active.suspension is not None and active.facts.status == "running":
        _record_suspension(active)
        return
    if isinstance(stop, (StoreError, LeaseLostError, RunOwnedError)):
        return  # nothing can be written, or by another process only
    why = "" if sigterm or stop is not None else _what_interrupted(active, error)
    if isinstance(stop, BudgetExceeded):
        from stepwise._execution.budget import exceeded_text  # on use: for runs with a budget

        why = exceeded_text(stop)
    if why or active.begun:  # else its journal may not even have been read
        _record(active, why or type(stop or error).__name__, decided=bool(why))


def record_submission(active: ActiveRun) -> None:
    """Record that a new run was only put on record: it is no attempt that died."""
    active.write((Interrupted(SUBMITTED, time.time(), decided=False), b""), durable=False)


def record_end_of_process() -> None:
    """Record that the runs in progress do not die, but end with their process, as it was told.

    It does not take long: what cannot be recorded at once is not.
    """

    def record() -> None:
        for active in list(live_runs):
            if active.begun and active.stopped is None:
                _record(active, "SIGTERM", decided=False)

    thread = threading.Thread(target=record, name="stepwise end", daemon=True)
    contextvars.Context().run(thread.start)
    thread.join(_LAST_WORDS)


sigterms.at_end = record_end_of_process


def _record(active: ActiveRun, why: str, *, decided: bool) -> None:
    if active.facts.status != "running" or os.getpid() != active.pid:
        return
    at, facts = time.time(), None
    item = Interrupted(why, at, decided=decided, rest=active.rest()), b""
    if decided:
        facts = active.facts._replace(status="interrupted", error=why, updated_at=at)
    try:
        active.written(active.journal.append(item, durable=False, head=facts), item)
    except RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    if facts is not None:
        active.facts = facts
        active.tell("run_interrupted", detail=why)


def _record_suspension(active: ActiveRun) -> None:
    """Record what the run waits for; its lease is given up after that."""
    waits, at = active.suspension or (), clock.now()
    seen = min((each.seen for each in waits if not each.run), default=active.inbox.seen)
    item = Suspended(tuple(map(tuple, waits)), seen, at, active.rest()), b""
    facts = active.facts._replace(
        status="suspended", waits=waits, seen=seen, updated_at=at, error=""
    )
    try:
        active.written(active.journal.append(item, head=facts), item)
    except RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    active.facts = facts
    from stepwise._execution.suspension import pending  # on use: few runs suspend

    active.tell("run_suspended", detail="; ".join(map(str, pending(facts))))


def _ring_if_suspended(active: ActiveRun) -> None:
    """Wake the processes that continue suspended runs: there is another one."""
    if active.facts.status == "suspended" and active.parent is None:
        from stepwise._journal.bell import Bell  # on use: few runs suspend

        Bell(active.journal.store, active.journal.seal).ring(active.run_id)


def _what_interrupted(active: ActiveRun, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if sys.is_finalizing():
        return ""
    if asyncio_state.is_cancellation(error):
        root = active.root
        if root.detached and root.interrupted:  # its event loop ends: nothing else cancels it
            return "Ctrl-C" if isinstance(root.ending, KeyboardInterrupt) else ""
        return "a cancellation"
    if isinstance(error, GeneratorExit) and active.task is None:
        return "a caller that stopped iterating"
    return ""  # an exit; or the event loop is gone, and its waiters with it


@reports
def report_unused(active: ActiveRun) -> None:
    """Report the recorded calls that a completed run did not call again."""
    unused = active.pool.unused
    effects = [each.call for each in unused if each.may_have_happened]
    plain = Counter(each.call.name for each in unused if not each.may_have_happened)
    if plain:
        told = ", ".join(f"{name} x{count}" for name, count in plain.most_common(6))
        notice(
            f"{active.run_id}: recorded steps that were not called again: {told}. Their results "
            "were not used"
        )
    if effects:
        told = "; ".join(f"{call.number} {call.name}({call.arguments})" for call in effects[:6])
        warn(
            f"run {active.run_id!r} completed without calling these recorded side effects again, "
            f"which happened or may have happened: {told}",
            UnusedRecordWarning,
        )
