"""What checkpoints cost a graph: nodes of 10 ms, with a manager against the same graph without one.

Two graphs of 100 visits each: a chain, and a loop of four nodes.  Their memory holds 10 KB of text;
each node waits for 10 ms, as for a model, and a checkpoint is saved after every one of them.
Processor time and flushes per node are told as well: what other users of the disk do not change.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable

import common

from stepwise.graph import CheckpointManager, Edge, Graph, GraphExecutor, Node

_VISITS = 100
_SECONDS = 0.01
_serial = itertools.count()


async def think(memory) -> dict:
    await asyncio.sleep(_SECONDS)
    return {"count": memory["count"] + 1}


async def count(memory) -> dict:
    return {"count": memory["count"] + 1}


def chain(function, visits: int) -> Graph:
    names = [f"node {number}" for number in range(visits)]
    return Graph([Node(name, function) for name in names], map(Edge, names, names[1:]))


def loop(function, visits: int) -> Graph:
    names = ["plan", "act", "look", "judge"]
    back = Edge("judge", "plan", when=lambda memory: memory["count"] < visits)
    edges = [*map(Edge, names, names[1:]), back]
    return Graph([Node(name, function) for name in names], edges)


_SHAPES = {"chain": chain, "loop": loop}


def execution(
    graph: Graph,
    manager: CheckpointManager | None,
    visits: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Microseconds per node."""
    session = {"run_id": f"run {next(_serial)}"}
    given = {"count": 0, "text": "x" * 10_000}
    executor = GraphExecutor(None, manager)
    began = clock()
    result = asyncio.run(executor.execute(graph, "measure", given, session))
    each = (clock() - began) / visits * 1e6
    if result.output["count"] != visits:
        raise RuntimeError(result.error)
    return each


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows, visits = [], 20 if arguments.quick else _VISITS
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        manager = CheckpointManager(f"disk:{path}/store")
        execution(chain(count, 2), manager, 2)  # opens the store
        for shape, make in _SHAPES.items():
            graph, bare = make(think, visits), make(count, visits)
            rows.append(
                common.compare(
                    f"a node of 10 ms, {shape}",
                    "us",
                    lambda g=graph: execution(g, manager, visits),
                    lambda g=graph: execution(g, None, visits),
                    "without checkpoints",
                    rounds=arguments.rounds,
                    limit=1.05,
                    note=common.flushes_each("node", (40, 140), __file__, shape),
                )
            )
            rows.append(
                common.compare(
                    f"an empty node, {shape}, processor time",
                    "us",
                    lambda g=bare: execution(g, manager, visits, time.process_time),
                    lambda g=bare: execution(g, None, visits, time.process_time),
                    "without checkpoints",
                    rounds=arguments.rounds,
                )
            )
    return rows


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in _SHAPES:
        _, name, visits = sys.argv
        execution(
            _SHAPES[name](count, int(visits)),
            CheckpointManager(f"disk:{os.environ['STEPWISE_HOME']}/store"),
            int(visits),
        )
    else:
        common.main(measure, "Checkpoints of graphs: overhead of nodes of 10 ms")
