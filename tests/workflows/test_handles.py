"""Runs beside their caller: ``start()``, ``Run.inputs``, ``Run.resume()`` and ``recover()``."""

import asyncio
import contextlib
import dataclasses
import gc
import signal
import threading
import types

import pytest

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


@workflow
async def slow(name, gate=None):
    if gate is not None:
        await gate.wait()
    return await awork(name)


# -- start() -------------------------------------------------------------------------------------


def test_start():
    """``start()`` gives a handle at once, whose run is on record; it waits for the result."""
    gates["a"] = threading.Event()
    handle = agent.start("a", "b")
    assert (handle.status, handle.done, handle.run.inputs) == (
        "running",
        False,
        {"names": ("a", "b")},
    )
    assert stepwise.get_run(handle.id) == handle.run
    assert handle.wait(0.01) is False
    with pytest.raises(TimeoutError, match="it continues"):
        handle.result(0.01)
    assert "running" in repr(handle)
    gates["a"].set()
    assert handle.result() == ["A", "B"]
    assert handle.wait()
    assert (handle.status, handle.done) == ("completed", True)


def test_start_of_what_fails(told):
    """What a started run raises is raised by ``result()``, and told, since perhaps nobody asks."""
    handle = agent.start("bad")
    with pytest.raises(LookupError, match="bad"):
        handle.result()
    assert handle.status == "failed"
    assert f"{handle.id}, which was started, ended with LookupError('bad')" in told()


def test_start_of_what_is_refused():
    """What a call would raise before it begins, ``start()`` raises itself."""
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


def test_start_of_a_run_that_completed():
    """A run that has completed gives its result; nothing runs."""
    handle = agent.options(run_id="one").start("a")
    assert handle.result() == ["A"]
    assert agent.options(run_id="one").start("a").result() == ["A"]
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


def test_generators_are_not_started():
    """Nobody would take the items of a generator."""

    @workflow
    def items():
        yield 1

    with pytest.raises(stepwise.ConfigurationError, match="iterate over it"):
        items.start()


def test_start_in_an_event_loop():
    """A coroutine function executes in a task; waiting for it can be cancelled, and it goes on."""

    async def main():
        gate = asyncio.Event()
        handle = slow.options(ignore=("gate",)).start("a", gate)
        assert (handle.status, handle.done) == ("running", False)
        assert not await handle.wait(0.01)
        with pytest.raises(TimeoutError, match="it continues"):
            await handle.result(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.result(), 0.01)
        gate.set()
        assert await handle == await handle.result() == "A"
        assert (handle.status, handle.done) == ("completed", True)
        failing = slow.start("bad")
        with pytest.raises(LookupError):
            await failing
        first = slow.options(run_id="one").start("b")
        second = slow.options(run_id="one", on_owned="wait").start("b")
        assert [await first, await second] == ["B", "B"]

    asyncio.run(main())
    assert done == ["a", "bad", "b"]


def test_the_event_loop_ends():
    """What was started and is cut off by the end of its loop is crashed: it is brought back."""

    async def main(error=None):
        never = asyncio.Event()
        slow.options(ignore=("gate",)).start("begun", never)
        await asyncio.sleep(0.01)
        slow.options(ignore=("gate",)).start("not yet begun", never)
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
    script.hear()
    script.tell()
    script.hear()
    script.tell()
    script.finish()
    assert [run.status for run in stepwise.runs()] == ["completed"]


def test_ctrl_c_at_the_program(start):
    """After Ctrl-C it waits for the step in progress only; the run is interrupted."""
    script = start(SCRIPT, "wait")
    assert script.hear() == "works a"
    script.process.send_signal(signal.SIGINT)
    while (line := script.hear()) != "the interpreter ends":  # before, the next step would begin
        assert line or script.process.poll() is None
    script.tell()
    script.process.wait()
    (run,) = stepwise.runs()
    assert (run.status, [each.status for each in run.steps]) == ("interrupted", ["completed"])


def test_sigterm_at_the_program(start):
    """SIGTERM ends it at once; the run is crashed, to be brought back."""
    script = start(SCRIPT, "wait")
    script.hear()
    script.process.send_signal(signal.SIGTERM)
    script.process.wait()
    assert [run.status for run in stepwise.runs()] == ["crashed"]


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


def fail_once(call, *arguments, **options):
    """The run of a call that was cut off in its step."""

    def exits(name):
        raise SystemExit

    gates.clear()
    gates["x"] = types.SimpleNamespace(wait=exits, set=lambda: None)
    with pytest.raises(SystemExit):
        call(*arguments, **options)
    gates.clear()
    return next(run for run in stepwise.runs() if run.parent is None)


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
    run = Shop("A").sell.execute("x", "y", price=2, gift=True)
    inputs = run.inputs
    assert (inputs["self"].name, inputs["self"].sold) == ("A", [])
    assert {name: value for name, value in inputs.items() if name != "self"} == {
        "what": "x",
        "more": ("y",),
        "price": 2,
        "options": {"gift": True},
    }
    assert Shop.close.execute("x").inputs == {"cls": Shop, "when": "x"}


def test_inputs_that_cannot_be_recorded():
    """An argument that does not pickle is named, with the way out."""
    lock = threading.Lock()
    run = fail_once(order, Order([]), lock)
    with pytest.raises(
        stepwise.UnreadableValueError, match=r"'hint' could not be recorded.*hint=\.\.\."
    ):
        _ = run.inputs
    with pytest.raises(stepwise.UnreadableValueError) as caught:
        run.resume()
    assert len(caught.traceback) == 2  # the test's line, and one of ours
    assert run.resume(hint="other").result() == (Order(["X"]), "other", ())


def test_an_instance_that_cannot_be_recorded():
    """An instance with an attribute that does not pickle has to be given."""
    run = fail_once(Shop("A", threading.Lock()).sell, "x")
    with pytest.raises(
        stepwise.UnreadableValueError, match=r"'self' could not be recorded \(self.client"
    ):
        run.resume()
    assert run.resume(self=Shop("A", threading.Lock())).result()[:2] == ["A", "X"]


def test_inputs_as_json():
    """With ``codec="json"`` they are data, shaped by the annotations; ``trust="data"`` the same."""

    @workflow(trust="data")
    def typed(n: int, tags: list[str], other=None):
        return work("x")

    run = typed.execute(1, ["a"])
    assert run.inputs == {"n": 1, "tags": ["a"]}
    run = typed.options(ignore=("other",)).execute(1, ["b"], other=object())
    with pytest.raises(stepwise.UnreadableValueError, match="'other' could not be recorded"):
        _ = run.inputs
    run = fail_once(typed, 2, ["c"])
    assert run.resume().result() == "X"


def test_pickles_that_must_not_be_loaded():
    """A run that was recorded with pickles has no inputs for ``trust="data"``."""
    run = fail_once(agent, "x")
    assert fail_once(agent.options(run_id=run.id, trust="data", codec="json"), "x") == run
    with pytest.raises(stepwise.UnreadableValueError, match="trust='data' loads none"):
        _ = run.inputs


def test_inputs_of_an_old_store():
    """A run of the version before has only a part of its arguments, which is said."""
    from stepwise._execution.inputs import load_inputs
    from stepwise._journal.records import Started, from_header, to_header

    header = to_header(Started("m:f", "d", "x=1", command=("python",), cwd="/"))
    old = from_header(header[:-1])
    assert old.form is None
    run = fail_once(agent, "x")
    entry = next(each for each in run._entries() if isinstance(each.record, Started))
    started, payload = entry.record, entry.payload
    assert started.form is not None

    class OldStore:
        def __getattr__(self, name):
            return getattr(run.store, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "stepwise._execution.inputs.read_start",
            lambda *_: (started._replace(form=None), payload),
        )
        with pytest.raises(stepwise.UnreadableValueError, match="recorded only a part of them"):
            load_inputs(run.store, run._seal, run._facts())
        assert run.resume(names=("x",)).result() == ["X"]


# -- Run.resume() --------------------------------------------------------------------------------


def test_resume():
    """``resume()`` resumes the run here, with its arguments; nothing is done twice."""
    run = fail_once(agent, "a", "x")
    assert run.status == "crashed"
    assert run.resume().result() == ["A", "X"]
    assert done == ["a", "x"]
    assert run.status == "completed"
    assert run.resume().result() == ["A", "X"]


def test_resume_of_a_method():
    """A method goes on with the instance as it was when the run began."""
    run = fail_once(Shop("A").sell, "x", "y", price=2, gift=True)
    assert run.resume().result() == ["A", "X", ("y",), 2, {"gift": True}, 1]
    assert fail_once(Shop.close, "x").resume().result() == ["Shop", "X"]


def test_resume_of_a_coroutine_function():
    """In an event loop it is awaited; without one, a thread has a loop for it."""

    async def called():
        return await slow("x")

    with contextlib.suppress(SystemExit):
        fail_once(lambda: asyncio.run(called()))
    (run,) = stepwise.runs()
    assert run.resume().result() == "X"
    run.forget("awork")

    async def main():
        return await run.resume()

    assert asyncio.run(main()) == "X"


def test_resume_of_what_is_not_known():
    """A workflow that this process does not know, and a child run, are refused with a reason."""

    @workflow
    def passing(name):
        return agent(name)

    run = fail_once(passing, "x")
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
    run = fail_once(one, "x")
    with pytest.raises(stepwise.ConfigurationError, match=r"2 workflows .* made by a function"):
        run.resume()
    assert stepwise.recover().left[0][0] == run
    assert two


# -- recover() -----------------------------------------------------------------------------------


def test_recover(told):
    """``recover()`` goes on with what was cut off, and with nothing else."""
    cut = [fail_once(agent, name, "x") for name in "abc"]
    with pytest.raises(LookupError):
        agent("bad")
    agent("fine")
    gates["x"] = types.SimpleNamespace(wait=interrupt, set=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        agent("stopped", "x")
    gates.clear()
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


def interrupt(_):
    raise KeyboardInterrupt


def test_recover_one_after_the_other():
    """At most ``max_workers`` runs go on at a time."""
    for name in "abcd":
        fail_once(agent, name, "x")
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
    first, second = (fail_once(agent, name, "x") for name in "ab")
    monkeypatch.setattr(interrupts.ending, "begun", True)
    one, other = stepwise.recover(max_workers=1)
    assert one.result() == ["A", "X"]
    with pytest.raises(stepwise.StepwiseError, match="was not begun: the program ends"):
        other.result()
    assert first.status == "completed"
    assert f"recover: {second.id} was not begun: the program ends" in told()


def test_one_that_fails_does_not_stop_the_others():
    """What one run raises is in its own handle."""
    runs = [fail_once(agent, "x", name) for name in ("bad", "b")]
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

    first = fail_once(unknown)
    second = fail_once(order, Order([]), threading.Lock())
    third = fail_once(parent)
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

    def exits(name):
        raise SystemExit

    def cut_off(call):
        gates["x"] = types.SimpleNamespace(wait=exits, set=lambda: None)
        with pytest.raises(SystemExit):
            call()
        gates.clear()

    cut_off(placed)
    (handle,) = stepwise.recover()
    assert handle.result() == "X"
    cut_off(placed)
    (handle,) = stepwise.recover(store=other)
    assert handle.result() == "X"
    assert stepwise.recover(store=other) == []
    del placed
    gc.collect()


def test_recover_in_an_event_loop():
    """Asynchronous runs go on in tasks, plain ones in threads."""

    async def called(name):
        return await slow(name)

    async def crash():
        for name in "ab":
            slow.options(ignore=("gate",)).start(name, None)
        await asyncio.sleep(0)

    asyncio.run(crash())
    fail_once(agent, "x")

    async def main():
        handles = stepwise.recover(max_workers=1)
        return [
            await each if isinstance(each, stepwise.AsyncHandle) else each.result()
            for each in handles
        ]

    assert asyncio.run(main()) == ["A", "B", ["X"]]


SERVER = """
import os, sys
import stepwise
from stepwise import step, workflow

def say(text):
    os.write(1, f"{text}\\n".encode())  # one write: print() of several threads mixes lines

@step
def think(name):
    say(f"thinks {name}")
    sys.stdin.readline()
    return name

@workflow
def agent(task, *, hints):
    return [think(task), think(f"{task} again"), hints]

def begin():
    for n in range(3):
        agent.options(run_id=f"job {n}").start(f"task {n}", hints={n})
    say("started")

def go_on():
    for handle in stepwise.recover(max_workers=2):
        say(f"{handle.id} {handle.result()}")
"""


def test_a_server_that_is_killed(start, tmp_path):
    """A server that is killed, started anew, goes on with its runs in one process."""
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    first = start("import server\nserver.begin()\n")
    heard = {first.hear() for _ in range(4)}
    assert heard == {"thinks task 0", "thinks task 1", "thinks task 2", "started"}
    first.kill()
    text = start("import server\nserver.go_on()\n").finish()
    for number in range(3):
        assert f"job {number} ['task {number}', 'task {number} again', {{{number}}}]" in text
    assert text.count("thinks") == 6
    assert {run.status for run in stepwise.runs()} == {"completed"}
