"""The attributes of an instance and the captured variables that a call may change."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

from stepwise._identity.identity import Parameters, reader_of, uncompared
from stepwise._identity.leaves import MISSING, NO_LEAVES, deepest, leaves_of
from stepwise._identity.parts import captured, class_digest, digest_part, module_key
from stepwise._values.instances import attributes, slots_of

__all__ = ["Holder", "class_text"]

_ITEMS = "self.[]"
"""The part of an instance that is itself a list, a text or the like: its items."""


@functools.lru_cache(maxsize=1000)
def class_text(cls: Any) -> str:
    """The part that names the class of an instance (see ``class_contents``)."""
    return f"{_name_of(cls)} {class_digest(cls)}".rstrip()


def _name_of(cls: Any) -> str:
    return f"{module_key(cls.__module__)}:{cls.__qualname__}"


class Holder:
    """The places of a subject's parts: attributes, captured variables, and paths in them.

    Args:
        name: of the step.
        function: the plain function.
        parameters: its parameters, which know the attributes that are no part.
        instance: that a method is bound to; ``None`` for a function and for a method of a class.
        cls: of the instance, or that a method of a class is called on.
        family: the function that made the step; by default the step alone.

    Attributes:
        leaves: the parts at paths, as they were when the values were last looked at.
    """

    __slots__ = ("cells", "cls", "family", "function", "instance", "leaves", "name", "parameters")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        parameters: Parameters,
        instance: object = None,
        cls: type | None = None,
        family: str = "",
    ) -> None:
        self.name = name
        self.family = family or name
        self.function = function
        self.parameters = parameters
        self.instance = instance
        self.cls = cls
        self.cells: Mapping[str, CellType] = captured(function)
        self.leaves = NO_LEAVES

    @property
    def _left_out(self) -> frozenset[str]:
        """The attributes that are no part."""
        cls: Any = type(self.instance)
        left_out, ignored = uncompared(cls), self.parameters.instance_ignored
        return left_out | ignored if ignored else left_out

    @property
    def view(self) -> object:
        """The same for steps of the subject that have the same parts."""
        return self.function if self.cells else self._left_out

    def key(self, part: str) -> tuple[str, str]:
        """Return the key of a part in the collection of state."""
        if self.cls is not None and part.startswith("self."):
            return class_text(self.cls), part
        return ("" if part.startswith("self.") else self.family), part

    def place(self, part: str) -> object:
        """Return the object that has a part as attribute or item, or the variable itself."""
        place = self.leaves.place(part)
        if place is not None:
            return place.around[-1]
        kind, _, name = part.partition(".")
        return self.cells.get(name) if kind == "closure" else self.instance

    def raw(self) -> tuple[list[Any], list[Any]]:
        """Names and values, as they are found most easily."""
        instance, names, values = self.instance, [], []
        cls: Any = type(instance)
        if instance is not None and _is_simple(cls):
            held = instance.__dict__
            names, values = list(held), list(held.values())
        elif instance is not None:
            found = self._direct()
            return list(found), list(found.values())
        for cell in self.cells.values():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # it has no value yet
                values.append(MISSING)
        return names, values

    def values(self) -> dict[str, Any]:
        """The values by the names of their parts, those at paths last."""
        found = self._direct()
        self.leaves = leaves_of(found, self.instance)
        return found if self.leaves is NO_LEAVES else self.leaves.values

    def around(self, part: str) -> tuple[Any, ...]:
        """Return the objects that hold a part; in its digest, each counts as itself."""
        return self.leaves.around(part, () if self.instance is None else (self.instance,))

    def digest(self, part: str, value: Any, *, once: bool = False) -> tuple[str, list[object]]:
        """Digest the value of a part; see :func:`stepwise._identity.parts.digest_part`."""
        text = self.leaves.nodes.get(part)
        return (text, []) if text is not None else digest_part(value, self.around(part), once=once)

    def _direct(self) -> dict[str, Any]:
        """The values of the attributes and captured variables themselves."""
        found: dict[str, Any] = {}
        instance = self.instance
        if instance is not None:
            held, left_out = attributes(instance), self._left_out
            if left_out.isdisjoint(held):
                found = dict(zip(map(_SELF.__getitem__, held), held.values(), strict=True))
            else:
                found = {_SELF[name]: held[name] for name in held if name not in left_out}
            cls: Any = type(instance)
            read = reader_of(cls)
            if read is not None:
                found[_ITEMS] = read(instance)
        for name, cell in self.cells.items():
            try:
                found[f"closure.{name}"] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        return found

    def parts_of(self, path: str, parts: Collection[str], names: Iterable[str] = ()) -> list[str]:
        """Return the parts in which a change lies: the deepest that a path runs through.

        Args:
            path: of the changed object, as text: ``self.agent``.
            parts: what the subject had before.
            names: the changed attributes; none, if its items or its contents have changed.
        """
        if path == "self" and not names:
            return [_ITEMS]
        found = []
        for each in [f"{path}.{name}" for name in names] or [path]:
            # An attribute that was added to an object whose attributes are parts is one, too.
            added = names and (path == "self" or path in self.leaves.nodes) and each not in parts
            if added and each.removeprefix("self.") not in self._left_out:
                found.append(each)
            else:
                found.append(deepest(each, parts))
        return [*filter(None, found)]

    def others(self, text: str) -> Iterator[tuple[object, Holder]]:
        """The other live subjects of the class that is named so, or the siblings of a function."""
        if self.cls is None:
            for each in _same_code(self.function):
                parameters = Parameters(each, what=self.parameters.what)
                yield each, Holder(self.name, each, parameters, family=self.family)
            return
        for cls in _classes(self.cls, text):
            if self.instance is None:  # a method of a class: the class itself is the subject
                if cls is not self.cls:
                    yield cls, Holder(self.name, self.function, self.parameters, cls=cls)
                continue
            for each in gc.get_referrers(cls):
                if type(each) is cls and each is not self.instance:
                    yield each, Holder(self.name, self.function, self.parameters, each, cls)


class _PartNames(dict[str, str]):
    """The parts that attributes are, by their names."""

    def __missing__(self, name: str) -> str:
        part = self[name] = f"self.{name}"
        return part


_SELF = _PartNames()


@functools.lru_cache(maxsize=1000)
def _is_simple(cls: type) -> bool:
    """Return whether instances of a class keep all their contents in ``__dict__``."""
    return cls.__dictoffset__ != 0 and not slots_of(cls) and reader_of(cls) is None


def _same_code(function: Any) -> list[Any]:
    """The other live functions that the same code made: by a factory, or in a loop."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found = [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]
    return [each for each in found if each is not function and each.__code__ is code]


def _classes(cls: type, text: str) -> list[type]:
    """The classes of that name that have a base in common with a class."""
    if class_text(cls) == text:
        return [cls]
    # Classes that share a name may have no more in common than ``object``.
    alike = text.startswith(_name_of(cls))
    waiting = [base for base in cls.__mro__ if base is not object or alike or "<locals>" in text]
    met: set[type] = set()
    while waiting:
        each = waiting.pop()
        if each not in met:
            met.add(each)
            waiting += type.__subclasses__(each)
    return [each for each in met if text.startswith(_name_of(each)) and class_text(each) == text]
