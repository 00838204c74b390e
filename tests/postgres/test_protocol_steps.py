"""Steps of the protocol (``programs/lease_model.py``) that the store once did otherwise."""

import pytest

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

from store_tools import ME

from stepwise.errors import StoreError
from stepwise.stores import Batch
from stepwise.stores.postgres import PostgresStore


def record(number, text=b"", **more):
    return Batch(((number, text or b"record %d" % number),), **more)


def turn_of(server, url):
    """The turn of the only lease."""
    name = url.partition("?")[0].rpartition("/")[2]
    ((turn,),) = server.sql("SELECT turn FROM stepwise.leases", database=name)
    return turn


def test_an_owner_writes_again_what_a_crash_of_the_server_took_back(server, postgres):
    """After a crash that loses a batch nobody flushed, the owner goes on, and has lost nothing."""
    store, lost, number = PostgresStore(postgres), False, 0
    epoch = store.acquire("run", ME)
    for _ in range(20):
        store.write("run", epoch, record(number + 1))
        store.write("run", epoch, Batch(put={f"object {number}": b"o"}, durable=False))
        store.write("run", epoch, record(number + 2, durable=False))
        before = turn_of(server, postgres)
        server.restart()
        lost = lost or turn_of(server, postgres) < before
        store.write("run", epoch, record(number + 3))
        number += 3
        if lost:
            break
    assert lost
    assert [each for each, _ in store.read("run")] == [*range(1, number + 1)]
    assert store.names("run") == sorted(f"object {each}" for each in range(0, number, 3))
    store.close()


def test_a_write_that_failed_changes_nothing_after_a_read(postgres, proxy):
    """Whoever looks what became of a failed write may rely on the answer: it comes no later."""
    separator = "&" if "?" in postgres else "?"
    store = PostgresStore(f"{proxy.url(postgres)}{separator}patience_seconds=1")
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    proxy.lose("late")
    with pytest.raises(StoreError):
        store.write("run", epoch, Batch(((2, b"two"), (3, b"three"))))
    proxy.lose("")
    assert [each for each, _ in store.read("run")] == [1]
    assert proxy.deliver()
    assert [each for each, _ in store.read("run")] == [1]
    store.write("run", epoch, record(2))
    assert [*store.read("run")] == [(1, b"record 1"), (2, b"record 2")]
    store.close()
