"""``sleep``, ``sleep_until`` and ``wait_for``: calls that wait, recorded like any other."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from flows import flow_of
from harness import interpreted, until

import stepwise
from stepwise import ConfigurationError, OutsideRunError, WaitTimeoutError, step, tool, workflow
from stepwise._execution import tasks as other_tasks
from stepwise._execution.active_run import live_runs
from stepwise._execution.waits import RunInbox, Taken
from stepwise._journal.journal import Journal, seal_for
from stepwise._journal.logs import Inbox
from stepwise._journal.records import Outcome
from stepwise._runtime import settings
from stepwise.stores import open_store

UTC = dt.timezone.utc


def post(run_id, name, value, **more):
    """Put a signal into the inbox of a run."""
    store = open_store(settings.store())
    data = json.dumps(value).encode()
    return Inbox(store, seal_for(store), run_id).post("signal", name, data, **more)


def parked(count=1):
    """Wait until so many calls of the run in progress wait."""
    until(lambda: sum(len(run.waits.all) for run in list(live_runs)) >= count)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_run_waits_for_what_is_sent(kind):
    """``wait_for`` returns the values of its name, in the order in which they came."""

    @workflow(run_id="r")
    def plain():
        return [stepwise.wait_for("a"), stepwise.wait_for("b"), stepwise.wait_for("a")]

    @workflow(run_id="r")
    async def coroutine():
        return [await stepwise.wait_for(name) for name in ("a", "b", "a")]

    for name, value in (("a", 1), ("c", 0), ("a", {"x": [2]}), ("b", None)):
        post("r", name, value)
    result = plain() if kind == "plain" else asyncio.run(coroutine())
    assert result == [1, None, {"x": [2]}]


def test_a_value_that_comes_while_the_run_waits():
    """A run that waits is woken by what is sent."""
    handle = flow_of(lambda: stepwise.wait_for("a")).start()
    parked()
    handle.run.send("a", "here")
    assert handle.result(60) == "here"


def test_a_call_that_is_cancelled_as_it_takes_a_message(monkeypatch):
    """Where many tasks share their writes, too, a message is taken and returned, or neither."""
    monkeypatch.setattr(other_tasks, "_FEW", -1)
    submit, tasks = Journal.submit, []

    def cancelling(journal, *items, **how):
        if isinstance(items[0][0], Outcome):
            tasks[0].cancel()
        return submit(journal, *items, **how)

    monkeypatch.setattr(Journal, "submit", cancelling)

    @workflow(run_id="r")
    async def flow():
        async def taking():
            return await stepwise.wait_for("a")

        tasks.append(asyncio.create_task(taking()))
        return await tasks[0]

    post("r", "a", 1)
    assert asyncio.run(flow()) == 1


def test_time_waits_are_recorded():
    """``sleep`` and ``sleep_until`` are steps of the run, answered when it is replayed."""
    fails = [True]

    @workflow(run_id="r")
    def flow():
        stepwise.sleep(0.05)
        stepwise.sleep(dt.timedelta(milliseconds=50))
        stepwise.sleep_until(dt.datetime.now(UTC) + dt.timedelta(seconds=0.05))
        if fails.pop():
            raise ValueError("later")
        return [each.name for each in stepwise.current_run().steps]

    with pytest.raises(ValueError, match="later"):
        flow()
    fails.append(False)
    assert flow() == ["stepwise.sleep", "stepwise.sleep", "stepwise.sleep_until"]


def test_a_timeout():
    """A wait that is over raises ``WaitTimeoutError``, which the workflow can catch."""

    @workflow(run_id="r")
    def flow():
        try:
            stepwise.wait_for("a", timeout=0.05)
        except WaitTimeoutError as error:
            return error.run_id, error.step, error.name

    assert flow() == ("r", 1, "a")


def test_a_run_that_failed_with_a_timeout_waits_anew():
    """A wait whose run failed with its error begins again, with a new end."""
    flow = flow_of(lambda: stepwise.wait_for("a", timeout=0.2))
    with pytest.raises(WaitTimeoutError):
        flow()
    post("r", "a", 5)
    assert flow() == 5


def test_a_value_that_does_not_fit_is_refused(capfd, monkeypatch):
    """A value that does not fit the type is refused, and the wait goes on."""
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    for value in (["x"], 5, [1, 2]):
        post("r", "a", value)
    assert flow_of(lambda: stepwise.wait_for("a", list[int]))() == [1, 2]
    assert "message 1 is no value for wait_for('a'), and was refused: 0: Input" in (
        " ".join(capfd.readouterr().err.split())
    )


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None, True, 1j])
def test_what_is_no_duration_is_refused(seconds):
    """A duration that cannot mean anything is refused, inside a run and outside."""
    with pytest.raises(ConfigurationError, match="not negative"):
        stepwise.sleep(seconds)
    if seconds is not None:
        with pytest.raises(ConfigurationError, match="timeout="):
            stepwise.wait_for("a", timeout=seconds)


def test_a_moment_needs_its_time_zone():
    """``sleep_until`` refuses a moment without a time zone, and ``wait_for`` what is no name."""
    for when in (dt.datetime(2030, 1, 1), 1.5, dt.date(2030, 1, 1)):  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match=r"timezone\.utc"):
            stepwise.sleep_until(when)
    for name in ("", " a", "a\n", "x" * 201, 5, None):
        with pytest.raises(ConfigurationError, match="name of a signal"):
            stepwise.wait_for(name)


def test_outside_of_a_run():
    """Outside of a run sleeping just sleeps, and waiting for a signal is refused."""
    stepwise.sleep(0.01)
    stepwise.sleep_until(dt.datetime.now(UTC) - dt.timedelta(hours=1))
    with pytest.raises(OutsideRunError, match="nobody could send"):
        stepwise.wait_for("a")

    async def main():
        await stepwise.sleep(0.01)
        await asyncio.gather(*[stepwise.sleep(0.01) for _ in range(3)])

    asyncio.run(main())


def test_a_step_cannot_wait():
    """A call inside a step is refused, with the place where it belongs."""
    inside = step(name="inside")(lambda: stepwise.sleep(1))
    with pytest.raises(ConfigurationError, match="workflow's own code"):
        flow_of(inside)()


def test_a_thread_of_the_run_waits():
    """Threads that the workflow starts can wait, side by side."""

    def waits():
        with ThreadPoolExecutor(3) as pool:
            return sorted(pool.map(stepwise.wait_for, ["a"] * 3))

    handle = flow_of(waits).start()
    parked(3)
    for number in range(3):
        handle.run.send("a", number)
    assert handle.result(60) == [0, 1, 2]


def test_a_wait_that_nobody_awaits():
    """A wait that a coroutine function does not await is an error that names its line."""

    @workflow
    async def flow():
        stepwise.sleep(1)

    with pytest.raises(stepwise.NotRecordableError, match=r"stepwise\.sleep\(\) was called at"):
        asyncio.run(flow())


def test_a_wait_inside_a_limit_of_the_code():
    """A wait that the workflow's own timeout cancels is an outcome, which answers on replay."""
    fails = [True]
    note = step(name="note")(lambda: None)

    @workflow(run_id="r")
    async def flow():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stepwise.wait_for("a"), 0.05)
        note()
        if fails.pop():
            raise ValueError("later")
        return await stepwise.wait_for("a")

    with pytest.raises(ValueError, match="later"):
        asyncio.run(flow())
    fails.append(False)
    post("r", "a", 5)
    assert asyncio.run(flow()) == 5
    statuses = [each.status for each in stepwise.get_run("r").steps]
    assert statuses == ["cancelled", "completed", "completed"]


def test_ctrl_c_while_a_run_waits():
    """Ctrl-C ends a run that waits; the next start goes on with the same wait."""
    flow = flow_of(lambda: stepwise.wait_for("a"))

    def interrupt():
        parked()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        flow()
    thread.join()
    run = stepwise.get_run("r")
    assert (run.status, run.counts) == ("interrupted", {"waiting": 1})
    run.send("a", 1)
    assert flow() == 1
    assert len(run.steps) == 1


def test_nothing_before_a_wait_is_executed_again():
    """Each wait is a place to resume at, that of a tool that asks or of a child run, too."""
    pay = tool(name="pay", side_effect=True, approve=True)(lambda amount: amount)
    log = []

    @workflow
    def child():
        log.append("in the child")
        return stepwise.wait_for("b")

    @workflow(run_id="r")
    def flow():
        log.append("begin")
        stepwise.wait_for("a")
        log.append("paid next")
        pay(1)
        log.append("paid")
        pay(2)
        log.append("child next")
        value = child()
        log.append("after the child")
        return value

    def answer():
        for question in stepwise.get_run("r").questions:
            question.approve()
        for each in stepwise.runs():
            for wait in each.waits:
                post(each.id, wait.name, 5)

    stepwise.configure(suspend_after=0)
    for _ in range(4):
        with pytest.raises(stepwise.RunSuspended):
            flow()
        answer()
    assert flow() == 5
    said = "begin, paid next, paid, child next, in the child, after the child"
    assert log == said.split(", ")


def test_a_generator_waits():
    """A generator workflow waits between its items, and yields them again when it goes on."""

    @workflow(run_id="r")
    def flow():
        for _ in range(2):
            yield stepwise.wait_for("a")

    post("r", "a", 1)
    post("r", "a", 2)
    items = flow()
    assert next(items) == 1
    items.close()
    assert list(flow()) == [1, 2]


def test_what_a_checkpoint_keeps_of_the_inbox():
    """A checkpoint keeps, for each name, up to where messages are taken, and which later ones."""
    store = open_store("memory:")
    seal = seal_for(store)
    inbox = Inbox(store, seal, "r")
    for name in "aababaa":
        inbox.post("signal", name, b"1")
    run_inbox = RunInbox(store, seal, "r", Taken())
    first, second, other = run_inbox.take("a"), run_inbox.take("a"), run_inbox.take("b")
    run_inbox.recorded(second)
    run_inbox.recorded(other)
    assert run_inbox.kept() == {"b": [4], "": [0, 2]}
    run_inbox.give_back(first)
    kept = run_inbox.kept()
    again = RunInbox(store, seal, "r", Taken(kept))
    for name in "ab":
        assert again.signals(name) == run_inbox.signals(name)
    assert [each.number for each in again.signals("a")] == [1, 4, 6, 7]
    while message := again.take("a"):
        again.recorded(message)
    assert again.kept()["a"] == [7]
    assert RunInbox(store, seal, "r", Taken(again.kept())).signals("a") == []


@pytest.mark.parametrize("prune", [False, True])
def test_a_long_conversation(prune):
    """However many messages a run takes, a resumed run goes on with the next one."""
    stops = [12, 25]

    @workflow(run_id="r", prune_journal=prune, checkpoint_every=2)
    def flow():
        total = 0
        for number in range(40):
            total += stepwise.wait_for("a")
            if stops and number >= stops[0]:
                stops.pop(0)
                raise ValueError(number)
        return total

    for number in range(40):
        post("r", "a", number)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\d"):
            flow()
    assert flow() == sum(range(40))
    assert {each.status for each in stepwise.get_run("r").inbox} <= {"taken", "kept"}


def test_calls_that_wait_are_known_before_they_are_loaded():
    """A wait that code names as ``stepwise.sleep`` is foreseen, though it is loaded on use."""
    code = """
import sys, stepwise
from stepwise._execution.waits import may_wait
from stepwise._workflows.outlook import _attribute
assert "stepwise._calls.waiting" not in sys.modules
for name in ("approve", "sleep", "sleep_until", "wait_for"):
    assert _attribute(stepwise, name) in may_wait
assert _attribute(stepwise, "missing") not in may_wait
"""
    interpreted("-c", code)
