"""The executor and the store on hive itself, where ``HIVE_SOURCE`` names the folder ``core`` of it.

Its published source is not in this repository::

    git clone --depth 1 --branch v0.11.0 https://github.com/aden-hive/hive
    HIVE_SOURCE=hive/core pytest tests/integrations/test_hive_real.py
"""

import asyncio
import importlib
import inspect
import json
import os
import pathlib

import pytest
from harness import Lab

from stepwise.integrations import hive
from stepwise.stores.memory import MemoryStore

SOURCE = os.environ.get("HIVE_SOURCE", "")

pytestmark = pytest.mark.skipif(not SOURCE, reason="HIVE_SOURCE does not name hive's core folder")


@pytest.fixture(autouse=True)
def framework(monkeypatch):
    """Hive's package, whole."""
    monkeypatch.syspath_prepend(SOURCE)


def part(name):
    """A module of hive's graphs, whose package is another one since v0.10."""
    package = (
        "orchestrator" if (pathlib.Path(SOURCE) / "framework/orchestrator").exists() else "graph"
    )
    return importlib.import_module(f"framework.{package}.{name}")


WORKERS = any(
    (pathlib.Path(SOURCE) / "framework" / each).exists()
    for each in ("orchestrator", "graph/worker_agent.py")
)
"""Whether worker agents execute the nodes: since v0.9 hive does not pause, and saves nothing."""
without_workers = pytest.mark.skipif(WORKERS, reason="hive v0.9 and later does not do it")


class _Runtime:
    """Hive's runtime, which keeps no books."""

    execution_id = ""

    def __getattr__(self, name):
        return lambda *args, **kwargs: "id"


class World:
    """Nodes that write their names; some call a tool; some fail, or request a pause."""

    def __init__(self, folder=None):
        self.tools = {"b": "charge", "c": "mail", "p": "charge"}
        self.did, self.fails, self.pauses = [], set(), None
        self.store, self.folder = MemoryStore("hive"), folder

    def execute(self, graph, *given, **more):
        goal = part("goal").Goal
        self.executor = hive.executor_class()(
            _Runtime(),
            tool_executor=self.tool,
            node_registry={node.id: self.node(node.id) for node in graph.nodes},
            storage_path=self.folder,
            store=self.store,
        )
        own = type(self.executor).__mro__[2].execute
        if "validate_graph" in inspect.signature(own).parameters:  # since v0.6
            more["validate_graph"] = False
        goal = goal(id="g", name="g", description="d", success_criteria=[], constraints=[])
        return asyncio.run(self.executor.execute(graph, goal, *given, **more))

    def tool(self, use):
        from framework.llm.provider import ToolResult

        self.did.append(use.name)
        return ToolResult(tool_use_id=use.id, content="done")

    def node(self, name):
        from framework.llm.provider import ToolUse

        node_result = part("node").NodeResult

        world = self

        class Node(part("node").NodeProtocol):
            def validate_input(self, ctx):
                return []

            async def execute(self, ctx):
                world.did.append(name)
                if name in world.tools:
                    use = ToolUse(id="id", name=world.tools[name], input={})
                    world.executor.tool_executor(use)
                if world.pauses == name:
                    world.executor.request_pause()
                if name in world.fails:
                    return node_result(success=False, error="not now", output={})
                held = ctx.buffer if WORKERS else ctx.memory
                tone = held.read("tone") or ""
                return node_result(success=True, output={name: tone + name})

        return Node()


def graph(edges, **more):
    """A graph of hive's: ``ab bc`` has edges from a to b and from b to c."""
    edge = part("edge")
    pairs = edges.split()
    names = list(dict.fromkeys("".join(pairs)))
    facts = {"node_type": "event_loop", "input_keys": [], "max_retries": 1}
    return edge.GraphSpec(
        id="line",
        goal_id="g",
        entry_node=names[0],
        terminal_nodes=[names[-1]],
        nodes=[
            part("node").NodeSpec(
                id=name,
                name=name,
                description=name,
                output_keys=[name] if WORKERS else [],
                **facts,
            )
            for name in names
        ],
        edges=[
            edge.EdgeSpec(
                id=f"{a}-{b}", source=a, target=b, condition=edge.EdgeCondition.ON_SUCCESS
            )
            for a, b in pairs
        ],
        **more,
    )


def whole(result):
    """Everything that the nodes gave: since v0.9, ``output`` is that of the last node alone."""
    return result.session_state["data_buffer"] if WORKERS else result.output


LINE = "ab bc cd"
WHOLE = {"x": 1, "a": "a", "b": "b", "c": "c", "d": "d"}


def test_continued_after_a_failure():
    """The session state of a failed result continues its run."""
    world = World()
    world.fails = {"c"}
    state = world.execute(graph(LINE), {"x": 1}).session_state
    world.fails = set()
    done = world.execute(graph(LINE), {"x": 1}, json.loads(json.dumps(state)))
    assert (done.success, whole(done)) == (True, WHOLE)
    assert world.did == ["a", "b", "charge", "c", "mail", "c", "d"]


@without_workers
@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_continued_after_a_pause(with_checkpoints, tmp_path, monkeypatch):
    """The session state of a paused result continues its run, with what was changed in it."""
    from framework.graph import executor
    from framework.graph.checkpoint_config import CheckpointConfig

    monkeypatch.setattr(executor, "CheckpointStore", hive.HiveCheckpointStore)
    config = CheckpointConfig(enabled=True) if with_checkpoints else None
    world = World(tmp_path)
    world.pauses = "b"
    state = world.execute(graph(LINE), {"x": 1}, checkpoint_config=config).session_state
    world.pauses = None
    state["memory"]["tone"] = "dear "
    done = world.execute(graph(LINE), None, state, checkpoint_config=config)
    assert done.output == {**WHOLE, "tone": "dear ", "c": "dear c", "d": "dear d"}
    assert world.did == ["a", "b", "charge", "c", "mail", "d"]
    if with_checkpoints:
        kept = asyncio.run(hive.HiveCheckpointStore(tmp_path).list_checkpoints())
        assert [each.current_node for each in kept if each.checkpoint_type == "pause"] == ["c"]
        assert "d" in [each.current_node for each in kept]


def test_a_fan_out_that_fails():
    """Of branches side by side only the one that failed is visited again."""
    world = World()
    world.fails = {"q"}
    fan = "ap aq pj qj"
    state = world.execute(graph(fan), {"x": 1}).session_state
    world.fails = set()
    assert world.execute(graph(fan), {"x": 1}, state).success
    assert world.did == ["a", "p", "charge", "q", "q", "j"]


def test_the_limit_of_steps():
    """A run that has taken all steps of its graph continues with more of them."""
    world = World()
    assert world.execute(graph(LINE, max_steps=2), {"x": 1}).path[:2] == ["a", "b"]
    assert world.did == ["a", "b", "charge"]
    assert whole(world.execute(graph(LINE), {"x": 1})) == WHOLE
    assert world.did == ["a", "b", "charge", "c", "mail", "d"]


@without_workers
def test_a_damaged_checkpoint(tmp_path, monkeypatch):
    """With our store, hive resumes at the newest intact checkpoint, not from the top."""
    from framework.graph import executor
    from framework.graph.checkpoint_config import CheckpointConfig

    monkeypatch.setattr(executor, "CheckpointStore", hive.HiveCheckpointStore)
    config = CheckpointConfig(enabled=True)
    world = World(tmp_path)
    world.execute(graph(LINE), {"x": 1}, checkpoint_config=config)
    store = hive.HiveCheckpointStore(tmp_path)
    kept = [
        e for e in asyncio.run(store.list_checkpoints()) if e.checkpoint_type == "node_complete"
    ]
    newest = kept[-1].checkpoint_id
    path = store.checkpoints_dir / f"{newest}.json"
    path.write_bytes(path.read_bytes().replace(b"c", b"C", 1))
    world.did.clear()
    state = {"resume_from_checkpoint": newest}
    assert world.execute(graph(LINE), None, state, checkpoint_config=config).success
    assert "a" not in world.did


SCRIPT = """
import asyncio, os, sys
sys.path[:0] = [{source!r}, {tests!r}]
import world
import test_hive_real as real

class World(real.World):
    def tool(self, use):
        from framework.llm.provider import ToolResult
        return ToolResult(tool_use_id=use.id, content=world.doing(use.name, "done"))

def run():
    one = World()
    one.store = f"disk:{{os.environ['STEPWISE_HOME']}}/store"
    return real.whole(one.execute(real.graph(real.LINE), {{"x": 1}}))

world.main(run)
"""


@pytest.mark.parametrize("place", ["charge before", "charge after", "mail before", "mail after"])
def test_killed(place):
    """Killed in a tool, it asks; killed elsewhere, it continues; no tool is called twice."""
    script = SCRIPT.format(source=SOURCE, tests=str(pathlib.Path(__file__).parent))
    with Lab(script) as lab:
        landed = '"done"' if place.endswith("after") else None
        assert lab.run(die_at=place).died
        doubts = lab.run_to_end(answer=lambda _: landed)
        assert lab.result == WHOLE
        assert len(doubts) == 1
        assert lab.did["charge"] == lab.did["mail"] == 1
