"""Long lists that only grew, so that what was digested of them is not digested again.

A list of messages is an argument of every step of an agent.  Its digest is a SHA-256 over the
encodings of its items, so that of a list that grew goes on from that of the list before; that no
item was changed is proved (see ``_trees``).  The digest is the same as without this.

Imports: trees.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Container
from typing import Any

from stepwise._trees import Watch, same, walk

__all__ = ["LONG", "digest_grown", "forget", "is_held"]

LONG = 64
"""Items of a list that is worth it."""

_MOST = 4  # lists
_lock = threading.Lock()
_grown: dict[int, _Grown] = {}


class _Grown:
    """What was digested of a list: its items, with what they hold, and the hash of them."""

    __slots__ = ("classes", "hash", "items", "value", "watch")

    def __init__(self, value: list[Any], front: bytes) -> None:
        self.value = value
        self.items: list[Any] = []
        self.watch = Watch()
        self.classes: set[type] = set()
        self.hash = hashlib.sha256(front)

    def stands(self) -> bool:
        """Whether the list begins with the items as they were."""
        return same(self.items, self.value[: len(self.items)]) and self.watch.holds()


def digest_grown(
    value: list[Any],
    front: bytes,
    encode: Callable[[list[Any]], bytes],
    around: Container[int],
) -> bytes | None:
    """The SHA-256 over ``front`` and what ``encode`` makes of the items of a list.

    Args:
        encode: of several items what it makes of each, joined.
        around: ids of the objects that hold the list, and its own.

    Returns:
        ``None`` if it holds what no tree may hold, or another thread is at it.
    """
    if not _lock.acquire(blocking=False):
        return None
    try:
        grown = _grown.pop(id(value), None)  # what is interrupted is not kept
        if grown is None or not grown.stands():
            grown = _Grown(value, front)
        new = value[len(grown.items) :]
        if new:
            tree = walk(new, refused=around)
            if tree is None:
                return None
            watch = Watch(tree.nodes[1:])
            classes = set(tree.classes) - grown.classes
            watch.extend(Watch.of_classes(classes))  # what instances do not hold is theirs
            grown.hash.update(encode(new))
            grown.watch.extend(watch)
            grown.classes |= classes
            grown.items += new
        _grown[id(value)] = grown
        while len(_grown) > _MOST:
            del _grown[next(iter(_grown))]
        return grown.hash.digest()
    finally:
        _lock.release()


def is_held(value: list[Any]) -> bool:
    """Whether a list is one of those that are held here."""
    return id(value) in _grown


def forget() -> None:
    """Let go of the lists."""
    _grown.clear()
