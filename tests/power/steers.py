"""Asks, waits and is cancelled; tells what a person did, and of each effect.

The test that cuts the power goes on with the runs, on the disk as it was left, by ``finish``.
"""

from __future__ import annotations

import os
import sys

import stepwise
from stepwise import DidNotHappen, Landed, RunCancelled, step, tool, workflow

DURABILITY = os.environ.get("POWER_DURABILITY", "fsync")
RUNS = "job", "own"  # a person cancels the first one; a step of the other one does it
world: list[str] = []  # what happened outside, and what was acknowledged: no power cut undoes it
acks: list[int] = []  # the file for it


def tell(what: str) -> None:
    world.append(what)
    for each in acks:
        os.write(each, f"{what}\n".encode())


def was_done(call):
    done = " ".join([call.name, *map(str, call.arguments.values())])
    return Landed(None) if done in world else DidNotHappen


@tool(side_effect=True, approve=True, in_doubt=was_done)
def pay(run: str, n: int) -> None:
    tell(f"pay {run} {n}")


@tool(side_effect=True, in_doubt=was_done)
def close(run: str) -> None:
    tell(f"close {run}")


@step
def give_up() -> None:
    run = stepwise.current_run()
    run.cancel("enough")
    tell(f"cancelled {run.id}")


@step
def late() -> None:
    tell("late")


@workflow(durability=DURABILITY)
def agent(run: str, rounds: int) -> None:
    try:
        for n in range(rounds):
            pay(run, n)
            stepwise.approve("Go on?", details=n)
            stepwise.wait_for("tick")
            stepwise.sleep(0)
        if run == "own":
            give_up()
        else:
            stepwise.wait_for("never")
        late()
    finally:
        close(run)


def act(run: stepwise.Run) -> list[str]:
    """Do what a suspended run waits for; what is wrong with its asking for that."""
    wrong = []
    if f"cancelled {run.id}" in world:
        wrong.append(f"{run.id} was cancelled, and waits {run.waits}")
    (wait,) = run.waits
    if wait.kind == "approval":
        (question,) = run.questions
        if f"approved {question.ticket}" in world:
            wrong.append(f"the answer to {question} is lost")
        question.approve("yes")
        tell(f"approved {question.ticket}")
    elif wait.name == "tick":
        n = sum(each.status == "taken" and each.kind == "signal" for each in run.inbox)
        if f"sent {run.id} {n}" in world:
            wrong.append(f"message {n} is lost")
        run.send("tick", n, key=f"{n}")
        tell(f"sent {run.id} {n}")
    else:
        run.cancel("enough")
        tell(f"cancelled {run.id}")
    return wrong


def finish(rounds: int) -> list[str]:
    """Execute the runs until they have ended; what is wrong with them."""
    stepwise.configure(suspend_after=0)
    wrong = []
    for run_id in RUNS:
        try:
            while True:
                wrong += act(agent.options(run_id=run_id).execute(run_id, rounds))
        except RunCancelled:
            tell(f"ended {run_id}")
        wrong += stepwise.get_run(run_id).verify().problems
    return wrong


def wrong_with(rounds: int) -> list[str]:
    """Look at what happened until all runs have ended; what is wrong with that."""
    wrong = [] if "late" not in world else ["a step was executed after the request to cancel"]
    for run_id in RUNS:
        run, expected = stepwise.get_run(run_id), range(rounds)
        signals = [each for each in run.inbox if each.kind == "signal"]
        if run.status != "cancelled":
            wrong.append(f"{run_id} is {run.status}")
        if [(each.value, each.status) for each in signals] != [(n, "taken") for n in expected]:
            wrong.append(f"{run_id}: {signals}")
        effects = [f"close {run_id}", *(f"pay {run_id} {n}" for n in expected)]
        wrong += [f"{e}: {world.count(e)} times" for e in effects if world.count(e) != 1]
    return wrong


def main() -> None:
    acks.append(os.open(os.environ["POWER_ACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    rounds = int(sys.argv[1]) // 4
    wrong = finish(rounds) + wrong_with(rounds)
    assert not wrong, wrong


if __name__ == "__main__":
    import steers  # as the test imports it: the functions have the same names

    steers.main()
