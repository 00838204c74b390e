"""The parts inside an attribute or a captured variable: one for each path that can change alone.

``self.agent`` that holds an object of the user's own class is a *node*: it counts by its class, and
what it holds are parts of their own, ``self.agent.persona`` and ``self.agent.history``.  So is a
small list, tuple or dict that holds such objects: it counts by its length or its keys, and
``self.agents[0].persona`` is a part.  A step that changes a history makes that path state; the
paths beside it still tell two agents apart.

A value with more than a hundred parts is opened level by level as far as these reach; what lies
deeper counts in the part that holds it.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign
from stepwise._identity.identity import reader_of, uncompared
from stepwise._identity.parts import digest_part, short, uncounted
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest
from stepwise._values.instances import attributes
from stepwise._values.message_fields import rules_of
from stepwise._values.moments import has_volatile_form

__all__ = [
    "MISSING",
    "NO_LEAVES",
    "Leaves",
    "PartPlace",
    "attribute",
    "below",
    "deepest",
    "item",
    "leaves_of",
]

MISSING: Any = object()
"""The value of an attribute or a variable that is not there."""

_ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
_CONTAINERS = (list, tuple, dict)
_ITEMS = 16  # of a container that is opened
_DEPTH = 5  # containers in containers
_PARTS = 100  # of one attribute or variable
_KEY = 40  # characters
_SPREAD = ("__pydantic_private__", "__pydantic_extra__")
"""Attributes in which pydantic keeps attributes."""


class PartPlace(NamedTuple):
    """Where a part stands.

    Args:
        around: the objects that hold it, the subject first, its own holder last.
        key: name of the attribute, or index or key of the item.
        is_item: whether it is an item.
    """

    around: tuple[Any, ...]
    key: Any
    is_item: bool


class Leaves:
    """Parts of a subject at paths of their own.

    Attributes:
        values: all values by the names of their parts; those of nodes, too.
        nodes: the texts of the parts that were opened.
        places: where the parts stand that are no attributes of the subject itself.
    """

    __slots__ = ("_held", "nodes", "places", "values")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.nodes: dict[str, str] = {}
        self.places: dict[str, PartPlace] = {}
        self._held: list[tuple[Any, list[Any], list[Any]]] = []

    def stand(self) -> bool:
        """Return whether the opened objects hold the very same objects as before."""
        for node, names, values in self._held:
            try:
                now = dict(_contents(node))
            except Exception:  # it is the user's, and another thread may change it
                return False
            if list(now) != names or not all(map(is_, now.values(), values)):
                return False
        return True

    def around(self, part: str, subject: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the objects that hold a part: in its digest, each counts as itself.

        Args:
            subject: those that hold a part of the subject itself.
        """
        place = self.places.get(part)
        return place.around if place is not None else subject

    def place(self, part: str) -> PartPlace | None:
        """Return where a part stands, or will stand; ``None`` for one of the subject itself."""
        place = self.places.get(part)
        if place is None and self.nodes:
            outer, _, name = part.rpartition(".")
            if outer in self.nodes:
                place = PartPlace((self.values[outer],), name, is_item=False)
        return place

    def open(self, name: str, value: Any, around: tuple[Any, ...]) -> None:
        """Add the parts of a value, level by level."""
        waiting, count = [(name, value, around)], 1
        for part, node, outer in waiting:
            if any(each is node for each in outer):
                continue
            held, found = _taken_apart(node)
            if found is None or count + len(found) > _PARTS:
                continue
            count += len(found)
            inside = (*outer, node)
            self.nodes[part] = _text(node)
            if type(node) is not tuple:
                self._held.append((node, list(held), list(held.values())))
            is_item = type(node) in _CONTAINERS
            for key, each in found.items():
                path = part + (item(key) if is_item else attribute(key))
                self.values[path] = each
                self.places[path] = PartPlace(inside, key, is_item)
                if type(each) not in _ATOMS and (_opens(each) or _is_spread(path, each)):
                    waiting.append((path, each, inside))


NO_LEAVES = Leaves({})


def leaves_of(found: dict[str, Any], subject: object) -> Leaves:
    """Open the values of a subject.

    Args:
        found: by the names of their parts.
        subject: the instance; ``None`` for a function.
    """
    leaves = NO_LEAVES
    for name, value in found.items():
        if type(value) not in _ATOMS and (_opens(value) or _is_spread(name, value)):
            if leaves is NO_LEAVES:
                leaves = Leaves(dict(found))
            leaves.open(name, value, () if subject is None else (subject,))
    return leaves


# -- paths ---------------------------------------------------------------------------------------


def attribute(name: str) -> str:
    """Return the piece of a path that leads to an attribute."""
    return f".{name}"


def item(key: object) -> str:
    """Return the piece of a path that leads to an item."""
    return f"[{key!r}]"


def below(part: str, other: str) -> bool:
    """Return whether a part lies inside another one."""
    return part.startswith(other) and part[len(other) : len(other) + 1] in (".", "[")


def deepest(path: str, parts: Collection[str]) -> str:
    """Return the deepest part that a path runs through; an empty text if none is on it."""
    return max((each for each in parts if path == each or below(path, each)), key=len, default="")


# -- what is opened ------------------------------------------------------------------------------


def _opens(value: Any) -> bool:
    """Return whether what a value holds are parts of their own."""
    try:
        return _holds_own(value) if type(value) in _CONTAINERS else _is_agent(value)
    except Exception:  # it is the user's, and another thread may change it
        return False


def _is_agent(value: Any) -> bool:
    """Return whether a value is an object of the user's own class that can change."""
    cls: Any = type(value)
    if not _is_own(cls) or rules_of(cls) is not None:
        return False
    fixed = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    return not (fixed and _ATOMS.issuperset(map(type, attributes(value).values())))


def _is_spread(name: str, value: Any) -> bool:
    return type(value) is dict and name.endswith(_SPREAD)


def _holds_own(value: Any) -> bool:
    """Return whether a small container holds objects of the user's own classes, at any depth.

    Most hold messages, and are asked at every look: so level by level, not item by item.
    """
    level: Sequence[Any] = (value,)
    for _ in range(_DEPTH):
        inside: list[Any] = []
        for each in level:
            if len(each) <= _ITEMS:
                inside += each.values() if type(each) is dict else each
        kinds = set(map(type, inside)) - _ATOMS
        if any(map(_is_own, kinds.difference(_CONTAINERS))) and any(map(_is_agent, inside)):
            return True
        if kinds.isdisjoint(_CONTAINERS) or len(inside) > _PARTS:
            return False
        level = [each for each in inside if type(each) in _CONTAINERS]
    return False


def _is_name(key: object) -> bool:
    """Return whether a key is short, and the same in the next process."""
    if type(key) is str:
        return len(key) <= _KEY and not has_volatile_form(key)
    return type(key) in (int, bool, type(None))


@functools.lru_cache(maxsize=1000)
def _is_own(cls: Any) -> bool:
    """Return whether a class is the user's own, and its objects consist of their attributes."""
    if is_foreign(cls) or cls.__module__.partition(".")[0] == "stepwise":
        return False
    if fields_of(cls) is not None or cls in uncounted or reader_of(cls) is not None:
        return False
    eq_keys = [each.eq_key for each in getattr(cls, "__attrs_attrs__", ())]
    if any(each is not None for each in eq_keys):
        return False
    return _is_data(cls) or (digest.form_of(cls) is digest.Encoder.reduced and _is_ordinary(cls))


def _is_data(cls: Any) -> bool:
    return any(hasattr(cls, marked) for marked in _MARKS)


_MARKS = ("__dataclass_fields__", "__pydantic_validator__", "__attrs_attrs__", "__struct_fields__")
_MAKING = ("__reduce_ex__", "__reduce__", "__getattribute__")


def _is_ordinary(cls: Any) -> bool:
    """Return whether objects of a class are made anew from their state, as Python does it."""
    return (
        not issubclass(cls, type)
        and all(getattr(cls, name) is getattr(object, name) for name in _MAKING)
        and not any(hasattr(cls, name) for name in ("__getnewargs__", "__getnewargs_ex__"))
        and cls not in copyreg.dispatch_table
    )


def _contents(node: Any) -> Mapping[Any, Any]:
    """Return what a node holds, by name, index or key, whether it counts or not."""
    if type(node) is dict:
        return node
    return dict(enumerate(node)) if type(node) in _CONTAINERS else attributes(node)


def _taken_apart(node: Any) -> tuple[dict[Any, Any], dict[Any, Any] | None]:
    """Return what a node holds, and what of that counts; ``None`` if that is not known."""
    try:
        return dict(_contents(node)), _held_by(node)
    except Exception:  # it is the user's, and another thread may change it
        return {}, None


def _held_by(node: Any) -> dict[Any, Any] | None:
    """Return what of a node counts, by name, index or key; ``None`` if that is not known."""
    held = _contents(node)
    if type(node) in _CONTAINERS:
        fits = 0 < len(node) <= _ITEMS and (type(node) is not dict or all(map(_is_name, node)))
        return dict(held) if fits else None
    names = _names(node, held)
    return None if names is None else {k: v for k, v in held.items() if k in names}


def _names(node: Any, held: Mapping[str, Any]) -> Collection[str] | None:
    """Return the attributes that ``==`` compares, or that the pickled state has."""
    cls: Any = type(node)
    if hasattr(cls, "__pydantic_validator__"):
        return {*cls.model_fields, *_SPREAD}
    if hasattr(cls, "__struct_fields__"):
        return set(cls.__struct_fields__)
    for marked in ("__dataclass_fields__", "__attrs_attrs__"):
        fields: Any = getattr(cls, marked, None)
        if fields is not None:
            names = [getattr(each, "name", each) for each in fields]
            return set(names) - uncompared(cls)
    given = getattr(cls, "__getstate__", None)
    if given is None or given is getattr(object, "__getstate__", None):  # since Python 3.11
        return held.keys()
    try:
        state = node.__getstate__()
    except Exception:  # it is the user's
        return None
    return state.keys() if type(state) is dict else None


def _text(node: Any) -> str:
    """Return the text of a node: its class, or the number or the names of its items."""
    cls: Any = type(node)
    if cls not in _CONTAINERS:
        return _text_of_class(cls)
    names = sorted(map(repr, node)) if cls is dict else len(node)
    return short(digest.encode((cls.__name__, names)))


@functools.lru_cache(maxsize=1000)
def _text_of_class(cls: type) -> str:
    return digest_part(cls)[0]
