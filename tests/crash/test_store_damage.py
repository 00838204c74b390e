"""Stores whose rows, files or disks are damaged, taken away, locked or full."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import HOLDER, LARGE, ME, edit, files, log_files, pragma, records, use_all_of

from stepwise import CorruptStoreError, StoreError
from stepwise.stores import Batch, _rows
from stepwise.stores._process_log import LARGEST_BATCH
from stepwise.stores.disk import DiskStore

LEASE = "UPDATE Cache SET value = ? WHERE key LIKE 'l/%'"
NUMBER = "UPDATE Cache SET key = replace(key, '/000000000002', '/00000000p002')"


@pytest.mark.parametrize("row", [b"nonsense", b"000000000000000g{}", b"", b"\xff" * 16])
def test_a_damaged_lease(begun, row):
    """A damaged row of a lease is a ``StoreError``, or is replaced under a higher epoch."""
    store, epoch = begun
    store.release("run", epoch)
    edit(store, LEASE, row)
    with contextlib.suppress(StoreError):
        assert store.acquire("run", ME) > epoch


def test_a_lease_that_could_not_be_written(store, monkeypatch):
    """A run whose lease could not be written is free, and can be taken as soon as it can be."""
    store.release("first", store.acquire("first", ME))
    rows = type(store._rows)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "put_lease", full)
        with pytest.raises(StoreError, match="full"):
            store.acquire("run", ME)
    assert store.owner("run") is None
    assert store.acquire("run", ME)


def full(*_):
    raise sqlite3.OperationalError("database or disk is full")


def test_a_damaged_number(begun):
    """A record whose number was damaged does not keep the others from being read."""
    store, epoch = begun
    store.write("run", epoch, records(1, 2, 3))
    edit(store, NUMBER)
    found = dict(store.read("run"))
    assert (found[1], found[3]) == (b"1", b"3")


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_a_damaged_database_is_an_error_of_ours(tmp_path_factory, position, bit):
    """With any bit of the database flipped, every method works or raises an error of ours."""
    folder = tmp_path_factory.mktemp("flipped")
    store = DiskStore(folder)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, Batch(records(*range(1, 6)).records, {"a": b"a"}, mark=b"m" * 40))
    store.release("run", epoch)
    store.close()
    with open(store._database, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(int(position * size))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << bit]))
    try:
        use_all_of(store)
    finally:
        store.close()
        shutil.rmtree(folder)


def test_damage_is_told_from_failure(begun):
    """A damaged database is a ``CorruptStoreError``, which does not promise that all is there."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.close()
    with open(store._database, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(8192)  # behind the schema and the map of pages
        file.write(os.urandom(size - 8192))
    with pytest.raises(CorruptStoreError) as caught:
        list(store.read("run"))
    assert "Nothing recorded is lost" not in str(caught.value)


def test_what_is_no_database(store, folder):
    """A file of something else in the database's place is a ``StoreError`` that names it."""
    folder.mkdir()
    Path(store._database).write_bytes(b"something else" * 1000)
    with pytest.raises(StoreError, match="not a database") as caught:
        store.head("run")
    assert caught.value.path == str(folder)


# -- errors of the system ------------------------------------------------------------------------


def test_a_full_database(begun, folder):
    """A full disk is a ``StoreError`` with path and errno; with space again, all goes on."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    pages = pragma(store, "page_count")
    assert pragma(store, f"max_page_count={pages}") == pages
    with pytest.raises(StoreError, match="free some space") as caught:
        store.write("run", epoch, Batch(((2, bytes(500_000)), (3, b"3")), {"a": b"a"}))
    assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, str(folder))
    assert "ENOSPC" in str(caught.value)
    assert list(store.read("run")) == [(1, b"1")]
    assert store.get("run", "a") is None
    assert pragma(store, "max_page_count=1000000") == 1_000_000
    store.write("run", epoch, records(2))
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


def test_a_database_that_turns_read_only(begun, folder):
    """A store that cannot be written is a ``StoreError`` with EROFS; what is in it can be read."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    large = Batch(((2, bytes(LARGEST_BATCH)),))  # not for a log
    store._rows._con.execute("PRAGMA query_only=1")
    with pytest.raises(StoreError, match="make it writable") as caught:
        store.write("run", epoch, large)
    assert (caught.value.errno, caught.value.path) == (errno.EROFS, str(folder))
    assert list(store.read("run")) == [(1, b"1")]
    store._rows._con.execute("PRAGMA query_only=0")
    store.write("run", epoch, large)
    assert list(store.read("run")) == [(1, b"1"), *large.records]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_log_that_turns_read_only(begun, folder, monkeypatch, operation):
    """A log that cannot be written is a ``StoreError`` with EROFS; all goes on with another log."""
    store, epoch = begun
    for number in range(1, 5):
        store.write("run", epoch, records(number))
    (log,) = log_files(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, read_only)
        with pytest.raises(StoreError, match="make it writable") as caught:
            store.write("run", epoch, records(5))
        assert (caught.value.errno, caught.value.path) == (errno.EROFS, str(folder))
        known = list(store.read("run"))
        assert known[:4] == [(number, b"%d" % number) for number in range(1, 5)]
    for number in range(5, 9):
        store.write("run", epoch, records(number))
    assert list(store.read("run")) == [(number, b"%d" % number) for number in range(1, 9)]
    assert log_files(folder) not in ([], [log])


def read_only(*_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_database_that_somebody_locks(begun, folder, monkeypatch):
    """A database that another program keeps locked is a ``StoreError``; it can be opened and read.

    Afterwards all goes on.
    """
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.close()
    monkeypatch.setattr(_rows, "BUSY_SECONDS", 0.01)
    other = sqlite3.connect(store._database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert list(store.read("run")) == [(1, b"1")]
    with pytest.raises(StoreError, match="another process kept it locked") as caught:
        store.write("run", epoch, Batch(((2, bytes(LARGEST_BATCH)),)))
    assert (caught.value.errno, caught.value.path) == (errno.EAGAIN, str(folder))
    other.close()
    store.write("run", epoch, records(2))
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


FAILING_DISK = """
import errno, os, resource, signal, sys
from stepwise import StoreError
from stepwise.stores import Batch, Owner, open_store
store = open_store(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), "", 0))
store.write("run", epoch, Batch(((1, b"1"),)))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # any write further into a file fails
for data in (b"2" * 5000, b"2" * 5_000_000):
    try:
        store.write("run", epoch, Batch(((2, data),)))
    except StoreError as error:
        print(errno.errorcode[error.errno], error.path)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.write("run", epoch, Batch(((2, b"2"),)))
"""


def test_a_disk_that_fails(start, store, folder):
    """A failing write to the database or a value's file is a ``StoreError``, nothing is lost."""
    first, second = start(FAILING_DISK, store.url).finish().split("\n")
    assert first == f"EFBIG {folder}"
    kind, path = second.split()
    assert kind == "EFBIG"
    assert path.startswith(str(folder))
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path):
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC


def test_a_full_disk(small_disk):
    """On a full disk writes and leases fail cleanly, and work when there is space again."""
    store = DiskStore(small_disk / "store")
    epoch = store.acquire("run", ME)
    mark, names = b"m" * 40, map(str, itertools.count())
    store.write("run", epoch, Batch(((1, b"1"),), mark=mark))
    for data in (b"2" * 300_000, LARGE):
        fill(small_disk / "filler")
        with pytest.raises(StoreError, match="free some space") as caught:
            store.write("run", epoch, Batch(((2, data),), mark=mark))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.path.startswith(store.path)
        assert list(store.read("run")) == [(1, b"1")]
        with pytest.raises(StoreError):
            for run_id in names:  # until the log has used up its last page
                store.acquire(run_id, ME)
        assert store.owner(run_id) is None
        (small_disk / "filler").unlink()
        assert store.acquire(run_id, ME) == 1
    store.write("run", epoch, Batch(((2, LARGE),), mark=mark))
    assert list(store.read("run")) == [(1, b"1"), (2, LARGE)]
    store.close()


def test_a_full_disk_is_not_filled_further(small_disk):
    """A value that does not fit takes no space afterwards."""
    store = DiskStore(small_disk / "store")
    epoch = store.acquire("run", ME)
    with pytest.raises(StoreError):
        store.write("run", epoch, Batch(((1, LARGE * 4),)))
    store.close()
    assert files(small_disk, "*.val") == []


def test_a_read_only_disk(start, small_disk):
    """On a disk that was mounted read-only a run is refused with EROFS, before anything happens."""
    start(HOLDER, f"disk:{small_disk}/store").finish()  # a process keeps its lock file open
    store = DiskStore(small_disk / "store")
    command = ["mount", "-o", "remount,ro", str(small_disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot remount")
    with pytest.raises(StoreError) as caught:
        store.acquire("run2", ME)
    store.close()
    assert caught.value.errno == errno.EROFS
