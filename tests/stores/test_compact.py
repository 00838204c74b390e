"""Deleted runs leave free space in a store; it can be given back to the disk."""

import os
import random
import signal
import threading

import pytest
from command import process

import stepwise
from stepwise import step, workflow
from stepwise.cli import maintain
from stepwise.stores import open_store


@step
def work(number):
    return random.Random(number).randbytes(50_000)


@workflow(durability="os")
def agent(first, count):
    return sum(len(work(number)) for number in range(first, first + count))


@pytest.fixture
def filled(tmp_path):
    """A store with one run left of two."""
    store = open_store(f"disk:{tmp_path}/runs")
    large = agent.options(store=store).execute(0, 100)
    small = agent.options(store=store).execute(1000, 10)
    large.delete()
    yield store, small
    store.close()


def size(store):
    """Bytes on the disk: what was written last is in the log."""
    files = store._database, f"{store._database}-wal"
    return sum(os.path.getsize(each) for each in files if os.path.exists(each))


def test_the_space_of_deleted_runs_is_given_back(filled, monkeypatch, capsys):
    """The database shrinks by what deleted runs left, and the other runs verify.

    Where much is free after a deletion, it is said how to give it back.
    """
    store, small = filled
    monkeypatch.setattr(maintain, "_MUCH", 1_000_000)
    stepwise.configure(store=store.url)
    maintain.prune.callback(0.0, keep=9, streams=False, dry_run=False, as_json=False)
    assert "MB are free in the store for later runs; to give them" in capsys.readouterr().err
    before, free = size(store), store.free()
    assert free > 4_000_000
    freed = store.compact()
    assert before - size(store) == freed >= free
    assert store.free() == 0
    assert small.verify().ok
    assert small.result == 10 * 50_000
    assert store.compact() == 0
    agent.options(store=store)(0, 20)  # its end is in the database's log, where nothing is free
    before = size(store)
    assert store.compact() == before - size(store) >= 0


def test_the_command(filled, tmp_path):
    """``stepwise compact`` says how much it was."""
    store, _ = filled
    store.close()
    said = process("compact", "--store", store.url)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"{store.url}: 5.")
    assert said.stdout.endswith(" MB given back\n")
    empty = process("compact", "--store", f"disk:{tmp_path}/none")
    assert empty.stdout.endswith(": 0 B given back\n")
    assert not (tmp_path / "none").exists()


def test_runs_go_on_meanwhile(filled):
    """A run that is in progress while its store is compacted misses nothing."""
    store, _ = filled
    done = []
    running = agent.options(store=store)
    thread = threading.Thread(target=lambda: done.append(running.execute(2000, 50)))
    thread.start()
    while thread.is_alive():
        store.compact()
    thread.join()
    assert done[0].verify().ok
    assert done[0].result == 50 * 50_000


COMPACTING = """
import os, signal, sys
from stepwise.stores import open_store
store = open_store(sys.argv[1])
store.free()
left = int(sys.argv[2])

def go_on():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

store._rows._con.set_progress_handler(go_on, 1)
store.compact()
print(left)
"""


@pytest.mark.parametrize("instructions", [1, 100, 300, 600])  # of some 700
def test_killed(filled, fork, instructions):
    """A process that is killed while it compacts a store has damaged nothing."""
    store, small = filled
    store.close()
    script = fork(COMPACTING, store.url, instructions)
    assert script.process.wait() == -signal.SIGKILL, script.hear()
    assert small.verify().ok
    assert small.result == 10 * 50_000
    store.compact()
    assert store.free() == 0
