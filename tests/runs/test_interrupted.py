"""What somebody stopped on purpose is ``interrupted``; what a process took along is ``crashed``."""

import asyncio
import contextlib
import gc
import os
import signal

import pytest
from click.testing import CliRunner
from command import process

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._display.render import run_text
from stepwise._journal.journal import read, seal_for
from stepwise._journal.run_facts import derive_facts

pressed = []  # what the next "press" raises


@step
def press(key):
    if pressed:
        raise pressed.pop()
    return key


@workflow
def agent(text):
    return [press(key) for key in text]


ready = []  # for "wait"


began = []  # an event, set when it waits


@step
async def wait():
    if not ready:
        for event in began:
            event.set()
        await asyncio.Event().wait()


async def given_up(call):
    """Await a call as ``wait_for`` does, which gives it up once it waits."""
    began.append(asyncio.Event())
    call = asyncio.ensure_future(call)
    await began[0].wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    raise asyncio.TimeoutError


@workflow
async def slow():
    press("a")
    await wait()
    return "awake"


@pytest.fixture(autouse=True)
def nothing_pressed():
    pressed.clear()
    ready.clear()
    began.clear()


def stop(error, *, by=agent):
    pressed.append(error)
    with pytest.raises(type(error)):
        by("ab")
    return stepwise.runs()[0]


def test_ctrl_c_is_interrupted():
    """A run that Ctrl-C stopped is interrupted, says so, and goes on when it is called again.

    ``sys.exit()``, which a SIGTERM may become, leaves a run to what brings runs back.
    """
    heard = []
    end = stepwise.on_event(heard.append)
    run = stop(KeyboardInterrupt())
    end()
    assert (heard[-1].kind, heard[-1].detail) == ("run_interrupted", "Ctrl-C")
    assert (run.status, run.owner) == ("interrupted", None)
    assert stepwise.runs(status="interrupted") == [run]
    assert stepwise.runs(status="crashed") == []
    assert agent.execute("ab") == run
    assert (run.status, run.result) == ("completed", ["a", "b"])
    assert stop(SystemExit(1)).status == "crashed"


def test_the_journal_tells_it():
    """Where the head is damaged, the journal still says that the run was interrupted."""
    run = stop(KeyboardInterrupt())
    entries = [entry for entry, _ in read(run.store, seal_for(run.store), run.id)]
    facts = derive_facts(run.id, entries)
    assert (facts.status, facts.error) == ("interrupted", "Ctrl-C")


def test_a_step_of_it_is_forgotten():
    """A run that somebody stopped, and of which a step is to run again, waits for its call."""

    @workflow
    def two():
        press("a")
        press("b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two()
    (run,) = stepwise.runs()
    run.forget(1)
    assert run.status == "interrupted"


def test_a_failed_run_that_is_tried_again():
    """Ctrl-C while a failed run is tried again makes it interrupted: its error is past."""
    run = stop(ValueError())
    pressed.append(KeyboardInterrupt())
    assert run.status == "failed"
    with pytest.raises(KeyboardInterrupt):
        agent("ab")
    assert run.status == "interrupted"
    assert run.error is None


def test_a_timeout_in_a_live_process():
    """A run whose caller gave up is interrupted, and goes on when it is called again."""

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await given_up(slow())
        (run,) = stepwise.runs()
        assert run.status == "interrupted"
        ready.append("yes")
        assert await slow() == "awake"
        assert run.status == "completed"
        assert run.steps_skipped == 1

    asyncio.run(main())


def test_a_timeout_inside_a_run():
    """A child run that a timeout of its caller cut short is interrupted, not crashed."""

    @workflow
    async def patient():
        try:
            await given_up(slow())
        except asyncio.TimeoutError:
            return "late"

    async def main():
        assert await patient() == "late"
        statuses = {run.label: run.status for run in stepwise.runs()}
        assert statuses == {"patient": "completed", "slow": "interrupted"}

    asyncio.run(main())


def test_children_are_interrupted_with_their_parent():
    """Ctrl-C interrupts a run and the child runs that it was in."""

    @workflow
    def parent(text):
        return agent(text)

    stop(KeyboardInterrupt(), by=parent)
    assert [run.status for run in stepwise.runs()] == ["interrupted", "interrupted"]
    assert parent("ab") == ["a", "b"]
    assert [run.status for run in stepwise.runs()] == ["completed", "completed"]


def read_once(items):
    for _ in items:
        break


def closed_by_an_error(items):
    with contextlib.suppress(ValueError), contextlib.closing(items):
        next(items)
        raise ValueError


def collected(items):
    next(items)
    held = [items]
    held.append(held)
    del items, held
    gc.collect()


@pytest.mark.parametrize("leave", [read_once, closed_by_an_error, collected])
def test_steps_in_the_clean_up_of_a_generator_that_is_left(leave):
    """They are executed, and recorded: they are not executed again when it is read to its end."""

    @tool(side_effect=True)
    def clean(what):
        done.append(what)

    @workflow
    def items():
        try:
            yield press("a")
            yield press("b")
        finally:
            clean("up")
            done.append("cleaned")

    done = []
    leave(items())
    assert done == ["up", "cleaned"]
    (run,) = stepwise.runs()
    assert (run.status, [each.name for each in run.steps]) == ("interrupted", ["press", "clean"])
    assert list(items()) == ["a", "b"]
    assert done == ["up", "cleaned", "cleaned"]
    assert run.status == "completed"


async def aread_once(items):
    async for _ in items:
        break
    del items  # asyncio makes a task that closes it
    await asyncio.sleep(0)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def left_to_the_loop(items):
    left.append(items)  # which closes it when it ends
    await items.__anext__()


left = []


async def aclosed(items):
    await items.__anext__()
    await items.aclose()


@pytest.mark.parametrize("leave", [aread_once, left_to_the_loop, aclosed])
def test_steps_in_the_clean_up_of_an_asynchronous_generator_that_is_left(leave):
    """They are awaited where it is closed: by its reader, or by asyncio."""

    @step
    async def clean(what):
        await asyncio.sleep(0)
        done.append(what)

    @workflow
    async def items():
        try:
            yield press("a")
            yield press("b")
        finally:
            await clean("up")
            done.append("cleaned")

    async def read():
        return [each async for each in items()]

    done = []
    asyncio.run(leave(items()))
    assert done == ["up", "cleaned"]
    (run,) = stepwise.runs()
    assert run.status == "interrupted"
    assert asyncio.run(read()) == ["a", "b"]
    assert done == ["up", "cleaned", "cleaned"]
    assert run.status == "completed"


def test_steps_in_the_clean_up_of_a_generator_of_the_workflow():
    """A generator that the workflow itself leaves cleans up with its steps, too."""

    def pieces():
        try:
            yield press("a")
        finally:
            press("clean up")

    @workflow
    def leaving():
        read_once(pieces())
        return press("b")

    run = leaving.execute()
    assert [each.arguments for each in run.steps] == ["key='a'", "key='clean up'", "key='b'"]


def test_steps_in_the_clean_up_of_a_collected_generator(told, monkeypatch):
    """No step is called, and a line says so, where the garbage collector came amid our code."""

    @workflow
    def items():
        try:
            yield press("a")
        finally:
            press("clean up")

    @step
    def other():
        collecting.append(1)

    @workflow
    def another():
        return other()

    pid, collecting = os.getpid(), []
    generator = items()
    next(generator)
    held = [generator]
    held.append(held)
    del generator, held
    gc.disable()
    namespace = {"collect": gc.collect, "pid": pid, "collecting": collecting}
    text = "def getpid():\n    if collecting: collect()\n    return pid"
    exec(compile(text, stepwise.__file__, "exec"), namespace)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", namespace["getpid"])
        another()
    gc.enable()
    said = {each.arguments for run in stepwise.runs() for each in run.steps}
    assert said == {"key='a'", ""}
    assert "press was not called, since the garbage collector" in told()


def test_a_store_that_cannot_be_written(monkeypatch):
    """Ctrl-C stays Ctrl-C where it cannot be recorded; the run is then shown as crashed."""

    def full(*_):
        raise stepwise.StoreError("no space")

    @step
    def break_store():
        patched.setattr(stepwise.current_run().store, "write", full)
        raise KeyboardInterrupt

    @workflow
    def unlucky():
        break_store()

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        unlucky()
    assert [run.status for run in stepwise.runs()] == ["crashed"]


def test_it_is_shown():
    """Listings, ``show``, text and HTML say that it is interrupted, and by what."""
    run = stop(KeyboardInterrupt())
    runner = CliRunner()
    assert "interrupted" in runner.invoke(cli.main, ["runs", "--status", "interrupted"]).output
    shown = runner.invoke(cli.main, ["show", run.id]).output
    assert "ago, by Ctrl-C" in shown
    assert f"stepwise resume {run.id}" in shown
    assert "stopped by Ctrl-C" in run_text(run._shown(run._seen()))
    assert 'class="badge marked interrupted"' in run._repr_html_()
    assert "1 interrupted" in runner.invoke(cli.main, ["doctor"]).output


SERVER = """
import asyncio, signal, sys
from stepwise import step, workflow

@step
async def think():
    print("thinks", flush=True)
    await asyncio.sleep(600)

@workflow
async def agent():
    await think()

@workflow
def plain():
    print("waits", flush=True)
    signal.pause()

async def serve():
    request = asyncio.ensure_future(agent())
    if sys.argv[1] == "loop":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, request.cancel)
    else:
        call = asyncio.get_running_loop().call_soon_threadsafe
        signal.signal(signal.SIGTERM, lambda *_: call(request.cancel))
    await asyncio.wait({request})
    print("ended", flush=True)

if sys.argv[1] == "plain":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plain()
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        print("ended", flush=True)
else:
    asyncio.run(serve())
"""


@pytest.mark.parametrize("how", ["loop", "handler", "plain"])
def test_a_server_that_sigterm_ends(fork, how):
    """A server that cancels what it executes since SIGTERM ends it: that is brought back."""
    script = fork(SERVER, how)
    script.hear()
    script.process.send_signal(signal.SIGTERM)
    assert script.hear() == "ended"
    script.finish()
    assert [run.status for run in stepwise.runs()] == ["crashed"]


SCRIPT = """
import sys
from stepwise import step, workflow

@step
def think(number):
    print("thinks", number, flush=True)
    return sys.stdin.readline().strip()

@workflow
def agent():
    return [think(1), think(2)]

try:
    print(agent())
except KeyboardInterrupt:
    print("pressed")
"""


def test_what_brings_runs_back(fork):
    """``resume --all-crashed`` brings back what SIGTERM ended, and leaves alone what Ctrl-C did."""
    script = fork(SCRIPT)
    assert script.hear() == "thinks 1"
    script.process.send_signal(signal.SIGINT)
    assert script.finish() == "pressed"
    done = process("resume", "--all-crashed")
    assert (done.returncode, done.stderr) == (0, "no run has crashed\n")
    script = fork(SCRIPT.replace("agent", "other"))
    assert script.hear() == "thinks 1"
    script.process.send_signal(signal.SIGTERM)
    script.tell()  # the step in flight ends, which else is waited for
    script.process.wait()
    assert [run.status for run in stepwise.runs()] == ["crashed", "interrupted"]
    process("resume", "--all-crashed")
    assert [run.status for run in stepwise.runs()] == ["completed", "interrupted"]
