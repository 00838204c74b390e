"""Trees of data: their contents, and whether these are unchanged.

A *tree* is made of lists, dicts, tuples, sets and atoms of the exact builtin types (*plain data*),
of instances and of constants (see ``instances``).  Its *nodes* are what can be referred to from
outside: the containers, the instances and the large leaves.  They are numbered in the order of one
walk: plain data that was pickled and loaded again has the same nodes in the same order.  Where
there are classes, these may have a say in what is loaded; there, a node is numbered by the place
that it has among the objects of the pickle.

A *watch* tells whether mutable objects still hold the very same objects under the same names in
the same order.  That is proved, not sampled: every slot is compared by identity, so an equal value
of another type does not pass.  It is a few calls in C for any number of objects.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._values.addresses import same
from stepwise._values.dict_watch import MARK, DictWatch, ShownWatch
from stepwise._values.instances import Kind, kind_of

__all__ = [
    "ITERATORS",
    "LARGE_LEAF",
    "NUMBERS",
    "SHRINKING",
    "Tree",
    "Watch",
    "changes",
    "few",
    "is_overtaken",
    "walk",
]

LARGE_LEAF = 512  # characters or bytes: a reference to it is a tenth of that
_LEAVES = frozenset({str, bytes})
NUMBERS = frozenset({int, float, bool, type(None)})
_ATOMS = _LEAVES | NUMBERS
_NOTHING: frozenset[int] = frozenset()


class Tree(NamedTuple):
    """A tree: its nodes, the root first if that is one; and about how many bytes it takes.

    ``numbers`` are those of the nodes.  ``refers`` tells whether nodes of other trees are in it,
    ``classes`` are those of the objects that are not plain data.
    """

    root: Any
    nodes: Sequence[Any] = ()
    size: int = 0
    refers: bool = False
    numbers: Sequence[int] = ()
    classes: Collection[type] = ()

    def numbered(self, places: Mapping[int, int]) -> Tree:
        """The same with the places of its nodes in a pickle, by their ids; -1 for none."""
        return self._replace(numbers=[places.get(id(node), -1) for node in self.nodes])


def walk(
    root: Any,
    known: Container[int] = _NOTHING,
    refused: Container[int] = _NOTHING,
    most: int = 1_000_000,
) -> Tree | None:
    """Return the tree at ``root``, or ``None`` if the data is not a tree.

    Args:
        known: ids of objects that are nodes of other trees: neither they nor what they hold belong
            to this one.
        refused: ids of objects that must not be in it.
        most: of how many objects it may consist.
    """
    nodes: list[Any] = []
    met: set[int] = set()
    kinds: dict[type, Kind | None] = {}
    waiting, size, left, refers = [root], 0, most, False
    while waiting:
        value = waiting.pop()
        cls = type(value)
        if cls in NUMBERS:
            size += 8
            continue
        if cls in _LEAVES and len(value) < LARGE_LEAF:
            size += len(value) + 4
            continue
        here = id(value)
        if here in known:
            refers = True
            continue
        if cls in _LEAVES:
            size += len(value)
            nodes.append(value)
            continue
        if here in met:
            continue
        inside = None if here in refused else _inside(value, cls, kinds)
        if inside is None:
            return None
        if cls in _UNCHANGING and not value:
            continue  # there is only one
        met.add(here)
        left -= len(inside) + 1
        if left < 0:
            return None
        size += 8 if cls is list or cls is tuple else 8 + 8 * len(inside)  # a key is short
        kind = kinds.get(cls)
        if kind is None or not kind.constant:
            nodes.append(value)
        if _ATOMS.issuperset(map(type, inside)):  # mostly; as above, in fewer turns
            sizes = [len(each) if type(each) in _LEAVES else 4 for each in inside]
            if max(sizes, default=0) < LARGE_LEAF:
                size += sum(sizes) + 4 * len(sizes)
                continue
        waiting.extend(inside)
    return Tree(root, nodes, size, refers, range(len(nodes)), kinds.keys())


def _inside(value: Any, cls: type, kinds: dict[type, Kind | None]) -> Collection[Any] | None:
    """Return the objects that a value holds, or ``None`` if it cannot be in a tree."""
    if cls is list or cls is tuple:
        contents: Collection[Any] = value
        return contents
    if cls is dict:
        return value.values() if _ATOMS.issuperset(map(type, value)) else None
    if cls in _SETS:  # without nodes: a loaded one has them in another order
        small = _ATOMS.issuperset(map(type, value))
        return value if small and not any(map(_is_large, value)) else None
    if cls not in kinds:
        kinds[cls] = kind_of(cls)
    kind = kinds[cls]
    return kind.parts(value) if kind is not None else None


def _is_large(atom: Any) -> bool:
    return type(atom) in _LEAVES and len(atom) >= LARGE_LEAF


_CONTAINERS = frozenset({list, dict, tuple})
_SETS = frozenset({set, frozenset})
_SIZED = frozenset({list, dict, set})
_UNCHANGING = frozenset({tuple, frozenset})
_IMMUTABLE = _UNCHANGING | _LEAVES
_BLOCK = 2000  # objects of a watch that are looked at together
_FEW = 40  # objects
_LITTLE = 2048  # characters or bytes in all of them
_ITERABLES: tuple[Iterable[Any], ...] = (range(0), [], (), "")
ITERATORS = frozenset(type(iter(each)) for each in _ITERABLES)
_BACKWARDS: type = type(reversed([]))
SHRINKING = frozenset({type(iter([])), type(iter(bytearray())), _BACKWARDS})
"""Iterators over what can become shorter meanwhile."""


def few(values: Collection[Any], *, iterators: bool = True) -> bool:
    """Return whether these are few small objects of plain data, or iterators over such objects.

    Any pickler does for them, and none of it is worth a reference.

    Args:
        iterators: whether iterators may be among them.
    """
    waiting: list[Collection[Any]] = [values]
    met: set[int] = set()
    size = 0
    left = _FEW
    while waiting:
        inside = waiting.pop()
        left -= len(inside)
        if left < 0:
            return False
        for value in inside:
            cls = type(value)
            if cls in NUMBERS:
                continue
            if cls in _LEAVES:
                size += len(value)
            elif id(value) not in met:
                met.add(id(value))
                held = _held_by(value, cls, iterators=iterators)
                if held is None:
                    return False
                waiting.append(held)
        if size > _LITTLE:
            return False
    return True


def _held_by(value: Any, cls: type, *, iterators: bool) -> Collection[Any] | None:
    """Return the objects that a value of plain data holds; ``None`` for any other, or too many."""
    if cls is dict:
        return [*value, *value.values()] if len(value) <= _FEW else None
    if cls in _CONTAINERS:
        held: Collection[Any] = value
        return held
    if cls is range or (iterators and cls in ITERATORS and not is_overtaken(value)):
        return gc.get_referents(value)
    return None


def is_overtaken(iterator: Any) -> bool:
    """Return whether a list has become shorter than an iterator over it has come.

    Pickled as usual, it would be restored at the end of the list, and give what is added there.
    """
    if type(iterator) not in SHRINKING:
        return False
    _, (iterated,), *place = iterator.__reduce__()  # no place: it has ended
    return bool(place) and place[0] > len(iterated) - (type(iterator) is _BACKWARDS)


def _shows_dict(instance: Any) -> bool:
    attributes = vars(instance)
    return any(each is attributes for each in gc.get_referents(instance))


def changes(node: Any) -> bool:
    """Return whether a node can be changed in place."""
    return type(node) not in _IMMUTABLE


class _Block:
    """A snapshot of some mutable objects: lengths, keys and the objects in each slot."""

    __slots__ = ("_attributes", "_dicts", "_instances", "_owners", "_sized")

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        mutable = [each for each in nodes if changes(each)]
        instances = [each for each in mutable if type(each) not in _SIZED]
        owners = [each for each in instances if type(each).__dictoffset__]
        self._owners = [each for each in owners if not _shows_dict(each)]
        self._attributes = [*map(vars, self._owners)]
        dicts = [each for each in mutable if type(each) is dict]
        self._dicts = DictWatch([*dicts, *(vars(each) for each in owners)])
        self._instances = ShownWatch(instances)
        sized = [each for each in mutable if type(each) in _SIZED and type(each) is not dict]
        # What is shown of each ends at a mark, so none need be asked for its length.
        self._sized = ShownWatch([part for each in sized for part in (each, MARK)])

    @property
    def full(self) -> bool:
        """True if there is no room for another one."""
        others = len(self._sized.objects) // 2 + len(self._instances.objects)
        return len(self._dicts) + others >= _BLOCK

    def extend(self, other: _Block) -> None:
        """Add what another one holds."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        return (
            (not self._sized.objects or self._sized.holds())
            and (not self._instances.objects or self._instances.holds())
            and (not self._owners or same([*map(vars, self._owners)], self._attributes))
            and self._dicts.holds()
        )


class Watch:
    """A snapshot of mutable objects: lengths, keys and the objects in each slot.

    The garbage collector shows what a container holds, and of a dict its values: exactly as many
    objects as it is long, and never fewer, so that none can stand in the place of another.  Of an
    instance it shows what is in its slots, all of them being set, its ``__dict__`` and at the end
    its class.  What it does not show in this way (a ``__dict__`` in Python 3.13) is asked for.

    Many objects are looked at block by block: what is read of a dict for its values is in the
    processor's cache when its keys are read.  All at once takes up to half as long again.
    """

    __slots__ = ("_full", "_open")

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        every = list(nodes)
        blocks = [_Block(every[n : n + _BLOCK]) for n in range(0, len(every), _BLOCK)]
        self._open = blocks.pop() if blocks else _Block()
        self._full = blocks  # these may be parts of several watches

    def extend(self, other: Watch) -> None:
        """Watch what another one watches as well."""
        self._full += other._full
        self._open.extend(other._open)
        if self._open.full:
            self._full.append(self._open)
            self._open = _Block()

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        return self._open.holds() and (not self._full or all(each.holds() for each in self._full))

    @classmethod
    def over(cls, nodes: Collection[Any]) -> Watch:
        """Return a watch over these nodes; a shared one, not to be extended, if none is mutable."""
        return cls(nodes) if any(map(changes, nodes)) else _unchanging

    @classmethod
    def of_classes(cls, classes: Iterable[type]) -> Watch:
        """Return a watch over the definitions of classes and their bases."""
        every = {base for each in classes for base in each.__mro__[:-1]}
        return cls(chain.from_iterable(gc.get_referents(vars(base)) for base in every))

    @classmethod
    def broken(cls) -> Watch:
        """One that never holds."""
        changed = [None]
        watch = cls([changed])
        changed.clear()
        return watch


_unchanging = Watch()
