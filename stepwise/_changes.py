"""Changes that a call makes to its arguments: found exactly, recorded by path, made again.

A *layout* knows what the objects of a class hold, and how to read and write these contents.
Attributes are read from ``__dict__`` and from slots, items by the methods of the builtin types.  No
code of a user's class is called, neither to read nor to write.

A *snapshot* copies the contents of a call's arguments, ``self`` and captured variables before the
body, at any depth, and finds the changes since.  Containers are copied by reference and compared by
identity and order.  This is exact: an equal value of another type, or the same keys in another
order, does not pass.  Bytes of arrays and data frames are copied and compared as bytes.

Many lists and dicts are compared in a few calls in C, block by block (see ``trees``).  A block
holds objects that were found at one depth, so that growth of one list does not force a look at each
of its items.

An *edit* is one change of one object, as data that can be repeated on another object in place.  An
edit holds only the difference: a history that grows by two messages costs two messages a record.
An edit also holds short forms (:func:`_form`) of the contents before and after, so that the change
is repeated only on an object that lacks the change.

Rejected: digests of identity (they leave out order and volatile fields on purpose, and take forty
times as long), lengths alone (they miss ``state["best"] = 3``), comparison with ``==`` (``True ==
1``, and it calls the user's code), pickles before and after (25 times as long, and not all objects
pickle).
"""

from __future__ import annotations

import collections
import contextvars
import datetime as dt
import enum
import functools
import hashlib
import io
import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import is_, not_
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign, is_foreign_module
from stepwise._identity.identity import as_function, captured
from stepwise._runtime.facts import NamedTuple
from stepwise._values.digest import cell_content
from stepwise._values.reducers import OF_ITERATORS
from stepwise._values.trees import (
    ATOMS,
    BLOCK,
    Contents,
    dict_of,
    is_constant,
    own_layout,
    reference,
    same,
    slot_values,
    slots_in,
    starts_with,
)
from stepwise._values.unpickling import Disassembled, apart, together

# -- layouts --------------------------------------------------------------------------------------


UNSET: Any = type("Unset", (), {"__repr__": lambda _: "<unset>"})()
"""A marker for a slot or variable without a value."""

_LEAVES = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.GenericAlias,
    weakref.ReferenceType,
    enum.Enum,
    range,
    slice,
    property,
    memoryview,
    dt.tzinfo,
    re.Pattern,
    contextvars.ContextVar,
    contextvars.Token,
    type(functools.lru_cache(len)),
    type(...),
    type(NotImplemented),
)
"""Types of objects that hold nothing that a step could change."""

_NOT_OPENED = ("typing", "stepwise")  # packages


class Whole(NamedTuple):
    """The way to read and write contents as a whole.

    Args:
        read: returns the contents of an object as data that no other code changes.
        write: restores contents that ``read`` returned; ``None`` if they cannot be restored.
        size: returns about how many bytes ``read`` copies.
        same: compares an object with earlier contents; by default, the object is read for that.
        shape: returns the properties of contents that ``write`` cannot change.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object] | None = None
    size: Callable[[Any], int] = lambda _: 64
    same: Callable[[Any, Any], bool] | None = None
    shape: Callable[[Any], Any] = lambda _: None

    def is_same(self, obj: Any, before: Any) -> bool:
        """Return whether an object still has its earlier contents."""
        return self.same(obj, before) if self.same is not None else self.read(obj) == before


class Layout(NamedTuple):
    """The facets in which objects of a class hold contents.

    Args:
        items: the builtin type of their items: list, dict, set, deque, tuple, frozenset.
        attributes: whether the objects have a ``__dict__``.
        slots: the descriptors of their slots by name.
        whole: the way to read contents that are read as a whole.
        held: returns other objects that an object holds, each with its step of a path.
        foreign: whether the class comes from an installed package.
        opaque: whether the objects hold something that cannot be read.
    """

    items: type | None = None
    attributes: bool = False
    slots: tuple[tuple[str, Any], ...] = ()
    whole: Whole | None = None
    held: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None
    foreign: bool = False
    opaque: bool = False


def _cells_in(function: Any) -> Iterable[tuple[Any, Any]]:
    if is_foreign_module(getattr(function, "__module__", None) or "builtins"):
        return
    plain = as_function(function) or function  # the undecorated function of a step or workflow
    for each in {id(plain): plain, id(function): function}.values():
        for name, cell in captured(each).items():
            yield ("cell", name), cell


LEAF, _OPAQUE = Layout(), Layout(opaque=True)
_OPENED: dict[type, Layout] = {
    types.SimpleNamespace: Layout(attributes=True),
    types.MethodType: Layout(held=lambda method: [(("self",), method.__self__)]),
    functools.partial: Layout(
        held=lambda each: [
            (("args",), each.args),
            (("keywords",), each.keywords),
            (("func",), each.func),
        ]
    ),
    types.FunctionType: Layout(held=_cells_in),
    types.MappingProxyType: LEAF,
}


def layout_of(cls: Any) -> Layout:
    """Return the layout of the objects of a class.

    Objects of a class that is declared as a client (``stepwise.identity``) count as leaves.
    """
    layout = _layout_of(cls)
    return LEAF if layout.whole is None and fields_of(cls) is not None else layout


@functools.lru_cache(maxsize=4096)
def _layout_of(cls: Any) -> Layout:
    if cls in ATOMS or issubclass(cls, _LEAVES) or is_constant(cls):
        return LEAF
    if cls.__module__.partition(".")[0] in _NOT_OPENED:
        return LEAF
    if cls in _OPENED:
        return _OPENED[cls]
    whole = _whole_of(cls)
    if whole is not None:
        return Layout(whole=whole, opaque=whole.write is None)
    base = own_layout(cls)
    if base is None or (base not in _ITEMS and not issubclass(base, BaseException)):
        return _OPAQUE
    return Layout(
        items=_ITEMS.get(base),
        attributes=cls.__dictoffset__ != 0,
        slots=slots_in(cls),
        whole=_BYTES if base is bytearray else None,
        foreign=base is not cls and is_foreign(cls),
    )


_ITEMS: dict[type, Any] = {
    **{each: each for each in (list, dict, set, tuple, frozenset, collections.deque)},
    collections.OrderedDict: collections.OrderedDict,
    collections.defaultdict: dict,
    **dict.fromkeys((object, bytearray, int, float, str, bytes, complex)),
}
"""The builtin classes whose subclasses are opened, each with the type of its items."""


# -- contents that are read as a whole -----------------------------------------------------------


def _refill(live: Any, content: Any) -> None:
    live[:] = content


def _refill_text(live: Any, content: tuple[int, Any]) -> None:
    place, text = content
    live.seek(0)
    live.truncate()
    live.write(text)
    live.seek(place)


_BYTES = Whole(bytes, _refill, len, lambda live, before: bytearray.__eq__(live, before) is True)
_FILE = Whole(lambda each: (each.tell(), each.getvalue()), _refill_text)


def _whole_of(cls: Any) -> Whole | None:
    """Return the way to read objects of a class as a whole, or ``None``."""
    if issubclass(cls, (io.StringIO, io.BytesIO)):
        return _FILE
    for module, found in _OF_MODULES.items():
        if module in sys.modules and (whole := found(cls)) is not None:
            return whole
    if cls in OF_ITERATORS or cls.__name__ in _PROGRESS or issubclass(cls, io.IOBase):
        return Whole(_progress_of)
    return None


def _of_array(cls: Any) -> Whole | None:
    arrays: Any = sys.modules["array"]
    if not issubclass(cls, arrays.array):
        return None
    return Whole(
        lambda each: arrays.array(each.typecode, each), _refill, lambda each: 8 * len(each)
    )


def _of_queue(cls: Any) -> Whole | None:
    queues: Any = sys.modules["queue"]
    return Whole(lambda each: [*each.queue]) if issubclass(cls, queues.Queue) else None


def _of_random(cls: Any) -> Whole | None:
    random: Any = sys.modules["random"]
    if not issubclass(cls, random.Random) or issubclass(cls, random.SystemRandom):
        return None
    return Whole(random.Random.getstate, random.Random.setstate)


def _of_numpy(cls: Any) -> Whole | None:
    numpy: Any = sys.modules["numpy"]
    if issubclass(cls, numpy.ndarray):
        return Whole(
            _array_copy,
            _array_fill,
            lambda each: int(each.nbytes),
            _array_same,
            lambda content: (content.shape, content.dtype),
        )
    generators: Any = sys.modules.get("numpy.random")
    if generators is None:
        return None
    if issubclass(cls, generators.Generator):
        return _of_generator(lambda each: each.bit_generator)
    if issubclass(cls, generators.BitGenerator):
        return _of_generator(lambda each: each)
    if issubclass(cls, generators.RandomState):
        return Whole(
            lambda each: apart(each.get_state(legacy=False)),
            lambda each, state: each.set_state(together(state)),
        )
    return None


def _of_generator(bits: Callable[[Any], Any]) -> Whole:
    return Whole(
        lambda each: apart(bits(each).state),
        lambda each, state: setattr(bits(each), "state", together(state)),
    )


def _array_copy(array: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.array(array, copy=True, subok=False)


def _array_same(array: Any, before: Any) -> bool:
    if array.shape != before.shape or array.dtype != before.dtype:
        return False
    if array.dtype.hasobject:
        one, other = array.ravel().tolist(), before.ravel().tolist()
        return all(a is b for a, b in zip(one, other, strict=True))
    numpy: Any = sys.modules["numpy"]
    now, then = numpy.asarray(array), before
    if now.flags.c_contiguous and then.flags.c_contiguous:
        return bool(
            memoryview(now.reshape(-1).view("u1")) == memoryview(then.reshape(-1).view("u1"))
        )
    return bool(now.tobytes() == then.tobytes())


def _array_fill(array: Any, content: Any) -> None:
    if array.shape != content.shape or array.dtype != content.dtype:
        raise ValueError("it has another shape or type now")
    array[...] = content


def _of_pandas(cls: Any) -> Whole | None:
    pandas: Any = sys.modules["pandas"]
    if not issubclass(cls, (pandas.DataFrame, pandas.Series)):
        return None
    return Whole(
        _table_copy,
        _table_fill,
        _table_size,
        lambda table, before: _table_apart(table) == before,
        _table_shape,
    )


def _table_size(table: Any) -> int:
    sizes = table.memory_usage(index=False)
    cells = sum(each.hasobject for each in _types_of(table)) * len(table)
    copied: int = int(getattr(sizes, "sum", lambda: sizes)()) + 50 * cells
    return copied


def _table_shape(content: Disassembled) -> Any:
    made = together(content)
    names = [*made.columns] if made.ndim > 1 else made.name
    return type(made), made.shape, names, apart(made.index)


def _types_of(table: Any) -> list[Any]:
    numpy: Any = sys.modules["numpy"]
    types_ = [table.dtype] if table.ndim == 1 else list(table.dtypes)
    return [each for each in types_ if isinstance(each, numpy.dtype)]


def _table_apart(table: Any) -> Disassembled:
    kinds = [table.dtype] if table.ndim == 1 else list(table.dtypes)
    fast = [type(e).__name__ == "StringDtype" or not getattr(e, "hasobject", True) for e in kinds]
    return apart(table, fast=all(fast) and not table.attrs)


def _table_copy(table: Any) -> Disassembled:
    head, buffers = _table_apart(table)
    return Disassembled(head, tuple(map(bytes, buffers)))


def _table_fill(table: Any, content: Disassembled) -> None:
    made = together(content, map(bytearray, content.buffers))
    if type(made) is not type(table) or made.shape != table.shape:
        raise ValueError("it has another shape now")
    if not made.index.equals(table.index):
        raise ValueError("it has another index now")
    if not hasattr(table, "columns"):
        table.iloc[:] = made
    elif made.columns.equals(table.columns):
        for place in range(made.shape[1]):
            table.isetitem(place, made.iloc[:, place])
    else:
        raise ValueError("it has other columns now")
    table.attrs = made.attrs


_OF_MODULES: dict[str, Callable[[Any], Whole | None]] = {
    "array": _of_array,
    "queue": _of_queue,
    "random": _of_random,
    "numpy": _of_numpy,
    "pandas": _of_pandas,
}


def _changes_in_memory(connection: Any) -> int | None:
    """Return how often SQLite changed a database; ``None`` for one in a file, which keeps that."""
    cursor = sys.modules["sqlite3"].Cursor(connection)  # without the user's row factory
    if any(file for _, _, file in cursor.execute("PRAGMA database_list")):
        return None
    changes: int = connection.total_changes
    return changes


_PROGRESS: dict[str, Callable[[Any], Any]] = {
    "generator": lambda each: each.gi_frame and each.gi_frame.f_lasti,
    "coroutine": lambda each: each.cr_frame and each.cr_frame.f_lasti,
    "async_generator": lambda each: each.ag_frame and each.ag_frame.f_lasti,
    **dict.fromkeys(
        (
            *("list_iterator", "list_reverseiterator", "tuple_iterator", "str_ascii_iterator"),
            *("str_iterator", "bytes_iterator", "range_iterator", "longrange_iterator"),
        ),
        lambda each: each.__reduce__()[2:],
    ),
    **dict.fromkeys(
        ("dict_keyiterator", "dict_valueiterator", "dict_itemiterator", "set_iterator"),
        lambda each: each.__length_hint__(),
    ),
    "Connection": _changes_in_memory,
    "Tensor": lambda each: getattr(each, "_version", None),
}
"""Functions that read the progress of objects that cannot be restored, by class name."""


def _progress_of(obj: Any) -> Any:
    """Return the progress of an object that can be read but not restored."""
    try:
        if type(obj) is itertools.count:
            return repr(obj)  # from Python 3.12 on, reducing it is deprecated
        if type(obj) in OF_ITERATORS:
            return _progress_in(obj.__reduce__()[1:])
        read = _PROGRESS.get(type(obj).__name__)
        if read is not None:
            return read(obj)
        return (obj.closed, obj.tell() if not obj.closed and obj.seekable() else None)
    except Exception:  # an unrelated class with such a name
        return None


def _progress_in(part: Any) -> Any:
    """Return the progress of the iterators in a part of what an iterator reduces to."""
    if type(part) is tuple:
        return tuple(map(_progress_in, part))
    if type(part) in ATOMS:
        return part
    return _progress_of(part) if hasattr(type(part), "__next__") else None


def _items_of(layout: Layout, obj: Any) -> Sequence[Any]:
    """Return the items of an object in order; for a mapping, all keys and then all values."""
    base: Any = layout.items
    if base is dict or base is collections.OrderedDict:
        return [*base.keys(obj), *base.values(obj)]
    return [*base.__iter__(obj)]


def _attributes_of(layout: Layout, obj: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, without calling code of its class."""
    held = dict_of(obj) if layout.attributes else {}
    return {**held, **slot_values(obj, layout.slots)}


# -- snapshots ------------------------------------------------------------------------------------


Path = tuple[Any, ...]
"""The name of a root, and steps: ``("attr", name)``, ``("item", index)``, ``("key", key)``, ..."""

_MOST = 200_000  # objects: reading this many takes about 20 ms
_MOST_BYTES = 64 << 20  # of contents that are copied as a whole: copying takes about 20 ms as well
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
        now = _attributes_of(layout, obj)
        return len(now) != len(before) or any(
            name not in before or before[name] is not value for name, value in now.items()
        )
    held = _items_of(layout, obj)
    if layout.items is set:
        return len(held) != len(before) or set(map(id, held)) != set(map(id, before))
    return len(held) != len(before) or not all(map(is_, held, before))


class Snapshot:
    """A copy by reference of the contents of some objects, at any depth.

    Args:
        roots: the objects by name: arguments, ``self``, cells of captured variables.
        most, most_bytes: how many objects, and bytes that are copied as a whole, are watched.

    Attributes:
        unwatched: objects that are not watched, by id, each with the reason; usually none.
    """

    def __init__(
        self, roots: Mapping[str, Any], most: int = _MOST, most_bytes: int = _MOST_BYTES
    ) -> None:
        self.roots = dict(roots)
        self._most, self._most_bytes = most, most_bytes
        self.unwatched: dict[int, tuple[Any, str]] = {}
        self._blocks: list[_Level] = []
        self._changed: list[Changed] = []
        self._met: dict[int, Any] = {}
        self._bytes = 0
        self._within: set[int] = set()  # ids of the objects inside those of installed packages
        self._has_clients = False
        self._open(self.roots.values())
        if self._has_clients and self._set_clients_apart():
            self.__init__(roots, most, most_bytes)  # type: ignore[misc]
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
            if len(self._met) + len(level) > self._most:
                for each in self.roots.values():
                    self._refuse(each, f"which holds more than {self._most:,} objects")
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
            if self._bytes + size > self._most_bytes:
                self._refuse(
                    each, f"which holds {size >> 20} MB ({self._most_bytes >> 20} are looked at)"
                )
            else:
                self._bytes += size
                block.others.append(Changed(each, layout, "whole", layout.whole.read(each)))
        if layout.items is not None:
            items = _items_of(layout, each)
            found += items
            if layout.items not in (tuple, frozenset):
                block.others.append(Changed(each, layout, "items", items))
        if layout.attributes or layout.slots:
            held = _attributes_of(layout, each)
            found += held.values()
            block.others.append(Changed(each, layout, "attributes", held))
        if layout.held is not None:
            found += [held for _, held in layout.held(each)]
        elif isinstance(each, types.CellType):
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
    if isinstance(obj, types.CellType):
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
            both = [*(_items_of(layout, obj) if held is None else held)]
            yield from _steps_of_dict(both[: len(both) // 2], both[len(both) // 2 :])
        else:
            step = "member" if layout.items.__name__ in ("set", "frozenset") else "item"
            items = _items_of(layout, obj) if held is None else held
            yield from (((step, place), each) for place, each in enumerate(items))
    if layout.attributes or layout.slots:
        attributes = before.get((id(obj), "attributes"))
        if attributes is None:
            attributes = _attributes_of(layout, obj)
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


# -- edits ----------------------------------------------------------------------------------------


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


def _hash(data: Any) -> bytes:
    """Return a digest of 8 bytes."""
    return hashlib.blake2b(data, digest_size=8).digest()


def _form(value: Any) -> Any:
    """Return a short form of a value: an atom, or the class of an object."""
    cls = type(value)
    if cls in ATOMS:
        if cls in (str, bytes) and len(value) > _SHORT:
            data = value.encode("utf-8", "surrogatepass") if cls is str else value
            return cls.__name__, _hash(data)
        return cls.__name__, repr(value)
    return cls.__qualname__, None  # not its contents, which may have changed since then


def _digest(content: Any) -> bytes:
    """Return a digest of whole contents."""
    if type(content) is bytes:
        return _hash(content)
    if getattr(content, "dtype", None) is not None and not content.dtype.hasobject:
        return _hash(content.tobytes())
    if type(content) is Disassembled:
        return _hash(b"".join((content.head, *content.buffers)))
    return _hash(repr(content).encode("utf-8", "surrogatepass"))


def _digest_of_forms(values: Sequence[Any]) -> bytes:
    return _hash(repr([_form(each) for each in values]).encode("utf-8", "surrogatepass"))


# -- sequences -----------------------------------------------------------------------------------


def _sequence(obj: Any, layout: Layout, before: list[Any]) -> Edit:
    """Return the edit of the part of a list or deque that differs."""
    now = _items_of(layout, obj)
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
    items = _items_of(layout_of(type(obj)), obj)
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
    return _named(_attributes_of(layout, obj), before, "attributes")


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
    now = _items_of(layout, obj)
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
    return len(items), _hash("".join(forms).encode("utf-8", "surrogatepass"))


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
    "set": lambda obj, *_: _form_of_members(_items_of(layout_of(type(obj)), obj)),
    "attributes": lambda obj, what, *_: _forms_of_names(
        _attributes_of(layout_of(type(obj)), obj), what[0]
    ),
    "whole": _form_of_whole,
    "cell": lambda obj, *_: _form(cell_content(obj, UNSET)),
}
