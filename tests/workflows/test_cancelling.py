"""Runs that are cancelled, or take longer than their timeout: they unwind, and can be resumed."""

import asyncio
import contextlib
import threading
import time
import types
import unittest.mock

import pytest

import stepwise
from stepwise import RunCancelled, RunEndedError, RunTimeoutError, step, tool, workflow
from stepwise._execution import steering
from stepwise._runs import cancelling

done = []
undone = []
cancel_at = []  # the work at which the run is cancelled


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch):
    done.clear()
    undone.clear()
    cancel_at.clear()
    monkeypatch.setattr(steering, "_EVERY", 0.0)  # every call looks


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


@step
async def hang(name):
    work_on(name)
    await asyncio.Event().wait()


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


def cancelled(call, *names, by=asyncio.run):
    """Call a workflow that is cancelled at "b": the error, and the run."""
    cancel_at.append("b")
    with pytest.raises(RunCancelled) as caught:
        result = call(*names)
        if asyncio.iscoroutine(result):
            by(result)
    return caught.value, stepwise.runs()[-1]


@pytest.mark.parametrize("flow", [agent, slow], ids=["plain", "async"])
def test_it_unwinds_at_the_next_call(flow):
    """The step in flight ends, no other begins, the clean-up runs, and the caller gets it."""
    error, run = cancelled(flow, "a", "b", "c")
    assert done == ["a", "b", "cleanup"]
    assert (run.status, error.run_id, error.reason) == ("cancelled", run.id, "at b")
    assert error.by in str(error)
    assert ": at b" in str(error)
    assert [step.status for step in run.steps] == ["completed"] * 3
    assert isinstance(run.error, RunCancelled)


def test_child_runs_clean_up():
    """A child run that is called while the cancellation is handled is executed as a whole."""

    @workflow
    def tidy():
        work("child")
        return work("of child")

    @workflow
    async def atidy():
        await awork("child")
        return await awork("of child")

    @workflow(name="agent")
    def plain(*names):
        try:
            return [work(name) for name in names]
        finally:
            tidy()

    @workflow(name="slow")
    async def asynchronous(*names):
        try:
            return [await awork(name) for name in names]
        finally:
            await atidy()

    for flow in (plain, asynchronous):
        done.clear()
        _, run = cancelled(flow, "a", "b", "c")
        assert done == ["a", "b", "child", "of child"]
        assert run.steps[-1].status == "completed"


@pytest.mark.parametrize("flow", [agent, slow], ids=["plain", "async"])
def test_a_run_that_cancels_itself(flow, monkeypatch):
    """Its next step is not executed, however lately the inbox was looked at."""
    monkeypatch.setattr(steering, "_EVERY", 3600.0)
    cancelled(flow, "a", "b", "c")
    assert done == ["a", "b", "cleanup"]


@pytest.mark.parametrize("flow", [agent, slow], ids=["plain", "async"])
def test_a_plain_call_does_not_resume_it(flow):
    """Called again, it says that it was cancelled, and how to go on."""
    _, run = cancelled(flow, "a", "b", "c")
    with pytest.raises(RunCancelled, match=f"stepwise resume {run.id}.*fresh=True"):
        result = flow("a", "b", "c")
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    assert done == ["a", "b", "cleanup"]
    assert run.status == "cancelled"


@pytest.mark.parametrize("flow", [agent, slow], ids=["plain", "async"])
def test_it_is_resumed_if_asked_for(flow):
    """``Run.resume()`` goes on where it stopped; no request is left over."""
    _, run = cancelled(flow, "a", "b", "c")
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


def test_an_asynchronous_step_is_cancelled():
    """A step in flight of an asynchronous run is cancelled where it awaits."""

    @workflow
    async def flow():
        try:
            await hang("b")
        finally:
            await awork("cleanup")

    error, run = cancelled(flow)
    assert done == ["b", "cleanup"]
    assert [step.status for step in run.steps] == ["cancelled", "completed"]
    assert isinstance(error.__cause__, asyncio.CancelledError)


def test_code_that_awaits_something_else_is_cancelled():
    """The workflow's own code is cancelled where it awaits, too."""

    @workflow
    async def flow():
        await awork("b")
        await asyncio.Event().wait()

    _, run = cancelled(flow)
    assert run.status == "cancelled"


def test_a_started_run():
    """The handle of a started run says that it was cancelled."""

    async def main():
        handle = slow.start("a", "b", "c")
        with pytest.raises(RunCancelled):
            await handle
        return handle

    cancel_at.append("b")
    handle = asyncio.run(main())
    assert (handle.status, done) == ("cancelled", ["a", "b", "cleanup"])
    done.clear()
    cancel_at.append("b")
    handle = agent.start("a", "b", "c")
    with pytest.raises(RunCancelled):
        handle.result()
    assert (handle.status, done) == ("cancelled", ["a", "b", "cleanup"])


# -- handled, or not -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_workflow_that_handles_it(kind):
    """A workflow that handles the cancellation and returns has completed."""

    @workflow
    def flow():
        try:
            work("b")
            work("c")
        except RunCancelled:
            work("handled")
        return work("d")

    @workflow
    async def aflow():
        try:
            await awork("b")
            await awork("c")
        except asyncio.CancelledError:
            await awork("handled")
        return await awork("d")

    cancel_at.append("b")
    assert (flow() if kind == "plain" else asyncio.run(aflow())) == "d"
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


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_child_runs_are_cancelled_with_their_parent(kind):
    """The request reaches the child run that is in progress; both run their clean-up."""

    @workflow
    def parent(*names):
        try:
            return agent(*names)
        finally:
            work("parent")

    @workflow
    async def aparent(*names):
        try:
            return await slow(*names)
        finally:
            await awork("parent")

    flow = parent if kind == "plain" else aparent

    @step
    def root():
        return stepwise.current_run().id

    # The child asks for the end of its parent.
    def cancel_parent(name):
        done.append(name)
        if name == "b" and cancel_at:
            cancel_at.clear()
            stepwise.get_run(stepwise.current_run().parent).cancel("from below")
        return name

    monkey = pytest.MonkeyPatch()
    monkey.setitem(globals(), "work_on", cancel_parent)
    try:
        cancelled(flow, "a", "b", "c")
    finally:
        monkey.undo()
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


def test_a_run_that_nobody_executes():
    """It is ``cancelling`` until its next start, which unwinds it where it stopped."""
    broken = [True]

    @step
    def fragile():
        if broken:
            raise KeyboardInterrupt

    @workflow
    def flow():
        work("a")
        try:
            fragile()
            work("b")
        finally:
            work("cleanup")

    with pytest.raises(KeyboardInterrupt):
        flow()
    (run,) = stepwise.runs()
    run.cancel("no more")
    run.cancel("again")
    assert run.status == "cancelling"
    assert stepwise.runs(status="cancelling") == [run]
    broken.clear()
    with pytest.raises(RunCancelled, match="no more"):
        flow()
    assert (done, run.status) == (["a", "cleanup"], "cancelled")


def test_an_asynchronous_run_that_nobody_executes():
    """An asynchronous run that is resumed to unwind does not begin what it awaits there."""
    broken = [True]

    @workflow
    async def flow():
        await awork("a")
        try:
            if broken:
                raise KeyboardInterrupt
            await asyncio.Event().wait()
        finally:
            await awork("cleanup")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow())
    (run,) = stepwise.runs()
    run.cancel()
    broken.clear()
    with pytest.raises(RunCancelled):
        asyncio.run(flow())
    assert (done, run.status) == (["a", "cleanup"], "cancelled")


def test_an_ended_run():
    """What has ended cannot be cancelled."""
    agent("a")
    (run,) = stepwise.runs()
    with pytest.raises(RunEndedError) as caught:
        run.cancel()
    assert caught.value.status == "completed"


def test_a_request_that_comes_as_the_run_fails():
    """A request that the run did not meet before it failed does not cancel its next start."""
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
    assert run.status == "completed"


def test_requests_of_an_attempt_that_ended_are_over():
    """A request that the cancelled attempt did not meet does not cancel the resumed one."""

    @workflow(name="asked_again")
    def flow():
        twice()
        return work("c")

    @step
    def twice():
        run = stepwise.current_run()
        run.cancel()
        with unittest.mock.patch.object(cancelling, "_is_asked", lambda *_: False):  # at once
            run.cancel()

    with pytest.raises(RunCancelled):
        flow()
    (run,) = stepwise.runs()
    assert run.resume().result() == "c"


def test_two_at_once():
    """Two that cancel one run are one request; resumed, it does not meet the other one."""
    together = threading.Barrier(2)

    @step
    def asked():
        run = stepwise.current_run()

        def ask():
            together.wait()
            run.cancel()

        with stepwise.background():
            threads = [threading.Thread(target=ask) for _ in range(2)]
            for each in threads:
                each.start()
        for each in threads:
            each.join()

    @workflow(name="asked_twice")
    def flow():
        asked()
        return work("c")

    with pytest.raises(RunCancelled):
        flow()
    (run,) = stepwise.runs()
    assert run.resume().result() == "c"


def test_events():
    """Listeners hear of it once."""
    heard = []
    stop = stepwise.on_event(lambda event: heard.append(event.kind))
    cancelled(agent, "a", "b", "c")
    stop()
    assert [kind for kind in heard if kind.startswith("run_")] == ["run_started", "run_cancelled"]


# -- waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("what", ["sleep", "signal"])
def test_a_wait_ends_at_once(kind, what):
    """A run that waits is woken, and unwinds."""
    begun = threading.Event()

    def waiting():
        begun.set()
        return stepwise.sleep(59) if what == "sleep" else stepwise.wait_for("never")

    @workflow
    def flow():
        try:
            waiting()
        finally:
            work("cleanup")

    @workflow
    async def aflow():
        try:
            await waiting()
        finally:
            await awork("cleanup")

    def ask():
        assert begun.wait(60)
        (run,) = stepwise.runs()
        run.cancel("enough")

    thread = threading.Thread(target=ask)
    thread.start()
    began = time.monotonic()
    with pytest.raises(RunCancelled):
        flow() if kind == "plain" else asyncio.run(aflow())
    thread.join()
    assert time.monotonic() - began < 50
    assert done == ["cleanup"]


def test_a_suspended_run():
    """A suspended run is ``cancelling`` at once, and unwinds at its next start."""

    @workflow
    def flow():
        try:
            stepwise.wait_for("never")
        finally:
            work("cleanup")

    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        flow()
    (run,) = stepwise.runs()
    assert run.status == "suspended"
    run.cancel()
    assert run.status == "cancelling"
    with pytest.raises(RunCancelled):
        flow()
    assert (done, run.status) == (["cleanup"], "cancelled")


# -- timeouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "wait"])
def test_a_timeout(kind):
    """A run past its timeout unwinds and has failed; with a longer one, it goes on."""
    late = threading.Event()

    @workflow(timeout=0.2)
    def flow():
        try:
            work("a")
            if kind == "wait":
                stepwise.sleep(50 if not late.is_set() else 0)
            while not late.is_set():
                work("again")
            return work("b")
        finally:
            work("cleanup")

    @workflow(timeout=0.2)
    async def aflow():
        try:
            await awork("a")
            while not late.is_set():  # noqa: ASYNC110 -- no event of a loop outlives it
                await asyncio.sleep(0.01)
            return await awork("b")
        finally:
            await awork("cleanup")

    def call(flow):
        return asyncio.run(flow()) if kind == "async" else flow()

    chosen = aflow if kind == "async" else flow
    with pytest.raises(RunTimeoutError) as caught:
        call(chosen)
    (run,) = stepwise.runs()
    assert (run.status, caught.value.timeout, done[-1]) == ("failed", 0.2, "cleanup")
    late.set()
    with pytest.raises(RunTimeoutError):  # it counts from the beginning
        call(chosen)
    assert "b" not in done
    assert call(chosen.options(timeout=1000)) == "b"
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
        for call in (child, achild):
            with pytest.raises(RunTimeoutError):
                result = call()
                if asyncio.iscoroutine(result):
                    await result
        return await awork("goes on")

    assert asyncio.run(parent()) == "goes on"


def test_the_timeout_of_a_parent_holds_for_its_child_runs():
    """Child runs end with the run that called them."""

    @workflow
    async def child():
        try:
            await asyncio.Event().wait()
        finally:
            await awork("child")

    @workflow(timeout=0.1)
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


@pytest.mark.parametrize("wrong", [0, -1, "10", True])
def test_timeouts_are_checked(wrong):
    """``timeout`` is a number of seconds above 0."""
    with pytest.raises(stepwise.ConfigurationError, match="timeout="):
        workflow(timeout=wrong)(lambda: None)


SCRIPT = """
import stepwise
from stepwise import step, workflow
from stepwise._execution import steering

steering._EVERY = 0.0

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
        await awork("cleanup")


@contextlib.contextmanager
def closing():
    yield
    work("b")
    work("cleanup")


@contextlib.asynccontextmanager
async def aclosing():
    yield
    await awork("b")
    await awork("cleanup")


def tidy():
    work("b")
    work("cleanup")


async def atidy():
    await awork("b")
    await asyncio.sleep(0)  # it is not cancelled here either
    await awork("cleanup")


@workflow
def child():
    tidy()


@workflow
async def achild():
    await atidy()


CLEANING = {"finally": (tidy, atidy), "child run": (child, achild)}
EXITS = {"with": (Closing, Closing), "generator": (closing, aclosing)}


@pytest.mark.parametrize("how", [*CLEANING, *EXITS])
@pytest.mark.parametrize("kind", [0, 1], ids=["plain", "async"])
def test_a_clean_up_in_progress_is_not_cut_off(how, kind):
    """What normal flow does in ``finally``, and in the exit of ``with``, ends; then it unwinds."""

    @workflow(name="agent")
    def plainly():
        if how in EXITS:
            with EXITS[how][0]():
                work("a")
        else:
            try:
                work("a")
            finally:
                CLEANING[how][0]()
        work("c")

    @workflow(name="agent")
    async def awaiting():
        if how in EXITS:
            async with EXITS[how][1]():
                await awork("a")
        else:
            try:
                await awork("a")
            finally:
                await CLEANING[how][1]()
        await asyncio.sleep(0.001)  # so that a timer may look
        await awork("c")

    cancelled((plainly, awaiting)[kind])
    assert done == ["a", "b", "cleanup"]
    (run,) = [each for each in stepwise.runs() if each.parent is None]
    assert run.status == "cancelled"


def test_a_timeout_does_not_cut_off_a_clean_up(monkeypatch):
    """The timeout of a workflow is told after the clean-up, as a cancellation is."""
    over = []
    monkeypatch.setattr(steering.End, "left", lambda _: -1.0 if over else 1000.0)

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
    cancel_at.append("b")
    with pytest.raises(RunCancelled):
        asyncio.run(agent())
    assert done == ["a", "b"]
