"""Hive's own ways to stop and to continue, with the executor of ``stepwise.integrations.hive``."""

import asyncio
import json
import os
import pathlib
import sys

import pytest
from harness import Lab

import stepwise
from stepwise.errors import ConfigurationError, CorruptStoreError
from stepwise.integrations import hive
from stepwise.stores import Batch, Owner
from stepwise.stores.memory import MemoryStore

HERE = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """Hive's package, as far as it is needed."""
    monkeypatch.syspath_prepend(str(HERE / "hive_stand_in"))
    hive.executor_class.cache_clear()
    yield
    hive.executor_class.cache_clear()
    for name in [each for each in sys.modules if each.split(".")[0] == "framework"]:
        del sys.modules[name]


class World:
    """Nodes ``a`` to ``d``; ``b`` charges a card, ``c`` sends a mail, and both count it.

    Attributes:
        fails: nodes that fail.
        pauses: a node in which a pause is requested.
        did: what was executed.
    """

    def __init__(self, run_id=None):
        self.fails, self.pauses, self.did = set(), None, []
        self.store, self.run_id = MemoryStore("hive"), run_id
        self.executor = None

    def execute(self, *given, anew=True, **graph):
        """Execute the graph, by an executor of its own."""
        from framework.graph.executor import Goal, Graph, Spec

        if anew or self.executor is None:
            self.executor = hive.executor_class()(
                None,
                self.tool,
                {name: _Node(self, name) for name in "abcd"},
                store=self.store,
                run_id=self.run_id,
            )
        nodes = [Spec(name, max_retries=1) for name in "abcd"]
        call = self.executor.execute(Graph("line", nodes, **graph), Goal("letters"), *given)
        return asyncio.run(call)

    def tool(self, use):
        from framework.llm.provider import ToolResult

        self.did.append(use.name)
        return ToolResult(use.id, f"did {use.name}")


class _Node:
    def __init__(self, world, name):
        self.world, self.name = world, name

    async def execute(self, ctx):
        from framework.graph.executor import NodeResult
        from framework.llm.provider import ToolUse

        world, name = self.world, self.name
        world.did.append(name)
        if name in "bc":
            world.executor.tool_executor(ToolUse("id", {"b": "charge", "c": "mail"}[name], {}))
        if world.pauses == name:
            world.executor.request_pause()
        if name in world.fails:
            return NodeResult(False, error="not now")
        memory = ctx.buffer if hasattr(ctx, "buffer") else ctx.memory
        return NodeResult(True, {name: f"{memory.read('tone') or ''}{name}"})


WHOLE = {"x": 1, "a": "a", "b": "b", "c": "c", "d": "d"}


@pytest.mark.parametrize("run_id", [None, "mine"])
@pytest.mark.parametrize("form", [dict, lambda state: json.loads(json.dumps(state))])
def test_continued_after_a_failure(run_id, form):
    """The session state of a failed result continues its run: what is done is not done again."""
    world = World(run_id)
    world.fails = {"c"}
    failed = world.execute({"x": 1})
    assert not failed.success
    world.fails = set()
    done = world.execute({"x": 1}, form(failed.session_state))
    assert done.success
    assert done.output == WHOLE
    assert done.path == ["a", "b", "c", "d"]
    assert world.did == ["a", "b", "charge", "c", "mail", "c", "d"]


@pytest.mark.parametrize("run_id", [None, "mine"])
@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("given", [None, {"x": 1}])
def test_continued_after_a_pause(run_id, anew, given):
    """The session state of a paused result continues its run, by the same executor as well."""
    world = World(run_id)
    world.pauses = "b"
    paused = world.execute({"x": 1})
    assert paused.paused_at == "c"
    world.pauses = None
    done = world.execute(given, paused.session_state, anew=anew)
    assert (done.success, done.output) == (True, WHOLE)
    assert world.did == ["a", "b", "charge", "c", "mail", "d"]
    assert world.execute({"x": 1}, paused.session_state).output == WHOLE
    assert len(world.did) == 6


def test_a_changed_memory():
    """What was changed in the memory, or in the input, is there from where the run had stopped."""
    world = World("mine")
    world.pauses = "b"
    state = world.execute({"x": 1}).session_state
    world.pauses = None
    state["memory"]["tone"] = "dear "
    done = world.execute({"x": 2}, state)
    assert done.output == {**WHOLE, "x": 2, "tone": "dear ", "c": "dear c", "d": "dear d"}
    assert world.did.count("charge") == 1


def test_a_session_state_of_another_store():
    """A session state whose run the store does not hold is refused, with the ways out."""
    world = World()
    world.fails = {"c"}
    state = world.execute({"x": 1}).session_state
    world.store = MemoryStore("other")
    with pytest.raises(
        ConfigurationError, match=r"does not hold: give .* remove the key 'stepwise'"
    ):
        world.execute({"x": 1}, state)
    assert world.did.count("charge") == 1


@pytest.mark.parametrize("name", ["hive/began", "hive/changed"])
def test_a_damaged_session_state(name):
    """A run whose kept session state is damaged stops with the ways out, and is not stuck."""
    world = World("mine")
    world.pauses = "b"
    state = world.execute({"x": 1}).session_state
    world.pauses, world.fails = None, {"d"}
    state["memory"]["tone"] = "dear "
    state = world.execute(None, state).session_state
    world.fails = set()
    intact = world.store.get("mine", name)
    for data in (intact[:-1] + b"?", intact):
        epoch = world.store.acquire("mine", Owner(os.getpid(), "here", 0.0))
        world.store.write("mine", epoch, Batch(put={name: data}))
        world.store.release("mine", epoch)
        if data == intact:
            assert world.execute(None, state).output["d"] == "dear d"
        else:
            with pytest.raises(CorruptStoreError, match=r"'mine' .* damaged .* forget mine"):
                world.execute(None, state)
    assert world.did.count("charge") == world.did.count("mail") == 1


@pytest.mark.parametrize("run_id", [None, "mine"])
def test_the_limit_of_steps(run_id, told):
    """A run that has taken all steps of its graph is not completed: with more, it continues."""
    world = World(run_id)
    cut = world.execute({"x": 1}, max_steps=3)
    assert cut.path == ["a", "b", "c"]
    assert "with a higher max_steps" in told()
    [run] = stepwise.runs(store=world.store)
    assert (run.status, "used all 3 steps" in str(run.error)) == ("failed", True)
    for _ in range(2):
        assert world.execute({"x": 1}, max_steps=3).path == ["a", "b", "c"]
    done = world.execute({"x": 1}, max_steps=30)
    assert (done.path, done.output) == (["a", "b", "c", "d"], WHOLE)
    assert world.did == ["a", "b", "charge", "c", "mail", "d"]


def test_a_terminal_node_at_the_limit(told):
    """A run whose last step was that of a terminal node is completed."""
    world = World()
    assert world.execute({"x": 1}, max_steps=4, terminal_nodes=["d"]).output == WHOLE
    assert "max_steps" not in told()


def test_checkpoints_that_hive_saves_beside_its_loop():
    """A checkpoint that hive is still saving when its loop ends is saved, not cancelled."""
    world, saved = World(), []

    async def save_checkpoint():
        for _ in range(20):
            await asyncio.sleep(0)
        saved.append(1)

    node = _Saves(save_checkpoint)
    world.executor = hive.executor_class()(None, None, {"a": node}, store=world.store)
    from framework.graph.executor import Goal, Graph, Spec

    call = world.executor.execute(Graph("saves", [Spec("a")]), Goal("letters"))
    assert asyncio.run(call).success
    assert saved == [1]


class _Saves:
    def __init__(self, save):
        self.save, self.tasks = save, []

    async def execute(self, ctx):
        from framework.graph.executor import NodeResult

        self.tasks.append(asyncio.get_running_loop().create_task(self.save()))
        return NodeResult(True, {"a": 1})


SCRIPT = """
import asyncio, json, os, pathlib, sys
sys.path.insert(0, {stand_in!r})
import world
from framework.graph.executor import Goal, Graph, NodeResult, Spec
from framework.llm.provider import ToolResult, ToolUse
from stepwise.integrations.hive import executor_class

kept = pathlib.Path(os.environ["STEPWISE_HOME"], "state.json")

def charge(use):
    return ToolResult(use.id, world.doing("charge", "charged"))

class Node:
    def __init__(self, name):
        self.name = name
    async def execute(self, ctx):
        tone = ctx.memory.read("tone") or ""
        if self.name == "b":
            executor.tool_executor(ToolUse("id", "charge", {{}}))
        if self.name == "c" and not kept.exists():
            return NodeResult(False, error="not yet")
        world.doing(f"node({{self.name}})", tone)
        return NodeResult(True, {{self.name: tone + self.name}})

home = os.environ["STEPWISE_HOME"]
executor = executor_class()(
    None, charge, {{name: Node(name) for name in "abcd"}}, store=f"disk:{{home}}/store"
)
graph = Graph("line", [Spec(name, 1) for name in "abcd"])

def execute(*given):
    return asyncio.run(executor.execute(graph, Goal("letters"), *given))

def run():
    if sys.argv[1:] == ["state"] and kept.exists():
        result = execute(None, json.loads(kept.read_text()))
    else:
        result = execute({{"x": 1}})
    if not result.success:
        result.session_state["memory"]["tone"] = "dear "
        kept.write_text(json.dumps(result.session_state))
        result = execute(None, result.session_state)
    assert result.success, result.error
    return result.output

world.main(run)
"""


@pytest.mark.parametrize("start", ["state", "input"])
@pytest.mark.parametrize("place", ["node(c) before", "node(c) after", "node(d) before"])
def test_killed_after_it_was_continued(place, start):
    """Killed after it was continued, it resumes by input or by state, with the changed memory."""
    with Lab(SCRIPT.format(stand_in=str(HERE / "hive_stand_in")), start) as lab:
        assert lab.run(die_at=place).died
        lab.run_to_end()
        assert lab.result == {
            "x": 1,
            "a": "a",
            "b": "b",
            "tone": "dear ",
            "c": "dear c",
            "d": "dear d",
        }
        assert lab.did["charge"] == lab.did["node(a)"] == lab.did["node(b)"] == 1


@pytest.mark.parametrize("name", ["graph", "graph.executor"])
def test_another_package(name, monkeypatch):
    """A package ``framework`` without a graph executor is refused, with the versions that fit."""
    monkeypatch.setitem(sys.modules, f"framework.{name}", None)
    with pytest.raises(ConfigurationError, match=r"has no framework\.graph.*v0\.5\.1 to v0\.11\.0"):
        hive.executor_class()


def test_an_unknown_executor(monkeypatch):
    """An executor that neither looks up nodes nor has worker agents is refused."""
    from framework.graph import executor

    class Other:
        async def execute(self, graph, goal):
            return await self._execute(graph)

    monkeypatch.setattr(executor, "GraphExecutor", Other)
    with pytest.raises(ConfigurationError, match=r"does not look up .*v0\.5\.1 to v0\.11\.0"):
        hive.executor_class()


def test_a_tool_executor_keeps_its_attributes():
    """A recorded ``tool_executor`` has what hive's own puts on it."""

    def tools(use): ...

    tools.kill_for_tool = print
    assert hive.executor_class()(None, tools).tool_executor.kill_for_tool is print


def test_worker_agents(monkeypatch):
    """An execution by worker agents continues with a changed buffer; hive has the run's id."""
    monkeypatch.syspath_prepend(str(HERE / "hive_stand_in" / "with_workers"))
    world = World("mine")
    world.fails = {"c"}
    state = world.execute({"x": 1}).session_state
    assert state["run_id"] == "mine"
    world.fails = set()
    state["data_buffer"]["tone"] = "dear "
    done = world.execute({"x": 1}, json.loads(json.dumps(state)))
    assert done.output == {**WHOLE, "tone": "dear ", "c": "dear c", "d": "dear d"}
    assert world.did == ["a", "b", "charge", "c", "mail", "c", "d"]


def test_a_dependency_that_is_missing(monkeypatch):
    """A dependency of hive's that cannot be imported is named, and not hive."""
    monkeypatch.setitem(sys.modules, "framework.graph.executor", None)

    def missing(name):
        raise ModuleNotFoundError("No module named 'litellm'", name="litellm")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ConfigurationError, match=r"litellm .* install the dependencies of hive"):
        hive.executor_class()
