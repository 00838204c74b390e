"""Agent programs of each framework, answered by a run of theirs that was recorded and exported."""

import json

import pytest

pytest.importorskip("openai")
from harness import Watched, python
from killing import ALL, PROGRAMS, Disturbance, Trial
from scripted_server import FINAL
from test_killed_at_each_request import APART, class_of


def two_of_each():
    """A variant from the beginning of each program's list, and one from its middle."""
    for program in ALL:
        marks = class_of(program).pytestmark
        variants = program.variants[:: max(1, len(program.variants) // 2)][:2]
        for variant in variants if APART == 1 else variants[:1]:
            yield pytest.param(program, variant, id=f"{program.file}-{variant}", marks=marks)


@pytest.mark.parametrize(("program", "variant"), [*two_of_each()])
def test_a_recorded_run_answers_the_program(program, variant, tmp_path):
    """Without key and server, the program is answered by its export, of which nothing is left."""
    with Trial(program, variant, tmp_path / "recorded") as trial:
        assert trial.run(Disturbance({2: "before"})) == []
        path, environment = tmp_path / "run.json", trial.environment
        words = ["export", id_of_run(trial), "--format=model-calls", "-o", path]
        python("stepwise", *words, env=environment, code=0)
        assert "sk-" not in path.read_text("utf-8")
    # The server is gone; a framework that finds no URL of it would ask in another way.
    alone = {name: text for name, text in environment.items() if not name.endswith("_API_KEY")}
    alone |= {"STEPWISE_HOME": str(tmp_path / "home"), "LEDGER": str(tmp_path / "ledger")}
    errors = tmp_path / "errors"
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
