"""The run that is forked, and the point of it from which the fork resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwise._checkpoints.checkpoints import Loaded, State
from stepwise._journal.journal import Lost, Position, facts_of, read
from stepwise._journal.records import (
    Entry,
    Handled,
    Intent,
    Outcome,
    Quarantined,
    Resumed,
    Settled,
    Started,
    call_of,
)
from stepwise._journal.seal import Seal
from stepwise._runs.checkpoints import checkpoints_of
from stepwise.errors import CodeChangedError, CorruptStoreError, RunNotFoundError, StepNotFoundError
from stepwise.stores import Store

__all__ = ["Change", "ForkedRun", "point_of"]


@dataclass(frozen=True)
class Change:
    """The differences between a fork and its source.

    Args:
        at: the step up to which records are shared; ``None`` for the newest checkpoint.
        variables: other values of local variables.
        results: other results of steps, by number or name.
    """

    at: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[int | str, Any] = field(default_factory=dict)


class ForkedRun:
    """The run that is forked.

    Attributes:
        entries: its records, in order.
        calls: the last record of each call that has one, by the call's number.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        facts = facts_of(store, seal, run_id)
        if facts is None:
            raise RunNotFoundError(f"run {run_id!r} is gone from {store.url}", run_id=run_id)
        self.store, self.seal, self.facts = store, seal, facts
        self.entries: list[Entry] = []
        lost: set[int] = set()
        for entry, at in read(store, seal, run_id, Position(facts.pruned, None)):
            if isinstance(entry, Lost):
                lost.add(at.last)
            else:
                self.entries.append(entry)
        for each in self.entries:
            if isinstance(each.record, Quarantined):
                lost.difference_update(each.record.numbers)
        if lost:
            raise CorruptStoreError(
                f"run {run_id!r} cannot be forked: {len(lost)} of its records cannot be read. Put "
                f"right what can be, and try again: stepwise verify {run_id} --repair",
                run_id=run_id,
            )
        self.calls: dict[int, Entry] = {}
        for each in self.entries:
            if isinstance(each.record, (Intent, Outcome)):
                self.calls[each.record.call.number] = each
            elif isinstance(each.record, Settled):
                self.calls[each.record.number] = each

    def number_of(self, step: int | str) -> int:
        """The number of a step that is named by number or name."""
        calls = filter(None, map(call_of, self.entries))
        found = {call.number for call in calls if step in (call.number, call.name)}
        if len(found) != 1:
            why = "names more than one step; give its number" if found else "is no step of it"
            raise self.no_step(step, why)
        return found.pop()

    def no_step(self, step: int | str, why: str) -> StepNotFoundError:
        run_id = self.facts.run_id
        return StepNotFoundError(
            f"run {run_id!r} cannot be forked like that: {step!r} {why}. Its steps: "
            f"stepwise show {run_id}",
            run_id=run_id,
            step=step,
        )

    def checkpoints(self, cut: int) -> list[Loaded]:
        """Those that were taken up to a record, the newest first."""
        found = checkpoints_of(self.store, self.seal, self.facts.run_id)
        verified = [loaded for _, loaded in found if loaded is not None]
        return [each for each in reversed(verified) if each.state.journal[0] <= cut]


def point_of(
    source: ForkedRun, change: Change, results: Mapping[int, Any]
) -> tuple[int, Loaded | None]:
    """The last record to share, and the checkpoint to resume at, if not from the top."""
    run_id, at = source.facts.run_id, change.at
    if at is None and results:
        at = max(results)
    if at is None:
        places = source.checkpoints(source.entries[-1].number)
        if not places:
            raise source.no_step(
                "the newest checkpoint", "is not there; say from which step it goes on (at=)"
            )
        return places[0].state.journal[0], places[0]
    late = [number for number in results if number > at]
    if late:
        raise source.no_step(late[0], f"comes after step {at}, up to which records are shared")
    if at < 0 or at > max(source.calls, default=0):
        raise source.no_step(at, "is no step of it")
    cut = _end_of(source, at)
    for loaded in source.checkpoints(cut):
        if not _has_used(source, loaded.state, results):
            return cut, loaded
    if source.facts.pruned:
        raise CodeChangedError(
            f"run {run_id!r} cannot be forked so early: its journal was pruned "
            "(prune_journal=True), and there is no checkpoint before",
            run_id=run_id,
        )
    if change.variables:
        kept = ", ".join(str(each.state.step) for each in source.checkpoints(1 << 62)[::-1])
        raise source.no_step(
            at,
            f"has no checkpoint at or before it whose variables could be changed; there are some "
            f"after steps {kept or '(none)'}, and @workflow(retention='all') keeps them all",
        )
    return cut, None


def _end_of(source: ForkedRun, at: int) -> int:
    """The last record that belongs to the steps up to ``at``."""
    known = [number for number in source.calls if number <= at]
    last = source.calls[max(known)].number if known else 0
    if not known:
        first = source.entries[0]
        return first.number if isinstance(first.record, Started) else 0
    for entry in source.entries:
        if entry.number == last + 1 and isinstance(entry.record, (Handled, Resumed)):
            last = entry.number  # the checkpoint after the step lies behind these
    return last


def _has_used(source: ForkedRun, state: State, results: Mapping[int, Any]) -> bool:
    """Return whether the variables at a checkpoint already depend on one of these steps."""
    unused = {number for origin, last, *_ in state.unused for number in (origin, last)}
    waiting = {
        call.number for each in source.entries if each.number in unused and (call := call_of(each))
    }
    return any(number <= state.calls and number not in waiting for number in results)
