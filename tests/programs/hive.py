"""Three nodes of hive's (a stand-in), of which the second calls a tool and fails once after it."""

import asyncio
import os
import pathlib
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hive_stand_in"))

import world
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
        ctx.memory.write(f"{self.name}.wrote", 1)
        return NodeResult(True, {self.name: world.doing(f"node({self.name})", self.name)})


class Calls:
    tries = 0

    async def execute(self, ctx):
        self.tries += 1
        use = ToolUse(uuid.uuid4().hex, "send", {"to": "ann"})
        result = EXECUTOR.tool_executor(use)
        assert result.tool_use_id == use.id
        if self.tries == 1:
            return NodeResult(False, error="not yet")
        return NodeResult(True, {"calls": world.doing("node(calls)", result.content)})


EXECUTOR = executor_class()(
    None,
    send,
    {"one": Plain("one"), "calls": Calls(), "last": Plain("last")},
    store=f"disk:{os.environ['STEPWISE_HOME']}/store",
)


def retries():
    """How often the second node is tried: with "once", in the first process only once."""
    first = not pathlib.Path(os.environ["STEPWISE_HOME"], "store").exists()
    return 1 if sys.argv[1:] == ["once"] and first else 3


async def execute():
    graph = Graph("letters", [Spec("one"), Spec("calls", retries()), Spec("last")])
    result = await EXECUTOR.execute(graph, Goal("write"), {"x": 1})
    assert result.success, result.error
    return {"output": result.output, "path": result.path}


if __name__ == "__main__":
    world.main(lambda: asyncio.run(execute()))
