"""The identity of classes that share a name because a function or ``type()`` made them.

A class that its name leads to is told by its name alone; what it consists of is the program's text.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

from stepwise._values.instances import by_name

__all__ = ["assigned_in", "cell_content", "content_of"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not set for classes compiled into the interpreter
_STEP = "__stepwise_step__"
_CHANGED = (list, dict, set, bytearray)  # in place, by what the program does


@functools.lru_cache(maxsize=1000)
def content_of(cls: type) -> dict[str, Any] | None:
    """Return what tells a class from others of its name; ``None`` if its name leads to it.

    Its fields, its attributes and those of its bases that no name leads to, and what its methods
    captured.  What a run may change is left out: containers, and captured variables that a method
    assigns.  So is what steps captured, which is a part of their calls.
    """
    if _is_named(cls):
        return None
    bases = reversed([each for each in cls.__mro__ if not _is_named(each)])
    attributes = {n: _plain(v) for base in bases for n, v in vars(base).items()}
    functions = {n: v for n, v in attributes.items() if isinstance(v, types.FunctionType)}
    plain = [getattr(each, "__wrapped__", each) for each in functions.values()]
    codes = [each.__code__ for each in plain if isinstance(each, types.FunctionType)]
    assigned = {name for code in codes for name in assigned_in(code)}
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in functions and not hasattr(value, _STEP):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for each, cell in cells:
                if each not in assigned and each != "__class__":
                    found[f"{name}.{each}"] = cell_content(cell)
        elif name[:2] != "__" and not hasattr(type(value), "__get__"):
            found[name] = value
    found = {name: value for name, value in found.items() if not isinstance(value, _CHANGED)}
    from stepwise._values.digest_types import (
        description,  # on use: most programs make no such class
    )

    try:
        fields = description(cls)
    except Exception:  # of its annotations, which may name anything
        fields = None
    return found if fields is None else {**found, "__fields__": fields}


def _is_named(cls: type) -> bool:
    return not cls.__flags__ & _HEAP_TYPE or by_name(cls, cls.__module__) is not None


def _plain(value: Any) -> Any:
    """The function that a method of a class, a static one or a property calls."""
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def cell_content(cell: types.CellType, missing: Any = None) -> Any:
    """Return the value of a captured variable; ``missing`` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return missing


@functools.lru_cache(maxsize=1000)
def assigned_in(code: types.CodeType) -> frozenset[str]:
    """The captured variables that code, or code inside it, assigns to."""
    names = {
        str(each.argval)
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= assigned_in(inner)
    return frozenset(names & set(code.co_freevars))
