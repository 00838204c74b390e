"""Results that another version of a step has recorded: found, reported, kept or made again.

A run that resumes has them in its variables, or as answers of the journal; a completed run answers
as a whole.  So the versions are compared when a run is taken up, not only call by call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stepwise._calls.edited import EditedStep, asks, is_of, tell
from stepwise._calls.steps import defined_steps
from stepwise._identity.versions import Version, changed
from stepwise._journal.journal import facts_of, read_entries, recorded_versions
from stepwise._journal.projection import Calls, RecordedCall, to_run_again
from stepwise._journal.records import CODE, Forgotten, RecordedVersion
from stepwise._journal.seal import Seal
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._execution.active_run import ActiveRun


def edits_in(
    store: Store, seal: Seal, run_id: str, names: Iterable[str] | None = None
) -> list[EditedStep]:
    """Return the steps that have changed since the run recorded results that are in use.

    Args:
        names: the names of the objects with the run's versions, if they are known.
    """
    found = edited_among(recorded_versions(store, seal, run_id, names=names))
    return [*_in_use(store, seal, run_id, found)] if found else []


def edited_among(recorded: Sequence[RecordedVersion]) -> list[EditedStep]:
    """Return the steps that differ from a recorded version, without their calls."""
    defined = [(each, defined_steps(each.module, each.name)) for each in recorded]
    for each, steps in defined:  # all of them first: a step compared too early parses its files
        for step in steps:
            step.recognise(Version(each.id, each.parts, each.files))
    found = []
    for each, steps in defined:
        ids = {step.code for step in steps}
        if not steps or each.id in ids or "" in ids:
            continue
        differs = changed(each.parts, steps[0].version.parts)
        if differs:
            found.append(EditedStep(each, steps[0], differs))
    return found


def _in_use(store: Store, seal: Seal, run_id: str, edits: list[EditedStep]) -> Iterator[EditedStep]:
    """Yield the edits whose results are in use, with their calls.

    A run whose journal was pruned has results of records that are gone.  It cannot be replayed, so
    it keeps all of them.
    """
    facts = facts_of(store, seal, run_id)
    is_pruned = facts is not None and facts.pruned > 0
    known = [each for each in Calls(read_entries(store, seal, run_id)) if each.answers]
    children = any(each.recorded.child for each in edits) and {
        each.call.number: {(e.recorded.id, e.step) for e in edits_in(store, seal, each.call.child)}
        for each in known
        if each.call.child
    }
    for edit in edits:
        recorded, calls = edit.recorded, list[RecordedCall]()
        for each in known:
            if recorded.child:
                in_use = (recorded.id, edit.step) in (children or {}).get(each.call.number, ())
            else:
                in_use = is_of(each, recorded)
            calls += [each] if in_use else []
        if calls or (is_pruned and not recorded.child):
            numbers = [] if is_pruned else [each.call.number for each in calls]
            yield edit._replace(calls=(*calls,), again=to_run_again(numbers, known))


def take_up(active: ActiveRun) -> None:
    """Look at the results that older versions of steps have recorded, as a run is taken up.

    Raises:
        CodeChangedError: the run has to ask what becomes of them.
    """
    journal = active.journal
    names = journal.names(CODE)
    if not names:
        return
    edits = edits_in(journal.store, journal.seal, active.run_id, names)
    if not edits:
        return
    error = asks(active.run_id, edits)
    put = journal.put if error is not None else journal.put_with_next
    for each in edits:
        if each.policy == "rerun":
            continue
        used = each.recorded._replace(
            used_by=each.step.code,
            differs=each.differs,
            kept=each.recorded.kept if each.is_kept else "",
        )
        put(used.key, [*used], b"")
    if error is not None:
        raise error
    again = forgotten_by(edits)
    if again is not None:
        journal.load()
        active.write((again, b""))
    tell(active.run_id, edits)


def forgotten_by(edits: Iterable[EditedStep]) -> Forgotten | None:
    """Return the record by which results of older versions are dropped; None if all are kept."""
    again = {number for each in edits if each.policy == "rerun" for number in each.again}
    return Forgotten((*sorted(again),), time.time()) if again else None
