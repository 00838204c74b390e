"""Runs that are cancelled, or take longer than their timeout: they unwind, and can be resumed."""

import asyncio
import contextlib
import threading
import time
import types
import unittest.mock

import pytest
from clocks import LATE, LIMIT, be_late
from twins import KINDS, call, defined

import stepwise
from stepwise import RunCancelled, RunEndedError, RunTimeoutError, step, tool, workflow
from stepwise._execution import active_run
from stepwise._runs import messages as cancelling
from stepwise._runtime import clock

done = []
undone = []
cancel_at = []  # the work at which the run is cancelled


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch):
    done.clear()
    undone.clear()
    cancel_at.clear()
    monkeypatch.setattr(active_run, "_EVERY", 0.0)  # every call looks


def work_on(name):
    done.append(name)
    if name in cancel_at:
        cancel_at.remove(name)
        run = stepwise.current_run()
        stepwise.get_run(run.parent or run.id).cancel(f"at {name}")
    return name


@step
def work(name):
    return work_on(name)


@tool(side_effect=True, compensate=lambda call: undone.append(call.arguments["name"]))
def send(name):
    return work_on(name)


@step
async def awork(name):
    await asyncio.sleep(0)
    return work_on(name)


@workflow
def agent(*names):
    try:
        return [work(name) for name in names]
    finally:
        work("cleanup")


@workflow
async def slow(*names):
    try:
        return [await awork(name) for name in names]
    finally:
        await awork("cleanup")


both = pytest.mark.parametrize("flow", [agent, slow], ids=KINDS)


@pytest.fixture(params=KINDS)
def made(request, tmp_path):
    """Make workflows of a text: ``made(source, **names)``, of each kind."""

    def make(source, **names):
        steps = {"work": awork if request.param == "async" else work, "Closing": Closing}
        names = {"stepwise": stepwise, "workflow": workflow, **steps, **names}
        return defined(tmp_path, source, request.param, **names)

    return make


def cancelled(flow, *names):
    """Call a workflow that is cancelled at "b": the error, and the run."""
    cancel_at.append("b")
    with pytest.raises(RunCancelled) as caught:
        call(flow, *names)
    return caught.value, stepwise.runs()[-1]


@both
def test_it_unwinds_at_the_next_call(flow):
    """The step in flight ends, no other begins, the clean-up runs, and the caller gets it."""
    heard = []
    stop = stepwise.on_event(lambda event: heard.append(event.kind))
    error, run = cancelled(flow, "a", "b", "c")
    stop()
    assert done == ["a", "b", "cleanup"]
    assert (run.status, error.run_id, error.reason) == ("cancelled", run.id, "at b")
    assert error.by in str(error)
    assert ": at b" in str(error)
    assert [step.status for step in run.steps] == ["completed"] * 3
    assert isinstance(run.error, RunCancelled)
    assert [kind for kind in heard if kind.startswith("run_")] == ["run_started", "run_cancelled"]


def test_child_runs_clean_up(made):
    """A child run that is called while the cancellation is handled is executed as a whole."""
    module = made("""
        @workflow
        async def tidy():
            await work("child")
            return await work("of child")

        @workflow
        async def agent(*names):
            try:
                return [await work(name) for name in names]
            finally:
                await tidy()
    """)
    _, run = cancelled(module.agent, "a", "b", "c")
    assert done == ["a", "b", "child", "of child"]
    assert run.steps[-1].status == "completed"


@both
def test_a_run_that_cancels_itself(flow, monkeypatch):
    """Its next step is not executed, however lately the inbox was looked at."""
    monkeypatch.setattr(active_run, "_EVERY", 3600.0)
    cancelled(flow, "a", "b", "c")
    assert done == ["a", "b", "cleanup"]


@both
def test_it_is_resumed_if_asked_for(flow):
    """A plain call says how to go on; ``Run.resume()`` goes on, and no request is left over."""
    _, run = cancelled(flow, "a", "b", "c")
    with pytest.raises(RunCancelled, match=f"stepwise resume {run.id}.*fresh=True"):
        call(flow, "a", "b", "c")
    assert done == ["a", "b", "cleanup"]
    assert run.status == "cancelled"
    done.clear()
    assert run.resume().result() == ["a", "b", "c"]
    assert done[0] == "c"
    assert run.status == "completed"


def test_the_environment_resumes_it(monkeypatch):
    """``STEPWISE_RESUME``, which ``stepwise resume`` sets, resumes it, once."""
    _, run = cancelled(agent, "a", "b", "c", "d")
    monkeypatch.setenv("STEPWISE_RESUME", run.id)
    cancel_at.append("c")
    for _ in range(2):
        with pytest.raises(RunCancelled):
            agent("a", "b", "c", "d")
    assert done.count("c") == 1


def test_unfinished_runs_do_not_include_it():
    """With ``start="unfinished"``, a cancelled run is over: the next call is a new one."""
    flow = agent.options(start="unfinished")
    _, run = cancelled(flow, "a", "b", "c")
    assert flow("a", "b", "c") == ["a", "b", "c"]
    assert len(stepwise.runs()) == 2
    assert run.status == "cancelled"


@pytest.mark.parametrize("where", ["step", "workflow"])
def test_what_awaits_is_cancelled(where):
    """A step in flight of an asynchronous run, or its own code, is cancelled where it awaits."""

    @step
    async def hang(name):
        work_on(name)
        await asyncio.Event().wait()

    @workflow
    async def flow():
        try:
            await (hang if where == "step" else awork)("b")
            await asyncio.Event().wait()
        finally:
            await awork("cleanup")

    error, run = cancelled(flow)
    assert (done, run.status) == (["b", "cleanup"], "cancelled")
    first = "cancelled" if where == "step" else "completed"
    assert [step.status for step in run.steps] == [first, "completed"]
    assert isinstance(error.__cause__, asyncio.CancelledError)


@both
def test_a_started_run(flow):
    """The handle of a started run says that it was cancelled."""

    async def main():
        handle = flow.start("a", "b", "c")
        with pytest.raises(RunCancelled):
            _ = await handle if flow is slow else handle.result()
        return handle

    cancel_at.append("b")
    handle = asyncio.run(main())
    assert (handle.status, done) == ("cancelled", ["a", "b", "cleanup"])


# -- handled, or not -----------------------------------------------------------------------------


def test_a_workflow_that_handles_it(made):
    """A workflow that handles the cancellation and returns has completed."""
    module = made(
        """
        @workflow
        async def flow():
            try:
                await work("b")
                await work("c")
            except Cancelled:
                await work("handled")
            return await work("d")
        """,
        Cancelled=(RunCancelled, asyncio.CancelledError),
    )
    cancel_at.append("b")
    assert call(module.flow) == "d"
    assert done == ["b", "handled", "d"]
    (run,) = stepwise.runs()
    assert run.status == "completed"


def test_a_handler_of_exceptions_does_not_swallow_it():
    """``except Exception`` around each step lets it through."""

    @workflow
    def flow():
        for name in "abcd":
            with contextlib.suppress(Exception):
                work(name)

    _, run = cancelled(flow)
    assert (done, run.status) == (["a", "b"], "cancelled")


def test_an_error_of_the_clean_up():
    """A clean-up that raises has the run fail with that; it goes on at its next start."""
    broken = [True]

    @workflow
    def flow():
        try:
            work("b")
            work("c")
        finally:
            if broken:
                raise LookupError("clean-up")

    cancel_at.append("b")
    with pytest.raises(LookupError) as caught:
        flow()
    assert isinstance(caught.value.__context__, RunCancelled)
    (run,) = stepwise.runs()
    assert run.status == "failed"
    broken.clear()
    flow()
    assert (done, run.status) == (["b", "c"], "completed")


def test_map():
    """The calls of a ``map`` that have not begun are not made; the clean-up is."""

    @workflow
    def flow():
        try:
            stepwise.map(work, "abcdef", max_workers=1)
        finally:
            stepwise.map(work, ["x", "y"])

    _, run = cancelled(flow)
    assert sorted(done) == ["a", "b", "x", "y"]
    assert run.status == "cancelled"


# -- child runs, side effects --------------------------------------------------------------------


def test_child_runs_are_cancelled_with_their_parent(made):
    """The request reaches the child run that is in progress; both run their clean-up."""
    module = made("""
        @workflow
        async def child(*names):
            try:
                return [await work(name) for name in names]
            finally:
                await work("cleanup")

        @workflow
        async def parent(*names):
            try:
                return await child(*names)
            finally:
                await work("parent")
    """)
    cancelled(module.parent, "a", "b", "c")  # the child asks for the end of its parent
    assert done == ["a", "b", "cleanup", "parent"]
    child, top = stepwise.runs()
    assert (top.status, child.status, child.parent) == ("cancelled", "cancelled", top.id)
    with pytest.raises(stepwise.ConfigurationError, match=top.id):
        child.resume()
    done.clear()
    assert top.resume().result() == ["a", "b", "c"]
    assert "c" in done
    assert {each.status for each in stepwise.runs()} == {"completed"}


def test_a_child_run_is_not_cancelled_alone():
    """A child run ends with its parent, which the refusal names."""

    @workflow
    def child():
        stepwise.current_run().cancel()

    @workflow
    def parent():
        child()

    with pytest.raises(stepwise.ConfigurationError, match="ends with that one: stepwise cancel"):
        parent()


def test_compensation():
    """With ``compensate_on_failure``, what was done is undone, and it is cancelled."""

    @workflow(compensate_on_failure=True)
    def flow():
        send("a")
        send("b")
        send("c")

    _, run = cancelled(flow)
    assert (done, undone, run.status) == (["a", "b"], ["b", "a"], "cancelled")
    assert stepwise.runs(status="cancelled") == [run]
    with pytest.raises(RunCancelled):
        flow()
    done.clear()
    run.resume().result()
    assert (done, run.status) == (["a", "b", "c"], "completed")


def test_side_effects_in_doubt_are_listed():
    """A side effect that was cancelled may have happened: it is named, and not undone."""

    @tool(side_effect=True, compensate=lambda call: undone.append("never"))
    async def deliver(to):
        work_on(to)
        await asyncio.Event().wait()

    @workflow(compensate_on_failure=True)
    async def flow():
        await deliver("b")

    with pytest.warns(stepwise.RunWarning, match="in doubt, so it is not undone"):
        error, run = cancelled(flow)
    assert error.in_doubt == ((run.id, 1),)
    assert "may or may not have happened, and are not undone: 1 deliver(to='b')" in str(error)
    assert undone == []


# -- who asks, and when --------------------------------------------------------------------------


def test_a_run_that_nobody_executes(made):
    """It is ``cancelling`` until its next start, which unwinds it where it stopped."""
    broken = [True]
    module = made(
        """
        @workflow
        async def flow():
            await work("a")
            try:
                if broken:
                    raise KeyboardInterrupt
                await waiting()
            finally:
                await work("cleanup")
        """,
        broken=broken,
        waiting=lambda: stepwise.wait_for("never"),
    )
    with pytest.raises(KeyboardInterrupt):
        call(module.flow)
    (run,) = stepwise.runs()
    run.cancel("no more")
    run.cancel("again")
    assert run.status == "cancelling"
    assert stepwise.runs(status="cancelling") == [run]
    broken.clear()
    with pytest.raises(RunCancelled, match="no more"):
        call(module.flow)
    assert (done, run.status) == (["a", "cleanup"], "cancelled")


def test_a_suspended_run(made):
    """A suspended run is ``cancelling`` at once, and unwinds at its next start."""
    module = made("""
        @workflow
        async def flow():
            try:
                await stepwise.wait_for("never")
            finally:
                await work("cleanup")
    """)
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        call(module.flow)
    (run,) = stepwise.runs()
    assert run.status == "suspended"
    run.cancel()
    assert run.status == "cancelling"
    with pytest.raises(RunCancelled):
        call(module.flow)
    assert (done, run.status) == (["cleanup"], "cancelled")


def test_requests_that_come_too_late():
    """What has ended cannot be cancelled; a request that a failing run did not meet is over."""
    broken = [True]

    @workflow
    def flow():
        work("b")
        if broken:
            raise LookupError

    cancel_at.append("b")
    with pytest.raises(LookupError):
        flow()
    broken.clear()
    flow()
    (run,) = stepwise.runs()
    with pytest.raises(RunEndedError) as caught:
        run.cancel()
    assert caught.value.status == run.status == "completed"


def twice_in_a_row(run):
    run.cancel()
    with unittest.mock.patch.object(cancelling, "_is_asked", lambda *_: False):  # at once
        run.cancel()


def twice_at_once(run):
    together = threading.Barrier(2)

    def ask():
        together.wait()
        run.cancel()

    with stepwise.background():
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for each in threads:
            each.start()
    for each in threads:
        each.join()


@pytest.mark.parametrize("ask", [twice_in_a_row, twice_at_once])
def test_requests_of_an_attempt_that_ended_are_over(ask):
    """A request that the cancelled attempt did not meet does not cancel the resumed one."""

    @step
    def asked():
        ask(stepwise.current_run())

    @workflow(name=ask.__name__)  # each its own: what another test made may be alive
    def flow():
        asked()
        return work("c")

    with pytest.raises(RunCancelled):
        flow()
    (run,) = stepwise.runs()
    assert run.resume().result() == "c"


@pytest.mark.parametrize("what", ["sleep(59)", "wait_for('never')"])
def test_a_wait_ends_at_once(made, what):
    """A run that waits is woken, and unwinds."""
    begun = threading.Event()
    module = made(
        f"""
        @workflow
        async def flow():
            try:
                begun.set()
                await stepwise.{what}
            finally:
                await work("cleanup")
        """,
        begun=begun,
    )

    def ask():
        assert begun.wait(60)
        (run,) = stepwise.runs()
        run.cancel("enough")

    thread = threading.Thread(target=ask)
    thread.start()
    began = time.monotonic()
    with pytest.raises(RunCancelled):
        call(module.flow)
    thread.join()
    assert time.monotonic() - began < 50
    assert done == ["cleanup"]


# -- timeouts ------------------------------------------------------------------------------------


@pytest.fixture
def pass_by(monkeypatch):
    """Let more time pass than a workflow with the timeout ``LIMIT`` may take."""
    passed, now, elapsed = [0], clock.now, clock.elapsed
    monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
    monkeypatch.setattr(clock, "elapsed", lambda: elapsed() + passed[0])

    def pass_by():
        passed[0] += LATE
        if asyncio._get_running_loop():
            be_late()

    return pass_by


@pytest.mark.parametrize("waits", [False, True], ids=["steps", "wait"])
def test_a_timeout(made, pass_by, waits):
    """A run past its timeout unwinds and has failed; with a longer one, it goes on."""
    late = threading.Event()
    module = made(
        """
        @workflow(timeout=60)
        async def flow():
            try:
                await work("a")
                pass_by()
                if waits:
                    await stepwise.sleep(50 if not late.is_set() else 0)
                while not late.is_set():
                    await work("again")
                return await work("b")
            finally:
                await work("cleanup")
        """,
        late=late,
        waits=waits,
        pass_by=pass_by,
    )
    with pytest.raises(RunTimeoutError) as caught:
        call(module.flow)
    (run,) = stepwise.runs()
    assert (run.status, caught.value.timeout, done[-1]) == ("failed", LIMIT, "cleanup")
    late.set()
    with pytest.raises(RunTimeoutError):  # it counts from the beginning
        call(module.flow)
    assert "b" not in done
    assert call(module.flow.options(timeout=1000)) == "b"
    assert run.status == "completed"
    assert done.count("a") == 1


def test_a_child_run_that_times_out():
    """The timeout of a child run is an error that its caller can catch."""

    @workflow(timeout=0.1)
    def child():
        while True:
            work("a")

    @workflow(timeout=0.1)
    async def achild():
        await asyncio.Event().wait()

    @workflow
    async def parent():
        with pytest.raises(RunTimeoutError):
            child()
        with pytest.raises(RunTimeoutError):
            await achild()
        return await awork("goes on")

    assert asyncio.run(parent()) == "goes on"


def test_the_timeout_of_a_parent_holds_for_its_child_runs(pass_by):
    """Child runs end with the run that called them."""

    @workflow
    async def child():
        try:
            pass_by()
            await asyncio.Event().wait()
        finally:
            await awork("child")

    @workflow(timeout=LIMIT)
    async def parent():
        try:
            await child()
        finally:
            await awork("parent")

    with pytest.raises(RunTimeoutError) as caught:
        asyncio.run(parent())
    assert done == ["child", "parent"]
    inner, outer = stepwise.runs()
    assert (inner.status, outer.status, caught.value.run_id) == ("failed", "failed", outer.id)


SCRIPT = """
import stepwise
from stepwise import step, workflow
from stepwise._execution import active_run

active_run._EVERY = 0.0

@step
def work(name):
    if name == "b":
        stepwise.current_run().cancel("enough")

@workflow
def agent():
    work("b")
    work("c")

agent()
"""


def test_at_the_top_of_a_script(start):
    """Uncaught at the top of a script, it is one line, and exit code 1."""
    for _ in range(2):
        script = start(SCRIPT)
        script.process.stdin.close()
        (line,) = script.process.stdout.read().splitlines()
        assert script.process.wait() == 1
        assert line.startswith("stepwise: run 'agent-")
        assert ": enough" in line


# -- a cancellation that comes while the workflow is in its clean-up -------------------------------


class Closing:
    """A context manager of the program, whose exit makes steps."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        work("b")
        work("cleanup")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await awork("b")
        await asyncio.sleep(0)  # it is not cancelled here either
        await awork("cleanup")


CLEANING = {
    "finally": """
            try:
                await work("a")
            finally:
                await tidy()
    """,
    "child run": """
            try:
                await work("a")
            finally:
                await child()
    """,
    "with": """
            async with Closing():
                await work("a")
    """,
    "generator": """
            async with closing():
                await work("a")
    """,
}


@pytest.mark.parametrize("how", CLEANING)
def test_a_clean_up_in_progress_is_not_cut_off(made, how):
    """What normal flow does in ``finally``, and in the exit of ``with``, ends; then it unwinds."""
    module = made(
        f"""
        import contextlib

        async def tidy():
            await work("b")
            await pause()
            await work("cleanup")

        @workflow
        async def child():
            await tidy()

        async def closing():
            yield
            await tidy()
        closing = getattr(contextlib, manager.get(type(closing()).__name__))(closing)

        @workflow(name="agent")
        async def flow():
            {CLEANING[how].strip()}
            await pause()  # so that a timer may look
            await work("c")
        """,
        manager={"generator": "contextmanager", "async_generator": "asynccontextmanager"},
        pause=lambda: asyncio.sleep(0.001) if asyncio._get_running_loop() else None,
    )
    cancelled(module.flow)
    assert done == ["a", "b", "cleanup"]
    (run,) = [each for each in stepwise.runs() if each.parent is None]
    assert run.status == "cancelled"


def test_a_timeout_does_not_cut_off_a_clean_up(monkeypatch):
    """The timeout of a workflow is told after the clean-up, as a cancellation is."""
    over = []
    monkeypatch.setattr(active_run.End, "left", lambda _: -1.0 if over else 1000.0)

    @workflow(timeout=1000)
    def agent():
        try:
            work("a")
        finally:
            over.append(True)
            work("b")
        work("c")

    with pytest.raises(RunTimeoutError):
        agent()
    assert done == ["a", "b"]


def test_the_work_of_a_task_group_is_no_clean_up():
    """A workflow that waits at the end of a task group or a pool is cancelled there."""

    @step
    async def hang(name):
        work_on(name)
        await asyncio.Event().wait()

    @workflow
    async def agent():
        await awork("a")
        async with Group() as group:
            group.tasks.append(asyncio.ensure_future(hang("b")))

    class Group:
        def __init__(self):
            self.tasks = []

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            await asyncio.gather(*self.tasks)

    Group.__aexit__ = types.FunctionType(
        Group.__aexit__.__code__, {"asyncio": asyncio, "__name__": "anyio.of_a_test"}
    )
    cancelled(agent)
    assert done == ["a", "b"]
