"""``sqlite:/path``: the store on one machine, on SQLite alone, with no more pages than it takes.

::

    runs      id, hash of the run id, lease, and for listings: hash of the workflow, finished, head,
              place among all runs in the order in which they began (none: before the others)
    records   id = run << 40 | number, data
    objects   id = run << 40 | place that the name gives, name, data
    homonyms  run, name, data: an object whose place is another one's

Records and objects have no index: a record is the next row of its run, and a name says where its
object lies.  So a step with its checkpoint dirties two pages.
``data`` is a BLOB, or as TEXT the name and the size of a value file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from stepwise._values.buffers import Data
from stepwise.errors import StoreError
from stepwise.stores import _rows
from stepwise.stores._files import IN_FILES, Values, damaged
from stepwise.stores._folder_store import FolderStore
from stepwise.stores._rows import Page, Transactions, hashed, pack, unpack, unpack_of
from stepwise.stores.base import Head

__all__ = ["SqliteStore"]

_FORMAT = 1
_SETTINGS = ("cell_size_check=ON", "trusted_schema=OFF")
_ORDER = "CREATE INDEX places ON runs (place) WHERE place IS NOT NULL"
_COLUMNS = "id INTEGER PRIMARY KEY, hash UNIQUE, lease, workflow, finished, head, place"
_TABLES = (
    f"CREATE TABLE runs ({_COLUMNS})",
    _ORDER,
    "CREATE INDEX unfinished ON runs (workflow) WHERE finished = 0",
    "CREATE TABLE records (id INTEGER PRIMARY KEY, data)",
    "CREATE TABLE objects (id INTEGER PRIMARY KEY, name BLOB, data)",
    "CREATE TABLE homonyms (run INTEGER, name BLOB, data, PRIMARY KEY (run, name)) WITHOUT ROWID",
    f"PRAGMA user_version={_FORMAT}",
)
_RUN_AT = 40  # first bit of the run's number in a row's id
_STEM_AT = 24  # first bit of the stem (the name without its number) in an object's place
_RECORDS = "FROM records WHERE id >= ? AND id < ?"
_OBJECT = "FROM objects WHERE id = ? AND name = ?"
_OBJECTS = "FROM objects WHERE id >= ? AND id < ?"
_NEW_OBJECT = (
    "INSERT OR IGNORE INTO objects SELECT ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM homonyms WHERE run = ? AND name = ?)"
)
_REPLACED_OBJECT = (
    "UPDATE OR IGNORE objects SET id = ?, name = ?, data = ? "
    "WHERE id = ? AND name = ? AND typeof(data) = 'blob' "
    "AND NOT EXISTS (SELECT 1 FROM homonyms WHERE run = ? AND name = ?)"
)
_HOMONYM = "FROM homonyms WHERE run = ? AND name = ?"
_HOMONYMS = "FROM homonyms WHERE run = ?"
_HAS_HEAD = "SELECT 1 FROM runs WHERE id = ? AND head IS NOT NULL"
_TO_THE_END = (
    "UPDATE runs SET place = (SELECT coalesce(max(place), 0) + 1 FROM runs INDEXED BY places "
    "WHERE place IS NOT NULL) WHERE id = ?"
)
_LAST = 2**63 - 1  # no id and no place is greater
_MANY = 1000  # runs whose numbers are kept in memory


class SqliteStore(FolderStore):
    """A folder on a local disk, with an SQLite database in it.

    Args:
        path: the folder; made when the first run starts, readable by its owner only.

    Raises:
        ConfigurationError: the path cannot be used as it is written.
    """

    _scheme = "sqlite"
    _file = "stepwise.db"
    _marked = "sqlite-marks"  # apart from the marks of a ``disk:`` store in the same folder
    _logged = "sqlite-logs"

    def _open_rows(self, folder: str) -> _Tables:
        return _Tables(folder, os.path.join(folder, self._file))


class _Tables(Transactions):
    """Rows in tables of a database."""

    settings = _SETTINGS

    def __init__(self, folder: str, file: str) -> None:
        self.file = file
        self.values = Values(folder)
        self._folder = folder
        self._runs: dict[str, int] = {}
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        self._write_ahead()
        found = self._format()
        if not found:
            self.begin(durable=False)
            if not self._format():  # unless another process was first
                for statement in _TABLES:
                    self._con.execute(statement)
            self.commit()
        elif found > _FORMAT:
            raise StoreError(
                f"the store {self._folder} is of format {found}, and this version of stepwise "
                f"reads format {_FORMAT}: install the version that made it",
                path=self._folder,
                errno=None,
            )

    def _format(self) -> int:
        (found,) = self._con.execute("PRAGMA user_version").fetchone()
        return int(found)

    def _write_ahead(self) -> None:
        """Let it have a log.  Where two processes ask at once, SQLite does not wait by itself."""
        until = time.monotonic() + _rows.BUSY_SECONDS
        while True:
            try:
                self._con.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.005)
            else:
                return

    def undo(self) -> None:
        self._runs.clear()  # the transaction may have added a run
        super().undo()

    # -- runs ------------------------------------------------------------------------------------

    def _run(self, run_id: str) -> int:
        """Return the number of a run, or 0 if there is no such run."""
        found = self._runs.get(run_id, 0)
        if not found:
            key = _key(run_id)
            for (found,) in self._con.execute("SELECT id FROM runs WHERE hash = ?", (key,)):
                row = self._con.execute("SELECT hash FROM runs WHERE id = ?", (found,)).fetchone()
                if row != (key,):  # a damaged index points to another run
                    raise damaged(self._folder, "the index of its runs points to another run")
                if len(self._runs) == _MANY:
                    self._runs.clear()
                self._runs[run_id] = found
        return found

    def lease(self, run_id: str) -> bytes | None:
        run = self._run(run_id)
        row = self._con.execute("SELECT lease FROM runs WHERE id = ?", (run,)).fetchone()
        return None if row is None else self._load(row[0])

    def put_lease(self, run_id: str, row: bytes) -> None:
        run = self._run(run_id)
        if run:
            self._con.execute("UPDATE runs SET lease = ? WHERE id = ?", (row, run))
        else:
            self._con.execute("INSERT INTO runs (hash, lease) VALUES (?, ?)", (_key(run_id), row))

    # -- records ---------------------------------------------------------------------------------

    def put_record(self, run_id: str, number: int, data: Data) -> None:
        row = (self._run(run_id) << _RUN_AT | number, self._store(data))
        if not self._con.execute("INSERT OR IGNORE INTO records VALUES (?, ?)", row).rowcount:
            self._give_up("FROM records WHERE id = ?", row[:1])
            self._con.execute("UPDATE records SET data = ? WHERE id = ?", row[::-1])

    def prune(self, run_id: str, number: int) -> None:
        first, _ = _span(self._run(run_id))
        self._delete(_RECORDS, (first, first + number + 1))

    def records(
        self, run_id: str, after: int, cursor: int | None, size: int
    ) -> Page[tuple[int, bytes]]:
        first, end = _span(self._run(run_id))
        begin = 1 + (first + after if cursor is None else cursor)
        sql = f"SELECT id, data {_RECORDS} ORDER BY id LIMIT ?"
        rows = self._con.execute(sql, (begin, end, size)).fetchall()
        self._check_order(rows)
        return [(each, (each - first, self._load(data))) for each, data in rows]

    # -- objects ---------------------------------------------------------------------------------

    def put_object(self, run_id: str, name: str, data: Data) -> None:
        run, key, value = self._run(run_id), name.encode(), self._store(data)
        at = run << _RUN_AT | _place(key)
        if self._con.execute(_NEW_OBJECT, (at, key, value, run, key)).rowcount:
            return
        self._drop_object(run, at, key)
        sql = "INSERT OR IGNORE INTO objects VALUES (?, ?, ?)"
        if not self._con.execute(sql, (at, key, value)).rowcount:
            self._con.execute("INSERT INTO homonyms VALUES (?, ?, ?)", (run, key, value))

    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        run, key, before = self._run(run_id), name.encode(), old.encode()
        if len(data) >= IN_FILES:
            return False
        at = run << _RUN_AT
        row = (at | _place(key), key, bytes(data), at | _place(before), before, run, key)
        return bool(self._con.execute(_REPLACED_OBJECT, row).rowcount)

    def delete_object(self, run_id: str, name: str) -> None:
        run, key = self._run(run_id), name.encode()
        self._drop_object(run, run << _RUN_AT | _place(key), key)

    def _drop_object(self, run: int, at: int, key: bytes) -> None:
        sql = f"DELETE {_OBJECT} AND typeof(data) = 'blob'"
        if not self._con.execute(sql, (at, key)).rowcount:
            self._delete(_OBJECT, (at, key))
            self._delete(_HOMONYM, (run, key))

    def get_object(self, run_id: str, name: str) -> bytes | None:
        run, key = self._run(run_id), name.encode()
        sql = f"SELECT data {_OBJECT}"
        row = self._con.execute(sql, (run << _RUN_AT | _place(key), key)).fetchone()
        if row is None:
            sql = f"SELECT data {_HOMONYM}"
            row = self._con.execute(sql, (run, key)).fetchone()
        return None if row is None else self._load(row[0])

    def names(self, run_id: str, prefix: str) -> list[str]:
        run = self._run(run_id)
        rows = [
            *self._con.execute(f"SELECT name {_OBJECTS}", _span(run)),
            *self._con.execute(f"SELECT name {_HOMONYMS}", (run,)),
        ]
        names = [name.decode("utf-8", "replace") for (name,) in rows if type(name) is bytes]
        return [name for name in names if name.startswith(prefix)]

    # -- heads -----------------------------------------------------------------------------------

    def put_head(self, head: Head) -> None:
        run, value = self._run(head.run_id), self._store(pack(head))
        self._put_head(run, _key(head.workflow), head.finished, value)

    def _put_head(self, run: int, workflow: object, finished: object, head: object) -> None:
        self._give_up("FROM runs WHERE id = ?", (run,), "head")
        is_first = self._con.execute(_HAS_HEAD, (run,)).fetchone() is None
        row = (workflow, finished, head, run)
        self._con.execute("UPDATE runs SET workflow = ?, finished = ?, head = ? WHERE id = ?", row)
        if is_first and head is not None:
            if not self._has_places():  # an earlier version made the table
                self._con.execute("ALTER TABLE runs ADD COLUMN place")
                self._con.execute(_ORDER)
            self._con.execute(_TO_THE_END, (run,))

    def _has_places(self) -> bool:
        columns = self._con.execute("PRAGMA table_info(runs)")
        return any(name == "place" for _, name, *_ in columns)

    def head(self, run_id: str) -> Head | None:
        run = (self._run(run_id),)
        row = self._con.execute("SELECT head FROM runs WHERE id = ?", run).fetchone()
        return None if row is None or row[0] is None else unpack_of(self._load(row[0]), run_id)

    def heads(
        self, workflow: str | None, unfinished: bool, cursor: int | None, size: int
    ) -> Page[Head]:
        which = "FROM runs WHERE id > ? AND head IS NOT NULL"
        parameters: tuple[int | bytes, ...] = (cursor or 0,)
        if workflow is not None:
            which += " AND workflow = ?"
            parameters = (*parameters, _key(workflow))
        if unfinished:
            which += " AND finished = 0"
        sql = f"SELECT id, head, hash {which} ORDER BY id LIMIT ?"
        rows = self._con.execute(sql, (*parameters, size)).fetchall()
        self._check_order(rows)
        return [(each, unpack(self._load(data), _hex(key))) for each, data, key in rows]

    def newest_heads(self, unfinished: bool, cursor: int | None, size: int) -> Page[Head]:
        # The cursor is a place, or a negative id among the runs that have none.
        where = "INDEXED BY unfinished WHERE finished = 0" if unfinished else "WHERE true"
        where = f"FROM runs {where} AND head IS NOT NULL"
        rows, placed = [], self._has_places()
        if placed and (cursor is None or cursor >= 0):
            which = f"{where} AND place IS NOT NULL AND place < ? ORDER BY place DESC LIMIT ?"
            before = _LAST if cursor is None else cursor
            rows = self._con.execute(f"SELECT place, head, hash {which}", (before, size)).fetchall()
        if len(rows) < size:
            which = f"{where}{' AND place IS NULL' if placed else ''} AND id < ?"
            before = -cursor if cursor is not None and cursor < 0 else _LAST
            sql = f"SELECT -id, head, hash {which} ORDER BY id DESC LIMIT ?"
            rows += self._con.execute(sql, (before, size - len(rows))).fetchall()
        return [(at, unpack(self._load(data), _hex(key))) for at, data, key in rows]

    def count_heads(self) -> int:
        sql = "SELECT count(*) FROM runs WHERE head IS NOT NULL"
        return int(self._con.execute(sql).fetchone()[0])

    def forget(self, run_id: str) -> None:
        run = self._run(run_id)
        self._delete(_RECORDS, _span(run))
        self._delete(_OBJECTS, _span(run))
        self._delete(_HOMONYMS, (run,))
        self._put_head(run, None, None, None)

    # -- values ----------------------------------------------------------------------------------

    def _store(self, data: Data) -> bytearray | str:
        if len(data) < IN_FILES:
            # sqlite3 looks for an adapter of bytes, which takes longer than to copy them.
            return bytearray(bytes(data))
        return f"{self.values.write(data)} {len(data)}"

    def _load(self, data: object) -> bytes:
        if type(data) is bytes:
            return data
        name, _, size = str(data).partition(" ")
        return self.values.read(name, int(size) if size.isdecimal() and len(size) < 16 else -1)

    def _delete(self, which: str, parameters: Sequence[object]) -> None:
        self._give_up(which, parameters)
        self._con.execute(f"DELETE {which}", parameters)

    def _give_up(self, which: str, parameters: Sequence[object], column: str = "data") -> None:
        """The value files of some rows go with the commit."""
        sql = f"SELECT {column} {which} AND typeof({column}) = 'text'"
        for (data,) in self._con.execute(sql, parameters).fetchall():
            self.values.give_up(data.partition(" ")[0])

    def _check_order(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """A damaged table gives anything, in any order, and could lead in circles."""
        ids = [each for each, *_ in rows]
        if ids != sorted(set(ids)):
            raise damaged(self._folder, "its rows are out of order")


def _key(text: str) -> bytes:
    return bytes.fromhex(hashed(text))


def _hex(key: object) -> str:
    return key.hex() if isinstance(key, bytes) else ""


def _span(run: int) -> tuple[int, int]:
    """The ids of a run's rows: the first one, and that behind the last."""
    return run << _RUN_AT, (run + 1) << _RUN_AT


def _place(name: bytes) -> int:
    """Return an object's place among those of its run: numbered ones side by side.

    Rows that are appended fill their pages; rows in any order leave them a third empty.
    """
    stem = name.rstrip(b"0123456789")
    digits = name[len(stem) :][-7:]
    if not digits:
        return _spread(stem)
    return _spread(stem) >> _STEM_AT << _STEM_AT | int(digits)


@functools.lru_cache(maxsize=256)
def _spread(stem: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(stem, digest_size=5).digest(), "big")
