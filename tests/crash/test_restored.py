"""Older states of a store: refused where they can be told, asked about where somebody says so."""

import os
import shutil

import pytest
from harness import python
from killed import forget_process
from resuming import crashed

import stepwise
from stepwise import (
    DidNotHappen,
    JournalLostError,
    Landed,
    StepInDoubtError,
    current_step,
    step,
    tool,
    workflow,
)
from stepwise._journal.journal import seal_for
from stepwise._runs.verify import note_restored
from stepwise.stores.disk import DiskStore
from stepwise.testing import fresh_store

paid = []


@step
def price(n):
    return n * 10


@tool(side_effect=True)
def pay(n):
    paid.append((n, current_step().idempotency_key))
    return n


@workflow
def child(n):
    return pay(n)


@workflow
def nightly(what="money"):
    return [pay(0), price(pay(1)), child(2), pay(3)]


RESULT = [0, 10, 2, 3]


@pytest.fixture(autouse=True)
def nothing_paid():
    paid.clear()


def call(workflow=nightly):
    """As in a new process."""
    forget_process()
    return workflow.options(run_id="one")()


# -- a backup that is made while the program runs ------------------------------------------------


@pytest.mark.parametrize("first", ["marks", "records"])
def test_a_copy_of_a_store_in_use(tmp_path, first):
    """A copy is whole if its marks are the older part; the other way round it lacks records.

    The logs belong to the records, and are copied before the database, which takes them in.
    """
    folder, copy = tmp_path / "store", tmp_path / "copy"

    def backup(part):
        if part == "marks":
            (marks,) = folder.glob("*marks")
            shutil.copytree(marks, copy / marks.name)
        else:
            copy.mkdir(exist_ok=True)
            for logs in folder.glob("*logs"):
                shutil.copytree(logs, copy / logs.name)
            for path in database_of(folder):
                shutil.copy(path, copy)

    @step
    def save(part):
        backup(part)

    @workflow
    def busy():
        pay(0)
        save(first)
        pay(1)
        save({"marks": "records", "records": "marks"}[first])
        pay(2)

    with fresh_store(DiskStore(folder)):
        busy.options(run_id="one")()
    with fresh_store(DiskStore(copy)):
        found = stepwise.get_run("one").verify()
    assert found.ok == (first == "marks")


# -- an older database beside newer marks --------------------------------------------------------


def database_of(folder):
    return [path for path in folder.iterdir() if ".db" in path.name]


def put_back(copy, folder):
    """The database of a copy, beside the marks that there are now."""
    for path in database_of(folder):
        path.unlink()
    for path in database_of(copy):
        shutil.copy(path, folder)


@pytest.mark.parametrize("stop", [None, 1, 2, 3])
def test_an_older_run_of_the_same_id_does_not_come_back(tmp_path, stop):
    """After a run was deleted and begun again, its older database is no answer to its call."""
    folder = tmp_path / "store"
    with fresh_store(DiskStore(folder)):
        assert call() == RESULT
    shutil.copytree(folder, tmp_path / "copy")
    with fresh_store(DiskStore(folder)):
        stepwise.get_run("one").delete()
        if stop is None:
            assert call() == RESULT
        else:
            crashed(call, at=pay, when="recorded", nth=stop)
    put_back(tmp_path / "copy", folder)
    before = len(paid)
    with fresh_store(DiskStore(folder)):
        with pytest.raises(JournalLostError, match="another history"):
            call()
        assert not stepwise.get_run("one").verify().ok
        assert len(paid) == before
        assert stepwise.get_run("one").repair(accept_loss=True).ok
        assert call() == RESULT
        assert stepwise.get_run("one").verify().ok


def test_an_older_end_does_not_answer(tmp_path):
    """The recorded result of an older database is not given, if more was acknowledged since."""
    folder = tmp_path / "store"
    with fresh_store(DiskStore(folder)):
        assert call() == RESULT
        shutil.copytree(folder, tmp_path / "copy")
        stepwise.get_run("one").forget("price")
        assert call() == RESULT
    put_back(tmp_path / "copy", folder)
    with fresh_store(DiskStore(folder)):
        assert call() == RESULT  # no side effect is missing: the rest runs again
        assert stepwise.get_run("one").verify().tail  # until somebody gives that up
        assert stepwise.get_run("one").repair(accept_loss=True).ok
        assert call() == RESULT
    assert len(paid) == 4


# -- a backup of the whole folder ----------------------------------------------------------------


def backups(tmp_path):
    """Run it, with a copy of its folder after each event; the copies that hold the run."""
    folder, copies = tmp_path / "store", []

    def copy(event):
        copies.append(tmp_path / f"copy {len(copies)}")
        shutil.copytree(folder, copies[-1])

    end = stepwise.on_event(copy)
    try:
        with fresh_store(DiskStore(folder)):
            assert call() == RESULT
    finally:
        end()
    assert len(copies) > 15
    for each in copies:
        with fresh_store(DiskStore(each)) as store:
            if store.head("one") is not None:
                yield store


def settle_truly(doubt):
    """Say of a side effect in doubt what is true."""
    done = {key: n for n, key in paid}
    landed = doubt.idempotency_key in done
    said = {"landed": done[doubt.idempotency_key]} if landed else {"did_not_happen": True}
    stepwise.get_run(doubt.run_id).resolve(doubt.step, **said)


def finish():
    """Call until it ends; how often it asked."""
    for asked in range(9):
        try:
            assert call() == RESULT
            return asked
        except StepInDoubtError as doubt:
            settle_truly(doubt)
    raise AssertionError("it asks again and again")


def test_a_restored_backup_repeats_nothing(tmp_path, tally):
    """Whenever a backup was made: put back and said so, each side effect happens once in all."""
    trials = asked = 0
    for store in backups(tmp_path):
        before = list(paid)
        note_restored(store, seal_for(store))
        asked += finish()
        assert paid == before
        trials += 1
    assert asked > trials  # several in the older ones
    tally("a backup put back", trials, asked=asked)


def test_a_backup_that_nobody_told_of_repeats(tmp_path):
    """The control of the sweep: without a word, a backup put back repeats side effects."""
    repeated = 0
    for _ in backups(tmp_path):
        before = list(paid)
        finish()
        repeated += paid != before
        paid[:] = before
    assert repeated > 5


def test_what_did_not_happen_happens_once(tmp_path):
    """A side effect that a backup does not know, and that did not happen, is made, with its key."""
    with fresh_store(DiskStore(tmp_path / "store")) as store:
        crashed(call, at=pay, when="recorded", nth=2)
        assert note_restored(store, seal_for(store)) == ["one"]
        with pytest.raises(StepInDoubtError, match="restored from a backup") as caught:
            call()
        assert caught.value.run_id.startswith("one/child")
        stepwise.get_run(caught.value.run_id).resolve(caught.value.step, did_not_happen=True)
        with pytest.raises(StepInDoubtError) as caught:
            call()
        stepwise.get_run(caught.value.run_id).resolve(caught.value.step, did_not_happen=True)
        assert call() == RESULT
    assert [n for n, _ in paid] == [0, 1, 2, 3]
    assert paid[-1][1] == caught.value.idempotency_key


def test_who_can_look_outside_is_asked_instead(tmp_path):
    """A tool with a reconcile function asks that, and nobody else, in a restored run."""

    def look(call):
        return next((Landed(n) for n, key in paid if key == call.idempotency_key), DidNotHappen)

    @tool(side_effect=True, in_doubt=look)
    def charge(n):
        paid.append((n, current_step().idempotency_key))
        return n

    @workflow
    def bill():
        return [charge(1), charge(2), charge(3)]

    folder = tmp_path / "store"
    with fresh_store(DiskStore(folder)):
        crashed(call, bill, at=charge, nth=2)
    shutil.copytree(folder, tmp_path / "copy")
    with fresh_store(DiskStore(folder)):
        assert call(bill) == [1, 2, 3]
    with fresh_store(DiskStore(tmp_path / "copy")) as store:
        note_restored(store, seal_for(store))
        assert call(bill) == [1, 2, 3]
    assert [n for n, _ in paid] == [1, 2, 3]


PROGRAM = """
import os, sys
from stepwise import tool, workflow

@tool(side_effect=True)
def pay(n):
    print("pay", n, flush=True)
    if sys.argv[1] == str(n):
        os.kill(os.getpid(), 9)
    return n

@workflow
def nightly():
    return [pay(1), pay(2), pay(3)]

print(nightly.options(run_id="one")())
"""


def test_restore_on_the_command_line(tmp_path):
    """``stepwise restore`` names the unfinished runs, which then ask; so does a killed one."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    home = tmp_path / "home"

    def start(*command):
        return python(*command, cwd=tmp_path, env={**os.environ, "STEPWISE_HOME": str(home)})

    def settle(step, *answer):
        done = start("-m", "stepwise", "resolve", "one", step, *answer)
        assert done.returncode == 0, done.stderr

    assert start("program.py", "2").returncode == -9
    shutil.copytree(home, tmp_path / "backup")
    settle("2", "--landed", "2")
    assert start("program.py", "0").stdout == "pay 3\n[1, 2, 3]\n"
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    told = start("-m", "stepwise", "restore")
    assert told.stdout == "one\n"
    assert "1 unfinished run of disk:" in told.stderr
    settle("2", "--landed", "2")
    asked = start("program.py", "0")
    assert asked.stdout == ""
    assert "restored from a backup, so pay may have" in asked.stderr
    settle("3", "--landed", "3")
    assert start("program.py", "0").stdout == "[1, 2, 3]\n"
