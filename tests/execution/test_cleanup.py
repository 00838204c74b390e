"""Side effects of a clean-up: what a workflow calls while a failure leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest
from survival import lab_of
from sweeping import size

import stepwise
from stepwise import Landed, StepInDoubtError, step, tool, workflow
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


GONE = OSError("gone")


def fails(form, error=GONE, **others):
    """Call a workflow whose step fails, and then its clean-up; which is mended afterwards."""
    broken.update(think=ValueError("no idea"), **(others or {"bye": error}))
    with pytest.raises(type(error), match=str(error) or None):
        run(form)
    broken.clear()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.definition.label)
@pytest.mark.parametrize("again", ["fails again", "is mended"])
def test_failed_in_a_clean_up(form, again):
    """A side effect that fails while a failure unwinds the run is in doubt at the next start."""
    fails(form)
    assert sent == ["think", "bye"]
    if again == "fails again":
        broken.update(think=ValueError("no idea"))
    for _ in range(2):
        with pytest.raises(StepInDoubtError, match="send"):
            run(form)
    assert sent.count("bye") == 1


@pytest.mark.parametrize("form", [in_finally, in_a_coroutine], ids=["plain", "coroutine"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=["Ctrl-C", "exit"])
def test_interrupted_in_a_clean_up(form, error):
    """A side effect that Ctrl-C or an exit cut short in a clean-up is in doubt afterwards."""
    fails(form, error)
    with pytest.raises(StepInDoubtError, match="send"):
        run(form)
    assert sent.count("bye") == 1


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda form: form.definition.label)
@pytest.mark.parametrize("landed", [True, False])
def test_settled_after_a_clean_up(form, landed):
    """Once somebody has settled it, the run goes on with that answer."""
    fails(form)
    [failed] = stepwise.runs()
    [doubtful] = [each for each in failed.steps if each.status == "in_doubt"]
    if landed:
        failed.resolve(doubtful.number, landed="it was sent")
    else:
        failed.resolve(doubtful.number, did_not_happen=True)
    assert run(form) == "think"
    assert sent.count("bye") == (1 if landed else 2)


def test_asking_whether_a_clean_up_happened():
    """A tool's own ``in_doubt`` decides about a clean-up that failed, mended or not."""
    asked = []

    def look(call):
        asked.append(call.arguments["text"])
        return Landed("seen")

    tell = tool(name="tell", side_effect=True, in_doubt=look)(lambda text: act(text))  # noqa: PLW0108

    @workflow
    def agent():
        try:
            return think()
        finally:
            tell("bye")

    fails(agent)
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
    """What a clean-up handled, or completed after a failure of its own, is no obstacle later."""

    @workflow
    def agent():
        try:
            think()
            send("hello")
        except ValueError:
            with contextlib.suppress(OSError):
                send("well")
            try:
                send("sorry")
            except OSError:
                send("sorry, by post")
            raise

    gone = {"well": OSError("gone"), "sorry": OSError("gone")}
    fails(agent, ValueError("no idea"), **gone)
    agent()
    assert sent == ["think", "well", "sorry", "sorry, by post", "think", "hello"]


@pytest.mark.parametrize("mended", [False, True], ids=["fails again", "is mended"])
def test_settled_beside_other_side_effects(mended):
    """Once settled, a clean-up's side effect holds up no other call of its tool."""

    @workflow
    def agent():
        try:
            think()
            send("hello")
        finally:
            send("first")
            send("bye")

    fails(agent)
    if not mended:
        broken.update(think=ValueError("no idea"))
    with pytest.raises(StepInDoubtError, match="bye"):
        agent()
    [failed] = stepwise.runs()
    failed.resolve("send", landed="it was sent")
    with contextlib.nullcontext() if mended else pytest.raises(ValueError, match="no idea"):
        agent()
    assert [sent.count(each) for each in ("bye", "first", "hello")] == [1, 1 + mended, mended]


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


@pytest.mark.parametrize("seed", range(int(os.environ.get("STEPWISE_EXAMPLES") or size(16, 40))))
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
                run.resolve(
                    each.number, **({"landed": None} if happened else {"did_not_happen": True})
                )
            doubtful = set()
    raise AssertionError(f"it never ends:\n{program.source}")


KILLED = """
    @step
    def think():
        doing("think()", 0)
        raise ValueError("no idea")

    @workflow
    def agent():
        try:
            think()
        finally:
            act("bye")
            work("note")

    def run():
        try:
            agent()
        except stepwise.StepInDoubtError:
            return "in doubt"
        except ValueError as error:
            return str(error)
"""


@pytest.mark.parametrize("where", ["before", "after"])
def test_killed_in_a_clean_up(where):
    """Killed in its clean-up, a run resumes there: the failure is not tried again first."""
    with lab_of(KILLED) as lab:
        assert lab.run(die_at="act(bye) after" if where == "before" else "work(note) before").died
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result == ("in doubt" if where == "before" else "no idea")
        expected = {"think()": 1, "act(bye)": 1, **({"work(note)": 1} if where == "after" else {})}
        assert lab.did == expected
