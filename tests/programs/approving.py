"""Kills runs that ask a person at every write, with a real SIGKILL, and looks what was done.

Each trial has a folder of its own.  Its processes are forked one after the other: those that
execute the run, and those of the person who answers.  The one that is about to make, or has just
made, the write of a certain number of the trial is killed.  The first processes pass other
arguments than the later ones, in a parameter that ``key=`` hides, and in one that it does not.
``python approving.py FOLDER KIND FIRST STRIDE`` takes every so many writes, and prints a line of
JSON: how many trials there were, how many of them were killed, and what was wrong.
"""

import asyncio
import json
import mmap
import os
import pathlib
import signal
import struct
import sys
from collections import Counter

import stepwise
from stepwise import ApprovalDenied, DidNotHappen, Landed, tool, workflow
from stepwise._journal.records import Answered, Intent
from stepwise.stores import open_store

stepwise.configure(suspend_after=0, quiet=True)
FOLDER, KIND = pathlib.Path(sys.argv[1]), sys.argv[2]
FIRST, STRIDE = map(int, sys.argv[3:])
WRITES = mmap.mmap(-1, 8)  # of the trial, in all of its processes
CHANGES = 3  # processes that pass arguments of their own


def log(file, *facts):
    """Append a line of JSON to a file of the trial."""
    with open(place / file, "a", encoding="utf-8") as out:
        out.write(f"{json.dumps(facts)}\n")


def lines(file):
    """The lines of a file of the trial."""
    path = place / file
    return list(map(json.loads, path.read_text("utf-8").splitlines())) if path.exists() else []


def was_paid(call):
    """Look outside whether a payment was made."""
    found = [each for each in lines("paid") if each[-1] == call.idempotency_key]
    return Landed(found[0][:2]) if found else DidNotHappen


@tool(side_effect=True, approve=True, key=("to",), in_doubt=was_paid)
def pay(to, amount):
    """Pay; the amount is no part of the identity of the call."""
    log("paid", to, amount, stepwise.current_step().idempotency_key)
    return [to, amount]


@tool(side_effect=True, approve=lambda to, amount: amount > 0, in_doubt=was_paid)
async def order(to, amount):
    """Order; with another amount it is another call."""
    await asyncio.sleep(0)
    log("paid", to, amount, stepwise.current_step().idempotency_key)
    return [to, amount]


def amount():
    """What this process wants to pay."""
    return 10 + min(len(lines("starts")), CHANGES)


def plain():
    """Ask one after the other; handle a no."""
    found = [pay("ann", amount())]
    try:
        pay("mallory", amount())
    except ApprovalDenied as denied:
        found.append(denied.note)
    return [*found, pay("ann", 5), stepwise.approve("Go on?", details=[1, 2])]


async def tasks():
    """Ask for several at once."""
    made = [order("ann", amount()), order("bob", 20), order("mallory", 20), order("cleo", 0)]
    found = await asyncio.gather(*made, return_exceptions=True)
    return [each.note if isinstance(each, ApprovalDenied) else each for each in found]


EXPECTED = {
    "plain": lambda found: [found[0][0], *found[1:]] == ["ann", "no", ["ann", 5], "yes"],
    "tasks": lambda found: found[1:] == [["bob", 20], "no", ["cleo", 0]] and found[0][0] == "ann",
}
FUNCTIONS = {"plain": plain, "tasks": tasks}


def counted(kill, before):
    """The store; this process is killed at a write of a certain number."""
    store = open_store(f"disk:{place / 'store'}")
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


def forked(function, *given):
    """Execute a function in a process of its own; its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        code = function(*given)
    except stepwise.RunSuspended:
        code = 75
    except BaseException as error:
        log("wrong", repr(error))
    finally:
        os._exit(code)


def attempt(kill, before):
    """Execute the run."""
    log("starts", os.getpid())
    call = workflow(FUNCTIONS[KIND], run_id="r", store=counted(kill, before))
    found = asyncio.run(call()) if KIND == "tasks" else call()
    if not EXPECTED[KIND](found):
        log("wrong", found)
    return 0


def person(kill, before):
    """Answer what the run asks; what is allowed is written down first."""
    for each in stepwise.get_run("r", store=counted(kill, before)).questions:
        if "mallory" in each.details:
            each.deny("no")
            continue
        if each.arguments:
            log("allowed", *each.arguments.values(), each.ticket)
        each.approve("yes")
    return 0


def trial(kill, before):
    """One trial; whether a process was killed, and what was wrong."""
    WRITES[:8] = struct.pack("q", 0)
    codes = []
    for _ in range(40):
        codes.append(forked(attempt, kill, before))
        if codes[-1] == 75:
            codes.append(forked(person, kill, before))
        elif codes[-1] != -signal.SIGKILL:
            break
    wrong = lines("wrong")
    run = stepwise.get_run("r", store=open_store(f"disk:{place / 'store'}"))
    if codes[-1] or run.status != "completed":
        wrong.append(f"ended with {codes}, {run.status}")
    paid = Counter((to, amount) for to, amount, _ in lines("paid") if amount)
    allowed = Counter((to, amount) for to, amount, _ in {tuple(e) for e in lines("allowed")})
    if paid - allowed:
        wrong.append(f"not allowed: {paid - allowed}")
    if len(paid) != 2 or any(each[0] == "mallory" for each in paid):
        wrong.append(f"paid: {paid}")
    records = [each.record for each in run._entries()]
    yes = {each.ticket for each in records if isinstance(each, Answered) and each.approved}
    intents = [
        each for each in records if isinstance(each, Intent) and "cleo" not in each.call.arguments
    ]
    used = Counter({each.ticket: 0 for each in intents})
    for ticket, call in {(each.ticket, each.call.number) for each in intents}:
        used[ticket] += 1
        if ticket not in yes:
            wrong.append(f"call {call} was begun without a yes")
    if any(count > 1 for count in used.values()):
        wrong.append("one yes for several calls")
    if not run.verify().ok:
        wrong.append("does not verify")
    what = f"write {kill} {'before' if before else 'after'}"
    return -signal.SIGKILL in codes, [f"{what}: {each}" for each in wrong]


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
