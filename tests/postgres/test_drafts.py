"""Checkpoints are posted to a Postgres server, and crashes take back what was not flushed."""

import os
import signal

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from harness import python
from posted import ME, draft, impatient, record
from server import until, with_options

from stepwise import LeaseLostError, StoreError
from stepwise.stores.base import Batch
from stepwise.stores.postgres import PostgresStore

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


@pytest.fixture
def other(postgres):
    """Another process, which knows nothing of what was lost."""
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


def test_a_draft_survives_a_kill_of_its_process(store, postgres):
    """A process is killed right behind a write that returned: the checkpoint is there."""
    python("-c", KILLED, postgres, code=-signal.SIGKILL)
    until(lambda: store.get("run", "draft/10") == bytes(2000), "the last checkpoint")
    assert len(store.names("run", "draft/")) == 10


def test_batches_keep_their_order(store):
    """What was written is read, and listed, at once: of drafts and batches the last one counts."""
    epoch = store.acquire("run", ME)
    for number in range(50):
        store.write("run", epoch, draft("place", b"%d" % number))
        store.write("run", epoch, draft(f"draft/{number}"))
        assert store.get("run", f"draft/{number}") == b"locals"
        if number % 3 == 0:
            store.write("run", epoch, Batch(records=((number + 1, b"x"),), put={"place": b"kept"}))
    assert store.get("run", "place") == b"49"
    assert len(store.names("run", "draft/")) == 50
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
@pytest.mark.parametrize("place", [1, 2, 3, 5])
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
            os._exit(0 if store.get(f"child{number}", "place") == b"locals" else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert store.get("run", "place") == b"4"


REFUSING = """
CREATE FUNCTION stepwise.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.name = 'refused'::bytea THEN RAISE EXCEPTION 'not this one'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON stepwise.objects
FOR EACH ROW EXECUTE FUNCTION stepwise.refuse();
"""


def test_a_draft_that_is_refused_takes_no_other_with_it(postgres, any_server, other):
    """What is posted behind a draft that the server refuses is written, whatever comes after it."""
    store = PostgresStore(with_options(postgres, pool_size=1))
    epochs = {run: store.acquire(run, ME) for run in ("a", "b")}
    any_server.sql(REFUSING, database=postgres.partition("?")[0].rpartition("/")[2])
    store.write("a", epochs["a"], draft("refused"))
    store.write("b", epochs["b"], draft("kept"))
    until(lambda: other.get("b", "kept") == b"locals", "the second draft")
    with pytest.raises(StoreError, match="not this one"):
        store.write("a", epochs["a"], record(1))
    store.write("b", epochs["b"], record(1))
    assert [number for number, _ in other.read("b")] == [1]
    store.close()


def test_a_turn_that_two_failures_have_hidden(far, proxy, monkeypatch):
    """A batch is written though the last one got no answer, and neither did the question for it."""
    epoch = far.acquire("run", ME)
    far.write("run", epoch, record(1))
    proxy.lose("answer", at={1})

    def fails(*_):
        raise StoreError("nor this", path=far.url, errno=None)

    with monkeypatch.context() as patch:
        patch.setattr(far, "_catch_up", fails)
        with pytest.raises(StoreError, match="nor this"):
            far.write("run", epoch, record(2))
    assert proxy.lost == 1
    far.write("run", epoch, record(3))
    assert 3 in [number for number, _ in far.read("run")]


# -- a crash of the server ----------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 3])
def test_an_owner_whose_drafts_a_crash_lost_keeps_its_run(store, other, forgets, lost):
    """Drafts that a crash of the server lost cost no lease, and nothing that was recorded.

    Whoever wrote them reads them again; the first write after the crash may be a draft itself.
    """
    for attempt in range(20):  # some other process of the server may have written it
        run, beside = f"run {attempt}", f"beside {attempt}"
        epochs = {name: store.acquire(name, ME) for name in (run, beside)}
        store.write(run, epochs[run], record(1))
        for number in range(lost):
            for name, epoch in epochs.items():
                store.write(name, epoch, draft(f"c/{number}"))
        forgets.restart()
        if other.names(run) == []:
            break
    else:
        raise AssertionError("the server has not forgotten anything in 20 crashes")
    store.write(beside, epochs[beside], draft("c/9"))
    store.write(run, epochs[run], record(2))
    store.write(run, epochs[run], draft("c/9"))
    store.write(run, epochs[run], record(3))
    assert [number for number, _ in store.read(run)] == [1, 2, 3]
    for name in epochs:
        assert store.names(name) == [*(f"c/{number}" for number in range(lost)), "c/9"]
    assert other.names(run) == store.names(run)


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_what_gives_a_turn_and_comes_late_is_no_written_batch(postgres, proxy, late_by):
    """A record is not taken for written since a late statement has changed the row of its lease."""
    store = PostgresStore(proxy.url(postgres))
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    proxy.refuse()
    with impatient(store), pytest.raises(StoreError):
        store.write("run", epoch, record(2))
    proxy.accept()
    proxy.lose("late", at={1}, of="leases", late_by=late_by)
    store.write("run", epoch, record(2))
    assert proxy.lost == 1
    proxy.lose("")
    store.write("run", epoch, record(3))
    assert [number for number, _ in store.read("run")] == [1, 2, 3]
    store.close()


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
    store = PostgresStore(proxy.url(postgres))
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    proxy.lose("late")
    with impatient(store), pytest.raises(StoreError):
        store.write("run", epoch, Batch(((2, b"two"), (3, b"three"))))
    proxy.lose("")
    assert [each for each, _ in store.read("run")] == [1]
    assert proxy.deliver()
    assert [each for each, _ in store.read("run")] == [1]
    store.write("run", epoch, record(2))
    assert [*store.read("run")] == [(1, b"record 1"), (2, b"record 2")]
    store.close()
