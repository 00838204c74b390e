"""``disk:/path``: the store on one machine, on diskcache (SQLite in WAL mode).

Rows: ``r/RUN/000000000001`` a record, ``o/RUN/NAME`` an object, ``h/RUN`` the head,
``u/WORKFLOW/RUN`` the same while unfinished, ``l/RUN`` epoch and owner; RUN and WORKFLOW are
hashes.

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

diskcache makes the database, and repairs it (see ``_diskcache.py``); one that is as it should be is
opened by SQLite alone.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from stepwise._values.buffers import Data
from stepwise.stores._files import IN_FILES, Values, damaged
from stepwise.stores._folder_store import FolderStore
from stepwise.stores._rows import (
    BUSY_SECONDS,
    NORMAL,
    Page,
    Transactions,
    hashed,
    pack,
    unpack,
    unpack_of,
)
from stepwise.stores.base import Head

__all__ = ["DiskStore"]

_CACHE = "cache.db"  # as diskcache calls it
_SETTINGS: dict[str, object] = {  # of a cache, all of them
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "none",
    "size_limit": 1 << 62,
    "cull_limit": 0,
    "sqlite_auto_vacuum": 0,  # pages are used again
    "sqlite_cache_size": 512,  # pages: written data are hardly ever read; 8192 are 32 MB
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": NORMAL,  # while it opens, with some 20 commits; then see begin()
    "disk_min_file_size": IN_FILES,
    "disk_pickle_protocol": 5,  # nothing is pickled
}
_OF_CONNECTIONS = (f"cache_size={_SETTINGS['sqlite_cache_size']}",)  # the others have that value
_METADATA = {"count", "size", "hits", "misses"}  # settings that diskcache makes itself
_MADE = {"Cache", "Cache_key_raw", "Settings", "sqlite_autoindex_Settings_1"}
MODE_RAW, MODE_BINARY = 1, 2  # as diskcache calls them: in the row, in a file
_WHERE = "FROM Cache WHERE key = ? AND raw = 1"
_RANGE = "FROM Cache WHERE key >= ? AND key < ?"
_INSERT = "INSERT OR IGNORE INTO Cache (key, raw, size, mode, filename, value) VALUES "
_INSERT_LARGE = f"{_INSERT} (?, 1, ?, {MODE_BINARY}, ?, NULL)"
_INSERT_SMALL = f"{_INSERT} (?, 1, 0, {MODE_RAW}, NULL, ?)"
_IN_PLACE = "UPDATE Cache SET mode = ?, value = ? WHERE key = ? AND raw = 1 AND filename IS NULL"
_REPLACE = (
    "UPDATE OR IGNORE Cache SET key = ?, size = 0, mode = ?, value = ? "
    "WHERE key = ? AND raw = 1 AND filename IS NULL"
)
_NEWEST = (  # without INDEXED BY, SQLite would look at every row of the cache, from the last on
    "SELECT rowid FROM Cache INDEXED BY Cache_key_raw WHERE key >= ? AND key < ? "
    "AND rowid < ? ORDER BY rowid DESC LIMIT ?"
)
_NO_ROW = 2**63 - 1
_DIGITS = 12  # in a record's number
_LAST = "\U0010ffff"


class DiskStore(FolderStore):
    """A folder on a local disk, with a diskcache in it.

    Args:
        path: the folder; made when the first run starts, readable by its owner only.

    Raises:
        ConfigurationError: the path cannot be used as it is written.
    """

    _scheme = "disk"
    _file = _CACHE
    _marked = "marks"
    _logged = "logs"

    def _open_rows(self, folder: str) -> _Cache:
        try:
            return _Cache(folder)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # diskcache trusts the settings that it reads while it opens.
            raise damaged(folder, f"{type(error).__name__}: {error}") from error


class _Cache(Transactions):
    """Rows as keys and values of a cache, with one connection for all threads."""

    settings = _OF_CONNECTIONS

    def __init__(self, path: str) -> None:
        self.file = os.path.join(path, _CACHE)
        self.values = Values(path)
        self._directory = path
        try:
            if not self._is_made():
                from stepwise.stores._diskcache import make_cache  # on use: see there

                make_cache(self._con, path, _SETTINGS, BUSY_SECONDS)
        except BaseException:
            self.close()
            raise

    def _is_made(self) -> bool:
        """Return whether diskcache would find nothing to write, and made nothing unwanted."""
        execute = self._con.execute
        try:
            made = {name for (name,) in execute("SELECT name FROM sqlite_master")}
            if made != _MADE or execute("PRAGMA journal_mode").fetchone() != ("wal",):
                return False
            told = dict(execute("SELECT key, value FROM Settings").fetchall())
        except sqlite3.OperationalError:
            return False  # in use: diskcache waits for it
        return told.keys() >= _METADATA and {**told, **_SETTINGS} == told

    # -- reading ---------------------------------------------------------------------------------

    # Plain statements, since nothing here expires, has a tag, or is evicted: the inherited methods
    # take twice as long.

    def get(self, key: str) -> bytes | None:
        """Return one value: ``None`` if it is missing, ``b""`` if it cannot be read whole."""
        sql = f"SELECT mode, filename, size, value {_WHERE}"
        row = self._con.execute(sql, (key,)).fetchone()
        return None if row is None else self._load(*row)

    def page(self, after: str, end: str, size: int) -> list[tuple[str, bytes]]:
        """The first values of the keys between two others, in the order of these."""
        start = after + "\0"
        sql = f"SELECT key, mode, filename, size, value {_RANGE} ORDER BY key LIMIT ?"
        rows = self._con.execute(sql, (start, end, size)).fetchall()
        self._check_order(start, [row[0] for row in rows])
        return [(key, self._load(*row)) for key, *row in rows]

    def newest(self, prefix: str, cursor: int | None, size: int) -> list[tuple[int, str, bytes]]:
        """The values of keys that begin so, in the order of their rows, the last row first.

        Args:
            prefix: ends with a slash.
            cursor: only rows before this one.
        """
        before = _NO_ROW if cursor is None else cursor
        rowids = self._con.execute(_NEWEST, (prefix, f"{prefix[:-1]}0", before, size)).fetchall()
        found = []
        for (rowid,) in rowids:
            sql = "SELECT key, mode, filename, size, value FROM Cache WHERE rowid = ?"
            row = self._con.execute(sql, (rowid,)).fetchone()
            if row is not None and type(row[0]) is str:  # else the index is damaged
                found.append((rowid, row[0], self._load(*row[1:])))
        return found

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

    def put_row(self, key: str, value: bytes) -> None:
        """Write a value where the key's old one was, so that the rowids say which key is newer."""
        small = len(value) < IN_FILES
        if not small or not self._con.execute(_IN_PLACE, (MODE_RAW, value, key)).rowcount:
            self.set(key, value)

    def set(self, key: str, value: Data) -> None:
        row: tuple[object, ...]
        if len(value) >= IN_FILES:
            insert, row = _INSERT_LARGE, (key, len(value), self.values.write(value))
        else:  # sqlite3 looks for an adapter of bytes, which takes longer than to copy them
            insert, row = _INSERT_SMALL, (key, bytearray(bytes(value)))
        if not self._con.execute(insert, row).rowcount:
            self.delete(key)
            self._con.execute(insert.replace(" OR IGNORE", ""), row)

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

    # -- leases ----------------------------------------------------------------------------------

    def lease(self, run_id: str) -> bytes | None:
        return self.get(f"l/{hashed(run_id)}")

    def put_lease(self, run_id: str, row: bytes) -> None:
        self.set(f"l/{hashed(run_id)}", row)

    # -- records ---------------------------------------------------------------------------------

    def put_record(self, run_id: str, number: int, data: Data) -> None:
        self.set(_key(hashed(run_id), number), data)

    def prune(self, run_id: str, number: int) -> None:
        run = hashed(run_id)
        self.drop(f"r/{run}/", _key(run, number + 1))

    def records(
        self, run_id: str, after: int, cursor: str | None, size: int
    ) -> Page[tuple[int, bytes]]:
        run = hashed(run_id)
        page = self.page(cursor or _key(run, after), f"r/{run}0", size)
        return [(key, _record(run, key, data)) for key, data in page]

    # -- objects ---------------------------------------------------------------------------------

    def put_object(self, run_id: str, name: str, data: Data) -> None:
        self.set(f"o/{hashed(run_id)}/{name}", data)

    def delete_object(self, run_id: str, name: str) -> None:
        self.delete(f"o/{hashed(run_id)}/{name}")

    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        if len(data) >= IN_FILES:
            return False
        run = hashed(run_id)
        row = (f"o/{run}/{name}", MODE_RAW, bytes(data), f"o/{run}/{old}")
        return bool(self._con.execute(_REPLACE, row).rowcount)

    def get_object(self, run_id: str, name: str) -> bytes | None:
        return self.get(f"o/{hashed(run_id)}/{name}")

    def names(self, run_id: str, prefix: str) -> list[str]:
        run = f"o/{hashed(run_id)}"
        return [key[len(run) + 1 :] for key in self.keys(f"{run}/{prefix}", f"{run}0")]

    # -- heads -----------------------------------------------------------------------------------

    def put_head(self, head: Head) -> None:
        run, row = hashed(head.run_id), pack(head)
        self.put_row(f"h/{run}", row)
        if head.finished:
            self.delete(f"u/{hashed(head.workflow)}/{run}")
        else:
            self.put_row(f"u/{hashed(head.workflow)}/{run}", row)

    def head(self, run_id: str) -> Head | None:
        return unpack_of(self.get(f"h/{hashed(run_id)}"), run_id)

    def heads(
        self, workflow: str | None, unfinished: bool, cursor: str | None, size: int
    ) -> Page[Head]:
        prefix = "u/" if unfinished else "h/"
        if unfinished and workflow is not None:
            prefix += f"{hashed(workflow)}/"
        found = []
        for key, row in self.page(cursor or prefix, prefix + _LAST, size):
            head = unpack(row, key.rpartition("/")[2])
            wanted = head is not None and workflow in (None, head.workflow)
            found.append((key, head if wanted else None))
        return found

    def newest_heads(self, unfinished: bool, cursor: int | None, size: int) -> Page[Head]:
        found = []
        for rowid, key, row in self.newest("u/" if unfinished else "h/", cursor, size):
            found.append((rowid, unpack(row, key.rpartition("/")[2])))
        return found

    def count_heads(self) -> int:
        (found,) = self._con.execute(f"SELECT count(*) {_RANGE}", ("h/", "h0")).fetchone()
        return int(found)

    def forget(self, run_id: str) -> None:
        run, head = hashed(run_id), self.head(run_id)
        if head is not None:
            self.delete(f"u/{hashed(head.workflow)}/{run}")
        self.delete(f"h/{run}")
        for kind in "ro":
            self.drop(f"{kind}/{run}/", f"{kind}/{run}0")  # "0" comes after "/"


def _key(run: str, number: int) -> str:
    return f"r/{run}/{number:0{_DIGITS}d}"


def _record(run: str, key: str, data: bytes) -> tuple[int, bytes] | None:
    digits = key[-_DIGITS:]
    if digits.isdecimal() and key == _key(run, int(digits)):
        return int(digits), data
    return None  # damaged: not a record
