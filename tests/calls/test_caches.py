"""A cache around a side effect, which would be empty after a resume, is warned about."""

from __future__ import annotations

import functools
import warnings

import pytest
from flows import flow_of

from stepwise import RunWarning, step, tool, workflow


def act(x):
    return x


named = functools.cache(tool(side_effect=True)(act))


@functools.lru_cache(maxsize=3)
@tool(side_effect=True)
def above(x):
    return x


class Agent:
    @functools.cache  # noqa: B019
    @tool(side_effect=True)
    def send(self, x):
        return x

    @tool(side_effect=True)
    def plain(self, x):
        return x


class Wrapping(Agent):
    def __init__(self):
        self.cached = functools.cache(self.plain)


@pytest.mark.parametrize(
    "call",
    [above, named, Agent().send, Wrapping().cached],
    ids=["above", "named", "method", "wrapping"],
)
def test_a_cache_around_a_side_effect(call):
    """The first call in a run warns, at the line of the call; once."""

    @workflow(key=["x"])
    def agent(x):
        call(x)
        call(x + 1)

    with pytest.warns(RunWarning, match="side effects, and a cache around it") as caught:
        agent(1)
    assert [each.filename for each in caught] == [__file__]


def test_a_cache_of_the_workflow():
    """A cache that the workflow makes itself is seen among its variables, and in its classes."""

    class Made:
        @functools.cache  # noqa: B019
        @tool(side_effect=True)
        def send(self, x):
            return x

    send = tool(side_effect=True)(act)

    @workflow
    def agent():
        cached = functools.cache(send)
        return cached(1)

    for flow in (agent, flow_of(lambda: Made().send(1))):
        with pytest.warns(RunWarning) as caught:
            flow()
        assert any("a cache around it" in str(each.message) for each in caught)


@tool(side_effect=True)
def sent(x):
    return x


@functools.cache
def helper(x):
    return sent(x)


class Caching:
    send = tool(side_effect=True)(Agent.plain.__wrapped__)

    @functools.lru_cache  # noqa: B019
    def helping(self, x):
        return self.send(x)


@pytest.mark.parametrize("call", [helper, Caching().helping], ids=["function", "method"])
def test_a_cached_function_that_calls_a_side_effect(call):
    """What is behind a cache and calls a side effect would call it again after a resume."""

    @workflow(ignore=["call"])
    def agent(call):
        return call(1)

    with pytest.warns(RunWarning, match="is called in 'help(er|ing)', which is behind a cache"):
        agent(call)


def test_a_cache_inside():
    """The decorator of a side effect above a cache warns, at its line."""
    with pytest.warns(RunWarning, match="side effects, and a cache inside") as caught:

        @tool(side_effect=True)
        @functools.cache
        def send(x):
            return x

    assert [each.filename for each in caught] == [__file__]


def test_what_is_no_matter():
    """Caches of plain steps, tools without side effects, and tools without caches do not warn."""
    inside = step(functools.cache(act))
    around = functools.cache(step(act))
    cached_other = functools.cache(act)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow = flow_of(lambda: (inside(1), around(1), sent(1), cached_other(1)))
        assert flow() == (1, 1, 1, 1)
