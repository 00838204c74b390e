"""One thread for all runs that wait: it calls who is rung, costs nothing per run, and ends."""

import gc
import itertools
import os
import threading
import time
import weakref

import pytest

import stepwise
from stepwise import StoreError, workflow
from stepwise._execution import message_watcher
from stepwise._execution.active_run import current_scope
from stepwise._execution.message_watcher import Watcher
from stepwise._journal.logs import Bell
from stepwise._journal.seal import ephemeral_seal
from stepwise.stores import open_store

SEAL = ephemeral_seal()
PATIENCE = 60


@pytest.fixture
def watcher():
    found = Watcher()
    yield found
    assert not found._open


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    opened = open_store(f"{request.param}:{tmp_path}/store")
    yield opened
    opened.close()


class Called:
    """Counts its calls; waits for one."""

    def __init__(self):
        self.count, self.last, self._more = 0, 0.0, threading.Condition()

    def __call__(self):
        with self._more:
            self.count += 1
            self.last = time.time()
            self._more.notify_all()

    def wait(self, count):
        with self._more:
            assert self._more.wait_for(lambda: self.count >= count, PATIENCE)

    def wait_until(self, moment):
        with self._more:
            assert self._more.wait_for(lambda: self.last >= moment, PATIENCE)


def ended(thread):
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_a_ring_calls_the_watches_of_its_run(store, watcher, monkeypatch):
    """A watch is called at the beginning, and when somebody rings for its run."""
    monkeypatch.setattr(message_watcher, "SLOW_POLL", 3600.0)
    mine, other, settled = Called(), Called(), Called()
    with (
        watcher.watch(store, SEAL, "mine", mine),
        watcher.watch(store, SEAL, "mine", mine),
        watcher.watch(store, SEAL, "other", other),
        watcher.watch(store, SEAL, "settled", settled),
    ):
        mine.wait(2)
        other.wait(1)
        settled.wait(1)
        for _ in range(2):  # behind these, no watch is called since it is new
            before = settled.count
            Bell(store, SEAL).ring("settled")
            settled.wait(before + 1)
        mine_before, other_before = mine.count, other.count
        Bell(store, SEAL).ring("mine")
        mine.wait(mine_before + 2)
        assert other.count == other_before
        Bell(store, SEAL).ring("other")
        other.wait(other_before + 1)
        thread = watcher._thread
    assert ended(thread)


def test_a_lost_ring_costs_time_only(store, watcher, monkeypatch):
    """Every watch is called now and then without a ring."""
    monkeypatch.setattr(message_watcher, "SLOW_POLL", 0.2)
    called = Called()
    with watcher.watch(store, SEAL, "job", called):
        called.wait(4)


def test_a_store_may_be_closed_after_the_last_look(watcher, monkeypatch):
    """``finish_look`` waits for a look in progress; the next one leaves out what is not watched."""
    looking, go_on, looks = threading.Event(), threading.Event(), []
    first, second = open_store("memory:first"), open_store("memory:second")
    real = message_watcher._WatchedStore.look

    def look(watched, *how):
        if watched.store not in (first, second):  # what another test's runs still wait for
            return real(watched, *how)
        looks.append(watched)
        looking.set()
        assert go_on.wait(PATIENCE)
        return []

    monkeypatch.setattr(message_watcher._WatchedStore, "look", look)
    watches = [watcher.watch(each, SEAL, "job", Called()) for each in (first, second)]
    assert looking.wait(PATIENCE)
    thread = watcher._thread
    for watch in watches:
        watch.close()
    finishing = threading.Thread(target=watcher.finish_look)
    finishing.start()
    finishing.join(0.2)
    assert finishing.is_alive()
    go_on.set()
    assert ended(finishing)
    assert ended(thread)
    assert len(looks) == 1


def test_a_round_calls_few_watches_at_a_look(store, watcher, monkeypatch):
    """Watches that nobody rang for are called a few at a time: a look costs each run a read."""
    monkeypatch.setattr(message_watcher, "POLL", 0.005)
    monkeypatch.setattr(message_watcher, "SLOW_POLL", 0.0)
    called = Called()
    watches = [watcher.watch(store, SEAL, f"run {n}", called) for n in range(50)]
    called.wait(50)
    looks, look = [], message_watcher._WatchedStore.look

    def counted(watched, *how):
        found = look(watched, *how)
        if watched.store is store:
            looks.append(found)
        return found

    monkeypatch.setattr(message_watcher._WatchedStore, "look", counted)
    until = time.monotonic() + PATIENCE
    while len({each for found in looks[2:] for each in found}) < 50 and time.monotonic() < until:
        threading.Event().wait(0.01)
    for each in watches:
        each.close()
    assert {each for found in looks[2:] for each in found} == set(watches)
    assert max(map(len, looks[2:])) == message_watcher._SWEPT


def test_moments(store, watcher, monkeypatch):
    """A watch is called when its moment has come; a closed one is not, and leaves nothing."""
    monkeypatch.setattr(message_watcher, "SLOW_POLL", 3600.0)
    called, late, closed = Called(), Called(), Called()
    now = time.time()
    watcher.watch(store, SEAL, "a", closed, until=now + 0.3).close()
    with (
        watcher.watch(store, SEAL, "b", late, until=now + 3600),
        watcher.watch(store, SEAL, "a", called, until=now + 0.6),
    ):
        called.wait_until(now + 0.6)
        assert late.count <= 2  # since it is new, and perhaps with the first look at the bell
        assert closed.last < now + 0.3 or closed.count <= 1  # a call that was in progress
    for _ in range(1_000):
        watcher.watch(store, SEAL, "a", int, until=time.time() + 3600).close()
    assert len(watcher._moments) <= 2 * message_watcher._SPARE


def test_a_store_that_fails_is_asked_less_often(store, watcher, monkeypatch):
    """Errors of the store end nothing: once it can be read again, every watch is called."""
    called, failures = Called(), []
    monkeypatch.setattr(message_watcher, "POLL", 0.02)
    with watcher.watch(store, SEAL, "job", called):
        called.wait(1)
        with monkeypatch.context() as broken:
            look = Bell.look

            def fail(bell):
                if bell._log.store is not store:  # of a run that another test left waiting
                    return look(bell)
                failures.append(time.monotonic())
                raise StoreError(path="", errno=5)

            broken.setattr(Bell, "look", fail)
            until = time.monotonic() + PATIENCE
            while len(failures) < 4 and time.monotonic() < until:
                threading.Event().wait(0.01)
            gaps = [b - a for a, b in itertools.pairwise(failures[:4])]
            assert all(gap >= 2 * message_watcher.POLL * 2**n for n, gap in enumerate(gaps))
        called.wait(2)


def test_a_callback_that_fails_ends_nothing(store, watcher):
    """What a watch calls may fail: the others are called all the same."""
    called = Called()
    with (
        watcher.watch(store, SEAL, "job", lambda: 1 / 0),
        watcher.watch(store, SEAL, "job", called),
    ):
        called.wait(1)
        Bell(store, SEAL).ring("job")
        called.wait(2)


def test_it_ends_and_begins_again(store, watcher):
    """The thread lives while something is watched, and holds nothing afterwards."""
    called = Called()
    watch = watcher.watch(store, SEAL, "job", called)
    called.wait(1)
    first = watcher._thread
    watch.close()
    watch.close()
    assert ended(first)
    held = weakref.ref(called)
    del called, watch
    gc.collect()
    assert held() is None
    again = Called()
    with watcher.watch(store, SEAL, "job", again):
        again.wait(1)
        assert watcher._thread is not first


def test_it_is_no_thread_of_a_run(tmp_path, watcher):
    """A run that has something watched has no other thread at work, and ends without it."""
    seen, watches = [], []

    @workflow(store=f"disk:{tmp_path}/store")
    def flow():
        run = stepwise.current_run()
        called = Called()
        watches.append(watcher.watch(run.store, run._seal, run.id, called))
        called.wait(1)
        seen.append(current_scope().run.flows.others())
        return "done"

    assert flow() == "done"
    assert seen == [[]]
    watches[0].close()


def test_a_forked_child_watches_for_itself(store, watcher):
    """A child has no thread of its parent, and no watch; it may begin watching."""
    called = Called()
    with watcher.watch(store, SEAL, "job", called):
        called.wait(1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                mine = Called()
                assert not watcher._open
                with watcher.watch(store, SEAL, "job", mine):
                    mine.wait(1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        Bell(store, SEAL).ring("job")
        called.wait(2)
