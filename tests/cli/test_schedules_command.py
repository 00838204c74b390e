"""``stepwise schedules`` and ``stepwise up``, as a person uses them."""

import json
import os
import pathlib
import sys
import time

import pytest
from harness import Watched, python, until

import stepwise

JOBS = """
import os
from datetime import timedelta
from stepwise import step, workflow
from stepwise._runtime import clock

if os.path.exists("clock"):
    clock.now = lambda: float(open("clock").read())

@step
def note(at):
    with open("log", "a") as file:
        file.write(f"{at}\\n")

@workflow(every=timedelta(seconds=1), arguments=lambda at: {"at": at.isoformat()})
def tick(at):
    note(at)

@workflow(every="0 9 * * mon-fri", timezone="Europe/Zurich")
def report():
    note("report")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the module ``jobs``; this process is in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(tmp_path)]))
    pathlib.Path("jobs.py").write_text(JOBS, "utf-8")
    return tmp_path


def schedules(*words, code=0):
    done = python("stepwise", "schedules", *words)
    assert done.returncode == code, done.stderr
    return done


def listed():
    return {each["name"]: each for each in json.loads(schedules("--json").stdout)}


def instants(**which):
    """The instants of the runs of ``tick``, as it logs them."""
    marks = [each.id.partition("@")[2] for each in stepwise.runs(**which)]
    return [f"{mark.removesuffix('Z')}+00:00" for mark in marks]


def test_they_are_begun_while_up_runs(place):
    """A run begins at each instant; the listing says what is next, and who has the schedule."""
    assert "no schedule was seen by stepwise up" in schedules().stderr
    errors = place / "errors"
    with Watched("stepwise", "up", "jobs", cwd=str(place), env=os.environ, err=errors):
        until(lambda: len(stepwise.runs(status="completed")) >= 2)
        found = until(lambda: (found := listed())["tick"]["status"] == "completed" and found)
        text = schedules().stdout
    assert found["tick"]["served"] is True
    assert (found["report"]["every"], found["report"]["run"]) == (
        "0 9 * * mon-fri Europe/Zurich",
        None,
    )
    assert found["report"]["next"] > time.time()
    assert "SCHEDULE" in text
    assert "no stepwise up has it" not in text
    assert "no stepwise up has it" in schedules().stdout
    logged = pathlib.Path("log").read_text("ascii").splitlines()
    assert {*instants(status="completed")} <= {*logged} <= {*instants()}  # it was killed
    assert len(logged) == len({*logged})
    said = errors.read_text("utf-8")
    assert "up: schedule 'report', 0 9 * * mon-fri Europe/Zurich: it begins at " in said


def test_with_once_from_cron(place):
    """``up --once`` begins what has come since the last one; what is missed counts as missed."""
    pathlib.Path("clock").write_text("4000000000.5")
    python("stepwise", "up", "--once", "jobs")
    assert [each.id for each in stepwise.runs()] == []
    assert listed()["tick"]["next"] == 4000000001
    pathlib.Path("clock").write_text("4000000001")
    said = python("stepwise", "up", "--once", "jobs").stderr
    assert " completed" in said
    assert [each.status for each in stepwise.runs()] == ["completed"]


def test_pausing_and_asking(place):
    """A paused schedule begins nothing but what somebody asks for; then it continues."""
    python("stepwise", "up", "--once", "jobs")
    assert "stepwise schedules resume report" in schedules("pause", "report").stderr
    asked = schedules("fire", "report")
    assert "once it is started: none has jobs:report now" in asked.stderr
    facts = json.loads(schedules("fire", "report", "--json").stdout)
    assert (facts["note"], facts["next"]) == (
        "paused, 2 runs asked for, no stepwise up has it",
        None,
    )
    python("stepwise", "up", "--once", "jobs")
    assert stepwise.get_run(facts["run"]).status == "completed"
    assert pathlib.Path("log").read_text("ascii").count("report") == 2
    schedules("resume", "report")
    python("stepwise", "up", "--once", "jobs")
    assert listed()["report"]["note"] == "no stepwise up has it"
    assert listed()["report"]["next"] > time.time()


def test_mistakes(place):
    """A name that there is not, and an action without a name, are errors that say what there is."""
    python("stepwise", "up", "--once", "jobs")
    said = schedules("pause", "nothing", code=1).stderr
    assert "has no schedule 'nothing'; it has report, tick" in said
    assert "stepwise schedules fire NAME" in schedules("fire", code=2).stderr
    assert "tick is forgotten; its runs stay" in schedules("forget", "tick").stderr
    assert set(listed()) == {"report"}
