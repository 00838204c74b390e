"""Agent programs of each framework, killed at each request and in each tool, and run again."""

import importlib.util

import pytest

pytest.importorskip("openai")
from killing import (
    ALL,
    FAULTS_AND_KILLS,
    KILLS_AT_REQUESTS,
    KILLS_IN_TOOLS,
    Disturbance,
    Trial,
)
from scripted_server import REQUESTS
from sweeping import some


def cases(*, loop=None):
    """Each program and variant; skipped where a module that it needs is not installed."""
    for program in ALL:
        missing = [
            name for name in program.modules if importlib.util.find_spec(name.split(".")[0]) is None
        ]
        marks = [pytest.mark.xdist_group(program.file)]
        if missing:
            marks.append(pytest.mark.skip(reason=f"{missing[0]} is not installed"))
        for variant in program.variants:
            if loop is None or program.loop == loop:
                name = f"{program.framework}-{variant}"
                yield pytest.param(program, variant, id=name, marks=marks)




@pytest.mark.parametrize(("program", "variant"), cases())
def test_each_request_is_made_once(program, variant, tmp_path):
    """Killed at a request or in a tool and run again: N + 1 requests at most, each tool once."""
    wrong = {}
    with Trial(program, variant, tmp_path / "undisturbed") as trial:
        assert trial.run() == []
        assert trial.requests == REQUESTS
    for number, disturbance in enumerate([
        *some(KILLS_AT_REQUESTS, 2, variant),
        *some(KILLS_IN_TOOLS, 1, variant),
        *some(FAULTS_AND_KILLS, 1, variant),
    ]):
        with Trial(program, variant, tmp_path / f"{number}") as trial:
            wrong[str(disturbance)] = trial.run(disturbance)
    assert {how: what for how, what in wrong.items() if what} == {}
