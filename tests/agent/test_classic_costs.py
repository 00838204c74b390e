"""What checkpoints of step loops and graphs cost, counted: writes, reads, flushes; never time."""

import asyncio
import threading
from collections import Counter

import pytest

from stepwise import Checkpoint, CheckpointStore, RecoverableAgent
from stepwise.graph import CheckpointConfig, CheckpointManager, Edge, Graph, GraphExecutor, Node
from stepwise.stores.memory import MemoryStore

STEPS = 20


class Counting(MemoryStore):
    """A store that counts what is asked of it, but for the watcher's looks, one now and then."""

    def __init__(self):
        super().__init__("counting")
        self.counts = Counter()
        self.sizes = []
        self.thread = threading.get_ident()

    def write(self, run_id, epoch, batch):
        self.counts["write"] += 1
        self.counts["in another thread"] += threading.get_ident() != self.thread
        self.counts["flush"] += batch.durable
        self.counts["record"] += len(batch.records)
        self.counts["put"] += len(batch.put)
        self.counts["delete"] += len(batch.delete)
        self.sizes += map(len, batch.put.values())
        super().write(run_id, epoch, batch)

    def get(self, run_id, name):
        self.counts["get"] += threading.get_ident() == self.thread
        return super().get(run_id, name)

    def names(self, run_id, prefix=""):
        self.counts["names"] += threading.get_ident() == self.thread
        return super().names(run_id, prefix)


def per_step(execute):
    """What one step costs more: a run of 2 * STEPS beside one of STEPS."""
    counted = []
    for steps in (STEPS, 2 * STEPS):
        store = Counting()
        asyncio.run(execute(store, steps))
        counted.append(store)
    short, long = (each.counts for each in counted)
    costs = {name: (long[name] - short[name]) / STEPS for name in long}
    return {name: cost for name, cost in costs.items() if cost}, counted[-1].sizes


async def nothing(memory):
    return {"count": memory["count"] + 1}


def chain(steps):
    names = [f"node {number}" for number in range(steps)]
    return Graph([Node(name, nothing) for name in names], map(Edge, names, names[1:]))


def loop(steps):
    back = Edge("b", "a", when=lambda memory: memory["count"] < steps)
    return Graph([Node("a", nothing), Node("b", nothing)], [Edge("a", "b"), back])


@pytest.mark.parametrize("graph", [chain, loop])
@pytest.mark.parametrize("keep", ["latest_only", "all"])
def test_a_node_costs_one_flush(graph, keep):
    """A node with a checkpoint is one record and one flush, at once; nothing is read.

    Each node of a chain is another step: its version is put with its first record.
    """

    async def execute(store, steps):
        manager = CheckpointManager(store, CheckpointConfig(retention_strategy=keep))
        await GraphExecutor(None, manager).execute(graph(steps), "count", {"count": 0})

    costs, _ = per_step(execute)
    deleted = {"delete": 1} if keep == "latest_only" else {}
    put = 2 if graph is chain else 1
    assert costs == {"write": 2, "flush": 1, "record": 1, "put": put, **deleted}


def test_a_checkpoint_of_a_loop_does_not_grow():
    """What a checkpoint of a loop adds for each visit is its place on the path."""

    async def execute(store, steps):
        executor = GraphExecutor(None, CheckpointManager(store))
        await executor.execute(loop(steps), "count", {"count": 0})

    _, sizes = per_step(execute)
    assert (sizes[-1] - sizes[STEPS]) / STEPS < 10


def test_without_a_checkpoint_a_node_is_a_record():
    """Between checkpoints a node costs its record, and its version in the same write."""

    async def execute(store, steps):
        config = CheckpointConfig(save_frequency="every_n_nodes", n_nodes=1000)
        manager = CheckpointManager(store, config)
        await GraphExecutor(None, manager).execute(chain(steps), "count", {"count": 0})

    assert per_step(execute)[0] == {"write": 1, "flush": 1, "record": 1, "put": 1}


def test_the_checksum_of_a_checkpoint_is_computed_once(monkeypatch):
    """A step's checkpoint goes through the state for one checksum, and for its record."""
    computed = []
    real = Checkpoint.compute_checksum

    def counted(self):
        computed.append(self.step_number)
        return real(self)

    monkeypatch.setattr(Checkpoint, "compute_checksum", counted)
    agent = RecoverableAgent(
        lambda ctx: "done" if ctx.step > 3 else None, CheckpointStore(), checkpoint_every_n=1
    )
    asyncio.run(agent.run_with_recovery("task", "run"))
    assert computed == [1, 2, 3]
    assert agent.store.load_latest("run").step_number == 3


def test_a_checkpoint_of_an_agent_is_written_once():
    """A step's checkpoint is one flush; of pruning only the deletion is added; nothing is read."""

    async def execute(store, steps):
        def agent(ctx):
            ctx.messages.append({"role": "user", "content": "x" * 1000})
            return "done" if ctx.step > steps else None

        run = RecoverableAgent(agent, CheckpointStore(store), checkpoint_every_n=1)
        await run.run_with_recovery("task", "run")

    costs, sizes = per_step(execute)
    assert costs == {"write": 2, "flush": 1, "put": 1, "delete": 1}
    assert sizes[-1] < 2 * STEPS * 1100 + 2000
