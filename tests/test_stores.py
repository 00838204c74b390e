"""The contract of stores, and what the disk store does about the hazards of SQLite and diskcache.

Files are taken away, changed and filled up behind the store's back; processes really are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import itertools
import os
import pickle
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import diskcache
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeping import size

import stepwise
from stepwise import (
    ConfigurationError,
    CorruptStoreError,
    LeaseLostError,
    RunOwnedError,
    RunStopped,
    StoreError,
)
from stepwise._lease import Lease
from stepwise.stores import Batch, Head, Owner, _folder, _transactions, open_store
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore
from stepwise.stores.sqlite import SqliteStore
from stepwise.testing import StoreContract, fresh_store

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")
LARGE = bytes(range(256)) * (8 << 10)  # 2 MiB, kept in a file
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path):
        return MemoryStore()


class TestDiskStore(StoreContract):
    kind = DiskStore

    def make_store(self, tmp_path):
        return self.kind(tmp_path / "store")

    def reopen(self, store):
        store.close()
        return self.kind(store.path)


class TestSqliteStore(TestDiskStore):
    kind = SqliteStore


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(folder):
    store = DiskStore(folder)
    yield store
    store.close()


@pytest.fixture
def begun(store):
    """A store and the epoch of a run in it."""
    return store, store.acquire("run", ME)


def edit(store, sql, *parameters):
    """Change the database as any other program could."""
    store.close()
    connection = sqlite3.connect(os.path.join(store.path, "cache.db"))
    rows = connection.execute(sql, parameters).fetchall()
    connection.commit()
    connection.close()
    return rows


def records(*numbers):
    return Batch(tuple((number, b"%d" % number) for number in numbers))


def files(folder, pattern="*"):
    return sorted(path for path in folder.rglob(pattern) if path.is_file())


# -- eviction, durability, cost ------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "while open"])
def test_nothing_is_evicted(store, folder, when):
    """Past the limits of size that another opener left in the database, every record stays."""
    epoch = store.acquire("run", ME) if when == "while open" else 0
    diskcache.Cache(
        str(folder), size_limit=1, cull_limit=100, eviction_policy="least-recently-stored"
    ).close()
    epoch = epoch or store.acquire("run", ME)
    for first in range(1, 2001, 100):
        numbers = range(first, first + 100)
        store.write("run", epoch, Batch(tuple((n, bytes(1000)) for n in numbers), durable=False))
    assert len(list(store.read("run"))) == 2000


def test_settings_are_repaired_at_open(begun):
    """Settings that another opener changed in the database are ours again after the next open."""
    store, epoch = begun
    edit(store, "SELECT 1")
    before = dict(edit(store, "SELECT key, value FROM Settings"))
    changed = {
        "eviction_policy": "least-recently-used",
        "cull_limit": 10,
        "size_limit": 1000,
        "sqlite_synchronous": 0,
        "sqlite_journal_mode": "delete",
        "sqlite_mmap_size": 1 << 26,
        "disk_min_file_size": 10,
        "statistics": 1,
    }
    for key, value in changed.items():
        edit(store, "UPDATE Settings SET value = ? WHERE key = ?", value, key)
    edit(store, "PRAGMA journal_mode=delete")
    store.write("run", epoch, records(1))
    assert pragma(store, "journal_mode") == "wal"
    assert pragma(store, "mmap_size") == 0
    after = dict(edit(store, "SELECT key, value FROM Settings"))
    assert {key: after[key] for key in changed} == {key: before[key] for key in changed}
    assert (after["eviction_policy"], after["cull_limit"]) == ("none", 0)
    assert after["size_limit"] > 1 << 60


def pragma(store, name):
    return store._rows._con.execute(f"PRAGMA {name}").fetchone()[0]


def test_what_must_last_is_flushed(begun):
    """A durable batch is committed with synchronous=FULL, another one with NORMAL."""
    store, epoch = begun
    for durable, level in ((True, 2), (False, 1), (True, 2)):
        store.write("run", epoch, Batch(((1, b"1"),), durable=durable))
        assert pragma(store, "synchronous") == level


def test_a_batch_is_one_transaction(begun):
    """Twenty records, an object and a head cost one commit."""
    store, epoch = begun
    statements = []
    store._rows._con.set_trace_callback(statements.append)
    head = Head("run", "flow", False, b"head")
    batch = Batch(records(*range(1, 21)).records, {"a": b"a"}, head=head)
    store.write("run", epoch, batch)
    begins = [line for line in statements if line.startswith(("BEGIN", "COMMIT"))]
    assert begins == ["BEGIN IMMEDIATE", "COMMIT"]


# -- large values --------------------------------------------------------------------------------


def test_a_large_value_is_on_the_disk_before_its_commit(begun, folder, monkeypatch):
    """The file of a large value and the folders it is in are flushed before the commit."""
    store, epoch = begun
    events = []
    monkeypatch.setattr(os, "fsync", lambda it: events.append(os.fstat(it).st_ino))
    store._rows._con.set_trace_callback(
        lambda line: events.append(line) if line == "COMMIT" else None
    )
    store.write("run", epoch, Batch(((1, LARGE),)))
    (file,) = files(folder, "*.val")
    synced = set(events[: events.index("COMMIT")])
    assert synced >= {os.stat(path).st_ino for path in (file, *list(file.parents)[:3])}


def _truncate(file):
    os.truncate(file, 1000)


def _empty(file):
    os.truncate(file, 0)


def _extend(file):
    with open(file, "ab") as opened:
        opened.write(b"more")


def _replace_by_folder(file):
    file.unlink()
    file.mkdir()


def _replace_by_loop(file):
    file.unlink()
    file.symlink_to(file)


def _replace_folder_by_file(file):
    shutil.rmtree(file.parent)
    file.parent.write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        os.unlink,
        _empty,
        _truncate,
        _extend,
        _replace_by_folder,
        _replace_by_loop,
        _replace_folder_by_file,
    ],
)
def test_a_value_that_is_not_whole_is_empty(begun, folder, damage):
    """A value whose file is missing, cut off, or no such file comes back as ``b""``."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, LARGE), (2, b"2")), {"a": LARGE}))
    for file in files(folder, "*.val"):
        damage(file)
    assert list(store.read("run")) == [(1, b""), (2, b"2")]
    assert store.get("run", "a") == b""


def test_a_name_with_the_last_character_there_is(begun):
    """A name that begins with the greatest of all characters is listed too."""
    store, epoch = begun
    names = ["a", "a\U0010ffff", "a\U0010ffff\U0010ffffb"]
    store.write("run", epoch, Batch(put=dict.fromkeys(names, b"x")))
    assert store.names("run") == store.names("run", "a") == names
    assert store.names("run", names[1]) == names[1:]


def test_files_of_deleted_values_are_deleted(begun, folder):
    """No file of a large value outlives its record or object."""
    store, epoch = begun
    for value in (LARGE, LARGE[1:]):
        store.write("run", epoch, Batch(((1, value), (2, value)), {"a": value, "b": value}))
    assert len(files(folder, "*.val")) == 4
    store.write("run", epoch, Batch(prune=1, delete=("a",)))
    assert len(files(folder, "*.val")) == 2
    store.delete("run", epoch)
    assert files(folder, "*.val") == []


def test_files_of_a_failed_batch_are_deleted(begun, folder):
    """A batch that fails leaves no files of large values behind."""
    store, epoch = begun
    with pytest.raises(TypeError):
        store.write("run", epoch, Batch(((1, LARGE), (2, None))))
    assert files(folder, "*.val") == []


# -- tampered rows -------------------------------------------------------------------------------


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, mode) for kind in "rohul" for mode in (0, 1, 2, 3, 4, 5, None, b"1")],
)
def test_nothing_is_unpickled(begun, tmp_path, kind, mode):
    """A row that was changed into somebody's pickle is never loaded, whatever row it is."""
    store, epoch = begun
    head = Head("run", "flow", False, b"head")
    store.write("run", epoch, Batch(((1, b"1"),), {"a": b"a"}, head=head))
    store.release("run", epoch)
    payload = pickle.dumps(Payload(tmp_path / "canary"))
    (tmp_path / "store" / "payload").write_bytes(payload)
    sql = "UPDATE Cache SET mode = ?, value = ?, filename = 'payload' WHERE key LIKE ?"
    edit(store, sql, mode, payload, f"{kind}/%")
    if kind in "ro":
        found = [data for _, data in store.read("run")] if kind == "r" else [store.get("run", "a")]
        assert found == [payload if mode == 1 else b""]
    use_all_of(store)
    assert not (tmp_path / "canary").exists()


def use_all_of(store):
    """Call every method; what makes no sense may raise an error of ours, and no other."""
    for read in (
        lambda: list(store.read("run")),
        lambda: [store.get("run", name) for name in store.names("run")],
        lambda: store.head("run"),
        lambda: list(store.heads()),
        lambda: list(store.heads("flow", unfinished=True)),
        lambda: store.owner("run"),
        lambda: store.marks("run"),
        lambda: rewrite(store),
    ):
        with contextlib.suppress(RunStopped):
            read()


def rewrite(store):
    epoch = store.acquire("run", ME)
    try:
        head = Head("run", "flow", False, b"head")
        store.write("run", epoch, Batch(((1, b"1"), (2, b"2")), {"a": b"a"}, ("b",), head=head))
        store.delete("run", epoch)
    finally:
        store.release("run", epoch)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.val",
        "aa/bb/../../../secret.val",
        "{outside}/secret.val",
        "aa/bb/" + "c" * 28 + ".val\n",
        "cache.db",
        "leases",
        "",
        "aa/bb/\0" + "c" * 27 + ".val",
    ],
)
def test_no_file_outside_is_touched(begun, tmp_path, name):
    """A row that names a file elsewhere neither reads nor deletes it."""
    store, epoch = begun
    secret = tmp_path / "secret.val"
    secret.write_bytes(b"secret")
    batch = Batch(((1, b"1"), (2, b"2")), {"a": b"a", "b": b"b"})
    store.write("run", epoch, batch)
    sql = "UPDATE Cache SET mode = 2, value = NULL, filename = ? WHERE key LIKE 'r/%' OR key LIKE ?"
    edit(store, sql, name.format(outside=tmp_path), "o/%")
    assert [data for _, data in store.read("run")] == [b"", b""]
    assert [store.get("run", each) for each in "ab"] == [b"", b""]
    store.write("run", epoch, Batch(((2, b"2"),), {"a": b"a"}, ("b",), prune=1))
    store.delete("run", epoch)
    assert secret.read_bytes() == b"secret"
    assert {"cache.db", "leases"} <= set(os.listdir(store.path))


def test_a_file_name_that_is_no_text(begun):
    """A row whose file name was changed into a BLOB reads as damaged, and can be replaced."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, b"1"),), {"a": b"a"}))
    edit(store, "UPDATE Cache SET mode = 2, filename = x'00ff' WHERE key NOT LIKE 'l/%'")
    assert list(store.read("run")) == [(1, b"")]
    assert store.get("run", "a") == b""
    store.write("run", epoch, Batch(((1, b"1"),), {"a": b"a"}))
    assert list(store.read("run")) == [(1, b"1")]


@pytest.mark.parametrize("name", ["_directory", "set", "disk__directory", "disk_fetch"])
def test_strange_settings_do_nothing(begun, tmp_path, name):
    """Settings in the database that diskcache does not know neither break nor redirect a store."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    (tmp_path / "elsewhere").mkdir()
    edit(store, "INSERT INTO Settings VALUES (?, ?)", name, str(tmp_path / "elsewhere"))
    assert list(store.read("run")) == [(1, b"1")]
    store.write("run", epoch, records(2))
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("row", [b"nonsense", b"000000000000000g{}", b"", b"\xff" * 16])
def test_a_damaged_lease(begun, row):
    """A damaged row of a lease is a ``StoreError``, or is replaced under a higher epoch."""
    store, epoch = begun
    store.release("run", epoch)
    edit(store, "UPDATE Cache SET value = ? WHERE key LIKE 'l/%'", row)
    with contextlib.suppress(StoreError):
        assert store.acquire("run", ME) > epoch


def test_a_damaged_number(begun):
    """A record whose number was damaged does not keep the others from being read."""
    store, epoch = begun
    store.write("run", epoch, records(1, 2, 3))
    edit(store, "UPDATE Cache SET key = replace(key, '/000000000002', '/00000000p002')")
    found = dict(store.read("run"))
    assert (found[1], found[3]) == (b"1", b"3")


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_a_damaged_database_is_an_error_of_ours(tmp_path_factory, position, bit):
    """With any bit of the database flipped, every method works or raises an error of ours."""
    folder = tmp_path_factory.mktemp("flipped")
    store = DiskStore(folder)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, Batch(records(*range(1, 6)).records, {"a": b"a"}, mark=b"m" * 40))
    store.release("run", epoch)
    store.close()
    with open(folder / "cache.db", "r+b") as file:
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


@linux
def test_closing_closes_every_file(begun, folder):
    """A closed store has no file open but its lock file, which a process keeps."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, LARGE),), mark=b"m" * 40))
    store.close()
    assert [path.name for path in open_files() if folder in path.parents] == ["leases"]


def open_files():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [Path(os.readlink(link)) for link in links if os.path.lexists(link)]


def test_damage_is_told_from_failure(begun, folder):
    """A damaged database is a ``CorruptStoreError``, which does not promise that all is there."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.close()
    with open(folder / "cache.db", "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(8192)  # behind the schema and the map of pages
        file.write(os.urandom(size - 8192))
    with pytest.raises(CorruptStoreError) as caught:
        list(store.read("run"))
    assert "Nothing recorded is lost" not in str(caught.value)


def test_what_is_no_database(store, folder):
    """A file of something else in the database's place is a ``StoreError`` that names it."""
    folder.mkdir()
    (folder / "cache.db").write_bytes(b"something else" * 1000)
    with pytest.raises(StoreError, match="not a database") as caught:
        store.head("run")
    assert caught.value.path == str(folder)


# -- who may look --------------------------------------------------------------------------------


@pytest.fixture
def permissive():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("exists", [False, True])
def test_only_the_owner_can_read(folder, permissive, exists):
    """Whatever the umask, files are 0600, and a folder that the store makes is 0700."""
    if exists:
        folder.mkdir(0o755)
    store = DiskStore(folder)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, Batch(((1, b"1"), (2, LARGE)), {"a": LARGE}, mark=b"m" * 40))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files(folder)}
    assert {path.name for path in modes} >= {"cache.db", "cache.db-wal", "cache.db-shm", "leases"}
    assert [path for path, mode in modes.items() if mode != 0o600] == []
    for inner in (folder / "marks", files(folder, "*.val")[0].parent):
        assert stat.S_IMODE(inner.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == (0o755 if exists else 0o700)
    store.close()


def test_a_folder_of_somebody_else(folder, monkeypatch):
    """A folder that belongs to another user is refused, and nothing is written into it."""
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 54321, 54321)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    store = DiskStore(folder)
    with pytest.raises(StoreError, match="belongs to another user") as caught:
        store.acquire("run", ME)
    assert (caught.value.errno, caught.value.path) == (errno.EPERM, str(folder))
    assert os.listdir(folder) == []


def test_a_variable_in_the_path(tmp_path, monkeypatch):
    """A path that names an environment variable is refused."""
    monkeypatch.setenv("SOMEWHERE", "else")
    for name in ("$SOMEWHERE", "a${SOMEWHERE}b"):
        with pytest.raises(ConfigurationError, match="environment variable"):
            DiskStore(tmp_path / name)


def test_a_variable_that_is_set_later(tmp_path, monkeypatch):
    """A ``$`` in a path stays one, or is refused, though a variable of that name is set later."""
    monkeypatch.delenv("SOMEWHERE", raising=False)
    store = DiskStore(tmp_path / "$SOMEWHERE")
    monkeypatch.setenv("SOMEWHERE", "else")
    with contextlib.suppress(ConfigurationError, StoreError):
        store.acquire("run", ME)
    assert not (tmp_path / "else").exists()
    store.close()


@pytest.mark.parametrize("name", ["share", "my share"])
@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.glusterfs", "afs", "lustre", "ceph"],
)
def test_a_network_file_system(tmp_path, monkeypatch, kind, name):
    """A folder on a network file system is refused, unless STEPWISE_ALLOW_NETWORK=1 is set."""
    pretend_mounts(monkeypatch, (tmp_path / name, kind))
    store = DiskStore(tmp_path / name / "store")
    with pytest.raises(StoreError, match="network file system") as caught:
        store.acquire("run", ME)
    assert caught.value.errno == errno.ENOTSUP
    assert f"({kind})" in str(caught.value)
    monkeypatch.setenv("STEPWISE_ALLOW_NETWORK", "1")
    assert store.acquire("run", ME) == 1
    store.close()


def test_a_local_file_system_beside_a_network(tmp_path, monkeypatch):
    """What counts is the innermost mount, and the last one where several share a place."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    pretend_mounts(monkeypatch, (outer, "nfs4"), (inner, "nfs4"), (inner, "ext4"))
    for path in (inner / "store", tmp_path / "outer2"):
        store = DiskStore(path)
        assert store.acquire("run", ME) == 1
        store.close()
    with pytest.raises(StoreError):
        DiskStore(outer / "inner2").acquire("run", ME)


def pretend_mounts(monkeypatch, *mounts):
    """Let the store see other mounts than there are."""
    lines = ["/dev/sda1 / ext4 rw 0 0\n"]
    for path, kind in mounts:
        lines.append(f"host:/x {str(path).replace(' ', chr(92) + '040')} {kind} rw 0 0\n")

    def opened(path, *args, **kwargs):
        assert path == "/proc/self/mounts"
        return io.StringIO("".join(lines))

    monkeypatch.setattr(_folder, "open", opened, raising=False)


# -- opening -------------------------------------------------------------------------------------


def test_looking_makes_nothing(store, folder):
    """Asking a store that is not there yet makes no folder."""
    assert list(store.heads()) == list(store.read("run")) == store.names("run") == []
    assert store.get("run", "a") is store.head("run") is store.owner("run") is None
    assert store.marks("run") == []
    assert not folder.exists()


def test_a_folder_that_cannot_be_looked_into(tmp_path):
    """A store that cannot be reached is a ``StoreError``; it does not look like an empty one."""
    (tmp_path / "file").write_bytes(b"")
    store = DiskStore(tmp_path / "file" / "store")
    with pytest.raises(StoreError) as caught:
        list(store.heads())
    assert caught.value.errno == errno.ENOTDIR


def test_one_store_for_each_folder(tmp_path):
    """However its folder is written, a store is opened once in a process."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    names = ("{}/real", "{}/real/", "disk:{}/real", "disk://{}/real", "{}/link", "{}/x/../real")
    stores = [open_store(name.format(tmp_path)) for name in names]
    assert len(set(map(id, stores))) == 1
    assert open_store(stores[0].url) is open_store(stores[0]) is stores[0]
    assert open_store("memory:a") is open_store("memory:a") is not open_store("memory:b")


@pytest.mark.parametrize("url", ["postgresql://host/db", "disk:", "disk://"])
def test_unknown_urls(url):
    """A URL of an unknown kind, or without a path, is refused with an example of a right one."""
    with pytest.raises(ConfigurationError, match="disk:/path/to/folder"):
        open_store(url)


@linux
def test_one_connection_for_all_threads(begun, folder):
    """Threads share one connection, so that no two of a process write and checkpoint at once."""
    store, _ = begun

    def work(name):
        store.write(name, store.acquire(name, ME), records(1))
        return len(list(store.read(name)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, "abcd")) == [1] * 4
    assert open_files().count(folder / "cache.db") == 1


OPENER = """
import os, sys
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore
print("ready")
sys.stdin.readline()
store = DiskStore(sys.argv[1])
epoch = store.acquire(sys.argv[2], Owner(os.getpid(), "", 0))
for number in range(1, 21):
    store.write(sys.argv[2], epoch, Batch(((number, b"x"),)))
"""


def test_processes_open_a_new_store_at_once(start, store, folder):
    """Processes that start together make one store, and each writes to it."""
    scripts = [start(OPENER, folder, f"run{number}") for number in range(4)]
    for script in scripts:
        assert script.hear() == "ready"
    for script in scripts:
        script.tell()
    assert [script.finish() for script in scripts] == [""] * 4
    for number in range(4):
        assert len(list(store.read(f"run{number}"))) == 20


SECOND_OBJECT = """
import os, sys
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore
me = Owner(os.getpid(), "", 0)
store = DiskStore(sys.argv[1])
epoch = store.acquire("run", me)
store.write("run", epoch, Batch(((1, b"1"),)))
other = DiskStore(sys.argv[1])
other.acquire("other", me)
print("opened")
sys.stdin.readline()
store.write("run", epoch, Batch(((2, b"2"),)))
print("written")
sys.stdin.readline()
"""


def test_a_second_object_keeps_the_locks_of_the_first(start, store, folder):
    """Opening a folder twice in a process leaves SQLite's locks on it as they are."""
    script = start(SECOND_OBJECT, folder)
    assert script.hear() == "opened"
    assert list(store.read("run")) == [(1, b"1")]
    store.close()  # would delete the other process's log if that were not locked
    script.tell()
    assert script.hear() == "written"
    script.kill()
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


def test_a_folder_that_is_deleted_while_in_use(begun, folder):
    """Deleting the folder under a run is a ``StoreError``; once it is given up all begins anew."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="deleted or replaced") as caught:
        store.write("run", epoch, records(2))
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, str(folder))
    with pytest.raises(LeaseLostError):
        store.write("run", epoch, records(2))
    store.release("run", epoch)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, records(1))
    assert list(store.read("run")) == [(1, b"1")]


def test_a_folder_that_is_deleted_while_idle(begun, folder):
    """A folder that is deleted between two runs is made again."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.release("run", epoch)
    shutil.rmtree(folder)
    assert list(store.read("run")) == []
    assert store.acquire("run", ME) == 1
    assert list(store.read("run")) == []


# -- asyncio, signals, fork ----------------------------------------------------------------------


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
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore

reopening = sys.argv[2] == "reopening"
store = DiskStore(sys.argv[1])
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
def test_a_storm_of_interrupts(start, store, folder, how, tally):
    """After hundreds of Ctrl-C in the midst of writes all that was written is there."""
    count = size(400, 6000)
    script = start(STORM, folder, how, count)
    last, open_transaction = script.finish().split("\n")
    expected = [(number, b"%d" % number) for number in range(1, int(last) + 1)]
    assert list(store.read("run")) == expected
    assert int(store.get("run", "newest")) in (int(last), int(last) - 1)
    assert open_transaction == "False"
    assert store.acquire("run", ME) == 2
    tally("Ctrl-C during a call of the store", count)


LEASE_STORM = """
import os, random, signal, sys, traceback
from stepwise._lease import Lease
from stepwise.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
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


def test_interrupted_leases(start, folder, tally):
    """Ctrl-C while a lease is being taken leaves it free."""
    count = size(300, 4000)
    assert start(LEASE_STORM, folder, count).finish() == ""
    tally("Ctrl-C during a call of the store", count)


def test_a_lease_that_nobody_has(store):
    """A lease that never reached a variable, since Ctrl-C came between, is free at once."""
    with contextlib.suppress(KeyboardInterrupt):
        interrupted(Lease(store, "run").acquire())
    assert store.owner("run") is None


def interrupted(value):
    raise KeyboardInterrupt


FORK = """
import os, sys, threading, traceback
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
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


def test_fork_while_a_thread_writes(start, store, folder, tally):
    """A child forked amid another thread's writes does not hang, and can write itself."""
    count = size(40, 150)
    written = int(start(FORK, folder, count).finish())
    assert [number for number, _ in store.read("parent")] == list(range(1, written + 1))
    for number in range(count):
        assert list(store.read(f"child{number}")) == [(1, b"1")]
    tally("a fork while a thread writes", count)
    assert edit(store, "PRAGMA integrity_check") == [("ok",)]


MEMORY_FORK = """
import os, signal, sys, threading
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


def test_fork_while_a_thread_uses_a_memory_store(start):
    """A child forked while another thread is inside a memory store can use its copy."""
    assert start(MEMORY_FORK).finish() == "0"


# -- the lease -----------------------------------------------------------------------------------

HOLDER = """
import os, signal, socket, sys, time
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore
store = DiskStore(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), socket.gethostname(), 42.0, "thread main"))
store.write("run", epoch, Batch(((1, b"1"),)))
"""


def test_a_killed_owner_is_succeeded_at_once(start, store, folder):
    """The lease of a process that was killed with -9 is free at once, under a higher epoch."""
    script = start(HOLDER + "print(epoch); sys.stdin.readline()", folder)
    assert script.hear() == "1"
    script.kill()
    assert store.owner("run") is None
    assert store.acquire("run", ME) == 2
    assert list(store.read("run")) == [(1, b"1")]


def test_a_living_owner_is_named(start, store, folder):
    """While a process has the lease, another one is told its process, machine and since when."""
    script = start(HOLDER + "print(epoch); sys.stdin.readline()", folder)
    script.hear()
    with pytest.raises(RunOwnedError) as caught:
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
    lease.release()


def test_a_living_owner_here_is_named(store):
    """A second call in the same process is told the thread that has the run."""
    lease = Lease(store, "run").acquire()
    with pytest.raises(RunOwnedError, match="by this process, in thread MainThread"):
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


def test_a_forked_child_has_no_lease(start, store, folder):
    """A forked child neither inherits the lease, nor can give it up, nor keeps it as an orphan."""
    script = start(FORKED_HOLDER, folder)
    kind, owner, child = script.hear().split()
    assert (kind, int(owner)) == ("RunOwnedError", script.pid)
    assert store.owner("run").pid == script.pid
    script.kill()
    os.kill(int(child), 0)  # the orphan lives
    assert store.owner("run") is None
    assert store.acquire("run", ME) == 2


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
    one.close()
    two.close()


def test_an_owner_whose_lock_file_vanished(start, store, folder):
    """If the lock file is deleted, the run can be taken over, and its old owner writes no more."""
    late = """
print(epoch)
sys.stdin.readline()
try:
    store.write("run", epoch, Batch(((2, b"late"),), {"a": b"late"}, mark=b"late" * 10))
except BaseException as error:
    print(type(error).__name__)
"""
    script = start(HOLDER + late, folder)
    script.hear()
    (folder / "leases").unlink()
    assert store.acquire("run", ME) == 2
    script.tell()
    assert script.finish() == "LeaseLostError"
    assert list(store.read("run")) == [(1, b"1")]
    assert store.get("run", "a") is None
    assert store.marks("run") == []


ASKING = """
try:
    store.acquire("run", Owner(os.getpid(), "", 0))
except BaseException as error:
    print(type(error).__name__)
"""


def test_leases_follow_a_new_lock_file(start, begun, folder):
    """After the folder was deleted and made again, leases exclude other processes as before."""
    store, epoch = begun
    store.release("run", epoch)
    shutil.rmtree(folder)
    assert store.acquire("run", ME) == 1
    script = start(HOLDER.replace('"run"', '"other"') + ASKING, folder)
    assert script.finish() == "RunOwnedError"


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
        thread.join(1)  # it may have to wait for this write
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
from stepwise.stores import Batch, Head, Owner
from stepwise.stores.disk import DiskStore
store = DiskStore(sys.argv[1])
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


def test_kill_in_the_midst_of_writing(start, store, folder):
    """After kill -9 at any moment all acknowledged batches are there, and no part of another."""
    written = 0
    for acknowledged in (1, 4, 9, 23, 40):
        script = start(WRITER, folder, written)
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
    store._rows._con.execute("PRAGMA query_only=1")
    with pytest.raises(StoreError, match="make it writable") as caught:
        store.write("run", epoch, records(2))
    assert (caught.value.errno, caught.value.path) == (errno.EROFS, str(folder))
    assert list(store.read("run")) == [(1, b"1")]
    store._rows._con.execute("PRAGMA query_only=0")
    store.write("run", epoch, records(2))
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


def test_a_database_that_somebody_locks(begun, folder, monkeypatch):
    """A database that another program keeps locked is a ``StoreError``; afterwards all goes on."""
    store, epoch = begun
    store.close()
    monkeypatch.setattr(_transactions, "BUSY_SECONDS", 0.01)
    store.write("run", epoch, records(1))
    other = sqlite3.connect(folder / "cache.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process kept it locked") as caught:
        store.write("run", epoch, records(2))
    assert (caught.value.errno, caught.value.path) == (errno.EAGAIN, str(folder))
    assert list(store.read("run")) == [(1, b"1")]
    other.close()
    store.write("run", epoch, records(2))
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]


FAILING_DISK = """
import errno, os, resource, signal, sys
from stepwise import StoreError
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore
store = DiskStore(sys.argv[1])
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
    first, second = start(FAILING_DISK, folder).finish().split("\n")
    assert first == f"EIO {folder}"
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
    start(HOLDER, small_disk / "store").finish()  # a process keeps its lock file open
    store = DiskStore(small_disk / "store")
    command = ["mount", "-o", "remount,ro", str(small_disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot remount")
    with pytest.raises(StoreError) as caught:
        store.acquire("run2", ME)
    assert caught.value.errno == errno.EROFS


# -- fresh_store ---------------------------------------------------------------------------------


def double():
    calls = []

    @stepwise.step
    def work(x):
        calls.append(x)
        return 2 * x

    @stepwise.workflow
    def agent(x):
        return work(x)

    return agent, calls


def test_a_fresh_store_knows_nothing(tmp_path):
    """Each block has a store that is empty, and does what a new process would do."""
    agent, calls = double()
    ids = set()
    for _ in range(3):
        with fresh_store() as store:
            assert agent(1) == 2
            assert [run.status for run in stepwise.runs()] == ["completed"]
            ids |= {head.run_id for head in store.heads()}
    assert calls == [1, 1, 1]
    assert len(ids) == 1


def test_a_fresh_store_on_disk_outlives_its_block(tmp_path):
    """Two blocks with one folder are a program and its next start."""
    agent, calls = double()
    for _ in range(2):
        with fresh_store(tmp_path / "runs"):
            assert agent(1) == 2
    assert calls == [1]
    with fresh_store(tmp_path / "runs"):
        assert len(list(stepwise.runs())) == 1


def test_after_the_block_all_is_as_before(home):
    """The store, strictness and memory that were set before the block hold again after it."""
    agent, calls = double()
    stepwise.configure(store="memory:mine", strict=False)
    before = vars(stepwise._config._settings).copy()
    agent(1)
    with pytest.raises(ZeroDivisionError), fresh_store():
        stepwise.configure(store="memory:other", quiet=True)
        agent(1)
        raise ZeroDivisionError
    assert vars(stepwise._config._settings) == before
    agent(1)
    assert len(list(stepwise.runs())) == 2
    assert calls == [1, 1, 1]
    assert not home.exists()


def test_blocks_nest():
    """An inner block has a store of its own, and the outer one's comes back after it."""
    with fresh_store() as outer:
        with fresh_store() as inner:
            assert open_store(stepwise._config.store()) is inner
        assert open_store(stepwise._config.store()) is outer is not inner


def test_a_decorated_function_has_a_fresh_store():
    """Decorated, a function and a coroutine function have a new store in each call."""

    @fresh_store()
    def look(x, *, y):
        """Doc."""
        return x, y, stepwise._config.store()

    @fresh_store()
    async def look_later(x):
        await asyncio.sleep(0)
        return x, stepwise._config.store()

    assert (look.__name__, look.__doc__) == ("look", "Doc.")
    assert asyncio.iscoroutinefunction(look_later)
    one, two = look(1, y=2), look(1, y=2)
    assert one[:2] == (1, 2)
    assert one[2] is not two[2]
    assert asyncio.run(look_later(1))[1].url.startswith("memory:")
    assert stepwise._config._settings.store is None


def test_the_test_tools_do_not_need_pytest(start):
    """Importing ``stepwise.testing`` imports no pytest."""
    source = "import sys, stepwise.testing; print('pytest' in sys.modules)"
    assert start(source).finish() == "False"
