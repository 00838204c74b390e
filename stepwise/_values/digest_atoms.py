"""The canonical bytes of single values: numbers, texts, moments; and how encodings are joined.

:mod:`stepwise._values.digest` explains what they are for.  Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import math
import struct
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import decimal
    import fractions

__all__ = [
    "ATOMS",
    "COMMON",
    "FOLD",
    "LENGTH",
    "UndigestibleError",
    "atom",
    "called",
    "class_name",
    "fold",
    "framed",
    "join",
    "lengthened",
    "main_name",
    "name_of",
    "noun",
    "string",
]

FOLD = 64
"""Bytes of an encoding that stands for itself."""
_BLOCK = 1 << 16  # characters of a long text that are encoded at once
LENGTH = [bytes((length,)) for length in range(FOLD + 1)]
"""The byte before an encoding of so many bytes."""


class UndigestibleError(Exception):
    """Carries the path outwards; each container on the way adds its own piece."""

    def __init__(self, reason: str, type_name: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name
        self.path: list[str] = []


def fold(encoded: bytes) -> bytes:
    """Return the encoding itself, or its hash if it is long."""
    return encoded if len(encoded) <= FOLD else b"#" + hashlib.sha256(encoded).digest()


def join(tag: bytes, children: Iterable[bytes]) -> bytes:
    """Join folded encodings so that no two lists join alike: one byte holds the length of each."""
    return fold(tag + lengthened(children))


def lengthened(children: Iterable[bytes]) -> bytes:
    """The encodings one after the other, each behind its length."""
    return b"".join([LENGTH[len(child)] + child for child in children])


def framed(part: bytes | str) -> bytes:
    """Return a part with its length before it, to be digested with others."""
    folded = fold(part.encode() if isinstance(part, str) else part)
    return LENGTH[len(folded)] + folded


main_name: ContextVar[str] = ContextVar("stepwise_main_name", default="__main__")
"""The name of ``__main__`` in the names of classes and functions."""


def called(module: str) -> str:
    """Return a module's name as it is used in the names of its definitions."""
    return main_name.get() if module == "__main__" else module


def class_name(cls: Any) -> str:
    """``module.qualname`` of a class or function; the name alone for builtins."""
    module = getattr(cls, "__module__", None)
    if module == "__main__":
        module = main_name.get()
    name = getattr(cls, "__qualname__", None) or repr(cls)
    return name if module in (None, "builtins") else f"{module}.{name}"


def noun(value: object) -> str:
    """``a lock``, ``an Agent``: how a message speaks of a value."""
    name = class_name(type(value))
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


@functools.lru_cache(maxsize=1000)
def name_of(name: str) -> bytes:
    """Encode the name of a field or a class, of which there are few."""
    return string(name)


# -- single values -------------------------------------------------------------------------------


def _int(value: int) -> bytes:
    encoded = b"i%x" % value  # hexadecimal: no limit on the number of digits
    return encoded if len(encoded) <= 64 else fold(encoded)


_NAN = b"f" + struct.pack(">d", math.nan)


def _float(value: float) -> bytes:
    # -0.0 == 0.0; a NaN is a NaN
    return b"f" + struct.pack(">d", value + 0.0) if value == value else _NAN  # noqa: PLR0124


def _complex(value: complex) -> bytes:
    return b"x" + _float(value.real) + _float(value.imag)


def string(value: str) -> bytes:
    if len(value) < _BLOCK:
        encoded = b"s" + value.encode("utf-8", "surrogatepass")
        # As fold() does it: messages consist of texts.
        return encoded if len(encoded) <= 64 else b"#" + hashlib.sha256(encoded).digest()
    hashed = hashlib.sha256(b"s")
    for start in range(0, len(value), _BLOCK):
        hashed.update(value[start : start + _BLOCK].encode("utf-8", "surrogatepass"))
    return b"#" + hashed.digest()


def _bytes(value: bytes) -> bytes:
    return _tagged(b"b", value)


def _bytearray(value: bytearray) -> bytes:
    return _tagged(b"B", value)


def _tagged(tag: bytes, value: bytes | bytearray) -> bytes:
    if len(value) < 64:
        return tag + value
    hashed = hashlib.sha256(tag)
    hashed.update(value)
    return b"#" + hashed.digest()


def _decimal(value: decimal.Decimal) -> bytes:
    if not value.is_finite():
        return fold(b"m" + str(value).encode())
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    assert isinstance(exponent, int)
    if not stripped:
        return b"m0"
    return fold(b"m%d:%s:%d" % (sign, stripped.encode(), exponent + len(text) - len(stripped)))


def _fraction(value: fractions.Fraction) -> bytes:
    return fold(b"g%x/%x" % (value.denominator, value.numerator))


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


def _timezone(value: dt.timezone) -> bytes:
    return b"k" + repr(value.utcoffset(None)).encode()


def _range(value: range) -> bytes:
    # Not its len(), which has a limit.
    items = (value[-1] - value.start) // value.step + 1 if value else 0
    content = (items, value.start if value else 0, value.step if items > 1 else 0)
    return fold(b"r%d:%d:%d" % content)


def _zone(value: Any) -> bytes:
    if value.key is None:
        raise UndigestibleError("a ZoneInfo made from a file has no name", "zoneinfo.ZoneInfo")
    return fold(b"Z" + value.key.encode())


ATOMS: dict[type, Callable[[Any], bytes]] = {
    str: string,
    int: _int,
    float: _float,
    bool: lambda value: b"T" if value else b"!",
    type(None): lambda _: b"N",
    bytes: _bytes,
    bytearray: _bytearray,
    complex: _complex,
    type(Ellipsis): lambda _: b".",
    type(NotImplemented): lambda _: b"~",
    dt.datetime: _datetime,
    dt.date: lambda value: b"y" + value.isoformat().encode(),
    dt.time: _time,
    dt.timedelta: lambda value: b"q%d:%d:%d" % (value.days, value.seconds, value.microseconds),
    dt.timezone: _timezone,
    range: _range,
}
"""How each of these is encoded, by its exact type."""

COMMON = {cls: ATOMS[cls] for cls in (str, int, float, bool, type(None), bytes)}
"""The most common of them, none of which can fail."""

_SELDOM: dict[tuple[str, str], Callable[[Any], bytes]] = {
    ("decimal", "Decimal"): _decimal,
    ("fractions", "Fraction"): _fraction,
    ("uuid", "UUID"): lambda value: b"u" + value.bytes,
    ("zoneinfo", "ZoneInfo"): _zone,
}


@functools.lru_cache(maxsize=1000)
def atom(cls: type) -> Callable[[Any], bytes] | None:
    """Return how the values of a type are encoded, if it is one of these.

    Those whose modules take long to import are known by name, and join the rest when one is met.
    """
    found = ATOMS.get(cls)
    if found is None:
        seldom = _SELDOM.get((cls.__module__, cls.__qualname__))
        if seldom is not None and getattr(sys.modules[cls.__module__], cls.__name__, None) is cls:
            found = ATOMS[cls] = seldom
    return found
