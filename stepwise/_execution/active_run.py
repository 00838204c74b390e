"""A run in progress: its state, the calls inside its steps, and its early end.

:class:`ActiveRun` decides whether a call may be made now, and what is written when the call ends.
``perform`` executes the call: its attempts, timeouts and doubt.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, cast

from stepwise import errors
from stepwise._execution.account import Account, Ordinals, Progress, pool_here
from stepwise._execution.flows import Flows, Unawaited, Unwinding, handled
from stepwise._execution.location import Helper, Locator
from stepwise._execution.waits import RunInbox, Taken, Waits
from stepwise._journal import records
from stepwise._journal.journal import Journal
from stepwise._journal.lease import Lease
from stepwise._journal.projection import Flags, RecordedCall
from stepwise._journal.summary import SummaryKeeper
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import Subjects
from stepwise._rewrite.source import finally_lines
from stepwise._runtime import asyncio_state, interrupts, observers, settings
from stepwise._runtime.clock import End
from stepwise._runtime.forks import handed_down, start_apart
from stepwise._runtime.messages import Once, chain, is_ours, notice, shell_word
from stepwise._runtime.observers import heard
from stepwise._values import codec, digest
from stepwise._values.preview import Secrets
from stepwise._values.unpickling import Data

if TYPE_CHECKING:
    from stepwise._execution.budget import Budget
    from stepwise._execution.emissions import Emissions
    from stepwise._execution.frames import FrameRecorder
    from stepwise._execution.message_watcher import RunWatch
    from stepwise._execution.replaying import Replay
    from stepwise._identity.versions import Version
    from stepwise._journal.logs import Message
    from stepwise._runtime.event import Kind


class InnerCall:
    """A call that was made or answered inside a step.

    Attributes:
        around: the numbers of the steps that are executing it, outermost first.
        records: the numbers of its records.
        effect: True if the call has a side effect.
        flags: the flags of the call as of its last record; ``None`` if the records have them.
        open: True if the call has begun, and not ended.
        abandoned: True if nobody waits for the call, since a step around it timed out.
    """

    __slots__ = ("abandoned", "around", "effect", "flags", "open", "records")

    def __init__(self, call: records.Call, around: tuple[int, ...]) -> None:
        self.around = around
        self.effect = call.effect
        self.records: list[int] = []
        self.flags: Flags | None = None
        self.open = self.abandoned = False


class InnerCalls:
    """The calls made inside the steps of one run that are in progress.

    Attributes:
        calls: the inner calls by number, by the number of the outermost step around them.
        over: the lists of calls of failed attempts, by their id (kept here, so that no other list
            gets the same id).
    """

    def __init__(self) -> None:
        self.calls: dict[int, dict[int, InnerCall]] = {}
        # The steps of earlier processes that a step continues, since their calls answer its calls.
        self._continued: dict[int, set[int]] = {}
        self.over: dict[int, list[int]] = {}

    def begin(
        self, around: tuple[int, ...], call: records.Call, recorded: RecordedCall | None
    ) -> None:
        """Note that a call inside a step begins, with a new number or the number of a record.

        Args:
            recorded: the recorded call that it continues, if any.
        """
        if recorded is not None:
            self.answered(around, recorded)
        inner = self.calls.setdefault(around[0], {}).setdefault(
            call.number, InnerCall(call, around)
        )
        inner.around, inner.open = around, True

    def answered(self, around: tuple[int, ...], recorded: RecordedCall) -> None:
        """Note that a record answers a call inside a step."""
        call = recorded.call
        inner = self.calls.setdefault(around[0], {}).setdefault(
            call.number, InnerCall(call, around)
        )
        known = {*inner.records, recorded.origin.number, recorded.entry.number}
        inner.records = sorted(known - {0})  # 0: of a call that a restored run may have lost
        inner.around, inner.flags = around, recorded.flags
        if len(call.around) == len(around):
            for mine, theirs in zip(around, call.around, strict=True):
                if mine != theirs:
                    self._continued.setdefault(mine, set()).add(theirs)

    def wrote(self, around: tuple[int, ...], call: records.Call, number: int) -> None:
        """Note that a record of a call inside a step was written."""
        inner = self.calls.get(around[0], {}).get(call.number)
        if inner is not None:
            inner.records.append(number)
            inner.flags = None

    def handled(self, numbers: Iterable[int]) -> None:
        """Note that the workflow has handled the failures of these calls."""
        for calls in self.calls.values() if self.calls else ():
            for number in numbers:
                if number in calls:
                    calls[number].flags = True, False, False

    def land(self, around: tuple[int, ...], number: int) -> None:
        """Note that a call inside a step has ended, with or without a record."""
        inner = self.calls.get(around[0], {}).get(number)
        if inner is not None:
            inner.open = False

    def end(self, number: int) -> None:
        """Note the end of a step, and of the steps inside it if it was called outside all steps."""
        for step in (number, *self.calls.pop(number, ())):
            self._continued.pop(step, None)

    # -- a failed attempt ------------------------------------------------------------------------

    def inside(self, around: tuple[int, ...]) -> dict[int, InnerCall]:
        """Return the calls inside a step, in all of its attempts so far.

        Args:
            around: the numbers of the steps around it, outermost first, and its own number.
        """
        calls = self.calls.get(around[0])
        if not calls:
            return {}
        step = around[-1]  # the calls are copied below, since other tasks and threads go on
        return {number: each for number, each in calls.copy().items() if step in each.around}

    def steps(self, number: int) -> set[int]:
        """Return a step, and the steps of earlier processes that it continues."""
        return {number} | self._continued.get(number, set())

    def forget(self, around: tuple[int, ...], numbers: Iterable[int]) -> None:
        """Forget superseded calls of a failed attempt."""
        calls = self.calls.get(around[0], {})
        for number in numbers:
            calls.pop(number, None)


_EXITS = ("__exit__", "__aexit__")
_WAITING = ("aiotools", "anyio", "asyncio", "concurrent", "joblib", "multiprocessing", "trio")


# -- whether code cleans up ----------------------------------------------------------------------
#
# Code cleans up in a ``finally`` block, or in the exit of a ``with`` block.  The positions of the
# frames between a call and its workflow show it; they are examined only while a run must end.  The
# exit of a task group or a pool is not a clean-up: the work itself continues there.


def cleans_up(run: ActiveRun) -> bool:
    """Return whether the calling code, or the run's own flow of control, is in a clean-up."""
    if _are_in_cleanup(_until(sys._getframe(1), run.executor)):
        return True
    if run.task is not None:
        return asyncio_state.current() is not run.task and task_cleans_up(run.task)
    if run.home == threading.get_ident():
        return False
    return _are_in_cleanup(_until(sys._current_frames().get(run.home), run.executor))


def own_frames(run: ActiveRun) -> Iterator[FrameType]:
    """Yield the frames of a run's own flow of control, as seen from another task or thread."""
    if run.task is not None:
        yield from _awaiting(run.task.get_coro())
    else:
        yield from _until(sys._current_frames().get(run.home), run.executor)


def task_cleans_up(task: Any) -> bool:
    """Return whether a waiting task is in a clean-up."""
    return _are_in_cleanup([*_awaiting(task.get_coro())][::-1])


def _until(frame: FrameType | None, last: FrameType | None) -> list[FrameType]:
    """Return the frames inside a workflow, innermost first; an empty list outside the workflow."""
    found: list[FrameType] = []
    while frame is not None and frame is not last:
        found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a waiting coroutine, outermost first."""
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                inner = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
                coroutine = getattr(coroutine, inner, None)
                break
        else:
            return


def _are_in_cleanup(frames: Iterable[FrameType]) -> bool:
    """Return whether one of these frames, innermost first, is in a clean-up."""
    waits = False  # whether a frame waits for the work of a group
    for frame in frames:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if is_ours(code.co_filename):
            continue
        if code.co_name in _EXITS:
            if module.partition(".")[0] in _WAITING:
                waits = True
            elif not waits:
                return True
        linecache.getlines(code.co_filename, frame.f_globals)  # of a cell, or a zipped module
        line = frame.f_lineno or 0
        if any(first <= line <= last for first, last in _finally_blocks(code.co_filename)):
            return True
    return False


@cache
def _finally_blocks(path: str) -> list[tuple[int, int]]:
    """Return the line ranges of the ``finally`` blocks of a file, as of its first use here."""
    return finally_lines("".join(linecache.getlines(path)))


ENDINGS = (errors.RunCancelled, errors.RunTimeoutError)
"""The errors that end a run and let its clean-up run: unlike other ``RunStopped``, not sticky."""
_LOOKS_AGAIN = 0.05  # seconds until a task that cleans up is checked again
_EVERY = 0.5  # minimum seconds between two looks into the inbox


class Steering:
    """The requests to end one run in progress, and whether its workflow has received them.

    A run that must end *unwinds*.  The task of an asynchronous run is cancelled where it waits.
    Other runs raise at the next new call, once in each flow of control, until the workflow's own
    flow has the error.  A call that the journal answers does not raise.  So a run that was killed
    while it unwound unwinds again from the same place, and the records of its clean-up answer.

    Attributes:
        asked: the error with which the run must end; ``None`` while it may continue.
        told: the error that its workflow has received: its own error, or the error of a run around
            it.
        watch: the watch of the inbox, if there is one; closed with the run.
        is_bound: True if something may end the run, so that every call has to check.
        next_look: the time when a call has to look into the inbox, by the monotonic clock.
    """

    def __init__(self, run: ActiveRun, outer: Steering | None, *, is_new: bool) -> None:
        self.run: ActiveRun = weakref.proxy(run)  # no cycle: runs hold large objects
        self.asked: errors.RunStopped | None = None
        self.told: errors.RunStopped | None = None
        self.watch: RunWatch | None = None
        self._outer: tuple[Steering, ...] = (*outer._outer, outer) if outer is not None else ()
        self._end = End()
        self._timeout, self._until = 0.0, None  # type: float, float | None
        self._lock = threading.Lock()
        # A new run has no inbox yet; other runs look into their inbox before the first call.
        self.next_look = time.monotonic() + _EVERY if is_new else 0.0
        if run.facts.cancelling:
            self.asked = _asked_in(run.facts)
        self.is_bound = self.asked is not None or outer is not None

    @property
    def _outward(self) -> tuple[Steering, ...]:
        """The steerings of the runs around this run, outermost first, and this steering."""
        return (*self._outer, self)

    def close(self) -> None:
        """Stop watching, since the run is over."""
        if self.watch is not None:
            self.watch.close()

    def limit(self, timeout: float) -> None:
        """Limit the run to ``timeout`` seconds since it began."""
        self._timeout, self._until = timeout, self.run.facts.created_at + timeout
        self._end, self.is_bound = End.of(self._until, timeout), True

    @property
    def own_left(self) -> float | None:
        """The seconds that remain of the run's own timeout; ``None`` without a timeout."""
        return self._end.left()

    def patience(self, seconds: float) -> float:
        """Return the seconds after which a waiting call must look again, ``seconds`` at most."""
        left = self.left
        ends = [seconds] if left is None else [seconds, max(0.0, left)]
        # Requests to cancel go to the outermost run.
        watched = self.run.task is not None or (not self._outer and self.run.waits.watched)
        return min(ends) if watched else min(*ends, _EVERY)

    def look_soon(self) -> None:
        """Check for a request to cancel at the next call, or when a waiting call wakes."""
        self.next_look = 0.0

    @property
    def deadline(self) -> float | None:
        """The first end of a timeout of this run or a run around it, in seconds since 1970."""
        ends = [each._until for each in self._outward if each._until is not None]
        return min(ends, default=None)

    @property
    def left(self) -> float | None:
        """The seconds that remain until the first timeout ends; ``None`` without a timeout."""
        found = [left for each in self._outward if (left := each._end.left()) is not None]
        return min(found, default=None)

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, error: errors.RunStopped) -> None:
        """Request the end of the run with this error; the first request counts."""
        if self.asked is None:
            self.asked, self.is_bound = error, True
            self.run.ring()
            if self.run.task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.run.task.get_loop().call_soon_threadsafe(self.cancel_task)

    def look(self) -> None:
        """Check whether the run must end: its timeout is over, or somebody cancelled it."""
        left = self._end.left()
        if left is not None and left <= 0:
            self.ask(_timed_out(self.run.facts, self._timeout))
        elif not self._outer and time.monotonic() >= self.next_look:
            self.look_into_inbox()

    def look_into_inbox(self) -> None:
        """Check whether somebody cancelled the run; record the request before the run gets it."""
        if self.asked is not None or not self._lock.acquire(blocking=False):
            return  # the end is already requested, or another thread is looking
        try:
            run, facts = self.run, self.run.facts
            self.next_look = time.monotonic() + _EVERY
            run.inbox.ring()
            for message in _messages(run.inbox):
                if message.kind == "cancel" and message.number > facts.cancels:
                    from stepwise._journal.run_facts import asked_by  # on use

                    record = records.Cancelling(
                        message.by, message.note, message.number, time.time()
                    )
                    run.facts = facts._replace(
                        cancelling=asked_by(record), cancels=message.number, updated_at=record.at
                    )
                    run.write((record, b""), head=run.facts)
                    self.ask(_asked_in(run.facts))
                    return
        finally:
            self._lock.release()

    # -- telling ---------------------------------------------------------------------------------

    def check(self, around: records.Call | None, *, answered: bool) -> None:
        """Raise if this run or a run around it must end, and its workflow has not been told.

        Args:
            around: the step that is being executed here; a side effect may continue to its end.
            answered: True if the journal may answer the call, which is then made all the same.
        """
        may_end = answered or (around is not None and around.effect)
        for each in self._outward:
            if each.asked is None and not answered:
                each.look()
            if each.asked is not None and not self._has_it(each.asked) and not may_end:
                self._tell(each, each.asked)

    def would_end(self, around: records.Call | None) -> bool:
        """Return whether a plain step that the caller waits for must end now, with its run.

        Args:
            around: the step; a side effect may continue to its end.
        """
        if around is not None and around.effect:
            return False
        for each in self._outward:
            if each.asked is None:
                each.look()
            asked = each.asked
            has_it = asked is None or self.told is asked or self._has_it(asked)
            if not has_it and not cleans_up(each.run):
                return True
        return False

    def _has_it(self, asked: errors.RunStopped) -> bool:
        """Return whether this flow of control handles the error; in the main flow, note that."""
        # A child run that clean-up code calls sees the errors that its callers handle.
        handled = (each.run.unwinding.handling() for each in self._outward)
        found = any(_are_same(error, asked) for each in handled for error in chain(each))
        if found and self.run.unwinding.main == asyncio_state.who():
            self.told = asked
        return found

    def _tell(self, asker: Steering, asked: errors.RunStopped) -> None:
        task = asker.run.task
        are_tasks = task is not None and self.run.task is not None
        if (asker if are_tasks else self).told is asked or cleans_up(asker.run):
            return  # it has been told, or will be after its clean-up
        if are_tasks:
            if asyncio_state.current() is task:
                asker.told = asked
            raise asyncio_state.cancellation()
        if self.run.unwinding.main == asyncio_state.who():
            self.told = asked
        raise asked

    def cancel_task(self) -> None:
        """Cancel the task of an asynchronous run, unless one of its calls did; runs in its loop.

        A task in a clean-up is cancelled after the clean-up.
        """
        with contextlib.suppress(ReferenceError):  # the run is over, and gone
            task = self.run.task
            if self.asked is None or self.told is self.asked or task.done():
                return
            if task_cleans_up(task):
                task.get_loop().call_later(_LOOKS_AGAIN, self.cancel_task)
            else:
                self.told = self.asked
                task.cancel()

    def has_been_told(self) -> None:
        """Note that the code before a checkpoint has received the error, and has continued."""
        self.told = self.unwinds

    # -- the end ---------------------------------------------------------------------------------

    @property
    def unwinds(self) -> errors.RunStopped | None:
        """The error with which this run or a run around it must end; ``None`` if none must."""
        return next((each.asked for each in self._outward if each.asked is not None), None)

    def ending(self, error: BaseException | None) -> errors.RunStopped | None:
        """Return the error of the request to end if ``error`` results from the request."""
        if self.run.interrupted:
            return None
        for each in self._outward:
            asked = each.asked
            if asked is not None and error is not None and _are_same(error, asked):
                return error  # type: ignore[return-value]
            cancelled = self.run.task is not None and asyncio_state.is_cancellation(error)
            if asked is not None and cancelled and each.told is asked:
                return asked
        return None


def _messages(inbox: RunInbox) -> list[Message]:
    """Return the messages of a run; an empty list while the store cannot be read."""
    try:
        return inbox.messages
    except (Exception, errors.RunStopped):  # the next record reports the problem of the store
        return []


def _are_same(error: BaseException, asked: errors.RunStopped) -> bool:
    """Return whether an error is the requested one, or the same error loaded from a record."""
    if error is asked:
        return True
    return type(error) is type(asked) and getattr(error, "run_id", None) == asked.run_id


def _asked_in(facts: records.RunFacts) -> errors.RunCancelled:
    by, _, reason = facts.cancelling.partition(": ")
    return cancelled_error(facts.run_id, by, reason, facts.updated_at)


def cancelled_error(run_id: str, by: str, reason: str, at: float) -> errors.RunCancelled:
    """Return the error that says who cancelled a run, when and why."""
    from stepwise._runtime.messages import hook_exits  # on use: few runs are cancelled

    hook_exits()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return errors.RunCancelled(
        f"run {run_id!r} was cancelled by {by} at {when}{f': {reason}' if reason else ''}",
        run_id=run_id,
        by=by,
        reason=reason,
        at=at,
        in_doubt=(),
    )


def _timed_out(facts: records.RunFacts, timeout: float) -> errors.RunTimeoutError:
    return errors.RunTimeoutError(
        f"run {facts.run_id!r} has not ended within the timeout of its workflow, {timeout:g} s "
        "since it began, waits and downtime included. With a longer timeout, the next start goes "
        "on where it stopped",
        run_id=facts.run_id,
        timeout=timeout,
    )


_MANY = 3  # calls that got the error, after which the watcher acts immediately
_SURFACES = 1.0  # seconds that an error gets to arrive by itself; also between two checks


class Surfacing:
    """A watcher that makes a stopped run end, even if a framework swallows the error.

    Agent frameworks catch ``BaseException`` in their tasks and threads, or lose it there.  The
    program would then wait forever, or ask the model again and again.  So the error is reported in
    one line where it is raised; the whole text arrives with the exception.  If the run has not
    ended a moment later, its own task is cancelled.  For a workflow that is not a coroutine
    function, its tasks are cancelled.  The run then ends with the error, not with the cancellation.
    """

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._timer: threading.Timer | None = None
        self._told = False
        self._refused = 0  # calls
        self._cancelled: set[asyncio_state.TaskReference] = set()

    def begin(self, error: errors.RunStopped) -> None:
        """Report the error, and make the run end; a suspension does both itself.

        Programs catch a used-up budget, so that error is reported only if it does not arrive, as
        is what a branch refuses, and the end of a rerun.
        """
        if isinstance(error, errors.RunSuspended):
            return
        caught = errors.BudgetExceeded, errors.EffectRefusedError
        if not (isinstance(error, caught) or debugged.compares):
            self._tell(error)
        self._wait()

    def _tell(self, error: errors.RunStopped) -> None:
        if not self._told:
            self._told = True
            _tell(self._run.run_id, error)

    def refused(self) -> None:
        """Note that another call got the error, since some code swallows it and continues."""
        self._refused += 1
        if self._refused == _MANY and self._timer is not None:
            self._timer.cancel()
            self._wait(0.0)

    def close(self) -> None:
        """Stop watching, since the run is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, seconds: float = _SURFACES) -> None:
        self._timer = threading.Timer(seconds, self._look)
        start_apart(self._timer)

    def _look(self) -> None:
        """Cancel the tasks that still run, unless they clean up; called in the timer's thread."""
        with contextlib.suppress(ReferenceError):  # the run is over, and gone
            run = self._run
            if run.ended:
                return
            # Steps in flight when a budget is used up are paid for, so they may end first.
            if not (isinstance(run.stopped, errors.BudgetExceeded) and run.flows.steps_in_flight()):
                if run.stopped is not None:
                    self._tell(run.stopped)
                if run.task is not None:
                    tasks = {asyncio_state.reference_to(run.task)}
                else:  # event loops of other threads may have tasks that were not examined yet
                    tasks = {*run.flows.tasks, *asyncio_state.known_references()}
                for reference in tasks - self._cancelled:
                    self._end(reference)
            self._wait()

    def _end(self, reference: asyncio_state.TaskReference) -> None:
        def end() -> None:
            task = reference()
            if task is None or task.done() or self._run.ended:
                return
            if not task_cleans_up(task):
                self._cancelled.add(reference)
                task.cancel()

        task = reference()
        if task is not None and self._run.holds(task):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio_state.loop_of(task).call_soon_threadsafe(end)


def _tell(run_id: str, error: errors.RunStopped) -> None:
    again = f"each later call of it raises {type(error).__name__}"
    if isinstance(error, errors.StepInDoubtError):
        how = f"To settle it: stepwise show {shell_word(run_id)}"
        notice(f"{run_id} stops: {error.name} is in doubt, and {again}. {how}")
    else:
        what = str(error).partition("\n")[0]
        notice(f"{run_id} stops, and {again}: {what}")


# -- the run -------------------------------------------------------------------------------------


class Scope:
    """The position of code in a run: the call around it, and the calls made there so far.

    Not a named tuple, whose fields take ten times as long to read: a step reads thirty.

    Args:
        call: the step that is being executed; ``None`` in the workflow's own code.
        around: the numbers of the steps being executed here, outermost first.
        attempt: the attempt of the step, from 1.
        inner: the numbers of the calls made or answered inside the step.
        branch: see :class:`Call`.
        outer: the scope of the call around the step.
    """

    __slots__ = ("around", "attempt", "branch", "call", "inner", "outer", "run")

    def __init__(
        self,
        run: ActiveRun,
        call: records.Call | None = None,
        around: tuple[int, ...] = (),
        attempt: int = 1,
        branch: str = "",
        outer: Scope | None = None,
    ) -> None:
        self.run, self.call, self.around, self.attempt = run, call, around, attempt
        self.inner: list[int] = []
        self.branch, self.outer = branch, outer


scope_variable: ContextVar[Scope | None] = ContextVar("stepwise_scope", default=None)
current_scope = scope_variable.get
live_runs: set[ActiveRun] = set()
_around = os.environ.get(settings.IN_BRANCH, "")
left_branch: ContextVar[str] = ContextVar("stepwise_left_branch", default="")
"""The branch whose code has started this code in the background."""


def joins() -> None:
    """Note that the current task, if any, sees a run that it did not see when it was created.

    Call this in code that sets the scope, or that resets it from ``None``.
    """
    scope, task = current_scope(), asyncio_state.current()
    if scope is not None and task is not None:
        scope.run.root.flows.tasks.add(weakref.ref(task))


def branch_around() -> str:
    """Return the branch in which code is executed where no run is visible; empty if in none.

    It is in one in the background of a branch, and in programs and worker processes of a branch.
    """
    process, branch = handed_down().get(settings.IN_BRANCH, (0, ""))
    return left_branch.get() or _around or (branch if process != os.getpid() else "")


class Branches:
    """The namer of branches, for frameworks with their own branches.

    Attributes:
        name: returns the name of the branch that executes the code, for a run id; empty for code
            outside any branch.
    """

    name: Callable[[str], str] | None = None


branches = Branches()
"""The namer of this process."""


class Debugged:
    """The run that this process executes again from its records, if any."""

    look: Replay | None = None

    @property
    def compares(self) -> bool:
        """True if the run is only compared with its record."""
        return self.look is not None and self.look.compares


debugged = Debugged()


class ActiveRun:
    """A run that this process is executing.

    Args:
        facts: the facts that a listing shows.
        locator: finds the workflow's statement that makes a call.
        parent: the run that called this run, which shares the secrets of its parent.
        budget: the spending limit; ``None`` for no limit.
        is_new: True if nothing of the run had been recorded before.
    """

    emissions: Emissions | None = None  # once the run says something

    def __init__(
        self,
        *,
        lease: Lease,
        journal: Journal,
        facts: records.RunFacts,
        locator: Locator,
        parent: ActiveRun | None,
        secrets: Secrets,
        budget: Budget | None = None,
        is_new: bool = False,
    ) -> None:
        self.lease = lease
        self.journal = journal
        self.facts, self.run_id = facts, facts.run_id
        self.effects: str = (facts if parent is None else parent).effects  # see RunFacts
        self.secrets: Secrets = parent.secrets if parent is not None else secrets
        self.codec = codec.Codec(facts.codec, self.secrets)
        self.subjects = Subjects(facts.run_id)
        self.pool, self.parent = Pool(state=self.subjects.state), parent
        self.progress = Progress()
        self.flows = Flows()
        # The threads of the steps that are announced and have no outcome yet.
        self.in_flight: dict[int, int] = {}
        self.doing: dict[int, str] = {}  # the calls whose body is being executed, as noted
        outer = parent.account if parent else pool_here()
        self.account: Account = Account(facts.run_id, self.flows, budget, outer)
        self.unwinding = Unwinding(facts.run_id)
        self.records_arguments = settings.record_arguments()
        self.frame_recorder: FrameRecorder | None = _frame_recorder(parent, facts, self.secrets)
        self.frame: Any = None  # the ``WorkflowFrame`` of a workflow that can be entered
        self.stopped: errors.RunStopped | None = None
        self.surfacing = Surfacing(weakref.proxy(self))  # no cycle: runs hold large objects
        self.refused: BaseException | None = None  # raised by calls, since the process ends
        self.begun = self.ended = False  # whether its function has been entered, and has ended
        self.home = self.thread = threading.get_ident()  # the thread of a plain workflow function
        self.executor: FrameType | None = None  # the frame that calls the workflow function
        self.task: Any = None  # the task of an asynchronous workflow
        self.awaits = False  # whether its function is an async function or async generator
        self.waiter: Any = None  # the future for which its caller waits
        self.detached = False  # True for a started run, for which no caller waits
        self.ending: BaseException | None = None  # the error that ended the event loop around it
        self.unawaited: dict[object, Unawaited] = {}
        self.idle = 0  # tasks that only wait for other tasks of the run, such as a graph's walk
        self.locator = locator
        self.streams: dict[int, Any] = {}  # by call: open, or left and not recorded yet
        self.inner = InnerCalls()
        self.versions: set[tuple[str, str]] = set()  # the ids and steps that were noted here
        self.cut_off: set[int] = set()  # calls that a crash cut off, which continue
        self.alive = 0.0  # the last time when an earlier attempt is known to have been alive
        self.ordinals = Ordinals()
        self.inbox = RunInbox(journal.store, journal.seal, facts.run_id, Taken())
        self.waits = Waits()
        self.suspension: tuple[records.RunWait, ...] | None = None  # its waits, once it suspends
        self.steering: Steering = Steering(self, parent.steering if parent else None, is_new=is_new)
        self.is_first = Once()  # for notices about this run
        self.summary = SummaryKeeper(journal)
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self._is_live(live_runs.add)

    @property
    def is_branch(self) -> bool:
        """True in a branch that was not adopted, and in its child runs."""
        return self.effects not in ("", records.ADOPTED)

    def lineage(self) -> list[ActiveRun]:
        """Return this run and the runs that called it, directly or not."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found

    @property
    def root(self) -> ActiveRun:
        """The top-level run, which no other run called."""
        run = self  # asked for at every call
        while run.parent is not None:
            run = run.parent
        return run

    @property
    def interrupted(self) -> bool:
        """True if the caller of an asynchronous run was cancelled (Ctrl-C, a shutdown).

        A cancellation inside the run (a timeout, a task group) leaves the caller alone.
        """
        waiter = self.root.waiter
        return waiter is not None and waiter.cancelled()

    # -- whether a call may be made --------------------------------------------------------------

    def check(
        self, name: str, around: records.Call | None = None, *, answered: bool = False
    ) -> None:
        """Raise if no call may be made now: the run stopped, ended, or is being interrupted.

        Args:
            around: the step that is being executed here, which may finish after SIGTERM, with the
                steps that it calls.
            answered: True if the journal may answer the call, even in a run that must end.
        """
        if os.getpid() != self.pid:
            raise errors.OutsideRunError(
                f"{name} was called in a forked process of run {self.run_id!r}, which only the "
                "process that started it can record. Call it there, or start a workflow in here",
                run_id=self.run_id,
            )
        if self.stopped is not None:
            self.refuse_if_stopped()
        if self.ended:
            raise errors.OutsideRunError(
                f"{name} was called after run {self.run_id!r} had ended, by a task or thread that "
                "outlived it. Await or join what the workflow starts before it returns",
                run_id=self.run_id,
            )
        interrupt = self.unwinding.refusal() if handled() is not self.unwinding.ambient else None
        if interrupt is not None:
            if isinstance(interrupt, GeneratorExit):
                notice(
                    f"run {self.run_id}: {name} was not called, since the garbage collector or the "
                    "end of the event loop closes the generator or coroutine around it: close it "
                    "where you leave it (contextlib.closing, aclosing)"
                )
            raise interrupt
        if self.interrupted:
            raise asyncio_state.cancellation()
        if interrupts.ending.by_ctrl_c and self.root.detached:
            raise self._refuse(KeyboardInterrupt())
        self.admit(around, answered=answered)

    def refuse_if_stopped(self) -> None:
        """Raise the error that stopped the run, if any; used for requests inside steps, too."""
        if self.stopped is not None:
            self.root.surfacing.refused()
            raise self.stopped

    def admit(self, around: records.Call | None, *, answered: bool) -> None:
        """Raise if a call may no longer be made, shortly after :meth:`check`; see there."""
        if self.stopped is not None:
            raise self.stopped
        if interrupts.sigterms.draining and around is None and self.root.waiter is None:
            # An asynchronous run is cancelled.
            raise self._refuse(SystemExit(interrupts.AFTER_SIGTERM))
        steering = self.steering
        if steering.is_bound or (not answered and time.monotonic() >= steering.next_look):
            steering.check(around, answered=answered)

    def _refuse(self, error: BaseException) -> BaseException:
        """Note that a call is refused since the process ends, which is not the end of the run."""
        for run in self.lineage():
            run.refused = error
        return error

    def stop(self, error: errors.RunStopped) -> errors.RunStopped:
        """Make every later call of this run, and of the runs around it, raise ``error``.

        Returns:
            the error to raise here.
        """
        root = self.root
        if root.stopped is None and self.pid == os.getpid():
            root.surfacing.begin(error)
        for run in self.lineage():
            run.stopped = run.stopped or error
            run.flows.change()
        # In a forked child, the error that stopped it says more than the missing lease.
        return error if self.pid == os.getpid() or self.stopped is None else self.stopped

    def holds(self, task: Any) -> bool:
        """Return whether a task belongs to this run, or to a run that it calls."""
        context = asyncio_state.context_of(task)
        scope = context.get(scope_variable) if context is not None else None
        return scope is not None and scope.run.root is self

    def ring(self) -> None:
        """Wake the waiting calls of this run, and of the runs that it calls."""
        for run in list(live_runs):
            if self in run.lineage():
                run.flows.change()

    # -- calls -----------------------------------------------------------------------------------

    def open_streams(self) -> list[Any]:
        """Return the streams that are being read, in this run and the runs that called it."""
        return [
            stream
            for run in self.lineage()
            for stream in list(run.streams.values())
            if not stream.left
        ]

    def note_handled(self) -> None:
        """Record streams that the workflow has left, and failures that it has handled."""
        unwinding = self.unwinding
        for stream in list(self.streams.values()) if self.streams else ():
            if stream.left and unwinding.has_gone_on(stream.flow):
                stream.leave()
        if unwinding.pending or unwinding.handling_calls:
            numbers = unwinding.gone_on()
            if numbers:
                self.inner.handled(numbers)
                self.write((records.Handled(numbers, time.time()), b""), durable=False)

    def note_version(self, name: str, module: str, version: Version) -> None:
        """Record a step's version, to which the records of its calls refer.

        The run's callers record it, too: their records answer for the whole child run.
        """
        self.versions.add((version.id, name))
        if not version.id:
            return
        recorded = records.RecordedVersion(version.id, name, module, version.parts, version.files)
        for run in self.lineage():
            child = "" if run is self else self.run_id
            mine = recorded._replace(child=child)
            run.journal.put_with_next(mine.key, [*mine], b"")

    def take(self, recorded: RecordedCall, around: tuple[int, ...] = ()) -> bool:
        """Take a record out of the pool; return False if another task or thread was faster.

        Args:
            around: the steps that make the call.
        """
        with self.lock:
            if self.pool.get(recorded.call.number) is not recorded:
                return False
            inside = self.pool.take(recorded)
        for each in inside if around else ():
            self.inner.answered((*around, *each.call.around[len(recorded.call.around) :]), each)
        self.flows.moved()
        return True

    def answered(self, scope: Scope, recorded: RecordedCall, value: Any = None) -> None:
        """Update the run after the journal answered a call, which returned ``value``."""
        outcome = recorded.outcome
        if scope.call is None and (frame := self.frame) is not None:
            frame.recorded(recorded.entry.number, recorded.entry.record, frame.look(value))
            if not self.pool:
                frame.caught_up()
        inner = outcome.inner if outcome is not None else ()
        self._note(scope, recorded.call.number, inner)
        if scope.around:
            self.inner.answered(scope.around, recorded)
        if self.emissions is not None:
            self.emissions.answered(recorded.call.number, inner, scope.around)
        took = max(0.0, outcome.at - recorded.call.at) if outcome is not None else None
        usage = outcome.usage if outcome is not None else None
        with self.lock:
            self.progress.skipped += 1
            counts = scope.call is None and not recorded.call.is_wait
            self.progress.add(took if took and counts else 0.0, usage)
        preview = getattr(recorded.entry.record, "preview", "")
        self.tell("step_answered", recorded.call, preview, duration=took, usage=usage)

    def cleans_up(self) -> bool:
        """Return whether the run must end and handles that here, so that no budget stops it."""
        if self.steering.unwinds is None:
            return False
        return any(run.unwinding.handling() is not None for run in self.lineage())

    def look(self, scope: Scope, value: Any) -> Any:
        """Capture the value of a call before it is encoded."""
        frame = self.frame if scope.call is None else None
        return frame.look(value) if frame is not None else None

    def recorded(
        self,
        scope: Scope,
        number: int,
        outcome: records.Outcome,
        *,
        error: BaseException | None = None,
        looked: Any = None,
        helper: Helper | None = None,
    ) -> None:
        """Update the run after the record of a call's outcome was written.

        Args:
            number: the number of the record.
            error: the exception that the call raised, if any.
            looked: the captured value; see :meth:`look`.
            helper: the helper function through which the workflow made the call.
        """
        call, usage, outside = outcome.call, outcome.usage, scope.call is None
        frame = self.frame if outside else None  # else a step makes the call
        if frame is not None:
            frame.recorded(number, outcome, looked)
        self._note(scope, call.number, outcome.inner)
        if scope.around:
            self.inner.wrote(scope.around, call, number)
        took, is_wait = outcome.at - call.at, call.is_wait
        with self.lock:
            self.progress.executed += 1
            self.progress.add(took if outside and not is_wait else 0.0, usage)
        if outcome.cached:
            detail = f"{outcome.preview} · cached from {outcome.cached['run']}"
            self.tell("step_answered", call, detail, duration=outcome.cached["seconds"])
        elif heard():
            kind, tries = cast("Kind", f"step_{outcome.status}"), outcome.attempts
            self.tell(kind, call, outcome.preview, duration=took, usage=usage, attempts=tries)
        if error is not None:
            self.unwinding.failed(call.number, error)
        if frame is not None:
            frame.done(effect=call.effect or is_wait, helper=helper)

    def _note(self, scope: Scope, number: int, inner: tuple[int, ...]) -> None:
        if handled() is not self.unwinding.ambient:
            self.unwinding.made(number)
        if scope.call is not None:
            scope.inner.extend((number, *inner))

    def write(
        self,
        *items: tuple[records.Record, Data],
        durable: bool = True,
        head: records.RunFacts | None = None,
    ) -> list[int]:
        """Append records and return their numbers; a failed write stops the run."""
        look = debugged.look
        if look is not None and look.holds(self.root.run_id):
            return look.hold(items)
        try:
            if self.emissions is not None and self.emissions.precede(items):
                self.emissions.flush()
            numbers = self.journal.append(*items, durable=durable, head=head)
            self.summary.note(numbers, items)
            return numbers
        except errors.RunStopped as error:
            raise self.stop(error) from error.__cause__

    def tell(
        self,
        kind: Kind,
        call: records.Call | None = None,
        detail: str = "",
        *,
        step: int = 0,
        duration: float | None = None,
        usage: Mapping[str, Any] | None = None,
        lost: float = 0.0,
        attempts: int = 0,
        limit: str = "",
    ) -> None:
        """Notify listeners of a recorded event."""
        if not heard() or debugged.compares:
            return
        from stepwise._runtime.event import emit  # on use: most programs have no listener

        emit(
            kind,
            self.run_id,
            self.facts.workflow,
            step=call.number if call is not None else step,
            name=call.name if call is not None else "",
            arguments=call.arguments if call is not None else "",
            detail=detail,
            duration=duration,
            lost=lost,
            attempts=attempts,
            limit=limit,
            executed=self.progress.executed,
            skipped=self.progress.skipped,
            usage=usage or {},
        )

    # -- the end ---------------------------------------------------------------------------------

    def finish(
        self,
        status: Literal["completed", "failed", "cancelled"],
        value: Any,
        encoded: codec.Encoded | None,
        *,
        changed: dict[str, str] | None = None,
        again: str = "",
    ) -> None:
        """Record the end of this attempt; ``value`` is its result or exception.

        Args:
            changed, again: see :class:`Ended`.
        """
        error, secrets = value if status != "completed" else None, self.secrets
        if self.streams:
            self._leave_streams(error)
        if self.emissions is not None:
            self.emissions.end()
        retry, gone_on = self.unwinding.end(error)
        record = records.Ended(
            status,
            recorded=encoded is not None,
            changed=changed or {},
            retry=retry,
            spent=self.unwinding.spent(error) if error is not None else (),
            resumed_from=self.progress.resumed_from,
            executed=self.progress.executed,
            skipped=self.progress.skipped,
            preview=secrets.preview(value),
            form=encoded.form if encoded is not None else None,
            at=time.time(),
            rest=self.rest(),
            again=again,
        )
        items: list[tuple[records.Record, Data]] = [
            (record, encoded.data if encoded is not None else b"")
        ]
        if gone_on:
            items.insert(0, (records.Handled(gone_on, record.at), b""))
        self.facts = self.facts._replace(
            status=status,
            error=secrets.preview(error) if error is not None else "",
            end=self.journal.position.last + len(items),
            updated_at=record.at,
            cancelling="",
            tally=self.summary.closing(*(each for each, _ in items)),
        )
        if error is not None and self.frame_recorder is not None:
            self.frame_recorder.run_failed(self.journal, self.facts.end, error)
        self.write(*items, head=self.facts)
        self.tell(cast("Kind", f"run_{status}"), detail=record.preview)

    def _leave_streams(self, error: BaseException | None) -> None:
        """Record the streams that their readers had left before the run ended.

        Args:
            error: the error with which it ended.  Its traceback holds the readers that it cut off,
                so streams collected now were left before: a loop that ends by ``break`` closes
                nothing.
        """
        cut_off = [each for each in self.streams.values() if each.cut or (each.left and each.flow)]
        if error is not None:
            gc.collect()
        for stream in list(self.streams.values()):
            if error is None or (stream.left and stream not in cut_off):
                stream.leave()

    def rest(self) -> dict[str, float]:
        """Return the spending of the ending attempt that no outcome reports."""
        return self.account.rest(unknown=bool(self.streams))

    def is_over(self) -> bool:
        """Return whether the workflow's code has certainly ended, though the run was not closed."""
        if self.task is not None:
            return bool(self.task.done())
        if self.thread != threading.get_ident():
            return False
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.executor:
            frame = frame.f_back
        return frame is None

    def _is_live(self, change: Callable[[ActiveRun], None]) -> None:
        """Change the set of runs in progress, and note whether one is a branch: for workers too."""
        change(self)
        if not self.is_branch or self.parent is not None:
            return
        branch = next((each for each in list(live_runs) if each.is_branch), None)
        inherited = handed_down()  # a fork server keeps the environment of its own start
        inherited.pop(settings.IN_BRANCH, None)
        if branch is not None:
            inherited[settings.IN_BRANCH] = os.getpid(), branch.root.run_id
            os.environ[settings.IN_BRANCH] = branch.root.run_id
        elif _around:
            os.environ[settings.IN_BRANCH] = _around
        else:
            os.environ.pop(settings.IN_BRANCH, None)

    def close(self) -> None:
        """Close the run: stop recording and give up the lease."""
        if self.begun and self.facts.status == "running" and not self.ended:
            detail = self.secrets.preview(self.stopped) if self.stopped else ""
            self.tell("run_stopped", detail=detail)
        for stream in list(self.streams.values()):
            stream.drop()
        observers.end_trace(self.run_id)
        self.account.close()
        self.ended = True
        self.executor = None
        self.subjects.leave(completed=self.facts.status == "completed")
        self._is_live(live_runs.discard)
        digest.forget()  # its lists
        self.locator.close()
        self.steering.close()
        self.surfacing.close()
        if self.emissions is not None:
            self.emissions.close(ended=self.facts.end > 0)
        self.lease.release()


def _frame_recorder(
    parent: ActiveRun | None, facts: records.RunFacts, secrets: Secrets
) -> FrameRecorder | None:
    recorder = parent.frame_recorder if parent is not None else None
    if parent is None and settings.record_locals():
        from stepwise._execution.frames import FrameRecorder  # on use: few programs ask for it

        recorder = FrameRecorder(secrets)
    if recorder is not None:
        recorder.hide(facts.hidden.split())
    return recorder


def _in_child() -> None:
    """Stop the copies of runs in a forked child from writing, since the parent executes them."""
    for run in list(live_runs):
        run.journal.disown()
        run.stopped = run.stopped or errors.LeaseLostError(
            f"this is a forked process of run {run.run_id!r}, which only the process that started "
            "it can record: what it does is no part of the run",
            run_id=run.run_id,
        )


os.register_at_fork(after_in_child=_in_child)
