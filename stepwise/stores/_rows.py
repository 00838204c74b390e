"""The tables of a database in a folder: rows of leases, records, objects and heads."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from stepwise._values.buffers import Data
from stepwise.stores._values import Values
from stepwise.stores.base import Batch, Head

__all__ = ["Page", "Rows", "put_batch", "put_objects"]

R = TypeVar("R")

Page = list[tuple[Any, R | None]]
"""Some rows in the order of their cursors; ``None`` for a row damaged beyond recognition."""


class Rows(Protocol):
    """The open database of a :class:`FolderStore`.  It writes in transactions only.

    What it reads page by page begins behind a cursor, which a page before it gave.
    """

    values: Values

    def begin(self, durable: bool) -> None: ...
    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...

    def free(self) -> int:
        """Bytes of the database that hold nothing."""

    def compact(self) -> int:
        """Return free pages to the disk, outside of a transaction; return the number of bytes."""

    def lease(self, run_id: str) -> bytes | None: ...
    def put_lease(self, run_id: str, row: bytes) -> None: ...

    def put_record(self, run_id: str, number: int, data: Data) -> None: ...
    def prune(self, run_id: str, number: int) -> None: ...
    def records(
        self, run_id: str, after: int, cursor: Any, size: int
    ) -> Page[tuple[int, bytes]]: ...

    def put_object(self, run_id: str, name: str, data: Data) -> None: ...
    def delete_object(self, run_id: str, name: str) -> None: ...
    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        """Let a new object take the row of an old one, if both are small; whether it did."""

    def get_object(self, run_id: str, name: str) -> bytes | None: ...
    def names(self, run_id: str, prefix: str) -> list[str]: ...

    def put_head(self, head: Head) -> None: ...
    def head(self, run_id: str) -> Head | None: ...
    def heads(
        self, workflow: str | None, unfinished: bool, cursor: Any, size: int
    ) -> Page[Head]: ...

    def forget(self, run_id: str) -> None:
        """Delete records, objects and head of a run."""


def put_batch(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write all of a batch but its mark."""
    for number, data in batch.records:
        rows.put_record(run_id, number, data)
    if batch.put or batch.delete:
        put_objects(rows, run_id, batch)
    if batch.prune:
        rows.prune(run_id, batch.prune)
    if batch.head is not None:
        rows.put_head(batch.head)


def put_objects(rows: Rows, run_id: str, batch: Batch) -> None:
    """Write and delete the objects of a batch."""
    old = list(batch.delete)
    for name, data in batch.put.items():
        # One statement replaces a deletion and an insertion.  Objects of one kind have about the
        # same size; in the row of a smaller object the new one would split the page.
        kind, _, _ = name.partition("/")
        like = [each for each in old if each.startswith(kind) and each not in batch.put]
        if like and rows.replace_object(run_id, like[-1], name, data):
            old.remove(like[-1])
        else:
            rows.put_object(run_id, name, data)
    for name in old:
        rows.delete_object(run_id, name)
