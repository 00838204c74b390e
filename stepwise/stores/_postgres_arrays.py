"""Values as arrays in Postgres' binary format, packed without a look at each value.

psycopg's own arrays choose a type by the values that are in them (so that each call may need
another plan), and take ten times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

__all__ = ["ArrayValue", "array", "register"]

_HEAD = struct.Struct("!iiIii")  # dimensions, any NULL, type of the elements, length, lower bound
_INTEGER = struct.Struct("!iq")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)


class ArrayValue:
    """An array that is encoded already."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Bigints(ArrayValue):
    __slots__ = ()


class _Byteas(ArrayValue):
    __slots__ = ()


class _Booleans(ArrayValue):
    __slots__ = ()


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: ArrayValue) -> bytes:
        return obj.data


class _BigintsDumper(_ColumnDumper):
    oid = 1016


class _ByteasDumper(_ColumnDumper):
    oid = 1001


class _BooleansDumper(_ColumnDumper):
    oid = 1000


def _integer(value: int) -> tuple[bytes, ...]:
    return (_INTEGER.pack(8, value),)


def _bytes(value: Any) -> tuple[Any, ...]:
    return (_LENGTH.pack(len(value)), value)


def _boolean(value: bool) -> tuple[bytes, ...]:
    return (b"\0\0\0\1\1" if value else b"\0\0\0\1\0",)


_KINDS: dict[str, tuple[type[ArrayValue], int, Callable[[Any], tuple[Any, ...]]]] = {
    "bigint": (_Bigints, 20, _integer),
    "bytea": (_Byteas, 17, _bytes),
    "boolean": (_Booleans, 16, _boolean),
}


def array(kind: str, values: Sequence[Any]) -> ArrayValue:
    """Return an array of a type: ``bigint``, ``bytea`` or ``boolean``; ``None`` is NULL."""
    wrapper, element, encoded = _KINDS[kind]
    parts: list[Any] = [_HEAD.pack(1, None in values, element, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else encoded(value)
    return wrapper(b"".join(parts))


def register(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take such arrays; and integers as ``bigint``, whatever their size."""
    for wrapper, dumper in (
        (_Bigints, _BigintsDumper),
        (_Byteas, _ByteasDumper),
        (_Booleans, _BooleansDumper),
        (int, Int8BinaryDumper),
    ):
        connection.adapters.register_dumper(wrapper, dumper)
