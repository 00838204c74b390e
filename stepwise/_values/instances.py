"""Objects beyond plain data of which everything is known that a pickle of them would hold.

- An *instance* of a class that was made by a class statement, is found by its name and leaves its
  state to Python: attributes in ``__dict__`` and in slots.  How its state is pickled may be the
  class's own (``__getstate__``), as long as that is made of the very objects that it holds: so it
  is for dataclasses, attrs classes and pydantic's models, and nothing is asked about who made them.
- A *constant*: a member of an enumeration, a moment, a path and the like, which never change.

Whatever else an object may be is not known here, and so it is part of no tree (see ``trees``).
"""

from __future__ import annotations

import copyreg
import enum
import functools
import gc
import struct
import sys
import types
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from stepwise._values.sentinels import held_as

__all__ = [
    "Kind",
    "attributes",
    "by_name",
    "dict_of",
    "is_constant",
    "kind_of",
    "own_layout",
    "slots_in",
    "slots_of",
]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: such instances refer to their class
_POINTER = struct.calcsize("P")
_PROTOCOL = 4
_FRESH = (dict, list, tuple)  # types that a ``__getstate__`` creates
_NAMES = frozenset({str})
_PATHS = ("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
_LEFT_TO_PYTHON = ("__reduce_ex__", "__reduce__", "__getattribute__")
_OWN_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__")
_CONSTANTS = {
    "builtins.complex",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "uuid.UUID",
    "zoneinfo.ZoneInfo",
    *(f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in _PATHS),
}


def by_name(value: Any, module: str = "__main__") -> str | None:
    """The dotted name under which a module holds this very class or function, if it does."""
    name = getattr(value, "__qualname__", None)
    if getattr(value, "__module__", None) != module or not isinstance(name, str):
        return None
    try:
        return name if attrgetter(name)(sys.modules[module]) is value else None
    except (AttributeError, KeyError):
        return None


class Kind(Protocol):
    """The knowledge about instances of one class."""

    constant: bool
    """They never change, and one is as good as an equal one."""

    def parts(self, value: Any) -> Sequence[Any] | None:
        """The objects that one of them holds; ``None`` if it is not known after all."""


def kind_of(cls: Any) -> Kind | None:
    """Return the kind of a class's objects, if the class can be pickled by its name."""
    if by_name(cls, cls.__module__) is None:
        return None
    if issubclass(cls, enum.Enum):
        return _Member()
    if is_constant(cls):
        return _Constant()
    # Some classes of the standard library are pickled in a way of our own (see ``reducers``).
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names or not _pickled_by_state(cls):
        return None
    slots = _slots_of(cls)
    return None if slots is None else _Instance(slots, has_dict=cls.__dictoffset__ != 0)


def is_constant(cls: type) -> bool:
    """Return whether the objects of a class never change: moments, paths and the like."""
    return f"{cls.__module__}.{cls.__qualname__}" in _CONSTANTS


class _Constant:
    constant = True

    def parts(self, value: Any) -> Sequence[Any] | None:
        zone = getattr(value, "tzinfo", None)  # anybody may write a class for it
        return () if zone is None else (zone,)


class _Member:
    constant = True

    def parts(self, value: Any) -> Sequence[Any] | None:
        return () if type(value).__members__.get(value.name) is value else None


class _Instance:
    constant = False

    def __init__(self, slots: list[Any], *, has_dict: bool) -> None:
        self._slots = slots
        self._has_dict = has_dict

    def parts(self, value: Any) -> Sequence[Any] | None:
        if held_as(value) is not None:
            return None  # compared with ``is``: stored by the name that its module has for it
        try:
            inside = [slot.__get__(value) for slot in self._slots]
        except AttributeError:  # which one is set could not be told by what it refers to
            return None
        referents = gc.get_referents(value)
        if type(value) not in referents[-1:] or not _ids(inside) <= _ids(referents):
            return None  # another Python: a watch would not see them
        if self._has_dict:
            attributes = vars(value)
            if not _NAMES.issuperset(map(type, attributes)):
                return None
            inside += attributes.values()
        return inside if _is_whole_state(value, inside) else None


def _ids(values: Sequence[Any]) -> set[int]:
    return set(map(id, values))


def _is_whole_state(value: Any, inside: Sequence[Any]) -> bool:
    """Return whether the pickled state of an instance consists of exactly these objects."""
    held = _ids(inside)
    for each in inside:
        if type(each) is dict:  # attributes that a class keeps in a slot of its own
            held.update(map(id, each.values()))
    try:
        make, _, state, *_ = value.__reduce_ex__(_PROTOCOL)
    except Exception:  # the class's own ``__getstate__`` may raise
        return False
    if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return False
    waiting = [state]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in held:
            continue
        if type(each) not in _FRESH:
            return False
        if type(each) is dict and not _NAMES.issuperset(map(type, each)):
            return False
        held.add(id(each))
        waiting += each.values() if type(each) is dict else each
    return True


def _pickled_by_state(cls: type) -> bool:
    """Return whether instances are pickled as a new object that receives its state."""
    return (
        all(getattr(cls, name) is getattr(object, name) for name in _LEFT_TO_PYTHON)
        and not any(hasattr(cls, name) for name in _OWN_ARGUMENTS)
        and cls not in copyreg.dispatch_table
    )


@functools.lru_cache(maxsize=1000)
def _slots_of(cls: type) -> list[Any] | None:
    """Its slots, if there is nothing in its instances but these and a ``__dict__``."""
    slots: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, attribute in vars(base).items():
            names[name] = attribute
            if type(attribute) is types.MemberDescriptorType:
                if name in slots:
                    return None
                slots[name] = attribute
    pointers = len(slots) + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    if (
        not cls.__flags__ & _HEAP_TYPE
        or cls.__itemsize__
        or cls.__basicsize__ != object.__basicsize__ + _POINTER * pointers  # else it is C's
        or type(names.get("__dict__", _DICT)) is not type(_DICT)
        or any(names[name] is not slot for name, slot in slots.items())
    ):
        return None
    return list(slots.values())


class _Example:
    pass


_DICT = vars(_Example)["__dict__"]


# -- attributes ----------------------------------------------------------------------------------

_NO_ATTRIBUTES: Mapping[str, Any] = {}


def attributes(instance: object) -> dict[str, Any]:
    """Return the attributes of an instance, from ``__dict__`` and from slots."""
    state = dict(getattr(instance, "__dict__", _NO_ATTRIBUTES))
    cls: Any = type(instance)
    for name in slots_of(cls):
        if hasattr(instance, name):
            state[name] = getattr(instance, name)
    return state


@functools.lru_cache(maxsize=1000)
def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class."""
    found = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"  # noqa: PLW2901
            if name not in ("__dict__", "__weakref__"):
                found.append(name)
    return tuple(found)


def dict_of(instance: object) -> dict[str, Any]:
    """Return the ``__dict__`` of an instance itself; no code of its class is called."""
    found: dict[str, Any] = object.__getattribute__(instance, "__dict__")
    return found


@functools.lru_cache(maxsize=4096)
def slots_in(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the slots of a class and its bases, by name, as the descriptors that read them."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update(
            (name, each)
            for name, each in vars(base).items()
            if type(each) is types.MemberDescriptorType and base.__flags__ & _HEAP_TYPE
        )
    return tuple(found.items())


def own_layout(cls: Any) -> type | None:
    """Return the builtin class to which a class adds nothing but slots and a ``__dict__``.

    Returns:
        ``object`` for most classes; ``None`` if a class in between holds something that is laid
        out by C and cannot be looked at.
    """
    while cls.__flags__ & _HEAP_TYPE:
        base = cls.__base__
        slots = sum(
            type(each) is types.MemberDescriptorType and each.__objclass__ is cls
            for each in vars(cls).values()
        )
        pointers = slots + sum(
            getattr(cls, offset) > 0 and getattr(base, offset) <= 0
            for offset in ("__dictoffset__", "__weakrefoffset__")
        )
        fixed = not cls.__itemsize__  # else its size says nothing: a tuple, an int
        if fixed and cls.__basicsize__ != base.__basicsize__ + _POINTER * pointers:
            return None
        cls = base
    found: type = cls
    return found
