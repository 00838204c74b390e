"""Sending to a run from a terminal."""

import json
import threading

import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise.testing import SimulatedCrash, crash_at


@step
def think(n):
    return n


@workflow
def agent():
    think(1)
    return stepwise.wait_for("paid")


@pytest.fixture
def crashed():
    with pytest.raises(SimulatedCrash), crash_at(think):
        agent.options(run_id="trip-0573")()
    return stepwise.get_run("trip-0573")


def run(*arguments, **options):
    return CliRunner().invoke(cli.main, arguments, catch_exceptions=False, **options)


def test_a_signal(crashed):
    """The beginning of an id names the run; what is sent is JSON; the rest is said on stderr."""
    done = run("send", "trip", "paid", '{"amount": 3}', "--key", "order 7")
    assert done.exit_code == 0
    assert done.stdout == "paid is sent to trip-0573, as message 1 of its inbox\n"
    assert done.stderr == (
        "it is interrupted: that is kept until it goes on and waits for it: "
        "stepwise resume trip-0573\n"
    )
    assert run("send", "trip", "paid", "7", "--key", "order 7").exit_code == 0
    (message,) = crashed.inbox
    assert (message.name, message.value, message.key) == ("paid", {"amount": 3}, "order 7")
    assert agent.options(run_id="trip-0573")() == {"amount": 3}


def test_stdin(crashed):
    """A dash takes the value from stdin; --json says what was sent."""
    done = run("send", "trip", "paid", "-", "--json", input='["line\\n", 2]\n')
    assert json.loads(done.stdout) == {
        "id": "trip-0573",
        "status": "interrupted",
        "message": 1,
        "name": "paid",
        "value": ["line\n", 2],
        "key": None,
    }


@pytest.mark.parametrize("text", ["yes", "", "{'a': 1}", "NaN", "1 2"])
def test_no_json(crashed, text):
    """What is not JSON is refused, and the message shows how to quote it."""
    done = run("send", "trip", "paid", text)
    assert done.exit_code == 2
    assert "is not JSON" in done.stderr
    assert "in quotes" in done.stderr
    assert ("'\"yes\"'" in done.stderr) == (text == "yes")
    assert crashed.inbox == []


@workflow
def two():
    return [stepwise.wait_for("paid"), stepwise.wait_for("shipped")]


def test_a_run_in_progress():
    """A run that a process executes has the signal now, and the process is named."""
    waits = threading.Event()
    stepwise.on_event(lambda event: waits.set() if event.kind == "step_waiting" else None)
    handle = two.start()
    assert waits.wait(60)
    assert "executes the run, and has it now" in run("send", handle.id, "paid", "1").stderr
    run("send", handle.id, "shipped", "2")
    assert handle.result(60) == [1, 2]


def test_what_is_not_taken_is_shown(crashed):
    """``show`` prints what was sent and not taken; with --all, what was taken as well."""
    run("send", "trip", "paid", "[1, 2]")
    run("send", "trip", "other", '"text"')
    shown = run("show", "trip").stdout
    inbox = shown.partition("inbox:\n")[2].splitlines()
    assert inbox[0].split() == ["MESSAGE", "NAME", "VALUE", "STATUS", "BY", "SENT"]
    assert [line.split()[:2] for line in inbox[1:]] == [["1", "paid"], ["2", "other"]]
    agent.options(run_id="trip-0573")()
    assert " paid " not in run("show", "trip").stdout.partition("inbox:\n")[2]
    assert "taken" in run("show", "trip", "--all").stdout.partition("inbox:\n")[2]
    facts = json.loads(run("show", "trip", "--json").stdout)
    assert [(each["number"], each["status"]) for each in facts["inbox"]] == [(2, "kept")]


@tool(side_effect=True, approve=True)
def book(hotel):
    return f"booked {hotel}"


@workflow
def trip():
    try:
        return book("Roma")
    except stepwise.ApprovalDenied as denied:
        return f"denied: {denied}"


@pytest.fixture
def asking():
    """A run in progress whose call waits for a person."""
    waits = threading.Event()
    stepwise.on_event(lambda event: waits.set() if event.kind == "step_waiting" else None)
    handle = trip.options(run_id="trip-0573").start()
    assert waits.wait(60)
    yield handle
    handle.wait(60)


@pytest.mark.parametrize("step", ["1", "book"])
def test_approve(asking, step):
    """The number or the name of a step says what is approved; a second answer is refused."""
    done = run("approve", "trip", step, "--note", "fine")
    assert (done.exit_code, done.stdout) == (0, f"step {step} of trip-0573 is approved\n")
    assert asking.result(60) == "booked Roma"
    again = CliRunner().invoke(cli.main, ["approve", "trip", step])
    assert isinstance(again.exception, (stepwise.StepNotFoundError, stepwise.RunEndedError))


def test_deny(asking):
    """The reason of a denial reaches the workflow."""
    done = run("deny", "trip", "book", "--reason", "too expensive", "--json")
    told = json.loads(done.stdout)
    assert told.pop("status") in ("running", "completed")
    assert told == {
        "id": "trip-0573",
        "step": "book",
        "approved": False,
        "note": "too expensive",
    }
    assert "too expensive" in asking.result(60)


def test_nothing_asks(asking):
    """The steps that ask are listed where another one is named."""
    with pytest.raises(stepwise.StepNotFoundError, match=r"Steps that ask: 1 \(book\)"):
        run("approve", "trip", "fly")
    run("approve", "trip", "1")


def test_cancel(crashed):
    """A run that nobody executes is to be cancelled, and unwinds at its next start."""
    done = run("cancel", "trip", "--reason", "called off")
    assert done.stdout == "trip-0573 is to be cancelled\n"
    assert "stepwise resume trip-0573" in done.stderr
    assert crashed.status == "cancelling"
    with pytest.raises(stepwise.RunCancelled, match="called off"):
        agent.options(run_id="trip-0573")()


@workflow
def parent():
    return agent.options(run_id="the child")()


def test_the_child_run_waits():
    """Where a child run waits for it, the command says to send it there."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        parent.options(run_id="trip-0573")()
    done = run("send", "trip", "paid", "1")
    assert "its child run 'the child' waits for that" in done.stderr.replace(
        "the child w", "'the child' w"
    )
    assert "stepwise send 'the child' paid ..." in done.stderr
    run("send", "the child", "paid", "2")
    assert parent.options(run_id="trip-0573")() == 2
