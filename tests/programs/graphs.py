"""Graphs whose nodes do things and call tools: a chain, a fan-out, a loop, retries, a pause.

Each node returns what it saw, so that the result tells whether a resumed run saw the same.
"""

import asyncio
import os
import sys

import world

from stepwise import tool
from stepwise.graph import CheckpointConfig, CheckpointManager, Edge, Graph, GraphExecutor, Node


@tool(side_effect=True)
def post(text):
    return world.doing(f"post({text})", f"posted {text}")


@tool
async def look(text):
    return world.doing(f"look({text})", f"found {text}")


def seen(memory):
    """Everything in the memory, in one short text."""
    return "+".join(f"{key}:{len(str(value))}" for key, value in sorted(memory.items()))


def acts(memory):
    memory.tokens += 3
    name = f"{memory.node_id}-{memory.visit}"
    world.here(f"{name} begins")
    memory["last"] = post(name)
    return world.doing(f"node({name})", seen(memory))


async def looks(memory):
    memory.tokens += 5
    name = f"{memory.node_id}-{memory.visit}"
    world.here(f"{name} begins")
    found = await look(name)
    return {memory.node_id: world.doing(f"node({name})", seen(memory) + found)}


def flaky(memory):
    name = f"{memory.node_id}-{memory.attempt}"
    world.here(f"{name} begins")
    memory["junk"] = name  # rolled back
    memory.tokens += 7
    post(memory.node_id)  # once, whatever the attempt
    world.doing(f"node({name})", seen(memory))
    if memory.attempt < 3:
        raise ConnectionError(name)
    return seen(memory)


def graph(kind):
    """The graph of that kind."""
    if kind == "chain":
        nodes = [Node("one", acts), Node("two", looks), Node("three", acts)]
        return Graph(nodes, [Edge("one", "two"), Edge("two", "three")])
    if kind == "fan":
        left = [Node("left.a", acts), Node("left.b", looks)]
        right = [Node("right.a", looks), Node("right.b", acts)]
        nodes = [Node("split", looks), *left, *right, Node("meet", acts, join=True)]
        pairs = ["split left.a", "split right.a", "left.a left.b", "right.a right.b"]
        edges = [Edge(*pair.split()) for pair in [*pairs, "left.b meet", "right.b meet"]]
        return Graph(nodes, edges)
    if kind == "loop":
        edges = [
            Edge("write", "judge"),
            Edge("judge", "write", when=lambda memory: len(memory["rounds"]) < 3),
            Edge("judge", "send", when=lambda memory: len(memory["rounds"]) >= 3),
        ]
        return Graph([Node("write", looks), Node("judge", judges), Node("send", acts)], edges)
    if kind == "retry":
        retried = {"retries": 2, "backoff": 0}
        nodes = [Node("flaky", flaky, **retried), Node("broken", breaks, retries=1, backoff=0)]
        edges = [Edge("flaky", "broken"), Edge("broken", "mend", on_failure=True)]
        return Graph([*nodes, Node("mend", acts)], edges)
    nodes = [Node("draft", acts), Node("ask", looks, pause=True), Node("wait", pause=True)]
    edges = [Edge("draft", "ask"), Edge("ask", "wait"), Edge("wait", "send")]
    return Graph([*nodes, Node("send", acts)], edges)


def judges(memory):
    memory.setdefault("rounds", []).append(acts(memory))


def breaks(memory):
    name = f"broken-{memory.attempt}"
    world.here(f"{name} begins")
    world.doing(f"node({name})", seen(memory))
    raise ValueError(seen(memory))


async def execute(kind, keep):
    config = CheckpointConfig(retention_strategy=keep)
    manager = CheckpointManager(f"disk:{os.environ['STEPWISE_HOME']}/store", config)
    executor = GraphExecutor(checkpoint_manager=manager)
    built = graph(kind)
    result = await executor.execute(built, "goal", {"x": 1}, {"run_id": "job"})
    while result.paused_at:
        world.here(f"asked at {result.paused_at}")
        answer = {"answer": f"to {result.paused_at}"}
        result = await executor.execute(built, "goal", answer, result.session_state)
    if result.exception is not None:
        raise result.exception
    return {
        "output": result.output,
        "path": result.path,
        "retries": result.retry_details,
        "failures": result.nodes_with_failures,
        "tokens": result.total_tokens,
        "steps": result.steps_executed,
    }


if __name__ == "__main__":
    world.main(lambda: asyncio.run(execute(*sys.argv[1:])))
