"""The course of a run: its attempts, and the calls at which it stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepwise._journal.projection import CallKey, Projection, call_key
from stepwise._journal.records import (
    Call,
    Ended,
    Entry,
    Intent,
    Interrupted,
    Outcome,
    Resumed,
    Ruled,
    Started,
    Stopped,
    Suspended,
)
from stepwise._journal.spending import NO_SUMS, Sums, plus
from stepwise._runtime.facts import NamedTuple

__all__ = ["Course", "Stop", "stops_in"]

_RESUMES = 20  # resumes that are listed


class Stop(NamedTuple):
    """A call that was not made, since it could be a recorded side effect.

    Args:
        number: of the record that tells of it.
        call: with its arguments at that start.
        steps: numbers of the recorded calls that it could be.
        records: numbers of the records that hold the arguments of those.
        ruled: what somebody said of it since; ``None`` if nobody did.
    """

    number: int
    call: Call
    steps: tuple[int, ...]
    records: tuple[int, ...]
    at: float
    ruled: Ruled | None = None


def stops_in(entries: Iterable[Entry]) -> list[Stop]:
    """The stops that are not over, the last one of each call."""
    found: dict[CallKey, Stop] = {}
    for entry in entries:
        record = entry.record
        if isinstance(record, Stopped):
            found.pop(call_key(record.call), None)
            found[call_key(record.call)] = Stop(entry.number, *record)
        elif isinstance(record, Ruled):
            if call_key(record.call) in found:
                found[call_key(record.call)] = found[call_key(record.call)]._replace(ruled=record)
        elif found and _is_over(max(each.at for each in found.values()), entry):
            found.clear()
    return list(found.values())


def _is_over(at: float, entry: Entry) -> bool:
    """Return whether a record shows that the run continued after it had stopped at that time."""
    if entry.call is not None:  # one in flight at the stop began before it
        return entry.call.at > at
    return isinstance(entry.record, Resumed)


# -- the run -------------------------------------------------------------------------------------


class Course(Projection):
    """The attempts of a run: time, losses, answered steps.

    Args:
        born: when it began, seconds since 1970; what a fork shares is older.
        forked: it is a fork.
        started, command: numbers of the records that say where its workflow is defined, and how
            its program was started the last time.
        resumes: each time it was gone on with, the last few: number of the record, when, where.
        resumed: how many times.
        at: when the last record was made.
        taken: seconds that the completed steps took that the workflow itself called.
        saved: those of them that the last attempt need not execute.
        lost: seconds from the last record of each attempt to the beginning of the next.
        resumed_from, executed, skipped: of the last attempt; see :class:`stepwise.Run`.
        effects: how many side effects were announced, by tool.
        stops: numbers of the records of the calls at which it stopped, and of what somebody said of
            them since, while it has not gone on.
        stopped: when it stopped.
        paid, kept: money and tokens that the completed calls have spent, by unit; as much of it as
            the last attempt need not spend again.
        children: of the calls of child runs that have not completed, by number: the child run, and
            the sums that outcomes of the call say; see :class:`.spending.Claims`.
        code: fingerprint of the workflow's code in the last attempt.
        open: that attempt has not ended in good order: it goes on, or it died.
        deaths: how many attempts before it died, one after the other.
        stuck: how many of these died before any step had ended, with the same code.
        asleep: the last attempt ended since there was nothing left but to wait.
    """

    def __init__(self, **facts: Any) -> None:
        self.born = 0.0
        self.forked = False
        self.started = 0
        self.command = 0
        self.resumes: list[list[Any]] = []
        self.resumed = 0
        self.at = 0.0
        self.taken = 0.0
        self.saved = 0.0
        self.lost = 0.0
        self.resumed_from: int | None = None
        self.executed = 0
        self.skipped = 0
        self.effects: dict[str, int] = {}
        self.stops: list[int] = []
        self.stopped = 0.0
        self.paid: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self.children: dict[str, list[Any]] = {}
        self.code = ""
        self.open = False
        self.deaths = 0
        self.stuck = 0
        self.asleep = False
        if not facts.keys() <= vars(self).keys():
            raise TypeError("facts of another version")
        vars(self).update(facts)

    @property
    def begun(self) -> int:
        """The number of the record that began the last attempt; 0 for the first one."""
        return self.resumes[-1][0] if self.resumes else 0

    def on_outcome(self, entry: Entry, record: Outcome) -> None:
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        self.note_outcome(record.call, record)

    def note_outcome(self, call: Call, record: Outcome) -> None:
        """Note the end of a step, after which a stop, if there was one, is over or not."""
        at = record.at
        if record.status == "completed" and not (call.scope or call.is_wait) and at > call.at:
            self.taken += at - call.at
        if record.spent:
            self._note_spent(record)
        if not self.forked or at > self.born:  # its own; this is asked for every step
            self.executed += 1
            self.stuck = 0
        if at > self.at:  # noqa: PLR1730 -- max() takes ten times as long
            self.at = at

    def _note_spent(self, record: Outcome) -> None:
        number, spent = str(record.call.number), record.spent
        if record.status == "completed":
            for unit in ("usd", "tokens"):
                if spent.get(unit):
                    self.paid[unit] = self.paid.get(unit, 0) + spent[unit]
            self.children.pop(number, None)
        elif number in self.children:
            child, said = self.children[number]
            self.children[number] = [child, plus(Sums(*said), spent)]

    def on_intent(self, entry: Entry, record: Intent) -> None:
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        self.note_intent(record.call)

    def note_intent(self, call: Call) -> None:
        """Note a call that is announced, after which a stop, if there was one, is over or not."""
        if call.child:
            self.children.setdefault(str(call.number), [call.child, NO_SUMS])
        else:
            self.effects[call.name] = self.effects.get(call.name, 0) + 1
        self.at = max(self.at, call.at)

    def on_started(self, entry: Entry, record: Started) -> None:
        self._note_command(entry, record)
        self.started, self.forked, self.born = entry.number, bool(record.forked_from), record.at
        self.open, self.code = not self.forked, record.code
        self.at = max(self.at, record.at)

    def on_resumed(self, entry: Entry, record: Resumed) -> None:
        self._note_command(entry, record)
        self.stops = []
        if self._is_own(record.at):
            if not self.asleep:
                self.lost += max(0.0, record.at - max(self.at, self.born))
            self.asleep = False
            self.resumed += 1
            self.resumes = [*self.resumes, [entry.number, record.at, record.how]][-_RESUMES:]
            self.saved, self.kept = self.taken, dict(self.paid)
            self.resumed_from, self.executed, self.skipped = record.step, 0, 0
            self.deaths, self.stuck = self.deaths + self.open, self.stuck + self.open
            if record.code != self.code:
                self.deaths = self.stuck = 0
            self.open, self.code = True, record.code
        self.at = max(self.at, record.at)

    def on_stopped(self, entry: Entry, record: Stopped) -> None:
        self.stopped = max(self.stopped, record.at)
        self.stops = [*self.stops, entry.number]
        self.at = max(self.at, record.at)

    def on_ruled(self, entry: Entry, record: Ruled) -> None:
        self.stops = [*self.stops, entry.number]
        self.on_settled(entry, record)

    def on_ended(self, entry: Entry, record: Ended) -> None:
        if self._is_own(record.at):
            self.resumed_from, self.executed = record.resumed_from, record.executed
            self.skipped = record.skipped
        self._in_good_order(record.at)

    def on_suspended(self, entry: Entry, record: Suspended) -> None:
        self._in_good_order(record.at)
        self.asleep = True

    def _in_good_order(self, at: float) -> None:
        self.open, self.deaths, self.stuck = False, 0, 0
        self.at = max(self.at, at)

    def on_interrupted(self, entry: Entry, record: Interrupted) -> None:
        """Leave ``at`` as it is: the calls in flight count as lost from the record before."""
        self.open = False

    def on_settled(self, entry: Entry, record: Any) -> None:
        """A person did something about the run: it is worth another try."""
        self.deaths = self.stuck = 0
        self.open = False
        self.at = max(self.at, record.at)

    on_forgotten = on_compensated = on_quarantined = on_cancelling = on_settled

    def on_other(self, entry: Entry, record: Any) -> None:
        self.at = max(self.at, record.at)

    def _note_command(self, entry: Entry, record: Started | Resumed) -> None:
        if record.command:
            self.command = entry.number

    def _is_own(self, at: float) -> bool:
        """Return whether a record from that time is the run's own, not shared by a fork."""
        return not self.forked or at > self.born
