"""Copies into a Postgres server and back: the run of a killed program continues there."""

import itertools
import os
import pathlib
import signal

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from harness import python

import stepwise
from stepwise import step, workflow
from stepwise._journal.journal import COPYING
from stepwise._runs import copying
from stepwise._runs.copying import Copier
from stepwise.stores import open_store
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

COPY = pathlib.Path(__file__).parents[1] / "programs" / "copied.py"
TRIP = """
import os, sys
from stepwise import step, tool, workflow

@step
def search(city):
    if city == os.environ.get("CRASH_AT"):
        os.kill(os.getpid(), 9)
    print("search", city, flush=True)
    return "hotel " + city

@tool(side_effect=True)
def book(hotel):
    print("book", hotel, flush=True)
    return hotel

@workflow(run_id="trip")
def trip(cities):
    rooms = []
    for city in cities:
        hotel = search(city)
        rooms.append(book(hotel))
    return rooms

print(*trip(["Oslo", "Rome", "Bern"]), sep=", ")
"""


@step
def think(n):
    return "thought " * n


@step
def download():
    return os.urandom(20_000_000)


@workflow
def large():
    return len(download())


@workflow
def agent(limit):
    return len([think(n) for n in range(limit)])


@workflow
def whole(limit):
    return [agent(n) for n in range(limit)]


@pytest.fixture(autouse=True)
def real_stores(monkeypatch):
    """Let URLs of servers open these: our plugin replaces them in tests, in subprocesses too."""
    monkeypatch.delenv("STEPWISE_TEST_HOME", raising=False)


def content(url, name):
    """Everything that a store has under a name, but what is said of a copy."""
    store = open_store(url)
    names = [each for each in store.names(name) if each not in copying._OWN]
    objects = {each: store.get(name, each) for each in names}
    marks = max((each[:40] for each in store.marks(name)), default=b"")
    return [*store.read(name)], objects, store.head(name), marks


def copied(source, target, **how):
    source = open_store(source)
    ids = [head.run_id for head in source.heads() if "/" not in head.run_id]
    return [each.outcome for each in Copier(source, open_store(target), **how).copy_each(ids)]


def test_a_killed_program_continues_on_the_server(postgres, tmp_path):
    """A run that was killed is copied from disk to disk to Postgres, and resumes there."""
    program = tmp_path / "trip.py"
    program.write_text(TRIP)

    def start(store, **env):
        return python(program, env={**os.environ, "STEPWISE_STORE": store, **env})

    stores = [f"disk:{tmp_path}/first", f"disk:{tmp_path}/second", postgres]
    ended = start(stores[0], CRASH_AT="Rome")
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "search Oslo\nbook hotel Oslo\n")
    for source, target in itertools.pairwise(stores):
        assert copied(source, target) == ["copied"]
        assert content(source, "trip") == content(target, "trip")
    assert open_store(postgres).url.startswith("postgresql:")
    ended = start(postgres)
    assert ended.stdout.splitlines() == [
        *("search Rome", "book hotel Rome", "search Bern", "book hotel Bern"),
        "hotel Oslo, hotel Rome, hotel Bern",
    ]
    with fresh_store(postgres):
        run = stepwise.get_run("trip")
        assert (run.status, run.resumed_from_step) == ("completed", 2)
        assert run.verify().ok


def test_a_backup_of_a_server_is_put_back(postgres, any_server, tmp_path):
    """Runs of a server are backed up into a folder, again and again, and copied to a new server."""
    backup = f"disk:{tmp_path}/backup"
    with fresh_store(postgres):
        large.options(run_id="large")()
        with pytest.raises(SimulatedCrash), crash_at(think, "before", call=4):
            agent.options(run_id="job")(9)
    assert copied(postgres, backup) == ["copied", "copied"]
    with fresh_store(postgres), pytest.raises(SimulatedCrash), crash_at(think, "before", call=2):
        agent.options(run_id="job")(9)
    assert sorted(copied(postgres, backup)) == ["copied", "there"]
    other = any_server.create_database()
    assert copied(backup, other, restored=True) == ["copied", "copied"]
    assert content(postgres, "large") == content(backup, "large") == content(other, "large")
    with fresh_store(other):
        assert agent.options(run_id="job")(9) == 9
        assert all(run.verify().ok for run in stepwise.runs())
    open_store(other).close()
    any_server.drop_database(other)


@pytest.mark.parametrize(("first", "when"), [(2, "after"), (5, "before")])
def test_a_copy_to_a_server_that_is_killed_is_continued(any_server, tmp_path, first, when):
    """Wherever a copy to a server is killed, the next one does the rest, and at once."""
    source = f"disk:{tmp_path}/source"
    with fresh_store(source), pytest.raises(SimulatedCrash), crash_at(think, "before", call=5):
        whole.options(run_id="tree")(4)
    names = [head.run_id for head in open_store(source).heads()]
    for number in itertools.count(first, 6):
        target = any_server.create_database()
        killed = python(COPY, source, target, number, when)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        python(COPY, source, target, "0", "", code=0)
        for name in names:
            assert content(source, name) == content(target, name)
            assert open_store(target).get(name, COPYING) is None
        open_store(target).close()
        any_server.drop_database(target)
    assert number > 8
