"""``@step(executor=...)``: the body of a step in an executor, recorded by the owner of its run."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import cloudpickle
import pytest
from answering import asked
from flows import aflow_of, flow_of

import stepwise
from stepwise import (
    Budget,
    NotRecordableError,
    OutsideRunError,
    RunCancelled,
    StepTimeoutError,
    WorkerDiedError,
    current_step,
    step,
    tool,
    workflow,
)
from stepwise._calls.steps import step_of

SPAWN = multiprocessing.get_context("spawn")


class Pool(ProcessPoolExecutor):
    """A pool of one process, which starts with the first body."""

    def __init__(self):
        super().__init__(1, SPAWN)


POOL = Pool()
THREADS = ThreadPoolExecutor(2, thread_name_prefix="mine")


@pytest.fixture(scope="module", autouse=True)
def _closed():
    """The pools of this module end with it."""
    yield
    POOL.shutdown()
    THREADS.shutdown()


@step(executor=POOL)
def pid(x=0):
    return os.getpid(), x


@step(executor=THREADS)
def thread(x=0):
    return threading.current_thread().name


@step(executor=POOL)
async def later(x):
    await asyncio.sleep(0)
    return os.getpid(), x


@step(executor=THREADS)
async def later_here(x):
    return threading.current_thread().name, await noted(x)


@step
async def noted(x):
    return x


@step(executor=POOL)
def broken(x):
    raise LookupError(x)


@step
def inner(x):
    return x


@step(executor=POOL)
def outer(x):
    return inner(x)


@step(executor=THREADS)
def outer_here(x):
    return inner(x)


@tool(side_effect=True, executor=POOL)
def act(x):
    return current_step().idempotency_key, current_step().attempt


@step(executor=POOL)
def spends():
    stepwise.spend(usd=1)


class Counter:
    def __init__(self):
        self.count = 1

    @step(executor=POOL)
    def add(self, x, *, twice=False):
        self.count += 10
        return self.count + x * (1 + twice)

    @classmethod
    @step(executor=POOL)
    def make(cls, x):
        return cls.__name__, x

    @staticmethod
    @step(executor=POOL)
    def alone(x):
        return os.getpid(), x


def test_a_single_call_goes_to_the_pool():
    """The body runs in a worker; the call is one record, and answers when the run goes on.

    The thread that the pool starts with its first call keeps no checkpoint from being taken.
    """
    fails = [True]

    @workflow(budget=Budget(usd=2))
    def agent():
        found = pid(), pid(1), pid(x=1)
        spends()
        if fails.pop():
            raise RuntimeError("later")
        return found

    with pytest.raises(RuntimeError):
        agent()
    fails.append(False)
    found = agent()
    assert {each for each, _ in found} == {found[0][0]} != {os.getpid()}
    assert [x for _, x in found] == [0, 1, 1]
    (run,) = stepwise.runs()
    assert [each.name for each in run.steps] == ["pid"] * 3 + ["spends"]
    assert (run.steps_skipped, run.spent.usd) == (4, 1)


def test_outside_a_run_it_is_the_plain_function():
    """Outside a run the body runs where it is called, even where the executor is not installed."""

    @step(executor="ray", resources={"num_gpus": 1})
    def trained(x):
        return os.getpid(), x

    assert pid(3) == trained(3) == (os.getpid(), 3)
    assert asyncio.run(later(3)) == (os.getpid(), 3)


def test_where_the_body_runs_is_no_part_of_the_call():
    """A call that was recorded without executor answers the one with, and the other way round."""

    def double(x):
        return x * 2, os.getpid()

    moves = [step(double), step(executor=THREADS)(double), step(double)]

    @workflow(run_id="r", key=lambda: 1)
    def agent():
        found = moves[0](4)
        if len(moves) > 1:
            raise RuntimeError("later")
        return found

    for _ in range(2):
        with pytest.raises(RuntimeError):
            agent()
        moves.pop(0)
    assert agent() == (8, os.getpid())
    assert len(stepwise.get_run("r").steps) == 1


def test_threads_of_a_pool():
    """An executor of threads has the body in its threads, where other steps are recorded."""
    name, found = flow_of(lambda: (thread(), outer_here(5)))()
    assert (name.startswith("mine"), found) == (True, 5)
    names = sorted(each.name for each in stepwise.get_run("r").steps)
    assert names == ["inner", "outer_here", "thread"]


def test_the_event_loop_is_not_blocked(tmp_path):
    """An ``async def`` step is awaited while its body runs elsewhere: others go on meanwhile."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    @step(executor=THREADS)
    async def reads():
        return path.read_text()  # blocks its thread until somebody writes

    @step
    async def writes():
        return await asyncio.to_thread(path.write_text, "done")

    agent = aflow_of(lambda: asyncio.gather(reads(), writes(), later(1), later_here(2), later(3)))
    read, _, (first, one), (name, two), (second, three) = asyncio.run(agent())
    assert read == "done"
    assert first == second != os.getpid()
    assert (one, two, three) == (1, 2, 3)
    assert name.startswith("mine")
    (run,) = stepwise.runs()
    assert sorted(each.name for each in run.steps) == [
        *("later", "later", "later_here", "noted"),
        *("reads", "writes"),
    ]


def test_map_uses_the_executor_of_the_step():
    """``map`` uses its own executor, or else that of the step, for functions and coroutines.

    Outside a run it awaits the plain functions in the executor.
    """

    async def calls():
        return [
            stepwise.map(pid, range(2)),
            await stepwise.map(later, range(2)),
            stepwise.map(pid, [0], executor=THREADS),
            await stepwise.map(noted, [1], executor=POOL),
        ]

    async def outside():
        return await stepwise.map(later, [0, 1], executor=POOL)

    plain, coroutines, threads, other = asyncio.run(aflow_of(calls)())
    for found in (plain, coroutines, asyncio.run(outside())):
        assert [x for _, x in found] == [0, 1]
        assert os.getpid() not in {each for each, _ in found}
    assert (threads, other) == ([(os.getpid(), 0)], [1])


def test_threads_and_tasks_of_the_workflow():
    """Calls from the workflow's own threads go to the pool, too."""

    def calls():
        with ThreadPoolExecutor(2) as own:
            return [each.result() for each in [own.submit(pid, x) for x in range(4)]]

    assert [x for _, x in flow_of(calls)()] == [0, 1, 2, 3]


def test_methods():
    """Methods work by keyword and by class; what a body changes in ``self`` stays in the worker."""

    def calls():
        counter = Counter()
        found = counter.add(1), counter.add(2, twice=True), counter.count
        return found, Counter.make(3), Counter.alone(4)[1]

    assert flow_of(calls)() == ((12, 15, 1), ("Counter", 3), 4)


@pytest.mark.parametrize("mapped", [False, True])
def test_exceptions_arrive_as_they_were(mapped):
    """An exception of the body is raised here, with the worker's traceback as its cause."""
    with pytest.raises(LookupError) as caught:
        flow_of(lambda: stepwise.map(broken, ["no"]) if mapped else broken("no"))()
    assert caught.value.args == ("no",)
    assert "in broken" in str(caught.value.__cause__)
    assert [each.status for each in stepwise.get_run("r").steps] == ["failed"]


@step(executor=POOL, secret=["token"])
def login(token):
    raise PermissionError(f"{token} is not welcome")


def test_secrets_are_sent_and_not_stored(tmp_path):
    """A secret argument reaches the body; what comes back of it in an error is not recorded."""

    @workflow(store=f"disk:{tmp_path}", secret=["token"])
    def agent(token):
        login(token)

    with pytest.raises(PermissionError, match="a-secret-of-mine is not welcome"):
        agent("a-secret-of-mine")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(b"a-secret-of-mine" not in path.read_bytes() for path in files)


def test_steps_inside_are_refused():
    """A step that the body calls in a worker process cannot be recorded, and is refused."""
    for call in (lambda: outer(1), lambda: stepwise.map(outer, [1])):
        with pytest.raises(OutsideRunError, match="in a worker process of run"):
            flow_of(call)()


def test_side_effects_know_their_key():
    """A side effect is announced by the owner; its body reads the idempotency key of that."""
    key, attempt = flow_of(lambda: act(1))()
    assert (stepwise.get_run("r").steps[0].idempotency_key, attempt) == (key, 1)


def test_what_cannot_be_sent_is_no_side_effect():
    """An argument that cannot be sent is named before the intent: nothing is in doubt."""
    with pytest.raises(NotRecordableError, match=r"'ignoring' cannot .* argument\['lock'\]"):
        flow_of(lambda: ignoring(1, lock={"here": threading.Lock()}))()
    assert stepwise.get_run("r").steps == []


@tool(side_effect=True, executor=POOL, ignore=["lock"])
def ignoring(x, *, lock=None):
    return x


def test_large_values():
    """Arguments and results of many megabytes go to the pool and back; each is recorded once."""
    large = bytearray(b"x") * (3 << 20)
    assert flow_of(lambda: reversed_bytes(large))() == large[::-1]


@step(executor=POOL)
def reversed_bytes(x):
    return x[::-1]


def test_a_timeout():
    """A body that takes too long is a failed attempt and is abandoned; awaited bodies as well."""
    gone = threading.Event()

    @step(executor=THREADS, timeout=0.2)
    def waits():
        return gone.wait(60)

    @step(executor=THREADS, timeout=0.2)
    async def awaits():
        return gone.wait(60)

    async def calls():
        with pytest.raises(StepTimeoutError):
            waits()
        with pytest.raises(StepTimeoutError):
            await awaits()

    asyncio.run(aflow_of(calls)())
    gone.set()
    assert [each.status for each in stepwise.get_run("r").steps] == ["failed", "failed"]


@pytest.mark.filterwarnings("ignore:.*in an executor:stepwise.ArgumentMutatedWarning")
def test_retries():
    """A failed attempt is followed by others, in the executor again."""
    attempts = []

    @step(executor=THREADS, retries=2, backoff=0)
    def flaky():
        attempts.append(current_step().attempt)
        if len(attempts) < 3:
            raise OSError("again")
        return threading.current_thread().name

    assert flow_of(flaky)().startswith("mine")
    assert attempts == [1, 2, 3]


def test_cancelling_a_run_while_a_call_waits_for_its_turn():
    """A plain step whose body has not begun elsewhere is given up when its run is cancelled."""
    began, go, sent = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as narrow:
        narrow.submit(lambda: began.set() or go.wait(60))  # somebody else's work
        assert began.wait(60)
        queued = step(name="queued", executor=narrow)(lambda: 1)
        stop = stepwise.on_event(lambda event: event.kind == "step_started" and sent.set())
        handle = flow_of(queued).start()
        assert sent.wait(60)
        stop()
        stepwise.get_run("r").cancel("enough")
        with pytest.raises(RunCancelled):
            handle.result(50)
        go.set()
    assert stepwise.get_run("r").status == "cancelled"


def test_approved_calls_are_sent_with_their_copies():
    """A call that a person allowed is made with the stored arguments, in the executor."""
    handle = flow_of(lambda: careful(["a"])).start()
    (question,) = asked(handle.run)
    question.approve()
    assert handle.result(60) == (["a"], True)


@tool(side_effect=True, executor=POOL, approve=True)
def careful(names):
    return names, multiprocessing.parent_process() is not None


def test_pickles():
    """A name travels with its step; an executor stays in the process that made it."""

    def double(x):
        return x * 2

    named = step(executor="ray", resources={"num_cpus": 2})(double)
    again = step_of(cloudpickle.loads(cloudpickle.dumps(named)))
    assert (again.executor, again.resources) == ("ray", {"num_cpus": 2})
    assert step_of(again.decorated) is again
    local = step_of(cloudpickle.loads(cloudpickle.dumps(step(executor=THREADS)(double))))
    assert local.executor is None
    assert pickle.loads(pickle.dumps(pid)) is pid
    assert flow_of(lambda: local(4))() == 8


def test_an_executor_that_is_not_installed(monkeypatch):
    """The call in a run names what to install; it is not begun, so nothing is in doubt."""
    monkeypatch.setitem(sys.modules, "ray", None)
    acts = tool(name="acts", side_effect=True, executor="ray")(lambda: 1)
    assert acts() == 1
    with pytest.raises(stepwise.ConfigurationError, match=r"pip install 'stepwise-agents\[ray\]'"):
        flow_of(acts)()
    assert stepwise.get_run("r").steps == []


# -- workers that die ----------------------------------------------------------------------------


def dies(path):
    """Kill this worker the first time."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


class Renewed(ThreadPoolExecutor.__mro__[1]):
    """An executor whose broken pool is replaced, as loky's reusable one."""

    def __init__(self):
        self.pools = []

    def submit(self, function, /, *args, **kwargs):
        self.pools.append(Pool())
        return self.pools[-1].submit(function, *args, **kwargs)

    def shutdown(self, wait=True, *, cancel_futures=False):
        for each in self.pools:
            each.shutdown(wait, cancel_futures=cancel_futures)


RENEWED = Renewed()


@pytest.fixture
def _renewed():
    yield
    RENEWED.shutdown()


@step(executor=RENEWED, retries=1, backoff=0)
def dying(path):
    return dies(path)


@tool(side_effect=True, executor=RENEWED)
def dying_act(path):
    return dies(path)


@pytest.mark.usefixtures("_renewed")
def test_a_worker_that_dies_is_a_failed_attempt(tmp_path):
    """``retries`` of a plain step apply: the body is executed again by another worker."""
    assert flow_of(lambda: dying(str(tmp_path / "once")))() != os.getpid()
    steps = stepwise.get_run("r").steps
    assert [(each.status, each.attempts) for each in steps] == [("completed", 2)]


@pytest.mark.usefixtures("_renewed")
def test_a_worker_that_dies_in_a_side_effect(tmp_path):
    """The error says run, step and where; the side effect is in doubt at the next start."""
    agent = flow_of(lambda: dying_act(str(tmp_path / "once")))
    with pytest.raises(WorkerDiedError, match="the worker that executed 'dying_act' died") as error:
        agent()
    found = error.value
    assert (found.run_id, found.step, found.name) == ("r", 1, "dying_act")
    assert "Renewed" in found.where
    with pytest.raises(stepwise.StepInDoubtError):
        agent()
    stepwise.get_run("r").resolve(1, landed=5)
    assert agent() == 5
