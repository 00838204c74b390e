"""Execution of a workflow function to its end: plain, coroutine, generator, async generator.

Also the end of an asynchronous run before its time, and the error of a cancelled run.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stepwise._calls.awaitables import check_awaited, noticing_forgotten
from stepwise._calls.driver import Core, Result, drive
from stepwise._checkpoints.given import Surroundings
from stepwise._execution.active_run import (
    ENDINGS,
    ActiveRun,
    Scope,
    Steering,
    cancelled_error,
    current_scope,
    live_runs,
    scope_variable,
)
from stepwise._execution.outcomes import encode_changed, record_arguments, surroundings
from stepwise._execution.tasks import carrier, drain, end_if_drained, joins, look_again, tasks_of
from stepwise._journal.journal import Position, facts_of, read_entries
from stepwise._journal.projection import Calls
from stepwise._journal.records import SUBMITTED, Call, Interrupted, RunFacts, Suspended
from stepwise._journal.seal import Seal
from stepwise._rewrite import Rewritten
from stepwise._runtime import asyncio_state, clock, tracing
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import sigterms
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import notice, reports, shell_word, warn
from stepwise._values.codec import Encoded
from stepwise._values.preview import preview
from stepwise._workflows.definition import Callee
from stepwise.errors import (
    BudgetExceeded,
    LeaseLostError,
    NotRecordableError,
    RunCancelled,
    RunOwnedError,
    RunStopped,
    RunWarning,
    StoreError,
    UnusedRecordWarning,
)
from stepwise.stores import Store

if TYPE_CHECKING:
    from typing_extensions import Self


# -- execute --------------------------------------------------------------------------------------


_LAST_WORDS = 1.0  # seconds
_OUTSIDE = object()


class Invocation(NamedTuple):
    """A call, and the run that is meant by it.

    Args:
        explicit: the run id was chosen by the user.
        fsync: whether an acknowledged record must survive a power cut.
        parent: the run that calls it as a child workflow.
        codec: how its values are recorded; see :class:`stepwise._values.codec.Codec`.
        rewritten: the function that can be entered in the middle; ``None`` if there is none.
        arguments_changed: by an attempt that stopped, in this process.
        meant: says, by the run's facts as they are now (``None`` if it was deleted), whether it is
            still meant; ``None`` if it is, whatever became of it.
        cut_off: if it ended as failed, its caller had not acted on that when the crash came: it
            goes on to the same end, and is not tried again.
        waited: until somebody else had executed it.
        resumes: it is taken up even if it was cancelled.
        timeout: seconds that the run may take since it began.
        anew: somebody asked for a new run.
    """

    callee: Callee
    store: Store
    run_id: str
    explicit: bool
    fsync: bool
    parent: ActiveRun | None = None
    codec: str = ""
    rewritten: Rewritten | None = None
    arguments_changed: bool = False
    meant: Callable[[RunFacts | None], bool] | None = None
    cut_off: bool = False
    waited: bool = False
    resumes: bool = False
    timeout: float | None = None
    anew: bool = False


class Recall(NamedTuple):
    """The recorded result of a completed run.

    Args:
        changed: it changed the objects it was given, and so did the recalling.
    """

    value: Any
    changed: bool = False


class OpenedRun:
    """A run that was taken up, to be executed by ``execute``.

    Args:
        before: the contents of the arguments, encoded.
        is_new: nothing of it had been recorded.

    Attributes:
        changed: it turned out to change the arguments.
    """

    def __init__(self, call: Invocation, active: ActiveRun, before: bytes, is_new: bool) -> None:
        self.call = call
        self.active = active
        self.before = before
        self.is_new = is_new
        self.changed = False

    def run(self) -> Any:
        """Execute the function, from where the run stopped; a generator function gives its items.

        Not if it is a coroutine function: that is awaited, by :meth:`arun`.
        """
        raise NotImplementedError

    async def arun(self) -> Any:
        """Execute a coroutine function."""
        raise NotImplementedError

    def arguments(self) -> Surroundings:
        """The mutable objects that it was called with."""
        callee = self.call.callee
        return surroundings(callee.bound, callee.instance, callee.workflow.function, callee.secret)

    def changed_arguments(self) -> dict[str, str]:
        """Their kinds by name, if they do not hold what they held before; else nothing."""
        around = self.arguments()
        # ``before`` does not cover changes that an earlier attempt made to the same objects.
        changed = self.call.arguments_changed or record_arguments(around) != self.before
        return around.kinds() if changed else {}

    def undo_first(self) -> Core:
        """Finish the undoing at which an attempt before died, so that no half of it stays."""
        active = self.active
        if active.facts.undoing:
            from stepwise._calls.compensation import compensate  # on use: hardly a run is undone

            notice(
                f"{active.run_id}: its side effects were being undone when it stopped; that is "
                "finished first"
            )
            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                raise result.error
            active.facts = active.facts._replace(undoing=False)
            if active.facts.status == "cancelled" and not self.call.resumes:
                store, seal = active.journal.store, active.journal.seal
                return Result(error=cancelled_before(store, seal, active.facts, says_how=True))
        return Result()

    def undo_after(self) -> Core:
        """Undo the side effects of a run that failed or was cancelled, if its workflow asks."""
        active, ended = self.active, ("failed", "cancelled")
        if self.call.callee.compensates and active.facts.status in ended:
            from stepwise._calls.compensation import compensate  # on use

            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                warn(
                    f"run {active.run_id!r} {active.facts.status}, and undoing its side effects "
                    f"failed too: {preview(result.error)}. To undo the others: "
                    f"stepwise.get_run({active.run_id!r}).compensate()",
                    RunWarning,
                )
        return Result()

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record how the attempt ended.

        Args:
            again: what it gave cannot be recalled, only made again (the items of a generator).

        Raises:
            RunStopped: the workflow went on although the run had stopped.
            SystemExit, KeyboardInterrupt: it went on although the process ends, and a call was
                refused for that.
        """
        active = self.active
        if active.stopped is not None:
            if error is active.stopped:
                raise error
            raise active.stopped from error
        refused = active.refused
        if refused is not None and not isinstance(error, type(refused)):
            raise refused from error
        try:
            self.changed = bool(self._record_end(value, error, again=again))
        except MemoryError as problem:
            doing = f"the end of {active.facts.label!r} was recorded"
            raise active.stop(stopped(doing, problem)) from (error or problem)

    def raise_ending(self, error: BaseException) -> None:
        """Raise what the caller gets instead of the error of an attempt that was to end.

        A cancelled task stays one, up to the call of the run that was to end.
        """
        steering = self.active.steering
        ending = steering.ending(error)
        if ending not in (None, error) and (self.active.parent is None or ending is steering.asked):
            assert ending is not None
            raise ending from error

    def _record_end(
        self, value: Any, error: BaseException | None, *, again: bool
    ) -> dict[str, str]:
        """Record the end; return which of its arguments the run changed."""
        active, changed = self.active, dict[str, str]()
        if error is None:
            encoded, changed, why = self._encode(value, again=again)
            active.finish("completed", value, encoded, changed=changed, again=why)
        elif (ending := active.steering.ending(error)) is not None and active.begun:
            if ending is not error and ending.__cause__ is None:
                ending.__cause__ = error
            status: Any = "failed"
            if isinstance(ending, RunCancelled):
                status, ending = "cancelled", with_doubts(active, ending)
            active.finish(status, ending, active.codec.encode_error(ending))
        elif isinstance(error, (Exception, *ENDINGS)) and active.begun and not active.interrupted:
            active.finish("failed", error, active.codec.encode_error(error))
            if active.parent is not None:  # an answer with this error repeats its changes to them
                changed = self.changed_arguments()
        # Otherwise it was interrupted (Ctrl-C, exit, cancelled from outside): no end to record.
        return changed

    def _encode(self, value: Any, *, again: bool) -> tuple[Encoded | None, dict[str, str], str]:
        """Encode the result, with the objects that the run was given and changed.

        Where those cannot be recorded, the result is recorded apart from them: for who looks.

        Returns:
            the result, ``None`` if it cannot be recorded; the changed objects that are recorded
            with it; and why a call of the run makes both anew.
        """
        codec, changed = self.active.codec, {} if again else self.changed_arguments()
        label = self.active.facts.label
        why = "a generator makes its items anew" if again else ""

        def plainly() -> Encoded:
            return codec.encode(
                value, f"the result of {label!r}", self.call.callee.workflow.returns
            )

        if changed:
            try:
                around = self.arguments()
                return encode_changed(codec, value, plainly, around, repr(label)), changed, ""
            except (NotRecordableError, MemoryError) as problem:
                why = str(problem)
        try:
            encoded = plainly()
        except (NotRecordableError, MemoryError) as problem:
            encoded, why = None, str(problem)
        if why and not again:
            warn(
                f"{why}. The run is complete; when it is called again, its journal makes the "
                "result anew",
                RunWarning,
            )
        return encoded, {} if why else changed, why


# -- executing it --------------------------------------------------------------------------------


class _Ownership:
    """A run, from its takeover to the release of its lease."""

    def __init__(self, active: ActiveRun) -> None:
        self.active = active
        self._before: Any = _OUTSIDE  # the scope that was left
        self._leave: Any = None  # what ends the span that was entered

    def __enter__(self) -> Self:
        carrier.__enter__()
        watch_sigterms()
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


async def execute_async_generator(
    begin: Callable[[], Awaitable[None]], taking: AbstractContextManager[object]
) -> AsyncGenerator[Any, Any]:
    """Run an asynchronous generator workflow function; see :func:`execute_generator`.

    Args:
        begin: takes the run up, without blocking the event loop.
        taking: gives the run; what is no ``OpenedRun`` is skipped.
    """
    from stepwise._calls.async_driver import adrive

    await begin()
    with taking as opened:
        if not isinstance(opened, OpenedRun):
            return
        active = opened.active
        active.thread = 0  # between two pieces, the caller's code runs in it
        active.executor = sys._getframe()
        active.awaits = True
        with _Ownership(active) as attempt:
            active.unwinding.enter()
            (await adrive(opened.undo_first())).unwrap()
            generator = opened.run()
            resume: Any
            resume, sent = functools.partial(_unhooked, generator.asend), None
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


def _unhooked(call: Callable[[Any], Awaitable[Any]], sent: Any) -> Awaitable[Any]:
    """Call ``asend`` of a new generator that asyncio is not to close: its run does."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return call(sent)
    finally:
        sys.set_asyncgen_hooks(*hooks)


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


def watch_sigterms() -> None:
    """Watch for SIGTERM, since a run begins; only the main thread can."""
    sigterms.begin(functools.partial(drain, record_end_of_process))


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


def _record(active: ActiveRun, why: str, *, decided: bool) -> None:
    if active.facts.status != "running" or os.getpid() != active.pid:
        return
    at, facts = time.time(), None
    item = Interrupted(why, at, decided=decided, rest=active.rest()), b""
    if decided:
        tally = active.tally(item[0])
        facts = active.facts._replace(status="interrupted", error=why, updated_at=at, tally=tally)
    try:
        active.written(active.journal.append(item, durable=False, head=facts), item)
    except RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    if facts is not None:
        active.facts = facts
        active.tell("run_interrupted", detail=why)
        if why == "Ctrl-C" and active.parent is None:
            notice(f"run {active.run_id} was interrupted by Ctrl-C; run it again to resume")


def _record_suspension(active: ActiveRun) -> None:
    """Record what the run waits for; its lease is given up after that."""
    waits, at = active.suspension or (), clock.now()
    seen = min((each.seen for each in waits if not each.run), default=active.inbox.seen)
    item = Suspended(tuple(map(tuple, waits)), seen, at, active.rest()), b""
    facts = active.facts._replace(
        status="suspended",
        waits=waits,
        seen=seen,
        updated_at=at,
        error="",
        tally=active.tally(item[0]),
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
        from stepwise._journal.log import Bell  # on use: few runs suspend

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


# -- cancelling -----------------------------------------------------------------------------------


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
