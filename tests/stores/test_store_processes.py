"""Stores under threads, tasks, signals, forks and kill -9: who has a run, and what is there after.

Processes really are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import threading

import pytest
from store_tools import HOLDER, ME, edit, linux, records
from sweeping import size

from stepwise import LeaseLostError, RunBusyError, RunOwnedError, StoreError
from stepwise._journal.lease import Lease
from stepwise.stores import Batch, Owner
from stepwise.stores._rows import lease_front, pack_lease
from stepwise.stores.disk import DiskStore

# -- asyncio, signals, fork ----------------------------------------------------------------------


def test_a_handler_that_uses_the_store_in_a_write(begun):
    """A signal handler that calls the store in the middle of a write is told so."""
    store, epoch = begun
    raised = []

    def handle(number, frame):
        try:
            store.head("run")
        except StoreError as error:
            raised.append(error)

    class Alarming(dict):
        def items(self):
            signal.raise_signal(signal.SIGUSR1)
            yield from super().items()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        store.write("run", epoch, Batch(((1, b"1"),), Alarming(a=b"a")))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [error.errno for error in raised] == [errno.EDEADLK]
    assert list(store.read("run")) == [(1, b"1")]


STORM = """
import os, random, signal, sys, threading
from stepwise.stores import Batch, Owner, open_store

reopening = sys.argv[2] == "reopening"
store = open_store(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), "", 0))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
interrupts, written, within = 0, 0, 2e-3
while interrupts < int(sys.argv[3]):
    try:
        if reopening:
            store.close()
        number = written + 1
        data = b"%d" % number
        batch = Batch(((number, data),), {"newest": data}, mark=data.ljust(40))
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, within))
            store.write("run", epoch, batch)
            written = number
            within *= 0.98  # so that about half are interrupted, however slow the disk
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        within *= 1.02
signal.signal(signal.SIGINT, signal.SIG_IGN)

def next_write():
    number = written + 1
    store.write("run", epoch, Batch(((number, b"%d" % number),)))
    print(number)

other = threading.Thread(target=next_write)  # which waits for ever if the lock was left taken
other.start()
other.join()
print(store._rows._con.in_transaction)
"""


@pytest.mark.parametrize("how", ["open", "reopening"])
def test_a_storm_of_interrupts(fork, store, how, tally):
    """After hundreds of Ctrl-C in the midst of writes all that was written is there."""
    count = size(200, 6000)
    script = fork(STORM, store.url, how, count)
    last, open_transaction = script.finish().split("\n")
    expected = [(number, b"%d" % number) for number in range(1, int(last) + 1)]
    assert list(store.read("run")) == expected
    assert int(store.get("run", "newest")) in (int(last), int(last) - 1)
    assert open_transaction == "False"
    assert store.acquire("run", ME) == 2
    tally("Ctrl-C during a call of the store", count)


LEASE_STORM = """
import os, random, signal, sys, traceback
from stepwise._journal.lease import Lease
from stepwise.stores import open_store

store = open_store(sys.argv[1])
Lease(store, "other").acquire().release()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
interrupts, within, lease = 0, 5e-4, None
while interrupts < int(sys.argv[2]):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, within))
            lease = Lease(store, "run").acquire()
            within *= 0.98
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:
        interrupts += 1
        within *= 1.02
        frames = traceback.extract_tb(error.__traceback__)
        if lease is None and any("stepwise" in frame.filename for frame in frames):
            assert store.owner("run") is None
    if lease is not None:
        lease.release()
        lease = None
"""


def test_interrupted_leases(fork, tally, store):
    """Ctrl-C while a lease is being taken leaves it free."""
    count = size(150, 4000)
    assert fork(LEASE_STORM, store.url, count).finish() == ""
    tally("Ctrl-C during a call of the store", count)


def test_a_lease_that_nobody_has(store):
    """A lease that never reached a variable, since Ctrl-C came between, is free at once."""
    with contextlib.suppress(KeyboardInterrupt):
        interrupted(Lease(store, "run").acquire())
    assert store.owner("run") is None


def interrupted(value):
    raise KeyboardInterrupt


FORK = """
import os, sys, threading, traceback, warnings
from stepwise.stores import Batch, Owner, open_store

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
store = open_store(sys.argv[1])
epoch = store.acquire("parent", Owner(os.getpid(), "", 0))
written = [0]
writing, go_on, stop = threading.Event(), threading.Event(), threading.Event()

def write():
    while not stop.is_set():
        go_on.wait()
        number = written[0] + 1
        store.write("parent", epoch, Batch(((number, bytes(5000)),)))
        written[0] = number
        writing.set()

inherited = store._rows._con

def use(name):
    assert store._rows._con is not inherited  # SQLite's own rule
    epoch = store.acquire(name, Owner(os.getpid(), "", 0))
    store.write(name, epoch, Batch(((1, b"1"),), mark=b"m" * 40))
    assert list(store.read(name)) == [(1, b"1")]

thread = threading.Thread(target=write)
thread.start()
for number in range(int(sys.argv[2])):
    writing.clear()
    go_on.set()
    writing.wait()  # and the thread is at the next write, or soon will be
    child = os.fork()
    if not child:
        try:
            use(f"child{number}")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        if number % 4:
            os._exit(0)
        sys.exit(0)  # through the end of the interpreter, which closes what it finds
    go_on.clear()  # else it would compete with the child for the database
    assert os.waitpid(child, 0)[1] == 0
stop.set()
go_on.set()
thread.join()
print(written[0])
"""


def test_fork_while_a_thread_writes(start, store, tally):
    """A child forked amid another thread's writes does not hang, and can write itself."""
    count = size(15, 150)
    written = int(start(FORK, store.url, count).finish())
    assert [number for number, _ in store.read("parent")] == list(range(1, written + 1))
    for number in range(count):
        assert list(store.read(f"child{number}")) == [(1, b"1")]
    tally("a fork while a thread writes", count)
    assert edit(store, "PRAGMA integrity_check") == [("ok",)]


MEMORY_FORK = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
from stepwise.stores.memory import MemoryStore
store = MemoryStore()
inside, go_on = threading.Event(), threading.Event()

def hold():
    with store._lock:  # as any method does for a moment
        inside.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    signal.alarm(2)
    store.head("run")
    os._exit(0)
print(os.waitpid(child, 0)[1])
go_on.set()
"""


def test_fork_while_a_thread_uses_a_memory_store(fork):
    """A child forked while another thread is inside a memory store can use its copy."""
    assert fork(MEMORY_FORK).finish() == "0"


# -- the lease -----------------------------------------------------------------------------------


WAITS = "print(epoch); sys.stdin.readline()"


def test_a_killed_owner_is_succeeded_at_once(fork, store):
    """The lease of a process that was killed with -9 is free at once, under a higher epoch."""
    script = fork(HOLDER + WAITS, store.url)
    assert script.hear() == "1"
    script.kill()
    assert store.owner("run") is None
    assert store.acquire("run", ME) == 2
    assert list(store.read("run")) == [(1, b"1")]


def test_a_living_owner_is_named(fork, store):
    """While a process has the lease, another one is told its process, machine and since when.

    A second call in the same process is told the thread that has the run.
    """
    script = fork(HOLDER + WAITS, store.url)
    script.hear()
    with pytest.raises(RunBusyError) as caught:
        Lease(store, "run").acquire()
    assert caught.value.owner == Owner(script.pid, socket.gethostname(), 42.0, "thread main")
    for fact in (f"process {script.pid}", socket.gethostname(), "1970"):
        assert fact in str(caught.value)
    with pytest.raises(LeaseLostError):
        store.write("run", 2, records(2))
    script.tell()
    script.finish()
    lease = Lease(store, "run").acquire()
    assert lease.epoch == 2
    with pytest.raises(RunBusyError, match="by this process, in thread MainThread"):
        Lease(store, "run").acquire()
    lease.release()


FORKED_HOLDER = (
    HOLDER
    + """
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.close(writer)
    try:
        store.acquire("run", Owner(os.getpid(), "", 0))
    except BaseException as error:
        print(type(error).__name__, error.owner.pid, os.getpid(), flush=True)
    store.release("run", epoch)  # not its own
    os.read(reader, 1)  # until the test closes its end of standard input
    sys.stdin.readline()
    os._exit(0)
os.close(reader)
signal.pause()
"""
)


def test_a_forked_child_has_no_lease(fork, store):
    """A forked child neither inherits the lease, nor can give it up, nor keeps it as an orphan."""
    script = fork(FORKED_HOLDER, store.url)
    kind, owner, child = script.hear().split()
    assert (kind, int(owner)) == ("RunOwnedError", script.pid)
    assert store.owner("run").pid == script.pid
    script.kill()
    os.kill(int(child), 0)  # the orphan lives
    assert store.owner("run") is None
    assert store.acquire("run", ME) == 2


READING = """
import pathlib
for path in pathlib.Path(store.path).rglob("*"):
    if path.is_file():
        path.read_bytes()
print("read")
sys.stdin.readline()
for number in range(2, 6):
    store.write("run", epoch, Batch(((number, b"%d" % number),)))
print("written")
sys.stdin.readline()
"""
POSIX = """
from stepwise.stores import _files
_files.has_ofd = lambda: False
"""


@linux
def test_an_owner_that_reads_its_own_store(fork, folder, store):
    """A process that reads every file of its store keeps its lease, and all that it writes."""
    script = fork(HOLDER + READING, store.url)
    assert script.hear() == "read"
    with pytest.raises(RunOwnedError) as caught:
        store.acquire("run", ME)
    assert caught.value.owner.pid == script.pid
    store.close()  # would delete the log, were it not locked any more
    script.tell()
    assert script.hear() == "written"
    other = DiskStore(folder)
    assert [number for number, _ in other.read("run")] == [1, 2, 3, 4, 5]
    other.close()
    script.kill()
    other = DiskStore(folder)
    assert [number for number, _ in other.read("run")] == [1, 2, 3, 4, 5]
    assert other.acquire("run", ME) == 2


def test_posix_locks_are_dropped_by_reading(fork, store):
    """Where there are only POSIX locks, they exclude; the test above would see that they go."""
    script = fork(POSIX + HOLDER + WAITS + READING, store.url)
    assert script.hear() == "1"
    with pytest.raises(RunOwnedError):
        store.acquire("run", ME)
    script.tell()
    assert script.hear() == "read"
    assert store.acquire("run", ME) == 2


def test_a_lock_file_that_vanished_is_made_again(fork, store, folder):
    """An owner whose lock file was deleted notices at its next write, and excludes others again."""
    more = """
print(epoch)
sys.stdin.readline()
store.write("run", epoch, Batch(((2, b"2"),)))
print("written")
sys.stdin.readline()
"""
    script = fork(HOLDER + more, store.url)
    script.hear()
    (folder / "leases").unlink()
    script.tell()
    assert script.hear() == "written"
    with pytest.raises(RunOwnedError):
        store.acquire("run", ME)


def test_an_owner_of_whom_nothing_is_known(fork, store):
    """An owner with our process id (as in a container), or a damaged row, is another process."""
    fork(HOLDER + WAITS, store.url).hear()
    damaged = b'{"pid": "x"}', b'{"pid": 1, "host": 2, "since": 1e300}', b"[1]", b'{"pid": -1}'
    ours = pack_lease(1, Owner(os.getpid(), socket.gethostname(), 42.0, "thread main"))
    for row in (ours, *(lease_front(1) + each for each in damaged)):
        edit(store, "UPDATE Cache SET value = ? WHERE key LIKE 'l/%'", row)
        with pytest.raises(RunBusyError, match="is being executed by another process on"):
            Lease(store, "run").acquire()


def test_tasks_do_not_undo_each_other(store):
    """What one task has written stays, though another task's batch fails in between."""

    async def good(name):
        epoch = store.acquire(name, ME)
        for number in range(1, 51):
            store.write(name, epoch, records(number))
            await asyncio.sleep(0)

    async def bad():
        for _ in range(50):
            with pytest.raises(LeaseLostError):
                store.write("nobody's", 1, records(1))
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(good("a"), bad(), good("b"))

    asyncio.run(main())
    assert [len(list(store.read(name))) for name in ("a", "b", "nobody's")] == [50, 50, 0]


def test_two_objects_exclude_each_other(folder):
    """Two store objects on one folder in one process exclude each other."""
    one, two = DiskStore(folder), DiskStore(folder)
    epoch = one.acquire("run", ME)
    with pytest.raises(RunOwnedError) as caught:
        two.acquire("run", ME)
    assert caught.value.owner == ME
    assert two.owner("run") == ME
    one.release("run", epoch)
    assert two.acquire("run", ME) == 2
    with pytest.raises(LeaseLostError):
        one.write("run", epoch, records(1))


def test_an_owner_whose_lock_file_vanished(fork, store, folder):
    """If the lock file is deleted, the run can be taken over, and its old owner writes no more."""
    late = """
print(epoch)
sys.stdin.readline()
try:
    store.write("run", epoch, Batch(((2, b"late"),), {"a": b"late"}, mark=b"late" * 10))
except BaseException as error:
    print(type(error).__name__)
"""
    script = fork(HOLDER + late, store.url)
    script.hear()
    (folder / "leases").unlink()
    assert store.acquire("run", ME) == 2
    script.tell()
    assert script.finish() == "LeaseLostError"
    assert list(store.read("run")) == [(1, b"1")]
    assert store.get("run", "a") is None
    assert store.marks("run") == []


def test_leases_follow_a_new_lock_file(fork, begun, folder):
    """After an idle folder was deleted it is made again, and leases exclude others as before."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.release("run", epoch)
    shutil.rmtree(folder)
    assert list(store.read("run")) == []
    assert store.acquire("run", ME) == 1
    assert list(store.read("run")) == []
    asking = (
        'try: store.acquire("run", Owner(1, "", 0))\nexcept BaseException as no: print(repr(no))'
    )
    script = fork(HOLDER.replace('"run"', '"other"') + asking, store.url)
    assert script.finish().startswith("RunOwnedError")


def test_a_late_write_hits_no_other_file(begun, tmp_path, monkeypatch):
    """A write that is overtaken by the release of its lease writes into no file but the store's."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, b"1"),), mark=b"1" * 40))
    pwrite = os.pwrite
    other = None

    def overtaken(descriptor, data, offset):
        nonlocal other
        monkeypatch.undo()
        thread = threading.Thread(target=store.release, args=("run", epoch))
        thread.start()
        thread.join(0.2)  # it may have to wait for this write
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # takes the free number
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", overtaken)
    try:
        store.write("run", epoch, Batch(((2, b"2"),), mark=b"2" * 40))
    finally:
        assert os.fstat(other).st_size == 0
        os.close(other)


# -- crashes -------------------------------------------------------------------------------------

WRITER = """
import os, sys
from stepwise.stores import Batch, Head, Owner, open_store
store = open_store(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), "", 0))
number = int(sys.argv[2])
large = bytes(1 << 20)
while True:
    number += 1
    data = b"%d" % number
    records = tuple((3 * number - i, large + data if number % 7 == i else data) for i in (2, 1, 0))
    head = Head("run", "flow", False, data)
    store.write("run", epoch, Batch(records, {"newest": data}, head=head, mark=data.ljust(40)))
    os.write(1, data + b"\\n")
"""


def test_kill_in_the_midst_of_writing(fork, store):
    """After kill -9 at any moment all acknowledged batches are there, and no part of another."""
    written = 0
    for acknowledged in (1, 4, 9, 23, 40):
        script = fork(WRITER, store.url, written)
        for _ in range(acknowledged):
            said = script.hear()
        script.kill()
        said = script.process.stdout.read().split()[-1:] or [said]
        found = list(store.read("run"))
        assert [number for number, _ in found] == list(range(1, len(found) + 1))
        assert len(found) % 3 == 0
        written = len(found) // 3
        assert written in (int(said[0]), int(said[0]) + 1)
        assert int(store.get("run", "newest")) == int(store.head("run").data) == written
        numbers = [int(data.lstrip(b"\0")) for _, data in found]
        assert numbers == [(number + 2) // 3 for number, _ in found]
