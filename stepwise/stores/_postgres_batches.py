"""Batches as statements: one for what several runs of a process want written at once."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.group_commit import Share
from stepwise._values.buffers import Data, Pieces
from stepwise.stores import _postgres_quick as quick
from stepwise.stores._postgres_arrays import array
from stepwise.stores._postgres_connections import Connection
from stepwise.stores.base import Batch, Head, Owner

__all__ = [
    "PIECE",
    "HeldLease",
    "RunBatch",
    "channel",
    "hashed",
    "head_ref",
    "is_announced",
    "object_ref",
    "record_ref",
    "send_again",
    "send_batches",
    "send_deletion",
    "send_large",
    "statement_alone",
    "to_bytes",
    "to_text",
]

PIECE = 8 << 20
"""Bytes of a value that are written at once."""
_KEPT = 32 << 20  # bytes of a run's batches that are kept until they are flushed
_MANY_KEPT = 1000  # the same, batches
_SMALL = 1 << 20  # bytes of a value that goes with others in a batch that is too large for that


class HeldLease:
    """A lease that this process holds.

    Attributes:
        turn: the number of its last batch; ``None`` while a write has no answer.
        unsure: a write failed, and nobody knows whether it was done, or will be.
        large: the run has values in pieces.
        lock: held while a turn is begun.
        draft: its checkpoint that is on its way.
        is_empty: nobody had the lease before, and nothing has been written: there is nothing to
            read, which saves a new run half of its requests.
    """

    __slots__ = (
        "_kept",
        "_size",
        "_until",
        "draft",
        "epoch",
        "is_empty",
        "large",
        "lock",
        "owner",
        "run",
        "turn",
        "unsure",
    )

    def __init__(self, run: int, epoch: int, large: bool, owner: Owner) -> None:
        self.run, self.epoch, self.large, self.owner = run, epoch, large, owner
        self.turn: int | None = 0
        self.draft: RunBatch | None = None
        self.is_empty = epoch == 1
        self.unsure = False
        self.lock = threading.Lock()
        self._kept: list[RunBatch] = []
        self._size = self._until = 0

    def written(self, batch: RunBatch, *, flushed: bool) -> None:
        """Note that a batch was written.  What a crash of the server could lose is kept."""
        self.turn, self.unsure = batch.turn + 1, False
        if flushed or batch.size >= _KEPT:
            self.flushed()
        if not flushed:
            self._until = batch.turn + 1
        if not flushed and batch.size < _KEPT:
            # Values may be views of buffers that the program changes.
            batch.records = {number: bytes(data) for number, data in batch.records.items()}
            batch.put = {name: bytes(data) for name, data in batch.put.items()}
            self._kept.append(batch)
            self._size += batch.size
            while self._size > _KEPT or len(self._kept) > _MANY_KEPT:
                self._size -= self._kept.pop(0).size

    def flushed(self) -> None:
        """Note that nothing written so far can be lost."""
        self._kept, self._size, self._until = [], 0, 0

    @property
    def turn_unflushed(self) -> int:
        """The turn behind the last batch that a crash can take back, kept or not; 0 if none."""
        return self._until

    def lost(self, turn: int, until: int) -> list[RunBatch] | None:
        """Return the batches that a crash of the server took back; ``None`` if some are not kept.

        Args:
            turn: of the first one.
            until: the turn behind the last.
        """
        found = [each for each in self._kept if each.turn >= turn]
        return found if [each.turn for each in found] == [*range(turn, until)] else None


class RunBatch(Share):
    """The batch of one run, with its bytes collected: all that can raise, before anything is sent.

    Attributes:
        turn: the number of the batch before it.
        sent: the server may know it.
        size: bytes.
    """

    __slots__ = ("batch", "held", "put", "records", "run_id", "sent", "size", "turn")

    def __init__(self, run_id: str, held: HeldLease, batch: Batch) -> None:
        super().__init__()
        self.run_id, self.held, self.batch = run_id, held, batch
        self.records = {number: data for number, data in batch.records if number > batch.prune}
        self.put = {name: batch.put[name] for name in batch.put}
        self.size = sum(map(len, self.records.values())) + sum(map(len, self.put.values()))
        if batch.head is not None:
            self.size += len(batch.head.data)
        self.turn, self.sent = 0, False


# -- names ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def hashed(name: str) -> bytes:
    """Return the hash that replaces an id or a name, whatever its characters."""
    return hashlib.blake2b(to_bytes(name), digest_size=16).digest()


def to_bytes(text: str) -> bytes:
    """Return any text as bytes."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Return the text of bytes from :func:`to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def record_ref(number: int) -> bytes:
    """Return what names the pieces of a record."""
    return b"r" + number.to_bytes(8, "big")


def object_ref(name: str) -> bytes:
    """Return what names the pieces of an object."""
    return b"o" + hashed(name)


def head_ref() -> bytes:
    """Return what names the pieces of a head."""
    return b"h"


def channel(schema: str) -> str:
    """Return the channel on which the names that were written to are announced."""
    return f"stepwise_{schema}"


def is_announced(name: str) -> bool:
    """Return whether writes under a name are announced: it ends with a colon, as no run id does."""
    return name.endswith(":")


# -- one statement -------------------------------------------------------------------------------
#
# Its text depends on nothing but a *shape*: so it is made once, and the server plans it once.  Each
# part has rows, whose first column is the run.  With one run, they come without that column, and a
# single row comes as parameters of its own: half the time of an array.

_LEASES = "run bigint, epoch bigint, turn bigint, mark bytea, large boolean"
_HEAD = "name bytea, flow bytea, workflow bytea, finished boolean, size bigint, data bytea"
_COLUMNS = {
    "records": "number bigint, size bigint, data bytea",
    "objects": "hash bytea, name bytea, size bigint, data bytea",
    "deleted": "hash bytea",
    "pruned": "number bigint",
    "dropped": "first bytea, last bytea",
    "runs": _HEAD,
    "announced": "hash bytea",
}
_KEYS = {"records": "number", "objects": "hash", "runs": ""}
_DELETIONS = {
    "deleted": ("objects", "t.hash = w.hash"),
    "pruned": ("records", "t.number <= w.number"),
    "dropped": ("pieces", "t.ref >= w.first AND t.ref <= w.last"),
}


class _Shape(NamedTuple):
    """All that the text of a statement depends on.

    Args:
        alone: it is about one run.
        parts: those that have rows, and whether it is one row.
    """

    schema: str
    alone: bool
    durable: bool
    parts: tuple[tuple[str, bool], ...]


def send_batches(connection: Connection, schema: str, me: int, batches: list[RunBatch]) -> set[int]:
    """Write the batches of several runs in one statement.

    Returns:
        the runs whose batch was written: those whose lease this process still holds.
    """
    if not connection.direct:
        return _send(connection, schema, me, batches, PIECE)
    together = [each for each in batches if is_announced(each.run_id)]  # a notification is text
    done = _send(connection, schema, me, together, PIECE) if together else set()
    alone = [each for each in batches if each not in together]
    durable = any(each.batch.durable for each in alone)  # one transaction has one commit
    statements = [_statement(schema, me, [each], PIECE, durable) for each in alone]
    return done.union(quick.execute(connection, statements)) if statements else done


def statement_alone(schema: str, me: int, each: RunBatch) -> quick.Statement:
    """Return the statement of one batch."""
    return _statement(schema, me, [each], PIECE, each.batch.durable)


def _send(
    connection: Connection, schema: str, me: int, batches: list[RunBatch], most: int
) -> set[int]:
    """Write all of some batches but values of ``most`` bytes."""
    durable = any(each.batch.durable for each in batches)
    text, values = _statement(schema, me, batches, most, durable)
    return {row[0] for row in connection.execute(text, values, binary=True)}


def _statement(
    schema: str, me: int, batches: list[RunBatch], most: int, durable: bool
) -> quick.Statement:
    parts = {name: rows for name, rows in _parts(batches, most).items() if rows}
    alone = len(batches) == 1
    kinds = tuple((name, alone and len(rows) == 1) for name, rows in parts.items())
    leases = [
        (each.held.run, each.held.epoch, each.turn, each.batch.mark, each.size >= most)
        for each in batches
    ]
    values = [me, *(leases[0] if alone else _arrays(_LEASES, leases))]
    for name, is_one in kinds:
        if is_one:
            values += parts[name][0][1:]
        else:
            values += _arrays(f"run bigint, {_COLUMNS[name]}", parts[name])[alone:]
    return _text(_Shape(schema, alone, durable, kinds)), values


def _arrays(columns: str, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    kinds = [each.split()[1] for each in columns.split(", ")]
    return [
        array(kind, list(each)) for kind, each in zip(kinds, zip(*rows, strict=True), strict=True)
    ]


def _parts(batches: list[RunBatch], most: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each part."""
    parts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _COLUMNS}
    for each in batches:
        run, batch = each.held.run, each.batch
        for number, data in each.records.items():
            parts["records"].append((run, number, *_value(data, most)))
        for name, data in each.put.items():
            parts["objects"].append((run, hashed(name), to_bytes(name), *_value(data, most)))
        for name in batch.delete:
            if name not in each.put:
                parts["deleted"].append((run, hashed(name)))
        if batch.prune:
            parts["pruned"].append((run, batch.prune))
        if each.held.large:
            parts["dropped"] += ((run, *refs) for refs in _replaced(each))
        if batch.head is not None:
            parts["runs"].append((run, *_head_row(batch.head), *_value(batch.head.data, most)))
        if is_announced(each.run_id):
            parts["announced"].append((run, hashed(each.run_id)))
    return parts


def _head_row(head: Head) -> tuple[bytes, bytes, bytes, bool]:
    name, flow = to_bytes(head.run_id), to_bytes(head.workflow)
    return name, flow, hashed(head.workflow), head.finished


def _value(data: Data, most: int) -> tuple[int | None, bytes | None]:
    """Return the columns of a value: its bytes, or the size of what lies in pieces."""
    return (None, bytes(data)) if len(data) < most else (len(data), None)


def _replaced(each: RunBatch) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first and the last reference of pieces whose values are no more."""
    if each.batch.prune:
        yield record_ref(0), record_ref(each.batch.prune)
    refs = [*map(record_ref, each.records), *map(object_ref, {*each.put, *each.batch.delete})]
    if each.batch.head is not None:
        refs.append(head_ref())
    yield from zip(refs, refs, strict=True)


@functools.lru_cache(maxsize=256)
def _text(shape: _Shape) -> str:
    """Return a statement: common table expressions, of which the first one takes the turn."""
    schema, alone, durable, parts = shape
    numbers = itertools.count(2)
    rows = _rows(_LEASES, numbers, alone)
    held = (
        f"held AS (UPDATE {schema}.leases l SET turn = l.turn + 1, large = l.large OR w.large, "
        "mark_before = CASE WHEN w.mark = '' THEN l.mark_before ELSE l.mark END, "
        "mark = CASE WHEN w.mark = '' THEN l.mark ELSE w.mark END "
        f"FROM {rows} WHERE l.run = w.run AND l.epoch = w.epoch AND l.turn = w.turn "
        "AND l.holder = $1 RETURNING l.run)"
    )
    ctes = [held]
    columns, end = "held.run", "held"
    for name, is_one in parts:
        own = _COLUMNS[name] if alone else f"run bigint, {_COLUMNS[name]}"
        rows = f"{_rows(own, numbers, is_one)} ON {'true' if alone else 'w.run = held.run'}"
        if name == "announced":
            end = f"held LEFT JOIN {rows}"
            notify = f"pg_notify('{channel(schema)}', encode(w.hash, 'hex'))"
            columns += f", CASE WHEN w.hash IS NOT NULL THEN {notify} END"
        elif name in _DELETIONS:
            table, which = _DELETIONS[name]
            ctes.append(
                f"{name} AS (DELETE FROM {schema}.{table} t USING held JOIN {rows} "
                f"WHERE t.run = held.run AND {which})"
            )
        else:
            ctes.append(f"{name} AS ({_upsert(schema, name, rows)})")
    if not durable:
        columns += ", set_config('synchronous_commit', 'off', true)"
    return f"WITH {', '.join(ctes)} SELECT {columns} FROM {end}"


def _rows(columns: str, numbers: Iterator[int], is_one: bool) -> str:
    """Return the parameters of some rows as a table ``w``."""
    pairs = [each.split() for each in columns.split(", ")]
    names = ", ".join(name for name, _ in pairs)
    if is_one:
        values = ", ".join(f"${next(numbers)}::{kind}" for _, kind in pairs)
        return f"(VALUES ({values})) AS w({names})"
    arrays = ", ".join(f"${next(numbers)}::{kind}[]" for _, kind in pairs)
    return f"unnest({arrays}) AS w({names})"


def _upsert(schema: str, table: str, rows: str) -> str:
    names = [each.split()[0] for each in _COLUMNS[table].split(", ")]
    key = _KEYS[table]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != key)
    return (
        f"INSERT INTO {schema}.{table} AS t (run, {', '.join(names)}) "
        f"SELECT held.run, {', '.join(f'w.{name}' for name in names)} FROM held JOIN {rows} "
        f"ON CONFLICT (run{key and f', {key}'}) DO UPDATE SET {changes}"
    )


# -- more than one -------------------------------------------------------------------------------


class _UnheldError(Exception):
    """The lease was lost, so the transaction is rolled back."""


def send_large(connection: Connection, schema: str, me: int, batches: list[RunBatch]) -> set[int]:
    """Write the batch of a run with large values: in one transaction, piece by piece."""
    (each,) = batches
    each.held.large = True  # so pieces of earlier values are deleted
    try:
        with connection.transaction():
            done = _send(connection, schema, me, batches, _SMALL)
            if not done:
                raise _UnheldError  # noqa: TRY301 -- rolls back
            sql = f"INSERT INTO {schema}.pieces (run, ref, part, data) VALUES ($1, $2, $3, $4)"
            for ref, data in _large_values(each):
                for part, piece in enumerate(_pieces(data)):
                    connection.execute(sql, (each.held.run, ref, part, piece))
    except _UnheldError:
        return set()
    return done


def send_again(connection: Connection, schema: str, me: int, batch: RunBatch) -> bool:
    """Write a batch that a crash of the server took back; return whether the lease is held."""
    send = send_large if batch.size >= PIECE else send_batches
    return bool(send(connection, schema, me, [batch]))


def _large_values(each: RunBatch) -> Iterator[tuple[bytes, Data]]:
    values: Iterable[tuple[bytes, Data]] = (
        *((record_ref(number), data) for number, data in each.records.items()),
        *((object_ref(name), data) for name, data in each.put.items()),
    )
    if each.batch.head is not None:
        values = (*values, (head_ref(), each.batch.head.data))
    return ((ref, data) for ref, data in values if len(data) >= _SMALL)


def _pieces(data: Data) -> Iterator[bytes | memoryview]:
    """Cut a value; what is long enough is not copied."""
    for view in data.views if isinstance(data, Pieces) else (memoryview(data),):
        flat = view.cast("B") if view.nbytes else view
        for start in range(0, flat.nbytes, PIECE):
            yield flat[start : start + PIECE]


def send_deletion(
    connection: Connection, schema: str, me: int, batches: list[RunBatch]
) -> set[int]:
    """Delete all of a run but its lease."""
    (each,) = batches
    sent = (each.held.run, each.held.epoch, each.turn, me)
    return {row[0] for row in connection.execute(_deletion(schema), sent, binary=True)}


@functools.cache
def _deletion(schema: str) -> str:
    tables = ("records", "objects", "pieces", "runs")
    ctes = [
        f"{table} AS (DELETE FROM {schema}.{table} t USING held WHERE t.run = held.run)"
        for table in tables
    ]
    return (
        f"WITH held AS (UPDATE {schema}.leases SET turn = turn + 1, large = false, mark = NULL, "
        "mark_before = NULL WHERE run = $1 AND epoch = $2 AND turn = $3 AND holder = $4 "
        f"RETURNING run), {', '.join(ctes)} SELECT run FROM held"
    )
