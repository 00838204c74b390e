"""The benchmark of broken programs: its causes, its evidence, its questions and its grades."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
BROKEN = BENCHMARKS / "broken"
CAUSES = json.loads((BROKEN / "causes.json").read_text())
MISSED = {"greenhouse"}  # what a step reads for itself is recorded nowhere


@pytest.fixture
def causes(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("causes")


def run(*arguments):
    return subprocess.run(
        [sys.executable, BENCHMARKS / "causes.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def fault(name):
    """The first line of a program's fault, as its number."""
    lines = (BROKEN / f"{name}.py").read_text().splitlines()
    return lines.index(CAUSES[name]["fault"][0]) + 1


def test_each_program_has_its_cause_on_record():
    """Each of the twenty programs has a symptom, a cause, evidence, and its faulty lines once."""
    programs = {path.stem for path in BROKEN.glob("*.py")} - {"outside"}
    assert programs == set(CAUSES)
    assert len(programs) == len({known["kind"] for known in CAUSES.values()}) == 20
    for name, known in CAUSES.items():
        lines = (BROKEN / f"{name}.py").read_text().splitlines()
        assert [lines.count(text) for text in known["fault"]] == [1] * len(known["fault"])
        assert all(known[key] for key in ("symptom", "fault", "cause", "instead", "evidence"))
        assert 30 <= len(lines) <= 80


def test_the_calls_lead_to_the_causes(causes, tmp_path, monkeypatch):
    """Three short answers tell the evidence of all programs but the named, and the log of two."""
    monkeypatch.setenv("STEPWISE_HOME", "")  # put back afterwards
    monkeypatch.delenv("STEPWISE_TEST_HOME")  # the runs are those of other processes
    names = sorted(CAUSES)
    causes.make_runs(tmp_path, names)
    found = causes.look_at(tmp_path, names)
    assert {name for name in names if not causes.calls_needed(name, found[name])} == MISSED
    assert max(len(each.calls) for each in found.values()) == 3
    assert max(max(each.tokens) for each in found.values()) <= 2000
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in names}
    by_log = {name for name in names if causes.told_without_variables(name, logs[name])}
    assert by_log == {"purchasing", "travel"}


def test_evidence_is_the_value_of_the_named_variable(causes):
    """A value counts for its own variable only, in the answers of all three calls."""
    evidence = {"name": "order*", "has": "4990"}
    told = [
        {"variables": [{"name": "order", "text": "{'total': 4990}"}]},
        {"path": "order", "changes": [{"path": "order.total", "new": "4990"}]},
        {"locals": {"order": "{'total': 4990}"}},
    ]
    assert all(causes.told_by(evidence, [answer]) for answer in told)
    others = json.loads(json.dumps(told).replace("order", "ticket"))
    assert not causes.told_by(evidence, others)
    assert not causes.told_by({"name": "text", "has": "4990"}, told)


def test_a_folder_for_an_agent_asks_and_does_not_answer(tmp_path):
    """A prepared folder has questions, programs, outputs and runs, and no word of the answers."""
    run("--prepare", tmp_path, "--quick")
    assert {path.stem for path in tmp_path.glob("*.md")} == {"crm", "newsletter", "sales"}
    texts = [path.read_text() for path in tmp_path.glob("*.*")]
    assert not [known for known in CAUSES.values() for text in texts if known["cause"] in text]
    assert "KeyError: 'email'" in (tmp_path / "crm.log").read_text()
    for path in tmp_path.glob("*.md"):
        asked = next(line for line in path.read_text().splitlines() if "stepwise why" in line)
        answer = subprocess.run(
            [sys.executable, "-m", *asked.split()],
            env={**os.environ, "STEPWISE_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert json.loads(answer)["variables"]


def test_a_folder_without_runs_is_for_comparison(tmp_path):
    """With --without, the folder has the programs and what they printed, and no run."""
    run("--prepare", tmp_path, "--quick", "--without")
    assert not (tmp_path / "home").exists()
    assert "stepwise why" not in "".join(path.read_text() for path in tmp_path.glob("*.md"))
    assert "700 EUR in 18 sales" in (tmp_path / "sales.log").read_text()


def test_a_folder_in_use_is_left(tmp_path):
    """A folder that is not empty is refused: a former run would answer in it."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run("--prepare", tmp_path, "--quick")
    assert "is not empty: name a new folder" in raised.value.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_grader_tells_right_from_wrong(tmp_path):
    """An answer is right if it names a line of the fault in the program's own file."""
    right = {name: {"file": f"/somewhere/{name}.py", "line": fault(name)} for name in CAUSES}
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(right))
    assert "20 of 20 right" in run("--grade", answers)
    wrong = {
        **right,
        "crm": {"file": "crm.py", "line": fault("crm") + 1, "cause": "It is late."},
        "sales": {"file": "crm.py", "line": fault("sales")},
    }
    del wrong["tutor"]
    answers.write_text(json.dumps(wrong))
    said = run("--grade", answers)
    assert "17 of 20 right" in said
    assert "crm: wrong" in said
    assert "It is late." in said
    assert "sales: wrong" in said
    assert "tutor: no answer" in said
