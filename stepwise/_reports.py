"""What is said when a run begins beside another, or ends without meeting what is recorded.

Imports: run, summary, heads, notices.
"""

from __future__ import annotations

from collections import Counter

from stepwise._heads import open_head
from stepwise._notices import notice, warn
from stepwise._run import ActiveRun
from stepwise._seal import Seal
from stepwise._summary import course_of
from stepwise.errors import UnusedRecordWarning
from stepwise.stores import Store

__all__ = ["report_unused", "tell_of_unfinished"]


def tell_of_unfinished(store: Store, seal: Seal, workflow: str, run_id: str) -> None:
    """A new run starts beside an unfinished one of the same workflow: that may be a mistake."""
    unfinished = [
        facts
        for head in store.heads(seal.index(workflow), unfinished=True)
        if (facts := open_head(seal, head)) is not None
        and not facts.parent
        and store.owner(facts.run_id) is None
    ]
    if not unfinished:
        return
    newest = max(unfinished, key=lambda facts: facts.updated_at)
    effects = Counter(course_of(store, seal, newest).effects)
    told = ", ".join(f"{name} x{count}" for name, count in effects.most_common(4))
    more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    notice(
        f"{run_id} starts; unfinished beside it: {newest.run_id}({newest.arguments})"
        f"{f' with side effects {told}' if told else ''}{more}. "
        "Same arguments would resume it; stepwise forget deletes it"
    )


def report_unused(active: ActiveRun) -> None:
    """Tell of the recorded calls that a completed run did not meet again."""
    unused = active.pool.unused
    effects = [each.call for each in unused if each.may_have_happened]
    plain = Counter(each.call.name for each in unused if not each.may_have_happened)
    if plain:
        told = ", ".join(f"{name} x{count}" for name, count in plain.most_common(6))
        notice(f"{active.run_id}: recorded steps that were not met again: {told}")
    if effects:
        told = "; ".join(f"{call.number} {call.name}({call.arguments})" for call in effects[:6])
        warn(
            f"run {active.run_id!r} completed without meeting these recorded side effects again, "
            f"which have happened or may have: {told}",
            UnusedRecordWarning,
        )
