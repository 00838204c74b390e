"""What newcomers get wrong in a run, and that they are told what to do about it."""

import asyncio
import gc
import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import stepwise
from stepwise import NotRecordableError, RunWarning, step, workflow


@step
def think(topic):
    return f"about {topic}"


@step
async def athink(topic):
    return f"about {topic}"


def names(*words):
    return "(?s)" + ".*".join(words)


def test_a_value_that_cannot_be_recorded():
    """A step that returns a live object is told to return plain data; the object is named."""

    @step
    def connect():
        return {"socket": threading.Lock()}

    @workflow
    def agent():
        return connect()

    with pytest.raises(NotRecordableError, match=names("'connect'", r"\['socket'\]", "plain data")):
        agent()


def test_a_forgotten_await():
    """A coroutine that is returned instead of its value is a missing ``await``."""

    @workflow
    async def agent():
        return athink("tides")

    with pytest.raises(NotRecordableError, match=r"the coroutine 'athink'.* Await it"):
        asyncio.run(agent())


def test_a_workflow_that_is_not_awaited():
    """Python's own warning names the workflow."""

    @workflow
    async def agent():
        return 1

    with pytest.warns(RuntimeWarning, match="coroutine 'agent' was never awaited"):
        agent()
        gc.collect()


def test_arguments_that_cannot_be_told_apart():
    """An iterator as an argument, which a call uses up: the message names it, and the ways out."""

    @workflow
    def agent(rows, topic):
        return think(topic)

    with pytest.raises(TypeError, match=names("'rows'", "Pass a list of what it yields")):
        agent((each for each in "ab"), "tides")


def test_only_what_stands_in_the_way_is_named():
    """A client among the variables is named once, with ways out; a closed pool is no obstacle."""

    @workflow
    def agent():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
        local = threading.local()
        first = think("tides")
        second = think(first)
        del local
        return second

    with pytest.warns(RunWarning, match=names("'local'", "ways out", "resource")) as warned:
        assert agent() == "about about tides"
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert "'pool'" not in str(warned[0].message)


# -- steps of one name ---------------------------------------------------------------------------


def test_lambdas():
    """Two lambdas as steps of one run are refused, with both places; with names they are fine.

    A lambda that is made again, in a loop or a cell, is one step.
    """
    double, half = (step(each) for each in (lambda x: 2 * x, lambda x: x // 2))

    @workflow
    def both(x):
        return double(x) + half(x)

    with pytest.raises(stepwise.ConfigurationError, match=r"test_mistakes.py:\d+ and .*name="):
        both(4)
    half = step(name="half")(lambda x: x // 2)
    assert both(4) == 10

    @workflow
    def each(values):
        return [step(lambda x: 2 * x)(value) for value in values]

    assert each([1, 2, 3]) == [2, 4, 6]


def test_workflows_nested_too_deeply():
    """The error says how deep workflows may be nested; with more allowed, the run goes on."""
    called = []

    @step
    def note(n):
        called.append(n)
        return n

    @workflow
    def deeper(n):
        return note(n) + (deeper(n - 1) if n else 0)

    limit, frames = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(frames + 400)
    try:
        with pytest.raises(RecursionError, match=r"'deeper' is called \d+ workflows deep"):
            deeper(30)
    finally:
        sys.setrecursionlimit(limit)
    deepest = called[-1]
    assert called == [*range(30, deepest - 1, -1)]
    assert 0 < deepest < 25
    sys.setrecursionlimit(limit + 1000)
    try:
        assert deeper(30) == sum(range(31))
    finally:
        sys.setrecursionlimit(limit)
    assert called == [*range(30, -1, -1)]
