"""A node takes the straight way of a plain call, and is recorded as by the general one."""

import asyncio
import gc

import pytest

from stepwise import step
from stepwise._calls import plain
from stepwise._journal.journal import Position, read_entries, seal_for
from stepwise.graph import CheckpointManager, Edge, Graph, GraphExecutor, Node


@step
def add(number):
    return number + 1


async def count(memory):
    return {"count": add(memory["count"])}


def collect(memory):
    memory["seen"] = [*memory.get("seen", ()), memory["count"]]


class Flaky:
    """Fails at each first attempt of a visit."""

    async def __call__(self, memory):
        if memory.attempt == 1:
            raise ValueError(memory["count"])
        return {"tries": memory.attempt}


def executed(name):
    """Execute branches with retries, in a loop: the result, and the outcomes without times."""
    nodes = [
        Node("count", count),
        Node("flaky", Flaky(), retries=2, backoff=0),
        Node("collect", collect),
        Node("meet", join=True),
    ]
    edges = [
        *(Edge("count", "flaky"), Edge("count", "collect")),
        *(Edge("flaky", "meet"), Edge("collect", "meet")),
        Edge("meet", "count", when=lambda memory: memory["count"] < 3),
    ]
    manager = CheckpointManager(f"memory:{name}")
    call = GraphExecutor(None, manager).execute(
        Graph(nodes, edges), "goal", {"count": 0}, {"run_id": "run"}
    )
    result, store = asyncio.run(call), manager.storage
    entries = read_entries(store, seal_for(store), "run", Position())
    outcomes = [each.outcome for each in entries if each.outcome is not None]
    timeless = [
        each._replace(at=0.0, spent={}, call=each.call._replace(at=0.0)) for each in outcomes
    ]
    return result.output, result.path, timeless


@pytest.fixture
def straight(monkeypatch):
    """Whether each call took the straight way."""
    begin, found = plain._begin, []

    def begun(*arguments, **options):
        made = begin(*arguments, **options)
        found.append(made is not None)
        return made

    monkeypatch.setattr(plain, "_begin", begun)
    return found


@pytest.mark.parametrize("turn", [1, 2])
def test_a_node_is_recorded_alike_by_both_ways(monkeypatch, straight, turn):
    """The outcomes of nodes and of the steps inside them are the same by either way."""
    by_straight_way = executed(f"straight {turn}")
    monkeypatch.setattr(plain, "_begin", lambda *_, **__: None)
    assert executed(f"general {turn}") == by_straight_way
    assert straight.count(True) > 10


def test_an_execution_after_another_takes_the_straight_way_as_well(straight):
    """What an execution has left in memory does not make the nodes of the next one dearer."""
    gc.collect()
    gc.disable()  # the first execution stays in memory
    try:
        executed("first")
        before = straight.count(True)
        executed("second")
    finally:
        gc.enable()
    assert straight.count(True) == 2 * before
