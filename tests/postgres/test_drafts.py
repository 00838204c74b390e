"""Checkpoints are sent to a Postgres server and not waited for: what becomes of them."""

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from server import until

from stepwise import LeaseLostError
from stepwise.stores.base import Batch, Owner
from stepwise.stores.postgres import PostgresStore

ME = Owner(os.getpid(), "here", 0.0)

KILLED = """
import os, signal, sys
from stepwise.stores.postgres import PostgresStore
from stepwise.stores.base import Batch, Owner

store = PostgresStore(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), "here", 0.0))
for number in range(1, 11):
    store.write("run", epoch, Batch(records=((number, b"record"),)))
    store.write("run", epoch, Batch(put={f"draft/{number}": bytes(2000)}, durable=False))
os.kill(os.getpid(), signal.SIGKILL)
"""


def draft(name, data=b"draft"):
    return Batch(put={name: data}, durable=False)


@pytest.fixture
def store(postgres):
    """A store in a database of its own."""
    made = PostgresStore(postgres)
    yield made
    made.close()


@pytest.fixture
def far(postgres, proxy):
    """A store behind the proxy."""
    made = PostgresStore(proxy.url(postgres))
    yield made
    proxy.flow()
    made.close()


@pytest.mark.parametrize("repetition", range(5))
def test_a_draft_survives_a_kill_of_its_process(store, postgres, repetition):
    """A process is killed right behind a write that returned: the checkpoint is there."""
    killed = subprocess.run([sys.executable, "-c", KILLED, postgres], check=False)
    assert killed.returncode == -signal.SIGKILL
    until(lambda: store.get("run", "draft/10") == bytes(2000), "the last checkpoint")
    assert len(store.names("run", "draft/")) == 10


def test_drafts_are_read_by_their_process(store):
    """What was written is read, and listed, at once."""
    epoch = store.acquire("run", ME)
    for number in range(100):
        store.write("run", epoch, draft(f"draft/{number}"))
        assert store.get("run", f"draft/{number}") == b"draft"
    assert len(store.names("run")) == 100


def test_batches_keep_their_order(store):
    """Of drafts and batches of one run, the last one counts."""
    epoch = store.acquire("run", ME)
    for number in range(50):
        store.write("run", epoch, draft("place", b"%d" % number))
        if number % 3 == 0:
            store.write("run", epoch, Batch(records=((number + 1, b"x"),), put={"place": b"kept"}))
    assert store.get("run", "place") == b"49"
    store.release("run", epoch)
    assert store.acquire("run", ME) == epoch + 1


def test_many_runs_send_drafts(store):
    """Drafts of many runs, more than are on their way at once, are all written."""
    runs = {f"run{number}": 0 for number in range(100)}
    for run in runs:
        runs[run] = store.acquire(run, ME)
    for turn in range(3):
        for run, epoch in runs.items():
            store.write(run, epoch, draft("place", b"%d" % turn))
    assert {store.get(run, "place") for run in runs} == {b"2"}


@pytest.mark.parametrize("what", ["answer", "request"])
@pytest.mark.parametrize("place", range(1, 7))
def test_a_draft_whose_connection_is_lost_is_written(far, proxy, what, place):
    """A draft that never arrived is sent again, and one whose answer was lost is not missed."""
    epoch = far.acquire("run", ME)
    far.write("run", epoch, draft("place", b"before"))
    assert far.get("run", "place") == b"before"
    proxy.lose(what, at={place})
    for number in range(1, 4):
        far.write("run", epoch, Batch(records=((number, b"x"),)))
        far.write("run", epoch, draft("place", b"%d" % number))
    far.write("run", epoch, Batch(records=((4, b"x"),)))
    assert far.get("run", "place") == b"3"
    assert [number for number, _ in far.read("run")] == [1, 2, 3, 4]
    assert proxy.lost == 1


def test_a_draft_does_not_wait_for_its_answer(far, proxy):
    """A draft is written while the server's answers do not arrive; the next batch waits."""
    epoch = far.acquire("run", ME)
    far.write("run", epoch, draft("place", b"first"))
    assert far.get("run", "place") == b"first"
    proxy.stall("to the client")
    far.write("run", epoch, draft("place", b"second"))
    proxy.flow()
    far.write("run", epoch, Batch(records=((1, b"x"),)))
    assert far.get("run", "place") == b"second"


def test_an_owner_that_lost_its_run_sends_no_draft(store, any_server, postgres):
    """After a takeover a draft writes nothing, and the next write reports the lost lease."""
    epoch = store.acquire("run", ME)
    store.write("run", epoch, draft("place", b"mine"))
    assert store.get("run", "place") == b"mine"
    any_server.sql(
        "UPDATE stepwise.leases SET epoch = epoch + 1", database=postgres.rpartition("/")[2]
    )
    store.write("run", epoch, draft("place", b"late"))
    with pytest.raises(LeaseLostError):
        store.write("run", epoch, Batch(records=((1, b"x"),)))
    assert store.get("run", "place") == b"mine"


def test_a_forked_child_leaves_the_drafts_of_its_parent_alone(store):
    """A child that uses the store, and ends, takes no answer of its parent's away."""
    epoch = store.acquire("run", ME)
    for number in range(5):
        store.write("run", epoch, draft("place", b"%d" % number))
        child = os.fork()
        if not child:
            mine = store.acquire(f"child{number}", ME)
            store.write(f"child{number}", mine, draft("place"))
            os._exit(0 if store.get(f"child{number}", "place") == b"draft" else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert store.get("run", "place") == b"4"
