"""The attempts of a step, each with its times and its error, and what a step took itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import json
import linecache
import re
import time
from contextvars import copy_context

import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._journal.journal import read_entries, seal_for
from stepwise._journal.records import Answered, Outcome, from_header, to_header
from stepwise._runs.overview import overview

troubles = []  # what the next attempts raise


@step(retries=50, backoff=0)
def shaky(name):
    if troubles:
        raise troubles.pop(0)
    return name


@step
def once(name):
    if troubles:
        raise troubles.pop(0)
    return name


@workflow
def agent(name):
    return shaky(name)


@pytest.fixture(autouse=True)
def no_trouble():
    troubles.clear()


def records(run):
    """The records of a run, in order."""
    return [each.record for each in read_entries(run.store, seal_for(run.store), run.id)]


def told(tries):
    return [(each.number, each.status, each.error) for each in tries]


# -- attempts --------------------------------------------------------------------------------------


def test_each_attempt_is_recorded():
    """A step that was retried has its attempts: when each began and ended, and its error."""
    troubles[:] = [ValueError("first"), OSError("second")]
    (tried,) = agent.execute("tides").steps
    assert told(tried.tries) == [
        (1, "failed", "ValueError('first')"),
        (2, "failed", "OSError('second')"),
        (3, "completed", ""),
    ]
    moments = [at for each in tried.tries for at in (each.started_at, each.finished_at)]
    assert moments == sorted(moments)
    assert (moments[0], moments[-1]) == (tried.started_at, tried.finished_at)
    assert tried.attempts == 3
    assert tried.to_dict()["tries"][1] == tried.tries[1].to_dict()
    assert json.dumps(tried.to_dict())


def test_a_step_that_fails_in_the_end():
    """The last attempt of a failed step is among its attempts, with its error."""

    @step(retries=1, backoff=0)
    def hopeless():
        raise ValueError(stepwise.current_step().attempt)

    @workflow
    def flow():
        hopeless()

    with pytest.raises(ValueError):
        flow.options(run_id="flow")()
    (tried,) = stepwise.get_run("flow").steps
    assert told(tried.tries) == [(1, "failed", "ValueError(1)"), (2, "failed", "ValueError(2)")]


def test_the_newest_attempts_are_kept():
    """Of many attempts the last one and 20 before it are recorded, with short errors."""
    troubles[:] = [ValueError(f"{number}" + "x" * 10_000) for number in range(30)]
    run = agent.execute("tides")
    (tried,) = run.steps
    assert [each.number for each in tried.tries] == [*range(11, 32)]
    assert tried.attempts == 31
    assert max(len(each.error) for each in tried.tries) <= 200
    (outcome,) = [each for each in records(run) if isinstance(each, Outcome)]
    assert len(json.dumps(to_header(outcome))) < 7000
    done = CliRunner().invoke(cli.main, ["show", run.id, "1"], catch_exceptions=False)
    assert "10 attempts before" in done.stdout


def test_a_plain_step_records_nothing_more():
    """The record of a step that was not retried holds no attempts."""
    run = agent.execute("tides")
    (outcome,) = [each for each in records(run) if isinstance(each, Outcome)]
    assert list(from_header(json.loads(json.dumps(to_header(outcome)))).tries) == []
    (tried,) = run.steps
    assert told(tried.tries) == [(1, "completed", "")]


def test_attempts_of_an_earlier_start():
    """A step that failed with its run has the attempts of each start."""

    @step(retries=1, backoff=0)
    def twice():
        if troubles:
            raise troubles.pop(0)

    @workflow
    def flow():
        twice()

    troubles[:] = [ValueError("a"), ValueError("b"), ValueError("c")]
    with pytest.raises(ValueError, match="b"):
        flow.options(run_id="flow")()
    flow.options(run_id="flow")()
    (tried,) = stepwise.get_run("flow").steps
    assert told(tried.tries) == [
        (1, "failed", "ValueError('a')"),
        (2, "failed", "ValueError('b')"),
        (3, "failed", "ValueError('c')"),
        (4, "completed", ""),
    ]
    assert tried.attempts == 4
    assert tried.duration <= tried.finished_at - tried.tries[2].started_at


KILLED = """
import sys
from stepwise import tool, workflow

@tool(side_effect=True, in_doubt="retry")
def send(text):
    print("sending")
    sys.stdin.readline()
    return text

@workflow
def agent(text):
    return send(text)

print(agent.options(run_id="letter")("hello"))
"""


def test_an_attempt_that_a_crash_cut_off(fork, tmp_path):
    """A side effect that was killed and made again has both attempts; the first has no end."""
    script = fork(KILLED)
    while script.hear() != "sending":
        pass
    script.kill()
    assert "hello" in fork(tmp_path / "script0.py").finish()
    run = stepwise.get_run("letter")
    (tried,) = run.steps
    assert told(tried.tries) == [(1, "crashed", ""), (2, "completed", "")]
    assert (tried.tries[0].finished_at, tried.attempts) == (None, 2)
    assert tried.tries[1].started_at > tried.started_at == tried.tries[0].started_at
    assert tried.duration <= tried.finished_at - tried.tries[1].started_at
    course = overview(run.store, seal_for(run.store), run.id).course
    assert [end for *_, end in course.resumptions] == ["died"]
    shown = CliRunner().invoke(cli.main, ["show", run.id], catch_exceptions=False).stdout
    assert "(before: process died)" in shown
    shown = CliRunner().invoke(cli.main, ["show", run.id, "1"], catch_exceptions=False).stdout
    assert re.search(r"try +attempt 1 crashed, begun .*\n +try +attempt 2 completed after", shown)


def test_secrets_in_errors():
    """A secret in the error of an attempt is masked, as in every record."""

    @step(retries=1, backoff=0, secret=["key"])
    def ask(key):
        if troubles:
            raise troubles.pop(0)

    @workflow
    def flow():
        ask("the-key-itself")

    troubles[:] = [ValueError("refused: the-key-itself")]
    (tried,) = flow.execute().steps
    assert tried.tries[0].status == "failed"
    assert "the-key-itself" not in tried.tries[0].error
    assert "refused" in tried.tries[0].error


def test_a_clock_that_is_set_back(monkeypatch):
    """An attempt during which the clock was set back has taken no time, and no negative one."""
    moments = itertools.count(1_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    troubles[:] = [ValueError("first")]
    run = agent.execute("tides")
    (tried,) = run.steps
    assert tried.tries[0].finished_at < tried.tries[0].started_at
    done = CliRunner().invoke(cli.main, ["show", run.id, "1"], catch_exceptions=False)
    assert "attempt 1 failed after 0 ms: ValueError('first')" in done.stdout


# -- own time and waiting ------------------------------------------------------------------------


@tool(side_effect=True, approve=True)
def pay(amount):
    return amount


@workflow
def paid(amount):
    return pay(amount)


def test_the_time_of_a_person_is_no_time_of_the_step():
    """The duration of an approved call begins with the answer; the time before it is waited."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        paid.options(run_id="paid")(7)
    run = stepwise.get_run("paid")
    run.questions[0].approve()
    paid.options(run_id="paid")(7)
    (tried,) = run.steps
    (answered,) = [each for each in records(run) if isinstance(each, Answered)]
    assert tried.waited == answered.at - tried.started_at
    assert tried.duration == tried.finished_at - answered.at
    assert [each.started_at for each in tried.tries] == [answered.at]
    course = overview(run.store, seal_for(run.store), run.id).course
    assert course.taken == pytest.approx(tried.duration)
    assert tried.to_dict()["waited"] == tried.waited


def test_a_wait_has_no_time_of_its_own():
    """All of the time of a wait is waited."""

    @workflow
    def flow():
        stepwise.sleep(0.001)

    (waited,) = flow.execute().steps
    assert (waited.duration, waited.tries) == (0.0, ())
    assert waited.waited == waited.finished_at - waited.started_at >= 0.001


# -- the ends of attempts of the run ---------------------------------------------------------------


def test_how_the_attempt_before_a_resume_ended():
    """Each resume says how the attempt before it ended: failed, interrupted, suspended."""

    @workflow
    def flow():
        once("a")
        stepwise.wait_for("go", int)

    stepwise.configure(suspend_after=0)
    call = flow.options(run_id="flow")
    troubles[:] = [KeyboardInterrupt(), ValueError()]
    for ended in (KeyboardInterrupt, ValueError, stepwise.RunSuspended):
        with pytest.raises(ended):
            call()
    run = stepwise.get_run("flow")
    run.send("go", 1)
    call()
    course = overview(run.store, seal_for(run.store), run.id).course
    assert [end for *_, end in course.resumptions] == ["interrupted", "failed", "suspended"]
    done = CliRunner().invoke(cli.main, ["show", run.id, "--json"], catch_exceptions=False)
    resumes = json.loads(done.stdout)["resumes"]
    assert [each["before"] for each in resumes] == ["interrupted", "failed", "suspended"]


# -- call sites ----------------------------------------------------------------------------------


@step
async def fetch(name):
    return name


@step
def plain(name):
    return name


def test_the_line_of_gathered_calls():
    """Calls in tasks and threads of a workflow have the line at which it waits for them."""

    @workflow
    async def gathering():
        await asyncio.gather(fetch("a"), fetch("b"))  # here
        await stepwise.map(fetch, ["c", "d"])  # there

    @workflow
    def threads():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            [pool.submit(copy_context().run, plain, name).result() for name in "ab"]  # here
        stepwise.map(plain, ["c", "d"])  # there

    for run in (asyncio.run(gathering.execute()), threads.execute()):
        numbers = [int(each.site.rpartition(":")[2]) for each in run.steps]
        marks = [linecache.getline(__file__, each).split()[-1] for each in numbers]
        assert marks == ["here", "here", "there", "there"]
