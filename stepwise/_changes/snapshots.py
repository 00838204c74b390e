"""Snapshots: the contents of some objects at one moment, at any depth, and the changes since.

Containers are copied by reference and compared by identity and order.  This is exact: an equal
value of another type, or the same keys in another order, does not pass.  Bytes of arrays and data
frames are copied and compared as bytes.

Many lists and dicts are compared in a few calls in C, block by block (see ``trees``).  A block
holds objects that were found at one depth, so that growth of one list does not force a look at each
of its items.

Rejected: digests of identity (they leave out order and volatile fields on purpose, and take forty
times as long), lengths alone (they miss ``state["best"] = 3``), comparison with ``==`` (``True ==
1``, and it calls the user's code), pickles before and after (25 times as long, and not all objects
pickle).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress, repeat
from operator import is_, not_
from types import CellType
from typing import Any

from stepwise._changes.layouts import (
    UNSET,
    Layout,
    attributes_of,
    items_of,
    layout_of,
)
from stepwise._runtime.facts import NamedTuple
from stepwise._values.digest import cell_content
from stepwise._values.trees import (
    ATOMS,
    BLOCK,
    Contents,
    dict_of,
    reference,
    same,
    starts_with,
)

Path = tuple[Any, ...]
"""The name of a root, and steps: ``("attr", name)``, ``("item", index)``, ``("key", key)``, ..."""

_MOST = 200_000  # objects: reading this many takes about 20 ms
_BYTES = 64 << 20  # of contents that are copied as a whole: copying takes about 20 ms as well
_LARGE = 256  # objects: a snapshot of at least this many is worth keeping for the next call
_STALE = 4  # growth factor in objects since a snapshot was new; beyond it, a new one is taken
_clients: dict[int, Callable[[], object]] = {}
"""Objects of installed packages that hold something opaque, by id; snapshots do not open them."""


class Changed(NamedTuple):
    """One facet of an object with its earlier contents, which it may or may not have now.

    Args:
        obj: the object.
        layout: the layout of its class.
        before: the earlier contents: items, attributes by name, contents as a whole, or a value.
        facet: which of these: ``items``, ``attributes``, ``whole`` or ``cell``.
    """

    obj: Any
    layout: Layout
    facet: str
    before: Any


_READ = object.__getattribute__  # calls no code of the object's class


class _Level(Contents):
    """Objects that were found at one depth, and their contents."""

    __slots__ = ("attributes", "instances", "others", "owners")

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Any] = []  # the owner of each dict: an instance, or the dict itself
        self.instances: list[Any] = []
        self.attributes: list[dict[str, Any]] = []  # the dict of each instance
        self.others: list[Changed] = []

    def opened(self, lists: list[Any], dicts: list[Any], owners: list[Any]) -> list[Any]:
        """Copy exact lists and dicts by reference; return the objects in them."""
        begin = len(self.items), len(self.keys)
        self.add(lists, dicts)
        self.owners += owners
        if owners is not dicts:
            self.instances += owners
            self.attributes += dicts
        items, keys = begin
        return [*self.items[items:], *self.keys[keys:], *self.values[keys:]]

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        try:
            return (
                super().holds()
                and same([*map(_READ, self.instances, repeat("__dict__"))], self.attributes)
                and not any(map(_differs, self.others))
            )
        except RuntimeError:  # another thread is changing a dict
            return False

    def changes(self) -> Iterator[Changed]:
        """Yield the objects that have changed, with their earlier contents."""
        for items, before in self.of_lists():
            if not same(items, before):
                yield Changed(items, layout_of(list), "items", before)
        for owner, (each, keys, values) in zip(self.owners, self.of_dicts(), strict=True):
            now = each if owner is each else dict_of(owner)
            if not (same([*now], keys) and same([*now.values()], values)):
                facet = "items" if owner is each else "attributes"
                named = dict(zip(keys, values, strict=True))
                yield Changed(owner, layout_of(type(owner)), facet, named)
        yield from filter(_differs, self.others)

    def take(self, other: _Level) -> None:
        """Append the objects and contents of another level."""
        self.extend(other)
        self.owners += other.owners
        self.instances += other.instances
        self.attributes += other.attributes
        self.others += other.others

    def new_items(self, before: _Level) -> list[Any]:
        """Return the items of the lists; of a list that grew only those behind the earlier ones."""
        found: list[Any] = []
        for (_, now), (_, then) in zip(self.of_lists(), before.of_lists(), strict=True):
            found += now[len(then) :] if starts_with(now, then) else now
        return found

    def __len__(self) -> int:
        return super().__len__() + len(self.others)


def _differs(each: Changed) -> bool:
    """Return whether an object no longer has its earlier contents."""
    obj, layout, facet, before = each
    if facet == "whole":
        assert layout.whole is not None
        return not layout.whole.is_same(obj, before)
    if facet == "cell":
        return cell_content(obj, UNSET) is not before
    if facet == "attributes":
        now = attributes_of(layout, obj)
        return len(now) != len(before) or any(
            name not in before or before[name] is not value for name, value in now.items()
        )
    held = items_of(layout, obj)
    if layout.items is set:
        return len(held) != len(before) or set(map(id, held)) != set(map(id, before))
    return len(held) != len(before) or not all(map(is_, held, before))


class Snapshot:
    """A copy by reference of the contents of some objects, at any depth.

    Args:
        roots: the objects by name: arguments, ``self``, cells of captured variables.

    Attributes:
        unwatched: objects that are not watched, by id, each with the reason; usually none.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = dict(roots)
        self.unwatched: dict[int, tuple[Any, str]] = {}
        self._blocks: list[_Level] = []
        self._changed: list[Changed] = []
        self._met: dict[int, Any] = {}
        self._bytes = 0
        self._within: set[int] = set()  # ids of the objects inside those of installed packages
        self._has_clients = False
        self._open(self.roots.values())
        if self._has_clients and self._set_clients_apart():
            self.__init__(roots)  # type: ignore[misc]
        self._new, self._first = len(self._met), len(self._blocks) + 1

    # -- looking ---------------------------------------------------------------------------------

    def _open(self, objects: Iterable[Any]) -> None:
        """Copy the contents of objects and of all objects in them, depth by depth."""
        while True:
            objects = [*objects]
            opens = map(not_, map(ATOMS.__contains__, map(type, objects)))
            held = [*compress(objects, opens)]
            level = dict(zip(map(id, held), held, strict=True))
            for here in level.keys() & self._met.keys():
                del level[here]
            if not level:
                return
            if len(self._met) + len(level) > _MOST:
                for each in self.roots.values():
                    self._refuse(each, f"which holds more than {_MOST:,} objects")
                return
            self._met.update(level)
            found, fresh = list[Any](), [*level.values()]
            for at in range(0, len(fresh), BLOCK):
                block, some = _Level(), fresh[at : at + BLOCK]
                for cls in dict.fromkeys(map(type, some)):
                    group = [*compress(some, map(is_, map(type, some), repeat(cls)))]
                    found += self._look(block, cls, group)
                if len(block):
                    self._blocks.append(block)
            objects = found

    def _look(self, block: _Level, cls: type, group: list[Any]) -> list[Any]:
        """Copy the contents of objects of one class; return the objects in them."""
        if not self._within and not layout_of(cls).foreign:
            return self._copy(block, cls, group)
        layout, found = layout_of(cls), []
        for each in group:
            if _is_client(each):
                continue
            within = id(each) in self._within
            self._has_clients |= within and layout.opaque
            held = self._copy(block, cls, [each])
            if within or layout.foreign:
                self._within.update(map(id, held))
            found += held
        return found

    def _copy(self, block: _Level, cls: type, group: list[Any]) -> list[Any]:
        if cls is list:
            return block.opened(group, [], [])
        if cls is dict:
            return block.opened([], group, group)
        layout = layout_of(cls)
        if layout.attributes and not layout.slots and layout.items is None:
            return block.opened([], [dict_of(each) for each in group], group)
        return [held for each in group for held in self._hold(block, layout, each)]

    def _hold(self, block: _Level, layout: Layout, each: Any) -> list[Any]:
        """Copy the contents of one object; return the objects in it."""
        found: list[Any] = []
        if layout.whole is not None:
            size = layout.whole.size(each)
            if self._bytes + size > _BYTES:
                self._refuse(each, f"which holds {size >> 20} MB ({_BYTES >> 20} are looked at)")
            else:
                self._bytes += size
                block.others.append(Changed(each, layout, "whole", layout.whole.read(each)))
        if layout.items is not None:
            items = items_of(layout, each)
            found += items
            if layout.items not in (tuple, frozenset):
                block.others.append(Changed(each, layout, "items", items))
        if layout.attributes or layout.slots:
            held = attributes_of(layout, each)
            found += held.values()
            block.others.append(Changed(each, layout, "attributes", held))
        if layout.held is not None:
            found += [held for _, held in layout.held(each)]
        elif isinstance(each, CellType):
            block.others.append(Changed(each, layout, "cell", cell_content(each, UNSET)))
            found.append(cell_content(each, UNSET))
        return found

    def _refuse(self, obj: Any, why: str) -> None:
        self._met.setdefault(id(obj), obj)
        self.unwatched[id(obj)] = obj, why

    # -- clients ---------------------------------------------------------------------------------

    def _set_clients_apart(self) -> bool:
        """Register objects of packages that hold something opaque; return whether any was found."""
        found: set[int] = set()
        waiting: list[tuple[Any, Any]] = [(None, each) for each in self.roots.values()]
        met: set[tuple[int, int]] = set()
        while waiting:
            outer, each = waiting.pop()
            if type(each) in ATOMS or _is_client(each):
                continue
            layout = layout_of(type(each))
            outer = each if outer is None and layout.foreign else outer
            if (id(outer), id(each)) in met or id(each) not in self._met:
                continue
            met.add((id(outer), id(each)))
            if layout.opaque and outer is not None:
                found.add(id(outer))
                _clients[id(outer)] = reference(outer, functools.partial(_forget, id(outer)))
            waiting += [(outer, held) for _, held in steps_of(each)]
        return bool(found)

    # -- comparing -------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        return all(block.holds() for block in self._blocks)

    def holds_surely(self) -> bool:
        """Return whether nothing has changed; false if the contents cannot be read now."""
        try:
            return self.holds()
        except Exception:  # a user's class that raises, a file that was closed
            return False

    def changed(self) -> list[Changed]:
        """Return the objects that have changed, with their earlier contents."""
        differ = [block for block in self._blocks if not block.holds()]
        self._changed = [each for block in differ for each in block.changes()]
        return self._changed

    def knows(self, obj: object) -> bool:
        """Return whether an object was among the snapshot's objects when it was taken."""
        return self._met.get(id(obj), self) is obj

    @property
    def is_large(self) -> bool:
        """True if the snapshot is worth keeping: slow to take, and without copies of bytes."""
        return len(self._met) >= _LARGE and not self._bytes and not self.unwatched

    def renewed(self) -> bool:
        """Bring the snapshot up to date; return False if the caller should take a new one."""
        for place, block in enumerate(self._blocks):
            if block.holds():
                continue
            fresh, found = _Level(), list[Any]()
            for each in _objects_in(block):
                if type(each) is list and not self._within:
                    fresh.add([each], ())  # its new items are opened below
                else:
                    held = self._look(fresh, type(each), [each])
                    found += held if type(each) is not list else ()
            self._blocks[place] = fresh
            self._open([*fresh.new_items(block), *found])
            if len(self._met) > _STALE * self._new or self._has_clients:
                return False
        self._gather()
        return not self.unwatched

    def _gather(self) -> None:
        """Merge small blocks, of which step-by-step growth makes many."""
        blocks = self._blocks
        while len(blocks) > self._first:
            last, before = len(blocks[-1]), len(blocks[-2])
            if last < before / 2 or last + before > BLOCK:
                return
            blocks[-2].take(blocks.pop())

    # -- paths -----------------------------------------------------------------------------------

    def paths(self, wanted: Iterable[object]) -> dict[int, Path]:
        """Return the shortest paths to objects at the time of the snapshot, by their ids.

        The caller must call :meth:`changed` first, which finds the changes since then.
        """
        left, found = {id(each) for each in wanted}, {}
        before = {(id(each.obj), each.facet): each.before for each in self._changed}
        level: list[tuple[Path, Any]] = [((name,), each) for name, each in self.roots.items()]
        met: set[int] = set()
        while level and left:
            deeper: list[tuple[Path, Any]] = []
            for path, each in level:
                here = id(each)
                if type(each) in ATOMS or here in met or here not in self._met:
                    continue
                met.add(here)
                if here in left:
                    left.discard(here)
                    found[here] = path
                    if not left:
                        return found
                if not _is_client(each):
                    deeper += [((*path, step), held) for step, held in steps_of(each, before)]
            level = deeper
        return found


def _objects_in(block: _Level) -> list[Any]:
    others = {id(each.obj): each.obj for each in block.others}
    return [*block.lists, *block.owners, *others.values()]


def _forget(here: int, _: object) -> None:
    _clients.pop(here, None)


def _is_client(obj: object) -> bool:
    known = _clients.get(id(obj)) if _clients else None
    return known is not None and known() is obj


_NOTHING: Mapping[Any, Any] = {}


def steps_of(
    obj: Any, before: Mapping[tuple[int, str], Any] = _NOTHING
) -> Iterator[tuple[Any, Any]]:
    """Yield the objects that an object holds, each with the step that leads there.

    Args:
        before: the earlier contents of changed objects, by id and facet; used instead of today's.
    """
    if isinstance(obj, CellType):
        yield ("content",), before.get((id(obj), "cell"), cell_content(obj, UNSET))
        return
    layout = layout_of(type(obj))
    if layout.held is not None:
        yield from layout.held(obj)
    if layout.items is not None:
        held = before.get((id(obj), "items"))
        if type(obj) is dict and held is not None:
            yield from _steps_of_dict(list(held), list(held.values()))
        elif layout.items.__name__ in ("dict", "OrderedDict"):
            both = [*(items_of(layout, obj) if held is None else held)]
            yield from _steps_of_dict(both[: len(both) // 2], both[len(both) // 2 :])
        else:
            step = "member" if layout.items.__name__ in ("set", "frozenset") else "item"
            items = items_of(layout, obj) if held is None else held
            yield from (((step, place), each) for place, each in enumerate(items))
    if layout.attributes or layout.slots:
        attributes = before.get((id(obj), "attributes"))
        if attributes is None:
            attributes = attributes_of(layout, obj)
        yield from ((("attr", name), each) for name, each in attributes.items())


def _steps_of_dict(keys: list[Any], values: list[Any]) -> Iterator[tuple[Any, Any]]:
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        if type(key) in ATOMS:
            yield ("key", key), value
        else:
            yield ("keyed", place), key
            yield ("value", place), value


def follow(path: Path, roots: Mapping[str, Any]) -> Any:
    """Return the object that a path leads to.

    Raises:
        LookupError: the path leads nowhere, or into a set, whose items have no place.
    """
    found = roots[path[0]]
    for step in path[1:]:
        if step[0] == "member":
            raise LookupError(path_text(path))
        found = _MISSING if type(found) in ATOMS else dict(steps_of(found)).get(step, _MISSING)
        if found is _MISSING:
            raise LookupError(path_text(path))
    return found


_MISSING = object()


def path_text(path: Path) -> str:
    """Return a path as Python would write it: ``state.messages[3]['text']``."""
    text = str(path[0])
    for step in path[1:]:
        layout, name = step[0], step[1] if len(step) > 1 else None
        if layout == "attr":
            text += f".{name}"
        elif layout in ("item", "key"):
            text += f"[{name!r}]"
        elif layout == "member":
            text = f"an item of {text}"
        elif layout in ("keyed", "value"):
            text = f"list({text}{'.values()' if layout == 'value' else ''})[{name}]"
        elif layout == "cell":
            text += f"'s {name}"
        elif layout == "self":
            text += ".__self__"
        elif layout != "content":
            text += f".{layout}"
    return text
