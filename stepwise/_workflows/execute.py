"""Execution of a workflow function to its end: plain, coroutine, generator, async generator.

Also the cancellation and timeout of asynchronous runs, and the error of a cancelled run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from stepwise import errors
from stepwise._calls.awaitables import check_awaited, noticing_forgotten
from stepwise._calls.driver import Core, Result, drive
from stepwise._checkpoints.variables import Surroundings, dump_arguments
from stepwise._execution import active_run
from stepwise._execution.outcomes import encode_changed
from stepwise._execution.process_memory import look_at_code_again
from stepwise._execution.tasks import carrier, drain, end_if_drained, look_again, tasks_of
from stepwise._journal.journal import entries_of, facts_of
from stepwise._journal.projection import Calls
from stepwise._journal.records import SUBMITTED, Call, Interrupted, RunFacts, Suspended
from stepwise._journal.seal import Seal
from stepwise._rewrite.frame import Rewritten
from stepwise._runtime import asyncio_state, clock, observers
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import start_apart
from stepwise._runtime.interrupts import sigterms
from stepwise._runtime.messages import kernel_shell, notice, reports, shell_word, warn
from stepwise._runtime.system_limits import stopped
from stepwise._values.codec import Encoded
from stepwise._values.preview import preview
from stepwise._workflows.definition import Callee
from stepwise.stores import Store

if TYPE_CHECKING:
    from typing_extensions import Self


# -- execute --------------------------------------------------------------------------------------


_LAST_WORDS = 1.0  # seconds that the last records may take when the process ends
_OUTSIDE = object()


class Invocation(NamedTuple):
    """A call of a workflow, and the run that the call refers to.

    Args:
        explicit: whether the user chose the run id.
        fsync: whether an acknowledged record must survive a power cut.
        parent: the run that calls this one as a child workflow.
        codec: how the run's values are recorded; see :class:`stepwise._values.codec.Codec`.
        rewritten: the function that can be entered in the middle; ``None`` if there is none.
        arguments_changed: whether a stopped attempt in this process changed the arguments.
        meant: decides from the run's current facts whether the call still refers to the run;
            ``None`` if the call does so in any case.
        recorded: whether the call continues a run that was recorded, and begins none if that run
            was deleted since.
        cut_off: whether a crash cut off the caller before it acted on the run's end: a failed run
            then continues to the same end, and is not retried.
        waited: whether the caller waited while the run was executed elsewhere.
        resumes: whether the run is taken up even if it was cancelled.
        timeout: seconds that the run may take since its start.
        anew: whether the user asked for a new run.
        needs_turn: whether the run may not be taken up yet, since other runs of the workflow are.
    """

    callee: Callee
    store: Store
    run_id: str
    explicit: bool
    fsync: bool
    parent: active_run.ActiveRun | None = None
    codec: str = ""
    rewritten: Rewritten | None = None
    arguments_changed: bool = False
    meant: Callable[[RunFacts], bool] | None = None
    recorded: bool = False
    cut_off: bool = False
    waited: bool = False
    resumes: bool = False
    timeout: float | None = None
    anew: bool = False
    needs_turn: bool = False


class Recall(NamedTuple):
    """The recorded result of a completed run.

    Args:
        changed: whether the run changed its arguments; recalling the result repeated the changes.
    """

    value: Any
    changed: bool = False


class OpenedRun:
    """A run that this process has taken up, ready for :func:`execute`.

    Args:
        before: the encoded contents of the arguments before the run.
        is_new: whether nothing of the run had been recorded.

    Attributes:
        changed: true if the run turned out to change the arguments.
    """

    def __init__(
        self, call: Invocation, active: active_run.ActiveRun, before: bytes, is_new: bool
    ) -> None:
        self.call = call
        self.active = active
        self.before = before
        self.is_new = is_new
        self.changed = False

    def run(self) -> Any:
        """Execute the function from where the run stopped; a generator function gives a generator.

        A coroutine function is executed by :meth:`arun` instead.
        """
        raise NotImplementedError

    async def arun(self) -> Any:
        """Execute a coroutine function from where the run stopped."""
        raise NotImplementedError

    def arguments(self) -> Surroundings:
        """Return the surroundings with the mutable objects that were passed to the call."""
        callee = self.call.callee
        function = callee.workflow.function
        return Surroundings.of_call(callee.bound, callee.instance, function, callee.secret)

    def changed_arguments(self) -> dict[str, str]:
        """Return the kinds of the arguments by name if any contents changed, else an empty dict."""
        around = self.arguments()
        # ``before`` does not cover changes that an earlier attempt made to the same objects.
        changed = self.call.arguments_changed or dump_arguments(around) != self.before
        return around.kinds() if changed else {}

    def undo_first(self) -> Core:
        """Finish a compensation that an earlier attempt left half done.

        Return an error if the run was cancelled and the call does not resume cancelled runs.

        Raises:
            CodeChangedError: a step was edited, and a person has to say what becomes of its
                recorded results.
        """
        active = self.active
        if kernel_shell() is not None:
            look_at_code_again()
        if not self.is_new:
            from stepwise._calls.edits import take_up  # on use: a new run has no older results

            take_up(active)
        if active.facts.undoing:
            from stepwise._calls.compensation import compensate  # on use: few runs are undone

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

    def _undo_after(self) -> Core:
        """Undo the side effects of a failed or cancelled run if its workflow asks for that."""
        active, ended = self.active, ("failed", "cancelled")
        if self.call.callee.options.compensate_on_failure and active.facts.status in ended:
            from stepwise._calls.compensation import compensate  # on use

            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                warn(
                    f"run {active.run_id!r} {active.facts.status}, and undoing its side effects "
                    f"failed too: {preview(result.error)}. To undo the others: "
                    f"stepwise.get_run({active.run_id!r}).compensate()",
                    errors.RunWarning,
                )
        return Result()

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record how the attempt ended.

        Args:
            again: whether the result cannot be recalled, only made again (items of a generator).

        Raises:
            RunStopped: the workflow continued although the run had stopped.
            SystemExit, KeyboardInterrupt: the workflow continued although the process is ending and
                a call was refused because of that.
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

    def failed(self, error: BaseException) -> Core:
        """Record that the attempt ended with ``error``, and undo what the workflow wants undone.

        Raises:
            BaseException: the error of the request to end; see :meth:`_raise_ending`.
        """
        self.conclude(None, error)
        yield from self._undo_after()
        self._raise_ending(error)
        return Result()

    def _raise_ending(self, error: BaseException) -> None:
        """Raise the error of the request to end, if ``error`` results from such a request.

        In a child run the task stays cancelled, up to the call of the run that was asked to end.
        """
        steering = self.active.steering
        ending = steering.ending(error)
        if ending not in (None, error) and (self.active.parent is None or ending is steering.asked):
            assert ending is not None
            raise ending from error

    def _record_end(
        self, value: Any, error: BaseException | None, *, again: bool
    ) -> dict[str, str]:
        """Record the end; return the kinds of the arguments by name if the run changed any."""
        active, changed = self.active, dict[str, str]()
        if error is None:
            encoded, changed, why = self._encode(value, again=again)
            active.finish("completed", value, encoded, changed=changed, again=why)
        elif (ending := active.steering.ending(error)) is not None and active.begun:
            if ending is not error and ending.__cause__ is None:
                ending.__cause__ = error
            status: Any = "failed"
            if isinstance(ending, errors.RunCancelled):
                status, ending = "cancelled", with_doubts(active, ending)
            active.finish(status, ending, active.codec.encode_error(ending))
        elif (
            isinstance(error, (Exception, *active_run.ENDINGS))
            and active.begun
            and not active.interrupted
        ):
            active.finish("failed", error, active.codec.encode_error(error))
            if active.parent is not None:  # recalling this error repeats the changes to arguments
                changed = self.changed_arguments()
        # Otherwise the run was interrupted (Ctrl-C, exit, cancelled from outside) and did not end.
        return changed

    def _encode(self, value: Any, *, again: bool) -> tuple[Encoded | None, dict[str, str], str]:
        """Encode the result together with the arguments that the run changed.

        If these cannot be recorded, the result is recorded alone, for users who inspect the run.

        Returns:
            the encoded result, ``None`` if it cannot be recorded; the kinds of the arguments
            recorded with the result; and why another call of the run makes both anew, or ``""``.
        """
        codec, changed = self.active.codec, {} if again else self.changed_arguments()
        label = self.active.facts.label
        why = "a generator makes its items anew" if again else ""

        def plainly() -> Encoded:
            kind = self.call.callee.workflow.returns
            return codec.encode(value, f"the result of {label!r}", kind)

        if changed:
            try:
                around = self.arguments()
                return encode_changed(codec, value, plainly, around, repr(label)), changed, ""
            except (errors.NotRecordableError, MemoryError) as problem:
                why = str(problem)
        try:
            encoded = plainly()
        except (errors.NotRecordableError, MemoryError) as problem:
            encoded, why = None, str(problem)
        if why and not again:
            warn(
                f"{why}. The run is complete; when it is called again, its journal makes the "
                "result anew",
                errors.RunWarning,
            )
        return encoded, {} if why else changed, why


# -- executing it --------------------------------------------------------------------------------


class _Ownership:
    """The context of an attempt, from the takeover of its run to the release of the lease."""

    def __init__(self, active: active_run.ActiveRun) -> None:
        self.active = active
        self._before: Any = _OUTSIDE  # the scope to return to
        self._leave: Any = None  # ends the tracing span that was entered

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
                if not active_run.live_runs:
                    sigterms.end()
                    end_if_drained()

    def enter_scope(self) -> None:
        # Keep the scope, not the token of the change: a Ctrl-C could come before it is stored.
        self._before = active_run.current_scope()
        active_run.scope_variable.set(active_run.Scope(self.active))
        active_run.joins()
        self._leave = observers.enter_run(self.active.run_id)

    def leave_scope(self) -> None:
        if self._leave is not None:
            observers.leave(self._leave)
            self._leave = None
        if self._before is not _OUTSIDE:
            active_run.scope_variable.set(self._before)
            self._before = _OUTSIDE


def execute(opened: OpenedRun) -> Any:
    """Run a plain workflow function to its end, and return its value."""
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
            drive(opened.failed(error))
            raise
        finally:
            attempt.leave_scope()
        active.flows.join(active.run_id)
        opened.conclude(value)
    report_unused(active)
    return value


# -- coroutines ----------------------------------------------------------------------------------


async def execute_async(opened: OpenedRun) -> Any:
    """Run a coroutine workflow function to its end, and return its value."""
    from stepwise._calls.async_driver import adrive  # a synchronous program does not load asyncio

    active = opened.active
    with _Ownership(active) as attempt:
        (await adrive(opened.undo_first())).unwrap()
        try:
            execution = _in_task if active.parent is None else _inline
            value = await execution(opened, attempt)
        except BaseException as error:
            await _end_others(active, tell=False)
            await adrive(opened.failed(error))
            raise
        await _end_others(active, tell=True)
        opened.conclude(value)
    report_unused(active)
    return value


async def _inline(opened: OpenedRun, attempt: _Ownership) -> Any:
    active = opened.active
    active.task, active.executor = asyncio_state.current(), sys._getframe()
    active.awaits = True
    active.unwinding.enter()
    attempt.enter_scope()
    try:
        with _Steered(active, is_new=opened.is_new), noticing_forgotten(active):
            value = await opened.arun()
        check_awaited(active, value)
        return value
    finally:
        attempt.leave_scope()


async def _in_task(opened: OpenedRun, attempt: _Ownership) -> Any:
    """Run the workflow in a separate task, to distinguish cancellations of the caller and the run.

    Ctrl-C cancels the caller; a timeout or a task group in the workflow cancels the run's own task.
    If the caller is cancelled, cleanup steps must not run, since the run resumes later.  If the
    run's own task is cancelled, they do run.
    """
    import asyncio

    active, loop = opened.active, asyncio.get_running_loop()
    active.waiter = waiter = loop.create_future()
    active.task = task = loop.create_task(_held(opened, attempt))
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


async def _held(opened: OpenedRun, attempt: _Ownership) -> tuple[Any, BaseException | None]:
    """Run the call and return its result, or the exception that ends the process, unraised."""
    try:
        # Created here: a task cancelled before it begins would leave the coroutine unawaited.
        return await _inline(opened, attempt), None
    except (KeyboardInterrupt, SystemExit) as interrupt:
        return None, interrupt


async def _until_done(task: Any) -> None:
    """Wait for a cancelled task, even if the waiting itself is cancelled."""
    import asyncio

    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it as never retrieved


async def _end_others(active: active_run.ActiveRun, *, tell: bool) -> None:
    """Cancel and await the remaining tasks, which could not record anything any more.

    If the run ended normally (``tell``), tasks that close a generator are awaited without being
    cancelled, since no other code could await them.
    """
    import asyncio

    if isinstance(sys.exc_info()[1], GeneratorExit):
        return
    if isinstance(active.stopped, errors.BudgetExceeded):
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
            errors.RunWarning,
        )


async def _until_recorded(active: active_run.ActiveRun) -> None:
    """Wait for the steps in flight of a run whose budget is used up: they are already paid for."""
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
    """Run a generator workflow function, with the run's scope entered only while its code runs."""
    from stepwise._calls.emitting import emit_item  # on use: most workflows are no generators

    active = opened.active
    active.thread = 0  # between two items, the caller's code runs in the thread
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
                drive(opened.failed(error))
                raise
            finally:
                attempt.leave_scope()
            emit_item(active, item)
            with active.account.waiting():  # the caller's code runs
                try:
                    sent, resume = (yield item), generator.send
                except BaseException as error:  # GeneratorExit too: the body unwinds in its scope
                    sent, resume = error, generator.throw
        opened.conclude(value, again=True)
    report_unused(active)
    return value


async def execute_async_generator(taking: Any) -> AsyncGenerator[Any, Any]:
    """Run an asynchronous generator workflow function; see :func:`execute_generator`.

    Args:
        taking: a context manager that gives the run; anything but an ``OpenedRun`` yields no items.
            Its ``begin()`` takes up the run, without blocking the event loop.
    """
    from stepwise._calls.async_driver import adrive
    from stepwise._calls.emitting import emit_item

    await taking.begin()
    with taking as opened:
        if not isinstance(opened, OpenedRun):
            return
        active = opened.active
        active.thread = 0  # between two items, the caller's code runs in the thread
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
                    look_again()  # other tasks may share the caller's context, and now see the run
                    item = await resume(sent)
                except StopAsyncIteration:
                    break
                except BaseException as error:
                    await adrive(opened.failed(error))
                    raise
                finally:
                    attempt.leave_scope()
                emit_item(active, item)
                with active.account.waiting():
                    try:
                        sent, resume = (yield item), generator.asend
                    except BaseException as error:
                        sent, resume = error, generator.athrow
            await _end_others(active, tell=True)
            opened.conclude(None, again=True)
        report_unused(active)


def _unhooked(call: Callable[[Any], Awaitable[Any]], sent: Any) -> Awaitable[Any]:
    """Call ``asend`` of a generator so that asyncio never closes the generator: its run does."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return call(sent)
    finally:
        sys.set_asyncgen_hooks(*hooks)


# -- how it ended --------------------------------------------------------------------------------


def record_interruption(
    active: active_run.ActiveRun, error: BaseException, *, sigterm: bool = False
) -> None:
    """Record that an attempt ended in good order with ``error``, but that the run did not end.

    Ctrl-C, a cancellation and a consumer that stops iterating are decisions of the caller, who can
    call again.  Such a run is *interrupted*, and nothing resumes it automatically.  The same holds
    for a used-up budget, which a person has to raise.  An exit, SIGTERM, a closed event loop and a
    call that stops the run for another reason are not decisions.  Then the run is shown as
    ``crashed``, like a killed run, for which nothing is recorded.

    Args:
        sigterm: whether the process got a SIGTERM during the attempt, with whatever result.
    """
    stop = active.stopped
    if active.suspension is not None and active.facts.status == "running":
        _record_suspension(active)
        return
    if isinstance(stop, (errors.StoreError, errors.LeaseLostError, errors.RunOwnedError)):
        return  # no process can write now, or only another process may
    why = "" if sigterm or stop is not None else _what_interrupted(active, error)
    if isinstance(stop, errors.BudgetExceeded):
        from stepwise._execution.budget import exceeded_text  # on use: for runs with a budget

        why = exceeded_text(stop)
    if isinstance(stop, errors.EffectRefusedError):
        why = f"refused: {stop.name}({stop.arguments})"
    if why or active.begun:  # else the journal may not even have been read
        _record(active, why or type(stop or error).__name__, decided=bool(why))


def record_submission(active: active_run.ActiveRun) -> None:
    """Record that a new run was only submitted, so that it does not count as a crashed attempt."""
    active.write((Interrupted(SUBMITTED, time.time(), decided=False), b""), durable=False)


def watch_sigterms() -> None:
    """Handle SIGTERM from the start of a run on; only the main thread can set this up."""
    sigterms.begin(functools.partial(drain, record_end_of_process))


def record_end_of_process() -> None:
    """Record that SIGTERM ended the runs in progress, so that they do not count as died.

    The call takes at most ``_LAST_WORDS`` seconds; the process does not wait for later records.
    """

    def record() -> None:
        for active in list(active_run.live_runs):
            if active.begun and active.stopped is None:
                _record(active, "SIGTERM", decided=False)

    thread = threading.Thread(target=record, name="stepwise end")
    start_apart(thread)
    thread.join(_LAST_WORDS)


def _record(active: active_run.ActiveRun, why: str, *, decided: bool) -> None:
    if active.facts.status != "running" or os.getpid() != active.pid:
        return
    at, facts = time.time(), None
    item = Interrupted(why, at, decided=decided, rest=active.rest()), b""
    if decided:
        tally = active.summary.closing(item[0])
        facts = active.facts._replace(status="interrupted", error=why, updated_at=at, tally=tally)
    try:
        active.summary.note(active.journal.append(item, durable=False, head=facts), (item,))
    except errors.RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    if facts is not None:
        active.facts = facts
        active.tell("run_interrupted", detail=why)
        if why == "Ctrl-C" and active.parent is None:
            notice(f"run {active.run_id} was interrupted by Ctrl-C; run it again to resume")


def _record_suspension(active: active_run.ActiveRun) -> None:
    """Record what the run waits for, before its lease is released."""
    waits, at = active.suspension or (), clock.now()
    seen = min((each.seen for each in waits if not each.run), default=active.inbox.seen)
    item = Suspended(tuple(map(tuple, waits)), seen, at, active.rest()), b""
    facts = active.facts._replace(
        status="suspended",
        waits=waits,
        seen=seen,
        updated_at=at,
        error="",
        tally=active.summary.closing(item[0]),
    )
    try:
        active.summary.note(active.journal.append(item, head=facts), (item,))
    except errors.RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    active.facts = facts
    from stepwise._execution.suspension import pending  # on use: few runs suspend

    active.tell("run_suspended", detail="; ".join(map(str, pending(facts))))


def _ring_if_suspended(active: active_run.ActiveRun) -> None:
    """Wake the processes that continue suspended runs if this run is suspended."""
    if active.facts.status == "suspended" and active.parent is None:
        from stepwise._journal.logs import Bell  # on use: few runs suspend

        Bell(active.journal.store, active.journal.seal).ring(active.run_id)


def _what_interrupted(active: active_run.ActiveRun, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return _keyboard(error)
    if sys.is_finalizing():
        return ""
    if asyncio_state.is_cancellation(error):
        root = active.root
        if root.detached and root.interrupted:  # only the end of the event loop cancels such a run
            return _keyboard(root.ending) if isinstance(root.ending, KeyboardInterrupt) else ""
        return "a cancellation"
    if isinstance(error, GeneratorExit) and active.task is None:
        return "a caller that stopped iterating"
    return ""  # an exit, or the event loop is gone with its waiters


def _keyboard(error: KeyboardInterrupt) -> str:
    """Return the words of an interrupt, which a test may only simulate."""
    return "Ctrl-C" if type(error) is KeyboardInterrupt else str(error) or type(error).__name__


@reports
def report_unused(active: active_run.ActiveRun) -> None:
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
            errors.UnusedRecordWarning,
        )


# -- cancelling -----------------------------------------------------------------------------------


_SETTLED = 0.5  # seconds after which a new run is watched: most runs are shorter
_CAUGHT_UP, _PATIENCE = 0.02, 1.0  # seconds between two checks for a caught-up run; in total
_LONGEST = 15.0  # seconds until a timer reads the clock again: the machine may have been asleep
_SHOWN = 6  # side effects that a message names


class _Steered:
    """A block that executes an asynchronous run; its task is cancelled when the run must end."""

    def __init__(self, active: active_run.ActiveRun, *, is_new: bool) -> None:
        import asyncio

        self._active, self._is_new, self._steering = active, is_new, active.steering
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._timer: Any = None
        self._starting: Any = None
        self._began = time.monotonic()

    def __enter__(self) -> None:
        self._keep_time()
        if self._steering.asked is not None:
            self._loop.call_soon(self._catch_up)
        elif self._active.parent is None:
            delay = _SETTLED if self._is_new else 0.0
            self._starting = self._loop.call_later(delay, self._begin_watching)

    def __exit__(self, *exception: object) -> None:
        for each in (self._timer, self._starting):
            if each is not None:
                each.cancel()
        steering = self._steering
        steering.close()
        is_told = steering.asked is not None and steering.told is steering.asked
        if is_told and self._active.parent is not None:
            uncancel = getattr(self._task, "uncancel", None)  # from 3.11; the caller goes on
            if uncancel is not None:
                uncancel()

    def _catch_up(self) -> None:
        """Cancel a run that was resumed only to unwind, once it has replayed to where it was.

        A call that the journal does not answer is refused anyway.  The cancellation is for code
        that awaits something else at that point.
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
        from stepwise._execution.message_watcher import watcher  # on use: most runs end before

        journal = self._active.journal
        watch = watcher.watch(journal.store, journal.seal, journal.run_id, self._ring)
        self._steering.watch = watch

    def _ring(self) -> None:
        """Schedule a look into the inbox; called in the watcher's thread."""
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed
            self._steering.close()

    def _look(self) -> None:
        with contextlib.suppress(
            errors.RunStopped
        ):  # a failed write: the run's next call raises it
            if not self._active.ended:
                self._steering.look_into_inbox()


# -- what a cancelled run says -------------------------------------------------------------------


def cancelled_before(
    store: Store, seal: Seal, facts: RunFacts, *, says_how: bool
) -> errors.RunCancelled:
    """Return the error of a run that was cancelled.

    Args:
        says_how: whether the message says how to resume the run.
    """
    from stepwise._execution.viewer import error_of  # on use: few runs are cancelled

    error = error_of(store, seal, facts)
    if not isinstance(error, errors.RunCancelled):  # a summary: the error could not be loaded whole
        error = active_run.cancelled_error(facts.run_id, "somebody", "", facts.updated_at)
    if says_how:
        run = shell_word(facts.run_id)
        ways = (
            f"A cancelled run is resumed only if it is asked for: stepwise resume {run}, or "
            f"stepwise.get_run({facts.run_id!r}).resume(). For a new run: "
            f".options(fresh=True), .options(run_id=...), or: stepwise forget {run}"
        )
        error.args = (f"{error}. {ways}",)
    return error


def with_doubts(active: active_run.ActiveRun, error: errors.RunStopped) -> errors.RunStopped:
    """Add the side effects in doubt to the error of a run that is cancelled."""
    journal = active.journal
    found = list(_in_doubt(journal.store, journal.seal, active.facts))
    if found and isinstance(error, errors.RunCancelled) and not error.in_doubt:
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
    for each in Calls(entries_of(store, seal, facts)):
        if each.in_doubt:
            yield facts.run_id, each.call
        child = each.call.child and facts_of(store, seal, each.call.child)
        if child:
            yield from _in_doubt(store, seal, child)
