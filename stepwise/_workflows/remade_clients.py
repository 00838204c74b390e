"""Clients in variables: not recorded, but made again by the statement that made them.

``client = OpenAI()`` holds locks and sockets, and nothing that the call does not give it.  Where
the function binds the variable once, outside of loops, by calling the class of a known client, and
what it gives it is what it was, a resumed run executes that statement again.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._identity.clients import is_client
from stepwise._rewrite import Made, Rewritten
from stepwise._runtime.facts import NamedTuple
from stepwise._values.digest import digest

__all__ = ["Remade", "remade"]

_ATOMS = (str, bytes, int, float, bool, type(None))


class Remade(NamedTuple):
    """The record of a client that is made again on resume.

    Args:
        cls: its class.
        globals: MACs of the global variables that are passed to it, by name.
    """

    cls: type
    globals: dict[str, str]

    def __repr__(self) -> str:
        return f"<{self.cls.__name__}, made again on resume>"


def remade(
    name: str,
    cls: type,
    values: Mapping[str, Any],
    rewritten: Rewritten,
    tag: Callable[[bytes], bytes],
) -> Remade | None:
    """Return the replacement of a client in a checkpoint; ``None`` if it cannot be remade.

    Args:
        name: of the variable.
        cls: of its value.
        values: the local variables.
        tag: makes a MAC, since a global may be a key.
    """
    made: Made | None = rewritten.made.get(name)
    function, found = rewritten.function, {}
    if made is None or not is_client(cls):
        return None
    root, *attributes = made.called.split(".")
    for each in made.read | {root}:
        if each in rewritten.variables:
            value = values.get(each, function)  # variables of enclosing functions are not restored
        else:
            value = function.__globals__.get(each, getattr(builtins, each, function))
            if type(value) in _ATOMS:
                found[each] = tag(digest(value).encode()).hex()
        if each == root:
            for attribute in attributes:
                value = vars(value).get(attribute) if type(value) is types.ModuleType else None
            if value is not cls:
                return None
        elif type(value) not in _ATOMS:
            return None
    return Remade(cls, found)
