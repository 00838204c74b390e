"""The memory of CPython's objects, read to compare many of them in one call.

To read it needs ``ctypes``, whose import takes as long as many comparisons one by one: it is
imported once so many were made, unless the program has done so.  Where objects lie otherwise in
memory (another interpreter, another version), all are compared one by one.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Collection
from operator import is_
from typing import Any

__all__ = ["MANY", "Versions", "same", "versions_of"]

MANY = 32
"""Dicts; fewer are compared one by one."""

_BUFFER = struct.Struct("PPnniiPPPPP")  # Py_buffer, as the C API documents it
_VERSION = 8  # bytes
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


class Versions:
    """The versions of some dicts.

    A dict gets a version that no dict has had, at its creation and at each change (PEP 509).  So
    equal versions prove that it has the same keys in the same order with the same objects.

    Attributes:
        view: compares them, as they are then, with versions that were read.
    """

    __slots__ = ("_dicts", "view")

    def __init__(self, dicts: tuple[dict[Any, Any], ...], view: memoryview) -> None:
        self._dicts = dicts  # the view reads the memory of this tuple and of what it holds
        self.view = view

    def read(self, before: memoryview | bytes = b"") -> memoryview:
        """Return the versions as they are now, behind those of other dicts."""
        return memoryview(b"".join((before, self.view.tobytes()))).cast("Q")


def versions_of(dicts: Collection[dict[Any, Any]]) -> Versions | None:
    """Return the versions of dicts; ``None`` if dicts have none."""
    viewer = _viewer_of_versions() if _is_worth_it() else None
    if viewer is None:
        return None
    held = tuple(dicts)
    return Versions(held, viewer(held))


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
def _viewer_of_versions() -> Callable[[tuple[dict[Any, Any], ...]], memoryview] | None:
    """Return a function that views the versions of dicts; ``None`` if unavailable.

    The view is one whose items are reached through pointers (a buffer with *suboffsets*): the
    pointers are those of the tuple, so that nothing is made for each dict.

    Python 3.12 is the last whose versions are those of PEP 509: 3.13 keeps the attributes of an
    instance outside of its dict, and 3.14 has no versions (PEP 699).
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return None
    import ctypes  # on use: it takes long to import

    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p)
    view_of = prototype(("PyMemoryView_FromBuffer", ctypes.pythonapi))
    word = ctypes.sizeof(ctypes.c_ssize_t)
    place = object.__basicsize__ + word  # in a dict, behind the number of items
    form = ctypes.create_string_buffer(b"Q")  # not copied: it lives as long as this function

    def view(dicts: tuple[dict[Any, Any], ...]) -> memoryview:
        count, pointers = len(dicts), id(dicts) + tuple.__basicsize__
        layout = (ctypes.c_ssize_t * 3)(count, word, place)  # it is copied
        shape = ctypes.addressof(layout)
        places = ctypes.addressof(form), shape, shape + word, shape + 2 * word
        facts = pointers, 0, _VERSION * count, _VERSION, 1, 1, *places, 0
        found: memoryview = view_of(_BUFFER.pack(*facts))
        return found

    probe, other = {"a": 1}, {"a": 1}
    both = probe, other
    versions = Versions(both, view(both))
    before = versions.read()
    probe["a"] = 2
    between = versions.read()
    del probe["a"]
    after = versions.read()
    moves = before[0] < before[1] == between[1] == after[1] < between[0] < after[0]
    return view if moves and before != versions.view == after else None
