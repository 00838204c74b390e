"""Edits: one change of one object, as data that can be repeated on another object in place.

An edit holds only the difference: a history that grows by two messages costs two messages a record.
An edit also holds short forms (:func:`_form`) of the contents before and after, so that the change
is repeated only on an object that lacks the change.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from stepwise._changes.layouts import (
    UNSET,
    Layout,
    attributes_of,
    digest_of,
    items_of,
    layout_of,
)
from stepwise._changes.snapshots import Changed
from stepwise._runtime.facts import NamedTuple
from stepwise._values.digest import cell_content
from stepwise._values.trees import ATOMS, dict_of
from stepwise._values.unpickling import Disassembled

BEFORE, AFTER, NEITHER = "before", "after", "neither"
_SHORT = 32  # characters or bytes: the form of a longer atom is a digest


class Edit(NamedTuple):
    """A change of one facet of one object.

    Args:
        facet: ``items``, ``attributes``, ``whole`` or ``cell``.
        what: the place of the change: the start and the lengths of a part of a sequence, or the
            changed names.
        before, after: short forms of the contents before and after the change.
        put: the new contents, in the form of the facet.
    """

    facet: str
    what: Any
    before: Any
    after: Any
    put: Any

    def only(self, names: Sequence[Any]) -> Edit:
        """Return the part of an edit of attributes or keys that concerns these names."""
        changed, gone, order = self.what
        before, after = (
            dict(zip(changed, forms, strict=True)) for forms in (self.before, self.after)
        )
        return self._replace(
            what=([*names], [each for each in gone if each in names], order),
            before=[before[name] for name in names],
            after=[after[name] for name in names],
            put={name: value for name, value in self.put.items() if name in names},
        )

    def state_of(self, obj: Any) -> str:
        """Return ``BEFORE``, ``AFTER`` or ``NEITHER``: which side of the edit an object matches."""
        forms = _FORMS[_way(obj, self.facet)]
        if forms(obj, self.what, self.before, BEFORE) == self.before:
            return BEFORE
        return AFTER if forms(obj, self.what, self.after, AFTER) == self.after else NEITHER

    def apply(self, obj: Any) -> None:
        """Repeat the change on an object, in place.

        Raises:
            Exception: the change does not fit the object's shape, or a key's hash raises.
        """
        _APPLY[_way(obj, self.facet)](obj, self.what, self.put)


def edit_of(changed: Changed) -> Edit | None:
    """Return the edit that leads from an object's earlier contents to its contents now.

    Returns:
        the edit, or ``None`` if no edit can express the change: an iterator advanced, or an array
        has another shape.
    """
    obj, layout, facet, before = changed
    return _MAKE[_way(obj, facet)](obj, layout, before)


def is_cached_property(obj: Any, name: Any) -> bool:
    """Return whether an attribute holds the cached value of a ``cached_property``."""
    found = next((vars(each)[name] for each in type(obj).__mro__ if name in vars(each)), None)
    return isinstance(found, functools.cached_property)


def _way(obj: Any, facet: str) -> str:
    if facet != "items":
        return facet
    base: Any = layout_of(type(obj)).items
    if base in (dict, collections.OrderedDict):
        return "mapping"
    return "set" if base is set else "sequence"


# -- short forms ---------------------------------------------------------------------------------


def _form(value: Any) -> Any:
    """Return a short form of a value: an atom, or the class of an object."""
    cls = type(value)
    if cls in ATOMS:
        if cls in (str, bytes) and len(value) > _SHORT:
            data = value.encode("utf-8", "surrogatepass") if cls is str else value
            return cls.__name__, digest_of(data)
        return cls.__name__, repr(value)
    return cls.__qualname__, None  # not its contents, which may have changed since then


def _digest(content: Any) -> bytes:
    """Return a digest of whole contents."""
    if type(content) is bytes:
        return digest_of(content)
    if getattr(content, "dtype", None) is not None and not content.dtype.hasobject:
        return digest_of(content.tobytes())
    if type(content) is Disassembled:
        return digest_of(b"".join((content.head, *content.buffers)))
    return digest_of(repr(content).encode("utf-8", "surrogatepass"))


def _digest_of_forms(values: Sequence[Any]) -> bytes:
    return digest_of(repr([_form(each) for each in values]).encode("utf-8", "surrogatepass"))


# -- sequences -----------------------------------------------------------------------------------


def _sequence(obj: Any, layout: Layout, before: list[Any]) -> Edit:
    """Return the edit of the part of a list or deque that differs."""
    now = items_of(layout, obj)
    shorter = min(len(before), len(now))
    start = shorter if all(map(is_, before, now)) else 0  # usually the list only grew
    while start < shorter and before[start] is now[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] is now[-1 - end]:
        end += 1
    gone, new = before[start : len(before) - end], now[start : len(now) - end]
    return Edit(
        "items",
        (start, len(gone), len(new)),
        (len(before), _digest_of_forms(gone)),
        (len(now), _digest_of_forms(new)),
        new,
    )


def _put_sequence(obj: Any, what: tuple[int, int, int], put: list[Any]) -> None:
    start, gone, _ = what
    if isinstance(obj, list):
        list.__setitem__(obj, slice(start, start + gone), put)
        return
    items = [*collections.deque.__iter__(obj)]
    items[start : start + gone] = put
    collections.deque.clear(obj)
    collections.deque.extend(obj, items)


def _form_of_sequence(obj: Any, what: tuple[int, int, int], known: Any, side: str) -> Any:
    start, gone, new = what
    items = items_of(layout_of(type(obj)), obj)
    if len(items) != known[0]:
        return len(items), None
    return len(items), _digest_of_forms(items[start : start + (gone if side == BEFORE else new)])


# -- mappings and attributes ---------------------------------------------------------------------


def _named(now: dict[Any, Any], before: dict[Any, Any], facet: str) -> Edit:
    """Return the edit of the keys or names whose values differ, and of their order if it does."""
    gone = [name for name in before if name not in now]
    put = {
        name: value
        for name, value in now.items()
        if name not in before or before[name] is not value
    }
    usual = [
        *(name for name in before if name in now),
        *(name for name in put if name not in before),
    ]
    order = [] if usual == list(now) else list(now)
    names = [*gone, *put]
    return Edit(
        facet,
        (names, gone, order),
        _forms_of_names(before, names),
        _forms_of_names(now, names),
        put,
    )


def _forms_of_names(held: dict[Any, Any], names: Sequence[Any]) -> list[Any]:
    return [_form(held.get(name, UNSET)) for name in names]


def _mapping(obj: Any, _layout: Layout, before: Any) -> Edit:
    if type(before) is not dict:
        half = len(before) // 2
        before = dict(zip(before[:half], before[half:], strict=True))
    return _named(_items(obj), before, "items")


def _items(obj: Any) -> dict[Any, Any]:
    base: Any = layout_of(type(obj)).items
    return dict(base.items(obj))


def _put_mapping(obj: Any, what: tuple[Any, ...], put: dict[Any, Any]) -> None:
    base: Any = layout_of(type(obj)).items
    _, gone, order = what
    for key in gone:
        base.pop(obj, key, None)
    for key, value in put.items():
        base.__setitem__(obj, key, value)
    if order:
        held = dict(base.items(obj))
        base.clear(obj)
        for key in [*(key for key in order if key in held), *(k for k in held if k not in order)]:
            base.__setitem__(obj, key, held[key])


def _attributes(obj: Any, layout: Layout, before: dict[str, Any]) -> Edit:
    return _named(attributes_of(layout, obj), before, "attributes")


def _put_attributes(obj: Any, what: tuple[Any, ...], put: dict[str, Any]) -> None:
    """Set and delete attributes in ``__dict__`` and slots, without any setter or validator."""
    layout = layout_of(type(obj))
    slots = dict(layout.slots)
    for name in what[1]:
        if name in slots:
            slots[name].__delete__(obj)
        else:
            dict_of(obj).pop(name, None)
    for name, value in put.items():
        if name in slots:
            slots[name].__set__(obj, value)
        else:
            dict_of(obj)[name] = value


# -- sets, cells, contents as a whole ------------------------------------------------------------


def _set(obj: Any, layout: Layout, before: list[Any]) -> Edit:
    now = items_of(layout, obj)
    then, today = set(map(id, before)), set(map(id, now))
    gone = [each for each in before if id(each) not in today]
    new = [each for each in now if id(each) not in then]
    return Edit("items", None, _form_of_members(before), _form_of_members(now), (gone, new))


def _put_set(obj: Any, _what: Any, put: tuple[list[Any], list[Any]]) -> None:
    gone, new = put
    for each in gone:
        set.discard(obj, each)
    for each in new:
        set.add(obj, each)


def _form_of_members(items: Sequence[Any]) -> tuple[int, bytes]:
    forms = sorted(repr(_form(each)) for each in items)
    return len(items), digest_of("".join(forms).encode("utf-8", "surrogatepass"))


def _whole(obj: Any, layout: Layout, before: Any) -> Edit | None:
    whole = layout.whole
    assert whole is not None
    now = whole.read(obj)
    if whole.write is None or whole.shape(before) != whole.shape(now):
        return None
    return Edit("whole", None, _digest(before), _digest(now), now)


def _put_whole(obj: Any, _what: Any, put: Any) -> None:
    whole = layout_of(type(obj)).whole
    assert whole is not None
    assert whole.write is not None
    whole.write(obj, put)


def _form_of_whole(obj: Any, *_: Any) -> Any:
    whole = layout_of(type(obj)).whole
    return _digest(whole.read(obj)) if whole is not None else None


def _cell(obj: Any, _layout: Layout, before: Any) -> Edit:
    now = cell_content(obj, UNSET)
    return Edit("cell", now is UNSET, _form(before), _form(now), None if now is UNSET else now)


def _put_cell(obj: Any, unset: bool, put: Any) -> None:
    if unset:
        del obj.cell_contents
    else:
        obj.cell_contents = put


_MAKE: dict[str, Callable[[Any, Layout, Any], Edit | None]] = {
    "sequence": _sequence,
    "mapping": _mapping,
    "set": _set,
    "attributes": _attributes,
    "whole": _whole,
    "cell": _cell,
}
_APPLY: dict[str, Callable[[Any, Any, Any], None]] = {
    "sequence": _put_sequence,
    "mapping": _put_mapping,
    "set": _put_set,
    "attributes": _put_attributes,
    "whole": _put_whole,
    "cell": _put_cell,
}
_FORMS: dict[str, Callable[..., Any]] = {
    "sequence": _form_of_sequence,
    "mapping": lambda obj, what, *_: _forms_of_names(_items(obj), what[0]),
    "set": lambda obj, *_: _form_of_members(items_of(layout_of(type(obj)), obj)),
    "attributes": lambda obj, what, *_: _forms_of_names(
        attributes_of(layout_of(type(obj)), obj), what[0]
    ),
    "whole": _form_of_whole,
    "cell": lambda obj, *_: _form(cell_content(obj, UNSET)),
}
