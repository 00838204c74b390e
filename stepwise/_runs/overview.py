"""A short view of a long run: its newest steps, counts and attempts.

A long run keeps a summary, which counts the older steps.  A run without a summary is read whole.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepwise._checkpoints.checkpoints import spent_so_far
from stepwise._display.render import RunShown
from stepwise._execution.active_run import live_runs
from stepwise._execution.budget import Spent
from stepwise._execution.suspension import pending
from stepwise._journal.journal import Lost, Position, facts_of, is_ready, noted_calls, read
from stepwise._journal.lease import describe_owner
from stepwise._journal.projection import Calls, Places, given_up
from stepwise._journal.records import NO_SUMS, Entry, RunFacts, Sums, difference, together
from stepwise._journal.run_facts import Course, own_seconds
from stepwise._journal.seal import Seal
from stepwise._journal.summary import Summary, followed, spent_facts, with_unclear
from stepwise._runs import steps as run_steps
from stepwise._runs.sources import WorkflowSource
from stepwise._runtime import settings
from stepwise._runtime.facts import public
from stepwise.stores import Owner, Store

SHOWN = 50  # steps of a long run


@public
@dataclass(frozen=True, slots=True)
class Program:
    """The command that started the program of a run.

    Args:
        command: the command line, one item per argument; empty if it cannot be started again.
        cwd: the folder in which the program was started.
        file: the file that defines the workflow.
    """

    command: tuple[str, ...]
    cwd: str
    file: str


@dataclass(frozen=True)
class Overview:
    """The overview of a run for displays.

    Args:
        steps: the newest steps, in order.
        total: the number of all steps.
        statuses: the number of steps by status.
        in_doubt: the steps whose side effect may or may not have happened.
        course: the attempts of the run: where they resumed, what they executed, saved and lost.
        standing: how the run stood meanwhile.
        unreadable: the number of records that do not verify, or are missing.
        stops: the calls at which the run stopped, each with the recorded calls that it could be.
        sums: the spending of the run, including its child runs.
        doing: the plain steps in progress that the journal does not have yet; ``steps`` has them,
            too.
    """

    steps: list[run_steps.StepRecord]
    total: int
    statuses: dict[str, int]
    in_doubt: list[run_steps.StepRecord]
    course: Course
    standing: run_steps.Observed
    unreadable: int = 0
    stops: Sequence[run_steps.StoppedCall] = ()
    sums: Sums = NO_SUMS
    doing: Sequence[run_steps.StepRecord] = ()

    @property
    def spent(self) -> Spent:
        """The spending of the run, with the amounts that its resumes saved and its crashes lost."""
        return Spent(*spent_facts(self.sums, self.course))


def overview(store: Store, seal: Seal, run_id: str, count: int | None = SHOWN) -> Overview:
    """Read the overview of a run.

    Args:
        count: the number of newest steps to read; ``None`` for all.

    Raises:
        RunNotFoundError: there is no such run, or it was deleted meanwhile.
    """

    def read(facts: RunFacts, owner: Owner | None) -> Overview:
        return _OverviewReading(store, seal, facts, owner).overview(count)

    return run_steps.settled(store, seal, run_id, read)


class _OverviewReading:
    """One reading of the records of a run."""

    def __init__(self, store: Store, seal: Seal, facts: RunFacts, owner: Owner | None) -> None:
        self._place: run_steps.Place = store, seal, facts.run_id
        # The open steps of a process that is executing the run are not in doubt yet.
        self._facts, self._owner = facts, owner

    def overview(self, count: int | None) -> Overview:
        known = followed(*self._place) if count is not None else None
        if count is not None and known is not None:
            seen = self._from_summary(*known, count)
        else:
            seen = self._whole(count)
        seen = replace(seen, sums=self._with_children(seen))
        if self._owner is not None:
            return self._with_doing(seen, noted_calls(*self._place, self._owner.since))
        if self._facts.status != "running" or not seen.course.stops:
            return seen
        return replace(seen, stops=run_steps.stopped_calls(*self._place, seen.course.stops))

    def _with_children(self, seen: Overview) -> Sums:
        """Return the run's sums, plus the spending of child runs that its records lack so far."""
        store, seal, run_id = self._place
        sums = spent_so_far(store, run_id, seal) if self._facts.pruned else seen.sums
        if sums.open and self._owner is None and not is_ready(self._facts):  # it crashed
            sums = sums._replace(at_least=True)
        found = [sums]
        for child, said in seen.course.children.values():
            about = facts_of(store, seal, child)
            if about is not None:
                theirs = _OverviewReading(store, seal, about, self._owner).overview(1)
                found.append(difference(theirs.sums, Sums(*said)))
        found += [
            active.account.unsaid()
            for active in list(live_runs)
            if active.run_id == run_id and active.journal.store is store
        ]
        return together(*found)

    def _with_doing(self, seen: Overview, noted: list[Entry]) -> Overview:
        """Add the noted steps in progress, except those older than the steps of the overview."""
        known = {each.number for each in seen.steps}
        oldest = min(known, default=0)
        doing = [
            run_steps.step_record(self._place, each.call, each, None)
            for each in noted
            if each.call and each.step > oldest and each.step not in known
        ]
        if not doing:
            return seen
        steps = sorted([*seen.steps, *doing], key=lambda step: step.number)
        counts = Counter(seen.statuses) + Counter(step.status for step in doing)
        total = seen.total + len(doing)
        return replace(seen, steps=steps, total=total, statuses=dict(counts), doing=doing)

    def _whole(self, count: int | None) -> Overview:
        places, effects, course = Places(), Calls(), Course()
        unreadable: set[int] = set()
        at = Position()
        for entry, at in read(*self._place, Position(self._facts.pruned, None)):
            if isinstance(entry, Lost):
                unreadable.add(at.last)
                continue
            places.take(entry)
            course.take(entry)
            if entry.concerns_effects:
                effects.take(entry._replace(payload=b""))
            if unreadable:
                unreadable -= given_up([entry])
        doubtful = {each.call.number for each in effects.in_doubt if self._owner is None}
        statuses = Counter[str]()
        newest: deque[run_steps.StepRecord] = deque(maxlen=count)
        doubted: list[run_steps.StepRecord] = []
        course.saved = 0.0
        for step in run_steps.each_step(*self._place[:2], self._facts, doubtful, places):
            statuses[step.status] += 1
            newest.append(step)
            doubted += [step] if step.status == "in_doubt" else []
            outcome, number = step._entry.outcome, step._entry.number
            if outcome is not None and step.status == "completed" and number < course.begun:
                course.saved += own_seconds(outcome, places.answered.get(step.number, 0.0))
        total = sum(statuses.values())
        parts = [*newest], total, dict(statuses), doubted, course
        return Overview(*parts, self._standing(), len(unreadable), sums=at.sums)

    def _standing(self) -> run_steps.Observed:
        return run_steps.standing(*self._place[:2], self._facts, self._owner)

    def _from_summary(
        self, summary: Summary, fresh: list[Entry], effects: list[Entry], count: int
    ) -> Overview:
        pruned, doubted = self._facts.pruned, list[run_steps.StepRecord]()
        if self._owner is None:
            for each in with_unclear(*self._place, summary.unclear, effects).in_doubt:
                step = run_steps.step_record(self._place, each.call, each.entry, "in_doubt")
                doubted.append(step)
        wanted = summary.newest(count)
        before = start = fresh[0].number - 1 if fresh else summary.start.last
        entries, span = fresh, 2 * count
        while start > pruned and not wanted <= {each.step for each in entries if each.call}:
            start, span = max(pruned, start - span), 4 * span
            entries = [*_between(*self._place, start, before), *fresh]
        numbers = {each.number for each in doubted}
        steps = run_steps.steps_with(self._place, entries, numbers)
        newest = [each for each in steps if each.number in wanted]
        statuses, sums = summary.statuses(numbers), summary.start.sums
        parts = newest, summary.total, statuses, doubted, summary.course
        return Overview(*parts, self._standing(), sums=sums)


def steps_around(
    store: Store, seal: Seal, facts: RunFacts, seen: Overview, number: int, count: int
) -> list[run_steps.StepRecord]:
    """Return some steps of a run around one step, which a long run need not be read whole for.

    Args:
        seen: the overview of the run.
        number: the number of the step in the middle.
        count: the number of steps.
    """
    doubtful = {each.number for each in seen.in_doubt}
    wanted = range(max(1, number - count // 2), number + count - count // 2)
    found = followed(store, seal, facts.run_id)
    if found is not None:
        summary = found[0]
        known = {n for n in wanted if any(first <= n <= last for first, last in summary.calls)}
        last = Position.from_kept(summary.position).last
        start = _record_of(store, seal, facts, min(known, default=1), last)
        place = store, seal, facts.run_id
        near = _between(*place, max(facts.pruned, start - count), start + 3 * count)
        entries = [each for each in near if each.call is None or each.call.number in known]
        steps = [
            each for each in run_steps.steps_with(place, entries, doubtful) if each.number in known
        ]
        # The end of a call may be recorded far from its beginning, and a failed one again by a
        # later attempt: then all records are read.
        others = summary.others if not seen.course.resumed else {}
        sure = all(
            each.number in doubtful or each.status == others.get(each.number, "completed")
            for each in steps
        )
        if sure and len(steps) == len(known):
            return steps
    return [
        each for each in run_steps.each_step(store, seal, facts, doubtful) if each.number in wanted
    ]


def _record_of(store: Store, seal: Seal, facts: RunFacts, number: int, last: int) -> int:
    """Return about where the records of a step are, by halving the journal."""
    low, high = facts.pruned, last
    while low < high:
        middle = (low + high) // 2
        near = _between(store, seal, facts.run_id, middle, min(middle + 8, last))
        step = next((each.call.number for each in near if each.call is not None), number)
        low, high = (middle + 1, high) if step < number else (low, middle)
    return low


def _between(store: Store, seal: Seal, run_id: str, start: int, end: int) -> Iterator[Entry]:
    """Yield the records with numbers above ``start``, up to ``end``."""
    for entry, at in read(store, seal, run_id, Position(start, None)):
        if at.last > end:
            break
        if isinstance(entry, Entry):
            yield entry


def goes_on(store: Store, seal: Seal, facts: RunFacts) -> tuple[str, str]:
    """Return where a run resumes, and the line of source there, if known.

    The place is the next statement to execute, or the last executed statement if the next is
    unknown.
    """
    loaded = run_steps.newest_checkpoint(store, seal, facts.run_id)
    if loaded is None or settings.trusts_data_only():
        return "from the top, answered by the journal", ""
    state, source = loaded.state, WorkflowSource(store, seal, facts)
    if not source.holds(state.where):
        return f"after {state.where}", ""
    line = source.next_line(state)
    where = f"at {state.file}:{line}" if line else f"after {state.where}"
    return where, source.text_of(line or state.line)


def shown(standing: run_steps.Observed, seen: Overview | None) -> RunShown:
    """Return the display form of a run, with its steps if they were read."""
    facts, owner, status = standing
    about = RunShown(
        facts.run_id,
        f"{facts.label}({facts.arguments})",
        status,
        facts.workflow,
        describe_owner(owner) if owner is not None else "",
        facts.created_at,
        facts.updated_at,
        error=facts.error,
        waits=tuple(map(str, pending(facts))),
    )
    if seen is None:
        return about
    course = seen.course
    return replace(
        about,
        steps=seen.steps,
        total=seen.total,
        statuses=seen.statuses,
        resumed_from=course.resumed_from,
        executed=course.executed,
        skipped=course.skipped,
        begun=course.begun,
        saved=course.saved,
        lost=course.lost,
        spent=str(seen.spent) if seen.sums.usd or seen.sums.tokens or seen.course.cached else "",
        unreadable=seen.unreadable,
    )
