"""The contract of leases that every store keeps: one owner, epochs that grow."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from stepwise.errors import LeaseLostError, RunOwnedError
from stepwise.stores import Batch, Owner
from stepwise.testing._contract_base import (
    LARGE,
    ME,
    OTHER,
    ContractBase,
    check_mark,
    content_of,
    head_of,
    numbered,
    refused,
)

__all__ = ["LeaseContract"]


class LeaseContract(ContractBase):
    """The rules of leases: which owner may write to a run, and until when."""

    # -- the lease -------------------------------------------------------------------------------

    def test_one_owner(self, tmp_path: Path) -> None:
        """Only one owner can have the lease; the error for the next one names the owner."""
        store, epoch = self._begin(tmp_path)
        error = refused(RunOwnedError, lambda: store.acquire("run", OTHER))
        assert (error.run_id, error.owner, store.owner("run")) == ("run", ME, ME)
        assert store.owner("run2") is None
        store.release("run", epoch)
        assert store.owner("run") is None
        store.acquire("run", OTHER)
        assert store.owner("run") == OTHER

    def test_one_owner_of_many_threads(self, tmp_path: Path) -> None:
        """If many threads ask for a lease at once, one of them gets it."""
        store, start = self._store(tmp_path), threading.Barrier(8)

        def ask(number: int) -> int | None:
            start.wait()
            try:
                return store.acquire("run", Owner(os.getpid(), "here", 0.0, str(number)))
            except RunOwnedError:
                return None

        with ThreadPoolExecutor(8) as pool:
            epochs = list(pool.map(ask, range(8)))
        assert [epoch for epoch in epochs if epoch is not None] == [1]
        owner = Owner(os.getpid(), "here", 0.0, str(epochs.index(1)))
        assert store.owner("run") == owner

    def test_the_epoch_grows(self, tmp_path: Path) -> None:
        """Epochs of a run are 1, 2, 3, and so on, even when the run is deleted between."""
        store = self._store(tmp_path)
        for expected in range(1, 6):
            epoch = store.acquire("run", ME)
            assert epoch == expected
            if epoch == 3:
                store.delete("run", epoch)
            store.release("run", epoch)
        assert store.acquire("run2", ME) == 1

    def test_an_old_epoch_writes_nothing(self, tmp_path: Path) -> None:
        """A former owner can neither write nor delete anything of the run."""
        store, old = self._begin(tmp_path)
        first = Batch(((1, b"1"),), {"a": b"1"}, head=head_of("run"), mark=b"m" * 40)
        store.write("run", old, first)
        store.release("run", old)
        epoch, before = store.acquire("run", OTHER), content_of(store, "run")
        head = head_of("run", finished=True)
        batch = Batch(((2, b"2"),), {"b": b"2"}, ("a",), 1, head, b"late" * 10)
        for wrong in (old, epoch + 1, 0):
            error = refused(LeaseLostError, partial(store.write, "run", wrong, batch))
            assert error.run_id == "run"
            refused(LeaseLostError, partial(store.delete, "run", wrong))
        refused(LeaseLostError, partial(store.write, "never acquired", 1, batch))
        assert content_of(store, "run") == before
        assert len(list(store.heads("flow", unfinished=True))) == 1
        store.write("run", epoch, batch)
        assert [n for n, _ in store.read("run")] == [2]

    def test_giving_up_what_is_not_held(self, tmp_path: Path) -> None:
        """Giving up a lease that is not held is no error, and frees nobody else's."""
        store = self._store(tmp_path)
        store.release("run", 1)
        old = store.acquire("run", ME)
        store.release("run", old)
        store.acquire("run", OTHER)
        store.release("run", old)
        assert store.owner("run") == OTHER
        refused(RunOwnedError, lambda: store.acquire("run", ME))

    # -- closing ---------------------------------------------------------------------------------

    def test_closing_gives_leases_up(self, tmp_path: Path) -> None:
        """After a store is closed its runs can be taken up by whoever opens it."""
        store, epoch = self._begin(tmp_path)
        if store.persistent:
            store = self._to_close(self.reopen(store))
            assert store.owner("run") is None
            assert store.acquire("run", OTHER) == epoch + 1

    def test_a_persistent_store_keeps_everything(self, tmp_path: Path) -> None:
        """Whoever opens a persistent store again finds all that was written, durable or not."""
        store, epoch = self._begin(tmp_path)
        batch = Batch(((1, b"1"), (2, LARGE)), {"a": b"a"}, head=head_of("run"), mark=b"m" * 40)
        store.write("run", epoch, batch)
        store.write("run", epoch, Batch(((3, b"3"),), {"b": LARGE}, durable=False))
        before = content_of(store, "run")
        store.release("run", epoch)
        if store.persistent:
            store = self._to_close(self.reopen(store))
            assert content_of(store, "run") == before
            assert list(store.heads("flow", unfinished=True)) == [head_of("run")]
            check_mark(store, b"m" * 40)
            assert store.acquire("run", OTHER) == epoch + 1
            refused(LeaseLostError, lambda: store.write("run", epoch, numbered(4)))
