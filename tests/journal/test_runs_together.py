"""Runs of one process that write at once share a transaction; each has its own outcome."""

import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import threading

import pytest
from harness import python
from store_tools import pragma

import stepwise
from stepwise import LeaseLostError, StoreError
from stepwise.stores import Batch, Owner, open_store
from stepwise.stores._group_commit import Share, commits_of
from stepwise.stores._rows import Rows

OWNER = Owner(os.getpid(), "here", 0.0)
RUNS = 12


@pytest.fixture
def store(tmp_path):
    store = open_store(f"disk:{tmp_path}/store")
    yield store
    store.close()


class Held:
    """Keeps the first commit waiting until it is let go, and counts them all."""

    def __init__(self, monkeypatch):
        self.count = 0
        self.began, self.go = threading.Event(), threading.Event()
        commit = Rows.commit

        def held(transactions):
            self.count += 1
            self.began.set()
            assert self.go.wait(300)
            commit(transactions)

        monkeypatch.setattr(Rows, "commit", held)


def together(store, held, epochs):
    """Have each run write one record while the first commit is held; who got which error."""
    errors, commits = {}, commits_of(store, fsync=True)

    def write(number):
        record = ((1, b"%d" % number),)
        try:
            share = Share()
            share.wanted = f"run{number}", epochs[number], Batch(records=record, durable=True)
            commits.write(share)
        except (StoreError, LeaseLostError) as error:
            errors[number] = error

    threads = [threading.Thread(target=write, args=(number,)) for number in range(RUNS)]
    threads[0].start()
    assert held.began.wait(300)
    for thread in threads[1:]:
        thread.start()
    while len(commits._waiting) < RUNS:
        threading.Event().wait(0.001)
    held.go.set()
    for thread in threads:
        thread.join()
    return errors


def records(store):
    return {n: [data for _, data in store.read(f"run{n}")] for n in range(RUNS)}


def test_runs_share_a_transaction(store, monkeypatch):
    """What many runs write while one waits for the disk is written with the next transaction."""
    epochs = [store.acquire(f"run{number}", OWNER) for number in range(RUNS)]
    held = Held(monkeypatch)
    assert together(store, held, epochs) == {}
    assert held.count == 2
    assert records(store) == {number: [b"%d" % number] for number in range(RUNS)}


@pytest.mark.parametrize("lasting", [0, 1, 2])
def test_one_run_that_must_last_makes_what_it_shares_last(store, lasting):
    """A transaction of several runs is flushed if any one of them relies on that."""
    epochs = [store.acquire(f"run{number}", OWNER) for number in range(3)]
    store._write(
        *(
            (f"run{n}", epochs[n], Batch(records=((1, b"x"),), durable=n == lasting))
            for n in range(3)
        )
    )
    assert pragma(store, "synchronous") == 2


def test_an_error_is_of_one_run(store, monkeypatch):
    """A run that cannot be written, or has lost its lease, gets the error; the others are there."""
    epochs = [store.acquire(f"run{number}", OWNER) for number in range(RUNS)]
    epochs[5] += 1
    rows = type(store._rows)
    put = rows.put_record

    def fails(self, run_id, number, data):
        if run_id == "run7":
            raise sqlite3.OperationalError("database or disk is full")
        put(self, run_id, number, data)

    monkeypatch.setattr(rows, "put_record", fails)
    errors = together(store, Held(monkeypatch), epochs)
    assert {number: type(each) for number, each in errors.items()} == {
        5: LeaseLostError,
        7: StoreError,
    }
    assert "full" in str(errors[7])
    assert records(store) == {n: [b"%d" % n] if n not in (5, 7) else [] for n in range(RUNS)}


def test_a_checkpoint_does_not_wait_for_the_flush_of_another_run(store, monkeypatch):
    """While one run waits for the disk, another one's small checkpoint is put beside it."""
    one, other = (store.acquire(run, OWNER) for run in ("one", "other"))
    for number in (1, 2):  # from then on, what is small goes into the log
        store.write("other", other, Batch(records=((number, b"y"),)))
    held = Held(monkeypatch)
    batch = Batch(records=((1, b"x"),), durable=True)
    thread = threading.Thread(target=store.write, args=("one", one, batch))
    thread.start()
    assert held.began.wait(300)
    store.write("other", other, Batch(put={"checkpoint/000000000001": b"here"}, durable=False))
    held.go.set()
    thread.join()
    assert store.get("other", "checkpoint/000000000001") == b"here"
    assert [data for _, data in store.read("one")] == [b"x"]


# -- real processes ------------------------------------------------------------------------------

AGENTS = """
import asyncio, os, sys, threading
from stepwise import step, tool, workflow

COUNT, STEPS = int(sys.argv[2]), int(sys.argv[3])

def told(text):
    os.write(1, text.encode() + b"\\n")

@step
def work(run, n):
    return n

@tool(side_effect=True, in_doubt="skip")
def send(run, n):
    told(f"sent {run} {n}")
    return n

@workflow
def agent(run):
    total = 0
    for n in range(STEPS):
        total += work(run, n)
        told(f"done {run} {n}")
        if n % 3 == 1:
            send(run, n)
    return total

@step
async def awork(run, n):
    await asyncio.sleep(0)
    return n

@workflow
async def aagent(run):
    total = 0
    for n in range(STEPS):
        total += await awork(run, n)
        told(f"done {run} {n}")
    return total

def of(workflow, number):
    return workflow.options(store=sys.argv[1], run_id=f"run{number}")

async def all_of_them():
    return await asyncio.gather(*[of(aagent, n)(n) for n in range(COUNT)])

def in_threads():
    got = {}
    def run(n):
        got[n] = of(agent, n)(n)
    threads = [threading.Thread(target=run, args=(n,)) for n in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [got[n] for n in range(COUNT)]

got = asyncio.run(all_of_them()) if sys.argv[4] == "tasks" else in_threads()
assert got == [sum(range(STEPS))] * COUNT, got
told("all done")
"""


@pytest.mark.parametrize("kind", ["tasks", "threads"])
@pytest.mark.parametrize("lines", [5, 60, 140])
def test_many_runs_are_killed_and_go_on(fork, tmp_path, kind, lines):
    """Of 20 runs in one killed process, what was done is on record, and nothing is sent twice."""
    url = f"disk:{tmp_path}/store"
    script = fork(AGENTS, url, 20, 9, kind)
    told = [script.hear() for _ in range(lines)]
    script.kill()
    *rest, _ = script.process.stdout.read().split("\n")  # without the line that is cut off
    told += rest
    recorded = {
        f"done {run.id.removeprefix('run')} {each.result}"
        for run in stepwise.runs(store=url)
        for each in run.steps
        if each.status == "completed" and each.name.endswith("work")
    }
    assert {line for line in told if line.startswith("done")} <= recorded
    again = fork(pathlib.Path(script.process.args[-5]), url, 20, 9, kind).finish().split("\n")
    told += again
    assert told[-1] == "all done"
    sent = [line for line in told if line.startswith("sent")]
    assert len(sent) == len(set(sent))


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace to count flushes with")
@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_many_runs_share_flushes(tmp_path, kind):
    """40 runs at once with 30 steps each wait for the disk far fewer than 1,200 times."""
    trace, program = tmp_path / "trace", tmp_path / "agents.py"
    program.write_text(AGENTS, encoding="utf-8")
    disk = "inject=fsync,fdatasync:delay_exit=2000"  # as slow as a disk, wherever the store is
    calls = ["-e", "trace=fsync,fdatasync", "-e", disk, "-o", str(trace)]
    agents = [sys.executable, str(program), f"disk:{tmp_path}/store", "40", "30", kind]
    subprocess.run(
        ["strace", "-f", "--seccomp-bpf", *calls, *agents],
        check=True,
        timeout=300,
        stdout=subprocess.DEVNULL,
    )
    assert 30 <= trace.read_text().count("sync(") <= 700


FORKING = """
import os, sys, threading
from stepwise import step, workflow

@step
def work(run, n):
    return n

@workflow
def agent(run):
    return sum(work(run, n) for n in range(30))

def run(n):
    assert agent.options(store=sys.argv[1], run_id=f"run{n}")(n) == sum(range(30))

run(99)  # what is loaded on use is loaded: Python's locks of imports do not survive a fork
threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
for thread in threads:
    thread.start()
children = []
for n in range(100, 106):
    child = os.fork()
    if not child:
        run(n)
        os._exit(0)
    children.append(child)
for thread in threads:
    thread.join()
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_a_fork_among_many_runs_goes_on_with_its_own(fork, tmp_path):
    """A child that was forked while runs were writing has runs of its own in the same store."""
    fork(FORKING, f"disk:{tmp_path}/store").finish()


OPENING = """
import os, signal, threading
from stepwise import stores

began, go, make = threading.Event(), threading.Event(), stores._make

def slowly(*which):
    began.set()
    assert go.wait(300)
    return make(*which)

stores._make = slowly
os.register_at_fork(before=go.set)
thread = threading.Thread(target=stores.open_store, args=("memory:one",))
thread.start()
assert began.wait(300)
child = os.fork()
if not child:
    signal.alarm(60)
    stores.open_store("memory:another")
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("name", ["OPENING", "STARTING"])
def test_a_fork_while_a_store_is_being_opened_does_not_hang(name):
    """A child that was forked while another thread opened a store, or began a run, can do both."""
    python("-W", "ignore", "-c", globals()[name], code=0)


STARTING = """
import os, signal, threading
from stepwise import workflow
from stepwise._workflows import definition as _definition

began, go, file_of = threading.Event(), threading.Event(), _definition.file_of

def slowly(module):
    if threading.current_thread() is not threading.main_thread():
        began.set()
        assert go.wait(300)
    return file_of(module)

_definition.file_of = slowly

def run(n):
    @workflow(name=f"agent{n}")
    def agent():
        return n
    assert agent.options(store="memory:")() == n

run(1)
thread = threading.Thread(target=run, args=(2,))
thread.start()
assert began.wait(300)
child = os.fork()
if not child:
    signal.alarm(30)
    run(3)
    os._exit(0)
_, status = os.waitpid(child, 0)
go.set()
thread.join()
assert status == 0
"""
