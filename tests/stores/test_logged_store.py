"""Stores whose processes have logs: what was acknowledged is there, whatever happens between."""

import contextlib
import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import KINDS, ME
from sweeping import WHOLE, size

from stepwise import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores import Batch, Head, _folder_store, _process_log
from stepwise.stores._locks import close_lock_files, lock_file
from stepwise.stores._process_log import ProcessLog

LIMIT = 3000  # bytes, instead of 128 KiB in a batch and 1 MiB in a log
RUNS = ("a", "b", "c")


@pytest.fixture
def small(monkeypatch):
    """Logs that are soon full, and batches that are soon too large for them."""
    monkeypatch.setattr(_process_log, "_LARGEST_LOG", LIMIT)
    monkeypatch.setattr(_folder_store, "LARGEST_BATCH", LIMIT // 3)


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
        store._rows.close()
    _folder_store._stores.discard(store)


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

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.stores = [kind(folder), kind(folder)]
        self.watcher = kind(folder)
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
        names = [f"c/{n}"] if put else []
        gone = [name for each in self.may_be[run] for name in each[1]] if delete else []
        head = Head(run, "flow", False, b"%d" % n) if kind == "head" else None
        prune = n - 3 if kind == "prune" else 0
        objects = dict.fromkeys(names, b"object %d" % n)
        return Batch(records, objects, tuple(sorted(set(gone))), prune, head, durable=durable)

    def write(self, who, run, batch, broken):
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
        self.stores[who], self.epochs[who] = self.kind(self.folder), {}

    def delete(self, who, run):
        if self.owner.get(run) == who:
            self.stores[who].delete(run, self.epochs[who][run])
            self.may_be[run] = [EMPTY]

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


who, run = st.integers(0, 1), st.sampled_from(RUNS)
often = st.sampled_from([None] * 6 + FAULTS)
written = st.tuples(
    st.just("write"),
    who,
    run,
    st.sampled_from(["small"] * 6 + ["large", "head", "prune"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    often,
)
ACTIONS = st.lists(
    st.one_of(
        *[written] * 6,
        st.tuples(st.just("look"), run),
        st.tuples(st.just("acquire"), who, run, st.booleans()),
        st.tuples(st.just("release"), who, run),
        st.tuples(st.just("gone"), who, st.booleans()),
        st.tuples(st.just("delete"), who, run),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", KINDS)
@given(actions=ACTIONS)
@settings(max_examples=400 if WHOLE else 60)
def test_what_was_acknowledged_is_there(tmp_path_factory, small, kind, actions):
    """Any order of batches, faults, kills and takeovers leaves what was acknowledged, and whole."""
    folder = tmp_path_factory.mktemp("store")
    world = World(KINDS[kind], folder / "store")
    for run in RUNS:
        world.acquire(0, run, stolen=False)
    for name, *args in actions:
        if name == "write":
            who, run, *what, broken = args
            world.write(who, run, world.batch(run, *what), broken)
        else:
            getattr(world, name)(*args)
    world.end()
    close_lock_files(str(folder))
    shutil.rmtree(folder)
