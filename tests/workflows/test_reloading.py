"""Edits of a module that take effect while a program runs: IPython's ``%autoreload``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

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

PROGRAM = """
import asyncio, json, os, sys, time, warnings
warnings.simplefilter("error")
sys.path.insert(0, os.getcwd())
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "autoreload")
shell.run_line_magic("autoreload", sys.argv[1])
import m
from m import agent, think
mine, fresh = m.Agent(), agent.options(fresh=True)
def values(n):
    return [
        think(n), agent(n), fresh(n), m.think(n), m.agent(n), asyncio.run(m.aagent(n)),
        mine.think(n), mine.run(n), m.Agent().run(n), m.Agent.of_class(n), m.Agent.Inner().run(n),
    ]
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
edit.later = 10
import stepwise
shell.run_cell("None")
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


def reloaded(tmp_path, mode, *edits):
    """What the functions of a module return, before and after each edit of it."""
    pytest.importorskip("IPython")
    (tmp_path / "m.py").write_text(MODULE, "utf-8")
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM), "utf-8")
    done = subprocess.run(
        [sys.executable, "program.py", mode, json.dumps(edits)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def expected(steps, body):
    """Of ``values(1)``: steps add ``steps``, bodies of workflows add ``body``."""
    think, run = 1 + steps, 1 + steps + body
    return [think, run, run, think, run, run, think, run, run, run, run]


@pytest.mark.parametrize("mode", ["2", "3"])
def test_edits_of_bodies(tmp_path, mode):
    """Edited steps, tools, workflows and methods are those that are called, old objects too."""
    results = reloaded(
        tmp_path,
        mode,
        [["+ 10", "+ 20"]],
        [["i + 1", "i + 2"], ["+ 20", "+ 30"]],
    )
    assert results == [expected(1, 10), expected(1, 20), expected(2, 30)]


def test_edits_that_reload_the_module(tmp_path):
    """The same where the whole module is executed again: something else than functions changed."""
    results = reloaded(
        tmp_path,
        "2",
        [["+ 10", "+ 20"], ["class Agent:", "from os import path as LIMIT\n\n\nclass Agent:"]],
        [
            ["i + 1", "i + 2"],
            ["+ 20", "+ LIMIT"],
            ["import path as LIMIT", "import O_APPEND as LIMIT"],
        ],
    )
    assert results == [expected(1, 10), expected(1, 20), expected(2, os.O_APPEND)]


def test_an_edited_workflow_is_resumed_inside(tmp_path):
    """After ``%autoreload``, a workflow can be entered in the middle, and its lines are right."""
    pytest.importorskip("IPython")
    (tmp_path / "m.py").write_text(
        textwrap.dedent(
            """
            import traceback
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
        ),
        "utf-8",
    )
    program = """
    import os, sys, time, traceback, warnings
    warnings.simplefilter("error")
    sys.path.insert(0, os.getcwd())
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "autoreload")
    shell.run_line_magic("autoreload", "2")
    import m
    shell.run_cell("None")
    with open("m.py") as file:
        text = file.read()
    text = text.replace("len(executed) == 1", "len(executed) % 2").replace("10", "20")
    with open("m.py", "w") as file:
        file.write(text)
    os.utime("m.py", (time.time() + 10, time.time() + 10))
    shell.run_cell("None")
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
    (tmp_path / "program.py").write_text(textwrap.dedent(program), "utf-8")
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "STEPWISE_QUIET": "0",
    }
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumes at m.py" in done.stderr
