"""A run as plain data: the facts that every listing shows, under the names that Python has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from stepwise._execution.budget import Spent
from stepwise._execution.suspension import pending
from stepwise._journal.heads import is_ready
from stepwise._journal.records import RunFacts
from stepwise.stores import Owner

__all__ = ["RunStatus", "duration_of", "error_line", "run_dict", "status_of"]

RunStatus = Literal[
    "running",
    "completed",
    "failed",
    "interrupted",
    "crashed",
    "ready",
    "suspended",
    "cancelling",
    "cancelled",
]


def status_of(facts: RunFacts, *, owned: bool) -> RunStatus:
    """The status of a run, as a listing shows it."""
    ended = facts.status in ("completed", "failed", "cancelled")
    if (facts.cancelling and not ended) or (facts.undoing and facts.status == "cancelled"):
        return "cancelling"
    if facts.status != "running" or owned:
        return facts.status
    return "ready" if is_ready(facts) else "crashed"


def duration_of(facts: RunFacts) -> float | None:
    """Return the seconds from the start of a run to its end; ``None`` before its end."""
    if facts.status in ("running", "suspended"):
        return None
    return max(0.0, facts.updated_at - facts.created_at)


def error_line(preview: str) -> str:
    """Return ``Name: text`` for the ``repr`` of an exception; another ``repr`` stays as it is."""
    match = re.fullmatch(r"(\w+)\((['\"])([^\\]*)\2\)", preview)
    return f"{match[1]}: {match[3]}" if match is not None else preview


def run_dict(
    facts: RunFacts, owner: Owner | None, counts: Mapping[str, int], spent: Spent
) -> dict[str, Any]:
    """Return what a listing shows of a run.

    Args:
        counts: how many of its steps have each status.
        spent: what it has spent.
    """
    return {
        "id": facts.run_id,
        "workflow": facts.workflow,
        "label": facts.label,
        "arguments": facts.arguments,
        "status": status_of(facts, owned=owner is not None),
        "tags": dict(facts.tags),
        "error": error_line(facts.error) if facts.error else None,
        "counts": dict(counts),
        "spent": spent.to_dict(),
        "duration": duration_of(facts),
        "waits": [each.to_dict() for each in pending(facts)],
        "created_at": facts.created_at,
        "updated_at": facts.updated_at,
        "parent": facts.parent or None,
        "forked_from": facts.forked_from or None,
        "owner": None if owner is None else {"pid": owner.pid, "host": owner.host},
    }
