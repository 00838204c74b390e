"""A run that somebody else is executing: refused, waited for, or skipped."""

import asyncio
import contextlib
import signal
import threading

import pytest

import stepwise
from stepwise import RunBusyError, RunConflictError, RunOwnedError, RunSkipped, step, workflow
from stepwise.stores import open_store

JOB = """
import sys
from stepwise import step, workflow

@step
def work(name):
    print("works", name, flush=True)
    answer = sys.stdin.readline().strip()
    if answer == "fail":
        raise LookupError(name)
    return f"{name} {answer}"

@workflow
def job():
    return [work("a"), work("b")]
"""

STARTED = """
from job import job

try:
    print("result", job.options(on_owned="POLICY")())
except Exception as error:
    print("caught", type(error).__name__, error, getattr(error, "owner", ""), flush=True)
"""


@pytest.fixture
def job(fork, tmp_path, monkeypatch):
    """Start the same job in several processes, as cron does."""
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")

    def begun(on_owned="raise"):
        monkeypatch.setenv("STEPWISE_QUIET", "0" if on_owned == "wait" else "1")
        script = fork(STARTED.replace("POLICY", on_owned))
        if on_owned == "wait":
            assert "waits, since it is being executed by process " in script.hear()
        return script

    return begun


@pytest.fixture
def first(job):
    """The process that executes the run."""
    script = job()
    assert script.hear() == "works a"
    return script


def test_overlapping_cron_jobs(first, job):
    """The second process gets an exception that ``except Exception`` catches, naming the first."""
    told = job().finish()
    assert "caught RunBusyError" in told
    assert f"by process {first.pid}" in told
    for answer in "xy":
        first.tell(answer)
    assert "result ['a x', 'b y']" in first.finish()


def test_wait_for_another_process(first, job):
    """``wait`` gives the result of the run when its owner completes it; no step runs twice."""
    second = job("wait")
    first.tell("x")
    assert first.hear() == "works b"
    first.tell("y")
    assert "result ['a x', 'b y']" in first.finish()
    assert second.finish() == "result ['a x', 'b y']"


def test_the_owner_dies(first, job):
    """Who waits takes the run over when its owner is killed, and repeats nothing."""
    first.tell("x")
    assert first.hear() == "works b"
    second = job("wait")
    first.kill()
    assert "1 step answered by the journal" in second.hear()
    assert second.hear() == "works b"
    second.tell("z")
    assert second.finish() == "result ['a x', 'b z']"


def test_the_owner_fails(first, job):
    """Who waits for a run that fails gets its exception, and does not try it again."""
    second = job("wait")
    first.tell("fail")
    assert "caught LookupError a" in first.finish()
    assert second.finish().startswith("caught LookupError a")
    (run,) = stepwise.runs()
    assert run.resumed_from_step is None


def test_ctrl_c_ends_the_waiting(first, job):
    """Ctrl-C ends the waiting; the run that was waited for goes on undisturbed."""
    second = job("wait")
    second.process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in second.process.stdout.read()
    (run,) = stepwise.runs()
    assert (run.status, run.owner.pid) == ("running", first.pid)


def test_skip(first, job):
    """``skip`` leaves the run to its owner: a call says so, ``execute()`` gives the run."""
    assert "caught RunSkipped" in job("skip").finish()
    (run,) = stepwise.runs()
    assert (run.status, run.owner.pid) == ("running", first.pid)


# -- in one process ------------------------------------------------------------------------------

done = []
entered, leave = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    entered.clear()
    leave.clear()


@step
def work(x):
    done.append(x)
    entered.set()
    assert leave.wait(300)
    return len(done)


@workflow(on_owned="wait")
def agent(x):
    return work(x)


def begin(call, *arguments):
    """Call it in a thread, and come back when its step is being executed."""
    results = []

    def target():
        try:
            results.append(call(*arguments))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, results


def test_threads_wait_for_one():
    """Equal calls of many threads are one run, whose result all get; it counts as one call."""
    threads = [begin(agent, "x") for _ in range(5)]
    assert entered.wait(300)
    leave.set()
    for thread, _ in threads:
        thread.join()
    results = [result for _, (result,) in threads]
    assert results[0] == 1
    # A thread that begins after the first has ended makes a call of its own, as ever.
    assert len(stepwise.runs()) == len(done) == len(set(results))


def test_execute_waits_and_skips():
    """``execute()`` waits for the run too, or gives the one that is being executed."""
    thread, results = begin(agent, "x")
    assert entered.wait(300)
    run = agent.options(on_owned="skip").execute("x")
    assert run.status == "running"
    with pytest.raises(RunSkipped) as skipped:
        agent.options(on_owned="skip")("x")
    assert (skipped.value.run_id, skipped.value.owner) == (run.id, run.owner)
    with pytest.raises(RunBusyError):
        agent.options(on_owned="raise")("x")
    leave.set()
    thread.join()
    assert results == [1]
    with pytest.raises(stepwise.ConfigurationError, match="'raise', 'wait' or 'skip'"):
        agent.options(on_owned="queue")
    assert (run.result, done) == (1, ["x"])
    assert agent.run_id_for("x") == f"{run.id}-2"  # what was waited for is counted once


def test_tasks_wait_for_one():
    """Tasks wait without holding up the loop; cancelling one that waits disturbs nobody."""
    begun, release = [], []

    @step
    async def look(x):
        done.append(x)
        begun[0].set()
        await release[0].wait()
        return "seen"

    @workflow(on_owned="wait")
    async def looker(x):
        return await look(x)

    async def main():
        begun.append(asyncio.Event())
        release.append(asyncio.Event())
        first = asyncio.create_task(looker("x"))
        await begun[0].wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(looker("x"), 0.05)
        others = asyncio.gather(looker("x"), looker("x"))
        asyncio.get_running_loop().call_later(0.05, release[0].set)
        return [await first, *await others]

    assert asyncio.run(main()) == ["seen"] * 3
    assert done == ["x"]


def test_generators_are_skipped():
    """A generator workflow that somebody else executes yields nothing to who skips it."""

    @workflow
    def items():
        yield 1
        yield 2

    @workflow
    async def aitems():
        yield 1

    kept = items()
    next(kept)
    with pytest.raises(RunBusyError):
        next(items())
    with pytest.raises(RunSkipped):
        next(items.options(on_owned="skip")())
    assert items.options(on_owned="skip").execute().status == "running"
    kept.close()

    async def main():
        first = aitems()
        await first.__anext__()
        run = await aitems.options(on_owned="skip").execute()
        assert run.status == "running"
        await first.aclose()

    asyncio.run(main())


def test_a_call_that_means_another_run_does_not_wait():
    """A run id of a run with other arguments is a conflict at once, even while that run goes on."""
    inside, done = threading.Event(), threading.Event()

    @workflow(run_id="one", on_owned="wait")
    def holds(number):
        inside.set()
        assert done.wait(300)
        return number

    first = threading.Thread(target=holds, args=(1,))
    first.start()
    try:
        assert inside.wait(300)
        with pytest.raises(RunConflictError, match="run id 'one' belongs to another call"):
            holds(2)
    finally:
        done.set()
        first.join()
    assert holds(1) == 1


def test_a_refused_call_leaves_a_run_to_its_last_owner(tmp_path):
    """A call with other arguments takes no lease, so that displays name who executed the run."""

    @workflow(run_id="one")
    def fails(number):
        raise OSError("once")

    store = open_store(f"disk:{tmp_path}/store")
    stepwise.configure(store=store)
    with pytest.raises(OSError, match="once"):
        fails(1)
    before = store.last_owner("one")
    with pytest.raises(RunConflictError, match="run id 'one' belongs to another call"):
        fails(2)
    assert store.last_owner("one") == before


def test_a_resume_reads_its_run_under_the_lease(tmp_path):
    """An unfinished run is read once it is this call's own: before, the store gives its head."""
    asked = []

    class Noting:
        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            method = getattr(self._store, name)
            if name not in ("head", "read", "acquire", "marks", "names", "get"):
                return method

            def noted(*args, **kwargs):
                asked.append(name)
                return method(*args, **kwargs)

            return noted

    fails = [True]

    @workflow
    def once():
        if fails:
            raise OSError("once")
        return "done"

    stepwise.configure(store=Noting(open_store(f"disk:{tmp_path}/store")))
    with pytest.raises(OSError, match="once"):
        once()
    fails.clear()
    asked.clear()
    assert once() == "done"
    assert asked[: asked.index("acquire")] == ["head"]
    (run,) = stepwise.runs()
    asked.clear()
    assert once.options(run_id=run.id)() == "done"  # a result needs no lease
    assert "acquire" not in asked


# -- who waits for whom --------------------------------------------------------------------------


def test_waiting_for_oneself():
    """A call that would wait for the very run that called it, or holds it, is refused at once."""

    @workflow(on_owned="wait")
    def itself():
        with stepwise.background():
            return itself()

    with pytest.raises(RunBusyError, match="waits for the caller"):
        itself()

    @workflow(on_owned="wait")
    def items():
        yield 1

    kept = items()
    next(kept)
    with pytest.raises(RunBusyError, match="waits for the caller"):
        next(items())
    kept.close()

    @workflow(on_owned="wait")
    async def task():
        with stepwise.background():
            other = asyncio.create_task(task())
        await asyncio.gather(other, asyncio.sleep(0))

    with pytest.raises(RunBusyError, match="waits for the caller"):
        asyncio.run(task())


def test_waiting_for_a_parent():
    """A child run that is a run around it is refused; inside a run nothing can swallow that."""

    @workflow(on_owned="wait")
    def outer():
        return inner()

    @workflow(on_owned="wait")
    def inner():
        with contextlib.suppress(Exception):
            return outer.options(run_id="outer")()

    with pytest.raises(RunOwnedError, match="waits for the caller"):
        outer.options(run_id="outer")()


def test_runs_that_wait_for_each_other():
    """Two runs that would wait for each other: the second one is refused, the first goes on."""
    meet = threading.Barrier(2)

    def met(name):
        if name in done:  # it was taken over
            raise InterruptedError
        done.append(name)
        meet.wait(300)

    @workflow(on_owned="wait")
    def one():
        met("one")
        return two.options(run_id="two")()

    @workflow(on_owned="wait")
    def two():
        met("two")
        return one.options(run_id="one")()

    threads = [begin(each.options(run_id=name)) for each, name in ((one, "one"), (two, "two"))]
    for thread, _ in threads:
        thread.join(300)
        assert not thread.is_alive()
    results = [result for _, (result,) in threads]
    assert any(isinstance(each, RunOwnedError) for each in results)


def test_a_child_run_that_another_run_executes():
    """Two runs that share a child run: one executes it, the other waits and gets its result."""

    @workflow(on_owned="wait")
    def shared():
        return work("shared")

    @workflow
    def parent(name):
        return name, shared.options(run_id="shared")()

    first, one = begin(parent, "a")
    assert entered.wait(300)
    second, two = begin(parent, "b")
    leave.set()
    first.join()
    second.join()
    assert (one, two, done) == ([("a", 1)], [("b", 1)], ["shared"])


SEARCHES_ITS_HOME = """
import os, pathlib, sys
from stepwise import DidNotHappen, Landed, step, tool, workflow

def look(call):
    print("asked", call.name)
    return DidNotHappen

@step
def search(word):
    files = [p for p in pathlib.Path(os.environ["STEPWISE_HOME"]).rglob("*") if p.is_file()]
    return len(files), sum(word in path.read_bytes() for path in files) > 0

@tool(side_effect=True, in_doubt=look)
def charge(cents):
    print("charged")
    if sys.argv[1] == "first":
        sys.stdin.readline()
    return cents

@workflow
def agent():
    count, found = search(b"SQLite")
    return found, charge(500), search(b"more")[0] >= count
"""
SEARCHES = """
from searching import agent
try:
    print(agent())
except BaseException as error:
    print(type(error).__name__)
"""


def test_an_agent_that_searches_its_own_home(fork, tmp_path):
    """A step that reads everything below STEPWISE_HOME gives away neither run nor records."""
    (tmp_path / "searching.py").write_text(SEARCHES_ITS_HOME, encoding="utf-8")
    first = fork(SEARCHES, "first")
    assert first.hear() == "charged"
    assert fork(SEARCHES, "second").finish() == "RunBusyError"
    assert len(stepwise.runs()) == 1  # opens the store, and closes it
    first.tell()
    assert first.finish() == "(True, 500, True)"
    assert fork(SEARCHES, "second").finish() == "(True, 500, True)"
