"""Agent programs of each framework, killed at each request and in each tool, and run again.

``python tests/frameworks/table.py`` runs these tests and writes what came of them into the docs.
"""

import importlib.util

import pytest

pytest.importorskip("openai")
from killing import ALL, Disturbance, Trial, disturbances
from scripted_server import REQUESTS
from sweeping import SCALE, WHOLE


def cases(*, every=True, loop=None):
    """Each program and variant (or some); skipped where a module that it needs is missing."""
    found = []
    for program in ALL:
        missing = [
            name for name in program.modules if importlib.util.find_spec(name.split(".")[0]) is None
        ]
        marks = [pytest.mark.xdist_group(program.file)]
        if missing:
            marks.append(pytest.mark.skip(reason=f"{missing[0]} is not installed"))
        if loop in (None, program.loop):
            apart = 1 if SCALE >= 1 or WHOLE else 4
            for variant in program.variants[::apart] if every else program.variants[:1]:
                name = f"{program.framework}-{variant}"
                found.append(pytest.param(program, variant, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("program", "variant"), cases())
def test_each_request_is_made_once(program, variant, tmp_path, record_property):
    """Killed at a request or in a tool and run again: N + 1 requests at most, each tool once."""
    with Trial(program, variant, tmp_path / "undisturbed") as trial:
        assert trial.run() == []
        assert trial.requests == REQUESTS
    killed = disturbances(program, variant)
    wrong, repeated = {}, 0
    for number, disturbance in enumerate(killed):
        # Where the answers of the model differ, all that follows shows a repeated request.
        numbered = bool(number % 2)
        with Trial(program, variant, tmp_path / f"{number}", numbered=numbered) as trial:
            wrong[str(disturbance)] = trial.run(disturbance)
            repeated = max(repeated, trial.requests - REQUESTS - disturbance.faults)
    assert {how: what for how, what in wrong.items() if what} == {}
    record_property(
        "killed", {"framework": program.framework, "trials": len(killed), "repeated": repeated}
    )


@pytest.mark.parametrize(("program", "variant"), cases(every=False))
def test_a_limit_is_no_answer(program, variant, tmp_path):
    """A program that failed for a server that is down, or limits it, ends well when it is not."""
    down = "500" if program.framework == "smolagents" else "429"  # it waits minutes for a limit
    with Trial(program, variant, tmp_path / "down") as trial:
        trial.server.plan = {1: "", 0: down}
        assert trial.start().code == 1
        failed = trial.requests - 1
        assert trial.run() == [], "the recorded failure answered"
        assert trial.requests == REQUESTS + failed


@pytest.mark.parametrize(("program", "variant"), cases(every=False, loop=True))
def test_the_control(program, variant, tmp_path, record_property):
    """Without ``instrument()``, these trials find repeated requests, and a side effect in doubt."""
    late = Disturbance({REQUESTS: "before"})
    with Trial(program, variant, tmp_path / "plain", plain=True) as trial:
        assert "requests, by turn" in str(trial.run(late))
        repeated = trial.requests - REQUESTS
    with Trial(program, variant, tmp_path / "numbered", plain=True, numbered=True) as trial:
        assert "StepInDoubtError" in str(trial.run(late))
    record_property("control", {"framework": program.framework, "repeated": repeated})
