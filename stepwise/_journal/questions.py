"""The questions of a run: the calls that wait, or waited, for a person's yes."""

from __future__ import annotations

from collections.abc import Iterable

from stepwise._journal.projection import Projection
from stepwise._journal.records import (
    Answered,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    RunFacts,
    Settled,
    Waiting,
)
from stepwise._runtime.facts import NamedTuple

__all__ = ["Asked", "Questions", "open_questions"]

_OVER = ("completed", "failed", "cancelled")


class Asked(NamedTuple):
    """A question that a call asked last.

    Args:
        waiting: its record; ``payload`` holds the arguments of the call.
        answer: to this question; ``None`` while there is none.
    """

    waiting: Waiting
    payload: bytes
    answer: Answered | None = None


class Questions(Projection):
    """The questions of a run.

    Attributes:
        asked: the last question of each call, by the call's number.
        open: the numbers of the calls that wait for an answer.
        instead: of an open question whose call is made with other arguments now: the number of the
            call that asks instead.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.asked: dict[int, Asked] = {}
        self.open: set[int] = set()
        self.instead: dict[int, int] = {}
        for entry in entries:
            self.take(entry)

    def on_waiting(self, entry: Entry, record: Waiting) -> None:
        number, before = record.call.number, record.call.instead
        if before in self.open:
            self.instead[before] = number
        if record.kind != "approval":
            return
        self.instead.pop(number, None)
        self.open.discard(number)
        if record.ticket:  # a fork knows the questions of its source, and asks its own
            self.asked[number] = Asked(record, entry.payload)
            self.open.add(number)

    def on_answered(self, entry: Entry, record: Answered) -> None:
        asked = self.asked.get(record.number)
        if asked is not None and asked.waiting.ticket == record.ticket:
            self.asked[record.number] = asked._replace(answer=record)
            self.open.discard(record.number)

    def on_intent(self, entry: Entry, record: Intent | Outcome) -> None:
        if record.call.instead in self.open:
            self.instead[record.call.instead] = record.call.number
        self.open.discard(record.call.number)

    on_outcome = on_intent

    def on_settled(self, entry: Entry, record: Settled) -> None:
        self.open.discard(record.number)

    def on_forgotten(self, entry: Entry, record: Forgotten) -> None:
        self.open.difference_update(record.numbers)

    def of(self, number: int) -> Asked | None:
        """Return the last question of a call."""
        return self.asked.get(number)


def open_questions(entries: Iterable[Entry], facts: RunFacts) -> list[Asked]:
    """Return the questions that a run waits with, in the order of their calls."""
    if facts.status in _OVER:
        return []
    known = Questions(entries)
    if facts.status == "suspended":
        waits = {each.number for each in facts.waits if each.kind == "approval"}
        return [known.asked[number] for number in sorted(waits & known.open)]
    return [known.asked[number] for number in sorted(known.open - known.instead.keys())]
