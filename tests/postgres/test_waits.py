"""Runs that wait, and are sent to, answered, cancelled and woken, by other processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from collections import Counter

import pytest
import waits_program
from harness import COMMAND, PROGRAMS, python, python_path
from server import until, with_options

import stepwise
from stepwise import RunCancelled

HERE = pathlib.Path(__file__).resolve().parent
BEFORE_THE_SLOW_POLL = 12  # seconds: it comes after 15
STAYS = "import asyncio, stepwise\nstepwise.configure(suspend_after=3600)\n"
LEAVES = "import asyncio, stepwise\nstepwise.configure(suspend_after=0)\n"


@pytest.fixture
def place(tmp_path, postgres, monkeypatch):
    """A folder; the store of this process, and of those that it starts, is a database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWISE_STORE", with_options(postgres, lease_seconds=3))
    monkeypatch.setenv("PYTHONPATH", python_path(HERE, PROGRAMS))
    monkeypatch.setenv("WAITS_LOG", str(tmp_path / "log"))
    return tmp_path


@pytest.fixture
def begin(fork):
    """Start a process that executes a call of ``waits_program``, and prints what came of it."""

    def begin(call, settings=STAYS):
        coroutine = call.startswith(("apatient", "acleans_up"))
        return fork(
            f"{settings}import json, waits_program as p\n"
            "try:\n"
            f"    print(json.dumps({f'asyncio.run(p.{call})' if coroutine else f'p.{call}'}))\n"
            "except (stepwise.RunStopped, stepwise.StepwiseError) as error:\n"
            "    print(type(error).__name__)\n"
        )

    return begin


@pytest.fixture
def up(place):
    """Start ``stepwise up``; all are ended after the test."""
    begun = []

    def up(*words):
        errors = place / f"up{len(begun)}.err"
        with errors.open("ab") as file:
            process = subprocess.Popen(
                [COMMAND, "up", *words, "waits_program"], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        begun.append(process)
        process.errors = errors
        return process

    yield up
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def command(*words):
    """``stepwise`` with these words, in a process of its own."""
    return python("stepwise", *words)


def did():
    """How often each thing was done."""
    path = pathlib.Path("log")
    return Counter(path.read_text("utf-8").splitlines() if path.exists() else [])


def run_of(workflow):
    """The one run of a workflow, once there is one."""
    return until(lambda: stepwise.runs(workflow=workflow), f"a run of {workflow}")[0]


def waiting(run, count=1):
    """Wait until so many of its calls wait."""
    until(lambda: sum(e.status == "waiting" for e in run.steps) >= count, "a call that waits")
    return run


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["patient('a')", "apatient('a')"])
def test_a_message_from_another_process_wakes_a_wait(place, begin, call):
    """A wait ends soon after another process has sent; what is sent is taken in its order."""
    program = begin(call)
    run = waiting(run_of(f"waits_program:{call.partition('(')[0]}"))
    run.send("on", 2)
    assert command("send", run.id, "go", "1").returncode == 0
    sent = time.monotonic()  # the process of the command is not what is measured
    assert json.loads(program.hear()) == [1, 2]
    assert time.monotonic() - sent < BEFORE_THE_SLOW_POLL
    assert did() == {"begin a": 1, "work a": 1}


def test_processes_that_send_at_once(place, begin, fork):
    """Messages of several processes are all kept; those that have the same key are one."""
    begin("patient('a')")
    run = waiting(run_of("waits_program:patient"))
    program = (
        "import sys, stepwise\n"
        f"run = stepwise.get_run({run.id!r})\n"
        "for number in range(10): run.send('later', [sys.argv[1], number])\n"
        "run.send('later', [], key='order 7')\n"
    )
    for each in [fork(program, name) for name in "abc"]:
        each.finish()
    assert [each.key for each in run.inbox if each.key] == ["order 7"]
    values = [each.value for each in run.inbox if each.value]
    for name in "abc":
        assert [value[1] for value in values if value[0] == name] == [*range(10)]


def test_a_server_that_is_started_again_still_wakes(place, begin, server):
    """A wait that was listening when the server was killed hears of what is sent afterwards."""
    program = begin("patient('a')")
    run = waiting(run_of("waits_program:patient"))
    server.restart()
    sent = time.monotonic()
    run.send("go", 1)
    run.send("on", 2)
    assert json.loads(program.hear()) == [1, 2]
    assert time.monotonic() - sent < BEFORE_THE_SLOW_POLL


# -- suspended -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["patient('a')", "apatient('a')", "parent('a')"])
def test_a_suspended_run_goes_on_in_another_process(place, begin, up, call):
    """What one process suspended, another one continues where it waits, when it is sent to."""
    assert begin(call, LEAVES).hear() == "RunSuspended"
    process = up()
    until(lambda: "1 waiting" in process.errors.read_text(), "a look at the runs")
    run = run_of(f"waits_program:{call.partition('(')[0]}")
    target = stepwise.get_run("a-child") if call.startswith("parent") else run
    sent = time.monotonic()
    target.send("go", 1)
    target.send("on", 2)
    until(lambda: run.status == "completed", "its end")
    assert time.monotonic() - sent < BEFORE_THE_SLOW_POLL
    assert run.result == [1, 2]
    assert did() == {"begin a": 1, "work a": 1}


def test_two_executors_wake_each_run_once(place, fork, up):
    """However many processes wake suspended runs, and are killed, each goes on in one of them."""
    names = [f"run{number}" for number in range(12)]
    call = "p.patient.options(run_id=name).execute(name)"
    fork(f"{LEAVES}import waits_program as p\nfor name in {names}: {call}\n").finish()
    assert Counter(each.status for each in stepwise.runs()) == {"suspended": 12}
    first, second = up(), up("--max", "3")
    logs = [first.errors, second.errors]
    until(lambda: all("12 waiting" in log.read_text() for log in logs), "a look at the runs")
    runs = [*map(stepwise.get_run, names)]
    for run in runs:
        run.send("go", 1)
    until(lambda: {run.steps[0].status for run in runs} == {"completed"}, "the first messages' end")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    for run in runs:
        run.send("on", 2)
    until(lambda: {e.status for e in stepwise.runs()} == {"completed"}, "the end of all")
    assert did() == {f"{what} {name}": 1 for name in names for what in ("begin", "work")}


def test_a_time_that_has_come(place, begin, up):
    """A run that sleeps goes on elsewhere when its time has come, and not before."""
    process = up()
    began = time.time()
    assert begin("naps('a', 3)", LEAVES).hear() == "RunSuspended"
    run = run_of("waits_program:naps")
    until(lambda: run.status == "completed", "its end")
    assert run.steps[0].finished_at - began >= 3
    assert process.poll() is None
    assert did() == {"begin a": 1, "work a": 1}


def test_an_executor_outlives_a_server_that_is_away_for_long(place, begin, up, server, monkeypatch):
    """Runs that the store failed for longer than its patience go on when the server is back."""
    url = with_options(os.environ["STEPWISE_STORE"], patience_seconds=1)
    monkeypatch.setenv("STEPWISE_STORE", url)
    assert begin("holds('a')", LEAVES).hear() == "RunSuspended"
    pathlib.Path("hold a").touch()
    process = up()
    run = run_of("waits_program:holds")
    run.send("go")
    until(lambda: did()["lasts a"], "its step")
    server.kill()
    pathlib.Path("hold a").unlink()
    until(lambda: process.errors.read_text().count("did not answer") > 1, "the store's failure")
    server.start()
    until(lambda: run.status == "completed", "its end")
    assert process.poll() is None
    assert did()["work a"] == 1


# -- a person's yes --------------------------------------------------------------------------------


def test_two_answers_at_once(place, begin, up):
    """Of a yes and a no of two processes one counts, and the other person is told of it."""
    assert begin("asking('a')", LEAVES).hear() == "RunSuspended"
    run = run_of("waits_program:asking")
    asked = [run.id, "1", run.waits[0].ticket]
    words = [["approve", *asked], ["deny", *asked, "--reason", "too much"]]
    both = [subprocess.Popen([COMMAND, *each], stderr=subprocess.PIPE, text=True) for each in words]
    said = [each.communicate(timeout=300)[1] for each in both]
    yes, no = [each.returncode == 0 for each in both]
    assert yes != no, said
    up()
    until(lambda: run.status == "completed", "its end")
    assert run.result == 7 if yes else str(run.result).endswith(": too much")
    assert did() == ({"pay 7": 1} if yes else {})


# -- cancelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cleans_up('a')", "acleans_up('a')"])
def test_a_cancellation_from_another_process(place, begin, call):
    """A run in progress elsewhere unwinds, with its clean-up, when somebody cancels it."""
    program = begin(call)
    run = run_of(f"waits_program:{call.partition('(')[0]}")
    until(lambda: did()["hang a"] or len(run.steps) == 2, "its second call")
    assert command("cancel", run.id).returncode == 0
    asked = time.monotonic()
    assert program.hear() == "RunCancelled"
    assert time.monotonic() - asked < BEFORE_THE_SLOW_POLL
    assert run.status == "cancelled"
    assert did()["clean a"] == 1


def test_a_suspended_run_is_cancelled(place, begin, up):
    """A suspended run that somebody cancels is unwound by an executor, once."""
    assert begin("cleans_up('a')", LEAVES).hear() == "RunSuspended"
    up(), up()
    run = run_of("waits_program:cleans_up")
    run.cancel("enough")
    until(lambda: run.status == "cancelled", "its end")
    assert did() == {"begin a": 1, "clean a": 1}
    with pytest.raises(RunCancelled):
        waits_program.cleans_up("a")


def test_cancelled_and_sent_to_at_once(place, begin):
    """A cancellation and messages of other processes at the same time: the run ends as one."""
    program = begin("patient('a')")
    run = waiting(run_of("waits_program:patient"))
    words = ["cancel", run.id], ["send", run.id, "go", "1"], ["send", run.id, "on", "2"]
    processes = [subprocess.Popen([COMMAND, *each]) for each in words]
    for each in processes:
        each.wait(300)
    said = program.hear()
    assert (said, run.status) in (("[1, 2]", "completed"), ("RunCancelled", "cancelled"))
    assert did()["work a"] == (run.status == "completed")


# -- budgets ---------------------------------------------------------------------------------------


def test_a_budget_holds_over_processes(place, begin):
    """What one process spent counts in the next one; a larger budget continues."""
    for _ in "12":
        assert begin("spends('a')").hear() == "BudgetExceeded"
    assert did() == {f"work {number}": 1 for number in range(3)}
    more = "spends.options(budget=stepwise.Budget(steps=9))('a')"
    assert json.loads(begin(more).hear()) == "spent"
    (run,) = stepwise.runs()
    assert did() == {f"work {number}": 1 for number in range(5)}
    assert (run.spent.steps, run.spent.usd) == (5, 2.5)
