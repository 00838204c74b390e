"""The targets of a frame's references: cells, arguments, globals, stored values."""

from __future__ import annotations

import contextlib
import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._checkpoints.given import Found, GivenObjects, is_plain, why_no_handle
from stepwise._checkpoints.references import References
from stepwise._values.data import parameter_types
from stepwise._values.instances import attributes
from stepwise._values.sentinels import look_for

__all__ = ["COLLECTIONS", "NATIVE", "Surroundings", "class_of_kind"]

NATIVE = (list, dict, set, bytearray)
"""Pickled without asking the reducers."""

COLLECTIONS = (*NATIVE, deque)
"""GivenObjects their contents back in place."""


if TYPE_CHECKING:
    from stepwise._checkpoints.sdk_clients import SdkClients

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
        given: the objects that the call was given, at any depth; ``None`` if that is not known.
        taken: those of them that have no value of their own, by their paths: the call that resumes
            the run gives them.  What held them in the beginning is among the arguments.
        kept: attributes of arguments (``self.name``) found not to pickle, with the reason; they
            keep the value of the fresh object.
        stored: the names of the attributes that the function itself assigns.
        clients: gives what makes clients of known packages again.
        entered: how many times the open ``with`` blocks have entered a lock, by its id.
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
        self.given: GivenObjects | None = None
        self.taken: dict[str, Any] = {}
        self.entered: Mapping[int, int] = _NONE_ENTERED
        self.clients: Callable[[], SdkClients] | None = None
        self.kept: dict[str, tuple[Any, str]] = {}
        self.stored: frozenset[str] = frozenset()
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
        around = cls(cells, cls.mutable(bound, instance), function.__globals__, secret=secret)
        roots = _roots(function, bound, instance, secret)
        around.given = GivenObjects(roots, _globals_of(function))
        return around

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

    def take(self, path: str, value: Any) -> None:
        """Leave it to the call that resumes the run to give an object.

        The objects through which this call was given it become arguments, so that what refers to
        them from outside still does so afterwards.
        """
        assert self.given is not None
        self.arguments = {n: each for n, each in self.arguments.items() if each is not value}
        self.taken[path] = value
        self._add(self.given.way_to(value))

    def sets_apart(self, each: Found, met: Mapping[int, Found]) -> bool:
        """Set an object apart if the new call gives it, or makes it when it is first asked for.

        Args:
            met: objects that hold it and others, by their ids.
        """
        given = self.given
        assert given is not None
        path = given.path_of(each.value)
        if path is not None:
            if not why_no_handle(each.value):
                self.take(path, each.value)
                return True
            return False
        while id(each.holder) in met and given.path_of(each.holder) is None:
            each = met[id(each.holder)]  # what it is in was made in the run as well
        if not given.is_made_anew(each.holder, each.attribute) or each.attribute in self.stored:
            return False  # or the function itself puts it there
        self.hold(each.holder)
        names = [name for name, value in self.arguments.items() if value is each.holder]
        self.kept.update((f"{name}.{each.attribute}", (each.value, "")) for name in names)
        return bool(names)

    def hold(self, value: Any) -> None:
        """Make a given object an argument, and those through which the call was given it."""
        assert self.given is not None
        path = self.given.path_of(value)
        self._add({**self.given.way_to(value), **({path: value} if path is not None else {})})

    def _add(self, way: Mapping[str, Any]) -> None:
        known = {*map(id, self.arguments.values()), *map(id, self.taken.values())}
        new = {n: each for n, each in way.items() if id(each) not in known and _is_mutable(each)}
        self.arguments = {**self.arguments, **new}

    def kinds(self) -> dict[str, str]:
        """The arguments, and what is taken, by name, each with the name of its class."""
        kinds = {name: _kind(value) for name, value in self.arguments.items()}
        if self.taken:
            kinds.update((name, _TAKEN + _kind(value)) for name, value in self.taken.items())
        return kinds

    def only(self, kinds: Mapping[str, str]) -> Surroundings:
        """Return a copy with the objects of these names and kinds, as far as the call gives them.

        They are looked up before any of them is changed.
        """
        found: dict[str, Any] = {}
        taken: dict[str, Any] = {}
        for name, kind in kinds.items():
            value = self.arguments.get(name)
            if value is None and self.given is not None:
                value = self.given.at(name)
            if value is not None and _kind(value) == kind.removeprefix(_TAKEN):
                (taken if kind.startswith(_TAKEN) else found)[name] = value
        other = self.holding(found)
        other.taken = taken
        return other


def class_of_kind(kind: str) -> str:
    """Return the full name of the class that :meth:`Surroundings.kinds` gives."""
    return kind.removeprefix(_TAKEN).replace(":", ".")


_NONE_ENTERED: Mapping[int, int] = {}
_MISSING = object()
_TAKEN = "="  # before the kind of an object that the new call has to give


def _kind(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _cells_of(function: Any) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _roots(
    function: Any, bound: Mapping[str, Any], instance: object, secret: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the variables that a call of a function was given."""
    roots = {name: value for name, value in bound.items() if name not in secret}
    if instance is not None:
        roots["self"] = instance
    for name, cell in _cells_of(function).items():
        with contextlib.suppress(ValueError):  # it has no value yet
            roots.setdefault(name, cell.cell_contents)
    return roots


def _globals_of(function: Any) -> dict[str, Any]:
    """Return the globals that a function names, but for code."""
    namespace, found = function.__globals__, dict[str, Any]()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update((name, namespace[name]) for name in code.co_names if name in namespace)
        waiting += [each for each in code.co_consts if type(each) is types.CodeType]
    return {name: value for name, value in found.items() if not isinstance(value, _CODE)}


_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def _is_mutable(value: object) -> bool:
    return type(value) in COLLECTIONS or is_plain(value)
