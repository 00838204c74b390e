"""Trees of plain data: what is in them, and whether that is still so.

A *tree* is made of lists, dicts, tuples and atoms of the exact builtin types.  Its *nodes* are what
can be referred to from outside: the containers, and the large leaves, numbered in the order of one
walk; a tree that was pickled and loaded again has the same nodes in the same order.

A *watch* tells whether mutable containers still hold the very same objects under the same keys in
the same order.  That is proved, not sampled: every slot is compared by identity, so an equal value
of another type does not pass.  It is a few calls in C for any number of containers.

Imports nothing of ours.
"""

from __future__ import annotations

import functools
import gc
import struct
import sys
from collections.abc import Callable, Container, Iterable
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

__all__ = ["LARGE_LEAF", "NUMBERS", "Tree", "Watch", "few", "same", "walk"]

LARGE_LEAF = 512  # characters or bytes: a reference to it is a tenth of that
_LEAVES = frozenset({str, bytes})
NUMBERS = frozenset({int, float, bool, type(None)})
_ATOMS = _LEAVES | NUMBERS
_NOTHING: frozenset[int] = frozenset()


class Tree(NamedTuple):
    """A tree: its nodes, the root first if that is one; and about how many bytes it takes.

    ``refers`` tells whether nodes of other trees are in it.
    """

    root: Any
    nodes: list[Any]
    size: int
    refers: bool


def walk(
    root: Any,
    known: Container[int] = _NOTHING,
    refused: Container[int] = _NOTHING,
    most: int = 1_000_000,
) -> Tree | None:
    """The tree at ``root``; ``None`` if it is none.

    Args:
        known: ids of objects that are nodes of other trees: neither they nor what they hold belong
            to this one.
        refused: ids of objects that must not be in it.
        most: of how many objects it may consist.
    """
    nodes: list[Any] = []
    met: set[int] = set()
    waiting, size, left, refers = [root], 0, most, False
    while waiting:
        value = waiting.pop()
        cls = type(value)
        if cls in NUMBERS:
            size += 8
            continue
        if cls in _LEAVES and len(value) < LARGE_LEAF:
            size += len(value) + 4
            continue
        here = id(value)
        if here in known:
            refers = True
            continue
        if cls in _LEAVES:
            size += len(value)
            nodes.append(value)
            continue
        if here in met:
            continue
        if here in refused or cls not in _CONTAINERS:
            return None
        if cls is tuple and not value:
            continue  # there is only one
        met.add(here)
        left -= len(value) + 1
        if left < 0:
            return None
        nodes.append(value)
        size += 8
        if cls is dict:
            if not _ATOMS.issuperset(map(type, value)):
                return None
            size += 8 * len(value)  # a key is short
            waiting.extend(value.values())
        else:
            waiting.extend(value)
    return Tree(root, nodes, size, refers)


_CONTAINERS = frozenset({list, dict, tuple})
_FEW = 40  # objects
_LITTLE = 2048  # characters or bytes in all of them
_ITERABLES: tuple[Iterable[Any], ...] = (range(0), [], (), "")
_ITERATORS = frozenset(type(iter(each)) for each in _ITERABLES)


def few(values: Iterable[Any]) -> bool:
    """Whether these are few objects of plain data, little in all, or iterators over such.

    Any pickler does for them, and none of it is worth a reference.
    """
    waiting = list(values)
    met = size = 0
    while waiting:
        value = waiting.pop()
        met += 1
        cls = type(value)
        if cls in NUMBERS or cls is range:
            continue
        if cls in _LEAVES:
            size += len(value)
        elif cls in _CONTAINERS:
            if len(value) > _FEW:
                return False
            waiting += value
            if cls is dict:
                waiting += value.values()
        elif cls in _ITERATORS:
            waiting += gc.get_referents(value)
        else:
            return False
        if met + len(waiting) > _FEW or size > _LITTLE:
            return False
    return True


class Watch:
    """What mutable containers held when it was made: lengths, keys and the objects in each slot.

    The garbage collector's view of a dict has its values in the order of its keys, and the keys as
    well unless all are plain strings, which are told apart by their value.
    """

    __slots__ = ("_containers", "_dicts", "_keys", "_lengths", "_slots")

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        self._containers = [each for each in nodes if type(each) is list or type(each) is dict]
        self._slots = gc.get_referents(*self._containers)
        self._lengths = list(map(len, self._containers))
        self._dicts = [each for each in self._containers if type(each) is dict]
        self._keys = list(chain.from_iterable(self._dicts))

    def extend(self, other: Watch) -> None:
        """Watch what another one watches as well."""
        for name in Watch.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def holds(self) -> bool:
        """Whether nothing has changed."""
        return (
            same(gc.get_referents(*self._containers), self._slots)
            and list(map(len, self._containers)) == self._lengths
            and list(chain.from_iterable(self._dicts)) == self._keys  # atoms; strings, mostly
        )


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    if len(one) != len(other):
        return False
    if len(one) >= _MANY and (_slowly.left <= 0 or "ctypes" in sys.modules):
        addresses = _reader_of_addresses()
        if addresses is not None:
            return addresses(one) == addresses(other)
    _slowly.left -= len(one)
    return all(map(is_, one, other))


_MANY = 32


class _Slowly:
    """How many objects are still to be compared one by one.

    To read their addresses is several times faster, but needs an import that takes as long as many
    comparisons: it is made once so many were.
    """

    left = 50_000


_slowly = _Slowly()


@functools.cache
def _reader_of_addresses() -> Callable[[list[Any]], bytes] | None:
    """What gives the addresses of a list's items; ``None`` where that is not to be had."""
    if sys.implementation.name != "cpython":
        return None
    import ctypes  # on use: it takes long to import

    size = ctypes.sizeof(ctypes.c_void_p)
    place = object.__basicsize__ + size  # of the pointer to the items, behind their number

    def addresses(items: list[Any]) -> bytes:
        start = ctypes.c_void_p.from_address(id(items) + place).value
        return ctypes.string_at(start or 0, size * len(items))

    probe = [object(), "probe", object()]
    return addresses if addresses(probe) == struct.pack("3P", *map(id, probe)) else None
