"""The steps of a run in their order, however many they are, without holding them all.

A call is found at two places of the journal: its first record and its last one.  One pass notes
both as numbers; another one makes the steps, since what becomes of a call may be recorded long
after the calls that follow it.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator

from stepwise._calls.history import StepRecord, step_record
from stepwise._journal.journal import Lost, Position, read, read_one
from stepwise._journal.records import (
    Call,
    Compensated,
    Compensating,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    Settled,
)
from stepwise._journal.seal import Seal
from stepwise.stores import Store

__all__ = ["StepStream"]

_NEAR = 256  # records that are kept, since tasks do not end in the order in which they begin
_LARGE = 10_000  # bytes; a larger record is read again when it is needed again
_EMPTY = array("Q", [0]) * 1024


class StepStream:
    """The places of each call's records in a journal.

    Args:
        start: the number of the last record that was pruned.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str, start: int) -> None:
        self._store, self._seal, self._run_id, self._start = store, seal, run_id, start
        self._first, self._last = array("Q"), array("Q")  # by the numbers of the calls
        self._undone: set[int] = set()
        self._undoing: set[int] = set()

    def add(self, entry: Entry) -> None:
        """Note a record; records come in order."""
        record = entry.record
        if isinstance(record, (Intent, Outcome)):
            number = record.call.number
            while number >= len(self._first):
                self._first.extend(_EMPTY)
                self._last.extend(_EMPTY)
            self._first[number] = self._first[number] or entry.number
            self._last[number] = entry.number
        elif isinstance(record, Settled) and record.number in self._undoing:
            self._undoing.discard(record.number)
            self._undone.update({record.number} if record.landed else ())
        elif isinstance(record, Settled):
            if record.number < len(self._last):
                self._last[record.number] = entry.number
        elif isinstance(record, Compensating):
            self._undoing.add(record.number)
        elif isinstance(record, Compensated):
            self._undoing.discard(record.number)
            self._undone.add(record.number)
        elif isinstance(record, Forgotten):
            for number in record.numbers:
                if number < len(self._first):
                    self._first[number] = 0

    def read(self) -> StepStream:
        """Note all records."""
        for entry, _ in read(self._store, self._seal, self._run_id, Position(self._start, None)):
            if not isinstance(entry, Lost):
                self.add(entry)
        return self

    def steps(self, doubtful: Container[int]) -> Iterator[StepRecord]:
        """Read the steps, in the order in which they were first called.

        Args:
            doubtful: the numbers of those that are in doubt.
        """
        entries = _Entries(self._store, self._seal, self._run_id, self._start)
        for number, first in enumerate(self._first):
            entry = entries.get(first) if first else None
            call, last = _call(entry), self._last[number]
            entry = entry if last == first else entries.get(last)
            if call is None or entry is None:
                continue
            derived = "in_doubt" if number in doubtful else None
            derived = "compensated" if number in self._undone else derived
            before = self._first[call.instead] if call.instead < len(self._first) else 0
            other = _call(entries.get(before)) if call.instead and before else None
            yield step_record(self._run_id, call, entry, derived, other)


def _call(entry: Entry | None) -> Call | None:
    record = entry.record if entry is not None else None
    return record.call if isinstance(record, (Intent, Outcome)) else None


class _Entries:
    """The records of a run by number, asked for mostly in their order."""

    def __init__(self, store: Store, seal: Seal, run_id: str, start: int) -> None:
        self._place = store, seal, run_id
        self._reading = read(*self._place, Position(start, None))
        self._at, self._far = start, 0
        self._recent: dict[int, Entry] = {}

    def get(self, number: int) -> Entry | None:
        """Return a record that verifies, or ``None``."""
        if number > self._at + _NEAR and 0 <= number - self._far <= _NEAR:  # so is the one before
            self._reading = read(*self._place, Position(number - 1, None))
            self._at = number - 1
        if number > self._at + _NEAR:
            self._far = number
        while self._at < number <= self._at + _NEAR:
            entry, position = next(self._reading, (None, Position(number)))
            self._at = position.last
            if not isinstance(entry, Entry):
                continue
            if entry.number == number and len(entry.payload) > _LARGE:
                return entry
            if len(entry.payload) <= _LARGE:
                self._recent[entry.number] = entry
            if len(self._recent) > _NEAR:
                del self._recent[next(iter(self._recent))]
        return self._recent.get(number) or read_one(*self._place, number)
