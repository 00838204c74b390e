"""Rulings: what people answered about calls at which a run stopped, and the act each of them is.

A call is known again by its call site and its ordinal, since its arguments may be others at every
start.  Where several calls of one name were ruled on, the arguments tell which is which.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from stepwise._identity.parts import parse
from stepwise._journal.counters import turn
from stepwise._journal.projection import CallKey, RecordedCall, Ruling
from stepwise._journal.records import Call

__all__ = ["agrees", "differing", "made_since", "ruling_on"]


def ruling_on(
    call: Call, rulings: Mapping[CallKey, Ruling], owned: Container[int] = ()
) -> Ruling | None:
    """Return the ruling on a call, and the number of the record that holds it.

    Args:
        owned: the unused recorded calls of the retried step that makes the call.  Its next attempt
            makes them again, in their order but with other ordinals.
    """
    near = [each for each in rulings.values() if _is_at(each[1].call, call)]
    again = [each for each in near if each[1].same and each[1].steps[0] in owned]
    if again:
        again.sort(key=lambda each: each[1].steps)
        return max(again, key=lambda each: _nearness(each[1].call, call)[0])
    if (call.name, call.branch, call.ordinal) not in rulings:
        return None
    return max(near, key=lambda each: _nearness(each[1].call, call), default=None)


def made_since(number: int, stopped: Call, among: Iterable[RecordedCall]) -> RecordedCall | None:
    """Return the record of a call that was made because it was resolved as another act.

    Args:
        number: of the record that says so.
    """
    for each in among:
        here = turn(each.call) == stopped.ordinal and _is_at(each.call, stopped)
        if here and each.origin.number > number:
            return each
    return None


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
