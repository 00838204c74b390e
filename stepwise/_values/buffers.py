"""Large bytes in pieces: sealed and written one after the other, never joined.

A value of 100 MB that is pickled, sealed and written as one ``bytes`` exists three times.  Pickle
hands out large buffers as they are; here they stay that way until they are in a file.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from typing import Any, SupportsIndex

from stepwise._runtime import asyncio_state

__all__ = ["Data", "Pieces", "apart", "collected", "stable", "together"]

_WITH_BUFFERS = 5  # the protocol of pickle
_LARGE = 1 << 20  # bytes; less is joined: one piece is handled faster than many


class Pieces:
    """Bytes that lie in several places; ``bytes()`` joins them, ``len()`` is their number."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, pieces: list[memoryview]) -> None:
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Send the bytes to another process: as buffers, where the pickler takes them as such."""
        if int(protocol) < _WITH_BUFFERS:
            return bytes, (bytes(self),)
        return _received, (*map(pickle.PickleBuffer, self._pieces),)

    def after(self, front: bytes) -> Pieces:
        """The same with ``front`` before it."""
        return Pieces([memoryview(front), *self._pieces])

    @property
    def views(self) -> tuple[memoryview, ...]:
        """The pieces in their order."""
        return tuple(self._pieces)


Data = bytes | Pieces


def _received(*buffers: Any) -> Pieces:
    return Pieces([memoryview(each).cast("B") for each in buffers])


def collected(views: list[memoryview]) -> Data:
    """Return the data of these views: joined if small, else in pieces."""
    if sum(view.nbytes for view in views) < _LARGE:
        return b"".join(views)
    return Pieces([stable(view) for view in views])


def stable(view: memoryview) -> memoryview:
    """Return a view that stays as it is: a copy, if other code could change it while it is written.

    A record with the seal of one state and the bytes of another would be damaged.
    """
    alone = threading.active_count() == 1 and asyncio_state.current() is None
    return view if alone or type(view.obj) is bytes else memoryview(bytes(view))


def apart(value: object) -> tuple[bytes, tuple[memoryview, ...]]:
    """Return the pickle of a value, and its buffers beside it, which are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, _WITH_BUFFERS, buffer_callback=buffers.append)
    return head, tuple(each.raw() for each in buffers)


def together(head: bytes, buffers: Iterable[Any] = ()) -> Any:
    """Return the value that :func:`apart` took apart, from bytes of this process or verified ones.

    Args:
        buffers: those that it gave, or copies of them.
    """
    return pickle.loads(head, buffers=buffers)
