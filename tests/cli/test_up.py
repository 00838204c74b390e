"""``stepwise up``: processes that are really killed, and what brings their runs back."""

import datetime as dt
import json
import os
import pathlib
import re
import signal
import sys
import time
import urllib.request
from collections import Counter

import pytest
from harness import SOON, Watched, python, until

import stepwise
from stepwise._journal.journal import read_entries, seal_for
from stepwise._runtime import settings
from stepwise.stores import open_store

JOBS = """
import asyncio, os, pathlib, sys, threading, time
import stepwise
from stepwise import step, tool, workflow

def log(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def gate(name):
    while os.path.exists(f"shut {name}"):
        time.sleep(0.01)

@step
def begin(name):
    log(f"begin {name}")
    print(f"{name} begins")

@step
def work(name):
    log(f"work {name}")
    gate(name)
    if os.path.exists(f"die {name}"):
        os._exit(9)
    if os.path.exists(f"fail {name}"):
        raise ValueError(f"no {name}")
    if os.path.exists(f"exit {name}"):
        sys.exit(3)
    return name.upper()

@step
async def awork(name):
    return await asyncio.to_thread(work.__wrapped__, name)

@workflow
def job(name):
    begin(name)
    return work(name)

@workflow
async def ajob(name):
    begin(name)
    return await awork(name)

@workflow
def patient(name):
    begin(name)
    word = stepwise.wait_for("go", type=str)
    work(word)
    stepwise.sleep(0.2)
    return word

@workflow
async def apatient(name):
    begin(name)
    word = await stepwise.wait_for("go", type=str)
    await awork(word)
    await stepwise.sleep(0.2)
    return word

@workflow
def parent(name):
    return patient(name)

@workflow
def family(name):
    begin(name)
    return job(f"{name}-child")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the module ``jobs``; this process is in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(tmp_path)]))
    pathlib.Path("jobs.py").write_text(JOBS, "utf-8")
    return tmp_path


def program(text):
    """Execute a program to its end, in a process of its own."""
    return python("-c", text)


def crash(name, workflow="job"):
    """Make a run whose process died in its second step; return its id."""
    dying = pathlib.Path(f"die {name}{'-child' if workflow == 'family' else ''}")
    dying.touch()
    before = {each.id for each in stepwise.runs()}
    call = f"jobs.{workflow}({name!r})"
    program(f"import jobs, asyncio; asyncio.run({call})" if workflow == "ajob" else
            f"import jobs; {call}")  # fmt: skip
    dying.unlink()
    (found,) = [e.id for e in stepwise.runs() if e.id not in before and not e.parent]
    assert stepwise.get_run(found).status == "crashed"
    return found


def once(*arguments, code=None):
    """``stepwise up --once``, to its end."""
    return python("stepwise", "up", "--once", *arguments, first=SOON, code=code)


def up(*arguments, code=0):
    """The same; return what it printed on stderr."""
    return once(*arguments, code=code).stderr


class Running(Watched):
    """A program, until the block ends, and the file with what it prints on stderr."""

    def __init__(self, *words):
        self._errors = pathlib.Path(f"errors{len([*pathlib.Path().glob('errors*')])}").absolute()
        super().__init__(*words, cwd=os.getcwd(), env=os.environ, err=self._errors, first=SOON)

    def __enter__(self):
        return self, self._errors

    def is_running(self):
        return self._code is None and pathlib.Path(f"/proc/{self._pid}").exists()


def staying(*arguments):
    """``stepwise up``, until the block ends."""
    return Running("stepwise", "up", *arguments)


def calling(call):
    """A program that makes a call."""
    return Running("-c", f"import jobs; {call}")


def lines():
    path = pathlib.Path("log")
    return path.read_text("utf-8").splitlines() if path.exists() else []


def status(run_id):
    return stepwise.get_run(run_id).status


# -- once ------------------------------------------------------------------------------------------


def test_once(place):
    """What crashed is continued where it stopped, in threads and in an event loop, and no more."""
    ids = [crash("a"), crash("b", "ajob"), crash("c", "family")]
    said = up("jobs")
    assert [status(each) for each in ids] == ["completed"] * 3
    assert stepwise.get_run(ids[1]).result == "B"
    assert Counter(lines()) == {
        **{f"begin {name}": 1 for name in ("a", "b", "c", "c-child")},
        **{f"work {name}": 2 for name in ("a", "b", "c-child")},
    }
    assert re.search(rf"up: {ids[0]} job\(name='a'\) completed", said)
    assert up("jobs") == "up: jobs: 0 runs to continue, 0 waiting\n"


def test_the_exit_code_says_whether_all_went_well(place):
    """A run that fails, or stops, makes the exit code 1; another is not stopped by it."""
    failing, fine = crash("bad"), crash("good")
    pathlib.Path("fail bad").touch()
    said = up("jobs", code=1)
    assert (status(failing), status(fine)) == ("failed", "completed")
    assert "failed ValueError: no bad" in said
    exits = crash("out")
    pathlib.Path("exit out").touch()
    assert "it stopped: " in up("jobs", code=1)
    assert status(exits) == "crashed"
    up("jobs", code=1)  # it stopped in good order, so that it is tried whenever somebody asks
    pathlib.Path("exit out").unlink()
    up("jobs")
    assert status(exits) == "completed"


def test_what_somebody_stopped_is_left(place):
    """Failed and interrupted runs, and child runs by themselves, are left alone."""
    pathlib.Path("fail a").touch()
    program("import jobs; jobs.job('a')")
    pathlib.Path("fail a").unlink()
    program("import jobs\ndef stop(_): raise KeyboardInterrupt\njobs.gate = stop\njobs.job('b')")
    assert Counter(each.status for each in stepwise.runs()) == {"failed": 1, "interrupted": 1}
    assert "0 runs to continue, 0 waiting" in up("jobs")
    assert Counter(each.status for each in stepwise.runs()) == {"failed": 1, "interrupted": 1}


def test_runs_of_other_programs_are_listed(place):
    """A run of a script is named with the command that continues it, and not started."""
    pathlib.Path("script.py").write_text(
        "import os, jobs\nfrom stepwise import workflow\n@workflow\n"
        "def other(name):\n    jobs.begin(name)\n    os._exit(9)\nother('x')\n"
    )
    python("script.py")
    (run,) = stepwise.runs()
    said = up("jobs")
    assert f"{run.id} other(name='x') crashed left alone: its workflow is not in these" in said
    assert f"to continue it: stepwise resume {run.id}" in said
    assert status(run.id) == "crashed"


def test_json(place):
    """With ``--json``, stdout is one JSON object a line, and what runs print is on stderr."""
    run_id = crash("a", "family")
    done = once("--json", "jobs")
    *events, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["event"] for each in events] == ["ready", "begun", "ended"]
    assert (last["event"], last["wake"]) == ("done", None)
    assert [each.get("id") for each in events[1:]] == [run_id] * 2
    assert events[-1]["status"] == "completed"
    assert f"{run_id} | a-child begins" not in done.stdout


def test_logs(place):
    """Each run has a log, readable by its owner only, of what it printed and what happened."""
    ids = [crash(name, "family") for name in ("a", "b")]
    odd = "../odd / id"
    pathlib.Path("die c").touch()
    program(f"import jobs; jobs.job.options(run_id={odd!r})('c')")
    pathlib.Path("die c").unlink()
    pathlib.Path("jobs.py").write_text(JOBS.replace("return name.upper()", "print(name); return 1"))
    said = up("--logs", "logs", "jobs")
    assert " | " not in said
    folder = pathlib.Path("logs")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    for run_id, name in zip(ids, "ab", strict=True):
        text = pathlib.Path(f"logs/{run_id}.log").read_text("utf-8")
        assert f"\n{name}-child\n" in text
        assert "step completed" in text
        assert "run completed" in text
    assert {path.name for path in pathlib.Path("logs").iterdir()} == {
        *(f"{run_id}.log" for run_id in ids),
        "..%2Fodd%20%2F%20id.log",
    }


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("jobs.py", "stepwise up jobs"),
        ("nothing", "there is no module 'nothing'"),
        ("jobs.more", "there is no module 'jobs.more'"),
        ("broken", "module 'broken' cannot be imported: ZeroDivisionError, see above"),
        ("exits", "module 'exits' cannot be imported: it calls sys.exit(4), see above"),
        ("without", "there is no module 'lacking'"),
        ("json", "module 'json' has no workflows"),
        ("a b", "not the name of a module"),
        ("--store=memory:", "in the memory of one process"),
    ],
)
def test_modules_that_cannot_be_used(place, module, words):
    """A module that cannot be imported, or has no workflows, or a store that nobody else sees."""
    pathlib.Path("broken.py").write_text("def inner():\n    1 / 0\ninner()\n")
    pathlib.Path("exits.py").write_text("import sys\nsys.exit(4)\n")
    pathlib.Path("without.py").write_text("import lacking\n")
    said = up("jobs", module, code=1)
    if module == "without":
        assert "ModuleNotFoundError: No module named 'lacking'" in said
        assert "module 'without' cannot be imported" in said
        return
    assert words in said
    if module == "broken":
        first = said.splitlines()[1]
        assert first == f'  File "{place}/broken.py", line 3, in <module>'


def test_a_module_with_objects_that_raise(place):
    """The objects in a module are not asked for anything: proxies raise outside of a request."""
    pathlib.Path("proxies.py").write_text(
        "import jobs\n"
        "from jobs import job\n"
        "class Proxy:\n"
        "    def __getattr__(self, name):\n"
        "        raise RuntimeError('outside of a request')\n"
        "request = Proxy()\n"
    )
    assert "0 runs to continue" in up("proxies")


def test_another_store(place):
    """``--store`` names the store, whatever the modules configure."""
    pathlib.Path("jobs.py").write_text(
        f"{JOBS}\nstepwise.configure(store='disk:{place}/configured')\n"
    )
    pathlib.Path("die a").touch()
    program("import jobs; jobs.job('a')")
    program(f"import jobs; jobs.job.options(store='disk:{place}/other')('a')")
    pathlib.Path("die a").unlink()
    up("--store", f"disk:{place}/other", "jobs")
    assert [each.status for each in stepwise.runs(store=f"disk:{place}/other")] == ["completed"]
    assert [each.status for each in stepwise.runs(store=f"disk:{place}/configured")] == ["crashed"]
    up("jobs")
    assert [each.status for each in stepwise.runs(store=f"disk:{place}/configured")] == [
        "completed"
    ]


# -- all the time ----------------------------------------------------------------------------------


def test_killed_in_the_middle(place):
    """``up`` that is killed has its runs brought back by the next one, at the same statement."""
    ids = [crash("a"), crash("b", "ajob"), crash("c")]
    for name in "abc":
        pathlib.Path(f"shut {name}").touch()
    with staying("jobs") as (process, _):
        until(lambda: len(lines()) == 9)  # all three are at work again
        process.kill()
        process.wait()
    assert [status(each) for each in ids] == ["crashed"] * 3
    for name in "abc":
        pathlib.Path(f"shut {name}").unlink()
    with staying("jobs"):
        until(lambda: all(status(each) == "completed" for each in ids))
    assert Counter(lines()) == {
        **{f"begin {name}": 1 for name in "abc"},
        **{f"work {name}": 3 for name in "abc"},
    }


def test_two_at_once(place):
    """Two of them on the same runs execute each run once."""
    program(
        "import jobs, sys\n"
        "def leave(_): sys.exit()\n"
        "jobs.gate = leave\n"
        "for n in range(30):\n"
        "    try: jobs.job(str(n))\n"
        "    except SystemExit: pass\n"
    )
    assert Counter(each.status for each in stepwise.runs()) == {"crashed": 30}
    pathlib.Path("log").unlink()
    with staying("jobs"), staying("--max", "3", "jobs"):
        until(lambda: Counter(e.status for e in stepwise.runs()) == {"completed": 30})
    assert Counter(lines()) == {f"work {number}": 1 for number in range(30)}


def test_a_run_that_kills_its_process(place):
    """After three deaths at one step a run is left, and said so; the others complete."""
    poison, others = crash("poison"), [crash("a"), crash("b")]
    pathlib.Path("die poison").touch()
    up("jobs", code=9)  # takes the process along
    said = until(lambda: "left alone" in (text := up("jobs", code=None)) and text)
    assert "its process died 3 times at the same step" in said
    assert f"to continue it: stepwise up --once --run {poison} jobs" in said
    assert [status(each) for each in others] == ["completed"] * 2
    assert status(poison) == "stuck"
    [listed] = json.loads(python("stepwise", "runs", "--status", "stuck", "--json").stdout)
    assert (listed["id"], listed["status"]) == (poison, "stuck")
    shown = python("stepwise", "show", poison).stdout
    assert f"{poison}  stuck" in shown
    assert "settle or forget a step" in shown
    assert f"{poison} is stuck, and left" in python("stepwise", "resume", "--all-crashed").stderr
    tried = lines().count("work poison")
    assert tried == 3
    assert "left alone" in up("jobs", code=1)
    assert lines().count("work poison") == tried
    pathlib.Path("die poison").unlink()
    up("--run", poison, "jobs")
    assert status(poison) == "completed"


def test_an_edit_is_reported(place):
    """A module that is edited takes no effect, and ``up`` says so, or ends to be started again."""
    with (
        staying("jobs") as (process, errors),
        staying("--exit-on-change", "jobs") as (ending, last),
    ):
        until(lambda: all(" waiting" in each.read_text() for each in (errors, last)))
        pathlib.Path("jobs.py").write_text(JOBS + "\n", "utf-8")
        said = until(lambda: "changed" in errors.read_text() and errors.read_text())
        assert f"up: {place}/jobs.py changed since the import; up goes on with the old code" in said
        assert ending.wait() == 75
        assert "up ends, to be started again" in last.read_text()
        assert process.is_running()


def test_what_died_twice_executes_alone(place):
    """A run that died twice at one step is executed in a process of its own."""
    poison, other = crash("poison"), crash("a")
    pathlib.Path("die poison").touch()
    up("jobs", code=9)
    pathlib.Path("shut a").touch()
    with staying("jobs") as (process, errors):
        until(lambda: "left alone" in errors.read_text())
        assert process.is_running()
        assert re.search(rf"{poison} .* goes on: alone, in process \d+", errors.read_text())
        pathlib.Path("shut a").unlink()
        until(lambda: status(other) == "completed")


@pytest.mark.parametrize(
    ("workflow", "number"),
    [("job", signal.SIGTERM), ("job", signal.SIGINT), ("ajob", signal.SIGINT)],
)
def test_a_signal_drains(place, workflow, number):
    """SIGTERM and Ctrl-C let the step in flight end; the next start continues after it."""
    run_id = crash("a", workflow)
    pathlib.Path("shut a").touch()
    with staying("jobs") as (process, errors):
        until(lambda: len(lines()) == 3)
        process.kill(number)
        until(lambda: "1 run in progress" in errors.read_text())
        pathlib.Path("shut a").unlink()
        assert process.wait() == (130 if number == signal.SIGINT else 0)
        assert "Traceback" not in errors.read_text()
    up("jobs")
    assert status(run_id) == "completed"
    assert lines().count("work a") == 2


def test_no_run_begins_while_it_drains(place):
    """What was due when the signal came is left to the next start."""
    ids = [crash("a"), crash("b")]
    pathlib.Path("shut a").touch()
    with staying("--max", "1", "jobs") as (process, errors):
        until(lambda: len(lines()) == 5)
        process.kill(signal.SIGTERM)
        until(lambda: "1 run in progress" in errors.read_text())
        pathlib.Path("shut a").unlink()
        process.wait()
    assert [status(each) for each in ids] == ["completed", "crashed"]


@pytest.mark.parametrize("by", ["up", "its own program"])
def test_ends_are_no_deaths(place, by):
    """A run that the end of its process cuts off in a step, again and again, has not died."""
    pathlib.Path("jobs.py").write_text(f"{JOBS}\nstepwise.configure(grace=0.1)\n")
    run_id = crash("a")
    pathlib.Path("shut a").touch()
    for number in range(3):
        with staying("jobs") if by == "up" else calling("jobs.job('a')") as (process, _):
            until(lambda: lines().count("work a") == 2 + number)  # noqa: B023
            process.kill(signal.SIGTERM)
            process.wait()
    pathlib.Path("shut a").unlink()
    said = up("jobs")
    assert status(run_id) == "completed"
    assert "alone" not in said


def test_a_second_signal_ends_at_once(place):
    """With a second signal ``up`` waits for no step in flight; what was due is left as well."""
    ids = [crash("a"), crash("b")]
    pathlib.Path("shut a").touch()
    with staying("--max", "1", "jobs") as (process, errors):
        until(lambda: len(lines()) == 5)
        process.kill(signal.SIGTERM)
        until(lambda: "1 run in progress" in errors.read_text())
        process.kill(signal.SIGTERM)
        assert process.wait() == 0
    assert [status(each) for each in ids] == ["crashed"] * 2


# -- runs that wait --------------------------------------------------------------------------------


def suspend(run_id, workflow="patient"):
    """Execute a workflow until it is suspended."""
    call = f"jobs.{workflow}.options(run_id={run_id!r})({run_id!r})"
    call = f"asyncio.run({call})" if workflow == "apatient" else call
    done = program(f"import asyncio, stepwise, jobs; stepwise.configure(suspend_after=0); {call}")
    assert done.returncode == 75, done.stderr
    assert status(run_id) == "suspended"


def test_suspended_runs_are_woken(place):
    """A suspended run goes on when it is sent its word, gives its place back, and goes on again."""
    for run_id, workflow in (("a", "patient"), ("b", "apatient"), ("c", "parent")):
        suspend(run_id, workflow)
    with staying("--max", "1", "jobs") as (_, errors):
        until(lambda: "3 waiting" in errors.read_text())
        assert lines() == ["begin a", "begin b", "begin c"]
        (child,) = [run for run in stepwise.runs() if run.parent]
        for run in (stepwise.get_run("a"), stepwise.get_run("b"), child):
            run.send("go", f"word {run.parent or run.id}")
        until(lambda: {status(each) for each in "abc"} == {"completed"})
    assert sorted(lines()[3:]) == ["work word a", "work word b", "work word c"]
    assert "ended with" not in errors.read_text()


def test_deaths_while_it_waits_are_not_its_own(place):
    """A run whose process is killed again and again while the run waits is not given up."""
    for number in range(4):
        with calling("jobs.patient.options(run_id='a')('a')"):
            until(lambda: (runs := stepwise.runs()) and resumed(runs[0]) == number)  # noqa: B023
            until(lambda: [e.status for e in stepwise.get_run("a").steps][1:] == ["waiting"])
    assert status("a") == "crashed"
    with staying("jobs") as (_, errors):
        stepwise.get_run("a").send("go", "x")
        until(lambda: status("a") == "completed")
    assert "left alone: its process died" not in errors.read_text()
    assert lines() == ["begin a", "work x"]


def resumed(run):
    """How many attempts of a run there were after the first one."""
    return run._seen().course.resumed


def test_up_killed_at_the_message(place):
    """``up`` that is killed while a woken run works has it continued by the next one."""
    suspend("a")
    pathlib.Path("shut x").touch()
    with staying("jobs") as (process, _):
        stepwise.get_run("a").send("go", "x")
        until(lambda: "work x" in lines())
        process.kill()
        process.wait()
    pathlib.Path("shut x").unlink()
    with staying("jobs"):
        until(lambda: status("a") == "completed")
    assert lines() == ["begin a", "work x", "work x"]


CLEANING = """
@tool(side_effect=True, approve=True)
def pay(name):
    log(f"work {name}")

@workflow
def paying(name):
    begin(name)
    stepwise.approve("really?")
    pay(name)

@workflow
def cleaning(name):
    begin(name)
    try:
        stepwise.wait_for("go")
    finally:
        work(f"clean {name}")

@workflow(timeout=3600)
def limited(name):
    begin(name)
    stepwise.wait_for("go")
"""


def test_a_run_that_is_cancelled_while_it_waits_is_unwound(place):
    """A suspended run whose end somebody asks for is executed, so that its clean-up runs."""
    pathlib.Path("jobs.py").write_text(JOBS + CLEANING, "utf-8")
    suspend("a", "cleaning")
    suspend("b", "cleaning")
    with staying("jobs") as (_, errors):
        until(lambda: "2 waiting" in errors.read_text())
        stepwise.get_run("a").cancel("enough")
        until(lambda: status("a") == "cancelled")
    stepwise.get_run("b").cancel()
    assert status("b") == "cancelling"
    up("jobs")
    assert status("b") == "cancelled"
    assert [each for each in lines() if "work" in each] == ["work clean a", "work clean b"]
    assert "0 runs to continue, 0 waiting" in up("jobs")


def test_runs_that_wait_for_a_person(place):
    """A run goes on when a person has answered its question, and waits again for the next one."""
    pathlib.Path("jobs.py").write_text(JOBS + CLEANING, "utf-8")
    suspend("a", "paying")
    with staying("jobs"):
        first = stepwise.get_run("a").waits[0]
        stepwise.get_run("a").approve(first.step, first.ticket)
        until(lambda: stepwise.get_run("a").waits not in ([], [first]))
        assert "work a" not in lines()
        second = stepwise.get_run("a").waits[0]
        stepwise.get_run("a").approve(second.step, second.ticket)
        until(lambda: status("a") == "completed")
    assert lines() == ["begin a", "work a"]


# -- when to wake next -----------------------------------------------------------------------------


def said_once(*words):
    """``stepwise up --once --json``; return its last line."""
    done = once("--json", *words, "jobs")
    return json.loads(done.stdout.splitlines()[-1])


def test_when_to_wake_next(place):
    """The last line names the earliest moment that a run waits for, with its zone."""
    suspend("a")
    call = "jobs.sleeper.options(run_id='s')(5000); "
    pathlib.Path("jobs.py").write_text(
        f"{JOBS}\n@workflow\ndef sleeper(seconds):\n    stepwise.sleep(seconds)\n"
    )
    program(f"import stepwise, jobs; stepwise.configure(suspend_after=0); {call}")
    run_id = crash("c")
    (wait,) = stepwise.get_run("s").waits
    said = said_once()
    assert said["continued"] == [{"id": run_id, "status": "completed"}]
    assert {each["id"]: each["detail"].partition(",")[0] for each in said["left"]} == {
        "a": "waits for the signal 'go'",
        "s": "waits for its time",
    }
    at = dt.datetime.fromisoformat(said["wake"]["at"])
    assert at.tzinfo is not None
    assert 0 <= at.timestamp() - wait.until < 1.5
    assert 4000 < said["wake"]["seconds"] <= 5000


def test_nothing_waits_for_a_time(place):
    """Without a moment to wait for, ``wake`` is null."""
    suspend("a")
    said = said_once()
    assert (said["wake"], said["continued"], said["exit_code"]) == (None, [], 0)


def test_after_a_death_it_is_woken_for_the_retry(place):
    """A run that is tried again later names that moment, and a stuck one none."""
    pathlib.Path("die a").touch()
    run_id = crash("a")
    pathlib.Path("die a").touch()
    once("jobs")  # dies, too
    once("jobs")  # its run dies alone
    said = said_once()
    assert [each["status"] for each in said["left"]] == ["stuck"]
    assert (said["left"][0]["id"], said["wake"], said["exit_code"]) == (run_id, None, 1)


def test_what_a_signal_cut_short_is_due_at_once(place):
    """After SIGTERM the runs that were cut short are to be continued now."""
    suspend("a")
    stepwise.get_run("a").send("go", "a")
    pathlib.Path("shut a").touch()
    with staying("--once", "--json", "jobs") as (process, _):
        until(lambda: "work a" in lines())
        process.kill(signal.SIGTERM)
        while json.loads(process.stdout.readline())["event"] != "draining":
            pass
        pathlib.Path("shut a").unlink()
        said = json.loads(process.stdout.read().splitlines()[-1])
    ((run_id, how),) = (each.values() for each in said["continued"])
    assert (run_id, said["exit_code"]) == ("a", 143)
    assert how in ("crashed", "suspended")  # if the step ended before it drained
    assert said["wake"]["seconds"] <= 2


# -- what is kept ----------------------------------------------------------------------------------


KEEPING = f"{JOBS}\nstepwise.configure(retain=stepwise.Retain(runs=4))\n"


def deleted(said):
    return sum(map(int, re.findall(r"retention: deleted (\d+) run", said)))


def test_several_up_keep_a_store_small(place):
    """Several ``up`` delete the oldest runs together, report no problem, and leave the others."""
    program("import jobs; [jobs.job(str(n)) for n in range(30)]")
    run_id = crash("a")
    suspend("b")
    pathlib.Path("jobs.py").write_text(KEEPING)
    store = open_store(settings.store())
    with staying("jobs") as (_, errors), staying("jobs") as (_, others):
        until(lambda: store.count_heads() == 4)
        until(lambda: status(run_id) == "completed")
        until(lambda: deleted(errors.read_text() + others.read_text()) >= 28)
    assert "retention: the" not in errors.read_text() + others.read_text()
    assert status("b") == "suspended"


def test_once_keeps_a_store_small(place):
    """``--once`` deletes too, after the runs; killed in between, the next start goes on."""
    program("import jobs; [jobs.job(str(n)) for n in range(12)]")
    pathlib.Path("jobs.py").write_text(KEEPING)
    store = open_store(settings.store())
    with staying("--once", "jobs") as (process, _):
        until(lambda: store.count_heads() < 12)
        process.kill()
    assert all(run.verify().ok for run in stepwise.runs())
    once("jobs")
    assert store.count_heads() == 4


# -- metrics ---------------------------------------------------------------------------------------


def scraped(errors):
    """The samples at the address that ``up`` has printed."""
    parser = pytest.importorskip("prometheus_client.parser")
    found = until(lambda: re.search(r"metrics at (\S+),", errors.read_text()))
    with urllib.request.urlopen(found[1]) as answer:
        text = answer.read().decode()
    families = parser.text_string_to_metric_families(text)
    return {
        (each.name, *sorted(each.labels.values())): each.value
        for family in families
        for each in family.samples
    }


def steps_since(began):
    """How many steps ended since a moment, by the journals of all runs."""
    store = open_store(settings.store())
    seal, found = seal_for(store), 0
    for run in stepwise.runs():
        ends = (each.outcome for each in read_entries(store, seal, run.id))
        found += sum(each is not None and each.at >= began for each in ends)
    return found


def test_metrics_are_what_the_journals_have(place):
    """Killed with its runs, ``up`` counts in its next life what the journals got since then."""
    pytest.importorskip("prometheus_client", reason="needs the extra metrics")
    ids = [crash("a"), crash("b"), "c"]
    suspend("c")
    stepwise.get_run("c").send("go", "c")
    pathlib.Path("shut c").touch()
    with staying("--metrics", "0", "jobs") as (process, errors):
        until(lambda: [*map(status, ids)].count("completed") == 2 and "work c" in lines())
        until(lambda: scraped(errors)[("stepwise_up_slots_in_use",)] == 1)
        process.kill()
        process.wait()
    pathlib.Path("shut c").unlink()
    ids.append(crash("e"))
    began = time.time()
    with staying("--metrics", "0", "jobs") as (_, errors):
        until(lambda: [*map(status, ids)].count("completed") == 4)
        until(lambda: scraped(errors)[("stepwise_up_slots_in_use",)] == 0)
        found = scraped(errors)
    assert lines().count("work c") == 2
    steps = [key for key in found if key[0] == "stepwise_step_duration_seconds_count"]
    assert sum(found[key] for key in steps) == steps_since(began) == 3  # with the sleep
    assert found["stepwise_run_attempts_total", "job", "resumed"] == 1
    assert found["stepwise_run_deaths_total", "job"] == 1
    assert found["stepwise_run_deaths_total", "patient"] == 1
    assert found["stepwise_run_ends_total", "completed", "job"] == 1
    assert found["stepwise_run_ends_total", "completed", "patient"] == 1
