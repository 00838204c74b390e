"""Edits of a module that take effect while a program runs: IPython's ``%autoreload``."""

from __future__ import annotations

import json
import os
import textwrap

import pytest
from harness import interpreted
from sweeping import WHOLE

MODULE = '''
"""The agent's module."""

from stepwise import step, tool, workflow

@step
def think(i):
    return i + 1

@tool(side_effect=True)
async def send(i):
    return i + 1

@workflow
def agent(n):
    first = think(n)
    return first + 10

@workflow(checkpoint_every=2)
async def aagent(n):
    first = await send(n)
    return first + 10

class Agent:
    @step
    def think(self, i):
        return i + 1

    @workflow
    def run(self, n):
        first = self.think(n)
        return first + 10

    @workflow
    @classmethod
    def of_class(cls, n):
        return think(n) + 10

    class Inner:
        @workflow
        def run(self, n):
            return think(n) + 10
'''

HEAD = """
import asyncio, json, os, sys, time, traceback, warnings
warnings.simplefilter("error")
sys.path.insert(0, os.getcwd())
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "autoreload")
shell.run_line_magic("autoreload", sys.argv[1])
import m
def edit(*changes):
    text = open("m.py").read()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    with open("m.py", "w") as file:
        file.write(text)
    os.utime("m.py", (time.time() + edit.later, time.time() + edit.later))
    edit.later += 10
    shell.run_cell("None")
    return text
edit.later = 10
shell.run_cell("None")
"""
PROGRAM = """
from m import agent, think
mine, fresh = m.Agent(), agent.options(fresh=True)
def values(n):
    return [
        think(n), agent(n), fresh(n), m.think(n), m.agent(n), asyncio.run(m.aagent(n)),
        mine.think(n), mine.run(n), m.Agent().run(n), m.Agent.of_class(n), m.Agent.Inner().run(n),
    ]
import stepwise
results = [values(1)]
for changes in json.loads(sys.argv[2]):
    edit(*changes)
    results.append(values(1))
    names = {each.name for run in stepwise.runs() for each in run.steps}
    assert names == {"think", "send", "Agent.think"}, names
    labels = {run.label for run in stepwise.runs()}
    assert labels <= {"agent", "aagent", "Agent.run", "Agent.of_class", "Agent.Inner.run"}, labels
print(json.dumps(results))
"""


def executed(tmp_path, module, program, *arguments, quiet="1"):
    """What a program prints, and says, that imports a module in IPython."""
    pytest.importorskip("IPython")
    (tmp_path / "m.py").write_text(textwrap.dedent(module), "utf-8")
    (tmp_path / "program.py").write_text(HEAD + textwrap.dedent(program), "utf-8")
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    return interpreted(
        "program.py",
        *arguments,
        cwd=tmp_path,
        env={**os.environ, **environment, "STEPWISE_QUIET": quiet},
    )


def reloaded(tmp_path, mode, *edits):
    """What the functions of a module return, before and after each edit of it."""
    done = executed(tmp_path, MODULE, PROGRAM, mode, json.dumps(edits))
    return json.loads(done.stdout.splitlines()[-1])


def expected(steps, body):
    """Of ``values(1)``: steps add ``steps``, bodies of workflows add ``body``."""
    think, run = 1 + steps, 1 + steps + body
    return [think, run, run, think, run, run, think, run, run, run, run]


@pytest.mark.parametrize("mode", ["2", "3"] if WHOLE else ["2"])
def test_edits_of_bodies(tmp_path, mode):
    """Edited steps, tools, workflows and methods are those that are called, old objects too.

    The same where the whole module is executed again: something else than functions changed.
    """
    results = reloaded(
        tmp_path,
        mode,
        [["+ 10", "+ 20"]],
        [["i + 1", "i + 2"], ["+ 20", "+ 30"]],
        [["+ 30", "+ 40"], ["class Agent:", "from os import path as LIMIT\n\n\nclass Agent:"]],
        [
            ["i + 2", "i + 1"],
            ["+ 40", "+ LIMIT"],
            ["import path as LIMIT", "import O_APPEND as LIMIT"],
        ],
    )
    bodies = [(1, 10), (1, 20), (2, 30), (2, 40), (1, os.O_APPEND)]
    assert results == [expected(*each) for each in bodies]


INSIDE = """
from stepwise import step, workflow
@step
def one(i):
    return i
executed = []
class Agent:
    @workflow
    def run(self):
        executed.append(one(1))
        second = one(2)
        if len(executed) == 1:
            raise LookupError
        return 10
"""
RESUMES = """
text = edit(["len(executed) == 1", "len(executed) % 2"], ["10", "20"])
agent = m.Agent()
try:
    agent.run()
except LookupError:
    line = text[:text.index("raise LookupError")].count("\\n") + 1
    assert f'm.py", line {line}, in run' in traceback.format_exc(), traceback.format_exc()
m.executed.append(0)
assert agent.run() == 20
assert m.executed == [1, 0]
"""


def test_an_edited_workflow_is_resumed_inside(tmp_path):
    """After ``%autoreload``, a workflow can be entered in the middle, and its lines are right."""
    assert "resumes at m.py" in executed(tmp_path, INSIDE, RESUMES, "2", quiet="0").stderr
