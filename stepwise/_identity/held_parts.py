"""The identity of given functions: the values that a graph's nodes or an agent function hold.

``of:node 'ask':model`` is a captured variable, a default or an attribute ``model`` of the function
(or bound method, partial, callable object) of the node ``ask``.  Only texts, numbers and the like,
functions and classes count.  What a call may change inside itself (a list, an agent's history) must
not make the next run another one; nor must an attribute or a captured variable that is assigned.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stepwise._identity.call_parts import Parts, short_digest
from stepwise._identity.captures import FIXED, fixed_cells, own_name, plain_function
from stepwise._values import digest
from stepwise._values.instances import attributes
from stepwise._values.moments import is_momentary

__all__ = ["HeldParts"]

# By type, not isinstance: the __class__ of a proxy may raise.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_assigned: set[tuple[str, str]] = set()  # classes, and attributes that a run assigned


class HeldParts(Parts):
    """The parts of one run.

    Args:
        functions: what the run calls, by what a message calls it.
        ignore: names of what they hold that do not count.
    """

    def __init__(self, functions: Mapping[str, Any], ignore: Collection[str]) -> None:
        super().__init__()
        self._functions, self._ignored = functions, ignore
        self._values = {name: value for name, value, _ in self._held()}
        self.recorded = {name: short_digest(value) for name, value in self._values.items()}

    def digests(self) -> list[str]:
        """Return what an id is made of beside the arguments; nothing if there are no parts."""
        told = [part for pair in sorted(self.recorded.items()) for part in pair]
        return [digest.combine(*told)] if told else []

    def left_out_by(self, differing: Sequence[str]) -> str:
        """Return the option that leaves these parts out; empty if there are none."""
        names = [name.rpartition(":")[2] for name in differing]
        return f"ignore={names!r}" if names else ""

    def note_assigned(self) -> None:
        """Mark attributes that the ended run assigned as state from now on."""
        for name, value, attribute in list(self._held()):
            if attribute is not None and self._values.get(name) != value:
                _assigned.add(attribute)

    def _held(self) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        """Yield each part's name and encoded value; of an attribute, its class and name."""
        for where, function in self._functions.items():
            for name, value, cls in _values_of(function):
                attribute = (own_name(cls, function), name) if cls is not None else None
                if name in self._ignored or attribute in _assigned or is_momentary(value):
                    continue
                if type(value) in FIXED:
                    yield f"of:{where}:{name}", digest.encode(value), attribute
                elif issubclass(type(value), _NAMED):
                    named = own_name(value, plain_function(function) or value)
                    yield f"of:{where}:{name}", digest.encode(("named", named)), attribute


def _values_of(function: Any) -> Iterator[tuple[str, Any, type | None]]:
    """Yield the values that a function holds, by name; with the class for instance attributes."""
    if isinstance(function, functools.partial):
        yield from ((f"argument {n}", value, None) for n, value in enumerate(function.args, 1))
        yield from ((name, value, None) for name, value in function.keywords.items())
        yield from _values_of(function.func)
        return
    instance = function.__self__ if isinstance(function, types.MethodType) else function
    plain = plain_function(function)
    if plain is not None:
        yield from ((name, value, None) for name, value in fixed_cells(plain))
        defaults = inspect.signature(plain).parameters.values()
        yield from ((p.name, p.default, None) for p in defaults if p.default is not p.empty)
    if plain is None or instance is not function:
        held = attributes(instance).items()
        yield from ((name, value, type(instance)) for name, value in held)
