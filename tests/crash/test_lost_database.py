"""The database of a killed run is deleted: each way out that the error names is one."""

import os
import re
import shlex
import shutil

import pytest
from command import process
from harness import python
from store_tools import edit

import stepwise
from stepwise import step, workflow
from stepwise._execution import process_memory
from stepwise.stores import open_store

PROGRAM = """
import os, signal
from stepwise import step, tool, workflow

@tool(side_effect=True)
def pay(cents):
    with open("bank", "a") as bank:
        print(cents, file=bank)

@step
def look():
    if os.environ.get("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

@workflow
def job():
    pay(5)
    return look()

print(job())
"""


@pytest.fixture
def start(tmp_path, home, monkeypatch):
    """A program that is killed after its side effect; gives what starts it again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    (tmp_path / "job.py").write_text(PROGRAM, encoding="utf-8")

    def start(**env):
        return python("job.py", env={**os.environ, **env})

    start(KILL="1")
    return start


def lose_database(home):
    for name in os.listdir(home / "store"):
        if name.startswith("cache.db"):
            os.unlink(home / "store" / name)


def paid():
    with open("bank", encoding="utf-8") as bank:
        return len(bank.readlines())


@pytest.mark.parametrize("way", ["verify", "forget"])
def test_the_advice_for_a_run_without_records(start, home, way):
    """The run of a deleted database stops, and goes on after either command that it names."""
    lose_database(home)
    stopped = start()
    assert "JournalLostError" in stopped.stderr
    assert paid() == 1
    (command,) = re.findall(rf"stepwise ({way} [^;.]*)", stopped.stderr)
    run_id = shlex.split(command)[1]
    for look in (("show", run_id), ("verify", run_id), ("verify", run_id, "--repair")):
        looked = process(*look)
        assert looked.returncode == 1
        assert "there is no run" not in looked.stderr
    if way == "forget":
        python("stepwise", *shlex.split(command), text="n\n", code=1)
        assert "JournalLostError" in start().stderr
    python("stepwise", *shlex.split(command), text="y\n", code=0)
    assert start().stdout == "done\n"
    assert paid() == 2  # as was accepted


def test_the_advice_to_put_a_backup_back(start, home):
    """After the backup is back and ``stepwise restore``, the run asks about what it lacks."""
    shutil.copytree(home / "store", home / "backup")
    lose_database(home)
    stopped = start()
    assert "put the whole folder back, then run stepwise restore" in stopped.stderr
    shutil.rmtree(home / "store")
    shutil.move(home / "backup", home / "store")
    assert process("restore").returncode == 0
    assert start().stdout == "done\n"
    assert paid() == 1


# -- the rows of one run ---------------------------------------------------------------------------


made = []


@step
def think(text):
    made.append(text)
    return f"about {text}"


@workflow(retention="all", run_id="r")
def agent(topic, model="a"):
    found = think(topic)
    if topic == "broken":
        raise SystemExit
    if topic == "waits":
        stepwise.wait_for("more")
    return think(f"{model} {found}")


def lose_rows(url):
    """Delete what names the owner of the run, and what lists it; the records stay."""
    store = open_store(url)
    edit(store, "DELETE FROM Heads")
    edit(store, "DELETE FROM Cache WHERE key LIKE 'l/%'")
    process_forgets()


def process_forgets():
    process_memory.memory.__init__()


def call_again(topic="tides"):
    made.clear()
    try:
        return agent(topic)
    except BaseException as error:
        return type(error)


def adopted():
    [branch] = stepwise.get_run("r").branch(at=1, variations=[{"model": "b"}])
    branch.adopt()


STATES = {
    "completed": (lambda: agent("tides"), "tides", "about a about tides", []),
    "another call's": (lambda: agent("tides"), "winds", stepwise.RunConflictError, []),
    "crashed": (lambda: call_again("broken"), "broken", SystemExit, []),
    "cancelled": (
        lambda: (call_again("waits"), stepwise.get_run("r").cancel(), call_again("waits")),
        "waits",
        stepwise.RunCancelled,
        [],
    ),
    "superseded": (lambda: (agent("tides"), adopted()), "tides", "about b about tides", []),
}


@pytest.mark.parametrize("state", STATES)
def test_a_run_without_its_lease_and_its_head(state, tmp_path):
    """A run whose rows of lease and head are gone is what its records say: nothing begins anew."""
    begin, topic, expected, again = STATES[state]
    url = f"disk:{tmp_path / 'rows'}"
    stepwise.configure(store=url, suspend_after=0)
    begin()
    before = stepwise.get_run("r").status
    lose_rows(url)
    assert (call_again(topic), made) == (expected, again)
    assert stepwise.get_run("r").status == before
