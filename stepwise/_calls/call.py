"""One call of a step, tool or child workflow, from its first look into the journal to its outcome.

The core of a call (:meth:`Performance.core`) is a generator that makes the decisions.  It yields
everything that takes time (an attempt of the body, a wait, a write) as an operation.  ``driver``
executes the operations for synchronous functions, ``async_driver`` awaits them for coroutine
functions.  So both kinds of functions share one code.  When a generator that writes returns, its
record is durable.

The end of a failed attempt records which inner calls answer the next attempt.  The rule of
``_matching.pool`` decides that, from records that are read again.  So the next attempt in this
process meets exactly the calls that an attempt in a later process would meet.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Union

from stepwise import errors
from stepwise._calls.driver import (
    READY,
    Attempt,
    Cancelled,
    Core,
    Operation,
    Result,
    Sleep,
    Wait,
    Write,
    cancelled_again,
    written,
)
from stepwise._execution.active_run import (
    ENDINGS,
    ActiveRun,
    InnerCall,
    Scope,
    branches,
    debugged,
    own_frames,
)
from stepwise._execution.flows import handled
from stepwise._execution.location import Helper, Origin
from stepwise._execution.outcomes import ShownValue, load_outcome, outcome, settled
from stepwise._execution.tasks import let_go, others_alive, others_may_claim
from stepwise._identity.identity import idempotency_key
from stepwise._identity.versions import UNKNOWN
from stepwise._journal.journal import entries_of, read_one, shown_call
from stepwise._journal.projection import Calls, Flags, RecordedCall
from stepwise._journal.records import (
    AttemptFailed,
    Call,
    Entry,
    Intent,
    Outcome,
    Settled,
    StepStatus,
    Sums,
)
from stepwise._matching.pool import (
    FRESH,
    AnyCaller,
    Match,
    Verdict,
    apart,
    caller_of,
    counted_as,
    superseded,
)
from stepwise._matching.subjects import NOTHING_WATCHED, Identity, Watched
from stepwise._runtime import asyncio_state
from stepwise._runtime.interrupts import sigterms
from stepwise._runtime.messages import count, notice, reports, warn
from stepwise._runtime.observers import heard
from stepwise._runtime.retries import Attempts
from stepwise._runtime.system_limits import ran_out, stopped
from stepwise._values.codec import Codec, Encoded
from stepwise._values.preview import Hiding
from stepwise._values.unpickling import Data

if TYPE_CHECKING:
    from stepwise._calls.doubt import InDoubt
    from stepwise._execution.changes import CallChanges, Recorded
    from stepwise._execution.replaying import Replay


# -- retrying -------------------------------------------------------------------------------------


Tries = tuple[tuple[float, float, str], ...]
"""The attempts of a call so far; see :class:`Outcome`."""

_TRIES = 21  # attempts that a record holds: the newest 20 that failed, and the last one
_PATIENCE = 5.0  # seconds after which a retry reports the side effects that it waits for


def fail_attempt(
    attempt: Scope, error: BaseException, *, again: bool = False, by_host: bool = False
) -> Core:
    """Record the failure of an attempt, as far as it decides which calls answer the next attempt.

    Tasks and threads that the attempt has left behind make no more calls.  Their side effects in
    flight are awaited, so that the next attempt meets their outcomes.  After a timeout they are not
    awaited, since that could take for ever: they are in doubt then.

    Args:
        attempt: the scope of the attempt's body.
        again: whether the next attempt follows in this process.
        by_host: whether the next attempt is a new call, which a host makes.
    """
    active, call = attempt.run, attempt.call
    if call is None or call.child:  # a child run has a journal of its own
        return Result()
    timed_out = isinstance(error, errors.StepTimeoutError) and error.step == call.name
    inside = active.inner.inside(attempt.around)
    if not (again or timed_out or inside):
        return Result()
    active.inner.over[id(attempt.inner)] = attempt.inner
    for each in inside.values() if timed_out else ():
        each.abandoned = each.open
    yield from _in_flight_awaited(attempt)
    record, kept = _left_by_attempt(attempt, error)
    if record is not None:
        _, cancelled = written(active, (yield Write(active, (record, b""), durable=again)))
        if cancelled is not None:
            raise cancelled
    if again:
        active.unwinding.tried_again(error)
        _give_back(attempt, kept, 0 if by_host else call.number)
    else:  # a retry of a step around it, or of the run, may meet the calls that it did not meet
        _give_back(attempt, [], 0)
    return Result()


def _in_flight_awaited(attempt: Scope) -> Generator[Wait, Result, None]:
    """Wait for side effects that tasks and threads of a failed attempt still execute."""
    active, began, told = attempt.run, time.monotonic(), False
    while True:
        seen = active.flows.claims.changes
        inside = active.inner.inside(attempt.around)
        flying = [n for n, each in inside.items() if each.effect and each.open]
        flying = [number for number in flying if not inside[number].abandoned]
        if not flying:
            return
        if not told and time.monotonic() - began >= _PATIENCE:
            told = True
            _tell_retry_waits(attempt, len(flying))
        (yield Wait(active.flows.claims, seen, _PATIENCE)).unwrap()


_Left = tuple[Union[AttemptFailed, None], list[RecordedCall]]
"""The record that a failed attempt leaves, and the calls that answer the next attempt."""


def _left_by_attempt(attempt: Scope, error: BaseException) -> _Left:
    """Return what a failed attempt leaves, and forget the calls that will answer no attempt.

    Raises:
        CorruptStoreError: the record of a call cannot be read.
    """
    active, inside = attempt.run, attempt.run.inner.inside(attempt.around)
    made = _read(active, inside).known
    # A plain call in flight may still be recorded later.
    vain = {number for number, each in inside.items() if number not in made and not each.effect}
    with active.lock:
        unmet = [each for each in _unmet(attempt) if each.call.number not in made]
        record, kept = left_by(active, attempt.around[-1], made, error, vain=vain, unmet=unmet)
    active.inner.forget(attempt.around, record.superseded if record is not None else ())
    for each in kept:
        inside[each.call.number].flags = each.flags
    return record, kept


def left_by(
    active: ActiveRun,
    step: int,
    calls: Mapping[int, RecordedCall],
    error: BaseException | None,
    *,
    vain: Iterable[int] = (),
    unmet: Sequence[RecordedCall] = (),
) -> _Left:
    """Return what a failed attempt leaves, and drop the calls made in vain from the pool.

    Args:
        step: the number of the call whose attempt failed; 0 for the step loop of an agent.
        calls: the calls made or answered in the attempt, by number.
        error: the exception of the attempt; ``None`` if the record of the run's end has it.
        vain: numbers of other calls that must answer no attempt.
        unmet: calls of earlier attempts that this attempt did not make; they keep answering.
    """
    unwinding = active.unwinding
    failed = [n for n in unwinding.numbers(error) if n in calls]
    spent = tuple(n for n in unwinding.spent(error) if n in calls) if error is not None else ()
    handled = tuple(n for n in failed if calls[n].handled and not calls[n].retry)
    for number in failed:
        calls[number].retry = True
    for number in spent:
        calls[number].spent = True
    after = calls.keys() & superseded([*calls.values(), *unmet])
    numbers = tuple(sorted(after.union(vain)))
    active.pool.drop(numbers)
    kept = [each for number, each in calls.items() if number not in numbers]
    if not (numbers or spent or handled):
        return None, kept
    return AttemptFailed(step, numbers, handled, spent, time.time()), kept


def _read(active: ActiveRun, inside: Mapping[int, InnerCall]) -> Calls:
    """Read the records of calls again.

    Raises:
        CorruptStoreError: a record cannot be read any more.
    """
    entries: list[Entry] = []
    flags: dict[int, Flags] = {}
    journal = active.journal
    for inner in inside.values():
        for number in inner.records:
            entry = read_one(journal.store, journal.seal, journal.run_id, number)
            if entry is None:
                raise active.stop(
                    errors.CorruptStoreError(
                        f"record {number} of run {active.run_id!r} cannot be read any more, and "
                        "a retry has to know what has been done. stepwise verify says more"
                    )
                )
            entries.append(entry)
        if inner.flags is not None and inner.records:
            flags[inner.records[-1]] = inner.flags
    return Calls(sorted(entries, key=lambda each: each.number), flags)


def _unmet(attempt: Scope) -> list[RecordedCall]:
    """Return the unused records of calls inside this step, or inside a step that it continues."""
    steps = attempt.run.inner.steps(attempt.around[-1])
    return [each for each in attempt.run.pool.all if not steps.isdisjoint(each.call.around)]


def _give_back(attempt: Scope, kept: list[RecordedCall], owner: int) -> None:
    """Put calls back into the pool, to answer only calls of the owner's next attempt.

    Args:
        owner: the number of the retried call; 0 to answer any caller.
    """
    active = attempt.run
    with active.lock:
        for each in (*kept, *_unmet(attempt)):
            active.pool.put_back(each, owner)
    active.flows.moved()


def end_attempts(attempt: Scope) -> None:
    """Assign calls of earlier attempts that the last attempt did not meet to the ending step.

    These calls answer no other call from now on, and side effects among them are reported.
    """
    active, call = attempt.run, attempt.call
    if attempt.attempt == 1 or not active.pool:
        return
    with active.lock:
        unmet = _unmet(attempt)
        active.pool.drop(each.call.number for each in unmet)
    attempt.inner.extend(each.call.number for each in unmet)
    done = [each.call for each in unmet if each.may_have_happened and not each.over]
    if done and call is not None:
        _warn_unmet(active, call, done)


@reports
def _warn_unmet(active: ActiveRun, call: Call, done: list[Call]) -> None:
    shown = "; ".join(f"{each.number} {each.name}({each.arguments})" for each in done[:6])
    warn(
        f"{call.name} of run {active.run_id!r} was retried, and its last attempt did not call "
        f"these side effects again, which happened or may have happened before: {shown}",
        errors.UnusedRecordWarning,
    )


@reports
def _tell_retry_waits(attempt: Scope, many: int) -> None:
    what, name = count(many, "side effect"), attempt.call.name if attempt.call else ""
    notice(f"run {attempt.run.run_id}: the retry of {name} waits for {what} of the failed attempt")


# -- attempts that are over ----------------------------------------------------------------------


def is_over(scope: Scope) -> bool:
    """Return whether code belongs to an attempt that has failed.

    A side effect in flight is not over: it may finish, with the calls that it makes.
    """
    over, here = scope.run.inner.over, scope
    while over:
        if id(here.inner) in over:
            return True
        if here.outer is None or (here.call is not None and here.call.effect):
            break
        here = here.outer
    return False


def admit_attempt(scope: Scope, name: str) -> None:
    """Refuse a call by a task or thread that a failed attempt has left behind.

    Raises:
        OutsideRunError: the call is made by such a task or thread.
    """
    if scope.run.inner.over and is_over(scope):
        around = scope.call.name if scope.call is not None else scope.run.facts.label
        raise errors.OutsideRunError(
            f"{name} was called by a task or thread that outlived an attempt of {around}, which "
            "has failed: the next attempt could make that call twice. Await or join what a step "
            "starts before the step returns or raises",
            run_id=scope.run.run_id,
        )


# -- recording ------------------------------------------------------------------------------------


class AnsweredInstead(BaseException):
    """A call of a rerun was answered by a function; ``result`` is what that returned."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


Recording = Generator[Operation, Result, None]


def record_intent(scope: Scope, call: Call, arguments: Encoded | None, ticket: str) -> Recording:
    """Record that a side effect is about to happen.

    Raises:
        CancelledError: the caller was cancelled during the write; the call is recorded as not made.
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
        error: the exception of the call, if it raised one.
        looked: the captured value; see :meth:`ActiveRun.look`.
        helper: the helper through which the workflow made the call.
        awaited: see :class:`Outcome`.
        child: the totals that a child run has spent; see :meth:`Performer.child_spent`.

    Raises:
        CancelledError: the caller was cancelled during the write; the outcome is recorded.
    """
    active, (record, payload) = scope.run, outcome
    if awaited:
        record = record._replace(awaited=awaited)
    spent = active.account.spent_by(record, child)
    if spent:
        record = record._replace(spent=spent)
    durable = record.call.effect or record.status != "cancelled"
    # A caller that is cancelled while it takes a message would lose the message.
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
    tries: Tries = (),
) -> Recording:
    """Record the exception of a call, unless it stops the run.

    Args:
        inner: the scope of the call's last attempt.
        changes: returns the changes to the call's arguments, and warns of changes that cannot be
            recorded; called only if the call gets an outcome.
        clean: whether the exception means that the call had no effect.
        helper: the helper through which the workflow made the call.
        child: the totals that a child run has spent.
        tries: the attempts, if the call took several.
    """
    active, call, error = scope.run, inner.call, result.error
    assert call is not None and error is not None  # noqa: PT018
    if isinstance(error, errors.RunStopped) and not isinstance(error, ENDINGS):
        active.stop(error)
    elif isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) or active.interrupted:
        active.account.cut_off = True  # the call has no outcome: it runs again, or is in doubt
    elif active.suspension is not None and asyncio_state.is_cancellation(error):
        pass  # only a side effect of the suspension, which cancels the run's other tasks
    else:
        cancelled = asyncio_state.is_cancellation(error) or active.steering.ending(error)
        status: StepStatus = "cancelled" if cancelled else "failed"
        if status == "failed":
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
                tries=tries,
            )
        except errors.NotRecordableError as problem:  # the call stays open
            notice(f"run {active.run_id}: how {call.name} failed is not recorded, since {problem}")
            return
        yield from record_outcome(
            scope, record, error=error, helper=helper, awaited=result.awaited, child=child
        )


# -- perform --------------------------------------------------------------------------------------


PATIENCE = 1.0  # seconds without any change in the run after which a blocked call raises
_NOTHING: Mapping[str, Any] = {}

_Settling = Generator[Operation, Result, Result | None]


class Performer:
    """The callee of a recorded call: a step, a tool or a child workflow.

    Attributes:
        kind: ``step``, ``tool`` or another name for messages; empty for a child workflow.
        hiding: the arguments that are not stored, or not shown.
        returns: the annotated return type.
        awaits: true if the body is a coroutine function.
        keeps_failures: true if an exception is an outcome; else the next equal call runs again.
        hands_out: true if the caller gets the recorded value itself, so that a checkpoint may refer
            to it.
        by_turn: true if the record of the same turn answers when no record has the same arguments.
        code: the id of the version; see :class:`Call`.
        version: the fingerprints of the code.
    """

    name: str
    kind = ""
    module: str
    effect: bool
    idempotent = False
    in_doubt: InDoubt = "raise"
    fails_cleanly: tuple[type[BaseException], ...] = ()
    timeout: float | None
    hiding: Hiding
    returns: Any
    awaits = False
    keeps_failures = True
    hands_out = True
    by_turn = False
    code = ""
    version = UNKNOWN

    def may_change(self, bound: Mapping[str, Any]) -> bool:
        """Return whether the body of a call receives any object that it could change."""
        return True

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return the arguments that the body of a call may change."""
        return NOTHING_WATCHED

    def inputs(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call as they are recorded in full."""
        return bound

    def body(self, call: Call) -> Callable[..., Any]:
        """Return the function to execute for a call."""
        raise NotImplementedError

    def new_child(self, taken: Container[str]) -> str:
        """Return the id of a new child run, different from all ``taken`` ids; empty for a step."""
        return ""

    def answered(self, call: Call) -> None:
        """React to a record that answers the call; does nothing by default."""

    def shown_value(self, value: Any) -> ShownValue | None:
        """Return the form in which listings show a value, or ``None`` to show the value itself."""

    def child_spent(self, call: Call) -> Sums | None:
        """Return the child run's spending that no earlier outcome of its call reports."""

    def attempts(self) -> Attempts:
        """Return the attempts that one call may have."""
        return Attempts(0, Exception, None)

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> Encoded | None:
        """Encode the data that a compensation needs, to be recorded with the intent of the call."""


# -- the call ------------------------------------------------------------------------------------


class Performance:
    """One call of a step, tool or child workflow.

    Args:
        performer: the callee.
        scope: where the call is made.
        identity: the facts that distinguish the call from other calls.
        bound: the arguments by parameter name.
        args, kwargs: the arguments as passed.
    """

    def __init__(
        self,
        performer: Performer,
        scope: Scope,
        identity: Identity,
        bound: Mapping[str, Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.performer, self.scope, self.identity = performer, scope, identity
        self.bound, self.args, self.kwargs = bound, args, kwargs

    def watched(self) -> Watched:
        """Return the arguments that the body of the call may change."""
        return self.performer.watched(self.bound)

    def core(self, *, asks_first: bool = False) -> Core:
        """Answer the call from the journal, or execute it and record its outcome.

        Args:
            asks_first: yield :class:`Ready` after the look into the journal, before anything is
                done.
        """
        performer, scope, identity, bound = self.performer, self.scope, self.identity, self.bound
        active, around, number = scope.run, scope.around, 0
        pool = active.pool
        look = debugged.look
        if look is not None and look.is_typed():
            return (yield from self._typed(look))
        active.check(performer.name, scope.call, answered=True)
        if active.inner.over:
            admit_attempt(scope, performer.name)
        if identity.holder is not None:
            active.subjects.begin(identity, around)
        try:
            shown = performer.hiding.shown(bound, active.secrets)
            call, origin = self._begin(shown)
            is_first = not (pool.taken or pool.rulings)  # then no record can answer
            match = FRESH if is_first or not pool else (yield from self._claim(call, origin))
            recorded = match.recorded[0] if match.recorded else None
            if recorded is not None:
                answer = yield from self._answered_by(call, recorded, match.verdict)
                if answer is not None:
                    return answer
            elif call.effect and active.journal.unknown_effects:
                raise active.stop(active.journal.refuse_effect(call.name))
            if asks_first:
                active.subjects.end(identity)  # nothing changes until it begins again
                yield READY
                active.subjects.begin(identity, around)
            yield from self._admit(recorded, call)
            call = self._number(call, match)
            number = call.number
            return (yield from self.conduct(call, origin, match))
        except AnsweredInstead as answer:
            return answer.result
        except MemoryError as error:  # raised by our code: an error of the body is in its result
            doing = f"a call of {performer.name!r} was looked up or recorded"
            then = f". If {performer.name!r} has happened, it is in doubt then"
            then = then if performer.effect else ""
            raise active.stop(stopped(doing, error, then)) from error
        finally:
            if identity.held is not None:
                self._release()
            if around and number:
                active.inner.land(around, number)

    def _release(self) -> None:
        """Let go of the objects that the call holds."""
        held = self.identity.held
        if held is not None and not held.looked:  # no outcome: the changes may stay in this process
            self._changes_so_far()
        self.scope.run.subjects.end(self.identity)

    def _begin(self, arguments: str) -> tuple[Call, Origin]:
        """Return the call, without a number yet, and its place in the program.

        Args:
            arguments: the arguments in the form for display.
        """
        performer, scope, identity = self.performer, self.scope, self.identity
        active, around, branch = scope.run, scope.call, scope.branch
        if debugged.look is not None:
            debugged.look.before(self, performer.name)
        active.note_handled()
        if not branch and branches.name is not None:
            branch = branches.name(active.run_id)
        name, effect, digest, unwinding = performer.name, performer.effect, identity.digest, None
        helped = around is None and active.frame is not None
        origin = active.locator.origin(effect=effect, helped=helped)
        if not (origin.site or effect or active.locator.is_ours):
            origin = origin._replace(site=active.locator.waiting_at(own_frames(active)))
        counted, key = counted_as(name, branch) if branch else name, ""
        ordinal = active.ordinals.of_call(counted)
        if effect:
            key = idempotency_key(active.run_id, counted, digest, ordinal, active.facts.undone)
        # A client may retry while it handles its failure: the retry is the same call.
        if performer.keeps_failures and handled() is not active.unwinding.ambient:
            unwinding = active.unwinding.label()
        facts = (  # the constructor is a Python function, and a call is made for every step
            0,
            name,
            performer.module,
            digest,
            ordinal,
            around.name if around is not None else "",
            unwinding,
            origin.place,
            origin.site,
            arguments,
            effect,
            key,
            "",
            time.time(),
            branch,
            identity.subject.serial if identity.subject is not None else 0,
            identity.parts,
            0,
            performer.code,
            scope.around,
        )
        return tuple.__new__(Call, facts), origin

    # -- under a debugger ------------------------------------------------------------------------

    def _typed(self, look: Replay) -> Core:
        """Answer a call that is typed at a prompt: by its last record, or by its body if allowed.

        Nothing of the run changes: no record is taken out of the pool, and no call is counted.

        Raises:
            OutsideRunError: the call was never made, and is not allowed.
        """
        from stepwise._execution.viewer import view  # on use: few runs are debugged

        performer, active, digest = self.performer, self.scope.run, self.identity.digest
        name, kind = performer.name, performer.kind
        if kind and look.takes(name):
            notice(f"{name} is executed outside of the run, and not recorded")
            body = performer.body(Call(0, name, performer.module, digest, 0))
            return (yield Attempt(body, self.args, self.kwargs, self.scope, name, None, kind))
        entries = entries_of(active.journal.store, active.journal.seal, active.facts)
        for recorded in reversed([*Calls(entries)]):
            if (recorded.call.name, recorded.call.digest) == (name, digest) and recorded.answers:
                notice(f"{name} is answered by the journal: step {recorded.call.number}")
                found = view(recorded.entry, active.codec)
                return Result(found.value, found.error)
        raise not_on_record(active, name, is_allowable=bool(kind))

    def _number(self, call: Call, match: Match) -> Call:
        """Return the call with the number of the record that it continues, or with a new number.

        Raises:
            BudgetExceeded: the budget allows no further step.
        """
        active, recorded = self.scope.run, match.recorded[0] if match.recorded else None
        pool = active.pool
        if match.instead:
            call = call._replace(instead=match.instead)
        if recorded is not None:
            old = recorded.call
            if not recorded.retry:
                active.cut_off.add(old.number)
            child = old.child or self.performer.new_child(pool.children)
            serial = old.serial or call.serial
            key = old.key or call.key
            call = call._replace(number=old.number, key=key, child=child, serial=serial)
        else:
            child = self.performer.new_child(pool.children)
            if child:
                call = call._replace(child=child)
            if pool.taken:
                call = apart(call, active.run_id, active.facts.undone, pool.taken)
            call = tuple.__new__(Call, (active.journal.next_call(), *call[1:]))
        if active.account.limited and not (call.child and recorded is not None):
            # Only the record of a cut-off child run may be missing: its own steps are checked.
            error = active.account.begin(call, limited=not active.cleans_up())
            if error is not None:
                raise active.stop(error)
        if (call.code, call.name) not in active.versions:
            active.note_version(call.name, call.module, self.performer.version)
        if self.scope.around:
            active.inner.begin(self.scope.around, call, recorded)
        if self.identity.held is not None:
            self.identity.began(call.number)
        return call

    def _admit(
        self, recorded: RecordedCall | None = None, call: Call | None = None
    ) -> Generator[Operation, Result, None]:
        """Refuse a call that may not begin, now that the journal does not answer the call.

        After SIGTERM, a call of an asynchronous run waits to be cancelled.  A child run that is in
        progress is admitted: it ends itself, at the point where it was.

        Args:
            recorded: the record that the call continues.
            call: the call, if it is about to be made for the first time here.
        """
        scope, look = self.scope, debugged.look
        if look is not None and call is not None and not look.live:
            yield from look.unanswered(self, call, recorded)
        answered = recorded is not None and bool(recorded.call.child)
        scope.run.admit(scope.call, answered=answered)
        if sigterms.draining and scope.call is None:
            let_go(scope.run)
            cancelled = yield Cancelled(math.inf)
            raise cancelled.error or asyncio_state.cancellation()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Make a call that no record answers, and record its outcome."""
        self.takes_off(call)
        try:
            settled = None
            if match.verdict is Verdict.DOUBT:
                settled = yield from self.decided(call, match.recorded[0])
            if settled is None and call.effect:
                settled = yield from self.announced(call, match)
            return settled or (yield from self.carried_out(call, origin, match))
        finally:
            self.landed(call)

    def takes_off(self, call: Call) -> None:
        """Mark a call as in flight: before it is announced."""
        # Two methods, since a context manager takes longer, and every call does this.
        if not call.child:
            self.scope.run.in_flight[call.number] = threading.get_ident()

    def landed(self, call: Call) -> None:
        """Mark a call as no longer in flight: its outcome is recorded, or the call has none."""
        active, number = self.scope.run, call.number
        active.in_flight.pop(number, None)
        active.doing.pop(number, None)
        if active.inner.calls:
            active.inner.end(number)
        account = active.account
        if account.open or account.begun:
            account.left(number)
        if sigterms.draining:
            let_go(active, later=True)

    def carried_out(self, call: Call, origin: Origin, match: Match) -> Core:
        """Execute an announced call, and record its outcome."""
        active, identity, number = self.scope.run, self.identity, call.number
        if heard():
            lost = _lost(active, match.recorded[0]) if match.recorded else 0.0
            active.tell("step_started", call, lost=lost)
        if active.journal.note is not None:
            active.doing[number] = shown_call(call)
            active.journal.note(active.doing)
        active.flows.begin(number, child=bool(call.child))
        try:
            if identity.holder is not None or self.performer.may_change(self.bound):
                active.subjects.watch(identity, self.watched(), self.scope.around)
                identity.began(number)
            return (yield from self._execute(call, origin))
        finally:
            active.flows.done(number)

    # -- the record that answers it --------------------------------------------------------------

    def _claim(self, call: Call, origin: Origin) -> Generator[Wait, Result, Match]:
        """Find the record of the call, and take the record out of the pool.

        A recorded side effect could be this very call with other arguments.  Then the other tasks
        and threads of the run first get time to claim their records: until nothing has changed for
        a second, and none of them executes a step.
        """
        active, flows, identity = self.scope.run, self.scope.run.flows, self.identity
        caller = caller_of(active.subjects, identity)
        began, told = 0.0, False
        try:
            while True:
                seen = flows.claims.changes
                with active.lock:
                    match = active.pool.match(
                        call,
                        directly=origin.directly,
                        alone=lambda: not others_alive(active),
                        caller=caller,
                    )
                if caller.has_twins and active.is_first(f"twins {call.name}"):
                    _tell_twins(active, caller)
                if match.verdict is Verdict.BLOCKED:
                    began = began or time.monotonic()
                    flows.block(call, self.scope.around, match)
                    if others_may_claim(active):
                        changed = (yield Wait(flows.claims, seen, PATIENCE)).unwrap()
                        if changed or flows.others_working():
                            active.check(call.name, self.scope.call, answered=True)
                            if not told and time.monotonic() - began >= PATIENCE:
                                told = True
                                _tell_waiting(active, call, match)
                            continue
                    if self._is_reported(call, match):
                        return FRESH
                    continue  # another call has just taken the record
                if not match.recorded:
                    with active.lock:
                        instead = active.pool.instead(call)
                        same = self._of_this_turn(call, instead)
                    if same is None:
                        return match._replace(instead=instead)
                    answer = Verdict.ANSWER if self.performer.by_turn else Verdict.CHANGED
                    match = Match(answer if same.answers else Verdict.AGAIN, (same,))
                if active.take(match.recorded[0], self.scope.around):
                    active.subjects.met(identity, match.recorded[0].call)
                    return match
        finally:
            if began:
                flows.unblock(call)

    def _is_reported(self, call: Call, match: Match) -> bool:
        """Stop the run at a call that a recorded side effect blocks.

        Return True in a rerun, which reports the difference; False if the record is taken by now.
        """
        if debugged.compares:
            return True
        from stepwise._calls.doubt import stopped_at

        error = stopped_at(self.scope.run, call, match)
        if error is not None:
            raise error
        return False

    def _of_this_turn(self, call: Call, instead: int) -> RecordedCall | None:
        """Return the record of the same turn if it answers, although the arguments differ."""
        same, look = self.scope.run.pool.get(instead), debugged.look
        if not self.performer.by_turn and same is not None:
            replays = look is not None and look.replays and not look.compares
            return same if replays else None  # it differs
        return same

    def _answered_by(
        self, call: Call, recorded: RecordedCall, verdict: Verdict
    ) -> Generator[Any, Result, Result | None]:
        """Return the recorded outcome if it answers the call; ``None`` if the call must be made."""
        if verdict not in (Verdict.ANSWER, Verdict.CHANGED):
            return None
        look = debugged.look
        if look is not None:
            same = verdict is Verdict.ANSWER
            if not look.answers(self, call, recorded, same=same):
                return None
        elif verdict is Verdict.CHANGED:
            _warn_changed(call, recorded)
        if look is None and call.code != recorded.call.code and call.name == recorded.call.name:
            from stepwise._calls.edits import runs_again  # on use: few steps are edited

            if runs_again(self.scope.run, self.performer, recorded):
                return None
        return (yield from self.recalled(recorded))

    def recalled(self, recorded: RecordedCall) -> Generator[Any, Result, Result | None]:
        """Return the recorded outcome; ``None`` if the call must run again.

        A call whose outcome cannot be loaded runs again, unless it is a side effect.

        Raises:
            StepInDoubtError: the outcome of a side effect cannot be loaded.
        """
        scope, performer = self.scope, self.performer
        again = (yield from cancelled_again(scope, recorded)) if recorded.cancelled else Result()
        if again.value:
            return None
        active, call, outcome = scope.run, recorded.call, recorded.outcome
        given = None
        if outcome is not None and outcome.changed:
            given = active.subjects.given(self.identity, call.number, self.watched())
        try:
            value, error, put_back, _ = load_outcome(
                active.codec, recorded.entry, given, performer.returns
            )
        except errors.UnreadableValueError as problem:
            if debugged.compares:
                return None
            if call.effect and not call.child:
                from stepwise._calls.doubt import in_doubt

                did = "returned" if recorded.status == "completed" else "raised"
                why = f"{call.name} {did}, but {problem}"
                raise active.stop(in_doubt(active, recorded, why)) from problem
            notice(f"run {active.run_id}: {call.name} runs again, since {problem}")
            return None
        performer.answered(call)
        if recorded.entry.landed:
            self._tell_landed(call)
        if put_back is not None and given is not None:
            put_back(call.name, active.is_first)
            active.subjects.repeated(call.number, given)
        if error is not None:
            error = again.error or error
            active.unwinding.failed(call.number, error, pending=False)
        active.answered(scope, recorded, value)
        return Result(value, error, awaited=outcome.awaited if outcome is not None else "")

    # -- doubt -----------------------------------------------------------------------------------

    def announced(self, call: Call, match: Match, ticket: str = "") -> _Settling:
        """Announce a side effect; return ``None`` if it must run.

        Calls that a run restored from a backup does not know may have happened after the backup.
        They are in doubt, under the idempotency keys that they had then.

        Args:
            ticket: the ticket of the question that a person answered with yes.
        """
        run = self.scope.run
        for stream in run.open_streams() if not call.child else ():
            if not stream.can_read_rest(awaits=self.performer.awaits):
                _tell_open(run, call, stream)
            else:
                read = yield Attempt(stream.read_rest, (), {}, None, f"the stream of {stream.name}")
                if not (read.error is None or isinstance(read.error, Exception)):
                    read.unwrap()  # a Ctrl-C or a cancellation; the reader gets other errors
        yield from record_intent(
            self.scope, call, self.performer.to_undo(self.bound, run.codec), ticket
        )
        known = match.recorded and match.recorded[0].status != "waiting"
        if known or call.child or not run.facts.restored:
            return None
        entry = Entry(0, Intent(call), b"")
        why = (
            f"run {run.run_id!r} was restored from a backup, so {call.name} may have "
            "happened after the backup was made"
        )
        unknown = RecordedCall(call, "open", entry, entry)
        return (yield from self.decided(call, unknown, why))

    def decided(self, call: Call, recorded: RecordedCall, why: str = "") -> _Settling:
        """Settle a call in doubt by the policy of its tool; ``None`` if the call must run (again).

        Args:
            why: the reason for the doubt, if it is not the usual one.

        Raises:
            StepInDoubtError: the call stays in doubt.
        """
        from stepwise._calls.doubt import DidNotHappen, Inconclusive, InDoubtCall, Landed, in_doubt

        active, policy = self.scope.run, self.performer.in_doubt
        active.tell("step_in_doubt", call)
        if policy == "raise":
            raise active.stop(in_doubt(active, recorded, why))
        if policy == "retry":
            return None
        if policy == "skip":
            answer: Any = Landed(None)
        else:
            assert callable(policy)
            error = None
            if recorded.outcome is not None:
                from stepwise._execution.viewer import view  # on use

                error = view(recorded.entry, active.codec).error
            question = InDoubtCall(call.name, self.bound, call.key, recorded.call.at, error)
            asked = yield Attempt(policy, (question,), {}, None, f"reconcile of {call.name}")
            if asked.error is not None:
                why = f"asking whether {call.name} happened failed with {asked.error!r}"
                raise active.stop(in_doubt(active, recorded, why)) from asked.error
            answer = asked.value
        if isinstance(answer, Landed):
            landed = settled(
                active.codec,
                call,
                landed=True,
                value=answer.value,
                kind=self.performer.returns,
                is_open=recorded.outcome is None,
            )
            yield from record_settled(self.scope, call, landed)
            self._tell_landed(call)
            active.answered(self.scope, recorded)
            return Result(answer.value)
        if _is(answer, DidNotHappen):
            no = settled(active.codec, call, landed=False)
            yield from record_settled(self.scope, call, no)
            return None
        if _is(answer, Inconclusive):
            why = f"{call.name} was started, and its reconcile could not tell whether it happened"
        else:
            why = (
                f"the reconcile of {call.name} returned {answer!r} instead of Landed(value), "
                "DidNotHappen or Inconclusive"
            )
        raise active.stop(in_doubt(active, recorded, why))

    def _tell_landed(self, call: Call) -> None:
        """Say what a call may have changed before its process died; nobody knows how."""
        active = self.scope.run
        names = ", ".join(active.subjects.changing(self.identity))
        if names and active.is_first(f"{call.name} landed {names}"):
            notice(
                f"run {active.run_id}: of {call.name}({call.arguments}), which landed, only the "
                f"result is known. If it changed {names} before its process died, that is missing"
            )

    # -- executing it ----------------------------------------------------------------------------

    def _execute(self, call: Call, origin: Origin) -> Core:
        performer, scope, args, kwargs = self.performer, self.scope, self.args, self.kwargs
        active, around, helper = scope.run, (*scope.around, call.number), origin.helper
        function = performer.body(call)
        attempts: Attempts | None = None  # created when the first attempt fails
        number, awaited = 1, ""
        tries: Tries = ()
        while True:
            inner = Scope(active, call, around, number, scope.branch, scope)
            result = yield Attempt(
                function, args, kwargs, inner, call.name, performer.timeout, performer.kind
            )
            awaited = result.awaited or awaited
            if result.error is None:
                looked = active.look(scope, result.value) if performer.hands_out else None
                if number > 1:
                    end_attempts(inner)
                try:
                    record = self._completed(call, result.value, inner, tries)
                except errors.NotRecordableError as error:
                    if call.child:  # its own journal can produce the result again
                        return result
                    result = Result(error=error, awaited=awaited)
                else:
                    child = performer.child_spent(call) if call.child else None
                    yield from record_outcome(
                        scope, record, looked=looked, helper=helper, awaited=awaited, child=child
                    )
                    return result
            assert result.error is not None
            self._note_failure(call, number, result.error)
            clean = isinstance(result.error, performer.fails_cleanly)
            may_repeat = (not call.effect or clean or performer.idempotent) and not is_over(scope)
            attempts = attempts or performer.attempts()
            delay = None
            try:
                delay = attempts.next_delay(result.error) if may_repeat else None
            except Exception as mistake:  # the user's retry_on or backoff raised
                mistake.__cause__ = mistake.__cause__ or result.error
                raise
            finally:
                if delay is None and not performer.keeps_failures:
                    _tell_failure(active, call, result.error)
                    active.account.cut_off |= not isinstance(
                        result.error, (Exception, errors.RunStopped)
                    )
                elif delay is None:
                    yield from self._failed(inner, result, helper, tries, clean=clean)
            if delay is None:
                return result
            began, text = tries[-1][0] if tries else call.at, active.secrets.preview(result.error)
            failed = began, time.time(), text
            yield from fail_attempt(inner, result.error, again=True)
            number = attempts.number
            yield from self._rest(call, delay)
            tries = (*tries[:-1], failed, (time.time(), 0.0, ""))[-_TRIES:]

    def _note_failure(self, call: Call, attempt: int, error: BaseException) -> None:
        """Withdraw what a failed attempt has said, and record its local variables if asked to."""
        active = self.scope.run
        if active.emissions is not None:
            active.emissions.withdraw(call.number)
        if active.frame_recorder is not None and not call.child:
            active.frame_recorder.step_failed(
                active.journal, call.number, attempt, error, self.performer.hiding, self.bound
            )

    def _failed(
        self, inner: Scope, result: Result, helper: Helper | None, tries: Tries, *, clean: bool
    ) -> Generator[Any, Result, None]:
        """Record the exception of the last attempt of a call."""
        call = inner.call
        assert call is not None
        if isinstance(result.error, errors.StepTimeoutError) and not self.performer.awaits:
            inner.run.subjects.abandon(self.identity)
        yield from record_failure(
            self.scope,
            inner,
            result,
            lambda: self._changes(call),
            clean=clean,
            helper=helper,
            child=self.performer.child_spent(call) if call.child else None,
            tries=tries,
        )

    def _rest(self, call: Call, seconds: float) -> Generator[Any, Result, None]:
        """Wait between two attempts; the call is not in flight during the wait."""
        in_flight = self.scope.run.in_flight
        thread = in_flight.pop(call.number, None)
        yield from self._admit()
        yield Sleep(seconds)
        yield from self._admit()
        if thread is not None:
            in_flight[call.number] = thread

    def _completed(
        self, call: Call, value: object, inner: Scope, tries: Tries
    ) -> tuple[Outcome, Data]:
        """Build the record of a call that returned.

        Raises:
            NotRecordableError: the value cannot be recorded.
        """
        return outcome(
            inner.run.codec,
            call,
            "completed",
            value,
            inner=inner.inner,
            attempts=inner.attempt,
            changes=self._changes(call, value),
            kind=self.performer.returns,
            shown=self.performer.shown_value(value),
            tries=tries,
        )

    def _changes(self, call: Call, value: object = None) -> Recorded | None:
        """Return the changes that the call made to its arguments, as far as they can be recorded.

        Warn now, not on resume, of changes that cannot be repeated when a record answers the call.
        """
        active, identity = self.scope.run, self.identity
        shared = None if active.codec.data_only else value
        found = self._changes_so_far(shared) if identity.held is not None else None
        if found is None:
            return None
        from stepwise._execution.changes import recordable, tell_untold

        function = getattr(self.performer, "function", None)
        try:
            recorded, untold = recordable(active.codec, found, function, value)
        except MemoryError as error:
            raise ran_out(f"what {call.name!r} returned and changed was recorded", error) from None
        if untold or found.unwatched:
            tell_untold(call.name, untold, found.unwatched, active.is_first)
        return recorded

    def _changes_so_far(self, value: object = None) -> CallChanges | None:
        """Return the changes that the call made to its arguments so far, or ``None``.

        Args:
            value: the returned value, which may hold given objects.
        """
        subjects, identity = self.scope.run.subjects, self.identity
        seen = subjects.look(identity, value)
        if seen is None:
            return None
        from stepwise._execution.changes import changes_made  # on use: few calls change anything

        return changes_made(subjects, identity, seen)


def not_on_record(active: ActiveRun, name: str, *, is_allowable: bool) -> errors.OutsideRunError:
    """Return the error for a call that is not on record, while the run is looked at."""
    allow = f"; allow {name} executes it once, outside of the run" if is_allowable else ""
    return errors.OutsideRunError(
        f"{name} is refused: the run has no record of this call, and a debugger only looks at the "
        f"run{allow}. To make the call in the run: continue, next or step",
        run_id=active.run_id,
    )


@cache
def mixed(mixin: type, kind: Any) -> Any:
    """Return the class of calls of this kind that also do what the mixin does."""
    return type(f"{mixin.__name__.strip('_')}{kind.__name__}", (mixin, kind), {})


class RecordingCall:
    """The mixin of calls whose arguments are recorded in full, for people who look at the run."""

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Record the arguments, make the call, and record its outcome."""
        self.record_arguments(call)
        kind: Any = super()
        result: Result = yield from kind.conduct(call, origin, match)
        return result

    def record_arguments(self, call: Call) -> None:
        """Record the arguments of a call as it begins."""
        from stepwise._execution.inputs import record_inputs_of  # on use: few calls ask for it

        made: Any = self
        performer = made.performer
        given, function = performer.inputs(made.bound), getattr(performer, "function", None)
        record_inputs_of(made.scope.run, call.number, given, performer.hiding, function)


def _lost(active: ActiveRun, recorded: RecordedCall) -> float:
    """Return the seconds that an earlier attempt of a call took in vain, or a lower bound."""
    call, outcome = recorded.call, recorded.outcome
    if call.child:
        return 0.0
    if outcome is not None:
        return 0.0 if outcome.inner else max(0.0, outcome.at - call.at)
    with active.lock:  # if recorded calls inside it answer, the time is not lost
        kept = any(each.call.scope == call.name for each in active.pool.all)
    return 0.0 if kept else max(0.0, active.alive - call.at)


def _is(answer: object, kind: type) -> bool:
    return answer is kind or isinstance(answer, kind)


@reports
def _warn_changed(call: Call, recorded: RecordedCall) -> None:
    from stepwise._calls.doubt import changed_text  # on use

    warn(changed_text(call, recorded), errors.ArgumentsChangedWarning)


@reports
def _tell_twins(active: ActiveRun, caller: AnyCaller) -> None:
    notice(f"{active.run_id}: {caller.twins_text()}")


@reports
def _tell_waiting(active: ActiveRun, call: Call, match: Match) -> None:
    from stepwise._calls.doubt import waiting_text  # on use: calls rarely wait

    notice(f"run {active.run_id}: {waiting_text(call, match)}")


@reports
def _tell_open(active: ActiveRun, call: Call, stream: Any) -> None:
    what = f"{call.name} has side effects, and was called while {stream.name} is being streamed"
    if active.is_first(what):
        warn(
            f"{what}. A plain function cannot await the rest of that stream, nor can another event "
            "loop: should the run be cut off now, the stream is requested again, and may then say "
            f"something else. Make {call.name} `async def`, in the same event loop, or read the "
            "stream to its end first",
            errors.RunWarning,
        )


@reports
def _tell_failure(active: ActiveRun, call: Call, error: BaseException) -> None:
    active.tell("step_failed", call, active.secrets.preview(error), duration=time.time() - call.at)
