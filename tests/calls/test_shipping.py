"""Decorated functions that are pickled, and taken to another process."""

from __future__ import annotations

import json
import os
import pickle

import pytest
from harness import python

import stepwise
from stepwise import step, tool, workflow


@pytest.fixture(autouse=True)
def _memory(home):
    """Runs are kept in memory."""
    stepwise.configure(store=f"memory:{home}")


@step
def module_step(x):
    return x


@tool(side_effect=True)
async def module_tool(x):
    return x


@workflow
def module_workflow(x):
    return module_step(x)


class Rich:
    """A class of a module."""

    class Inner:
        @staticmethod
        @workflow
        def flow(x):
            return x

    def __init__(self, value):
        self.value = value

    @step
    def ask(self, x):
        return self.value, x

    @workflow
    def flow(self, x):
        return self.ask(x)

    @classmethod
    @workflow
    def of_class(cls, x):
        return cls.__name__, x


def test_stock_pickle():
    """The standard ``pickle`` takes what a module defines by its name; bound methods, with theirs.

    What no module holds by name is refused, like plain functions.
    """
    instance = Rich([1])
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for made in (module_step, module_tool, module_workflow, Rich.Inner.flow, Rich.ask):
            pickled = pickle.dumps(made, protocol)
            assert pickle.loads(pickled) is made
            assert len(pickled) < 120
        bound = instance.ask, instance.flow, instance
        ask, flow, again = pickle.loads(pickle.dumps(bound, protocol))
        assert ask.__self__ is flow.__self__ is again
        assert ask(2) == flow(2) == ([1], 2)
        assert flow.run_id_for(2) == instance.flow.run_id_for(2)
        assert pickle.loads(pickle.dumps(Rich.of_class, protocol))(1) == ("Rich", 1)
    for decorator in (step, tool, workflow):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(decorator(lambda x: x))


def test_stock_pickle_of_options():
    """A workflow with other options, bound or not, is pickled with them, and means that run."""
    for flow in (module_workflow, Rich(1).flow):
        chosen = flow.options(run_id=f"chosen {flow.full_name}")
        again = pickle.loads(pickle.dumps(chosen))
        assert again.execute(1).id == f"chosen {flow.full_name}"


class Poor(Rich):
    """Overrides, renames, and hides."""

    @workflow
    def flow(self, x):
        return "poor", super().flow(x)

    def both(self):
        return self.flow, super().flow, self.__hidden, self.alias

    @workflow
    def __hidden(self, x):
        return "hidden", x

    alias = workflow(Rich.ask.__wrapped__)


def test_pickle_of_bound_methods_by_other_names():
    """A bound workflow that is overridden, private, or held by another name, is pickled as such."""
    flow, overridden, hidden, alias = pickle.loads(pickle.dumps(Poor(1).both()))
    assert (flow(2), overridden(2)) == (("poor", (1, 2)), (1, 2))
    assert (hidden(2), alias(2)) == (("hidden", 2), (1, 2))


SHIPPED = """
import asyncio, cloudpickle, dataclasses, functools, pickle, sys
import stepwise
from stepwise import step, tool, workflow

@step
def think(x):
    return "thought", x

@step(name="brain", retries=1)
async def athink(x):
    return "thought later", x

@tool(side_effect=True)
def send(x):
    return "sent", x

def make(n):
    @step
    def inner(x):
        return n, x
    return inner

class Agent:
    def __init__(self, n):
        self.n = n

    @step
    def ask(self, x):
        return self.n, x

    @classmethod
    @step
    def made(cls, x):
        return cls.__name__, x

    @staticmethod
    @tool
    def plain(x):
        return x

    @workflow
    def flow(self, x):
        return self.ask(x), think(x)

    @classmethod
    @workflow
    def flow_of_class(cls, x):
        return cls.made(x)

    @workflow
    @classmethod
    def run_of_class(cls, x):
        return cls.made(x)

@workflow
def flow(x):
    return think(x), send(x)

@workflow
async def aflow(x):
    return await athink(x)

@dataclasses.dataclass
class Box:
    call: object

agent = Agent(7)
shipped = {
    "step": think, "async step": athink, "tool": send, "closure": make(5),
    "lambda": step(lambda x: x), "partial": functools.partial(think),
    "bound step": agent.ask, "class step": Agent.made, "static tool": Agent.plain,
    "workflow": flow, "async workflow": aflow, "bound workflow": agent.flow,
    "class workflow": Agent.flow_of_class, "run of class": Agent.run_of_class,
    "options": flow.options(run_id="chosen"),
    "bound options": agent.flow.options(run_id="chosen bound"),
    "box": Box(think), "agent": agent, "class": Agent, "tools": [think, send, agent.ask],
}
names = {"workflow": flow.full_name, "run id": flow.run_id_for(1)}
with open(sys.argv[1], "wb") as file:
    pickle.dump({name: cloudpickle.dumps(each) for name, each in shipped.items()}, file)
print(names["workflow"], names["run id"])
"""

RECEIVED = """
import asyncio, inspect, json, pickle, sys
import stepwise

stepwise.configure(store="memory:", quiet=True)
with open(sys.argv[1], "rb") as file:
    got = {name: pickle.loads(each) for name, each in pickle.load(file).items()}

def told():
    return [[s.name, s.status, s.side_effect, bool(s.child)] for s in stepwise.current_run().steps]

@stepwise.workflow(key=lambda name, function: name)
def call(name, function):
    return function(1), told()

@stepwise.workflow(key=lambda name, function: name)
async def acall(name, function):
    return await function(1), told()

said = {}
agent, box, tools = got.pop("agent"), got.pop("box"), got.pop("tools")
got |= {"in box": box.call, "of agent": agent.ask, "flow of agent": agent.flow, "tool 1": tools[1]}
got |= {"tool 2": tools[2], "of new": got.pop("class")(8).ask}
for name, function in got.items():
    if inspect.iscoroutinefunction(function):
        said[name] = asyncio.run(acall(name, function))
    else:
        said[name] = call(name, function)
for name in ("workflow", "bound workflow", "run of class", "options", "bound options"):
    run = got[name].execute(1)
    said[f"{name} alone"] = run.result, [step.name for step in run.steps]
    said[f"{name} id"] = run.id
said["name"] = got["workflow"].full_name
said["outside"] = got["tool"](3)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """What another process says of the decorated objects that a script's process sent it."""
    folder = tmp_path_factory.mktemp("shipped")
    environment = {**os.environ, "STEPWISE_HOME": str(folder / "home")}

    def run(name, source):
        script = folder / name
        script.write_text(source, "utf-8")
        done = python(script, folder / "shipped.pickle", env=environment, code=0)
        return done.stdout

    name, run_id = run("sender.py", SHIPPED).split()
    said = json.loads(run("receiver.py", RECEIVED))
    assert not (folder / "home").exists()
    return {**said, "sent name": name, "sent run id": run_id}


THOUGHT, ASKED = ["thought", 1], [7, 1]
STEPS = {
    "step": (THOUGHT, "think"),
    "async step": (["thought later", 1], "brain"),
    "closure": ([5, 1], "inner"),
    "lambda": (1, "<lambda>"),
    "partial": (THOUGHT, "think"),
    "bound step": (ASKED, "Agent.ask"),
    "class step": (["Agent", 1], "Agent.made"),
    "static tool": (1, "Agent.plain"),
    "in box": (THOUGHT, "think"),
    "of agent": (ASKED, "Agent.ask"),
    "tool 2": (ASKED, "Agent.ask"),
    "of new": ([8, 1], "Agent.ask"),
}
WORKFLOWS = {
    "workflow": ([THOUGHT, ["sent", 1]], "flow"),
    "async workflow": (["thought later", 1], "aflow"),
    "options": ([THOUGHT, ["sent", 1]], "flow"),
    "bound workflow": ([ASKED, THOUGHT], "Agent.flow"),
    "bound options": ([ASKED, THOUGHT], "Agent.flow"),
    "flow of agent": ([ASKED, THOUGHT], "Agent.flow"),
    "class workflow": (["Agent", 1], "Agent.flow_of_class"),
    "run of class": (["Agent", 1], "Agent.run_of_class"),
}


def test_steps_in_another_process(shipped):
    """A step of ``__main__`` that stock cloudpickle took to another process is recorded there."""
    for what, (value, name) in STEPS.items():
        assert shipped[what] == [value, [[name, "completed", False, False]]], what


def test_tools_in_another_process(shipped):
    """A tool that was sent to another process is a side effect there, too."""
    for what in ("tool", "tool 1"):
        assert shipped[what] == [["sent", 1], [["send", "completed", True, False]]]
    assert shipped["outside"] == ["sent", 3]


def test_workflows_in_another_process(shipped):
    """A workflow that was sent to another process is a child run of the workflow that calls it.

    It starts runs there, and means the same runs as where it came from.
    """
    for what, (value, name) in WORKFLOWS.items():
        assert shipped[what] == [value, [[name, "completed", False, True]]], what
    for what, names in {
        "workflow": ["think", "send"],
        "bound workflow": ["Agent.ask", "think"],
        "run of class": ["Agent.made"],
    }.items():
        assert shipped[f"{what} alone"] == [WORKFLOWS[what][0], names]
    assert (shipped["options id"], shipped["bound options id"]) == ("chosen", "chosen bound")
    assert shipped["name"] == shipped["sent name"]
    assert shipped["workflow id"] == shipped["sent run id"]
