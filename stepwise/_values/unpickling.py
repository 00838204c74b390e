"""The only place where pickles are loaded, and large data in pieces.

A pickle can execute code.  Stored pickles get here only after their seal was verified, so that only
a holder of the key can have made them.  With ``trust="data"`` (``configure``, or
``STEPWISE_TRUST``) a process refuses even these.  Stored data cannot change that decision.

A value of 100 MB that is pickled, sealed and written as one ``bytes`` exists three times.  Pickle
passes large buffers on without a copy; here they stay in pieces until they are in a file.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

from stepwise._runtime import asyncio_state, settings
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import ConfigurationError, UnreadableValueError

if TYPE_CHECKING:
    from typing_extensions import Self

# -- unpickling -----------------------------------------------------------------------------------


def _refuse() -> None:
    if settings.trusts_data_only():
        raise UnreadableValueError(
            "it was recorded as a pickle, and trust='data' loads none: leave out "
            "configure(trust='data') or STEPWISE_TRUST=data if you trust who could write to the "
            "store and had the key"
        )


def check_trust(what: str) -> None:
    """Refuse an operation whose result this process could not read: report that at the first run.

    Raises:
        ConfigurationError: the process loads no pickles.
    """
    if settings.trusts_data_only():
        raise ConfigurationError(
            f"{what}, and trust='data' loads none: leave out configure(trust='data') or "
            "STEPWISE_TRUST=data here"
        )


class Unpickler(pickle.Unpickler):
    """An unpickler of verified bytes.

    Attributes:
        stored: false for bytes that this process itself made just now.

    Raises:
        UnreadableValueError: this process loads no pickles.
    """

    stored = True

    def __init__(self, data: bytes, buffers: Iterable[Any] | None = None) -> None:
        if self.stored:
            _refuse()
        super().__init__(io.BytesIO(data), buffers=buffers)

    @classmethod
    def each(cls, pickles: Iterable[bytes]) -> Iterator[Self]:
        """Yield an unpickler of each of many small pickles."""
        if cls.stored:
            _refuse()
        for data in pickles:
            unpickler = cls.__new__(cls)
            pickle.Unpickler.__init__(unpickler, io.BytesIO(data))
            yield unpickler


def loads(data: bytes, *, stored: bool = True) -> Any:
    """Load a plain pickle from verified bytes.

    Args:
        stored: false for bytes that were in no store: this process made them, or a process of the
            same program sent them.

    Raises:
        UnreadableValueError: the bytes were stored, and this process loads no pickles.
    """
    if stored:
        _refuse()
    return pickle.loads(data)


class Disassembled(NamedTuple):
    """A pickled value and its buffers; JSON never yields this class, so it is never loaded."""

    head: bytes
    buffers: tuple[Any, ...]


def together(content: Disassembled, buffers: Iterable[Any] | None = None) -> Any:
    """Return a value that was disassembled in this process, or in a pickle that was loaded.

    Args:
        buffers: copies to use instead of the value's own buffers.
    """
    if type(content) is not Disassembled:
        raise UnreadableValueError("it is no value that was taken apart")
    return pickle.loads(content.head, buffers=content.buffers if buffers is None else buffers)


# -- buffers --------------------------------------------------------------------------------------


_WITH_BUFFERS = 5  # the protocol of pickle
_LARGE = 1 << 20  # bytes; smaller data is joined, since one piece is faster than many


class Pieces:
    """Bytes in several places; ``bytes()`` joins them, ``len()`` is their number."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, pieces: list[memoryview]) -> None:
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Reduce to buffers if the protocol supports them, otherwise to joined bytes."""
        if int(protocol) < _WITH_BUFFERS:
            return bytes, (bytes(self),)
        return _received, (*map(pickle.PickleBuffer, self._pieces),)

    def after(self, front: bytes) -> Pieces:
        """Return the pieces with ``front`` before them."""
        return Pieces([memoryview(front), *self._pieces])

    @property
    def views(self) -> tuple[memoryview, ...]:
        """The pieces, in order."""
        return tuple(self._pieces)


Data = bytes | Pieces


def _received(*buffers: Any) -> Pieces:
    return Pieces([memoryview(each).cast("B") for each in buffers])


def collected(views: list[memoryview]) -> Data:
    """Return the data of these views: joined if small, otherwise in pieces."""
    if sum(view.nbytes for view in views) < _LARGE:
        return b"".join(views)
    return Pieces([stable(view) for view in views])


def stable(view: memoryview) -> memoryview:
    """Return a view whose bytes stay the same: a copy, if other code could change them.

    A record with the seal of one state and the bytes of another would be damaged.
    """
    alone = threading.active_count() == 1 and asyncio_state.current() is None
    return view if alone or type(view.obj) is bytes else memoryview(bytes(view))


def apart(value: object, *, fast: bool = False) -> Disassembled:
    """Return the pickle of a value, with its buffers beside it, which are not copied.

    Args:
        fast: pickle a part that occurs twice twice, in a quarter of the time for many texts; only
            for values in which nothing that can change occurs twice.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler = pickle.Pickler(file, _WITH_BUFFERS, buffer_callback=buffers.append)
    pickler.fast = fast
    pickler.dump(value)
    return Disassembled(file.getvalue(), tuple(each.raw() for each in buffers))
