"""An order that fails and is undone; ``DIE`` names the place in a compensation where it dies."""

import os
import signal

import stepwise
from stepwise import step, tool, workflow


def here(place):
    if os.environ["DIE"] == place:
        os.kill(os.getpid(), signal.SIGKILL)


def log(line):
    with open(os.environ["LOG"], "a", encoding="utf-8") as file:
        file.write(line + "\n")


def undo(call):
    here(f"before undo {call.result}")
    log(f"undo {call.result}")
    here(f"after undo {call.result}")


@tool(side_effect=True, compensate=undo)
def act(what):
    log(what)
    return what


@workflow
def child():
    return act("of child")


@step
def pack():
    return act("packed")


@workflow(compensate_on_failure=True)
def order():
    done = [act("book"), child(), pack(), act("charge")]
    if os.environ["FAIL"]:
        raise ValueError("sold out")
    return done


if os.environ["RESOLVE"]:
    for run in stepwise.runs():
        for each in run.steps:
            if each.status == "in_doubt" and not each.child:
                landed = os.environ["RESOLVE"] == "landed"
                run.resolve(
                    each.number, **({"landed": None} if landed else {"did_not_happen": True})
                )
print(order())
