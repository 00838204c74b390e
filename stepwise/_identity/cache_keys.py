"""Keys of calls for results that outlive the program: the code counts, as the values do.

Within a run, code that was edited since is reported.  A cache has nobody to report to, so a key
holds everything that decides about the result of a pure function: its arguments, its instance, its
captured variables, the code that it reaches, the variables of modules that this code reads, and the
code of each object, class and function among these values.  What cannot be told has no key.

Code sees more than ``==`` compares: the order of a dict, the sign of a zero, the zone of a time, a
field with ``compare=False``, and whether two names mean one object.  All of this counts.  Whether
Python makes one object or two of equal constants is left open to it, so a tuple or a text has no
identity of its own.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from inspect import unwrap
from traceback import format_exception
from typing import Any, ClassVar

from stepwise._identity.call_parts import shape_digest
from stepwise._identity.clients import (
    declared,
    fields_of,
    held_by,
    is_foreign,
    is_foreign_module,
)
from stepwise._identity.following import Code, code_of
from stepwise._identity.identity import Lenient
from stepwise._values.digest import ATOMS, DECORATED, class_name, fold, join, string

_HANDLES = {"_thread", "asyncio", "concurrent", "logging", "threading"}
_PLAIN_HANDLES = {*_HANDLES, "anyio"}  # their fields tell all that code sees of them
_OF_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _exactly(number: float) -> bytes:
    return fold(b"V" + number.hex().encode())


def _by_text(value: object) -> bytes:
    return join(b"V", [string(class_name(type(value))), string(repr(value))])


class _Coded(Lenient):
    """An encoder of values with their code.

    Attributes:
        untold: why there is no key; empty if there is one.
    """

    grows = False
    compares = False
    atoms: ClassVar = {
        **Lenient.atoms,
        float: _exactly,
        **dict.fromkeys((complex, range, dt.timezone), _by_text),
    }

    def __init__(self, around: Sequence[object]) -> None:
        super().__init__(around, masking=False)
        self.list_tag = b"V"  # no list is digested as another encoder would
        self.exactly = True
        self.untold = ""
        self._told: dict[Code | type, list[bytes]] = {}
        self._numbers: dict[int, tuple[object, int]] = {}

    def rules(self, value: Any) -> None:
        """Return no rules: volatile fields and ids count, too."""

    def encode(self, value: Any) -> bytes:
        """Encode a value, and for an object that was met before, which one it is."""
        cls: Any = type(value)
        exact = self.atoms.get(cls) or _EXACT.get(f"{cls.__module__}.{cls.__qualname__}")
        if exact is not None:
            return exact(value)
        encoded = super().encode(value)
        if issubclass(cls, dict):
            order = [self.encode(key) for key in dict.keys(value)]
            factory = self.encode(getattr(value, "default_factory", None))
            encoded = join(b"V", [encoded, factory, *order])
        elif issubclass(cls, deque):
            encoded = join(b"V", [encoded, self.encode(value.maxlen)])
        elif issubclass(cls, (dt.datetime, dt.time)):
            text = string(f"{value.isoformat()} {value.fold}")
            encoded = join(b"V", [encoded, text, self.encode(value.tzinfo)])
        elif issubclass(cls, BaseException):
            encoded = join(b"V", [encoded, string("".join(format_exception(value)))])
        # Items of a set have no order, so they are not numbered: self.numbering is None then.
        if cls in ATOMS or issubclass(cls, _WITHOUT_IDENTITY) or self.numbering is None:
            return encoded
        known = self._numbers.get(id(value))
        if known is None:
            self._numbers[id(value)] = value, len(self._numbers)
            return encoded
        return join(b"V", [encoded, b"%d" % known[1]])

    def object(self, value: Any) -> bytes:
        """Encode an object with the code of its class."""
        cls: Any = type(value)
        if cls is types.ModuleType and not is_foreign_module(value.__name__):
            self.untold = self.untold or f"the module {value.__name__} is among its values"
        elif cls is types.BuiltinFunctionType and not isinstance(value.__self__, _PLACES):
            return join(b"V", [string(value.__name__), self.encode(value.__self__)])
        elif cls is types.MappingProxyType:
            return join(b"V", [self.encode({**value})])
        elif _is_of_stepwise(value):
            return join(b"V", [string(cls.__qualname__)])  # no cached call makes other steps
        elif cls is types.FunctionType:
            return self.code(value)
        elif cls.__module__ == "random":
            self.untold = self.untold or "a random generator is among its values"
        elif cls is _CachedFunction:
            return self.encode(value.__wrapped__)
        encoded = super().object(value) if declared(cls) is not None else self._undeclared(value)
        return join(b"V", [encoded, *self._methods(cls)])

    def _undeclared(self, value: Any) -> bytes:
        """Encode an object without declared fields: a client counts by all that it holds."""
        cls: Any = type(value)
        held = held_by(value)
        if held is not None:
            return join(b"V", [string(class_name(cls)), self.dict_({**held})])
        if fields_of(cls) is not None and _root(cls) not in _PLAIN_HANDLES:
            self.unknown.append(value)  # the known fields do not tell all
        return super().object(value)

    def class_(self, cls: type) -> bytes:
        """Encode a class with its code."""
        return join(b"V", [super().class_(cls), *self._methods(cls)])

    def code(self, function: types.FunctionType) -> bytes:
        """Encode a function with its code, attributes, captured variables and defaults."""
        encoded = super().code(function)
        if is_foreign_module(function.__module__ or "") and not _is_generated(function):
            return encoded
        own = {n: each for n, each in vars(function).items() if not n.startswith("__")}
        told = self.told(code_of(function), function.__qualname__)  # of what it wraps
        shape = string(shape_digest(function) if hasattr(function, "__wrapped__") else "")
        return join(b"V", [encoded, self.dict_(own), shape, *told])

    def told(self, code: Code | None, name: str) -> list[bytes]:
        """Return the encodings of code and of the variables that it reads."""
        if code is None:
            self.untold = self.untold or _UNKNOWN.format(name)
            return []
        if code not in self._told:
            self._told[code] = [string(code.id)]  # for the values that hold objects with this code
            read = [*code.values, *((name, space) for name, space, _, _ in code.held)]
            values = {f"{space.get('__name__')}.{name}": space.get(name) for name, space in read}
            self._told[code] = [string(code.id), self._of_modules(values)]
        return self._told[code]

    def _of_modules(self, values: dict[str, Any]) -> bytes:
        """Encode variables of modules and classes, where clients and locks count by their class."""
        unknown = len(self.unknown)
        encoded = self.dict_(values)
        self.unknown[unknown:] = [each for each in self.unknown[unknown:] if not _is_client(each)]
        return encoded

    def _methods(self, cls: type) -> list[bytes]:
        if cls not in self._told:
            self._told[cls] = []  # for constants that hold objects of the class
            told: list[bytes] = []
            for base in cls.__mro__:
                if not is_foreign(base):
                    told += self.told(code_of(base), base.__qualname__)
                    told.append(self._of_modules(_attributes(base)))
            self._told[cls] = told
        return self._told[cls]


def _is_client(value: object) -> bool:
    """Return whether the class of a value tells enough of it: a client, a lock, a logger."""
    cls, root = type(value), _root(type(value))
    return cls is not threading.local and (
        root in _HANDLES if root in sys.stdlib_module_names else is_foreign(cls)
    )


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_of_stepwise(value: object) -> bool:
    held = getattr(value, "__dict__", {})
    return DECORATED in held or type(value).__module__.startswith("stepwise")


def _is_generated(function: Any) -> bool:
    file: str = function.__code__.co_filename
    return file.startswith(("<string>", "<attrs "))


def _attributes(cls: type) -> dict[str, Any]:
    """Return what the attributes of a class hold, its methods with what they captured."""
    held: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if name in ("__dataclass_fields__", "__pydantic_fields__"):
            fields = [(each.default, each.default_factory) for each in value.values()]
            held[name] = [each for both in fields for each in both if each is not MISSING]
            continue
        inner = getattr(value, "__func__", getattr(value, "func", value))
        parts = (inner.fget, inner.fset, inner.fdel) if isinstance(inner, property) else (inner,)
        for number, each in enumerate(parts):
            if isinstance(each, types.FunctionType):
                is_made = name.startswith("__") and _is_generated(unwrap(each))
                held[f"{name} {number}"] = each.__defaults__ if is_made else each
            elif name.startswith("__") or name == "_abc_impl" or isinstance(each, _OF_SLOTS):
                continue
            elif not (hasattr(type(each), "__get__") and is_foreign(type(each))):
                held[f"{name} {number}"] = each
    return held


_EXACT = {"decimal.Decimal": _by_text}
_WITHOUT_IDENTITY = (
    *(tuple, frozenset, type, enum.Enum),
    *(types.ModuleType, types.MethodType, types.BuiltinFunctionType, types.MappingProxyType),
)
_CachedFunction = type(functools.cache(len))
_PLACES = (types.ModuleType, type, type(None))
_UNKNOWN = (
    "it is not known which code {} reads: it may use globals(), importlib or __subclasses__(), a "
    "whole module as a value, a module that is imported later, or a file that was edited"
)


def key_of_values(
    code: Code | None, name: str, values: Mapping[str, Any], around: Sequence[object] = ()
) -> tuple[str, str]:
    """Return the key of a call and an empty text; or an empty key and why there is none.

    Args:
        code: the code of the function.
        name: the name of the function, for the reason.
        values: everything else that counts, by name.
        around: the instance that holds some of the values.
    """
    encoder = _Coded(around)
    told = encoder.told(code, name)
    encoded = join(b"V", [*told, encoder.whole_of(dict(values))])
    if encoder.unknown:
        cls = type(encoder.unknown[0]).__qualname__
        way = "name it in ignore=, or declare its fields with stepwise.identity()"
        return "", f"a {cls} among its arguments or captured values has no digest: {way}"
    return ("", encoder.untold) if encoder.untold else (encoded.hex(), "")
