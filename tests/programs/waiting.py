"""Kills runs that wait at every write, with a real SIGKILL, and looks how they go on.

Each trial has a folder of its own.  Its processes are forked one after the other; the one that is
about to make, or has just made, the write of a certain number of the trial is killed.  Whenever the
run is suspended, what it waits for is sent.  ``python waiting.py FOLDER KIND EVERY FIRST STRIDE``
takes every so many writes, and prints a line of JSON: how many trials there were, how many of them
were killed, and what was wrong.
"""

import asyncio
import json
import mmap
import os
import pathlib
import signal
import struct
import sys

import stepwise
from stepwise import step, workflow
from stepwise.stores import open_store

stepwise.configure(suspend_after=0, quiet=True)
FOLDER, KIND = pathlib.Path(sys.argv[1]), sys.argv[2]
EVERY, FIRST, STRIDE = map(int, sys.argv[3:])
WRITES = mmap.mmap(-1, 8)  # of the trial, in all of its processes


def log(text):
    """Note that a statement was executed."""
    with open(place / "log", "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


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
FUNCTIONS = {"plain": plain, "tasks": tasks}


def counted(store, kill, before):
    """Have this process killed at a write of a certain number."""
    commit = store.write

    def write(*args, **kwargs):
        number = struct.unpack("q", WRITES[:8])[0] + 1
        WRITES[:8] = struct.pack("q", number)
        if number == kill and before:
            os.kill(os.getpid(), signal.SIGKILL)
        value = commit(*args, **kwargs)
        if number == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    store.write = write
    return store


def attempt(kill, before):
    """Execute the run in a process of its own; how that ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        store = counted(open_store(f"disk:{place / 'store'}"), kill, before)
        call = workflow(FUNCTIONS[KIND], run_id="r", store=store, checkpoint_every=EVERY)
        value = asyncio.run(call()) if KIND == "tasks" else call()
        code = 0 if value == EXPECTED[KIND] else 3
        if code:
            log(f"wrong {value}")
    except stepwise.RunSuspended:
        code = 75
    except BaseException as error:
        log(f"raised {error!r}")
    finally:
        os._exit(code)


def serve():
    """Send what the run, or its child run, waits for; in a process of its own."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        store = open_store(f"disk:{place / 'store'}")
        for each in stepwise.get_run("r", store=store).waits:
            if each.kind == "signal" and each.until is None:
                run = stepwise.get_run(each.run_id, store=store)
                number = len([m for m in run.inbox if m.name == each.name and m.status == "taken"])
                run.send(each.name, number + 1, key=f"{number + 1}")
    except BaseException as error:
        log(f"sending raised {error!r}")
    finally:
        os._exit(0)


def trial(kill, before):
    """One trial; whether a process was killed, and what was wrong."""
    WRITES[:8] = struct.pack("q", 0)
    killed = False
    for _ in range(40):
        code = attempt(kill, before)
        killed = killed or code == -signal.SIGKILL
        if code == 75:
            serve()
        elif code != -signal.SIGKILL:
            break
    lines = (place / "log").read_text("utf-8").splitlines()
    wrong = [each for each in lines if each.split()[0] in ("wrong", "raised", "sending")]
    store = open_store(f"disk:{place / 'store'}")
    run = stepwise.get_run("r", store=store)
    if code or run.status != "completed":
        wrong.append(f"ended with {code}, {run.status}")
    again = {each for each in lines if lines.count(each) > 1}
    allowed = 1 if killed else 0  # the statements at which the process was killed
    many = [each for each in again if lines.count(each) > 1 + allowed]
    if many or len(again) > 2 * allowed:
        wrong.append(f"again: {sorted(again)}")
    steps = [each.step for each in run.inbox]
    if {each.status for each in run.inbox} != {"taken"} or len(set(steps)) != len(steps):
        wrong.append(f"inbox: {run.inbox}")
    if not run.verify().ok:
        wrong.append("does not verify")
    return killed, [f"write {kill} {'before' if before else 'after'}: {each}" for each in wrong]


trials = kills = 0
problems = []
for before in (True, False):
    kill = FIRST - STRIDE
    while True:
        kill += STRIDE
        trials += 1
        place = FOLDER / f"{kill}{before}"
        place.mkdir(parents=True)
        pid = os.fork()  # this process never opens a store
        if not pid:
            killed, wrong = trial(kill, before)
            (place / "found").write_text(json.dumps([killed, wrong]), "utf-8")
            os._exit(0)
        os.waitpid(pid, 0)
        killed, wrong = json.loads((place / "found").read_text("utf-8"))
        kills += killed
        problems += wrong
        if not killed:
            break
print(json.dumps({"trials": trials, "kills": kills, "problems": problems}))
