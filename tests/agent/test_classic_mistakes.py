"""Misuse of the classic API is refused where it is written, with the way out."""

import asyncio
import threading

import pytest

from stepwise import Checkpoint, CheckpointStore, ConfigurationError, DigestError, RecoverableAgent
from stepwise.graph import (
    AgentRunner,
    CheckpointConfig,
    CheckpointManager,
    Edge,
    FlexibleGraphExecutor,
    Graph,
    GraphExecutor,
    Node,
)

GRAPH = Graph([Node("a", lambda memory: 1)])


def agent(**options):
    return RecoverableAgent(lambda ctx: "done", CheckpointStore(), **options)


def run(task="task", run_id="run"):
    return asyncio.run(agent().run_with_recovery(task, run_id))


def save(step, **facts):
    CheckpointStore().save(Checkpoint("", facts.pop("run_id", "run"), step, **facts))


def execute(graph=GRAPH, *given, **executor):
    executor.setdefault("checkpoint_manager", CheckpointManager(None))
    return asyncio.run(GraphExecutor(**executor).execute(graph, "goal", *given))


def plan(steps, **options):
    return asyncio.run(FlexibleGraphExecutor(**options).execute(steps, "goal"))


MISUSE = {
    "a function that is none": (lambda: RecoverableAgent(3, CheckpointStore()), "of ctx, not 3"),
    "a function without the context": (
        lambda: RecoverableAgent(lambda: 1, CheckpointStore()),
        r"Write def f\(ctx\)",
    ),
    "a path as store": (
        lambda: RecoverableAgent(print, "some/path"),
        r"got 'some/path'; give CheckpointStore\('disk:runs'\)",
    ),
    "no store": (lambda: RecoverableAgent(print, None), r"CheckpointStore\('disk:runs'\)"),
    "a number as text": (lambda: agent(checkpoint_every_n="3"), "'3' .* a number, 1 or more"),
    "no step before a checkpoint": (
        lambda: agent(checkpoint_every_n=0),
        "checkpoint_every_n=0 .* 1 or more",
    ),
    "less than no recovery": (lambda: agent(max_recoveries=-1), "-1 .* a number, 0 or more"),
    "a number and a half": (lambda: agent(checkpoint_every_n=2.5), "2.5 .* a number, 1 or more"),
    "a switch as number": (lambda: agent(max_recoveries=True), "True .* a number, 0 or more"),
    "a retention misspelt": (lambda: agent(retention="last"), "'latest_only', 'prune_old' or"),
    "none to keep": (lambda: agent(keep=0), "keep=0 .* 1 or more"),
    "a number as run id": (lambda: run(run_id=5), "run_id=5 .* a text, not empty"),
    "an empty run id": (lambda: run(run_id=""), "run_id='' .* a text, not empty"),
    "no checkpoint": (lambda: CheckpointStore().save({"a": 1}), r"write Checkpoint\('', run_id"),
    "a step as text": (lambda: save("3"), "step_number='3' .* 0 or more"),
    "a step below zero": (lambda: save(-1), "step_number=-1 .* 0 or more"),
    "half a step": (lambda: save(2.5), "step_number=2.5 .* 0 or more"),
    "a checkpoint of no run": (lambda: save(1, run_id=""), "run_id='' .* a text"),
    "a look at no run": (lambda: CheckpointStore().load_latest(5), "run_id=5 .* a text"),
    "an edge as tuple": (lambda: Graph([Node("a")], [("a", "a")]), r"write Edge\('from', 'to'\)"),
    "a node as function": (lambda: Graph([print]), r"write Node\('name', function\)"),
    "a node twice": (lambda: Graph([Node("a"), Node("a")]), "two nodes called 'a'"),
    "one node twice": (lambda: Graph([GRAPH.nodes[0]] * 2), "two nodes called 'a'"),
    "a graph of nothing": (lambda: Graph([]), "has no nodes"),
    "steps as text": (lambda: Graph([Node("a")], max_steps="x"), "max_steps='x' .* 1 or more"),
    "a node without the memory": (lambda: Node("a", lambda: 1), r"node 'a' .* def f\(memory\)"),
    "a condition without the memory": (
        lambda: Edge("a", "b", when=lambda: 1),
        r"edge from 'a' .* def f\(memory\)",
    ),
    "a list as graph": (lambda: execute([Node("a")]), r"write Graph\(\[Node"),
    "a list as input": (lambda: execute(GRAPH, [1]), r"got \[1\]; write {'name': value}"),
    "a text as session": (lambda: execute(GRAPH, {}, "run"), r"write {'run_id': ...}"),
    "a session misspelt": (lambda: execute(GRAPH, {}, {"runid": "x"}), "keys 'runid', and none"),
    "a session of another run id": (lambda: execute(GRAPH, {}, {"run_id": 5}), "run_id=5 .* text"),
    "a config as manager": (
        lambda: GraphExecutor(None, CheckpointConfig()),
        r"write CheckpointManager\('disk:graphs', CheckpointConfig",
    ),
    "a path as manager": (lambda: GraphExecutor(None, "disk:x"), "got 'disk:x'; write Checkpoint"),
    "a path as config": (lambda: CheckpointManager(None, "disk:x"), "write CheckpointConfig"),
    "a number as memory": (
        lambda: CheckpointManager(None).save_checkpoint("run", "a", 5),
        r"got 5; give a mapping",
    ),
    "a text as switch": (
        lambda: CheckpointConfig(enabled="no"),
        "'no' .* it must be True or False",
    ),
    "a manager as config": (
        lambda: AgentRunner(GRAPH, CheckpointManager(None)),
        "goes to GraphExecutor",
    ),
    "a step twice": (lambda: plan([Node("a"), Node("a")]), "two nodes called 'a'"),
    "a step called judge": (lambda: plan([Node("judge")]), "'judge': .* another id"),
    "a step as function": (lambda: plan([print]), r"write Node\('name', function\)"),
    "a judge without the memory": (lambda: plan([Node("a")], judge=lambda: 1), "judge .* memory"),
}


@pytest.mark.parametrize("which", MISUSE)
def test_misuse_is_refused_with_the_way_out(which):
    """Whatever cannot mean anything is a ConfigurationError that says what would."""
    misuse, words = MISUSE[which]
    with pytest.raises(ConfigurationError, match=words):
        misuse()


def test_what_cannot_be_kept_is_named():
    """An object that is no data is named by its place in the checkpoint or the input."""
    with pytest.raises(DigestError, match=r"state\['lock'\] .* A checkpoint holds data"):
        save(1, state={"lock": threading.Lock()})
    with pytest.raises(DigestError, match=r"input_data\['lock'\]: .* memory\.runtime"):
        execute(GRAPH, {"lock": threading.Lock()})


def test_functions_without_a_signature_are_taken():
    """A builtin whose signature is unknown, a partial and an object are taken as functions."""

    class Called:
        def __call__(self, memory, more=None):
            return more

    for function in (dict, Called(), Called().__call__):
        assert Node("a", function).function is function
