"""Values without an annotation as JSON: what JSON has no word for carries a tag.

The tags stand for types of the standard library, and for enum members, which are looked up among
the modules that this process has imported.  No constructor of a user's class is called, and nothing
is imported.
"""

from __future__ import annotations

import base64
import builtins
import collections
import datetime as dt
import decimal
import enum
import json
import pathlib
import sys
import uuid
from collections.abc import Callable
from typing import Any

from stepwise._values.comparison import alike, held_twice

__all__ = ["NotDataError", "dump_tagged", "imported", "load_tagged"]

_TAG = "$"  # a dict that has this key is written as pairs
_ATOMS = (str, int, float, bool, type(None))
_FACTORIES: tuple[Any, ...] = (None, list, dict, set, tuple, str, int, float, bool)


class NotDataError(Exception):
    """A value, or a part of it, is not data."""


def dump_tagged(value: Any) -> Any:
    """Return a value as something that ``json`` writes, and that comes back the same.

    Raises:
        NotDataError: says which part of it is not data.
    """
    try:
        written = _write(value)
        again = load_tagged(json.loads(json.dumps(written)))
    except RecursionError:
        raise NotDataError("it is nested too deeply, or contains itself") from None
    except ValueError as error:  # an int of many thousand digits, a broken text
        raise NotDataError(str(error)) from None
    if not alike(value, again):
        raise NotDataError(f"it would come back as {again!r:.80}")
    twice = held_twice(value)
    if twice is not None:
        raise NotDataError(f"it holds one and the same {type(twice).__qualname__} twice")
    return written


def _write(value: Any) -> Any:
    cls = type(value)
    if cls in _ATOMS:
        return value
    if cls is list:
        return [_write(item) for item in value]
    if cls is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: _write(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        name = value.name
        if name is None or imported(cls.__module__, cls.__qualname__) is not cls:
            raise NotDataError(f"{value!r} is not a member of an enum that its module names")
        return {_TAG: "enum", "of": [cls.__module__, cls.__qualname__], "is": name}
    form = _FORMS.get(cls)
    if form is None:
        raise NotDataError(f"{value!r:.60} is a {cls.__module__}.{cls.__qualname__}")
    return {_TAG: form[0], "is": _write(form[1](value))}


def load_tagged(written: Any) -> Any:
    """Return the value that :func:`dump_tagged` wrote.

    Raises:
        LookupError: an enum is not there, or has no such member any more.
    """
    if isinstance(written, list):
        return [load_tagged(item) for item in written]
    if not isinstance(written, dict):
        return written
    tag = written.get(_TAG)
    if tag is None:
        return {key: load_tagged(item) for key, item in written.items()}
    if tag == "enum":
        cls = imported(*written["of"])
        if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
            raise LookupError(f"there is no enum {'.'.join(written['of'])}")
        return cls.__members__[written["is"]]
    return _LOADERS[tag](load_tagged(written["is"]))


def imported(module: str, name: str) -> Any:
    """Return the object of a dotted name in an imported module, or ``None``.

    Only the namespaces of the module and of classes in it are read: a module's ``__getattr__``
    and descriptors may execute anything.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        namespace = getattr(found, "__dict__", None)
        if namespace is None or part not in namespace:
            return None
        found = namespace[part]
    return found


def _time_zone(value: Any) -> Any:
    zone = value.tzinfo
    if zone is not None and type(zone) is not dt.timezone:
        raise NotDataError(f"{value!r:.80} has a time zone of type {type(zone).__qualname__}")
    return value


def _factory(value: collections.defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if not any(factory is each for each in _FACTORIES):
        raise NotDataError(f"the default_factory of a defaultdict is {factory!r:.60}")
    name = factory.__name__ if isinstance(factory, type) else None
    return [name, [[key, item] for key, item in value.items()]]


def _defaultdict(parts: list[Any]) -> Any:
    name, items = parts
    if name is not None and name not in {each.__name__ for each in _FACTORIES if each}:
        raise LookupError(f"{name!r} is no default_factory")
    return collections.defaultdict(getattr(builtins, name) if name else None, items)


def _pairs(value: Any) -> list[Any]:
    return [[key, item] for key, item in value.items()]


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _counter(pairs: list[Any]) -> Any:
    counter: Any = collections.Counter()
    counter.update(dict(map(tuple, pairs)))
    return counter


_Form = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]
_FORMS: dict[type, _Form] = {
    tuple: ("tuple", list, tuple),
    dict: ("dict", _pairs, dict),
    set: ("set", list, set),
    frozenset: ("frozenset", list, frozenset),
    bytes: ("bytes", _base64, base64.b64decode),
    bytearray: ("bytearray", _base64, lambda text: bytearray(base64.b64decode(text))),
    complex: ("complex", lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    dt.datetime: (
        "datetime",
        lambda t: [_time_zone(t).isoformat(), t.fold],
        lambda parts: dt.datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
    ),
    dt.time: (
        "time",
        lambda t: [_time_zone(t).isoformat(), t.fold],
        lambda parts: dt.time.fromisoformat(parts[0]).replace(fold=parts[1]),
    ),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "timedelta",
        lambda t: [t.days, t.seconds, t.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    type(pathlib.Path()): ("path", str, pathlib.Path),
    collections.deque: (
        "deque",
        lambda q: [list(q), q.maxlen],
        lambda parts: collections.deque(*parts),
    ),
    collections.OrderedDict: ("ordered", _pairs, collections.OrderedDict),
    collections.Counter: ("counter", _pairs, _counter),
    collections.defaultdict: ("defaultdict", _factory, _defaultdict),
}
_LOADERS = {tag: load for tag, _, load in _FORMS.values()}
