"""Runs that are cancelled, killed at every write, as is who cancels them: see ``writes``.

``cancelling.py ... FLOW WHO``: a step of the run cancels it (``itself``), or another process does
once its own has died.
"""

import asyncio
import os
import signal
import sys

import writes

import stepwise
from stepwise import DidNotHappen, Landed, step, tool, workflow
from stepwise._execution import active_run

FLOW, WHO = sys.argv[4:6]
CANCELLED = 3
active_run._EVERY = 0.0
here = []  # the trial of this process, and what its step "b" does


def did(name):
    """Note what was done."""
    here[0].log("log", name)


def happened(call):
    """Look outside."""
    return Landed(None) if [call.arguments["name"]] in here[0].lines("log") else DidNotHappen


def work_on(name):
    """Die or cancel the run in the second step."""
    did(name)
    if name == "b" and here[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "b" and here[1] == "itself":
        stepwise.current_run().cancel("enough")


@tool(side_effect=True, in_doubt=happened)
def send(name):
    """Clean up."""
    did(name)


@tool(side_effect=True, in_doubt=happened)
async def asend(name):
    """Clean up."""
    did(name)


@step
def work(name):
    """Work."""
    work_on(name)


@step
async def awork(name):
    """Work."""
    work_on(name)
    if name == "b" and here[1] == "itself":
        await asyncio.Event().wait()  # where it is cancelled


def plain():
    """Clean up in a ``finally``."""
    work("a")
    try:
        work("b")
        work("c")
    finally:
        send("first")
        send("second")


async def slow():
    """Clean up in a ``finally`` of a coroutine."""
    await awork("a")
    try:
        await awork("b")
        await awork("c")
    finally:
        await asend("first")
        await asend("second")


def attempt(trial, how):
    """Execute the run."""
    here[:] = trial, how
    call = workflow({"plain": plain, "slow": slow}[FLOW], run_id="r", store=trial.open())
    try:
        call() if FLOW == "plain" else asyncio.run(call())
    except stepwise.RunCancelled as error:
        assert ": enough" in str(error)
        return CANCELLED


def cancel(trial):
    """Cancel the run."""
    stepwise.get_run("r", store=trial.open()).cancel("enough")


def play(trial):
    """The clean-up was done once, what came after was not, and the run has ended."""
    if WHO == "another":
        for _ in range(3):
            if ["b"] not in trial.lines("log"):  # the process dies in there
                trial.fork(attempt, "die")
        trial.until(0, cancel)
    trial.until(CANCELLED, attempt, "itself")
    trial.ended("cancelled")
    lines = [name for (name,) in trial.lines("log")]
    if "c" in lines or [lines.count(name) for name in ("first", "second")] != [1, 1]:
        trial.log("wrong", lines)


writes.sweep(play)
