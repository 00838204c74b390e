"""The protocol of a process's log, as a model of which every interleaving is visited.

The model is ``programs/log_model.py``.  That the stores make the model's operations in the model's
order is looked at here, too, and that the model reads a file as they do.
"""

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_model import Frame, Rules, World, explore, frames_of
from store_tools import ME
from sweeping import WHOLE

from stepwise.stores import Batch
from stepwise.stores._process_log import FolderLogs, LogReader, _encode, _seed
from stepwise.stores.disk import DiskStore

WORLDS = {
    "a-reader": World(batches=2, room=2, cuts=0, kills=0),
    "a-power-cut": World(batches=4, room=2, kills=0, looks=0),
    "a-taker-that-is-killed": World(batches=3, room=2, looks=0),
}
if WHOLE:  # millions of states
    WORLDS |= {
        "a-longer-reader": World(batches=3, room=2, cuts=0, kills=0),
        "a-power-cut-after-more": World(batches=5, room=2, kills=0, looks=0),
        "all": World(batches=4, room=2),
        "more-batches": World(batches=6, room=3, looks=0),
    }

# For each rule, what goes wrong without it.
LOST, READER = WORLDS["a-power-cut"], WORLDS["a-reader"]
MUTANTS = {
    "flush": (LOST, "acknowledged batches are lost"),
    "fence": (LOST, "acknowledged batches are lost"),
    "check": (LOST, "acknowledged batches are lost"),
    "fence_before_read": (LOST, "acknowledged batches are lost"),
    "generation_in_frame": (LOST, "a batch is there without an earlier one"),
    "durable_row": (LOST, "acknowledged batches are lost"),
    "durable_before_rewind": (LOST, "acknowledged batches are lost"),
    "commit_before_unlink": (LOST, "acknowledged batches are lost"),
    "file_before_name": (LOST, "acknowledged batches are lost"),
    "empty_commit_flushes": (LOST, "acknowledged batches are lost"),
    "end_waits_for_disk": (LOST, "acknowledged batches are lost"),
    "proof_of_this_round": (LOST._replace(batches=5), "a batch is there without an earlier one"),
    "row_again": (READER, "a reader finds"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_interleaving_keeps_every_promise(world):
    """No order of a writer, a taker and a reader, no kill and no power cut breaks a promise."""
    found = explore(Rules(), WORLDS[world])
    assert not found.wrong, str(found)
    assert found.states > 10_000, str(found)


@pytest.mark.parametrize("rule", [each.name for each in dataclasses.fields(Rules)])
def test_each_rule_is_needed(rule):
    """Without any one of its rules the protocol breaks a promise, and a short trace shows how."""
    world, wrong = MUTANTS[rule]
    found = explore(Rules(**{rule: False}), world)
    assert wrong in found.wrong, str(found)
    assert 1 < len(found.trace) <= 20, str(found)
    print(found)


# -- the model and the code ------------------------------------------------------------------------

SLOT = st.none() | st.tuples(st.integers(1, 9), st.integers(0, 8))


@given(st.lists(SLOT, max_size=6))
def test_the_model_reads_a_file_as_the_stores_do(tmp_path_factory, slots):
    """Of any frames, torn or of any numbers, the model's reader takes those that ours takes."""
    path = tmp_path_factory.mktemp("log") / "log"
    frames = [each and Frame(*each, 1, 0, place) for place, each in enumerate(slots)]
    data = b""
    for place, frame in enumerate(frames):
        front = (frame.number, frame.flushed, 1, 0) if frame else (1, 0, 1, 0)
        whole = _encode(_seed(str(path)), front, "run", Batch(((place, b"%d" % place),)))
        data += whole if frame else bytes(len(whole))
    path.write_bytes(data)
    reader = LogReader(str(path))
    reader.look()
    tail = reader.tail("run", 1, 0)
    found = [batch.records[0][0] for batch in tail.batches] if tail else []
    assert found == [frame.batch for frame in frames_of((*frames,))]


class Traced:
    """The operations of a store, in the words of the model."""

    def __init__(self, store, patch):
        self.seen = []
        self.store = store
        for name, word in (("pwrite", "adds"), ("fdatasync", "flushes"), ("fstat", "looks")):
            patch.setattr(os, name, self.of_descriptor(getattr(os, name), word))
        for name, word in (("chmod", "fences"), ("unlink", "deletes")):
            patch.setattr(os, name, self.of_path(getattr(os, name), word))
        look = LogReader.look
        patch.setattr(LogReader, "look", lambda own: (self.seen.append("reads"), look(own)))
        opens = FolderLogs.open
        patch.setattr(FolderLogs, "open", lambda own: (opens(own), self.seen.append("makes")))
        rows = store._rows or store._opened()
        lease = rows.lease
        patch.setattr(rows, "lease", lambda run: (self.seen.append("row"), lease(run))[1])
        rows._con.set_trace_callback(self.statement)

    def of_descriptor(self, real, word):
        def traced(descriptor, *rest):
            if descriptor == self.store._logs.own._descriptor:
                self.seen.append(word)
            return real(descriptor, *rest)

        return traced

    def of_path(self, real, word):
        def traced(path, *rest):
            if os.path.dirname(path) == self.store._logs._folder:
                self.seen.append(word)
            return real(path, *rest)

        return traced

    def statement(self, sql):
        if sql.startswith("COMMIT"):
            self.seen.append("commits" if self.store._rows._level == 2 else "commits in memory")
        elif sql.startswith("BEGIN"):
            self.seen.append("begins")

    def of(self, function, *args):
        """What a call does; equal operations in a row count once."""
        self.seen.clear()
        function(*args)
        seen = [each for each in self.seen if each != "begins"]
        return [each for place, each in enumerate(seen) if seen[place - 1 : place] != [each]]


@pytest.fixture
def traced(store, monkeypatch):
    store.acquire("run", ME)
    return Traced(store, monkeypatch)


def test_the_order_of_the_writer(traced):
    """The writer names a log that is there, flushes before it looks, and looks at each frame."""
    store = traced.store

    def written(number, **what):
        return traced.of(store.write, "run", 1, Batch(((number, b"x"),), **what))

    assert written(1) == ["row", "commits"]
    assert written(2, durable=False) == ["makes", "row", "commits in memory"]
    assert written(3, durable=False) == ["adds", "looks"]
    assert written(4) == ["row", "commits"]  # the row was not on the disk before
    assert written(5) == ["adds", "flushes", "looks"]  # and the folder
    assert written(6) == ["adds", "flushes", "looks"]
    assert written(7, prune=1) == ["row", "commits"]
    assert traced.of(store.close)[-2:] == ["commits", "deletes"]


def test_a_run_is_deleted_durably(traced):
    """A power cut brings nothing back of a run whose deletion returned."""
    traced.store.write("run", 1, Batch(((1, b"x"),), durable=False))
    assert traced.of(traced.store.delete, "run", 1)[-1] == "commits"


def test_the_order_of_a_full_log(traced):
    """The database has all of a log, durably, before the log is written over."""
    store = traced.store
    for number in (1, 2, 3):
        store.write("run", 1, Batch(((number, b"x"),)))
    store._logs.own._at = 1 << 20
    adds = traced.of(store.write, "run", 1, Batch(((4, b"x"),)))
    assert adds == ["row", "commits", "adds", "flushes", "looks"]
    assert store._logs.own._at < 1000


def test_the_order_of_the_taker(folder, monkeypatch):
    """The taker fences, reads, commits durably and deletes the log, before it acquires the run."""
    one, two = DiskStore(folder), DiskStore(folder)
    one.acquire("run", ME)
    for number in (1, 2, 3):
        one.write("run", 1, Batch(((number, b"x"),)))
    one.release("run", 1)
    trace = Traced(two, monkeypatch)
    assert trace.of(two.acquire, "run", ME) == [
        *("row", "fences", "reads", "row", "commits", "deletes"),
        *("row", "commits in memory"),
    ]


def test_the_order_of_the_reader(folder, monkeypatch):
    """The reader looks at the row, the log, the database, and the row again."""
    one, two = DiskStore(folder), DiskStore(folder)
    one.acquire("run", ME)
    for number in (1, 2, 3):
        one.write("run", 1, Batch(((number, b"x"),), {"name": b"x"}))
    trace = Traced(two, monkeypatch)
    get = two._rows.get_object
    monkeypatch.setattr(
        two._rows, "get_object", lambda *name: (trace.seen.append("database"), get(*name))[1]
    )
    assert trace.of(two.get, "run", "other") == ["row", "reads", "database", "row"]
    one.close()
    two.close()
