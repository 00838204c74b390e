"""Sending to a run from a terminal."""

import json
import re
import sys
import threading

import pytest
from click.testing import CliRunner
from command import terminal

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


def test_a_name_nearly_right(crashed):
    """A signal for which nobody waits names the near one for which the run waits."""
    stepwise.configure(suspend_after=0, quiet=False)
    with pytest.raises(stepwise.RunSuspended):
        agent.options(run_id="trip-0573")()
    assert "it waits for 'paid'. Did you mean that?" in run("send", "trip", "payd", "1").stderr
    assert "Did you mean" not in run("send", "trip", "address", "1").stderr
    assert "Did you mean" not in run("send", "trip", "paid", "1").stderr


def test_a_type_without_jsonschema(capsys, monkeypatch):
    """A run that waits for a typed value says when it begins if jsonschema is missing."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.setenv("STEPWISE_QUIET", "")
    stepwise.configure(suspend_after=0, quiet=False)

    @workflow
    def typed():
        return stepwise.wait_for("paid", type=int)

    with pytest.raises(stepwise.RunSuspended):
        typed()
    assert "jsonschema, which is not installed" in capsys.readouterr().err


def test_stdin(crashed):
    """A dash takes the value from stdin; --json says what was sent."""
    done = run("send", "trip", "paid", "-", "--json", input='["line\\n", 2]\n')
    sent = {"message": 1, "name": "paid", "value": ["line\n", 2], "key": None}
    assert json.loads(done.stdout) == {"id": "trip-0573", "status": "interrupted", **sent}


@pytest.mark.parametrize("text", ["yes", "", "{'a': 1}", "NaN", "1 2"])
def test_no_json(crashed, text):
    """What is not JSON is refused, and the message shows how to quote it."""
    done = run("send", "trip", "paid", text)
    assert done.exit_code == 2
    assert "is not JSON" in done.stderr
    assert "in quotes" in done.stderr
    assert ("'\"yes\"'" in done.stderr) == (text == "yes")
    assert crashed.inbox == []


def waiting(workflow, **options):
    """Start a run; return its handle once it waits."""
    waits = threading.Event()
    stepwise.on_event(lambda event: waits.set() if event.kind == "step_waiting" else None)
    handle = workflow.options(**options).start()
    assert waits.wait(60)
    return handle


@workflow
def two():
    return [stepwise.wait_for("paid"), stepwise.wait_for("shipped")]


def test_a_run_in_progress():
    """A run that a process executes has the signal now, and the process is named."""
    handle = waiting(two)
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
    handle = waiting(trip, run_id="trip-0573")
    yield handle
    handle.wait(60)


@pytest.mark.parametrize("step", ["1", "book"])
def test_approve(asking, step):
    """The ticket that ``show`` prints says what is approved; a second answer names the first."""
    (question,) = asking.run.questions
    shown = f"stepwise approve trip-0573 1 {question.ticket} [--note TEXT]"
    assert shown in run("show", "trip").stdout
    done = run("approve", "trip", step, question.ticket, "--note", "fine")
    assert (done.exit_code, done.stdout) == (0, f"step {step} of trip-0573 is approved\n")
    assert asking.result(60) == "booked Roma"
    again = CliRunner().invoke(cli.main, ["approve", "trip", step])
    assert isinstance(again.exception, stepwise.StepNotFoundError)
    assert re.search(r"@.* answered that at .*, with yes \(fine\)", str(again.exception))


def test_approve_unseen(asking):
    """Without a ticket and a terminal nothing is approved; the question is printed."""
    (question,) = asking.run.questions
    for command in (["approve", "trip", "book"], ["deny", "trip", "1", "--reason", "no"]):
        with pytest.raises(stepwise.ConfigurationError) as caught:
            run(*command)
        assert "hotel = 'Roma'" in str(caught.value)
        assert f"stepwise approve trip-0573 1 {question.ticket}" in str(caught.value)
    with pytest.raises(stepwise.StepNotFoundError, match="is not the ticket of what it asks"):
        run("approve", "trip", "book", "ask-000000000000")
    assert asking.run.questions == [question]
    question.approve()


@pytest.mark.parametrize("typed", ["y\n", "n\n"])
def test_approve_at_a_terminal(asking, typed):
    """Without a ticket, a terminal shows what it approves, and asks."""
    done = terminal(["stepwise", "approve", "trip", "book"], text=typed)
    assert "hotel = 'Roma'" in done.stdout
    assert "Approve it? [y/N]" in done.stdout
    if typed == "y\n":
        assert (done.returncode, asking.result(60)) == (0, "booked Roma")
    else:
        assert done.returncode == 1
        asking.run.questions[0].approve()


def test_deny(asking):
    """The reason of a denial reaches the workflow."""
    ticket = asking.run.questions[0].ticket
    done = run("deny", "trip", "book", ticket, "--reason", "too expensive", "--json")
    told = json.loads(done.stdout)
    assert told.pop("status") in ("running", "completed")
    answer = {"step": "book", "ticket": ticket, "approved": False, "note": "too expensive"}
    assert told == {"id": "trip-0573", **answer}
    assert "too expensive" in asking.result(60)


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
