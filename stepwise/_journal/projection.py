"""The meaning of a journal's records: the state of its calls and of the run.

Each kind of record has its meaning here and nowhere else: whoever wants to know what became of a
call or a run asks one of these projections, which take the records one by one, in their order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from stepwise._journal.records import (
    ANNOUNCES,
    KINDS,
    Call,
    Compensated,
    Compensating,
    Ended,
    Entry,
    Forgotten,
    Handled,
    Intent,
    Interrupted,
    Outcome,
    Quarantined,
    Restored,
    Resumed,
    Ruled,
    RunFacts,
    Settled,
    Started,
    Stopped,
)

__all__ = [
    "CallKey",
    "Calls",
    "Course",
    "Flags",
    "Places",
    "Projection",
    "RecordedCall",
    "Ruling",
    "Status",
    "Stop",
    "announcements",
    "derive_facts",
    "effects_seen",
    "end_of_step",
    "facts_at_start",
    "given_up",
    "handled_in",
    "last_end",
    "made_again",
    "start_of",
    "stops_in",
]

_RESUMES = 20  # resumes that are listed
_EMPTY = bytes(8 * 1024)  # places for so many calls more

Flags = tuple[bool, bool, bool]
"""The flags of a call that a checkpoint stores: handled, retry and spent; see `RecordedCall`."""
CallKey = tuple[str, str, int]
"""The key of a stopped call: name, branch and ordinal."""
Ruling = tuple[int, Ruled]
"""A person's answer about a stopped call, with the number of its record."""


class Projection:
    """Takes records: the method ``on_KIND`` takes the records of that kind."""

    _takers: ClassVar[Mapping[type, Callable[[Any, Entry, Any], None]]] = {}

    def __init_subclass__(cls) -> None:
        cls._takers = {
            kind: getattr(cls, f"on_{name}", cls.on_other) for name, kind in KINDS.items()
        }

    def take(self, entry: Entry) -> None:
        """Take the next record."""
        record = entry.record
        self._takers[type(record)](self, entry, record)

    def on_other(self, entry: Entry, record: Any) -> None:
        """Take a record of a kind that has no method of its own."""


# -- calls ---------------------------------------------------------------------------------------


class Status(enum.Enum):
    OPEN = "started, and nothing else is known"
    COMPLETED = "returned a value"
    FAILED = "raised"
    CANCELLED = "was cancelled"
    FREE = "did not happen, as a person settled"


@dataclass(eq=False, repr=False, slots=True)
class RecordedCall:
    """A recorded call, and what became of it.

    Args:
        entry: the last record of it.
        origin: the last record of it that has its arguments; mostly the same.
        handled: the workflow went on after its failure, which is its outcome.
        retry: it failed, and the run with it; it is tried again.
        undoing: its compensation was started, and nothing else is known.
        spent: it was made by a clean-up that is over; it answers only the same clean-up.
    """

    call: Call
    status: Status
    entry: Entry
    origin: Entry
    handled: bool = False
    retry: bool = False
    undoing: bool = False
    spent: bool = False

    @property
    def flags(self) -> Flags:
        """The flags that a checkpoint keeps of the call."""
        return self.handled, self.retry, self.spent

    @flags.setter
    def flags(self, flags: Flags) -> None:
        self.handled, self.retry, self.spent = flags

    @property
    def outcome(self) -> Outcome | None:
        """Return how the call ended, unless it is open or was settled since."""
        return self.entry.outcome

    @property
    def answers(self) -> bool:
        """True if the recorded outcome answers a call."""
        if self.undoing:
            return False
        if self.status in (Status.FAILED, Status.CANCELLED):
            return self.handled and not self.retry
        return self.status is Status.COMPLETED

    @property
    def cancelled(self) -> bool:
        """True if the call ended by cancellation."""
        return self.status is Status.CANCELLED

    @property
    def happened(self) -> bool | None:
        """Whether what the call does was done; ``None`` if that is not known."""
        outcome = self.outcome
        if self.status in (Status.COMPLETED, Status.FREE):
            return self.status is Status.COMPLETED
        return False if outcome is not None and outcome.clean else None

    @property
    def in_doubt(self) -> bool:
        """True if it is unknown whether the side effect happened."""
        if not self.call.effect or self.call.child or self.answers:
            return False
        return self.undoing or self.happened is None

    @property
    def over(self) -> bool:
        """True if the record may stay unmatched: a clean-up made it, and its result is known.

        Where the same failure is cleaned up after again, it still answers.
        """
        return self.spent and not self.in_doubt

    @property
    def settled(self) -> bool:
        """True if a person confirmed that the call happened, and gave its value."""
        return self.entry.landed

    @property
    def may_have_happened(self) -> bool:
        """True if the side effect happened or may have happened."""
        return self.call.effect and self.happened is not False


class Calls(Projection):
    """The state of each call.

    Args:
        flags: what a checkpoint knew of the calls, by the numbers of their records.

    Attributes:
        known: the calls that count, by number.
        rulings: what people said of stopped calls; the last word counts.
        changing: the outcomes of calls that changed what tells them from others.
        undone: something was undone since the last attempt began.
    """

    def __init__(
        self, entries: Iterable[Entry] = (), flags: Mapping[int, Flags] | None = None
    ) -> None:
        self.known: dict[int, RecordedCall] = {}
        self.rulings: dict[CallKey, Ruling] = {}
        self.changing: list[Outcome] = []
        self.undone = False
        self._before_end: list[tuple[RecordedCall, Flags]] = []
        for entry in entries:
            self.take(entry)
            if flags and entry.number in flags and entry.step in self.known:
                self.known[entry.step].flags = flags[entry.number]

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.known.values())

    @property
    def in_doubt(self) -> list[RecordedCall]:
        """The calls whose side effect may or may not have happened."""
        return [each for each in self if each.in_doubt]

    def on_intent(self, entry: Entry, record: Intent) -> None:
        self._add(record.call, Status.OPEN, entry)

    def on_outcome(self, entry: Entry, record: Outcome) -> None:
        self._add(record.call, _STATUS[record.status], entry)
        if record.state:
            self.changing.append(record)

    def _add(self, call: Call, status: Status, entry: Entry) -> None:
        # A call made while handling a failure shows that the workflow acted on that failure.
        if call.unwinding and call.unwinding in self.known:
            self.known[call.unwinding].handled = True
        self.known[call.number] = RecordedCall(call, status, entry, entry)

    def on_handled(self, entry: Entry, record: Handled) -> None:
        for call in self._those(record.numbers):
            call.handled = True

    def on_settled(self, entry: Entry, record: Settled) -> None:
        before = self.known.get(record.number)
        if before is None:
            return
        if not before.undoing:
            status = Status.COMPLETED if record.landed else Status.FREE
            self.known[record.number] = RecordedCall(
                before.call, status, entry, before.origin, spent=before.spent
            )
        elif record.landed:  # it was undone
            self._undone(record.number)
        else:
            before.undoing = False

    def on_forgotten(self, entry: Entry, record: Forgotten) -> None:
        self._take_back(record.numbers)
        for number in record.numbers:
            self.known.pop(number, None)

    def on_compensating(self, entry: Entry, record: Compensating) -> None:
        for call in self._those((record.number,)):
            call.undoing = True

    def on_compensated(self, entry: Entry, record: Compensated) -> None:
        self._undone(record.number)

    def _undone(self, number: int) -> None:
        self._take_back((number,))
        self.known.pop(number, None)
        self.undone = True

    def on_ruled(self, entry: Entry, record: Ruled) -> None:
        if record.same:  # a recorded call is one act only
            self._take_back(record.steps)
        self.rulings[_key(record.call)] = entry.number, record

    def _take_back(self, steps: Iterable[int]) -> None:
        """Drop the rulings that identify a call with one of these steps."""
        for key, (_, ruled) in list(self.rulings.items()):
            if ruled.same and not set(ruled.steps).isdisjoint(steps):
                del self.rulings[key]

    def on_ended(self, entry: Entry, record: Ended) -> None:
        failed = self._those((*record.retry, *record.spent))
        self._before_end = [(call, call.flags) for call in failed]
        for call in self._those(record.retry):
            call.retry = True
        for call in self._those(record.spent):
            call.spent = True

    def on_resumed(self, entry: Entry, record: Resumed) -> None:
        for call, flags in self._before_end if record.void else ():
            call.flags = flags
        self._before_end = []
        self.undone = False

    def _those(self, numbers: Iterable[int]) -> list[RecordedCall]:
        return [self.known[number] for number in numbers if number in self.known]


_STATUS = {each.name.lower(): each for each in Status}


class Places(Projection):
    """Where the records of each call are, however many calls there are.

    Attributes:
        first, last: the numbers of its first record and of its last one, by the call's number; 0
            for a call that does not count.
        undone: the numbers of the calls that were undone.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        from array import array  # on use: only looking at a run needs it

        self.first, self.last = array("Q"), array("Q")
        self.undone: set[int] = set()
        self._undoing: set[int] = set()
        for entry in entries:
            self.take(entry)

    def on_intent(self, entry: Entry, record: Intent | Outcome) -> None:
        number = record.call.number
        while number >= len(self.first):
            self.first.frombytes(_EMPTY)
            self.last.frombytes(_EMPTY)
        self.first[number] = self.first[number] or entry.number
        self.last[number] = entry.number

    on_outcome = on_intent

    def on_settled(self, entry: Entry, record: Settled) -> None:
        if record.number in self._undoing:
            self._undoing.discard(record.number)
            self.undone.update({record.number} if record.landed else ())
        elif record.number < len(self.last):
            self.last[record.number] = entry.number

    def on_compensating(self, entry: Entry, record: Compensating) -> None:
        self._undoing.add(record.number)

    def on_compensated(self, entry: Entry, record: Compensated) -> None:
        self._undoing.discard(record.number)
        self.undone.add(record.number)

    def on_forgotten(self, entry: Entry, record: Forgotten) -> None:
        for number in record.numbers:
            if number < len(self.first):
                self.first[number] = 0


def announcements(entries: Iterable[Entry]) -> dict[int, Entry]:
    """The last announcement of each side effect, which holds the arguments that it was given."""
    return {each.step: each for each in entries if isinstance(each.record, Intent)}


def given_up(entries: Iterable[Entry]) -> set[int]:
    """The numbers of the records that cannot be read, which is known."""
    found = (each.record for each in entries if isinstance(each.record, Quarantined))
    return {number for record in found for number in record.numbers}


def effects_seen(entries: Iterable[Entry]) -> int:
    """How many announcements of side effects these records hold, or tell of.

    One that is gone is told of by the call's outcome, or was given up.
    """
    announced, ended, others = set[int](), set[int](), 0
    for entry in entries:
        record = entry.record
        others += isinstance(record, ANNOUNCES)
        if isinstance(record, Intent):
            announced.add(record.call.number)
        elif isinstance(record, Outcome) and record.call.effect:
            ended.add(record.call.number)
        elif isinstance(record, Quarantined):
            others += record.effects
    return others + len(ended - announced)


# -- calls to make again -------------------------------------------------------------------------


def made_again(entries: Iterable[Entry]) -> set[int]:
    """The numbers of the calls that have to be made again, as these records say."""
    before: set[int] = set()
    tried_again: set[int] = set()  # named by the last attempt that ended
    gone: set[int] = set()  # for good: made again, a call gets another number
    for entry in entries:
        record = entry.record
        if isinstance(record, Ended):
            before, tried_again = tried_again, set(record.retry)
        elif isinstance(record, Resumed) and record.void:
            tried_again = before
        elif isinstance(record, Outcome):
            tried_again.discard(record.call.number)
        elif isinstance(record, Forgotten):
            gone.update(record.numbers)
        elif isinstance(record, (Compensating, Compensated)):
            gone.add(record.number)
    return tried_again | gone


def handled_in(entries: Iterable[Entry]) -> set[int]:
    """The numbers of the calls whose failures the workflow acted on, as these records say."""
    found: set[int] = set()
    for entry in entries:
        if isinstance(entry.record, Handled):
            found.update(entry.record.numbers)
        elif entry.call is not None and entry.call.unwinding:
            found.add(entry.call.unwinding)
    return found


def end_of_step(entries: Iterable[Entry], number: int) -> int:
    """The number of the last record that belongs to the call which that record ends."""
    for entry in entries:
        if entry.number == number + 1 and isinstance(entry.record, (Handled, Resumed)):
            number = entry.number
    return number


def last_end(entries: Sequence[Entry]) -> Entry | None:
    """The record of the last attempt's end, if it is among these."""
    for entry in reversed(entries):
        if isinstance(entry.record, (Ended, Resumed)):
            return entry if isinstance(entry.record, Ended) else None
    return None


def start_of(entries: Iterable[Entry]) -> tuple[Started, bytes] | None:
    """The record of the run's beginning, if it is among these, and its payload."""
    for entry in entries:
        if isinstance(entry.record, Started):
            return entry.record, entry.payload
    return None


# -- calls at which the run stopped --------------------------------------------------------------


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
            found.pop(_key(record.call), None)
            found[_key(record.call)] = Stop(entry.number, *record)
        elif isinstance(record, Ruled):
            if _key(record.call) in found:
                found[_key(record.call)] = found[_key(record.call)]._replace(ruled=record)
        elif found and _is_over(max(each.at for each in found.values()), entry):
            found.clear()
    return list(found.values())


def _is_over(at: float, entry: Entry) -> bool:
    """Return whether a record shows that the run continued after it had stopped at that time."""
    if entry.call is not None:  # one in flight at the stop began before it
        return entry.call.at > at
    return isinstance(entry.record, Resumed)


def _key(call: Call) -> CallKey:
    return call.name, call.branch, call.ordinal


# -- the run -------------------------------------------------------------------------------------


@dataclass
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
    """

    born: float = 0.0
    forked: bool = False
    started: int = 0
    command: int = 0
    resumes: list[list[Any]] = field(default_factory=list)
    resumed: int = 0
    at: float = 0.0
    taken: float = 0.0
    saved: float = 0.0
    lost: float = 0.0
    resumed_from: int | None = None
    executed: int = 0
    skipped: int = 0
    effects: dict[str, int] = field(default_factory=dict)
    stops: list[int] = field(default_factory=list)
    stopped: float = 0.0

    @property
    def begun(self) -> int:
        """The number of the record that began the last attempt; 0 for the first one."""
        return self.resumes[-1][0] if self.resumes else 0

    def on_outcome(self, entry: Entry, record: Outcome) -> None:
        at, call = record.at, record.call
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        if record.status == "completed" and not call.scope:
            self.taken += max(0.0, at - call.at)
        if not self.forked or at > self.born:  # its own; this is asked for every step
            self.executed += 1
        self.at = max(self.at, at)

    def on_intent(self, entry: Entry, record: Intent) -> None:
        call = record.call
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        if not call.child:
            self.effects[call.name] = self.effects.get(call.name, 0) + 1
        self.at = max(self.at, call.at)

    def on_started(self, entry: Entry, record: Started) -> None:
        self._note_command(entry, record)
        self.started, self.forked, self.born = entry.number, bool(record.forked_from), record.at
        self.at = max(self.at, record.at)

    def on_resumed(self, entry: Entry, record: Resumed) -> None:
        self._note_command(entry, record)
        self.stops = []
        if self._is_own(record.at):
            self.lost += max(0.0, record.at - max(self.at, self.born))
            self.resumed += 1
            self.resumes = [*self.resumes, [entry.number, record.at, record.how]][-_RESUMES:]
            self.saved = self.taken
            self.resumed_from, self.executed, self.skipped = record.step, 0, 0
        self.at = max(self.at, record.at)

    def on_stopped(self, entry: Entry, record: Stopped) -> None:
        self.stopped = max(self.stopped, record.at)
        self.on_ruled(entry, record)

    def on_ruled(self, entry: Entry, record: Stopped | Ruled) -> None:
        self.stops = [*self.stops, entry.number]
        self.at = max(self.at, record.at)

    def on_ended(self, entry: Entry, record: Ended) -> None:
        if self._is_own(record.at):
            self.resumed_from, self.executed = record.resumed_from, record.executed
            self.skipped = record.skipped
        self.at = max(self.at, record.at)

    def on_interrupted(self, entry: Entry, record: Interrupted) -> None:
        """Leave ``at`` as it is: the calls in flight count as lost from the record before."""

    def on_other(self, entry: Entry, record: Any) -> None:
        self.at = max(self.at, record.at)

    def _note_command(self, entry: Entry, record: Started | Resumed) -> None:
        if record.command:
            self.command = entry.number

    def _is_own(self, at: float) -> bool:
        """Return whether a record from that time is the run's own, not shared by a fork."""
        return not self.forked or at > self.born


def facts_at_start(run_id: str, started: Started) -> RunFacts:
    """The facts of a run that begins."""
    return RunFacts(
        run_id=run_id,
        workflow=started.workflow,
        label=started.workflow.rpartition(":")[2],
        status="running",
        arguments=started.arguments,
        digest=started.digest,
        code=started.code,
        parent=started.parent,
        forked_from=started.forked_from,
        secrets=started.secrets,
        hidden=started.hidden,
        created_at=started.at,
        updated_at=started.at,
        parts=started.parts,
        tags=started.tags,
        trace=started.trace,
    )


def derive_facts(run_id: str, entries: Iterable[Entry]) -> RunFacts | None:
    """Derive a run's facts from its records; return ``None`` if they do not show how it began."""
    facts: RunFacts | None = None
    for entry in entries:
        record = entry.record
        if isinstance(record, Started):
            facts = facts_at_start(run_id, record)
        elif facts is not None:
            facts = _after(facts, entry)
    return facts


def _after(facts: RunFacts, entry: Entry) -> RunFacts:
    record = entry.record
    if isinstance(record, Ended):
        return facts._replace(status=record.status, end=entry.number, updated_at=record.at)
    if isinstance(record, Interrupted):
        return facts._replace(status="interrupted", error=record.why, updated_at=record.at)
    if isinstance(record, Compensating):
        undone = facts.undone + (not facts.undoing)
        return facts._replace(
            status="failed", end=0, undoing=True, undone=undone, updated_at=record.at
        )
    if isinstance(record, Resumed):
        trace = record.trace or facts.trace
        return facts._replace(
            status="running", end=0, undoing=False, updated_at=record.at, trace=trace
        )
    if isinstance(record, (Forgotten, Quarantined)):
        return facts.reopened(record.at)
    return facts._replace(restored=True) if isinstance(record, Restored) else facts
