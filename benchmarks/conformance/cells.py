"""The cells: what goes wrong in each, and how it is judged.

The first ten are from the artifact of "Resume Means Resume" (S. Khan, arXiv:2608.03836): its model
in TLA+ (``ResumeContract.tla``: a workflow of three tasks, each with an effect, the second behind
a question) and its probes.  The others are anomalies that are known under these names elsewhere.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trial import Trial

HELD, BROKEN, ASKS, NOT = "held", "broken", "asks", "not expressible"
Verdict = tuple[str, str]  # one of these, and in words what happened


class Cell(NamedTuple):
    """A fault, and what the property says of it.

    Args:
        name: of the property, or of the anomaly.
        fault: what goes wrong, in words.
        play: plays it once, and judges.
        settings: of the environment of the programs.
    """

    name: str
    fault: str
    play: Callable[[Trial], Verdict]
    settings: dict[str, str] = {}  # noqa: RUF012


def finished(trial: Trial, ended: dict[str, object], value: str = "yes") -> Verdict:
    """Judge a run that is to have ended with each effect once, charge with this value."""
    state = ended["state"]
    if state == "not expressible":
        return NOT, ""
    done = Counter(each["name"] for each in trial.ledger())
    again = [f"{name} {n} times" for name, n in done.items() if n > 1]
    missing = [name for name in ("reserve", "charge", "notify") if not done[name]]
    expected = ["reserve", f"charge {value}", "notify"]
    if not again and state == "asks":
        return ASKS, ""
    if again:
        wrong = ", ".join(again)
    elif state == "refused":
        wrong = f"refused: {ended['why']}"
    elif state == "waits":
        wrong = "the run waits for an answer that was given"
    elif state != "done":
        wrong = str(ended.get("why", state))
    elif ended["result"] != expected:
        wrong = f"returns {json.dumps(ended['result'])}"
    else:
        wrong = f"never done: {', '.join(missing)}" if missing else ""
    return (BROKEN, wrong) if wrong else (HELD, "")


def on(trial: Trial, ended: dict[str, object]) -> dict[str, object]:
    """Go on until the run has ended: answer what waits, resume what was killed or failed."""
    for _ in range(4):
        if ended["state"] not in ("killed", "failed", "waits"):
            break
        ended = trial.do("answer", "yes") if ended["state"] == "waits" else trial.do("resume")
    return ended


def killed(*plans: str) -> Callable[[Trial], Verdict]:
    """Kill at one of these moments, another one in each trial."""

    def play(trial: Trial) -> Verdict:
        trial.plan(f"kill {plans[trial.number % len(plans)]}")
        ended = on(trial, trial.do("start"))
        assert trial.happened(), ended
        return finished(trial, ended)

    return play


def killed_while_parked(trial: Trial) -> Verdict:
    """Kill the process that has asked, and answer in another one."""
    parked = trial.do("start", then_kill=True)
    return finished(trial, on(trial, parked))


def forked(action: str) -> Callable[[Trial], Verdict]:
    def play(trial: Trial) -> Verdict:
        first = on(trial, trial.do("start"))
        before = [each["name"] for each in trial.ledger()]
        other = trial.do(action, "no")
        if other["state"] == "not expressible":
            return NOT, ""
        results = {"yes": first.get("result"), "no": other.get("result")}
        for value, result in results.items():
            if result != ["reserve", f"charge {value}", "notify"]:
                return BROKEN, f"the answer {value!r} returned {json.dumps(result or other['why'])}"
        shared = [each["name"] for each in trial.ledger()][len(before) :].count("reserve")
        return (BROKEN, "the shared beginning was done again") if shared else (HELD, "")

    return play


def invalid(trial: Trial) -> Verdict:
    """A task returns what its annotation (or the state's schema) does not allow."""
    started = trial.do("start", then_kill=True)
    if started["state"] == "failed":
        return HELD, textwrap.shorten(str(started["why"]), 90, placeholder=" ...")
    ended = on(trial, started)
    if ended["state"] == "failed":
        return BROKEN, "kept; noticed only when it was read again"
    return BROKEN, f"kept and given on: {json.dumps(ended.get('result', ended['state']))}"


def stray(trial: Trial) -> Verdict:
    """The same answer is delivered once more, to a run that has ended."""
    ended = on(trial, trial.do("start"))
    trial.do("replay", "yes")
    return finished(trial, ended)


def answered_at_once(trial: Trial) -> Verdict:
    """Four processes bring the answer at the same time."""
    trial.do("start", then_kill=True)
    told = trial.race("answer", "yes")
    return _raced(trial, told)


def resumed_at_once(trial: Trial) -> Verdict:
    """Four processes resume a run that was killed, at the same time."""
    trial.plan("kill before notify")
    ended = trial.do("start")
    if ended["state"] == "waits":
        ended = trial.do("answer", "yes")
    assert ended["state"] == "killed", ended
    return _raced(trial, trial.race("resume"))


def _raced(trial: Trial, told: list[dict[str, object]]) -> Verdict:
    # One that did it counts before one that asks, and this before those that were refused.
    order = ["done", "asks", "failed", "waits", "refused"]
    best = min(told, key=lambda each: order.index(each["state"]) if each["state"] in order else 9)
    return finished(trial, on(trial, best))


def recovered(trial: Trial) -> Verdict:
    """The store of a killed run is copied, and each of three copies is recovered on its own."""
    trial.plan(("kill before notify", "kill after charge")[trial.number % 2])
    ended = trial.do("start")
    if (trial.folder / "service.pid").exists():
        return NOT, ""  # the state is in a server
    if ended["state"] == "waits":
        ended = trial.do("answer", "yes")
    assert ended["state"] == "killed", ended
    found = set()
    for seed in range(3):
        copy = trial.copied(f"copy{seed}", PYTHONHASHSEED=str(seed))
        ended = on(copy, copy.do("resume"))
        done = Counter(each["name"] for each in copy.ledger())
        found.add(json.dumps([ended["state"], ended.get("result"), sorted(done.items())]))
        shutil.rmtree(copy.folder, ignore_errors=True)
    return (HELD, "") if len(found) == 1 else (BROKEN, f"{len(found)} ways: {sorted(found)}")


def stale(trial: Trial) -> Verdict:
    """A call of charge hangs; another process goes on; then the call returns."""
    trial.plan("stall after charge")
    sleeper = trial.begin("start")
    if sleeper is None:  # it has asked
        sleeper = trial.begin("answer", "yes")
    assert sleeper is not None
    other = trial.do("resume")
    if other["state"] == "waits":
        other = trial.do("answer", "yes")
    trial.wake(sleeper)
    done = Counter(each["name"] for each in trial.ledger())
    if done["notify"] > 1 or done["reserve"] > 1:
        return BROKEN, f"both went on: {dict(done)}"
    if done["charge"] > 1:
        return HELD, "the first went no further; charge, in which it hung, was made by both"
    waited = {"refused": "the second was refused", "hangs": "the second waited for the first"}
    return HELD, waited.get(str(other["state"]), "")


def lost(trial: Trial) -> Verdict:
    """The effect happens, and its answer never arrives: the call raises ConnectionError."""
    trial.plan("lose after charge")
    ended = on(trial, trial.do("start"))
    return finished(trial, ended)


def approval_replayed(trial: Trial) -> Verdict:
    """The answer to the first question is delivered twice; a second question is open."""
    trial.do("start", then_kill=True)
    first = trial.do("answer", "yes")
    if first["state"] != "waits":
        return (NOT, "") if first["state"] == "not expressible" else (BROKEN, str(first))
    trial.do("replay", "yes", seconds=15)
    done = Counter(each["name"] for each in trial.ledger())
    return (BROKEN, "the second call was made by it") if done["notify"] else (HELD, "")


KEYED = {"KEYED": "1"}
SLOW = {"SECONDS_OF_EFFECT": "0.3"}
CELLS = (
    Cell(
        "prefix continuation",
        "SIGKILL before charge, or before notify",
        killed("before notify", "before charge"),
    ),
    Cell(
        "prefix continuation, parked",
        "SIGKILL while it waits for the answer",
        killed_while_parked,
    ),
    Cell(
        "effects exactly once",
        "SIGKILL between an effect and its record",
        killed("after charge", "after reserve", "after notify"),
    ),
    Cell(
        "effects exactly once, with keys",
        "the same; the receiver knows the key of each effect",
        killed("after charge", "after reserve", "after notify"),
        KEYED,
    ),
    Cell("fork determinism", "another answer in a fork, as documented", forked("fork")),
    Cell(
        "fork determinism, same checkpoint",
        "another answer to the question's own checkpoint",
        forked("answer again"),
    ),
    Cell(
        "checkpoint validity",
        "a task returns what its declared type does not allow",
        invalid,
        {"BAD": "1"},
    ),
    Cell("consume-once", "the answer comes again after the end", stray),
    Cell(
        "consume-once, at once",
        "four processes bring the answer at the same time",
        answered_at_once,
        SLOW,
    ),
    Cell(
        "recovery determinism",
        "three copies of a killed run's store are recovered",
        recovered,
    ),
    Cell("double resume", "four processes resume a killed run", resumed_at_once, SLOW),
    Cell(
        "double resume, with keys",
        "the same; the receiver knows the key of each effect",
        resumed_at_once,
        {**SLOW, **KEYED},
    ),
    Cell("stale writer", "a call hangs, and returns when another process has gone on", stale),
    Cell("lost acknowledgement", "an effect happens, its answer is lost", lost),
    Cell(
        "lost acknowledgement, with keys",
        "the same; the receiver knows the key of each effect",
        lost,
        KEYED,
    ),
    Cell(
        "approval replayed",
        "the first approval comes twice; a second is asked for",
        approval_replayed,
        {"GATES": "2"},
    ),
)
