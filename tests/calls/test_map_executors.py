"""``stepwise.map(..., executor=...)``: bodies in worker processes, recorded by their owner."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import stepwise
from stepwise import ConfigurationError, NotRecordableError, step, tool, workflow

PROGRAM = """
import multiprocessing, os, signal, sys, warnings
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
import stepwise
from stepwise import current_step, step, tool, workflow

METHOD, LOG = sys.argv[1:3]

def note(*words):
    with open(os.environ["LOG"], "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

class Scale:
    def __init__(self, factor):
        self.factor = factor

    @step
    def times(self, x):
        note("times", x)
        return x * self.factor

@step
def square(x):
    note("square", x, "worker" if os.getpid() != int(os.environ["OWNER"]) else "owner")
    return x * x

@tool(side_effect=True)
def send(x):
    note("send", x, current_step().idempotency_key)
    if x == 3 and os.environ.get("DIE") == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    return x

class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

@step
def fails(x):
    if x == 3:  # the last one, so that all have begun
        raise Refused(7, "no")
    return x

@workflow
def agent():
    with ProcessPoolExecutor(2, multiprocessing.get_context(METHOD)) as pool:
        found = [stepwise.map(square, [5, 1, 4, 1], executor=pool)]
        found.append(stepwise.map(Scale(10).times, range(3), executor=pool))
        if os.environ.get("DIE") == "owner":
            os.kill(os.getpid(), signal.SIGKILL)
        found.append(stepwise.map(send, [1, 2, 3], max_workers=1, executor=pool))
        try:
            stepwise.map(fails, [1, 2, 3], executor=pool)
        except Exception as error:
            found.append(type(error).__name__)
    return found

if __name__ == "__main__":
    os.environ["LOG"], os.environ["OWNER"] = LOG, str(os.getpid())
    print(agent())
"""

ANSWER = "[[25, 1, 16, 1], [0, 10, 20], [1, 2, 3], 'Refused']"


@pytest.fixture
def agent(tmp_path):
    """Start the program; its return code, output and what its bodies noted so far."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM, "utf-8")

    def start(method, die=""):
        command = [sys.executable, "-W", "error", str(program), method, str(log)]
        out, said = tmp_path / "out", tmp_path / "said"
        with out.open("w") as stdout, said.open("w") as stderr:
            environment = {**os.environ, "DIE": die}
            process = subprocess.Popen(
                command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
            )
            code = process.wait(300)
        if die == "owner":
            os.killpg(process.pid, signal.SIGKILL)  # its workers, which wait for more
        return code, out.read_text().strip(), said.read_text(), log.read_text().splitlines()

    return start


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_bodies_run_in_workers_and_are_recorded_by_the_owner(agent, method):
    """Results come in order; each call is recorded, and answers after the owner was killed."""
    if method == "fork":
        code, _, said, noted = agent(method, "owner")
        assert (code, len(noted)) == (-signal.SIGKILL, 4 + 3), said
    code, printed, said, noted = agent(method)
    assert (code, printed) == (0, ANSWER), said
    assert sorted(noted[:7]) == sorted(
        ["square 1 worker"] * 2
        + ["square 4 worker", "square 5 worker"]
        + [f"times {n}" for n in range(3)]
    )
    assert len(noted) == 7 + 3
    (run,) = stepwise.runs()
    assert [each.name for each in run.steps[7:]] == ["send"] * 3 + ["fails"] * 3
    keys = {each.idempotency_key for each in run.steps if each.name == "send"}
    assert {line.split()[-1] for line in noted[7:]} == keys


def test_a_worker_that_dies(agent):
    """Its side effect is in doubt when the program is run again; those before it are answered."""
    code, _, said, noted = agent("fork", "worker")
    assert code == 1
    assert "BrokenProcessPool" in said
    assert "stepwise.WorkerDiedError: the worker that executed 'send' died" in said
    assert [line.split()[:2] for line in noted[7:]] == [["send", "1"], ["send", "2"], ["send", "3"]]
    code, _, said, again = agent("fork")
    assert code == 1
    assert "StepInDoubtError" in said
    assert again == noted
    (run,) = stepwise.runs()
    (doubt,) = [each for each in run.steps if each.status == "in_doubt"]
    run.resolve(doubt.number, landed=3)
    code, printed, said, again = agent("fork")
    assert (code, printed) == (0, ANSWER), said
    assert again == noted


# -- in this process -----------------------------------------------------------------------------


@step
def pid(x):
    return os.getpid(), threading.current_thread().name


@step
def inner(x):
    return x


@step
def outer(x):
    return inner(x)


@step
def locked(x):
    return threading.Lock()


@tool(side_effect=True, ignore=["x"])
def act(x):
    return x


@pytest.fixture(scope="module")
def pool():
    import multiprocessing

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_threads():
    """An executor of threads executes the bodies in its threads; steps inside are recorded."""

    @workflow(run_id="r")
    def agent():
        with ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
            found = stepwise.map(pid, range(4), executor=pool)
            assert stepwise.map(outer, range(3), executor=pool) == [0, 1, 2]
        return found

    assert all(name.startswith("mine") for _, name in agent())
    names = sorted(each.name for each in stepwise.get_run("r").steps)
    assert names == ["inner"] * 3 + ["outer"] * 3 + ["pid"] * 4


def test_what_cannot_be_sent(pool):
    """An item, a function or a value that does not pickle is named; a side effect did not begin."""

    @workflow
    def agent(function, item):
        return stepwise.map(function, [item], executor=pool)

    mine = agent.options(key=lambda function, item: 1, run_id="r")
    with pytest.raises(NotRecordableError, match=r"call of 'act' cannot be sent .* argument\[0\]"):
        mine(act, {"lock": threading.Lock()})
    assert mine(act, {"lock": 1}) == [{"lock": 1}]
    with pytest.raises(NotRecordableError, match=r"value returned by 'locked' is a _thread.lock"):
        agent(locked, 1)
    assert agent(pid, 1)[0][0] != os.getpid()


def test_a_pool_that_starts_in_a_run():
    """The thread with which a pool starts its processes is no work of the run."""
    import multiprocessing

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

        @workflow(run_id="r", retention="all")
        def agent():
            found = stepwise.map(pid, [1], executor=pool)
            again = inner(2)
            return len(found), again

        assert agent() == (1, 2)
    assert [each.step for each in stepwise.get_run("r").checkpoints] == [1, 2]


def test_outside_a_run(pool):
    """Outside a run, the executor simply executes the function; as for what is no step."""
    ((found, _),) = stepwise.map(pid, [1], executor=pool)
    assert found != os.getpid()
    assert stepwise.map(abs, [-1, 2], executor=pool) == [1, 2]


async def body(x):
    return x


@functools.wraps(body)
def indirectly(x):
    return body(x)


@workflow
def child(x):
    return x


def test_what_has_no_meaning(pool):
    """Something else than an executor, awaitables of plain functions and workflows are refused."""
    for function, executor, text in (
        (pid, 3, "executor=3 of map.*ProcessPoolExecutor"),
        (indirectly, pool, "returns an awaitable"),
        (child, pool, "is a workflow"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            stepwise.map(function, [1], executor=executor)
