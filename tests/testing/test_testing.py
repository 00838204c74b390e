"""What users test their agents with: stores of their own, crashes at a step, and everywhere."""

import asyncio
import contextlib
import pathlib

import pytest
from outside import Log
from resuming import crashed, resumed
from sweeping import WHOLE

import stepwise
from stepwise import Landed, StepInDoubtError, step, tool, workflow
from stepwise.stores import open_store
from stepwise.testing import CrashReport, SimulatedCrash, crash_at, fresh_store

# -- crash_at ------------------------------------------------------------------------------------


@pytest.fixture
def done():
    with fresh_store():
        yield []


def test_assertions_in_workflows_of_a_test_file(done):
    """A failed assertion says what pytest says of it, also after a resume and in nested code."""

    def both(items):
        def nested():
            assert items == [1, 3]

        try:
            assert items == [1, 2, 3]
        except AssertionError as first:
            told.append(str(first))
        assert note(items)
        nested()

    @step
    def note(items):
        return items

    told = []
    with pytest.raises(AssertionError) as plainly:
        both([1, 2])
    agent = workflow(both)
    for crash in (contextlib.nullcontext(), crash_at(note), contextlib.nullcontext()):
        with pytest.raises((AssertionError, SimulatedCrash)) as caught, crash:
            agent([1, 2])
        assert str(caught.value) == str(plainly.value) or caught.type is SimulatedCrash
    assert "At index 1 diff" in str(plainly.value)
    assert {*told} == {told[0]}
    assert "Right contains one more item" in told[0]


def an_agent(done, **options):
    @step
    def think(n):
        done.append(f"think {n}")
        return n

    @tool(side_effect=True, **options)
    def send(text):
        done.append(f"send {text}")
        return text.upper()

    @workflow
    def agent(n):
        return [think(each) for each in range(n)] + [send("done")]

    return agent, think, send


@pytest.mark.parametrize("when", ["before", "after", "recorded"])
def test_a_crash_at_a_step(done, when):
    """The run crashes before, after, or once the step is recorded; called again, it goes on."""
    agent, think, _ = an_agent(done)
    with pytest.raises(SimulatedCrash, match=f"{when} .*think"), crash_at(think, when, call=2):
        agent(3)
    assert agent(3) == [0, 1, 2, "DONE"]
    again = {"before": 1, "after": 2, "recorded": 1}[when]
    assert done == ["think 0", *["think 1"] * again, "think 2", "send done"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("settled", [False, True])
def test_a_crash_inside_a_side_effect(done, when, settled):
    """Crashed inside a side effect, the next call is in doubt, or settled, as after a crash."""
    options = {"in_doubt": lambda call: Landed("LOOKED")} if settled else {}
    agent, _, send = an_agent(done, **options)
    crashed(agent, 1, at=send, when=when)
    if settled:
        assert agent(1) == [0, "LOOKED"]
    else:
        with pytest.raises(StepInDoubtError):
            agent(1)
    assert done == ["think 0", "send done"][: 2 if when == "after" else 1]


def test_a_simulated_crash_is_called_one(done):
    """A run that a test crashed says so, and not that somebody pressed Ctrl-C."""
    agent, think, _ = an_agent(done)
    with pytest.raises(SimulatedCrash), crash_at(think):
        agent(1)
    (run,) = stepwise.runs()
    assert "a simulated crash before think(n=0)" in str(run.why())
    assert "Ctrl-C" not in str(run.why())


def test_crash_at_that_never_crashes(done):
    """A test that crashes nothing fails, and tells which steps were executed."""
    agent, think, _ = an_agent(done)
    with (
        pytest.raises(AssertionError, match=r"steps executed: .*think.*send"),
        crash_at(think, call=9),
    ):
        agent(2)


def test_crash_at_what_is_no_step(done):
    """Only steps and tools can be crashed at, at the three moments that there are."""
    with pytest.raises(stepwise.ConfigurationError, match="a step, a tool or its name"):
        crash_at(len)
    with pytest.raises(stepwise.ConfigurationError, match="'before', 'after' or 'recorded'"):
        crash_at("send", "later")


def test_a_crash_at_a_step_of_a_coroutine(done):
    """Asynchronous workflows crash and go on in the same way."""

    @step
    async def think(n):
        done.append(n)
        return n

    @workflow
    async def agent():
        return [await think(1), await think(2)]

    assert resumed(lambda: asyncio.run(agent()), at=think, when="recorded") == [1, 2]
    assert done == [1, 2]


# -- crash_everywhere ----------------------------------------------------------------------------


@step
def think(n: int) -> int:
    return n * n


@tool(side_effect=True)
def post(path: str, text: str) -> int:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")
        return file.tell()


@workflow
def child(path: str) -> int:
    return post(path, f"child {think(7)}")


@workflow
def agent(path: str) -> list:
    found = [think(2)]
    try:
        found.append(post(path, "first"))
        post(path, "first")  # twice on purpose
    finally:
        found.append(think(3))
    found.append(child(path))
    return found


@step
async def athink(n: int) -> int:
    await asyncio.sleep(0)
    return n


@workflow
async def concurrent_agent(path: str) -> list:
    return [*await asyncio.gather(*map(athink, range(3))), post(path, "once")]


@pytest.fixture
def outbox(tmp_path):
    return tmp_path / "outbox"


def reset(outbox):
    return lambda: outbox.write_text("")


@pytest.mark.parametrize("workflow", [agent, concurrent_agent], ids=["agent", "concurrent"])
def test_an_agent_that_is_crash_safe(crash_everywhere, outbox, workflow):
    """An agent is killed before, inside and after each step, and each time ends as undisturbed."""
    limit = 3 if workflow is agent and not WHOLE else None
    world = {"setup": reset(outbox), "effects": outbox.read_text}
    report = crash_everywhere(workflow, str(outbox), limit=limit, **world)
    steps, effects = {"agent": (6, 3), "concurrent_agent": (4, 1)}[workflow.__name__]
    assert isinstance(report, CrashReport)
    if limit is None:
        assert len(report.points) == 3 * steps
        assert len(report.in_doubt) == 2 * effects
    assert report.starts >= 1 + 2 * len(report.points)
    assert stepwise.runs() == []


def test_points_can_be_limited(crash_everywhere, outbox):
    """With a limit, so many points are tried at most, spread over the run."""
    report = crash_everywhere(agent, str(outbox), setup=reset(outbox), limit=2)
    assert len(report.points) == 2


@workflow
def careless(path: str) -> int:
    """Its outside change is in no step, and in a block that is entered anew: negative control."""
    with pathlib.Path(path).open("a") as file:
        file.write("x")
        file.flush()
        think(1)
    return think(2)


@tool(side_effect=True, in_doubt="skip")
def skipped(path: str) -> str:
    pathlib.Path(path).write_text("sent")
    return "sent"


@workflow
def skipping(path: str) -> str:
    return skipped(path)


@workflow
def dice(path: str) -> int:
    import secrets

    return think(1) + secrets.randbits(60)


@pytest.mark.parametrize(
    ("workflow", "told"),
    [
        (careless, "the effects differ"),
        (skipping, "the result differs|not at all: skipped"),
        (dice, "the result differs"),
    ],
    ids=["careless", "skipping", "dice"],
)
def test_an_agent_that_is_not_crash_safe(crash_everywhere, outbox, workflow, told):
    """An agent that loses, doubles or changes something fails the test, which says where."""
    with pytest.raises(AssertionError, match=f"(?s)killed (before|after|recorded).*({told})"):
        crash_everywhere(workflow, str(outbox), setup=reset(outbox), effects=outbox.read_text)


def test_results_compared_by_the_user(crash_everywhere, outbox):
    """Results that differ for a good reason are compared by a function of the user's."""
    crash_everywhere(dice, str(outbox), setup=reset(outbox), compare=lambda one, other: True)


def test_a_workflow_without_steps(crash_everywhere):
    """A function that executes no step cannot be crashed, and the error asks why."""
    with pytest.raises(AssertionError, match="is it a @workflow that calls steps"):
        crash_everywhere(lambda: 3)


def test_a_workflow_that_fails(crash_everywhere, outbox):
    """A workflow that raises must raise the same after every crash."""
    crash_everywhere(failing, str(outbox), setup=reset(outbox), limit=2)


@workflow
def failing(path: str) -> None:
    post(path, "a")
    raise ValueError("always")


# -- fresh_store ---------------------------------------------------------------------------------


def test_a_fresh_store_knows_nothing():
    """Each block has a store that is empty, and does what a new process would do; blocks nest."""
    done, ids = Log(), set()
    agent, *_ = an_agent(done)
    with fresh_store() as outer:
        for _ in range(2):
            with fresh_store() as inner:
                assert open_store(stepwise._runtime.settings.store()) is inner is not outer
                assert agent(1) == [0, "DONE"]
                assert [run.status for run in stepwise.runs()] == ["completed"]
                ids |= {head.run_id for head in inner.heads()}
        assert open_store(stepwise._runtime.settings.store()) is outer
        assert stepwise.runs() == []
    assert done == ["think 0", "send done"] * 2
    assert len(ids) == 1


def test_a_fresh_store_on_disk_outlives_its_block(tmp_path):
    """Two blocks with one folder are a program and its next start."""
    done = Log()
    agent, *_ = an_agent(done)
    for _ in range(2):
        with fresh_store(tmp_path / "runs"):
            assert agent(1) == [0, "DONE"]
            assert len(stepwise.runs()) == 1
    assert done == ["think 0", "send done"]


def test_after_the_block_all_is_as_before(home):
    """The store and the memory that were set before the block hold again after it."""
    done = Log()
    agent, *_ = an_agent(done)
    stepwise.configure(store="memory:mine")
    before = vars(stepwise._runtime.settings._settings).copy()
    agent(1)
    with pytest.raises(ZeroDivisionError), fresh_store():
        stepwise.configure(store="memory:other", quiet=True)
        agent(1)
        raise ZeroDivisionError
    assert vars(stepwise._runtime.settings._settings) == before
    agent(1)
    assert len(stepwise.runs()) == 2
    assert done == ["think 0", "send done"] * 3
    assert not home.exists()


def test_a_decorated_function_has_a_fresh_store():
    """Decorated, a function and a coroutine function have a new store in each call."""
    done = []

    @fresh_store()
    def look(x, *, y):
        """Doc."""
        return x, y, an_agent(done)[0](1) and len(stepwise.runs())

    @fresh_store()
    async def look_later(x):
        await asyncio.sleep(0)
        return x, an_agent(done)[0](1) and len(stepwise.runs())

    assert (look.__name__, look.__doc__) == ("look", "Doc.")
    assert asyncio.iscoroutinefunction(look_later)
    assert [look(1, y=2), look(1, y=2), asyncio.run(look_later(1))] == [(1, 2, 1)] * 2 + [(1, 1)]
    assert stepwise._runtime.settings._settings.store is None


def test_the_test_tools_do_not_need_pytest(start):
    """Importing ``stepwise.testing`` imports no pytest."""
    source = "import sys, stepwise.testing; print('pytest' in sys.modules)"
    assert start(source).finish() == "False"
