"""What lies in the place of something else of its kind is refused, whoever put it there."""

import contextlib
import itertools
import os
import random
import shutil
import sqlite3

import pytest
from killed import forget_process
from store_tools import ME
from sweeping import SEED, many

import stepwise
from stepwise import DidNotHappen, Landed, current_step, step, tool, workflow
from stepwise._checkpoints.checkpoints import PREFIX, load_checkpoint
from stepwise._checkpoints.references import Vault
from stepwise._journal import seal as _seal
from stepwise._journal import summary
from stepwise._journal.journal import Journal, facts_of, read, seal_for
from stepwise._journal.records import Entry
from stepwise.stores import Batch
from stepwise.stores.disk import DiskStore
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

IDS = ("one", "two", "three")
LOOKED, RESUMED = 8, 2  # pairs of each kind

paid = []


@step
def note(n):
    return {"n": n, "text": "word " * 20}


def look(call):
    """Whether it was paid, asked of who was paid."""
    found = [n for _, n, key in paid if key == call.idempotency_key]
    return Landed(found[0]) if found else DidNotHappen


@tool(side_effect=True, in_doubt=look)
def pay(n):
    paid.append((current_step().run_id.partition("/")[0], n, current_step().idempotency_key))
    return n


@workflow
def child(n):
    return pay(n)


@workflow
def nightly(count):
    notes = []
    for n in range(count):
        notes.extend(note(each) for each in range(n * 9, n * 9 + 9))
        if n == 2:
            child(n)
        else:
            pay(n)
    return len(notes), stepwise.current_run().id


def begin(folder):
    """Three runs of one call: completed, and stopped before the third and the fourth payment."""
    for run_id, stop in zip(IDS, (None, 3, 4), strict=True):
        stopping = crash_at(pay, "before", call=stop) if stop else contextlib.nullcontext()
        with fresh_store(folder), contextlib.suppress(SimulatedCrash), stopping:
            resume(run_id)


def resume(run_id):
    return nightly.options(run_id=run_id)(4)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A folder with runs, what is seen in it, and what was paid."""
    folder = tmp_path_factory.mktemp("swapped") / "store"
    opened = DiskStore(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "EVERY", 9)
        patch.setenv("STEPWISE_HOME", str(folder.parent))
        paid.clear()
        patch.setenv("STEPWISE_QUIET", "1")
        begin(opened)
        found = seen(opened)
    opened.close()
    assert len(found["listed"]) >= len(IDS)
    assert ("two", 5) in found
    return folder, found, list(paid)


# -- what lies where -----------------------------------------------------------------------------


def places(folder):
    """Everything that is stored, by kind: where it lies."""
    found = {"mark": sorted((folder / "marks").iterdir())}
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as con:
        for row, key in con.execute("SELECT rowid, key FROM Cache ORDER BY key"):
            found.setdefault(f"row {key[0]}", []).append(("Cache", row))
        heads = con.execute("SELECT rowid FROM Heads ORDER BY run").fetchall()
        found["row h"] = [("Heads", row) for (row,) in heads]
    return found


def swap(folder, one, other):
    """Let two rows, or two files of marks, change places."""
    if isinstance(one, tuple):
        (table, one), (_, other) = one, other
        with contextlib.closing(sqlite3.connect(folder / "cache.db")) as con:
            wanted = f"SELECT rowid, value FROM {table} WHERE rowid IN (?, ?)"
            values = dict(con.execute(wanted, (one, other)).fetchall())
            for here, there in ((one, other), (other, one)):
                put = f"UPDATE {table} SET value = ? WHERE rowid = ?"
                con.execute(put, (values[there], here))
            con.commit()
        return
    one, other = folder / "marks" / one.name, folder / "marks" / other.name
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def pairs(name, found, count):
    every = list(itertools.combinations(found, 2))
    return random.Random(f"{SEED} {name}").sample(every, many(min(count, len(every)), len(every)))


# -- what is seen --------------------------------------------------------------------------------


def seen(store):
    """Facts, records and checkpoints of each run, as far as they verify; what is listed."""
    seal, found = seal_for(store), {}
    runs = [each for run_id in IDS for each in (run_id, *children(store, seal, run_id))]
    for run_id in runs:
        facts = attempt(facts_of, store, seal, run_id)
        found[run_id, "facts"] = facts and (facts.run_id, facts.digest, facts.status, facts.parent)
        for entry, _ in attempt(lambda each: list(read(store, seal, each)), run_id) or ():
            if isinstance(entry, Entry):
                found[run_id, entry.number] = entry
        vault = Vault(store, seal, run_id)
        for name in attempt(store.names, run_id, PREFIX) or ():
            loaded = attempt(load_checkpoint, vault, name)
            if loaded is not None:
                found[run_id, name] = loaded.state, loaded.payload
        attempt(lambda each: Journal(store, seal, each, 0, fsync=False).load(), run_id)
    found["listed"] = sorted(each.id for each in attempt(stepwise.runs, store=store) or ())
    return found


def children(store, seal, run_id):
    return [head.run_id for head in store.heads() if head.run_id.startswith(f"{run_id}/")]


def attempt(call, *args, **kwargs):
    """What a call gives; ``None`` if it is refused."""
    try:
        return call(*args, **kwargs)
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return None


def wrong(expected, now):
    """What is seen in a place that was not there before."""
    found = [
        (key, value)
        for key, value in now.items()
        if key != "listed" and value is not None and value != expected.get(key)
    ]
    extra = [each for each in now["listed"] if now["listed"].count(each) > 1]
    return found + [("listed twice", each) for each in extra]


# -- the sweep -----------------------------------------------------------------------------------


def swapped(pristine, tmp_path, count):
    """Yield a store for each pair of things that changed places, and which they are."""
    folder, *_ = pristine
    for name, those in places(folder).items():
        for number, (one, other) in enumerate(pairs(name, those, count)):
            copy = tmp_path / f"{name} {number}"
            shutil.copytree(folder, copy)
            swap(copy, one, other)
            yield DiskStore(copy), (name, one, other)
            shutil.rmtree(copy)


@pytest.fixture(autouse=True)
def same_key(pristine, monkeypatch):
    monkeypatch.setenv("STEPWISE_HOME", str(pristine[0].parent))


def test_what_is_seen_of_swapped_objects(pristine, tmp_path, tally):
    """Of each two stored things that changed places, nothing is seen in the place of the other."""
    trials = 0
    for store, what in swapped(pristine, tmp_path, LOOKED):
        assert wrong(pristine[1], seen(store)) == [], what
        store.close()
        trials += 1
    assert trials > 20
    tally("two stored objects swapped", trials)


def test_going_on_with_swapped_objects(pristine, tmp_path, tally):
    """A run whose stored things were swapped pays each sum once, with its own key, or stops."""
    keys = {(run, n): key for run, n, key in finished(pristine, tmp_path)}
    trials = stopped = 0
    for store, what in swapped(pristine, tmp_path, RESUMED):
        forget_process()
        paid[:] = pristine[2]
        with fresh_store(store):
            for run_id in IDS:
                result = attempt(resume, run_id)
                stopped += result is None
                assert result in (None, (36, run_id)), what
        acts = [(run, n) for run, n, _ in paid]
        assert len(acts) == len(set(acts)), what
        assert {(run, n): key for run, n, key in paid}.items() <= keys.items(), what
        trials += 1
    tally("two stored objects swapped", trials, stopped=stopped)


def finished(pristine, tmp_path):
    """What is paid in all, if nothing is swapped."""
    shutil.copytree(pristine[0], tmp_path / "whole")
    paid[:] = pristine[2]
    with fresh_store(DiskStore(tmp_path / "whole")):
        assert [resume(run_id) for run_id in IDS] == [(36, run_id) for run_id in IDS]
    return list(paid)


def test_the_sweep_sees_seals_without_a_place(tmp_path, monkeypatch):
    """Were the place no part of the seal, the sweep would see things in the place of others."""
    monkeypatch.setattr(_seal, "_named", lambda _: b"\0\0\0\0")
    folder = tmp_path / "pristine"
    begin(DiskStore(folder))
    expected = seen(DiskStore(folder))
    there = folder, expected, []
    assert any(wrong(expected, seen(store)) for store, _ in swapped(there, tmp_path, LOOKED))


def test_a_run_id_with_a_slash_is_no_part_of_a_name(tmp_path):
    """A checkpoint of run ``a/b`` is no object of run ``b``, whatever its name is there."""

    @workflow
    def named():
        whose = f"variables of {stepwise.current_run().id}"
        note(1)
        return whose

    with fresh_store(DiskStore(tmp_path / "store")) as store:
        runs = [named.options(run_id=each).execute() for each in ("a/b", "b")]
        name = store.names("a/b", PREFIX)[-1]
        epoch = store.acquire("b", ME)
        store.write("b", epoch, Batch(put={f"{name}/a": store.get("a/b", name)}))
        store.release("b", epoch)
        assert runs[1].locals() == {"whose": "variables of b"}
        assert not runs[1].verify().ok
        assert load_checkpoint(Vault(store, runs[1]._seal, "b"), f"{name}/a") is None


@step
def large():
    return b"x" * (2 << 20)


@workflow(run_id="large")
def keeps_a_file():
    return len(large())


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_pipe_in_the_place_of_a_value_file(what, tmp_path):
    """What is no file in the place of a value is a damaged record: nothing waits for it."""
    with fresh_store(DiskStore(tmp_path / "store")) as store:
        assert keeps_a_file() == 2 << 20
        store.close()
    (value,) = (tmp_path / "store").glob("??/??/*.val")
    value.unlink()
    os.mkfifo(value) if what == "pipe" else value.symlink_to("/dev/zero")
    with fresh_store(DiskStore(tmp_path / "store")):
        assert not stepwise.get_run("large").verify().ok


@pytest.mark.parametrize("kind", "lh")
def test_rows_that_nest_without_end(kind, tmp_path):
    """A lease, or the open part of a head, that is JSON of any depth counts as damaged."""
    with fresh_store(DiskStore(tmp_path / "store")) as store:
        assert keeps_a_file() == 2 << 20
        store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "cache.db")) as con:
        table, which = ("Heads", "TRUE") if kind == "h" else ("Cache", "key LIKE 'l/%'")
        key, row = con.execute(f"SELECT rowid, value FROM {table} WHERE {which}").fetchone()
        deep = b"[" * 100_000
        front = row[:24] if kind == "l" else len(deep).to_bytes(4, "big")
        con.execute(f"UPDATE {table} SET value = ? WHERE rowid = ?", (front + deep, key))
        con.commit()
    with fresh_store(DiskStore(tmp_path / "store")):
        assert keeps_a_file() == 2 << 20
        assert stepwise.get_run("large").owner is None


def test_verify_tells_of_objects_that_are_none_of_ours(tmp_path):
    """An object whose name is like that of a checkpoint, and is none, is damage, not a crash."""
    with fresh_store(DiskStore(tmp_path / "store")) as store:
        assert keeps_a_file() == 2 << 20
        epoch = store.acquire("large", ME)
        store.write("large", epoch, Batch(put={f"{PREFIX}x": b"x"}))
        store.release("large", epoch)
        run = stepwise.get_run("large")
        assert not run.verify().ok
        assert run.repair().ok
