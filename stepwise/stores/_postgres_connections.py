"""Connections to a Postgres server: the URL, the tables, and the open connections.

The URL of a Postgres store has three parts: the parameters of libpq, the public form, and
stepwise's own settings.

A command that only shows a URL uses ``stepwise._runtime.settings``, which needs no psycopg.

The tables of a Postgres store are made under a lock of the transaction.

::

    meta       format of the store
    leases     run, hash of the run id, epoch, turn, holder, owner, the last two marks
    runs       run, for listings: run id, workflow and its hash, finished, head, when it is to
               begin, and its place in the order in which the runs began
    records    run, number, data
    objects    run, hash of the name, name, data
    processes  id, host, boot, namespace of process ids, pid, its start, node, lease, beat

A lease is the small row that each batch changes in place: no index contains a column that a batch
changes.  Texts are stored as bytes, since Postgres stores neither NUL nor half a surrogate pair.
Indexes contain hashes instead of names and run ids, which may be too long for an index entry.

A process keeps few connections open, and makes them again when they break.

The last section reads the server facts for ``stepwise doctor``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.settings import public_url
from stepwise.errors import ConfigurationError, StoreError
from stepwise.stores.base import FORMAT, other_format, to_bytes

# -- postgres url ---------------------------------------------------------------------------------


_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "fallback_application_name": "stepwise",
}


class PostgresOptions(NamedTuple):
    """Settings of the store in its URL."""

    schema: str = "stepwise"
    lease_seconds: float = 30.0
    patience_seconds: float = 60.0
    pool_size: int = 4


def parsed(url: str) -> tuple[str, str, PostgresOptions]:
    """Return the connection string of libpq, the URL without a password, and our settings.

    Raises:
        ConfigurationError: the URL cannot be used as it is written.
    """
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    parameters = [each for each in query.split("&") if each]
    ours = [each for each in parameters if each.partition("=")[0] in PostgresOptions._fields]
    theirs = [each for each in parameters if each not in ours]
    public = public_url(f"postgresql://{rest}")
    secrets = [place.rpartition("@")[0].partition(":")[2]]
    secrets += [each.partition("=")[2] for each in parameters if "password=" in each]
    full = f"postgresql://{place}" + (f"?{'&'.join(theirs)}" if theirs else "")
    try:
        given: dict[str, Any] = conninfo_to_dict(full)
        for port in str(given.get("port", "")).split(","):
            if port and not port.isdecimal():
                raise psycopg.ProgrammingError(f"the port {port!r} is not a number")  # noqa: TRY301
        conninfo = make_conninfo(**{**_DEFAULTS, **given})
    except psycopg.ProgrammingError as error:
        text = str(error).strip()
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        raise ConfigurationError(
            f"the store's URL {public!r} cannot be used: {text}. Write "
            "postgresql://user@host:5432/database"
        ) from None
    return conninfo, public, _options(ours, public)


def _options(parameters: list[str], url: str) -> PostgresOptions:
    options = PostgresOptions()
    for each in parameters:
        name, _, text = each.partition("=")
        kind = type(getattr(options, name))
        try:
            value = kind(text)
            if kind is not str and not 0 < value < 1e6:
                raise ValueError  # noqa: TRY301
        except ValueError:
            raise ConfigurationError(
                f"{each!r} in the store's URL {url!r} is not a number above 0"
            ) from None
        options = options._replace(**{name: value})
    if not _SCHEMA.fullmatch(options.schema):  # it would need quotes
        raise ConfigurationError(
            f"schema={options.schema!r} in the store's URL is not a name of a schema: it begins "
            "with a small letter, and has at most 40 small letters, digits and underscores"
        )
    return options


# -- postgres schema ------------------------------------------------------------------------------


_NAMES = ["leases", "meta", "objects", "processes", "records", "runs"]

_TABLES = """
CREATE TABLE {schema}.meta (version integer NOT NULL);
CREATE TABLE {schema}.leases (
    run bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash bytea NOT NULL UNIQUE,
    epoch bigint NOT NULL,
    turn bigint NOT NULL,
    holder bigint,
    owner text,
    mark bytea,
    mark_before bytea
) WITH (fillfactor = 50);
CREATE INDEX leases_holder ON {schema}.leases (holder) WHERE holder IS NOT NULL;
CREATE TABLE {schema}.runs (
    run bigint PRIMARY KEY,
    name bytea NOT NULL,
    flow bytea NOT NULL,
    workflow bytea NOT NULL,
    finished boolean NOT NULL,
    data bytea NOT NULL,
    words bytea NOT NULL,
    due double precision,
    place bigint GENERATED ALWAYS AS IDENTITY
) WITH (fillfactor = 80);
CREATE INDEX runs_place ON {schema}.runs (place);
CREATE INDEX runs_workflow ON {schema}.runs (workflow, run);
CREATE INDEX runs_unfinished ON {schema}.runs (run) WHERE NOT finished AND due IS NULL;
CREATE INDEX runs_unfinished_place ON {schema}.runs (place) WHERE NOT finished AND due IS NULL;
CREATE INDEX runs_unfinished_workflow ON {schema}.runs (workflow, run)
    WHERE NOT finished AND due IS NULL;
CREATE INDEX runs_due ON {schema}.runs (workflow, due, place) WHERE due IS NOT NULL;
CREATE TABLE {schema}.records (
    run bigint NOT NULL,
    number bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, number)
);
CREATE TABLE {schema}.objects (
    run bigint NOT NULL,
    hash bytea NOT NULL,
    name bytea NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, hash)
);
CREATE TABLE {schema}.processes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host text NOT NULL,
    boot text NOT NULL,
    namespace text NOT NULL,
    pid bigint NOT NULL,
    started text NOT NULL,
    node text NOT NULL,
    lease_seconds double precision NOT NULL,
    beat timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO {schema}.meta VALUES ({version});
"""


def prepare_schema(
    connection: psycopg.Connection[Any], schema: str, where: str, *, to_read: bool
) -> None:
    """Make the tables, unless they exist.

    Args:
        to_read: missing tables are an error.

    Raises:
        StoreError: the tables have another format, or another role could have made them.
    """
    found = _version(connection, schema, where)
    if found == FORMAT:
        return
    if to_read and not found:
        raise StoreError(
            f"there is no store at {where} yet: run a workflow first, or name another store",
            path=where,
            errno=errno.ENOENT,
        )
    # Many processes may start at once; the lock ends with the transaction, even behind a pooler.
    key = int.from_bytes(
        hashlib.blake2b(schema.encode(), digest_size=8).digest(), "big", signed=True
    )
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1::bigint)", (key,))
        found = _version(connection, schema, where)
        if not found:
            connection.execute(_statement(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
            connection.execute(_statement(_TABLES.format(schema=schema, version=FORMAT)))
        elif found != FORMAT:
            raise other_format(where, found)


_LOOK = """
WITH RECURSIVE ours (oid) AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
    UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN ours ON m.member = ours.oid
), objects (owner, name) AS (
    SELECT nspowner, NULL FROM pg_catalog.pg_namespace WHERE nspname = $1
    UNION ALL SELECT c.relowner, c.relname FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = ANY($2)
), foreigners (owner) AS (
    SELECT r.rolname FROM objects o JOIN pg_catalog.pg_roles named ON named.oid = o.owner
    JOIN pg_catalog.pg_roles r ON r.oid = CASE WHEN named.rolname = 'pg_database_owner' THEN (
        SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()
    ) ELSE o.owner END
    WHERE NOT r.rolsuper AND r.oid NOT IN (SELECT oid FROM ours)
)
SELECT current_user::text, (SELECT min(owner)::text FROM foreigners),
    EXISTS (SELECT 1 FROM objects WHERE name = 'meta')
"""
"""Whether tables exist, and a foreign role that owns the schema or a table in it."""
# Not to_regclass(): its answer may be from before the transaction waited for the lock.


def _version(connection: psycopg.Connection[Any], schema: str, where: str) -> int:
    """Return the version of the tables; 0 if there are none.

    Raises:
        StoreError: another role owns the schema, so that its triggers would run with our rights.
    """
    row = connection.execute(_statement(_LOOK), (schema, _NAMES)).fetchone()
    assert row is not None
    role, owner, there = row
    if owner is not None:
        raise StoreError(
            f"the schema {schema} of the store {where}, or a table in it, belongs to the role "
            f"{owner}, which {role} is no member of: its triggers would run with the rights of "
            f"{role}. Name another schema in the URL (?schema=...), or trust that role: "
            f"GRANT {owner} TO {role}",
            path=where,
            errno=errno.EPERM,
        )
    if not there:
        return 0
    row = connection.execute(_statement(f"SELECT version FROM {schema}.meta")).fetchone()
    return int(row[0]) if row is not None else 0


def _statement(text: str) -> Any:
    return text  # psycopg wants literals; the name of the schema was checked


# -- names -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def hashed(name: str) -> bytes:
    """Return the hash that replaces an id or a name, with any characters."""
    return hashlib.blake2b(to_bytes(name), digest_size=16).digest()


def channel(schema: str) -> str:
    """Return the channel that announces the names of writes."""
    return f"stepwise_{schema}"


# -- postgres connections -------------------------------------------------------------------------


T = TypeVar("T")
Statement = tuple[str, Sequence[Any]]
"""The text of a statement, and its parameters."""

_FIRST_SECONDS = 10.0  # to wait for a server that was never reached
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two attempts to connect
_SILENCE = 20.0  # seconds without an answer after which a connection is given up
_BYTES_PER_SECOND = 1_000_000  # of a network that is slow, but not dead
_PREPARE_AFTER = 3  # executions of a statement
_MOST_POSTED = 32  # statements without an answer

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
"""Parts of libpq's messages about errors that no retry solves, with the way out of each."""


# psycopg logs that a pipeline broke with its connection; the error that follows says so, too.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class LostError(Exception):
    """The connection was lost, and the outcome of the statement is unknown."""


class Connection(psycopg.Connection[Any]):
    """A connection that gives up a silent server.

    Attributes:
        until: when a wait for the server ends, by the monotonic clock.
        direct: whether there is no pooler between the process and the server.
    """

    until: float | None = None
    direct = False
    _stack: contextlib.ExitStack | None = None  # holds the pipeline, once there is one
    _posting: psycopg.Pipeline
    _posted = 0  # statements without an answer so far

    def post(self, statement: Statement) -> None:
        """Send a statement as a separate transaction, without waiting for the answer.

        The server executes a sent statement, whatever becomes of this process.
        """
        self._begin_pipeline()
        if self._posted >= _MOST_POSTED:
            self._execute_in_pipeline(())
        try:
            super().execute(*statement, binary=True)
            # Pipeline.sync() would wait for the answer.  Without a sync after each statement,
            # nothing is committed, and a refused statement takes all later posted ones with it.
            self.pgconn.pipeline_sync()
            self._posting.result_queue.append(None)
            self.wait(generators.send(self.pgconn))  # until the operating system has all of it
        except BaseException:
            self.close()  # an unknown part of it was sent
            raise
        self._posted += 1

    def execute_all(self, statements: Sequence[Statement]) -> list[Any]:
        """Execute statements in one transaction, after all posted statements; return the rows."""
        if len(statements) == 1:
            return self.execute(*statements[0], binary=True).fetchall()  # type: ignore[no-any-return]
        self._begin_pipeline()
        cursors = self._execute_in_pipeline(statements, binary=True)
        return [row for each in cursors for row in each]

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement after all posted statements."""
        if self._stack is None:
            return super().execute(*args, **kwargs)
        (cursor,) = self._execute_in_pipeline([args], **kwargs)
        return cursor

    def _begin_pipeline(self) -> None:
        if self._stack is None:
            self._stack = contextlib.ExitStack()
            self._posting = self._stack.enter_context(self.pipeline())

    def _execute_in_pipeline(self, statements: Sequence[Any], **kwargs: Any) -> list[Any]:
        """Execute statements in one transaction.

        Raises:
            LostError: a posted statement may have failed; a retry finds that out.
        """
        posted, self._posted = self._posted, 0
        try:
            cursors = [super(Connection, self).execute(*each, **kwargs) for each in statements]
            self._posting.sync()
        except psycopg.Error as error:
            if not posted:
                raise
            self.close()
            raise LostError(str(error)) from error
        return cursors

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server's answer until the time limit."""
        if self.until is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(gen, self.until), *args, **kwargs)
        except LostError:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """True if another statement can be executed."""
        idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        return not self.closed and (idle or self._posted > 0)


def _until(gen: Any, until: float) -> Generator[Any, Any, Any]:
    """Run a generator of psycopg until the time limit; raise LostError after that."""
    try:
        ready = yield next(gen)
        while True:
            if not ready and time.monotonic() > until:
                raise LostError("the server does not answer")
            ready = yield gen.send(ready)
    except StopIteration as stop:
        return stop.value


class Connections:
    """The connections of a store in this process: as many as are needed at once, kept open.

    The last used connection is used next, so that its posted statements come first.

    Args:
        conninfo: the connection string for libpq, with the password.
        where: the store's URL without the password, for messages.
        options: of the store's URL.
        to_read: every transaction is one that the server lets read only.
    """

    def __init__(
        self, conninfo: str, where: str, options: PostgresOptions, *, to_read: bool = False
    ) -> None:
        self.where, self.schema = where, options.schema
        self.patience, self._size = options.patience_seconds, options.pool_size
        if self.patience < _FIRST_SECONDS:  # libpq waits for two seconds or more
            conninfo = make_conninfo(conninfo, connect_timeout=max(2, int(self.patience)))
        self._conninfo, self._to_read = conninfo, to_read
        self._prepared = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: list[Connection] = []
        self.closed = False

    # -- use -------------------------------------------------------------------------------------

    def use(
        self,
        work: Callable[[Connection], T],
        *,
        patience: float | None = None,
        size: int = 0,
    ) -> T:
        """Call ``work`` with a connection, and again after each connection that breaks.

        Args:
            work: may be called several times; each call finds out what an earlier call has done.
            patience: seconds, instead of the store's.
            size: bytes that go through the connection.

        Raises:
            StoreError: the server refuses, or stays away.
        """
        patience = self.patience if patience is None else patience
        if not self._prepared:  # such a server may not exist
            patience = min(patience, _FIRST_SECONDS)
        until = time.monotonic() + patience
        silence = min(_SILENCE, patience) + size / _BYTES_PER_SECOND
        pause = _SHORTEST
        while True:
            try:
                with self._slot(until):
                    return self._use(work, silence)
            except LostError as error:
                if self.closed or time.monotonic() + pause > until:
                    raise self._away(error, patience) from error.__cause__ or error
            except psycopg.Error as error:
                raise self.translated(error) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
            pause = min(2 * pause, _LONGEST)

    def post(self, work: Callable[[Connection], bool]) -> bool:
        """Let ``work`` post a statement if a connection is free; return whether it did."""
        if not self._slots.acquire(blocking=False):
            return False
        try:
            return self._use(work, _SILENCE)
        except (LostError, StoreError, psycopg.Error):
            return False
        finally:
            self._slots.release()

    def _use(self, work: Callable[[Connection], T], silence: float) -> T:
        with self._lock:
            found = self._idle.pop() if self._idle else None
        connection = found or self.connect()
        connection.until = time.monotonic() + silence
        try:
            if self._to_read and not connection.direct:  # see _configure()
                with connection.transaction():
                    return work(connection)
            return work(connection)
        except psycopg.Error as error:
            if is_lost(connection, error):
                connection.close()
                raise LostError(str(error)) from error
            raise
        finally:
            self._give_back(connection)

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

    def _give_back(self, connection: Connection) -> None:
        connection.until = None
        if not connection.closed and not connection.is_idle:
            connection.close()  # the server rolls back the open transaction
        if connection.closed:
            self._lose()
            return
        with self._lock:
            if not self.closed:
                self._idle.append(connection)
                return
        connection.close()

    def _lose(self) -> None:
        """Close the idle connections, which broke together with the broken one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    # -- connecting ------------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Open a connection, for the caller to close; the first connection makes the tables.

        Raises:
            LostError: the server is away; it may come back.
            StoreError: there is no such server, database or user.
        """
        connection = self._connect()
        if self._prepared:
            return connection
        try:
            with self._lock:
                prepare_schema(connection, self.schema, self.where, to_read=self._to_read)
        except BaseException as error:
            lost = isinstance(error, psycopg.Error) and is_lost(connection, error)
            connection.close()
            if lost:
                raise LostError(str(error)) from error
            raise
        self._prepared = True
        return connection

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(self._conninfo, **_KEYWORDS)
            _configure(connection, to_read=self._to_read)
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
        """Return our error for an error of Postgres."""
        code, hint = _HINTS.get(error.sqlstate or "", (None, "remove the cause"))
        return StoreError(
            f"the store {self.where} failed: {_one_line(error)}. Nothing recorded is lost; {hint} "
            "and run again",
            path=self.where,
            errno=code,
        )

    # -- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all idle connections; close the others when they are returned."""
        self.closed = True
        self._lose()

    def abandon(self) -> None:
        """Forget the parent's connections in a forked child, without closing them."""
        _abandoned.append(self._idle)
        self._begin()


_abandoned: list[object] = []


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
"""Prefixes of error codes after which the work is retried, with another connection.

26000 and 42P05: another client (``DISCARD ALL``) removed the connection's prepared statements.
"""


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Return whether the connection broke, or the server is shutting down or starting."""
    return connection.closed or (error.sqlstate or "").startswith(_LOST)


def _configure(connection: Connection, *, to_read: bool) -> None:
    # All integers have one type, whatever their size: another type would need another statement.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(list, ListBinaryDumper)
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    # A pooler reports a process id that is not the server's.
    connection.direct = row is not None and row[0] == connection.info.backend_pid
    if connection.direct:
        connection.prepare_threshold = _PREPARE_AFTER
    if to_read:
        connection.read_only = True  # of the transactions that psycopg begins
        if connection.direct:  # a pooler would give the setting to others
            connection.execute("SET default_transaction_read_only = on")


def _one_line(error: Exception) -> str:
    told = "".join(
        line
        for line in str(error).splitlines(keepends=True)
        if not line.lstrip().startswith("Is the server running")  # our message says that
    )
    return " ".join(told.split()).rstrip(".")


# -- postgres server ------------------------------------------------------------------------------


_SETTINGS = ("server_version", "fsync", "full_page_writes", "synchronous_commit")


class Standby(NamedTuple):
    """A server that follows this one; ``sync`` is empty if the user may not see it."""

    name: str
    sync: str


class ServerFacts(NamedTuple):
    """Facts about a server, as one connection sees them.

    Args:
        settings: values by name.
        seconds: the duration of one request.
        ahead: seconds by which the server's clock is ahead of this machine's.
        standby: whether the server follows another one, and refuses writes.
        direct: whether there is no pooler in between.
    """

    settings: dict[str, str]
    database: str
    seconds: float
    ahead: float
    standby: bool
    direct: bool
    standbys: tuple[Standby, ...]


def server_facts(connection: Connection) -> ServerFacts:
    """Query the facts of a server."""
    rows = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name = ANY($1::text[])", (list(_SETTINGS),)
    ).fetchall()
    sent = time.time()
    row = connection.execute(
        "SELECT extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(), "
        "current_database()"
    ).fetchone()
    came = time.time()
    assert row is not None
    clock, standby, database = row
    found = connection.execute(
        "SELECT coalesce(application_name, ''), coalesce(sync_state, '') FROM pg_stat_replication"
    ).fetchall()
    return ServerFacts(
        dict(rows),
        database,
        came - sent,
        clock - (sent + came) / 2,
        standby,
        connection.direct,
        tuple(Standby(*each) for each in found),
    )
