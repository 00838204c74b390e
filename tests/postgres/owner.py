"""A program whose workflow stops where its test says, and goes on when its test says so.

Its command line is one JSON object:

``store``     the URL.
``log``       the file to which steps write what they do, a line each.
``name``      what this process is called there.
``steps``     how many steps the workflow has: plain ones and side effects in turn.
``stops``     places at which it prints ``at PLACE`` and waits for a line: ``before act 3``.
``machine``   if given, the process says that it runs on another machine of that name.
``in_doubt``  of the side effects: ``raise``, ``retry`` or ``reconcile``.
``on_owned``  of the workflow.
``seconds``   how long each step takes.
``waits``     the workflow ends with a wait for this signal.

It prints ``result ...`` or ``stopped NAME`` at its end.
"""

import json
import os
import sys
import time

import stepwise
from stepwise import step, tool, workflow

SETTINGS = {
    "name": "a",
    "steps": 6,
    "stops": [],
    "machine": "",
    "in_doubt": "raise",
    "on_owned": "raise",
    "seconds": 0,
    "waits": "",
}
RUN = "the-run"


def log(line):
    with open(SETTINGS["log"], "a", encoding="utf-8") as file:
        file.write(f"{SETTINGS['name']} {line} {time.time()}\n")


def here(place):
    if place in SETTINGS["stops"]:
        print(f"at {place}", flush=True)
        sys.stdin.readline()


def doing(what):
    here(f"before {what}")
    time.sleep(SETTINGS["seconds"])
    log(f"did {what}")
    here(f"after {what}")
    return what


def reconcile(call):
    """Look outside: in the log."""
    what = f"act {call.arguments['number']}"
    log(f"reconciled {what}")
    with open(SETTINGS["log"], encoding="utf-8") as file:
        done = f" did {what} " in file.read()
    return stepwise.Landed(what) if done else stepwise.DidNotHappen


@step
def think(number):
    return doing(f"think {number}")


def act(number):
    return doing(f"act {number}")


def make_workflow():
    in_doubt = SETTINGS["in_doubt"]
    acts = tool(side_effect=True, in_doubt=reconcile if in_doubt == "reconcile" else in_doubt)(act)

    @workflow(name="owned")
    def owned(steps):
        done = []
        for number in range(steps):
            here(f"between {number}")
            done.append(acts(number) if number % 2 else think(number))
        if SETTINGS["waits"]:
            print("waiting", flush=True)
            done.append(stepwise.wait_for(SETTINGS["waits"]))
            print(f"woken {time.time()}", flush=True)
        return done

    return owned


def pretend(machine):
    """Be on another machine, as far as others can know: no proof of death can be had there."""
    from stepwise.stores import _postgres_presence

    _postgres_presence._here = lambda: (machine, "pid:[1]")


def main():
    SETTINGS.update(json.loads(sys.argv[1]))
    if SETTINGS["machine"]:
        pretend(SETTINGS["machine"])
    stepwise.configure(store=SETTINGS["store"], suspend_after=3600)
    owned = make_workflow().options(run_id=RUN, on_owned=SETTINGS["on_owned"])
    here("start")
    try:
        result = owned(SETTINGS["steps"])
    except BaseException as error:
        if os.environ.get("OWNER_TRACE"):
            raise
        print(f"stopped {type(error).__name__} {time.time()}", flush=True)
    else:
        print(f"result {json.dumps(result)}", flush=True)
