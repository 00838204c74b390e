"""Results that another version of a step has recorded: found, reported, kept or made again.

A run that resumes has them in its variables, or as answers of the journal; a completed run answers
as a whole.  So the versions are compared when a run is taken up, not call by call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from stepwise._calls.steps import Step, defined_steps
from stepwise._execution.process_memory import memory
from stepwise._identity.versions import Version, changed
from stepwise._journal.journal import facts_of, read_entries
from stepwise._journal.projection import Calls, RecordedCall
from stepwise._journal.records import Forgotten
from stepwise._journal.seal import Seal
from stepwise._journal.versions import RecordedVersion, recorded_versions
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
    """

    recorded: RecordedVersion
    step: Step
    differs: tuple[str, ...]
    calls: tuple[RecordedCall, ...] = ()

    @property
    def policy(self) -> str:
        """``keep``, ``rerun`` or ``ask``; a side effect never runs again by itself."""
        chosen = self.step.on_changed or settings.on_changed()
        is_repeatable = not (self.step.effect or self.recorded.child)
        return "keep" if chosen == "rerun" and not is_repeatable else chosen

    @property
    def is_kept(self) -> bool:
        """True if a person said that the results stay in use under this version."""
        return bool(self.recorded.kept) and self.recorded.used_by == self.step.code

    @property
    def text(self) -> str:
        """What has changed, in words."""
        source = self.step.source
        place = f" ({os.path.basename(source.filename)}:{source.first_line})" if source else ""
        return (
            f"{self.step.kind} {self.step.name}{place} has changed since its result was recorded "
            f"({'; '.join(self.differs)})"
        )


def edits_in(store: Store, seal: Seal, run_id: str) -> list[EditedStep]:
    """Return the steps that have changed since the run recorded results that are in use."""
    recorded = recorded_versions(store, seal, run_id)
    for each in recorded:
        for step in defined_steps(each.module, each.name):
            step.recognise(Version(each.id, each.parts, each.files))
    found = []
    for each in recorded:
        steps = defined_steps(each.module, each.name)
        ids = {step.code for step in steps}
        if not steps or each.id in ids or "" in ids:
            continue
        differs = changed(each.parts, steps[0].version.parts)
        if differs:
            found.append(EditedStep(each, steps[0], differs))
    return [*_in_use(store, seal, run_id, found)] if found else []


def _in_use(
    store: Store, seal: Seal, run_id: str, edits: Iterable[EditedStep]
) -> Iterator[EditedStep]:
    """Yield the edits whose results are in use, with their calls."""
    known: list[RecordedCall] | None = None
    for each in edits:
        recorded = each.recorded
        if recorded.child:
            facts = facts_of(store, seal, recorded.child)
            if facts is not None and facts.status == "completed":
                yield each
            continue
        if known is None:
            known = [*Calls(read_entries(store, seal, run_id))]
        calls = tuple(
            call
            for call in known
            if call.answers and (call.call.name, call.call.code) == (recorded.name, recorded.id)
        )
        if calls:
            yield each._replace(calls=calls)


@reports
def tell(run_id: str, edits: Iterable[EditedStep]) -> None:
    """Report the results of older versions that a run uses, once for each step and run."""
    for each in _by_step(edits):
        if memory.is_first(f"{run_id} {each.recorded.key} {each.step.code}"):
            notice(f"{run_id}: {each.text}: {_used(each)}")


def _by_step(edits: Iterable[EditedStep]) -> list[EditedStep]:
    """Return one edit for each step, of all its older versions."""
    found: dict[Step, EditedStep] = {}
    for each in edits:
        known = found.get(each.step, each)
        differs = (*dict.fromkeys((*known.differs, *each.differs)),)
        calls = (*known.calls, *each.calls) if known is not each else each.calls
        found[each.step] = known._replace(differs=differs, calls=calls)
    return [*found.values()]


def _used(edit: EditedStep) -> str:
    if edit.recorded.child and not edit.calls:
        return f"its results in the completed child run {edit.recorded.child} are used"
    many = len(edit.calls)
    results = f"{count(many, 'recorded result')} {'is' if many == 1 else 'are'}"
    if edit.policy == "rerun":
        return f"{results} not used, it runs again"
    if edit.step.effect or edit.is_kept:
        return f"{results} used"
    return f'{results} used; on_changed="rerun" runs it again'


def take_up(active: ActiveRun) -> None:
    """Look at the results that older versions of steps have recorded, as a run is taken up.

    Raises:
        CodeChangedError: the run has to ask what becomes of them.
    """
    journal = active.journal
    edits = edits_in(journal.store, journal.seal, active.run_id)
    if not edits:
        return
    error = asks(active.run_id, edits)
    put = journal.put if error is not None else journal.put_with_next
    for each in edits:
        used = each.recorded._replace(
            used_by=each.step.code,
            differs=each.differs,
            results=len(each.calls),
            kept=each.recorded.kept if each.is_kept else "",
        )
        put(used.key, [*used], b"")
    if error is not None:
        raise error
    again = [call.call.number for each in edits if each.policy == "rerun" for call in each.calls]
    if again:
        journal.load()
        active.write((Forgotten((*sorted(again),), time.time()), b""))
    tell(active.run_id, edits)


def asks(run_id: str, edits: Iterable[EditedStep]) -> CodeChangedError | None:
    """Return the error of a run that asks what to do with results of older versions."""
    asked = [each for each in edits if each.policy == "ask" and not each.is_kept]
    if not asked:
        return None
    run, lines = shell_word(run_id), [f"run {run_id!r} does not go on, as on_changed='ask' says:"]
    for each in asked:
        lines.append(f"  {each.text}")
        for call in each.calls[:5]:
            number, arguments = call.call.number, call.call.arguments
            lines.append(f"    step {number}  {each.step.name}({arguments})")
    lines.append("Say what becomes of the recorded results, and run the program again:")
    for name in dict.fromkeys(each.step.name for each in asked):
        resolve = f"  stepwise resolve {run} {shell_word(name)}"
        lines.append(f"{resolve} --same       (they stay in use)")
        lines.append(f"{resolve} --another    (they are not: it runs again)")
    return CodeChangedError("\n".join(lines), run_id=run_id)
