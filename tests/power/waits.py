"""Waits, is suspended, is sent what it waits for; tells of each of these that was acknowledged."""

import os
import sys

import stepwise
from stepwise import workflow

ACKS = os.open(os.environ["POWER_ACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
stepwise.configure(suspend_after=0)


def acknowledged(*what: object) -> None:
    os.write(ACKS, (" ".join(map(str, what)) + "\n").encode())


@workflow(durability=os.environ["POWER_DURABILITY"])
def agent(limit: int) -> list:
    found: list = []
    for n in range(limit):
        found.append(stepwise.wait_for("tick"))
        acknowledged("took", 2 * n + 1, found[-1])
        stepwise.sleep(0)
        acknowledged("took", 2 * n + 2, None)
    return found


def hear(event: stepwise.Event) -> None:
    if event.kind == "step_waiting":
        acknowledged("waits", event.step, None)


stepwise.on_event(hear)
rounds = int(sys.argv[1]) // 2
for n in range(rounds + 1):
    run = agent.options(run_id="job").execute(rounds)
    acknowledged(run.status, 0, n)
    if run.status == "suspended":
        run.send("tick", n)
