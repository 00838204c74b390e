"""``marks/RUN``: a small file beside the database, written without waiting for the disk.

::

    0    64  the run's mark before the last one
    64   64  the last one
    128  16  of the draft: epoch (0: none), lengths of its name and its data
    144  ..  name, data

A *draft* is an object that the next transaction should have taken along.  None is written any more,
since the log of the process took its place; those of older versions are read.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading

from stepwise._runtime.facts import NamedTuple
from stepwise.stores._files import sync

__all__ = ["Draft", "Marks"]

_SLOT = 64  # bytes
_DRAFT_AT = 2 * _SLOT
_FRONT = struct.Struct("<QII")
_NO_DRAFT = bytes(_FRONT.size)


class Draft(NamedTuple):
    """An object that the database does not hold yet, and the epoch that it was written under."""

    epoch: int
    name: str
    data: bytes


class _File:
    def __init__(self, descriptor: int, marks: bytes) -> None:
        self.descriptor = descriptor
        self.marks = marks  # the last two


class Marks:
    """The files of one store, by run; each stays open until its run is given up.

    The mutex keeps a write from using a descriptor that has been closed meanwhile, and may belong
    to another file by then, and a reader from half of a draft.  It is reentrant, since a finalizer
    may give a run up anywhere.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mutex = threading.RLock()
        self._open: dict[str, _File] = {}

    def read(self, run: str) -> tuple[list[bytes], Draft | None]:
        """The marks of a run, and its draft.  Nothing of it is verified."""
        try:
            with self._mutex, open(self._path(run), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return [], None
        slots = [slot for slot in (data[:_SLOT], data[_SLOT:_DRAFT_AT]) if any(slot)]
        if len(data) < _DRAFT_AT + _FRONT.size:
            return slots, None
        epoch, name, size = _FRONT.unpack_from(data, _DRAFT_AT)
        at = _DRAFT_AT + _FRONT.size
        text = data[at : at + name].decode("utf-8", "replace")
        return slots, Draft(epoch, text, data[at + name : at + name + size]) if epoch else None

    def mark(self, run: str, mark: bytes) -> None:
        """Write a mark behind the last one."""
        with self._mutex:
            file = self._open.get(run) or self._file(run)
            file.marks = file.marks[_SLOT:] + mark.ljust(_SLOT, b"\0")
            os.pwrite(file.descriptor, file.marks, 0)  # within a sector, so that it cannot be torn

    def taken(self, run: str) -> None:
        """The database holds the draft."""
        with self._mutex:
            os.pwrite(self._file(run).descriptor, _NO_DRAFT, _DRAFT_AT)

    def close(self, run: str) -> None:
        """Close the file of a run."""
        with self._mutex:
            file = self._open.pop(run, None)
            if file is not None:
                os.close(file.descriptor)

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

    def _file(self, run: str) -> _File:
        found = self._open.get(run)
        if found is None:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path(run), flags, 0o600)
            marks = os.pread(descriptor, _DRAFT_AT, 0).ljust(_DRAFT_AT, b"\0")
            found = self._open[run] = _File(descriptor, marks)
        return found

    def _path(self, run: str) -> str:
        return os.path.join(self._folder, run)
