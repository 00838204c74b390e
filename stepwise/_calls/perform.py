"""One call of a step, tool or child workflow, from its first look into the journal to its outcome.

Its core (:meth:`Performance.core`) is a generator that decides.  Everything that takes time (an
attempt of the body, a wait) it yields as an operation, which ``driver`` executes for synchronous
functions and ``async_driver`` awaits for coroutine functions.  So both forms are one text.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Generator, Mapping
from typing import TYPE_CHECKING, Any

from stepwise._calls.driver import (
    READY,
    Attempt,
    Cancelled,
    Core,
    Operation,
    Result,
    Sleep,
    Wait,
    cancelled_again,
)
from stepwise._calls.recording import (
    record_failure,
    record_intent,
    record_outcome,
    record_settled,
)
from stepwise._execution.active_run import ActiveRun, OpenStream, Scope
from stepwise._execution.draining import let_go
from stepwise._execution.location import Helper, Origin
from stepwise._execution.other_tasks import others_alive, others_may_claim
from stepwise._execution.outcomes import ShownValue, load_outcome, outcome, settled
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, Entry, Intent, Outcome
from stepwise._journal.spending import Sums
from stepwise._matching.callers import AnyCaller, caller_of
from stepwise._matching.held import NOTHING_WATCHED, Watched
from stepwise._matching.pool import FRESH, Match, Verdict
from stepwise._matching.subjects import Identity
from stepwise._runtime import asyncio_state
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import sigterms
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import notice, reports, warn
from stepwise._runtime.retries import Attempts
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec, Encoded
from stepwise._values.hidden_arguments import Hiding
from stepwise.errors import (
    ArgumentsChangedWarning,
    NotRecordableError,
    RunStopped,
    RunWarning,
    UnreadableValueError,
)

if TYPE_CHECKING:
    from stepwise._calls.doubt import InDoubt
    from stepwise._execution.call_changes import Recorded

__all__ = [
    "DECORATED",
    "PATIENCE",
    "Performance",
    "Performer",
    "ShownValue",
    "land",
]

DECORATED = "__stepwise_step__"
"""The attribute of a decorated function that holds its step."""

PATIENCE = 1.0  # seconds without any change in the run after which a blocked call raises
_NOTHING: Mapping[str, Any] = {}

_Settling = Generator[Operation, Result, Result | None]


class Performer:
    """The callee of a recorded call: a step, a tool or a child workflow.

    Attributes:
        kind: ``step``, ``tool``, or what else it calls itself; empty for a child workflow.
        hiding: what of its arguments is not stored, or not shown.
        returns: the type that its value is annotated with.
        awaits: its body is a coroutine function.
        keeps_failures: an exception is an outcome; if not, the next equal call is made again.
        by_turn: the record of the same turn answers, if none of the same arguments does.
        code: fingerprint of the body; see :class:`Call`.
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
    by_turn = False
    code = ""

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return the arguments that the body of a call may change."""
        return NOTHING_WATCHED

    def body(self, call: Call) -> Callable[..., Any]:
        """Return the function to execute for a call."""
        raise NotImplementedError

    def new_child(self, taken: Container[str]) -> str:
        """Return the id of a new child run, none of the ``taken`` ones; empty for a step."""
        return ""

    def answered(self, call: Call) -> None:
        """Called when a record answers the call."""

    def shown_value(self, value: Any) -> ShownValue | None:
        """Return what a listing shows of a value, if not the value."""

    def child_spent(self, call: Call) -> Sums | None:
        """Return what a child run has spent that no earlier outcome of its call says."""

    def attempts(self) -> Attempts:
        """Return the attempts that one call may have."""
        return Attempts(0, Exception, None)

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> Encoded | None:
        """Encode the data that a compensation needs, to be recorded with the intent of the call."""


# -- the call ------------------------------------------------------------------------------------


class Performance(NamedTuple):
    """One call of a step, tool or child workflow.

    Args:
        performer: the callee.
        scope: where the call is made.
        identity: what tells it from other calls.
        bound: the arguments by parameter name.
        args, kwargs: the arguments as they are passed.
    """

    performer: Performer
    scope: Scope
    identity: Identity
    bound: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = _NOTHING

    def watched(self) -> Watched:
        """Return the arguments that the body of the call may change."""
        return self.performer.watched(self.bound)

    def core(self) -> Core:
        """Answer the call from the journal, or execute it and record its outcome."""
        performer, scope, identity, bound, _, _ = self
        active = scope.run
        active.check(performer.name, scope.call, answered=True)
        if active.inner.over:
            from stepwise._calls.retrying import admit_attempt

            admit_attempt(scope, performer.name)
        active.subjects.begin(identity, scope.around)
        number = 0
        try:
            shown = performer.hiding.shown(bound, active.secrets)
            call, origin = active.begin(
                scope,
                performer.name,
                performer.module,
                identity,
                shown,
                effect=performer.effect,
                code=performer.code,
            )
            if not performer.keeps_failures:
                # A client may try again while it handles its failure: that is the call itself.
                call = call._replace(unwinding=None)
            match = (yield from self._claim(call, origin)) if active.pool else FRESH
            recorded = match.recorded[0] if match.recorded else None
            if recorded is not None and match.verdict in (Verdict.ANSWER, Verdict.CHANGED):
                if match.verdict is Verdict.CHANGED:
                    _warn_changed(call, recorded)
                answer = yield from self.recalled(recorded)
                if answer is not None:
                    return answer
            if recorded is None and call.effect and active.journal.unknown_effects:
                raise active.stop(active.journal.refuse_effect(call.name))
            yield READY
            yield from self._admit(recorded)
            call = active.number(call, recorded, performer.new_child)
            number = call.number
            if scope.around:
                active.inner.begin(scope.around, call, recorded)
            if match.instead:
                call = call._replace(instead=match.instead)
            identity.began(call.number)
            return (yield from self.conduct(call, origin, match))
        except MemoryError as error:  # ours: an error of the body is in its result
            raise self.out_of_memory(error) from error
        finally:
            active.subjects.end(identity)
            if scope.around and number:
                active.inner.land(scope.around, number)

    def out_of_memory(self, error: MemoryError) -> RunStopped:
        """Stop the run, whose call was being looked up or recorded; return the error to raise."""
        performer = self.performer
        then = f". If {performer.name!r} has happened, it is in doubt then"
        doing = f"a call of {performer.name!r} was looked up or recorded"
        return self.scope.run.stop(stopped(doing, error, then if performer.effect else ""))

    def after_body(self, call: Call, origin: Origin, inner: Scope) -> Core:
        """Continue a call whose body was executed by ``plain``, and whose ending is not plain.

        The first operation is that attempt; its result is sent, not made.
        """
        try:
            return (yield from self._execute(call, origin, inner))
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        finally:
            self.scope.run.subjects.end(self.identity)
            self.scope.run.flows.done(call.number)
            self.landed(call)

    def _admit(self, recorded: RecordedCall | None = None) -> Generator[Cancelled, Result, None]:
        """Let no call begin that may not, now that the journal does not answer it.

        After SIGTERM, a call of an asynchronous run waits to be cancelled.  A child run that is in
        progress is to end itself, where it was.
        """
        scope = self.scope
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
                settled = yield from self.decided(call, match)
            if settled is None and call.effect:
                settled = yield from self.announced(call, match)
            return settled or (yield from self.carried_out(call, origin, match))
        finally:
            self.landed(call)

    def takes_off(self, call: Call) -> None:
        """Mark a call as in flight: before it is announced."""
        # Two methods, not a context manager, which takes longer; it is done for every call.
        if not call.child:
            self.scope.run.in_flight[call.number] = threading.get_ident()

    def landed(self, call: Call) -> None:
        """Mark a call as no longer in flight: its outcome is recorded, or it has none."""
        land(self.scope.run, call.number)

    def decided(self, call: Call, match: Match) -> _Settling:
        """Settle a call that is in doubt; ``None`` if it is to run."""
        if match.verdict is not Verdict.DOUBT:
            return None
        return (yield from self._decide(call, match.recorded[0]))

    def carried_out(self, call: Call, origin: Origin, match: Match) -> Core:
        """Execute a call that was announced, and record its outcome."""
        active = self.scope.run
        active.tell("step_started", call, lost=active.lost(next(iter(match.recorded), None)))
        active.flows.begin(call.number, child=bool(call.child))
        try:
            active.subjects.watch(self.identity, self.watched(), self.scope.around)
            self.identity.began(call.number)
            return (yield from self._execute(call, origin))
        finally:
            active.flows.done(call.number)

    # -- the record that answers it --------------------------------------------------------------

    def _claim(self, call: Call, origin: Origin) -> Generator[Wait, Result, Match]:
        """Find the record of the call, and take it out of the pool.

        Where a recorded side effect could be this very call with other arguments, the other tasks
        and threads of the run are first given the time to claim theirs: until nothing has changed
        for a second, and none of them executes a step.
        """
        active, flows, identity = self.scope.run, self.scope.run.flows, self.identity
        caller = caller_of(active.subjects, identity)
        began, told = 0.0, False
        try:
            while True:
                seen = flows.claims.changes
                match = active.match(
                    call, origin, identity, caller, lambda: not others_alive(active)
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
                    from stepwise._calls.doubt import stopped_at

                    error = stopped_at(active, call, match)
                    if error is not None:
                        raise error
                    continue  # another call has just taken the record
                if not match.recorded:
                    with active.lock:
                        instead = active.pool.instead(call)
                        same = active.pool.get(instead) if self.performer.by_turn else None
                    if same is None:
                        return match._replace(instead=instead)
                    verdict = Verdict.ANSWER if same.answers else Verdict.AGAIN
                    match = Match(verdict, (same,))
                if active.take(match.recorded[0], self.scope.around):
                    active.subjects.met(identity, match.recorded[0].call)
                    return match
        finally:
            if began:
                flows.unblock(call)

    def recalled(self, recorded: RecordedCall) -> Generator[Any, Result, Result | None]:
        """Return the recorded outcome; ``None`` if the call is to run again.

        It also runs again if the outcome cannot be loaded, unless it is a side effect.
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
            value, error, put_back = load_outcome(
                active.codec, recorded.entry, given, performer.returns
            )
        except UnreadableValueError as problem:
            if call.effect and not call.child:
                from stepwise._calls.doubt import in_doubt

                did = "returned" if recorded.status == "completed" else "raised"
                why = f"{call.name} {did}, but {problem}"
                raise active.stop(in_doubt(active, recorded, why)) from problem
            notice(f"run {active.run_id}: {call.name} runs again, since {problem}")
            return None
        performer.answered(call)
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
        """Announce a side effect; ``None`` if it is to run.

        The calls that a restored run does not know may have happened since: they are in doubt,
        under the idempotency keys that they had then.

        Args:
            ticket: of the question that a person answered with yes.
        """
        run = self.scope.run
        for stream in run.open_streams() if not call.child else ():
            if not stream.can_read_rest(awaits=self.performer.awaits):
                _tell_open(run, call, stream)
            else:
                read = yield Attempt(stream.read_rest, (), {}, None, f"the stream of {stream.name}")
                if not (read.error is None or isinstance(read.error, Exception)):
                    read.unwrap()  # a Ctrl-C or a cancellation; its reader sees the others
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
        return (yield from self._decide(call, unknown, why))

    def _decide(self, call: Call, recorded: RecordedCall, why: str = "") -> _Settling:
        """Settle a call in doubt as its tool says; ``None`` if it is to run (again).

        Args:
            why: it is in doubt, if not for the usual reason.
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

    # -- executing it ----------------------------------------------------------------------------

    def _execute(self, call: Call, origin: Origin, inner: Scope | None = None) -> Core:
        # The scope is that of the first attempt, if ``plain`` makes it.
        performer, scope, _, _, args, kwargs = self
        active, around, helper = scope.run, (*scope.around, call.number), origin.helper
        function = performer.body(call)
        attempts: Attempts | None = None  # until one has failed
        number, awaited = 1, ""
        while True:
            inner = inner or Scope(active, call, around, number, [], scope.branch, scope)
            result = yield Attempt(
                function, args, kwargs, inner, call.name, performer.timeout, performer.kind
            )
            awaited = result.awaited or awaited
            if result.error is None:
                looked = active.look(scope, result.value)
                if number > 1:
                    from stepwise._calls.retrying import end_attempts  # on use: few steps fail

                    end_attempts(inner)
                try:
                    record = self._completed(call, result.value, inner)
                except NotRecordableError as error:
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
            from stepwise._calls.retrying import fail_attempt, is_over  # on use

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
                    active.account.cut_off |= not isinstance(result.error, (Exception, RunStopped))
                elif delay is None:
                    yield from self._failed(inner, result, helper, clean=clean)
            if delay is None:
                return result
            yield from fail_attempt(inner, result.error, again=True)
            number, inner = attempts.number, None
            yield from self._rest(call, delay)

    def _failed(
        self, inner: Scope, result: Result, helper: Helper | None, *, clean: bool
    ) -> Generator[Any, Result, None]:
        """Record that the last attempt of a call raised."""
        call = inner.call
        assert call is not None
        yield from record_failure(
            self.scope,
            inner,
            result,
            self._changes(call),
            clean=clean,
            helper=helper,
            child=self.performer.child_spent(call) if call.child else None,
        )

    def _rest(self, call: Call, seconds: float) -> Generator[Any, Result, None]:
        """Wait between two attempts: meanwhile the call is not in flight."""
        in_flight = self.scope.run.in_flight
        thread = in_flight.pop(call.number, None)
        yield from self._admit()
        yield Sleep(seconds)
        yield from self._admit()
        if thread is not None:
            in_flight[call.number] = thread

    def _completed(self, call: Call, value: object, inner: Scope) -> tuple[Outcome, Data]:
        """Build the record of a call that returned.

        Raises:
            NotRecordableError: the value cannot be.
        """
        return outcome(
            inner.run.codec,
            call,
            "completed",
            value,
            inner=inner.inner,
            attempts=inner.attempt,
            changes=self._changes(call),
            kind=self.performer.returns,
            shown=self.performer.shown_value(value),
        )

    def _changes(self, call: Call) -> Recorded | None:
        """Return what the call changed in what it was given, as far as it can be recorded.

        What cannot be put back when the call is answered is warned about now, not on resume.
        """
        active = self.scope.run
        found = active.subjects.changes(self.identity)
        if found is None:
            return None
        # On use: few calls change anything.
        from stepwise._execution.call_changes import recordable, tell_untold

        recorded, untold = recordable(active.codec, found)
        if untold:
            tell_untold(call.name, untold, active.is_first)
        return recorded


def land(active: ActiveRun, number: int) -> None:
    """See :meth:`Performance.landed`."""
    active.in_flight.pop(number, None)
    active.inner.end(number)
    active.account.left(number)
    if sigterms.draining:
        let_go(active, later=True)


def _is(answer: object, kind: type) -> bool:
    return answer is kind or isinstance(answer, kind)


@reports
def _warn_changed(call: Call, recorded: RecordedCall) -> None:
    from stepwise._calls.doubt import changed_text  # on use

    warn(changed_text(call, recorded), ArgumentsChangedWarning)


@reports
def _tell_twins(active: ActiveRun, caller: AnyCaller) -> None:
    notice(f"{active.run_id}: {caller.twins_text()}")


@reports
def _tell_waiting(active: ActiveRun, call: Call, match: Match) -> None:
    from stepwise._calls.doubt import waiting_text  # on use: calls rarely wait

    notice(f"run {active.run_id}: {waiting_text(call, match)}")


@reports
def _tell_open(active: ActiveRun, call: Call, stream: OpenStream) -> None:
    what = f"{call.name} has side effects, and was called while {stream.name} is being streamed"
    if active.is_first(what):
        warn(
            f"{what}. A plain function cannot await the rest of that stream, nor can another event "
            "loop: should the run be cut off now, the stream is requested again, and may then say "
            f"something else. Make {call.name} `async def`, in the same event loop, or read the "
            "stream to its end first",
            RunWarning,
        )


@reports
def _tell_failure(active: ActiveRun, call: Call, error: BaseException) -> None:
    active.tell("step_failed", call, active.secrets.preview(error), duration=time.time() - call.at)
