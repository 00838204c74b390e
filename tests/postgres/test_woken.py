"""Waiting runs are woken by notifications, or behind a pooler by looking now and then."""

from __future__ import annotations

import time

import pytest
from server import let_pass, until, with_options

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

from pooler import Pooler, is_pooled
from world_of_owners import Owners

IDLE = 3  # seconds


@pytest.fixture
def waiting(fork, postgres, tmp_path):
    """A run in a process which waits for ``go``: ``waiting(url) -> owners, process``."""

    def begin(**settings):
        owners = Owners(fork, postgres, tmp_path, lease_seconds=30, steps=2)
        process = owners.process("first", waits="go", **settings)
        assert process.hear() == "waiting"
        until(lambda: is_waiting(owners), "a wait")
        return owners, process

    return begin


def is_waiting(owners):
    return any(each.status == "waiting" for each in owners.run().steps)


def seconds_to_wake(owners, process):
    began = time.time()
    owners.run().send("go", "now")
    heard = process.hear()
    assert heard.startswith("woken "), (heard, process.process.stdout.read())
    moment = heard.split()[1]
    assert process.hear().startswith("result")
    return float(moment) - began


def test_a_waiting_run_is_woken_by_a_notification(waiting):
    """What another process sends is noticed within a second."""
    owners, process = waiting()
    assert seconds_to_wake(owners, process) < 1


def test_a_waiting_run_asks_nothing(waiting, server, postgres):
    """While nothing comes, a process that waits hardly talks to the server: it listens."""
    server.log_statements(postgres)
    owners, process = waiting()
    until(lambda: any("LISTEN" in line for line in server.statements(postgres)), "LISTEN")
    let_pass(1)  # the end of what a start does
    before = len(server.statements(postgres))
    let_pass(IDLE)
    asked = server.statements(postgres)[before:]
    assert len(asked) <= 4, asked  # ten looks a second would be 30
    assert seconds_to_wake(owners, process) < 1


def test_a_listener_whose_connection_is_cut_listens_again(waiting, server, postgres):
    """What was sent while nobody listened is noticed soon after."""
    owners, process = waiting()
    assert server.close_connections(postgres) > 0
    assert seconds_to_wake(owners, process) < 3


@pytest.mark.parametrize("reset", [False, True], ids=["kept", "discarded"])
def test_behind_a_pooler_everything_works_without_a_session(fork, postgres, tmp_path, reset):
    """A run is executed, taken over and woken though each transaction has another connection."""
    with Pooler(postgres, reset=reset) as pooler:
        assert is_pooled(pooler.url())
        owners = Owners(fork, postgres, tmp_path, lease_seconds=2)
        pooled = pooler.url(lease_seconds=2)
        first = owners.stopped_at("first", "between 3", store=pooled)
        assert owners.process("second", store=pooled).hear().startswith("stopped RunBusyError")
        first.kill()
        third = owners.process("third", store=pooled, waits="go")
        assert third.hear() == "waiting"
        until(lambda: is_waiting(owners), "a wait")
        assert seconds_to_wake(owners, third) < 3
        assert owners.did() == owners.whole
        assert owners.run().verify().ok
        assert pooler.transactions > 20


def test_two_processes_behind_a_pooler_keep_the_lease_by_their_beats(fork, postgres, tmp_path):
    """An owner that nobody can prove dead is waited for; one that beats is not replaced."""
    with Pooler(postgres) as pooler:
        owners = Owners(fork, postgres, tmp_path, lease_seconds=1)
        pooled = with_options(pooler.url(), lease_seconds=1)
        first = owners.stopped_at("first", "between 3", store=pooled, machine="elsewhere")
        second = owners.process("second", store=pooled, on_owned="wait")
        let_pass(4)  # leases
        assert owners.did("second") == []
        first.kill()
        assert second.hear().startswith("result")
        assert owners.did() == owners.whole
        owners.check()
