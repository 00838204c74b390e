"""The world outside of the programs: a ledger of effects, and what goes wrong there.

Every program has the same workflow: ``reserve``; then somebody is asked; then ``charge``, with the
answer; then ``notify``.  Each of the three calls `effect`, which adds a line to the ledger.  The
harness writes what is to go wrong into ``FOLDER/plan``, as ``kill after charge``; it happens once.

A program defines functions named like the actions of `main`, and prints one line of JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import sys
import time

FOLDER = pathlib.Path(os.environ.get("FOLDER", "."))
RUN = "order-7"
TWO_GATES = os.environ.get("GATES") == "2"  # notify is asked for, too
KEYED = os.environ.get("KEYED") == "1"  # the receiver drops an effect whose key it has seen
BAD = os.environ.get("BAD") == "1"  # reserve returns what its annotation does not allow
SECONDS = float(os.environ.get("SECONDS_OF_EFFECT", "0"))  # that each effect takes


class Waits(Exception):  # noqa: N818 -- it says how a run ended
    """The run is parked: it waits for an answer."""


class Asks(Exception):  # noqa: N818 -- it says how a run ended
    """The library stopped, and asks a person what happened."""


class Refused(Exception):  # noqa: N818 -- it says how a run ended
    """The library did not let this process do it."""


def effect(name: str, value: str = "", key: str = "") -> str:
    """Do something outside that repeating would double; return what came of it."""
    _moment("before", name)
    time.sleep(SECONDS)
    with open(FOLDER / "ledger", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        if not (KEYED and key and any(each["key"] == key for each in ledger())):
            line = json.dumps({"name": name, "value": value, "key": key, "pid": os.getpid()})
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
    _moment("after", name)
    return f"{name} {value}".strip()


def ledger() -> list[dict[str, str]]:
    """Return what was done, in its order."""
    file = FOLDER / "ledger"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def _moment(when: str, name: str) -> None:
    plan = FOLDER / "plan"
    try:
        what, *planned = plan.read_text("utf-8").split()
        if planned != [when, name]:
            return
        plan.unlink()
    except FileNotFoundError:  # nothing is planned, or it has happened
        return
    if what == "lose":
        raise ConnectionError(f"the answer of {name} was lost")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    (FOLDER / "stalled").touch()
    while not (FOLDER / "woken").exists():
        time.sleep(0.01)


def _wait_for_the_others() -> None:
    """Begin when all racing processes have imported what they need."""
    if "RACE" in os.environ:
        (FOLDER / f"armed-{os.getpid()}").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.001)


def main(actions: dict[str, object]) -> None:
    """Do the action on the command line, and print what came of it.

    ``start``: begin the run, up to its end or its question.  ``resume``: go on after a crash.
    ``answer VALUE``: answer the question, and go on.  ``replay VALUE``: deliver the same answer
    again.  ``fork VALUE``: from the question, with another answer; print the result.
    """
    name, *given = sys.argv[1:]
    action = actions.get(name)
    if action is None:
        told = {"state": "not expressible"}
    else:
        _wait_for_the_others()
        try:
            told = {"state": "done", "result": action(*given)}  # type: ignore[operator]
        except (Waits, Asks, Refused) as error:
            told = {"state": type(error).__name__.lower(), "why": str(error)}
        except Exception as error:
            told = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(told), flush=True)
    if os.environ.get("LIVES"):  # until it is killed
        signal.pause()
    os._exit(0)  # threads of libraries do not keep a program
