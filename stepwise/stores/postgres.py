"""``postgresql://user@host/database``: the store for many machines, on a Postgres server.

A batch is one statement.  The statement changes the row of the lease, if the row still has the
writer's epoch and turn, and inserts everything else from that row.  Concurrent batches of several
runs of a process are one transaction.

A checkpoint has to survive the process, but need not be on a disk.  It survives once the operating
system has it, since the server executes a sent statement.  A checkpoint is therefore *posted*: sent
before the body of its step begins, without waiting for the answer.  The next batch of the run
follows on the same connection, and names the turn that the checkpoint has taken.  If that turn is
missing, the connection was lost, or the server crashed.  The checkpoint, which is kept until then,
is then written again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached, forget_in_child
from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores._group_commit import Wanted, for_several
from stepwise.stores._postgres_connections import (
    Connection,
    Connections,
    ServerFacts,
    Statement,
    channel,
    hashed,
    parsed,
    server_facts,
)
from stepwise.stores._postgres_presence import FACTS, HELD, Presence, ProcessFacts, is_dead
from stepwise.stores.base import Batch, Head, Owner, Words, to_bytes

__all__ = ["PostgresStore"]

R = TypeVar("R")

_TOGETHER = 16 << 20  # maximum size of a statement, in bytes
_FIRST_PAGES, _PAGE = (1, 32), 1000  # rows: many readers need only the first
_WHOLE = (4, 32)  # rows of a journal from its beginning; of many runs these are all
_WEIGHT = 4_000_000  # bytes after which a page of records ends
_PAGE_SECONDS = 2.0  # that a page waits for a server that is away
_RELEASE_SECONDS = 5.0  # to wait for the server when a lease is released
_TRIES = 20
_LARGEST_POSTED = 256 << 10  # maximum size of a posted batch, in bytes
_UNKNOWN = 0  # instead of the epoch of an acquisition without an answer
_EPOCHS = 10_000  # maximum number of runs whose epochs are kept in memory
_KEPT = 32 << 20  # bytes of a run's batches to keep until they are flushed
_MANY_KEPT = 1000  # batches of a run to keep until then


class _LeaseRow(NamedTuple):
    """A lease according to the server.

    Args:
        process: the current or last holder; ``None`` if the lease was released.
        lives: whether the lease has not run out, and nothing proves the death of the process.
        is_dead: whether the death of the process is proven.
    """

    epoch: int
    process: int | None
    owner: Owner | None
    lives: bool
    is_dead: bool


class _HeldLease:
    """A lease that this process holds.

    Attributes:
        turn: the number of the last batch; ``None`` while a write has no answer.
        unsure: whether a write failed, and may be done, or still be under way.
        unanswered: whether the last batch was posted, and has no answer so far.
        lock: held while a turn is begun.
        is_empty: whether the lease is new and nothing has been written.  There is nothing to read
            then, which saves a new run half of its requests.
    """

    __slots__ = (
        "_kept",
        "_size",
        "_until",
        "epoch",
        "is_empty",
        "lock",
        "owner",
        "run",
        "turn",
        "unanswered",
        "unsure",
    )

    def __init__(self, run: int, epoch: int, owner: Owner) -> None:
        self.run, self.epoch, self.owner = run, epoch, owner
        self.turn: int | None = 0
        self.is_empty = epoch == 1
        self.unanswered = self.unsure = False
        self.lock = threading.Lock()
        self._kept: list[_RunBatch] = []
        self._size = self._until = 0

    def written(self, batch: _RunBatch, *, flushed: bool, answered: bool = True) -> None:
        """Note that a batch was written or posted.

        Batches that a crash of the server or a lost connection could take back are kept.
        """
        if flushed or batch.size >= _KEPT:
            self._kept, self._size = [], 0
        if not flushed and batch.size < _KEPT:
            # Values may be views of buffers that the program changes.
            batch.records = {number: bytes(data) for number, data in batch.records.items()}
            batch.put = {name: bytes(data) for name, data in batch.put.items()}
            self._kept.append(batch)
            self._size += batch.size
            while self._size > _KEPT or len(self._kept) > _MANY_KEPT:
                self._size -= self._kept.pop(0).size
        self.turn = self._until = batch.turn + 1
        self.unsure, self.unanswered = False, not answered

    def skipped(self, turn: int) -> None:
        """Note that the server is durably at a turn, and no statement is under way."""
        self._kept, self._size = [], 0
        self.turn = self._until = turn
        self.unsure = self.unanswered = False

    def lost(self, turn: int) -> list[_RunBatch] | None:
        """Return the batches that a server at the given turn lacks.

        Returns:
            ``None`` if some of them are no longer kept.
        """
        until = self._until
        found = [each for each in self._kept if turn <= each.turn < until]
        return found if [each.turn for each in found] == [*range(turn, until)] else None


class _RunBatch:
    """The batch of one run, with its bytes collected, so that nothing raises during the sending.

    Attributes:
        turn: the number of the batch before it.
        sent: whether the server may have received it.
        error: the reason why it was not written.
        size: bytes.
    """

    __slots__ = ("batch", "error", "held", "put", "records", "run_id", "sent", "size", "turn")

    def __init__(self, run_id: str, held: _HeldLease, batch: Batch) -> None:
        self.run_id, self.held, self.batch = run_id, held, batch
        self.error: BaseException | None = None
        self.records = {number: data for number, data in batch.records if number > batch.prune}
        self.put = {name: batch.put[name] for name in batch.put}
        self.size = sum(map(len, self.records.values())) + sum(map(len, self.put.values()))
        if batch.head is not None:
            self.size += len(batch.head.data)
        self.turn, self.sent = 0, False


_Send = Callable[[Connection, str, int, list[_RunBatch]], set[int]]


# -- the store -------------------------------------------------------------------------------------


class PostgresStore:
    """A store of runs in a Postgres database, for any number of machines.

    Args:
        url: ``postgresql://user@host/database``, in the form of libpq.  stepwise's own parameters
            are ``schema`` (of the tables, ``stepwise``) and ``pool_size`` (maximum connections, 4;
            one more beats and listens).  ``lease_seconds`` (30) is how long a silent process keeps
            its runs; ``patience_seconds`` (60) is how long to wait for a server that went away.

        patience: seconds, instead of ``patience_seconds``.
        to_read: the server lets this object read only; see :meth:`for_pages`.

    Raises:
        ConfigurationError: the URL cannot be used as it is written.
    """

    persistent = True

    def __init__(self, url: str, *, patience: float = math.inf, to_read: bool = False) -> None:
        conninfo, self.url, options = parsed(url)
        seconds = min(patience, options.patience_seconds)
        self._options = options._replace(patience_seconds=seconds)
        self._given, self._schema = url, options.schema
        self._connections = Connections(conninfo, self.url, self._options, to_read=to_read)
        self._begin()
        forget_in_child(self)

    def for_pages(self, *, to_read: bool) -> PostgresStore:
        """Return a store for the pages of ``stepwise ui``: a reader does not wait for long."""
        return PostgresStore(self._given, patience=_PAGE_SECONDS, to_read=to_read)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _HeldLease] = {}
        self._acquiring: dict[str, Owner] = {}
        self._epochs: dict[str, int] = {}  # the newest known epochs
        self._to_release: dict[str, int] = {}  # epochs of leases that the server may still have
        self._presence = Presence(self._connections, self._options.lease_seconds, self._chores)

    # -- lease -----------------------------------------------------------------------------------

    def acquire(self, run_id: str, owner: Owner) -> int:
        with self._lock:
            held = self._held.get(run_id)
            mine = held.owner if held is not None else self._acquiring.get(run_id)
            if mine is not None:
                raise RunOwnedError(run_id=run_id, owner=mine)
            self._acquiring[run_id] = owner
            self._to_release.pop(run_id, None)
        try:
            me = self._presence.enter()
            taken = self._connections.use(lambda each: self._acquire(each, me, run_id, owner))
            self._held[run_id] = taken
            return taken.epoch
        except RunOwnedError:
            raise
        except BaseException:
            # The server may have granted the lease anyway, to a process that lives and beats.
            self._held.pop(run_id, None)
            self._to_release[run_id] = _UNKNOWN
            self._presence.wake()
            raise
        finally:
            self._acquiring.pop(run_id, None)

    def _acquire(self, connection: Connection, me: int, run_id: str, owner: Owner) -> _HeldLease:
        """Take the lease; each statement names the epoch that it ends.

        A statement of a broken connection that arrives late therefore takes nothing.
        """
        last, process, is_dead = self._epochs.get(run_id, 0), me, False
        for _ in range(_TRIES):
            # This process may have the lease without knowing, if an acquisition or a release got no
            # answer.
            row = connection.execute(
                self._acquisition,
                (hashed(run_id), last, process, is_dead, me, json.dumps(owner._asdict())),
                binary=True,
            ).fetchone()
            if row is not None:
                run, epoch = row
                if len(self._epochs) >= _EPOCHS:
                    self._epochs.clear()
                self._epochs[run_id] = epoch  # saves a request when the lease is taken again
                return _HeldLease(run, epoch, owner)
            found = self._look(connection, run_id)
            if found is not None:
                if found.process not in (None, me) and found.lives:
                    raise RunOwnedError(run_id=run_id, owner=found.owner)
                last, process, is_dead = found.epoch, found.process or me, found.is_dead
        raise RunOwnedError(run_id=run_id, owner=None)

    @cached
    def _acquisition(self) -> str:
        table = f"{self._schema}.leases"
        return (
            f"INSERT INTO {table} AS l (hash, epoch, turn, holder, owner) "
            "VALUES ($1, 1, 0, $5, $6) ON CONFLICT (hash) DO UPDATE SET epoch = l.epoch + 1, "
            "turn = 0, holder = excluded.holder, owner = excluded.owner "
            "WHERE l.epoch = $2 AND (l.holder IS NULL OR l.holder = $5 OR l.holder = $3 AND ($4 "
            f"OR NOT EXISTS (SELECT 1 FROM {self._schema}.processes p WHERE p.id = $3 AND {HELD})))"
            " RETURNING run, epoch"
        )

    def _look(self, connection: Connection, run_id: str) -> _LeaseRow | None:
        row = connection.execute(
            f"SELECT l.epoch, l.holder, l.owner, {HELD}, {FACTS} FROM {self._schema}.leases l "
            f"LEFT JOIN {self._schema}.processes p ON p.id = l.holder WHERE l.hash = $1",
            (hashed(run_id),),
        ).fetchone()
        if row is None:
            return None
        epoch, process, owner, is_held, *facts = row
        dead = bool(is_held) and is_dead(ProcessFacts(*facts))
        return _LeaseRow(epoch, process, _owner(owner), bool(is_held) and not dead, dead)

    def release(self, run_id: str, epoch: int) -> None:
        with contextlib.suppress(StoreError):  # as if the process had been killed earlier
            self._settle(run_id, _RELEASE_SECONDS)
        with self._lock:
            held = self._held.get(run_id)
            if held is None or held.epoch != epoch:
                return
            self._to_release[run_id] = epoch
            del self._held[run_id]
        self._release_all(run_id)

    def _release_all(self, *run_ids: str) -> None:
        try:
            self._connections.use(
                lambda each: self._chores(each, *run_ids), patience=_RELEASE_SECONDS
            )
        except StoreError:
            self._presence.wake()  # its thread retries

    def _chores(self, connection: Connection, *run_ids: str) -> None:
        """Release leases: of these runs, or all that could not be released before."""
        for run_id in run_ids or list(self._to_release):
            known = epoch = self._to_release.get(run_id)
            if epoch is None:
                continue
            if epoch == _UNKNOWN:
                found = self._look(connection, run_id)
                if run_id not in self._to_release:  # it may be acquired again, under a new epoch
                    continue
                known = found.epoch if found is not None else epoch
            connection.execute(
                f"UPDATE {self._schema}.leases SET holder = NULL, owner = NULL "
                "WHERE hash = $1 AND epoch = $2 AND holder = $3",
                (hashed(run_id), known, self._presence.id),
            )
            with self._lock:
                if self._to_release.get(run_id) == epoch:
                    del self._to_release[run_id]

    def owner(self, run_id: str) -> Owner | None:
        found = self._connections.use(lambda connection: self._look(connection, run_id))
        if found is None or not found.lives:
            return None
        mine = found.process == self._presence.id
        return None if mine and run_id not in self._held else found.owner

    def last_owner(self, run_id: str) -> Owner | None:
        """Return the process that took the lease and did not release it, even if it is gone."""
        found = self._connections.use(lambda connection: self._look(connection, run_id))
        return found.owner if found is not None else None

    # -- writing ---------------------------------------------------------------------------------

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        each = _RunBatch(run_id, self._checked(run_id, epoch), batch)
        if not self._post(each):
            self._write([each], _send_batches)
            if each.error is not None:
                raise each.error

    @for_several(write)
    def write_all(self, wanted: Sequence[Wanted]) -> Sequence[BaseException | None]:
        """Write a batch for each of several runs, in a reasonably small number of transactions."""
        found: list[_RunBatch | LeaseLostError] = []
        for run_id, epoch, batch in wanted:
            try:
                found.append(_RunBatch(run_id, self._checked(run_id, epoch), batch))
            except LeaseLostError as error:
                found.append(error)
        self._write_together([each for each in found if isinstance(each, _RunBatch)])
        return [each.error if isinstance(each, _RunBatch) else each for each in found]

    def _post(self, each: _RunBatch) -> bool:
        """Post a batch if it is a checkpoint; return whether it was sent."""
        held, batch = each.held, each.batch
        if (
            batch.durable
            or each.records
            or batch.head is not None
            or each.size > _LARGEST_POSTED
            or held.turn is None
        ):
            return False

        def send(connection: Connection) -> bool:
            if not connection.direct:
                return False
            # After any exception from here on, it is unknown whether the batch is written.
            each.turn, each.sent = held.turn or 0, True
            held.turn, held.unsure = None, True
            return _post_batch(connection, self._schema, self._presence.id, each)

        with Uninterrupted():
            if not self._connections.post(send):
                return False
            held.written(each, flushed=False, answered=False)
        return True

    def delete(self, run_id: str, epoch: int) -> None:
        each = _RunBatch(run_id, self._checked(run_id, epoch), Batch())
        self._write([each], _send_deletion)
        if each.error is not None:
            raise each.error

    def _checked(self, run_id: str, epoch: int) -> _HeldLease:
        held = self._held.get(run_id)
        if held is None or held.epoch != epoch:
            raise LeaseLostError(run_id=run_id)
        held.is_empty = False  # soon
        return held

    def _write_together(self, waiting: list[_RunBatch]) -> None:
        """Write the batches of several runs, as many in one statement as its size allows."""
        together: list[_RunBatch] = []
        size = 0
        for each in sorted(waiting, key=lambda each: each.held.run):
            if together and size + each.size > _TOGETHER:
                self._write(together, _send_batches)
                together, size = [], 0
            together.append(each)
            size += each.size
        if together:
            self._write(together, _send_batches)

    def _settle(self, run_id: str, patience: float | None = None) -> bool:
        """Make sure that posted batches are written; return whether there may be data to read."""
        held = self._held.get(run_id)
        if held is None:
            return True
        if held.unanswered:
            # If the lease was lost, the next write reports that.
            self._connections.use(lambda each: self._catch_up(each, held), patience=patience)
        return not held.is_empty

    def _write(self, batches: list[_RunBatch], send: _Send, patience: float | None = None) -> None:
        """Write batches with one statement; each batch that was not written gets its own error."""
        left = list(batches)
        try:
            try:
                self._connections.use(
                    lambda connection: self._try(connection, left, send),
                    patience=patience,
                    size=sum(each.size for each in batches),
                )
            finally:  # even if the query for the outcome failed
                for each in batches:
                    each.held.unsure = each.held.unsure or each.held.turn is None
        except StoreError as error:
            away = error.__cause__ is None or not isinstance(error.__cause__, psycopg.Error)
            for each in left:
                if away or len(batches) == 1:
                    each.error = StoreError(*error.args, path=error.path, errno=error.errno)
                else:  # one by one, so that no run gets the error of another run
                    each.sent = False
                    self._write([each], send)

    def _try(self, connection: Connection, left: list[_RunBatch], send: _Send) -> None:
        """Write the batches that are not written yet; called again after a lost connection."""
        me = self._presence.id
        if any(each.sent for each in left):
            self._resolve(connection, left)
        for each in left:
            if not each.sent:
                self._begin_turn(connection, each)
        for _ in range(_TRIES):
            left[:] = [each for each in left if each.error is None]
            if not left:
                return
            for each in left:
                each.sent, each.held.turn = True, None  # until there is an answer
            done = send(connection, self._schema, me, list(left))
            flushed = any(each.batch.durable for each in left)
            for each in left:
                if each.held.run in done:
                    each.held.written(each, flushed=flushed)
            left[:] = [each for each in left if each.held.run not in done]
            if left:  # another epoch, a first statement that arrived late, or a crash of the server
                self._resolve(connection, left)
        for each in left:
            each.error = LeaseLostError(run_id=each.run_id)
        left.clear()

    def _resolve(self, connection: Connection, left: list[_RunBatch]) -> None:
        """Find out the outcome of statements that got no answer, or changed nothing."""
        for each in [each for each in left if each.sent]:
            try:
                turn = self._catch_up(connection, each.held)
            except StoreError as error:
                each.error = error
                continue
            if turn is None:
                each.error = LeaseLostError(run_id=each.run_id)
            elif turn > each.turn:
                each.held.written(each, flushed=each.batch.durable)
                left.remove(each)

    def _catch_up(self, connection: Connection, held: _HeldLease) -> int | None:
        """Return the turn of a run on the server, once the server lacks nothing that was written.

        This waits for a server process that still executes a statement.  A statement that arrives
        even later finds another turn.

        Returns:
            ``None`` if the lease is lost.

        Raises:
            StoreError: the server lost batches that are no longer kept here.
        """
        me = self._presence.id
        for attempt in range(_TRIES):
            row = connection.execute(
                f"SELECT turn FROM {self._schema}.leases "
                "WHERE run = $1 AND epoch = $2 AND holder = $3 FOR UPDATE",
                (held.run, held.epoch, me),
            ).fetchone()
            if row is None:
                return None
            lost = held.lost(row[0])
            if lost is None and not attempt:
                continue  # another thread may have received an answer since
            if lost is None:
                raise StoreError(
                    f"the store {self.url}: its server lost what was written last to a run of this "
                    "process and was not flushed. Nothing that was durable is lost; run again",
                    path=self.url,
                    errno=errno.EIO,
                )
            if not lost:
                return int(row[0])
            for each in lost:
                if not _send_batches(connection, self._schema, me, [each]):
                    break  # the statement that was under way has arrived
        return None

    def _begin_turn(self, connection: Connection, each: _RunBatch) -> None:
        """Give a batch a turn that no statement under way can have."""
        if each.held.turn is None and not self._skip_turn(connection, each.held):
            each.error = LeaseLostError(run_id=each.run_id)
        each.turn = each.held.turn or 0

    def _skip_turn(self, connection: Connection, held: _HeldLease) -> bool:
        """Skip the turn of a failed write: if the write arrives late, it finds another turn."""
        with held.lock:
            for _ in range(_TRIES):
                if not held.unsure:  # or another thread has begun a write meanwhile
                    return True
                turn = self._catch_up(connection, held)
                if turn is None:
                    return False
                # It names the turn that it ends, or a late one would look like a batch of its turn.
                row = connection.execute(
                    f"UPDATE {self._schema}.leases SET turn = turn + 1 WHERE run = $1 "
                    "AND epoch = $2 AND holder = $3 AND turn = $4 RETURNING turn",
                    (held.run, held.epoch, self._presence.id, turn),
                ).fetchone()
                if row is not None:
                    held.skipped(row[0])
        return False

    # -- reading ---------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        if not self._settle(run_id):
            return
        held = self._held.get(run_id)
        if held is not None and held.unsure:
            # The reader decides by the result what was written, so nothing may arrive later.
            self._connections.use(lambda each: self._skip_turn(each, held))
        # The length of a value is known without reading it.
        sql = (
            "SELECT number, data FROM (SELECT number, data, sum(octet_length(data)) OVER "
            f"(ORDER BY number) AS weight FROM {self._schema}.records WHERE run = {self._run} "
            "AND number > $2 ORDER BY number LIMIT $3) AS page "
            f"WHERE weight - octet_length(data) < {_WEIGHT} ORDER BY number"
        )
        first = _FIRST_PAGES if after else _WHOLE
        yield from self._pages(
            lambda *cursor: self._rows(sql, hashed(run_id), *cursor), after, first
        )

    def get(self, run_id: str, name: str) -> bytes | None:
        if not self._settle(run_id):
            return None
        rows = self._rows(
            f"SELECT data FROM {self._schema}.objects WHERE run = {self._run} AND hash = $2",
            hashed(run_id), hashed(name),
        )  # fmt: skip
        return rows[0][0] if rows else None

    def names(self, run_id: str, prefix: str = "") -> list[str]:
        if not self._settle(run_id):
            return []
        start = to_bytes(prefix)
        rows = self._rows(
            f"SELECT name FROM {self._schema}.objects WHERE run = {self._run} "
            "AND substring(name FROM 1 FOR $3::integer) = $2",
            hashed(run_id), start, len(start),
        )  # fmt: skip
        return sorted(_to_text(name) for (name,) in rows)

    def head(self, run_id: str) -> Head | None:
        if not self._settle(run_id):
            return None
        rows = self._rows(f"{self._heads} WHERE run = {self._run}", hashed(run_id))
        return _head(*rows[0]) if rows else None

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        if workflow is None and not unfinished:
            sql = f"SELECT place, {_HEAD} FROM {self._schema}.runs WHERE place > $1 "
            sql += "ORDER BY place LIMIT $2"
            return itertools.starmap(_head, self._pages(lambda *at: self._rows(sql, *at), -1))
        which = " AND NOT finished AND due IS NULL" if unfinished else ""
        more = () if workflow is None else (hashed(workflow),)
        which += "" if workflow is None else " AND workflow = $3"
        return self._newest("run", which, more)

    def _newest(self, by: str, which: str, more: Sequence[Any]) -> Iterator[Head]:
        """Yield heads by falling ``run`` or ``place``, which is the cursor and so comes first."""
        sql = f"SELECT {by}, {_HEAD} FROM {self._schema}.runs WHERE {by} < $1{which} "
        sql += f"ORDER BY {by} DESC LIMIT $2"
        pages = self._pages(lambda *at: self._rows(sql, *at, *more), 1 << 62)
        return itertools.starmap(_head, pages)

    def newest_heads(
        self, *, unfinished: bool = False, words: Words = (), before: str = "", prefix: str = ""
    ) -> Iterator[Head]:
        """Yield the heads of all runs, or of all unfinished runs, the newest first."""
        numbers = itertools.count(3)
        has, texts = _having(words, numbers)
        more: list[Any] = [*texts]
        which = f"{' AND NOT finished AND due IS NULL' * unfinished}{has}"
        if before:
            run = f"(SELECT run FROM {self._schema}.leases WHERE hash = ${next(numbers)})"
            which += f" AND place < (SELECT place FROM {self._schema}.runs WHERE run = {run})"
            more.append(hashed(before))
        if prefix:
            start, length = next(numbers), next(numbers)
            which += f" AND substring(name FROM 1 FOR ${length}::integer) = ${start}"
            more += [to_bytes(prefix), len(to_bytes(prefix))]
        return self._newest("place", which, more)

    def due_heads(self, workflow: str) -> Iterator[Head]:
        """Yield the heads of a workflow's runs that are to begin, the earliest first."""

        def page(after: tuple[float, int], size: int) -> list[Any]:
            sql = (
                f"SELECT place, {_HEAD} FROM {self._schema}.runs WHERE workflow = $1 "
                "AND due IS NOT NULL AND (due, place) > ($2, $3) ORDER BY due, place LIMIT $4"
            )
            rows = self._rows(sql, hashed(workflow), *after, size)
            return [((row[-2], row[0]), *row[1:]) for row in rows]

        return itertools.starmap(_head, self._pages(page, (-math.inf, 0)))

    def first_due_heads(self) -> list[Head]:
        """Return the earliest head of each workflow's runs that are to begin."""
        found, workflow = list[Head](), ""
        sql = (
            f"SELECT workflow, {_HEAD} FROM {self._schema}.runs WHERE workflow > $1 "
            "AND due IS NOT NULL ORDER BY workflow, due, place LIMIT 1"
        )
        while rows := self._rows(sql, workflow):
            workflow, *head = rows[0]
            found.append(_head(workflow, *head))
        return found

    def count_heads(self, words: Words = ()) -> int:
        """Return the number of runs whose heads have these words, child runs included."""
        has, texts = _having(words, itertools.count(1))
        sql = f"SELECT count(*) FROM {self._schema}.runs WHERE TRUE{has}"
        return int(self._rows(sql, *texts)[0][0])

    def marks(self, run_id: str) -> list[bytes]:
        if not self._settle(run_id):
            return []
        rows = self._rows(
            f"SELECT mark, mark_before FROM {self._schema}.leases WHERE hash = $1",
            hashed(run_id),
        )
        return [mark for row in rows for mark in row if mark is not None]

    def changes(self, name: str) -> int | None:
        return self._presence.changes(name)

    def server_facts(self) -> ServerFacts:
        """Return the facts about the server, for ``stepwise doctor``."""
        return self._connections.use(server_facts)

    def compact(self) -> int:
        """Free the space of deleted rows for later rows; return the bytes that the disk got back.

        Rejected: ``VACUUM FULL``, which blocks every owner of a run for as long as it takes.
        """

        def squeeze(connection: Connection) -> int:
            before = self._size(connection)
            for table in ("records", "objects", "runs", "leases", "processes"):
                connection.until = None  # there is no time limit
                connection.execute(f"VACUUM (ANALYZE) {self._schema}.{table}")
            return max(0, before - self._size(connection))

        return self._connections.use(squeeze)

    def used(self, above: int) -> int:
        """Return the bytes of all data, without the space that deleted rows left.

        If the tables are not larger than ``above``, return their size: the rows are not read then.
        """
        size = self._connections.use(self._size)
        if size <= above:
            return size
        sums = " + ".join(
            f"(SELECT coalesce(sum(pg_column_size(data)), 0) FROM {self._schema}.{table})"
            for table in ("records", "objects", "runs")
        )
        return int(self._rows(f"SELECT ({sums})::bigint")[0][0])

    def _size(self, connection: Connection) -> int:
        row = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = to_regnamespace($1::text) AND relkind = 'r'",
            (self._schema,),
        ).fetchone()
        return int(row[0]) if row is not None else 0

    @property
    def _run(self) -> str:
        return f"(SELECT run FROM {self._schema}.leases WHERE hash = $1)"

    @property
    def _heads(self) -> str:
        return f"SELECT run, {_HEAD} FROM {self._schema}.runs"

    def _rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self._connections.use(
            lambda connection: connection.execute(sql, parameters, binary=True).fetchall()
        )

    def _pages(
        self,
        page: Callable[[Any, int], list[Any]],
        cursor: Any,
        first: tuple[int, ...] = _FIRST_PAGES,
    ) -> Iterator[Any]:
        """Yield rows, read page by page; nothing stays open between two pages."""
        for size in itertools.chain(first, itertools.repeat(_PAGE)):
            found = page(cursor, size)
            yield from found
            if len(found) < size and sum(len(row[-1]) for row in found) < _WEIGHT:
                return
            cursor = found[-1][0]

    def now(self) -> float:
        """Return the time of the server's clock, in seconds since 1970."""
        ((seconds,),) = self._rows("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(seconds)

    # -- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            self._to_release.update((run_id, held.epoch) for run_id, held in self._held.items())
            self._held.clear()
        if self._to_release:
            self._release_all()
        self._presence.close()
        self._connections.close()

    def forget(self) -> None:
        """Forget the parent's connections and leases in a forked child."""
        self._connections.abandon()
        self._begin()


_HEAD = "name, flow, finished, words, due, data"


def _having(words: Words, numbers: Iterator[int]) -> tuple[str, list[bytes]]:
    """Return conditions for heads that have these words, and the parameters of the conditions."""
    has = [" OR ".join(f"position(${next(numbers)}::bytea IN words) > 0" for _ in g) for g in words]
    texts = [to_bytes(text) for group in words for text in group]
    return "".join(f" AND ({each})" for each in has), texts


def _head(
    _: Any, name: bytes, flow: bytes, finished: bool, words: bytes, due: float | None, data: bytes
) -> Head:
    return Head(_to_text(name), _to_text(flow), finished, data, _to_text(words), due)


def _owner(text: str | None) -> Owner | None:
    with contextlib.suppress(ValueError, TypeError):
        return Owner(**json.loads(text or ""))
    return None


def _to_text(data: bytes) -> str:
    """Return the text of bytes from :func:`.base.to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


# -- one statement -------------------------------------------------------------------------------
#
# The text of a statement depends only on the tables that it changes, and on whether it changes one
# row in each.  It is made once, and the server plans it once.  Several rows are arrays, one for
# each column; one row is a list of parameters, which takes half the time.

_COLUMNS = {
    "records": "number bigint, data bytea",
    "objects": "hash bytea, name bytea, data bytea",
    "deleted": "hash bytea",
    "pruned": "number bigint",
    "runs": "name bytea, flow bytea, workflow bytea, finished boolean, data bytea, words bytea, "
    "due float8",
    "announced": "hash bytea",
}
_KEYS = {"records": "run, number", "objects": "run, hash", "runs": "run"}
_DELETIONS = {
    "deleted": ("objects", "t.hash = w.hash"),
    "pruned": ("records", "t.number <= w.number"),
}


def _send_batches(
    connection: Connection, schema: str, me: int, batches: list[_RunBatch]
) -> set[int]:
    """Write the batches of several runs in one transaction.

    Returns:
        the runs whose batch was written, since this process still holds their leases.
    """
    durable = any(each.batch.durable for each in batches)
    statements = [_statement(schema, me, each, durable) for each in batches]
    return {row[0] for row in connection.execute_all(statements)}


def _post_batch(connection: Connection, schema: str, me: int, batch: _RunBatch) -> bool:
    """Send a batch without waiting for the answer; return False behind a pooler."""
    if connection.direct:
        connection.post(_statement(schema, me, batch, batch.batch.durable))
    return connection.direct


def _statement(schema: str, me: int, each: _RunBatch, durable: bool) -> Statement:
    tables = {name: rows for name, rows in _rows_of(each).items() if rows}
    values: list[Any] = [me, each.held.run, each.held.epoch, each.turn, each.batch.mark]
    for rows in tables.values():
        values += rows[0] if len(rows) == 1 else map(list, zip(*rows, strict=True))
    shape = tuple((name, len(rows) == 1) for name, rows in tables.items())
    return _statement_text(schema, durable, shape), values


def _rows_of(each: _RunBatch) -> dict[str, list[Any]]:
    batch, head, removed = each.batch, each.batch.head, {*each.batch.delete} - each.put.keys()
    return {
        "records": [(number, bytes(data)) for number, data in each.records.items()],
        "objects": [(hashed(name), to_bytes(name), bytes(data)) for name, data in each.put.items()],
        "deleted": [(hashed(name),) for name in removed],
        "pruned": [(batch.prune,)] if batch.prune else [],
        "runs": [_head_row(head)] if head is not None else [],
        # Unlike a run's id, a name that is announced ends with a colon.
        "announced": [(hashed(each.run_id),)] if each.run_id.endswith(":") else [],
    }


def _head_row(head: Head) -> tuple[Any, ...]:
    name, flow = to_bytes(head.run_id), to_bytes(head.workflow)
    words = to_bytes(head.words)
    return name, flow, hashed(head.workflow), head.finished, head.data, words, head.due


@functools.lru_cache(maxsize=256)
def _statement_text(schema: str, durable: bool, tables: tuple[tuple[str, bool], ...]) -> str:
    """Return a statement of common table expressions, the first of which takes the turn.

    Args:
        tables: the tables to change, and whether one row in each.
    """
    held = (
        f"held AS (UPDATE {schema}.leases SET turn = turn + 1, "
        "mark_before = CASE WHEN $5::bytea = '' THEN mark_before ELSE mark END, "
        "mark = CASE WHEN $5::bytea = '' THEN mark ELSE $5::bytea END "
        "WHERE run = $2 AND epoch = $3 AND turn = $4 AND holder = $1 RETURNING run)"
    )
    ctes = [held]
    columns, end, numbers = "held.run", "held", itertools.count(6)
    for name, is_one in tables:
        names = [each.split()[0] for each in _COLUMNS[name].split(", ")]
        kinds = [each.split()[1] for each in _COLUMNS[name].split(", ")]
        given = ", ".join(f"${next(numbers)}::{kind}{'' if is_one else '[]'}" for kind in kinds)
        rows = f"(VALUES ({given}))" if is_one else f"unnest({given})"
        rows += f" AS w({', '.join(names)})"
        if name == "announced":
            end = f"held, {rows}"
            columns += f", pg_notify('{channel(schema)}', encode(w.hash, 'hex'))"
        elif name in _DELETIONS:
            table, which = _DELETIONS[name]
            ctes.append(
                f"{name} AS (DELETE FROM {schema}.{table} t USING held, {rows} "
                f"WHERE t.run = held.run AND {which})"
            )
        else:
            ctes.append(
                f"{name} AS (INSERT INTO {schema}.{name} AS t (run, {', '.join(names)}) "
                f"SELECT held.run, w.* FROM held, {rows} ON CONFLICT ({_KEYS[name]}) "
                f"DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in names)})"
            )
    if not durable:
        columns += ", set_config('synchronous_commit', 'off', true)"
    return f"WITH {', '.join(ctes)} SELECT {columns} FROM {end}"


def _send_deletion(
    connection: Connection, schema: str, me: int, batches: list[_RunBatch]
) -> set[int]:
    """Delete everything of a run except its lease."""
    (each,) = batches
    sent = (each.held.run, each.held.epoch, each.turn, me)
    return {row[0] for row in connection.execute(_deletion(schema), sent, binary=True)}


@functools.cache
def _deletion(schema: str) -> str:
    ctes = [
        f"{table} AS (DELETE FROM {schema}.{table} t USING held WHERE t.run = held.run)"
        for table in ("records", "objects", "runs")
    ]
    return (
        f"WITH held AS (UPDATE {schema}.leases SET turn = turn + 1, mark = NULL, "
        "mark_before = NULL WHERE run = $1 AND epoch = $2 AND turn = $3 AND holder = $4 "
        f"RETURNING run), {', '.join(ctes)} SELECT run FROM held"
    )
