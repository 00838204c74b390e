"""Runs that wait, killed at every write: see ``writes``.  ``waiting.py ... KIND EVERY``.

Whenever the run is suspended, what it waits for is sent.
"""

import asyncio
import sys

import writes

import stepwise
from stepwise import step, workflow

KIND, EVERY = sys.argv[4], int(sys.argv[5])
here = []  # the trial of this process


def log(text):
    """Note that a statement was executed."""
    here[0].log("log", text)


@step
def note(text):
    """Do something that the journal answers."""
    return text


@workflow
def child(name):
    """Wait in a child run."""
    return stepwise.wait_for(name)


@workflow
async def achild(name):
    """Wait in a child run of an event loop."""
    return await stepwise.wait_for(name)


def plain():
    """Wait here, in a loop and in a child run."""
    log("begin")
    found = [note("one")]
    log("first")
    found.append(stepwise.wait_for("a"))
    log("second")
    stepwise.sleep(0.001)
    for number in range(2):
        log(f"loop {number}")
        found.append(stepwise.wait_for("a"))
    log("child")
    found.append(child("b"))
    log("late")
    try:
        stepwise.wait_for("never", timeout=0.001)
    except stepwise.WaitTimeoutError:
        log("timeout")
    return found


async def tasks():
    """Wait for several at once."""
    log("begin")
    first = await asyncio.gather(stepwise.wait_for("a"), stepwise.wait_for("a"), achild("b"))
    log("second")
    await stepwise.sleep(0.001)
    return [*first, await stepwise.wait_for("a")]


EXPECTED = {"plain": ["one", 1, 2, 3, 1], "tasks": [1, 2, 1, 3]}


def attempt(trial):
    """Execute the run."""
    here[:] = [trial]
    function = {"plain": plain, "tasks": tasks}[KIND]
    call = workflow(function, run_id="r", store=trial.open(), checkpoint_every=EVERY)
    value = asyncio.run(call()) if KIND == "tasks" else call()
    if value != EXPECTED[KIND]:
        trial.log("wrong", value)


def serve(trial):
    """Send what the run, or its child run, waits for."""
    store = trial.open()
    for each in stepwise.get_run("r", store=store).waits:
        if each.kind == "signal" and each.until is None:
            run = stepwise.get_run(each.run_id, store=store)
            number = len([m for m in run.inbox if m.name == each.name and m.status == "taken"])
            run.send(each.name, number + 1, key=f"{number + 1}")


def play(trial):
    """Nothing but the statement at which a process was killed is executed again."""
    trial.until(0, attempt, suspended=serve)
    run, lines = trial.ended("completed"), [text for (text,) in trial.lines("log")]
    again = {each for each in lines if lines.count(each) > 1}
    allowed = 1 if trial.killed else 0
    many = [each for each in again if lines.count(each) > 1 + allowed]
    if many or len(again) > 2 * allowed:
        trial.log("wrong", f"again: {sorted(again)}")
    steps = [each.step for each in run.inbox]
    if {each.status for each in run.inbox} != {"taken"} or len(set(steps)) != len(steps):
        trial.log("wrong", f"inbox: {run.inbox}")


writes.sweep(play)
