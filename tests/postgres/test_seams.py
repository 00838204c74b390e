"""The seams of the store on Postgres: where drafts, lost answers, crashes and ends meet."""

import _thread
import contextlib
import os
import signal
import threading

import pytest
from posted import ME, draft, impatient, record
from server import let_pass, name_in, until, with_options

from stepwise import StoreError
from stepwise.stores.postgres import PostgresStore


def test_a_large_draft_that_a_crash_lost_is_written_whole(store, forgets):
    """A checkpoint of more than 8 MB that a crash of the server took back is written again."""
    value = os.urandom(9 << 20)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    store.write("run", epoch, draft("c/1", value))
    forgets.restart()
    assert store.names("run") == []  # or this shows nothing
    store.write("run", epoch, record(2))
    assert store.get("run", "c/1") == value


def test_a_lease_that_nobody_heard_of_is_given_up(postgres, proxy):
    """An acquisition that failed, and was done all the same, keeps nobody from the run."""
    cut_off = PostgresStore(proxy.url(postgres))
    other = PostgresStore(postgres)
    cut_off.acquire("another", ME)
    proxy.lose("answer", of="leases")
    with impatient(cut_off), pytest.raises(StoreError):
        cut_off.acquire("run", ME)
    proxy.lose("")
    until(lambda: other.owner("run") is None, "a lease that is free", 20)
    assert other.acquire("run", ME) > 1
    cut_off.close()
    other.close()


def test_a_store_that_is_closed_twice_touches_no_file_of_others(postgres):
    """The end of a closed store's pipe may have become another file, where nothing is written."""
    store = PostgresStore(postgres)
    store.acquire("run", ME)
    end = store._presence._woken
    store.close()

    def is_closed():
        try:
            os.fstat(end)
        except OSError:
            return True
        return False

    until(is_closed, "a closed pipe")
    reader, writer = os.pipe()
    os.dup2(writer, end)
    os.set_blocking(reader, False)
    store.close()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    for each in (reader, writer, end):
        os.close(each)


@pytest.mark.parametrize("kind", ["record", "draft"])
def test_prepared_statements_that_are_gone_are_prepared_again(store, kind):
    """A connection whose statements were discarded is given up, and nothing fails."""
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    store.write("run", epoch, draft("c/1"))
    assert "c/1" in store.names("run")
    for number in range(10):
        store.write("run", epoch, draft(f"c/{number}"))
        store.write("run", epoch, record(number + 2))
    store._connections._idle[-1].execute("DISCARD ALL")
    if kind == "draft":
        store.write("run", epoch, draft("c/10"))
    store.write("run", epoch, record(12))
    assert ("c/10" in store.names("run")) == (kind == "draft")
    assert [number for number, _ in store.read("run")] == [*range(1, 13)]


def test_a_draft_that_the_server_refuses_is_a_store_error(postgres, any_server):
    """What the server says of a draft is an error of its write, or of the next.

    Nobody waits for the answer, which may be there all the same.
    """
    store = PostgresStore(postgres)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    any_server.sql("ALTER TABLE stepwise.objects RENAME TO away", database=name_in(postgres))
    kept = ["c/1"]
    try:
        store.write("run", epoch, draft("c/1"))
    except StoreError as error:
        assert "does not exist" in str(error)
        kept = []
    for _ in range(2 * len(kept)):
        with pytest.raises(StoreError, match="does not exist"):
            store.write("run", epoch, record(2))
    any_server.sql("ALTER TABLE stepwise.away RENAME TO objects", database=name_in(postgres))
    store.write("run", epoch, record(2))
    assert store.names("run") == kept
    assert [number for number, _ in store.read("run")] == [1, 2]
    store.close()


def test_what_an_interrupted_write_left_behind_comes_no_later(postgres, proxy):
    """A signal handler ends a write; whoever reads then may rely on what it finds."""
    store = PostgresStore(proxy.url(postgres))
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))

    class EndedError(BaseException):
        """Raised by the handler."""

    def end(number, frame):
        raise EndedError

    before = signal.signal(signal.SIGALRM, end)
    try:
        proxy.lose("late", of="records")
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(EndedError):
            store.write("run", epoch, record(2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    proxy.lose("")
    found = [number for number, _ in store.read("run")]
    proxy.deliver()
    assert [number for number, _ in store.read("run")] == found
    store.close()


def test_what_a_signal_handler_writes_during_a_wait_for_a_draft(postgres):
    """A handler's write is refused or done, and takes no later write's place."""
    import psycopg

    store = PostgresStore(postgres)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    store.write("run", epoch, draft("c/1"))
    store.names("run")
    done = [1]

    def write(number, frame):
        blocker.rollback()
        for each in (2, 3):
            with contextlib.suppress(StoreError):
                store.write("run", epoch, record(each))
                done.append(each)

    before = signal.signal(signal.SIGALRM, write)
    try:
        with psycopg.connect(postgres) as blocker:
            blocker.execute("SELECT FROM stepwise.leases FOR UPDATE")
            store.write("run", epoch, draft("c/2"))
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            assert store.names("run") == ["c/1", "c/2"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for each in (4, 5):
        store.write("run", epoch, record(each))
    assert [number for number, _ in store.read("run")] == [*done, 4, 5]
    store.close()


def test_a_process_that_can_start_no_thread_does_so_later(postgres, monkeypatch):
    """An acquisition without a beat fails, and the next one begins to beat."""
    store = PostgresStore(with_options(postgres, lease_seconds=1))
    other = PostgresStore(postgres)

    def refused(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", refused)
        with pytest.raises(RuntimeError):
            store.acquire("run", ME)
    store.acquire("run", ME)
    let_pass(2.5)
    assert other.owner("run") == ME
    store.close()
    other.close()


def test_a_reader_beside_a_writer_that_goes_on_takes_no_turn(postgres, proxy, monkeypatch):
    """A reader in another thread that saw a failed write disturbs no later write."""
    store = PostgresStore(proxy.url(postgres))
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    proxy.refuse()
    with impatient(store), pytest.raises(StoreError):
        store.write("run", epoch, record(2))
    proxy.accept()
    skip, resolve = store._skip_turn, store._resolve
    may_skip, skips = threading.Event(), threading.Event()

    def skip_later(*given, **more):
        if threading.current_thread() is reader:
            skips.set()
            assert may_skip.wait(60)
        return skip(*given, **more)

    def resolve_later(*given):
        may_skip.set()  # the request is lost, and its writer is about to find that out
        reader.join(60)
        return resolve(*given)

    monkeypatch.setattr(store, "_skip_turn", skip_later)
    monkeypatch.setattr(store, "_resolve", resolve_later)
    reader = threading.Thread(target=lambda: list(store.read("run")))
    reader.start()
    assert skips.wait(60)
    store.write("run", epoch, record(2))
    proxy.lose("request", at={1}, of="records")
    store.write("run", epoch, record(3))
    assert proxy.lost == 1
    proxy.lose("")
    store.write("run", epoch, record(4))
    assert [number for number, _ in store.read("run")] == [1, 2, 3, 4]
    store.close()
