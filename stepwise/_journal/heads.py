"""The head of a run: the sealed facts for listings, so that they need not read the journal.

It is derived: damaged, it is made again from the records.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepwise._journal.records import (
    Compensating,
    Ended,
    Entry,
    Forgotten,
    Interrupted,
    Quarantined,
    Restored,
    Resumed,
    RunFacts,
    Started,
)
from stepwise._journal.seal import DamagedError, Seal
from stepwise.stores import Head, Store

__all__ = ["derive_facts", "is_ready", "open_head", "read_head", "seal_head"]


def seal_head(seal: Seal, facts: RunFacts) -> Head:
    """The head of a run, as the store keeps it."""
    data, _ = seal.close(f"head/{facts.run_id}", facts._asdict())
    index = seal.index(facts.workflow)
    return Head(facts.run_id, index, facts.status == "completed", bytes(data))


def open_head(seal: Seal, head: Head) -> RunFacts | None:
    """Return the facts in a head, or ``None`` if the head does not verify."""
    try:
        return RunFacts(**seal.open(f"head/{head.run_id}", head.data).header)
    except (DamagedError, TypeError):
        return None


def read_head(store: Store, seal: Seal, run_id: str) -> RunFacts | None:
    """Return the facts in a run's head, or ``None`` if the head is missing or of another run."""
    head = store.head(run_id)
    return open_head(seal, head) if head is not None and head.run_id == run_id else None


def is_ready(facts: RunFacts) -> bool:
    """Return whether a run is a fork that nobody has executed yet."""
    # The process that executes the run writes when that began.
    return bool(facts.forked_from) and facts.updated_at <= facts.created_at


def derive_facts(run_id: str, entries: Iterable[Entry]) -> RunFacts | None:
    """Derive a run's facts from its records; return ``None`` if they do not show how it began."""
    facts: RunFacts | None = None
    for entry in entries:
        record = entry.record
        if isinstance(record, Started):
            facts = RunFacts(
                run_id=run_id,
                workflow=record.workflow,
                label=record.workflow.rpartition(":")[2],
                status="running",
                arguments=record.arguments,
                digest=record.digest,
                code=record.code,
                parent=record.parent,
                forked_from=record.forked_from,
                secrets=record.secrets,
                hidden=record.hidden,
                created_at=record.at,
                updated_at=record.at,
                parts=record.parts,
            )
        elif facts is not None and isinstance(record, Restored):
            facts = facts._replace(restored=True)
        elif facts is not None:
            facts = _after(facts, entry)
    return facts


def _after(facts: RunFacts, entry: Entry) -> RunFacts:
    record = entry.record
    if isinstance(record, Ended):
        return facts._replace(status=record.status, end=entry.number, updated_at=record.at)
    if isinstance(record, Interrupted):
        return facts._replace(status="interrupted", error=record.why, updated_at=record.at)
    if isinstance(record, Compensating):
        undone = facts.undone + (not facts.undoing)
        return facts._replace(
            status="failed", end=0, undoing=True, undone=undone, updated_at=record.at
        )
    if isinstance(record, Resumed):
        return facts._replace(status="running", end=0, undoing=False, updated_at=record.at)
    if isinstance(record, (Forgotten, Quarantined)):
        return facts.reopened(record.at)
    return facts
