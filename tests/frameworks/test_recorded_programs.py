"""Agent programs of each framework, answered by a run of theirs that was recorded and exported."""

import json

import pytest

pytest.importorskip("openai")
from harness import Watched, python
from killing import ALL, PROGRAMS, Disturbance, Trial
from scripted_server import FINAL
from test_killed_at_each_request import cases


def two_of_each():
    """A variant from the beginning of each program's list, and one from its middle."""
    for program in ALL:
        found = [case for case in cases() if case.values[0] is program]
        yield from found[:: max(1, len(found) // 2)][:2]


@pytest.mark.parametrize(("program", "variant"), [*two_of_each()])
def test_a_recorded_run_answers_the_program(program, variant, tmp_path):
    """Without key and server, the program is answered by its export, of which nothing is left."""
    with Trial(program, variant, tmp_path / "recorded") as trial:
        assert trial.run(Disturbance({2: "before"})) == []
        path, environment = tmp_path / "run.json", trial.environment
        words = ["export", id_of_run(trial), "--format=model-calls", "-o", path]
        exported = python("stepwise", *words, env=environment)
        assert exported.returncode == 0, exported.stderr
        assert "sk-" not in path.read_text("utf-8")
    # The server is gone; a framework that finds no URL of it would ask in another way.
    alone = {name: text for name, text in environment.items() if not name.endswith("_API_KEY")}
    alone |= {"STEPWISE_HOME": str(tmp_path / "home"), "LEDGER": str(tmp_path / "ledger")}
    errors = tmp_path / "errors"
    errors.touch()
    answered = Watched(
        PROGRAMS / "answered.py", path, program.file, variant,
        cwd=str(tmp_path), env=alone, err=errors, imports=program.modules,
    )  # fmt: skip
    said = answered.stdout.read()
    assert answered.wait() == 0, errors.read_text("utf-8")
    assert said.strip().endswith(FINAL)


def id_of_run(trial):
    """The id of the run of a trial."""
    listed = python("stepwise", "runs", "--json", env=trial.environment)
    (run,) = json.loads(listed.stdout)
    return run["id"]
