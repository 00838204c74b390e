"""A recorded run as a test: today's code is executed, its record answers, what differs is said."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import re
import sys
import textwrap

import pytest
from click.testing import CliRunner
from harness import python
from hypothesis import given
from hypothesis import strategies as st
from restarted import edited

import stepwise
from stepwise import ConfigurationError, StepNotFoundError
from stepwise.cli import main
from stepwise.testing import fresh_store, rerun

AGENT = """
from stepwise import step, tool, workflow

MADE = []

@step
def think(messages: list) -> str:
    MADE.append("think")
    return f"thought {len(messages)}"

@tool(side_effect=True)
def send(to: str, body: str) -> str:
    MADE.append("send")
    return f"sent to {to}"

@step
def rate(text: str) -> int:
    MADE.append("rate")
    return len(text)

@workflow(retention="all")
def agent(task: str) -> dict:
    messages = [task]
    for turn in range(2):
        messages.append(think(messages))
    total = len(messages)
    where = send("ann", messages[-1])
    stars = rate(where)
    return {"where": where, "stars": stars, "total": total}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Import a program as the module ``rerunagent``, anew with each text."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text):
        (tmp_path / "rerunagent.py").write_text(text)
        sys.modules.pop("rerunagent", None)
        importlib.invalidate_caches()

    def load(text):
        write(text)
        return importlib.import_module("rerunagent")

    load.write = write
    yield load
    sys.modules.pop("rerunagent", None)


def recorded_run(module, *args):
    return module.agent.execute(*args)


# -- the first difference ------------------------------------------------------------------------


def test_the_same_code(program):
    """The same code makes the same calls, and no step is executed."""
    module = program(AGENT)
    run = recorded_run(module, "hello")
    module.MADE.clear()
    again = rerun(run, module.agent)
    assert again.same
    assert again.end == "returned"
    assert again.result == run.result
    assert [call.name for call in again.calls] == ["think", "think", "send", "rate"]
    assert {call.how for call in again.calls} == {"recorded"}
    assert module.MADE == []
    again.assert_same()


EDITS = {
    "a step is edited: its record answers": (
        ('return f"thought', 'return f"idea'),
        None,
    ),
    "a comment": (("    total = len", "    # a comment\n    total = len"), None),
    "another argument": (
        ('send("ann"', 'send("bob"'),
        ("argument", 3, "to", "'ann'", "'bob'"),
    ),
    "another prompt": (
        ("messages = [task]", 'messages = ["please", task]'),
        ("argument", 1, "messages", "hello", "please"),
    ),
    "one call less in a loop": (
        ("range(2)", "range(1)"),
        ("call", 2, "", "think(", "send("),
    ),
    "one call more in a loop": (
        ("range(2)", "range(3)"),
        ("call", 3, "", "send(", "think("),
    ),
    "a call removed": (
        ('send("ann", messages[-1])', '"sent to ann"'),
        ("call", 3, "", "send(", "rate("),
    ),
    "another order": (
        ("    where = send", '    rate("sent to ann")\n    where = send'),
        ("call", 3, "", "send(", "rate("),
    ),
    "the last call removed": (
        ("stars = rate(where)", "stars = 11"),
        ("call", 4, "", "rate(", "returns"),
    ),
    "a call added at the end": (
        ('    return {"where"', '    rate("again")\n    return {"where"'),
        ("call", 0, "", None, "rate("),
    ),
    "another variable": (
        ("total = len(messages)", "total = len(messages) + 1"),
        ("variable", 0, "total", "3", "4"),
    ),
    "another result": (
        ('"stars": stars,', '"stars": -stars,'),
        ("result", 0, "result.stars", "11", "-11"),
    ),
    "an exception": (
        ("total = len(messages)", 'raise ValueError("no")'),
        ("result", 3, "", "send(", "ValueError: no"),
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_where_edited_code_first_differs(program, edit):
    """The first call, argument, variable or result that differs is said, with both values."""
    pair, expected = EDITS[edit]
    run = recorded_run(program(AGENT), "hello")
    module = program(edited(AGENT, pair))
    again = rerun(run, module.agent)
    found = again.difference
    assert module.MADE == []
    if expected is None:
        assert found is None
        return
    what, step, path, recorded, now = expected
    assert (found.what, found.step) == (what, step), found
    assert found.path.startswith(path)
    assert (recorded is None) == (found.recorded is None)
    assert (recorded or "") in (found.recorded or "")
    assert now in found.now
    with pytest.raises(AssertionError, match=re.escape(str(found))):
        again.assert_same()


def test_variables_that_differ_each_time(program):
    """Times, random numbers and objects that are no data are not compared; nor are named ones."""
    text = AGENT.replace(
        "    total = len(messages)\n",
        "    import random, time\n"
        "    began, drawn, other = time.time_ns(), [random.random()], object()\n"
        "    total = len(messages)\n",
    )
    run = recorded_run(program(text), "hello")
    rerun(run, program(text).agent).assert_same()
    module = program(text.replace("total = len(messages)", "total = len(messages) + 1"))
    found = rerun(run, module.agent).difference
    assert (found.what, found.path) == ("variable", "total")
    assert rerun(run, module.agent, ignore=("total",)).difference.what == "result"


def test_edited_steps_are_named(program, tmp_path):
    """A rerun names the steps that were edited since the results that it used were recorded."""
    run = recorded_run(program(AGENT), "hello")
    export(run, tmp_path / "test_it.py")
    module = program(edited(AGENT, ('return f"thought', 'return f"idea')))
    for source in (run, tmp_path / "test_it.json"):
        again = rerun(source, module.agent)
        assert again.changed_steps == ("think (body)",)
        assert "think (body)" in str(again)
    assert rerun(run, module.agent, at="send").changed_steps == ()


def test_nothing_is_written(program):
    """The files of the store are the same afterwards, byte for byte."""

    def files():
        home = pathlib.Path(os.environ["STEPWISE_HOME"])
        found = (path for path in home.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if not path.name.endswith("-shm")}

    module = program(AGENT)
    run = recorded_run(module, "hello")
    before = files()
    rerun(run, module.agent)
    rerun(run, program(AGENT.replace("ann", "bob")).agent, answers={"send": lambda **_: "x"})
    assert files() == before


def test_listeners_hear_nothing(program):
    """Callbacks of events do not hear of a rerun."""
    module = program(AGENT)
    run = recorded_run(module, "hello")
    heard = []
    remove = stepwise.on_event(heard.append)
    try:
        rerun(run, module.agent)
    finally:
        remove()
    assert heard == []


# -- calls without a record ----------------------------------------------------------------------


def test_a_function_answers(program):
    """A call without a record is answered by a function; what follows is compared."""
    run = recorded_run(program(AGENT), "hello")
    module = program(AGENT.replace('"ann"', '"bob"'))
    again = rerun(run, module.agent, answers={"send": lambda to, body: f"sent to {to}"})
    assert again.difference.what == "argument"
    assert again.difference.step == 4
    again = rerun(run, module.agent, answers={"send": lambda to, body: "sent to ann"})
    assert again.same
    assert [call.how for call in again.calls] == ["recorded", "recorded", "answered", "recorded"]
    assert module.MADE == []


def test_a_call_is_made(program):
    """A call without a record is made if its step is named, a side effect too."""
    run = recorded_run(program(AGENT), "hello")
    module = program(edited(AGENT, ("messages = [task]", "messages = [task, 'please']")))
    again = rerun(run, module.agent, live=("think",))
    assert module.MADE == ["think", "think"]
    assert again.difference.step == 3
    module.MADE.clear()
    again = rerun(run, module.agent, live=("think", "send"))
    assert module.MADE == ["think", "think", "send"]
    assert again.difference.what == "result"  # the total
    with pytest.raises(ConfigurationError, match="give a tuple"):
        rerun(run, module.agent, live="think")


# -- where it begins -----------------------------------------------------------------------------


def test_where_it_begins(program):
    """A rerun begins after so many steps, at a statement, or before a step, with the variables."""
    module = program(AGENT)
    run = recorded_run(module, "hello")

    def names(at):
        return [call.name for call in rerun(run, module.agent, at=at).calls]

    assert names(0) == names(None) == ["think", "think", "send", "rate"]
    assert names(1) == ["think", "send", "rate"]
    assert names("send") == ["send", "rate"]
    line = AGENT.splitlines().index("    stars = rate(where)") + 1
    assert names(f":{line}") == names(f"rerunagent.py:{line}") == ["rate"]
    assert f"rerunagent.py:{line}" in rerun(run, module.agent, at=f":{line}").start


def test_it_begins_before_an_edit(program):
    """If the code before the asked place has changed, the rerun begins before the edit."""
    run = recorded_run(program(AGENT), "hello")
    module = program(edited(AGENT, ('send("ann"', 'send("bob"')))
    again = rerun(run, module.agent, at="rate")
    assert again.difference.path == "to"
    assert "has changed" in again.start


@pytest.mark.parametrize("at", ["unknown", ":1", "other.py:30", ":x"])
def test_a_place_that_does_not_exist(program, at):
    """An unknown step or line is an error that names those that exist."""
    module = program(AGENT)
    run = recorded_run(module, "hello")
    with pytest.raises(StepNotFoundError, match=r"think, send, rate|rerunagent\.py:\d+ to"):
        rerun(run, module.agent, at=at)


# -- kinds of runs -------------------------------------------------------------------------------

KINDS = """
import asyncio, os, threading
from concurrent.futures import ThreadPoolExecutor
import stepwise
from stepwise import step, tool, workflow

FACTOR = int(os.environ.get("FACTOR", "1"))

@step
async def fetch(n: int) -> int:
    await asyncio.sleep(0)
    return n * 10

@step
def double(n: int) -> int:
    return 2 * n

@step(retries=2)
def flaky(n: int) -> int:
    raise ValueError(f"no {n}")

@tool(side_effect=True, approve=True)
def pay(amount: int) -> str:
    return f"paid {amount}"

@workflow
async def gathered() -> list:
    found = await asyncio.gather(*(fetch(n) for n in range(4)))
    return [*found, await fetch(9)]

@workflow
def mapped() -> list:
    return [*stepwise.map(double, range(4)), double(9)]

@workflow
def threaded() -> int:
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(double, range(6))]
    return sum(found) + double(9)

@workflow
def child(n: int) -> int:
    return double(n) + 1

@workflow
def parent() -> int:
    return child(3) + double(4)

@workflow
def handles() -> str:
    try:
        flaky(1)
    except ValueError as error:
        return f"{error}, {double(2)}"

@workflow
def fails() -> str:
    double(1)
    flaky(1)

TRIED = []

@step(retries=2)
def outer(n: int) -> int:
    found = double(n)
    TRIED.append(n)
    if len(TRIED) < 3:
        raise OSError("again")
    return found

@workflow
def retried() -> int:
    return outer(2) + double(7)

@workflow
def waits() -> str:
    stepwise.sleep(0.01)
    name = stepwise.wait_for("name")
    return pay(double(5)) + name

class Agent:
    def __init__(self, factor):
        self.factor = factor

    @workflow
    def run(self, n: int) -> int:
        return double(n) * self.factor
"""

KIND = ["gathered", "mapped", "threaded", "parent", "handles", "fails", "retried"]


def run_of(module, name):
    """Make a run of one of the workflows."""
    function = getattr(module, name)
    if name == "gathered":
        asyncio.run(function())
    elif name == "fails":
        with pytest.raises(ValueError, match="no 1"):
            function()
    else:
        function()
    return stepwise.runs(name)[0]


@pytest.mark.parametrize("name", KIND)
def test_kinds_of_workflows(program, tmp_path, name):
    """Threads, maps, child runs and exceptions are the same again, from a run or from its file."""
    module = program(KINDS)
    run = run_of(module, name)
    rerun(run, getattr(module, name)).assert_same()
    data, _ = export(run, tmp_path / "test_it.py")
    assert json.loads(data)["pickles"] == 0
    run.delete()
    rerun(tmp_path / "test_it.json", getattr(module, name)).assert_same()


@pytest.mark.parametrize("name", ["gathered", "mapped", "threaded"])
@pytest.mark.parametrize("edit", ["range(4)", "(9)", "(8)"])
def test_concurrent_calls_that_differ(program, name, edit):
    """Among concurrent calls, and after them, the call that differs is found."""
    run = run_of(program(KINDS), name)
    text = KINDS.replace("range(6)", "range(4)")
    if edit == "range(4)":
        old, new = ("range(6)", "range(5)") if name == "threaded" else ("range(4)", "range(3)")
        text = KINDS.replace(old, new)
    else:
        text = KINDS.replace("(9)", "(8)") if edit == "(9)" else KINDS.replace("(9)", "(9) + 1")
    again = rerun(run, getattr(program(text), name))
    found = {"range(4)": "argument", "(9)": "argument", "(8)": "result"}[edit]
    assert again.difference.what in ((found, "call") if edit == "range(4)" else (found,))


def test_a_running_event_loop(program):
    """A rerun inside a running event loop, as in an asynchronous test, is possible."""
    module = program(KINDS)
    run = run_of(module, "gathered")

    async def test():
        return rerun(run, module.gathered)

    asyncio.run(test()).assert_same()


def test_a_child_run_alone(program):
    """A child run is rerun by its id; for its parent, the record of its call answers."""
    module = program(KINDS)
    run = run_of(module, "parent")
    module = program(KINDS.replace("double(n) + 1", "double(n + 1)"))
    assert rerun(run, module.parent).same
    again = rerun(run.steps[0].child, module.child)
    assert (again.difference.what, again.difference.path) == ("argument", "n")


def test_waits_and_approvals(program):
    """Recorded waits, signals and approvals answer; nothing waits."""
    module = program(KINDS)
    handle = module.waits.start()
    run = handle.run
    run.send("name", "ann")
    while not run.questions:
        pass
    run.questions[0].approve()
    assert handle.result(60) == "paid 10ann"
    rerun(run, module.waits).assert_same()
    again = rerun(run, program(KINDS.replace('wait_for("name")', 'wait_for("other")')).waits)
    assert again.difference.what == "argument"
    again = rerun(run, program(KINDS.replace("double(5)", "double(5) + 1")).waits)
    assert (again.difference.path, again.difference.now) == ("amount", "11")


SLOTS = """
from dataclasses import dataclass
from stepwise import step, workflow

@dataclass(frozen=True, slots=True)
class Line:
    name: str

@step
def read(name: str) -> Line:
    return Line(name)

@workflow(retention="all")
def agent() -> str:
    line = read("tea")
    other = read(line.name)
    return other.name
"""


def test_variables_with_slots(program):
    """An instance without a ``__dict__`` is compared like another one."""
    run = program(SLOTS).agent.execute()
    rerun(run, program(SLOTS).agent).assert_same()
    again = rerun(run, program(edited(SLOTS, ("read(line.name)", "Line(line.name)"))).agent)
    assert "returns" in again.difference.text


def test_a_method(program):
    """The run of a method gets its recorded instance."""
    module = program(KINDS)
    assert module.Agent(3).run(4) == 24
    (run,) = stepwise.runs()
    rerun(run, module.Agent.run).assert_same()
    text = KINDS.replace("* self.factor", "* self.factor + 1")
    assert rerun(run, program(text).Agent.run).difference.path == "result"


# -- exported ------------------------------------------------------------------------------------


def export(run, path):
    """Export a run as a test; return the data beside the test, as text."""
    done = CliRunner().invoke(main, ["export", run.id, "--format", "test", "-o", str(path)])
    assert done.exit_code == 0, done.output
    return path.with_suffix(".json").read_text(), done.output


BLOCKED = """
import socket

def refuse(*_, **__):
    raise AssertionError("a network connection")

socket.socket.connect = socket.create_connection = refuse
"""


def pytest_in(folder, program):
    """Run the tests in a folder, with no environment, no store that works, and no network."""
    (folder / "conftest.py").write_text(BLOCKED)
    env = {"PYTHONPATH": str(program), "STEPWISE_STORE": "disk:/nowhere/at/all", "HOME": "/"}
    without = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "anyio", "xdist")]
    return python("-m", "pytest", "-q", *without, folder, cwd=folder, env=env)


def test_an_exported_run_is_a_test(program, tmp_path):
    """An exported run passes by pytest without store, environment and network; an edit fails it."""
    module = program(AGENT)
    run = recorded_run(module, "hello")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    export(run, folder / "test_run.py")
    done = pytest_in(folder, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    program(AGENT.replace('"ann"', '"bob"'))
    done = pytest_in(folder, tmp_path)
    assert done.returncode == 1
    assert "to, recorded 'ann', now 'bob'" in done.stdout
    assert "record a new run" in done.stdout


def test_variables_in_a_file(program, tmp_path):
    """The variables that are plain data are compared from a file, too."""
    run = recorded_run(program(AGENT), "hello")
    export(run, tmp_path / "test_it.py")
    module = program(edited(AGENT, ("total = len(messages)", "total = len(messages) + 1")))
    found = rerun(str(tmp_path / "test_it.json"), module.agent).difference
    assert (found.what, found.path) == ("variable", "total")
    with pytest.raises(ConfigurationError, match="from the top"):
        rerun(str(tmp_path / "test_it.json"), module.agent, at=1)


HOLDING = """
import dataclasses
from stepwise import step, workflow

@dataclasses.dataclass
class Order:
    items: list
    price: tuple

@step
def order(token: str, api_key: str) -> Order:
    return Order(["tea"], (1, 2))

@step
def login() -> dict:
    text = "the key is sk-proj-abcdefghijklmnop1234"
    return {"user": "ann", "password": "hunter2-hunter2", "text": text}

@step
def keep(order: Order) -> Order:
    return order

@workflow
def agent(api_key: str) -> str:
    held = login()
    found = keep(order("t", api_key))
    return f"{found.items} {held['user']}"
"""


def test_secrets_are_masked(program, tmp_path):
    """A secret is not in the file; its place is said, and what the test needs instead of it."""
    module = program(HOLDING)
    run = module.agent.execute("sk-live-0123456789abcdef0123")
    data, said = export(run, tmp_path / "test_it.py")
    for secret in ("hunter2", "sk-proj-abcdef", "sk-live-0123456789"):
        assert secret not in data
        assert secret not in (tmp_path / "test_it.py").read_text()
    for place in ("step 1 login.password", "step 1 login.text", "the argument api_key"):
        assert place in json.loads(data)["masked"]
        assert place in said
        assert place in (tmp_path / "test_it.py").read_text()
    with pytest.raises(stepwise.UnreadableValueError, match=r"inputs=dict\(api_key="):
        rerun(tmp_path / "test_it.json", module.agent)
    again = rerun(
        tmp_path / "test_it.json", module.agent, inputs={"api_key": "sk-live-0123456789abcdef0123"}
    )
    again.assert_same()
    again = rerun(tmp_path / "test_it.json", module.agent, inputs={"api_key": "another"})
    assert "masked in the file" in str(again)


DEEP = """
from dataclasses import dataclass
from stepwise import step, workflow

PASSWORD = "hunter-two"
KEY = "sk-proj-abcdefghijklmnop1234"

@dataclass
class Account:
    password: str

@step
def look(account: Account) -> dict:
    return {
        "password": [PASSWORD],
        "token": {"value": "swordfish", KEY: 1},
        "headers": [{"name": "Authorization", "value": "secret words"}],
    }

@step
def encoded() -> bytes:
    return b"password " + KEY.encode()

@step
def quote() -> str:
    return f"you wrote {PASSWORD}, swordfish and secret words"

@workflow(retention="all", codec=CODEC)
def agent(options: dict) -> str:
    look(Account(PASSWORD))
    if CODEC is None:
        encoded()
    return quote()
"""


@pytest.mark.parametrize("codec", ["None", "'json'"])
def test_secrets_at_any_depth(program, tmp_path, codec):
    """A value below a secret's name is masked, and wherever else it is; so are keys and bytes."""
    module = program(f"CODEC = {codec}\n{DEEP}")
    run = module.agent.execute({"api_key": ["open sesame"], "text": "open sesame"})
    data, _ = export(run, tmp_path / "test_it.py")
    pickles = [base64.b64decode(each) for each in re.findall(r'"pickle": "(.*?)"', data)]
    for secret in ("hunter-two", "sk-proj-abc", "swordfish", "secret words", "open sesame"):
        assert secret not in data
        assert not any(secret.encode() in each for each in pickles)


DECLARED = """
from stepwise import step, workflow

@step
def look(name: str, vault: str) -> dict:
    return {"vault": vault, "text": f"{name} has {vault}"}

@workflow(secret=("vault",))
def agent(name: str, vault: str) -> str:
    return look(name, vault)["text"]
"""


@pytest.mark.filterwarnings("ignore:the result of")
def test_a_declared_secret(program, tmp_path):
    """A declared secret is not in the file, and the test gets it as an input."""
    module = program(DECLARED)
    run = module.agent.execute("ann", "open sesame")
    data, _ = export(run, tmp_path / "test_it.py")
    assert "open sesame" not in data
    answers = {"look": lambda name, vault: {"text": f"{name} has ***"}}
    given = {"vault": "***"}
    rerun(tmp_path / "test_it.json", module.agent, inputs=given, answers=answers).assert_same()


def test_pickles_are_counted(program, tmp_path):
    """Values that JSON cannot hold are pickles, which the file and the test announce."""
    module = program(HOLDING)
    run = module.agent.execute("x")
    data, said = export(run, tmp_path / "test_it.py")
    assert json.loads(data)["pickles"] == 2
    assert "pickles" in said
    assert "execute" in (tmp_path / "test_it.py").read_text()
    rerun(tmp_path / "test_it.json", module.agent, inputs={"api_key": "x"}).assert_same()


@pytest.mark.parametrize("text", ["no json", "{}", '{"records": [], "stepwise": 1}', "[]"])
def test_a_file_that_holds_no_run(program, tmp_path, text):
    """A file of another kind or version is an error with the command that makes one."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"run\.json.*(JSON|--format test)"):
        rerun(tmp_path / "run.json", program(AGENT).agent)
    with pytest.raises(ConfigurationError, match="--format test"):
        rerun(tmp_path / "none.json")


def test_a_masked_result(program, tmp_path):
    """If the file leaves a result out, the rerun says so where it needs it."""
    text = HOLDING.replace('return Order(["tea"], (1, 2))', 'return Order(["api_key"], (1, 2))')
    module = program(text)
    run = module.agent.execute("x")
    export(run, tmp_path / "test_it.py")
    with pytest.raises(ConfigurationError, match=r"step 2 order.*answers="):
        rerun(tmp_path / "test_it.json", module.agent, inputs={"api_key": "x"})
    answers = {"order": lambda token, api_key: module.Order(["api_key"], (1, 2))}
    answers["keep"] = lambda order: order
    rerun(
        tmp_path / "test_it.json", module.agent, inputs={"api_key": "x"}, answers=answers
    ).assert_same()


# -- the command ---------------------------------------------------------------------------------

SCRIPT = """
import sys
from stepwise import step, workflow

class Note:
    def __init__(self, text):
        self.text = text

@step
def note(n: int) -> Note:
    return Note(f"note {n}")

@workflow
def agent(n: int) -> str:
    found = note(n)
    print("in the code")
    return found.text

if __name__ == "__main__":
    for n in range(3):
        agent(n)
"""

METHODS = """
import dataclasses, sys
from stepwise import step, workflow

@dataclasses.dataclass
class Order:
    n: int

@step
def one(order: Order) -> int:
    return order.n

class Agent:
    def __init__(self, factor: int):
        self.factor = factor

    @workflow
    def run(self, order: Order) -> int:
        return one(order) * self.factor

@workflow(codec="json")
def plain(n: int, api_key: str) -> int:
    return n + 1

if __name__ == "__main__":
    Agent(3).run(Order(2))
    plain(4, "some key")
"""


def test_arguments_that_the_command_cannot_load(tmp_path):
    """The command exports runs with arguments of classes, or as data, without the program."""
    (tmp_path / "orders.py").write_text(METHODS)
    python("-m", "orders", cwd=tmp_path, code=0)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("Agent.run", "plain"):
        words = ("export", name, "--format", "test", "-o", f"test_{name[:5]}.py")
        python("stepwise", *words, cwd=folder, code=0)
    test = folder / "test_plain.py"
    given = test.read_text().replace('plain")', 'plain", inputs={"api_key": "x"})')
    test.write_text(given)
    done = pytest_in(folder, tmp_path)
    assert "2 passed" in done.stdout, done.stdout


RAISING = """
from stepwise import step, workflow

class Refused(Exception):
    def __init__(self, who: str, code: int) -> None:
        super().__init__(who)
        self.code = code

@step
def ask() -> str:
    raise Refused("ann", 3)

@workflow
def agent() -> int:
    try:
        return ask()
    except Refused as error:
        return error.code

if __name__ == "__main__":
    agent()
"""


@pytest.mark.parametrize("how", [["orders.py"], ["-c", "import orders; orders.agent()"]])
def test_errors_that_the_command_cannot_load(tmp_path, how):
    """The command exports errors of classes of the program, which it does not import."""
    (tmp_path / "orders.py").write_text(RAISING)
    python(*how, cwd=tmp_path, code=0)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    words = ("export", "agent", "--format", "test", "-o", "test_it.py")
    python("stepwise", *words, cwd=folder, code=0)
    done = pytest_in(folder, tmp_path)
    assert "1 passed" in done.stdout, done.stdout


ENDING = """
from stepwise import step, workflow

class Stop(BaseException):
    pass

@step
def one() -> int:
    return 1

@workflow
def agent() -> int:
    one()
    raise Stop("enough")

if __name__ == "__main__":
    agent()
"""


def test_code_that_ends_its_process(tmp_path):
    """What the code of a workflow raises is said, also if it is no ``Exception``."""
    (tmp_path / "orders.py").write_text(ENDING)
    python("orders.py", cwd=tmp_path)
    done = python("stepwise", "rerun", "agent", cwd=tmp_path)
    assert "Stop: enough" in done.stdout
    done = python("stepwise", "preflight", "orders.py", "--replay", "--json", cwd=tmp_path)
    assert "not replayed: it raises Stop: enough" in json.loads(done.stdout)[0]["notes"]


LACKING = """
from stepwise import step, workflow

class Order:
    def __init__(self, api_key: str) -> None:
        self.api_key = api_key

@step
def one() -> int:
    return 1

@workflow
def agent(order: Order) -> int:
    return one()

if __name__ == "__main__":
    agent(Order("some key"))
"""


def test_a_call_that_lacks_arguments(tmp_path):
    """Arguments that are not in the file, or that only today's code wants, are named with a way."""
    (tmp_path / "orders.py").write_text(LACKING)
    python("-m", "orders", cwd=tmp_path, code=0)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    words = ("export", "agent", "--format", "test", "-o", "test_it.py")
    python("stepwise", *words, cwd=folder, code=0)
    done = pytest_in(folder, tmp_path)
    assert "inputs=dict(order=...)" in done.stdout, done.stdout
    text = edited(LACKING, ("order: Order", "order: Order, size: int"))
    (tmp_path / "orders.py").write_text(text)
    done = python("stepwise", "rerun", "agent", cwd=tmp_path)
    assert "missing a required argument: 'size'" in " ".join(done.stdout.split())
    assert "inputs=dict(NAME=...)" in done.stdout


def test_many_runs_from_the_terminal(tmp_path):
    """The command reruns many runs of a script, counts them, and fails if one differs."""
    script = tmp_path / "notes.py"
    script.write_text(SCRIPT)
    python(script, code=0)
    done = python("stepwise", "rerun", "--workflow", "agent", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3 runs: 3 same"), done.stderr
    assert "in the code" not in done.stdout + done.stderr
    script.write_text(SCRIPT.replace("return found.text", "return found.text[n == 1:]"))
    done = python("stepwise", "rerun", "--workflow", "agent", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "3 runs: 1 differs, 2 same")
    assert "recorded 'note 1', now 'ote 1'" in done.stdout
    done = python("stepwise", "rerun", "-n", "2", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert [each["verdict"] for each in found] == ["same", "differs"]
    assert found[1]["difference"]["path"] == "result"


def test_a_module_that_was_started(tmp_path):
    """Runs of ``python -m`` have definitions of ``__main__`` in their records, and are rerun."""
    (tmp_path / "jobs.py").write_text(SCRIPT)
    python("-m", "jobs", cwd=tmp_path, code=0)
    done = python("stepwise", "rerun", "-n", "9", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "3 runs: 3 same"
    export(stepwise.runs()[0], tmp_path / "test_it.py")
    done = pytest_in(tmp_path, tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_program_that_does_not_import(tmp_path):
    """A run whose program cannot be imported, or begins runs then, is said to be impossible."""
    script = tmp_path / "notes.py"
    script.write_text(SCRIPT)
    python(script, code=0)
    for text, why in (
        (SCRIPT.replace('if __name__ == "__main__":', "if True:"), "__name__"),
        ("import os; os._exit(3)", "its process ended with 3"),
        ("raise ValueError", "cannot be imported"),
        ("", "knows no workflow"),
        (SCRIPT.replace('    print("in the code")', "    import os; os._exit(4)"), "ended with 4"),
    ):
        script.write_text(text)
        done = python("stepwise", "rerun", "-n", "1", cwd=tmp_path, code=1)
        assert "1 run: 1 not possible" in done.stdout
        assert why in " ".join((done.stdout + done.stderr).split())
    done = python("stepwise", "rerun", cwd=tmp_path)
    assert (done.returncode, "name RUNS" in done.stderr) == (2, True)


SAYING = """
import stepwise
from stepwise import step, workflow

@step
def read(n: int) -> int:
    stepwise.emit(f"in {n}")
    return n

@workflow(retention="all")
def agent() -> int:
    stepwise.emit("begins")
    total = read(1)
    stepwise.emit(total)
    total += read(2)
    return total
"""


@pytest.mark.parametrize("at", [None, 1, "read"])
def test_a_run_that_says_something(program, tmp_path, at):
    """A run that emits is rerun, from any place; its stream stays as it is."""
    module = program(SAYING)
    run = recorded_run(module)
    said = [each.value for each in run.stream()]
    rerun(run, module.agent, at=at).assert_same()
    assert [each.value for each in run.stream()] == said
    export(run, tmp_path / "test_it.py")
    rerun(tmp_path / "test_it.json", program(SAYING).agent).assert_same()


# -- killed, refused -----------------------------------------------------------------------------

KILLED = """
import os, signal
from stepwise import step, tool, workflow

@step
def think(n: int) -> int:
    return n * 2

@tool(side_effect=True)
def send(n: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

@workflow
def agent() -> str:
    first = think(1)
    second = think(first)
    return send(first + second)
"""


def test_a_run_that_was_killed(program, tmp_path):
    """The rerun of a run that was killed in a side effect ends there, and does not act."""
    module = program(KILLED)
    python("-c", "import rerunagent; rerunagent.agent()", cwd=tmp_path, code=-9)
    (run,) = stepwise.runs()
    again = rerun(run, module.agent)
    assert (again.same, again.end) == (True, "record")
    assert [call.name for call in again.calls] == ["think", "think"]
    module = program(KILLED.replace("first + second", "first - second"))
    assert (rerun(run, module.agent).difference.step, again.calls[-1].step) == (3, 2)
    module = program(KILLED.replace("think(first)", "think(3)"))
    assert rerun(run, module.agent).difference.path == "n"
    module = program(KILLED.replace("    second", '    raise ValueError("early")\n    second'))
    assert "raises ValueError: early" in rerun(run, module.agent).difference.text
    export(run, tmp_path / "test_it.py")
    assert rerun(tmp_path / "test_it.json", program(KILLED).agent).end == "record"


REFUSED = """
from stepwise import step, workflow

@step
def one() -> int:
    return 1

@workflow
def items():
    yield one()
    yield 2

@workflow
def inside(run) -> int:
    from stepwise.testing import fresh_store, rerun

    one()
    rerun("none", inside)
"""


def test_what_cannot_be_rerun(program):
    """Generators, unknown workflows, and reruns inside a run are refused with the reason."""
    module = program(REFUSED)
    assert [*module.items()] == [1, 2]
    (run,) = stepwise.runs()
    with pytest.raises(ConfigurationError, match="generator workflow"):
        rerun(run, module.items)
    with pytest.raises(ConfigurationError, match="no @workflow"):
        rerun(run, module.one)
    with pytest.raises(stepwise.RunNotFoundError):
        rerun("unknown-run", module.items)
    with pytest.raises((ConfigurationError, stepwise.RunNotFoundError)):
        module.inside(None)


MODEL = """
import json
import httpx2
import openai
import stepwise
from stepwise import workflow

stepwise.instrument()

def answer(request):
    text = json.loads(request.content)["messages"][-1]["content"]
    choice = {"index": 0, "finish_reason": "stop",
              "message": {"role": "assistant", "content": text.upper()}}
    return httpx2.Response(
        200, json={"id": "1", "object": "o", "created": 0, "model": "m", "choices": [choice]}
    )

transport = httpx2.MockTransport(answer)
client = openai.OpenAI(http_client=httpx2.Client(transport=transport), max_retries=0)

@workflow
def agent(city: str) -> str:
    messages = [{"role": "user", "content": f"How is {city}?"}]
    said = client.chat.completions.create(model="m", messages=messages)
    return said.choices[0].message.content
"""


def test_model_calls(program, tmp_path, monkeypatch):
    """Recorded model calls answer without key and network; another prompt is a difference."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    module = program(MODEL)
    run = module.agent.execute("Oslo")
    assert run.result == "HOW IS OSLO?"
    data, _ = export(run, tmp_path / "test_it.py")
    assert "sk-test" not in data
    monkeypatch.delenv("OPENAI_API_KEY")
    program.write(MODEL.replace(".upper()", ""))
    for source in (run, tmp_path / "test_it.json"):
        sys.modules.pop("rerunagent", None)
        rerun(source, "rerunagent:agent").assert_same()
    program.write(MODEL.replace("How is", "What about"))
    found = rerun(tmp_path / "test_it.json", "rerunagent:agent").difference
    assert found.what == "argument"
    assert "What about" in found.now


# -- random programs -----------------------------------------------------------------------------

HEAD = """
from stepwise import step, workflow

CALLS = []

@step
def a(n):
    CALLS.append(("a", n))
    return n + 1

@step
def b(n):
    CALLS.append(("b", n))
    return n * 2

@step
def c(n):
    CALLS.append(("c", n))
    if n % 2:
        raise ValueError("odd", n)
    return n

def body():
    x, y = 1, 0
{statements}
    return x, y

agent = workflow(retention="all")(body)
"""

SMALL = st.integers(0, 3)
NAMED = st.sampled_from("xy")
STATEMENT = st.one_of(
    st.builds("{0} = {1}({2})".format, NAMED, st.sampled_from("abc"), NAMED),
    st.builds("{0} = {1}({2})".format, NAMED, st.sampled_from("ab"), SMALL),
    st.builds("{0} = {0} + {1}".format, NAMED, SMALL),
    st.builds("for i in range({0}):\n    {1} = a({1} + i)".format, SMALL, NAMED),
    st.builds("if x > {0}:\n    y = b({1})".format, SMALL, NAMED),
    st.builds("try:\n    x = c({0})\nexcept ValueError:\n    y = a({1})".format, NAMED, SMALL),
)


def traced(program, statements):
    """Execute a program without stepwise; return its module, calls and end."""
    text = textwrap.indent("\n".join(statements), "    ")
    module = program(HEAD.format(statements=text))
    try:
        end = repr(module.body())
    except ValueError as error:
        end = repr(error)
    calls = [*module.CALLS]
    module.CALLS.clear()
    return module, calls, end


@given(
    st.lists(STATEMENT, min_size=1, max_size=6),
    st.integers(0, 6),
    st.sampled_from(["none", "replace", "insert", "delete"]),
    STATEMENT,
)
def test_random_programs_and_edits(program, statements, place, how, other):
    """The first difference is exactly where the calls, or the ends, of two programs differ."""
    place %= len(statements)
    _, calls, end = recorded = traced(program, statements)
    with fresh_store():
        with contextlib.suppress(ValueError):
            recorded[0].agent()
        (run,) = stepwise.runs()
    changed = [*statements]
    if how == "replace":
        changed[place] = other
    elif how == "insert":
        changed.insert(place, other)
    elif how == "delete" and changed[1:]:
        del changed[place]
    module, new_calls, new_end = traced(program, changed)
    again = rerun(run, module.agent, ignore=("x", "y", "i"))
    pairs = itertools.zip_longest(calls, new_calls)
    first = next((at for at, (one, two) in enumerate(pairs) if one != two), len(calls))
    assert module.CALLS == []
    assert again.same == (calls == new_calls and end == new_end)
    assert len(again.calls) == first
    if how == "none":
        for at in (None, *range(len(calls) + 1)):
            assert rerun(run, module.agent, at=at).same
