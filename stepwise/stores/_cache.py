"""diskcache, made to keep its word.

diskcache is made for values that may be lost; here none may be.  What is done about it:

- no eviction, no culling, no expiry: ``eviction_policy="none"``, ``cull_limit=0``;
- ``synchronous=FULL``, so that an acknowledged batch survives a power cut (``NORMAL`` for a batch
  that need not), and values of 1 MiB and more in files that are fsynced before the commit;
- only ``str`` keys and ``bytes`` values; nothing is ever unpickled here;
- one connection for all threads, with transactions of our own;
- no index of expiry, no times, no triggers that count, no pages moved about at each commit: a step
  writes fewer of them.  ``diskcache`` opens such a store and reads all of it, and makes what is
  missing; only its ``len`` counts nothing before its ``check(fix=True)``;
- settings in the database are ours, or are ignored: diskcache would set any as an attribute.

The only module that knows diskcache.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import diskcache
from diskcache.core import DEFAULT_SETTINGS, METADATA, MODE_BINARY, MODE_RAW

from stepwise._runtime.forks import cached
from stepwise._values.buffers import Data
from stepwise.stores._folder import damaged
from stepwise.stores._transactions import BUSY_SECONDS, NORMAL, Transactions
from stepwise.stores._values import IN_FILES, Values

__all__ = ["CACHE", "Cache", "open_cache"]

CACHE = "cache.db"  # as diskcache calls it
_SETTINGS = {
    **DEFAULT_SETTINGS,
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_auto_vacuum": 0,  # pages are used again
    "sqlite_cache_size": 512,  # pages: written data are hardly ever read; 8192 are 32 MB
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": NORMAL,  # while it opens, with some 20 commits; then see begin()
    "disk_min_file_size": IN_FILES,
}
_UNUSED = {
    "Cache_expire_time": "INDEX",
    "Settings_count_insert": "TRIGGER",
    "Settings_count_delete": "TRIGGER",
    "Settings_size_insert": "TRIGGER",
    "Settings_size_update": "TRIGGER",
    "Settings_size_delete": "TRIGGER",
}
_WHERE = "FROM Cache WHERE key = ? AND raw = 1"
_RANGE = "FROM Cache WHERE key >= ? AND key < ?"
_INSERT = "INTO Cache (key, raw, size, mode, filename, value) VALUES (?, 1, ?, ?, ?, ?)"
_TURN = (
    "UPDATE OR IGNORE Cache SET key = ?, size = 0, mode = ?, value = ? "
    "WHERE key = ? AND raw = 1 AND filename IS NULL"
)

C = TypeVar("C", bound="Cache")


def open_cache(kind: type[C], path: str) -> C:
    """Open the cache in a folder, with our settings, whatever an opener before us had set."""
    try:
        return kind(path)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # diskcache trusts the settings that it reads while it opens.
        raise damaged(path, f"{type(error).__name__}: {error}") from error


class _Disk(diskcache.Disk):  # type: ignore[misc]
    """Nothing that diskcache does by itself may pickle or unpickle."""

    def __init__(self, directory: str, **_: object) -> None:
        super().__init__(directory)  # other settings in the database are ignored

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("only Cache reads and writes values")

    put = get = store = fetch = _refuse


class Cache(Transactions, diskcache.Cache):  # type: ignore[misc]
    """A cache with one connection for all threads, whose transactions tell what went wrong."""

    _is_open = False

    def __init__(self, path: str) -> None:
        self.file = os.path.join(path, CACHE)
        self.values = Values(path)
        try:
            diskcache.Cache.__init__(self, path, timeout=BUSY_SECONDS, disk=_Disk, **_SETTINGS)
            for name, kind in _UNUSED.items():  # another opener may have made it
                self._con.execute(f"DROP {kind} IF EXISTS {name}")
        except BaseException:
            self._is_open = True
            self.close()
            raise
        self._is_open = True

    def reset(self, key: str, *value: Any, **how: Any) -> Any:
        if key in _SETTINGS or key in METADATA:
            return super().reset(key, *value, **how)
        return None

    @cached
    def _told(self) -> dict[str, Any]:
        """The settings that the database has."""
        try:
            return dict(self._con.execute("SELECT key, value FROM Settings").fetchall())
        except sqlite3.OperationalError:
            return {}  # a new database

    def _is_told(self, statement: str, values: tuple[Any, ...]) -> bool:
        """Return whether a statement would write a setting that is already stored."""
        if "INTO Settings VALUES" in statement:
            key, value = values
        elif statement.startswith("UPDATE Settings SET value"):
            value, key = values
        else:
            return False
        return key in self._told and (key in METADATA or self._told[key] == value)

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        """How diskcache sets a database up: without what is not used here.

        And without writing again what is there: a store on a full disk can be looked at.
        """
        execute = super()._sql_retry

        def sql(statement: str, *parameters: Any) -> Any:
            unused = statement.startswith("CREATE ") and any(name in statement for name in _UNUSED)
            if unused or self._is_told(statement, *parameters or ((),)):
                return None
            return execute(statement, *parameters)

        return sql

    def close(self) -> None:
        if (
            self._is_open
        ):  # while opening, diskcache would close its new connection and sync the log
            super().close()

    # -- reading ---------------------------------------------------------------------------------

    # Plain statements, since nothing here expires, has a tag, or is evicted: the inherited methods
    # take twice as long.

    def get(self, key: str) -> bytes | None:
        """One value; ``None`` if there is none, ``b""`` if it cannot be read whole."""
        sql = f"SELECT mode, filename, size, value {_WHERE}"
        row = self._con.execute(sql, (key,)).fetchone()
        return None if row is None else self._load(*row)

    def page(self, start: str, end: str, size: int) -> list[tuple[str, bytes]]:
        """The first values of a range of keys, in the order of these."""
        sql = f"SELECT key, mode, filename, size, value {_RANGE} ORDER BY key LIMIT ?"
        rows = self._con.execute(sql, (start, end, size)).fetchall()
        self._check_order(start, [row[0] for row in rows])
        return [(key, self._load(*row)) for key, *row in rows]

    def keys(self, start: str, end: str) -> list[str]:
        """A range of keys, in order."""
        rows = self._con.execute(f"SELECT key {_RANGE} ORDER BY key", (start, end))
        keys = [key for (key,) in rows]
        self._check_order(start, keys)
        return keys

    def _load(self, mode: object, filename: object, size: object, value: object) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        # Any other mode would be a pickle that we did not write.
        return self.values.read(filename, size) if mode == MODE_BINARY else b""

    def _check_order(self, start: str, keys: list[Any]) -> None:
        """A damaged index gives anything, in any order, and could lead in circles."""
        if set(map(type, keys)) - {str} or [start, *keys] != sorted([start, *keys]):
            raise damaged(self._directory, "its keys are out of order")

    # -- writing ---------------------------------------------------------------------------------

    def set(self, key: str, value: Data) -> None:
        row: tuple[object, ...]
        if len(value) >= IN_FILES:
            row = (key, len(value), MODE_BINARY, self.values.write(value), None)
        else:
            row = (key, 0, MODE_RAW, None, bytes(value))
        if not self._con.execute(f"INSERT OR IGNORE {_INSERT}", row).rowcount:
            self.delete(key)
            self._con.execute(f"INSERT {_INSERT}", row)

    def turn(self, old: str, key: str, value: Data) -> bool:
        """Give the row of an old key to a new one, if no file is involved; whether that was so."""
        if len(value) >= IN_FILES:
            return False
        row = (key, MODE_RAW, bytes(value), old)
        return bool(self._con.execute(_TURN, row).rowcount)

    def delete(self, key: str) -> None:
        if not self._con.execute(f"DELETE {_WHERE} AND filename IS NULL", (key,)).rowcount:
            self._delete(_WHERE, key)

    def drop(self, start: str, end: str) -> None:
        """Delete a range of keys."""
        self._delete(_RANGE, start, end)

    def _delete(self, which: str, *parameters: str) -> None:
        rows = self._con.execute(f"SELECT filename {which}", parameters).fetchall()
        for (filename,) in rows:
            if filename is not None:
                self.values.give_up(filename)
        if rows:
            self._con.execute(f"DELETE {which}", parameters)
