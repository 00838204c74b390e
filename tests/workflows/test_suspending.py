"""Runs that suspend: when, what is recorded of it, and how they go on."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

import stepwise
from stepwise import CheckpointStore, RecoverableAgent, RunSuspended, step, tool, workflow
from stepwise._calls.async_driver import adrive
from stepwise._calls.driver import Result, Wait, drive
from stepwise._execution import suspension
from stepwise._execution.active_run import live_runs
from stepwise._execution.concurrency import Gong
from stepwise._runtime import settings
from stepwise._workflows import suspending
from stepwise._workflows.unfinished import UnfinishedRun
from stepwise.graph import CheckpointManager, Graph, GraphExecutor, Node

ASKED = []


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Runs suspend as soon as all that is left is to wait."""
    monkeypatch.setattr(settings._settings, "suspend_after", 0.0)


def send(name, value, run_id="r"):
    """Send a signal to a run."""
    stepwise.get_run(run_id).send(name, value)


def until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_suspends_and_goes_on_where_it_waits(every):
    """A suspended run goes on at the statement of its wait; nothing before it runs again."""
    log = []

    @step
    def one():
        return 1

    @workflow(run_id="r", checkpoint_every=every)
    def flow():
        log.append("begin")
        first = one()
        log.append("waits")
        second = stepwise.wait_for("a")
        log.append("done")
        return first, second

    with pytest.raises(RunSuspended) as caught:
        flow()
    run = stepwise.get_run("r")
    assert (run.status, run.duration, run.owner) == ("suspended", None, None)
    [wait] = run.waits
    assert (wait.run_id, wait.step, wait.kind, wait.name, wait.until) == (
        "r",
        2,
        "signal",
        "a",
        None,
    )
    assert caught.value.waits == [wait]
    assert run.to_dict()["waits"] == [wait.to_dict()]
    assert pickle.loads(pickle.dumps(caught.value)).waits == [wait]
    with pytest.raises(RunSuspended):
        flow()
    send("a", 2)
    assert flow() == (1, 2)
    assert log == ["begin", "waits", "done"]
    assert (run.status, run.waits) == ("completed", [])


def test_gather_with_answers_of_the_journal():
    """Where a run waited for several, that statement runs again with the answers there are."""
    ASKED.clear()

    @step
    async def ask(name):
        ASKED.append(name)
        return name

    @workflow
    async def child(name):
        return [await ask(name), await stepwise.wait_for("x")]

    @workflow(run_id="r")
    async def flow():
        return await asyncio.gather(
            child("c"), ask("s"), stepwise.wait_for("a"), stepwise.wait_for("a"), stepwise.sleep(0)
        )

    with pytest.raises(RunSuspended) as caught:
        asyncio.run(flow())
    kinds = [(each.kind, each.name, each.run_id == "r") for each in caught.value.waits]
    assert sorted(kinds) == [("signal", "a", True), ("signal", "a", True), ("signal", "x", False)]
    [child_id] = {each.run_id for each in caught.value.waits} - {"r"}
    assert stepwise.get_run(child_id).status == "suspended"
    send("a", 1)
    with pytest.raises(RunSuspended):
        asyncio.run(flow())
    send("x", 3, child_id)
    with pytest.raises(RunSuspended) as caught:
        asyncio.run(flow())
    assert len(caught.value.waits) == 1
    send("a", 2)
    assert asyncio.run(flow()) == [["c", 3], "s", 1, 2, None]
    assert sorted(ASKED) == ["c", "s"]
    assert {each.status for each in stepwise.get_run("r").steps} == {"completed"}


def test_clean_up_runs_and_its_steps_do_not():
    """Clean-up of the user's code runs as for Ctrl-C; a step in it raises the suspension again."""
    log = []

    @step
    def undo():
        log.append("never")

    @workflow(run_id="r")
    def flow():
        try:
            try:
                return stepwise.wait_for("a")
            except Exception:
                log.append("no")
                raise
        finally:
            log.append("clean")
            if not settings._settings.suspend_after:
                undo()

    with pytest.raises(RunSuspended):
        flow()
    assert log == ["clean"]
    assert stepwise.get_run("r").counts == {"waiting": 1}


def test_what_swallows_the_suspension_does_not_go_on():
    """A workflow that catches everything stays suspended."""

    @workflow(run_id="r")
    def flow():
        try:
            stepwise.wait_for("a")
        except BaseException:
            return "swallowed"

    with pytest.raises(RunSuspended):
        flow()
    assert stepwise.get_run("r").status == "suspended"


def test_a_step_in_flight_keeps_the_run(monkeypatch):
    """A run suspends when no step of it is in flight any more."""
    go_on, ended = threading.Event(), []

    @step
    def slow():
        go_on.wait(60)
        ended.append(1)

    @workflow(run_id="r")
    async def flow():
        async def other():
            await asyncio.to_thread(slow)

        await asyncio.gather(stepwise.wait_for("a"), other())

    caught = []

    def target():
        with pytest.raises(RunSuspended):
            asyncio.run(flow())
        caught.append(list(ended))

    thread = threading.Thread(target=target)
    thread.start()
    until(lambda: any(run.waits for run in list(live_runs)))
    assert stepwise.get_run("r").status == "running"
    go_on.set()
    thread.join(60)
    assert caught == [[1]]
    assert stepwise.get_run("r").counts == {"completed": 1, "waiting": 1}


def test_a_short_wait_stays_in_the_process(monkeypatch):
    """A wait that ends before ``suspend_after`` does not suspend, nor does what waits beside it."""
    monkeypatch.setattr(settings._settings, "suspend_after", 30.0)

    @workflow
    def flow():
        stepwise.sleep(0.05)
        return "there"

    assert flow() == "there"


def test_never(monkeypatch):
    """With ``configure(suspend_after=None)`` a run waits in its process."""
    stepwise.configure(suspend_after=None)

    @workflow
    def flow():
        stepwise.sleep(0.05)
        return "there"

    assert flow() == "there"


def test_the_setting(monkeypatch):
    """``suspend_after`` takes seconds or ``None``; the environment says the same as text."""
    assert settings.suspend_after() == 0.0
    for wrong in (-1, "soon", float("nan"), True):
        with pytest.raises(stepwise.ConfigurationError, match="0 or more"):
            stepwise.configure(suspend_after=wrong)
    monkeypatch.setattr(settings._settings, "suspend_after", settings._UNSET)
    found = []
    for text in ("", "5", "never"):
        monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", text)
        found.append(settings.suspend_after())
    assert found == [60.0, 5.0, None]
    monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", "often")
    with pytest.raises(stepwise.ConfigurationError, match="STEPWISE_SUSPEND_AFTER"):
        settings.suspend_after()


def test_execute_returns_the_run():
    """``execute()`` hands a suspended run back, with that status."""

    @workflow
    def plain():
        stepwise.wait_for("a")

    @workflow
    async def coroutine():
        await stepwise.wait_for("a")

    assert plain.execute().status == "suspended"
    assert asyncio.run(coroutine.execute()).status == "suspended"


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_started_run_is_woken_in_place(kind):
    """A started run that suspends goes on in this process when it was sent what it waits for."""
    attempts = []

    @workflow(run_id="r")
    def plain():
        attempts.append(1)
        return [stepwise.wait_for("a"), stepwise.sleep(0.3), stepwise.wait_for("a")]

    @workflow(run_id="r")
    async def coroutine():
        attempts.append(1)
        return [
            await stepwise.wait_for("a"),
            await stepwise.sleep(0.3),
            await stepwise.wait_for("a"),
        ]

    def go_on(handle):
        until(lambda: handle.status == "suspended" and not handle.done)
        send("a", 1)
        until(lambda: [each.step for each in handle.run.waits] == [3])
        send("a", 2)

    async def main():
        handle = coroutine.start()
        await asyncio.to_thread(go_on, handle)
        return await handle

    if kind == "task":
        assert asyncio.run(main()) == [1, None, 2]
    else:
        handle = plain.start()
        go_on(handle)
        assert handle.result(60) == [1, None, 2]
    assert stepwise.get_run("r").status == "completed"


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_store_that_fails_while_a_started_run_waits(kind, monkeypatch):
    """Whoever waits for the handle gets the error; the run stays suspended."""

    @workflow(run_id="r")
    def plain():
        stepwise.wait_for("a")

    @workflow(run_id="r")
    async def coroutine():
        await stepwise.wait_for("a")

    def fails(*_):
        raise stepwise.StoreError(path="", errno=5)

    async def main():
        await coroutine.start().result(60)

    monkeypatch.setattr(suspending, "facts_of", fails)
    with pytest.raises(stepwise.StoreError):
        asyncio.run(main()) if kind == "task" else plain.start().result(60)
    assert stepwise.get_run("r").status == "suspended"


@pytest.mark.parametrize(
    "drives", [drive, lambda core: asyncio.run(adrive(core))], ids=["plain", "async"]
)
def test_a_ring_between_the_look_and_the_wait_is_heard(drives):
    """What waits does not sleep through a change that came after it had looked."""
    gong, rung = Gong(), []

    def looks():
        seen = gong.changes
        gong.ring()
        rung.append((yield Wait(gong, seen, 3600.0)).unwrap())
        return Result()

    thread = threading.Thread(target=drives, args=(looks(),), daemon=True)
    thread.start()
    thread.join(60)
    assert rung == [True]


def test_a_message_that_came_before_the_suspension_is_not_missed():
    """A message for another wait of the run is taken before the run suspends."""

    @workflow(run_id="r")
    async def flow():
        return await asyncio.gather(stepwise.wait_for("a"), stepwise.wait_for("b"))

    with pytest.raises(RunSuspended):
        asyncio.run(flow())
    send("a", 1)
    send("b", 2)
    assert asyncio.run(flow()) == [1, 2]


@pytest.mark.parametrize("whose", ["r", "child"])
def test_a_message_that_was_taken_wakes_nothing(whose):
    """A run that waits for another message of a name goes on for that one, not for the first."""

    @workflow(run_id="child")
    def child():
        return [stepwise.wait_for("a"), stepwise.wait_for("a")]

    @workflow(run_id="r")
    def flow():
        return child() if whose == "child" else child.__wrapped__()

    def why():
        run = stepwise.get_run("r")
        return UnfinishedRun(run.store, run._seal, run._facts()).why()

    for sent in (1, 2):
        with pytest.raises(RunSuspended) as caught:
            flow()
        assert why() is None
        send("a", sent, caught.value.waits[0].run_id)
        assert why() == "message"
    assert flow() == [1, 2]


def test_a_message_that_comes_during_the_clean_up_is_not_missed():
    """Its run goes on for it, although it was read before the suspension is recorded."""

    def sends():
        send("a", 1)
        [active] = live_runs
        until(lambda: active.inbox.seen == 1)

    @workflow(run_id="r")
    async def flow():
        try:
            return await stepwise.wait_for("a")
        finally:
            if not stepwise.get_run("r").inbox:
                await asyncio.to_thread(sends)

    with pytest.raises(RunSuspended):
        asyncio.run(flow())
    run = stepwise.get_run("r")
    assert UnfinishedRun(run.store, run._seal, run._facts()).why() == "message"
    assert asyncio.run(flow()) == 1


def test_the_timeout_of_a_workflow_ends_its_waits():
    """A suspended run is to go on at the end of its timeout, at the latest."""

    @workflow(run_id="r", timeout=3600)
    def flow():
        stepwise.wait_for("a", timeout=10_000)

    with pytest.raises(RunSuspended):
        flow()
    run = stepwise.get_run("r")
    assert [each.until for each in run.waits] == [run._facts().created_at + 3600]


def test_a_message_that_another_thread_reads_as_the_run_suspends(monkeypatch):
    """Whoever read a message that no call has taken, the suspended run has to go on for it."""
    has_come = suspension._has_come

    def and_then_one_comes(run, wait):
        before = has_come(run, wait)
        send("a", 1)
        run.inbox.ring()
        assert [each.name for each in run.inbox.signals("a")] == ["a"]
        return before

    monkeypatch.setattr(suspension, "_has_come", and_then_one_comes)

    @workflow(run_id="r")
    def flow():
        return stepwise.wait_for("a")

    with pytest.raises(RunSuspended):
        flow()
    run = stepwise.get_run("r")
    assert UnfinishedRun(run.store, run._seal, run._facts()).why() == "message"


def test_a_fork_of_a_suspended_run():
    """A fork waits where its original does, for itself, with what had not been taken there."""

    @workflow(run_id="r")
    def flow():
        first = stepwise.wait_for("a")
        return [first, stepwise.wait_for("b")]

    with pytest.raises(RunSuspended):
        flow()
    send("a", 1)
    with pytest.raises(RunSuspended):
        flow()
    send("a", 9)
    fork = stepwise.get_run("r").fork()
    assert fork.status == "ready"
    again = flow.options(run_id=fork.id)
    assert again.execute().status == "suspended"
    assert [(each.run_id, each.name) for each in fork.waits] == [(fork.id, "b")]
    send("b", "of the fork", fork.id)
    assert again() == [1, "of the fork"]
    send("b", "of the original")
    assert flow() == [1, "of the original"]


def test_threads_of_a_run_that_suspends():
    """Threads that wait are ended by the suspension, and the run suspends as one."""

    @workflow(run_id="r")
    def flow():
        with ThreadPoolExecutor(2) as pool:
            return sorted(pool.map(stepwise.wait_for, ["a"] * 2))

    with pytest.raises(RunSuspended):
        flow()
    assert len(stepwise.get_run("r").waits) == 2
    send("a", 1)
    send("a", 2)
    assert flow() == [1, 2]


def test_side_effects_before_the_wait_are_not_repeated():
    """A tool with side effects beside a wait is done once, however often the run suspends."""
    done = []

    @tool(side_effect=True)
    def act():
        done.append(1)

    @workflow(run_id="r")
    def flow():
        return [act(), stepwise.wait_for("a"), act(), stepwise.wait_for("a")]

    for value in (1, 2):
        with pytest.raises(RunSuspended):
            flow()
        with pytest.raises(RunSuspended):
            flow()
        send("a", value)
    assert flow() == [None, 1, None, 2]
    assert len(done) == 2


def test_a_moment_that_is_computed_anew_ends_the_same():
    """A wait whose end the statement computes keeps the first one, in each attempt."""

    @workflow(run_id="r")
    def flow():
        stepwise.sleep(1.0 + time.monotonic() % 0.001)
        return "over"

    with pytest.raises(RunSuspended):
        flow()
    [first] = stepwise.get_run("r").waits
    with pytest.raises(RunSuspended):
        flow()
    assert stepwise.get_run("r").waits == [first]
    until(lambda: time.time() > first.until)
    assert flow() == "over"


PROGRAM = """
    import asyncio
    import stepwise
    from stepwise import workflow

    @workflow(run_id="r")
    def plain():
        stepwise.wait_for("a")

    @workflow(run_id="r")
    async def coroutine():
        await asyncio.gather(stepwise.wait_for("a"), stepwise.wait_for("b"))
"""
PLAIN = "plain()\n"
MAIN = "async def main():\n    await coroutine()\nasyncio.run(main())\n"
GROUP = (
    "async def main():\n    async with asyncio.TaskGroup() as group:\n"
    "        group.create_task(coroutine())\nasyncio.run(main())\n"
)
THREAD = "import threading\nt = threading.Thread(target=plain)\nt.start()\nt.join()\n"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (PLAIN, 75),
        (MAIN, 75),
        pytest.param(
            GROUP, 75, marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="no TaskGroup")
        ),
        (THREAD, 0),
    ],
    ids=["plain", "asyncio", "group", "thread"],
)
def test_a_script_ends_with_one_line(how, code, tmp_path):
    """Uncaught, a suspension is one line on stderr and the exit code 75."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM) + how, "utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "STEPWISE_SUSPEND_AFTER": "0"},
        check=False,
    )
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("stepwise: run r is suspended: it waits for the signal 'a', since ")
    assert line.endswith("stepwise resume r")


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_kernel_wakes_a_run_that_suspended_in_a_cell(kind, monkeypatch):
    """In a kernel, which does not end with a cell, a suspended run goes on by itself."""
    monkeypatch.setattr("stepwise._workflows.invoke.kernel_shell", object)

    @workflow(run_id="r")
    def plain():
        return stepwise.wait_for("a")

    @workflow(run_id="r")
    async def coroutine():
        return await stepwise.wait_for("a")

    async def main():
        with pytest.raises(RunSuspended, match="goes on in this kernel"):
            await coroutine()
        await asyncio.to_thread(send, "a", 1)
        while stepwise.get_run("r").status != "completed":
            await asyncio.to_thread(time.sleep, 0.01)
        return await coroutine()

    if kind == "coroutine":
        assert asyncio.run(main()) == 1
        return
    with pytest.raises(RunSuspended, match="goes on in this kernel") as caught:
        plain()
    assert caught.value._render_traceback_() == [f"RunSuspended: {caught.value}"]
    send("a", 1)
    until(lambda: stepwise.get_run("r").status == "completed")
    assert plain() == 1


def test_a_program_that_imports_a_kernel_is_none(monkeypatch):
    """Where ``ipykernel`` is merely imported, as by a test, no run is woken beside its caller."""
    for name in ("ipykernel", "IPython"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    @workflow(run_id="r")
    def flow():
        return stepwise.wait_for("a")

    with pytest.raises(RunSuspended) as caught:
        flow()
    assert "kernel" not in str(caught.value)
    assert not any(each.name == "stepwise r" for each in threading.enumerate())


def test_events_of_a_run_that_suspends():
    """Listeners are told that a call waits, and that the run is suspended."""
    heard = []

    @workflow(run_id="r")
    def flow():
        return stepwise.wait_for("a")

    end = stepwise.on_event(lambda event: heard.append((event.kind, event.step)))
    with pytest.raises(RunSuspended):
        flow()
    end()
    assert heard == [
        ("run_started", 0),
        ("step_started", 1),
        ("step_waiting", 1),
        ("run_suspended", 0),
    ]


def test_who_leaves_suspended_runs_alone():
    """``recover()`` leaves a suspended run alone; ``start="unfinished"`` means it."""

    @workflow(run_id="r")
    def flow():
        return stepwise.wait_for("a")

    with pytest.raises(RunSuspended):
        flow()
    assert stepwise.recover() == []
    assert [each.id for each in stepwise.runs(status="suspended")] == ["r"]
    again = flow.options(run_id=None, start="unfinished")
    assert again.run_id_for() == "r"


def test_a_recoverable_agent_waits():
    """The function of a recoverable agent is its run's own code: it waits, and suspends."""
    store = CheckpointStore()

    async def think(ctx):
        if ctx.step == 1:
            ctx.state["first"] = await stepwise.wait_for("a")
            return None
        return [ctx.state["first"], await stepwise.wait_for("a")]

    def go_on():
        return asyncio.run(RecoverableAgent(think, store).run_with_recovery("task", "r"))

    for value in (1, 2):
        with pytest.raises(RunSuspended):
            go_on()
        run = stepwise.get_run("r", store=store.store)
        assert run.status == "suspended"
        run.send("a", value)
    assert go_on()["result"] == [1, 2]


def test_a_node_of_a_graph_cannot_wait():
    """A node of a graph is a step, so that it cannot wait; the error says where that belongs."""
    node = Node("one", lambda memory: stepwise.wait_for("a"))
    done = asyncio.run(
        GraphExecutor(None, CheckpointManager("memory:")).execute(Graph([node]), "goal")
    )
    assert "workflow's own code" in str(done)
