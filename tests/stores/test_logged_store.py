"""Stores whose processes have logs: what was acknowledged is there, whatever happens between."""

import contextlib
import dis
import functools
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import ME
from sweeping import WHOLE, size

from stepwise import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores import Batch, Head, _process_log, disk
from stepwise.stores._files import close_lock_files, lock_file
from stepwise.stores._process_log import FolderLogs, ProcessLog
from stepwise.stores._rows import Rows, pack_lease
from stepwise.stores.disk import DiskStore

LIMIT = 2000  # bytes: of a log, instead of 1 MiB; a third of them in a batch
RUNS = ("a", "b", "c")


@pytest.fixture
def small(monkeypatch):
    """Logs that are soon full, and batches that are soon too large for them."""
    monkeypatch.setattr(_process_log, "_LARGEST_LOG", LIMIT)
    monkeypatch.setattr(disk, "LARGEST_BATCH", LIMIT // 3)


def begin(store, *runs):
    """Acquire runs, and have their small batches go into the log; returns the epochs."""
    epochs = []
    for run in runs:
        epochs.append(store.acquire(run, ME))
        for number in (1, 2):
            store.write(run, epochs[-1], Batch(((number, b"%d" % number),)))
        assert store._fits((run, epochs[-1], Batch()))
    return epochs


def die(store):
    """What is left of a store object when its process is killed: its files, and no locks."""
    for run in store._held:
        lock_file(store._lock_path).release(run)
    if store._logs.own.is_open:
        store._logs._locks().release(store._logs.name)
    store._log_end.detach()
    store._logs.own.abandon()
    store._held = {}
    if store._rows is not None:
        store._close(store._rows)
    disk._stores.discard(store)


def state(store, run):
    """All that a store says of a run."""
    objects = {name: store.get(run, name) for name in store.names(run)}
    head = store.head(run)
    return dict(store.read(run)), objects, head and head.data


def after(before, batch):
    """What a batch makes of a state."""
    records, objects, head = before
    kept = {number: data for number, data in records.items() if number > batch.prune}
    added = {number: bytes(data) for number, data in batch.records}
    left = {name: data for name, data in objects.items() if name not in batch.delete}
    return kept | added, left | dict(batch.put), batch.head.data if batch.head else head


EMPTY = ({}, {}, None)
FAULTS = [
    (name, when, late)
    for name in ("pwrite", "fdatasync", "fstat")
    for when in (1, 2, 3)
    for late in (False, True)
]


@contextlib.contextmanager
def fault(name, when, late):
    """Let the n-th call of a function of the system fail, before or after it has worked."""
    calls, real = itertools.count(1), getattr(os, name)

    def fails(*args):
        if next(calls) != when:
            return real(*args)
        if late:
            real(*args)
        raise OSError(5, "it was made to fail")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, fails)
        yield


class World:
    """Two processes with a store each on one folder, and what the runs in it must be."""

    def __init__(self, folder):
        self.folder = folder
        self.stores = [DiskStore(folder), DiskStore(folder)]
        self.watcher = DiskStore(folder)
        self.epochs = [{}, {}]  # of each process: of the runs that it believes to have
        self.owner = {}  # who has a run
        self.may_be = {run: [EMPTY] for run in RUNS}
        self.number = 0

    def look(self, run):
        """Every reader finds a state that may be there, and all of them the same."""
        owner = self.owner.get(run)
        readers = [self.watcher] if owner is None else [self.stores[owner], self.watcher]
        found = [state(reader, run) for reader in readers]
        assert found[0] in self.may_be[run]
        assert found[0] == found[-1]
        self.may_be[run] = [found[0]]

    def batch(self, run, kind, durable, put, delete):
        self.number += 1
        n = self.number
        records = ((n, b"%d" % n * (LIMIT // 2 if kind == "large" else 5)),)
        names = [f"c/{n % 5}"] if put else []  # some are written again
        gone = [name for each in self.may_be[run] for name in each[1]] if delete else []
        head = Head(run, "flow", False, b"%d" % n) if kind == "head" else None
        prune = n - 3 if kind == "prune" else 0
        objects = dict.fromkeys(names, b"object %d" % n)
        deleted = tuple(sorted({*gone} - {*names}))
        return Batch(records, objects, deleted, prune, head, durable=durable)

    def write(self, who, run, batch, broken):
        if run not in self.owner:
            self.acquire(who, run, stolen=False)
        epoch = self.epochs[who].get(run)
        if epoch is None:
            return
        can = [after(each, batch) for each in self.may_be[run]]
        try:
            with fault(*broken) if broken else contextlib.nullcontext():
                self.stores[who].write(run, epoch, batch)
        except LeaseLostError:
            assert self.owner.get(run) != who
            del self.epochs[who][run]
            return
        except StoreError:
            assert broken
            if self.owner.get(run) == who:
                self.may_be[run] += can  # all of it, or nothing
            return
        assert self.owner.get(run) == who
        self.may_be[run] = can

    def acquire(self, who, run, stolen):
        """Acquire a run; ``stolen``: also one that another process has, whose lock has gone."""
        if stolen:
            Path(self.folder, "leases").unlink(missing_ok=True)
            lock_file(self.stores[0]._lock_path)._held.clear()  # the two share their locks here
        try:
            self.epochs[who][run] = self.stores[who].acquire(run, ME)
            self.owner[run] = who
        except RunOwnedError:
            assert not stolen

    def release(self, who, run):
        epoch = self.epochs[who].pop(run, None)
        if epoch is not None and self.owner.get(run) == who:
            self.stores[who].release(run, epoch)
            del self.owner[run]

    def gone(self, who, killed):
        """A process ends, and another one begins."""
        mine = [run for run, owner in self.owner.items() if owner == who]
        others = [run for run in self.epochs[1 - who] if self.owner.get(run) == 1 - who]
        if killed:
            die(self.stores[who])
        else:
            self.stores[who].close()
        for run in mine:
            del self.owner[run]
        for run in others:  # the locks of a path are the process's, and there is only one here
            lock_file(self.stores[0]._lock_path).acquire(run)
        self.stores[who], self.epochs[who] = DiskStore(self.folder), {}

    def delete(self, who, run):
        if self.owner.get(run) == who:
            self.stores[who].delete(run, self.epochs[who][run])
            self.may_be[run] = [EMPTY]

    def act(self, name, run, who, batch, broken):
        if name in ("write", "late"):
            owner = self.owner.get(run, who)
            self.write(
                owner if name == "write" else 1 - owner, run, self.batch(run, *batch), broken
            )
        elif name == "look":
            self.look(run)
        elif name in ("acquire", "steal"):
            self.acquire(who, run, stolen=name == "steal")
        elif name == "release":
            self.release(who, run)
        elif name == "delete":
            self.delete(who, run)
        else:
            self.gone(who, killed=name == "kill")

    def end(self):
        for run in RUNS:
            self.look(run)
        self.gone(0, killed=True)
        self.gone(1, killed=True)
        for run in RUNS:
            self.look(run)
            self.acquire(0, run, stolen=True)
            self.look(run)
        for store in (*self.stores, self.watcher):
            store.close()


# What happens next: its kind, a run, one of two processes, a batch, and a fault.
OFTEN = ["write"] * 30 + ["late", "look", "acquire", "steal", "steal", "release", "delete"]
RARE = [*OFTEN * 2, "close", "kill"]
ACTION = st.tuples(
    st.sampled_from(RARE),
    st.sampled_from(RUNS),
    st.integers(0, 1),
    st.tuples(
        st.sampled_from(["small"] * 20 + ["large", "head", "prune"]),
        *[st.booleans()] * 3,
    ),
    st.sampled_from([None] * 80 + FAULTS),
)


@given(actions=st.lists(ACTION, min_size=40, max_size=120))
@settings(max_examples=4000 if WHOLE else 30)
def test_what_was_acknowledged_is_there(tmp_path_factory, small, actions):
    """Any order of batches, faults, kills and takeovers leaves what was acknowledged, and whole."""
    folder = tmp_path_factory.mktemp("store")
    world = World(folder / "store")
    for run in RUNS:
        world.acquire(0, run, stolen=False)
    for action in actions:
        world.act(*action)
    world.end()
    close_lock_files(str(folder))
    shutil.rmtree(folder)


# -- single faults that the log has to withstand ---------------------------------------------------


def logs(store):
    """The files of logs in a store's folder."""
    folder = Path(store._logs._folder)
    return sorted(each.name for each in folder.iterdir() if each.name != "locks")


@contextlib.contextmanager
def flushes(store):
    """Count flushes of the database's own log, outside of SQLite."""
    seen, real = [], store._rows.flush
    store._rows.flush = lambda: seen.append(real())
    yield seen
    del store._rows.flush


def test_a_durable_transaction_that_writes_nothing(store):
    """A durable transaction makes earlier ones durable even if it changes nothing itself."""
    begin(store, "a")
    with flushes(store) as seen:
        for durable in (True, False):
            with store._rows.transaction(durable=durable):
                pass
            assert len(seen) == 1
        with store._rows.transaction(durable=True):
            store._rows.put_record("a", 9, b"9")
    assert len(seen) == 1


def test_a_dead_log_of_which_all_was_taken_in(store, folder):
    """A log is deleted only when the commit that took it in is on the disk, whoever made it."""
    (epoch,) = begin(store, "a")
    store.write("a", epoch, Batch(((3, b"3"),)))
    store.write("a", epoch, Batch(((4, b"4"),), head=Head("a", "", False, b""), durable=False))
    die(store)
    other = DiskStore(folder)
    other.acquire("b", ME)
    with flushes(other) as seen:
        other._open_log(other._rows)
    assert seen
    assert logs(other) == [other._logs.name]


@pytest.mark.parametrize("durable", [True, False])
def test_the_end_of_a_process_keeps_what_a_power_cut_could_need(store, durable):
    """The log outlives its process while the commit that took it in may not be on the disk."""
    (epoch,) = begin(store, "a")
    store.write("a", epoch, Batch(((3, b"3"),)))
    store.write("a", epoch, Batch(((4, b"4"),), prune=1, durable=durable))
    name = store._logs.name
    store._log_end()  # as at the end of the process
    assert logs(store) == ([] if durable else [name])
    store.write("a", epoch, Batch(((5, b"5"),)))  # as a handler may that is called even later
    assert [number for number, _ in store.read("a")] == [2, 3, 4, 5]


def test_a_run_that_is_released_in_the_midst_of_a_write(store, monkeypatch):
    """A write that is overtaken by the release of its run is written, and is seen by the next."""
    (epoch,) = begin(store, "a")
    for number, durable in ((3, True), (4, False)):
        add = ProcessLog.add

        def overtaken(self, *args, add=add, epoch=epoch):
            monkeypatch.undo()
            store.release("a", epoch)
            return add(self, *args)

        monkeypatch.setattr(ProcessLog, "add", overtaken)
        store.write("a", epoch, Batch(((number, b"x"),), durable=durable))
        assert number in dict(store.read("a"))
        (epoch,) = begin(store, "a")
        assert number in dict(store.read("a"))


@pytest.mark.parametrize(("name", "durable"), [("_is_logged", False), ("_write_log", True)])
def test_a_run_that_is_released_before_its_frame_is_written(store, monkeypatch, name, durable):
    """A write whose run was released just before goes into the database, whatever its way."""
    (epoch,) = begin(store, "a")
    real, released = getattr(type(store), name), []

    def overtaken(self, *wanted):
        released.append(store.release("a", epoch))
        return real(self, *wanted)

    monkeypatch.setattr(type(store), name, overtaken)
    store.write("a", epoch, Batch(((3, b"3"),), durable=durable))
    assert released
    assert 3 in dict(store.read("a"))


def test_a_log_that_fails_while_batches_are_sorted(store, monkeypatch):
    """Of several batches, those that the log no longer takes go into the database."""
    one, two = begin(store, "a", "b")
    fits = store._fits

    def failing(wanted):
        fitting = fits(wanted)
        if wanted[0] == "b":
            store._logs.own.failed = True  # a third run's checkpoint met a full disk
        return fitting

    monkeypatch.setattr(store, "_fits", failing)
    head = Head("b", "w", False, b"head")
    batches = ("a", one, Batch(((3, b"3"),))), ("b", two, Batch(((3, b"3"),), head=head))
    assert store.write_all(batches) == [None, None]
    monkeypatch.setattr(store, "_fits", fits)
    assert dict(store.read("a"))[3] == dict(store.read("b"))[3] == b"3"


def test_a_folder_that_is_moved_away(store):
    """What is written after the folder was moved lies in the new one, for other processes, too."""
    (epoch,) = begin(store, "a")
    store.write("a", epoch, Batch(((3, b"old"),)))
    store.release("a", epoch)
    os.rename(store.path, f"{store.path} elsewhere")
    (epoch,) = begin(store, "a")
    for number in (3, 4):
        store.write("a", epoch, Batch(((number, b"new"),)))
    other = type(store)(store.path)
    assert dict(other.read("a")) == dict(store.read("a"))
    assert dict(other.read("a"))[3] == b"new"
    other.close()
    moved = type(store)(f"{store.path} elsewhere")
    assert dict(moved.read("a"))[3] == b"old"
    begin(moved, "b")  # takes in the log that nobody writes any more
    assert logs(moved) == [moved._logs.name]


def test_a_late_write_of_a_run_that_was_acquired_again(store, monkeypatch):
    """A write that is overtaken by a release and an acquisition is refused, not lost."""
    (epoch,) = begin(store, "a")
    add = ProcessLog.add

    def overtaken(self, *args):
        monkeypatch.undo()
        store._held.pop("a")  # by another thread, which is in the midst of the acquisition
        lock_file(store._lock_path).release("a")
        with store._rows.transaction(durable=False):
            store._rows.put_lease("a", disk.pack_lease(epoch + 1, ME))
        return add(self, *args)

    monkeypatch.setattr(ProcessLog, "add", overtaken)
    with pytest.raises(LeaseLostError):
        store.write("a", epoch, Batch(((3, b"3"),), durable=False))
    assert 3 not in dict(store.read("a"))


@pytest.mark.parametrize("durable", [True, False])
def test_a_handler_that_writes_in_the_midst_of_a_write(store, monkeypatch, durable):
    """Code that interrupts the write of a frame cannot write another one into it."""
    one, two = begin(store, "a", "b")
    pwrite, errors = os.pwrite, []

    def interrupted(*args):
        monkeypatch.undo()
        for nested in (True, False):
            with pytest.raises(StoreError, match="in the middle of a write") as caught:
                store.write("b", two, Batch(((3, b"3"),), durable=nested))
            errors.append(caught.value)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", interrupted)
    store.write("a", one, Batch(((3, b"3"),), durable=durable))
    assert len(errors) == 2
    store.write("b", two, Batch(((3, b"3"),)))
    assert 3 in dict(store.read("a"))
    assert 3 in dict(store.read("b"))


def test_a_log_whose_lock_file_vanished(store, folder, monkeypatch):
    """A living process whose lock on its log was lost is fenced like any other."""
    (epoch,) = begin(store, "a")
    store._logs._locks().release(store._logs.name)
    name, other, take = store._logs.name, DiskStore(folder), FolderLogs.take

    def overtaken(self, name):
        taken = take(self, name)
        store.write("a", epoch, Batch(((3, b"3"),)))
        return taken

    monkeypatch.setattr(FolderLogs, "take", overtaken)
    begin(other, "b")  # takes in what looks like the log of a dead process
    assert store._logs.name != name
    assert 3 in dict(other.read("a"))


@pytest.mark.parametrize("generation", [-1, -(10**30), 1 << 64, 1 << 63, 1.5, True, None, "2", []])
def test_a_lease_with_a_damaged_generation(store, generation):
    """The next transaction of a run mends a damaged number in the row of its lease."""
    (epoch,) = begin(store, "a")
    with store._rows.transaction(durable=True):
        row = store._rows.lease("a")
        fields = json.loads(row[24:]) | {"generation": generation}
        store._rows.put_lease("a", row[:24] + json.dumps(fields).encode())
    store.write("a", epoch, Batch(((3, b"3"),), prune=1))
    for number in (4, 5):
        store.write("a", epoch, Batch(((number, b"%d" % number),)))
        store.write("a", epoch, Batch(put={"checkpoint": b"%d" % number}, durable=False))
    assert store._logs.own.tails["a"].generation == store._held["a"].generation
    store.release("a", epoch)
    other = type(store)(store.path)
    epoch = other.acquire("a", ME)
    other.write("a", epoch, Batch(((6, b"6"),), head=Head("a", "w", False, b"")))
    assert list(dict(other.read("a"))) == [2, 3, 4, 5, 6]
    assert other.get("a", "checkpoint") == b"5"


def test_a_foreign_file_among_the_logs(store):
    """A file of another program in the folder of logs stays as it is; a folder hinders no run."""
    folder = Path(store._logs._folder)
    (folder / "folder").mkdir(parents=True)
    names = ["notes.txt", "0123456789abcdeF", "0123456789abcdef0", ".nfs000000000001"]
    for name in names:
        (folder / name).write_text(name)
        (folder / name).chmod(0o640)
    begin(store, "a")
    assert "folder" in logs(store)
    for name in names:
        assert (folder / name).read_text() == name
        assert (folder / name).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "look",
    [
        lambda store: 3 in dict(store.read("a")),
        lambda store: store.get("a", "c/3") == b"3",
        lambda store: store.names("a") == ["c/3"],
    ],
    ids=["read", "get", "names"],
)
def test_an_interrupted_flush(store, monkeypatch, look):
    """What is read after an interrupted flush is on the disk: the log was taken in before."""
    (epoch,) = begin(store, "a")
    name = store._logs.name

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ProcessLog, "flush", interrupted)
        store.write("a", epoch, Batch(((3, b"3"),), {"c/3": b"3"}))
    assert look(store)
    assert store._logs.name != name
    assert not store._logs.own.tails


@pytest.fixture
def full(store, monkeypatch):
    """A function of the system that finds the disk full, and so does the database."""

    def fails(*_):
        raise OSError(28, "No space left on device")

    @contextlib.contextmanager
    def finds(name):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fails)
            patch.setattr(store._rows, "commit", fails)
            yield

    return finds


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_a_full_disk_and_readers(store, full, name):
    """While the disk is full, its process reads what was acknowledged, and nothing else."""
    one, two = begin(store, "a", "b")
    store.write("a", one, Batch(((3, b"3"),)))
    store.write("a", one, Batch(put={"checkpoint": b"3"}, durable=False))
    with full(name):
        with pytest.raises(StoreError, match="No space"):
            store.write("b", two, Batch(((3, b"3"),)))
        assert dict(store.read("a"))[3] == b"3"
        assert (store.get("a", "checkpoint"), store.names("a")) == (b"3", ["checkpoint"])
        if name == "pwrite":
            assert list(dict(store.read("b"))) == [1, 2]
        else:  # perhaps it is on the disk
            with pytest.raises(StoreError, match="No space"):
                list(store.read("b"))
    other = type(store)(store.path)
    assert list(dict(other.read("a"))) == list(dict(store.read("a"))) == [1, 2, 3]
    assert list(dict(other.read("b"))) == list(dict(store.read("b")))
    store.write("a", one, Batch(((4, b"4"),)))
    store.write("b", two, Batch(((4, b"4"),)))


def test_a_failed_commit_and_a_full_log(store, small, monkeypatch):
    """A run whose last commit failed is not taken for one whose row names the log."""
    one, two = begin(store, "a", "b")
    store.write("a", one, Batch(((3, b"3"),)))
    store.write("a", one, Batch(((4, b"4"),), prune=1, durable=False))  # its old tail is kept

    def fails():
        raise OSError(28, "full")

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(store._rows, "commit", fails)
        store.write("a", one, Batch(((5, b"5"),), prune=2))
    for number in range(3, 60):
        store.write("b", two, Batch(((number, bytes(90)),), durable=False))
    store.write("a", one, Batch(((6, b"6"),)))
    assert [number for number, _ in store.read("a")][-2:] == [4, 6]


def test_a_run_that_is_begun_again_while_its_old_frames_are_kept(store):
    """A run's new frames are no continuation of what its process had written as an earlier owner.

    Nothing is durable here, so that the old frames are kept until a flush.
    """
    (epoch,) = begin(store, "a")
    for number in (3, 4):
        store.write("a", epoch, Batch(((number, b"old"),), durable=False))
    store.release("a", epoch)
    epoch = store.acquire("a", ME)
    for number in range(5, 9):
        store.write("a", epoch, Batch(((number, b"new"),), durable=False))
    assert [*dict(store.read("a"))] == [*range(1, 9)]
    store.close()
    assert [*dict(store.read("a"))] == [*range(1, 9)]


def test_one_durable_batch_of_several(store, monkeypatch):
    """Batches that are written together are flushed once, whichever of them has to last."""
    one, two = begin(store, "a", "b")
    flushed, fdatasync = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (flushed.append(file), fdatasync(file)))
    wanted = [("a", one, Batch(((3, b"3"),))), ("b", two, Batch(((3, b"3"),), durable=False))]
    for number, each in enumerate((wanted, wanted[::-1]), 1):
        assert store.write_all(each) == [None, None]
        assert len(flushed) == number


@pytest.mark.parametrize("durable", [True, False])
def test_marks_of_what_lies_in_the_log(store, durable):
    """A batch that goes into the log moves the mark of its run, also if it need not last."""
    (epoch,) = begin(store, "a")
    for number in (3, 4):
        mark = b"%d" % number * 40
        store.write("a", epoch, Batch(((number, b"x"),), mark=mark, durable=durable))
        assert store.marks("a")[-1].startswith(mark)


def test_a_store_that_is_closed_on_a_full_disk(store, folder, monkeypatch):
    """A frame that the database cannot take in at the end stays in the log for others to find."""
    (epoch,) = begin(store, "a")
    store.write("a", epoch, Batch(((3, b"3"),)))

    def fails():
        raise OSError(28, "full")

    monkeypatch.setattr(store._rows, "commit", fails)
    store.close()
    other = DiskStore(folder)
    assert [*dict(other.read("a"))] == [1, 2, 3]


def writable(store):
    """Whether each of the logs is still its owner's."""
    folder = Path(store._logs._folder)
    return {bool((folder / name).stat().st_mode & 0o200) for name in logs(store)}


def test_logs_of_living_processes_are_left_alone(store, folder):
    """A process that begins its own log takes in no log whose process is alive."""
    (one,) = begin(store, "a")
    store.write("a", one, Batch(((3, b"3"),)))
    other = DiskStore(folder)
    begin(other, "b")
    assert len(logs(store)) == 2
    assert writable(store) == {True}


def test_a_file_system_without_permissions(store, folder, monkeypatch):
    """A living process's log that cannot be fenced is not taken in; a dead one's is."""
    one, two = begin(store, "a", "b")
    store.write("a", one, Batch(((3, b"3"),)))
    store.release("a", one)
    other = DiskStore(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "chmod", lambda *_: None)
        with pytest.raises(StoreError, match="no permissions"):
            other.acquire("a", ME)
        store.write("b", two, Batch(((3, b"3"),)))
        die(store)
        other.acquire("a", ME)
    assert [*dict(other.read("a"))] == [*dict(other.read("b"))] == [1, 2, 3]


@pytest.mark.parametrize("name", ["../../victim", "locks"])
def test_a_row_that_names_another_file(store, tmp_path, name):
    """Whatever a changed row of a lease names, no file is touched that is not a log."""
    (epoch,) = begin(store, "a")
    store.close()
    (tmp_path / "victim").write_bytes(b"mine")
    named = Path(store._logs._folder, name)
    with store._opened().transaction(durable=True):
        store._rows.put_lease("a", pack_lease(epoch, ME, name, 1))
    before = named.read_bytes()
    assert store.acquire("a", ME) == epoch + 1
    assert named.read_bytes() == before
    assert named.stat().st_mode & 0o200


def test_a_taker_that_had_looked_before(store, folder):
    """A process that takes a run over finds what was written since it last looked, too."""
    (epoch,) = begin(store, "a")
    other = DiskStore(folder)
    for number in (3, 4):
        store.write("a", epoch, Batch(((number, b"x"),)))
        assert number in dict(other.read("a"))
    store.write("a", epoch, Batch(((5, b"x"),)))
    store.release("a", epoch)
    other.acquire("a", ME)
    assert [*dict(other.read("a"))] == [1, 2, 3, 4, 5]


def test_an_owner_that_deletes_its_log_before_the_taker_does(store, folder, monkeypatch):
    """An owner whose log is taken goes on in another one, and hinders nobody by tidying up."""
    one, two = begin(store, "a", "b")
    store.write("a", one, Batch(((3, b"3"),)))
    store.release("a", one)
    name, other, take = store._logs.name, DiskStore(folder), FolderLogs.take

    def overtaken(self, name):
        monkeypatch.undo()
        taken = take(self, name)
        store.write("b", two, Batch(((3, b"3"),)))
        return taken

    monkeypatch.setattr(FolderLogs, "take", overtaken)
    other.acquire("a", ME)
    assert name not in logs(store)
    assert [*dict(other.read("a"))] == [*dict(other.read("b"))] == [1, 2, 3]


def test_an_owner_without_its_lock_that_writes_during_a_takeover(store, folder, monkeypatch):
    """A record that was acknowledged before the new epoch began is there in the new one."""
    epoch = store.acquire("a", ME)
    store.write("a", epoch, Batch(((1, b"1"),)))
    Path(folder, "leases").unlink()
    lock_file(store._lock_path)._held.clear()
    other = DiskStore(folder)

    def overtaken(rows, **durable):
        monkeypatch.undo()
        for number in (2, 3, 4):
            store.write("a", epoch, Batch(((number, b"x"),)))
        return rows.transaction(**durable)

    monkeypatch.setattr(Rows, "transaction", overtaken)
    assert other.acquire("a", ME) == epoch + 1
    assert [*dict(other.read("a"))] == [1, 2, 3, 4]
    with pytest.raises(LeaseLostError):
        store.write("a", epoch, Batch(((5, b"5"),)))


def test_a_large_object_beside_small_records(store):
    """A large batch is not written into the log, whatever part of it is large."""
    (epoch,) = begin(store, "a")
    folder = Path(store._logs._folder)
    for number, large in ((3, bytes(300_000)), (5, bytes(3_000_000))):
        store.write("a", epoch, Batch(((number, b"x"),), {f"c/{number}": large}))
        store.write("a", epoch, Batch(((number + 1, large),)))
        assert store.get("a", f"c/{number}") == large
        assert sum((folder / name).stat().st_size for name in logs(store)) < 1 << 16
    assert [*dict(store.read("a"))] == [*range(1, 7)]


def test_a_run_that_is_acquired_again_leaves_the_log(store):
    """A process goes on with its log when it releases one of its runs and acquires it again."""
    epoch, _ = begin(store, "a", "b")
    store.write("a", epoch, Batch(((3, b"3"),)))
    name = store._logs.name
    store.release("a", epoch)
    (epoch,) = begin(store, "a")
    assert store._logs.name == name
    assert writable(store) == {True}
    with pytest.raises(LeaseLostError):
        store.write("a", epoch - 1, Batch(((4, b"4"),)))
    store.release("a", epoch - 1)  # too late: it is another owner's by now
    assert store.owner("a") is not None
    store.write("a", epoch, Batch(((4, b"4"),)))
    assert [*dict(store.read("a"))] == [1, 2, 3, 4]


def test_a_run_that_has_ended_leaves_the_log(store, folder):
    """The log of a process is not taken away for a run whose last batch was its head."""
    (epoch,) = begin(store, "a")
    store.write("a", epoch, Batch(((3, b"3"),)))
    store.write("a", epoch, Batch(((4, b"4"),), head=Head("a", "flow", True, b"head")))
    store.release("a", epoch)
    other = DiskStore(folder)
    assert other.acquire("a", ME) == epoch + 1
    assert writable(store) == {True}
    assert [*dict(other.read("a"))] == [1, 2, 3, 4]


# -- an interrupt at any place ---------------------------------------------------------------------

OURS = ("disk.py", "_folder_logs.py", "_process_log.py", "_rows.py")


def handler(code, at):
    """Where an exception of a bytecode leads to."""
    entries = dis._parse_exception_table(code)
    return next((each.target for each in entries if each.start <= at < each.end), None)


@functools.cache
def looks_for_signals(code, last, at):
    """Whether a signal can be met after one bytecode, as if it came in front of another."""
    name = dis.opname[code.co_code[last]]
    looks = name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")
    return looks and handler(code, last) == handler(code, at)


class Interrupt:
    """Raises a Ctrl-C at the n-th place in the stores' modules where Python looks for signals.

    That is after a call, at the start of a function and at the end of a loop's body, not between
    any two bytecodes: so the lock of a ``with`` is taken and released as one.
    """

    def __init__(self, at):
        self.at = at
        self.count = 0
        self.last = {}  # by frame: where the bytecode before is

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            last = self.last.get(frame, 0)
            self.last[frame] = frame.f_lasti
            if not looks_for_signals(frame.f_code, last, frame.f_lasti):
                return self
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)
        self.last.clear()


def interruptible(folder, at, what):
    """Write with an interrupt at a place; returns how many places there were, and the end."""
    store = DiskStore(folder)
    one, two = begin(store, "a", "b")
    expected = {run: state(store, run) for run in ("a", "b")}
    batches = {
        "small": Batch(((3, b"3"),), {"c/1": b"1"}),
        "checkpoint": Batch(put={"c/1": b"1"}, durable=False),
        "database": Batch(((3, b"3"),), prune=1),
        "full": Batch(((3, bytes(LIMIT // 4)),)),
    }
    if what == "full":
        for number in range(3, 9):
            more = Batch(((number, bytes(LIMIT // 9)),), durable=number == 8)
            store.write("b", two, more)
            expected["b"] = after(expected["b"], more)
    interrupt, told = Interrupt(at), False
    with contextlib.suppress(KeyboardInterrupt), interrupt:
        if what == "acquire":
            store.release("a", one)
            one = store.acquire("a", ME)
        else:
            store.write("a", one, batches[what])
        told = True
    possible = [expected["a"]]
    if what != "acquire":
        possible = [*possible * (not told), after(expected["a"], batches[what])]
    return store, interrupt.count, possible, expected["b"], (one, two)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no table of exceptions")
@pytest.mark.parametrize("what", ["small", "checkpoint", "database", "full", "acquire"])
def test_an_interrupt_at_any_place(tmp_path, small, what):
    """Wherever a Ctrl-C hits a write, all of it is there or nothing, and the next write works."""
    store, count, *_ = interruptible(tmp_path / "whole", -1, what)
    store.close()
    assert count > 30
    step = max(1, count // size(25, count))
    for at in range(1 + sum(map(ord, what)) % step, count, step):
        folder = tmp_path / str(at)
        store, _, possible, other, (one, two) = interruptible(folder, at, what)
        if at % 2:  # the process goes on
            with contextlib.suppress(LeaseLostError):
                more = Batch(((30, b"30"),))
                if what == "acquire":
                    with contextlib.suppress(RunOwnedError):
                        one = store.acquire("a", ME)
                store.write("a", one, more)
                possible = [after(each, more) for each in possible]
            store.write("b", two, more)
            other = after(other, more)
            assert state(store, "a") in possible, at
            assert state(store, "b") == other, at
        die(store)
        lock_file(store._lock_path).release("a")  # an interrupted acquisition may have it still
        reader = DiskStore(folder)
        assert state(reader, "a") in possible, at
        found = state(reader, "a")
        reader.acquire("a", ME)
        assert state(reader, "a") == found, at
        assert state(reader, "b") == other, at
        reader.close()
        close_lock_files(str(folder))
        shutil.rmtree(folder)
