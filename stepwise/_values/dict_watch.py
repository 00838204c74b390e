"""Watches over what the garbage collector shows, and over dicts: whether all is the same objects.

These are the pieces of a watch (see ``trees``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import chain
from typing import Any

from stepwise._values.addresses import MANY, Versions, same, versions_of

__all__ = ["MARK", "DictWatch", "ShownWatch"]

MARK = (object(),)
"""Shows what nothing else does: between two containers, it tells what belongs to which."""

_TEXT = frozenset({str})
_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
_BUILTIN = frozenset({list, dict, tuple, set, frozenset})


class ShownWatch:
    """A snapshot of what the garbage collector shows of some objects.

    Attributes:
        objects: the objects, to be read only.
    """

    __slots__ = ("_arguments", "_shown", "objects")

    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects
        self._arguments: tuple[Any, ...] | None = None  # the objects
        self._shown = gc.get_referents(*objects)

    def extend(self, other: ShownWatch) -> None:
        """Add what another one holds."""
        self.objects += other.objects
        self._shown += other._shown
        self._arguments = None

    def holds(self) -> bool:
        """Return whether the objects show the very same objects, in the same order."""
        if not self.objects:
            return True
        if self._arguments is None:
            self._arguments = tuple(self.objects)
        return same(gc.get_referents(*self._arguments), self._shown)


class DictWatch:
    """A snapshot of dicts: lengths, keys and the objects under them.

    A dict whose version is the same has not changed since it was last looked at (see
    ``addresses``): that is read for many dicts at once.  Otherwise, or where there are no versions,
    they are looked at: the garbage collector shows the values of a dict; the keys of a *told* dict
    (see :func:`_tells`) are compared through a copy of it, which takes less time than a list of all
    keys, and proves the length as well.
    """

    __slots__ = (
        "_copies",
        "_dicts",
        "_hidden",
        "_keys",
        "_lengths",
        "_others",
        "_proved",
        "_shown",
        "_told",
        "_values",
        "_versions",
    )

    def __init__(self, dicts: list[dict[Any, Any]]) -> None:
        self._dicts = dicts
        self._hidden = [each for each in dicts if not _shows(each)]
        hidden = set(map(id, self._hidden))
        self._shown = ShownWatch([each for each in dicts if id(each) not in hidden])
        self._told = [each for each in self._shown.objects if _tells(each)]
        self._copies = list(map(dict, self._told))
        told = set(map(id, self._told))
        self._others = [each for each in dicts if id(each) not in told]
        self._lengths = list(map(len, self._others))
        self._keys = _keys_of(self._others)
        self._values = _values_of(self._hidden)
        self._versions: Versions | None = None  # of all
        self._proved: memoryview | None = None  # the versions with which they were found unchanged

    def __len__(self) -> int:
        return len(self._dicts)

    def extend(self, other: DictWatch) -> None:
        """Add what another one holds."""
        if self._proved is not None:
            added = versions_of(other._dicts)
            proved = added.read(self._proved) if added is not None else None  # first: see holds()
            self._proved = proved if other._are_unchanged() else None
        self._versions = None
        self._shown.extend(other._shown)
        for name in _EXTENDED:
            getattr(self, name).extend(getattr(other, name))

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        if self._versions is None and len(self._dicts) >= MANY:
            self._versions = versions_of(self._dicts)
        if self._versions is None:
            return self._are_unchanged()
        if self._versions.view == self._proved:
            return True
        # Read first: a change by another thread that is made meanwhile shows the next time.
        versions = self._versions.read()
        unchanged = self._are_unchanged()
        self._proved = versions if unchanged else None
        return unchanged

    def _are_unchanged(self) -> bool:
        """Return whether all dicts hold the same objects under the same keys, by looking at them.

        The order matters: dicts are compared with their copies when the values of all of them are
        known to be the same objects, so that no code of the user's is called.
        """
        return (
            (not self._others or list(map(len, self._others)) == self._lengths)
            and self._shown.holds()
            and self._told == self._copies
            and (not self._others or same(_keys_of(self._others), self._keys))
            and (not self._hidden or same(_values_of(self._hidden), self._values))
        )


_EXTENDED = ("_copies", "_dicts", "_hidden", "_keys", "_lengths", "_others", "_told", "_values")


def _keys_of(dicts: Iterable[dict[Any, Any]]) -> list[Any]:
    return list(chain.from_iterable(dicts))


def _values_of(dicts: Iterable[dict[Any, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _shows(mapping: dict[Any, Any]) -> bool:
    return len(gc.get_referents(mapping)) == len(mapping)


def _tells(mapping: dict[Any, Any]) -> bool:
    """Return whether a dict has its keys, in their order, if it equals a copy that has its values.

    The values are known to be the same objects in the same order.  So an equal dict has the same
    number of items, the same keys, and under each an equal value.  As no two values are equal, the
    keys are in the same order.  (A key that is not exactly a ``str`` makes the garbage collector
    show the keys as well, and then the values are others.)  Only values whose comparison calls no
    code of the user's may be in it.
    """
    values = mapping.values()
    if not _TEXT.issuperset(map(type, mapping)):
        return False
    if _ATOMS.issuperset(map(type, values)):  # mostly
        return len(set(values)) == len(values)
    atoms = [each for each in values if type(each) in _ATOMS]
    rest = [each for each in values if type(each) not in _ATOMS]
    return len(set(atoms)) == len(atoms) and len(rest) == 1 and type(rest[0]) in _BUILTIN
