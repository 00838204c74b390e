"""Two versions of a module on one store: each is a folder of its own, as deployments are."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from typing import NamedTuple

import pytest
from harness import SOON, Watched, python, until
from restarted import edited

import stepwise

HEAD = """
import os, signal, time
from dataclasses import dataclass
import stepwise
from stepwise import step, tool, workflow

VERSION = os.path.basename(os.getcwd())

def did(what):
    die = os.environ.get("DIE_AT") == what or os.path.exists(f"../die {what}")
    with open("../begun", "a") as file:
        file.write(f"{VERSION} {what}\\n")
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    while os.path.exists(f"../shut {what}"):
        time.sleep(0.01)
    with open("../did", "a") as file:
        file.write(f"{VERSION} {what}\\n")
    return what

@step
def work(what):
    return did(what)

@tool(side_effect=True)
def send(what):
    return did(what)

@tool(side_effect=True, approve=True)
def pay(what):
    return did(what)
"""
OLD = """
@workflow
def job(name):
    said = ["old"]
    said.append(work("read"))
    said.append(send("mail"))
    said.append(work("think"))
    said.append(work("write"))
    return said
"""


class Versions:
    """Folders of versions of the module ``jobs`` beside each other, and one store."""

    def __init__(self, folder, **texts):
        self.folder = folder
        for version, text in texts.items():
            (folder / version).mkdir()
            (folder / version / "jobs.py").write_text(HEAD + text, "utf-8")

    def run(self, version, die_at="", call="job('a')"):
        """Execute a call by a version's code; return its result, or None if it was killed."""
        text = f"import json, jobs; print(json.dumps(jobs.{call}))"
        environment = {**os.environ, "DIE_AT": die_at, "STEPWISE_QUIET": ""}
        done = python("-c", text, cwd=self.folder / version, env=environment)
        self.told = done.stderr
        if die_at:
            assert done.returncode == -signal.SIGKILL, done.stderr
            return None
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def command(self, version, *words, code=0):
        """Execute the command in a version's folder; return what it said."""
        done = python("stepwise", *words, cwd=self.folder / version, first=SOON)
        assert code in (done.returncode, None), done.stderr
        return done.stdout + done.stderr

    def up(self, version, *words):
        """``stepwise up`` by a version's code, until the block ends."""
        return Up(self.folder, version, words)

    def begin(self, version, die_at, call="job('a')"):
        """Begin a run whose process is killed; return its id."""
        before = {each.id for each in stepwise.runs()}
        self.run(version, die_at, call)
        (found,) = [
            each.id for each in stepwise.runs() if each.id not in before and not each.parent
        ]
        return found

    def lines(self, file="did"):
        path = self.folder / file
        return path.read_text("utf-8").splitlines() if path.exists() else []

    def mark(self, name):
        """A file that holds a step up, or kills it; removed by ``unlink``."""
        path = self.folder / name
        path.touch()
        return path


class Up(Watched):
    """A supervisor of one version."""

    def __init__(self, folder, version, words):
        self.err = folder / f"said {version} {time.monotonic_ns()}"
        super().__init__(
            "stepwise", "up", *words, "jobs",
            cwd=folder / version, env=os.environ, err=self.err, first=SOON,
        )  # fmt: skip

    def __enter__(self):
        until(lambda: "to continue" in self.said)
        return self

    @property
    def said(self):
        return self.err.read_text("utf-8")


def status(run_id):
    return stepwise.get_run(run_id).status


def ticket(run_id):
    """The ticket of the approval that a suspended run waits for."""
    waits = stepwise.get_run(run_id)._facts().waits
    return status(run_id) == "suspended" and waits and waits[0].ticket


@pytest.fixture
def versions(tmp_path):
    """Make folders of versions of ``jobs``; a text may be the old one with replacements."""

    def make(*changes, new=None, old=OLD):
        return Versions(tmp_path, old=old, new=edited(new or old, *changes))

    return make


# -- there and back --------------------------------------------------------------------------------


class Trip(NamedTuple):
    """An edit, and what becomes of a run that the old code, the new and the old one execute.

    Args:
        die_at: the steps in which the old and the new process are killed.
        did: what all three did, in order.
        told: what the third start tells.
    """

    old: str
    new: str
    die_at: tuple[str, str]
    did: list[str]
    told: str = ""


WRITE, THINK = '    said.append(work("write"))\n', '    said.append(work("think"))\n'
READ, MAIL = '    said.append(work("read"))\n', '    said.append(send("mail"))\n'
TRIPS = {
    "below the position": Trip(
        WRITE, WRITE.replace("write", "draw") + WRITE, ("think", "write"),
        ["old read", "old mail", "new think", "new draw", "old write"],
        "recorded steps that were not called again: work x1",
    ),
    "at the position": Trip(
        THINK, THINK.replace("think", "guess"), ("think", "write"),
        ["old read", "old mail", "new guess", "old think", "old write"],
        "recorded steps that were not called again: work x1",
    ),
    "a step added above": Trip(
        READ, READ + READ.replace("read", "ask"), ("think", "write"),
        ["old read", "old mail", "new ask", "new think", "old write"],
        "recorded steps that were not called again: work x1",
    ),
    "a step removed above": Trip(
        READ, "", ("think", "write"), ["old read", "old mail", "new think", "old write"],
    ),
    "a side effect removed above": Trip(
        MAIL, "", ("think", "write"), ["old read", "old mail", "new think", "old write"],
    ),
    "a side effect added": Trip(
        THINK, MAIL.replace("mail", "card") + THINK, ("think", "write"),
        ["old read", "old mail", "new card", "new think", "old write"],
        "completed without calling these recorded side effects again",
    ),
    "steps in another order": Trip(
        READ + MAIL, MAIL + READ, ("think", "write"),
        ["old read", "old mail", "new think", "old write"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
def test_there_and_back(versions, trip):
    """A run goes from old code to new and back: each finds its place, and nothing is done twice."""
    both = versions((trip.old, trip.new))
    both.run("old", trip.die_at[0])
    both.run("new", trip.die_at[1])
    assert both.run("old") == ["old", "read", "mail", "think", "write"]
    assert both.lines() == trip.did
    assert trip.told in both.told
    assert "resumes at" in both.told


def test_back_and_there_again(versions):
    """Each version goes on at its own newest checkpoint, whatever the other one did since."""
    both = versions((WRITE, WRITE.replace("write", "draw") + WRITE))
    both.run("old", "think")
    both.run("new", "write")
    both.run("old", "write")
    assert both.run("new") == ["old", "read", "mail", "think", "draw", "write"]
    assert "resumes at jobs.py" in both.told
    assert Counter(both.lines()).most_common(1)[0][1] == 1


def test_a_pruned_journal(versions):
    """Code that cannot go on with a pruned journal refuses, and the other one still can."""
    loop = """
@workflow(prune_journal=True, keep=1)
def job(name):
    total = 0
    while total < 1800:
        total += len(work(f"{total}"))
    return total
"""
    both = versions(("total = 0", "total = 1"), old=loop)
    both.run("old", "1500")
    refused = python("-c", "import jobs; jobs.job('a')", cwd=both.folder / "new")
    assert "CodeChangedError" in refused.stderr
    assert [each.status for each in stepwise.runs()] == ["crashed"]
    both.run("old")
    assert Counter(both.lines()).most_common(1)[0][1] == 1


NOTE = "@dataclass\nclass Note:\n    text: str\n"


def test_a_class_that_old_code_does_not_know(versions):
    """A step whose result old code cannot load runs again there, and the new code goes on."""
    work = "@step\ndef work(what):\n    return Note(did(what))\n"
    both = versions(new=NOTE + work + OLD.replace("return said", "return len(said)"))
    both.run("old", "think")
    both.run("new", "write")
    assert both.run("old") == ["old", "read", "mail", "think", "write"]
    assert "work runs again, since a recorded value cannot be loaded" in both.told
    assert both.lines() == ["old read", "old mail", "new think", "old think", "old write"]


def test_a_side_effect_whose_result_old_code_does_not_know(versions):
    """A side effect whose result old code cannot load is not done twice: the old code stops."""
    both = versions(new=NOTE + OLD.replace("return said", "return len(said)"))
    new = both.folder / "new" / "jobs.py"
    body = "def send(what):\n    return "
    new.write_text(new.read_text().replace(f"{body}did(what)", f"{body}Note(did(what))"))
    both.run("old", "read")
    both.run("new", "think")
    done = python("-c", "import jobs; jobs.job('a')", cwd=both.folder / "old")
    assert "StepInDoubtError" in done.stderr
    assert both.run("new") == 5
    assert Counter(both.lines()) == Counter(["new read", "new mail", "new think", "new write"])


def test_a_step_that_is_another_in_the_other_folder(versions):
    """A step is compared with the file that this version imports, not with the file of before."""
    both = versions()
    new = both.folder / "new" / "jobs.py"
    body = "def work(what):\n    return did(what)"
    new.write_text(new.read_text("utf-8").replace(body, f"{body} + '!'"), "utf-8")
    both.run("old", "think")
    assert both.run("new") == ["old", "read", "mail", "think!", "write!"]
    assert re.search(r"work \(jobs.py:\d+\) has changed since its result was recorded", both.told)


def test_a_renamed_tool(versions):
    """A tool that only one version knows by its name is asked for there; the other goes on."""
    both = versions(("send(", "post("))
    new = both.folder / "new" / "jobs.py"
    new.write_text(new.read_text("utf-8").replace("def send(", "def post("), "utf-8")
    both.run("old", "think")
    done = python("-c", "import jobs; jobs.job('a')", cwd=both.folder / "new")
    assert "post is called and is not recorded. In its place send is recorded" in done.stderr
    assert both.run("old") == ["old", "read", "mail", "think", "write"]


# -- messages, child runs --------------------------------------------------------------------------


BILL = "4"  # the number of the step that needs an approval
WAITING = """
@workflow
def job(name):
    said = [work("begin")]
    word = stepwise.wait_for("go", type=str)
    said.append(work(word))
    said.append(pay("bill"))
    return said
"""


def test_a_signal_and_an_approval_from_the_other_version(versions):
    """What one version's command sends answers a run that another version's process executes."""
    both = versions(("work(word)", "work(word + '!')"), old=WAITING)
    with both.up("old") as up:
        run_id = both.begin("old", "begin")
        until(lambda: status(run_id) == "suspended")
        both.command("new", "send", run_id, "go", '"on"')
        both.command("new", "approve", run_id, BILL, until(lambda: ticket(run_id)))
        until(lambda: status(run_id) == "completed")
        assert up.said.count("Traceback") == 0
    assert both.lines() == ["old begin", "old on", "old bill"]


CHILDREN = """
@workflow
def child(name):
    return [work(f"{name} 1"), work(f"{name} 2")]

@workflow
def job(name):
    said = ["old"]
    said.extend(child("a"))
    said.extend(child("b"))
    return said
"""


def test_a_child_run_over_versions(versions):
    """A child run goes from version to version with its parent, each at its own place."""
    both = versions(
        ('said.extend(child("b"))', 'said.extend(child("b"))\n    said.append(work("end"))'),
        ('work(f"{name} 2")]', 'work(f"{name} 2"), work(f"{name} 3")]'),
        old=CHILDREN,
    )
    both.run("old", "a 2")
    both.run("new", "b 2")
    assert both.run("old") == ["old", "a 1", "a 2", "a 3", "b 1", "b 2"]
    assert both.lines() == ["old a 1", "new a 2", "new a 3", "new b 1", "old b 2"]


# -- supervisors -----------------------------------------------------------------------------------


MORE = WRITE, WRITE + WRITE.replace("write", "check")


def test_a_run_stays_with_its_version(versions):
    """A run is left to a living supervisor that has its code, and executed by another after it."""
    both = versions(MORE)
    held = both.mark("shut think")
    with both.up("old", "--max", "1") as old, both.up("new") as new:
        first = both.begin("old", "read", "job('first')")
        until(lambda: "old think" in both.lines("begun"))
        second = both.begin("old", "read", "job('second')")
        until(lambda: f"{second} job(name='second') crashed left alone: stepwise up" in new.said)
        held.unlink()
        until(lambda: [status(each) for each in (first, second)] == ["completed"] * 2)
        assert {line.split()[0] for line in both.lines()} == {"old"}
        third = both.begin("new", "think", "job('third')")
        until(lambda: status(third) == "completed")
        held = both.mark("shut write")
        fourth = both.begin("old", "think", "job('fourth')")
        until(lambda: both.lines("begun")[-1] == "old write")
        old.kill()
        held.unlink()
        until(lambda: status(fourth) == "completed")
        assert both.lines()[-2:] == ["new write", "new check"]


def test_a_rolling_deployment(versions):
    """A supervisor that is terminated hands its runs over: they go on in the new version."""
    both = versions(("work(word)", "work(word + '!')"), old=WAITING)
    with both.up("old") as old:
        runs = [both.begin("old", "begin", f"job('{name}')") for name in "abc"]
        until(lambda: [status(each) for each in runs] == ["suspended"] * 3)
        with both.up("new") as new:
            both.command("old", "send", runs[0], "go", '"a"')
            until(lambda: ticket(runs[0]))
            old.kill(signal.SIGTERM)
            old.wait()
            for each in runs[1:]:
                both.command("old", "send", each, "go", '"b"')
            for each in runs:
                asked = until(lambda each=each: ticket(each))
                both.command("new", "approve", each, BILL, asked)
            until(lambda: [status(each) for each in runs] == ["completed"] * 3)
            assert "Traceback" not in new.said
    assert both.lines()[3] == "old a"
    # The edit is above the place of the first run, which asks its plain step anew.
    assert Counter(both.lines()[4:]) == {"new a!": 1, "new b!": 2, "new bill": 3}


def test_each_run_is_executed_once(versions):
    """Supervisors of two versions on one store never execute a run together, whoever began it."""
    both = versions(MORE)
    with both.up("old"), both.up("new"):
        runs = [
            both.begin(version, "think", f"job('{version} {number}')")
            for number in range(4)
            for version in ("old", "new")
        ]
        until(lambda: [status(each) for each in runs] == ["completed"] * 8)
    did = Counter(both.lines())
    assert did == {
        **{f"old {what}": 4 for what in ("read", "mail", "think", "write")},
        **{f"new {what}": 4 for what in ("read", "mail", "think", "write", "check")},
    }


def test_a_workflow_that_the_old_code_does_not_have(versions):
    """An old supervisor leaves runs of a new workflow to the new one."""
    both = versions(new=OLD.replace("def job", "def other") + OLD)
    run_id = both.begin("new", "think", "other('a')")
    both.command("old", "up", "--once", "jobs")
    assert status(run_id) == "crashed"
    both.command("new", "up", "--once", "jobs")
    assert status(run_id) == "completed"


def test_a_deadly_step_is_given_up_by_both(versions):
    """Versions that take turns count their deaths: each tries a deadly step three times."""
    both = versions(MORE)
    both.mark("die think")
    run_id = both.begin("old", "think")
    for _ in range(4):
        for version in ("new", "old"):
            said = both.command(version, "up", "--once", "jobs", code=None)
    assert "left alone: its process died 3 times at the same step" in said
    assert Counter(both.lines("begun"))["old think"] == 3
    assert Counter(both.lines("begun"))["new think"] == 3
    assert status(run_id) == "stuck"


def test_the_new_code_mends_what_is_stuck(versions):
    """A run that died too often in the old code is tried by the new, though the old one lives."""
    both = versions((THINK, THINK.replace("think", "guess")))
    both.mark("die think")
    run_id = both.begin("old", "think")
    for _ in range(2):
        both.command("old", "up", "--once", "jobs", code=None)
    with both.up("old"), both.up("new"):
        until(lambda: status(run_id) == "completed")
    assert both.lines() == ["old read", "old mail", "new guess", "new write"]
