"""Calls at which a run stopped, and the person's answers: which recorded act they are.

A call is known again by its call site and its ordinal, since its arguments may be others at every
start.  Where several calls of one name were ruled on, the arguments tell which is which.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stepwise._identity.parts import parse
from stepwise._journal.counters import turn
from stepwise._journal.records import Call, Entry, Intent, Outcome, Resumed, Ruled, Stopped
from stepwise._matching.recorded_call import Recorded

__all__ = ["Rulings", "Stop", "agrees", "differing", "is_over", "made_since", "stops_in"]


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
    found: dict[tuple[str, str, int], Stop] = {}
    for entry in entries:
        record = entry.record
        if isinstance(record, Stopped):
            stop = Stop(entry.number, record.call, record.steps, record.records, record.at)
            found.pop(_key(record.call), None)
            found[_key(record.call)] = stop
        elif isinstance(record, Ruled):
            known = found.get(_key(record.call))
            if known is not None:
                found[_key(record.call)] = known._replace(ruled=record)
        elif found and is_over(max(each.at for each in found.values()), entry):
            found.clear()
    return list(found.values())


def is_over(at: float, entry: Entry) -> bool:
    """Return whether a record shows that the run continued after it had stopped at that time."""
    record = entry.record
    if isinstance(record, (Intent, Outcome)):  # a call in flight at the stop began before it
        return record.call.at > at
    return isinstance(record, Resumed)


class Rulings:
    """The rulings of people on stopped calls, for the calls of this attempt."""

    def __init__(self) -> None:
        self._ruled: dict[tuple[str, str, int], tuple[int, Ruled]] = {}

    @property
    def records(self) -> list[int]:
        """The numbers of the records that hold them."""
        return [number for number, _ in self._ruled.values()] if self._ruled else []

    def add(self, entry: Entry) -> None:
        """Follow a record; the last word counts, and a recorded call is one act only."""
        record = entry.record
        assert isinstance(record, Ruled)
        if record.same:
            self.forget(record.steps)
        self._ruled[_key(record.call)] = entry.number, record

    def forget(self, steps: Iterable[int]) -> None:
        """Forget the rulings that identify a call with one of these steps."""
        gone = set(steps)
        for key, (_, ruled) in list(self._ruled.items()):
            if ruled.same and gone.intersection(ruled.steps):
                del self._ruled[key]

    def of(self, call: Call) -> tuple[int, Ruled] | None:
        """Return the ruling on this call, and the number of the record that holds it."""
        if _key(call) not in self._ruled:
            return None
        near = [each for each in self._ruled.values() if _is_at(each[1].call, call)]
        return max(near, key=lambda each: _nearness(each[1].call, call), default=None)


def made_since(number: int, ruled: Ruled, among: Iterable[Recorded]) -> Recorded | None:
    """Return the record of a call that was made because it was resolved as another act.

    Args:
        number: of the record that says so.
    """
    for each in among:
        here = turn(each.call) == ruled.call.ordinal and _is_at(each.call, ruled.call)
        if here and each.origin.number > number:
            return each
    return None


def _key(call: Call) -> tuple[str, str, int]:
    return call.name, call.branch, call.ordinal


def _is_at(one: Call, other: Call) -> bool:
    """Return whether calls of the same name are made at the same place in the code.

    A structural place outlives edits above it; it is not known to every thread.
    """
    if (one.name, one.branch, one.scope) != (other.name, other.branch, other.scope):
        return False
    return one.site == other.site or (bool(one.place) and one.place == other.place)


def _nearness(one: Call, other: Call) -> tuple[int, bool]:
    known = one.parts.keys() & other.parts.keys()
    equal = sum(_alike(one.parts[name], other.parts[name]) for name in known)
    return equal, one.ordinal == other.ordinal


def differing(call: Call, other: Call) -> list[str]:
    """The names of the parts that two calls both know and that differ."""
    return [
        name
        for name, text in call.parts.items()
        if name in other.parts and not _alike(text, other.parts[name])
    ]


def agrees(call: Call, stopped: Call, recorded: Call) -> bool:
    """Return whether a call equals the stopped one wherever that matched the recorded one.

    Serial numbers of what has no digest are given anew by every process.
    """
    return all(
        _alike(call.parts.get(name, text), text)
        for name, text in stopped.parts.items()
        if name in recorded.parts and _alike(recorded.parts[name], text)
    )


def _alike(one: str, other: str) -> bool:
    """Return whether two texts of a part may be of one value, whatever their serial numbers."""
    return one == other or parse(one).same(parse(other))
