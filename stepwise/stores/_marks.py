"""``marks/RUN``: a small file beside the database, written without waiting for the disk.

::

    0    64  two slots for the run's marks, written in turn
    64   64
    128  16  of the draft: epoch (0: none), lengths of its name and its data
    144  ..  name, data

A *draft* is an object on its way into the database, which the next transaction takes along.  It
lies here meanwhile, so that a killed process loses nothing: an object that would need a transaction
of its own costs a twentieth of one (measured: 3 us against 60).

Imports: the folder.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import NamedTuple

from stepwise.stores._folder import sync

__all__ = ["LARGEST_DRAFT", "Draft", "Marks"]

LARGEST_DRAFT = 1 << 16  # bytes; more is not worth writing twice
_SLOT = 64  # bytes
_DRAFT_AT = 2 * _SLOT
_FRONT = struct.Struct("<QII")


class Draft(NamedTuple):
    """An object that the database does not hold yet, and the epoch that it was written under."""

    epoch: int
    name: str
    data: bytes


class Marks:
    """The files of one store, by run; each stays open until its run is given up.

    The mutex keeps a write from using a descriptor that has been closed meanwhile, and may belong
    to another file by then.  It is reentrant, since a finalizer may give a run up anywhere.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mutex = threading.RLock()
        self._open: dict[str, tuple[int, int]] = {}  # descriptor, number of marks written

    def read(self, run: str) -> tuple[list[bytes], Draft | None]:
        """The marks of a run, and its draft.  Nothing of it is verified."""
        try:
            with open(self._path(run), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return [], None
        slots = [slot for slot in (data[:_SLOT], data[_SLOT:_DRAFT_AT]) if slot]
        if len(data) < _DRAFT_AT + _FRONT.size:
            return slots, None
        epoch, name, size = _FRONT.unpack_from(data, _DRAFT_AT)
        at = _DRAFT_AT + _FRONT.size
        text = data[at : at + name].decode("utf-8", "replace")
        return slots, Draft(epoch, text, data[at + name : at + name + size]) if epoch else None

    def mark(self, run: str, mark: bytes) -> None:
        """Write a mark into the older slot."""
        with self._mutex:
            descriptor, count = self._descriptor(run)
            os.pwrite(descriptor, mark.ljust(_SLOT, b"\0"), _SLOT * (count % 2))
            self._open[run] = (descriptor, count + 1)

    def draft(self, run: str, draft: Draft) -> None:
        """Replace the draft."""
        name = draft.name.encode()
        front = _FRONT.pack(draft.epoch, len(name), len(draft.data))
        with self._mutex:
            os.pwrite(self._descriptor(run)[0], front + name + draft.data, _DRAFT_AT)

    def taken(self, run: str) -> None:
        """The database holds the draft."""
        with self._mutex:
            os.pwrite(self._descriptor(run)[0], bytes(_FRONT.size), _DRAFT_AT)

    def close(self, run: str) -> None:
        """Close the file of a run."""
        with self._mutex:
            descriptor, _ = self._open.pop(run, (-1, 0))
            if descriptor >= 0:
                os.close(descriptor)

    def delete(self, run: str) -> None:
        """Delete the file of a run, durably."""
        self.close(run)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(run))
            sync(self._folder)

    def forget(self) -> None:
        """In a forked child: the parent's files are the parent's."""
        self._mutex = threading.RLock()
        self._open = {}

    def _descriptor(self, run: str) -> tuple[int, int]:
        found = self._open.get(run)
        if found is None:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            found = self._open[run] = os.open(self._path(run), flags, 0o600), 0
        return found

    def _path(self, run: str) -> str:
        return os.path.join(self._folder, run)
