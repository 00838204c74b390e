"""diskcache, made to keep its word.

diskcache is made for values that may be lost; here none may be.  What is done about it:

- no eviction, no culling, no expiry: ``eviction_policy="none"``, ``cull_limit=0``;
- ``synchronous=FULL``, so that an acknowledged batch survives a power cut (``NORMAL`` for a batch
  that need not), and values of 1 MiB and more in files that are fsynced before the commit;
- only ``str`` keys and ``bytes`` values; nothing is ever unpickled here;
- one connection for all threads; transactions that say what went wrong, and that the next use
  rolls back if an interrupt left them open;
- settings in the database are ours, or are ignored: diskcache would set any as an attribute;
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
from diskcache.core import DEFAULT_SETTINGS, METADATA, MODE_BINARY, MODE_RAW

from stepwise.stores._folder import check_path, damaged, write_file

__all__ = ["Cache", "open_cache"]

_IN_FILES = 1 << 20  # bytes; from here on a fsynced file is faster than a row (measured)
_BUSY_SECONDS = 60
_FULL, _NORMAL = 2, 1
_SETTINGS = {
    **DEFAULT_SETTINGS,
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_cache_size": 512,  # pages: what is written is hardly ever read; 8192 are 32 MB
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": _NORMAL,  # while it opens, which is a score of commits; then see begin()
    "disk_min_file_size": _IN_FILES,
}
_VALUE_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
_WHERE = "FROM Cache WHERE key = ? AND raw = 1"
_RANGE = "FROM Cache WHERE key >= ? AND key < ?"
_INSERT = (
    "INTO Cache (key, raw, store_time, size, mode, filename, value) VALUES (?, 1, ?, ?, ?, ?, ?)"
)


def open_cache(path: str) -> Cache:
    """Open the cache in a folder, with our settings, whatever an opener before us had set."""
    check_path(path)
    try:
        return Cache(path)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # diskcache trusts what it reads while it opens.
        raise damaged(path, f"{type(error).__name__}: {error}") from error


class _Disk(diskcache.Disk):  # type: ignore[misc]
    """Bytes in, bytes out.  What cannot be read whole is ``b""``, which never verifies."""

    def __init__(self, directory: str, min_file_size: int, **_: object) -> None:
        super().__init__(directory, min_file_size)
        self.fresh: list[str] = []  # files of the transaction

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: str, raw: bool) -> str:
        return key

    def store(self, value: bytes, read: bool, key: str = "") -> tuple[Any, ...]:
        if len(value) < _IN_FILES:
            return 0, MODE_RAW, None, value
        filename, path = self.filename(key, value)
        self.fresh.append(filename)
        write_file(path, value, self._directory)
        return len(value), MODE_BINARY, filename, None

    def load(self, mode: object, filename: object, size: object, value: object) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        if mode == MODE_BINARY and _is_ours(filename):
            with contextlib.suppress(OSError):  # the file is missing, or something else
                with open(os.path.join(self._directory, str(filename)), "rb") as file:
                    data = file.read()
                return data if len(data) == size else b""
        return b""  # any other mode would be somebody else's pickle

    def remove(self, filename: object) -> None:
        if _is_ours(filename):  # a tampered row must not delete other files
            super().remove(filename)


def _is_ours(filename: object) -> bool:
    return isinstance(filename, str) and _VALUE_FILE.fullmatch(filename) is not None


class Cache(diskcache.Cache):  # type: ignore[misc]
    """A cache with one connection for all threads, whose transactions tell what went wrong."""

    _connection: sqlite3.Connection | None = None
    _level = 0
    _is_open = False
    _doomed: list[object]

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, timeout=_BUSY_SECONDS, disk=_Disk, **_SETTINGS)
        except BaseException:
            self._is_open = True
            self.close()
            raise
        self._is_open = True

    @property
    def _con(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                os.path.join(self._directory, "cache.db"),
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,  # every use is behind the store's lock
            )
            connection.text_factory = _text
            connection.execute("PRAGMA mmap_size=0")
            connection.execute(f"PRAGMA synchronous={_NORMAL}")
            self._connection, self._level = connection, 0
        return self._connection

    def reset(self, key: str, *value: Any, **how: Any) -> Any:
        if key in _SETTINGS or key in METADATA:
            return super().reset(key, *value, **how)
        return None

    def close(self) -> None:
        if not self._is_open:
            return  # diskcache would close what it has just opened, which moves the whole log
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: the parent's connection is neither used nor closed."""
        _abandoned.append(self._connection)
        self._connection = None

    # -- reading ---------------------------------------------------------------------------------

    # Plain statements, since nothing here expires, has a tag, or is evicted: the inherited methods
    # take twice as long.

    def get(self, key: str) -> bytes | None:
        """One value; ``None`` if there is none, ``b""`` if it cannot be read whole."""
        sql = f"SELECT mode, filename, size, value {_WHERE}"
        row = self._con.execute(sql, (key,)).fetchone()
        return None if row is None else self._disk.load(*row)

    def page(self, start: str, end: str, size: int) -> list[tuple[str, bytes]]:
        """The first values of a range of keys, in the order of these."""
        sql = f"SELECT key, mode, filename, size, value {_RANGE} ORDER BY key LIMIT ?"
        rows = self._con.execute(sql, (start, end, size)).fetchall()
        self._check_order(start, [row[0] for row in rows])
        return [(key, self._disk.load(*row)) for key, *row in rows]

    def keys(self, start: str, end: str) -> list[str]:
        """A range of keys, in order."""
        rows = self._con.execute(f"SELECT key {_RANGE} ORDER BY key", (start, end))
        keys = [key for (key,) in rows]
        self._check_order(start, keys)
        return keys

    def _check_order(self, start: str, keys: list[Any]) -> None:
        """A damaged index gives anything, in any order, and could lead in circles."""
        if set(map(type, keys)) - {str} or [start, *keys] != sorted([start, *keys]):
            raise damaged(self._directory, "its keys are out of order")

    # -- writing ---------------------------------------------------------------------------------

    def begin(self, durable: bool) -> None:
        self.roll_back()
        level = _FULL if durable else _NORMAL
        if level != self._level:
            self._con.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self._doomed = []
        self._disk.fresh = []
        self._con.execute("BEGIN IMMEDIATE")

    def set(self, key: str, value: bytes) -> None:
        row = (key, time.time(), *self._disk.store(value, False, key))
        if not self._con.execute(f"INSERT OR IGNORE {_INSERT}", row).rowcount:
            self.delete(key)
            self._con.execute(f"INSERT {_INSERT}", row)

    def delete(self, key: str) -> None:
        if not self._con.execute(f"DELETE {_WHERE} AND filename IS NULL", (key,)).rowcount:
            self._delete(_WHERE, key)

    def drop(self, start: str, end: str) -> None:
        """Delete a range of keys."""
        self._delete(_RANGE, start, end)

    def _delete(self, which: str, *parameters: str) -> None:
        rows = self._con.execute(f"SELECT filename {which}", parameters).fetchall()
        self._doomed += [filename for (filename,) in rows if filename is not None]
        if rows:
            self._con.execute(f"DELETE {which}", parameters)

    def commit(self) -> None:
        # An exception out of COMMIT means "unknown".  Nobody relies on it: whoever gets it stops
        # the run, and the journal is read again before anything else is decided.
        self._con.execute("COMMIT")
        self._disk.fresh = []
        for name in self._doomed:
            self._disk.remove(name)

    def roll_back(self) -> None:
        """Undo what an error, or an interrupt at any place, left open."""
        if self._con.in_transaction:
            self._con.rollback()
            for name in self._disk.fresh:  # only now it is known that no row names them
                self._disk.remove(name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # a damaged key is not one of ours


_abandoned: list[Any] = []
