"""The database of a ``disk:`` store: rows of leases, records, objects and heads, in a diskcache.

``r/RUN/000000000001`` is a record, ``o/RUN/NAME`` an object, ``l/RUN`` epoch and owner; RUN is a
hash.  The heads have a table of their own, ``Heads``, in the order in which their runs began.  A
listing reads the heads in sequence, and finds a rare tag among 100,000 heads by their words.

diskcache creates its tables, repairs their settings, and can find every value but the heads.
Plain statements read and write the rows, through one connection for all threads.
``Cache.set`` and ``Cache.get`` were measured and rejected.  Taking in a log of 1 MB takes four to
five times as long (500 records: 68 ms instead of 15 on a busy machine, 0.1 ms a step); and

- a replaced value file is deleted when the call ends, before the surrounding commit;
- an error at the beginning of a transaction, such as a full disk, becomes a ``Timeout``;
- each opening writes some forty rows, so a store on a full disk could not be read;
- each writing thread has a connection of its own, which reads its settings from the database.

Rejected: heads among the rows of diskcache.  Each head lay on a separate page, beside the records
of its run.  Reading 80,000 heads took 0.8 s from memory instead of 0.1 s, and an unfinished run had
two heads.

Rejected: a row for each tag of a run.  The rows find a rare tag equally fast, but each run writes
more.

diskcache is made for values that may be lost; a store may lose none.  So nothing is evicted, culled
or expired, and a batch that must survive a power cut is written with ``synchronous=FULL``.  All
keys are ``str`` and all values ``bytes``: no other mode is read, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import re
import sqlite3
import stat
import time
import zlib
from typing import Any, NoReturn, TypeVar

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.system_limits import make_private
from stepwise._values.unpickling import Data, Pieces
from stepwise.stores._files import StoreConnection, damaged, sync
from stepwise.stores.base import FORMAT, Batch, Head, Owner, Words, other_format, to_bytes

R = TypeVar("R")

Page = tuple[list[tuple[Any, R | None]], bool]
"""Rows with their cursors, in the order of the cursors, and whether more may follow.

An unreadable row is ``None``.
"""


_WEIGHT = 4_000_000  # bytes after which a page of records ends


# -- encodings of a row --------------------------------------------------------------------------

_EPOCH = 24  # bytes of an epoch with its check sum
_MOST_GENERATIONS = 1 << 63  # a frame has eight bytes for the generation


@functools.lru_cache(maxsize=256)
def hashed(name: str) -> str:
    """Return the hash that replaces an id or a name in keys, whatever its characters."""
    return hashlib.blake2b(to_bytes(name), digest_size=16).hexdigest()


# -- leases --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def lease_front(epoch: int) -> bytes:
    """Return the beginning of a lease's row: the check sum of the epoch, then the epoch."""
    digits = b"%016x" % epoch
    return b"%08x" % zlib.crc32(digits) + digits


def pack_lease(epoch: int, owner: Owner, log: str = "", generation: int = 0) -> bytes:
    """Serialize a lease into the value of its row.

    Args:
        log: the name of the log that holds the run's tail, which the database lacks.
        generation: the generation of the run in the database (see ``_process_log``).
    """
    fields = {**owner._asdict(), "log": log, "generation": generation}
    return lease_front(epoch) + json.dumps(fields).encode()


@functools.lru_cache(maxsize=256)
def log_of(row: bytes | None) -> tuple[str, int]:
    """Return the log's name and the generation in a lease's row; ``("", 0)`` if unreadable."""
    try:
        fields = json.loads((row or b"")[_EPOCH:] or b"{}")
        log, generation = fields.get("log", ""), fields.get("generation", 0)
    except (ValueError, AttributeError, RecursionError):
        return "", 0  # a damaged row: the marks reveal a loss
    counted = type(generation) is int and 0 <= generation < _MOST_GENERATIONS
    return (log, generation) if type(log) is str and counted else ("", 0)


def with_log(row: bytes, log: str) -> bytes:
    """Return the row of a lease in the next generation, with another log's name."""
    try:
        fields = json.loads(row[_EPOCH:])
        fields |= {"log": log, "generation": log_of(row)[1] + 1}
    except (ValueError, TypeError, RecursionError):  # a damaged row
        fields = {"log": log, "generation": log_of(row)[1] + 1}
    return row[:_EPOCH] + json.dumps(fields).encode()


def nameless(row: bytes) -> bytes:
    """Return the row of a lease without the thread's name, which contains the run's."""
    try:
        fields = json.loads(row[_EPOCH:]) | {"thread": ""}
    except (ValueError, TypeError):  # a damaged row
        fields = {}
    return row[:_EPOCH] + json.dumps(fields).encode()


def epoch_of(row: bytes | None) -> int:
    """Return the epoch of the lease, or 0 if the run has none.

    For a damaged row, return an epoch above every earlier one, so that earlier owners stay fenced.
    """
    if row is None:
        return 0
    with contextlib.suppress(ValueError):
        epoch = int(row[8:_EPOCH], 16)
        if row.startswith(lease_front(epoch)):
            return epoch
    return int(time.time() * 1000)


def owner_of(row: bytes) -> Owner | None:
    """Return the owner of a lease, or ``None`` if the row is unreadable."""
    try:
        fields = json.loads(row[_EPOCH:])
        owner = Owner(**{name: fields[name] for name in Owner._fields if name in fields})
    except (ValueError, TypeError, RecursionError):
        return None
    # The row is not sealed, so a value of another kind counts as damaged.
    numbers = isinstance(owner.pid, int) and isinstance(owner.since, (int, float))
    texts = isinstance(owner.host, str) and isinstance(owner.thread, str)
    return owner if numbers and texts and owner.pid > 0 else None


# -- heads ---------------------------------------------------------------------------------------


_LENGTH = 4  # bytes of the length of a head's front


def pack(head: Head) -> bytes:
    """Serialize a head into the value of its row."""
    due = () if head.due is None else (head.due,)
    front = json.dumps([head.run_id, head.workflow, head.finished, *due]).encode()
    return len(front).to_bytes(_LENGTH, "big") + front + head.data


def _front(prefix: str) -> bytes:
    """Return how the front of a head begins if the run's id begins with this text."""
    return json.dumps([prefix]).encode()[: -len('"]')]


def unpack(row: object, run: object, words: object) -> Head | None:
    """Return the packed head, or ``None`` if it is unreadable or belongs to another run.

    Args:
        row: the packed head.
        run: the hashed run id in the head's row.
        words: the encoded words in the head's row.
    """
    if type(row) is not bytes or type(words) is not bytes:
        return None
    end = _LENGTH + int.from_bytes(row[:_LENGTH], "big")
    try:
        run_id, workflow, finished, *due = json.loads(row[_LENGTH:end])
        text = words.decode("utf-8", "surrogatepass")
        head = Head(run_id, workflow, finished, row[end:], text, *due)
        return head if hashed(run_id) == run else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None  # a damaged row of the listing; the run's records are the truth


def _having(words: Words) -> tuple[list[str], list[bytes]]:
    """Return conditions for heads that have these words, and the parameters of the conditions."""
    texts = [f"({' OR '.join(['instr(words, ?)'] * len(group))})" for group in words]
    return texts, [to_bytes(text) for group in words for text in group]


class WantedHeads(NamedTuple):
    """A query for heads.

    Args:
        workflow: select only the heads of this workflow.
        unfinished: select only the heads of unfinished runs.
        newest: begin with the newest runs.
        words: select only the heads with these words (see :data:`.base.Words`).
        before: select only the heads of runs that began before this run.
        prefix: select only the heads of runs whose ids begin with this text.
    """

    workflow: str | None
    unfinished: bool
    newest: bool
    words: Words = ()
    before: str = ""
    prefix: str = ""

    def query(self, cursor: tuple[float, ...] | None) -> tuple[str, list[Any]]:
        """Return the statement that selects a page of heads after a cursor, and its parameters.

        The caller appends the last parameter, the size of the page.
        """
        which, parameters = ["due IS NULL" if self.unfinished else "TRUE"], list[Any]()
        if cursor is not None:
            which.append(f"place {'<' if self.newest else '>'} ?")
            parameters += cursor
        elif self.before:
            which.append("place < (SELECT place FROM Heads WHERE run = ?)")
            parameters.append(hashed(self.before))
        if self.unfinished and self.workflow is not None:
            which.append("unfinished = ?")
            parameters.append(hashed(self.workflow))
        elif self.unfinished:
            which.append("unfinished IS NOT NULL")
        if self.prefix:
            front = _front(self.prefix)
            which.append("substr(value, ?, ?) = ?")
            parameters += [_LENGTH + 1, len(front), front]
        texts, values = _having(self.words)
        which += texts
        parameters += values
        parts = [
            "SELECT place, run, words, value FROM Heads",
            f"INDEXED BY {self._index}" if self.unfinished else "NOT INDEXED",
            f"WHERE {' AND '.join(which)}",
            f"ORDER BY place {'DESC' if self.newest else 'ASC'} LIMIT ?",
        ]
        return " ".join(parts), parameters

    @property
    def _index(self) -> str:
        """The index that lists the unfinished runs in the order of their beginning."""
        return "Heads_open" if self.workflow is None else "Heads_unfinished"


class WantedDue(NamedTuple):
    """A query for the heads of a workflow's runs that are to begin, the earliest first."""

    workflow: str
    newest: bool = False

    def query(self, cursor: tuple[float, ...] | None) -> tuple[str, list[Any]]:
        """Return the statement that selects a page of heads, as of :meth:`WantedHeads.query`."""
        return _DUE, [hashed(self.workflow), *(cursor or (-math.inf, 0))]


# -- large values in files -----------------------------------------------------------------------
#
# A large value has its own file beside the database, which is on the disk before the commit; a row
# holds the file's name.  A file that cannot be read whole yields ``b""``, which never verifies.  A
# tampered row leads to no other file.

_IN_FILES = 1 << 20  # bytes; from here on a flushed file is faster than a row (measured)
_NAME = r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val"


class _Values:
    """The value files of a folder, and the files that the open transaction made or gave up."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fresh: list[str] = []
        self._doomed: list[object] = []

    def write(self, value: Data) -> str:
        """Write a new file durably; return its name."""
        digits = os.urandom(16).hex()
        name = f"{digits[:2]}/{digits[2:4]}/{digits[4:]}.val"
        self._fresh.append(name)
        _write_file(os.path.join(self._folder, name), value, self._folder)
        return name

    def read(self, name: object, size: object) -> bytes:
        """Return the bytes of a file; ``b""`` if it is missing, of another size, or not a value."""
        if _is_ours(name):
            path, flags = os.path.join(self._folder, str(name)), os.O_NONBLOCK | os.O_NOFOLLOW
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                with open(descriptor, "rb") as file:
                    about = os.fstat(descriptor)  # a pipe or device would never end
                    if stat.S_ISREG(about.st_mode) and about.st_size == size:
                        return file.read()
        return b""

    def give_up(self, name: object) -> None:
        """Delete this file after the commit, when no row names it."""
        self._doomed.append(name)

    def begin(self) -> None:
        """Begin a transaction."""
        self._fresh, self._doomed = [], []

    def keep(self) -> None:
        """Complete a committed transaction: delete the files that it gave up."""
        self._fresh = []
        while self._doomed:
            self._remove(self._doomed.pop())

    def undo(self) -> None:
        """Undo a transaction: delete its new value files, and keep the replaced files."""
        self._doomed = []
        while self._fresh:
            self._remove(self._fresh.pop())

    def _remove(self, name: object) -> None:
        if _is_ours(name):
            path = os.path.join(self._folder, str(name))
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # its folders hold other files
                os.removedirs(os.path.dirname(path))


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(_NAME, name) is not None


def _write_file(path: str, value: Data, top: str) -> None:
    """Write a new file under the folder ``top``, durably; leave nothing of it on failure."""
    folder = os.path.dirname(path)
    descriptor = _created(path)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for view in value.views if isinstance(value, Pieces) else (memoryview(value),):
                _write(file, view)
            os.fsync(file.fileno())
        for each in (folder, os.path.dirname(folder), top):
            sync(each)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _created(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(100):
        make_private(os.path.dirname(path))
        with contextlib.suppress(FileNotFoundError):  # another process removed its last file
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


# -- the database ---------------------------------------------------------------------------------
#
# A process has one connection to a database, and uses it only under the store's lock.
# ``synchronous`` is FULL for a batch that must survive a power cut, and NORMAL for other batches.
# After an interrupt, the next use rolls back the open transaction.  There is no memory map, since a
# truncated file would raise SIGBUS.

BUSY_SECONDS = 60
_ERASE_MILLISECONDS = 2000
_FULL, _NORMAL = 2, 1
_SETTINGS = (
    # A page holds three rows of 2.5 KB; a page of 4 KB would hold one.  Pages of 16 KB save no more
    # space, and write more at each commit.  An existing database keeps its page size.
    "page_size=8192",
    "mmap_size=0",
    f"synchronous={_NORMAL}",
    "secure_delete=ON",  # deleted data are overwritten
    "wal_autocheckpoint=500",  # pages: 4 MB
    f"journal_size_limit={16 << 20}",
    "cache_size=512",  # pages: written data are hardly ever read
)
CACHE = "cache.db"  # as diskcache calls it
_OF_CACHE: dict[str, object] = {  # all settings of a diskcache
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "none",
    "size_limit": 1 << 62,
    "cull_limit": 0,
    "sqlite_auto_vacuum": 0,  # free pages are reused
    "sqlite_cache_size": 512,  # pages: written data are hardly ever read; 8192 are 32 MB
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": _NORMAL,  # for some 20 commits while it opens
    "disk_min_file_size": _IN_FILES,
    "disk_pickle_protocol": 5,  # nothing is pickled
}
_HEADS = (
    "CREATE TABLE IF NOT EXISTS Heads "
    "(place INTEGER PRIMARY KEY, run TEXT UNIQUE, unfinished TEXT, words BLOB, value BLOB, "
    "due REAL)"
)
_OPEN = "unfinished IS NOT NULL AND due IS NULL"
_INDEXES_OF_HEADS = [  # a start looks for unfinished runs: of its workflow, and of any workflow
    f"CREATE INDEX IF NOT EXISTS {name} ON Heads ({columns}) WHERE {which}"
    for name, columns, which in (
        ("Heads_unfinished", "unfinished, place", _OPEN),
        ("Heads_open", "place", _OPEN),
        ("Heads_due", "unfinished, due, place", "due IS NOT NULL"),
    )
]
_DUE = (
    "SELECT due, place, run, words, value FROM Heads INDEXED BY Heads_due WHERE unfinished = ? "
    "AND due IS NOT NULL AND (due, place) > (?, ?) ORDER BY due, place LIMIT ?"
)
_FIRST_DUE = (
    "SELECT unfinished, run, words, value FROM Heads INDEXED BY Heads_due WHERE unfinished > ? "
    "AND due IS NOT NULL ORDER BY unfinished, due, place LIMIT 1"
)
_METADATA = {"count", "size", "hits", "misses"}  # settings that diskcache creates itself
_MADE = {
    "Heads",
    "Heads_unfinished",
    "Heads_open",
    "Heads_due",
    *("Cache", "Cache_key_raw", "Cache_expire_time", "Settings"),
    *(f"Settings_{what}" for what in ("count_insert", "count_delete")),
    *(f"Settings_size_{when}" for when in ("insert", "update", "delete")),
}
MODE_RAW, MODE_BINARY = 1, 2  # diskcache's names: the value is in the row, or in a file
_WHERE = "FROM Cache WHERE key = ? AND raw = 1"
_RANGE = "FROM Cache WHERE key >= ? AND key < ?"
_INSERT = "INSERT OR IGNORE INTO Cache (key, raw, size, mode, filename, value) VALUES "
_INSERT_LARGE = f"{_INSERT} (?, 1, ?, {MODE_BINARY}, ?, NULL)"
_INSERT_SMALL = f"{_INSERT} (?, 1, 0, {MODE_RAW}, NULL, ?)"
_PUT_HEAD = (
    "INSERT INTO Heads (run, unfinished, words, value, due) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run) DO UPDATE SET unfinished = excluded.unfinished, words = excluded.words, "
    "value = excluded.value, due = excluded.due"
)
_REPLACE = (
    "UPDATE OR IGNORE Cache SET key = ?, size = 0, mode = ?, value = ? "
    "WHERE key = ? AND raw = 1 AND filename IS NULL"
)
_DIGITS = 12  # in a record's number


def inode(path: str) -> tuple[int, int] | None:
    """Return an id that changes when a file is replaced; ``None`` if the file is missing."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    return there.st_ino, there.st_dev


class Rows:
    """The open database of a store, which writes in transactions only.

    Each page of a reading begins after a cursor from the previous page.

    Args:
        folder: the folder of the database.
        path: the folder of the store and of its value files.  ``folder`` differs from ``path`` if
            the database is a copy.
        to_read: SQLite opens the database to read only.

    Attributes:
        values: the value files.
    """

    _level = _changes = 0
    _durable = False

    def __init__(self, folder: str, path: str, *, to_read: bool = False) -> None:
        self.values, self.to_read = _Values(path), to_read
        self._folder, self._path = folder, path
        self._file = os.path.join(folder, CACHE)
        try:
            self._check_format()
            if not self._is_made():
                self._make()
            self._inode = inode(self._file)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.close()
            raise damaged(path, f"{type(error).__name__}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _check_format(self) -> None:
        (found,) = self._con.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            (tables,) = self._con.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and not found:  # another process may be creating the database just now
                (found,) = self._con.execute("PRAGMA user_version").fetchone()
                if found == FORMAT:
                    return
            if found or tables:
                raise other_format(f"disk:{self._path}", found)
            self._con.execute(f"PRAGMA user_version={FORMAT}")

    def _is_made(self) -> bool:
        """Return whether the tables and settings are complete, so that diskcache need not run."""
        execute = self._con.execute
        try:
            made = {name for (name,) in execute("SELECT name FROM sqlite_master")}
            if not made >= _MADE or execute("PRAGMA journal_mode").fetchone() != ("wal",):
                return False
            told = dict(execute("SELECT key, value FROM Settings").fetchall())
        except sqlite3.OperationalError:
            return False  # the database is in use: diskcache waits for it
        return told.keys() >= _METADATA and {**told, **_OF_CACHE} == told

    def _make(self) -> None:
        """Let diskcache create the tables, or repair settings that another program changed."""
        if self.to_read:
            raise sqlite3.OperationalError("readonly: its tables or settings are to be repaired")
        import diskcache  # imported on use: an intact database needs neither it nor a write

        class BytesOnly(diskcache.Disk):  # type: ignore[misc]
            """A disk that refuses values, so that diskcache neither pickles nor unpickles."""

            def _refuse(self, *_: object, **__: object) -> NoReturn:
                raise TypeError("values are not read or written here")

            put = get = store = fetch = _refuse

        execute = self._con.execute
        with contextlib.suppress(sqlite3.OperationalError):  # a new database has no settings
            for (key,) in execute("SELECT key FROM Settings").fetchall():
                if key not in _METADATA and key not in _OF_CACHE:  # would become an attribute
                    execute("DELETE FROM Settings WHERE key = ?", (key,))
        cache = diskcache.Cache(self._folder, timeout=BUSY_SECONDS, disk=BytesOnly, **_OF_CACHE)
        cache.close()  # our connection stays open: closing the last one would sync the database
        for statement in (_HEADS, *_INDEXES_OF_HEADS):
            execute(statement)

    # -- transactions ----------------------------------------------------------------------------

    @cached
    def _con(self) -> sqlite3.Connection:
        place = self._file
        if self.to_read:
            from urllib.parse import quote  # on use: runs do not need it

            place = f"file:{quote(os.fsencode(place))}?mode=ro"
        connection = sqlite3.connect(
            place,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=self.to_read,
            factory=StoreConnection,
        )
        connection.text_factory = _text
        try:
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            connection.close()
            raise
        self._level = 0  # ``synchronous`` is not set yet
        return connection

    def transaction(self, *, durable: bool) -> Rows:
        """Return a block that is one transaction: its end commits, and any exception rolls back.

        Args:
            durable: the commit waits until the transaction is on the disk.
        """
        self._durable = durable
        return self

    def __enter__(self) -> None:
        level = _FULL if self._durable else _NORMAL
        if level != self._level:
            self._con.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self.values.begin()
        self._con.execute("BEGIN IMMEDIATE")
        self._changes = self._con.total_changes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.roll_back()

    def commit(self) -> None:
        """Commit the transaction, and delete the value files that it gave up."""
        # An exception out of COMMIT means "unknown".  The exception stops the run, and the journal
        # is read again before any other decision.
        self._con.execute("COMMIT")
        if self._level == _FULL and self._changes == self._con.total_changes:
            self.flush()  # SQLite flushes nothing if the transaction has written nothing
        self.values.keep()

    def is_there(self) -> bool:
        """Return whether the file is neither deleted nor replaced; then undo an open transaction.

        An error or an interrupt may have left a transaction open.
        """
        found = inode(self._file)
        if found is None or found != self._inode:
            return False
        self.roll_back()
        return True

    def roll_back(self) -> None:
        """Undo the transaction that an error or an interrupt left open, if any."""
        if self._con.in_transaction:
            self._con.rollback()
            self.values.undo()

    def flush(self) -> None:
        """Make commits durable that did not wait for the disk."""
        with contextlib.suppress(FileNotFoundError):  # SQLite has moved the whole log, durably
            sync(f"{self._file}-wal")
            sync(os.path.dirname(self._file))  # the log file's name may not be on the disk yet

    def free(self) -> int:
        """Return the number of unused bytes in the database."""
        return self._pragma("freelist_count") * self._pragma("page_size")

    def used(self) -> int:
        """Return the number of used bytes in the database and its value files."""
        (files,) = self._con.execute("SELECT value FROM Settings WHERE key = 'size'").fetchone()
        return self._pragma("page_count") * self._pragma("page_size") - self.free() + int(files)

    def _pragma(self, name: str) -> int:
        return int(self._con.execute(f"PRAGMA {name}").fetchone()[0])

    def compact(self) -> int:
        """Give free pages back to the file system, outside of a transaction.

        Returns:
            the number of bytes that were freed.
        """
        before = self._size()
        self._con.execute("VACUUM")  # atomic, even if the process is killed
        self.erase()
        return max(0, before - self._size())  # a reader may keep the old pages for a moment

    def erase(self) -> None:
        """Clear deleted data from SQLite's log, unless another connection is reading."""
        self._con.execute(f"PRAGMA busy_timeout={_ERASE_MILLISECONDS}")
        try:
            self._con.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._con.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")

    def _size(self) -> int:
        """Return the bytes of the database and of its log, which may hold most of the data."""
        files = self._file, f"{self._file}-wal"
        return sum(os.path.getsize(each) for each in files if os.path.exists(each))

    def close(self) -> None:
        """Close the connection, if one is open."""
        connection = self.__dict__.pop("_con", None)
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Keep the parent's connection unused and open in a forked child."""
        _abandoned.append(self.__dict__.pop("_con", None))

    # -- reading ---------------------------------------------------------------------------------

    # Plain statements: no row expires, has a tag, or is evicted, and diskcache's methods take twice
    # as long.

    def get(self, key: str) -> bytes | None:
        """Return one value: ``None`` if it is missing, ``b""`` if it is damaged."""
        sql = f"SELECT mode, filename, size, value {_WHERE}"
        row = self._con.execute(sql, (key,)).fetchone()
        return None if row is None else self._load(*row)

    def page(self, after: str, end: str, size: int) -> tuple[list[tuple[str, bytes]], bool]:
        """Return the first values with keys between ``after`` and ``end``, in key order.

        Both bounds are excluded.  The values are ``size`` at most, and fewer if they are large.

        Returns:
            the values; and whether more may follow.
        """
        start, found, weight = after + "\0", list[tuple[str, bytes]](), 0
        sql = f"SELECT key, mode, filename, size, value {_RANGE} ORDER BY key LIMIT ?"
        rows = self._con.execute(sql, (start, end, size))
        for key, *row in rows:
            found.append((key, self._load(*row)))
            weight += len(found[-1][1])
            if weight >= _WEIGHT:
                break
        rows.close()  # no transaction stays open
        self._check_order(start, [key for key, _ in found])
        return found, len(found) == size or weight >= _WEIGHT

    def keys(self, start: str, end: str) -> list[str]:
        """Return the keys from ``start`` up to, but not including, ``end``, in order."""
        rows = self._con.execute(f"SELECT key {_RANGE} ORDER BY key", (start, end))
        keys = [key for (key,) in rows]
        self._check_order(start, keys)
        return keys

    def _load(self, mode: object, filename: object, size: object, value: object) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        # Any other mode would mean a pickle, which stepwise never writes.
        return self.values.read(filename, size) if mode == MODE_BINARY else b""

    def _check_order(self, start: str, keys: list[Any]) -> None:
        """Raise an error for keys out of order: a damaged index could make a reading loop."""
        if set(map(type, keys)) - {str} or [start, *keys] != sorted([start, *keys]):
            raise damaged(self._path, "its keys are out of order")

    # -- writing ---------------------------------------------------------------------------------

    def set(self, key: str, value: Data) -> None:
        row: tuple[object, ...]
        if len(value) >= _IN_FILES:
            insert, row = _INSERT_LARGE, (key, len(value), self.values.write(value))
        else:  # sqlite3 would look for an adapter of bytes, which takes longer than a copy
            insert, row = _INSERT_SMALL, (key, bytearray(bytes(value)))
        if not self._con.execute(insert, row).rowcount:
            self.delete(key)
            self._con.execute(insert.replace(" OR IGNORE", ""), row)

    def delete(self, key: str) -> None:
        if not self._con.execute(f"DELETE {_WHERE} AND filename IS NULL", (key,)).rowcount:
            self._delete(_WHERE, key)

    def drop(self, start: str, end: str) -> None:
        """Delete the values with keys from ``start`` up to, but not including, ``end``."""
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
        key = f"l/{hashed(run_id)}"
        if not self._replace(key, key, row):
            self.set(key, row)

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
        page, may_follow = self.page(cursor or _key(run, after), f"r/{run}0", size)
        return [(key, _record(run, key, data)) for key, data in page], may_follow

    # -- objects ---------------------------------------------------------------------------------

    def put_object(self, run_id: str, name: str, data: Data) -> None:
        self.set(f"o/{hashed(run_id)}/{name}", data)

    def delete_object(self, run_id: str, name: str) -> None:
        self.delete(f"o/{hashed(run_id)}/{name}")

    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        run = hashed(run_id)
        return self._replace(f"o/{run}/{old}", f"o/{run}/{name}", data)

    def _replace(self, old: str, key: str, data: Data) -> bool:
        """Write a value instead of the value of another key, or of the same one."""
        if len(data) >= _IN_FILES:
            return False
        row = key, MODE_RAW, bytearray(bytes(data)), old
        return bool(self._con.execute(_REPLACE, row).rowcount)

    def get_object(self, run_id: str, name: str) -> bytes | None:
        return self.get(f"o/{hashed(run_id)}/{name}")

    def names(self, run_id: str, prefix: str) -> list[str]:
        run = f"o/{hashed(run_id)}"
        return [key[len(run) + 1 :] for key in self.keys(f"{run}/{prefix}", f"{run}0")]

    # -- heads -----------------------------------------------------------------------------------

    def put_head(self, head: Head) -> None:
        unfinished = None if head.finished else hashed(head.workflow)
        row = hashed(head.run_id), unfinished, to_bytes(head.words), pack(head), head.due
        self._con.execute(_PUT_HEAD, row)

    def head(self, run_id: str) -> Head | None:
        run = hashed(run_id)
        row = self._con.execute("SELECT value, words FROM Heads WHERE run = ?", (run,)).fetchone()
        if row is None:
            return None
        value, words = row
        # An unreadable row gives a head that does not verify.
        return unpack(value, run, words) or Head(run_id, "", False, b"")

    def heads(
        self, wanted: WantedHeads | WantedDue, cursor: tuple[float, ...] | None, size: int
    ) -> Page[Head]:
        sql, parameters = wanted.query(cursor)
        found: list[tuple[Any, Head | None]] = []
        for *place, run, words, value in self._con.execute(sql, (*parameters, size)).fetchall():
            before, here = found[-1][0] if found else cursor, (*place,)
            if before is not None and (here < before) != wanted.newest:  # the reading could loop
                raise damaged(self._path, "its heads are out of order")
            head = unpack(value, run, words)
            is_wanted = head is not None and wanted.workflow in (None, head.workflow)
            found.append((here, head if is_wanted else None))
        return found, len(found) == size

    def first_due_heads(self) -> list[Head]:
        found, workflow = list[Head | None](), ""
        while row := self._con.execute(_FIRST_DUE, (workflow,)).fetchone():
            workflow, run, words, value = row
            found.append(unpack(value, run, words))
        return [head for head in found if head is not None]

    def count_heads(self, words: Words) -> int:
        texts, values = _having(words)
        sql = " ".join(["SELECT count(*) FROM Heads", "WHERE" * bool(texts), " AND ".join(texts)])
        return int(self._con.execute(sql, values).fetchone()[0])

    def forget(self, run_id: str) -> None:
        run = hashed(run_id)
        self._con.execute("DELETE FROM Heads WHERE run = ?", (run,))
        for kind in "ro":
            self.drop(f"{kind}/{run}/", f"{kind}/{run}0")  # "0" comes after "/"


def _key(run: str, number: int) -> str:
    return f"r/{run}/{number:0{_DIGITS}d}"


def _record(run: str, key: str, data: bytes) -> tuple[int, bytes] | None:
    digits = key[-_DIGITS:]
    if digits.isdecimal() and key == _key(run, int(digits)):
        return int(digits), data
    return None  # damaged: not a record


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # only damaged text does not decode


_abandoned: list[sqlite3.Connection | None] = []


# -- batches --------------------------------------------------------------------------------------


def put_batch(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write everything in a batch except its mark."""
    for number, data in batch.records:
        rows.put_record(run_id, number, data)
    if batch.put or batch.delete:
        _put_objects(rows, run_id, batch)
    if batch.prune:
        rows.prune(run_id, batch.prune)
    if batch.head is not None:
        rows.put_head(batch.head)


def put_tail(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write the tail of a run, merged into one batch."""
    there = set(rows.names(run_id, "")) if batch.delete else ()
    # Most objects that a tail deletes were written in the tail, too, and were never elsewhere.
    put_batch(rows, run_id, batch._replace(delete=tuple(n for n in batch.delete if n in there)))


def _put_objects(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write and delete the objects of a batch."""
    old = list(batch.delete)
    for name, data in batch.put.items():
        # One statement replaces a deletion and an insertion.  Objects of one kind have about the
        # same size; a larger object in the row of a smaller one would split the page.
        kind, _, _ = name.partition("/")
        like = [each for each in old if each.startswith(kind) and each not in batch.put]
        if like and rows.replace_object(run_id, like[-1], name, data):
            old.remove(like[-1])
        else:
            rows.put_object(run_id, name, data)
    for name in old:
        rows.delete_object(run_id, name)
