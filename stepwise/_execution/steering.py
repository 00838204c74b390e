"""The end of a run before its time: somebody cancelled it, or its timeout is over.

A run that is to end *unwinds*: an asynchronous one is cancelled as a task, where it waits; another
raises at the next call that it would make, once, in each flow of control until its workflow has it.
A call that the journal answers is not one that it would make: so a run that was killed while it
unwound unwinds again from the same place, and the records of its clean-up answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._execution.cleanup import cleans_up, task_cleans_up
from stepwise._execution.failures import Unwinding
from stepwise._execution.waits import RunInbox, Waits
from stepwise._journal.records import Call, Cancelling, Record, RunFacts
from stepwise._runtime import asyncio_state
from stepwise._runtime.clock import End
from stepwise._runtime.tracebacks import chain
from stepwise._values.buffers import Data
from stepwise.errors import RunCancelled, RunStopped, RunTimeoutError

if TYPE_CHECKING:
    from types import FrameType

    from stepwise._execution.waits import Closes
    from stepwise._journal.inbox import Message

__all__ = ["ENDINGS", "Steering", "cancelled_error"]

ENDINGS = (RunCancelled, RunTimeoutError)
"""The errors that end a run so that its clean-up runs: not sticky, as other ``RunStopped`` are."""
_LOOKS_AGAIN = 0.05  # seconds until a task that cleans up is looked at again
_EVERY = 0.5  # seconds between two looks into the inbox, at least


if TYPE_CHECKING:

    class Steered(Protocol):
        """A run in progress."""

        facts: RunFacts
        inbox: RunInbox
        waits: Waits
        unwinding: Unwinding
        task: Any
        home: int
        executor: FrameType | None

        @property
        def interrupted(self) -> bool:
            """True if the caller of an asynchronous run was cancelled."""

        def write(self, *items: tuple[Record, Data], head: RunFacts | None = None) -> list[int]:
            """Append records."""

        def ring(self) -> None:
            """Have the calls that wait look whether they still may."""


class Steering:
    """The requests to one run in progress, and how much of them its workflow has been told.

    Attributes:
        asked: the error with which the run is to end; ``None`` while it may go on.
        told: the error of which its workflow has been told: its own, or that of a run around it.
        watch: watches the inbox, if something does; closed with the run.
    """

    def __init__(self, run: Steered, outer: Steering | None, *, is_new: bool) -> None:
        self.run: Steered = weakref.proxy(run)  # no cycle: runs hold large objects
        self.asked: RunStopped | None = None
        self.told: RunStopped | None = None
        self.watch: Closes | None = None
        self._outer: tuple[Steering, ...] = (*outer._outer, outer) if outer is not None else ()
        self._end = End()
        self._timeout, self._until = 0.0, None  # type: float, float | None
        self._lock = threading.Lock()
        # A run that begins has no inbox yet; another one is looked at before its first call.
        self._next = time.monotonic() + _EVERY if is_new else 0.0
        if run.facts.cancelling:
            self.asked = _asked_in(run.facts)

    @property
    def _outward(self) -> tuple[Steering, ...]:
        """Those of the runs around it, the outermost first, and itself."""
        return (*self._outer, self)

    def close(self) -> None:
        """Stop watching; the run is over."""
        if self.watch is not None:
            self.watch.close()

    def limit(self, timeout: float) -> None:
        """Let the run take so many seconds since it began."""
        self._timeout, self._until = timeout, self.run.facts.created_at + timeout
        self._end = End.of(self._until, timeout)

    @property
    def own_left(self) -> float | None:
        """Return the seconds that remain of its own timeout."""
        return self._end.left()

    def patience(self, seconds: float) -> float:
        """Return after how many seconds a call that waits must look again, ``seconds`` at most."""
        left = self.left
        ends = [seconds] if left is None else [seconds, max(0.0, left)]
        # Requests are for the outermost run.
        watched = self.run.task is not None or (not self._outer and self.run.waits.watched)
        return min(ends) if watched else min(*ends, _EVERY)

    def look_soon(self) -> None:
        """Look for a request to cancel the run at the next call, or when a waiting one wakes."""
        self._next = 0.0

    @property
    def deadline(self) -> float | None:
        """Return when a timeout of it, or of a run around it, is over, in seconds since 1970."""
        ends = [each._until for each in self._outward if each._until is not None]
        return min(ends, default=None)

    @property
    def left(self) -> float | None:
        """Return the seconds that remain until then; ``None`` without a timeout."""
        found = [left for each in self._outward if (left := each._end.left()) is not None]
        return min(found, default=None)

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, error: RunStopped) -> None:
        """Have the run end with this error; the first one counts."""
        if self.asked is None:
            self.asked = error
            self.run.ring()
            if self.run.task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.run.task.get_loop().call_soon_threadsafe(self.cancel_task)

    def look(self) -> None:
        """Look whether the run is to end: its timeout is over, or somebody cancelled it."""
        left = self._end.left()
        if left is not None and left <= 0:
            self.ask(_timed_out(self.run.facts, self._timeout))
        elif not self._outer and time.monotonic() >= self._next:
            self.look_into_inbox()

    def look_into_inbox(self) -> None:
        """Look whether somebody cancelled the run; that is recorded before the run is told."""
        if self.asked is not None or not self._lock.acquire(blocking=False):
            return  # another thread looks
        try:
            run, facts = self.run, self.run.facts
            self._next = time.monotonic() + _EVERY
            run.inbox.ring()
            for message in _messages(run.inbox):
                if message.kind == "cancel" and message.number > facts.cancels:
                    from stepwise._journal.run_facts import asked_by  # on use

                    record = Cancelling(message.by, message.note, message.number, time.time())
                    run.facts = facts._replace(
                        cancelling=asked_by(record), cancels=message.number, updated_at=record.at
                    )
                    run.write((record, b""), head=run.facts)
                    self.ask(_asked_in(run.facts))
                    return
        finally:
            self._lock.release()

    # -- telling ---------------------------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """True if nothing is asked of the run, and it need not be looked whether something is."""
        return (
            self.asked is None
            and not self._outer
            and self._until is None
            and time.monotonic() < self._next
        )

    def check(self, around: Call | None, *, answered: bool) -> None:
        """Raise if the run, or one around it, is to end, and its workflow has not been told.

        Args:
            around: the step that is being executed here.  A side effect may end.
            answered: the journal may answer the call, which is then made all the same.
        """
        if (
            self.asked is None
            and not self._outer
            and self._until is None
            and (answered or time.monotonic() < self._next)
        ):
            return  # so it is for almost every call
        may_end = answered or (around is not None and around.effect)
        for each in self._outward:
            if each.asked is None and not answered:
                each.look()
            if each.asked is not None and not self._has_it(each.asked) and not may_end:
                self._tell(each, each.asked)

    def would_end(self, around: Call | None) -> bool:
        """Return whether a plain step that is waited for is to end now, with its run."""
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

    def _has_it(self, asked: RunStopped) -> bool:
        """Return whether this flow of control handles the error; the workflow's own has it then."""
        # A child run that is called by clean-up sees what its callers handle.
        handled = (each.run.unwinding.handling() for each in self._outward)
        found = any(_are_same(error, asked) for each in handled for error in chain(each))
        if found and self.run.unwinding.main == asyncio_state.who():
            self.told = asked
        return found

    def _tell(self, asker: Steering, asked: RunStopped) -> None:
        task = asker.run.task
        are_tasks = task is not None and self.run.task is not None
        if (asker if are_tasks else self).told is asked or cleans_up(asker.run):
            return  # it has been told, or is after its clean-up
        if are_tasks:
            if asyncio_state.current() is task:
                asker.told = asked
            raise asyncio_state.cancellation()
        if self.run.unwinding.main == asyncio_state.who():
            self.told = asked
        raise asked

    def cancel_task(self) -> None:
        """Cancel the task of an asynchronous run, unless a call of it did; called in its loop.

        A task that cleans up is cancelled after that.
        """
        task = self.run.task
        if self.asked is None or self.told is self.asked or task.done():
            return
        if task_cleans_up(task):
            task.get_loop().call_later(_LOOKS_AGAIN, self._cancel_later)
        else:
            self.told = self.asked
            task.cancel()

    def _cancel_later(self) -> None:
        with contextlib.suppress(ReferenceError):  # the run is over, and gone
            self.cancel_task()

    def has_been_told(self) -> None:
        """Note that the code before a checkpoint has been told, and has gone on."""
        self.told = next((each.asked for each in self._outward if each.asked is not None), None)

    # -- the end ---------------------------------------------------------------------------------

    @property
    def unwinds(self) -> RunStopped | None:
        """Return the error with which the run, or one around it, is to end."""
        return next((each.asked for each in self._outward if each.asked is not None), None)

    def ending(self, error: BaseException | None) -> RunStopped | None:
        """Return the error with which the run was asked to end, if it ends for that with this."""
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
    """Return what was sent to a run; nothing, while the store cannot be read."""
    try:
        return inbox.messages
    except (Exception, RunStopped):  # its next record reports what is wrong with it
        return []


def _are_same(error: BaseException, asked: RunStopped) -> bool:
    """Return whether an error is that one, or the same one as a record has it."""
    if error is asked:
        return True
    return type(error) is type(asked) and getattr(error, "run_id", None) == asked.run_id


def _asked_in(facts: RunFacts) -> RunCancelled:
    by, _, reason = facts.cancelling.partition(": ")
    return cancelled_error(facts.run_id, by, reason, facts.updated_at)


def cancelled_error(run_id: str, by: str, reason: str, at: float) -> RunCancelled:
    """Return the error that says who cancelled a run, when and why."""
    from stepwise._runtime import exits  # on use: few runs are cancelled

    exits.prepare()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return RunCancelled(
        f"run {run_id!r} was cancelled by {by} at {when}{f': {reason}' if reason else ''}",
        run_id=run_id,
        by=by,
        reason=reason,
        at=at,
        in_doubt=(),
    )


def _timed_out(facts: RunFacts, timeout: float) -> RunTimeoutError:
    return RunTimeoutError(
        f"run {facts.run_id!r} has not ended within the timeout of its workflow, {timeout:g} s "
        "since it began, waits and downtime included. With a longer timeout, the next start goes "
        "on where it stopped",
        run_id=facts.run_id,
        timeout=timeout,
    )
