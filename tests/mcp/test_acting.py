"""The tools that act, where the user allows them: each does what Run does, and says who did it."""

import os
import re
import signal

import pytest
import sdks
from harness import python

import stepwise
from stepwise import step, tool, workflow
from stepwise.mcp import _evaluation

ACTOR = re.compile(r"mcp test-client for \S+@\S+")

SCRIPT = """
import os, signal, sys
from stepwise import step, tool, workflow

@step
def think(number):
    return number

@tool(side_effect=True)
def send(text):
    if "DIE" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    print("sending", text, flush=True)
    return f"sent {text}"

@workflow
def agent(text):
    plan = think(text)
    return send(plan)

if __name__ == "__main__":
    print(agent(sys.argv[1]))
"""


@pytest.fixture
def killed(tmp_path):
    """A run whose process was killed inside its side effect."""
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT)
    python(script, "hello", env={**os.environ, "DIE": "1"}, code=-signal.SIGKILL)
    (run,) = stepwise.runs()
    return run


def test_a_run_is_settled_and_resumed(act, killed):
    """An agent that may do both settles a step in doubt, and the program ends in its process."""
    (doubt,) = act("in_doubt").recorded["in_doubt"]
    assert (doubt["run"], doubt["step"], doubt["name"]) == (killed.id, 2, "send")
    answer = act("resolve", run=killed.id, step=2, answer="did_not_happen")
    assert answer.data["done"] == "did_not_happen"
    assert ACTOR.fullmatch(killed.steps[1].by)
    done = act("resume", run=killed.id, seconds=60).recorded
    assert (done["status"], done["exit_code"]) == ("completed", 0)
    assert "sending hello" in done["output"]
    assert killed.result == "sent hello"
    assert "nothing to resume" in act("resume", run=killed.id).problem


def test_a_cancelled_run_is_resumed(act, killed):
    """A coding agent that may resume runs resumes a cancelled one, as the command line does."""
    act("resolve", run=killed.id, step=2, answer="did_not_happen")
    act("cancel", run=killed.id)
    assert act("resume", run=killed.id, seconds=60).recorded["status"] == "cancelled"
    done = act("resume", run=killed.id, seconds=60).recorded
    assert (done["status"], killed.result) == ("completed", "sent hello")


def test_a_step_that_landed_has_its_result(act, killed):
    """The result of an act that happened is JSON; what is none is refused with an example."""
    bad = act("resolve", run=killed.id, step=2, answer="landed", result_json="sent it").problem
    assert "is not JSON" in bad
    act("resolve", run=killed.id, step=2, answer="landed", result_json='"sent it"')
    assert killed.steps[1].result == "sent it"


@tool(side_effect=True, approve=True)
def pay(cents):
    return f"paid {cents}"


@step
def note(value):
    return value


@workflow
def order(cents):
    paid = pay(cents)
    extra = stepwise.wait_for("extra")
    return note((paid, extra))


@pytest.fixture
def waiting():
    """A suspended run that waits for an approval."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        order.options(run_id="order")(500)
    return stepwise.get_run("order")


def test_an_approval_is_answered(act, waiting):
    """The question is listed with its ticket; the answer is on record with the client's name."""
    (question,) = act("waits").recorded["waits"]
    assert (question["kind"], question["run_id"], question["step"]) == ("approval", "order", 1)
    assert act("waits", run="order").recorded["waits"] == [question]
    wrong = act("approve", run="order", step=1, ticket="ask-000000000000").problem
    assert "another question" in wrong or "ticket" in wrong
    act("approve", run="order", step=1, ticket=question["ticket"], note="fine")
    (answer,) = waiting.inbox
    assert ACTOR.fullmatch(answer.by)
    with pytest.raises(stepwise.RunSuspended):
        order.options(run_id="order")(500)
    (signal_wait,) = act("waits").recorded["waits"]
    assert (signal_wait["kind"], signal_wait["name"]) == ("signal", "extra")
    act("send", run="order", name="extra", value_json='{"tip": 5}')
    assert order.options(run_id="order")(500) == ("paid 500", {"tip": 5})


def test_a_denial(act, waiting):
    """An approval that is denied raises in the workflow, with the note."""
    (question,) = act("waits").recorded["waits"]
    act("approve", run="order", step=1, ticket=question["ticket"], approved=False, note="too much")
    with pytest.raises(stepwise.ApprovalDenied, match="too much"):
        order.options(run_id="order")(500)


def test_a_run_is_cancelled(act, waiting):
    """A run that is asked to end has the reason and the client on record."""
    act("cancel", run="order", reason="called off")
    assert waiting.status == "cancelling"
    assert ACTOR.search(waiting.why().said)
    with pytest.raises(stepwise.RunCancelled, match="called off"):
        order.options(run_id="order")(500)


def test_a_step_is_forgotten(act):
    """A forgotten step runs again."""
    calls = []

    @step
    def look(city):
        calls.append(city)
        return city

    @workflow
    def trip(city):
        return look(city)

    trip.options(run_id="trip")("Oslo")
    act("forget", run="trip", step=1)
    trip.options(run_id="trip")("Oslo")
    assert calls == ["Oslo", "Oslo"]


def test_an_expression_is_evaluated(act, killed):
    """An expression sees the variables of the checkpoint; an error of its own is an answer."""
    found = act("evaluate", run=killed.id, expression="[plan.upper()] + [len(text)]").recorded
    assert found == {"value": "['HELLO', 5]"}
    found = act("evaluate", run=killed.id, expression="plan['a']").recorded
    assert found["error"].startswith("TypeError: ")
    found = act("evaluate", run=killed.id, expression="print('x') or plan").recorded
    assert found == {"value": "'hello'"}


def test_an_expression_cannot_end_the_server(act, killed, monkeypatch):
    """What ends its process, and what never ends, are sentences."""
    ended = act("evaluate", run=killed.id, expression="__import__('os')._exit(3)").problem
    assert "exit code 3" in ended
    monkeypatch.setattr(_evaluation, "_SECONDS", 2)
    endless = act("evaluate", run=killed.id, expression="[1 for _ in iter(int, 1)]").problem
    assert "was ended after 2 s" in endless


def test_what_a_client_calls_itself_is_printable(agent_of, killed):
    """A client's name is recorded without what a terminal obeys, and cut."""
    me = {"name": "evil\x1b[2J" + "x" * 1000, "version": "1"}
    agent_of(sdks.mcp_server(("resolve",)), me)(
        "resolve", run=killed.id, step=2, answer="did_not_happen"
    )
    by = killed.steps[1].by
    assert by.startswith("mcp evil")
    assert "\x1b" not in by
    assert len(by) < 200
