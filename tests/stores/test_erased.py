"""What is deleted is gone: no file of a store holds any byte of a forgotten run."""

import os
import pathlib

import pytest
from command import process

import stepwise

PROGRAM = """
import os, sys
import stepwise
from stepwise import step, workflow

stepwise.configure(suspend_after=0)

@step
def think(text):
    return "RESULTmark"

@step
def large(text):
    return "LARGEmark" * 200_000

@step
def fail(text):
    raise ValueError("ERRORmark")

@step
def again(number):
    return number

@workflow(tags={"of": "TAGmark"})
def agent(text):
    local = "LOCALmark" + text
    think(text)
    large(text)
    try:
        fail(text)
    except ValueError:
        pass
    for number in range(3):
        again(number)
    got = stepwise.wait_for("SIGNALmark")
    again(4)
    return "ENDmark"

@workflow
def other(count):
    for number in range(count):
        again(number)
        if number == 5:
            print("waiting", flush=True)
            sys.stdin.readline()
    return count

def run():
    try:
        agent.options(run_id="IDmark")("ARGUMENTmark")
    except stepwise.RunSuspended:
        pass

run()
print("suspended", flush=True)
if sys.stdin.readline().strip() == "again":
    run()
else:
    print(other.options(run_id="other")(12))
"""


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWISE_STORE", f"disk:{tmp_path / 'store'}")
    return os.environ["STEPWISE_STORE"]


def marked(url):
    """The files of a store that hold text of the run."""
    folder = pathlib.Path(url.partition(":")[2])
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if b"mark" in path.read_bytes()]


@pytest.fixture
def suspended(url, fork):
    """A process whose run has suspended, with everything in it."""
    script = fork(PROGRAM)
    hear(script, "suspended")
    assert process("send", "IDmark", "SIGNALmark", '"MESSAGEmark"').returncode == 0
    assert marked(url)
    return script


def hear(script, line):
    """Wait until a program has printed a line."""
    while (said := script.hear()) != line:
        assert said


def left(suspended):
    """Let the process begin another run, which waits with some of its steps in the log."""
    suspended.tell("other")
    hear(suspended, "waiting")


@pytest.mark.parametrize(
    "words", [["forget", "IDmark", "--yes"], ["prune", "--older-than", "0s"]], ids=" ".join
)
def test_a_forgotten_run_leaves_no_byte(url, suspended, words):
    """Results, arguments, variables, errors, messages, tags and the id are gone at once."""
    suspended.tell("again")
    suspended.finish()
    assert stepwise.get_run("IDmark").result == "ENDmark"
    assert process(*words).returncode == 0
    assert marked(url) == []


def test_nothing_is_left_in_the_log_of_a_process(url, suspended):
    """A living process whose log holds a forgotten run loses the log, and its own run goes on."""
    left(suspended)
    assert set(logs(url)) & set(marked(url))
    assert process("forget", "IDmark", "--yes").returncode == 0
    assert marked(url) == []
    suspended.tell()
    assert suspended.finish() == "12"
    assert marked(url) == []
    assert stepwise.get_run("other").verify().ok


@pytest.mark.parametrize("words", [["compact"], ["forget", "IDmark", "--yes"]], ids=" ".join)
def test_the_log_of_a_dead_process_is_taken_in(url, suspended, words):
    """No log of a process that was killed is left, and its run lacks nothing."""
    left(suspended)
    suspended.kill()
    assert set(logs(url)) & set(marked(url))
    assert process(*words).returncode == 0
    assert logs(url) == ["locks"]
    assert len(stepwise.get_run("other").steps) == 6
    assert ("forget" in words) == (marked(url) == [])


def logs(url):
    """The files of the logs of processes, with that of the locks."""
    folder = pathlib.Path(url.partition(":")[2])
    return [path.name for path in folder.glob("*logs/*")]
