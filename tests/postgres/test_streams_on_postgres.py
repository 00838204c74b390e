"""What a run says, on a server: announced to readers, and killed with them."""

import threading
import time

import pytest
from listening import applied, check, check_reconnects, killed_while_listened_to
from server import until, with_options
from sweeping import WHOLE

import stepwise
from stepwise import emit, workflow
from stepwise._runs.maintenance import delete_each, old_runs


@pytest.fixture
def place(postgres, monkeypatch):
    """The store of this process, and of those that it starts, is a database."""
    monkeypatch.setenv("STEPWISE_STORE", with_options(postgres, lease_seconds=3))


@pytest.mark.parametrize("kind", ["talk", "together"])
def test_killed_while_readers_come_and_go(place, kind):
    """0 items are lost, 0 doubled, the order is kept, whenever the program is killed."""
    listener = killed_while_listened_to(kind, kills=50 if WHOLE else 3, seed=5)
    run = stepwise.get_run("talk")
    check(applied(listener.events), run)
    check_reconnects(listener, run, 500 if WHOLE else 20, 5)
    assert run.verify().ok


def test_what_is_said_is_announced(place):
    """The server tells a reader that something was said, so that it need not ask."""
    goes_on, waits = threading.Event(), threading.Event()

    @workflow(run_id="quiet")
    def quiet():
        emit("before")
        waits.set()
        goes_on.wait()
        emit("after")

    thread = threading.Thread(target=quiet, daemon=True)
    thread.start()
    waits.wait()
    run = stepwise.get_run("quiet")
    items = iter(run.stream())
    assert next(items).value == "before"
    until(lambda: run.store.changes("stream:quiet:") is not None, "an answer")
    known = run.store.changes("stream:quiet:")
    goes_on.set()
    assert [(each.kind, each.value) for each in items] == [("item", "after"), ("end", "completed")]
    until(lambda: run.store.changes("stream:quiet:") > known, "a note")
    thread.join()


@pytest.mark.usefixtures("place")
def test_streams_are_deleted_and_the_run_stays():
    """``prune --streams`` deletes the rows of what a run said; the run and its offsets stay."""

    @workflow(run_id="old")
    def old():
        for number in range(3):
            emit(f"word {number}")
        return number

    run = old.execute()
    ended = old_runs(time.time() + 1, keep=0, streams=True)
    assert [problem for _, problem in delete_each(ended, streams=True)] == [None]
    assert b"word" not in b"".join(data for _, data in run.store.read("stream:old:"))
    with pytest.raises(stepwise.ConfigurationError, match="give after=2"):
        run.stream()
    assert [(each.offset, each.kind) for each in run.stream(2)] == [(2, "end")]
    assert run.verify().ok
    assert run.result == 2
