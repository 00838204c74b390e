"""Long lists that only grew: digested items are not digested again.

A list of messages is an argument of every step of an agent.  Its digest is a SHA-256 over the
encodings of its items, so that of a list that grew goes on from that of the list before; that no
item was changed is proved (see ``trees``).  The digest is the same as without this.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Container
from typing import Any, TypeVar

from stepwise._values.addresses import same
from stepwise._values.trees import Watch, walk

__all__ = ["LONG", "digest_grown", "forget", "held"]

StateT = TypeVar("StateT")

LONG = 64
"""Items of a list that is worth it."""

_MOST = 16  # lists
_lock = threading.Lock()
_grown: dict[tuple[int, object], _Grown] = {}


class _Grown:
    """The digested part of a list: its items, their contents, and the hash over them."""

    __slots__ = ("classes", "hash", "items", "state", "value", "watch")

    def __init__(self, value: list[Any], front: bytes, state: Any) -> None:
        self.value = value
        self.state = state
        self.items: list[Any] = []
        self.watch = Watch()
        self.classes: set[type] = set()
        self.hash = hashlib.sha256(front)

    def stands(self) -> bool:
        """Return whether the list still begins with the same, unchanged items."""
        return same(self.items, self.value[: len(self.items)]) and self.watch.holds()


def digest_grown(
    value: list[Any],
    front: bytes,
    encode: Callable[[list[Any], StateT], bytes],
    around: Container[int],
    *,
    kind: object,
    state: Callable[[], StateT],
) -> tuple[bytes, StateT] | None:
    """The SHA-256 over ``front`` and what ``encode`` makes of the items of a list.

    Args:
        encode: of several items what it makes of each, joined; it gets the state that it left.
        around: ids of the objects that hold the list, and its own.
        kind: of the encoding: what was digested by another one does not count.
        state: makes that with which it begins.

    Returns:
        the digest and the state; ``None`` if it holds what no tree may hold, or another thread is
        at it.
    """
    if not _lock.acquire(blocking=False):
        return None
    try:
        grown = _grown.pop((id(value), kind), None)  # an interrupted digest is not kept
        if grown is None or not grown.stands():
            grown = _Grown(value, front, state())
        new = value[len(grown.items) :]
        if new:
            tree = walk(new, refused=around)
            if tree is None:
                return None
            watch = Watch(tree.nodes[1:])
            classes = set(tree.classes) - grown.classes
            if classes:  # what instances do not hold is theirs
                watch.extend(Watch.of_classes(classes))
            grown.hash.update(encode(new, grown.state))
            grown.watch.extend(watch)
            grown.classes |= classes
            grown.items += new
        _grown[id(value), kind] = grown
        while len(_grown) > _MOST:
            del _grown[next(iter(_grown))]
        return grown.hash.digest(), grown.state
    finally:
        _lock.release()


def held(value: list[Any]) -> int:
    """Count how often a list is held here."""
    return sum(each.value is value for each in _grown.values())


def forget() -> None:
    """Let go of the lists."""
    _grown.clear()
