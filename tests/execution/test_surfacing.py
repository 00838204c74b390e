"""A stop that a framework swallows is seen, and ends the run all the same."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading

import pytest
from flows import flow_of

from stepwise import StepInDoubtError, step, tool, workflow
from stepwise._execution import active_run
from stepwise._execution.active_run import live_runs
from stepwise.integrations import instrument

dying: list[str] = []
made: list[str] = []


class Killed(SystemExit):
    """The process ends here."""


@tool(side_effect=True)
def book(city):
    if city in dying:
        dying.remove(city)
        raise Killed
    made.append(city)
    return city


@pytest.fixture(autouse=True)
def nothing_made(monkeypatch):
    dying[:] = ["Rome"]
    made.clear()
    monkeypatch.setattr(active_run, "_SURFACES", 0.01)


@pytest.fixture
def told(monkeypatch, capsys):
    """The lines on stderr that say that a run stops."""
    monkeypatch.setenv("STEPWISE_QUIET", "0")

    def told():
        return [each for each in capsys.readouterr().err.splitlines() if " stops: " in each]

    return told


def in_doubt(call):
    """The error of the second start, whose side effect the first one left in doubt."""
    with pytest.raises(Killed):
        call()
    with pytest.raises(StepInDoubtError) as caught:
        call()
    assert made == []
    return caught.value


def test_a_task_that_loses_the_doubt(told):
    """An asynchronous workflow that would wait for ever ends with the doubt, which is told once."""
    after = []

    @workflow
    async def agent():
        lost = asyncio.get_running_loop().create_future()

        async def act():
            try:
                book("Rome")
            except StepInDoubtError:
                made.clear()  # and the answer that is awaited never comes

        task = asyncio.ensure_future(act())
        task.add_done_callback(asyncio.Task.exception)
        try:
            await lost
        except asyncio.CancelledError:
            after.append(task.done())
            raise

    error = in_doubt(lambda: asyncio.run(agent()))
    assert error.name == "book"
    assert after[-1]
    (line,) = told()
    assert "stops: book is in doubt" in line
    assert f"stepwise show {error.run_id}" in line


def test_a_loop_in_another_thread_that_asks_again_and_again(told, monkeypatch):
    """A plain workflow whose framework swallows the doubt in a thread's event loop ends, too."""
    monkeypatch.setattr(active_run, "_SURFACES", 3600.0)  # the calls that follow decide
    refused = []

    async def model():
        while True:
            try:
                await asyncio.to_thread(book, "Rome")
            except Killed:
                raise
            except BaseException as error:
                refused.append(error)
                if isinstance(error, asyncio.CancelledError):
                    raise

    @workflow
    def agent():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, model()).result()

    error = in_doubt(agent)
    assert set(refused[:3]) == {error}
    assert len(told()) == 1


def test_a_doubt_that_arrives_is_not_replaced():
    """A doubt that reaches the workflow is what its code sees, and its clean-up is not cut off."""
    seen = []

    @workflow
    async def agent():
        gone, loop = asyncio.Event(), asyncio.get_running_loop()

        async def act():
            return book("Rome")

        try:
            await asyncio.gather(act())
        except StepInDoubtError as error:
            seen.append(error)
            raise
        finally:
            (run,) = live_runs
            if run.stopped is not None:
                loop.run_in_executor(None, look_twice, run, gone)
                await gone.wait()
                seen.append("cleaned up")

    def look_twice(run, gone):
        run.surfacing._look()
        run.surfacing._look()
        run.task.get_loop().call_soon_threadsafe(gone.set)

    error = in_doubt(lambda: asyncio.run(agent()))
    assert seen == [error, "cleaned up"]


def test_a_request_in_a_step_is_refused(monkeypatch):
    """A stopped run sends no request any more, also from the body of a step, in any thread."""
    kind, sent = instrument.RequestKind("openai"), []

    def ask():
        instrument._scope(kind)
        sent.append("request")

    @step
    def crew():
        ask()
        with contextlib.suppress(StepInDoubtError):
            book("Rome")
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        ask()

    def in_thread():
        with pytest.raises(StepInDoubtError):
            ask()

    agent = flow_of(crew)
    in_doubt(agent)
    assert sent == ["request"] * 2  # one at each start
