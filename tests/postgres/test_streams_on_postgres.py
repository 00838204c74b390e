"""What a run says, on a server: announced to readers, and killed with them."""

import threading

import pytest
from listening import applied, check, check_reconnects, killed_while_listened_to
from server import until, with_options
from sweeping import WHOLE

import stepwise
from stepwise import emit, workflow


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
