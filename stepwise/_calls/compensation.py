"""Compensation: undoing the side effects of a run, the newest first.

A tool with ``compensate=`` records its arguments with its intent.  Each compensation is announced
in the journal before it is made and recorded after it, as side effects are, so that a process that
dies in between repeats none: one that was started and never finished is in doubt.  What was undone
counts as not done: called again, the workflow makes those calls anew, and plain steps are still
answered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepwise._calls.doubt import DidNotHappen, InDoubtCall, Landed, compensation_in_doubt
from stepwise._calls.operations import Attempt, Core, Result
from stepwise._calls.steps import Step, compensated_tools
from stepwise._execution.outcomes import settled
from stepwise._execution.viewer import look_into_value
from stepwise._identity.identity import compensation_key
from stepwise._journal.journal import Journal, Position, facts_of
from stepwise._journal.lease import Lease
from stepwise._journal.records import (
    Call,
    Compensated,
    Compensating,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    Record,
    Resumed,
    RunFacts,
    Settled,
)
from stepwise._runtime.messages import notice, warn
from stepwise._values import codec as _codec
from stepwise._values.codec import Codec
from stepwise._values.preview import preview
from stepwise.errors import ConfigurationError, RunStopped, RunWarning

__all__ = ["CompletedCall", "compensate"]

Item = tuple[Record, bytes]  # a record with its payload


@dataclass(frozen=True)
class CompletedCall:
    """The argument of a ``compensate`` function: a completed side effect that is to be undone.

    Args:
        name: of the tool.
        arguments: by parameter name, without ``self``; those left at their default are not in it.
        result: what it returned.
        idempotency_key: that it was given.
        compensation_key: the same for its undoing; equal whenever that is tried again.
        finished_at: seconds since 1970.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any
    idempotency_key: str
    compensation_key: str
    finished_at: float


CompletedCall.__module__ = "stepwise"  # tracebacks and pickles show the public name


@dataclass
class _Effect:
    """A side effect of the journal, or a child run.

    Args:
        intent: its announcement, which holds the arguments.
        last: what is known of it last: its intent, its outcome or how it was settled.
        undoing: its compensation was started.
    """

    intent: Entry
    last: Entry
    codec: Codec
    undoing: bool = False

    @property
    def call(self) -> Call:
        record = self.intent.record
        assert isinstance(record, Intent)
        return record.call

    @property
    def happened(self) -> bool | None:
        """``None`` if that is not known."""
        record = self.last.record
        if isinstance(record, Settled):
            return record.landed
        if isinstance(record, Outcome):
            return True if record.status == "completed" else (False if record.clean else None)
        return None

    @property
    def result(self) -> Any:
        record, payload = self.last.record, self.last.payload
        if isinstance(record, Outcome) and record.changed:
            self.codec.check(record.form)
            return look_into_value(payload, record.form, record.changed)
        return self.codec.decode(payload, getattr(record, "form", None))

    @property
    def arguments(self) -> dict[str, Any]:
        record = self.intent.record
        assert isinstance(record, Intent)
        self.codec.check(record.form)
        arguments: dict[str, Any] = _codec.decode(self.intent.payload, record.form)
        return arguments


class _Effects:
    """The side effects in a journal, and the steps around them.

    Attributes:
        undone: something was undone since the run's last attempt.
    """

    def __init__(self, entries: list[Entry], codec: Codec) -> None:
        self._codec = codec
        self.effects: dict[int, _Effect] = {}
        self.undone = False
        self._around: dict[int, list[Call]] = {}
        for entry in entries:
            self._load(entry)

    def _load(self, entry: Entry) -> None:
        record = entry.record
        if isinstance(record, Intent):
            self.effects.setdefault(
                record.call.number, _Effect(entry, entry, self._codec)
            ).last = entry
        elif isinstance(record, Outcome):
            for inner in record.inner:
                self._around.setdefault(inner, []).append(record.call)
            self._ended(record.call.number, entry)
        elif isinstance(record, Settled):
            self._settled(record, entry)
        elif isinstance(record, Compensating):
            self.effects[record.number].undoing = True
        elif isinstance(record, Compensated):
            self.effects.pop(record.number, None)
            self.undone = True
        elif isinstance(record, Resumed):
            self.undone = False
        elif isinstance(record, Forgotten):
            for number in record.numbers:
                self.effects.pop(number, None)

    def _ended(self, number: int, entry: Entry) -> None:
        if number in self.effects:
            self.effects[number].last = entry

    def _settled(self, settled: Settled, entry: Entry) -> None:
        effect = self.effects.get(settled.number)
        if effect is None:
            return
        if not effect.undoing:
            effect.last = entry
        elif settled.landed:
            del self.effects[settled.number]
            self.undone = True
        else:
            effect.undoing = False

    @property
    def children(self) -> bool:
        """True if any of the side effects is a child run."""
        return any(each.call.child for each in self.effects.values())

    def newest_first(self) -> list[_Effect]:
        """Return the side effects in the order in which they are undone, the newest first."""
        return sorted(self.effects.values(), key=lambda each: each.last.number, reverse=True)

    def forgotten_with(self, number: int) -> tuple[int, ...]:
        """Return the steps around a call, which would otherwise answer without making it again.

        None, if one of them is a side effect: that happened, so it goes on to answer.
        """
        around = self._around.get(number, ())
        if any(call.effect for call in around):
            return ()
        return tuple(sorted({call.number for call in around}))


def compensate(journal: Journal, facts: RunFacts) -> Core:
    """Undo the side effects of a run, and of its child runs, the newest first.

    The result's value says how many were undone; its error is what a compensation raised, and then
    what is older stays.
    """
    if facts.pruned:
        return Result(
            error=ConfigurationError(
                f"run {facts.run_id!r} cannot be undone: its journal was pruned "
                "(prune_journal=True), so that its side effects are no longer known"
            )
        )
    effects = _Effects(journal.load(Position()), Codec(facts.codec))
    end = facts.end if facts.status == "failed" else 0
    undone = facts.undone + (not facts.undoing)
    undoing, done = facts._replace(undoing=True, undone=undone, status="failed", end=end), 0
    for effect in effects.newest_first():
        try:
            if effect.call.child:
                done += yield from _compensate_child(journal, undoing, effects, effect)
            else:
                done += yield from _compensate_one(journal, undoing, effects, effect)
        except (Exception, RunStopped) as error:
            return Result(done, error)
    count = "1 side effect" if done == 1 else f"{done} side effects"
    if done or facts.undoing:
        told = facts.error or f"undone: {count}"
        after = undoing._replace(undoing=False, error=told, updated_at=time.time())
        journal.append(head=after)
        notice(f"{facts.run_id}: {count} undone; called again, the workflow repeats them")
    elif effects.children:
        journal.append(head=facts)  # the child runs had nothing to undo
    return Result(done)


def _touched(facts: RunFacts) -> RunFacts:
    return facts._replace(updated_at=time.time())


def _compensate_child(
    journal: Journal, facts: RunFacts, effects: _Effects, effect: _Effect
) -> Generator[Any, Result, int]:
    with _child_journal(journal, effect.call.child) as child:
        if child is None or (facts.forked_from and child[1].parent != facts.run_id):
            return 0  # compensation of shared records belongs to the original run
        its = _Effects(child[0].load(Position(child[1].pruned, None)), Codec())
        if any(each.intent.payload or each.call.child for each in its.effects.values()):
            # If this process dies in there, the caller's next resume finishes the undoing first.
            journal.append(head=_touched(facts))
        result = yield from compensate(*child)
    if its.undone or result.value:
        compensated = Compensated(effect.call.number, at=time.time())
        journal.append(*_undoing(effects, effect.call, compensated), head=_touched(facts))
    if result.error is not None:
        raise result.error
    done: int = result.value or 0
    return done


@contextlib.contextmanager
def _child_journal(journal: Journal, run_id: str) -> Iterator[tuple[Journal, RunFacts] | None]:
    facts = facts_of(journal.store, journal.seal, run_id)
    if facts is None:  # deleted since, or killed before it began
        yield None
        return
    lease = Lease(journal.store, run_id).acquire()
    try:
        child = Journal(journal.store, journal.seal, run_id, lease.epoch, fsync=journal.fsync)
        yield child, facts
    finally:
        lease.release()


def _compensate_one(
    journal: Journal, facts: RunFacts, effects: _Effects, effect: _Effect
) -> Generator[Any, Result, int]:
    call = effect.call
    if not effect.intent.payload:
        return 0  # its tool has no compensation
    tool = _tool(call)
    if effect.undoing and not tool.idempotent:
        raise compensation_in_doubt(journal, call)
    happened, value = effect.happened, None
    if happened:
        value = effect.result
    elif happened is None:
        happened, value = yield from _ask(tool, effect)
    if happened is None:
        warn(
            f"run {facts.run_id!r}: {call.name}({call.arguments}) is in doubt, so it is not "
            f"undone; settle it (stepwise resolve {facts.run_id} {call.number} ...), then call "
            f"stepwise.get_run({facts.run_id!r}).compensate() again",
            RunWarning,
        )
    if not happened:
        return 0
    key = compensation_key(call.key)
    # The steps around the call are forgotten now.  If this process dies, and a person settles the
    # call as undone, nothing else would show that these steps have to run again.
    announced = Compensating(call.number, key, time.time())
    journal.append(*_undoing(effects, call, announced), head=_touched(facts))
    question = CompletedCall(
        call.name,
        effect.arguments,
        value,
        call.key,
        key,
        getattr(effect.last.record, "at", 0.0),
    )
    function: Callable[..., Any] | None = tool.compensate
    assert function is not None
    result = yield Attempt(function, (question,), {}, None, f"the compensation of {call.name}")
    if result.error is not None:
        clean = isinstance(result.error, tool.fails_cleanly)
        if clean:  # nothing happened: the record says so, and the undoing may be retried
            journal.append(settled(effect.codec, call, landed=False))
        notice(
            f"{facts.run_id}: undoing {call.name}({call.arguments}) raised "
            f"{preview(result.error)}; older side effects were not undone"
        )
        raise result.error
    compensated = Compensated(call.number, preview(result.value), time.time())
    journal.append((compensated, b""), head=_touched(facts))
    return 1


def _undoing(effects: _Effects, call: Call, record: Compensating | Compensated) -> list[Item]:
    """A record of the undoing of a call, and that the steps around it no longer answer."""
    around = effects.forgotten_with(call.number)
    forgotten: list[Item] = [(Forgotten(around, record.at), b"")] if around else []
    return [(record, b""), *forgotten]


def _ask(tool: Step, effect: _Effect) -> Generator[Any, Result, tuple[bool | None, Any]]:
    """Ask the tool's ``reconcile`` whether a call in doubt happened, and with which result."""
    if not callable(tool.in_doubt):
        return None, None
    call, last = effect.call, effect.last
    failed = isinstance(last.record, Outcome)
    form = getattr(last.record, "form", None)
    error = effect.codec.decode_error(last.payload, form) if failed else None
    question = InDoubtCall(call.name, effect.arguments, call.key, call.at, error)
    asked = yield Attempt(tool.in_doubt, (question,), {}, None, f"reconcile of {call.name}")
    if asked.error is not None:
        raise asked.error
    if isinstance(asked.value, Landed):
        return True, asked.value.value
    if asked.value is DidNotHappen or isinstance(asked.value, DidNotHappen):
        return False, None
    return None, None


def _tool(call: Call) -> Step:
    tool = compensated_tools.get((call.module, call.name))
    if tool is None:  # the script may be imported now instead of being __main__
        named = [each for (_, name), each in compensated_tools.items() if name == call.name]
        tool = named[0] if len(named) == 1 else None
    if tool is None:
        raise ConfigurationError(
            f"{call.name}({call.arguments}) is to be undone, but this program has no tool "
            f"{call.name!r} with compensate=: import the module that defines it ({call.module})"
        )
    return tool
