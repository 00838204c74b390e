"""The contract that every store must keep, as tests to inherit.

Your own store (a database, an object store) is tested like this::

    from stepwise.testing import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "data")

        def reopen(self, store):
            store.close()
            return MyStore(store.path)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepwise._values.unpickling import Pieces
from stepwise.errors import LeaseLostError, RunOwnedError
from stepwise.stores import Batch, Head, Owner, Store, open_store

E = TypeVar("E", bound=BaseException)

_NOT_UTF8 = "caf\udce9"  # an argument or a file name that is not UTF-8, as Python gets it
_ME = Owner(os.getpid(), "here", 1.5, "thread a")
_OTHER = Owner(os.getpid(), "here", 2.5, "thread b")
_LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB
_ODD = (
    "", " ", "run", "run ", "RUN", "run/1", "run/10", "run/1/2", "../run", "tab\tnul\0end",
    "it's \"quoted\"; DROP TABLE runs", "percent % under_score * ? [a]", "two\nlines\r\n",
    "caf\u00e9", "cafe\u0301", "\u8fd0\u884c \U0001f680", "long" * 1000, "long" * 1000 + "er",
)  # fmt: skip


class StoreContract:
    """The promises of every store, as tests; inherit it under a name that begins with ``Test``.

    Define :meth:`make_store`, and :meth:`reopen` if the store is persistent.  The effects of a
    power cut, a killed process or a fork depend on the technology of the store: test these
    yourself.
    """

    def make_store(self, tmp_path: Path) -> Store:
        """Return a new, empty store; ``tmp_path`` is an empty folder that the store may use."""
        raise NotImplementedError(f"{type(self).__name__} needs make_store(self, tmp_path)")

    def reopen(self, store: Store) -> Store:
        """Close a persistent store and open it again, as a new process would."""
        raise NotImplementedError(f"{type(self).__name__} needs reopen(self, store)")

    def _store(self, tmp_path: Path) -> Store:
        return self._to_close(self.make_store(tmp_path))

    def _begin(self, tmp_path: Path) -> tuple[Store, int]:
        store = self._store(tmp_path)
        return store, store.acquire("run", _ME)

    def _to_close(self, store: Store) -> Store:
        self._opened = [*getattr(self, "_opened", []), store]
        return store

    def teardown_method(self) -> None:
        """Close the stores that a test has opened."""
        for store in self.__dict__.pop("_opened", []):
            store.close()

    # -- records ---------------------------------------------------------------------------------

    def test_an_unknown_run_is_empty(self, tmp_path: Path) -> None:
        """Reading a run that was never started finds nothing, and is not an error."""
        store = self._store(tmp_path)
        assert open_store(store) is store
        assert list(store.heads()) == []
        assert _content_of(store, "run") == ([], {}, None, [])
        assert store.get("run", "name") is None
        assert store.owner("run") is None

    def test_records_come_back_in_order(self, tmp_path: Path) -> None:
        """Records come back in the order of their numbers; ``after`` skips earlier records."""
        store, epoch = self._begin(tmp_path)
        for numbers in ((1, 2), (3,), range(4, 13)):
            store.write("run", epoch, _numbered(*numbers))
        assert list(store.read("run")) == [(n, b"%d" % n) for n in range(1, 13)]
        assert [n for n, _ in store.read("run", after=9)] == [10, 11, 12]
        assert list(store.read("run", after=12)) == []

    def test_many_records(self, tmp_path: Path) -> None:
        """Thousands of records come back complete, even if more are written while they are read."""
        store, epoch = self._begin(tmp_path)
        store.write("run", epoch, _numbered(*range(1, 2501)))
        reading = store.read("run")
        numbers = [next(reading)[0]]
        store.write("run", epoch, _numbered(*range(2501, 2601)))
        numbers += [number for number, _ in reading]
        assert numbers[:2500] == list(range(1, 2501))
        assert numbers[2500:] in ([], list(range(2501, 2601)))
        assert len(list(store.read("run", after=100))) == 2500

    def test_any_bytes(self, tmp_path: Path) -> None:
        """Values come back byte for byte: empty ones, line ends, and five megabytes."""
        store, epoch = self._begin(tmp_path)
        values = [b"", b"\0", b"a\r\nb\rc\n" * 9000, _LARGE, _LARGE + b"!"]
        for number, value in enumerate(values, 1):
            head = _head_of("run", data=value)
            store.write("run", epoch, Batch(((number, value),), {str(number): value}, head=head))
            assert store.head("run") == head
        assert [value for _, value in store.read("run")] == values
        assert [store.get("run", str(n)) for n in range(1, len(values) + 1)] == values

    def test_values_in_pieces(self, tmp_path: Path) -> None:
        """A value that comes in pieces is read back as one."""
        store, epoch = self._begin(tmp_path)
        views = [memoryview(each) for each in (b"a", _LARGE, b"", b"b" * 70_000)]
        store.write("run", epoch, Batch(((1, Pieces(views)),), {"object": Pieces(views[2:])}))
        assert list(store.read("run")) == [(1, b"".join(views))]
        assert store.get("run", "object") == b"b" * 70_000

    def test_a_record_may_be_written_again(self, tmp_path: Path) -> None:
        """Writing an existing record again, with the same bytes, changes nothing."""
        store, epoch = self._begin(tmp_path)
        for _ in range(3):
            store.write("run", epoch, Batch(((1, b"a"), (2, _LARGE))))
        assert list(store.read("run")) == [(1, b"a"), (2, _LARGE)]

    def test_prune(self, tmp_path: Path) -> None:
        """Pruning deletes the records up to and including a number, and no others."""
        store, epoch = self._begin(tmp_path)
        other = store.acquire("run2", _ME)
        store.write("run", epoch, _numbered(*range(1, 12)))
        store.write("run2", other, _numbered(1, 2))
        store.write("run", epoch, Batch(((12, b"12"),), prune=9))
        assert [n for n, _ in store.read("run")] == [10, 11, 12]
        store.write("run", epoch, Batch(prune=12))
        store.write("run", epoch, _numbered(13))
        assert [n for n, _ in store.read("run")] == [13]
        assert [n for n, _ in store.read("run2")] == [1, 2]

    # -- batches ---------------------------------------------------------------------------------

    def test_a_batch_that_fails_writes_nothing(self, tmp_path: Path) -> None:
        """A batch that is interrupted half-way leaves nothing behind, and the next one works."""
        store, epoch = self._begin(tmp_path)
        first = Batch(((1, b"1"),), {"a": b"a"}, head=_head_of("run"), mark=b"m" * 40)
        store.write("run", epoch, first)
        before, head = _content_of(store, "run"), _head_of("run", finished=True)
        batch = Batch(((2, b"2"),), _BreaksOff(), ("a",), 1, head, b"late" * 10)
        _refused(KeyboardInterrupt, lambda: store.write("run", epoch, batch))
        assert _content_of(store, "run") == before
        store.write("run", epoch, _numbered(2))
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
                    records = _numbered(*range(4 * batch - 3, 4 * batch + 1)).records
                    objects = {"batches": b"%d" % batch}
                    store.write("run", epoch, Batch(records, objects, durable=False))
            finally:
                done.set()
            watching.result()

    def test_threads_write_different_runs(self, tmp_path: Path) -> None:
        """Threads write at once, each to a separate run, and nothing is lost or mixed up."""
        store = self._store(tmp_path)
        names = [f"run{number}" for number in range(8)]

        def work(name: str) -> None:
            epoch = store.acquire(name, _ME)
            for number in range(1, 26):
                data = f"{name} {number}".encode()
                store.write(name, epoch, Batch(((number, data),), {name: data}, durable=False))
            store.release(name, epoch)

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(work, names))
        for name in names:
            data = [f"{name} {number}".encode() for number in range(1, 26)]
            assert list(store.read(name)) == list(enumerate(data, 1))
            assert _content_of(store, name)[1] == {name: data[-1]}

    # -- objects ---------------------------------------------------------------------------------

    def test_objects(self, tmp_path: Path) -> None:
        """Objects are replaced and deleted by name; deleting a missing object is not an error."""
        store, epoch = self._begin(tmp_path)
        store.write("run", epoch, Batch(put={"a": b"1", "b": b"2"}))
        store.write("run", epoch, Batch(put={"a": _LARGE}, delete=("b", "never")))
        assert _content_of(store, "run")[1] == {"a": _LARGE}
        assert store.get("run", "b") is None
        store.write("run", epoch, Batch(put={"a": b""}))
        assert _content_of(store, "run")[1] == {"a": b""}

    def test_names_of_objects(self, tmp_path: Path) -> None:
        """Any text is a name; names are listed sorted, and by a prefix that is taken literally."""
        store, epoch = self._begin(tmp_path)
        objects = {name: name.encode() for name in _ODD}
        store.write("run", epoch, Batch(put=objects))
        assert _content_of(store, "run")[1] == objects
        for prefix in ("", "run", "run/1", "%", "percent % under_", "caf", "long" * 1000, "*"):
            expected = sorted(name for name in _ODD if name.startswith(prefix))
            assert store.names("run", prefix) == expected

    # -- heads -----------------------------------------------------------------------------------

    def test_heads(self, tmp_path: Path) -> None:
        """Runs are listed by their newest head: all, of one workflow, or only unfinished ones."""
        store = self._store(tmp_path)
        flows = ("flow", "flow/2", "fl%w", "\u6d41 '")
        heads = [_head_of(f"{flow} {end}", flow, end) for flow in flows for end in (False, True)]
        for head in heads:
            epoch = store.acquire(head.run_id, _ME)
            for finished in (False, True, False, head.finished):
                newest = _head_of(head.run_id, head.workflow, finished)
                store.write(head.run_id, epoch, Batch(head=newest))
        store.acquire("a run without a head", _ME)
        for flow in (None, *flows, "unknown"):
            mine = [head for head in heads if flow in (None, head.workflow)]
            assert _sorted(store.heads(flow)) == _sorted(mine)
            unfinished = [head for head in mine if not head.finished]
            assert _sorted(store.heads(flow, unfinished=True)) == _sorted(unfinished)

    def test_many_heads(self, tmp_path: Path) -> None:
        """A listing of more than a thousand runs is complete."""
        store = self._store(tmp_path)
        for run_id in map(str, range(1100)):
            epoch = store.acquire(run_id, _ME)
            store.write(run_id, epoch, Batch(head=_head_of(run_id), durable=False))
            store.release(run_id, epoch)
        assert len({head.run_id for head in store.heads()}) == 1100
        assert len({head.run_id for head in store.heads("flow", unfinished=True)}) == 1100

    def test_newest_heads(self, tmp_path: Path) -> None:
        """A store that has ``newest_heads`` lists the runs in the order in which they began."""
        store = self._store(tmp_path)
        newest_heads = getattr(store, "newest_heads", None)
        if newest_heads is None:
            return
        ids = [f"run {number * 7 % 250}" for number in range(250)]
        for run_id in ids:
            epoch = store.acquire(run_id, _ME)
            store.write(run_id, epoch, Batch(head=_head_of(run_id), durable=False))
        for number, run_id in enumerate(ids):  # a new head does not change the order
            if number % 2:
                store.write(run_id, 1, Batch(head=_head_of(run_id, finished=True), durable=False))
        store.delete(ids[0], 1)
        store.write(ids[0], 1, Batch(head=_head_of(ids[0])))  # begins again
        order = [ids[0], *reversed(ids[1:])]
        assert [head.run_id for head in newest_heads()] == order
        unfinished = [ids[0], *reversed(ids[2::2])]
        assert [head.run_id for head in newest_heads(unfinished=True)] == unfinished
        assert [head.run_id for head in newest_heads(before=order[120])] == order[121:]
        assert [*newest_heads(before="a run that is gone")] == []
        few = [run_id for run_id in order if run_id.startswith("run 12")]
        assert [head.run_id for head in newest_heads(prefix="run 12")] == few
        assert [head.run_id for head in newest_heads(prefix="run 12", before=few[3])] == few[4:]
        assert store.count_heads() == len(ids)  # type: ignore[attr-defined]

    def test_heads_by_the_beginnings_of_ids(self, tmp_path: Path) -> None:
        """A store that has ``newest_heads`` finds ids by any beginning, whatever characters."""
        store = self._store(tmp_path)
        newest_heads = getattr(store, "newest_heads", None)
        if newest_heads is None:
            return
        ids = ["a", "ab", "a%", "a_", 'a"', "a\\", "a\n", "a\u6d41\u6c34", "a\U0001f600", "A", "b"]
        for run_id in ids:
            epoch = store.acquire(run_id, _ME)
            store.write(run_id, epoch, Batch(head=_head_of(run_id), durable=False))
        for prefix in ["", *ids, "a\u6d41", "\u6d41", "c", "a", "["]:
            found = [head.run_id for head in newest_heads(prefix=prefix)]
            assert found == [each for each in reversed(ids) if each.startswith(prefix)]

    def test_due_heads(self, tmp_path: Path) -> None:
        """A store that has ``due_heads`` lists what is to begin in order, and apart."""
        store = self._store(tmp_path)
        due_heads = getattr(store, "due_heads", None)
        if due_heads is None:
            return
        for number in range(250):  # equal ones, too
            head = _head_of(f"run {number}", f"flow {number % 2}")._replace(due=number * 7 % 50 / 4)
            epoch = store.acquire(head.run_id, _ME)
            store.write(head.run_id, epoch, Batch(head=head, durable=False))
            assert store.head(head.run_id) == head
        order = sorted(range(0, 250, 2), key=lambda number: number * 7 % 50)
        assert [head.run_id for head in due_heads("flow 0")] == [f"run {n}" for n in order]
        assert [*due_heads("unknown")] == []
        firsts = store.first_due_heads()  # type: ignore[attr-defined]
        first = {head.workflow: head.run_id for head in firsts}
        assert first == {"flow 0": f"run {order[0]}", "flow 1": "run 43"}
        assert len([*store.heads("flow 0")]) == 125
        begun = _head_of("run 0", "flow 0")
        store.write("run 0", 1, Batch(head=begun, durable=False))
        assert (
            [*store.heads(unfinished=True)] == [*store.heads("flow 0", unfinished=True)] == [begun]
        )
        assert [*store.newest_heads(unfinished=True)] == [begun]  # type: ignore[attr-defined]
        assert "run 0" not in {head.run_id for head in due_heads("flow 0")}

    def test_words_of_heads(self, tmp_path: Path) -> None:
        """A store that has ``newest_heads`` keeps the words of heads, and finds heads by them."""
        store = self._store(tmp_path)
        newest_heads = getattr(store, "newest_heads", None)
        if newest_heads is None:
            return
        texts = ["\na=b\n", "\n\u6d41'%_\n", "\n\udcff\n"]
        for number in range(250):
            words = "".join(
                text for place, text in enumerate(texts, 1) if number % (50 * place) == 0
            )
            epoch = store.acquire(f"run {number}", _ME)
            head = _head_of(f"run {number}")._replace(words=words)
            store.write(f"run {number}", epoch, Batch(head=head, durable=False))
            assert store.head(f"run {number}") == head

        def found(*words: list[str]) -> list[str]:
            return [head.run_id for head in newest_heads(words=words, unfinished=bool(words[1:]))]

        assert found(texts[:1]) == [f"run {number}" for number in (200, 150, 100, 50, 0)]
        assert found(texts[:1], texts[1:2]) == ["run 200", "run 100", "run 0"]
        assert found(texts[:1], texts[1:]) == ["run 200", "run 150", "run 100", "run 0"]
        assert found(texts[:1], ["\nunknown\n"]) == []
        assert store.count_heads([texts[:1]]) == 5  # type: ignore[attr-defined]

    # -- marks -----------------------------------------------------------------------------------

    def test_marks(self, tmp_path: Path) -> None:
        """The newest mark of a run is among at most two; zero bytes may follow it."""
        store = self._store(tmp_path)
        store.write("run2", store.acquire("run2", _ME), Batch(mark=b"other" * 8))
        for attempt in range(3):
            epoch = store.acquire("run", _ME)
            for number in range(5):
                mark = b"%d %d".ljust(40, b".") % (attempt, number)
                store.write("run", epoch, Batch(mark=mark))
                store.write("run", epoch, Batch(put={"a": b"no mark"}))
                _check_mark(store, mark)
            store.release("run", epoch)
            _check_mark(store, mark)

    # -- runs ------------------------------------------------------------------------------------

    def test_any_text_is_a_run_id(self, tmp_path: Path) -> None:
        """Runs are distinguished by their exact ids, whatever the text."""
        store = self._store(tmp_path)
        ids = {run_id: b"%d" % n for n, run_id in enumerate((*_ODD, _NOT_UTF8))}
        for run_id, data in ids.items():
            epoch = store.acquire(run_id, _ME)
            assert epoch == 1
            store.write(run_id, epoch, Batch(((1, data),), {"o": data}, head=_head_of(run_id)))
        for run_id, data in ids.items():
            assert _content_of(store, run_id)[:3] == ([(1, data)], {"o": data}, _head_of(run_id))
            assert store.owner(run_id) == _ME
        assert sorted(head.run_id for head in store.heads()) == sorted(ids)

    def test_delete(self, tmp_path: Path) -> None:
        """Deleting a run deletes all of it, and nothing of another run whose id begins the same."""
        store = self._store(tmp_path)
        records = ((1, b"1"), (2, _LARGE))
        for run_id in ("run", "run/2", "ru"):
            batch = Batch(records, {"a": _LARGE}, head=_head_of(run_id), mark=b"m" * 40)
            store.write(run_id, store.acquire(run_id, _ME), batch)
        others = [_content_of(store, "run/2"), _content_of(store, "ru")]
        store.delete("run", 1)
        assert _content_of(store, "run") == ([], {}, None, [])
        assert [_content_of(store, "run/2"), _content_of(store, "ru")] == others
        for unfinished in (False, True):
            listed = {head.run_id for head in store.heads("flow", unfinished=unfinished)}
            assert listed == {"run/2", "ru"}
        store.write("run", 1, _numbered(1))
        assert list(store.read("run")) == [(1, b"1")]

    # -- the lease -------------------------------------------------------------------------------

    def test_one_owner(self, tmp_path: Path) -> None:
        """Only one owner can have the lease; the error for the next one names the owner."""
        store, epoch = self._begin(tmp_path)
        error = _refused(RunOwnedError, lambda: store.acquire("run", _OTHER))
        assert (error.run_id, error.owner, store.owner("run")) == ("run", _ME, _ME)
        assert store.owner("run2") is None
        store.release("run", epoch)
        assert store.owner("run") is None
        store.acquire("run", _OTHER)
        assert store.owner("run") == _OTHER

    def test_one_owner_of_many_threads(self, tmp_path: Path) -> None:
        """If many threads acquire a lease at once, one of them gets it."""
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
            epoch = store.acquire("run", _ME)
            assert epoch == expected
            if epoch == 3:
                store.delete("run", epoch)
            store.release("run", epoch)
        assert store.acquire("run2", _ME) == 1

    def test_an_old_epoch_writes_nothing(self, tmp_path: Path) -> None:
        """A former owner can neither write nor delete anything of the run."""
        store, old = self._begin(tmp_path)
        first = Batch(((1, b"1"),), {"a": b"1"}, head=_head_of("run"), mark=b"m" * 40)
        store.write("run", old, first)
        store.release("run", old)
        epoch, before = store.acquire("run", _OTHER), _content_of(store, "run")
        head = _head_of("run", finished=True)
        batch = Batch(((2, b"2"),), {"b": b"2"}, ("a",), 1, head, b"late" * 10)
        for wrong in (old, epoch + 1, 0):
            error = _refused(LeaseLostError, partial(store.write, "run", wrong, batch))
            assert error.run_id == "run"
            _refused(LeaseLostError, partial(store.delete, "run", wrong))
        _refused(LeaseLostError, partial(store.write, "never acquired", 1, batch))
        assert _content_of(store, "run") == before
        assert len(list(store.heads("flow", unfinished=True))) == 1
        store.write("run", epoch, batch)
        assert [n for n, _ in store.read("run")] == [2]

    def test_giving_up_what_is_not_held(self, tmp_path: Path) -> None:
        """Releasing a lease that is not held is not an error, and frees no other lease."""
        store = self._store(tmp_path)
        store.release("run", 1)
        old = store.acquire("run", _ME)
        store.release("run", old)
        store.acquire("run", _OTHER)
        store.release("run", old)
        assert store.owner("run") == _OTHER
        _refused(RunOwnedError, lambda: store.acquire("run", _ME))

    # -- closing ---------------------------------------------------------------------------------

    def test_closing_gives_leases_up(self, tmp_path: Path) -> None:
        """After a store is closed, any process that opens it can take over its runs."""
        store, epoch = self._begin(tmp_path)
        if store.persistent:
            store = self._to_close(self.reopen(store))
            assert store.owner("run") is None
            assert store.acquire("run", _OTHER) == epoch + 1

    def test_a_persistent_store_keeps_everything(self, tmp_path: Path) -> None:
        """Reopening a persistent store finds all that was written, durable or not."""
        store, epoch = self._begin(tmp_path)
        batch = Batch(((1, b"1"), (2, _LARGE)), {"a": b"a"}, head=_head_of("run"), mark=b"m" * 40)
        store.write("run", epoch, batch)
        store.write("run", epoch, Batch(((3, b"3"),), {"b": _LARGE}, durable=False))
        before = _content_of(store, "run")
        store.release("run", epoch)
        if store.persistent:
            store = self._to_close(self.reopen(store))
            assert _content_of(store, "run") == before
            assert list(store.heads("flow", unfinished=True)) == [_head_of("run")]
            _check_mark(store, b"m" * 40)
            assert store.acquire("run", _OTHER) == epoch + 1
            _refused(LeaseLostError, lambda: store.write("run", epoch, _numbered(4)))


class _BreaksOff(Mapping[str, bytes]):
    """Objects to write; a Ctrl-C arrives while the second is read."""

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


def _numbered(*numbers: int) -> Batch:
    return Batch(tuple((number, b"%d" % number) for number in numbers), durable=False)


def _head_of(
    run_id: str, flow: str = "flow", finished: bool = False, data: bytes = b"data"
) -> Head:
    return Head(run_id, flow, finished, data)


def _content_of(
    store: Store, run_id: str
) -> tuple[list[tuple[int, bytes]], dict[str, bytes | None], Head | None, list[bytes]]:
    """Return everything that a store has of a run."""
    objects = {name: store.get(run_id, name) for name in store.names(run_id)}
    return list(store.read(run_id)), objects, store.head(run_id), sorted(store.marks(run_id))


def _check_mark(store: Store, newest: bytes) -> None:
    marks = [mark.rstrip(b"\0") for mark in store.marks("run")]
    assert len(marks) <= 2
    assert newest in marks or not (marks or store.persistent)


def _refused(error: type[E], call: Callable[[], object]) -> E:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")
