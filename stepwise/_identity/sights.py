"""The last seen contents of instances and captured variables, with their digests.

A step of an agent looks at the agent twice, before its body and after it.  Mostly nothing has
changed, and that is proved (see ``trees``) in a fraction of the time that the digests would take.

What a sight holds is not alive for that: before anything follows from how many instances are, all
sights are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._identity.clients import fields_of
from stepwise._identity.holders import Holder
from stepwise._identity.leaves import NO_LEAVES, Leaves
from stepwise._identity.parts import digest_part
from stepwise._values.trees import Watch, changes, walk

__all__ = ["ATOMS", "Sight", "Sights"]

ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
_TEXTS = (str, bytes)
_LONG = 1000  # items of a container, and
_LARGE = 1 << 20  # bytes of a value, from which on it is digested once
_MOST = 100_000  # objects that are watched

Raw = tuple[list[Any], list[Any]]
State = Container[tuple[str, str]]


class HeldPart:
    """The digest of the value that a subject holds under one name.

    Args:
        text: see ``parts``; without serial numbers.
        unknown: what has no digest.
        shape: of a large value, which is digested once as long as that stays; else ``None``.
        fixed: it stays the digest of this very object.
    """

    __slots__ = ("fixed", "looks", "shape", "text", "unknown", "value", "watch")

    def __init__(
        self,
        value: Any,
        text: str,
        unknown: Sequence[object] = (),
        shape: str | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        self.value = value
        self.text = text
        self.unknown = unknown
        self.shape = shape
        self.fixed = fixed
        self.watch: Holds | None = None  # tells whether it is still the digest
        self.looks = 0  # at a value that had this digest before

    def stands(self, value: Any) -> bool:
        """Return whether the digest is still valid, as far as known without digesting."""
        if self.value is not value:
            return False
        return self.fixed or (self.watch is not None and self.watch.holds())


if TYPE_CHECKING:

    class Holds(Protocol):
        """Checks whether a value has changed."""

        def holds(self) -> bool:
            """Return whether nothing has changed."""


class Sight:
    """The contents of a subject at one moment.

    Args:
        raw: names and values as the subject has them.
        values, parts: by the names of the parts.
        texts: with serial numbers for what has no digest.
        moving: the parts that may be others although their values are the same objects.
        leaves: the parts at paths.
    """

    __slots__ = (
        "leaves",
        "moving",
        "parts",
        "raw",
        "recorded",
        "state",
        "texts",
        "unknown",
        "values",
    )

    def __init__(
        self,
        raw: Raw,
        values: dict[str, Any],
        parts: dict[str, HeldPart],
        texts: dict[str, str],
        moving: list[str],
        leaves: Leaves,
    ) -> None:
        self.raw = raw
        self.leaves = leaves
        self.values = values
        self.parts = parts
        self.texts = texts
        self.moving = moving
        self.unknown = {name: part.unknown for name, part in parts.items() if part.unknown}
        self.recorded: dict[str, str] = {}  # what a record holds of it, when the run knew
        self.state = -1  # so much state

    def is_of(self, raw: Raw) -> bool:
        """Return whether the subject holds the very same objects; they may have changed inside."""
        (names, values), (before, held) = raw, self.raw
        same = names == before and len(values) == len(held) and all(map(is_, values, held))
        return same and (self.leaves is NO_LEAVES or self.leaves.stand())


class Sights:
    """The sights of one subject.

    Args:
        serials: gives what stands in a text for objects that have no digest.
    """

    __slots__ = ("_last", "_parts", "_serials")

    def __init__(self, serials: Callable[[Sequence[object]], str]) -> None:
        self._serials = serials
        self._parts: dict[str, HeldPart] = {}
        self._last: dict[object, Sight] = {}  # by what its steps leave out, or captured

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._last.clear()
        self._parts.clear()

    def look(self, holder: Holder, state: State) -> Sight:
        """Read the current contents of the subject.

        Args:
            state: which parts step bodies change.
        """
        raw, last = holder.raw(), self._last.get(holder.view)
        if last is not None and last.is_of(raw):
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
        sight = Sight(raw, values, parts, texts, moving, holder.leaves)
        self._last[holder.view] = sight
        return sight

    def part(self, name: str, value: Any, holder: Holder, state: State) -> HeldPart:
        """Digest a part if it may be another one."""
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
        """Digest a value; the same part as ``before`` if that was its digest already."""
        shape, watch = shape_of(value), None
        if before is not None:
            if shape is not None and before.shape == shape and (before.text == shape) == state:
                return before
            if shape is None and before.looks == 1:
                watch = _watch(value, around)
        if shape is not None and state:
            return HeldPart(value, shape, shape=shape)
        # One that the workflow changes will be digested again: from the second time on it is known.
        once = shape is not None and before is None
        text, unknown = digest_part(value, around, once=once)
        if before is None or before.text != text or not _same_objects(before.unknown, unknown):
            itself = len(unknown) == 1 and unknown[0] is value
            return HeldPart(value, text, unknown, shape, fixed=itself)
        before.looks = 0 if before.watch is not None else before.looks + 1
        before.watch = watch
        return before


def _same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


# -- whether a value has changed -----------------------------------------------------------------


class _Flat:
    """Watches a list or dict of atoms."""

    __slots__ = ("_items", "_names", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._names = list(value) if type(value) is dict else []
        self._items = list(value.values()) if type(value) is dict else list(value)

    def holds(self) -> bool:
        """Return whether a container holds the very same objects under the same names."""
        value, names, items = self._value, self._names, self._items
        if len(value) != len(items):
            return False
        if names:
            return all(map(is_, value, names)) and all(map(is_, value.values(), items))
        return all(map(is_, value, items))


class _Stays:
    """Watches what cannot change."""

    def holds(self) -> bool:
        """Return True: the value cannot change."""
        return True


_STAYS = _Stays()


def _watch(value: Any, around: Sequence[object]) -> Holds | None:
    """Return what tells whether a value has changed; ``None`` if nothing does.

    Args:
        around: the objects that hold it, each of which counts as itself.
    """
    tree = walk(value, refused=set(map(id, around)), most=_MOST)
    if tree is None or any(fields_of(cls) is not None for cls in tree.classes):
        return None
    if not tree.classes and not any(map(changes, tree.nodes)):
        return _STAYS
    if not tree.classes and len(tree.nodes) == 1 and type(value) in (list, dict):
        return _Flat(value)
    watch = Watch(tree.nodes)
    if tree.classes:  # what instances do not hold is theirs
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
        return None  # an attribute of theirs, which raises
    return None
