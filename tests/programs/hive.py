"""Three nodes of hive's (a stand-in), of which the second calls a tool and fails once after it.

With ``once`` it is tried only once in the first process; with ``reject`` it gives an output once
that hive does not take; with ``changed`` the graph has another node when it is started again.  With
``workers`` the nodes are executed by worker agents; with ``fan`` too, and another node beside the
second.
"""

import asyncio
import os
import pathlib
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hive_stand_in"))
if {"workers", "fan"} & {*sys.argv}:
    sys.path.insert(0, f"{sys.path[0]}/with_workers")

import world
from framework.graph import executor
from framework.graph.executor import Goal, Graph, NodeResult, Spec
from framework.llm.provider import ToolResult, ToolUse

from stepwise.integrations.hive import executor_class


def send(use):
    return ToolResult(use.id, world.doing(f"send({use.input['to']})", f"sent to {use.input['to']}"))


class Plain:
    def __init__(self, name):
        self.name = name

    async def execute(self, ctx):
        world.here(f"{self.name} begins")
        (ctx.buffer if WORKERS else ctx.memory).write(f"{self.name}.wrote", 1)
        return NodeResult(True, {self.name: world.doing(f"node({self.name})", self.name)})


class Calls:
    tries = 0

    async def execute(self, ctx):
        self.tries += 1
        world.log("executes calls")
        use = ToolUse(f"toolu_{uuid.uuid4().hex[:24]}", "send", {"to": "ann"})
        result = EXECUTOR.tool_executor(use)
        assert result.tool_use_id == use.id
        if self.tries == 1:
            if MODE == "reject":
                return NodeResult(True, {"calls": "bad"})
            return NodeResult(False, error="not yet")
        return NodeResult(True, {"calls": world.doing("node(calls)", result.content)})


class Watched(executor.Validator):
    """Hive's validator, with a place at which to die."""

    rejected = False

    def validate_all(self, output, expected_keys):
        if output["calls"] == "bad" and not self.rejected:
            self.rejected = True
            world.here("rejects")
        return super().validate_all(output, expected_keys)


executor.Validator = Watched
MODE = "".join(sys.argv[1:])
WORKERS = MODE in ("workers", "fan")
FIRST = not pathlib.Path(os.environ["STEPWISE_HOME"], "store").exists()
EXECUTOR = executor_class()(
    None,
    send,
    {name: Plain(name) for name in ("one", "last", "new", "side")} | {"calls": Calls()},
    store=f"disk:{os.environ['STEPWISE_HOME']}/store",
)


async def execute():
    calls = Spec("calls", 1 if MODE == "once" and FIRST else 3, ["calls"])
    new = [Spec("new")] if MODE == "changed" and not FIRST else []
    side = [Spec("side")] if MODE == "fan" else []
    graph = Graph("letters", [Spec("one"), calls, *side, *new, Spec("last")])
    graph.fan = MODE == "fan"
    result = await EXECUTOR.execute(graph, Goal("write"), {"x": 1})
    assert result.success, result.error
    return {"output": result.output, "path": result.path}


if __name__ == "__main__":
    world.main(lambda: asyncio.run(execute()))
