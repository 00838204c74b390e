"""The facts of a run for listings, derived from its records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepwise._journal.projection import Projection
from stepwise._journal.records import (
    Cancelling,
    Compensating,
    Ended,
    Entry,
    Forgotten,
    Interrupted,
    Quarantined,
    Restored,
    Resumed,
    RunFacts,
    RunWait,
    Started,
    Suspended,
)

__all__ = ["asked_by", "derive_facts", "facts_at_start"]


def facts_at_start(run_id: str, started: Started) -> RunFacts:
    """The facts of a run that begins."""
    return RunFacts(
        run_id=run_id,
        workflow=started.workflow,
        label=started.workflow.rpartition(":")[2],
        status="running",
        arguments=started.arguments,
        digest=started.digest,
        code=started.code,
        parent=started.parent,
        forked_from=started.forked_from,
        secrets=started.secrets,
        hidden=started.hidden,
        created_at=started.at,
        updated_at=started.at,
        parts=started.parts,
        tags=started.tags,
        trace=started.trace,
    )


def asked_by(record: Cancelling) -> str:
    """Return who asked for the end of a run, and why, in words."""
    return ": ".join(each for each in (record.by or "somebody", record.reason) if each)


class _Derived(Projection):
    """The facts of a run, followed through its records; ``None`` before its first one."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.facts: RunFacts | None = None

    def _change(self, **changes: Any) -> None:
        if self.facts is not None:
            self.facts = self.facts._replace(**changes)

    def on_started(self, entry: Entry, record: Started) -> None:
        self.facts = facts_at_start(self._run_id, record)

    def on_ended(self, entry: Entry, record: Ended) -> None:
        at = record.at
        self._change(status=record.status, end=entry.number, updated_at=at, cancelling="")

    def on_interrupted(self, entry: Entry, record: Interrupted) -> None:
        if record.decided:
            self._change(status="interrupted", error=record.why, updated_at=record.at)

    def on_suspended(self, entry: Entry, record: Suspended) -> None:
        waits, seen = (*(RunWait(*each) for each in record.waits),), record.seen
        self._change(status="suspended", waits=waits, seen=seen, updated_at=record.at)

    def on_cancelling(self, entry: Entry, record: Cancelling) -> None:
        self._change(cancelling=asked_by(record), updated_at=record.at)
        self._note_cancels(record.message)

    def _note_cancels(self, number: int) -> None:
        if self.facts is not None:
            self._change(cancels=max(number, self.facts.cancels))

    def on_compensating(self, entry: Entry, record: Compensating) -> None:
        if self.facts is not None:
            undone = self.facts.undone + (not self.facts.undoing)
            at = record.at
            status = "cancelled" if self.facts.status == "cancelled" else "failed"
            self._change(status=status, end=0, undoing=True, undone=undone, updated_at=at)

    def on_resumed(self, entry: Entry, record: Resumed) -> None:
        self._change(status="running", end=0, undoing=False, updated_at=record.at, waits=())
        self._note_cancels(record.seen)
        if record.trace:
            self._change(trace=record.trace)

    def on_forgotten(self, entry: Entry, record: Forgotten | Quarantined) -> None:
        if self.facts is not None:
            self.facts = self.facts.reopened(record.at)

    on_quarantined = on_forgotten

    def on_restored(self, entry: Entry, record: Restored) -> None:
        self._change(restored=True)


def derive_facts(run_id: str, entries: Iterable[Entry]) -> RunFacts | None:
    """Derive a run's facts from its records; return ``None`` if they do not show how it began."""
    derived = _Derived(run_id)
    for entry in entries:
        derived.take(entry)
    return derived.facts
