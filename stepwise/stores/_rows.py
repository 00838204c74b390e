"""The tables of a database in a folder: rows of leases, records, objects and heads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from stepwise._runtime.forks import cached
from stepwise._values.buffers import Data
from stepwise.stores._files import Values, sync
from stepwise.stores.base import Batch, Head, Owner

__all__ = [
    "BUSY_SECONDS",
    "NORMAL",
    "Page",
    "Rows",
    "Transaction",
    "Transactions",
    "epoch_of",
    "hashed",
    "in_pages",
    "lease_front",
    "log_of",
    "owner_of",
    "pack",
    "pack_lease",
    "put_batch",
    "put_tail",
    "unpack",
    "unpack_of",
    "with_log",
]

R = TypeVar("R")

Page = list[tuple[Any, R | None]]
"""Some rows in the order of their cursors; ``None`` for a row damaged beyond recognition."""


_PAGES = (1, 32, 1000)  # rows: many readers need only the first
_WEIGHT = 4_000_000  # bytes in a page of large records


def in_pages(page: Callable[[Any, int], Page[R]], sizes: tuple[int, ...] = _PAGES) -> Iterator[R]:
    """Yield what is in the rows of pages.

    Args:
        page: reads so many rows behind a cursor, or from the first one on.
        sizes: of the first pages; those that follow are like the last of them.
    """
    cursor: Any = None
    most = sizes[-1]
    for wanted in itertools.chain(sizes, itertools.repeat(most)):
        size = min(wanted, most)
        found = page(cursor, size)
        for _, item in found:
            if item is not None:
                yield item
        if len(found) < size:
            return
        cursor = found[-1][0]
        weight = sum(len(item[1]) for _, item in found if type(item) is tuple)  # of records
        most = max(1, min(sizes[-1], _WEIGHT * len(found) // max(1, weight)))


class Rows(Protocol):
    """The open database of a :class:`FolderStore`.  It writes in transactions only.

    What it reads page by page begins behind a cursor, which a page before it gave.
    """

    values: Values

    def begin(self, durable: bool) -> None: ...
    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...

    def flush(self) -> None:
        """Make durable what was committed without waiting for the disk."""

    def free(self) -> int:
        """Bytes of the database that hold nothing."""

    def compact(self) -> int:
        """Return free pages to the disk, outside of a transaction; return the number of bytes."""

    def lease(self, run_id: str) -> bytes | None: ...
    def put_lease(self, run_id: str, row: bytes) -> None: ...

    def put_record(self, run_id: str, number: int, data: Data) -> None: ...
    def prune(self, run_id: str, number: int) -> None: ...
    def records(
        self, run_id: str, after: int, cursor: Any, size: int
    ) -> Page[tuple[int, bytes]]: ...

    def put_object(self, run_id: str, name: str, data: Data) -> None: ...
    def delete_object(self, run_id: str, name: str) -> None: ...
    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        """Let a new object take the row of an old one, if both are small; whether it did."""

    def get_object(self, run_id: str, name: str) -> bytes | None: ...
    def names(self, run_id: str, prefix: str) -> list[str]: ...

    def put_head(self, head: Head) -> None: ...
    def head(self, run_id: str) -> Head | None: ...
    def heads(
        self, workflow: str | None, unfinished: bool, cursor: Any, size: int
    ) -> Page[Head]: ...

    def newest_heads(self, unfinished: bool, cursor: Any, size: int) -> Page[Head]:
        """The heads in the order in which their runs began, the newest first."""

    def count_heads(self) -> int: ...

    def forget(self, run_id: str) -> None:
        """Delete records, objects and head of a run."""


class Transaction:
    """A block that is one transaction: committed at its end, undone by any exception in it."""

    __slots__ = ("_durable", "_rows")

    def __init__(self, rows: Rows, *, durable: bool) -> None:
        self._rows, self._durable = rows, durable

    def __enter__(self) -> None:
        self._rows.begin(self._durable)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._rows.commit()
        except BaseException:
            self._rows.roll_back()
            raise
        if kind is not None:
            self._rows.roll_back()


def put_batch(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write all of a batch but its mark."""
    for number, data in batch.records:
        rows.put_record(run_id, number, data)
    if batch.put or batch.delete:
        _put_objects(rows, run_id, batch)
    if batch.prune:
        rows.prune(run_id, batch.prune)
    if batch.head is not None:
        rows.put_head(batch.head)


def put_tail(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write what the database lacks of a run, as one batch."""
    there = set(rows.names(run_id, "")) if batch.delete else ()
    # Most objects that a tail deletes were written in it, too, and have never been anywhere else.
    put_batch(rows, run_id, batch._replace(delete=tuple(n for n in batch.delete if n in there)))


def _put_objects(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write and delete the objects of a batch."""
    old = list(batch.delete)
    for name, data in batch.put.items():
        # One statement replaces a deletion and an insertion.  Objects of one kind have about the
        # same size; in the row of a smaller object the new one would split the page.
        kind, _, _ = name.partition("/")
        like = [each for each in old if each.startswith(kind) and each not in batch.put]
        if like and rows.replace_object(run_id, like[-1], name, data):
            old.remove(like[-1])
        else:
            rows.put_object(run_id, name, data)
    for name in old:
        rows.delete_object(run_id, name)


# -- encodings of a row --------------------------------------------------------------------------

_EPOCH = 24  # bytes: its check sum, and itself
_MOST_GENERATIONS = 1 << 63  # a frame has eight bytes for it


@functools.lru_cache(maxsize=256)
def hashed(name: str) -> str:
    """Return the hash that replaces an id or a name, whatever its characters."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# -- leases --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def lease_front(epoch: int) -> bytes:
    """Return the beginning of a lease's row: its epoch, with a check sum."""
    digits = b"%016x" % epoch
    return b"%08x" % zlib.crc32(digits) + digits


def pack_lease(epoch: int, owner: Owner, log: str = "", generation: int = 0) -> bytes:
    """A lease as one value.

    Args:
        log: the name of the log that holds what the database lacks of the run.
        generation: of the run in the database (see ``_process_log``).
    """
    fields = {**owner._asdict(), "log": log, "generation": generation}
    return lease_front(epoch) + json.dumps(fields).encode()


def log_of(row: bytes | None) -> tuple[str, int]:
    """Return the name of the log and the generation of a lease."""
    try:
        fields = json.loads((row or b"")[_EPOCH:] or b"{}")
        log, generation = fields.get("log", ""), fields.get("generation", 0)
    except (ValueError, AttributeError):
        return "", 0  # a damaged row: what is lost, the marks tell
    counted = type(generation) is int and 0 <= generation < _MOST_GENERATIONS
    return (log, generation) if type(log) is str and counted else ("", 0)


def with_log(row: bytes, log: str) -> bytes:
    """Return the row of a lease in its next generation, with that log."""
    try:
        fields = json.loads(row[_EPOCH:])
        fields |= {"log": log, "generation": log_of(row)[1] + 1}
    except (ValueError, TypeError):  # a damaged one
        fields = {"log": log, "generation": log_of(row)[1] + 1}
    return row[:_EPOCH] + json.dumps(fields).encode()


def epoch_of(row: bytes | None) -> int:
    """Return the epoch of the lease, or 0 if there is none.

    Of a damaged row it is more than any count has come to, so that nobody before is still let in.
    """
    if row is None:
        return 0
    with contextlib.suppress(ValueError):
        epoch = int(row[8:_EPOCH], 16)
        if row.startswith(lease_front(epoch)):
            return epoch
    return int(time.time() * 1000)


def owner_of(row: bytes) -> Owner | None:
    """Return the owner of a lease, or ``None`` if the row cannot be read."""
    try:
        fields = json.loads(row[_EPOCH:])
        owner = Owner(**{name: fields[name] for name in Owner._fields if name in fields})
    except (ValueError, TypeError):
        return None
    # The row is not sealed, so a value of another kind counts as damaged.
    numbers = isinstance(owner.pid, int) and isinstance(owner.since, (int, float))
    texts = isinstance(owner.host, str) and isinstance(owner.thread, str)
    return owner if numbers and texts and owner.pid > 0 else None


# -- heads ---------------------------------------------------------------------------------------


def pack(head: Head) -> bytes:
    """A head as one value."""
    front = json.dumps([head.run_id, head.workflow, head.finished]).encode()
    return len(front).to_bytes(4, "big") + front + head.data


def unpack(row: bytes, run: str) -> Head | None:
    """Return the packed head; ``None`` if it is unreadable or belongs to another run.

    Args:
        run: the hashed id of the run in whose row it lies.
    """
    end = 4 + int.from_bytes(row[:4], "big")
    try:
        run_id, workflow, finished = json.loads(row[4:end])
        head = Head(run_id, workflow, finished, row[end:])
        return head if hashed(run_id) == run else None
    except (ValueError, TypeError, AttributeError):
        return None  # a damaged row of the listing; the run's records are the truth


def unpack_of(row: bytes | None, run_id: str) -> Head | None:
    """Return a run's head; an unreadable row gives a head that does not verify."""
    if row is None:
        return None
    return unpack(row, hashed(run_id)) or Head(run_id, "", False, b"")


# -- transactions --------------------------------------------------------------------------------
#
# There is one connection of a process to a database, and every use of it is behind the store's
# lock.  ``synchronous`` is FULL for a batch that must survive a power cut and NORMAL for another
# one; the next use rolls back what an interrupt left open; and there is no memory map, since a
# truncated file would be a SIGBUS.

BUSY_SECONDS = 60
_FULL, NORMAL = 2, 1
_SETTINGS = (
    # A page holds three rows of 2.5 KB; one of 4 KB would hold one.  Pages of 16 KB save no more
    # space, and write more at each commit (benchmarks/page_size.py).  An existing database keeps
    # its page size.
    "page_size=8192",
    "mmap_size=0",
    f"synchronous={NORMAL}",
    "wal_autocheckpoint=500",  # pages: 4 MB
    f"journal_size_limit={16 << 20}",
)


class Transactions:
    """Transactions on a database, and on the value files beside it.

    Attributes:
        file: the path of the database.
        values: the value files.
        settings: of each connection, beside those that all have.
    """

    file: str
    values: Values
    settings: tuple[str, ...] = ()
    _level = _changes = 0

    @cached
    def _con(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        try:
            for setting in (*_SETTINGS, *self.settings):
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            connection.close()
            raise
        self._level = 0  # SQLite has not been set yet
        return connection

    def begin(self, durable: bool) -> None:
        """Begin a transaction; ``durable``: on the disk when it has been committed."""
        level = _FULL if durable else NORMAL
        if level != self._level:
            self._con.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self.values.begin()
        self._con.execute("BEGIN IMMEDIATE")
        self._changes = self._con.total_changes

    def commit(self) -> None:
        """Commit it, and delete the value files that it gave up."""
        # An exception out of COMMIT means "unknown".  It stops the run, and the journal is read
        # again before anything else is decided.
        self._con.execute("COMMIT")
        if self._level == _FULL and self._changes == self._con.total_changes:
            self.flush()  # SQLite flushes nothing if it has written nothing
        self.values.keep()

    def roll_back(self) -> None:
        """Undo what an error, or an interrupt at any place, left open."""
        if self._con.in_transaction:
            self._con.rollback()
            self.undo()

    def flush(self) -> None:
        """Make durable what was committed without waiting for the disk."""
        with contextlib.suppress(FileNotFoundError):  # SQLite has moved all of it, durably
            descriptor = os.open(f"{self.file}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync(os.path.dirname(self.file))  # nobody may have done so since the file was made

    def free(self) -> int:
        """Bytes of the database that hold nothing."""
        free, size = (
            self._con.execute(f"PRAGMA {each}").fetchone()[0]
            for each in ("freelist_count", "page_size")
        )
        return int(free) * int(size)

    def compact(self) -> int:
        """Return free pages to the disk, outside of a transaction; return the number of bytes."""
        before = self._size()
        self._con.execute("VACUUM")  # all of it or nothing, whenever the process is killed
        self._con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(0, before - self._size())  # a reader may keep the old pages for a moment

    def _size(self) -> int:
        """Bytes of the database, and of its log, which may hold most of it."""
        files = self.file, f"{self.file}-wal"
        return sum(os.path.getsize(each) for each in files if os.path.exists(each))

    def undo(self) -> None:
        """Undo the effects of a transaction that are outside the database."""
        self.values.undo()

    def close(self) -> None:
        """Close the connection."""
        connection = self.__dict__.pop("_con", None)
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: the parent's connection is neither used nor closed."""
        _abandoned.append(self.__dict__.pop("_con", None))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # only damaged text does not decode


_abandoned: list[sqlite3.Connection | None] = []
