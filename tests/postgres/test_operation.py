"""Retention, counts and health on a real Postgres server."""

from __future__ import annotations

import time

import pytest
from server import until

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

import stepwise
from stepwise import Limit, Retain, emit, step, workflow
from stepwise._calls import limited
from stepwise._journal.journal import seal_for
from stepwise._journal.lease import Lease
from stepwise._journal.ledger import StoredLedger, ledgers
from stepwise._runs.maintenance import Census, Retention


@step
def work(name):
    if name == "bad":
        raise ValueError(name)
    return name * 3000


@workflow
def job(name):
    emit(name)
    return work(name)


@pytest.fixture(autouse=True)
def configured(store):
    stepwise.configure(store=store)
    yield
    stepwise.configure(retain=None)


def make(*names):
    for name in names:
        job.options(run_id=name)(name)


def keeping(store, **retain):
    stepwise.configure(retain=Retain(**retain))
    told = []
    Retention([store], told.append).work()
    return told


def ids():
    return {run.id for run in stepwise.runs()}


def test_the_oldest_above_a_number(store):
    """The oldest runs are deleted, also after a run of an old id has begun anew."""
    make("a", "b", "c", "d")
    stepwise.get_run("a").delete()
    make("a")
    assert [head.run_id for head in store.heads()] == ["b", "c", "d", "a"]
    assert keeping(store, runs=2) == ["retention: deleted 2 runs"]
    assert ids() == {"d", "a"}


def test_by_age_and_streams(store):
    """Streams are deleted first, and runs by their age; failed runs stay."""
    with pytest.raises(ValueError, match="bad"):
        make("bad")
    make("a", "b")
    assert keeping(store, streams=0) == ["retention: deleted what 2 runs said"]
    with Lease(store, "a").acquire():
        assert keeping(store, age=0) == ["retention: deleted 1 run"]
    assert ids() == {"a", "bad"}


def test_by_size(store):
    """Above a size of the data the oldest are deleted, though the server keeps the files."""
    make(*map(str, range(30)))
    size = store.used(0)
    assert store.used(1 << 40) > size  # then the size of the files is enough to know
    assert keeping(store, bytes=size // 2) != []
    assert store.used(0) <= size // 2
    kept = ids()
    assert 8 <= len(kept) <= 15
    assert "29" in kept
    assert keeping(store, bytes=size // 2) == []  # though the files are as large as before
    assert ids() == kept


def test_ledgers_of_idle_values(store):
    """Ledgers of values that nobody uses are deleted."""
    limit = Limit("api", requests=5, per=3600)
    with limit.of("ann"):
        pass
    limited.settle(store)
    seal = seal_for(store)
    assert [name for name, _ in ledgers(store, seal)] == ["api[ann]"]
    with StoredLedger(store, seal, "api[ann]").changing() as ledger:
        ledger.over.clear()
    keeping(store, age=3600)
    assert [*ledgers(store, seal)] == []


def test_the_census(store):
    """Runs are counted by status without reading their journals."""
    make("a", "b")
    with pytest.raises(ValueError, match="bad"):
        make("bad")
    found = Census(store).count().by_status
    assert (found["completed"], found["failed"], found["cancelled"]) == (2, 1, 0)


def test_a_server_that_is_away(server, store):
    """While the server is stopped the process is not ready, and a scrape says so; then it is."""
    prometheus = pytest.importorskip("stepwise.integrations.prometheus")
    make("a")
    pages = prometheus.pages([store])
    assert pages["/readyz"]()[0] == 200
    server.stop()
    began = time.monotonic()
    status, _, text = pages["/readyz"]()
    assert status == 503, text
    assert b"stepwise_store_up 0.0" in pages["/metrics"]()[2]
    assert time.monotonic() - began < 60
    assert pages["/healthz"]()[0] == 200
    server.start()
    until(lambda: pages["/readyz"]()[0] == 200, "ready again")
