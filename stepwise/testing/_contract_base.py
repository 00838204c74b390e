"""Helpers for the tests of the contract: stores to test, data to write, contents to compare."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stepwise.stores import Batch, Head, Owner, Store

__all__ = [
    "LARGE",
    "ME",
    "ODD",
    "OTHER",
    "ContractBase",
    "check_mark",
    "content_of",
    "head_of",
    "numbered",
    "refused",
]

E = TypeVar("E", bound=BaseException)

ME = Owner(os.getpid(), "here", 1.5, "thread a")
OTHER = Owner(os.getpid(), "here", 2.5, "thread b")
LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB
ODD = (
    "", " ", "run", "run ", "RUN", "run/1", "run/10", "run/1/2", "../run", "tab\tnul\0end",
    "it's \"quoted\"; DROP TABLE runs", "percent % under_score * ? [a]", "two\nlines\r\n",
    "caf\u00e9", "cafe\u0301", "\u8fd0\u884c \U0001f680", "long" * 1000, "long" * 1000 + "er",
)  # fmt: skip


class ContractBase:
    """Stores to test, closed after each test; a subclass says how they are made."""

    def make_store(self, tmp_path: Path) -> Store:
        """A new, empty store; ``tmp_path`` is an empty folder that it may use."""
        raise NotImplementedError(f"{type(self).__name__} needs make_store(self, tmp_path)")

    def reopen(self, store: Store) -> Store:
        """Close a persistent store and open it again, as a new process would."""
        raise NotImplementedError(f"{type(self).__name__} needs reopen(self, store)")

    def _store(self, tmp_path: Path) -> Store:
        return self._to_close(self.make_store(tmp_path))

    def _begin(self, tmp_path: Path) -> tuple[Store, int]:
        store = self._store(tmp_path)
        return store, store.acquire("run", ME)

    def _to_close(self, store: Store) -> Store:
        self._opened = [*getattr(self, "_opened", []), store]
        return store

    def teardown_method(self) -> None:
        """Close what a test has opened."""
        for store in self.__dict__.pop("_opened", []):
            store.close()


def numbered(*numbers: int) -> Batch:
    return Batch(tuple((number, b"%d" % number) for number in numbers), durable=False)


def head_of(run_id: str, flow: str = "flow", finished: bool = False, data: bytes = b"data") -> Head:
    return Head(run_id, flow, finished, data)


def content_of(
    store: Store, run_id: str
) -> tuple[list[tuple[int, bytes]], dict[str, bytes | None], Head | None, list[bytes]]:
    """All that a store has of a run."""
    objects = {name: store.get(run_id, name) for name in store.names(run_id)}
    return list(store.read(run_id)), objects, store.head(run_id), sorted(store.marks(run_id))


def check_mark(store: Store, newest: bytes) -> None:
    marks = [mark.rstrip(b"\0") for mark in store.marks("run")]
    assert len(marks) <= 2
    assert newest in marks or not (marks or store.persistent)


def refused(error: type[E], call: Callable[[], object]) -> E:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")
