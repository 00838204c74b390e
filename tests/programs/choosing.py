"""A workflow chooses the best of several results, and its process is killed at each write.

``python choosing.py FOLDER FIRST STRIDE FLOW`` where the results and the scores are random: whoever
makes one of them again would choose another result.
"""

import asyncio
import os
import random
import sys

import writes

from stepwise import DidNotHappen, Landed, best_of, step, tool, workflow

FLOW = sys.argv[4]
VARIATIONS = [{"name": "a"}, {"name": "best"}, {"name": "c"}, {}, {}]
here = []


def drawn(what):
    """Draw a number, in a process whose numbers no other process draws."""
    here[0].log("drawn", what)
    return int.from_bytes(os.urandom(6), "big")


@step
def candidate(name="same"):
    """Make a result; the best one fails the first time."""
    if name == "best" and not here[0].lines("failed"):
        here[0].log("failed", name)
        raise ValueError(name)
    return [name, drawn("candidate")]


@step
async def acandidate(name="same"):
    """Make a result, awaited."""
    await asyncio.sleep(0)
    return candidate(name)


@workflow
def child(name="same"):
    """Make a result in a run of its own."""
    return candidate(name)


@step
def judge(result):
    """Say one of three numbers, so that results are equal; the best one has more."""
    return drawn(f"score {result}") % 3 + 3 * (result[0] == "best")


async def ajudge(result):
    """Judge without a record of its own."""
    await asyncio.sleep(0)
    return drawn(f"score {result}") % 3 + 3 * (result[0] == "best")


def happened(call):
    """Look outside."""
    result = call.arguments["result"]
    return Landed(result) if [result] in here[0].lines("published") else DidNotHappen


@tool(side_effect=True, in_doubt=happened)
def publish(result):
    """Do something with what was chosen."""
    here[0].log("published", result)
    return result


def told(result):
    """Use a choice, and note it."""
    assert publish(result) == result
    here[0].log("chosen", result)
    return result


def steps():
    """Choose among the results of steps, two at a time, in a helper: nothing resumes inside."""
    return told(best_of(VARIATIONS, candidate, score=judge, max_workers=2))


def children():
    """Choose among the results of child runs, some of them of equal calls."""
    return told(best_of(VARIATIONS, child, score=lambda result: judge([*result])))


def plain():
    """Choose among what plain functions return."""

    def candidates():
        return [random.random(), drawn("candidate")]

    return told(best_of(4, candidates, score=lambda result: drawn(f"score {result}") % 3))


async def tasks():
    """Choose twice at once, in tasks."""
    both = (best_of(each, acandidate, score=ajudge) for each in (3, VARIATIONS))
    return [told(each) for each in await asyncio.gather(*both)]


def flow():
    """Choose in a helper."""
    return {"steps": steps, "children": children, "plain": plain}[FLOW]()


async def aflow():
    """Choose in a helper."""
    return await tasks()


def attempt(trial):
    """Execute the run."""
    here[:] = [trial]
    function = aflow if FLOW == "tasks" else flow
    call = workflow(function, run_id="r", store=trial.open())
    found = asyncio.run(call()) if FLOW == "tasks" else call()
    trial.log("found", found)


def play(trial):
    """The run ends, and however often it was chosen, the choice was the same."""
    trial.until(0, attempt)
    before = trial.lines("drawn")
    trial.until(0, attempt)
    trial.ended("completed")
    found = trial.lines("found")
    if found[0] != found[-1] or trial.lines("drawn") != before:
        trial.log("wrong", found)
    chosen = [result for (result,) in trial.lines("chosen")]
    many = 2 if FLOW == "tasks" else 1
    if len({str(each) for each in chosen}) != many or len(trial.lines("published")) != many:
        trial.log("wrong", chosen)
    scored = [what for (what,) in before if what.startswith("score")]
    twice = len(scored) - len(set(scored))
    if twice > 8:  # those in flight
        trial.log("wrong", before)


writes.sweep(play)
