"""Tracebacks: between the user's line and the user's error there is one frame of ours at most."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import sys
import textwrap
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flows import aflow_of, flow_of
from harness import interpreted

import stepwise
from stepwise import step, tool, workflow

OURS = str(Path(stepwise.__file__).parent) + os.sep


def helper(x):
    raise ValueError(x)


@step
def bad(x):
    helper(x)


@step(timeout=30)
def limited(x):
    helper(x)


@step(retries=2, backoff=0)
def again(x):
    helper(x)


@tool(side_effect=True)
async def abad(x):
    helper(x)


@step(timeout=30)
async def alimited(x):
    helper(x)


@step
def returns(x):
    return abad.__wrapped__(x)


@step
def chained(x):
    try:
        helper(x)
    except ValueError as error:
        raise LookupError(x) from error


def elsewhere():
    with ThreadPoolExecutor(1) as pool:
        stepwise.map(bad, [1], executor=pool)


def child(make, call):
    return make(call, run_id=None)


CALLS = {
    "step": flow_of(lambda: bad(1)),
    "timeout": flow_of(lambda: limited(1)),
    "retries": flow_of(lambda: again(1)),
    "chained": flow_of(lambda: chained(1)),
    "workflow": flow_of(lambda: helper(1)),
    "nested": flow_of(child(flow_of, child(flow_of, lambda: bad(1)))),
    "mapped": flow_of(lambda: stepwise.map(bad, [1])),
    "executor": flow_of(elsewhere),
    "coroutine": aflow_of(lambda: abad(1)),
    "coroutine with a timeout": aflow_of(lambda: alimited(1)),
    "awaitable": aflow_of(lambda: returns(1)),
    "coroutines nested": aflow_of(child(aflow_of, child(aflow_of, lambda: abad(1)))),
    "coroutines mapped": aflow_of(lambda: stepwise.map(abad, [1])),
    "a step alone": functools.partial(bad, 1),
    "a coroutine alone": functools.partial(abad, 1),
}


def raised(function):
    """What calling it raises."""
    try:
        result = function()
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    except Exception as error:
        return error
    raise AssertionError


def frames(error):
    """Of its traceback: ``ours`` for our frames, and the names of those of this file."""
    found = []
    for entry in traceback.extract_tb(error.__traceback__):
        if entry.filename.startswith(OURS):
            found.append("ours")
        elif entry.filename == __file__:
            found.append(entry.name)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_at_most_one_frame_of_ours(name):
    """A failing step shows the user's frames, with one of ours after the outermost call."""
    error = raised(CALLS[name])
    found = frames(error)
    assert found[0] == "raised"
    assert found.count("ours") <= 1
    assert found[-1] == ("chained" if name == "chained" else "helper")
    assert found[1] == "ours"
    if name == "chained":
        assert frames(error.__cause__) == ["chained", "helper"]
    for run in stepwise.runs():
        for each in run.steps:
            assert OURS not in each.traceback


@pytest.mark.parametrize("name", ["step", "coroutine", "mapped"])
def test_debug_shows_all(name, monkeypatch):
    """With ``STEPWISE_DEBUG=1`` the frames of ours are shown."""
    monkeypatch.setenv("STEPWISE_DEBUG", "1")
    assert frames(raised(CALLS[name])).count("ours") > 4


def test_inside_the_workflow():
    """An exception that the workflow handles has one frame of ours; ours end at the call."""
    seen = []

    @workflow
    def agent():
        for function in (bad, limited, chained):
            try:
                function(1)
            except (ValueError, LookupError) as error:
                seen.append(frames(error))
        stepwise.map(bad, [1], max_workers=0)

    error = raised(agent)
    assert seen == [
        ["agent", "ours", "bad", "helper"],
        ["agent", "ours", "limited", "helper"],
        ["agent", "ours", "chained"],
    ]
    assert isinstance(error, stepwise.ConfigurationError)
    assert frames(error)[-1] == "agent"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups")
def test_exception_groups():
    """The exceptions of a group, and what they refer to, are folded as well."""

    @workflow
    async def agent():
        async with asyncio.TaskGroup() as group:
            group.create_task(abad(1))
            group.create_task(alimited(2))

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: F821
        asyncio.run(agent())
    for each in caught.value.exceptions:
        assert frames(each) == ["abad" if each.args == (1,) else "alimited", "helper"]


def test_an_exception_with_an_attribute_exceptions():
    """An exception that is no group may keep anything under that name: it arrives as it is."""
    for number, held in enumerate([["timeout"], None, "x", 7, [ValueError("inner")]]):
        error = type("ApiError", (Exception,), {"exceptions": held})

        @step
        def ask(error=error):
            raise error("down")

        with pytest.raises(error, match="down"):
            flow_of(ask, run_id=f"{number}")()
        assert stepwise.get_run(f"{number}").status == "failed"


def test_post_mortem(tmp_path):
    """A debugger that looks at an exception after it was raised stands in the user's code."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            from stepwise import step, workflow
            @step
            def think(question):
                answer = question / 0
            @workflow
            def agent():
                think(42)
            agent()
            """
        ),
        "utf-8",
    )
    done = interpreted(
        *["-m", "pdb", "-c", "continue", "program.py"],
        cwd=tmp_path,
        text="p 'question is', question\nup\np 'inside', 'agent' in dir()\nq\n",
        code=None,
    )
    assert "('question is', 42)" in done.stdout, done.stdout


def between_lines():
    """Raise where no line is, as a handler does for a signal that comes between two of them."""
    raise KeyboardInterrupt


if sys.version_info >= (3, 11):  # its table of lines has an entry for none, of eight code units
    _code = between_lines.__code__
    between_lines.__code__ = _code.replace(co_linetable=b"\xff" * len(_code.co_code))


def test_an_exception_between_lines():
    """An exception from a place without a line leaves a run as the exception that it is."""

    @step
    def fails():
        between_lines()

    @workflow
    def agent():
        try:
            between_lines()
        except KeyboardInterrupt as error:
            kept = error  # with its traceback, in the checkpoints
        for n in range(3):
            work(n)
        assert type(kept) is KeyboardInterrupt
        fails()

    with pytest.raises(KeyboardInterrupt) as caught:
        agent()
    assert traceback.format_exception(caught.value)
    with pytest.raises(KeyboardInterrupt):
        agent()


@step
def work(n):
    return n


def test_no_cycle_is_left():
    """The exception of a failed step is freed when nobody holds it."""

    class Told(Exception):
        pass

    @step
    def fails():
        raise Told

    agent = flow_of(fails)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(Told):
            agent()
        # Other objects may be proxies, whose class is not to be asked for.
        assert [each for each in gc.get_objects() if type(each) is Told] == []
    finally:
        gc.enable()
