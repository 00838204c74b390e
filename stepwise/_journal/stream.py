"""The log of a run's streams: what the run says while it works, in batches, sealed and chained.

All streams of a run share one log beside its journal, named ``stream:RUN:``.  The colon at its end
makes a store on a server announce each write (see ``stores.base``).  The owner of the run holds the
lease of the log from its first emission on, so that a stale owner is fenced there, too.  A record
is a *batch* of operations in the order in which they happened:

- ``+``: the stream says items;
- ``-``: the items from an offset on are withdrawn; the operation takes one offset itself;
- ``=``: items that were withdrawn only because of their place are said again, by reference;
- ``.``: the run has ended, so readers look at its journal.

An offset is given once and never changes its meaning.  So a reader that returns with any offset
can be told exactly what it lacks, and what it has to forget.  The header of a batch holds the next
offset of each stream before it, so that a reader finds an offset by halving, and the number of the
last batch that withdraws something, so that a reader learns all withdrawals without reading items.

``stepwise prune --streams`` rewrites the log: a batch without operations replaces all others, so
that offsets go on from where they were.  A run that is executed again then withdraws those it says
again.

Rejected:

- Records of the journal: a resume and a listing would read a stream of 100 MB.
- Objects of the run, one for each batch, written with the outcome of a step in one transaction:
  each reader would need a request for each batch, and a store would search 100,000 names at each
  resume.  Instead, a batch is written before the outcome that depends on it; an emission without
  the outcome of its step is withdrawn on resume anyway.
- Deleting withdrawn items: an offset would get a second meaning, which no reader could notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from stepwise._journal.journal import Position, identity, marker, newest_mark, stream_name, verified
from stepwise._journal.lease import Lease
from stepwise._journal.logs import LogEnd, SealedLog, start_of_log
from stepwise._journal.seal import NO_LINK, DamagedError, Envelope, Seal
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._values.unpickling import Data
from stepwise.stores import Batch, Store

SAID, WITHDRAWN, AGAIN, ENDED = "+", "-", "=", "."
SKIPPED = 1 << 20
"""The offsets that a lost batch may have had."""


class StreamBatch(NamedTuple):
    """One record of the log.

    Args:
        number, link: of the record.
        firsts: the next offset of each stream before the batch, by name.
        withdrew: the number of the last batch before this one that withdraws something, or 0.
        ops: the operations.
        payload: the items, one after the other.
    """

    number: int
    link: bytes
    firsts: dict[str, int]
    withdrew: int
    ops: list[list[Any]]
    payload: bytes

    def placed(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield each operation with the first offset that it takes."""
        following = dict(self.firsts)
        for op in self.ops:
            first = following.get(op[1], 0) if op[1:] else 0
            yield first, op
            if op[1:]:
                following[op[1]] = first + length(op)

    def after(self) -> dict[str, int]:
        """Return the next offset of each stream after the batch."""
        return dict(self.firsts) | {op[1]: n + length(op) for n, op in self.placed() if op[1:]}

    @property
    def last_withdrawing(self) -> int:
        """The number of the last batch up to this one that withdraws something, or 0."""
        return self.number if any(op[0] == WITHDRAWN for op in self.ops) else self.withdrew


def length(op: list[Any]) -> int:
    """Return how many offsets an operation takes."""
    return 1 if op[0] == WITHDRAWN else sum(count for count, *_ in op[2])


def items_of(batch: StreamBatch) -> Iterator[tuple[int, list[Any], list[tuple[Any, bytes]]]]:
    """Yield each operation: its first offset, itself, and its items as forms with bytes."""
    at = 0
    for first, op in batch.placed():
        found = []
        for each in op[3] if op[0] == SAID else ():
            size, form = (each, TEXT) if isinstance(each, int) else each
            found.append((form, batch.payload[at : at + size]))
            at += size
        yield first, op, found


TEXT, PLAIN = "text", "plain"
"""The forms of texts, and of plain data as JSON; a value of another form is for the codec."""


class StreamLog:
    """The log of a run's streams, as any process reads it."""

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        self.store, self.seal, self.run_id = store, seal, run_id
        self.name = stream_name(run_id)

    def batches(
        self, after: int = 0, link: bytes | None = NO_LINK
    ) -> Iterator[tuple[int, StreamBatch | None]]:
        """Yield the numbers and batches after a record; ``None`` for one that is lost or damaged.

        Args:
            link: the link to that record; ``None`` if it is not known.
        """
        start, rows = Position(after, link), self.store.read(self.name, after=after)
        for first in rows:
            if first[0] > after + 1:
                start = max(start, self.start(), key=lambda at: at.last)
            rows = chain([first], rows)
            break
        for number, opened, _ in verified(self.store, self.seal, self.name, rows, start):
            yield number, _batch(number, opened) if opened is not None else None

    def batch(self, number: int) -> StreamBatch | None:
        """Return the first batch from a number on that verifies, or ``None`` if there is none."""
        for found, data in self.store.read(self.name, after=number - 1):
            with suppress(DamagedError):  # who reads across it gets an error
                return _batch(found, self.seal.open(identity(self.name, found), data))
        return None

    def newest(self) -> StreamBatch | None:
        """Return the newest batch, which is found by halving."""
        there, beyond = 0, 1
        found = None
        while (batch := self.batch(beyond)) is not None:
            found, there, beyond = batch, batch.number, 2 * batch.number
        while there + 1 < beyond:
            middle = (there + beyond) // 2
            batch = self.batch(middle)
            if batch is None:
                beyond = middle
            else:
                found, there = batch, batch.number
        return found

    def acknowledged(self) -> int:
        """Return the number of the newest acknowledged batch.

        Whoever reads without the lease asks for it first: others may write in between.
        """
        return newest_mark(self.store, self.seal, self.name).last

    def start(self) -> Position:
        """Return the position after which the log begins."""
        return start_of_log(self.store, self.seal, self.name)

    def holds(self, last: int, link: str) -> bool:
        """Return whether the log has the record with this number and link, or has deleted it."""
        if last <= self.start().last:
            return True
        batch = self.batch(last)
        return batch is not None and batch.number == last and batch.link.hex() == link

    def has_items(self) -> bool:
        """Return whether there is something that :meth:`empty` would delete."""
        return any(batch is None or batch.ops for _, batch in self.batches())

    def empty(self) -> None:
        """Delete all items, and keep the next offset of each stream.

        The caller holds the lease of the run.
        """
        log, at, lost, firsts = SealedLog(self.store, self.seal, self.name), Position(), 0, {}
        with log.owned() as epoch:
            for number, batch in self.batches():
                if batch is None:
                    at, lost = Position(number, None), lost + 1
                else:
                    at, lost, firsts = Position(number, batch.link), 0, batch.after()
            for number in range(at.last + 1, self.acknowledged() + 1):
                at, lost = Position(number, None), lost + 1
            firsts = {name: following + SKIPPED * lost for name, following in firsts.items()}
            log.append(epoch, LogEnd(at), [([firsts, 0, []], b"")], instead=True)


def _batch(number: int, opened: Envelope) -> StreamBatch:
    firsts, withdrew, ops = opened.header
    return StreamBatch(number, opened.link, firsts, withdrew, ops, opened.payload)


class StreamWriter(StreamLog):
    """The log of a run's streams, for the run's only owner; not safe for concurrent threads.

    Args:
        fsync: True if what was written must survive a power cut.

    Attributes:
        at: the end of the log.
        withdrew: the number of the last batch that withdraws something, or 0.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str, *, fsync: bool) -> None:
        super().__init__(store, seal, run_id)
        self.at, self.withdrew = Position(), 0
        self._fsync = fsync
        self._mark = marker(seal, self.name)
        self._lease = Lease(store, self.name)
        self._unsure: tuple[Batch, Position] | None = None

    def acquire(self) -> None:
        """Take the lease of the log, unless it is held."""
        if not self._lease.epoch:
            self._lease.acquire(child=True)

    def release(self) -> None:
        """Release the lease of the log."""
        self._lease.release()

    def prepare(
        self, firsts: dict[str, int], ops: list[list[Any]], payload: Data, *, durable: bool
    ) -> None:
        """Seal a batch, which :meth:`settle` writes.

        If the write fails, its outcome is unknown.  The batch is kept, and the next :meth:`settle`
        writes the same bytes again, which is no second write.
        """
        number, link, *_ = self.at
        name = identity(self.name, number + 1)
        data, link = self.seal.close(name, [firsts, self.withdrew, ops], payload, link or NO_LINK)
        at = Position(number + 1, link)
        batch = Batch(((number + 1, data),), mark=self._mark(at), durable=durable and self._fsync)
        self._unsure = batch, at
        if any(op[0] == WITHDRAWN for op in ops):
            self.withdrew = number + 1

    @property
    def is_unsure(self) -> bool:
        """True if a batch waits, since its write failed or was not tried yet."""
        return self._unsure is not None

    def settle(self) -> None:
        """Write the prepared batch, if there is one."""
        if self._unsure is not None:
            batch, at = self._unsure
            self.acquire()
            with Uninterrupted():
                self.store.write(self.name, self._lease.epoch, batch)
            self.at, self._unsure = at, None
