"""One call of a step, tool or child workflow, from its first look into the journal to its outcome.

:func:`perform` is a generator that decides; what takes time (an attempt of the body, a wait) it
yields as an operation, which ``_drive`` executes for synchronous functions and ``_adrive`` awaits
for coroutine functions.  So both forms are one text.

Imports: run, attempts, and what they import; on use doubt, since mostly there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepwise import _tasks
from stepwise._attempts import Attempts
from stepwise._codec import Codec, Encoded
from stepwise._matching import FRESH, Match, Verdict
from stepwise._mutation import replay_changed
from stepwise._notices import notice, warn
from stepwise._operations import (
    Attempt,
    Change,
    Core,
    Ready,
    Result,
    Sleep,
    Write,
    cancelled_again,
)
from stepwise._origin import Helper, Origin
from stepwise._others import others_alive, others_may_claim
from stepwise._outcomes import outcome, settled
from stepwise._pieces import Data
from stepwise._previews import preview_arguments
from stepwise._recorded import Recorded
from stepwise._recording import Recording, intend, record_outcome, record_settled
from stepwise._records import Call, Outcome
from stepwise._run import Scope
from stepwise._surroundings import Surroundings
from stepwise.errors import (
    ArgumentMutatedWarning,
    ArgumentsChangedWarning,
    NotRecordableError,
    RunStopped,
    UnreadableValueError,
)

if TYPE_CHECKING:
    from stepwise._doubt import InDoubt

__all__ = ["Performer", "perform"]


class Watches(Protocol):
    """Notices that a call changes its arguments."""

    def changed(self) -> list[str]:
        """The names of those that are not as they were."""

    @property
    def around(self) -> Surroundings:
        """The arguments that may be changed."""


class Performer(Protocol):
    """What is called: a step, a tool or a child workflow."""

    name: str
    module: str
    effect: bool
    idempotent: bool
    in_doubt: InDoubt
    fails_cleanly: tuple[type[BaseException], ...]
    timeout: float | None
    child: str  # run id, for a child workflow

    def watch(self, bound: Mapping[str, Any]) -> Watches:
        """What notices that the call changes its arguments."""

    def attempts(self) -> Attempts:
        """The attempts that one call may have."""

    def body(self, call: Call) -> Callable[..., Any]:
        """The function to execute for a call."""

    @property
    def returns(self) -> Any:
        """The type that its value is annotated with."""

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> Encoded | None:
        """What undoing the call takes, to be recorded with its intent."""


# -- the call ------------------------------------------------------------------------------------


def perform(
    performer: Performer,
    scope: Scope,
    digest: str,
    bound: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Core:
    """Answer a call from the journal, or execute it and record its outcome.

    Args:
        digest: of the arguments.
        bound: the arguments by parameter name.
    """
    active = scope.run
    active.check(performer.name)
    call, origin = active.begin(
        scope,
        performer.name,
        performer.module,
        digest,
        preview_arguments(bound),
        effect=performer.effect,
    )
    match = (yield from _claim(scope, call, origin)) if active.pool else FRESH
    recorded = match.recorded[0] if match.recorded else None
    if recorded is not None and match.verdict in (Verdict.ANSWER, Verdict.CHANGED):
        if match.verdict is Verdict.CHANGED:
            from stepwise._doubt import changed_text

            warn(changed_text(call, recorded), ArgumentsChangedWarning)
        again = (yield from cancelled_again(scope, recorded)) if recorded.cancelled else Result()
        answer = None if again.value else _answer(performer, scope, recorded, bound, again.error)
        if answer is not None:
            return answer
    if recorded is None and call.effect and active.journal.unknown_effects:
        raise active.stop(active.journal.refuse_effect(call.name))
    yield Ready()
    call = active.number(call, recorded, performer.child)
    if recorded is not None and match.verdict is Verdict.DOUBT:
        settled = yield from _decide(performer, scope, call, recorded, bound)
        if settled is not None:
            return settled
    if call.effect:
        yield from intend(scope, call, performer.to_undo(bound, active.codec))
    active.tell("step_started", call)
    active.flows.begin(call.number)
    try:
        return (yield from _execute(performer, scope, call, origin, bound, args, kwargs))
    finally:
        active.flows.done(call.number)


def _claim(scope: Scope, call: Call, origin: Origin) -> Generator[Change, Result, Match]:
    """Find what is recorded of the call, and take it out of the pool.

    Where a recorded side effect could be this very call with other arguments, the other tasks and
    threads of the run are first given the time to claim theirs.
    """
    active, flows = scope.run, scope.run.flows
    blocked = False
    try:
        while True:
            seen = flows.changes
            match = active.match(call, origin, lambda: not others_alive(active))
            if match.verdict is Verdict.BLOCKED:
                blocked = True
                flows.block(call, scope.around)
                if others_may_claim(active):
                    changed = yield Change(flows, seen)
                    if changed.value or flows.others_working():
                        active.check(call.name)
                        continue
                from stepwise._doubt import may_be_another

                raise active.stop(may_be_another(active, call, match))
            if not match.recorded or active.take(match.recorded[0]):
                return match
    finally:
        if blocked:
            flows.unblock(call)


def _answer(
    performer: Performer,
    scope: Scope,
    recorded: Recorded,
    bound: Mapping[str, Any],
    again: BaseException | None,
) -> Result | None:
    """The recorded outcome; ``None`` if it cannot be loaded and the call may run again.

    Args:
        again: what was raised in its stead.
    """
    active = scope.run
    call, record, payload = recorded.call, recorded.entry.record, recorded.entry.payload
    outcome = recorded.outcome
    failed = outcome is not None and outcome.status != "completed"
    value, form = None, getattr(record, "form", None)
    try:
        if outcome is not None and outcome.changed:
            active.codec.check(form)
            value = replay_changed(payload, form, performer.watch(bound).around)
            if failed:
                payload, form = value
        elif not failed:
            value = active.codec.decode(payload, form, performer.returns)
        result = Result(value)
        if failed:
            result = Result(error=again or active.codec.decode_error(payload, form))
            assert result.error is not None
            active.unwinding.failed(call.number, result.error, pending=False)
    except UnreadableValueError as error:
        if call.effect and not call.child:
            from stepwise._doubt import in_doubt

            why = f"{call.name} returned, but {error}"
            raise active.stop(in_doubt(active, recorded, why)) from error
        notice(f"run {active.run_id}: {call.name} runs again, since {error}")
        return None
    active.answered(scope, recorded, result.value)
    return result


def _execute(
    performer: Performer,
    scope: Scope,
    call: Call,
    origin: Origin,
    bound: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Core:
    active, around = scope.run, (*scope.around, call.number)
    function, watch = performer.body(call), performer.watch(bound)
    attempts: Attempts | None = None  # until one has failed
    number = 1
    while True:
        inner = Scope(active, call, around, number, [], scope.branch)
        result = yield Attempt(function, args, kwargs, inner, call.name, performer.timeout)
        if result.error is None:
            looked = active.look(scope, result.value)
            try:
                record = _completed(performer, call, watch, result.value, inner)
            except NotRecordableError as error:
                if call.child:  # its own journal can make the result again
                    return result
                result = Result(error=error)
            else:
                yield from record_outcome(scope, record, looked=looked, helper=origin.helper)
                return result
        assert result.error is not None
        clean = isinstance(result.error, performer.fails_cleanly)
        may_repeat = not call.effect or clean or performer.idempotent
        attempts = attempts or performer.attempts()
        delay = None
        try:
            delay = attempts.next_delay(result.error) if may_repeat else None
        except Exception as mistake:  # of the user's retry_on or backoff
            mistake.__cause__ = mistake.__cause__ or result.error
            raise
        finally:
            if delay is None:
                left = watch.around if call.child and watch.changed() else None
                yield from _record_failure(
                    scope, inner, result.error, clean=clean, around=left, helper=origin.helper
                )
        if delay is None:
            return result
        number = attempts.number
        yield Sleep(delay)
        active.check(call.name)


def _completed(
    performer: Performer, call: Call, watch: Watches, value: object, inner: Scope
) -> tuple[Outcome, Data]:
    """What is recorded of a call that returned.

    Raises:
        NotRecordableError: the value cannot be.
    """
    changed = watch.changed()
    if changed and not call.child:
        _warn_mutated(call, changed)
    return outcome(
        inner.run.codec,
        call,
        "completed",
        value,
        inner=inner.inner,
        attempts=inner.attempt,
        around=watch.around if changed else None,
        kind=performer.returns,
    )


def _warn_mutated(call: Call, changed: list[str]) -> None:
    names = ", ".join(map(repr, changed))
    warn(
        f"{call.name!r} changed its argument {names}. What it became is recorded with the result, "
        "and put back when the call is answered from the journal; return the change instead, which "
        "costs less and is seen where it happens",
        ArgumentMutatedWarning,
    )


def _record_failure(
    scope: Scope,
    inner: Scope,
    error: BaseException,
    *,
    clean: bool,
    around: Surroundings | None,
    helper: Helper | None,
) -> Recording:
    """Record what a call raised, unless it is the run that is being stopped.

    Args:
        inner: the scope of its last attempt.
        around: the arguments, if it changed them.
        helper: through which the workflow made it.
    """
    active, call = scope.run, inner.call
    assert call is not None
    if isinstance(error, RunStopped):
        active.stop(error)
    elif isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) or active.interrupted:
        pass  # the call has no outcome: it runs again, or is in doubt
    else:
        status: Literal["cancelled", "failed"] = (
            "cancelled" if _tasks.is_cancellation(error) else "failed"
        )
        record = outcome(
            active.codec,
            call,
            status,
            error,
            inner=inner.inner,
            attempts=inner.attempt,
            clean=clean,
            around=around,
        )
        yield from record_outcome(scope, record, error=error, helper=helper)


# -- doubt ---------------------------------------------------------------------------------------


def _decide(
    performer: Performer,
    scope: Scope,
    call: Call,
    recorded: Recorded,
    bound: Mapping[str, Any],
) -> Generator[Attempt | Write, Result, Result | None]:
    """Settle a call in doubt as its tool says; ``None`` if it is to run (again)."""
    from stepwise._doubt import DidNotHappen, Inconclusive, InDoubtCall, Landed, in_doubt

    active, policy = scope.run, performer.in_doubt
    active.tell("step_in_doubt", call)
    if policy == "raise":
        raise active.stop(in_doubt(active, recorded))
    if policy == "retry":
        return None
    if policy == "skip":
        answer: Any = Landed(None)
    else:
        assert callable(policy)
        outcome = recorded.outcome
        error = None
        if outcome is not None:
            error = active.codec.decode_error(recorded.entry.payload, outcome.form)
        question = InDoubtCall(call.name, bound, call.key, recorded.call.at, error)
        asked = yield Attempt(policy, (question,), {}, None, f"reconcile of {call.name}")
        if asked.error is not None:
            why = f"asking whether {call.name} happened failed with {asked.error!r}"
            raise active.stop(in_doubt(active, recorded, why)) from asked.error
        answer = asked.value
    if isinstance(answer, Landed):
        landed = settled(
            active.codec, call, landed=True, value=answer.value, kind=performer.returns
        )
        yield from record_settled(active, landed)
        active.answered(scope, recorded)
        return Result(answer.value)
    if _is(answer, DidNotHappen):
        yield from record_settled(active, settled(active.codec, call, landed=False))
        return None
    if _is(answer, Inconclusive):
        why = f"{call.name} was started, and its reconcile could not tell whether it happened"
    else:
        why = (
            f"the reconcile of {call.name} returned {answer!r} instead of Landed(value), "
            "DidNotHappen or Inconclusive"
        )
    raise active.stop(in_doubt(active, recorded, why))


def _is(answer: object, kind: type) -> bool:
    return answer is kind or isinstance(answer, kind)
