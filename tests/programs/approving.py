"""Runs that ask a person, killed at every write, as is who answers: see ``writes``.

``approving.py ... KIND``.  The first processes pass other arguments than the later ones, in a
parameter that ``key=`` hides, and in one that it does not.
"""

import asyncio
import sys
from collections import Counter

import writes

import stepwise
from stepwise import ApprovalDenied, DidNotHappen, Landed, tool, workflow
from stepwise._journal.records import Answered, Intent

KIND = sys.argv[4]
CHANGES = 3  # processes that pass arguments of their own
here = []  # the trial of this process


def was_paid(call):
    """Look outside whether a payment was made."""
    found = [each for each in here[0].lines("paid") if each[-1] == call.idempotency_key]
    return Landed(found[0][:2]) if found else DidNotHappen


@tool(side_effect=True, approve=True, key=("to",), in_doubt=was_paid)
def pay(to, amount):
    """Pay; the amount is no part of the identity of the call."""
    here[0].log("paid", to, amount, stepwise.current_step().idempotency_key)
    return [to, amount]


@tool(side_effect=True, approve=lambda to, amount: amount > 0, in_doubt=was_paid)
async def order(to, amount):
    """Order; with another amount it is another call."""
    await asyncio.sleep(0)
    here[0].log("paid", to, amount, stepwise.current_step().idempotency_key)
    return [to, amount]


def amount():
    """What this process wants to pay."""
    return 10 + min(len(here[0].lines("starts")), CHANGES)


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


def attempt(trial):
    """Execute the run."""
    here[:] = [trial]
    trial.log("starts")
    call = workflow({"plain": plain, "tasks": tasks}[KIND], run_id="r", store=trial.open())
    found = asyncio.run(call()) if KIND == "tasks" else call()
    if not EXPECTED[KIND](found):
        trial.log("wrong", found)


def person(trial):
    """Answer what the run asks; what is allowed is written down first."""
    for each in stepwise.get_run("r", store=trial.open()).questions:
        if "mallory" in each.details:
            each.deny("no")
            continue
        if each.arguments:
            trial.log("allowed", *each.arguments.values(), each.ticket)
        each.approve("yes")


def play(trial):
    """Nothing is done that was not allowed, nor anything twice."""
    trial.until(0, attempt, suspended=person)
    run = trial.ended("completed")
    paid = Counter((to, amount) for to, amount, _ in trial.lines("paid") if amount)
    allowed = Counter((to, amount) for to, amount, _ in {*map(tuple, trial.lines("allowed"))})
    if paid - allowed:
        trial.log("wrong", f"not allowed: {paid - allowed}")
    if len(paid) != 2 or any(each[0] == "mallory" for each in paid):
        trial.log("wrong", f"paid: {paid}")
    records = [each.record for each in run._entries()]
    yes = {each.ticket for each in records if isinstance(each, Answered) and each.approved}
    intents = {
        (each.ticket, each.call.number)
        for each in records
        if isinstance(each, Intent) and "cleo" not in each.call.arguments
    }
    if not {ticket for ticket, _ in intents} <= yes:
        trial.log("wrong", f"a call was begun without a yes: {intents}")
    if len({ticket for ticket, _ in intents}) < len(intents):
        trial.log("wrong", "one yes for several calls")


writes.sweep(play)
