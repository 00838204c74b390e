"""Digests of the interpreter's own kinds: functions, methods, enums, patterns."""

from __future__ import annotations

import enum
import functools
import hashlib
import pathlib
import re
import types
from typing import Any

from stepwise._values.digest_atoms import (
    UndigestibleError,
    called,
    class_name,
    fold,
    join,
    noun,
    string,
)

__all__ = ["BASES", "named", "namedtuple_form"]


def _enum(encoder: Any, value: enum.Enum) -> bytes:
    cls = type(value)
    if value.name in cls.__members__:
        return join(b"e", [string(class_name(cls)), string(value.name)])
    return join(b"E", [string(class_name(cls)), encoder.encode(value.value)])  # READ | WRITE


def namedtuple_form(encoder: Any, value: Any) -> bytes:
    name = string(class_name(type(value)))
    if encoder.rules(value) is not None:
        return join(b"o", [name, *encoder.fields(value, value._fields)])
    return join(b"o", [name, *encoder.items(value)])


def _function(_: Any, value: Any) -> bytes:
    return named(value, value.__qualname__)


def named(value: Any, name: str) -> bytes:
    """Encode a value by its own name, if that name leads back to it."""
    from stepwise._values.digest_types import leads_to

    # Functions know their module; singletons live beside their class.
    for module in (getattr(value, "__module__", None) or "builtins", type(value).__module__):
        if leads_to(module, name, value):
            return fold(f"c{name if module == 'builtins' else f'{called(module)}.{name}'}".encode())
    raise UndigestibleError(
        f"no importable name leads to {noun(value)} named {name!r}, so that two of them "
        "cannot be told apart",
        class_name(type(value)),
    )


def _method(encoder: Any, value: types.MethodType) -> bytes:
    name = value.__name__
    if getattr(value.__self__, name, None) == value:
        return join(b"M", [string(name), encoder.encode(value.__self__)])
    return join(b"m", encoder.items((value.__func__, value.__self__)))  # of a parent class


def _partial(encoder: Any, value: functools.partial[Any]) -> bytes:
    return join(b"P", encoder.fields(value, ("func", "args", "keywords")))


def _pattern(encoder: Any, value: re.Pattern[Any]) -> bytes:
    return join(b"R", encoder.items((value.flags, value.pattern)))


def _slice(encoder: Any, value: slice) -> bytes:
    return join(b":", encoder.fields(value, ("start", "stop", "step")))


def _memory(encoder: Any, value: memoryview) -> bytes:
    content = hashlib.sha256(value if value.contiguous else value.tobytes()).digest()
    return join(b"v", [*encoder.items((value.format, value.shape)), content])


def _path(_: Any, value: pathlib.PurePath) -> bytes:
    windows = isinstance(value, pathlib.PureWindowsPath)
    return (
        join(b"\\", [string(str(value).lower())]) if windows else join(b"/", [string(str(value))])
    )


def _module(_: Any, value: types.ModuleType) -> bytes:
    return fold(b"L" + value.__name__.encode())


BASES: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, _enum),
    (pathlib.PurePath, _path),
    (types.ModuleType, _module),
    (re.Pattern, _pattern),
    (slice, _slice),
    (memoryview, _memory),
    (functools.partial, _partial),
    (types.MethodType, _method),
    ((types.FunctionType, types.BuiltinFunctionType), _function),
)
"""Classes, and how the values of these and of their subclasses are encoded."""
