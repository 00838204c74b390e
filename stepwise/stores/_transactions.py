"""The one connection of a process to a database, and transactions that say what went wrong.

Every use is behind the store's lock.  ``synchronous`` is FULL for a batch that must survive a power
cut and NORMAL for another one; the next use rolls back what an interrupt left open; and there is no
memory map, since a truncated file would be a SIGBUS.
"""

from __future__ import annotations

import os
import sqlite3

from stepwise._runtime.forks import cached
from stepwise.stores._values import Values

__all__ = ["BUSY_SECONDS", "NORMAL", "Transactions"]

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
    _level = 0

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

    def commit(self) -> None:
        """Commit it, and delete the value files that it gave up."""
        # An exception out of COMMIT means "unknown".  It stops the run, and the journal is read
        # again before anything else is decided.
        self._con.execute("COMMIT")
        self.values.keep()

    def roll_back(self) -> None:
        """Undo what an error, or an interrupt at any place, left open."""
        if self._con.in_transaction:
            self._con.rollback()
            self.undo()

    def free(self) -> int:
        """Bytes of the database that hold nothing."""
        free, size = (
            self._con.execute(f"PRAGMA {each}").fetchone()[0]
            for each in ("freelist_count", "page_size")
        )
        return int(free) * int(size)

    def compact(self) -> int:
        """Give them back to the disk, outside of a transaction; how many it has more now."""
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
