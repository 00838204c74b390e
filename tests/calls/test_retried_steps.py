"""What a failed attempt of a step has done answers the next attempt."""

from __future__ import annotations

import asyncio
import threading

import pytest

import stepwise
from stepwise import CheckpointStore, RecoverableAgent, errors, step, tool, workflow
from stepwise._calls import retrying
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

    @workflow
    def program():
        return function()

    return program()


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
    """A completed side effect within a step is not repeated by the step's retry."""

    @step(retries=2, backoff=0)
    def crew():
        send(model("a"))
        found = model("b")
        fail(2)
        return found

    assert run(crew) == 4
    assert (ASKED, SENT) == (["a", "b", "b", "b"], [1])


def test_nonsense_is_asked_again_after_the_run_failed():
    """A failed step that runs again at a later start asks again what it had asked in vain."""

    @step
    def ask():
        answer = model("a")
        if answer < 3:
            raise ValueError(answer)
        return answer

    @workflow
    def program():
        return ask()

    for _ in range(2):
        with pytest.raises(ValueError, match=r"\d"):
            program()
    assert program() == 3
    assert len(ASKED) == 3


def test_a_cancelled_step_keeps_all():
    """A step that was cancelled from outside has not failed: all that it recorded answers."""

    @step
    async def model():
        ASKED.append(1)

    @step
    async def slow():
        await model()
        if not TRIED:
            TRIED.append("cancelled")
            await asyncio.Event().wait()
        return len(ASKED)

    @workflow
    async def program():
        return await asyncio.wait_for(slow(), 0.2)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(program())
    assert asyncio.run(program()) == 1


def test_a_doubtful_side_effect_of_a_failed_attempt():
    """A side effect that raised in a failed attempt is in doubt in the next one."""

    @tool(side_effect=True)
    def pay():
        TRIED.append(stepwise.current_step().idempotency_key)
        raise OSError("no answer")

    @step(retries=3, backoff=0)
    def book():
        pay()

    with pytest.raises(StepInDoubtError):
        run(book)
    assert len(TRIED) == 1


def test_a_doubtful_side_effect_keeps_its_key():
    """``in_doubt="retry"`` repeats the side effect of a failed attempt with its recorded key."""

    @tool(side_effect=True, in_doubt="retry")
    def pay():
        TRIED.append(stepwise.current_step().idempotency_key)
        if len(TRIED) == 1:
            raise OSError("no answer")

    @step(retries=3, backoff=0)
    def book():
        pay()

    run(book)
    assert len(TRIED) == 2
    assert len(set(TRIED)) == 1


def test_a_handled_failure_before_a_side_effect():
    """A failure that a failed attempt had handled before its side effect is not tried again."""

    @step
    def first():
        TRIED.append(1)
        if len(TRIED) == 1:
            raise OSError("busy")
        return 0

    @step(retries=1, backoff=0)
    def crew():
        try:
            found = first()
        except OSError:
            found = model("a")
        send(found)
        fail()

    run(crew)
    assert (TRIED.count(1), ASKED, SENT) == (1, ["a"], [1])


def test_the_failure_that_failed_the_attempt_is_tried_again():
    """A clean-up in the failed attempt does not make the failed call an outcome."""

    @step
    def first():
        TRIED.append(1)
        if len(TRIED) == 1:
            raise OSError("busy")
        return 5

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

    @workflow
    def program():
        crew()
        send("a")

    with pytest.warns(UnusedRecordWarning, match="crew"):
        program()
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


def test_a_child_run_in_a_failed_attempt():
    """A completed child run answers the next attempt."""

    @workflow
    def child():
        return model("a")

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

    @workflow
    async def program():
        await crew()

    asyncio.run(program())
    assert (len(SENT), len(ASKED)) == (1, 2)
    assert "the retry of crew waits for 1 side effect" in told()


def test_a_task_that_outlives_a_failed_attempt():
    """It makes no more calls: the next attempt makes them."""
    go_on = asyncio.Event()

    @tool(side_effect=True)
    async def write(value):
        SENT.append(value)

    async def branch():
        await go_on.wait()
        try:
            await write("a")
        except errors.OutsideRunError as error:
            TRIED.append(str(error))

    tasks = []

    @step(retries=1, backoff=0)
    async def crew():
        tasks.append(asyncio.create_task(branch()))
        if len(tasks) == 1:
            raise ConnectionError("away")
        go_on.set()
        await asyncio.gather(*tasks)

    @workflow
    async def program():
        await crew()

    asyncio.run(program())
    assert SENT == ["a"]
    assert "outlived an attempt of" in TRIED[0]


def test_a_body_past_its_timeout_makes_no_more_calls():
    """A synchronous body that was abandoned after its timeout cannot do what its retry does."""
    go_on, over = threading.Event(), threading.Event()

    @step(retries=1, backoff=0, timeout=0.3)
    def crew():
        if stepwise.current_step().attempt == 1:
            go_on.wait()
            try:
                send("a")
            except errors.OutsideRunError as error:
                TRIED.append(error)
            over.set()
        else:
            send("a")

    @workflow
    def program():
        crew()
        go_on.set()
        over.wait()

    program()
    assert SENT == ["a"]
    assert len(TRIED) == 1


def test_a_side_effect_past_the_timeout_of_its_step_is_in_doubt():
    """The retry of a step that was abandoned in a side effect asks whether that happened."""
    go_on = threading.Event()

    def look(call):
        ASKED.append(call.idempotency_key)
        go_on.set()
        return stepwise.Landed("sent")

    @tool(side_effect=True, in_doubt=look)
    def slow():
        SENT.append(stepwise.current_step().idempotency_key)
        go_on.wait()

    @step(retries=1, backoff=0, timeout=0.3)
    def crew():
        return slow()

    assert run(crew) == "sent"
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

    @workflow
    def program():
        return stepwise.map(item, range(6), max_workers=3)

    assert list(program()) == [*range(6)]
    assert sorted(SENT) == [*range(6)]


# -- graphs and agents -----------------------------------------------------------------------------


def test_a_retried_node():
    """A retried node asks again what it asked in vain, and repeats no side effect."""

    def node(memory):
        send(model("a"))
        memory["found"] = model("b")
        fail()

    graph = Graph([Node("n", node, retries=1, backoff=0)], [])
    executor = GraphExecutor(None, CheckpointManager(None))
    result = asyncio.run(executor.execute(graph, "goal", {}))
    assert result.output["found"] == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])


def test_a_recovered_agent():
    """A recovered agent asks again what it asked in vain, and repeats no side effect."""

    async def agent(ctx):
        await ctx.tool(send, await ctx.tool(model, "a"))
        found = await ctx.tool(model, "b")
        fail()
        return found

    ran = RecoverableAgent(agent, CheckpointStore()).run_with_recovery("t", "r")
    assert asyncio.run(ran)["result"] == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])


def test_an_agent_that_failed_for_good():
    """Started again, an agent whose last recovery failed asks again what it asked in vain."""

    async def agent(ctx):
        await ctx.tool(send, await ctx.tool(model, "a"))
        found = await ctx.tool(model, "b")
        fail()
        return found

    agent = RecoverableAgent(agent, CheckpointStore(), max_recoveries=0)
    with pytest.raises(ConnectionError):
        asyncio.run(agent.run_with_recovery("t", "r"))
    assert asyncio.run(agent.run_with_recovery("t", "r"))["result"] == 3
    assert (ASKED, SENT) == (["a", "b", "b"], [1])
