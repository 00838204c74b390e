"""The processes that hold leases, and whether they live: one row for each, with its beat.

A lease belongs to a process, not to a connection.  The lease is held while the process beats: until
``lease_seconds`` after the last beat, by the server's clock.  If the server started later, its
start counts instead of the beat.  Before that time, a lease is free only if its holder is proven
dead.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from stepwise._runtime.clock import elapsed
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import StoreError
from stepwise.stores._files import is_alive
from stepwise.stores._postgres_connections import (
    Connection,
    Connections,
    LostError,
    channel,
    hashed,
)

HELD = (
    "greatest(p.beat, pg_postmaster_start_time()) + make_interval(secs => p.lease_seconds) "
    "> clock_timestamp()"
)
"""The SQL condition under which the lease of a process ``p`` is held."""


_FORGOTTEN = "7 days"  # after which the row of a process without leases is deleted
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two attempts to connect


class ProcessFacts(NamedTuple):
    """The row of a process, with enough facts to prove its death.

    Args:
        boot: id of the start of its machine; empty if unknown.
        namespace: of its process id.
        started: when the process started, according to its machine.
        node: the engine's name of its machine; empty if no engine started it.
    """

    id: int
    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    node: str


FACTS = ", ".join(f"p.{name}" for name in ProcessFacts._fields)

proofs: list[Callable[[ProcessFacts], bool]] = []
"""Functions that know of dead processes, added by engines.  ``True`` is a proof of death."""

node = ""
"""The engine's name of the machine of this process."""


def set_node(name: str) -> None:
    """Set the engine's name of the machine of this process."""
    global node  # noqa: PLW0603
    node = name


def is_dead(facts: ProcessFacts) -> bool:
    """Return whether a process is proven to be dead."""
    return _is_gone(facts) or any(_proves(proof, facts) for proof in list(proofs))


def _proves(proof: Callable[[ProcessFacts], bool], facts: ProcessFacts) -> bool:
    try:
        return proof(facts)
    except Exception:  # an engine that is unavailable itself proves nothing
        return False


def _is_gone(facts: ProcessFacts) -> bool:
    """Return whether a process has ended that ran on this machine, in our process namespace."""
    boot, namespace = _here()
    if not boot or (facts.boot, facts.namespace) != (boot, namespace):
        return False
    started = _started(facts.pid)
    return started != facts.started if started is not None else not is_alive(facts.pid)


@functools.cache
def _here() -> tuple[str, str]:
    """Return the id of this start of the machine, and of the namespace of process ids."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return "", ""


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks since the start of the machine.

    Return an empty text if the process has ended and its parent has not noticed yet.  Return
    ``None`` if nothing is visible: ``/proc`` may hide the processes of other users.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


class Presence:
    """The row of this process, its beat, and the notifications that it receives.

    Args:
        connections: of the store.
        lease_seconds: how long a lease outlives the last beat.
        chores: called at each beat with a connection.
    """

    def __init__(
        self,
        connections: Connections,
        lease_seconds: float,
        chores: Callable[[Connection], None],
    ) -> None:
        self._connections, self._chores = connections, chores
        self._schema, self._lease_seconds = connections.schema, lease_seconds
        self._lock = threading.Lock()
        self._id: int | None = None
        self._beaten = 0.0  # time of the last beat, by a clock that counts during suspension
        self._wake, self._woken = -1, -1  # the ends of a pipe
        self._pipe = threading.RLock()  # a finalizer may wake the thread
        self._started = self._closed = False
        self._listens = self._hears = False
        self._counts = Counter[str]()
        self._first = 0  # the base of each count; grows when notifications may be missing

    # -- the row ---------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The number of this process among the holders of leases; 0 if it never held one."""
        return self._id or 0

    def enter(self) -> int:
        """Let this process hold leases; return its number.

        A process that slept for longer than its leases last beats first: otherwise its next lease
        would be free again at once.
        """
        if self._id is None:
            with self._lock:
                if self._id is None:
                    made = self._connections.use(self._new_row)
                    self._start()  # raises if there are too many threads
                    self._id = made
        elif elapsed() - self._beaten > self._lease_seconds / 2:
            self._connections.use(self._beat)
        return self._id

    def _new_row(self, connection: Connection) -> int:
        connection.execute(
            f"DELETE FROM {self._schema}.processes p WHERE beat < clock_timestamp() - $1::interval "
            f"AND NOT EXISTS (SELECT 1 FROM {self._schema}.leases l WHERE l.holder = p.id)",
            (_FORGOTTEN,),
        )
        began = elapsed()
        row = connection.execute(
            f"INSERT INTO {self._schema}.processes "
            "(host, boot, namespace, pid, started, node, lease_seconds, beat) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp()) RETURNING id",
            self._row(),
        ).fetchone()
        assert row is not None
        self._beaten = began
        return int(row[0])

    def _row(self) -> tuple[Any, ...]:
        pid = os.getpid()
        started = _started(pid) or ""
        return os.uname().nodename, *_here(), pid, started, node, self._lease_seconds

    def _beat(self, connection: Connection) -> None:
        # The whole row: after a long absence, others may have deleted it.
        began = elapsed()
        connection.execute(
            f"INSERT INTO {self._schema}.processes AS p "
            "(host, boot, namespace, pid, started, node, lease_seconds, id, beat) "
            "OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp()) "
            "ON CONFLICT (id) DO UPDATE SET beat = excluded.beat, node = excluded.node "
            "RETURNING set_config('synchronous_commit', 'off', true)",
            (*self._row(), self._id),
        )
        self._beaten = began

    # -- notifications ---------------------------------------------------------------------------

    def changes(self, name: str) -> int | None:
        """Return how often a name was announced; ``None`` if announcements cannot be received."""
        if not self._listens:
            with self._lock:
                self._start()
                self._listens = True
            self.wake()
        return self._first + self._counts[hashed(name).hex()] if self._hears else None

    def _listen(self, connection: Connection) -> None:
        if connection.direct:  # a pooler may give another connection of the server to the next
            connection.add_notify_handler(self._hear)  # for those that come with an answer
            connection.execute(f"LISTEN {channel(self._schema)}")
            self._first += 1  # missed notifications count as a change
            self._hears = True

    def _hear(self, notify: psycopg.Notify) -> None:
        self._counts[notify.payload] += 1

    # -- the thread ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread, so that it does its work at once."""
        with self._pipe, contextlib.suppress(OSError):  # the thread is awake, or gone
            os.write(self._woken, b"w")

    def _start(self) -> None:
        if not self._started:
            if self._wake < 0:
                self._wake, self._woken = os.pipe()
                for end in (self._wake, self._woken):
                    os.set_blocking(end, False)
            # Not a threading.Thread: the interpreter would wait for it, and the program would count
            # as one with several threads, whose large values are copied before they are written.
            _thread.start_new_thread(self._serve, ())
            self._started = True

    def _serve(self) -> None:
        connection: Connection | None = None
        pause = _SHORTEST
        while not self._closed:
            try:
                if connection is None:
                    connection = self._connections.connect()
                self._work(connection)
                pause = _SHORTEST
                self._rest(connection)
            except (LostError, StoreError, psycopg.Error, OSError, ValueError):
                self._hears = False
                if connection is not None:
                    connection.close()
                connection = None
                self._doze(pause)
                pause = min(2 * pause, _LONGEST)
        if connection is not None:
            connection.close()
        with self._pipe:  # the numbers may soon belong to other files
            ends = self._wake, self._woken
            self._wake, self._woken = -1, -1
        for end in ends:
            os.close(end)

    def _work(self, connection: Connection) -> None:
        connection.until = time.monotonic() + max(1.0, self._lease_seconds / 3)
        if self._listens and not self._hears:
            self._listen(connection)
        if self._id is not None:
            self._beat(connection)
        self._chores(connection)
        connection.until = None

    def _rest(self, connection: Connection) -> None:
        """Receive notifications until the next beat is due, or until this thread is woken."""
        until = time.monotonic() + self._lease_seconds / 3
        while not self._closed and (left := until - time.monotonic()) > 0:
            if self._doze(left, connection.fileno()):
                return
            # Not connection.notifies(): with a timeout it waits, and without one it reads nothing.
            connection.pgconn.consume_input()
            while heard := connection.pgconn.notifies():
                self._counts[heard.extra.decode()] += 1

    def _doze(self, seconds: float, *files: int) -> bool:
        """Wait for some seconds, for bytes in a file, or for a wake; return True if woken."""
        poll = select.poll()  # not select(), which refuses large file numbers
        for file in (self._wake, *files):
            poll.register(file, select.POLLIN)
        if self._wake not in dict(poll.poll(1000 * seconds)):
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 1000):
                pass
        return True

    def close(self) -> None:
        """End the thread, and with it the beat."""
        self._closed = True
        self.wake()
