"""diskcache, made to keep its word.

diskcache is made for values that may be lost; here none may be.  What is done about it:

- no eviction, no culling, no expiry: ``eviction_policy="none"``, ``cull_limit=0``;
- ``synchronous=FULL``, so that an acknowledged batch survives a power cut (``NORMAL`` for a batch
  that need not), and values of 1 MiB and more in files that are fsynced before the commit;
- only ``str`` keys and ``bytes`` values; nothing is ever unpickled here;
- one connection for all threads; transactions that say what went wrong, and that the next use
  rolls back if an interrupt left them open;
- no memory map: a truncated file would be a SIGBUS.

The only module that knows diskcache.  Imports: the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from typing import Any

import diskcache
from diskcache.core import MODE_BINARY, MODE_RAW

from stepwise.stores._folder import write_file

__all__ = ["Cache", "open_cache"]

_IN_FILES = 1 << 20  # bytes; from here on a fsynced file is faster than a row (measured)
_BUSY_SECONDS = 60
_FULL, _NORMAL = 2, 1
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": _FULL,
    "disk_min_file_size": _IN_FILES,
}
_WHERE = "FROM Cache WHERE key = ? AND raw = 1"
_SELECT = f"SELECT mode, filename, value {_WHERE}"
_INSERT = (
    "INSERT OR IGNORE INTO Cache (key, raw, store_time, size, mode, filename, value)"
    " VALUES (?, 1, ?, ?, ?, ?, ?)"
)
_VALUE_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


def open_cache(path: str) -> Cache:
    """Open the cache in a folder, with our settings, whatever an opener before us had set."""
    return Cache(path, timeout=_BUSY_SECONDS, disk=_Disk, **_SETTINGS)


class _Disk(diskcache.Disk):  # type: ignore[misc]
    """Bytes in, bytes out.  What cannot be read whole is ``b""``, which never verifies."""

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: str, raw: bool) -> str:
        return key

    def store(self, value: bytes, read: bool, key: str = "") -> tuple[Any, ...]:
        if len(value) < self.min_file_size:
            return 0, MODE_RAW, None, value
        filename, path = self.filename(key, value)
        write_file(path, value, self._directory)
        return len(value), MODE_BINARY, filename, None

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        if mode == MODE_BINARY and filename and _VALUE_FILE.fullmatch(filename):
            with contextlib.suppress(FileNotFoundError):
                with open(os.path.join(self._directory, filename), "rb") as file:
                    return file.read()
        return b""  # any other mode would be somebody else's pickle

    def remove(self, filename: str) -> None:
        if _VALUE_FILE.fullmatch(filename):  # a tampered row must not delete other files
            super().remove(filename)


class Cache(diskcache.Cache):  # type: ignore[misc]
    """A cache with one connection for all threads, whose transactions tell what went wrong."""

    _connection: sqlite3.Connection | None = None
    _level = 0
    _doomed: list[str | None]

    @property
    def _con(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                os.path.join(self._directory, "cache.db"),
                timeout=self._timeout,
                isolation_level=None,
                check_same_thread=False,  # every use is behind the store's lock
            )
            connection.execute("PRAGMA mmap_size=0")
            self._connection, self._level = connection, 0
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: the parent's connection is neither used nor closed."""
        _abandoned.append(self._connection)
        self._connection = None

    # Plain statements, since nothing here expires, has a tag, or is evicted: the inherited methods
    # take twice as long.

    def get(self, key: str) -> bytes | None:
        row = self._con.execute(_SELECT, (key,)).fetchone()
        return None if row is None else self._disk.fetch(*row, False)

    def set(self, key: str, value: bytes) -> None:
        row = (key, time.time(), *self._disk.store(value, False, key))
        if not self._con.execute(_INSERT, row).rowcount:
            self.delete(key)
            self._con.execute(_INSERT, row)

    def delete(self, key: str) -> None:
        rows = self._con.execute(f"SELECT filename {_WHERE}", (key,)).fetchall()
        self._doomed += [filename for (filename,) in rows if filename is not None]
        if rows:
            self._con.execute(f"DELETE {_WHERE}", (key,))

    def begin(self, durable: bool) -> None:
        self.roll_back()
        level = _FULL if durable else _NORMAL
        if level != self._level:
            self._con.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self._doomed = []
        self._con.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        # An exception out of COMMIT means "unknown".  Nobody relies on it: whoever gets it stops
        # the run, and the journal is read again before anything else is decided.
        self._con.execute("COMMIT")
        for name in self._doomed:
            if name is not None:
                self._disk.remove(name)

    def roll_back(self) -> None:
        """Undo what an error, or an interrupt at any place, left open."""
        if self._con.in_transaction:
            self._con.rollback()


_abandoned: list[Any] = []
