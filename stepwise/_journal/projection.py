"""The meaning of a journal's records: the state of its calls and of the run.

Each kind of record has its meaning here and nowhere else.  All other code gets the state of a call
or a run from one of these projections, which take the records one by one, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from stepwise._journal import records

_OF_ATTEMPTS = (
    records.Ended,
    records.Resumed,
    records.Interrupted,
    records.Suspended,
    records.Cancelling,
    records.Refused,
    records.Stopped,
    records.Compensating,
    records.Compensated,
    records.Restored,
)
_EMPTY = bytes(8 * 1024)  # 8 bytes for each of 1024 further calls

Flags = tuple[bool, bool, bool]
"""The flags of a call that a checkpoint stores: handled, retry and spent; see `RecordedCall`."""
CallKey = tuple[str, str, int]
"""The key of a stopped call: name, branch and ordinal."""


def call_key(call: records.Call) -> CallKey:
    """Return the key of a call."""
    return call.name, call.branch, call.ordinal


Ruling = tuple[int, records.Ruled]
"""A person's answer about a stopped call, with the number of its record."""


class Projection:
    """A consumer of records: its method ``on_KIND`` takes the records of that kind."""

    _takers: ClassVar[Mapping[type, Callable[[Any, records.Entry, Any], None]]] = {}

    def __init_subclass__(cls) -> None:
        cls._takers = {
            kind: getattr(cls, f"on_{name}", cls.on_other) for name, kind in records.KINDS.items()
        }

    def take(self, entry: records.Entry) -> None:
        """Take the next record."""
        record = entry.record
        self._takers[type(record)](self, entry, record)

    def on_other(self, entry: records.Entry, record: Any) -> None:
        """Take a record of a kind without a method."""


# -- calls ---------------------------------------------------------------------------------------


Status = Literal["open", "completed", "failed", "cancelled", "free", "waiting"]
"""The state of a call.

    open       started; its end is unknown
    completed  returned a value
    failed     raised
    cancelled  was cancelled
    free       did not happen, as a person confirmed
    waiting    waits for a time, a signal or a person; nothing has happened yet
"""


class RecordedCall:
    """A recorded call and its state.

    Args:
        entry: the last record of the call.
        origin: the last record of the call that has its arguments; usually the same record.
        handled: True if the workflow continued after the call's failure, so the failure answers.
        retry: True if the call failed, and the run with it, so the call is retried.
        undoing: True if its compensation was started, and the end of that is unknown.
        spent: True if a finished clean-up made the call, which answers only the same clean-up.
    """

    __slots__ = ("call", "entry", "handled", "origin", "retry", "spent", "status", "undoing")

    def __init__(
        self,
        call: records.Call,
        status: Status,
        entry: records.Entry,
        origin: records.Entry,
        *,
        spent: bool = False,
    ) -> None:
        self.call, self.status, self.entry, self.origin = call, status, entry, origin
        self.handled = self.retry = self.undoing = False
        self.spent = spent

    @property
    def flags(self) -> Flags:
        """The flags that a checkpoint keeps of the call."""
        return self.handled, self.retry, self.spent

    @flags.setter
    def flags(self, flags: Flags) -> None:
        self.handled, self.retry, self.spent = flags

    @property
    def outcome(self) -> records.Outcome | None:
        """The outcome of the call; ``None`` if the call is open or was settled since."""
        return self.entry.outcome

    @property
    def answers(self) -> bool:
        """True if the recorded outcome answers a call."""
        if self.undoing:
            return False
        if self.status in ("failed", "cancelled"):
            return self.handled and not self.retry
        return self.status == "completed"

    @property
    def cancelled(self) -> bool:
        """True if the call ended by cancellation."""
        return self.status == "cancelled"

    @property
    def happened(self) -> bool | None:
        """True if the effect of the call happened, False if not; ``None`` if unknown."""
        outcome = self.outcome
        if self.status in ("completed", "free", "waiting"):
            return self.status == "completed"
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

        If the clean-up runs again after the same failure, the record still answers.
        """
        return self.spent and not self.in_doubt

    @property
    def wait(self) -> records.Waiting | None:
        """The wait of the call, while the call still waits; otherwise ``None``."""
        record = self.origin.record
        if self.status == "waiting" and isinstance(record, records.Waiting):
            return record
        return None

    @property
    def answer(self) -> records.Answered | None:
        """A person's answer to the question that the call waits for, or ``None``."""
        record, wait = self.entry.record, self.wait
        if (
            wait is not None
            and isinstance(record, records.Answered)
            and record.ticket == wait.ticket
        ):
            return record
        return None

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
        flags: the flags of calls that a checkpoint stored, by the numbers of their records.

    Attributes:
        known: the calls that count, by number.
        rulings: people's rulings on stopped calls; the last ruling on a call counts.
        changing: the outcomes of calls that changed parts of their own identity.
        superseded: the numbers of a failed attempt's calls that answer no call.
        undone: True if something was undone since the last attempt began.
    """

    def __init__(
        self, entries: Iterable[records.Entry] = (), flags: Mapping[int, Flags] | None = None
    ) -> None:
        self.known: dict[int, RecordedCall] = {}
        self.rulings: dict[CallKey, Ruling] = {}
        self.changing: list[records.Outcome] = []
        self.superseded: set[int] = set()
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

    def on_intent(self, entry: records.Entry, record: records.Intent) -> None:
        self._add(record.call, "open", entry)

    def on_waiting(self, entry: records.Entry, record: records.Waiting) -> None:
        self._add(record.call, "waiting", entry)

    def on_answered(self, entry: records.Entry, record: records.Answered) -> None:
        call = self.known.get(record.number)
        if call is not None and call.status == "waiting":
            call.entry = entry

    def on_outcome(self, entry: records.Entry, record: records.Outcome) -> None:
        self._add(record.call, record.status, entry)
        if record.state:
            self.changing.append(record)

    def _add(self, call: records.Call, status: Status, entry: records.Entry) -> None:
        # A call made while handling a failure shows that the workflow acted on that failure.
        if call.unwinding and call.unwinding in self.known:
            self.known[call.unwinding].handled = True
        self.known[call.number] = RecordedCall(call, status, entry, entry)

    def on_attemptfailed(self, entry: records.Entry, record: records.AttemptFailed) -> None:
        self.superseded.update(record.superseded)  # some of these calls may end later
        for call in self._those(record.retry):
            call.retry = True
        for call in self._those(record.spent):
            call.spent = True

    def on_handled(self, entry: records.Entry, record: records.Handled) -> None:
        for call in self._those(record.numbers):
            call.handled = True

    def on_settled(self, entry: records.Entry, record: records.Settled) -> None:
        before = self.known.get(record.number)
        if before is None:
            return
        if not before.undoing:
            status: Status = "completed" if record.landed else "free"
            self.known[record.number] = RecordedCall(
                before.call, status, entry, before.origin, spent=before.spent
            )
        elif record.landed:  # a person confirmed the undoing
            self._undone(record.number)
        else:
            before.undoing = False

    def on_forgotten(self, entry: records.Entry, record: records.Forgotten) -> None:
        self._take_back(record.numbers)
        for number in record.numbers:
            self.known.pop(number, None)

    def on_compensating(self, entry: records.Entry, record: records.Compensating) -> None:
        for call in self._those((record.number,)):
            call.undoing = True

    def on_compensated(self, entry: records.Entry, record: records.Compensated) -> None:
        self._undone(record.number)

    def _undone(self, number: int) -> None:
        self._take_back((number,))
        self.known.pop(number, None)
        self.undone = True

    def on_ruled(self, entry: records.Entry, record: records.Ruled) -> None:
        if record.same:  # a recorded call is one act only
            self._take_back(record.steps)
        self.rulings[call_key(record.call)] = entry.number, record

    def _take_back(self, steps: Iterable[int]) -> None:
        """Drop the rulings that say that a call is one of these steps."""
        for key, (_, ruled) in list(self.rulings.items()):
            if ruled.same and not set(ruled.steps).isdisjoint(steps):
                del self.rulings[key]

    def on_ended(self, entry: records.Entry, record: records.Ended) -> None:
        failed = self._those((*record.retry, *record.spent))
        self._before_end = [(call, call.flags) for call in failed]
        for call in self._those(record.retry):
            call.retry = True
        for call in self._those(record.spent):
            call.spent = True

    def on_resumed(self, entry: records.Entry, record: records.Resumed) -> None:
        for call, flags in self._before_end if record.void else ():
            call.flags = flags
        self._before_end = []
        self.undone = False

    def _those(self, numbers: Iterable[int]) -> list[RecordedCall]:
        return [self.known[number] for number in numbers if number in self.known]


def to_run_again(numbers: Iterable[int], known: Iterable[RecordedCall]) -> tuple[int, ...]:
    """Return the numbers of the calls to forget so that some calls run again.

    The steps around a call are forgotten, too.  A side effect around a call keeps its result, so
    that call is left out.
    """
    around: dict[int, list[records.Call]] = {}
    for each in known:
        for number in each.outcome.inner if each.outcome is not None else ():
            around.setdefault(number, []).append(each.call)
    found: set[int] = set()
    for number in numbers:
        outer = around.get(number, ())
        if not any(call.effect for call in outer):
            found |= {number, *(call.number for call in outer)}
    return (*sorted(found),)


class Places(Projection):
    """The places of each call's records, in little memory for any number of calls.

    Attributes:
        first, last: the numbers of the call's first and last record, by the call's number; 0 in
            ``first`` for a call that does not count.
        before: for each call that was made again, the numbers of the records of the earlier times:
            its outcome, or its announcement if no outcome followed.
        answered: when the run took the last answer to a question of each call.
        undone: who had each undone call undone, by its number; empty if the run did.
    """

    def __init__(self, entries: Iterable[records.Entry] = ()) -> None:
        from array import array  # on use: only inspecting a run needs it

        self.first, self.last = array("Q"), array("Q")
        self.before: dict[int, list[int]] = {}
        self.answered: dict[int, float] = {}
        self.undone: dict[int, str] = {}
        self._undoing: set[int] = set()
        self._announced: dict[int, int] = {}  # the records of calls without an outcome
        self._failed: dict[int, int] = {}  # the records of outcomes that may not be the last
        for entry in entries:
            self.take(entry)

    def on_intent(self, entry: records.Entry, record: records.Intent) -> None:
        number = record.call.number
        for known in (self._announced, self._failed):
            if number in known:
                self.before.setdefault(number, []).append(known.pop(number))
        self._announced[number] = entry.number
        self.on_waiting(entry, record)

    def on_outcome(self, entry: records.Entry, record: records.Outcome) -> None:
        number = record.call.number
        self._announced.pop(number, None)
        if number in self._failed:
            self.before.setdefault(number, []).append(self._failed.pop(number))
        if record.status != "completed":
            self._failed[number] = entry.number
        self.on_waiting(entry, record)

    def on_waiting(
        self, entry: records.Entry, record: records.Intent | records.Waiting | records.Outcome
    ) -> None:
        number = record.call.number
        while number >= len(self.first):
            self.first.frombytes(_EMPTY)
            self.last.frombytes(_EMPTY)
        self.first[number] = self.first[number] or entry.number
        self.last[number] = entry.number

    def on_answered(self, entry: records.Entry, record: records.Answered) -> None:
        self.answered[record.number] = record.at
        if record.number < len(self.last):
            self.last[record.number] = entry.number

    def on_settled(self, entry: records.Entry, record: records.Settled) -> None:
        if record.number in self._undoing:
            self._undoing.discard(record.number)
            if record.landed:
                self.undone[record.number] = record.by
        elif record.number < len(self.last):
            self.last[record.number] = entry.number

    def on_compensating(self, entry: records.Entry, record: records.Compensating) -> None:
        self._undoing.add(record.number)

    def on_compensated(self, entry: records.Entry, record: records.Compensated) -> None:
        self._undoing.discard(record.number)
        self.undone[record.number] = record.by

    def on_forgotten(self, entry: records.Entry, record: records.Forgotten) -> None:
        for number in record.numbers:
            for known in (self.before, self.answered, self._announced, self._failed):
                known.pop(number, None)
            if number < len(self.first):
                self.first[number] = 0


def announcements(entries: Iterable[records.Entry]) -> dict[int, records.Entry]:
    """Return the last announcement of each side effect, which holds the call's arguments."""
    return {each.step: each for each in entries if isinstance(each.record, records.Intent)}


def given_up(entries: Iterable[records.Entry]) -> set[int]:
    """Return the numbers of the records that are already known to be unreadable."""
    found = (each.record for each in entries if isinstance(each.record, records.Quarantined))
    return {number for record in found for number in record.numbers}


def met_messages(entries: Iterable[records.Entry]) -> dict[int, tuple[int, str]]:
    """Return how the run treated the messages of its inbox, by their numbers.

    Returns:
        for each message, the number of the call that took or refused it (0 for a cancellation), and
        the reason for a refusal; an empty text if the call took it.
    """
    found: dict[int, tuple[int, str]] = {}
    for entry in entries:
        record = entry.record
        if isinstance(record, records.Outcome) and record.message:
            found[record.message] = record.call.number, ""
        elif isinstance(record, records.Answered) and record.message:
            found[record.message] = record.number, ""
        elif isinstance(record, records.Refused):
            found[record.message] = record.number, record.why
        elif isinstance(record, records.Cancelling) and record.message:
            found[record.message] = 0, ""
    return found


def effects_seen(entries: Iterable[records.Entry]) -> int:
    """Return the number of announced side effects that these records hold or imply.

    A missing announcement is implied by the call's outcome, or by a record that gave it up.
    """
    announced, ended, others = set[int](), set[int](), 0
    for entry in entries:
        record = entry.record
        others += isinstance(record, records.ANNOUNCES)
        if isinstance(record, records.Intent):
            announced.add(record.call.number)
        elif isinstance(record, records.Outcome) and record.call.effect:
            ended.add(record.call.number)
        elif isinstance(record, records.Quarantined):
            others += record.effects
    return others + len(ended - announced)


# -- calls to make again -------------------------------------------------------------------------


def made_again(entries: Iterable[records.Entry]) -> set[int]:
    """Return the numbers of the calls that must be made again, according to these records."""
    before: set[int] = set()
    tried_again: set[int] = set()  # named by the last attempt that ended
    gone: set[int] = set()  # permanently: made again, a call gets another number
    for entry in entries:
        record = entry.record
        if isinstance(record, records.Ended):
            before, tried_again = tried_again, set(record.retry)
        elif isinstance(record, records.Resumed) and record.void:
            tried_again = before
        elif isinstance(record, records.Outcome):
            tried_again.discard(record.call.number)
        elif isinstance(record, records.Forgotten):
            gone.update(record.numbers)
        elif isinstance(record, (records.Compensating, records.Compensated)):
            gone.add(record.number)
    return tried_again | gone


def handled_in(entries: Iterable[records.Entry]) -> set[int]:
    """Return the numbers of the calls whose failures the workflow handled, by these records."""
    found: set[int] = set()
    for entry in entries:
        if isinstance(entry.record, records.Handled):
            found.update(entry.record.numbers)
        elif entry.call is not None and entry.call.unwinding:
            found.add(entry.call.unwinding)
    return found


def end_of_step(entries: Iterable[records.Entry], number: int) -> int:
    """Return the number of the last record that belongs to a call whose end has this number."""
    for entry in entries:
        if entry.number == number + 1 and isinstance(
            entry.record, (records.Handled, records.Resumed)
        ):
            number = entry.number
    return number


def without_gaps(entries: Iterable[records.Entry]) -> Iterator[records.Entry]:
    """Yield the records, and an empty record for each one that is lost between them."""
    number = 0
    for entry in entries:
        for missing in range(number + 1, entry.number) if number else ():
            yield records.Entry(missing, records.Handled(()), b"")
        number = entry.number
        yield entry


def as_made(entries: Iterable[records.Entry]) -> Iterator[records.Entry]:
    """Yield the records as if one attempt had made all calls, each with its last outcome.

    The ends of attempts, what stopped them, and the undoing of effects are left out.  An empty
    record takes their number, and that of a lost record.  The last record says that failures are
    outcomes.
    """
    calls, number, at = Calls(), 0, 0.0
    for entry in without_gaps(entries):
        record = entry.record
        number, at = entry.number, getattr(record, "at", at)
        made = entry
        if isinstance(record, records.AttemptFailed):
            made = entry._replace(record=record._replace(retry=()))
        elif isinstance(record, _OF_ATTEMPTS):
            made = records.Entry(number, records.Handled((), at), b"")
        calls.take(made)
        yield made
    failed = (each.call.number for each in calls if each.status in ("failed", "cancelled"))
    yield records.Entry(number + 1, records.Handled(tuple(failed), at), b"")


def last_end(entries: Sequence[records.Entry]) -> records.Entry | None:
    """Return the record of the last attempt's end, or ``None`` if these records lack it."""
    for entry in reversed(entries):
        if isinstance(entry.record, (records.Ended, records.Resumed)):
            return entry if isinstance(entry.record, records.Ended) else None
    return None


def is_only_submitted(entries: Sequence[records.Entry]) -> bool:
    """Return whether a run was recorded for another process, and nobody has executed it yet."""
    last = entries[-1].record if len(entries) == 2 else None
    if isinstance(last, records.Suspended):
        return any(records.RunWait(*each).kind == "start" for each in last.waits)
    return isinstance(last, records.Interrupted) and last.why == records.SUBMITTED


def start_of(entries: Iterable[records.Entry]) -> tuple[records.Started, bytes] | None:
    """Return the record of the run's beginning and its payload, if these records have it."""
    for entry in entries:
        if isinstance(entry.record, records.Started):
            return entry.record, entry.payload
    return None
