"""What happens in a run, told to hooks, to the log, and on the terminal."""

import asyncio
import logging
import os
import re
import subprocess
import sys

import pytest
from harness import python

import stepwise
from stepwise import on_event, step, tool, workflow


@step
def think(topic):
    if topic == "fail":
        raise ValueError("no thought")
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    if text in broken:
        raise ConnectionError("the line is dead")
    return f"sent {text}"


broken = set()


@workflow
def agent(topic):
    thought = think(topic)
    return send(thought)


@pytest.fixture
def heard():
    """The events of a test, as they come."""
    events = []
    end = on_event(events.append)
    yield events
    end()


def kinds(events):
    return [event.kind for event in events]


# -- hooks ---------------------------------------------------------------------------------------


def test_a_run_from_beginning_to_end(heard):
    """A hook hears of the run, of each step and of each checkpoint, in order."""
    agent("tides")
    assert kinds(heard) == [
        "run_started",
        "step_started",
        "step_completed",
        "checkpoint_taken",
        "step_started",
        "step_completed",
        "run_completed",
    ]
    done = heard[2]
    assert (done.step, done.name, done.arguments) == (1, "think", "topic='tides'")
    assert (done.detail, done.executed, done.skipped) == ("'about tides'", 1, 0)
    assert done.duration >= 0
    assert {(each.run_id, each.workflow) for each in heard} == {
        (agent.run_id_for("tides").rpartition("-2")[0] or heard[0].run_id, agent.full_name)
    }
    assert re.fullmatch(r"test_events.py:\d+", heard[3].detail)
    with pytest.raises(AttributeError):
        done.kind = "other"


def test_failing_and_resuming(heard):
    """A failure, the resuming and what is answered are told."""

    @workflow(retention="latest_only", checkpoint_every=9)
    def fragile(topic):
        first = think(topic)
        second = think("winds")
        if broken:
            raise ValueError(second)
        return first

    broken.add("it")
    with pytest.raises(ValueError, match="about winds"):
        fragile("tides")
    assert kinds(heard)[-1] == "run_failed"
    assert "about winds" in heard[-1].detail
    heard.clear()
    broken.clear()
    fragile("tides")
    answered = ["step_answered", "step_answered", "checkpoint_taken"]
    assert kinds(heard) == ["run_resumed", *answered, "run_completed"]
    assert heard[1].detail == "'about tides'"
    assert heard[-1].skipped == 2


def test_failed_steps_and_doubt(heard):
    """A step that fails, a side effect in doubt and the stop that it causes are told."""
    broken.add("about tides")
    with pytest.raises(ConnectionError):
        agent("tides")
    assert "step_failed" in kinds(heard)
    heard.clear()
    broken.clear()
    with pytest.raises(stepwise.StepInDoubtError):
        agent("tides")
    assert kinds(heard)[-2:] == ["step_in_doubt", "run_stopped"]
    assert heard[-2].name == "send"


def test_coroutines_and_child_runs(heard):
    """Child runs are told under their own ids, coroutines like functions."""

    @workflow
    async def parent(topic):
        await asyncio.sleep(0)
        return agent(topic)

    asyncio.run(parent("tides"))
    ids = dict.fromkeys(event.run_id for event in heard)
    assert len(ids) == 2
    assert kinds(heard).count("run_completed") == 2


def test_a_hook_that_raises(heard, capfd, monkeypatch):
    """What a hook raises is told once, and neither the run nor the other hooks suffer from it."""
    monkeypatch.delenv("STEPWISE_QUIET")

    def bad(event):
        raise RuntimeError("oops")

    end = on_event(bad)
    try:
        assert agent("tides") == "sent about tides"
    finally:
        end()
        end()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "'oops'" in line]
    assert ", a callback of stepwise.on_event, raised RuntimeError('oops')" in line
    assert len(heard) == 7


def test_the_end_of_a_hook():
    """A hook that was ended hears nothing; the same function can be a hook twice."""
    events = []
    first, second = on_event(events.append), on_event(events.append)
    first()
    first()
    agent("tides")
    assert len(events) == 7
    second()
    agent("winds")
    assert len(events) == 7


def test_nobody_listens(monkeypatch):
    """Where nobody listens, no event is made."""
    from stepwise._runtime import event as _event
    from stepwise._runtime import observers

    def never(*args, **kwargs):
        raise AssertionError("an event was made")

    monkeypatch.setattr(_event, "Event", never)
    monkeypatch.setattr(observers.logger, "level", logging.WARNING)
    observers.logger.manager._clear_cache()
    assert agent("tides") == "sent about tides"
    observers.logger.manager._clear_cache()


def test_the_log(caplog):
    """The logger ``stepwise`` gets each event: runs as INFO, steps as DEBUG, the event with it."""
    with caplog.at_level(logging.DEBUG, "stepwise"):
        agent("tides")
    records = [each for each in caplog.records if hasattr(each, "stepwise")]
    assert [each.stepwise.kind for each in records][:2] == ["run_started", "step_started"]
    assert {each.levelname for each in records if each.stepwise.name} == {"DEBUG"}
    assert {e.levelname for e in records if e.stepwise.kind.startswith("run")} == {"INFO"}
    assert "step completed 1 think(topic='tides'): 'about tides'" in records[2].getMessage()


# -- on the terminal -----------------------------------------------------------------------------

SCRIPT = """
import sys
from stepwise import step, workflow

@step
def think(number):
    return number

@workflow
def agent():
    for number in range(3):
        think(number)
        print("a line", number)
        print("half", end=" ")
        think(number + 10)
        print("a line")
        print("an error", file=sys.stderr)
        think(number + 20)

agent()
"""


def on_terminal(path, **env):
    """What a terminal gets that a script writes to."""
    source = f"import pty, sys; sys.exit(pty.spawn([{sys.executable!r}, {str(path)!r}]))"
    done = subprocess.run(  # whose output keeps each carriage return
        [sys.executable, "-c", source],
        env={**os.environ, "COLUMNS": "60", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=True,
    )
    return done.stdout.decode()


def seen(text):
    """The lines that are left on the screen."""
    return [line.rpartition("\x1b[2K")[2].rstrip("\r") for line in text.split("\n")]


def test_progress(tmp_path):
    """``STEPWISE_PROGRESS=1`` shows the step, the count and the time, and leaves nothing behind.

    ``@workflow(progress=True)`` shows it too; a long call is cut to fit the terminal.
    """
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    text = on_terminal(path, STEPWISE_PROGRESS="1")
    assert "stepwise: 1 step · 0:0" in text
    assert "· think(number=22)" in text
    expected = [part for n in range(3) for part in (f"a line {n}", "half a line", "an error")]
    assert seen(text) == [*expected, ""]
    long = SCRIPT.replace("think(number + 20)", "think('x' * 500)")
    path.write_text(long.replace("@workflow", "@workflow(progress=True)"))
    text += on_terminal(path, STEPWISE_FRESH="1")
    assert "think(number='xxx" in text
    for drawn in re.findall(r"stepwise: [^\r\n\x1b]*", text):
        assert len(drawn) < 60
    with pytest.raises(stepwise.ConfigurationError, match="progress"):
        workflow(progress="much")(lambda: None)


def test_no_progress_unasked(tmp_path):
    """Unasked, a terminal shows the program's own output only; so does a pipe, asked or not."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert "steps" not in on_terminal(path)
    done = python(path, env={**os.environ, "STEPWISE_PROGRESS": "1", "STEPWISE_FRESH": "1"})
    assert done.stderr == "an error\n" * 3
