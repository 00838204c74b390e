"""The parts that a subject holds at any depth, and their digests at the last look.

``self.agent`` that holds an object of the user's own class is a *node*.  A node counts by its
class, and its contents are separate parts: ``self.agent.persona`` and ``self.agent.history``.  A
small list, tuple or dict that holds such objects is a node too: it counts by its length or its
keys, and ``self.agents[0].persona`` is a part.

A step that changes a history makes that path state; the other paths still tell two agents apart. A
value with more than a hundred parts is opened level by level as far as these reach; deeper values
count in the part that holds them.

A step of an agent looks at the agent twice, before its body and after.  Usually nothing has
changed, and ``trees`` proves that in a fraction of the time of the digests.  A sight keeps its
objects alive. So all sights are released before anything is concluded from the number of living
instances.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import is_
from types import CellType, FunctionType
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign
from stepwise._identity.identity import (
    ITEMS,
    Parameters,
    captured,
    class_digest,
    digest_part,
    has_volatile_form,
    reader_of,
    short,
    uncompared,
    uncounted,
)
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest
from stepwise._values.digest import module_key, rules_of
from stepwise._values.trees import ATOMS, Watch, attributes, pickled_by_state, same, walk

# -- leaves ---------------------------------------------------------------------------------------


MISSING: Any = object()
"""The value of a missing attribute or variable."""

_CONTAINERS = (list, tuple, dict)
_FEW_ITEMS = 16  # most items of a container that is opened
_DEPTH = 5  # nesting of containers
_PARTS = 100  # most parts of one attribute or variable
_KEY = 40  # most characters of a key
_SPREAD = ("__pydantic_private__", "__pydantic_extra__")
"""Attributes in which pydantic keeps attributes."""
_SPREAD_OF_SELF = frozenset(f"self.{name}" for name in _SPREAD)


class PartPlace(NamedTuple):
    """The place of a part.

    Args:
        around: the objects that hold the part, the subject first, the direct holder last.
        key: name of the attribute, or index or key of the item.
        is_item: whether the part is an item.
    """

    around: tuple[Any, ...]
    key: Any
    is_item: bool


class Leaves:
    """The parts of a subject, with their own paths.

    Attributes:
        values: all values by the names of their parts, including nodes.
        nodes: the texts of the parts that were opened.
        places: the places of the parts that are no attributes of the subject itself.
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
            except Exception:  # a user's object may raise, or change in another thread
                return False
            if list(now) != names or not all(map(is_, now.values(), values)):
                return False
        return True

    def around(self, part: str, subject: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the objects that hold a part: in its digest, each counts as itself.

        Args:
            part: the name of the part.
            subject: the holders of a part of the subject itself.
        """
        place = self.places.get(part)
        return place.around if place is not None else subject

    def place(self, part: str) -> PartPlace | None:
        """Return the place, even a future one, of a part; ``None`` for the subject's own parts."""
        place = self.places.get(part)
        if place is None and self.nodes:
            outer, _, name = part.rpartition(".")
            if outer in self.nodes:
                place = PartPlace((self.values[outer],), name, is_item=False)
        return place

    def open(
        self, name: str, value: Any, around: tuple[Any, ...], left_out: Collection[str]
    ) -> None:
        """Add the parts of a value, level by level."""
        waiting, count = [(name, value, around)], 1
        for part, node, outer in waiting:
            if any(each is node for each in outer):
                continue
            held, found = _taken_apart(node)
            if left_out and part in _SPREAD_OF_SELF and type(node) is dict:
                counts = {key: each for key, each in held.items() if key not in left_out}
                found = counts if found is not None else None
                self.values[part] = counts  # an unopened value counts as a whole
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
                if type(each) not in ATOMS and (_opens(each) or _is_spread(path, each)):
                    waiting.append((path, each, inside))


NO_LEAVES = Leaves({})


def leaves_of(found: dict[str, Any], subject: object, left_out: Collection[str] = ()) -> Leaves:
    """Open the values of a subject.

    Args:
        found: the values by the names of their parts.
        subject: the instance; ``None`` for a function.
        left_out: attributes of the instance that are no parts.
    """
    leaves = NO_LEAVES
    for name, value in found.items():
        if type(value) not in ATOMS and (_opens(value) or _is_spread(name, value)):
            if leaves is NO_LEAVES:
                leaves = Leaves(dict(found))
            leaves.open(name, value, () if subject is None else (subject,), left_out)
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
    """Return the deepest part that a path runs through; an empty text if there is none."""
    return max((each for each in parts if path == each or below(path, each)), key=len, default="")


# -- what is opened ------------------------------------------------------------------------------


def _opens(value: Any) -> bool:
    """Return whether the contents of a value are separate parts."""
    try:
        return _holds_own(value) if type(value) in _CONTAINERS else _is_agent(value)
    except Exception:  # a user's object may raise, or change in another thread
        return False


def _is_agent(value: Any) -> bool:
    """Return whether a value is an object of the user's own class that can change."""
    cls: Any = type(value)
    if not _is_own(cls) or rules_of(cls) is not None:
        return False
    fixed = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    return not (fixed and ATOMS.issuperset(map(type, attributes(value).values())))


def _is_spread(name: str, value: Any) -> bool:
    return type(value) is dict and name.endswith(_SPREAD)


def _holds_own(value: Any) -> bool:
    """Return whether a small container holds objects of the user's own classes, at any depth.

    Most containers hold messages, and each look asks again; so the check goes level by level.
    """
    level: Sequence[Any] = (value,)
    for _ in range(_DEPTH):
        inside: list[Any] = []
        for each in level:
            if len(each) <= _FEW_ITEMS:
                inside += each.values() if type(each) is dict else each
        kinds = set(map(type, inside)) - ATOMS
        if any(map(_is_own, kinds.difference(_CONTAINERS))) and any(map(_is_agent, inside)):
            return True
        if kinds.isdisjoint(_CONTAINERS) or len(inside) > _PARTS:
            return False
        level = [each for each in inside if type(each) in _CONTAINERS]
    return False


def _is_name(key: object) -> bool:
    """Return whether a key is short, and stable between processes."""
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
    if any(hasattr(cls, marked) for marked in _MARKS):
        return True
    made = digest.form_of(cls) is digest.Encoder.reduced and not issubclass(cls, type)
    return made and pickled_by_state(cls)


_MARKS = ("__dataclass_fields__", "__pydantic_validator__", "__attrs_attrs__", "__struct_fields__")


def _contents(node: Any) -> Mapping[Any, Any]:
    """Return the contents of a node by name, index or key, including those that do not count."""
    if type(node) is dict:
        return node
    return dict(enumerate(node)) if type(node) in _CONTAINERS else attributes(node)


def _taken_apart(node: Any) -> tuple[dict[Any, Any], dict[Any, Any] | None]:
    """Return the contents of a node, and the part of them that counts; ``None`` if unknown."""
    try:
        held = dict(_contents(node))
        if type(node) in _CONTAINERS:
            named = type(node) is not dict or all(map(_is_name, node))
            return held, held if named and 0 < len(node) <= _FEW_ITEMS else None
        names = _names(node, held)
        return held, None if names is None else {k: v for k, v in held.items() if k in names}
    except Exception:  # a user's object may raise, or change in another thread
        return {}, None


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
    except Exception:  # a user's method may raise
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


# -- holders --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1000)
def class_text(cls: Any) -> str:
    """Return the part that names the class of an instance (see ``digest.content_of``)."""
    return f"{_name_of(cls)} {class_digest(cls)}".rstrip()


def _name_of(cls: Any) -> str:
    return f"{module_key(cls.__module__)}:{cls.__qualname__}"


class Holder:
    """The places of a subject's parts: attributes, captured variables, and paths in them.

    Args:
        name: of the step.
        function: the plain function.
        parameters: of the step; they know the attributes that are no parts.
        instance: that a method is bound to; ``None`` for a function and for a class method.
        cls: class of the instance, or the class that a class method is called on.
        family: the function that made the step; by default the step alone.

    Attributes:
        leaves: the parts at paths, as of the last look at the values.
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
        """A key that is equal for steps of the subject that have the same parts."""
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

    def values(self) -> dict[str, Any]:
        """Return the values by the names of their parts; parts at paths come last."""
        found = self.direct()
        self.leaves = leaves_of(found, self.instance, self._left_out)
        return found if self.leaves is NO_LEAVES else self.leaves.values

    def around(self, part: str) -> tuple[Any, ...]:
        """Return the objects that hold a part; in the part's digest, each counts as itself."""
        return self.leaves.around(part, () if self.instance is None else (self.instance,))

    def digest(self, part: str, value: Any, *, once: bool = False) -> tuple[str, list[object]]:
        """Digest the value of a part; see :func:`stepwise._identity.identity.digest_part`."""
        text = self.leaves.nodes.get(part)
        return (text, []) if text is not None else digest_part(value, self.around(part), once=once)

    def direct(self) -> dict[str, Any]:
        """Return the values of the attributes and captured variables themselves."""
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
                found[ITEMS] = read(instance)
        for name, cell in self.cells.items():
            value = digest.cell_content(cell, MISSING)
            if value is not MISSING:  # else the variable has no value yet
                found[f"closure.{name}"] = value
        return found

    def parts_of(self, path: str, parts: Collection[str], names: Iterable[str] = ()) -> list[str]:
        """Return the parts in which a change lies: the deepest parts that a path runs through.

        Args:
            path: of the changed object, as text: ``self.agent``.
            parts: the names of the subject's parts before the change.
            names: the changed attributes; none if items or contents have changed.
        """
        if path == "self" and not names:
            return [ITEMS]
        found = []
        for each in [f"{path}.{name}" for name in names] or [path]:
            # A new attribute of an object whose attributes are parts is a part, too.
            added = names and (path == "self" or path in self.leaves.nodes) and each not in parts
            if added and each.removeprefix("self.") not in self._left_out:
                found.append(each)
            else:
                found.append(deepest(each, parts))
        return [*filter(None, found)]

    def others(self, text: str) -> Iterator[tuple[object, Holder]]:
        """Yield the other living subjects of the named class, or the siblings of a function."""
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
    """The names of the parts of attributes, by attribute name."""

    def __missing__(self, name: str) -> str:
        part = self[name] = f"self.{name}"
        return part


_SELF = _PartNames()


def _same_code(function: Any) -> list[Any]:
    """Return the other living functions made from the same code, by a factory or in a loop."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found = [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]
    return [each for each in found if each is not function and each.__code__ is code]


def _classes(cls: type, text: str) -> list[type]:
    """Return the classes of that name that share a base with a class."""
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


# -- sights ---------------------------------------------------------------------------------------


_TEXTS = (str, bytes)
_LONG = 1000  # items: a larger container is digested once
_LARGE = 1 << 20  # bytes: a larger value is digested once
_MOST = 100_000  # most objects that are watched
_PATIENCE = 64  # most looks at a value that was changed whenever it was watched

State = Container[tuple[str, str]]


class HeldPart:
    """The digest of the value that a subject holds under one name.

    Args:
        value: the value.
        text: of the part (see ``identity``), without serial numbers.
        unknown: the objects without a digest.
        shape: of a large value, which is digested only when its shape changes; else ``None``.
        fixed: the digest never changes for this object.
        patience: how many looks that find no change come before a watch.  A watch takes as long as
            a digest to begin, in vain if the value changes again: then it takes more looks.
    """

    __slots__ = ("fixed", "looks", "patience", "shape", "text", "unknown", "value", "watch")

    def __init__(
        self,
        value: Any,
        text: str,
        unknown: Sequence[object] = (),
        shape: str | None = None,
        *,
        fixed: bool = False,
        patience: int = 1,
    ) -> None:
        self.value = value
        self.patience = patience
        self.text = text
        self.unknown = unknown
        self.shape = shape
        self.fixed = fixed
        self.watch: Watch | None = None  # tells whether the digest still holds
        self.looks = 0  # looks in a row that found the digest unchanged

    def stands(self, value: Any) -> bool:
        """Return whether the digest still holds, as far as known without digesting."""
        if self.value is not value:
            return False
        return self.fixed or (self.watch is not None and self.watch.holds())


class Sight:
    """The contents of a subject at one moment.

    Args:
        direct: the attributes and captured variables themselves, by the names of the parts.
        values, parts: by the names of the parts.
        texts: with serial numbers for objects without a digest.
        moving: the parts that may have changed although their values are the same objects.
        leaves: the parts at paths.
    """

    def __init__(
        self,
        direct: dict[str, Any],
        values: dict[str, Any],
        parts: dict[str, HeldPart],
        texts: dict[str, str],
        moving: list[str],
        leaves: Leaves,
    ) -> None:
        self.direct = direct
        self.leaves = leaves
        self.values = values
        self.parts = parts
        self.texts = texts
        self.moving = moving
        self.unknown = {name: part.unknown for name, part in parts.items() if part.unknown}
        self.recorded: dict[str, str] = {}  # the parts as a record has them, given the known state
        self.state = -1  # how much state was known

    def is_of(self, direct: dict[str, Any]) -> bool:
        """Return whether the subject holds the very same objects; they may have changed inside."""
        stays = [*direct] == [*self.direct] and all(map(is_, direct.values(), self.direct.values()))
        return stays and (self.leaves is NO_LEAVES or self.leaves.stand())


class Sights:
    """The sights of one subject.

    Args:
        serials: returns the text that stands for objects without a digest.
    """

    __slots__ = ("_last", "_parts", "_serials")

    def __init__(self, serials: Callable[[Sequence[object]], str]) -> None:
        self._serials = serials
        self._parts: dict[str, HeldPart] = {}
        self._last: dict[object, Sight] = {}  # by the view of the holder

    def let_go(self) -> None:
        """Release all sights and parts."""
        self._last.clear()
        self._parts.clear()

    def look(self, holder: Holder, state: State) -> Sight:
        """Return the current contents of the subject.

        Args:
            holder: the places of the subject's parts.
            state: the parts that step bodies change.
        """
        direct, last = holder.direct(), self._last.get(holder.view)
        if last is not None and last.is_of(direct):
            parts, values, holder.leaves = last.parts, last.values, last.leaves
            for name in last.moving:
                if self.part(name, values[name], holder, state) is not parts[name]:
                    break
            else:
                return last
        values, parts, texts, moving = holder.values(), {}, {}, []
        for name, value in values.items():
            part = self._parts.get(name)
            if part is None or part.value is not value or not part.fixed:
                part = self.part(name, value, holder, state)
                if not part.fixed and name not in holder.leaves.nodes:
                    moving.append(name)
            parts[name] = part
            texts[name] = part.text + self._serials(part.unknown) if part.unknown else part.text
        sight = Sight(direct, values, parts, texts, moving, holder.leaves)
        self._last[holder.view] = sight
        return sight

    def part(self, name: str, value: Any, holder: Holder, state: State) -> HeldPart:
        """Return the digest of a part, digested anew if it may have changed."""
        known = self._parts.get(name)
        if known is not None and known.stands(value):
            return known
        cls = type(value)
        if name in holder.leaves.nodes:
            found = HeldPart(value, holder.leaves.nodes[name])
        elif cls in ATOMS and (cls not in _TEXTS or len(value) < _LARGE):
            found = HeldPart(value, digest_part(value)[0], fixed=True)
        else:
            before = known if known is not None and known.value is value else None
            around, is_state = holder.around(name), holder.key(name) in state
            found = self._digest(value, before, around, state=is_state)
        self._parts[name] = found
        return found

    def _digest(
        self, value: Any, before: HeldPart | None, around: Sequence[object], *, state: bool
    ) -> HeldPart:
        """Digest a value; return ``before`` if its digest is unchanged."""
        shape, watch = shape_of(value), None
        if before is not None:
            if shape is not None and before.shape == shape and (before.text == shape) == state:
                return before
            if shape is None and before.looks == before.patience:
                watch = _watch(value, around)
        if shape is not None and state:
            return HeldPart(value, shape, shape=shape)
        # A large value that changes is digested again: from the second time on, results are kept.
        once = shape is not None and before is None
        text, unknown = digest_part(value, around, once=once)
        if before is None or before.text != text or not same(before.unknown, unknown):
            itself = len(unknown) == 1 and unknown[0] is value
            patience = before.patience if before is not None else 1
            if before is not None and (before.watch or watch) is not None:
                patience = min(2 * patience, _PATIENCE)
            return HeldPart(value, text, unknown, shape, fixed=itself, patience=patience)
        before.looks = 0 if before.watch is not None else before.looks + 1
        before.watch = watch
        return before


# -- whether a value has changed -----------------------------------------------------------------


def _watch(value: Any, around: Sequence[object]) -> Watch | None:
    """Return a watch that tells whether a value has changed, or ``None`` if that is impossible.

    Args:
        value: the value.
        around: the objects that hold the value; each counts as itself.
    """
    tree = walk(value, refused=set(map(id, around)), most=_MOST)
    if tree is None or any(fields_of(cls) is not None for cls in tree.classes):
        return None
    watch = Watch(tree.nodes)
    if tree.classes:  # the rest of an instance's state is in its class
        watch.extend(Watch.of_classes(tree.classes))
    return watch


def shape_of(value: Any) -> str | None:
    """Summarize a large value for a check on each look; return ``None`` if it is not large."""
    if type(value) in (list, dict, set, tuple, frozenset):
        return f"{len(value)}" if len(value) >= _LONG else None
    if type(value) in (str, bytes, bytearray):
        return f"{len(value)}" if len(value) >= _LARGE else None
    try:
        size = getattr(value, "nbytes", None)
        if type(size) is int and size >= _LARGE:
            return f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', size)}"
    except Exception:
        return None  # a user's attribute raises
    return None
