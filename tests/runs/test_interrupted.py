"""What somebody stopped on purpose is ``interrupted``; what a process took along is ``crashed``."""

import asyncio
import contextlib
import signal

import pytest
from click.testing import CliRunner
from command import process

import stepwise
from stepwise import cli, step, workflow
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
    """A run that Ctrl-C stopped is interrupted, says so, and goes on when it is called again."""
    run = stop(KeyboardInterrupt())
    assert (run.status, run.owner) == ("interrupted", None)
    assert stepwise.runs(status="interrupted") == [run]
    assert stepwise.runs(status="crashed") == []
    assert agent.execute("ab") == run
    assert (run.status, run.result) == ("completed", ["a", "b"])


def test_an_exit_is_no_interruption():
    """``sys.exit()``, which a SIGTERM may become, leaves a run to what brings runs back."""
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


def test_a_generator_that_is_left():
    """A generator workflow whose consumer stops iterating is interrupted."""

    @workflow
    def items():
        yield press("a")
        yield press("b")

    for _ in items():
        break
    (run,) = stepwise.runs()
    assert run.status == "interrupted"
    assert list(items()) == ["a", "b"]
    assert run.status == "completed"


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


def test_events_tell_what_interrupted():
    """The event says what it was."""
    heard = []
    end = stepwise.on_event(heard.append)
    stop(KeyboardInterrupt())
    end()
    assert (heard[-1].kind, heard[-1].detail) == ("run_interrupted", "Ctrl-C")


def test_it_is_shown():
    """Listings, ``show``, text and HTML say that it is interrupted, and by what."""
    run = stop(KeyboardInterrupt())
    runner = CliRunner()
    assert "interrupted" in runner.invoke(cli.main, ["runs", "--status", "interrupted"]).output
    shown = runner.invoke(cli.main, ["show", run.id]).output
    assert "ago, by Ctrl-C" in shown
    assert f"stepwise resume {run.id}" in shown
    assert "stopped by Ctrl-C" in repr_of(run)
    assert 'class="sw-interrupted"' in run._repr_html_()
    assert "1 interrupted" in runner.invoke(cli.main, ["doctor"]).output


def repr_of(run):
    from stepwise._display.text import run_text

    return run_text(run._shown(run._seen()))


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
def test_a_server_that_sigterm_ends(start, how):
    """A server that cancels what it executes since SIGTERM ends it: that is brought back."""
    script = start(SERVER, how)
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


def test_what_brings_runs_back(start):
    """``resume --all-crashed`` brings back what SIGTERM ended, and leaves alone what Ctrl-C did."""
    script = start(SCRIPT)
    assert script.hear() == "thinks 1"
    script.process.send_signal(signal.SIGINT)
    assert script.finish() == "pressed"
    done = process("resume", "--all-crashed")
    assert (done.returncode, done.stderr) == (0, "no run has crashed\n")
    script = start(SCRIPT.replace("agent", "other"))
    assert script.hear() == "thinks 1"
    script.process.send_signal(signal.SIGTERM)
    script.process.wait()
    assert [run.status for run in stepwise.runs()] == ["crashed", "interrupted"]
    process("resume", "--all-crashed")
    assert [run.status for run in stepwise.runs()] == ["completed", "interrupted"]
