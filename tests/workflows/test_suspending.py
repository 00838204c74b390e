"""Runs that suspend: when, what is recorded of it, and how they go on."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import pickle
import sys
import textwrap
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import python, until
from twins import KINDS, call, defined

import stepwise
from stepwise import CheckpointStore, RecoverableAgent, RunSuspended, step, tool, workflow
from stepwise._calls import waiting
from stepwise._calls.async_driver import adrive
from stepwise._calls.driver import Result, Wait, drive
from stepwise._execution import message_watcher
from stepwise._execution.active_run import live_runs
from stepwise._execution.flows import Gong
from stepwise._runtime import clock, settings
from stepwise._workflows import handles as suspending
from stepwise._workflows.handles import UnfinishedRun
from stepwise.graph import CheckpointManager, Graph, GraphExecutor, Node

log = []


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Runs suspend as soon as all that is left is to wait."""
    monkeypatch.setattr(settings._settings, "suspend_after", 0.0)
    log.clear()


def send(name, value, run_id="r"):
    """Send a signal to a run."""
    stepwise.get_run(run_id).send(name, value)


def suspends(flow):
    """Call a workflow that suspends: what it raises."""
    with pytest.raises(RunSuspended) as caught:
        call(flow)
    return caught.value


def why(run_id="r"):
    """What a suspended run would go on for."""
    run = stepwise.get_run(run_id)
    return UnfinishedRun(run.store, run._seal, run._facts()).why()


@workflow(run_id="r")
def waits():
    return stepwise.wait_for("a")


@workflow(run_id="r")
async def waits_for_both():
    return await asyncio.gather(stepwise.wait_for("a"), stepwise.wait_for("b"))


TWICE = """
@workflow(run_id="r")
async def flow():
    log.append("begin")
    return [await stepwise.wait_for("a"), await stepwise.sleep({0}), await stepwise.wait_for("a")]
"""


@pytest.fixture(params=KINDS)
def flow(request, tmp_path):
    """A workflow of each kind that waits twice, and sleeps between."""
    names = {"stepwise": stepwise, "workflow": workflow, "log": log}
    return defined(tmp_path, TWICE.format(0.3), request.param, **names).flow


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_suspends_and_goes_on_where_it_waits(every):
    """A suspended run goes on at the statement of its wait; nothing before it runs again."""
    heard = []

    @tool(side_effect=True)
    def act():
        log.append("act")

    @workflow(run_id="r", checkpoint_every=every)
    def flow():
        log.append("begin")
        first = act()
        log.append("waits")
        second = stepwise.wait_for("a")
        log.append("done")
        return first, second

    end = stepwise.on_event(lambda event: heard.append((event.kind, event.step)))
    error, run = suspends(flow), stepwise.get_run("r")
    end()
    assert heard[-2:] == [("step_waiting", 2), ("run_suspended", 0)]
    assert (run.status, run.duration, run.owner) == ("suspended", None, None)
    [wait] = run.waits
    assert (wait.run_id, wait.step, wait.kind, wait.name) == ("r", 2, "signal", "a")
    assert wait.until is None
    assert error.waits == [wait]
    assert run.to_dict()["waits"] == [wait.to_dict()]
    assert pickle.loads(pickle.dumps(error)).waits == [wait]
    suspends(flow)
    send("a", 2)
    assert flow() == (None, 2)
    assert log == ["begin", "act", "waits", "done"]
    assert (run.status, run.waits) == ("completed", [])


def test_gather_with_answers_of_the_journal():
    """Where a run waited for several, that statement runs again with the answers there are."""

    @step
    async def ask(name):
        log.append(name)
        return name

    @workflow
    async def child(name):
        return [await ask(name), await stepwise.wait_for("x")]

    @workflow(run_id="r")
    async def flow():
        return await asyncio.gather(
            child("c"), ask("s"), stepwise.wait_for("a"), stepwise.wait_for("a"), stepwise.sleep(0)
        )

    waits = suspends(flow).waits
    kinds = [(each.kind, each.name, each.run_id == "r") for each in waits]
    assert sorted(kinds) == [("signal", "a", True), ("signal", "a", True), ("signal", "x", False)]
    [child_id] = {each.run_id for each in waits} - {"r"}
    assert stepwise.get_run(child_id).status == "suspended"
    send("a", 1)
    suspends(flow)
    send("x", 3, child_id)
    assert len(suspends(flow).waits) == 1
    send("a", 2)
    assert asyncio.run(flow()) == [["c", 3], "s", 1, 2, None]
    assert sorted(log) == ["c", "s"]
    assert {each.status for each in stepwise.get_run("r").steps} == {"completed"}


def test_clean_up_runs_and_its_steps_do_not():
    """Clean-up of the user's code runs as for Ctrl-C; a step in it raises the suspension again."""

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
            undo()

    suspends(flow)
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

    suspends(flow)
    assert stepwise.get_run("r").status == "suspended"


def test_a_step_in_flight_keeps_the_run():
    """A run suspends when no step of it is in flight any more."""
    go_on, caught = threading.Event(), []

    @step
    def slow():
        go_on.wait(60)
        log.append("ended")

    @workflow(run_id="r")
    async def flow():
        await asyncio.gather(stepwise.wait_for("a"), asyncio.to_thread(slow))

    def target():
        suspends(flow)
        caught.extend(log)

    thread = threading.Thread(target=target)
    thread.start()
    until(lambda: any(run.waits for run in list(live_runs)))
    assert stepwise.get_run("r").status == "running"
    go_on.set()
    thread.join(60)
    assert caught == ["ended"]
    assert stepwise.get_run("r").counts == {"completed": 1, "waiting": 1}


@pytest.mark.parametrize("after", [30.0, None])
def test_a_wait_stays_in_the_process(after):
    """A wait that ends before ``suspend_after`` does not suspend, and with ``None`` none does."""
    stepwise.configure(suspend_after=after)

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
    for text, expected in (("", 60.0), ("5", 5.0), ("never", None)):
        monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", text)
        assert settings.suspend_after() == expected
    monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", "often")
    with pytest.raises(stepwise.ConfigurationError, match="STEPWISE_SUSPEND_AFTER"):
        settings.suspend_after()


def go_on(handle):
    """Send a run that waits twice what it waits for, each time once it waits."""
    until(lambda: handle.status == "suspended" and not handle.done)
    send("a", 1)
    until(lambda: [each.step for each in stepwise.get_run("r").waits] == [3])
    send("a", 2)


def test_a_started_run_is_woken_in_place(flow):
    """A started run that suspends goes on in this process when it was sent what it waits for."""

    async def main():
        handle = flow.start()
        await asyncio.to_thread(go_on, handle)
        result = handle.result(60)
        return await result if asyncio.iscoroutine(result) else result

    assert asyncio.run(main()) == [1, None, 2]
    assert stepwise.get_run("r").status == "completed"


def test_a_started_run_that_is_deleted_ends_its_handle(flow, monkeypatch):
    """A deleted run begins no new life when it would be woken: its handle says that it is gone."""
    monkeypatch.setattr(message_watcher, "SLOW_POLL", 0.01)
    begun = []

    async def main():
        handle = flow.start()
        run = handle.run
        # A suspended run that still unwinds has an owner, and cannot be deleted yet.
        await asyncio.to_thread(until, lambda: run.status == "suspended" and run.owner is None)
        begun.append(run.created_at)
        run.delete()
        result = handle.result(60)
        return await result if asyncio.iscoroutine(result) else result

    with pytest.raises(stepwise.RunNotFoundError, match="'r' is not continued: it was deleted"):
        asyncio.run(main())
    assert begun
    assert stepwise.runs() == []


def test_a_store_that_fails_while_a_started_run_waits(flow, monkeypatch):
    """Whoever waits for the handle gets the error; the run stays suspended."""

    def fails(*_):
        raise stepwise.StoreError(path="", errno=5)

    async def main():
        result = flow.start().result(60)
        return await result if asyncio.iscoroutine(result) else result

    monkeypatch.setattr(suspending, "facts_of", fails)
    with pytest.raises(stepwise.StoreError):
        asyncio.run(main())
    assert stepwise.get_run("r").status == "suspended"


def test_execute_returns_the_run(flow):
    """``execute()`` hands a suspended run back, with that status."""
    assert call(flow.execute).status == "suspended"


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


# -- messages ------------------------------------------------------------------------------------


def test_messages_that_came_before_the_suspension_are_not_missed():
    """A message for another wait of the run is taken before the run suspends."""
    suspends(waits_for_both)
    send("a", 1)
    send("b", 2)
    assert asyncio.run(waits_for_both()) == [1, 2]


@pytest.mark.parametrize("whose", ["r", "child"])
def test_a_message_that_was_taken_wakes_nothing(whose):
    """A run that waits for another message of a name goes on for that one, not for the first."""

    @workflow(run_id="child")
    def child():
        return [stepwise.wait_for("a"), stepwise.wait_for("a")]

    @workflow(run_id="r")
    def flow():
        return child() if whose == "child" else child.__wrapped__()

    for sent in (1, 2):
        caught = suspends(flow)
        assert why() is None
        send("a", sent, caught.waits[0].run_id)
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

    suspends(flow)
    assert why() == "message"
    assert asyncio.run(flow()) == 1


def test_a_message_that_another_thread_reads_as_the_run_suspends(monkeypatch):
    """Whoever read a message that no call has taken, the suspended run has to go on for it."""
    has_come = waiting._has_come

    def and_then_one_comes(run, wait):
        before = has_come(run, wait)
        send("a", 1)
        run.inbox.ring()
        assert [each.name for each in run.inbox.signals("a")] == ["a"]
        return before

    monkeypatch.setattr(waiting, "_has_come", and_then_one_comes)
    suspends(waits)
    assert why() == "message"


def test_the_timeout_of_a_workflow_ends_its_waits():
    """A suspended run is to go on at the end of its timeout, at the latest."""

    @workflow(run_id="r", timeout=3600)
    def flow():
        stepwise.wait_for("a", timeout=10_000)

    suspends(flow)
    run = stepwise.get_run("r")
    assert [each.until for each in run.waits] == [run._facts().created_at + 3600]


def test_a_fork_of_a_suspended_run():
    """A fork waits where its original does, for itself, with what had not been taken there."""

    @workflow(run_id="r")
    def flow():
        first = stepwise.wait_for("a")
        return [first, stepwise.wait_for("b")]

    suspends(flow)
    send("a", 1)
    suspends(flow)
    send("a", 9)
    fork = stepwise.get_run("r").fork(messages=True)
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

    suspends(flow)
    assert len(stepwise.get_run("r").waits) == 2
    send("a", 1)
    send("a", 2)
    assert flow() == [1, 2]


def test_a_moment_that_is_computed_anew_ends_the_same(monkeypatch):
    """A wait whose end the statement computes keeps the first one, in each attempt."""

    @workflow(run_id="r")
    def flow():
        stepwise.sleep(300.0 + time.monotonic() % 0.001)
        return "over"

    suspends(flow)
    [first] = stepwise.get_run("r").waits
    suspends(flow)
    assert stepwise.get_run("r").waits == [first]
    monkeypatch.setattr(clock, "now", lambda: first.until + 1)
    assert flow() == "over"


# -- programs and kernels ------------------------------------------------------------------------

PROGRAM = """
import asyncio
import threading
import stepwise
from stepwise import workflow

@workflow(run_id="r")
def plain():
    return stepwise.wait_for("a")

@workflow(run_id="r")
async def coroutine():
    await asyncio.gather(stepwise.wait_for("a"), stepwise.wait_for("b"))

async def main():
    await coroutine()

async def group():
    async with asyncio.TaskGroup() as group:
        group.create_task(coroutine())

def thread():
    other = threading.Thread(target=plain)
    other.start()
    other.join()

def waits():
    try:
        handle.result()
    except stepwise.RunSuspended as error:
        print([wait.name for wait in error.waits])

"""


def ended(folder, end):
    """The program with that end, executed to its end."""
    script = folder / "script.py"
    script.write_text(PROGRAM + textwrap.dedent(end), "utf-8")
    quiet = "1" if "handle" in end else ""
    env = {**os.environ, "STEPWISE_SUSPEND_AFTER": "0", "STEPWISE_QUIET": quiet}
    return python(script, env=env)


ENDS = {"plain()": 75, "asyncio.run(main())": 75, "asyncio.run(group())": 75, "thread()": 0}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_with_one_line(end, tmp_path):
    """Uncaught, a suspension is one line on stderr and the exit code 75."""
    if "group" in end and sys.version_info < (3, 11):
        pytest.skip("no TaskGroup")
    done = ended(tmp_path, end)
    assert done.returncode == ENDS[end], done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("stepwise: run r is suspended: it waits for the signal 'a', since ")
    assert line.endswith("stepwise resume r")


def test_the_program_ends_while_a_started_run_waits(tmp_path):
    """At the end of the program nothing is woken, and whoever waits for a handle is told."""
    done = ended(
        tmp_path,
        """
        handle = plain.start()
        waiting = threading.Thread(target=waits)
        waiting.start()
        import sys
        def is_waiting():
            return sys._current_frames()[waiting.ident].f_code.co_name == "wait"
        while not (handle.status == "suspended" and is_waiting()):
            threading.Event().wait(0.01)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['a']\n", "")
    assert stepwise.get_run("r").status == "suspended"


def test_a_kernel_wakes_a_run_that_suspended_in_a_cell(flow, monkeypatch):
    """In a kernel, which does not end with a cell, a suspended run goes on by itself."""
    monkeypatch.setattr("stepwise._workflows.workflow.kernel_shell", object)

    async def called():
        result = flow()
        return await result if asyncio.iscoroutine(result) else result

    async def main():
        with pytest.raises(RunSuspended, match="goes on in this kernel") as caught:
            await called()
        assert caught.value._render_traceback_() == [f"RunSuspended: {caught.value}"]
        await asyncio.to_thread(send, "a", 1)
        await asyncio.to_thread(send, "a", 2)
        await asyncio.to_thread(until, lambda: stepwise.get_run("r").status == "completed")
        return await called()

    assert asyncio.run(main()) == [1, None, 2]


def test_a_program_that_imports_a_kernel_is_none(monkeypatch):
    """Where ``ipykernel`` is merely imported, as by a test, no run is woken beside its caller."""
    for name in ("ipykernel", "IPython"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    before = {*threading.enumerate()}  # one of another test may still be ending
    assert "kernel" not in str(suspends(waits))
    assert not any(each.name == "stepwise r" for each in {*threading.enumerate()} - before)


# -- what suspended runs cost, and who wakes them -------------------------------------------------


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_suspended_run_keeps_neither_thread_nor_task(kind):
    """Started runs that are suspended have one thread in common, and hold no frames."""

    class Local:
        """A local variable of a run."""

    def plain(number):
        local = Local()
        held.append(weakref.ref(local))
        return [number, stepwise.wait_for("a"), local is not None]

    async def coroutine(number):
        local = Local()
        held.append(weakref.ref(local))
        return [number, await stepwise.wait_for("a"), local is not None]

    held = []
    flow = workflow(coroutine if kind == "task" else plain)
    before = set(threading.enumerate())  # a run that another test has left may keep the waker

    async def holds(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    async def main():
        handles = [flow.options(run_id=f"r{number}").start(number) for number in range(30)]
        await holds(lambda: all(each.status == "suspended" for each in handles))
        shared = {"stepwise waker", "stepwise watcher"}  # a run's own thread may still be ending
        await holds(lambda: {t.name for t in {*threading.enumerate()} - before} <= shared)
        assert len(asyncio.all_tasks()) == 1
        await holds(lambda: gc.collect() >= 0 and not any(each() for each in held))
        assert not any(each.done for each in handles)
        for each in handles:
            each.run.send("a", each.id)
        if kind == "task":
            return await asyncio.gather(*handles)
        return await asyncio.to_thread(lambda: [each.result(60) for each in handles])

    assert asyncio.run(main()) == [[number, f"r{number}", True] for number in range(30)]
    until(lambda: not any(t.name == "stepwise waker" for t in {*threading.enumerate()} - before))


def test_recover_wakes_suspended_runs(flow):
    """Suspended runs go on where ``recover()`` was called, and take no thread until then."""
    suspends(flow)
    run = stepwise.get_run("r")
    again = flow.options(run_id=None, start="unfinished")
    assert again.run_id_for() == "r"
    assert [each.id for each in stepwise.runs(status="suspended")] == ["r"]

    def wake():
        send("a", 1)
        until(lambda: [each.step for each in run.waits] == [3])
        send("a", 2)
        until(lambda: run.status == "completed")

    before = {*threading.enumerate()}  # one of another test may still be ending

    async def main():
        assert stepwise.recover() == []
        assert stepwise.recover() == []  # a second time, nothing more waits
        parked = [each for each in suspending.waker._parked if each.run.store is run.store]
        assert [each.run.id for each in parked] == ["r"]
        begun = {*threading.enumerate()} - before
        assert not any("recover" in each.name for each in begun)
        await asyncio.to_thread(wake)

    asyncio.run(main())
    assert run.result == [1, None, 2]


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
        suspends(go_on)
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


def test_a_clean_up_waits_for_its_answer(monkeypatch):
    """The clean-up of a cancelled run waits for a person, and does not try to suspend again."""
    made, waits = [], threading.Event()

    @tool(side_effect=True, approve=True)
    def pay(amount):
        made.append(amount)

    @workflow(name="tidies", run_id="tidies")
    def tidies():
        try:
            pay(1)
        finally:
            pay(2)

    def approve():
        assert waits.wait(60)
        question = run.questions[-1]
        run.approve(question.step, question.ticket)

    suspends(tidies)
    run = stepwise.get_run("tidies")
    run.cancel()
    seconds, ask = [], waiting.seconds_to_suspension

    def asked(active):
        seconds.append(ask(active))
        waits.set()
        return seconds[-1]

    monkeypatch.setattr(waiting, "seconds_to_suspension", asked)
    with ThreadPoolExecutor() as pool:
        job = pool.submit(approve)
        with pytest.raises(stepwise.RunCancelled):
            tidies()
        job.result()
    assert (made, min(seconds)) == ([2], math.inf)
