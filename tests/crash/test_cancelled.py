"""A process that is killed at any write while a run is cancelled: it unwinds once, in the end."""

import os
import signal

import pytest
from harness import python

import stepwise

PROGRAM = """
import asyncio, os, pathlib, signal, sys
import stepwise
from stepwise import DidNotHappen, Landed, step, tool, workflow
from stepwise.stores.disk import DiskStore

LOG = pathlib.Path(os.environ["TEST_LOG"])
KILL, WHEN = int(os.environ.get("TEST_KILL", "0")), os.environ.get("TEST_WHEN")
count, write = 0, DiskStore.write

def killing(*args, **kwargs):
    global count
    count += 1
    if count == KILL and WHEN == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(*args, **kwargs)
    if count == KILL and WHEN == "after":
        os.kill(os.getpid(), signal.SIGKILL)

DiskStore.write = killing

def did(name):
    with LOG.open("a") as log:
        log.write(name + "\\n")

def happened(call):
    return Landed(None) if call.arguments["name"] in LOG.read_text().split() else DidNotHappen

def work_on(name):
    did(name)
    if name == "b" and sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "b" and sys.argv[1] == "itself":
        stepwise.current_run().cancel("enough")

@tool(side_effect=True, in_doubt=happened)
def send(name):
    did(name)

@tool(side_effect=True, in_doubt=happened)
async def asend(name):
    did(name)

@step
def work(name):
    work_on(name)

@step
async def awork(name):
    work_on(name)
    if name == "b" and sys.argv[1] == "itself":
        await asyncio.Event().wait()  # where it is cancelled

@workflow
def plain():
    work("a")
    try:
        work("b")
        work("c")
    finally:
        send("first")
        send("second")

@workflow
async def slow():
    await awork("a")
    try:
        await awork("b")
        await awork("c")
    finally:
        await asend("first")
        await asend("second")

from stepwise._execution import steering
steering._EVERY = 0.0
if sys.argv[1] == "cancel":
    stepwise.runs()[0].cancel("enough")
    sys.exit(4)
try:
    plain() if sys.argv[2] == "plain" else asyncio.run(slow())
except stepwise.RunCancelled as error:
    assert ": enough" in str(error)
    sys.exit(3)
"""
CANCELLED, ASKED = 3, 4


class Trial:
    """One run of the program, in a home of its own, with as many processes as it takes."""

    def __init__(self, folder, flow):
        folder.mkdir()
        self.log, self.program, self.flow = folder / "log", folder / "program.py", flow
        self.program.write_text(PROGRAM)
        self.env = {
            **os.environ,
            "STEPWISE_HOME": str(folder / "home"),
            "STEPWISE_TEST_HOME": "",
            "TEST_LOG": str(self.log),
        }

    def start(self, how, kill=0, when=""):
        """Execute it; the exit code."""
        env = {**self.env, "TEST_KILL": str(kill), "TEST_WHEN": when}
        done = python(self.program, how, self.flow, env=env)
        assert done.returncode in (-signal.SIGKILL, CANCELLED, ASKED), done.stderr
        return done.returncode

    def check(self):
        """The clean-up was done once, what came after was not, and it has ended."""
        lines = self.log.read_text().split()
        (run,) = stepwise.runs(store=f"disk:{self.env['STEPWISE_HOME']}/store")
        assert run.status == "cancelled"
        assert "c" not in lines
        assert [lines.count(name) for name in ("first", "second")] == [1, 1], lines


@pytest.fixture
def trials(tmp_path, monkeypatch):
    """Makes trials, whose stores this process can read."""

    def trial(number, flow):
        made = Trial(tmp_path / str(number), flow)
        monkeypatch.setenv("STEPWISE_HOME", made.env["STEPWISE_HOME"])
        monkeypatch.delenv("STEPWISE_TEST_HOME", raising=False)
        return made

    return trial


flows = pytest.mark.parametrize("flow", ["plain", "slow"])
whens = pytest.mark.parametrize("when", ["before", "after"])


@flows
@whens
def test_killed_while_it_is_cancelled(trials, flow, when):
    """Its owner is killed at each write in turn, from the first one to the last."""
    number = 0
    while True:
        number += 1
        trial = trials(number, flow)
        if trial.start("itself", number, when) == CANCELLED:
            break
        assert trial.start("itself") == CANCELLED
        trial.check()
    trial.check()
    assert number > 12


@flows
@whens
def test_cancelled_by_another_process(trials, flow, when):
    """The process that cancels a run is killed at each write; so is the one that unwinds it."""
    number, asked = 0, False
    while True:
        number += 1
        trial = trials(number, flow)
        assert trial.start("die") == -signal.SIGKILL
        asked = asked or trial.start("cancel", number, when) == ASKED
        assert trial.start("cancel") == ASKED
        done = asked and trial.start("itself", number, when) == CANCELLED
        assert done or trial.start("itself") == CANCELLED
        trial.check()
        if done:
            break
    assert number > 5
