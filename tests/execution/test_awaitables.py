"""Steps of functions that return an awaitable, and coroutines that a workflow forgets to await."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import sys

import pytest
from flows import aflow_of, flow_of
from harness import python

import stepwise
from stepwise import NotRecordableError, step, tool, workflow

PROGRAM = """
import asyncio, functools, os, signal, sys
import stepwise
from stepwise import step, tool, workflow

def note(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\\n")

def required_args(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

async def body(name, x):
    note(f"{name} {x}")
    await asyncio.sleep(0)
    if x < 0:
        raise ValueError(x)
    return x + 1

class Model:
    async def __call__(self, x):
        return await body("call", x)

class Client:
    @required_args
    async def create(self, x):
        return await body("method", x)

@step
@required_args
async def wrapped(x):
    return await body("wrapped", x)

@tool(side_effect=True)
def send(x):
    return body("send", x)

@step
def task(x):
    return asyncio.ensure_future(body("task", x))

@step(timeout=0.01)
@required_args
async def slow(x):
    note(f"slow {x}")
    await asyncio.sleep(600)

partial = step(functools.partial(body, "partial"))
called = step(Model())
method = step(Client().create)

@step
async def die(where):
    if os.environ.get("DIE") == where:
        os.kill(os.getpid(), signal.SIGKILL)

@workflow
async def agent():
    found = [await wrapped(1), await partial(2)]
    await die("early")
    found += await asyncio.gather(called(3), called(3), method(4), wrapped(5))
    found.append(await asyncio.create_task(wrapped(6)))
    done, _ = await asyncio.wait({task(7), task(8)})
    found += sorted(each.result() for each in done)
    failed = await asyncio.gather(wrapped(-1), task(-2), return_exceptions=True)
    found += [type(each).__name__ for each in failed]
    found.append(await send(9))
    found += await stepwise.map(called, [10, 11])
    try:
        await slow(12)
    except TimeoutError:
        found.append("late")
    both = asyncio.gather(die("late"), wrapped(13))
    found.append((await both)[1])
    return found

@workflow
def synchronous():
    found = [asyncio.run(wrapped(1)), asyncio.run(send(2))]
    asyncio.run(die("early"))
    return [*found, asyncio.run(called(3))]

if sys.argv[2] == "agent":
    print(asyncio.run(agent()))
else:
    print(synchronous())
"""

ANSWERS = {
    "agent": "[2, 3, 4, 4, 5, 6, 7, 8, 9, 'ValueError', 'ValueError', 10, 11, 12, 'late', 14]",
    "synchronous": "[2, 3, 4]",
}


@pytest.mark.parametrize("dies", ["", "early", "late"])
@pytest.mark.parametrize("what", ["agent", "synchronous"])
def test_what_returns_an_awaitable_is_recorded(tmp_path, what, dies):
    """Wrapped coroutine functions, partials, callables and methods are recorded when awaited.

    Killed and run again, no body has been executed twice.
    """
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM, "utf-8")
    for dying in dict.fromkeys([dies, ""]):
        done = python(program, log, what, env={**os.environ, "DIE": dying})
        killed = dying and (dying, what) != ("late", "synchronous")
        assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    assert done.stdout.strip() == ANSWERS[what]
    noted = log.read_text("utf-8").splitlines()
    assert noted.count("call 3") == (2 if what == "agent" else 1)  # it is called twice
    assert len(noted) == len(set(noted)) + (what == "agent")


def test_outside_a_run_it_is_the_plain_function():
    """Outside a run, what the function returns is handed out as it is."""
    made = []

    @step
    def future(x):
        made.append(asyncio.get_running_loop().create_future())
        return made[0]

    async def main():
        assert future(1) is made[0]

    asyncio.run(main())


class Custom:
    """An awaitable that is no coroutine."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return "custom"


def test_other_awaitables():
    """An object with ``__await__`` is recorded by what awaiting it gives."""
    calls = []

    @step
    def custom(x):
        calls.append(x)
        return Custom()

    async def fails_once():
        found = await custom(1)
        if len(calls) == 1:
            calls.append("again")
            raise LookupError
        return found

    agent = aflow_of(fails_once)
    with pytest.raises(LookupError):
        asyncio.run(agent())
    assert asyncio.run(agent()) == "custom"
    assert calls == [1, "again"]


def test_retries_of_what_returns_an_awaitable():
    """An attempt that fails when it is awaited is made again."""
    calls = []

    async def body():
        calls.append(1)
        if len(calls) < 3:
            raise OSError
        return len(calls)

    flaky = step(name="flaky", retries=3, backoff=0)(lambda: body())  # noqa: PLW0108
    assert asyncio.run(aflow_of(flaky)()) == 3
    assert [each.attempts for each in stepwise.get_run("r").steps] == [3]


@step
async def think(x):
    return x


@step
def plain(x):
    return x


@pytest.mark.filterwarnings("ignore:no checkpoint")
def test_a_coroutine_forgotten_in_a_synchronous_workflow():
    """The run fails with an error that names the line of the call, also when it is called again."""

    @workflow(run_id="one")
    def agent():
        first = plain(1)
        forgotten = think(2)
        then = plain(3)
        return first + then + bool(forgotten)

    line = agent.__wrapped__.__code__.co_firstlineno + 3
    for _ in range(2):
        with pytest.raises(NotRecordableError, match=f"test_awaitables.py:{line} and never"):
            agent()
    run = stepwise.get_run("one")
    assert run.status == "failed"
    assert [each.name for each in run.steps] == ["plain", "plain"]


def test_a_coroutine_that_a_synchronous_workflow_returns():
    """Awaited outside of the run, it would be unrecorded: the workflow fails and says so."""
    with pytest.raises(NotRecordableError, match="'think', which would be executed outside"):
        flow_of(lambda: think(1))()
    assert stepwise.get_run("r").status == "failed"


@tool(side_effect=True)
async def asend(x):
    sent.append(x)
    return x


@workflow
async def achild(x):
    return await asend(x)


sent: list[object] = []


@step
def returning(x):
    return think.__wrapped__(x)


def mapping(x):
    return stepwise.map(think, [1, x])


@pytest.mark.parametrize("called", [asend, achild, returning, mapping])
@pytest.mark.filterwarnings("ignore:no checkpoint")
def test_a_coroutine_forgotten_in_an_asynchronous_workflow(called):
    """The run fails with an error that names the line; with the ``await`` it goes on."""
    sent.clear()
    awaits: list[object] = []

    @workflow(run_id="one")
    async def agent():
        first = await think(1)
        forgotten = called(first)
        if awaits:
            await forgotten
        return await think(2)

    line = agent.__wrapped__.__code__.co_firstlineno + 3
    if called is mapping:
        line = mapping.__code__.co_firstlineno + 1
    for _ in range(2):
        with pytest.raises(NotRecordableError, match=f"test_awaitables.py:{line} and never"):
            asyncio.run(agent())
        assert stepwise.get_run("one").status == "failed"
    assert sent == []
    awaits.append(True)
    assert asyncio.run(agent()) == 2
    assert sent == ([1] if called in (asend, achild) else [])


def test_a_returned_awaitable_that_is_forgotten():
    """A side effect that returns an awaitable which nobody awaits is named with its line."""
    sending = tool(name="send", side_effect=True)(lambda: asend.__wrapped__(1))

    async def forgets():
        sending()

    with pytest.raises(NotRecordableError, match=r"send.*test_awaitables.py:\d+ and never awaited"):
        asyncio.run(aflow_of(forgets)())
    assert stepwise.get_run("r").status == "failed"


@pytest.mark.filterwarnings("ignore:run .* ended while")
def test_coroutines_that_others_await_or_give_up_are_not_forgotten():
    """A task that has not begun, one of a group, and a coroutine that is closed are none."""
    sent.clear()

    @workflow
    async def agent():
        not_begun = asyncio.ensure_future(asend("not begun"))
        unwanted = asyncio.ensure_future(asend("cancelled"))
        unwanted.cancel()
        asend("closed").close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asend("late"), 0)
        found = await asyncio.gather(think(1), asyncio.wait_for(think(2), 60))
        found += await stepwise.map(think, [3, 4])
        return [*found, await asyncio.shield(think(5))][: 5 + not_begun.cancelled()]

    assert asyncio.run(agent()) == [1, 2, 3, 4, 5]
    assert sent == ["not begun"]


def test_runs_beside_each_other_know_their_own_coroutines():
    """Of two runs in one event loop, the run that forgot a call fails, and the other does not."""

    @workflow
    async def agent(forgets):
        await think(0)
        if forgets:
            think(forgets)
        await think(1)
        return "done"

    async def both():
        return await asyncio.gather(agent(1), agent(0), return_exceptions=True)

    depth = sys.get_coroutine_origin_tracking_depth()
    failed, done = asyncio.run(both())
    assert isinstance(failed, NotRecordableError)
    assert done == "done"
    assert sys.get_coroutine_origin_tracking_depth() == depth


def test_what_the_garbage_collector_finds_is_of_no_run():
    """A coroutine in a cycle of objects is not taken for one of the run that is in progress."""

    async def collects():
        await think(0)
        gc.collect()
        return "done"

    gc.disable()
    try:
        left = [think(1)]
        left.append(left)
        del left
        with pytest.warns(RuntimeWarning, match="think' was never awaited"):
            assert asyncio.run(aflow_of(collects)()) == "done"
    finally:
        gc.enable()


def test_coroutines_that_are_no_steps_are_left_to_python():
    """What Python says of other forgotten coroutines stays as it is, and the run completes."""

    async def other():
        return 1

    def calls():
        other()
        return plain(1)

    depth = sys.get_coroutine_origin_tracking_depth()
    with pytest.warns(RuntimeWarning, match="other' was never awaited"):
        assert flow_of(calls)() == 1
    assert sys.get_coroutine_origin_tracking_depth() == depth


def test_awaited_later_in_a_synchronous_workflow():
    """A coroutine that is kept and awaited later by ``asyncio.run`` is an ordinary call."""

    def calls():
        made = [think(1), think(2)]

        async def both():
            return await asyncio.gather(*made)

        return asyncio.run(both())

    assert flow_of(calls)() == [1, 2]
    assert len(stepwise.get_run("r").steps) == 2


def test_partials_and_callables_have_names():
    """A partial is named like its function, an object that is called like its class."""

    class Model:
        """Asks a model."""

        def __call__(self, x, *, limit=3):
            return x + limit

    def add(a, b):
        return a + b

    model, partial = step(Model()), step(functools.partial(add, 1))
    assert (model.__name__, partial.__name__) == ("Model", "add")
    assert flow_of(lambda: (model(1, limit=2), partial(5)))() == (3, 6)
    assert [(each.name, each.arguments) for each in stepwise.get_run("r").steps] == [
        ("Model", "x=1, limit=2"),
        ("add", "b=5"),
    ]
