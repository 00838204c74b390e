"""The thread that writes for event loops: one for each store, and one call of it for many runs."""

import asyncio
import gc
import os
import threading
import weakref

import pytest

import stepwise
from stepwise import LeaseLostError, StoreError, step, workflow
from stepwise._execution.active_run import current_scope
from stepwise.stores import Batch, _group_commit
from stepwise.stores._group_commit import Commits, Share, commits_of, for_several, write_all_of
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore

RUNS, STEPS = 20, 5


@step
async def think(n):
    await asyncio.sleep(0)
    return n


@workflow(name="several")
async def several(count):
    return sum([await think(n) for n in range(count)])


async def together(store, runs=RUNS):
    """Execute runs at once; what each of them returned or raised."""
    calls = [several.options(store=store, run_id=f"run {n}") for n in range(runs)]
    return await asyncio.gather(*[call(STEPS) for call in calls], return_exceptions=True)


@pytest.fixture(params=[MemoryStore, DiskStore])
def store(request, tmp_path):
    """A store of each kind that writes for several runs at once."""
    made = MemoryStore() if request.param is MemoryStore else DiskStore(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def started(monkeypatch):
    """The threads that were started for writes."""
    begun, start = [], _group_commit._thread.start_new_thread

    def count(function, arguments):
        begun.append(function)
        return start(function, arguments)

    monkeypatch.setattr(_group_commit._thread, "start_new_thread", count)
    monkeypatch.setattr(_group_commit, "_IDLE", 60)
    return begun


def counting(store, monkeypatch):
    """How many batches each call of the store got."""
    sizes, write_all = [], type(store).write_all

    @for_several(type(store).write)
    def count(self, wanted):
        sizes.append(len(wanted))
        return write_all(self, wanted)

    monkeypatch.setattr(type(store), "write_all", count)
    return sizes


def test_a_write_starts_no_thread(store, started, monkeypatch):
    """All steps of many runs at once are written by one thread, those of several runs together."""
    sizes = counting(store, monkeypatch)
    assert asyncio.run(together(store)) == [sum(range(STEPS))] * RUNS
    assert len(started) == 1
    assert sum(sizes) >= RUNS * (STEPS - 1)  # the last runs may be few
    assert len(sizes) < sum(sizes) / 2
    assert {stepwise.get_run(f"run {n}", store=store).status for n in range(RUNS)} == {"completed"}


def test_loops_that_follow_use_the_same_thread(store, started):
    """The writer of a store serves one event loop after the other, and several at once."""
    for n in range(3):
        asyncio.run(together(store) if n == 0 else asyncio.sleep(0))

    def execute(first):
        async def main():
            calls = [several.options(store=store, run_id=f"{first} {n}") for n in range(RUNS)]
            return await asyncio.gather(*[call(STEPS) for call in calls])

        assert asyncio.run(main()) == [sum(range(STEPS))] * RUNS
        done.append(first)

    done = []
    threads = [threading.Thread(target=execute, args=(first,)) for first in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["a", "b", "c"]
    assert len(started) == 1


def test_an_error_is_of_one_run(store):
    """A run that has lost its lease stops, and those that were written with it go on."""
    lost = []

    @step
    async def lose(n):
        run = current_scope().run
        store.release(run.run_id, run.journal.epoch)
        if not isinstance(store, MemoryStore):
            store.acquire(run.run_id, stepwise.stores.Owner(os.getpid(), "here", 0.0))
        lost.append(n)

    @workflow(name="one")
    async def one():
        await lose(1)
        await think(2)

    async def main():
        mine = asyncio.ensure_future(one.options(store=store, run_id="lost")())
        return (await asyncio.gather(mine, together(store), return_exceptions=True)), lost

    (error, results), lost_by = asyncio.run(main())
    assert lost_by == [1]
    assert isinstance(error, LeaseLostError)
    assert results == [sum(range(STEPS))] * RUNS


def test_everybody_gets_the_error_of_the_store(store, monkeypatch):
    """If the store fails as a whole, each run that writes gets the error, and resumes later."""
    write_all, failed = type(store).write_all, []

    @for_several(type(store).write)
    def fail(self, wanted):
        failed.append(len(wanted))
        raise StoreError("no space", path="here", errno=None)

    monkeypatch.setattr(type(store), "write_all", fail)
    results = asyncio.run(together(store))
    assert any(isinstance(each, StoreError) for each in results)
    assert failed
    monkeypatch.setattr(type(store), "write_all", write_all)
    assert asyncio.run(together(store)) == [sum(range(STEPS))] * RUNS


def test_a_store_that_changes_write_is_called_for_each_run(tmp_path):
    """A subclass that overrides ``write``, and an object that wraps it, get every batch."""
    seen = []

    class Mine(DiskStore):
        def write(self, run_id, epoch, batch):
            seen.append(run_id)
            super().write(run_id, epoch, batch)

    store = Mine(tmp_path / "store")
    assert write_all_of(store) is None
    assert asyncio.run(together(store)) == [sum(range(STEPS))] * RUNS
    assert len(seen) >= RUNS * STEPS
    store.close()
    plain = MemoryStore()
    assert write_all_of(plain) is not None
    plain.write = lambda *batch: MemoryStore.write(plain, *batch)
    assert write_all_of(plain) is None


class Held:
    """A store whose first write waits until it may go on."""

    url = "held:"

    def __init__(self):
        self.began, self.may = threading.Event(), threading.Event()
        self.sizes = []

    def write(self, *batch):
        self.write_all([batch])

    @for_several(write)
    def write_all(self, wanted):
        self.sizes.append({run: len(batch.records) for run, _, batch in wanted})
        self.began.set()
        assert self.may.wait(300)
        return [None] * len(wanted)


def submitted(commits, runs):
    """Submit a record of each of some runs; their futures."""
    futures = []
    for run in runs:
        share = Share(asyncio.get_running_loop().create_future())
        share.wanted = run, 1, Batch(((1, b""),))
        commits.submit(share)
        futures.append(share.future)
    return futures


def test_what_comes_during_a_write_shares_the_next():
    """Batches of several runs that come during a write are written with one call after it."""

    async def main():
        store = Held()
        commits = commits_of(store, fsync=True)
        futures = submitted(commits, "a")
        assert await asyncio.to_thread(store.began.wait, 300)
        for _ in range(2):
            futures += submitted(commits_of(store, fsync=True), "abc")
        store.may.set()
        await asyncio.gather(*futures)
        return store.sizes

    assert asyncio.run(main()) == [{"a": 1}, {"a": 2, "b": 2, "c": 2}]


def test_a_writer_that_nobody_needs_ends(monkeypatch):
    """The thread of a writer ends after a while, keeps no store, and begins again when needed."""
    monkeypatch.setattr(_group_commit, "_IDLE", 0.001)

    def work():
        store = Held()
        store.may.set()
        commits = Commits(store)

        async def main():
            await asyncio.gather(*submitted(commits, "a"))

        for _ in range(20):
            asyncio.run(main())
            while commits._writer._lives:
                threading.Event().wait(0.001)
        assert len(store.sizes) == 20
        return weakref.ref(store)

    store = work()
    gc.collect()
    assert store() is None


PROGRAM = """
import asyncio, atexit, os, sys
from stepwise import step, workflow
from stepwise._execution.active_run import current_scope
from stepwise.stores import _group_commit

@step
async def think(n):
    await asyncio.sleep(0)
    return n

@workflow
async def several(count):
    return sum([await think(n) for n in range(count)])

def together(name):
    async def main():
        runs = [several.options(store=sys.argv[1], run_id=f"{name} {n}") for n in range(20)]
        return sum(await asyncio.gather(*[run(5) for run in runs]))
    os.write(1, b"%d\\n" % asyncio.run(main()))

if sys.argv[2] == "fork":
    together("before")
    pid = os.fork()
    together("parent" if pid else "child")
    if pid:
        os.waitpid(pid, 0)
else:
    _group_commit._IDLE = 3600
    if sys.argv[2] == "atexit":
        atexit.register(together, "late")
    together("early")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("scheme", ["disk", "memory"])
def test_a_forked_process_has_a_writer_of_its_own(fork, tmp_path, scheme):
    """After a fork parent and child both write, though only one of them has the thread."""
    output = fork(PROGRAM, f"{scheme}:{tmp_path / 'store'}", "fork").finish()
    assert output.split() == ["200"] * 3


@pytest.mark.parametrize("when", ["early", "atexit"])
def test_a_writer_keeps_no_process_alive(start, tmp_path, when):
    """A program ends while its writer sleeps, also if runs are executed at its very end."""
    output = start(PROGRAM, f"disk:{tmp_path / 'store'}", when).finish()
    assert output.split() == ["200"] * (1 + (when == "atexit"))
