"""Runs beside their caller: ``start()``, ``Run.inputs``, ``Run.resume()`` and ``recover()``."""

import asyncio
import dataclasses
import gc
import signal
import threading
import types

import pytest
from harness import until

import stepwise
from stepwise import RunBusyError, step, workflow
from stepwise._execution.active_run import live_runs
from stepwise._runtime import interrupts

done = []
gates = {}  # name -> an event that lets the step of that name end


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    gates.clear()
    yield
    for gate in gates.values():
        gate.set()


@step
def work(name):
    if name in gates:
        assert gates[name].wait(300)
    done.append(name)
    if name == "bad":
        raise LookupError(name)
    return name.upper()


@workflow
def agent(*names):
    return [work(name) for name in names]


@step
async def awork(name):
    await asyncio.sleep(0)
    return work(name)


@workflow(ignore=("gate",))
async def slow(name, gate=None):
    if gate is not None:
        await gate.wait()
    return await awork(name)


# -- start() -------------------------------------------------------------------------------------


def test_start():
    """``start()`` gives a handle at once, whose run is on record; it waits for the result."""
    gates["a"] = threading.Event()
    handle = agent.start("a", "b")
    assert (handle.status, handle.done) == ("running", False)
    assert handle.run.inputs == {"names": ("a", "b")}
    assert stepwise.get_run(handle.id) == handle.run
    assert handle.wait(0.01) is False
    with pytest.raises(TimeoutError, match="it continues"):
        handle.result(0.01)
    assert "running" in repr(handle)
    gates["a"].set()
    assert handle.result() == ["A", "B"]
    assert handle.wait()
    assert (handle.status, handle.done) == ("completed", True)
    assert agent.options(run_id=handle.id).start("a", "b").result() == ["A", "B"]
    assert done == ["a", "b"]  # a run that has completed gives its result


def test_start_of_what_fails(told):
    """What a started run raises is raised by ``result()``, and told, since perhaps nobody asks."""
    handle = agent.start("bad")
    with pytest.raises(LookupError, match="bad"):
        handle.result()
    assert handle.status == "failed"
    assert f"{handle.id}, which was started, ended with LookupError('bad')" in told()


def test_start_of_what_is_refused():
    """What a call would raise before it begins, ``start()`` raises itself."""

    @workflow
    def items():
        yield 1

    with pytest.raises(stepwise.ConfigurationError, match="iterate over it"):
        items.start()
    gates["a"] = threading.Event()
    handle = agent.start("a")
    with pytest.raises(RunBusyError, match="in thread stepwise agent-"):
        agent.start("a")
    with pytest.raises(stepwise.RunSkipped):
        agent.options(on_owned="skip").start("a")
    second = agent.options(on_owned="wait").start("a")
    assert (second.id, second.done) == (handle.id, False)
    with pytest.raises(TypeError):
        slow.options().start()
    with pytest.raises(stepwise.ConfigurationError, match="no event loop is running"):
        slow.start("a")
    gates["a"].set()
    assert handle.result() == second.result() == ["A"]
    assert done == ["a"]


def test_start_inside_a_run():
    """Inside a run, which could not resume it, nothing is started, but in the background."""

    @workflow
    def outer():
        with pytest.raises(stepwise.ConfigurationError, match="as a child run"):
            agent.start("a")
        with stepwise.background():
            return agent.start("a").result()

    assert outer() == ["A"]
    assert {run.parent for run in stepwise.runs()} == {None}


def test_start_in_an_event_loop():
    """A coroutine function executes in a task; waiting for it can be cancelled, and it goes on."""

    async def main():
        gate = asyncio.Event()
        handle = slow.start("a", gate)
        assert (handle.status, handle.done) == ("running", False)
        assert not await handle.wait(0.01)
        with pytest.raises(TimeoutError, match="it continues"):
            await handle.result(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.result(), 0.01)
        gate.set()
        assert await handle == await handle.result() == "A"
        assert (handle.status, handle.done) == ("completed", True)
        with pytest.raises(LookupError):
            await slow.start("bad")
        first = slow.options(run_id="one").start("b")
        second = slow.options(run_id="one", on_owned="wait").start("b")
        assert [await first, await second] == ["B", "B"]

    asyncio.run(main())
    assert done == ["a", "bad", "b"]


def test_the_event_loop_ends():
    """What was started and is cut off by the end of its loop is crashed: it is brought back."""

    async def main(error=None):
        never = asyncio.Event()
        slow.start("begun", never)
        while not never._waiters:  # noqa: ASYNC110 -- nobody sets an event at that
            await asyncio.sleep(0)
        slow.start("not yet begun", never)
        if error is not None:
            raise error

    asyncio.run(main())
    assert [run.status for run in stepwise.runs()] == ["crashed", "crashed"]
    assert not live_runs
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main(KeyboardInterrupt()))
    assert [run.status for run in stepwise.runs()] == ["interrupted", "interrupted"]


SCRIPT = """
import sys
import threading
import time
from stepwise import step, workflow
from stepwise._runtime.interrupts import ending

@step
def work(name):
    print("works", name, flush=True)
    sys.stdin.readline()
    return name

@workflow
def agent():
    return [work("a"), work("b")]

def tell_end():
    while not ending.begun:
        time.sleep(0.01)
    print("the interpreter ends", flush=True)

waits = len(sys.argv) > 1
if waits:
    threading.Thread(target=tell_end, daemon=True).start()
handle = agent.start()
if waits:
    print("result", handle.result(), flush=True)
"""


def test_the_program_ends(start):
    """At its end the interpreter waits for what was started."""
    script = start(SCRIPT)
    for _ in "ab":
        script.hear()
        script.tell()
    script.finish()
    assert [run.status for run in stepwise.runs()] == ["completed"]


def test_ctrl_c_at_the_program(start):
    """After Ctrl-C it waits for the step in progress only; the run is interrupted."""
    script = start(SCRIPT, "wait")  # SIGTERM: test_sigterm.py
    assert script.hear() == "works a"
    script.process.send_signal(signal.SIGINT)
    while (line := script.hear()) != "the interpreter ends":  # before, the next step would begin
        assert line or script.process.poll() is None
    script.tell()
    script.process.wait()
    (run,) = stepwise.runs()
    assert (run.status, [each.status for each in run.steps]) == ("interrupted", ["completed"])


WAITS = """
import stepwise
from stepwise._calls import waiting
from stepwise._execution import message_watcher

waiting._LONGEST = message_watcher.SLOW_POLL = 3600.0  # the run never looks up by itself

@stepwise.workflow
def agent():
    return stepwise.wait_for("go")

agent.start().result()
"""


def test_ctrl_c_while_a_run_waits(start):
    """A started run that waits is interrupted at once when a Ctrl-C has ended the program."""
    script = start(WAITS)
    until(lambda: [run for run in stepwise.runs() if run.counts.get("waiting")])
    script.process.send_signal(signal.SIGINT)
    script.process.wait()
    assert [run.status for run in stepwise.runs()] == ["interrupted"]


# -- inputs --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Order:
    items: list
    note: str = ""


class Shop:
    def __init__(self, name, client=None):
        self.name, self.sold = name, []
        if client is not None:
            self.client = client

    @workflow
    def sell(self, what, *more, price=1, **options):
        self.sold.append(what)
        return [self.name, work(what), more, price, options, len(self.sold)]

    @workflow
    @classmethod
    def close(cls, when):
        return [cls.__name__, work(when)]


def exits(_):
    raise SystemExit


def interrupt(_):
    raise KeyboardInterrupt


def cut_off(call, *arguments, by=exits, **options):
    """Return the run of a call that was cut off in its step ``x``."""
    gates["x"] = types.SimpleNamespace(wait=by, set=lambda: None)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        call(*arguments, **options)
    gates.clear()
    return next(iter(run for run in stepwise.runs() if run.parent is None), None)


@workflow(ignore=("hint",))
def order(order, hint="none", *, sizes=()):
    order.items.append(work("x"))
    return order, hint, sizes


def test_inputs():
    """``inputs`` are the real arguments, as they were when the run began."""
    mine = Order(["pen"], "now")
    run = order.execute(mine, sizes={1, 2})
    assert mine.items == ["pen", "X"]
    assert run.inputs == {"order": Order(["pen"], "now"), "sizes": {1, 2}}
    assert run.inputs["order"] is not mine


def test_inputs_of_a_method():
    """Those of a method have the instance, those of a class method the class."""
    inputs = Shop("A").sell.execute("x", "y", price=2, gift=True).inputs
    seller = inputs.pop("self")
    assert (seller.name, seller.sold) == ("A", [])
    assert inputs == {"what": "x", "more": ("y",), "price": 2, "options": {"gift": True}}
    assert Shop.close.execute("x").inputs == {"cls": Shop, "when": "x"}


def test_inputs_that_cannot_be_recorded():
    """An argument, or an instance, that does not pickle is named, with the way out."""
    unreadable, lock = stepwise.UnreadableValueError, threading.Lock()
    run = cut_off(order, Order([]), lock)
    with pytest.raises(unreadable, match=r"'hint' could not be recorded.*hint=\.\.\."):
        _ = run.inputs
    with pytest.raises(unreadable) as caught:
        run.resume()
    assert len(caught.traceback) == 2  # the test's line, and one of ours
    assert run.resume(hint="other").result() == (Order(["X"]), "other", ())
    run.delete()
    run = cut_off(Shop("A", lock).sell, "x")
    with pytest.raises(unreadable, match=r"'self' could not be recorded \(self.client"):
        run.resume()
    assert run.resume(self=Shop("A", lock)).result()[:2] == ["A", "X"]


def test_inputs_as_json():
    """With ``codec="json"`` they are data, shaped by the annotations; else ``trust`` reads none."""

    @workflow(codec="json")
    def typed(n: int, tags: list[str], other=None):
        return work("x")

    run = typed.execute(1, ["a"])
    assert run.inputs == {"n": 1, "tags": ["a"]}
    run = typed.options(ignore=("other",)).execute(1, ["b"], other=object())
    with pytest.raises(stepwise.UnreadableValueError, match="'other' could not be recorded"):
        _ = run.inputs
    assert cut_off(typed, 2, ["c"]).resume().result() == "X"
    run = cut_off(agent, "x")
    stepwise.configure(trust="data")
    with pytest.raises(stepwise.UnreadableValueError, match="trust='data' loads none"):
        _ = run.inputs


# -- Run.resume() --------------------------------------------------------------------------------


def test_resume():
    """``resume()`` resumes the run here, with its arguments; nothing is done twice."""
    run = cut_off(agent, "a", "x")
    assert run.status == "crashed"
    assert run.resume().result() == ["A", "X"]
    assert done == ["a", "x"]
    assert run.status == "completed"
    assert run.resume().result() == ["A", "X"]


def test_resume_of_a_method():
    """A method goes on with the instance as it was when the run began."""
    run = cut_off(Shop("A").sell, "x", "y", price=2, gift=True)
    assert run.resume().result() == ["A", "X", ("y",), 2, {"gift": True}, 1]
    assert cut_off(Shop.close, "x").resume().result() == ["Shop", "X"]


def test_resume_of_a_coroutine_function():
    """In an event loop it is awaited; without one, a thread has a loop for it."""
    run = cut_off(lambda: asyncio.run(called("x")))
    assert run.resume().result() == "X"
    run.forget("awork")

    async def main():
        return await run.resume()

    assert asyncio.run(main()) == "X"


async def called(name):
    return await slow(name)


def test_resume_of_what_is_not_known():
    """A workflow that this process does not know, and a child run, are refused with a reason."""

    @workflow
    def passing(name):
        return agent(name)

    run = cut_off(passing, "x")
    child = next(each for each in stepwise.runs() if each.parent)
    with pytest.raises(stepwise.ConfigurationError, match="is a child run: it resumes when"):
        child.resume()
    with pytest.raises(stepwise.ConfigurationError, match="no parameter 'nme'"):
        run.resume(nme="y")
    label = run.workflow
    del passing
    gc.collect()
    with pytest.raises(stepwise.ConfigurationError, match="import the module that defines it"):
        run.resume()
    assert label.endswith(":passing")


def test_workflows_of_a_factory():
    """Of several workflows that a function made, none is taken for the other."""

    def make(model):
        @workflow
        def made(name):
            return model, work(name)

        return made

    one, two = make("one"), make("two")
    run = cut_off(one, "x")
    with pytest.raises(stepwise.ConfigurationError, match=r"2 workflows .* made by a function"):
        run.resume()
    assert stepwise.recover().left[0][0] == run
    assert two


# -- recover() -----------------------------------------------------------------------------------


def test_recover(told):
    """``recover()`` goes on with what was cut off, and with nothing else."""
    cut = [cut_off(agent, name, "x") for name in "abc"]
    with pytest.raises(LookupError):
        agent("bad")
    agent("fine")
    cut_off(agent, "stopped", "x", by=interrupt)
    done.clear()
    handles = stepwise.recover()
    assert [each.id for each in handles] == [run.id for run in cut]
    assert [each.result() for each in handles] == [["A", "X"], ["B", "X"], ["C", "X"]]
    assert done == ["x"] * 3
    assert sorted(run.status for run in stepwise.runs()) == [
        *["completed"] * 4,
        "failed",
        "interrupted",
    ]
    assert "3 runs continued here: agent-" in told()
    assert stepwise.recover() == []


def test_recover_one_after_the_other():
    """At most ``max_workers`` runs go on at a time."""
    for name in "abcd":
        cut_off(agent, name, "x")
    alive, most = [], []

    class Gate:
        def wait(self, _):
            alive.append(1)
            most.append(len(alive))
            alive.pop()
            return True

        def set(self):
            pass

    gates["x"] = Gate()
    for each in stepwise.recover(max_workers=1):
        each.result()
    assert most == [1] * 4
    with pytest.raises(stepwise.ConfigurationError, match="1 or more"):
        stepwise.recover(max_workers=0)


def test_recover_as_the_last_line_of_a_program(told, monkeypatch):
    """What can begin at once goes on although the program ends; the others are named."""
    first, second = (cut_off(agent, name, "x") for name in "ab")
    monkeypatch.setattr(interrupts.ending, "begun", True)
    gates["x"] = threading.Event()
    one, other = stepwise.recover(max_workers=1)
    gates["x"].set()  # once both are there: whoever comes first in a thread of its own goes on
    assert one.result() == ["A", "X"]
    with pytest.raises(stepwise.StepwiseError, match="was not begun: the program ends"):
        other.result()
    assert first.status == "completed"
    assert f"recover: {second.id} was not begun: the program ends" in told()


def test_one_that_fails_does_not_stop_the_others():
    """What one run raises is in its own handle."""
    runs = [cut_off(agent, "x", name) for name in ("bad", "b")]
    first, second = stepwise.recover(agent)
    assert [first.id, second.id] == [run.id for run in runs]
    with pytest.raises(LookupError):
        first.result()
    assert second.result() == ["X", "B"]


def test_what_recover_leaves_alone(told):
    """Runs of unknown workflows and without their arguments are left alone and named."""

    @workflow
    def unknown():
        return work("x")

    @workflow
    def parent():
        return agent("x")

    first = cut_off(unknown)
    second = cut_off(order, Order([]), threading.Lock())
    third = cut_off(parent)
    del unknown
    gc.collect()
    told()
    handles = stepwise.recover()
    assert [each.result() for each in handles] == [["X"]]
    assert [each.id for each in handles] == [third.id]  # and its child with it
    assert [run.id for run, _ in handles.left] == [first.id, second.id]
    text = told()
    assert f"1 run left alone ({first.id}): this process knows no workflow" in text
    assert f"1 run left alone ({second.id}): arguments of run" in text
    with pytest.raises(stepwise.ConfigurationError, match="knows no workflow"):
        stepwise.recover("nobody")
    assert stepwise.recover("agent") == stepwise.recover(agent) == []


def test_recover_elsewhere(tmp_path):
    """Another store is looked into where it is given, or where a workflow says so."""
    other = f"disk:{tmp_path / 'other'}"

    @workflow(store=other)
    def placed():
        return work("x")

    for chosen in ({}, {"store": other}):
        cut_off(placed)
        (handle,) = stepwise.recover(**chosen)
        assert handle.result() == "X"
    assert stepwise.recover(store=other) == []
    del placed
    gc.collect()


def test_recover_in_an_event_loop():
    """Asynchronous runs go on in tasks, plain ones in threads."""

    async def crash():
        for name in "ab":
            slow.start(name, None)
        await asyncio.sleep(0)

    asyncio.run(crash())
    cut_off(agent, "x")

    async def main():
        return [
            await each if isinstance(each, stepwise.AsyncHandle) else each.result()
            for each in stepwise.recover(max_workers=1)
        ]

    assert asyncio.run(main()) == ["A", "B", ["X"]]
