"""Layouts: what the objects of a class hold, and how to read and write these contents.

Attributes are read from ``__dict__`` and from slots, items by the methods of the builtin types.  No
code of a user's class is called, neither to read nor to write.
"""

from __future__ import annotations

import collections
import contextvars
import datetime as dt
import enum
import functools
import hashlib
import io
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign, is_foreign_module
from stepwise._identity.identity import as_function, captured
from stepwise._runtime.facts import NamedTuple
from stepwise._values.trees import ATOMS, dict_of, is_constant, own_layout, slot_values, slots_in
from stepwise._values.unpickling import Disassembled, apart, together

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


LEAF, OPAQUE = Layout(), Layout(opaque=True)
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
        return OPAQUE
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


def digest_of(data: Any) -> bytes:
    """Return a digest of 8 bytes."""
    return hashlib.blake2b(data, digest_size=8).digest()


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
    if cls.__name__ in _PROGRESS or issubclass(cls, io.IOBase):
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
        read = _PROGRESS.get(type(obj).__name__)
        if read is not None:
            return read(obj)
        return (obj.closed, obj.tell() if not obj.closed and obj.seekable() else None)
    except Exception:  # an unrelated class with such a name
        return None


def items_of(layout: Layout, obj: Any) -> Sequence[Any]:
    """Return the items of an object in order; for a mapping, all keys and then all values."""
    base: Any = layout.items
    if base is dict or base is collections.OrderedDict:
        return [*base.keys(obj), *base.values(obj)]
    return [*base.__iter__(obj)]


def attributes_of(layout: Layout, obj: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, without calling code of its class."""
    held = dict_of(obj) if layout.attributes else {}
    return {**held, **slot_values(obj, layout.slots)}
