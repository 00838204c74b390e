"""A run that stopped is called again in the process it stopped in: a notebook cell, a retry loop.

The programs are those of ``test_crashes``; after a Ctrl-C they start their run once more.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading

import pytest
from judge import FLOWS, check, lab_of, programs, sampled, undisturbed
from outside import Log
from sweeping import WHOLE, thinned

import stepwise
from stepwise import RunBusyError, step, tool, workflow
from stepwise._execution import process_memory

SAMPLES = 5 if WHOLE else 2
RETURNING = 8  # events: out of the context manager, through three functions, into the program


@pytest.fixture
def log():
    return Log()


# -- signals, everywhere -------------------------------------------------------------------------


@programs
def test_ctrl_c_and_again(program):
    """After a Ctrl-C anywhere, a call in the same process goes on, and nothing is done twice."""
    if program == "server":
        pytest.skip("what was interrupted on purpose is left alone by recover()")
    for place in [*thinned(undisturbed(program).places, 10), *sampled(program, SAMPLES)]:
        if _returns(program, place):
            continue
        with lab_of(program) as lab:
            lab.run_to_end(place, how="int")
            assert "interrupted" in lab.log or _beyond(lab, place), lab.said
            check(lab, program, place)


def _returns(program, place):
    """Whether the call has ended by then and only returns: the next one is another run.

    Branches that write together pass now more, now fewer events.
    """
    number, events = place.removeprefix("event "), undisturbed(program).events
    surely = events * 9 // 10 if program in FLOWS else events
    return number.isdecimal() and int(number) > surely - RETURNING


def _beyond(lab, place):
    """Whether a program had ended by then: threads that write together pass fewer events."""
    passed = [line for line in lab.log if line.startswith("events ")]
    number = place.removeprefix("event ")
    return number.isdecimal() and bool(passed) and int(passed[0].split()[1]) < int(number)


@programs
def test_sigterm_that_becomes_an_exit(program):
    """A SIGTERM that the program turns into ``SystemExit`` costs nothing either."""
    for place in [*thinned(undisturbed(program).places, 10), *sampled(program, SAMPLES)]:
        with lab_of(program) as lab:
            lab.run_to_end(place, how="term")
            check(lab, program, place)


def test_a_ctrl_c_after_the_end(log, monkeypatch):
    """A run that has ended when a Ctrl-C comes is not made again: its next call gets the result."""

    @step
    def work():
        log.append("work")
        return 7

    @workflow
    def agent():
        return work()

    class Pressed(contextlib.ExitStack):
        def __exit__(self, *exception):
            monkeypatch.setattr(process_memory.memory, "_mutex", mutex)
            raise KeyboardInterrupt

    counted, mutex = process_memory.ProcessMemory.completed, process_memory.memory._mutex

    def interrupted(*arguments):
        monkeypatch.setattr(process_memory.ProcessMemory, "completed", counted)
        monkeypatch.setattr(process_memory.memory, "_mutex", Pressed())
        counted(*arguments)

    monkeypatch.setattr(process_memory.ProcessMemory, "completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent()
    assert agent() == 7
    assert log == ["work"]
    assert len(stepwise.runs()) == 1
    assert agent() == 7
    assert log == ["work", "work"]  # called twice, it is two runs


# -- what stopped is what is called again --------------------------------------------------------


def test_a_retry_loop_resumes(log):
    """Called again after an exception, a workflow resumes, and tries the failed step again."""

    @step
    def fetch(n):
        log.append(n)
        if log.count(2) == 1 and n == 2:
            raise OSError("away")
        return n * 10

    @workflow
    def agent():
        return [fetch(n) for n in range(4)]

    with pytest.raises(OSError, match="away"):
        agent()
    assert agent() == [0, 10, 20, 30]
    assert log == [0, 1, 2, 2, 3]


def test_changed_objects_mean_the_same_run(log):
    """A list and a ``self`` that the stopped attempt changed still name its run."""

    class Agent:
        def __init__(self):
            self.seen = []

        @step
        def think(self, n):
            log.append(n)
            if log == [1, 2]:
                raise KeyboardInterrupt
            return n * 10

        @workflow
        def run(self, todo):
            while todo:
                self.seen.append(self.think(todo[0]))
                todo.pop(0)
            return self.seen

    agent, todo = Agent(), [1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        agent.run(todo)
    assert agent.seen == [10]
    assert agent.run(todo) == [10, 20, 30]
    assert log == [1, 2, 2, 3]
    assert todo == []
    assert len(stepwise.runs()) == 1


def test_a_later_process_gets_objects_as_both_attempts_left_them(log):
    """What the stopped attempt changed is part of what the completed run leaves, next time too."""

    @step
    def fetch():
        log.append("fetch")
        if len(log) == 1:
            raise OSError("once")

    @workflow
    def fill(items):
        items.append("added")
        fetch()

    items = ["first"]
    with pytest.raises(OSError, match="once"):
        fill(items)
    fill(items)
    assert items == ["first", "added"]
    forgotten = vars(process_memory.ProcessMemory())
    vars(process_memory.memory).update(forgotten)  # as in another process
    items = ["first"]
    fill(items)
    assert items == ["first", "added"]
    assert len(log) == 2


def test_a_completed_run_called_again_is_a_new_one(log):
    """A loop that calls a workflow five times runs it five times, crash or no crash between."""

    @step
    def fetch():
        log.append(len(log))
        if len(log) == 3:
            raise OSError("once")
        return log[-1]

    @workflow
    def agent():
        return fetch()

    results = []
    while len(results) < 4:
        with contextlib.suppress(OSError):
            results.append(agent())
    assert results == [0, 1, 3, 4]
    assert len(stepwise.runs()) == 4


# -- cleaning up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_cleanup_waits_for_the_real_end(log, stop):
    """Steps in ``finally`` do not run while a Ctrl-C unwinds; they run once, at the real end."""

    @step
    def work():
        log.append("work")
        if log.count("work") == 1:
            raise stop
        return "done"

    @tool(side_effect=True)
    def release():
        log.append("release")

    @workflow
    def agent():
        try:
            return work()
        finally:
            release()

    with pytest.raises(stop):
        agent()
    assert log == ["work"]
    assert agent() == "done"
    assert log == ["work", "work", "release"]


def test_a_workflow_cannot_go_on_after_it_was_interrupted_in_a_handler(log):
    """A step called in ``except KeyboardInterrupt`` raises the Ctrl-C again instead of running."""

    @step
    def work(n):
        log.append(n)
        if log == [1]:
            raise KeyboardInterrupt
        return n

    @workflow
    def agent():
        try:
            return work(1)
        except KeyboardInterrupt:
            return work(2)

    with pytest.raises(KeyboardInterrupt):
        agent()
    assert agent() == 1
    assert log == [1, 1]


# -- an event loop that lives on, as a notebook's ------------------------------------------------


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("how", ["cancel", "Ctrl-C"])
def test_a_cancelled_cell_and_again(log, loop, how):
    """A kernel interrupt cancels the awaited cell, or leaves the loop once; the cell goes on."""

    @step
    async def fetch(n):
        log.append(n)
        if log == [0, 1] and how == "cancel":
            cell.cancel()
            await asyncio.sleep(0)
        elif log == [0, 1]:
            os.kill(os.getpid(), signal.SIGINT)
        return n

    @tool(side_effect=True)
    async def release():
        log.append("release")

    @workflow
    async def agent():
        try:
            return [await fetch(n) for n in range(3)]
        finally:
            await release()

    cell = loop.create_task(agent())
    with pytest.raises(asyncio.CancelledError if how == "cancel" else KeyboardInterrupt):
        loop.run_until_complete(cell)
    assert log == [0, 1]
    assert loop.run_until_complete(agent()) == [0, 1, 2]
    assert log == [0, 1, 1, 2, "release"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run heeds Ctrl-C since 3.11")
def test_a_ctrl_c_as_the_run_completes_loses_no_result(log):
    """Interrupted in its last moment, a run that completed is not begun anew by the next call."""

    @tool(side_effect=True)
    async def post():
        log.append("post")
        os.kill(os.getpid(), signal.SIGINT)
        return len(log)

    @workflow
    async def agent():
        return await post()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(agent())
    assert asyncio.run(agent()) == 1
    assert log == ["post"]


# -- one owner -----------------------------------------------------------------------------------


def test_a_workflow_inside_itself_is_owned(log):
    """A run that is called from within itself, outside of its scope, says who executes it."""

    @workflow
    def agent():
        with stepwise.background():
            return agent()

    with pytest.raises(RunBusyError, match="by this process, in thread MainThread"):
        agent()


def test_a_forgotten_lease_is_no_hindrance(log):
    """A Ctrl-C in the moment in which a run gives up its lease does not lock it for good."""

    @step
    def fetch(n):
        log.append(n)
        return n

    @workflow
    def agent():
        return [fetch(1), fetch(2)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepwise._execution.active_run.ActiveRun, "close", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            agent()
    assert agent() == [1, 2]
    assert log == [1, 2]


def _interrupt(active):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["plain", "effect"])
def test_garbage_of_the_first_call_is_no_twin(kind):
    """What a stopped call made and nobody holds any more does not stand in the way of the next."""
    ran = Log()

    def attempt(*, stops):
        lock = threading.Lock()

        @(step if kind == "plain" else tool(side_effect=True))
        def act():
            with lock:
                ran.append(kind)
            return len(ran)

        @workflow(name="of a factory")
        def agent():
            with open(os.devnull):  # it starts over: nothing in here is a checkpoint
                first = act()
                if stops:
                    raise KeyboardInterrupt
            return first

        cycle = [act, agent]
        cycle.append(cycle)
        return agent.options(run_id=kind)()

    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            attempt(stops=True)
        assert attempt(stops=False) == 1
    finally:
        gc.enable()
    assert len(ran) == 1
