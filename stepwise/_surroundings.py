"""What the variables of a frame may refer to: cells, arguments, globals, what is stored already.

Imports: identity, references.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepwise._identity import attributes
from stepwise._references import References

__all__ = ["COLLECTIONS", "NATIVE", "Surroundings"]

NATIVE = (list, dict, set, bytearray)
"""Pickled without asking the reducers."""

COLLECTIONS = (*NATIVE, deque)
"""Given their contents back in place."""


@dataclass(eq=False, repr=False)
class Surroundings:
    """What the variables of one frame may refer to.

    Args:
        cells: of the frame, by the name of the variable; those its function closes over under
            ``.name``.
        arguments: mutable objects that the caller handed in, by name; those that ``self`` holds
            under ``self.name``.
        namespace: the globals of the workflow's module.
        kept: attributes of arguments (``self.name``) found not to pickle, with the reason.
        references: to what is stored already.
    """

    cells: dict[str, types.CellType] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    namespace: Mapping[str, Any] = field(default_factory=dict)
    kept: dict[str, tuple[Any, str]] = field(default_factory=dict)
    references: References | None = None

    @classmethod
    def of(
        cls,
        function: types.FunctionType,
        captured: Callable[[], Any] | None,
        bound: Mapping[str, Any],
        instance: object,
    ) -> Surroundings:
        """Those of a call of ``function``.

        Args:
            captured: closes over the variables of the frame that nested functions share.
            bound: the arguments by name, without ``self``.
            instance: ``self``.
        """
        cells = _cells_of(captured) if captured is not None else {}
        cells.update({f".{name}": cell for name, cell in _cells_of(function).items()})
        return cls(cells, cls.mutable(bound, instance), function.__globals__)

    @staticmethod
    def mutable(bound: Mapping[str, Any], instance: object) -> dict[str, Any]:
        """The mutable objects that a call was given, by name."""
        arguments = {name: value for name, value in bound.items() if _is_mutable(value)}
        if instance is not None and _is_mutable(instance):
            arguments["self"] = instance
            for name, value in attributes(instance).items():
                if _is_mutable(value):
                    arguments[f"self.{name}"] = value
        return arguments

    def kinds(self) -> dict[str, str]:
        """The arguments by name, each with the name of its class."""
        return {name: _kind(value) for name, value in self.arguments.items()}

    def only(self, kinds: Mapping[str, str]) -> Surroundings:
        """With those arguments alone that were there, and of that kind."""
        held = self.arguments.items()
        found = {name: value for name, value in held if kinds.get(name) == _kind(value)}
        return replace(self, arguments=found)


def _kind(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _cells_of(function: Any) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _is_mutable(value: object) -> bool:
    return type(value) in COLLECTIONS or _is_plain(value)


def _is_plain(value: object) -> bool:
    """An instance whose class leaves pickling and state to Python."""
    cls = type(value)
    return (
        getattr(cls, "__reduce_ex__", None) is object.__reduce_ex__
        and getattr(cls, "__reduce__", None) is object.__reduce__
        and "__getnewargs__" not in dir(cls)
        and not isinstance(value, (type, types.ModuleType, types.FunctionType))
        and (hasattr(value, "__dict__") or hasattr(cls, "__slots__"))
    )
