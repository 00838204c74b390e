"""The targets of a frame's references: cells, arguments, globals, stored values."""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._checkpoints.references import References
from stepwise._values.data import parameter_types
from stepwise._values.instances import attributes
from stepwise._values.sentinels import look_for

__all__ = ["COLLECTIONS", "NATIVE", "Surroundings"]

NATIVE = (list, dict, set, bytearray)
"""Pickled without asking the reducers."""

COLLECTIONS = (*NATIVE, deque)
"""Given their contents back in place."""


if TYPE_CHECKING:

    class HasSerials(Protocol):
        """The subjects of a run; see ``subjects``."""

        def serials(self, obj: object) -> tuple[int, ...]:
            """The serial numbers of an object; none if it is not a subject."""

        def adopt(self, restored: Iterable[tuple[tuple[int, ...], object]]) -> None:
            """Register loaded objects with their serial numbers."""


class Surroundings:
    """The objects that the variables of one frame may refer to.

    Args:
        cells: of the frame, by the name of the variable; those its function closes over under
            ``.name``.
        arguments: mutable objects that the caller handed in, by name; those that ``self`` holds
            under ``self.name``.
        namespace: the globals of the workflow's module.
        kept: attributes of arguments (``self.name``) found not to pickle, with the reason.
        assigned: those that the function itself assigns, with what they held in the beginning.
        references: to what is stored already.
        subjects: the instances of which the run knows the calls, with their serial numbers.
        function: whose parameters they are.
        secret: the secrets of the call by name; they are none of the arguments.
    """

    def __init__(
        self,
        cells: dict[str, types.CellType] | None = None,
        arguments: dict[str, Any] | None = None,
        namespace: Mapping[str, Any] | None = None,
        *,
        function: Callable[..., Any] | None = None,
        secret: Mapping[str, Any] | None = None,
    ) -> None:
        self.cells = {} if cells is None else cells
        self.arguments = {} if arguments is None else arguments
        self.namespace = {} if namespace is None else namespace
        self.kept: dict[str, tuple[Any, str]] = {}
        self.assigned: dict[str, Any] = {}
        self.references: References | None = None
        self.subjects: HasSerials | None = None
        self.function = function
        self.secret = {} if secret is None else secret
        self._set_secrets_apart()

    def _set_secrets_apart(self) -> None:
        for name, value in self.secret.items():
            self.arguments.pop(name, None)
            if name.startswith("self."):
                self.kept[name] = value, "it is a secret"

    def holding(self, arguments: dict[str, Any]) -> Surroundings:
        """Return a copy with other arguments; it shares everything else."""
        other = copy.copy(self)
        other.arguments = arguments
        other._set_secrets_apart()
        return other

    @property
    def annotated(self) -> dict[str, Any]:
        """The types that the parameters are annotated with."""
        return parameter_types(self.function) if self.function is not None else {}

    @classmethod
    def of(
        cls,
        function: types.FunctionType,
        captured: Callable[[], Any] | None,
        bound: Mapping[str, Any],
        instance: object,
        secret: Mapping[str, Any],
    ) -> Surroundings:
        """Build the surroundings for a call of ``function``.

        Args:
            captured: closes over the variables of the frame that nested functions share.
            bound: the arguments by name, without ``self``.
            instance: ``self``.
            secret: the secrets of the call by name.
        """
        cells = _cells_of(captured) if captured is not None else {}
        cells.update({f".{name}": cell for name, cell in _cells_of(function).items()})
        look_for(function.__globals__)
        arguments = cls.mutable(bound, instance)
        return cls(cells, arguments, function.__globals__, secret=secret)

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

    def note_assigned(self, names: Iterable[str]) -> None:
        """Remember the values of these attributes of arguments: ``self.name``.

        A fresh object holds that as well, but not what the function puts there later.
        """
        for name in names:
            owner, _, attribute = name.rpartition(".")
            if owner in self.arguments:
                self.assigned[name] = attributes(self.arguments[owner]).get(attribute, _MISSING)

    def is_fresh(self, name: str, value: object) -> bool:
        """Return whether an attribute still holds the value of a fresh object, as far as known."""
        return self.assigned.get(name, value) is value

    def kinds(self) -> dict[str, str]:
        """The arguments by name, each with the name of its class."""
        return {name: _kind(value) for name, value in self.arguments.items()}

    def only(self, kinds: Mapping[str, str]) -> Surroundings:
        """Return a copy that keeps only arguments of the same name and kind."""
        held = self.arguments.items()
        found = {name: value for name, value in held if kinds.get(name) == _kind(value)}
        return self.holding(found)


_MISSING = object()
_PLAIN_STATE = getattr(object, "__getstate__", None)  # since Python 3.11


def _kind(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _cells_of(function: Any) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _is_mutable(value: object) -> bool:
    return type(value) in COLLECTIONS or _is_plain(value)


def _is_plain(value: object) -> bool:
    """An instance whose class leaves pickling and state to Python."""
    cls = type(value)
    state = getattr(cls, "__getstate__", None)
    if isinstance(state, types.MethodDescriptorType) and state is not _PLAIN_STATE:
        return False  # laid out by C (a StringIO): its state is not in its attributes
    return (
        getattr(cls, "__reduce_ex__", None) is object.__reduce_ex__
        and getattr(cls, "__reduce__", None) is object.__reduce__
        and "__getnewargs__" not in dir(cls)
        and not isinstance(value, (type, types.ModuleType, types.FunctionType))
        and (hasattr(value, "__dict__") or hasattr(cls, "__slots__"))
    )
