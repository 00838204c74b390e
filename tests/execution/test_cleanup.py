"""Side effects of a clean-up: what a workflow calls while a failure leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

import stepwise
from stepwise import DidNotHappen, Landed, StepInDoubtError, step, tool, workflow
from stepwise.testing import fresh_store

# Each test's world: what happened outside, and what still goes wrong.
sent: list[str] = []
broken: dict[str, BaseException] = {}


@pytest.fixture(autouse=True)
def world():
    sent.clear()
    broken.clear()
    with fresh_store():
        yield


def act(name):
    sent.append(name)
    if name in broken:
        raise broken[name]
    return name


@step
def think():
    return act("think")


@step
async def athink():
    return act("think")


@tool(side_effect=True)
def send(text):
    return act(text)


@tool(side_effect=True)
async def asend(text):
    return act(text)


@step
def clean_up():
    return send("bye")


@workflow
def in_finally():
    try:
        return think()
    finally:
        send("bye")


@workflow
def in_finally_inside_a_step():
    try:
        return think()
    finally:
        clean_up()


@workflow
def in_an_exit():
    with contextlib.ExitStack() as stack:
        stack.callback(send, "bye")
        return think()


@workflow
async def in_a_coroutine():
    try:
        return await athink()
    finally:
        await asend("bye")


@workflow
async def in_a_gather():
    try:
        return await athink()
    finally:
        await asyncio.gather(asend("bye"))


FORMS = [in_finally, in_finally_inside_a_step, in_an_exit, in_a_coroutine, in_a_gather]


def run(form):
    """A call of a workflow, of either form."""
    result = form()
    return asyncio.run(result) if form.definition.is_coroutine else result


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.definition.label)
@pytest.mark.parametrize("again", ["fails again", "is mended"])
def test_failed_in_a_clean_up(form, again):
    """A side effect that fails while a failure unwinds the run is in doubt at the next start."""
    broken.update(think=ValueError("no idea"), bye=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        run(form)
    assert sent == ["think", "bye"]
    del broken["bye"]
    if again == "is mended":
        del broken["think"]
    for _ in range(2):
        with pytest.raises(StepInDoubtError, match="send"):
            run(form)
    assert sent.count("bye") == 1


@pytest.mark.parametrize("form", [in_finally, in_a_coroutine], ids=["plain", "coroutine"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=["Ctrl-C", "exit"])
def test_interrupted_in_a_clean_up(form, error):
    """A side effect that Ctrl-C or an exit cut short in a clean-up is in doubt afterwards."""
    broken.update(think=ValueError("no idea"), bye=error)
    with pytest.raises(type(error)):
        run(form)
    broken.clear()
    with pytest.raises(StepInDoubtError, match="send"):
        run(form)
    assert sent.count("bye") == 1


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda form: form.definition.label)
@pytest.mark.parametrize("landed", [True, False])
def test_settled_after_a_clean_up(form, landed):
    """Once somebody has settled it, the run goes on with that answer."""
    broken.update(think=ValueError("no idea"), bye=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        run(form)
    broken.clear()
    [failed] = stepwise.runs()
    [doubtful] = [each for each in failed.steps if each.status == "in_doubt"]
    if landed:
        failed.resolve(doubtful.number, Landed("it was sent"))
    else:
        failed.resolve(doubtful.number, DidNotHappen)
    assert run(form) == "think"
    assert sent.count("bye") == (1 if landed else 2)


def test_asking_whether_a_clean_up_happened():
    """A tool's own ``in_doubt`` decides about a clean-up that failed, mended or not."""
    asked = []

    def look(call):
        asked.append(call.arguments["text"])
        return Landed("seen")

    @tool(side_effect=True, in_doubt=look)
    def tell(text):
        return act(text)

    @workflow
    def agent():
        try:
            return think()
        finally:
            tell("bye")

    broken.update(think=ValueError("no idea"), bye=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        agent()
    broken.clear()
    assert agent() == "think"
    assert (asked, sent.count("bye")) == (["bye"], 1)


def test_completed_in_a_clean_up():
    """What a clean-up completed is not done again for the same failure, but for another end."""
    broken.update(think=ValueError("no idea"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no idea"):
            in_finally()
    broken.clear()
    assert in_finally() == "think"
    assert sent == ["think", "bye", "think", "think", "bye"]


def test_completed_in_a_clean_up_of_a_clean_up():
    """What a clean-up completed after a failure of its own is no obstacle to the next start."""

    @workflow
    def agent():
        try:
            think()
            send("hello")
        except ValueError:
            try:
                send("sorry")
            except OSError:
                send("sorry, by post")
            raise

    broken.update(think=ValueError("no idea"), sorry=OSError("gone"))
    with pytest.raises(ValueError, match="no idea"):
        agent()
    broken.clear()
    agent()
    assert sent == ["think", "sorry", "sorry, by post", "think", "hello"]


@pytest.mark.parametrize("again", ["fails again", "is mended"])
def test_settled_beside_other_side_effects(again):
    """Once settled, a clean-up's side effect holds up no other call of its tool."""

    @workflow
    def agent():
        try:
            think()
            send("hello")
        finally:
            send("first")
            send("bye")

    broken.update(think=ValueError("no idea"), bye=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        agent()
    del broken["bye"]
    if again == "is mended":
        del broken["think"]
    with pytest.raises(StepInDoubtError, match="bye"):
        agent()
    [failed] = stepwise.runs()
    failed.resolve("send", Landed("it was sent"))
    if again == "is mended":
        agent()
    else:
        with pytest.raises(ValueError, match="no idea"):
            agent()
    assert sent.count("bye") == 1
    assert sent.count("first") == (2 if again == "is mended" else 1)
    assert sent.count("hello") == (1 if again == "is mended" else 0)


def test_a_failure_that_a_clean_up_handled():
    """A failed side effect that the clean-up itself handled does not hold up the next start."""

    @workflow
    def agent():
        try:
            return think()
        except ValueError:
            with contextlib.suppress(OSError):
                send("sorry")
            raise

    broken.update(think=ValueError("no idea"), sorry=OSError("gone"))
    with pytest.raises(ValueError, match="no idea"):
        agent()
    broken.clear()
    assert agent() == "think"


class Program:
    """A random workflow of steps and side effects that fail, handled or not, at any depth."""

    def __init__(self, chance):
        self.chance = chance
        self.calls = 0
        self.source = "def agent():\n" + self.block(3, "    ")

    def block(self, depth, indent):
        return "".join(self.statement(depth, indent) for _ in range(self.chance.randint(1, 3)))

    def statement(self, depth, indent):
        kind = self.chance.choice(("call", "finally", "except", "raise")) if depth else "call"
        if kind == "call":
            self.calls += 1
            step = self.chance.choice(("some_step", "some_tool", "some_tool", "both"))
            return f"{indent}{step}('{self.calls}')\n"
        inner = f"{indent}    "
        body, clean_up = self.block(depth - 1, inner), self.block(depth - 1, inner)
        head = "finally" if kind == "finally" else "except ValueError"
        tail = f"{inner}raise\n" if kind == "raise" else ""
        return f"{indent}try:\n{body}{indent}{head}:\n{clean_up}{tail}"

    def act(self, name):
        sent.append(name)
        if self.chance.random() < self.risk:
            raise ValueError(name)

    def load(self, path):
        path.write_text(self.source, encoding="utf-8")
        some_step = step(name="some_step")(self.act)
        some_tool = tool(side_effect=True, name="some_tool")(self.act)
        both = step(name="both")(lambda name: (some_step(name + "a"), some_tool(name + "b")))
        names = {"some_step": some_step, "some_tool": some_tool, "both": both}
        exec(compile(self.source, str(path), "exec"), names)
        return workflow(names["agent"])


@pytest.mark.parametrize("seed", range(int(os.environ.get("STEPWISE_EXAMPLES", "40"))))
def test_random_programs(tmp_path, seed):
    """What is in doubt is never repeated before it is settled, and nothing else holds a run up."""
    program = Program(random.Random(seed))
    agent = program.load(tmp_path / "agent.py")
    doubtful = set()
    for risk in (0.25, 0.25, 0.15, 0.15, 0.05, 0.05, 0, 0, 0):
        sent.clear()
        program.risk = risk
        stopped = completed = False
        try:
            agent()
            completed = True
        except ValueError:
            pass
        except StepInDoubtError:
            stopped = True
        assert doubtful.isdisjoint(sent), program.source
        if completed:
            return
        [run] = stepwise.runs()
        steps = [each for each in run.steps if each.status == "in_doubt"]
        doubtful = {each.arguments.split("'")[1] for each in steps}
        if stopped:
            assert steps, program.source
            for each in steps:
                happened = program.chance.random() < 0.5
                run.resolve(each.number, Landed(None) if happened else DidNotHappen)
            doubtful = set()
    raise AssertionError(f"it never ends:\n{program.source}")


@pytest.mark.parametrize("where", ["before", "after"])
def test_killed_in_a_clean_up(start, tmp_path, where):
    """Killed in its clean-up, a run resumes there: the failure is not tried again first."""
    source = f"""
import sys
from stepwise import step, tool, workflow, StepInDoubtError

@step
def think():
    print("think", flush=True)
    raise ValueError("no idea")

@tool(side_effect=True)
def send(text):
    print(text, flush=True)
    if {where == "before"}:
        sys.stdin.readline()

@step
def note():
    print("note", flush=True)
    sys.stdin.readline()

@workflow
def agent():
    try:
        think()
    finally:
        send("bye")
        note()

try:
    agent()
except StepInDoubtError:
    print("in doubt")
except ValueError as error:
    print(error)
"""
    (tmp_path / "cleaning.py").write_text(source, encoding="utf-8")
    first = start("import cleaning")
    assert [first.hear(), first.hear()] == ["think", "bye"]
    if where == "after":
        assert first.hear() == "note"
    first.kill()
    again = start("import cleaning")
    again.tell()
    assert again.finish() == ("in doubt" if where == "before" else "note\nno idea")
