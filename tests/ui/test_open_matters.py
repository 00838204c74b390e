"""The inbox: all that waits for a person, and nothing else."""

import pathlib
import signal
import threading

import pytest
from browsing import agent, asking
from harness import python

import stepwise
from stepwise import tool, wait_for, workflow
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.ui import _reading
from stepwise.ui._reading import RunReader


@workflow
def above(topic):
    return asking(topic)


@workflow
def waiting(topic):
    return wait_for("order", type=int)


@tool(side_effect=True, approve=lambda amount: amount > 10)
def pay(amount):
    return f"paid {amount}"


@workflow
def paying():
    return pay(prices[0])


@workflow
def sleeping():
    stepwise.sleep(1000)


prices = [20]

KILLED = """
import os, signal, threading
import stepwise
from stepwise import wait_for, workflow

@workflow
def asking(topic):
    return stepwise.approve("send it?")

@workflow
def above(topic):
    return asking(topic)

@workflow
def waiting(topic):
    return wait_for("order", type=int)

def waits():
    run = stepwise.get_run("trip")
    return run.questions or any(each.status == "waiting" for each in run.steps)

def kill():
    while not stepwise.runs() or not waits():
        pass
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
{call}.options(run_id="trip")("winds")
"""


@pytest.fixture
def reader():
    return RunReader(open_store(settings.store()))


def suspended(call, *arguments, run_id="trip"):
    with pytest.raises(stepwise.RunSuspended):
        call.options(run_id=run_id)(*arguments)
    return stepwise.get_run(run_id)


def counts(inbox):
    return {
        name: len(getattr(inbox, name))
        for name in ("questions", "doubts", "stops", "waits", "resumable")
        if getattr(inbox, name)
    }


@pytest.mark.usefixtures("suspends")
def test_a_question_until_it_is_answered(reader):
    """Once a question is answered, its run stands as one to resume until it was resumed."""
    run = suspended(asking, "winds")
    (asked,) = reader.inbox().questions
    assert asked.what == run.questions[0]
    assert (asked.run.id, asked.run.status, asked.what._asked.before) == ("trip", "suspended", "")
    asked.what.approve()
    assert run.status == "suspended"
    assert counts(reader.inbox()) == {"resumable": 1}
    asking.options(run_id="trip")("winds")
    assert reader.inbox().total == 0


@pytest.mark.usefixtures("suspends")
def test_a_question_of_a_child_run_stands_once(reader):
    """A question of a child run is listed once; once it is answered, the run above is resumed."""
    suspended(above, "winds")
    (asked,) = reader.inbox().questions
    assert counts(reader.inbox()) == {"questions": 1}
    asked.what.deny("too windy")
    inbox = reader.inbox()
    assert counts(inbox) == {"resumable": 1}
    assert inbox.resumable[0].id == "trip"


@pytest.mark.usefixtures("suspends")
def test_what_changed_since_the_last_question(reader):
    """A call that asks again shows what it asked before."""
    prices[0] = 20
    suspended(paying)
    (asked,) = reader.inbox().questions
    assert ("20" in asked.what.details, asked.what._asked.before) == (True, "")
    prices[0] = 30
    with pytest.raises(stepwise.RunSuspended):
        paying.options(run_id="trip")()
    (again,) = reader.inbox().questions
    assert "30" in again.what.details
    assert again.what._asked.before == asked.what.details


@pytest.mark.usefixtures("suspends")
def test_a_wait_until_its_signal_is_sent(reader):
    """A wait for a signal stands with the schema of its type until the signal is sent."""
    run = suspended(waiting, "winds")
    (wait,) = reader.inbox().waits
    assert (wait.what.name, wait.what.step, wait.schema) == ("order", 1, {"type": "integer"})
    run.send("order", 3)
    assert counts(reader.inbox()) == {"resumable": 1}
    waiting.options(run_id="trip")("winds")
    assert counts(reader.inbox()) == {}


@pytest.mark.usefixtures("suspends")
def test_a_wait_for_a_time_is_not_for_a_person(reader):
    """A run that sleeps, completed or was cancelled waits for nobody."""
    suspended(sleeping, run_id="sleeps")
    agent.options(run_id="done")(1)
    suspended(waiting, "winds").cancel()
    assert counts(reader.inbox()) == {}


def test_a_question_in_a_process(reader):
    """A run that waits in its process asks, too, and shows no way to start it."""
    seen = []
    thread = threading.Thread(target=asking, args=("winds",))
    thread.start()
    while not seen:
        seen = reader.inbox().questions
    seen[0].what.approve()
    thread.join()
    assert (seen[0].run.status, seen[0].run.can_resume) == ("running", False)


def test_doubt(reader, killed):
    """A side effect that may have happened stands alone until it is settled, then its run."""
    run = killed("send")
    inbox = reader.inbox()
    assert counts(inbox) == {"doubts": 1}
    assert (inbox.doubts[0].run.id, inbox.doubts[0].what.number) == (run.id, 4)
    run.resolve(4, landed="sent")
    assert counts(reader.inbox()) == {"resumable": 1}


@pytest.mark.parametrize(("call", "kind"), [("above", "questions"), ("waiting", "waits")])
def test_what_a_killed_run_waits_for(reader, tmp_path, call, kind):
    """A run whose process was killed while it, or its child run, waits for a person stands once."""
    script = tmp_path / "asks.py"
    script.write_text(KILLED.format(call=call))
    python(script, code=-signal.SIGKILL)
    inbox = reader.inbox()
    assert counts(inbox) == {kind: 1}
    (matter,) = getattr(inbox, kind)
    if kind == "questions":
        matter.what.approve()
    else:
        stepwise.get_run("trip").send("order", 3)
    inbox = reader.inbox()
    assert counts(inbox) == {"resumable": 1}
    assert (inbox.resumable[0].id, inbox.resumable[0].status) == ("trip", "crashed")


def test_failures(reader):
    """A run that failed stands with its error until it has completed or is deleted."""
    with pytest.raises(ValueError, match="none"):
        agent.options(run_id="bad")(-1)
    (row,) = reader.inbox().resumable
    assert (row.id, row.error, row.can_resume) == ("bad", "ValueError: -1 is none", True)
    stepwise.get_run("bad").delete()
    assert counts(reader.inbox()) == {}


def test_a_run_is_read_again_only_if_it_changed(reader, monkeypatch):
    """A look at runs that did not change reads no journal."""
    read = []
    known = _reading.overview
    monkeypatch.setattr(
        _reading, "overview", lambda *args, **how: read.append(args) or known(*args, **how)
    )
    for number in (1, 2):
        with pytest.raises(ValueError, match="none"):
            agent.options(run_id=f"bad {number}")(-number)
    assert reader.inbox().total == 2
    assert reader.inbox().total == 2
    assert len(read) == 2
    with pytest.raises(ValueError, match="none"):
        agent.options(run_id="bad 1")(-1)
    assert reader.inbox().total == 2
    assert len(read) == 3


def test_what_there_is_no_time_for_is_said(reader, monkeypatch):
    """Runs for which a request has no time are counted as left out, and come with the next one."""
    for number in range(3):
        with pytest.raises(ValueError, match="none"):
            agent.options(run_id=f"bad {number}")(-1)
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)
    inbox = reader.inbox()
    assert (inbox.total, inbox.left_out) == (
        0,
        "3 more unfinished runs are not read yet: load this page again",
    )
    assert reader.open_matters().at_least
    monkeypatch.setattr(_reading, "_SECONDS", 60.0)
    assert (reader.inbox().total, reader.inbox().left_out) == (3, "")
    assert reader.open_matters() == (3, False)
    monkeypatch.setattr(_reading, "_HEADS", 2)
    assert (reader.inbox().total, reader.inbox().left_out) == (
        2,
        "only the newest 2 unfinished runs are looked at",
    )


def test_a_damaged_run_does_not_hide_the_others(reader, monkeypatch):
    """A run that cannot be read stands with the reason, beside the others."""
    known = _reading.overview

    def read(store, seal, run_id, count):
        if run_id == "bad 0":
            raise stepwise.CorruptStoreError("a record is damaged", run_id="bad 0")
        return known(store, seal, run_id, count)

    monkeypatch.setattr(_reading, "overview", read)
    for number in range(2):
        with pytest.raises(ValueError, match="none"):
            agent.options(run_id=f"bad {number}")(-1)
    assert [row.error for row in reader.inbox().resumable] == [
        "ValueError: -1 is none",
        "a record is damaged",
    ]


def test_the_page_of_the_inbox(page, killed):
    """The page shows the number of open matters in its title."""
    killed("send")
    assert "(1)" in page.get("/inbox").partition("</title>")[0]


def test_a_store_that_is_gone_is_not_shown_as_empty(page, tmp_path):
    """Once the folder of the store was there, a page without it says so, until it is back."""
    agent.options(run_id="trip")(1)
    assert "trip" in page.get("/")
    folder = pathlib.Path(page.app.reader.store.path)
    folder.rename(tmp_path / "elsewhere")
    for path in ("/", "/inbox", "/spending", "/runs/trip"):
        assert "is gone" in page.get(path, 503)
    (tmp_path / "elsewhere").rename(folder)
    assert "trip" in page.get("/")


@pytest.mark.usefixtures("suspends")
def test_no_time_is_left_for_a_run_that_was_never_read(reader, monkeypatch):
    """Once the time of a request is over, the store is not asked about the runs left unread."""
    for topic in ("winds", "waves", "rain"):
        suspended(asking, topic, run_id=topic)
    asked = []
    marks = type(reader.store).marks
    monkeypatch.setattr(
        type(reader.store), "marks", lambda self, name: asked.append(name) or marks(self, name)
    )
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)
    assert "3 more unfinished runs are not read yet" in reader.inbox().left_out
    assert not {"winds", "waves", "rain"} & {*asked}
