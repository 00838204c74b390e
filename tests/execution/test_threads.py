"""Threads, pools and processes beside a run: what belongs to it, what does not, who owns it."""

import asyncio
import concurrent.futures
import contextlib
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from backwards import Backwards
from flows import flow_of
from harness import interpreted
from outside import Log

import stepwise
from stepwise import (
    OutsideRunError,
    RunBusyError,
    UnrecordedCallWarning,
    step,
    tool,
    workflow,
)
from stepwise._workflows import definition

pytestmark = pytest.mark.filterwarnings("ignore:no checkpoint:stepwise.RunWarning")  # of threads


@step
def fetch(n):
    return n * 10


def names():
    (run,) = stepwise.runs()
    return [each.name for each in run.steps]


# -- what belongs to a run -----------------------------------------------------------------------


def in_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def in_pool(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def in_loop(call):
    async def main():
        return await asyncio.to_thread(call)

    return asyncio.run(main())


@pytest.mark.parametrize("started", [in_thread, in_pool, in_loop])
def test_a_thread_that_the_workflow_starts_belongs_to_the_run(started):
    """A step called in a thread, a pool or an executor is recorded like any other."""
    assert flow_of(lambda: started(lambda: fetch(1)))() == 10
    assert names() == ["fetch"]


def test_a_thread_from_before_the_run_is_no_part_of_it():
    """A step called where no run is visible runs unrecorded, and never in silence."""
    asked, told, warned = threading.Event(), threading.Event(), []

    def serve():
        asked.wait()
        with pytest.warns(UnrecordedCallWarning, match="called where no run is visible") as caught:
            fetch(1)
        warned.extend(caught)
        told.set()

    server = threading.Thread(target=serve)
    server.start()
    flow_of(lambda: (asked.set(), told.wait()))()
    server.join()
    assert warned
    assert names() == []


def test_a_background_thread_is_a_plain_one():
    """Under ``stepwise.background()`` steps are plain functions, without a warning."""

    def calls():
        with stepwise.background():
            return in_thread(lambda: fetch(1))

    assert flow_of(calls)() == 10
    assert names() == []


def test_a_thread_that_outlives_its_run_cannot_record():
    """A step called after the run has ended raises, and says to join what is started."""
    ended, errors = threading.Event(), []

    def late():
        ended.wait()
        with pytest.raises(OutsideRunError, match="had ended") as caught:
            fetch(1)
        errors.append(caught)

    thread = threading.Thread(target=late)
    flow_of(lambda: (thread.start(), None))()
    ended.set()
    thread.join()
    assert errors


def test_no_checkpoint_while_a_thread_of_the_workflow_is_alive():
    """What a living thread would do is in no checkpoint, so none is taken before it has ended."""
    go = threading.Event()
    taken = []

    def work():
        go.wait()
        fetch(7)

    threads = []

    @workflow
    def agent():
        threads.append(threading.Thread(target=work))
        threads[0].start()
        taken.append(len(stepwise.current_run().checkpoints))
        fetch(1)
        taken.append(len(stepwise.current_run().checkpoints))
        go.set()
        threads.pop().join()
        fetch(2)
        taken.append(len(stepwise.current_run().checkpoints))

    agent()
    assert taken[0] == taken[1]
    assert names() == ["fetch"] * 3


def test_an_interrupt_while_map_starts_a_thread(monkeypatch):
    """A Ctrl-C as ``stepwise.map`` starts a thread: what that thread has begun is recorded."""
    inside, leave, struck = threading.Event(), threading.Event(), []
    start, join = threading.Thread.start, threading.Thread.join

    def interrupted(thread):
        start(thread)
        if thread.name.startswith("stepwise map") and not struck:
            struck.append(thread)
            inside.wait()
            raise KeyboardInterrupt  # the pool does not know of this thread

    def joining(thread, *seconds):
        leave.set()  # only now: map does wait
        join(thread, *seconds)

    @step
    def slow(n):
        inside.set()
        leave.wait()
        return n

    agent = flow_of(lambda: stepwise.map(slow, [1, 2, 3]))
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(threading.Thread, "join", joining)
    try:
        with pytest.raises(KeyboardInterrupt):
            agent()
    finally:
        leave.set()
    assert names() == ["slow"]
    assert agent() == [1, 2, 3]


PLACES = [1, 3]


def stopping(found):
    if len(PLACES) == 2:
        raise KeyboardInterrupt
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_recorded_of_another_item_does_not_answer(monkeypatch, workers):
    """Where map had done the third item but not the second, the second is done, not the third."""
    sent = Log()

    @tool(side_effect=True)
    def send(n):
        sent.append(n)
        return f"sent {n}"

    agent = flow_of(lambda: stopping(stepwise.map(send, PLACES, max_workers=workers)))
    with pytest.raises(KeyboardInterrupt):
        agent()
    monkeypatch.setattr(sys.modules[__name__], "PLACES", [1, 2, 3])
    assert agent() == ["sent 1", "sent 2", "sent 3"]
    assert sorted(sent) == [1, 2, 3]


@workflow
def drawing(n):
    return [n, random.random()]


def test_a_map_has_each_result_in_its_place(monkeypatch):
    """Equal calls of a workflow: a resumed run has the results in their order, as of a step."""
    found = Log()

    def mapped():
        found.append(stepwise.map(drawing, [7] * 4))
        if len(found) == 1:
            raise KeyError

    agent = flow_of(mapped)
    with pytest.raises(KeyError):
        agent()
    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Backwards)
    agent()
    assert found[0] == found[1]


def test_no_checkpoint_once_the_run_has_stopped():
    """A doubt that a thread swallows: nothing after it counts, and it is met again."""
    died = Log()

    @tool(side_effect=True)
    def send(n):
        if not died:
            died.append(n)
            raise KeyboardInterrupt
        return f"sent {n}"

    def work(found):
        with contextlib.suppress(stepwise.StepInDoubtError):
            found.append(fetch(len(died)))  # another one each time
            found.append(send(1))

    @workflow
    def agent():
        found = [fetch(1)]
        in_thread(lambda: work(found)) if died else work(found)
        found = list(found)
        return [*found, fetch(2)]

    with pytest.raises(KeyboardInterrupt):
        agent()
    for _ in range(2):
        with pytest.raises(stepwise.StepInDoubtError):
            agent()
        (run,) = stepwise.runs()
        assert all(each.step <= 1 for each in run.checkpoints)


# -- processes -----------------------------------------------------------------------------------


def test_a_step_in_a_forked_child_raises():
    """A forked child is not the run: a step called there raises instead of writing into it."""

    @workflow
    def agent():
        pid = os.fork()
        if pid == 0:
            try:
                fetch(1)
            except OutsideRunError:
                os._exit(42)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), fetch(2)

    assert agent() == (42, 20)
    assert names() == ["fetch"]


@pytest.mark.parametrize("effect", [False, True])
def test_a_forked_child_that_returns_from_a_step(effect):
    """A value or an error of a step's forked child is not recorded as the step's outcome."""

    def forks(raises):
        pid = os.fork()
        if pid == 0 and raises:
            raise ValueError("the child")
        if pid == 0:
            return "the child"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        return "the parent"

    forking = tool(side_effect=True)(forks) if effect else step(forks)

    parent = os.getpid()

    @workflow
    def agent():
        try:
            first = [fetch(n) for n in range(5)]
            seen = [forking(raises) for raises in (False, True)]
            return first, seen, fetch(7)
        finally:
            if os.getpid() != parent:
                error = sys.exc_info()[1]
                tells = "forked process" in str(error) or (effect and type(error) is ValueError)
                os._exit(42 if tells else 1)

    assert agent()[1:] == (["the parent"] * 2, 70)
    (run,) = stepwise.runs()
    assert not run.verify().lost
    assert [each.to_dict()["preview"] for each in run.steps[5:]] == ["'the parent'"] * 2 + ["70"]


def test_a_forked_child_takes_no_checkpoint():
    """The checkpoints of a run are its process's, not those of a child that it forked."""

    def unknown(n):
        return n + 1

    @workflow
    def agent():
        first = [fetch(n) for n in range(5)]
        pid = os.fork()
        if pid == 0:
            number = unknown(first[0])
            number = unknown(number)
            number = unknown(number)
            os._exit(number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, stepwise.runs()[0].locals()

    code, found = agent()
    assert (code, found["first"]) == (3, [0, 10, 20, 30, 40])
    assert "number" not in found


WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import stepwise

@stepwise.step
def fetch(n):
    return n * 10

def unseen(n):
    with stepwise.background():
        return fetch(n)

def in_workers(function, method):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return list(pool.map(function, [1, 2]))

@stepwise.workflow
def agent(function, method):
    return in_workers(function, method)

if __name__ == "__main__":
    for where in ("background", "outside", "run"):
        print(f"-- {where}", file=sys.stderr, flush=True)
        if where == "outside":
            print(in_workers(fetch, sys.argv[1]))
        else:
            print(agent(unseen if where == "background" else fetch, sys.argv[1]))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_step_in_a_worker_process_is_not_recorded(tmp_path, method):
    """A step that a run sends to a process of its own warns that nothing records it there."""
    program = tmp_path / "program.py"
    program.write_text(WORKERS)
    ended = interpreted(program, method)
    assert ended.stdout == "[10, 20]\n" * 3
    told = "UnrecordedCallWarning: step 'fetch' was called in a worker process"
    before, _, of_the_run = ended.stderr.partition("-- run")
    assert (before.count(told), of_the_run.count(told)) == (0, 1)


def test_a_run_leaves_the_environment_as_it_is():
    """A step that is given the environment is given the same after a restart."""
    before = dict(os.environ)
    assert flow_of(lambda: dict(os.environ))() == before == dict(os.environ)


# -- runs side by side ---------------------------------------------------------------------------


def test_runs_that_begin_at_once_can_all_be_resumed_inside(monkeypatch):
    """A run that begins while another thread rewrites the function of both has checkpoints, too."""
    second = []

    def slowly(*arguments):
        if not second:
            second.append(threading.Thread(target=agent.options(run_id="second"), args=(2,)))
            second[0].start()
            second[0].join(0.3)  # it waits: its function is not there yet
        return build(*arguments)

    build = definition.build
    monkeypatch.setattr(definition, "build", slowly)

    @workflow
    def agent(n):
        more = fetch(n)
        return fetch(more)

    agent.options(run_id="first")(1)
    second[0].join()
    assert stepwise.get_run("first").checkpoints
    assert stepwise.get_run("second").checkpoints


# -- one owner -----------------------------------------------------------------------------------


def test_a_second_thread_cannot_have_the_same_run():
    """Called in two threads at once, a run is executed in one; the other is told by which."""
    inside, leave, results = threading.Event(), threading.Event(), []

    @tool(side_effect=True)
    def wait():
        inside.set()
        leave.wait()
        return "done"

    agent = flow_of(wait)
    first = threading.Thread(target=lambda: results.append(agent()), name="the first")
    first.start()
    inside.wait()
    with pytest.raises(RunBusyError, match="by this process, in thread the first"):
        agent()
    leave.set()
    first.join()
    assert results == ["done"]


# -- methods in a map ----------------------------------------------------------------------------


class Model:
    def __init__(self, name):
        self.name = name

    @step
    def complete(self, prompt):
        return f"{self.name}: {prompt}"

    @step
    async def acomplete(self, prompt):
        return f"{self.name}: {prompt}"


@workflow
async def mapping(model):
    plain = stepwise.map(model.complete, ["a", "b"])
    return plain, await stepwise.map(model.acomplete, ["a", "b"])


def test_the_method_of_an_instance_is_mapped():
    """``stepwise.map`` calls a bound method, or awaits it, and records each call."""
    assert asyncio.run(mapping(Model("gpt"))) == (["gpt: a", "gpt: b"], ["gpt: a", "gpt: b"])
    assert names() == [*["Model.complete"] * 2, *["Model.acomplete"] * 2]


@pytest.mark.parametrize("waits", ["in a thread", "in a task"])
def test_no_call_of_a_map_begins_after_a_failure(waits, monkeypatch):
    """Once a call has failed, no other one begins, however late the map hears of it."""
    wait, done = concurrent.futures.wait, Log()
    monkeypatch.setattr(concurrent.futures, "wait", lambda futures, return_when: wait(futures))

    def body(number):
        done.append(number)
        if number == 1:
            raise LookupError(number)

    @step
    def work(number):
        body(number)

    @step
    async def awork(number):
        body(number)

    @workflow
    def flow():
        stepwise.map(work, range(4), max_workers=1)

    @workflow
    async def aflow():
        await stepwise.map(awork, range(4), max_workers=1)

    with pytest.raises(LookupError):
        flow() if waits == "in a thread" else asyncio.run(aflow())
    assert done == [0, 1]
