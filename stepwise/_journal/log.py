"""A log that a host keeps in a store: records of its own kinds, sealed and chained like a run's.

Several processes append to it in turn, each under a lease that it holds for one write.  A rewrite
puts records of new numbers in the place of all earlier ones; the object ``start`` then names the
record after which the log begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from stepwise._journal.chain import (
    Position,
    identity,
    is_another_history,
    mark,
    newest_mark,
    verified,
)
from stepwise._journal.lease import Lease
from stepwise._journal.seal import NO_LINK, DamagedError, Seal
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._values.buffers import Data
from stepwise.errors import RunBusyError
from stepwise.stores import Batch, Store

__all__ = ["LogEnd", "LogEntry", "SealedLog"]

_START = "start"
_FRONT = 68  # bytes of a sealed record that no other record has
_PATIENCE = 60.0  # seconds
_SHORTEST, _LONGEST = 0.0005, 0.05  # seconds between two tries


class LogEntry(NamedTuple):
    """One record: its number, header and payload; ``header`` is ``None`` if it is lost."""

    number: int
    header: Any
    payload: bytes = b""


class LogEnd(NamedTuple):
    """The end of a log as far as it was read.

    Args:
        at: the position of the last record.
        front: the beginning of that record's sealed bytes, which tells it from any other.
    """

    at: Position = Position()
    front: bytes = b""


class SealedLog:
    """One log in a store.

    Args:
        name: takes the place of a run id in the store.
    """

    def __init__(self, store: Store, seal: Seal, name: str) -> None:
        self.store, self.seal, self.name = store, seal, name

    def read(self, end: LogEnd) -> tuple[list[LogEntry], LogEnd] | None:
        """Read the verified records after an end; ``None`` if the log was rewritten since.

        Raises:
            ConfigurationError: they were written with another key.
        """
        last = end.at.last
        rows = self.store.read(self.name, after=max(0, last - 1))
        if last:
            known = next(rows, None)
            if known is None or known[0] != last or known[1][:_FRONT] != end.front:
                return None
            start = end.at
        else:
            start = self._start()
            first = next(rows, None)
            while first is not None and first[0] <= start.last:  # rows of a rewrite in progress
                first = next(rows, None)
            rows = chain([first] if first is not None else [], rows)
        found = []
        at, front = start, end.front
        for number, opened, row in verified(self.store, self.seal, self.name, rows, start):
            if opened is None:
                found.append(LogEntry(number, None))
            else:
                found.append(LogEntry(number, opened.header, opened.payload))
            if row:
                link = opened.link if opened is not None else None
                at, front = Position(number, link), row[:_FRONT]
        return found, LogEnd(at, front)

    def missing(self, end: LogEnd) -> int:
        """Return how many acknowledged records are gone from the end of the log."""
        marked = newest_mark(self.store, self.seal, self.name)
        gone = max(0, marked.last - end.at.last)
        other = is_another_history(self.store, self.seal, self.name, marked, end.at)
        return gone or (marked.last if other else 0)

    @contextmanager
    def owned(self) -> Iterator[int]:
        """Hold the lease of the log; gives its epoch.  Waits for other processes and threads.

        Raises:
            RunBusyError: another one has held it for a minute.
        """
        lease, until, pause = Lease(self.store, self.name), time.monotonic() + _PATIENCE, _SHORTEST
        while True:
            try:
                lease.acquire()
                break
            except RunBusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        try:
            yield lease.epoch
        finally:
            lease.release()

    def append(
        self,
        epoch: int,
        end: LogEnd,
        items: Sequence[tuple[list[Any], Data]],
        *,
        instead: bool = False,
    ) -> LogEnd:
        """Append records durably, in one transaction.

        Args:
            end: the current end of the log.
            items: headers and payloads.
            instead: they replace all earlier records.
        """
        at, front, sealed = end.at, end.front, list[tuple[int, Data]]()
        for header, payload in items:
            number = at.last + 1
            name = identity(self.name, number)
            data, link = self.seal.close(name, header, payload, at.link or NO_LINK)
            at, front = Position(number, link), bytes(data)[:_FRONT]
            sealed.append((number, data))
        put: dict[str, Data] = {}
        if instead:
            put[_START], _ = self.seal.close(
                f"{_START}/{self.name}", [end.at.last, (end.at.link or NO_LINK).hex()]
            )
        batch = Batch(
            tuple(sealed),
            put=put,
            prune=end.at.last if instead else 0,
            mark=mark(self.seal, self.name, at),
        )
        with Uninterrupted():
            self.store.write(self.name, epoch, batch)
        return LogEnd(at, front)

    def delete(self, epoch: int) -> None:
        """Delete all records."""
        with Uninterrupted():
            self.store.delete(self.name, epoch)

    def _start(self) -> Position:
        data = self.store.get(self.name, _START)
        if data is None:
            return Position()
        try:
            last, link = self.seal.open(f"{_START}/{self.name}", data).header
        except DamagedError:
            return Position()  # the missing records before the first one are reported as lost
        return Position(last, bytes.fromhex(link))
