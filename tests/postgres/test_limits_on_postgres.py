"""Limits that processes on many machines share: by the server's clock, with leases that lapse."""

from __future__ import annotations

import pathlib
import sys

import pytest
from server import until, with_options

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

import stepwise
from stepwise import Limit
from stepwise._calls import limited
from stepwise._journal.journal import seal_for
from stepwise._journal.ledger import HolderLease, is_dead, ledgers
from stepwise.stores.postgres import PostgresStore

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import limits


def test_processes_on_a_server_share_a_limit(postgres):
    """By a provider's own count no window has a request too many, though a process is killed."""
    provider, limit = limits.Provider(), Limit("fake", requests=20, tokens=90_000, per=1.0)
    url, processes = with_options(postgres, lease_seconds=3), []
    try:
        for _ in range(3):
            processes.append(limits.start(provider.port, url, limit, 2, 10_000))
        until(lambda: len(provider.came) >= 40, "traffic")
        processes[0].kill()
        processes[0].wait()
        before = len(provider.came)
        until(lambda: len(provider.came) >= before + 60, "more traffic")
    finally:
        for each in processes:
            each.kill()
            each.wait()
        provider.close()
    assert provider.over(20, 1.0) == 0


def test_the_clock_is_that_of_the_server(store, monkeypatch):
    """The time of day of this machine decides nothing."""
    monkeypatch.setattr("stepwise._journal.ledger.time.time", lambda: 0.0)
    stepwise.configure(store=store)
    with Limit("api", requests=2, per=600):
        pass
    limited.settle(store)
    ((name, found),) = ledgers(store, seal_for(store))
    assert (name, found.used()) == ("api", (1, 0))
    assert found.at == pytest.approx(store.now(), abs=60)


def test_a_holder_whose_lease_lapses_is_dead(store, postgres):
    """A process that is gone for longer than its lease gives back what it held."""
    other = PostgresStore(with_options(postgres, lease_seconds=3))
    holder = HolderLease(other)
    assert not is_dead(store, holder.id)
    other._presence.close()  # as if its machine were gone: it beats no more
    until(lambda: is_dead(store, holder.id), "a lapse")
    other.close()
