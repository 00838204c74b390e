"""A run in progress, and the context variable that finds it.

Everything that happens to the run's calls goes through here: whether a call may be made now, which
record answers it, what is written when it ends.  What is *done* with a call (attempts, timeouts,
doubt) is the business of ``perform``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepwise._execution import outcomes
from stepwise._execution.account import Account
from stepwise._execution.concurrency import Flows, Unawaited
from stepwise._execution.failures import Unwinding
from stepwise._execution.inner_calls import InnerCalls
from stepwise._execution.location import Helper, Locator, Origin, WatchesSteps
from stepwise._execution.steering import Steering
from stepwise._execution.surfacing import Surfacing
from stepwise._execution.waits import RunInbox, Taken, Waits
from stepwise._identity.identity import idempotency_key
from stepwise._journal.counters import Ordinals, Progress, apart, counted_as
from stepwise._journal.journal import Journal
from stepwise._journal.lease import Lease
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, Handled, Outcome, Record, RunFacts, RunWait, StepStatus
from stepwise._journal.summary import SummaryKeeper
from stepwise._matching.callers import AnyCaller
from stepwise._matching.pool import Match, Pool
from stepwise._matching.subjects import Identity, Subjects
from stepwise._runtime import asyncio_state, interrupts, tracing
from stepwise._runtime.events import emit, heard
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import Once
from stepwise._values import codec, list_digest
from stepwise._values.buffers import Data
from stepwise._values.secrets import Secrets
from stepwise.errors import LeaseLostError, OutsideRunError, RunStopped

if TYPE_CHECKING:
    from stepwise._execution.budget import Budget
    from stepwise._runtime.event import Kind

__all__ = [
    "ActiveRun",
    "OpenStream",
    "Scope",
    "branches",
    "current_scope",
    "live_runs",
    "scope_variable",
]


class Scope(NamedTuple):
    """The position of code in a run: the call around it, and the calls made there so far.

    Args:
        call: the step that is being executed; ``None`` in the workflow's own code.
        around: numbers of the steps being executed here, the outermost first.
        attempt: of the step, from 1.
        inner: numbers of the calls made or answered inside it.
        branch: see :class:`Call`.
        outer: the position of the call around it.
    """

    run: ActiveRun
    call: Call | None = None
    around: tuple[int, ...] = ()
    attempt: int = 1
    inner: list[int] = []  # noqa: RUF012
    branch: str = ""
    outer: Scope | None = None


_ENDED: dict[StepStatus, Kind] = {
    "completed": "step_completed",
    "failed": "step_failed",
    "cancelled": "step_cancelled",
}

_ATTEMPT_ENDED: dict[str, Kind] = {
    "completed": "run_completed",
    "failed": "run_failed",
    "cancelled": "run_cancelled",
}

scope_variable: ContextVar[Scope | None] = ContextVar("stepwise_scope", default=None)
current_scope = scope_variable.get
live_runs: set[ActiveRun] = set()


class OpenStream(Protocol):
    """A call whose value arrives piece by piece, after it has returned.

    Attributes:
        name: of the call.
        left: its reader has closed it before its end.
        flow: the flow of control that an exception was unwinding then; 0 if none was.
    """

    name: str
    left: bool
    flow: int

    def can_read_rest(self, *, awaits: bool) -> bool:
        """Return whether the rest can be read here; ``awaits`` in a coroutine function."""

    def read_rest(self) -> Any:
        """Read it to its end, and record it; an awaitable, if it is asynchronous."""

    def leave(self) -> None:
        """Record it as far as it was read, if it can be; nobody reads on."""

    def drop(self) -> None:
        """End it without an outcome."""


class Branches:
    """Names the branch that executes the code, where a framework has branches of its own.

    Attributes:
        name: gives the name, in the run of an id; empty for code outside of any branch.
    """

    name: Callable[[str], str] | None = None


branches = Branches()
"""The namer of this process."""


class ActiveRun:
    """A run that this process is executing.

    Args:
        facts: what a listing shows of it.
        locator: finds the workflow's statement that makes a call.
        parent: the run that called it, whose secrets are its own, too.
        budget: what it may spend; ``None`` for no limit.
        is_new: nothing of it had been recorded.
    """

    def __init__(
        self,
        *,
        lease: Lease,
        journal: Journal,
        facts: RunFacts,
        locator: Locator,
        parent: ActiveRun | None,
        secrets: Secrets | None = None,
        budget: Budget | None = None,
        is_new: bool = False,
    ) -> None:
        self.lease = lease
        self.journal = journal
        self.facts = facts
        self.secrets: Secrets = parent.secrets if parent is not None else secrets or Secrets()
        self.codec = codec.Codec(facts.codec, self.secrets)
        self.subjects = Subjects(facts.run_id)
        self.pool = Pool(state=self.subjects.state)
        self.parent = parent
        self.progress = Progress()
        self.flows = Flows()
        # Calls of steps from their announcement to the record of their outcome, with their threads.
        self.in_flight: dict[int, int] = {}
        outer = parent.account if parent is not None else None
        self.account: Account = Account(facts.run_id, self.flows, budget, outer)
        self.unwinding = Unwinding(facts.run_id)
        self.frame: WatchesSteps | None = None
        self.stopped: RunStopped | None = None
        self.surfacing = Surfacing(weakref.proxy(self))  # no cycle: runs hold large objects
        self.refused: BaseException | None = None  # with it calls were, since the process ends
        self.begun = False  # its function has been entered
        self.ended = False
        self.home = self.thread = threading.get_ident()  # in which a plain workflow function runs
        self.executor: FrameType | None = None  # below which its function does
        self.task: Any = None  # in which an asynchronous workflow runs
        self.awaits = False  # its function is a coroutine function, or an asynchronous generator
        self.waiter: Any = None  # the future at which its caller waits
        self.detached = False  # nobody waits in its caller's place: it was started
        self.ending: BaseException | None = None  # what ended the event loop around it
        self.unawaited: dict[object, Unawaited] = {}
        self.idle = 0  # tasks that only wait for others of the run: the walk through a graph
        self.locator = locator
        self.streams: dict[int, OpenStream] = {}  # open, or left and not recorded yet; by call
        self.inner = InnerCalls()
        self.cut_off: set[int] = set()  # calls that a crash cut off: they continue
        self.alive = 0.0  # when earlier attempts are known to have been alive, at last
        self.ordinals = Ordinals()
        self.inbox = RunInbox(journal.store, journal.seal, facts.run_id, Taken())
        self.waits = Waits()
        self.suspension: tuple[RunWait, ...] | None = None  # what it waits for, once it suspends
        self.steering: Steering = Steering(self, parent.steering if parent else None, is_new=is_new)
        self.is_first = Once()  # of notices about this run
        self._summary = SummaryKeeper(journal)
        self.lock = threading.RLock()
        self.pid = os.getpid()
        live_runs.add(self)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.facts.run_id

    def lineage(self) -> Iterator[ActiveRun]:
        """Yield this run and the runs that called it, directly or not."""
        run: ActiveRun | None = self
        while run is not None:
            yield run
            run = run.parent

    @property
    def root(self) -> ActiveRun:
        """The run that no other one called."""
        run = self
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

    def check(self, name: str, around: Call | None = None, *, answered: bool = False) -> None:
        """Raise if no call may be made now: the run stopped, ended, or is being interrupted.

        Args:
            around: the step that is being executed here: it may end after SIGTERM, with the steps
                that it calls.
            answered: the journal may answer the call, also of a run that is to end.
        """
        if os.getpid() != self.pid:
            raise OutsideRunError(
                f"{name} was called in a forked process of run {self.run_id!r}, which only the "
                "process that started it can record. Call it there, or start a workflow in here",
                run_id=self.run_id,
            )
        self.refuse_if_stopped()
        if self.ended:
            raise OutsideRunError(
                f"{name} was called after run {self.run_id!r} had ended, by a task or thread that "
                "outlived it. Await or join what the workflow starts before it returns",
                run_id=self.run_id,
            )
        interrupt = self.unwinding.interrupt()
        if interrupt is not None:
            raise interrupt
        if self.interrupted:
            raise asyncio_state.cancellation()
        if interrupts.ending.by_ctrl_c and self.root.detached:
            raise self._refuse(KeyboardInterrupt())
        self.admit(around, answered=answered)

    def refuse_if_stopped(self) -> None:
        """Raise what the run has been stopped with; also for requests in the bodies of steps."""
        if self.stopped is not None:
            self.root.surfacing.refused()
            raise self.stopped

    def admit(self, around: Call | None, *, answered: bool) -> None:
        """Raise if no call may be made any more, shortly after :meth:`check`; see there."""
        if self.stopped is not None:
            raise self.stopped
        if interrupts.sigterms.draining and around is None and self.root.waiter is None:
            # An asynchronous run is cancelled.
            raise self._refuse(SystemExit(interrupts.AFTER_SIGTERM))
        self.steering.check(around, answered=answered)

    def _refuse(self, error: BaseException) -> BaseException:
        """Note that a call is refused since the process ends: what comes after it is no end."""
        for run in self.lineage():
            run.refused = error
        return error

    def stop(self, error: RunStopped) -> RunStopped:
        """Make ``error`` what every later call of this run, and of those around it, raises."""
        root = self.root
        if root.stopped is None and self.pid == os.getpid():
            root.surfacing.begin(error)
        for run in self.lineage():
            run.stopped = run.stopped or error
            run.flows.change()
        # In a forked child, what it has been stopped with says more than that it has no lease.
        return error if self.pid == os.getpid() or self.stopped is None else self.stopped

    def holds(self, task: Any) -> bool:
        """Return whether a task belongs to this run, or to one that it calls."""
        context = asyncio_state.context_of(task)
        scope = context.get(scope_variable) if context is not None else None
        return scope is not None and scope.run.root is self

    def ring(self) -> None:
        """Have the calls that wait, in this run and in those that it calls, look around."""
        for run in list(live_runs):
            if self in run.lineage():
                run.flows.change()

    # -- calls -----------------------------------------------------------------------------------

    def open_streams(self) -> list[OpenStream]:
        """Return the streams that are being read, in this run and those that called it."""
        return [
            stream
            for run in self.lineage()
            for stream in list(run.streams.values())
            if not stream.left
        ]

    def note_handled(self) -> None:
        """Record the streams that the workflow turns out to have left, and handled failures."""
        for stream in list(self.streams.values()) if self.streams else ():
            if stream.left and self.unwinding.has_gone_on(stream.flow):
                stream.leave()
        handled = self.unwinding.gone_on()
        if handled:
            self.inner.handled(handled)
            self.write((Handled(handled, time.time()), b""), durable=False)

    def begin(
        self,
        scope: Scope,
        name: str,
        module: str,
        identity: Identity,
        arguments: str,
        *,
        effect: bool,
        code: str = "",
    ) -> tuple[Call, Origin]:
        """A call is about to be made: its identity, as yet without a number."""
        self.note_handled()
        around, branch = scope.call, scope.branch
        if not branch and branches.name is not None:
            branch = branches.name(self.run_id)
        helped = around is None and self.frame is not None
        origin = self.locator.origin(effect=effect, helped=helped)
        counted = counted_as(name, branch)
        ordinal, undone = self.ordinals.of_call(counted), self.facts.undone
        digest = identity.digest
        return Call(  # by position: names take longer, and it is made for every call
            0,
            name,
            module,
            digest,
            ordinal,
            around.name if around is not None else "",
            self.unwinding.label(),
            origin.place,
            origin.site,
            arguments,
            effect,
            idempotency_key(self.run_id, counted, digest, ordinal, undone) if effect else "",
            "",
            time.time(),
            branch,
            identity.serial,
            identity.parts,
            0,
            code,
            scope.around,
        ), origin

    def match(
        self,
        call: Call,
        origin: Origin,
        identity: Identity,
        caller: AnyCaller,
        alone: Callable[[], bool],
    ) -> Match:
        """Match this call with the recorded calls; see :meth:`Pool.match`."""
        with self.lock:
            return self.pool.match(
                call,
                directly=origin.directly,
                alone=alone,
                caller=caller,
                older=lambda: identity.as_older(call),
            )

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
        """A call was answered from the journal: it returned ``value``."""
        outcome, frame = recorded.outcome, self.frame if scope.call is None else None
        looked = frame.look(value) if frame is not None else None
        if frame is not None:
            frame.recorded(recorded.entry.number, recorded.entry.record, looked)
        inner = outcome.inner if outcome is not None else ()
        self._note(scope, recorded.call.number, inner)
        if scope.around:
            self.inner.answered(scope.around, recorded)
        took = max(0.0, outcome.at - recorded.call.at) if outcome is not None else None
        usage = outcome.usage if outcome is not None else None
        with self.lock:
            self.progress.skipped += 1
            counts = scope.call is None and not recorded.call.is_wait
            self.progress.add(took if took and counts else 0.0, usage)
        preview = getattr(recorded.entry.record, "preview", "")
        self.tell("step_answered", recorded.call, preview, duration=took, usage=usage)

    def number(
        self, call: Call, recorded: RecordedCall | None, new_child: Callable[[Container[str]], str]
    ) -> Call:
        """Give a call its number: that of the record it continues, else a new number.

        Raises:
            BudgetExceeded: no other step may begin.
        """
        if recorded is not None:
            old = recorded.call
            if not recorded.retry:
                self.cut_off.add(old.number)
            key = old.key or call.key
            child, serial = old.child or new_child(self.pool.children), old.serial or call.serial
            call = call._replace(number=old.number, key=key, child=child, serial=serial)
        else:
            child = new_child(self.pool.children)
            if child:
                call = call._replace(child=child)
            if self.pool.taken:
                call = apart(call, self.run_id, self.facts.undone, self.pool.taken)
            call = Call(self.journal.next_call(), *call[1:])  # faster than _replace()
        if self.account.limited and not (call.child and recorded is not None):
            # A child run that was cut off may be over but for its record: its steps are checked.
            error = self.account.begin(call, limited=not self._cleans_up())
            if error is not None:
                raise self.stop(error)
        return call

    def _cleans_up(self) -> bool:
        """Return whether the run is to end, and handles that here: no budget may keep it."""
        if self.steering.unwinds is None:
            return False
        return any(run.unwinding.handling() is not None for run in self.lineage())

    def lost(self, recorded: RecordedCall | None) -> float:
        """Return the seconds of an earlier attempt of a call that runs again; at least those."""
        if recorded is None or recorded.call.child:
            return 0.0
        call, outcome = recorded.call, recorded.outcome
        if outcome is not None:
            return 0.0 if outcome.inner else max(0.0, outcome.at - call.at)
        with self.lock:  # the calls that were made inside it answer
            kept = any(each.call.scope == call.name for each in self.pool.all)
        return 0.0 if kept else max(0.0, self.alive - call.at)

    def look(self, scope: Scope, value: Any) -> Any:
        """Capture the value of a call before it is encoded."""
        frame = self.frame if scope.call is None else None
        return frame.look(value) if frame is not None else None

    def recorded(
        self,
        scope: Scope,
        number: int,
        outcome: Outcome,
        *,
        error: BaseException | None = None,
        looked: Any = None,
        helper: Helper | None = None,
    ) -> None:
        """Update the run after the record of a call's outcome was written.

        Args:
            number: of the record.
            error: what the call raised, if it did.
            looked: what its value looked like; see :meth:`look`.
            helper: through which the workflow made it.
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
        if heard():
            kind = _ENDED[outcome.status]
            self.tell(kind, call, outcome.preview, duration=took, usage=usage)
        if error is not None:
            self.unwinding.failed(call.number, error)
        if frame is not None:
            frame.done(effect=call.effect or is_wait, helper=helper)

    def _note(self, scope: Scope, number: int, inner: tuple[int, ...]) -> None:
        self.unwinding.made(number)
        if scope.call is not None:
            scope.inner.extend((number, *inner))

    def write(
        self, *items: tuple[Record, Data], durable: bool = True, head: RunFacts | None = None
    ) -> list[int]:
        """Append records and return their numbers; a failed write stops the run."""
        try:
            numbers = self.journal.append(*items, durable=durable, head=head)
            self._summary.note(numbers, items)
            return numbers
        except RunStopped as error:
            raise self.stop(error) from error.__cause__

    def written(self, numbers: list[int], *items: tuple[Record, Data]) -> None:
        """Add records to the summary after they were written under these numbers."""
        self._summary.note(numbers, items)

    def tell(
        self,
        kind: Kind,
        call: Call | None = None,
        detail: str = "",
        *,
        step: int = 0,
        duration: float | None = None,
        usage: Mapping[str, Any] | None = None,
        lost: float = 0.0,
    ) -> None:
        """Notify listeners of a recorded event."""
        if not heard():
            return
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
        """Record how this attempt ended: ``value`` is its result or exception.

        Args:
            changed: see :class:`Ended`, as of ``again``.
        """
        error, secrets = value if status != "completed" else None, self.secrets
        if error is None:
            for stream in list(self.streams.values()):
                stream.leave()
        retry, handled = self.unwinding.end(error)
        record, payload = outcomes.ended(
            status,
            value,
            encoded,
            self.progress,
            secrets,
            changed=changed or {},
            retry=retry,
            spent=self.unwinding.spent(error) if error is not None else (),
            rest=self.rest(),
            again=again,
        )
        items: list[tuple[Record, Data]] = [(record, payload)]
        if handled:
            items.insert(0, (Handled(handled, record.at), b""))
        self.facts = self.facts._replace(
            status=status,
            error=secrets.preview(error) if error is not None else "",
            end=self.journal.position.last + len(items),
            updated_at=record.at,
            cancelling="",
        )
        self.write(*items, head=self.facts)
        self.tell(_ATTEMPT_ENDED[status], detail=record.preview)

    def rest(self) -> dict[str, float]:
        """Return what the attempt, which ends, has spent that no outcome says."""
        return self.account.rest(unknown=bool(self.streams))

    def is_over(self) -> bool:
        """Return whether the workflow's code has certainly ended though nobody closed the run."""
        if self.task is not None:
            return bool(self.task.done())
        if self.thread != threading.get_ident():
            return False
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.executor:
            frame = frame.f_back
        return frame is None

    def close(self) -> None:
        """Close the run: stop recording and give up the lease."""
        if self.begun and self.facts.status == "running" and not self.ended:
            detail = self.secrets.preview(self.stopped) if self.stopped else ""
            self.tell("run_stopped", detail=detail)
        for stream in list(self.streams.values()):
            stream.drop()
        tracing.end(self.run_id)
        self.account.close()
        self.ended = True
        self.executor = None
        self.subjects.leave(completed=self.facts.status == "completed")
        live_runs.discard(self)
        list_digest.forget()  # its lists
        self.locator.close()
        self.steering.close()
        self.surfacing.close()
        self.lease.release()


def _in_child() -> None:
    """Let the copies of runs in a forked child write nothing: the parent executes them."""
    for run in list(live_runs):
        run.journal.disown()
        run.stopped = run.stopped or LeaseLostError(
            f"this is a forked process of run {run.run_id!r}, which only the process that started "
            "it can record: what it does is no part of the run",
            run_id=run.run_id,
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
