"""Running totals of a journal, so that listings of a long run need not read the whole journal.

The process that executes a run keeps a *summary* beside the records: a sealed object, replaced
every ``EVERY`` records.  The summary says which calls there are, how the uncompleted calls ended,
which calls may be in doubt, and when the run was resumed.  A reader takes the summary and adds the
records after it.  A summary does not follow changes of earlier calls (forgetting, undoing): the
summary of such a run does not count, and the whole journal is read.

The records alone decide how often a run died, and whether ``stepwise up`` has given it up.  So all
supervisors and listings come to the same answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._journal import journal as journals
from stepwise._journal import records
from stepwise._journal.projection import Calls, Flags, Projection, RecordedCall
from stepwise._journal.seal import DamagedError, Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import reports
from stepwise._values.unpickling import Data
from stepwise.errors import RunStopped
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._journal.run_facts import Course


# -- summary --------------------------------------------------------------------------------------


EVERY = 1000  # records
NAME = "summary"
_OTHERS = 200  # uncompleted calls; a summary with more is not worth keeping
_BUNCH = 50  # records of this process that are summed up together


class _NotFollowedError(Exception):
    """A record that changes the known state of earlier calls."""


class Summary(Projection):
    """Running totals of a run's records, up to a position.

    Args:
        position: the position, as from :meth:`.journal.Position.kept`.
        calls: the numbers of the calls, as ranges of a first and a last number.
        others: the status of each uncompleted call, by number.
        unclear: the calls with side effects that may be in doubt: the numbers of the origin and of
            the last record, and the flags; see :class:`.projection.RecordedCall`.
        course: the attempts of the run.
    """

    def __init__(self, others: Any = (), course: Any = (), **facts: Any) -> None:
        from stepwise._journal.run_facts import (
            Course,  # imported on use: short runs have no summary
        )

        self.position: list[Any] = [0, "", 0]
        self.calls: list[list[int]] = []
        self.others: dict[int, str] = dict(others)
        self.unclear: list[list[Any]] = []
        self.course = Course(**dict(course))
        vars(self).update(facts)

    @property
    def start(self) -> journals.Position:
        """The journal position that the summary covers."""
        at = journals.Position
        return at.from_kept(self.position) if self.position[0] else at()

    @property
    def total(self) -> int:
        """The number of calls."""
        return sum(last - first + 1 for first, last in self.calls)

    def newest(self, count: int) -> set[int]:
        """Return the highest ``count`` numbers of calls."""
        found: set[int] = set()
        for first, last in reversed(self.calls):
            found.update(range(max(first, last + 1 - (count - len(found))), last + 1))
            if len(found) >= count:
                break
        return found

    def take(self, entry: records.Entry) -> None:
        """Take the next record.

        Raises:
            _NotFollowedError: the record changes the known state of earlier calls.
        """
        self.course.take(entry)
        self._takers[type(entry.record)](self, entry, entry.record)  # a faster super().take()

    def on_outcome(self, entry: records.Entry, record: records.Outcome) -> None:
        number = record.call.number
        self._count(number)
        if record.status != "completed":
            self.others[number] = record.status
        else:
            self.others.pop(number, None)

    def on_intent(self, entry: records.Entry, record: records.Intent) -> None:
        self._count(record.call.number)
        self.others[record.call.number] = "started"

    def on_waiting(self, entry: records.Entry, record: records.Waiting) -> None:
        self._count(record.call.number)
        self.others[record.call.number] = "waiting"

    def on_settled(self, entry: records.Entry, record: records.Settled) -> None:
        if record.number not in self.others:
            raise _NotFollowedError
        if record.landed:
            del self.others[record.number]
        else:
            self.others[record.number] = "started"

    def on_forgotten(self, entry: records.Entry, record: records.Record) -> None:
        raise _NotFollowedError

    on_compensating = on_compensated = on_forgotten

    def _count(self, number: int) -> None:
        if self.calls and number == self.calls[-1][1] + 1:
            self.calls[-1][1] = number
            return
        for first, last in reversed(self.calls):  # in a generator, a Ctrl-C at its close is lost
            if first <= number <= last:
                return
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
        """Return the number of calls of each status.

        Args:
            in_doubt: the numbers of the calls in doubt.
        """
        counts = Counter(self.others.values())
        counts["completed"] = self.total - len(self.others)
        for number in in_doubt:
            counts[self.others.get(number, "completed")] -= 1
            counts["in_doubt"] += 1
        return dict(+counts)

    def close(self, at: journals.Position, effects: Iterable[RecordedCall]) -> None:
        """Finish the summary: set its position, and the calls that may be in doubt."""
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
        """Return the summary in a form that JSON can hold."""
        others = [*map(list, self.others.items())]
        return {**vars(self), "others": others, "course": vars(self.course)}


def spent_facts(sums: records.Sums, course: Course) -> tuple[Any, ...]:
    """Return the amounts that a run has spent: the facts of :class:`stepwise.Spent`, in order."""
    usd, tokens, steps, seconds, at_least, _, cached_tokens = sums
    saved = {**course.kept, "seconds": round(course.saved, 3)} if course.resumed else {}
    told = usd, int(tokens), steps, round(seconds, 3), at_least, saved, round(course.lost, 3)
    answered = {unit: round(amount, 6) for unit, amount in course.cached.items()}
    return *told, answered, int(cached_tokens)


def kept_summary(store: Store, seal: Seal, run_id: str) -> Summary | None:
    """Return the stored summary, or ``None`` if it is missing or does not verify."""
    data = store.get(run_id, NAME)
    if data is None:
        return None
    try:
        return Summary(**seal.open(named(NAME, run_id), data).header)
    except (DamagedError, TypeError):
        return None


def follow(
    store: Store, seal: Seal, run_id: str, summary: Summary
) -> tuple[list[records.Entry], list[records.Entry]] | None:
    """Add the records after a summary's position to the summary.

    Returns:
        the added records, and the added records that concern side effects; ``None`` if the summary
        does not fit the journal, a record is lost, or a record changes earlier calls.
    """
    at = summary.start
    following = journals.read_on(store, seal, run_id, at)
    if following is None:
        return None
    fresh: list[records.Entry] = []
    effects: list[records.Entry] = []
    for entry, position in following:
        if isinstance(entry, journals.Lost):
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


def followed(
    store: Store, seal: Seal, run_id: str
) -> tuple[Summary, list[records.Entry], list[records.Entry]] | None:
    """Return the stored summary with the records after it, and these records; see :func:`follow`.

    Return ``None`` if there is no summary that fits the journal.
    """
    summary = kept_summary(store, seal, run_id)
    added = follow(store, seal, run_id, summary) if summary is not None else None
    return (summary, *added) if summary is not None and added is not None else None


def course_of(store: Store, seal: Seal, facts: records.RunFacts) -> Course:
    """Return the attempts of a run, from its summary if possible."""
    known = followed(store, seal, facts.run_id)
    if known is not None:
        return known[0].course
    course = Summary().course
    for entry in journals.entries_of(store, seal, facts):
        course.take(entry)
    return course


def how_started(
    store: Store, seal: Seal, facts: records.RunFacts
) -> tuple[tuple[str, ...], str, str] | None:
    """Return the command, folder and file of the program that executed a run last.

    Return ``None`` if the journal does not have them.
    """
    course = course_of(store, seal, facts)
    start = journals.read_start(store, seal, facts.run_id, course.started)
    file = start[0].file if start is not None else ""
    entry = journals.read_one(store, seal, facts.run_id, course.command) if course.command else None
    if entry is not None and isinstance(entry.record, (records.Started, records.Resumed)):
        return entry.record.command, entry.record.cwd, file
    return ((), "", file) if file else None


def open_waits(store: Store, seal: Seal, facts: records.RunFacts) -> list[RecordedCall]:
    """Return the waiting calls of a run, according to its journal."""
    known = followed(store, seal, facts.run_id)
    if known is not None:
        summary, fresh, _ = known
        found = [call for call in Calls(fresh) if call.wait]
        if len(found) == [*summary.others.values()].count("waiting"):
            return found
    entries = journals.entries_of(store, seal, facts)
    return [call for call in Calls(entries) if call.wait]


def with_unclear(
    store: Store,
    seal: Seal,
    run_id: str,
    unclear: list[list[Any]],
    entries: Iterable[records.Entry],
) -> Calls:
    """Return the recorded calls of some entries, together with the unclear calls of a summary."""
    earlier: list[records.Entry] = []
    flags: dict[int, Flags] = {}
    for origin, last, handled, retry, spent in unclear:
        for number in dict.fromkeys((origin, last)):
            entry = journals.read_one(store, seal, run_id, number)
            if entry is not None:
                earlier.append(entry)
                flags[number] = (handled, retry, spent)
    return Calls([*earlier, *entries], flags)


def summary_of(entries: Iterable[tuple[records.Entry, journals.Position]]) -> Summary | None:
    """Return the summary of a run's first records, or ``None`` if it is not worth keeping."""
    summary, effects, at = Summary(), [], journals.Position()
    try:
        for entry, position in entries:
            at = position
            summary.take(entry)
            if entry.concerns_effects:
                effects.append(entry)
    except _NotFollowedError:
        return None
    summary.close(at, Calls(effects))
    return summary if at.last >= EVERY and summary.is_small() else None


def sealed_summary(seal: Seal, run_id: str, summary: Summary | None) -> dict[str, Data]:
    """Return a summary as the sealed object of a run, by its name; empty if there is none."""
    if summary is None:
        return {}
    return {NAME: seal.close(named(NAME, run_id), summary.header())[0]}


class SummaryKeeper:
    """The keeper of the summary of a run that this process executes.

    The process reports each record that it writes, so the keeper need not read the records again
    unless some are missing in between.
    """

    def __init__(self, journal: journals.Journal) -> None:
        self._journal = journal
        self._lock: Any = threading.RLock()
        self._summary: Summary | None = None
        self._effects: list[records.Entry] = []  # records about side effects since the last keeping
        self._new: dict[
            int, records.Record
        ] = {}  # noted records to take in; threads overtake each other
        self._last = 0  # the highest number of a noted record
        self._due = 0  # the number of the record at which the summary is kept next
        self._given_up = False

    def note(self, numbers: Sequence[int], items: Sequence[tuple[records.Record, Data]]) -> None:
        """Note records that this process has appended under these numbers."""
        if self._given_up or not numbers:
            return
        for number, (record, _) in zip(numbers, items):  # noqa: B905 -- parsing it takes as long
            self._new[number] = record
        if number > self._last:  # noqa: PLR1730 -- max() takes ten times as long
            self._last = number
        self._due = self._due or _next_due(numbers[0] - 1)
        if len(self._new) >= _BUNCH or self._last >= self._due:
            self._sum_up()

    @reports
    def closing(self, *added: records.Record) -> records.Tally | None:
        """Return the tally of the run once the last records of the attempt are written.

        Return ``None`` if only the journal has the tally.  The whole journal is not read, so that
        the end of a resumed run does not cost more the longer the run is.  After this call, no
        record is noted any more.
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
                for number, record in enumerate(added, at.last + 1):
                    entries.append(records.Entry(number, record, b""))
                    summary.take(entries[-1])
                    sums = records.sums_after(sums, record)
            except _NotFollowedError:
                return None
            course = summary.course
            if course.children:  # child runs may spend more
                return None
            unclear, doubtful = summary.unclear, []
            if unclear or self._effects:
                doubtful = with_unclear(*self._place, unclear, entries).in_doubt
            counts = summary.statuses(each.call.number for each in doubtful)
            return records.Tally(at.last + len(added), counts, spent_facts(sums, course))

    @reports
    def _sum_up(self) -> None:
        """Take in the noted records, and keep the summary if that is due."""
        if self._lock._is_owned():
            return  # the interrupted call of this thread does it
        with self._lock:
            try:
                self._take_in()
                if self._last >= self._due:
                    self._keep(patient=self._last < self._due + EVERY)
            except _NotFollowedError:
                self._given_up = True
            except (Exception, RunStopped):  # readers of the run then read the whole journal
                self._given_up = True
                raise

    def _take_in(self) -> None:
        """Take in the noted records, if no record is missing before them."""
        summary, self._summary = self._summary, None  # an interrupt leaves no half-done summary
        if summary is None and 1 in self._new:
            summary = Summary()
        if summary is not None:
            self._follow(summary)
        else:
            self._new.clear()
        self._summary = summary

    def _follow(self, summary: Summary) -> None:
        """Add the noted records that directly follow the summary."""
        while (record := self._new.pop(summary.position[0] + 1, None)) is not None:
            summary.position[0] += 1
            entry = records.Entry(summary.position[0], record, b"")
            summary.take(entry)
            if entry.concerns_effects:
                self._effects.append(entry)

    def _keep(self, *, patient: bool) -> None:
        """Write the summary beside the records.

        Args:
            patient: wait while other threads have yet to note their records, which would otherwise
                have to be read.
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

    def _gathered(self) -> tuple[Summary, journals.Position, list[records.Entry]]:
        """Return the summary up to the journal's end, the end, and the records of side effects."""
        at, summary = self._journal.position, self._summary
        if summary is not None and summary.position[0] == at.last:
            return summary, at, self._effects
        summary = kept_summary(*self._place) or Summary()
        added = follow(*self._place, summary)
        if added is None:
            raise _NotFollowedError
        at = summary.start
        self._new = {n: each for n, each in self._new.copy().items() if n > at.last}
        return summary, at, added[1]

    @property
    def _place(self) -> tuple[Store, Seal, str]:
        return self._journal.store, self._journal.seal, self._journal.run_id


def _next_due(number: int) -> int:
    return (number // EVERY + 1) * EVERY


# -- deaths ---------------------------------------------------------------------------------------


DEADLY = 3
"""A run that died this often at the same step is given up."""


class Deaths(NamedTuple):
    """The deaths of a run until now.

    Args:
        attempts: the number of attempts that died in a row.
        stuck: how many of these attempts died before any step had ended, with the same code.
        at: the run's last sign of life, in seconds since 1970.
        waits: True if the run was waiting, so that its own work need not have killed it.
    """

    attempts: int = 0
    stuck: int = 0
    at: float = 0.0
    waits: bool = False

    @property
    def are_deadly(self) -> bool:
        """True if the run is given up, since it would die again."""
        return self.stuck >= DEADLY and not self.waits


def deaths_of(store: Store, seal: Seal, facts: records.RunFacts, code: str = "") -> Deaths:
    """Return the deaths of a crashed run.

    Args:
        code: the current fingerprint of the workflow's code; by default that of the last attempt.
            Deaths with other code do not count, since the other code may have caused them.
    """
    summed = followed(store, seal, facts.run_id)
    course = summed[0].course if summed is not None else course_of(store, seal, facts)
    attempts, stuck = course.deaths_with(code)
    left = {*summed[0].others.values()} if summed is not None else {"started"}
    waits = "waiting" in left
    if stuck > 1 and "started" in left:  # child runs may have made progress
        calls = [*Calls(journals.entries_of(store, seal, facts))]
        children = [each.call.child for each in calls if each.status == "open"]
        known = [journals.facts_of(store, seal, child) for child in children if child]
        theirs = [deaths_of(store, seal, each) for each in known if each is not None]
        stuck = min([stuck, *(each.stuck for each in theirs)])
        waits = any(each.status == "waiting" for each in calls)
        waits = waits or any(each.waits for each in theirs)
    return Deaths(attempts, stuck, course.at, waits)
