"""The anchors of runs: the last mark of each run, beside the key, in ``$STEPWISE_HOME/anchors``.

Without anchors, a person who can write a store but has no key could put back old contents, marks
included.  An anchor is written without waiting for the disk.  The anchor of a deleted run records
the deletion.  Anchors exist only if the key is a file of this machine: a store that several homes
use would change without an anchor in this home.

All anchors lie in one file of small cells, found by key, instead of one small file for each run.
Creating a file took 0.7 ms on ext4; adding a cell takes a twentieth of that.  Each level of the
file is twice as long as the previous level::

    level 0    128 buckets of 8 cells
    level 1    256 buckets of 8 cells
    ...

    cell       16 bytes of the key, then the content; zeros if it is free

A key has one bucket in each level, and its cell lies in the first bucket that had a free place.
Cells never move, so readers need no lock.  Writers lock the file: the cell to replace may just have
been removed and its place reused.  A cell lies within one sector of the disk, so a power cut leaves
the whole cell or nothing.  Only a removal is flushed.

Rejected: cells in the order of their arrival, with an index in memory.  The first access of each
process would read the whole file, 13 MB for 100,000 runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise.stores import Store

KEY = 16  # bytes
_CELL = 128  # bytes; a sector holds a whole number of cells
_BUCKET = 8 * _CELL
_FIRST = 128  # buckets of level 0
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


# -- cells ----------------------------------------------------------------------------------------


class FileCell:
    """The cell of a key in a file.  The first cell creates the file.

    Methods raise the system's ``OSError``; nothing stays open between two calls.

    Args:
        path: the path of the file; adding a cell needs an existing folder.
        key: 16 bytes, not all of them zero.
    """

    def __init__(self, path: str, key: bytes) -> None:
        self.path = path
        self._key = key
        self._at = -1  # the last known offset of the cell

    def get(self) -> bytes:
        """Return the content, padded with zeros, or ``b""`` if the cell is missing."""
        try:
            file = os.open(self.path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return b""
        try:
            at = _found(file, self._key)
            cell = os.pread(file, _CELL, at) if at >= 0 else b""
            # The file may end within the cell, or another key may have taken its place meanwhile.
            return cell[KEY:] if len(cell) == _CELL and cell.startswith(self._key) else b""
        finally:
            os.close(file)

    def put(self, content: bytes) -> None:
        """Replace the content, or add the cell.

        Raises:
            ValueError: the content is longer than a cell has room for.
        """
        cell = (self._key + content).ljust(_CELL, b"\0")
        if len(cell) > _CELL:
            raise ValueError(len(content))
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._at < 0 or os.pread(file, KEY, self._at) != self._key:
                self._at = _found(file, self._key, or_free=True)
            os.pwrite(file, cell, self._at)
        finally:
            _close_locked(file)

    def remove(self) -> None:
        """Remove the cell durably; do nothing if the cell is missing."""
        from stepwise.stores._files import flush  # on use: it loads SQLite

        try:
            file = os.open(self.path, os.O_RDWR | _FLAGS)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            at = _found(file, self._key)
            if at >= 0:
                os.pwrite(file, bytes(_CELL), at)
                flush(file)
        finally:
            _close_locked(file)


def _close_locked(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked just now has the file open, too
    finally:
        os.close(file)


def _buckets(file: int, key: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the buckets of a key: the offset of each, and its bytes as far as the file goes."""
    start, count = 0, _FIRST
    while True:
        at = start + int.from_bytes(key[:8], "big") % count * _BUCKET
        data = os.pread(file, _BUCKET, at)
        yield at, data
        if not data:  # the file ends before this bucket, and so before the next level
            return
        start, count = start + count * _BUCKET, 2 * count


def _found(file: int, key: bytes, *, or_free: bool = False) -> int:
    """Return the offset of a key's cell; without one, -1, or that of the first free place for it.

    There is always one: a bucket past the end of the file is free.
    """
    free = -1
    for at, data in _buckets(file, key):
        for place in range(0, _BUCKET if data else _CELL, _CELL):
            if data.startswith(key, place):
                return at + place
            if or_free and free < 0 and not any(data[place : place + KEY]):
                free = at + place
    return free


# -- anchors --------------------------------------------------------------------------------------


_FORM = struct.Struct("<40sd?")


class Anchor(NamedTuple):
    """The last mark of a run, when the anchor was written, and whether the run was deleted."""

    mark: bytes
    at: float
    deleted: bool


def drop(cell: FileCell | None, mark: bytes, *, deleted: bool = False) -> None:
    """Keep the last mark of a run in its anchor; an error of the system is ignored."""
    if cell is None:
        return
    data = _FORM.pack(mark, time.time(), deleted)
    with contextlib.suppress(OSError):
        try:
            cell.put(data)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process created it just now
                os.mkdir(os.path.dirname(cell.path), 0o700)
            cell.put(data)


def anchor_of(store: Store, run_id: str) -> Anchor | None:
    """Return the anchor of a run, or ``None`` if it is missing or unreadable."""
    cell = cell_of(store, run_id)
    with contextlib.suppress(OSError):
        data = cell.get() if cell is not None else b""
        if data:
            return Anchor(*_FORM.unpack_from(data))
    return None


def bury(store: Store, run_id: str) -> None:
    """Record in the anchor that a run was deleted, if the run has an anchor.

    A run of the same id that began before the deletion is then known to be an old copy.  A run that
    begins later is a new run without losses.
    """
    kept = anchor_of(store, run_id)
    if kept is not None:
        drop(cell_of(store, run_id), kept.mark, deleted=True)


def lift(store: Store, run_id: str) -> None:
    """Remove the anchor of a run, once a person has restored the run or accepted its loss."""
    cell = cell_of(store, run_id)
    if cell is not None:
        with contextlib.suppress(OSError):
            cell.remove()


def cell_of(store: Store, run_id: str) -> FileCell | None:
    """Return the cell for the anchor of a run, or ``None`` if anchors are not kept."""
    if not store.persistent or os.environ.get("STEPWISE_KEY"):
        return None
    name = f"{store.url}\0{run_id}".encode("utf-8", "surrogatepass")
    path = os.path.join(settings.home(), "anchors", "cells")
    return FileCell(path, hashlib.blake2b(name, digest_size=KEY).digest())
