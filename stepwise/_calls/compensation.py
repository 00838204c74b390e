"""Compensation: undoing the side effects of a run, newest first.

A tool with ``compensate=`` records its arguments with its intent.  Each compensation is announced
in the journal before it runs and recorded after it, as side effects are.  So a process that dies in
between repeats no compensation: a compensation that was started and never finished is in doubt.
Undone calls count as not done: called again, the workflow makes these calls anew, while plain steps
are still answered from the journal.

A side effect that several runs share is undone by one of them: a fork undoes none that it shares;
an adopted branch undoes what its base had done before, and the base only what came behind that.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Container, Generator, Mapping
from typing import Any

from stepwise._calls.doubt import (
    CompletedCall,
    DidNotHappen,
    InDoubtCall,
    Landed,
    compensation_in_doubt,
)
from stepwise._calls.driver import Attempt, Core, Result
from stepwise._calls.steps import Step, compensated_tools
from stepwise._checkpoints.checkpoints import lost_by_replay
from stepwise._execution.outcomes import settled
from stepwise._execution.viewer import view
from stepwise._identity.identity import compensation_key
from stepwise._journal.journal import (
    Journal,
    Position,
    beginning_of_branch,
    facts_of,
    owned_journal,
    read_entries,
    read_one,
)
from stepwise._journal.projection import Calls, RecordedCall, announcements, made_again
from stepwise._journal.records import Call, Compensated, Compensating, Forgotten, Record, RunFacts
from stepwise._runtime.messages import count, notice, shell_word, warn
from stepwise._values.codec import Codec
from stepwise._values.preview import preview
from stepwise.errors import ConfigurationError, RunStopped, RunWarning

Item = tuple[Record, bytes]  # a record with its payload


class _Effects:
    """The side effects in a journal that are to be undone, newest first.

    Args:
        whose: the run, and the bases of it whose side effects it undoes as well.
        heir: the branch that goes on instead of the run, and undoes what both share; empty if there
            is none.

    Attributes:
        undone: True if something was undone since the run's last attempt.
        by: who asked for the undoing; empty if the run undoes its own calls.
    """

    def __init__(self, journal: Journal, whose: list[RunFacts], by: str, heir: str) -> None:
        entries = journal.load(Position(whose[0].pruned, None))
        calls = Calls(entries)
        self.codec = Codec(whose[0].codec)
        self.by = by
        self.whose = [each.run_id for each in whose]
        self.undone = calls.undone
        self.announced = announcements(entries)
        self._take_from_bases(journal)
        self._around: dict[int, list[Call]] = {}
        for entry in entries:
            if entry.outcome is not None:
                for inner in entry.outcome.inner:
                    self._around.setdefault(inner, []).append(entry.outcome.call)
        self._of_heir: Mapping[str, Any] = {}
        last = 0
        if heir:
            begins = beginning_of_branch(journal.store, journal.seal, heir)
            if begins is None:
                raise ConfigurationError(
                    f"run {whose[0].run_id!r} cannot be undone: its branch {heir!r} went on "
                    "instead, and is gone, so that nobody knows what that branch has undone"
                )
            last, self._of_heir = begins[0] - 1, begins[1].again
        effects = [
            each
            for each in calls
            if each.call.number in self.announced
            and (self.announced[each.call.number].number > last or self.heir_of(each))
        ]
        self.newest_first = sorted(effects, key=lambda each: each.entry.number, reverse=True)

    def _take_from_bases(self, journal: Journal) -> None:
        """Take the arguments of shared calls from the bases: a branch has them without."""
        place = journal.store, journal.seal
        begins = [beginning_of_branch(*place, each) for each in self.whose]
        first = [each[0] if each is not None else 0 for each in begins]
        for number, announced in self.announced.items():
            at = announced.number
            owner = next((n for n, begin in enumerate(first) if at >= begin), 0)
            if owner:
                self.announced[number] = read_one(*place, self.whose[owner], at) or announced

    def heir_of(self, effect: RecordedCall) -> str:
        """Return the child run of a call in the branch that goes on; empty if there is none."""
        child: str = self._of_heir.get(str(effect.call.number), ("", ""))[1]
        return child

    def can_be_undone(self, effect: RecordedCall) -> bool:
        """Return whether the tool had a compensation, so that its arguments are recorded."""
        return bool(self.announced[effect.call.number].payload)

    def arguments(self, effect: RecordedCall) -> dict[str, Any]:
        """Return the arguments of the last attempt at the call, by name."""
        announced = self.announced[effect.call.number]
        form = getattr(announced.record, "form", None)
        arguments: dict[str, Any] = self.codec.decode(announced.payload, form)
        return arguments

    def forgotten_with(self, number: int) -> tuple[int, ...]:
        """Return the steps around a call, which would otherwise answer without making it again.

        Return no step if one of them is a side effect: the side effect happened, so its record
        keeps answering.
        """
        around = self._around.get(number, ())
        if any(call.effect for call in around):
            return ()
        return tuple(sorted({call.number for call in around}))


def compensate(
    journal: Journal,
    facts: RunFacts,
    by: str = "",
    *,
    heir: str | None = None,
    above: Container[str] = (),
) -> Core:
    """Undo the side effects of a run and of its child runs, newest first.

    The value of the result is the number of undone side effects.  Its error is what a compensation
    raised; older side effects then stay.

    Args:
        by: who asked for it; empty if the run undoes its own calls.
        heir: the branch that goes on instead; by default the one that was adopted.
        above: of a child run, the runs whose child runs are undone.
    """
    if facts.pruned:
        return Result(
            error=ConfigurationError(
                f"run {facts.run_id!r} cannot be undone: its journal was pruned "
                "(prune_journal=True), so that its side effects are no longer known"
            )
        )
    whose = _with_bases(journal, facts, above)
    effects = _Effects(journal, whose, by, facts.superseded if heir is None else heir)
    ended: Any = "cancelled" if facts.status == "cancelled" else "failed"
    end = facts.end if facts.status == ended else 0
    undone = facts.undone + (not facts.undoing)
    undoing, done = facts._replace(undoing=True, undone=undone, status=ended, end=end), 0
    for effect in effects.newest_first:
        try:
            if effect.call.child:
                done += yield from _compensate_child(journal, undoing, effects, effect)
            else:
                done += yield from _compensate_one(journal, undoing, effects, effect)
        except (Exception, RunStopped) as error:
            return Result(done, error)
    if done or facts.undoing:
        told = facts.error or f"undone: {count(done, 'side effect')}"
        after = undoing._replace(undoing=False, error=told, updated_at=time.time())
        journal.append(head=after)
        then = "called again, the workflow repeats them"
        if facts.superseded:
            then = f"its branch {facts.superseded} goes on, and undoes what both share"
        elif lost := _lost(journal, facts):
            then = (
                f"it cannot be called again, since that would lose {lost}. To start over: "
                f"stepwise forget {shell_word(facts.run_id)}"
            )
        notice(f"{facts.run_id}: {count(done, 'side effect')} undone; {then}")
    elif any(effect.call.child for effect in effects.newest_first):
        journal.append(head=facts)  # the child runs had nothing to undo
    return Result(done)


def _lost(journal: Journal, facts: RunFacts) -> str:
    """Return what is lost if the undone calls of a run are made again, as text."""
    place = journal.store, journal.seal
    again = made_again(read_entries(*place, facts.run_id))
    return lost_by_replay(*place, facts, again)


def _with_bases(journal: Journal, facts: RunFacts, above: Container[str]) -> list[RunFacts]:
    """Return a run, and the bases of it whose side effects it undoes: those of an adopted branch.

    A child run has such a base if that is a child run of its caller's base.
    """
    found = [facts]
    while facts.base:
        base = facts_of(journal.store, journal.seal, facts.base)
        if base is None:
            break
        if (base.parent not in above) if facts.parent else (base.superseded != facts.run_id):
            break
        found.append(base)
        facts = base
    return found


def _touched(facts: RunFacts) -> RunFacts:
    return facts._replace(updated_at=time.time())


def _compensate_child(
    journal: Journal, facts: RunFacts, effects: _Effects, effect: RecordedCall
) -> Generator[Any, Result, int]:
    store, seal, run_id = journal.store, journal.seal, effect.call.child
    its_facts = facts_of(store, seal, run_id)
    if its_facts is None:  # deleted since, or killed before it began
        return 0
    if facts.forked_from and its_facts.parent not in effects.whose:
        return 0  # compensation of shared records belongs to the original run
    heir, above = effects.heir_of(effect), effects.whose
    with owned_journal(store, seal, run_id, fsync=journal.fsync) as child:
        its = _Effects(child, _with_bases(child, its_facts, above), effects.by, heir)
        if any(its.can_be_undone(each) or each.call.child for each in its.newest_first):
            # If this process dies meanwhile, the caller's next resume finishes the undoing first.
            journal.append(head=_touched(facts))
        result = yield from compensate(child, its_facts, effects.by, heir=heir, above=above)
        done: int = result.unwrap()
    # A partly undone child run is left for the next attempt at undoing it.
    if its.undone or done:
        compensated = Compensated(effect.call.number, at=time.time(), by=effects.by)
        journal.append(*_undoing(effects, effect.call, compensated), head=_touched(facts))
    return done


def _compensate_one(
    journal: Journal, facts: RunFacts, effects: _Effects, effect: RecordedCall
) -> Generator[Any, Result, int]:
    call = effect.call
    if not effects.can_be_undone(effect):
        return 0  # the tool has no compensation
    tool = _tool(call)
    if effect.undoing and not tool.idempotent:
        raise compensation_in_doubt(journal, call)
    happened, value = effect.happened, None
    if happened:
        value = view(effect.entry, effects.codec).value
    elif happened is None:
        happened, value = yield from _ask(tool, effects, effect)
    if happened is None:
        warn(
            f"run {facts.run_id!r}: {call.name}({call.arguments}) is in doubt, so it is not "
            f"undone; settle it (stepwise resolve {shell_word(facts.run_id)} {call.number} "
            f"...), then call stepwise.get_run({facts.run_id!r}).compensate() again",
            RunWarning,
        )
    if not happened:
        return 0
    key = compensation_key(call.key)
    # The steps around the call are forgotten now.  If this process dies and a person settles the
    # call as undone, nothing else would show that these steps have to run again.
    announced = Compensating(call.number, key, time.time(), effects.by)
    journal.append(*_undoing(effects, call, announced), head=_touched(facts))
    question = CompletedCall(
        call.name,
        effects.arguments(effect),
        value,
        call.key,
        key,
        getattr(effect.entry.record, "at", 0.0),
    )
    function: Callable[..., Any] | None = tool.compensate
    assert function is not None
    result = yield Attempt(function, (question,), {}, None, f"the compensation of {call.name}")
    if result.error is not None:
        clean = isinstance(result.error, tool.fails_cleanly)
        if clean:  # nothing happened: the record says so, and the undoing may be retried
            journal.append(settled(effects.codec, call, landed=False))
        notice(
            f"{facts.run_id}: undoing {call.name}({call.arguments}) raised "
            f"{preview(result.error)}; older side effects were not undone"
        )
        raise result.error
    compensated = Compensated(call.number, preview(result.value), time.time(), effects.by)
    journal.append((compensated, b""), head=_touched(facts))
    return 1


def _undoing(effects: _Effects, call: Call, record: Compensating | Compensated) -> list[Item]:
    """Return the record of an undoing, with one that stops the steps around it from answering."""
    around = effects.forgotten_with(call.number)
    forgotten: list[Item] = [(Forgotten(around, record.at), b"")] if around else []
    return [(record, b""), *forgotten]


def _ask(
    tool: Step, effects: _Effects, effect: RecordedCall
) -> Generator[Any, Result, tuple[bool | None, Any]]:
    """Ask the tool's ``reconcile`` whether a call in doubt happened, and what it returned."""
    if not callable(tool.in_doubt):
        return None, None
    call = effect.call
    error = view(effect.entry, effects.codec).error if effect.outcome is not None else None
    question = InDoubtCall(call.name, effects.arguments(effect), call.key, call.at, error)
    asked = yield Attempt(tool.in_doubt, (question,), {}, None, f"reconcile of {call.name}")
    if asked.error is not None:
        raise asked.error
    if isinstance(asked.value, Landed):
        return True, asked.value.value
    if asked.value is DidNotHappen or isinstance(asked.value, DidNotHappen):
        return False, None
    return None, None


def _is_of_module(tool: Step, call: Call) -> bool:
    """Return whether a tool's file is the module of a call, under whatever name."""
    code = getattr(inspect.unwrap(tool.function), "__code__", None)
    file = os.path.basename(code.co_filename) if code is not None else ""
    if call.module == "__main__":
        return call.site.rpartition(":")[0] == file
    return call.module.rpartition(".")[2] == os.path.splitext(file)[0]


def _tool(call: Call) -> Step:
    tool = compensated_tools.get((call.module, call.name))
    if tool is None:  # the script may be imported now instead of being __main__
        named = [
            each
            for (_, name), each in compensated_tools.items()
            if name == call.name and _is_of_module(each, call)
        ]
        tool = named[0] if len(named) == 1 else None
    if tool is None:
        defined = f"the module that defines it ({call.module})"
        if call.module == "__main__":
            defined = f"the script that defines it (it was called at {call.site})"
        raise ConfigurationError(
            f"{call.name}({call.arguments}) is to be undone, but this program has no tool "
            f"{call.name!r} with compensate=: import {defined}"
        )
    return tool
