"""Asynchronous workflows: branches side by side, timeouts, cancellation."""

import asyncio
import contextlib
import re
import sys
import threading
import warnings

import pytest
from clocks import LIMIT, be_late
from flows import aflow_of, flow_of
from outside import Log
from survival import lab_of

import stepwise
from stepwise import (
    RunBusyError,
    RunWarning,
    StepInDoubtError,
    StepTimeoutError,
    step,
    tool,
    workflow,
)
from stepwise._calls import async_driver, driver

needs_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")


pytestmark = pytest.mark.filterwarnings("ignore:no checkpoint:stepwise.RunWarning")  # of tasks


@pytest.fixture
def log():
    return Log()


def crash(log, *, after):
    """What a step calls to fail once: when it logs ``after`` for the first time."""

    def passing(what):
        log.append(what)
        if what == after and log.count(what) == 1:
            raise OSError(what)
        return what

    return passing


def statuses():
    (run,) = stepwise.runs()
    return [(each.name, each.status) for each in run.steps]


# -- branches ------------------------------------------------------------------------------------


def test_gather_goes_on_where_each_branch_stopped(log):
    """Steps that branches had done by the crash are not done again, in whatever order they ran."""
    passing = crash(log, after="c3")

    @step
    async def fetch(what):
        await asyncio.sleep(0)
        return passing(what)

    async def branch(name):
        return [await fetch(f"{name}{n}") for n in range(5)]

    agent = aflow_of(lambda: asyncio.gather(*map(branch, "abc")))
    with pytest.raises(OSError, match="c3"):
        asyncio.run(agent())
    result = asyncio.run(agent())
    assert result == [[f"{name}{n}" for n in range(5)] for name in "abc"]
    assert sorted(set(log)) == sorted(what for branch in result for what in branch)
    assert log.count("c3") == 2
    assert all(log.count(f"{name}{n}") == 1 for name in "abc" for n in range(3))


@needs_311
def test_a_task_group_that_fails_is_resumed(log):
    """What a task group cancels when one of its tasks fails runs again; what was done does not."""
    passing = crash(log, after="b")

    @step
    async def fetch(what):
        if what == "wait" and "b" not in log:
            await asyncio.Event().wait()
        return passing(what)

    @workflow
    async def agent():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(each)) for each in ("a", "wait", "b")]
        return [task.result() for task in tasks]

    with pytest.raises(ExceptionGroup):  # noqa: F821
        asyncio.run(agent())
    log.append("b")
    assert asyncio.run(agent()) == ["a", "wait", "b"]
    assert log.count("a") == 1


@needs_311
@pytest.mark.parametrize("cleans_up", [False, True])
def test_a_side_effect_that_a_failed_group_cancelled_is_in_doubt(log, cleans_up):
    """What was cancelled since another task failed is not handled, whatever cleans up behind it."""
    began = asyncio.Event()
    tidy = step(name="tidy")(lambda: log.append("tidied"))

    @tool(side_effect=True)
    async def post():
        began.set()
        await asyncio.Event().wait()

    @step
    async def fetch():
        await began.wait()
        raise OSError

    @workflow
    async def agent():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(post())
                group.create_task(fetch())
        finally:
            if cleans_up:
                tidy()

    with pytest.raises(ExceptionGroup):  # noqa: F821
        asyncio.run(agent())
    assert ("post", "in_doubt") in statuses()
    with pytest.raises(StepInDoubtError):
        asyncio.run(agent())


def test_a_failure_that_one_task_handles_is_not_handled_by_another():
    """A step of another task proves nothing of a failure that its own task has not gone on from."""
    program = """
        import os

        @step
        async def fetch():
            doing("fetch()", 0)
            if os.environ["FAILS"]:
                raise ValueError("no")
            return "found"

        async def asking(asked):
            try:
                return await fetch()
            except ValueError:
                asked.set()
                if os.environ["FAILS"]:
                    await asyncio.Event().wait()
                return "gave up"
            finally:
                asked.set()

        async def working(asked):
            await asked.wait()
            await awork(1)
            await awork(2)

        @workflow
        async def agent():
            asked = asyncio.Event()
            return (await asyncio.gather(asking(asked), working(asked)))[0]

        def run():
            return asyncio.run(agent())
    """
    with lab_of(program) as lab:
        lab.environment["FAILS"] = "1"
        assert lab.run(die_at="work(2) before").died
        lab.environment["FAILS"] = ""
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result == "found"
        assert lab.did == {"fetch()": 2, "work(1)": 1, "work(2)": 1}


def test_the_first_of_several_wins_again(log):
    """After ``FIRST_COMPLETED``, the winner is answered by the journal, and wins again."""
    passing = crash(log, after="use b")
    use = step(name="use")(lambda name: passing(f"use {name}"))

    @step
    async def race(name):
        log.append(name)
        if name != "b":
            await asyncio.Event().wait()
        return name

    @workflow
    async def agent():
        tasks = [asyncio.ensure_future(race(name)) for name in "abc"]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if pending:  # what was cancelled has ended already when the run is resumed
            await asyncio.wait(pending)
        return use(next(task for task in done if not task.cancelled()).result())

    with pytest.raises(OSError):
        asyncio.run(agent())
    assert asyncio.run(agent()) == "use b"
    assert log.count("b") == 1


def test_a_task_that_is_left_behind_is_cancelled_and_told(log):
    """A run does not end before its tasks: they are cancelled, awaited, and named in a warning."""

    @step
    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    async def leaves():
        log.append(asyncio.ensure_future(endless()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    with pytest.warns(RunWarning, match="1 of its tasks were still running"):
        assert asyncio.run(aflow_of(leaves)()) == "done"
    assert log[-1] == "ended"


def test_a_generator_that_asyncio_closes_is_no_forgotten_task(log, told):
    """A stream that is left half-way is closed to its end, and no warning calls it a task."""

    async def stream():
        try:
            yield 1
            yield 2
        finally:
            for _ in range(9):
                await asyncio.sleep(0)
            log.append("closed")

    work = step(name="work")(asyncio.sleep)

    @workflow
    async def agent():
        await stream().__anext__()
        for _ in range(5):  # meanwhile there are no checkpoints, of which nothing is said either
            await work(0)
        return await stream().__anext__()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(agent()) == 1
    assert log == ["closed"] * 2
    assert told() == ""


def test_equal_calls_side_by_side_are_refused(log):
    """The same run twice in one ``gather`` is one too many; the error names the task."""

    @step
    async def work():
        log.append("work")
        await asyncio.sleep(0)
        return 1

    @workflow
    async def agent(task):
        return await work()

    async def main():
        return await asyncio.gather(agent("x"), agent("x"), return_exceptions=True)

    first, second = asyncio.run(main())
    assert first == 1
    assert isinstance(second, RunBusyError)
    assert re.search("by this process, in task .* in thread MainThread", str(second))
    assert log == ["work"]


# -- timeouts and cancellation -------------------------------------------------------------------


async def _limited(call):
    await asyncio.wait_for(call, LIMIT)


async def _first(call):
    call = asyncio.ensure_future(call)
    done, pending = await asyncio.wait({call}, timeout=LIMIT)
    assert (len(done), len(pending)) == (0, 1)
    call.cancel()
    await asyncio.wait({call})
    raise asyncio.TimeoutError


async def _together(call):
    await asyncio.wait_for(asyncio.gather(call, asyncio.sleep(LIMIT / 4)), LIMIT)


@pytest.mark.parametrize("decorator", [step, tool(side_effect=True)])
@pytest.mark.parametrize("limited", [_limited, _first, _together])
def test_a_timeout_is_a_timeout_again(log, monkeypatch, decorator, limited):
    """A step that ran out of time stays cancelled: replayed, it runs out of time, and not again.

    It is never a cancellation that nobody made.
    """
    waits = async_driver._cancelled
    monkeypatch.setattr(driver, "_LATE", 3600.0)  # on a busy machine it comes late, too
    monkeypatch.setattr(async_driver, "_cancelled", lambda wait: be_late() or waits(wait))

    @decorator
    async def slow(number):
        log.append("slow")
        be_late()
        await asyncio.Event().wait()

    note = step(name="note")(crash(log, after="end"))

    async def helper():  # without resume points of its own
        said = []
        for number in range(2):
            try:
                await limited(slow(number))
            except asyncio.TimeoutError:
                said.append(note("late"))
        return [*said, note("end")]

    agent = aflow_of(helper)
    with pytest.raises(OSError):
        asyncio.run(agent())
    assert [status for name, status in statuses() if name == "slow"] == ["cancelled"] * 2
    assert asyncio.run(agent()) == ["late", "late", "end"]
    assert log == ["slow", "late", "slow", "late", "end", "end"]


def test_a_timeout_that_was_taken_out(log):
    """With the code edited so that nobody cancels it any more, a plain step runs again."""
    limit = LIMIT

    @step
    async def slow():
        log.append("slow")
        if limit is not None:
            be_late()
            await asyncio.Event().wait()
        return "done"

    note = step(name="note")(crash(log, after="late"))

    @workflow(checkpoint_every=100)
    async def agent():
        try:
            what = await asyncio.wait_for(slow(), limit)
        except asyncio.TimeoutError:
            what = "late"
        return note(what)

    with pytest.raises(OSError):
        asyncio.run(agent())
    limit = None
    assert asyncio.run(agent()) == "done"
    assert log == ["slow", "late", "slow", "done"]


def test_a_cancelled_side_effect_is_not_repeated_for_want_of_a_timeout(log, monkeypatch):
    """Without what cancelled it, a side effect waits to be cancelled, and says what to do."""
    told, began, said = [], asyncio.Event(), asyncio.Event()

    def notice(text):
        told.append(text)
        said.set()

    monkeypatch.setattr(driver, "notice", notice)

    @tool(side_effect=True)
    async def post():
        log.append("post")
        began.set()
        await asyncio.Event().wait()

    @step
    async def note(what):
        if not told:
            raise OSError
        return what

    async def helper(stops):
        call = asyncio.ensure_future(post())
        await stops[0].wait()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        return await note("late")

    @workflow(ignore=["stops"])
    async def agent(stops):
        return await helper(stops)

    with pytest.raises(OSError):
        asyncio.run(agent([began]))
    assert asyncio.run(agent([said])) == "late"
    assert log == ["post"]
    (text,) = told
    assert "post was cancelled the last time" in text
    assert f"stepwise resolve {stepwise.runs()[0].id} 1 --landed JSON" in text


def test_a_cancelled_side_effect_is_in_doubt(log):
    """A side effect that a Ctrl-C or a shutdown cancelled is neither repeated nor forgotten."""
    tasks = []

    @tool(side_effect=True)
    async def post():
        log.append("post")
        tasks[0].cancel()
        await asyncio.Event().wait()

    agent = aflow_of(post)

    async def main():
        tasks.append(asyncio.ensure_future(agent()))
        await tasks[0]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    with pytest.raises(StepInDoubtError, match="started and never finished"):
        asyncio.run(agent())
    assert log == ["post"]


@pytest.mark.parametrize("cancels", ["the caller", "the workflow"])
def test_a_cancellation_during_a_backoff_does_not_hang(log, cancels):
    """Cancelled while it waits for its next attempt, a step ends, and so does the run."""
    waiting, left = asyncio.Event(), [cancels]

    def backoff(number):
        waiting.set()
        return 3600.0

    @step(retries=3, backoff=backoff)
    async def flaky():
        log.append("flaky")
        if len(log) == 1:
            raise OSError
        return "done"

    @workflow
    async def agent():
        call = asyncio.ensure_future(flaky())
        await waiting.wait()
        if left == ["the workflow"]:
            left.clear()
            call.cancel()
        return await call

    async def main():
        task = asyncio.ensure_future(agent())
        await waiting.wait()
        if cancels == "the caller":
            task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert asyncio.run(agent()) == "done"
    assert log == ["flaky", "flaky"]


def test_an_async_step_past_its_timeout_is_cancelled(log):
    """A coroutine step that takes longer than its timeout is cancelled, and tried again."""

    @step(timeout=LIMIT, retries=1, backoff=0)
    async def slow():
        log.append("slow")
        if len(log) == 1:
            be_late()
            await asyncio.Event().wait()
        return len(log)

    assert asyncio.run(aflow_of(slow)()) == 2


def test_what_ends_well_when_it_is_cancelled_has_ended_well():
    """A coroutine tool that is cancelled past its timeout, and returns all the same, returned."""

    @tool(side_effect=True, timeout=0.01)
    async def pay():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "paid"

    assert asyncio.run(aflow_of(pay)()) == "paid"
    assert statuses() == [("pay", "completed")]


@pytest.mark.parametrize("by", ["its timeout", "its caller"])
def test_a_step_has_cleaned_up_before_its_timeout_is_raised(log, by):
    """A coroutine step that is cancelled comes to the end of its ``finally`` before it fails."""
    began = asyncio.Event()

    @step(timeout=0.01 if by == "its timeout" else 3600)
    async def slow():
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            log.append("rolled back")

    @workflow
    async def agent():
        call = asyncio.ensure_future(slow())
        if by == "its caller":
            await began.wait()
            call.cancel()
        try:
            await call
        except (StepTimeoutError, asyncio.CancelledError):
            log.append("failed")

    asyncio.run(agent())
    assert log == ["rolled back", "failed"]


def test_a_plain_step_past_its_timeout_is_abandoned():
    """A plain function cannot be stopped: its thread is left alone and its late result dropped."""
    go, ended = threading.Event(), threading.Event()
    slow = step(name="slow", timeout=0.01)(lambda: (go.wait(), ended.set(), "late"))

    @workflow
    def agent():
        try:
            return slow()
        except StepTimeoutError:
            return "in time"

    assert agent() == "in time"
    go.set()
    assert ended.wait(300)
    assert stepwise.runs()[0].result == "in time"


def test_a_side_effect_past_its_timeout_is_not_tried_again(log):
    """A timeout proves nothing: a side effect is not repeated, whatever its ``retries``."""
    go, began = threading.Event(), threading.Event()

    @tool(side_effect=True, timeout=0.01, retries=3, fails_cleanly=ValueError)
    def post():
        log.append("post")
        began.set()
        go.wait()

    agent = flow_of(post)
    with pytest.raises(StepTimeoutError):
        agent()
    with pytest.raises(StepInDoubtError, match="does not prove that nothing happened"):
        agent()
    assert began.wait(300)  # a busy machine starts the thread later than the timeout
    go.set()
    assert log == ["post"]
