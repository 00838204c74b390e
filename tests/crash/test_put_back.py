"""What somebody who can write a store, and has no key, does by putting back what lay there before.

A run lives: it ships, waits for a signal, asks for a yes, pays, is cancelled, is deleted and begins
anew, and its store is copied after each event.  Then parts of an older copy are put into a newer
one (or taken away), and the program is started again.  What is done then and would not have been
done without is *harm*.  ``docs/reliability.md`` has the table.

To add a part, name the rows that it is made of in ``PARTS``; to add an event, append it to
``STORY`` with what it does.  Both grow the sweep.
"""

import collections
import contextlib
import pathlib
import shutil
import sqlite3

import pytest
from killed import forget_process
from sweeping import some

import stepwise
from stepwise import RunStopped, StepwiseError, step, tool, workflow
from stepwise._journal import seal
from stepwise._journal.journal import seal_for
from stepwise._runs.verify import note_restored
from stepwise._runtime import settings
from stepwise.stores._rows import hashed
from stepwise.stores.disk import DiskStore
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

pytestmark = pytest.mark.filterwarnings("ignore")
RUN = "one"
acts = []
life = [1]


@pytest.fixture(autouse=True)
def suspended():
    stepwise.configure(suspend_after=0)


@tool(side_effect=True)
def ship(who):
    acts.append((life[0], "ship", who))


@tool(side_effect=True, approve=True)
def pay(who, cents):
    acts.append((life[0], "pay", who))
    return cents


@step
def note(got):
    acts.append((life[0], "took", got))


@step
def last():
    pass


@workflow(run_id=RUN)
def order(who="ann"):
    ship(who)
    note(stepwise.wait_for("go"))
    paid = pay(who, 25_000)
    last()
    return paid


@workflow
def other():
    last()


def call():
    """Start the program again, as a new process would."""
    forget_process()
    with contextlib.suppress(RunStopped, StepwiseError, SimulatedCrash):
        order()


def run():
    return stepwise.get_run(RUN)


def restore():
    note_restored(store := run().store, seal_for(store))


def begin_anew():
    life[0] = 2
    call()


def die():
    with crash_at(pay, "before"):
        call()


STORY = {
    "waits": call,
    "was sent to": lambda: run().send("go", life[0]),
    "asks": call,
    "was answered": lambda: run().questions[0].approve(),  # noqa: PLW0108
    "stopped before it paid": die,
    "completed": call,
    "deleted": lambda: run().delete(),
    "begun anew": begin_anew,
    "cancelled": lambda: run().cancel(),
    "is told that": call,
}
"""What happens to the run, in this order."""


def stop():
    with crash_at(ship, "before"):
        call()


RESTORED = {"stopped before it shipped": stop, "restored": restore}
"""Another story: the store is put back from a backup, and somebody says so."""

OF_RUN, OF_INBOX = hashed(RUN), hashed(f"inbox:{RUN}")
PARTS = {
    "the head": lambda kind, owner: owner == OF_RUN and kind == "h",
    "the records": lambda kind, owner: owner == OF_RUN and kind == "r",
    "the objects": lambda kind, owner: owner == OF_RUN and kind == "o",
    "the mark": lambda kind, owner: owner == OF_RUN and kind == "mark",
    "records and mark": lambda kind, owner: owner == OF_RUN and kind in ("r", "mark"),
    "head and mark": lambda kind, owner: owner == OF_RUN and kind in ("h", "mark"),
    "the messages": lambda kind, owner: owner == OF_INBOX and kind != "mark",
    "messages and mark": lambda kind, owner: owner == OF_INBOX,
    "the run": lambda kind, owner: owner == OF_RUN and kind != "mark",
    "run and mark": lambda kind, owner: owner == OF_RUN,
    "run and messages": lambda kind, owner: owner in (OF_RUN, OF_INBOX),
    "everything": lambda kind, owner: True,
}
"""What is put back together: a choice of rows by kind (``h`` head, ``r`` record, ``o`` object,
``l`` lease, ``mark``) and by the hash of the run or inbox that they belong to."""


def rows(folder):
    """The rows of a store and its marks, by kind, owner and key."""
    found = {}
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database:
        for row in database.execute("SELECT key, raw, mode, filename, size, value FROM Cache"):
            kind, _, rest = row[0].partition("/")
            found[kind, rest.partition("/")[0], row[0]] = row
        for row in database.execute("SELECT run, unfinished, words, value FROM Heads"):
            found["h", row[0], row[0]] = row
    for path in (folder / "marks").iterdir():
        found["mark", path.name, path.name] = path.read_bytes()
    return found


def put_back(folder, older, chosen):
    """Put what an older copy has of the chosen rows in the place of what there is."""
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database:
        for kind, owner, key in rows(folder):
            if chosen(kind, owner) and kind != "mark":
                table, column = ("Heads", "run") if kind == "h" else ("Cache", "key")
                database.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))
            elif chosen(kind, owner):
                (folder / "marks" / key).unlink()
        for (kind, owner, key), row in older.items():
            if chosen(kind, owner) and kind != "mark":
                places = ", ".join("?" * len(row))
                into = "Cache (key, raw, mode, filename, size, value)"
                into = "Heads (run, unfinished, words, value)" if kind == "h" else into
                database.execute(f"INSERT INTO {into} VALUES ({places})", row)
            elif chosen(kind, owner):
                (folder / "marks" / key).write_bytes(row)
        database.commit()


def told(story, place):
    """Let the run live in a store; its copies, and what had been done at each."""
    copies = {}
    with fresh_store(DiskStore(place / "store")) as store:
        other()  # the store holds other runs, too
        store.close()
    acts.clear()
    life[0] = 1
    for name, act in story.items():
        with fresh_store(DiskStore(place / "store")) as store:
            act()
            store.close()
        copies[name] = place / name
        shutil.copytree(place / "store", copies[name])
        shutil.copytree(anchors(), place / f"{name} anchors")
        copies[name] = copies[name], list(acts), life[0]
    return copies


def anchors():
    folder = pathlib.Path(settings.home()) / "anchors"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def now(place, name):
    """Bring the store, and what is kept beside the key, into the state of a copy."""
    shutil.rmtree(place / "store")
    shutil.copytree(place / name, place / "store")
    shutil.rmtree(anchors())
    shutil.copytree(place / f"{name} anchors", anchors(), dirs_exist_ok=True)


def done_after(folder, before, which):
    """What has been done after the program was started again, and people answered it."""
    acts[:], life[0] = before, which
    with fresh_store(DiskStore(folder)) as store:
        call()
        for answer in (lambda: run().send("go", 9), STORY["was answered"]):
            with contextlib.suppress(RunStopped, StepwiseError, IndexError):
                answer()
            call()
        store.close()
    return collections.Counter(acts)


def harm(place, copies, older, newer, part):
    """What was done since a part of an older copy lay in a newer one, and would not have been."""
    _, before, which = copies[newer]
    lost = {} if older is None else rows(copies[older][0])
    results = []
    for attacked in (False, True):
        now(place, newer)
        if attacked:
            put_back(place / "store", lost, PARTS[part])
        results.append(done_after(place / "store", before, which))
    more = results[1] - results[0]
    return {act for act in more if act[1] != "took" or act not in results[0]}


def trials(copies):
    """Every pair of an older and a newer copy, and nothing in the place of a newer one."""
    names = list(copies)
    for place, newer in enumerate(names):
        for older in (None, *names[:place]):
            yield from ((older, newer, part) for part in PARTS)


def is_known(older, newer, part, done):
    """Whether the page says that this is not prevented.

    A store from which everything was taken away is a new one.  A run goes on from an older state
    if no side effect lies in between: its plain steps are made again, and it takes a signal.
    """
    if part == "everything" and older is None:
        return True
    return all(act[1] == "took" for act in done)


REFUSED = {
    "life": [
        ("waits", "is told that", "the head"),
        ("asks", "is told that", "the head"),
        ("waits", "completed", "head and mark"),
        ("was answered", "completed", "run and mark"),
        ("was answered", "deleted", "run and messages"),
        ("was answered", "begun anew", "run and messages"),
        (None, "completed", "run and mark"),
    ],
    "restored": [("stopped before it shipped", "restored", "the head")],
}
"""What did something again once: an older head, a state before a payment, an earlier life."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_put_back_does_nothing_again(name, tmp_path, tally):
    """Side effects are not repeated, however parts of older copies are put into a store.

    A run that was marked as restored still asks, with the head of before in its place.
    """
    copies = told({"life": STORY, "restored": RESTORED}[name], tmp_path)
    for trial in REFUSED[name]:
        assert harm(tmp_path, copies, *trial) == set(), trial
    chosen = some(trials(copies), 7, "put back")
    for trial in chosen:
        done = harm(tmp_path, copies, *trial)
        assert not done or is_known(*trial, done), (trial, done)
    tally("older rows put back", len(chosen))


def test_the_sweep_sees_what_is_put_back(tmp_path, monkeypatch):
    """Without what is kept beside the key, the payment of a completed run is made again."""
    monkeypatch.setattr(seal, "anchor_cell", lambda *_: None)
    found = harm(tmp_path, told(STORY, tmp_path), "was answered", "completed", "run and mark")
    assert found == {(1, "pay", "ann")}
