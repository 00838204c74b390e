"""What a failed attempt of a step has done answers the next attempt."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext

import pytest
from clocks import LIMIT, late_once
from flows import aflow_of, flow_of

import stepwise
from stepwise import CheckpointStore, RecoverableAgent, errors, step, tool
from stepwise._calls import call as retrying
from stepwise.errors import StepInDoubtError, UnusedRecordWarning
from stepwise.graph import CheckpointManager, Graph, GraphExecutor, Node
from stepwise.testing import fresh_store

ASKED: list[object] = []
SENT: list[object] = []
TRIED: list[object] = []  # what happened outside; no variables of a step, which would be recorded


@pytest.fixture(autouse=True)
def outside():
    with fresh_store():
        yield
    for happened in (ASKED, SENT, TRIED):
        happened.clear()


def run(function):
    """Call a step in a run of its own."""
    return flow_of(function)()


def answering_late(name, value):
    """A step that fails the first time it is called."""

    @step(name=name)
    def late():
        TRIED.append(name)
        if TRIED.count(name) == 1:
            raise OSError("busy")
        return value

    return late


def asks_and_sends():
    """A model's answer is sent, and another asked for in vain, the first time."""
    send(model("a"))
    found = model("b")
    fail()
    return found


@step
def model(prompt):
    """Answer another number each time."""
    ASKED.append(prompt)
    return len(ASKED)


@tool(side_effect=True)
def send(value):
    SENT.append(value)
    return value


def fail(times=1):
    """Raise the first few times."""
    TRIED.append("fail")
    if TRIED.count("fail") <= times:
        raise ConnectionError("away")


def test_a_side_effect_is_not_repeated():
    """A retried step asks again what it asked in vain, and repeats no side effect."""
    assert run(step(name="crew", retries=2, backoff=0)(asks_and_sends)) == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])


def test_nonsense_is_asked_again_after_the_run_failed():
    """A failed step that runs again at a later start asks again what it had asked in vain."""

    @step
    def ask():
        answer = model("a")
        if answer < 3:
            raise ValueError(answer)
        return answer

    for _ in range(2):
        with pytest.raises(ValueError, match=r"\d"):
            run(ask)
    assert run(ask) == 3
    assert len(ASKED) == 3


def test_a_cancelled_step_keeps_all():
    """A step that was cancelled from outside has not failed: all that it recorded answers."""

    @step
    async def slow():
        model("a")
        if not TRIED:
            TRIED.append("cancelled")
            await asyncio.Event().wait()
        return len(ASKED)

    limits = [0.2, 60]
    program = aflow_of(lambda: asyncio.wait_for(slow(), limits.pop(0)))
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(program())
    assert asyncio.run(program()) == 1


@pytest.mark.parametrize("in_doubt", ["raise", "retry"])
def test_a_doubtful_side_effect_of_a_failed_attempt(in_doubt):
    """A side effect that raised in a failed attempt is in doubt in the next; so is its key."""

    @tool(side_effect=True, in_doubt=in_doubt)
    def pay():
        TRIED.append(stepwise.current_step().idempotency_key)
        if len(TRIED) == 1:
            raise OSError("no answer")

    book = step(name="book", retries=3, backoff=0)(lambda: [pay()])
    with pytest.raises(StepInDoubtError) if in_doubt == "raise" else nullcontext():
        run(book)
    assert len(TRIED) == (1 if in_doubt == "raise" else 2)
    assert len(set(TRIED)) == 1


def test_a_handled_failure_before_a_side_effect():
    """A failure that a failed attempt had handled before its side effect is not tried again."""
    first = answering_late("first", 0)

    @step(retries=1, backoff=0)
    def crew():
        try:
            found = first()
        except OSError:
            found = model("a")
        send(found)
        fail()

    run(crew)
    assert (TRIED.count("first"), ASKED, SENT) == (1, ["a"], [1])


def test_the_failure_that_failed_the_attempt_is_tried_again():
    """A clean-up in the failed attempt does not make the failed call an outcome."""
    first = answering_late("first", 5)

    @step(retries=1, backoff=0)
    def crew():
        try:
            return first()
        except OSError:
            send("sorry")
            raise

    assert run(crew) == 5
    assert (len(TRIED), SENT) == (2, ["sorry"])


def test_a_side_effect_that_the_last_attempt_does_not_make():
    """It stays done, is reported, and answers no call outside of the step."""

    @step(retries=1, backoff=0)
    def crew():
        if not SENT:
            send("a")
            fail()

    with pytest.warns(UnusedRecordWarning, match="crew"):
        run(lambda: [crew(), send("a")])
    assert SENT == ["a", "a"]


@pytest.mark.parametrize("retries", [(1, 0), (0, 1), (1, 1)])
def test_steps_in_steps(retries):
    """Whichever of two nested steps is retried, a side effect of the inner one happens once."""

    @step(retries=retries[0], backoff=0)
    def inner():
        send(model("a"))
        fail()

    @step(retries=retries[1], backoff=0)
    def outer():
        inner()
        return model("b")

    assert run(outer) == 2
    assert (ASKED, SENT) == (["a", "b"], [1])


@pytest.mark.parametrize("again", ["by a retry", "by its caller", "in the next run"])
def test_attempts_that_end_before_an_earlier_side_effect(again):
    """A side effect that the last attempt did not reach answers the next one, or stops and asks."""
    fails = [False, False, True, False, True, *[False] * 9]

    @step(retries=1, backoff=0)
    def inner():
        answer = model("a")
        for _ in range(2):
            if fails.pop(0):
                raise OSError("busy")
        return send(answer)

    @step(retries=1 if again == "by a retry" else 0, backoff=0, retry_on=OSError)
    def outer():
        TRIED.append("outer")
        try:
            found = inner()
        except OSError:
            if again != "by its caller":
                raise
            found = inner()
        if len(TRIED) == 1:
            raise ValueError("sold out")
        return found

    flow = flow_of(outer)
    with pytest.raises(ValueError, match="sold out"):
        flow()
    if again == "in the next run":
        with pytest.raises(OSError, match="busy"):
            flow()
    if again == "by its caller":  # another call, which asks the model for itself
        with pytest.raises(StepInDoubtError, match="differs   in the argument 'value'"):
            flow()
    else:
        assert flow() == 1
        assert ASKED == ["a"]
    assert SENT == [1]


def test_a_child_run_in_a_failed_attempt():
    """A completed child run answers the next attempt."""
    child = flow_of(lambda: model("a"), run_id=None)

    @step(retries=1, backoff=0)
    def outer():
        done = child()
        fail()
        return done

    assert run(outer) == 1
    assert ASKED == ["a"]


# -- tasks and threads -----------------------------------------------------------------------------


def test_a_side_effect_beside_the_failure(monkeypatch, told):
    """A retry waits for a side effect that a task of the failed attempt still executes, says so."""
    monkeypatch.setattr(retrying, "_PATIENCE", 0)

    @tool(side_effect=True)
    async def send():
        for _ in range(10):
            await asyncio.sleep(0)
        SENT.append(1)

    @step
    async def model():
        ASKED.append(1)
        await asyncio.sleep(0)
        if len(ASKED) == 1:
            raise ConnectionError("away")

    @step(retries=1, backoff=0)
    async def crew():
        await asyncio.gather(send(), model())

    asyncio.run(aflow_of(crew)())
    assert (len(SENT), len(ASKED)) == (1, 2)
    assert "the retry of crew waits for 1 side effect" in told()


def test_a_task_that_outlives_a_failed_attempt():
    """It makes no more calls: the next attempt makes them."""
    go_on, tasks = asyncio.Event(), []

    @tool(side_effect=True)
    async def write(value):
        SENT.append(value)

    async def branch():
        await go_on.wait()
        try:
            await write("a")
        except errors.OutsideRunError as error:
            TRIED.append(str(error))

    @step(retries=1, backoff=0)
    async def crew():
        tasks.append(asyncio.create_task(branch()))
        if len(tasks) == 1:
            raise ConnectionError("away")
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(aflow_of(crew)())
    assert SENT == ["a"]
    assert "outlived an attempt of" in TRIED[0]


def test_a_body_past_its_timeout_makes_no_more_calls(monkeypatch):
    """A synchronous body that was abandoned after its timeout cannot do what its retry does."""
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    late_once(monkeypatch, begun)

    @step(retries=1, backoff=0, timeout=LIMIT)
    def crew():
        if stepwise.current_step().attempt == 1:
            begun.set()
            go_on.wait()
            try:
                send("a")
            except errors.OutsideRunError as error:
                TRIED.append(error)
            over.set()
        else:
            send("a")

    run(lambda: [crew(), go_on.set(), over.wait()])
    assert SENT == ["a"]
    assert len(TRIED) == 1


def test_a_side_effect_past_the_timeout_of_its_step_is_in_doubt(monkeypatch):
    """The retry of a step that was abandoned in a side effect asks whether that happened."""
    begun, go_on = threading.Event(), threading.Event()
    late_once(monkeypatch, begun)

    def look(call):
        ASKED.append(call.idempotency_key)
        go_on.set()
        return stepwise.Landed("sent")

    @tool(side_effect=True, in_doubt=look)
    def slow():
        SENT.append(stepwise.current_step().idempotency_key)
        begun.set()
        go_on.wait()

    crew = step(name="crew", retries=1, backoff=0, timeout=LIMIT)(lambda: [slow()])
    assert run(crew) == ["sent"]
    assert len(SENT) == 1
    assert ASKED == SENT


def test_branches_of_a_map_fail_apart():
    """A retried item of a map meets its own side effects, not those of other items."""

    @step(retries=2, backoff=0)
    def item(value):
        send(value)
        if value not in TRIED:
            TRIED.append(value)
            raise ConnectionError("away")
        return value

    assert run(lambda: list(stepwise.map(item, range(6), max_workers=3))) == [*range(6)]
    assert sorted(SENT) == [*range(6)]


# -- graphs and agents -----------------------------------------------------------------------------


def test_a_retried_node():
    """A retried node asks again what it asked in vain, and repeats no side effect."""

    def node(memory):
        memory["found"] = asks_and_sends()

    graph = Graph([Node("n", node, retries=1, backoff=0)], [])
    executor = GraphExecutor(None, CheckpointManager(None))
    result = asyncio.run(executor.execute(graph, "goal", {}))
    assert result.output["found"] == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])


@pytest.mark.parametrize("recoveries", [1, 0])
def test_a_recovered_agent(recoveries):
    """A recovered agent asks again what it asked in vain; so does one that is started again."""

    async def agent(ctx):
        await ctx.tool(send, await ctx.tool(model, "a"))
        found = await ctx.tool(model, "b")
        fail()
        return found

    agent = RecoverableAgent(agent, CheckpointStore(), max_recoveries=recoveries)
    if not recoveries:
        with pytest.raises(ConnectionError):
            asyncio.run(agent.run_with_recovery("t", "r"))
    assert asyncio.run(agent.run_with_recovery("t", "r"))["result"] == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])
