"""Connections to a Postgres server: few, kept open, and made again when they break."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from stepwise.errors import StoreError
from stepwise.stores._postgres_arrays import register
from stepwise.stores._postgres_schema import prepare_schema

__all__ = ["Connection", "Connections", "LostError", "is_lost"]

T = TypeVar("T")

_FIRST_SECONDS = 10.0  # for which a server that was never reached is awaited
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two tries to connect
_SILENCE = 20.0  # seconds after which a connection without an answer is given up
_BYTES_PER_SECOND = 1_000_000  # of a network that is slow and not dead
_PREPARE_AFTER = 3  # executions of a statement

_KEYWORDS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "cursor_factory": psycopg.RawCursor,
}

_WRONG = {
    "password authentication failed": "correct the user or the password",
    "no password supplied": (
        "set PGPASSWORD, or write the password to ~/.pgpass or into the store's URL"
    ),
    "authentication failed": "correct the user or the password",
    'role "': "correct the user in the store's URL, or create the role",
    'database "': "create the database (createdb), or correct its name in the store's URL",
    "pg_hba.conf": "allow this host, user and database in the server's pg_hba.conf",
    "Name or service not known": "correct the host in the store's URL",
    "nodename nor servname": "correct the host in the store's URL",
    "does not support SSL": "correct sslmode in the store's URL",
    "invalid connection option": "correct the store's URL",
}
"""Parts of messages of libpq that no other try changes, and the way out of each."""


# The pool reports a server that is away; so does the thread that needs it.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class LostError(Exception):
    """The connection was lost; nobody knows what became of the statement."""


class Connection(psycopg.Connection[Any]):
    """A connection that gives up a server from which nothing comes.

    Attributes:
        until: when a wait for the server ends, by the monotonic clock.
        direct: there is no pooler between it and the server.
        statements: the names of those that are prepared, by their texts.
    """

    until: float | None = None
    direct = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statements: dict[str, bytes] = {}

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server's answer, but not for ever."""
        if self.until is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(gen, self.until), *args, **kwargs)
        except LostError:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Return whether another statement can be executed."""
        return not self.closed and self.pgconn.transaction_status == TransactionStatus.IDLE


def _until(gen: Any, until: float) -> Generator[Any, Any, Any]:
    """Do what a generator of psycopg does, until it is too late."""
    try:
        ready = yield next(gen)
        while True:
            if not ready and time.monotonic() > until:
                raise LostError("the server does not answer")
            ready = yield gen.send(ready)
    except StopIteration as stop:
        return stop.value


_Pool = Any  # a ConnectionPool, or None; imported when there is one


class Connections:
    """The connections of a store in this process: one, and a pool where several threads use it.

    The one is opened directly, so that its errors are known at once and by their cause.  The pool
    opens its connections in threads of its own, and is there only while the server is: its own
    tries to reconnect take seconds longer than ours, and go to its log.

    Args:
        conninfo: what libpq takes, password and all.
        where: the store's URL without the password, for messages.
        schema: the schema of the store's tables.
        patience: seconds for which a server that went away is awaited.
        size: how many connections there are at most.
    """

    def __init__(
        self, conninfo: str, where: str, *, schema: str, patience: float, size: int
    ) -> None:
        self._conninfo, self.where, self.schema = conninfo, where, schema
        self.patience, self._size = patience, size
        self._prepared = False
        self._begin()
        _all.add(self)
        _watch_forks()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: Connection | None = None  # the one, if nobody uses it
        self._pool: _Pool = None
        self._reached = False  # the one was opened, and nothing was lost since
        self.closed = False

    # -- use -------------------------------------------------------------------------------------

    def use(
        self,
        work: Callable[[Connection], T],
        *,
        patience: float | None = None,
        size: int = 0,
    ) -> T:
        """Call ``work`` with a connection; once more for each connection that breaks.

        Args:
            work: may be called several times; it finds out what an earlier call has done.
            patience: seconds, instead of the store's.
            size: bytes that go through the connection.

        Raises:
            StoreError: the server refuses, or stays away.
        """
        patience = self.patience if patience is None else patience
        until = time.monotonic() + patience
        silence = min(_SILENCE, patience) + size / _BYTES_PER_SECOND
        pause = _SHORTEST
        while True:
            try:
                with self._slot(until):
                    return self._use(work, until, silence)
            except LostError as error:
                if self.closed or time.monotonic() + pause > until:
                    raise self._away(error, patience) from error.__cause__ or error
            except psycopg.Error as error:
                raise self.translated(error) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
            pause = min(2 * pause, _LONGEST)

    def _use(self, work: Callable[[Connection], T], until: float, silence: float) -> T:
        connection, pool = self._take(until)
        connection.until = time.monotonic() + silence
        try:
            return work(connection)
        except psycopg.Error as error:
            if is_lost(connection, error):
                connection.close()
                raise LostError(str(error)) from error
            raise
        finally:
            self._give_back(connection, pool)

    @contextlib.contextmanager
    def _slot(self, until: float) -> Iterator[None]:
        if not self._slots.acquire(timeout=max(0.1, until - time.monotonic())):
            raise StoreError(
                f"the store {self.where}: its {self._size} connections were busy for too long; "
                "raise pool_size in its URL",
                path=self.where,
                errno=errno.ETIMEDOUT,
            )
        try:
            yield
        finally:
            self._slots.release()

    def _take(self, until: float) -> tuple[Connection, _Pool]:
        with self._lock:
            one, self._idle = self._idle, None
            if one is not None:
                return one, None
            if not self._reached:
                one = self.connect(until)
                self._reached = True
                return one, None
            if self._pool is None:
                self._pool = self._opened_pool()
            pool = self._pool
        from psycopg_pool import PoolClosed, PoolTimeout

        try:
            return pool.getconn(timeout=max(0.1, min(_SILENCE, until - time.monotonic()))), pool
        except (PoolTimeout, PoolClosed) as error:
            self._lose()
            raise LostError(str(error)) from error

    def _opened_pool(self) -> _Pool:
        from psycopg_pool import ConnectionPool

        return ConnectionPool(
            self._conninfo,
            connection_class=Connection,
            kwargs=_KEYWORDS,
            configure=_configure,
            min_size=0,
            max_size=max(1, self._size - 1),
            num_workers=1,
            reconnect_timeout=1.0,
            name=self.where,
            open=True,
        )

    def _give_back(self, connection: Connection, pool: _Pool) -> None:
        connection.until = None
        if not connection.closed and not connection.is_idle:
            connection.close()  # the server rolls back what it was doing
        if connection.closed:
            self._lose()
        elif pool is not None:
            pool.putconn(connection)
            return
        with self._lock:
            if not connection.closed and self._reached and self._idle is None and not self.closed:
                self._idle = connection
                return
        connection.close()
        if pool is not None:
            pool.putconn(connection)

    def _lose(self) -> None:
        """Close what nobody uses: it broke with the connection that broke."""
        with self._lock:
            one, self._idle = self._idle, None
            pool, self._pool = self._pool, None
            self._reached = False
        if one is not None:
            one.close()
        if pool is not None:
            pool.close(timeout=0.5)

    # -- connecting ------------------------------------------------------------------------------

    def connect(self, until: float) -> Connection:
        """Open a connection, for the caller to close; the first one makes the tables.

        Raises:
            LostError: the server is away; it may come back.
            StoreError: there is no such server, database or user.
        """
        if self._prepared:
            return self._connect()
        with self._lock:
            first = self._first(until)
            try:
                prepare_schema(first, self.schema, self.where)
            except BaseException as error:
                lost = isinstance(error, psycopg.Error) and is_lost(first, error)
                first.close()
                if lost:
                    raise LostError(str(error)) from error
                raise
            self._prepared = True
            return first

    def _first(self, until: float) -> Connection:
        """Connect to a server that this process has not seen yet."""
        began = time.monotonic()
        until = min(until, began + _FIRST_SECONDS)
        pause = _SHORTEST
        while True:
            try:
                return self._connect()
            except LostError as error:
                if time.monotonic() + pause > until:
                    raise self._away(error, until - began) from error.__cause__ or error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(self._conninfo, **_KEYWORDS)
            _configure(connection)
        except psycopg.OperationalError as error:
            for part, way_out in _WRONG.items():
                if part in str(error):
                    raise self._refused(error, way_out) from error
            raise LostError(str(error)) from error
        except psycopg.Error as error:
            raise self.translated(error) from error
        return connection

    # -- errors ----------------------------------------------------------------------------------

    def _refused(self, error: Exception, way_out: str) -> StoreError:
        return StoreError(
            f"the store {self.where} cannot be opened: {_one_line(error)}. To go on, {way_out}",
            path=self.where,
            errno=errno.EACCES,
        )

    def _away(self, error: Exception, seconds: float) -> StoreError:
        return StoreError(
            f"the store {self.where} did not answer for {seconds:.3g} seconds: {_one_line(error)}. "
            "Nothing recorded is lost; start the server, or correct the store's URL, and run again",
            path=self.where,
            errno=errno.EHOSTUNREACH,
        )

    def translated(self, error: psycopg.Error) -> StoreError:
        """Return our error for one of Postgres."""
        code, hint = _HINTS.get(error.sqlstate or "", (None, "remove the cause"))
        return StoreError(
            f"the store {self.where} failed: {_one_line(error)}. Nothing recorded is lost; {hint} "
            "and run again",
            path=self.where,
            errno=code,
        )

    # -- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections that nobody uses; the others when they are given back."""
        self.closed = True
        self._lose()

    def abandon(self) -> None:
        """In a forked child: the parent's connections are neither used nor closed."""
        _abandoned.append((self._idle, self._pool))
        self._begin()


_HINTS: dict[str, tuple[int | None, str]] = {
    "53100": (errno.ENOSPC, "free some space on the server"),
    "53200": (errno.ENOMEM, "give the server more memory"),
    "54000": (errno.EFBIG, "store less at once"),
    "42501": (errno.EACCES, "grant the user the rights on the schema and its tables"),
    "25006": (errno.EROFS, "use the URL of the primary server"),
    "57014": (errno.ETIMEDOUT, "raise statement_timeout of the user or the database"),
}
_LOST = (
    "08", "26000", "40001", "40P01", "42P05", "57P01", "57P02", "57P03", "57P05",
)  # fmt: skip
"""The beginnings of codes after which the same is tried again, with another connection.

26000 and 42P05: somebody (``DISCARD ALL``) took the prepared statements of the connection away.
"""


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Return whether the connection broke, or the server is about to end or to begin."""
    return connection.closed or (error.sqlstate or "").startswith(_LOST)


def _configure(connection: Connection) -> None:
    register(connection)
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    # A pooler tells its clients a process id that is not the server's.
    connection.direct = row is not None and row[0] == connection.info.backend_pid
    if connection.direct:
        connection.prepare_threshold = _PREPARE_AFTER


def _one_line(error: Exception) -> str:
    told = "".join(
        line
        for line in str(error).splitlines(keepends=True)
        if not line.lstrip().startswith("Is the server running")  # our sentence asks that
    )
    return " ".join(told.split()).rstrip(".")


# -- fork ----------------------------------------------------------------------------------------

_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_abandoned: list[object] = []


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for each in list(_all):
        each.abandon()
