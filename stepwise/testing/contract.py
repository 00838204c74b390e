"""The contract that every store must keep, as tests to inherit.

A store of your own (a database, an object store) is tested like this::

    from stepwise.testing import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "data")

        def reopen(self, store):
            store.close()
            return MyStore(store.path)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stepwise._values.buffers import Pieces
from stepwise.stores import Batch, Head, open_store
from stepwise.testing._contract_base import (
    LARGE,
    ME,
    ODD,
    check_mark,
    content_of,
    head_of,
    numbered,
    refused,
)
from stepwise.testing._contract_leases import LeaseContract

__all__ = ["StoreContract"]

_NOT_UTF8 = "caf\udce9"  # how an argument or a file name that is not UTF-8 reaches Python


class StoreContract(LeaseContract):
    """The promises of every store, as tests; inherit it under a name that begins with ``Test``.

    Define :meth:`make_store`, and :meth:`reopen` if the store is persistent.  What a power cut, a
    killed process or a fork does to a store depends on what it is made of: test these yourself.
    """

    # -- records ---------------------------------------------------------------------------------

    def test_an_unknown_run_is_empty(self, tmp_path: Path) -> None:
        """Asking for a run that nobody has started finds nothing, and is no error."""
        store = self._store(tmp_path)
        assert open_store(store) is store
        assert list(store.heads()) == []
        assert content_of(store, "run") == ([], {}, None, [])
        assert store.get("run", "name") is None
        assert store.owner("run") is None

    def test_records_come_back_in_order(self, tmp_path: Path) -> None:
        """Records come back in the order of their numbers, those after a number if asked for."""
        store, epoch = self._begin(tmp_path)
        for numbers in ((1, 2), (3,), range(4, 13)):
            store.write("run", epoch, numbered(*numbers))
        assert list(store.read("run")) == [(n, b"%d" % n) for n in range(1, 13)]
        assert [n for n, _ in store.read("run", after=9)] == [10, 11, 12]
        assert list(store.read("run", after=12)) == []

    def test_many_records(self, tmp_path: Path) -> None:
        """Thousands of records come back complete, even if more are written while they are read."""
        store, epoch = self._begin(tmp_path)
        store.write("run", epoch, numbered(*range(1, 2501)))
        reading = store.read("run")
        numbers = [next(reading)[0]]
        store.write("run", epoch, numbered(*range(2501, 2601)))
        numbers += [number for number, _ in reading]
        assert numbers[:2500] == list(range(1, 2501))
        assert numbers[2500:] in ([], list(range(2501, 2601)))
        assert len(list(store.read("run", after=100))) == 2500

    def test_any_bytes(self, tmp_path: Path) -> None:
        """Values come back byte for byte: empty ones, line ends, and five megabytes."""
        store, epoch = self._begin(tmp_path)
        values = [b"", b"\0", b"a\r\nb\rc\n" * 9000, LARGE, LARGE + b"!"]
        for number, value in enumerate(values, 1):
            head = head_of("run", data=value)
            store.write("run", epoch, Batch(((number, value),), {str(number): value}, head=head))
            assert store.head("run") == head
        assert [value for _, value in store.read("run")] == values
        assert [store.get("run", str(n)) for n in range(1, len(values) + 1)] == values

    def test_values_in_pieces(self, tmp_path: Path) -> None:
        """A value that comes in pieces is read back as one."""
        store, epoch = self._begin(tmp_path)
        views = [memoryview(each) for each in (b"a", LARGE, b"", b"b" * 70_000)]
        store.write("run", epoch, Batch(((1, Pieces(views)),), {"object": Pieces(views[2:])}))
        assert list(store.read("run")) == [(1, b"".join(views))]
        assert store.get("run", "object") == b"b" * 70_000

    def test_a_record_may_be_written_again(self, tmp_path: Path) -> None:
        """Writing a record that is there already, with the same bytes, changes nothing."""
        store, epoch = self._begin(tmp_path)
        for _ in range(3):
            store.write("run", epoch, Batch(((1, b"a"), (2, LARGE))))
        assert list(store.read("run")) == [(1, b"a"), (2, LARGE)]

    def test_prune(self, tmp_path: Path) -> None:
        """Pruning deletes the records up to and including a number, and no others."""
        store, epoch = self._begin(tmp_path)
        other = store.acquire("run2", ME)
        store.write("run", epoch, numbered(*range(1, 12)))
        store.write("run2", other, numbered(1, 2))
        store.write("run", epoch, Batch(((12, b"12"),), prune=9))
        assert [n for n, _ in store.read("run")] == [10, 11, 12]
        store.write("run", epoch, Batch(prune=12))
        store.write("run", epoch, numbered(13))
        assert [n for n, _ in store.read("run")] == [13]
        assert [n for n, _ in store.read("run2")] == [1, 2]

    # -- batches ---------------------------------------------------------------------------------

    def test_a_batch_that_fails_writes_nothing(self, tmp_path: Path) -> None:
        """A batch that is interrupted half-way leaves nothing behind, and the next one works."""
        store, epoch = self._begin(tmp_path)
        first = Batch(((1, b"1"),), {"a": b"a"}, head=head_of("run"), mark=b"m" * 40)
        store.write("run", epoch, first)
        before, head = content_of(store, "run"), head_of("run", finished=True)
        batch = Batch(((2, b"2"),), _Interrupted(), ("a",), 1, head, b"late" * 10)
        refused(KeyboardInterrupt, lambda: store.write("run", epoch, batch))
        assert content_of(store, "run") == before
        store.write("run", epoch, numbered(2))
        assert [n for n, _ in store.read("run")] == [1, 2]

    def test_a_batch_appears_as_a_whole(self, tmp_path: Path) -> None:
        """A reader during writes never sees a part of a batch."""
        store, epoch = self._begin(tmp_path)
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                count = len(list(store.read("run")))
                assert count % 4 == 0
                assert int(store.get("run", "batches") or b"0") >= count // 4

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                for batch in range(1, 101):
                    records = numbered(*range(4 * batch - 3, 4 * batch + 1)).records
                    objects = {"batches": b"%d" % batch}
                    store.write("run", epoch, Batch(records, objects, durable=False))
            finally:
                done.set()
            watching.result()

    def test_threads_write_different_runs(self, tmp_path: Path) -> None:
        """Threads write at once, each to a run of its own, and nothing is lost or mixed up."""
        store = self._store(tmp_path)
        names = [f"run{number}" for number in range(8)]

        def work(name: str) -> None:
            epoch = store.acquire(name, ME)
            for number in range(1, 26):
                data = f"{name} {number}".encode()
                store.write(name, epoch, Batch(((number, data),), {name: data}, durable=False))
            store.release(name, epoch)

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(work, names))
        for name in names:
            data = [f"{name} {number}".encode() for number in range(1, 26)]
            assert list(store.read(name)) == list(enumerate(data, 1))
            assert content_of(store, name)[1] == {name: data[-1]}

    # -- objects ---------------------------------------------------------------------------------

    def test_objects(self, tmp_path: Path) -> None:
        """Objects are replaced and deleted by name; deleting one that is not there is no error."""
        store, epoch = self._begin(tmp_path)
        store.write("run", epoch, Batch(put={"a": b"1", "b": b"2"}))
        store.write("run", epoch, Batch(put={"a": LARGE}, delete=("b", "never")))
        assert content_of(store, "run")[1] == {"a": LARGE}
        assert store.get("run", "b") is None
        store.write("run", epoch, Batch(put={"a": b""}))
        assert content_of(store, "run")[1] == {"a": b""}

    def test_names_of_objects(self, tmp_path: Path) -> None:
        """Any text is a name; names are listed sorted, and by a prefix that is taken literally."""
        store, epoch = self._begin(tmp_path)
        objects = {name: name.encode() for name in ODD}
        store.write("run", epoch, Batch(put=objects))
        assert content_of(store, "run")[1] == objects
        for prefix in ("", "run", "run/1", "%", "percent % under_", "caf", "long" * 1000, "*"):
            expected = sorted(name for name in ODD if name.startswith(prefix))
            assert store.names("run", prefix) == expected

    # -- heads -----------------------------------------------------------------------------------

    def test_heads(self, tmp_path: Path) -> None:
        """Runs are listed by their newest head: all, of one workflow, or those not finished."""
        store = self._store(tmp_path)
        flows = ("flow", "flow/2", "fl%w", "\u6d41 '")
        heads = [head_of(f"{flow} {end}", flow, end) for flow in flows for end in (False, True)]
        for head in heads:
            epoch = store.acquire(head.run_id, ME)
            for finished in (False, True, False, head.finished):
                newest = head_of(head.run_id, head.workflow, finished)
                store.write(head.run_id, epoch, Batch(head=newest))
        store.acquire("a run without a head", ME)
        for flow in (None, *flows, "unknown"):
            mine = [head for head in heads if flow in (None, head.workflow)]
            assert _sorted(store.heads(flow)) == _sorted(mine)
            unfinished = [head for head in mine if not head.finished]
            assert _sorted(store.heads(flow, unfinished=True)) == _sorted(unfinished)

    def test_many_heads(self, tmp_path: Path) -> None:
        """A listing of more than a thousand runs is complete."""
        store = self._store(tmp_path)
        for run_id in map(str, range(1100)):
            epoch = store.acquire(run_id, ME)
            store.write(run_id, epoch, Batch(head=head_of(run_id), durable=False))
            store.release(run_id, epoch)
        assert len({head.run_id for head in store.heads()}) == 1100
        assert len({head.run_id for head in store.heads("flow", unfinished=True)}) == 1100

    # -- marks -----------------------------------------------------------------------------------

    def test_marks(self, tmp_path: Path) -> None:
        """The newest mark of a run is among at most two; zero bytes may follow it."""
        store = self._store(tmp_path)
        store.write("run2", store.acquire("run2", ME), Batch(mark=b"other" * 8))
        for attempt in range(3):
            epoch = store.acquire("run", ME)
            for number in range(5):
                mark = b"%d %d".ljust(40, b".") % (attempt, number)
                store.write("run", epoch, Batch(mark=mark))
                store.write("run", epoch, Batch(put={"a": b"no mark"}))
                check_mark(store, mark)
            store.release("run", epoch)
            check_mark(store, mark)

    # -- runs ------------------------------------------------------------------------------------

    def test_any_text_is_a_run_id(self, tmp_path: Path) -> None:
        """Runs are told apart by their ids exactly, whatever text these are."""
        store = self._store(tmp_path)
        ids = {run_id: b"%d" % n for n, run_id in enumerate((*ODD, _NOT_UTF8))}
        for run_id, data in ids.items():
            epoch = store.acquire(run_id, ME)
            assert epoch == 1
            store.write(run_id, epoch, Batch(((1, data),), {"o": data}, head=head_of(run_id)))
        for run_id, data in ids.items():
            assert content_of(store, run_id)[:3] == ([(1, data)], {"o": data}, head_of(run_id))
            assert store.owner(run_id) == ME
        assert sorted(head.run_id for head in store.heads()) == sorted(ids)

    def test_delete(self, tmp_path: Path) -> None:
        """Deleting a run deletes all of it, and nothing of another whose id begins the same."""
        store = self._store(tmp_path)
        records = ((1, b"1"), (2, LARGE))
        for run_id in ("run", "run/2", "ru"):
            batch = Batch(records, {"a": LARGE}, head=head_of(run_id), mark=b"m" * 40)
            store.write(run_id, store.acquire(run_id, ME), batch)
        others = [content_of(store, "run/2"), content_of(store, "ru")]
        store.delete("run", 1)
        assert content_of(store, "run") == ([], {}, None, [])
        assert [content_of(store, "run/2"), content_of(store, "ru")] == others
        for unfinished in (False, True):
            listed = {head.run_id for head in store.heads("flow", unfinished=unfinished)}
            assert listed == {"run/2", "ru"}
        store.write("run", 1, numbered(1))
        assert list(store.read("run")) == [(1, b"1")]


class _Interrupted(Mapping[str, bytes]):
    """Objects to write; Ctrl-C comes at the second."""

    def __iter__(self) -> Iterator[str]:
        return iter(("first", "second"))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> bytes:
        if name == "first":
            return b"1"
        raise KeyboardInterrupt


def _sorted(heads: Iterable[Head]) -> list[Head]:
    return sorted(heads, key=lambda head: head.run_id)
