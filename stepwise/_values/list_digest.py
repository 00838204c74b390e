"""Lists that only grew: digested items are not digested again.

A list of messages is an argument of every step of an agent.  Its digest is a SHA-256 over the
encodings of its items, so that of a list that grew goes on from that of the list before; that no
item was changed is proved (see ``trees``).  The digest is the same as without this.

New items of plain data are watched in the simplest way, until there are many of them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Container
from itertools import chain
from operator import is_
from typing import Any, Union

from stepwise._runtime.facts import NamedTuple
from stepwise._values.addresses import same
from stepwise._values.digest_atoms import FOLD, UndigestibleError
from stepwise._values.message_fields import Numbering
from stepwise._values.trees import Watch, walk

__all__ = ["LONG", "SHORT", "digest_grown", "forget", "held", "note"]

SHORT = 8
"""Items of a list that is worth it, if it is met for the third time."""
LONG = 64
"""Items of a list that is worth it in any case, and numbers its own references."""

_MOST = 16  # lists
_RECENT = 16  # objects that are watched in the simplest way
_MANY = 1000  # new ones
_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
_TEXT = frozenset({str})

Encode = Callable[[list[Any], Union[Numbering, None]], bytes]

_lock = threading.Lock()
_grown: dict[tuple[int, object], _Grown] = {}


class _Met(NamedTuple):
    """The number of items of a short list that was encoded, and a hash of their encodings."""

    length: int
    content: int
    again: bool
    """The items before were those of the time before."""


_NEVER = _Met(0, 0, again=False)
_met: dict[tuple[int, object], _Met] = {}


class _Contents:
    """A snapshot of lists, tuples and dicts: their lengths, and the objects in them."""

    __slots__ = ("_dicts", "_inside", "_lengths", "_values", "nodes")

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self._dicts = [each for each in nodes if type(each) is dict]
        self._lengths = [*map(len, nodes)]
        self._inside = [*chain.from_iterable(nodes)]  # of dicts the keys
        self._values = [*chain.from_iterable(map(dict.values, self._dicts))]

    def extend(self, other: _Contents) -> None:
        """Watch what another one watches as well."""
        self.nodes += other.nodes
        self._dicts += other._dicts
        self._lengths += other._lengths
        self._inside += other._inside
        self._values += other._values

    def hold(self) -> bool:
        """Return whether nothing has changed."""
        return (
            [*map(len, self.nodes)] == self._lengths
            and all(map(is_, chain.from_iterable(self.nodes), self._inside))
            and all(map(is_, chain.from_iterable(map(dict.values, self._dicts)), self._values))
        )


def _plain(items: list[Any]) -> list[Any] | None:
    """Return the lists, tuples and dicts that plain data consists of; ``None`` for other data."""
    nodes = [each for each in items if type(each) not in _ATOMS]
    for each in nodes:  # there will be more
        cls = type(each)
        if cls is dict:
            inside = [*each.values()]  # another thread may change it
            fits = _TEXT.issuperset(map(type, each))
        else:
            inside = each
            fits = cls is list or cls is tuple
        if not fits or len(nodes) > _MANY:  # as on a cycle
            return None
        if not _ATOMS.issuperset(map(type, inside)):
            nodes += [part for part in inside if type(part) not in _ATOMS]
    return nodes


class _Grown:
    """The digested part of a list: its items, their contents, and the hash over them."""

    __slots__ = ("classes", "hash", "items", "recent", "size", "state", "value", "watch")

    def __init__(self, value: list[Any], front: bytes, state: Numbering | None) -> None:
        self.value = value
        self.state = state
        self.items: list[Any] = []
        self.watch = Watch()
        self.recent = _Contents([])  # of the newest items
        self.classes: set[type] = set()
        self.hash = hashlib.sha256(front)
        self.size = len(front)

    def stands(self) -> bool:
        """Return whether the list still begins with the same, unchanged items."""
        if not (
            same(self.items, self.value[: len(self.items)])
            and self.recent.hold()
            and self.watch.holds()
        ):
            return False
        if len(self.recent.nodes) > _RECENT:
            watch = Watch(self.recent.nodes)
            if not self.recent.hold():  # another thread has changed one
                return False
            self.watch.extend(watch)
            self.recent = _Contents([])
        return True

    def take(self, new: list[Any], encode: Encode, around: Container[int]) -> bool:
        """Digest new items; return False if they cannot be watched."""
        nodes = _plain(new)
        if nodes is not None:
            contents = _Contents(nodes)
            encoded = encode(new, self.state)
            self.recent.extend(contents)
        else:
            tree = walk(new, refused=around)
            if tree is None:
                return False
            watch = Watch(tree.nodes[1:])
            classes = set(tree.classes) - self.classes
            if classes:  # what instances do not hold is theirs
                watch.extend(Watch.of_classes(classes))
            encoded = encode(new, self.state)
            self.watch.extend(watch)
            self.classes |= classes
        self.hash.update(encoded)
        self.size += len(encoded)
        self.items += new
        return True


def digest_grown(
    value: list[Any],
    front: bytes,
    encode: Encode,
    around: Container[int],
    *,
    kind: object,
    numbered: bool,
    short: bool,
) -> tuple[bytes, Numbering | None] | None:
    """The SHA-256 over ``front`` and what ``encode`` makes of the items of a list.

    Args:
        encode: of several items what it makes of each, joined; it gets the numbering of the
            references before them.
        around: ids of the objects that hold the list, and its own.
        kind: of the encoding: what was digested by another one does not count.
        numbered: references are numbered.
        short: the list is short, see :func:`note`; it has no numbering before it.

    Returns:
        the digest and the numbering; ``None`` if it holds what no tree may hold, or another thread
        is at it; of a short list also if it is not watched, or its encoding stands for itself.
    """
    if not _lock.acquire(blocking=False):
        return None
    try:
        key = id(value), kind
        grown = _grown.pop(key, None)  # an interrupted digest is not kept
        if grown is None or not grown.stands():
            if short and not _met.get(key, _NEVER).again:
                return None
            grown = _Grown(value, front, Numbering() if numbered else None)
            _met.pop(key, None)
        new = value[len(grown.items) :]
        if new and not grown.take(new, encode, around):
            return None
        _grown[key] = grown
        while len(_grown) > _MOST:  # a long one goes only if there is no other
            those = [each for each, other in _grown.items() if len(other.items) < LONG]
            del _grown[next(iter(those or _grown))]
        return None if short and grown.size <= FOLD else (grown.hash.digest(), grown.state)
    except UndigestibleError:
        return None  # encoded as a whole, it says where
    finally:
        _lock.release()


def note(value: list[Any], kind: object, encoded: list[bytes]) -> None:
    """Note that a short list was encoded: if it is the second time, it will be watched from now on.

    Most short lists are made for one call.  Such a list is not held, so another may get its id: the
    hash decides whether it is worth watching, and nothing else.
    """
    if not _lock.acquire(blocking=False):
        return
    try:
        key = id(value), kind
        length, content, _ = _met.pop(key, _NEVER)
        again = 0 < length <= len(encoded) and hash(tuple(encoded[:length])) == content
        _met[key] = _Met(len(encoded), hash(tuple(encoded)), again)
        while len(_met) > _MOST:
            del _met[next(iter(_met))]
    finally:
        _lock.release()


def held(value: list[Any]) -> int:
    """Count how often a list is held here."""
    return sum(each.value is value for each in [*_grown.values()])


def forget() -> None:
    """Let go of the lists."""
    _grown.clear()
    _met.clear()
