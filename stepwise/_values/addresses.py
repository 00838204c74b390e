"""The memory of CPython's objects, read to compare many of them in one call.

To read it needs ``ctypes``, whose import takes as long as many comparisons one by one: it is
imported once so many were made, unless the program has done so.  Where objects lie otherwise in
memory (another interpreter, another version), all are compared one by one.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any

__all__ = ["MANY", "same", "views_of_versions"]

MANY = 32
"""Dicts; fewer are compared one by one."""

_FEW = 128  # objects that are compared one by one in less time than their addresses take to be read


class _Slowly:
    """How many objects are still to be compared one by one before ``ctypes`` is imported."""

    left = 50_000


_slowly = _Slowly()


def same(one: list[Any], other: list[Any]) -> bool:
    """Return whether two lists hold the very same objects."""
    if len(one) < _FEW:
        return len(one) == len(other) and all(map(is_, one, other))
    if len(one) != len(other):
        return False
    addresses = _reader_of_addresses() if _is_worth_it() else None
    if addresses is not None:
        return addresses(one) == addresses(other)
    _slowly.left -= len(one)
    return all(map(is_, one, other))


def views_of_versions(dicts: Iterable[dict[Any, Any]]) -> list[Any] | None:
    """Return buffers over the versions of dicts, to be joined; ``None`` if they have none.

    A dict gets a version that no dict has had, at its creation and at each change (PEP 509).  So
    equal versions prove that it has the same keys in the same order with the same objects.
    The views are valid as long as the dicts are held.
    """
    view = _viewer_of_versions() if _is_worth_it() else None
    return [*map(view, dicts)] if view is not None else None


def _is_worth_it() -> bool:
    return _slowly.left <= 0 or "ctypes" in sys.modules


@functools.cache
def _reader_of_addresses() -> Callable[[list[Any]], bytes] | None:
    """Return a function that reads the addresses of a list's items; ``None`` if unavailable."""
    if sys.implementation.name != "cpython":
        return None
    import ctypes  # on use: it takes long to import

    size = ctypes.sizeof(ctypes.c_void_p)
    place = object.__basicsize__ + size  # address of the pointer to the items, behind their number

    def addresses(items: list[Any]) -> bytes:
        start = ctypes.c_void_p.from_address(id(items) + place).value
        return ctypes.string_at(start or 0, size * len(items))

    probe = [object(), "probe", object()]
    return addresses if addresses(probe) == struct.pack("3P", *map(id, probe)) else None


@functools.cache
def _viewer_of_versions() -> Callable[[dict[Any, Any]], Any] | None:
    """Return a function that views the version of a dict; ``None`` if unavailable.

    Python 3.12 is the last whose versions are those of PEP 509: 3.13 keeps the attributes of an
    instance outside of its dict, and 3.14 has no versions (PEP 699).
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return None
    import ctypes  # on use: it takes long to import

    at = ctypes.c_uint64.from_address
    place = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # behind the number of items

    def view(mapping: dict[Any, Any]) -> Any:
        return at(id(mapping) + place)

    probe, other = {"a": 1}, {"a": 1}
    changed, unchanged = view(probe), view(other)
    before = changed.value, unchanged.value
    probe["a"] = 2
    between, still = changed.value, unchanged.value
    del probe["a"]
    moves = before[0] < before[1] == still < between < changed.value
    return view if moves else None
