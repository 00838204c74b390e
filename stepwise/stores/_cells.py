"""A file of small cells, each found by its key: what a file for each run would hold.

To make a file took 0.7 ms on ext4, to add a cell takes a twentieth of that.  Each level of the file
is twice as long as the one before it::

    level 0    128 buckets of 8 cells
    level 1    256 buckets of 8 cells
    ...

    cell       16 bytes of the key, then the content; zeros if it is free

A key has one bucket in each level, and lies in the first one that had a free cell.  Cells never
move: so nobody needs a lock to read.  Whoever writes locks the file: the cell to replace may have
been removed a moment ago, and its place taken.  A cell lies within a sector of the disk, so that a
power cut leaves all of it or nothing.
Only a removal is flushed.

Rejected: cells in the order in which they came, with an index in memory.  The first look of each
process would read all of them, 13 MB for 100,000 runs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

KEY = 16  # bytes
_CELL = 128  # bytes; a sector holds a whole number of cells
_BUCKET = 8 * _CELL
_FIRST = 128  # buckets of level 0
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class FileCell:
    """The cell of a key in a file, which is made with its first cell.

    Methods raise the ``OSError`` that the system gives; nothing stays open between two calls.

    Args:
        path: of the file; its folder must be there to add a cell.
        key: 16 bytes, not all of them zero.
    """

    def __init__(self, path: str, key: bytes) -> None:
        self.path = path
        self._key = key
        self._at = -1  # where it was last

    def get(self) -> bytes:
        """Return the content, with zeros behind it; empty if there is no such cell."""
        try:
            file = os.open(self.path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return b""
        try:
            at = _found(file, self._key)
            cell = os.pread(file, _CELL, at) if at >= 0 else b""
            # The file may be cut within it; or it is removed meanwhile, its place another's.
            return cell[KEY:] if len(cell) == _CELL and cell.startswith(self._key) else b""
        finally:
            os.close(file)

    def put(self, content: bytes) -> None:
        """Replace the content, or add the cell."""
        cell = (self._key + content).ljust(_CELL, b"\0")
        if len(cell) > _CELL:
            raise ValueError(len(content))
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._at < 0 or os.pread(file, KEY, self._at) != self._key:
                at = _found(file, self._key)
                self._at = at if at >= 0 else _free(file, self._key)
            os.pwrite(file, cell, self._at)
        finally:
            _close_locked(file)

    def remove(self) -> None:
        """Remove the cell, durably; nothing happens if it is not there."""
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
    """Yield the buckets of a key: where each begins, and what of it is in the file."""
    start, count = 0, _FIRST
    while True:
        at = start + int.from_bytes(key[:8], "big") % count * _BUCKET
        data = os.pread(file, _BUCKET, at)
        yield at, data
        if not data:  # the file ends before it: so it does before the next level
            return
        start, count = start + count * _BUCKET, 2 * count


def _found(file: int, key: bytes) -> int:
    """Return where the cell of a key begins; -1 if there is none."""
    for at, data in _buckets(file, key):
        for place in range(0, len(data), _CELL):
            if data.startswith(key, place):
                return at + place
    return -1


def _free(file: int, key: bytes) -> int:
    """Return where a cell for a key can begin."""
    for at, data in _buckets(file, key):
        for place in range(0, _BUCKET, _CELL):
            if not any(data[place : place + KEY]):
                return at + place
    raise AssertionError  # a bucket behind the end of the file is free
