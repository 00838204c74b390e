"""Steps that have changed since they recorded results: found, reported, asked about, made again.

A run that resumes has such results in its variables, or as answers of the journal; a completed run
answers as a whole.  So the versions are compared when a run is taken up, not only call by call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._execution.process_memory import defined_steps, memory
from stepwise._identity.versions import Version, changed
from stepwise._journal.journal import facts_of, read_entries, recorded_versions
from stepwise._journal.projection import Calls, RecordedCall, to_run_again
from stepwise._journal.records import CODE, Forgotten, RecordedVersion
from stepwise._journal.seal import Seal
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, notice, reports, shell_word
from stepwise.errors import CodeChangedError
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._execution.active_run import ActiveRun


class EditedStep(NamedTuple):
    """A step that has changed since it recorded results.

    Args:
        recorded: the version that recorded them.
        step: the step as it is now.
        differs: the parts that differ.
        calls: the recorded calls whose results are in use; none of a child run.
        again: numbers of the calls that ``rerun`` drops: these, and the steps around them; empty
            if a side effect around them or a pruned journal keeps the results.
    """

    recorded: RecordedVersion
    step: Any
    differs: tuple[str, ...]
    calls: tuple[RecordedCall, ...] = ()
    again: tuple[int, ...] = ()

    @property
    def chosen(self) -> str:
        """``keep``, ``rerun`` or ``ask``, as the step or the configuration has it."""
        chosen: str = self.step.on_changed or settings.on_changed()
        return chosen

    @property
    def policy(self) -> str:
        """The policy for the results; a side effect never runs again by itself."""
        is_fixed = self.step.effect or not self.again
        return "keep" if self.chosen == "rerun" and is_fixed else self.chosen

    @property
    def is_kept(self) -> bool:
        """True if a person said that the results stay in use under this version."""
        return bool(self.recorded.kept) and self.recorded.used_by == self.step.code

    @property
    def text(self) -> str:
        """The step and its changed parts, in words."""
        source = self.step.source
        place = f" ({os.path.basename(source.filename)}:{source.first_line})" if source else ""
        return (
            f"{self.step.kind} {self.step.name}{place} has changed since its result was recorded "
            f"({'; '.join(self.differs)})"
        )


def is_of(call: RecordedCall, version: RecordedVersion) -> bool:
    """Return whether a version of a step made a call."""
    return (call.call.name, call.call.code) == (version.name, version.id)


@reports
def tell(run_id: str, edits: Iterable[EditedStep]) -> None:
    """Report the results of older versions that a run uses, once for each step and run."""
    for each in _by_step(edits):
        if memory.is_first(f"{run_id} {each.recorded.key} {each.step.code}"):
            notice(f"{run_id}: {each.text}: {_used(each)}")


def _by_step(edits: Iterable[EditedStep]) -> list[EditedStep]:
    """Return one edit for each step, of all its older versions."""
    found: dict[Any, EditedStep] = {}
    for each in edits:
        known = found.get(each.step, each)
        differs = (*dict.fromkeys((*known.differs, *each.differs)),)
        more = each if known is not each else each._replace(calls=(), again=())
        calls, again = (*known.calls, *more.calls), (*known.again, *more.again)
        found[each.step] = known._replace(differs=differs, calls=calls, again=again)
    return [*found.values()]


def _used(edit: EditedStep) -> str:
    children = sum(bool(each.call.child) for each in edit.calls)
    own = len(edit.calls) - children
    results = [count(own, "recorded result")] if own else []
    results += [f"the results in {count(children, 'completed child run')}"] if children else []
    results = results or ["pruned results"]
    used = f"{' and '.join(results)} {'is' if len(edit.calls) == own == 1 else 'are'}"
    if edit.policy == "rerun":
        return f"{used} not used, it runs again"
    if edit.step.effect or edit.is_kept:
        return f"{used} used"
    if edit.chosen == "rerun":
        return f"{used} used: a recorded call around or inside, or a pruned journal, keeps it"
    return f'{used} used; on_changed="rerun" runs it again'


def runs_again(active: ActiveRun, step: Any, recorded: RecordedCall) -> bool:
    """Return whether a call runs although a record of an older version answers it; else report it.

    Steps that exist only while their run is executed are compared here: those that the workflow
    makes, and the nodes of a graph.  A result with recorded calls inside it stays in use.

    Raises:
        CodeChangedError: the run has to ask what becomes of the result.
    """
    store, seal = active.journal.store, active.journal.seal
    if not (step.code and recorded.call.code):
        return False
    found = recorded_versions(store, seal, active.run_id, recorded.call.code)
    for version in found:
        if (version.name, version.child) != (recorded.call.name, ""):
            continue
        calls = (recorded, *(each for each in active.pool.all if is_of(each, version)))
        again = recorded.outcome is not None and not recorded.outcome.inner
        numbers = (recorded.call.number,) if again else ()
        edit = EditedStep(version, step, changed(version.parts, step.version.parts), calls, numbers)
        if not edit.differs:
            continue
        if edit.policy == "rerun":
            return True
        used = version._replace(used_by=step.code, differs=edit.differs)
        active.journal.put_with_next(used.key, [*used], b"")
        error = asks(active.run_id, [edit])
        if error is not None:
            raise error
        tell(active.run_id, [edit])
    return False


def asks(run_id: str, edits: Iterable[EditedStep]) -> CodeChangedError | None:
    """Return the error of a run that asks what to do with results of older versions."""
    asked = [each for each in edits if each.policy == "ask" and not each.is_kept]
    if not asked:
        return None
    run, lines = shell_word(run_id), [f"run {run_id!r} does not go on, as on_changed='ask' says:"]
    for each in _by_step(asked):
        lines.append(f"  {each.text}")
        made = [recorded.call for recorded in each.calls[:5]]
        lines += [f"    step {call.number}  {call.name}({call.arguments})" for call in made]
    lines.append("Say what becomes of the recorded results, and run the program again:")
    for each in _by_step(asked):
        answer = f"  stepwise resolve {run} {shell_word(each.step.name)}"
        lines.append(f"{answer} --same       (they stay in use)")
        can_run = each.again and not each.step.effect
        lines += [f"{answer} --another    (it runs again)"] if can_run else []
    return CodeChangedError("\n".join(lines), run_id=run_id)


# -- as a run is taken up -------------------------------------------------------------------------


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
