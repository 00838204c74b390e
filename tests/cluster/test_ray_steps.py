"""``@step(executor="ray")`` and ``map(..., executor="ray")`` on a real Ray cluster of two nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

import numpy as np
import ray

import stepwise
from stepwise import (
    ConfigurationError,
    RunCancelled,
    StepInDoubtError,
    StepTimeoutError,
    WorkerDiedError,
    current_step,
    step,
    tool,
    workflow,
)

PATIENCE = 120  # seconds, for what takes one on an idle machine
MEMORY = 100 << 20  # bytes of an object store


@pytest.fixture(scope="module")
def gpu_node(ray_cluster_of_session):
    """A node with a GPU, of the kind that any machine has."""
    nodes = ray_cluster_of_session._cluster
    node = nodes.add_node(num_cpus=0, resources={"gpu_like": 1}, object_store_memory=MEMORY)
    yield
    nodes.remove_node(node)


@pytest.fixture(autouse=True)
def _connected(cluster):
    """Each test has the cluster."""


def until(condition):
    """Poll until a condition holds; workers import this module, and not all of them our helpers."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)  # between two looks


def mark(path):
    """Leave a mark: this place was reached."""
    pathlib.Path(path).write_text("x")


def node_of(resource):
    """The id of the node that has a resource."""
    (found,) = (
        each["NodeID"] for each in ray.nodes() if each["Alive"] and resource in each["Resources"]
    )
    return found


def here():
    """Where this is executed: the id of the node, and of the process."""
    return ray.get_runtime_context().get_node_id(), os.getpid()


@step(executor="ray", resources={"num_cpus": 0, "resources": {"gpu_like": 1}})
def train(x):
    return (*here(), x)


@step
def prepare(x):
    return os.getpid()


@step(executor="ray")
def square(x, log=None):
    if log:
        with open(log, "a") as file:
            file.write(f"{x}\n")
    return x * x


@step(executor="ray")
async def asquare(x):
    await asyncio.sleep(0)
    return x * x


@step(executor="ray")
def larger(array):
    array += 1  # the body has an array of its own
    return array


class RefusedError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


@step(executor="ray")
def refuses(code):
    raise RefusedError(code, "no")


@tool(side_effect=True, executor="ray")
def act(x):
    stepwise.spend(usd=2)
    return current_step().idempotency_key, current_step().attempt


def once(path):
    """Kill this worker, the first time."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@step(executor="ray", retries=1, backoff=0)
def dies_once(path):
    return once(path)


@tool(side_effect=True, executor="ray")
def acts_and_dies(path):
    return once(path)


@step(executor="ray", resources={"resources": {"doomed": 1}})
def doomed(path):
    pathlib.Path(path).write_text(f"{os.getpid()}")
    time.sleep(1000)


@step(executor="ray")
def lingers(path):
    pathlib.Path(path).write_text(f"{os.getpid()}")
    try:
        while True:
            time.sleep(0.01)
    finally:
        pathlib.Path(f"{path}-left").write_text("x")


@step(executor="ray", timeout=5)
def stuck(path):
    pathlib.Path(path).write_text(f"{os.getpid()}")
    time.sleep(1000)  # in C: no exception reaches it


@step(executor="ray")
def outer(x):
    return prepare(x)


def test_a_body_is_placed_by_its_resources(gpu_node):
    """A step is executed where its resources are; the workflow and its other steps stay here."""

    @workflow
    def agent():
        return prepare(1), train(2)

    mine, (node, worker, x) = agent()
    assert mine == os.getpid() != worker
    assert (node, x) == (node_of("gpu_like"), 2)
    (run,) = stepwise.runs()
    assert [(each.name, each.status) for each in run.steps] == [
        ("prepare", "completed"),
        ("train", "completed"),
    ]


def test_map_of_many_items():
    """``map`` sends fifty items to the cluster; results are in order, each is one record.

    The event loop goes on while bodies of coroutines are executed there.
    """

    @workflow
    def agent():
        return stepwise.map(square, range(50)), stepwise.map(prepare, range(3), executor="ray")

    @workflow
    async def coroutine():
        found = await asyncio.gather(asquare(2), asquare(3))
        return found, await stepwise.map(asquare, range(4))

    squares, processes = agent()
    assert squares == [x * x for x in range(50)]
    assert os.getpid() not in processes
    (run,) = stepwise.runs()
    assert len(run.steps) == 53
    assert asyncio.run(coroutine()) == ([4, 9], [0, 1, 4, 9])


def test_large_values_are_recorded_once(tmp_path):
    """An array of 50 MB goes there and back; the store holds the result, once."""

    @workflow(store=f"disk:{tmp_path}")
    def agent(size):
        return int(larger(np.zeros(size, np.uint8)).sum())

    size = 50 << 20
    assert agent(size) == size
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size < stored < size * 1.3


def test_exceptions_arrive_as_they_were():
    """An exception of one's own class arrives whole, with the worker's traceback as its cause."""

    @workflow
    def agent():
        refuses(7)

    with pytest.raises(RefusedError, match="no") as caught:
        agent()
    assert caught.value.code == 7
    assert "in refuses" in str(caught.value.__cause__)


def test_steps_inside_are_refused():
    """A step that the body calls on the cluster cannot be recorded, and is refused."""

    @workflow
    def agent():
        outer(1)

    with pytest.raises(stepwise.OutsideRunError, match="in a worker process of run"):
        agent()


def test_side_effects_know_their_key_and_spend():
    """The body reads the idempotency key of the intent; what it spends counts for the run."""

    @workflow
    def agent():
        return act(1)

    key, attempt = agent()
    (run,) = stepwise.runs()
    assert (run.steps[0].idempotency_key, attempt, run.spent.usd) == (key, 1, 2)


def test_a_killed_worker_is_a_failed_attempt(tmp_path):
    """``retries`` of a plain step apply to a worker that is killed in its body."""

    @workflow
    def agent(path):
        return dies_once(path)

    assert agent(str(tmp_path / "once")) != os.getpid()
    (run,) = stepwise.runs()
    assert [(each.status, each.attempts) for each in run.steps] == [("completed", 2)]


def test_a_killed_worker_leaves_a_side_effect_in_doubt(tmp_path):
    """Ray does not repeat the body; the error says where, and the next start asks."""

    @workflow(run_id="r")
    def agent(path):
        return acts_and_dies(path)

    with pytest.raises(WorkerDiedError, match="WorkerCrashedError") as caught:
        agent(str(tmp_path / "once"))
    assert (caught.value.run_id, caught.value.step, caught.value.name) == ("r", 1, "acts_and_dies")
    with pytest.raises(StepInDoubtError):
        agent(str(tmp_path / "once"))


def test_a_node_that_dies(cluster, tmp_path):
    """A node that is killed with a body is a failure of that call; the workflow can handle it."""
    resources = {"doomed": 1}
    node = cluster._cluster.add_node(num_cpus=1, resources=resources, object_store_memory=MEMORY)
    path = tmp_path / "pid"

    @workflow(run_id="r")
    def agent():
        try:
            doomed(str(path))
        except WorkerDiedError as error:
            return error.where

    handle = agent.start()
    until(path.exists)
    cluster.kill(node)
    assert handle.result(PATIENCE)
    assert [each.status for each in stepwise.get_run("r").steps] == ["failed"]


def test_a_cancelled_run_cancels_its_task(tmp_path):
    """A request to cancel the run interrupts the body on the cluster, whose clean-up runs."""
    path = tmp_path / "pid"

    @workflow(run_id="r")
    def agent():
        lingers(str(path))

    handle = agent.start()
    until(path.exists)
    stepwise.get_run("r").cancel("enough")
    with pytest.raises(RunCancelled):
        handle.result(PATIENCE)
    until((tmp_path / "pid-left").exists)
    (each,) = stepwise.get_run("r").steps
    assert each.status == "cancelled"


def test_a_cancelled_task_of_asyncio(tmp_path):
    """A timeout around an awaited step interrupts the body on the cluster."""
    path = tmp_path / "pid"

    @step(executor="ray")
    async def waits():
        mark(path)
        try:
            await asyncio.sleep(1000)
        finally:
            mark(f"{path}-left")

    @workflow
    async def agent():
        task = asyncio.ensure_future(waits())
        await asyncio.to_thread(until, path.exists)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"

    assert asyncio.run(agent()) == "cancelled"
    until((tmp_path / "pid-left").exists)


def test_a_timeout_ends_the_task(tmp_path):
    """A body that takes too long fails, and its process is ended though it is stuck in C."""
    path = tmp_path / "pid"

    @workflow
    def agent():
        stuck(str(path))

    with pytest.raises(StepTimeoutError):
        agent()
    pid = int(path.read_text())
    stat = pathlib.Path(f"/proc/{pid}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_workflows_that_are_tasks_of_ray_lend_their_cpus(tmp_path):
    """Two workflows in tasks that have all CPUs wait for steps that need one: no deadlock."""

    @ray.remote(num_cpus=2)
    def task(own, other):
        @workflow(store="memory:")
        def agent():
            return square(3), stepwise.map(square, range(3))

        mark(own)
        until(pathlib.Path(other).exists)
        return agent()

    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    found = ray.get([task.remote(one, two), task.remote(two, one)], timeout=PATIENCE)
    assert found == [(9, [0, 1, 4])] * 2


def test_it_is_an_executor():
    """Outside of any run, it is an executor of ``concurrent.futures`` like another."""
    from stepwise._calls.ray_executor import RayExecutor

    assert stepwise.map(square, range(3), executor="ray") == [0, 1, 4]
    with RayExecutor(num_cpus=1) as executor:
        assert list(executor.map(abs, [-1, 2])) == [1, 2]
        failed = executor.submit(square, "a")
        with pytest.raises(TypeError) as caught:
            failed.result(PATIENCE)
        assert type(caught.value) is TypeError
        assert "in square" in str(caught.value.__cause__)
        late = executor.submit(time.sleep, 1000)
        assert late.cancel()
        assert late.cancel()
        assert late.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"max_retries": 3}, "max_retries= .* `retries` of its step"),
        ({"nonsense": 3}, "Invalid option keyword nonsense"),
        ({"num_gpus": -1}, "num_gpus cannot be negative"),
    ],
    ids=lambda each: next(iter(each), None) if isinstance(each, dict) else None,
)
def test_resources_that_there_are_not(resources, said):
    """Options that Ray has not, and those that stepwise decides, are refused before a call."""

    @tool(side_effect=True, executor="ray", resources=resources)
    def impossible():
        return 1

    @workflow(run_id="r")
    def agent():
        return impossible()

    with pytest.raises(ConfigurationError, match=said):
        agent()
    assert stepwise.get_run("r").steps == []


# -- a program -----------------------------------------------------------------------------------

PROGRAM = """
import dataclasses, enum, os, signal, sys, time
import stepwise
from stepwise import step, workflow

class Kind(enum.Enum):
    EVEN = 0
    ODD = 1

@dataclasses.dataclass
class Found:
    number: int
    kind: Kind

class Refused(Exception):
    def __init__(self, found):
        super().__init__("refused")
        self.found = found

@step(executor="ray", resources={"num_cpus": 1})
def look(item):
    with open(os.environ["LOG"], "a") as file:
        file.write(f"{item.number}\\n")
    if item.number == 9 and os.environ.get("DIE"):
        os.kill(int(os.environ["OWNER"]), signal.SIGKILL)
        time.sleep(60)
    if item.number == 100:
        raise Refused(item)
    return Found(item.number * 10, Kind(item.number % 2))

@workflow
def agent():
    found = stepwise.map(look, [Found(n, Kind.EVEN) for n in range(12)], max_workers=1)
    assert all(type(each) is Found for each in found)
    assert [each.kind for each in found] == [Kind.EVEN, Kind.ODD] * 6
    try:
        look(Found(100, Kind.ODD))
    except Refused as error:
        assert error.found == Found(100, Kind.ODD)
    return sum(each.number for each in found)

if __name__ == "__main__":
    import ray
    variables = {name: os.environ[name] for name in ("LOG", "DIE") if name in os.environ}
    variables["OWNER"] = str(os.getpid())
    ray.init(runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="ERROR")
    print(agent())
"""


def test_a_program_that_is_killed_in_a_map(cluster, tmp_path):
    """Items that were answered do not run again; what the script itself defines goes by value."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM)
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "LOG": str(log)}
    command = [sys.executable, "-W", "error", str(program)]
    killed = subprocess.run(
        command, env={**environment, "DIE": "1"}, check=False, timeout=PATIENCE, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    began = log.read_text().split()
    assert began == [str(n) for n in range(10)]
    again = subprocess.run(
        command, env=environment, check=False, timeout=PATIENCE, capture_output=True, text=True
    )
    assert (again.returncode, again.stdout.strip()) == (0, "660"), again.stderr
    assert log.read_text().split()[10:] == ["9", "10", "11", "100"]
