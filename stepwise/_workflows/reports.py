"""Messages about runs that begin beside another, or end with unmatched records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from stepwise._execution.active_run import ActiveRun
from stepwise._execution.summary import course_of
from stepwise._identity.call_parts import Parts, spoken
from stepwise._journal.heads import open_head
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runtime.messages import notice, reports, warn
from stepwise._workflows.renamed import place_of_run, was_moved, was_renamed
from stepwise.errors import UnusedRecordWarning
from stepwise.stores import Store

__all__ = ["report_unused", "tell_of_unfinished"]


@reports
def tell_of_unfinished(
    store: Store, seal: Seal, new: RunFacts, module: str, parts: Parts | None = None
) -> None:
    """A new run starts beside an unfinished one of the same workflow: that may be a mistake.

    Or beside one of a workflow that is gone, with the same arguments: perhaps it was renamed.

    Args:
        module: that of the workflow.
        parts: what tells the new run's call apart.
    """
    unfinished = list(_unfinished(store, seal, new.workflow))
    if unfinished:
        newest = max(unfinished, key=lambda facts: facts.updated_at)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        notice(
            f"{new.run_id} starts; unfinished beside it: {_told(store, seal, newest)}{more}. "
            f"{_difference(new, newest, parts)}; stepwise forget deletes it"
        )
    elif new.workflow not in _looked_for:
        _looked_for.add(new.workflow)
        _tell_of_renamed(store, seal, new, module)


def _difference(new: RunFacts, old: RunFacts, parts: Parts | None) -> str:
    """In what an unfinished run differs from a new one, and how to resume it."""
    differing = parts.differing(old.parts, momentary=True) if parts is not None else []
    edited = ", its code has changed" if old.code and new.code and old.code != new.code else ""
    if differing:
        return f"It differs in {spoken(differing)}{edited}; called as it was, it resumes"
    if old.digest != new.digest:
        return f"Its arguments differ{edited}; called with them, it resumes"
    if old.parts is None and parts is not None and parts.has_instance:
        return (
            f"Its arguments are equal{edited}; its instance's attributes are not recorded. To "
            f"resume it: .options(run_id={old.run_id!r})"
        )
    return (
        f"Its arguments are equal{edited}. To resume it: .options(run_id={old.run_id!r}), or "
        "start='unfinished'"
    )


_looked_for: set[str] = set()  # workflows that were searched under another name
_MOST = 300  # unfinished runs that the search examines


def _tell_of_renamed(store: Store, seal: Seal, new: RunFacts, module: str) -> None:
    for old in _unfinished(store, seal, None, _MOST):
        if was_moved(old, new.workflow, new.digest, new.code):
            told = (
                f"the same code in {place_of_run(old)}, which no longer exists. To resume that "
                f"run instead: STEPWISE_RESUME={old.run_id}, or .options(run_id={old.run_id!r})"
            )
        elif was_renamed(old, new.digest, module):
            told = (
                f"a workflow {old.label!r}, which is no longer in {place_of_run(old)}. If "
                f"{new.label!r} is the same one, to resume that run instead: "
                f"@workflow(name={old.label!r})"
            )
        else:
            continue
        notice(f"{new.run_id} starts; unfinished: {_told(store, seal, old)} of {told}")


def _unfinished(
    store: Store, seal: Seal, workflow: str | None, most: int | None = None
) -> Iterator[RunFacts]:
    """The unfinished runs of a workflow, or of all, that nobody executes and no run called.

    Args:
        most: how many runs are looked at.
    """
    index = None if workflow is None else seal.index(workflow)
    for head in itertools.islice(store.heads(index, unfinished=True), most):
        facts = open_head(seal, head)
        if facts is not None and not facts.parent and store.owner(facts.run_id) is None:
            yield facts


def _told(store: Store, seal: Seal, facts: RunFacts) -> str:
    """A run as it was called, and the side effects that it had."""
    effects = Counter(course_of(store, seal, facts).effects)
    told = ", ".join(f"{name} x{count}" for name, count in effects.most_common(4))
    return f"{facts.run_id}({facts.arguments}){f' with side effects {told}' if told else ''}"


@reports
def report_unused(active: ActiveRun) -> None:
    """Report the recorded calls that a completed run did not call again."""
    unused = active.pool.unused
    effects = [each.call for each in unused if each.may_have_happened]
    plain = Counter(each.call.name for each in unused if not each.may_have_happened)
    if plain:
        told = ", ".join(f"{name} x{count}" for name, count in plain.most_common(6))
        notice(
            f"{active.run_id}: recorded steps that were not called again: {told}. Their results "
            "were not used"
        )
    if effects:
        told = "; ".join(f"{call.number} {call.name}({call.arguments})" for call in effects[:6])
        warn(
            f"run {active.run_id!r} completed without calling these recorded side effects again, "
            f"which happened or may have happened: {told}",
            UnusedRecordWarning,
        )
