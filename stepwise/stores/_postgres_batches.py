"""Batches as SQL statements, one for each run; the batches of several runs are one transaction."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from typing import Any

from stepwise.stores._postgres_connections import Connection, Statement
from stepwise.stores.base import Batch, Head, Owner, to_bytes

_KEPT = 32 << 20  # bytes of a run's batches to keep until they are flushed
_MANY_KEPT = 1000  # batches of a run to keep until then


class HeldLease:
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
        self._kept: list[RunBatch] = []
        self._size = self._until = 0

    def written(self, batch: RunBatch, *, flushed: bool, answered: bool = True) -> None:
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

    def lost(self, turn: int) -> list[RunBatch] | None:
        """Return the batches that a server at the given turn lacks.

        Returns:
            ``None`` if some of them are no longer kept.
        """
        until = self._until
        found = [each for each in self._kept if turn <= each.turn < until]
        return found if [each.turn for each in found] == [*range(turn, until)] else None


class RunBatch:
    """The batch of one run, with its bytes collected, so that nothing raises during the sending.

    Attributes:
        turn: the number of the batch before it.
        sent: whether the server may have received it.
        error: the reason why it was not written.
        size: bytes.
    """

    __slots__ = ("batch", "error", "held", "put", "records", "run_id", "sent", "size", "turn")

    def __init__(self, run_id: str, held: HeldLease, batch: Batch) -> None:
        self.run_id, self.held, self.batch = run_id, held, batch
        self.error: BaseException | None = None
        self.records = {number: data for number, data in batch.records if number > batch.prune}
        self.put = {name: batch.put[name] for name in batch.put}
        self.size = sum(map(len, self.records.values())) + sum(map(len, self.put.values()))
        if batch.head is not None:
            self.size += len(batch.head.data)
        self.turn, self.sent = 0, False


# -- names ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def hashed(name: str) -> bytes:
    """Return the hash that replaces an id or a name, with any characters."""
    return hashlib.blake2b(to_bytes(name), digest_size=16).digest()


def to_text(data: bytes) -> str:
    """Return the text of bytes from :func:`.base.to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def channel(schema: str) -> str:
    """Return the channel that announces the names of writes."""
    return f"stepwise_{schema}"


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


def send_batches(connection: Connection, schema: str, me: int, batches: list[RunBatch]) -> set[int]:
    """Write the batches of several runs in one transaction.

    Returns:
        the runs whose batch was written, since this process still holds their leases.
    """
    durable = any(each.batch.durable for each in batches)
    statements = [_statement(schema, me, each, durable) for each in batches]
    return {row[0] for row in connection.execute_all(statements)}


def post_batch(connection: Connection, schema: str, me: int, batch: RunBatch) -> bool:
    """Send a batch without waiting for the answer; return False behind a pooler."""
    if connection.direct:
        connection.post(_statement(schema, me, batch, batch.batch.durable))
    return connection.direct


def _statement(schema: str, me: int, each: RunBatch, durable: bool) -> Statement:
    tables = {name: rows for name, rows in _rows(each).items() if rows}
    values: list[Any] = [me, each.held.run, each.held.epoch, each.turn, each.batch.mark]
    for rows in tables.values():
        values += rows[0] if len(rows) == 1 else map(list, zip(*rows, strict=True))
    shape = tuple((name, len(rows) == 1) for name, rows in tables.items())
    return _text(schema, durable, shape), values


def _rows(each: RunBatch) -> dict[str, list[Any]]:
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
def _text(schema: str, durable: bool, tables: tuple[tuple[str, bool], ...]) -> str:
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


def send_deletion(
    connection: Connection, schema: str, me: int, batches: list[RunBatch]
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
