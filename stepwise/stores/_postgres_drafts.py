"""Checkpoints on their way to the server: sent, and not waited for.

A checkpoint need not be on a disk: it has to survive the process.  It does so once it was handed to
the operating system, which delivers it whatever becomes of the process; the server executes what
it was sent, also when nobody waits for the answer.  So the run goes on meanwhile.  Its next batch
first looks for the answer, since it names the turn that the checkpoint has taken.

One connection has all of a process's checkpoints, one behind the other.  If it breaks, whoever
looks for an answer finds out by the turn what became of the checkpoint, as for any batch.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

import psycopg

from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import StoreError
from stepwise.stores import _postgres_quick as quick
from stepwise.stores._postgres_batches import HeldLease, RunBatch, statement_alone
from stepwise.stores._postgres_connections import Connection, Connections, LostError, is_lost

__all__ = ["Drafts"]

_LARGEST = 256 << 10  # bytes of what is sent without waiting
_MOST = 32  # on their way
_SECONDS = 20.0  # after which a silent server is given up
_LOCK_SECONDS = 0.1  # for which another run may be sending; then it goes with the others

_abandoned: list[object] = []  # connections of the parent of a forked process: never closed here


class Drafts:
    """The checkpoints that are on their way.

    Args:
        resend: writes a batch with another connection, and finds out first whether it is written.
    """

    def __init__(
        self,
        connections: Connections,
        schema: str,
        resend: Callable[[RunBatch, float | None], None],
    ) -> None:
        self._connections, self._schema, self._resend = connections, schema, resend
        self._lock = threading.RLock()
        self._inside = False  # a finalizer may enter anywhere
        self._pending = collections.deque[RunBatch]()
        self._connection: Connection | None = None
        self._is_usable = True

    def send(self, me: int, share: RunBatch) -> bool:
        """Send a batch, if it is a checkpoint; return whether it is on its way."""
        held, batch = share.held, share.batch
        if (
            batch.durable
            or share.records
            or batch.head is not None
            or share.size > _LARGEST
            or held.large
            or held.turn is None
            or not self._is_usable
        ):
            return False
        with Uninterrupted():
            if not self._lock.acquire(timeout=_LOCK_SECONDS):
                return False
            try:
                return not self._inside and self._send(me, share)
            finally:
                self._lock.release()

    def _send(self, me: int, share: RunBatch) -> bool:
        held = share.held
        self._inside = True
        try:
            connection = self._opened()
            if connection is None:
                return False
            assert held.turn is not None
            share.turn = held.turn
            statement = statement_alone(self._schema, me, share)
            if quick.is_new(connection, statement):
                while self._pending:
                    self._collect(connection)
                quick.prepare(connection, statement)
            if len(self._pending) >= _MOST:
                self._collect(connection)
            share.sent, held.turn, held.draft = True, None, share
            self._pending.append(share)
            quick.post(connection, statement)
        except (LostError, psycopg.Error):
            self._lose()
        except BaseException:
            self._lose()
            raise
        finally:
            self._inside = False
        return share.sent

    def _opened(self) -> Connection | None:
        """The connection; ``None`` if there is only one through a pooler, or none at once."""
        connection = self._connection
        if connection is None or connection.closed:
            self._lose()
            try:
                connection = self._connections.connect(time.monotonic())
            except (LostError, StoreError):
                return None
            self._is_usable = connection.direct
            if not connection.direct:
                connection.close()
                return None
            connection.pgconn.enter_pipeline_mode()
            self._connection = connection
        connection.until = time.monotonic() + _SECONDS
        return connection

    def settle(self, held: HeldLease, patience: float | None = None) -> None:
        """Wait until the checkpoint of a run is written.

        Args:
            patience: seconds for which a server that went away is awaited, instead of the store's.

        Raises:
            LeaseLostError: it was refused.
            StoreError: it could not be written.
        """
        share = held.draft
        if share is None:
            return
        with Uninterrupted():
            with self._lock:
                if self._inside:
                    return  # of a finalizer, or a handler: whoever was interrupted goes on with it
                self._inside = True
                try:
                    self._collect_until(share)
                finally:
                    self._inside = False
            if not share.done:
                self._resend(share, patience)
                share.done = True
        held.draft = None
        if share.error is not None:
            raise share.error

    def _collect_until(self, share: RunBatch) -> None:
        connection = self._connection
        try:
            while share in self._pending and connection is not None:
                connection.until = time.monotonic() + _SECONDS
                self._collect(connection)
        except (LostError, psycopg.Error):
            self._lose()
        except BaseException:
            self._lose()
            raise

    def _collect(self, connection: Connection) -> None:
        """Wait for the oldest answer."""
        share = self._pending[0]
        try:
            written = quick.fetch(connection)
        except psycopg.Error as error:
            if is_lost(connection, error):
                raise
            share.error = self._connections.translated(error)
            share.held.turn, share.done = share.turn, True
        else:
            # If it is not written, whoever looks for it finds out why: the lease was lost, or a
            # crash of the server took back what was written before.
            if written:
                share.held.written(share, flushed=False)
                share.done = True
        self._pending.popleft()

    def _lose(self) -> None:
        """Give up the connection; what was on its way is resent by who looks for it."""
        self._pending.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._lose()

    def abandon(self) -> None:
        """In a forked child: the parent's connection is neither used nor closed."""
        _abandoned.append(self._connection)
