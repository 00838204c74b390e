"""A server that crashes forgets what was not to wait for its disk; its owner goes on."""

import os
import socket

import pytest
from server import with_options

from stepwise import StoreError
from stepwise.stores import Batch, Owner
from stepwise.stores.postgres import PostgresStore

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")


@pytest.fixture
def forgets(server):
    """Let the server forget, in a crash, what it need not have written: it writes very late."""
    server.sql("ALTER SYSTEM SET wal_writer_delay = '10s'")
    server.sql("SELECT pg_reload_conf()")
    yield server
    server.start()
    server.sql("ALTER SYSTEM RESET wal_writer_delay")
    server.sql("SELECT pg_reload_conf()")


@pytest.fixture
def store(postgres):
    made = PostgresStore(with_options(postgres, lease_seconds=3))
    yield made
    made.close()


def draft(name, **more):
    return Batch(put={name: b"locals"}, durable=False, **more)


def record(number):
    return Batch(((number, b"%d" % number),), mark=b"mark %d" % number)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_an_owner_whose_drafts_a_crash_lost_keeps_its_run(store, forgets, lost):
    """Drafts that a crash of the server lost cost no lease, and nothing that was recorded."""
    for attempt in range(20):  # some other process of the server may have written it
        run = f"run {attempt}"
        epoch = store.acquire(run, ME)
        store.write(run, epoch, record(1))
        for number in range(lost):
            store.write(run, epoch, draft(f"c/{number}"))
        forgets.restart()
        if store.names(run) == []:
            break
    else:
        raise AssertionError("the server has not forgotten anything in 20 crashes")
    store.write(run, epoch, record(2))
    store.write(run, epoch, draft("c/9"))
    store.write(run, epoch, record(3))
    assert [number for number, _ in store.read(run)] == [1, 2, 3]
    assert "c/9" in store.names(run)


def test_a_draft_after_lost_drafts(store, forgets):
    """The first write after the crash may be a draft itself, and another run's beside it."""
    epochs = {name: store.acquire(name, ME) for name in ("a", "b")}
    for name, epoch in epochs.items():
        store.write(name, epoch, draft("c/1"))
    forgets.restart()
    for name, epoch in epochs.items():
        store.write(name, epoch, draft("c/2"))
        store.write(name, epoch, record(1))
        assert "c/2" in store.names(name)


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_what_gives_a_turn_and_comes_late_is_no_written_batch(postgres, proxy, late_by):
    """A record is not taken for written since a late statement has changed the row of its lease."""
    store = PostgresStore(proxy.url(with_options(postgres, patience_seconds=1)))
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    proxy.refuse()
    with pytest.raises(StoreError):
        store.write("run", epoch, record(2))
    proxy.accept()
    proxy.lose("late", at={1}, of="leases", late_by=late_by)
    store.write("run", epoch, record(2))
    assert proxy.lost == 1
    proxy.lose("")
    store.write("run", epoch, record(3))
    assert [number for number, _ in store.read("run")] == [1, 2, 3]
    store.close()
