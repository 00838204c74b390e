"""The canonical digest of a value: equal values of one type give equal digests, everywhere.

Across processes, hash seeds, dict orders, string interning and machines.  A pickle is not fit for
this (its bytes depend on object identity and on set order), so a value is *encoded* instead:

- an atom is a tag and its bytes;
- a container is a tag and its children, each *folded* to at most 64 bytes (longer encodings are
  replaced by their SHA-256), so that a large value costs no large intermediate copy;
- dicts and sets are ordered by their folded keys;
- an object is its class, by name, and its state: the fields that its ``==`` compares for
  dataclasses, attrs, pydantic and msgspec classes, else what ``copyreg`` would pickle.

What has no such form (a lock, a client, a lambda) raises :class:`~stepwise.errors.DigestError`
with the path to it.  Imports: errors only.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import math
import pathlib
import re
import struct
import sys
import types
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any

from stepwise.errors import DigestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["class_name", "combine", "digest", "encode"]

_FOLD = 64  # bytes; below it an encoding stands for itself
_NOT_STATE = frozenset({"__weakref__", "__dict__"})


def digest(value: object) -> str:
    """Digest ``value`` to 32 hexadecimal digits (128 bits of a SHA-256).

    Raises:
        DigestError: part of it cannot be part of an identity; says which part.
    """
    return hashlib.sha256(encode(value)).hexdigest()[:32]


def combine(*parts: bytes | str) -> str:
    """Digest several strings so that their boundaries count."""
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(_join(b"+", encoded)).hexdigest()[:32]


def encode(value: object) -> bytes:
    """The canonical bytes of ``value``, of which :func:`digest` is the hash."""
    try:
        return _Encoder().encode(value)
    except _UndigestibleError as error:
        path = "".join(reversed(error.path))
        raise DigestError(
            f"{error.reason} (at value{path})" if path else error.reason,
            path=path,
            type_name=error.type_name,
        ) from None
    except RecursionError:
        raise DigestError(
            "the value is nested too deeply to be part of an identity",
            path="",
            type_name=class_name(type(value)),
        ) from None


def class_name(cls: type) -> str:
    """``module.qualname`` of a class or function; the name alone for builtins."""
    module = getattr(cls, "__module__", None)
    name = getattr(cls, "__qualname__", None) or repr(cls)
    return name if module in (None, "builtins") else f"{module}.{name}"


class _UndigestibleError(Exception):
    """Carries the path outwards; each container on the way adds its own piece."""

    def __init__(self, reason: str, type_name: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name
        self.path: list[str] = []


def _fold(encoded: bytes) -> bytes:
    return encoded if len(encoded) <= _FOLD else b"#" + hashlib.sha256(encoded).digest()


def _join(tag: bytes, children: Iterable[bytes]) -> bytes:
    # A folded child has at most 64 bytes, so one byte holds its length: no two lists join alike.
    folded = [child if len(child) <= _FOLD else _fold(child) for child in children]
    return tag + b"".join([bytes((len(child),)) + child for child in folded])


class _Encoder:
    """One encoding.  ``active`` holds the objects being encoded, to see cycles."""

    def __init__(self) -> None:
        self.active: dict[int, int] = {}

    def encode(self, value: Any) -> bytes:
        simple = _ATOMS.get(type(value))
        if simple is not None:
            return simple(value)
        here = id(value)
        if here in self.active:  # a cycle is told by how many levels up it leads
            return b"^%d" % (len(self.active) - self.active[here])
        self.active[here] = len(self.active)
        try:
            container = _CONTAINERS.get(type(value))
            return container(self, value) if container is not None else self.other(value)
        finally:
            del self.active[here]

    # -- containers ----------------------------------------------------------------------------

    def items(self, values: Iterable[Any], label: str = "[{}]") -> list[bytes]:
        encoded: list[bytes] = []
        atoms = _ATOMS
        try:
            for item in values:
                simple = atoms.get(type(item))
                encoded.append(simple(item) if simple is not None else self.encode(item))
        except _UndigestibleError as error:
            error.path.append(label.format(len(encoded)))
            raise
        return encoded

    def list_(self, value: Iterable[Any]) -> bytes:
        return _join(b"l", self.items(value))

    def tuple_(self, value: Iterable[Any]) -> bytes:
        return _join(b"t", self.items(value))

    def set_(self, value: Iterable[Any]) -> bytes:
        return _join(b"{", sorted(map(_fold, self.items(value, "{{...}}"))))

    def pairs(self, value: dict[Any, Any]) -> list[tuple[bytes, bytes]]:
        pairs = []
        for key, item in value.items():
            try:
                pairs.append((_fold(self.encode(key)), _fold(self.encode(item))))
            except _UndigestibleError as error:
                error.path.append(f"[{_short(key)}]")
                raise
        return pairs

    def dict_(self, value: dict[Any, Any]) -> bytes:
        return _join(b"d", [part for pair in sorted(self.pairs(value)) for part in pair])

    def ordered_dict(self, value: dict[Any, Any]) -> bytes:
        # Two OrderedDicts are equal only in the same order.
        return _join(b"D", [part for pair in self.pairs(value) for part in pair])

    def counter(self, value: collections.Counter[Any]) -> bytes:
        # A count of zero is equal to no count.
        return b"C" + self.dict_({key: count for key, count in value.items() if count != 0})

    def defaultdict(self, value: dict[Any, Any]) -> bytes:
        return self.dict_(value)  # the factory is not part of ``==``

    def deque(self, value: Iterable[Any]) -> bytes:
        return b"Q" + self.list_(value)  # nor is maxlen

    # -- everything else -----------------------------------------------------------------------

    def other(self, value: Any) -> bytes:
        for known, form in _BASES:
            if isinstance(value, known):
                return form(value)
        for applies, method in _FAMILIES:
            if applies(value):
                return method(self, value)
        return self.reduced(value)

    def enum(self, value: enum.Enum) -> bytes:
        name = value.name
        content = self.encode(value.value) if name is None or "|" in name else name.encode()
        return _join(b"e", [class_name(type(value)).encode(), content])

    def fields(self, value: Any, names: Iterable[str]) -> bytes:
        parts = [class_name(type(value)).encode()]
        for name in names:
            parts += [name.encode(), self.attribute(value, name)]
        return _join(b"o", parts)

    def attribute(self, value: Any, name: str) -> bytes:
        try:
            return self.encode(getattr(value, name, None))
        except _UndigestibleError as error:
            error.path.append(f".{name}")
            raise

    def dataclass(self, value: Any) -> bytes:
        return self.fields(value, [f.name for f in dataclasses.fields(value) if f.compare])

    def attrs(self, value: Any) -> bytes:
        return self.fields(value, [a.name for a in value.__attrs_attrs__ if a.eq])

    def msgspec(self, value: Any) -> bytes:
        return self.fields(value, value.__struct_fields__)

    def pydantic(self, value: Any) -> bytes:
        state = dict(value.__dict__)
        for extra in ("__pydantic_extra__", "__pydantic_private__"):
            state.update(getattr(value, extra, None) or {})
        try:
            return _join(b"o", [class_name(type(value)).encode(), self.dict_(state)])
        except _UndigestibleError as error:
            if error.path:  # ['field'] reads as .field
                error.path[-1] = "." + error.path[-1].strip("[]'\"")
            raise

    def namedtuple(self, value: Any) -> bytes:
        return _join(b"o", [class_name(type(value)).encode(), *self.items(value)])

    def array(self, value: Any) -> bytes:
        """A numpy array or scalar: element type, shape, elements in C order, little-endian."""
        import numpy as np  # loaded already: the value is one of its own

        array = np.asarray(value)
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise _UndigestibleError(
                f"{_a(value)} is a special kind of array; convert it with numpy.asarray first",
                class_name(type(value)),
            )
        kind = b"n" if isinstance(value, np.generic) else b"a"
        shape = self.tuple_(array.shape)
        if array.dtype.hasobject:
            return _join(kind, [b"O", shape, self.list_(array.ravel().tolist())])
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if array.dtype.kind in "fc":
            array = array + 0  # -0.0 == 0.0
        name = repr(array.dtype.descr).encode()
        return _join(kind, [name, shape, hashlib.sha256(array.data).digest()])

    def pandas(self, value: Any) -> bytes:
        from pandas.util import hash_pandas_object  # loaded already: the value is one of its own

        name = class_name(type(value))
        try:
            parts = [name.encode(), self.array(hash_pandas_object(value).to_numpy())]
        except TypeError as error:  # a column of lists, say
            raise _UndigestibleError(f"{_a(value)} cannot be hashed ({error})", name) from None
        if hasattr(value, "dtypes") and hasattr(value, "columns"):
            parts += [self.list_(value.columns), self.list_(str(t) for t in value.dtypes)]
        else:
            parts += [self.encode(value.name), str(value.dtype).encode()]
        return _join(b"p", parts)

    def function(self, value: Any) -> bytes:
        """A function is its name, if that name leads back to it."""
        found: Any = sys.modules.get(getattr(value, "__module__", None) or "builtins")
        for name in value.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is not value and getattr(found, "__wrapped__", None) is not value:
            raise _UndigestibleError(
                f"{_a(value)} named {value.__qualname__!r} has no importable name, so that two of "
                "them cannot be told apart",
                class_name(type(value)),
            )
        return b"F" + class_name(value).encode()

    def method(self, value: types.MethodType) -> bytes:
        return _join(b"M", [value.__name__.encode(), self.encode(value.__self__)])

    def partial(self, value: functools.partial[Any]) -> bytes:
        return _join(b"P", self.items((value.func, value.args, value.keywords)))

    def reduced(self, value: Any) -> bytes:
        """Class and state of an ordinary object, as pickle protocol 2 would take it apart."""
        try:
            form = value.__reduce_ex__(2)
        except Exception as error:
            raise _UndigestibleError(
                f"{_a(value)} cannot be part of an identity ({error})", class_name(type(value))
            ) from None
        if isinstance(form, str):
            return b"G" + class_name(type(value)).encode() + b"." + form.encode()
        make, args, state, items, pairs = (*form, None, None, None)[:5]
        parts = [class_name(type(value)).encode()]
        if make not in (copyreg.__newobj__, copyreg._reconstructor):  # type: ignore[attr-defined]
            parts.append(self.function(make))
        parts.append(self.tuple_(a for a in args if a is not type(value)))
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] or {}), **state[1]}  # __dict__ and __slots__
        if isinstance(state, dict):
            parts.append(self.state(state))
        elif state is not None:
            parts.append(self.encode(state))
        parts.append(self.list_(items or ()))
        parts.append(self.dict_(dict(pairs or ())))
        return _join(b"o", parts)

    def state(self, state: dict[str, Any]) -> bytes:
        pairs: list[tuple[bytes, bytes]] = []
        for name, item in state.items():
            if name in _NOT_STATE:
                continue
            try:
                pairs.append((_fold(self.encode(name)), _fold(self.encode(item))))
            except _UndigestibleError as error:
                error.path.append(f".{name}")
                raise
        return _join(b"d", [part for pair in sorted(pairs) for part in pair])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _a(value: object) -> str:
    name = class_name(type(value))
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# -- atoms -------------------------------------------------------------------------------------


def _int(value: int) -> bytes:
    return b"i" + format(value, "x").encode()  # hexadecimal: no limit on the number of digits


def _float(value: float) -> bytes:
    return b"fnan" if math.isnan(value) else b"f" + struct.pack(">d", value + 0.0)  # -0.0 == 0.0


def _str(value: str) -> bytes:
    return b"s" + value.encode("utf-8", "surrogatepass")


def _decimal(value: decimal.Decimal) -> bytes:
    if not value.is_finite():
        return b"m" + str(value).encode()
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    assert isinstance(exponent, int)
    if not stripped:
        return b"m0"
    return b"m%d:%s:%d" % (sign, stripped.encode(), exponent + len(text) - len(stripped))


def _datetime(value: dt.datetime) -> bytes:
    if value.utcoffset() is not None:  # aware ones are equal when their instant is
        with contextlib.suppress(OverflowError):  # within a day of year 1 or 9999
            value = value.astimezone(dt.timezone.utc)
    return b"w" + value.isoformat().encode()


def _time(value: dt.time) -> bytes:
    offset = value.utcoffset()
    if offset is None:
        return b"h" + value.isoformat().encode()
    clock = dt.timedelta(
        hours=value.hour,
        minutes=value.minute,
        seconds=value.second,
        microseconds=value.microsecond,
    )
    return b"z" + repr(clock - offset).encode()


def _path(value: pathlib.PurePath) -> bytes:
    windows = isinstance(value, pathlib.PureWindowsPath)
    return b"\\" + _str(str(value).lower()) if windows else b"/" + _str(str(value))


def _range(value: range) -> bytes:
    content = (len(value), value.start if value else 0, value.step if len(value) > 1 else 0)
    return b"r%d:%d:%d" % content


def _zone(value: zoneinfo.ZoneInfo) -> bytes:
    if value.key is None:
        raise _UndigestibleError("a ZoneInfo made from a file has no name", "zoneinfo.ZoneInfo")
    return b"Z" + value.key.encode()


def _class(value: type) -> bytes:
    if "<locals>" in value.__qualname__:
        raise _UndigestibleError(
            f"the class {value.__qualname__!r} is made inside a function, so that two of them "
            "cannot be told apart",
            "type",
        )
    return b"c" + class_name(value).encode()


_ATOMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"!",
    int: _int,
    float: _float,
    str: _str,
    bytes: lambda value: b"b" + value,
    bytearray: lambda value: b"B" + bytes(value),
    memoryview: lambda value: b"v" + value.tobytes(),
    complex: lambda value: b"x" + _float(value.real) + b"," + _float(value.imag),
    type(Ellipsis): lambda _: b".",
    type(NotImplemented): lambda _: b"~",
    decimal.Decimal: _decimal,
    fractions.Fraction: lambda value: b"g%x/" % value.denominator + _int(value.numerator),
    uuid.UUID: lambda value: b"u" + value.bytes,
    dt.datetime: _datetime,
    dt.date: lambda value: b"y" + value.isoformat().encode(),
    dt.time: _time,
    dt.timedelta: lambda value: b"q" + repr(value).encode(),
    dt.timezone: lambda value: b"k" + repr(value.utcoffset(None)).encode(),
    zoneinfo.ZoneInfo: _zone,
    range: _range,
}

_CONTAINERS: dict[type, Callable[[_Encoder, Any], bytes]] = {
    list: _Encoder.list_,
    tuple: _Encoder.tuple_,
    dict: _Encoder.dict_,
    set: _Encoder.set_,
    frozenset: _Encoder.set_,
    collections.OrderedDict: _Encoder.ordered_dict,
    collections.defaultdict: _Encoder.defaultdict,
    collections.Counter: _Encoder.counter,
    collections.deque: _Encoder.deque,
    functools.partial: _Encoder.partial,
    types.MethodType: _Encoder.method,
}

_BASES: tuple[tuple[type | tuple[type, ...], Callable[[Any], bytes]], ...] = (
    (pathlib.PurePath, _path),
    (type, _class),
    (types.ModuleType, lambda value: b"L" + value.__name__.encode()),
    (re.Pattern, lambda value: b"R%d:" % value.flags + encode(value.pattern)),
    (slice, lambda value: b":" + encode((value.start, value.stop, value.step))),
)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _is_table(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index))


def _has(name: str) -> Callable[[Any], bool]:
    return lambda value: hasattr(type(value), name)


# Asked in this order; the first that applies decides.
_FAMILIES: tuple[tuple[Callable[[Any], bool], Callable[[_Encoder, Any], bytes]], ...] = (
    (lambda value: isinstance(value, enum.Enum), _Encoder.enum),
    (_is_array, _Encoder.array),
    (_is_table, _Encoder.pandas),
    (_has("__pydantic_validator__"), _Encoder.pydantic),
    (_has("__dataclass_fields__"), _Encoder.dataclass),
    (_has("__attrs_attrs__"), _Encoder.attrs),
    (_has("__struct_fields__"), _Encoder.msgspec),
    (lambda value: isinstance(value, tuple) and hasattr(value, "_fields"), _Encoder.namedtuple),
    (
        lambda value: isinstance(value, (types.FunctionType, types.BuiltinFunctionType)),
        _Encoder.function,
    ),
)
