"""Sentinels: objects that a module or class holds under a name, and that only mean themselves.

``UNSET = object()``, ``dataclasses.MISSING``, an SDK's ``NOT_GIVEN``: compared with ``is``, so a
copy of one would be another object.  The name is stored.  Loading gives the object of that name if
its class and attributes are the same, else a copy; so a small object that a module holds as state
comes back as it was, too.

Imports nothing of ours.
"""

from __future__ import annotations

import copyreg
import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["form_of", "found_at", "held_as", "look_for"]

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
_MOST = 4  # attributes
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_OWN_WAYS = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")

_homes: dict[type, list[str]] = {}
"""Modules that hold sentinels of a class, other than the module of the class."""

_looked_at: dict[str, int] = {}
"""Modules that were looked at, and how many names they had."""

_names: dict[str, tuple[int, dict[int, str]]] = {}
"""The names in a module by the ids of what they stand for, and how many there were."""

_in_classes: dict[int, tuple[object, str, str]] = {}
"""Sentinels that classes hold (``class Config: UNSET = object()``), with module and dotted name."""

_bare: dict[int, tuple[object, tuple[str, str] | None]] = {}
"""Instances of ``object`` that were looked for in all modules."""


def found_at(module: str, name: str) -> Any:
    """Return the object that a dotted name in an imported module denotes, or ``None``."""
    found: Any = sys.modules.get(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part, None)
    return found


def look_for(namespace: Mapping[str, Any]) -> None:
    """Note the sentinels that a module holds, and those of the modules that it imports.

    A sentinel may be of a class of somebody else's module.
    """
    for name in (str(namespace.get("__name__")), *_imported(namespace)):
        module = sys.modules.get(name)
        if module is None or _looked_at.get(name) == len(vars(module)):
            continue
        _looked_at[name] = len(vars(module))
        for value in list(vars(module).values()):
            cls = type(value)
            if issubclass(cls, type) and value.__flags__ & _HEAP_TYPE:  # isinstance asks proxies
                _look_into(value)
            elif cls.__flags__ & _HEAP_TYPE and not issubclass(cls, types.ModuleType):
                homes = _homes.setdefault(cls, [])
                if cls.__module__ != name and name not in homes:
                    homes.append(name)


def _look_into(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        made = type(value)
        if issubclass(made, type) and value.__qualname__ == f"{cls.__qualname__}.{name}":
            _look_into(value)
        elif made is object or (made.__flags__ & _HEAP_TYPE and not issubclass(made, type)):
            _in_classes[id(value)] = value, cls.__module__, f"{cls.__qualname__}.{name}"


def _imported(namespace: Mapping[str, Any]) -> list[str]:
    names = {value.__name__ for value in namespace.values() if type(value) is types.ModuleType}
    return [n for n in names if n.partition(".")[0] not in sys.stdlib_module_names]


def held_as(value: Any) -> tuple[str, str] | None:
    """The module and the name under which it holds this very object, if it is a sentinel."""
    cls = type(value)
    if cls is object:
        return _held_bare(value)
    if cls.__module__ == "builtins" or not cls.__flags__ & _HEAP_TYPE:
        return None
    if not _has_name(cls):  # the class itself would be a copy: that of a lock, say
        return None
    for module in (cls.__module__, *_homes.get(cls, ())):
        name = _name_in(module, value)
        if name is not None:
            return (module, name) if _state_of(value) is not None else None
    place = _in_class(value)
    return place if place is not None and _state_of(value) is not None else None


def _has_name(cls: type) -> bool:
    """Return whether the module of a class holds it under its name."""
    return found_at(cls.__module__, cls.__qualname__) is cls


def _held_bare(value: object) -> tuple[str, str] | None:
    known = _bare.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    if (place := _in_class(value)) is not None:
        return place
    for module in list(sys.modules):
        name = _name_in(module, value)
        if name is not None:
            place = module, name
            break
    if len(_bare) > 1000:  # a program that creates them again and again
        _bare.clear()
    _bare[id(value)] = value, place
    return place


def _in_class(value: object) -> tuple[str, str] | None:
    found = _in_classes.get(id(value))
    if found is None or found[0] is not value or found_at(*found[1:]) is not value:
        return None
    return found[1:]


def _name_in(module: str, value: object) -> str | None:
    held = getattr(sys.modules.get(module), "__dict__", None)
    if type(held) is not dict:
        return None
    size, names = _names.get(module, (-1, {}))
    if size != len(held):
        names = {id(each): name for name, each in list(held.items())}
        _names[module] = len(held), names
    name = names.get(id(value))
    return name if name is not None and held.get(name) is value else None


def _state_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object; ``None`` if they are many, or no atoms."""
    cls: Any = type(value)
    own = cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__
    if own or any(getattr(cls, n, None) is not getattr(object, n, None) for n in _OWN_WAYS):
        return None
    slots = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    state = dict(getattr(value, "__dict__", ()))
    state.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    small = len(state) <= _MOST and _ATOMS.issuperset(map(type, state.values()))
    return state if small else None


def form_of(value: Any) -> Any:
    """Return a sentinel in reduced form for a pickle, or ``NotImplemented`` for other values."""
    held = held_as(value)
    if held is None:
        return NotImplemented
    state = {} if type(value) is object else _state_of(value)
    return _sentinel, (*held, type(value), state)


def _sentinel(module: str, name: str, cls: Any, state: dict[str, Any]) -> Any:
    """Return the object of that name, or a copy of the stored one."""
    try:
        importlib.import_module(module)
        today = found_at(module, name)
    except Exception:  # the module is gone, or raises whatever it likes
        today = None
    if type(today) is cls and _same(state, {} if cls is object else _state_of(today)):
        return today
    copy = cls.__new__(cls)
    for attribute, value in state.items():
        object.__setattr__(copy, attribute, value)
    return copy


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    if other is None or one.keys() != other.keys():
        return False
    return all(type(one[key]) is type(other[key]) and one[key] == other[key] for key in one)
