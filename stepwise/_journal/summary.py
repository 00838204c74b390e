"""Running totals of a journal, so that looking at a long run need not read it whole.

The process that executes a run keeps an object beside its records, sealed like them and replaced
every ``EVERY`` records: which calls there are, how those that did not complete ended, which may be
in doubt, when it was gone on with.  Who looks takes it and adds the records after it.  It does not
follow what changes calls of long ago (forgetting, undoing): such a run has none that counts, and is
read whole.

How often a run died, and whether ``stepwise up`` has given it up, the records alone decide, so that
every supervisor and every listing come to the same answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._journal.journal import (
    Journal,
    Lost,
    Position,
    facts_of,
    holds,
    read,
    read_entries,
    read_one,
    read_start,
)
from stepwise._journal.projection import Calls, Flags, Projection, RecordedCall
from stepwise._journal.records import (
    Entry,
    Intent,
    Outcome,
    Record,
    Resumed,
    RunFacts,
    Settled,
    Started,
    Sums,
    Tally,
    Waiting,
    sums_after,
)
from stepwise._journal.seal import DamagedError, Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import reports
from stepwise._values.unpickling import Data
from stepwise.errors import RunStopped
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._journal.course import Course


# -- summary --------------------------------------------------------------------------------------


EVERY = 1000  # records
NAME = "summary"
_OTHERS = 200  # calls that did not complete; with more it is not worth keeping
_BUNCH = 50  # records of this process that are summed up at once


class _NotFollowedError(Exception):
    """A record that changes the known state of earlier calls."""


def _new_course(**facts: Any) -> Course:
    from stepwise._journal.course import Course  # on use: a run of few records has no summary

    return Course(**facts)


class Summary(Projection):
    """Running totals of a run's records, up to one of them.

    Args:
        position: of that one, as a checkpoint holds it.
        calls: the numbers of the calls, as ranges.
        others: how those ended that did not complete.
        unclear: the calls with side effects that may be in doubt: number of their first and last
            record, and flags; see :class:`.projection.RecordedCall`.
    """

    def __init__(
        self,
        position: list[Any] | None = None,
        calls: list[list[int]] | None = None,
        others: dict[int, str] | None = None,
        unclear: list[list[Any]] | None = None,
        course: Course | None = None,
    ) -> None:
        self.position: list[Any] = [0, "", 0] if position is None else position
        self.calls = [] if calls is None else calls
        self.others = {} if others is None else others
        self.unclear = [] if unclear is None else unclear
        self.course = _new_course() if course is None else course

    @property
    def start(self) -> Position:
        """Return the journal position at which it was made."""
        return Position.from_kept(self.position) if self.position[0] else Position()

    @property
    def total(self) -> int:
        """Return the number of calls."""
        return sum(last - first + 1 for first, last in self.calls)

    def newest(self, count: int) -> set[int]:
        """The numbers of the last few calls."""
        found: set[int] = set()
        for first, last in reversed(self.calls):
            found.update(range(max(first, last + 1 - (count - len(found))), last + 1))
            if len(found) >= count:
                break
        return found

    def take(self, entry: Entry) -> None:
        """Take the next record.

        Raises:
            _NotFollowedError: it cannot be followed.
        """
        self.course.take(entry)
        self._takers[type(entry.record)](self, entry, entry.record)  # as super().take(), but faster

    def on_outcome(self, entry: Entry, record: Outcome) -> None:
        number = record.call.number
        self._count(number)
        if record.status != "completed":
            self.others[number] = record.status
        else:
            self.others.pop(number, None)

    def on_intent(self, entry: Entry, record: Intent) -> None:
        self._count(record.call.number)
        self.others[record.call.number] = "started"

    def on_waiting(self, entry: Entry, record: Waiting) -> None:
        self._count(record.call.number)
        self.others[record.call.number] = "waiting"

    def on_settled(self, entry: Entry, record: Settled) -> None:
        if record.number not in self.others:
            raise _NotFollowedError
        if record.landed:
            del self.others[record.number]
        else:
            self.others[record.number] = "started"

    def on_forgotten(self, entry: Entry, record: Record) -> None:
        raise _NotFollowedError

    on_compensating = on_compensated = on_forgotten

    def _count(self, number: int) -> None:
        if self.calls and number == self.calls[-1][1] + 1:
            self.calls[-1][1] = number
        elif not any(first <= number <= last for first, last in reversed(self.calls)):
            self.calls.append([number, number])
            self.calls.sort()
            merged: list[list[int]] = []
            for first, last in self.calls:
                if merged and merged[-1][1] + 1 == first:
                    merged[-1][1] = last
                else:
                    merged.append([first, last])
            self.calls = merged

    def statuses(self, in_doubt: Iterable[int]) -> dict[str, int]:
        """Return how many calls have each status.

        Args:
            in_doubt: the numbers of the calls that are in doubt.
        """
        counts = Counter(self.others.values())
        counts["completed"] = self.total - len(self.others)
        for number in in_doubt:
            counts[self.others.get(number, "completed")] -= 1
            counts["in_doubt"] += 1
        return dict(+counts)

    def close(self, at: Position, effects: Iterable[RecordedCall]) -> None:
        """Set the position that it reaches, and the known calls with side effects."""
        self.position = at.kept()
        self.unclear = [
            [each.origin.number, each.entry.number, *each.flags]
            for each in effects
            if each.call.effect and not each.call.child and each.status != "completed"
        ]

    def is_small(self) -> bool:
        """Return whether the summary is small enough to be worth keeping."""
        return max(len(self.others), len(self.unclear), len(self.calls)) <= _OTHERS

    def header(self) -> dict[str, Any]:
        """Return the summary as JSON-able facts."""
        others = [*map(list, self.others.items())]
        return {**vars(self), "others": others, "course": vars(self.course)}


def spent_facts(sums: Sums, course: Course) -> tuple[Any, ...]:
    """Return what a run has spent: the facts of :class:`stepwise.Spent`, in their order."""
    usd, tokens, steps, seconds, at_least, _ = sums
    saved = {**course.kept, "seconds": round(course.saved, 3)} if course.resumed else {}
    return usd, int(tokens), steps, round(seconds, 3), at_least, saved, round(course.lost, 3)


def _from_header(header: dict[str, Any]) -> Summary:
    facts = {**header, "others": dict(header["others"]), "course": _new_course(**header["course"])}
    return Summary(**facts)


def kept_summary(store: Store, seal: Seal, run_id: str) -> Summary | None:
    """Return the stored summary, or ``None`` if there is none or it does not verify."""
    data = store.get(run_id, NAME)
    if data is None:
        return None
    try:
        return _from_header(seal.open(named(NAME, run_id), data).header)
    except (DamagedError, TypeError, KeyError):
        return None


def follow(
    store: Store, seal: Seal, run_id: str, summary: Summary
) -> tuple[list[Entry], list[Entry]] | None:
    """Add the records after a summary to it.

    Returns:
        these records, and those of them and before them that concern side effects which may be in
        doubt; ``None`` if it does not hold, or cannot be followed.
    """
    if summary.position[0] and not holds(store, seal, run_id, summary.start):
        return None
    fresh: list[Entry] = []
    effects: list[Entry] = []
    at = summary.start
    for entry, position in read(store, seal, run_id, at):
        if isinstance(entry, Lost):
            return None
        at = position
        fresh.append(entry)
        try:
            summary.take(entry)
        except _NotFollowedError:
            return None
        if entry.concerns_effects:
            effects.append(entry)
    summary.position = at.kept()
    return fresh, effects


def course_of(store: Store, seal: Seal, facts: RunFacts) -> Course:
    """The attempts of a run."""
    summary = kept_summary(store, seal, facts.run_id)
    if summary is not None and follow(store, seal, facts.run_id, summary) is not None:
        return summary.course
    course = _new_course()
    for entry in read_entries(store, seal, facts.run_id, Position(facts.pruned, None)):
        course.take(entry)
    return course


def how_started(
    store: Store, seal: Seal, facts: RunFacts
) -> tuple[tuple[str, ...], str, str] | None:
    """The command, folder and file of a run's program, as it was started the last time.

    ``None`` if nothing tells.
    """
    course = course_of(store, seal, facts)
    start = read_start(store, seal, facts.run_id, course.started)
    file = start[0].file if start is not None else ""
    entry = read_one(store, seal, facts.run_id, course.command) if course.command else None
    if entry is not None and isinstance(entry.record, (Started, Resumed)):
        return entry.record.command, entry.record.cwd, file
    return ((), "", file) if file else None


def open_waits(store: Store, seal: Seal, facts: RunFacts) -> list[RecordedCall]:
    """Return the calls of a run that wait, as its journal says."""
    summary = kept_summary(store, seal, facts.run_id)
    followed = follow(store, seal, facts.run_id, summary) if summary is not None else None
    if summary is not None and followed is not None:
        found = [call for call in Calls(followed[0]) if call.wait]
        if len(found) == list(summary.others.values()).count("waiting"):
            return found
    entries = read_entries(store, seal, facts.run_id, Position(facts.pruned, None))
    return [call for call in Calls(entries) if call.wait]


def with_unclear(
    store: Store, seal: Seal, run_id: str, unclear: list[list[Any]], entries: Iterable[Entry]
) -> Calls:
    """The recorded calls, those included that were unclear before."""
    earlier: list[Entry] = []
    flags: dict[int, Flags] = {}
    for origin, last, handled, retry, spent in unclear:
        for number in dict.fromkeys((origin, last)):
            entry = read_one(store, seal, run_id, number)
            if entry is not None:
                earlier.append(entry)
                flags[number] = (handled, retry, spent)
    return Calls([*earlier, *entries], flags)


def sealed_summary(
    seal: Seal, run_id: str, entries: Iterable[tuple[Entry, Position]]
) -> dict[str, Data]:
    """The summary of a run that begins with these records, by its name, if one is worth keeping."""
    summary, effects, at = Summary(), [], Position()
    try:
        for entry, position in entries:
            at = position
            summary.take(entry)
            if entry.concerns_effects:
                effects.append(entry)
    except _NotFollowedError:
        return {}
    summary.close(at, Calls(effects))
    if at.last < EVERY or not summary.is_small():
        return {}
    return {NAME: seal.close(named(NAME, run_id), summary.header())[0]}


class SummaryKeeper:
    """Keeps the summary of a run that this process executes.

    What it is told of the records it writes spares it reading them, as long as nothing is missing
    in between.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock: Any = threading.RLock()
        self._summary: Summary | None = None
        self._effects: list[Entry] = []  # since it was kept
        self._new: dict[int, Record] = {}  # what it is to cover; threads overtake each other
        self._last = 0  # the highest number of a record that was noted
        self._due = 0  # the number of the record at which it is kept next
        self._given_up = False

    def note(self, numbers: Sequence[int], items: Sequence[tuple[Record, Data]]) -> None:
        """These records were appended by this process, under these numbers."""
        if self._given_up or not numbers:
            return
        for number, (record, _) in zip(numbers, items, strict=True):
            self._new[number] = record
        self._last = max(self._last, numbers[-1])
        self._due = self._due or _next_due(numbers[0] - 1)
        if len(self._new) >= _BUNCH or self._last >= self._due:
            self._sum_up()

    @reports
    def closing(self, *records: Record) -> Tally | None:
        """Return what a listing shows once the last records of the attempt are written.

        ``None`` if only the journal tells it: nothing is read for it, so that the end of a run that
        was resumed costs no more the longer it is.  No record is noted any more.
        """
        if self._given_up or self._lock._is_owned():
            return None
        with self._lock:
            self._given_up = True
            try:
                self._take_in()
                at, summary = self._journal.position, self._summary
                if summary is None or summary.position[0] != at.last:
                    return None
                sums, entries = at.sums, [*self._effects]
                for number, record in enumerate(records, at.last + 1):
                    entries.append(Entry(number, record, b""))
                    summary.take(entries[-1])
                    sums = sums_after(sums, record)
            except _NotFollowedError:
                return None
            course = summary.course
            if course.children:  # they may spend more
                return None
            doubtful = with_unclear(*self._place, summary.unclear, entries).in_doubt
            counts = summary.statuses(each.call.number for each in doubtful)
            return Tally(at.last + len(records), counts, spent_facts(sums, course))

    @reports
    def _sum_up(self) -> None:
        """Take in the records that were noted, and keep the summary if that is due."""
        if self._lock._is_owned():
            return  # code that this call interrupts does it
        with self._lock:
            try:
                self._take_in()
                if self._last >= self._due:
                    self._keep(patient=self._last < self._due + EVERY)
            except _NotFollowedError:
                self._given_up = True
            except (Exception, RunStopped):  # looking at the run reads it whole
                self._given_up = True
                raise

    def _take_in(self) -> None:
        """Take in the noted records, if nothing is missing before them."""
        summary, self._summary = self._summary, None  # an interrupt leaves none, not half
        if summary is None and 1 in self._new:
            summary = Summary()
        if summary is not None:
            self._follow(summary)
        else:
            self._new.clear()
        self._summary = summary

    def _follow(self, summary: Summary) -> None:
        """Take in the noted records that follow the last one."""
        while (record := self._new.pop(summary.position[0] + 1, None)) is not None:
            summary.position[0] += 1
            entry = Entry(summary.position[0], record, b"")
            summary.take(entry)
            if entry.concerns_effects:
                self._effects.append(entry)

    def _keep(self, *, patient: bool) -> None:
        """Keep it.

        Args:
            patient: not while threads have yet to tell of their records, which would be read.
        """
        summary = self._summary
        if patient and summary is not None and summary.position[0] != self._journal.position.last:
            return
        summary, at, effects = self._gathered()
        self._summary, self._effects = None, []
        summary.close(at, with_unclear(*self._place, summary.unclear, effects))
        if not summary.is_small():
            raise _NotFollowedError
        self._journal.put(NAME, summary.header(), b"", renew=True)
        self._summary, self._due = summary, _next_due(at.last)

    def _gathered(self) -> tuple[Summary, Position, list[Entry]]:
        """Return the summary up to the journal's end, that end, and what concerns side effects."""
        at, summary = self._journal.position, self._summary
        if summary is not None and summary.position[0] == at.last:
            return summary, at, self._effects
        summary = kept_summary(*self._place) or Summary()
        followed = follow(*self._place, summary)
        if followed is None:
            raise _NotFollowedError
        at = summary.start
        self._new = {n: each for n, each in self._new.copy().items() if n > at.last}
        return summary, at, followed[1]

    @property
    def _place(self) -> tuple[Store, Seal, str]:
        return self._journal.store, self._journal.seal, self._journal.run_id


def _next_due(number: int) -> int:
    return (number // EVERY + 1) * EVERY


# -- deaths ---------------------------------------------------------------------------------------


DEADLY = 3
"""A run that died so often at the same step is left."""


class Deaths(NamedTuple):
    """How often a run died, until now.

    Args:
        attempts: how many of its attempts died, one after the other.
        stuck: how many of these died before any step had ended, with the same code.
        at: its last sign of life, in seconds since 1970.
        waits: it was waiting, so that nothing that it did need have been what killed it.
    """

    attempts: int = 0
    stuck: int = 0
    at: float = 0.0
    waits: bool = False

    @property
    def are_deadly(self) -> bool:
        """True if the run is left, since it would die once more."""
        return self.stuck >= DEADLY and not self.waits


def deaths_of(store: Store, seal: Seal, facts: RunFacts, code: str = "") -> Deaths:
    """Return how often a crashed run died.

    Args:
        code: fingerprint of its workflow now; an attempt with other code died of that, perhaps.
    """
    course = course_of(store, seal, facts)
    if code and course.code and code != course.code:
        return Deaths(at=course.at)
    stuck, waits = course.stuck + course.open, False
    if stuck > 1:  # its child runs may have got on
        calls = [*Calls(read_entries(store, seal, facts.run_id, Position(facts.pruned, None)))]
        children = [each.call.child for each in calls if each.status == "open"]
        known = [facts_of(store, seal, child) for child in children if child]
        theirs = [deaths_of(store, seal, each) for each in known if each is not None]
        stuck = min([stuck, *(each.stuck for each in theirs)])
        waits = any(each.status == "waiting" for each in calls)
        waits = waits or any(each.waits for each in theirs)
    return Deaths(course.deaths + course.open, stuck, course.at, waits)
