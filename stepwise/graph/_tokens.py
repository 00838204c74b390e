"""Branches of an execution: where each is, and the memory that it carries."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._values import codec, digest
from stepwise.errors import DigestError, NotRecordableError

__all__ = ["Token", "Written", "copied", "merged", "same"]

Written = dict[str, Any]
_NOTHING: dict[str, int] = {}


class Token(NamedTuple):
    """The position of a branch of an execution, and its memory.

    Args:
        node: that is to be visited.
        key: tells visits apart: it is made of the way that led there, so that it is the same
            however fast the branches run.
        origin: the node before.
        memory: as the branch left it.  It is never changed, only replaced.
        stamps: when each key was written, in visits along the way; deleted ones too.
        clock: how many visits long the way is.
        visits: how often each node was visited on it.
        entered: the visit has begun.
        paused: the visit is done, and its answer is missing.
    """

    node: str
    key: str
    memory: Written
    origin: str = ""
    stamps: dict[str, int] = _NOTHING
    clock: int = 0
    visits: dict[str, int] = _NOTHING
    entered: bool = False
    paused: bool = False

    def wrote(self, record: Mapping[str, Any], *, paused: bool = False) -> Token:
        """The same after a visit."""
        gone, written = record["deleted"], record["set"]
        memory = {**self.memory, **written}
        for key in gone:
            memory.pop(key, None)
        stamps = {**self.stamps, **dict.fromkeys([*gone, *written], self.clock)}
        return self._replace(memory=memory, stamps=stamps, paused=paused)

    def to(self, target: str) -> Token:
        """Return the branch that continues from here to another node."""
        return Token(target, self.key, self.memory, self.node, self.stamps, self.clock, self.visits)

    def enter(self, others: Sequence[Token] = ()) -> Token:
        """Return the branch as visited now, together with the branches that joined it."""
        if self.entered:
            return self
        node, memory, stamps, clock = self.node, self.memory, self.stamps, self.clock
        visits, way = dict(self.visits), [f"{self.origin}>{self.key}"]
        if others:
            memory, stamps = merged([self, *others])
        for token in others:
            clock = max(clock, token.clock)
            way.append(f"{token.origin}>{token.key}")
            for name, count in token.visits.items():
                visits[name] = max(visits.get(name, 0), count)
        visits[node] = visits.get(node, 0) + 1
        key = f"{visits[node]}-{digest.combine(node, *sorted(way))[:16]}"
        return Token(node, key, memory, self.origin, stamps, clock + 1, visits, entered=True)


def merged(tokens: list[Token]) -> tuple[Written, dict[str, int]]:
    """Merge the memory of several branches: for each key the last write, counted in visits.

    Of two that were written at the same time, that of the later token.
    """
    if len(tokens) == 1:
        return tokens[0].memory, tokens[0].stamps
    memory: Written = {}
    stamps: dict[str, int] = {}
    for token in tokens:
        for key in dict.fromkeys([*token.memory, *token.stamps]):
            stamp = token.stamps.get(key, 0)
            if stamp < stamps.get(key, -1):
                continue
            stamps[key] = stamp
            memory.pop(key, None)
            if key in token.memory:
                memory[key] = token.memory[key]
    return memory, stamps


# -- values ----------------------------------------------------------------------------------------


def copied(items: Mapping[str, Any]) -> Written:
    """A deep copy; what cannot be copied (a client, a lock) is itself."""
    if _FIXED.issuperset(map(type, items.values())) and _FIXED.issuperset(map(type, items)):
        return dict(items)
    with contextlib.suppress(Exception):
        return copy.deepcopy(dict(items))
    return {key: _copied(value) for key, value in items.items()}


def _copied(value: Any) -> Any:
    with contextlib.suppress(Exception):
        return copy.deepcopy(value)
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; values of different types never are."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) in _ATOMS:
        return bool(one == other)
    return _print_of(one) == _print_of(other)


_ATOMS = (str, bytes, int, bool)
_FIXED = frozenset({*_ATOMS, float, type(None)})  # types of values that are their own copies


def _print_of(value: Any) -> object:
    """Return a key that equal values share; a new object where equality is unknown."""
    with contextlib.suppress(DigestError):
        return digest.digest(value)
    with contextlib.suppress(NotRecordableError):
        return codec.encode(value, "").data
    return object()
