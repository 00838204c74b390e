"""Many runs are evaluated, and the process that does it is killed at each write: see ``writes``.

``python evaluating.py FOLDER FIRST STRIDE``: the branches and their scores are random, so that
whoever executes or scores one again says something else.
"""

import os

import writes

import stepwise
from stepwise import step, tool, workflow
from stepwise.stores import open_store

here = []


def drawn(what):
    """Draw a number, in a process whose numbers no other process draws."""
    here[0].log("drawn", what)
    return int.from_bytes(os.urandom(6), "big")


@step
def think(topic, model):
    """Think."""
    return f"{topic} {model} {drawn('thought')}"


@tool(side_effect=True)
def send(text):
    """Do what no branch may."""
    here[0].log("sent", text)
    return text


@workflow(retention="all")
def agent(topic, model="small"):
    """Think twice, and send what comes of it."""
    first = think(topic, model)
    second = think(first, model)
    return send(second)


def judge(result):
    """Say a random number."""
    return drawn(f"judged {result}")


def answer(call):
    """Say what a side effect would return."""
    return f"would send {call.arguments['text']}"


def prepare(trial):
    """Make the runs."""
    here[:] = [trial]
    for topic in ("a", "b"):
        agent.options(run_id=topic, store=f"disk:{trial.folder / 'store'}")(topic)


def attempt(trial):
    """Evaluate the runs."""
    here[:] = [trial]
    store = trial.open()
    found = stepwise.evaluate(
        stepwise.runs(agent, store=store),
        at=1,
        variations=[{"model": "large"}, {"model": "tiny"}],
        score=judge,
        effects=answer,
        max_workers=2,
    )
    trial.log("rows", found.rows())


def play(trial):
    """The evaluation ends, says the same when it is called again, and nothing was done twice."""
    trial.fork(prepare)
    trial.until(0, attempt)
    before = trial.lines("drawn")
    trial.until(0, attempt)
    (first,), (last,) = (trial.lines("rows")[n] for n in (0, -1))
    if first != last or trial.lines("drawn") != before or len(trial.lines("sent")) != 2:
        trial.log("wrong", first, last)
    if [row["error"] for row in first] != [""] * 6 or None in [row["score"] for row in first]:
        trial.log("wrong", first)
    judged = [what for (what,) in before if what.startswith("judged")]
    thought = len(before) - len(judged) - 4
    if not (6 <= len(judged) <= 8 and len(set(judged)) == 6 and 4 <= thought <= 6):
        trial.log("wrong", before)
    store = open_store(f"disk:{trial.folder / 'store'}")
    if not all(each.verify().ok for each in stepwise.runs(store=store)):
        trial.log("wrong", "a run does not verify")


writes.sweep(play)
