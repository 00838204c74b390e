"""``memory:``: a store that ends with the process, for tests and for runs not worth keeping."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepwise._runtime.forks import forget_in_child
from stepwise.errors import LeaseLostError, RunOwnedError
from stepwise.stores._group_commit import error_of, for_several
from stepwise.stores.base import Batch, Head, Owner, Words, has_words

__all__ = ["MemoryStore"]


@dataclass
class _StoredRun:
    records: dict[int, bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    head: Head | None = None
    epoch: int = 0
    owner: Owner | None = None
    place: int = 0  # among the runs, in the order in which they began


class MemoryStore:
    """A store that keeps runs in dictionaries.

    Args:
        name: the part of the URL after ``memory:``; stores with different names share nothing.
    """

    persistent = False

    def __init__(self, name: str = "") -> None:
        self.url = f"memory:{name}"
        self._lock = threading.RLock()
        forget_in_child(self)
        self._runs: dict[str, _StoredRun] = {}
        self._places = itertools.count(1)

    def acquire(self, run_id: str, owner: Owner) -> int:
        with self._lock:
            run = self._runs.setdefault(run_id, _StoredRun())
            if run.owner is not None:
                raise RunOwnedError(run_id=run_id, owner=run.owner)
            run.epoch += 1
            run.owner = owner
            return run.epoch

    def release(self, run_id: str, epoch: int) -> None:
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None and run.epoch == epoch:
                run.owner = None

    def owner(self, run_id: str) -> Owner | None:
        with self._lock:
            run = self._runs.get(run_id)
            return run.owner if run is not None else None

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        with self._lock:
            run = self._held(run_id, epoch)
            records = {number: bytes(data) for number, data in batch.records}  # all that can raise
            objects = {name: bytes(data) for name, data in batch.put.items()}
            run.records.update(records)
            run.objects.update(objects)
            for name in batch.delete:
                run.objects.pop(name, None)
            if batch.prune:
                run.records = {n: data for n, data in run.records.items() if n > batch.prune}
            if batch.head is not None:
                run.place = run.place or next(self._places)
                run.head = batch.head

    @for_several(write)
    def write_all(self, wanted: Sequence[tuple[str, int, Batch]]) -> Sequence[BaseException | None]:
        """Write a batch for each of several runs; return the outcome of each instead of raising."""
        return [error_of(self.write, *each) for each in wanted]

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        with self._lock:
            run = self._runs.get(run_id, _StoredRun())
            return iter(sorted(item for item in run.records.items() if item[0] > after))

    def get(self, run_id: str, name: str) -> bytes | None:
        with self._lock:
            return self._runs.get(run_id, _StoredRun()).objects.get(name)

    def names(self, run_id: str, prefix: str = "") -> list[str]:
        with self._lock:
            objects = self._runs.get(run_id, _StoredRun()).objects
            return sorted(name for name in objects if name.startswith(prefix))

    def head(self, run_id: str) -> Head | None:
        with self._lock:
            return self._runs.get(run_id, _StoredRun()).head

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        return (
            head
            for head in self._heads()
            if workflow in (None, head.workflow) and not (unfinished and _is_not_open(head))
        )

    def _heads(self) -> list[Head]:
        """Return all heads, of the oldest run first."""
        with self._lock:
            runs = sorted(self._runs.values(), key=lambda run: run.place)
            return [run.head for run in runs if run.head is not None]

    def newest_heads(
        self, *, unfinished: bool = False, words: Words = (), before: str = "", prefix: str = ""
    ) -> Iterator[Head]:
        """Yield the heads of all runs, or of all unfinished runs, the newest first."""
        heads = self._heads()
        if before:
            ids = [head.run_id for head in heads]
            heads = heads[: ids.index(before)] if before in ids else []
        return (
            head
            for head in reversed(heads)
            if not (unfinished and _is_not_open(head))
            and has_words(head, words)
            and head.run_id.startswith(prefix)
        )

    def due_heads(self, workflow: str) -> Iterator[Head]:
        """Yield the heads of a workflow's runs that are to begin, the earliest first."""
        due = ((head.due, head) for head in self._heads() if head.workflow == workflow)
        found = [(at, head) for at, head in due if at is not None]
        return (head for _, head in sorted(found, key=lambda each: each[0]))

    def first_due_heads(self) -> list[Head]:
        """Return the earliest head of each workflow's runs that are to begin."""
        with self._lock:
            heads = [run.head for run in self._runs.values() if run.head is not None]
        workflows = dict.fromkeys(head.workflow for head in heads if head.due is not None)
        return [next(self.due_heads(workflow)) for workflow in workflows]

    def count_heads(self, words: Words = ()) -> int:
        """Return the number of runs whose heads have these words, child runs included."""
        return sum(has_words(head, words) for head in self._heads())

    def marks(self, run_id: str) -> list[bytes]:
        return []  # marks end with their runs

    def delete(self, run_id: str, epoch: int) -> None:
        with self._lock:
            run = self._held(run_id, epoch)
            self._runs[run_id] = _StoredRun(epoch=run.epoch, owner=run.owner)

    def close(self) -> None:
        with self._lock:
            self._runs.clear()

    def forget(self) -> None:
        """Forget the lock in a forked child: a thread that the child lacks may hold it."""
        self._lock = threading.RLock()

    def _held(self, run_id: str, epoch: int) -> _StoredRun:
        run = self._runs.get(run_id)
        if run is None or run.epoch != epoch or run.owner is None:
            raise LeaseLostError(run_id=run_id)
        return run


def _is_not_open(head: Head) -> bool:
    return head.finished or head.due is not None
