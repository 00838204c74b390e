"""The end of a failed attempt: what was called inside it, and which of that the next one meets.

Which calls answer is the rule of ``_matching.attempts``.  It is applied to the records, read again,
so that the next attempt in this process meets exactly what one in a later process would.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Union

from stepwise._calls.driver import Core, Result, Wait, Write, written
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.inner_calls import InnerCall
from stepwise._journal.chain import read_one
from stepwise._journal.projection import Calls, Flags, RecordedCall
from stepwise._journal.records import AttemptFailed, Call, Entry
from stepwise._matching.attempts import superseded
from stepwise._runtime.messages import count, notice, reports, warn
from stepwise.errors import (
    CorruptStoreError,
    OutsideRunError,
    StepTimeoutError,
    UnusedRecordWarning,
)

__all__ = ["admit_attempt", "end_attempts", "fail_attempt", "is_over", "left_by"]

_PATIENCE = 5.0  # seconds after which a retry says what it waits for


def fail_attempt(
    attempt: Scope, error: BaseException, *, again: bool = False, by_host: bool = False
) -> Core:
    """Record that an attempt failed, so far as that decides which calls answer the next one.

    Tasks and threads that it has left behind make no more calls.  Their side effects in flight are
    waited for, since the next attempt is to meet their outcome.  Not after a timeout, which could
    last for ever: then they are in doubt.

    Args:
        attempt: the scope of its body.
        again: the next attempt follows in this process.
        by_host: it is another call, which a host makes.
    """
    active, call = attempt.run, attempt.call
    if call is None or call.child:  # a child run has a journal of its own
        return Result()
    timed_out = isinstance(error, StepTimeoutError) and error.step == call.name
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
    else:
        _take_unmet(attempt)
    return Result()


def _in_flight_awaited(attempt: Scope) -> Generator[Wait, Result, None]:
    """Wait for the side effects of a failed attempt that its tasks and threads still execute."""
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
            _tell_waiting(attempt, len(flying))
        (yield Wait(active.flows.claims, seen, _PATIENCE)).unwrap()


_Left = tuple[Union[AttemptFailed, None], list[RecordedCall]]
"""Rules for a failed attempt: the record that it leaves, and the calls that answer the next one."""


def _left_by_attempt(attempt: Scope, error: BaseException) -> _Left:
    """Return what an attempt of a step leaves; the calls that it made in vain are forgotten.

    Raises:
        CorruptStoreError: the record of a call cannot be read.
    """
    active, inside = attempt.run, attempt.run.inner.inside(attempt.around)
    made = _read(active, inside).known
    # A plain call in flight may be recorded yet.
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
    """Return what a failed attempt leaves; the pool then holds no call that it made in vain.

    Args:
        step: number of the call whose attempt it is; 0 for the step loop of an agent.
        calls: made or answered in it, by number.
        error: that it raised; ``None`` if the end of the run says what that was.
        vain: numbers of other calls that are to answer none.
        unmet: calls of earlier attempts that it has not made: they go on to answer.
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
    """Read what became of calls."""
    entries: list[Entry] = []
    flags: dict[int, Flags] = {}
    journal = active.journal
    for inner in inside.values():
        for number in inner.records:
            entry = read_one(journal.store, journal.seal, journal.run_id, number)
            if entry is None:
                raise active.stop(
                    CorruptStoreError(
                        f"record {number} of run {active.run_id!r} cannot be read any more, and "
                        "a retry has to know what has been done. stepwise verify says more"
                    )
                )
            entries.append(entry)
        if inner.flags is not None and inner.records:
            flags[inner.records[-1]] = inner.flags
    return Calls(sorted(entries, key=lambda each: each.number), flags)


def _unmet(attempt: Scope) -> list[RecordedCall]:
    """Return the unused records of calls inside this step, or inside one that it continues."""
    steps = attempt.run.inner.steps(attempt.around[-1])
    return [each for each in attempt.run.pool.all if not steps.isdisjoint(each.call.around)]


def _give_back(attempt: Scope, kept: list[RecordedCall], owner: int) -> None:
    """Let the calls that a failed attempt leaves answer those of the next one, and no others."""
    active = attempt.run
    with active.lock:
        for each in (*kept, *_unmet(attempt)):
            active.pool.put_back(each, owner)
    active.flows.moved()


def end_attempts(attempt: Scope) -> None:
    """Let calls of earlier attempts that the last one did not meet belong to the step, which ends.

    They answer no other call then, and side effects among them are reported.
    """
    unmet, call = _take_unmet(attempt), attempt.call
    done = [each.call for each in unmet if each.may_have_happened and not each.over]
    if done and call is not None:
        _warn_unmet(attempt.run, call, done)


def _take_unmet(attempt: Scope) -> list[RecordedCall]:
    active = attempt.run
    if attempt.attempt == 1 or not active.pool:
        return []
    with active.lock:
        unmet = _unmet(attempt)
        active.pool.drop(each.call.number for each in unmet)
    attempt.inner.extend(each.call.number for each in unmet)
    return unmet


@reports
def _warn_unmet(active: ActiveRun, call: Call, done: list[Call]) -> None:
    shown = "; ".join(f"{each.number} {each.name}({each.arguments})" for each in done[:6])
    warn(
        f"{call.name} of run {active.run_id!r} was retried, and its last attempt did not call "
        f"these side effects again, which happened or may have happened before: {shown}",
        UnusedRecordWarning,
    )


@reports
def _tell_waiting(attempt: Scope, many: int) -> None:
    what, name = count(many, "side effect"), attempt.call.name if attempt.call else ""
    notice(f"run {attempt.run.run_id}: the retry of {name} waits for {what} of the failed attempt")


# -- attempts that are over ----------------------------------------------------------------------


def is_over(scope: Scope) -> bool:
    """Return whether code belongs to an attempt that has failed.

    A side effect in flight is not over: it may end, with the calls that it makes.
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
    """Refuse a call of a task or thread that a failed attempt has left behind.

    Raises:
        OutsideRunError: it is one.
    """
    if scope.run.inner.over and is_over(scope):
        around = scope.call.name if scope.call is not None else scope.run.facts.label
        raise OutsideRunError(
            f"{name} was called by a task or thread that outlived an attempt of {around}, which "
            "has failed: the next attempt could make that call twice. Await or join what a step "
            "starts before the step returns or raises",
            run_id=scope.run.run_id,
        )
