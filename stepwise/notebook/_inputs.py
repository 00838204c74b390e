"""Inputs of a notebook's cell: digests of values, and of functions and classes.

A function or class that a cell of the notebook defines counts by its code and by what that reads
in its turn, so that an edited helper runs again the cells that use it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from stepwise._values import digest
from stepwise.errors import DigestError

__all__ = ["Inputs", "identify"]

_NOT_STATE = frozenset(
    f"__{name}__"
    for name in (
        *("annotations", "annotate_func", "annotations_cache", "dict", "doc", "firstlineno"),
        *("module", "qualname", "static_attributes", "weakref"),
    )
)


@dataclass
class Inputs:
    """The inputs of a cell.

    Args:
        digests: by name.
        left_out: why a value cannot be compared, by name.
    """

    digests: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, DigestError] = field(default_factory=dict)


def identify(names: Iterable[str], namespace: Mapping[str, Any]) -> Inputs:
    """Digest the values of these names, and of those that functions among them read.

    Names that are not in the namespace, and modules, do not count.
    """
    inputs, waiting = Inputs(), list(names)
    for name in waiting:
        if name not in namespace or name in inputs.digests:
            continue
        value = namespace[name]
        if isinstance(value, ModuleType):
            continue
        codes = _codes(value)
        try:
            if codes is None:
                inputs.digests[name] = digest.digest(value)
                continue
            inputs.digests[name] = digest.combine(*_parts(inspect.unwrap(value)))
        except DigestError as error:
            inputs.left_out[name] = error
            continue
        waiting += (each for code in codes for each in _reads(code))
    return inputs


def _codes(value: Any) -> list[CodeType] | None:
    """The code of a function or class that the notebook defines; ``None`` for everything else."""
    found = inspect.unwrap(value) if callable(value) else value
    if not isinstance(found, (FunctionType, type)) or found.__module__ != "__main__":
        return None
    if isinstance(found, FunctionType):
        return [found.__code__]
    return [each.__code__ for each in map(_function, vars(found).values()) if each is not None]


def _function(held: Any) -> FunctionType | None:
    held = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
    held = inspect.unwrap(held) if callable(held) else held
    return held if isinstance(held, FunctionType) else None


def _parts(value: Any) -> Iterator[bytes | str]:
    """Yield the parts that tell two functions or classes apart."""
    yield digest.class_name(type(value))
    if isinstance(value, FunctionType):
        yield value.__qualname__
        yield from _code_parts(value.__code__, value.__doc__)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        for held in (value.__defaults__, value.__kwdefaults__, *cells):
            yield from _state(held)
        return
    yield from (digest.class_name(base) for base in value.__mro__)
    for name, held in sorted(vars(value).items()):
        function = _function(held)
        if function is not None:
            yield name
            yield from _code_parts(function.__code__, function.__doc__)
        elif name not in _NOT_STATE:
            yield name
            yield from _state(held)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _state(value: Any) -> Iterator[bytes]:
    try:
        yield digest.encode(value)
    except DigestError:
        return


def _code_parts(code: CodeType, docstring: str | None = None) -> Iterator[bytes | str]:
    yield code.co_code
    yield " ".join((*code.co_names, "/", *code.co_varnames, "/", *code.co_freevars))
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        elif number or constant != docstring:
            yield from _state(constant)


def _reads(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _reads(constant)
