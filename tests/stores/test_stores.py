"""The contract of stores, and what the stores in a folder do about files and who may use them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_tools import LARGE, ME, files, linux, log_files, pragma, records

from stepwise import ConfigurationError, LeaseLostError, StoreError
from stepwise.stores import Batch, Head, _files, open_store
from stepwise.stores._rows import hashed
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore
from stepwise.testing import StoreContract


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path):
        return MemoryStore()


class TestDiskStore(StoreContract):
    def make_store(self, tmp_path):
        return DiskStore(tmp_path / "store")

    def reopen(self, store):
        store.close()
        return DiskStore(store.path)


# -- durability, cost ----------------------------------------------------------------------------


def test_what_must_last_is_flushed(begun):
    """A durable batch of the database is committed with synchronous=FULL, another with NORMAL."""
    store, epoch = begun
    for durable, level in ((True, 2), (False, 1), (True, 2)):
        store.write("run", epoch, Batch(((1, b"1"),), prune=1, durable=durable))
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


def found(store):
    return {name: store.get("run", name) for name in store.names("run")}


@pytest.mark.parametrize("mark", [b"", b"mark"])
def test_what_was_put_beside_the_database_is_there_once(begun, mark):
    """What a transaction took along is in the database only: an owner that deletes it sees none."""
    store, epoch = begun
    for name in ("a", "b"):  # neither takes the place of the other
        store.write("run", epoch, Batch(put={name: b"beside"}, durable=False))
    for _ in range(2):  # the next owners have both
        store.release("run", epoch)
        epoch = store.acquire("run", ME)
        assert found(store) == {"a": b"beside", "b": b"beside"}
    store.write("run", epoch, Batch(((1, b"1"),), mark=mark))
    store.write("run", epoch, Batch(((2, b"2"),), delete=("a", "b")))
    assert found(store) == {}
    assert store.get("run", "a") is None


def test_objects_come_and_go_at_once(begun):
    """A batch puts its objects, then deletes what it names, small and large, durable or not."""
    store, epoch = begun
    chance, expected = random.Random(0), {}
    for number in range(120):
        names = chance.sample(["a", "b", "c/1", "c/2", "c/3"], 5)
        put = dict.fromkeys(names[: number % 3], b"%d" % number + LARGE * (number % 8 == 7))
        delete = tuple(chance.sample([*names, "never"], 2))
        if lasts := number % 4 == 0:
            put = {}
        records = ((number + 1, b"x"),) if lasts else ()
        store.write("run", epoch, Batch(records, put, delete * (number % 2), durable=lasts))
        expected |= put
        if number % 2:
            expected = {name: data for name, data in expected.items() if name not in delete}
        if number % 30 == 29:
            store.release("run", epoch)
            epoch = store.acquire("run", ME)
        assert found(store) == expected


def test_the_first_record_is_read_alone(begun):
    """Who reads one record of many has no others fetched."""
    store, epoch = begun
    store.write("run", epoch, records(*range(1, 101)))
    statements = []
    store._rows._con.set_trace_callback(statements.append)
    assert next(store.read("run", after=49)) == (50, b"50")
    (statement,) = [each for each in statements if "LIMIT" in each]  # another one is of the lease
    assert statement.endswith("LIMIT 1")


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


DAMAGES = {
    "missing": os.unlink,
    "empty": lambda file: os.truncate(file, 0),
    "cut off": lambda file: os.truncate(file, 1000),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"more"),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a loop": lambda file: (file.unlink(), file.symlink_to(file)),
    "in no folder": lambda file: (shutil.rmtree(file.parent), file.parent.write_bytes(b"")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_value_that_is_not_whole_is_empty(begun, folder, damage):
    """A value whose file is missing, cut off, or no such file comes back as ``b""``."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, LARGE), (2, b"2")), {"a": LARGE}))
    for file in files(folder, "*.val"):
        DAMAGES[damage](file)
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
    """No file of a large value outlives its record or object, or a batch that fails."""
    store, epoch = begun
    for value in (LARGE, LARGE[1:]):
        store.write("run", epoch, Batch(((1, value), (2, value)), {"a": value, "b": value}))
    assert len(files(folder, "*.val")) == 4
    with pytest.raises(TypeError):
        store.write("run", epoch, Batch(((3, LARGE), (4, None))))
    assert len(files(folder, "*.val")) == 4
    store.write("run", epoch, Batch(prune=1, delete=("a",)))
    assert len(files(folder, "*.val")) == 2
    store.delete("run", epoch)
    assert files(folder, "*.val") == []


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
    for number in (3, 4):
        store.write("run", epoch, Batch(((number, b"x"),)))
    (log,) = log_files(folder)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files(folder)}
    database = {f"cache.db{end}" for end in ("", "-wal", "-shm")}
    assert {path.name for path in modes} >= {*database, "leases"}
    assert [path for path, mode in modes.items() if mode != 0o600] == []
    for inner in (folder / "marks", files(folder, "*.val")[0].parent, log.parent):
        assert stat.S_IMODE(inner.stat().st_mode) == 0o700
    assert [each for each in folder.iterdir() if each.stat().st_mode & 0o022] == []
    assert stat.S_IMODE(folder.stat().st_mode) == (0o755 if exists else 0o700)


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


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write(folder, monkeypatch, mode):
    """A folder that others may write is refused with the command that mends it, then used."""
    monkeypatch.setattr("stepwise._runtime.system_limits._is_private", lambda _: False)
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StoreError, match=f"chmod go-w {folder}"):
        DiskStore(folder).acquire("run", ME)
    assert os.listdir(folder) == []
    folder.chmod(0o755)
    store = DiskStore(folder)
    assert store.acquire("run", ME) == 1


@pytest.mark.parametrize("what", ["link", "shared"])
@pytest.mark.parametrize("name", ["marks", "logs", "cache.db"])
def test_what_others_have_put_into_a_folder(folder, tmp_path, name, what):
    """Links, and files that others may write, are refused in the place of the store's own."""
    folder.mkdir()
    folder.chmod(0o1777)  # others may add files, and replace none of another user
    there, mine = folder / name, tmp_path / "mine"
    mine.mkdir() if name != "cache.db" else mine.write_bytes(b"")
    if what == "link":
        there.symlink_to(mine)
    else:
        mine.rename(there)
        there.chmod(0o666)
    with pytest.raises(StoreError, match=f"{there} is not trusted"):
        DiskStore(folder).acquire("run", ME)
    assert os.listdir(folder) == [there.name]
    assert what == "shared" or name == "cache.db" or os.listdir(mine) == []


def test_a_link_in_the_place_of_a_mark(folder, tmp_path):
    """A mark is not written through a link to another file."""
    folder.mkdir()
    marks, mine = folder / "marks", tmp_path / "mine"
    marks.mkdir()
    mine.write_bytes(b"precious")
    (marks / hashed("run")).symlink_to(mine)
    store = DiskStore(folder)
    epoch = store.acquire("run", ME)
    with pytest.raises(StoreError):
        store.write("run", epoch, Batch(((1, b"x"),), mark=b"m" * 64))
    assert mine.read_bytes() == b"precious"


def test_folders_above_a_new_one(tmp_path, permissive):
    """Others may not write to the folders that are made above a new store."""
    DiskStore(tmp_path / "a" / "b" / "store").acquire("run", ME)
    assert [path.stat().st_mode & 0o022 for path in (tmp_path / "a", tmp_path / "a/b")] == [0, 0]


def test_a_variable_in_the_path(tmp_path, monkeypatch):
    """A path that names an environment variable is refused, also one that is set only later."""
    monkeypatch.delenv("SOMEWHERE", raising=False)
    store = DiskStore(tmp_path / "$SOMEWHERE")
    monkeypatch.setenv("SOMEWHERE", "else")
    with contextlib.suppress(ConfigurationError, StoreError):
        store.acquire("run", ME)
    assert not (tmp_path / "else").exists()
    for name in ("$SOMEWHERE", "a${SOMEWHERE}b"):
        with pytest.raises(ConfigurationError, match="environment variable"):
            DiskStore(tmp_path / name)


@pytest.mark.parametrize("name", ["share", "my share"])
@pytest.mark.parametrize(
    "system",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.glusterfs", "afs", "lustre", "ceph"],
)
def test_a_network_file_system(tmp_path, monkeypatch, system, name):
    """A folder on a network file system is refused, unless STEPWISE_ALLOW_NETWORK=1 is set."""
    pretend_mounts(monkeypatch, (tmp_path / name, system))
    store = DiskStore(tmp_path / name / "store")
    with pytest.raises(StoreError, match="network file system") as caught:
        store.acquire("run", ME)
    assert caught.value.errno == errno.ENOTSUP
    assert f"({system})" in str(caught.value)
    monkeypatch.setenv("STEPWISE_ALLOW_NETWORK", "1")
    assert store.acquire("run", ME) == 1


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

    monkeypatch.setattr(_files, "open", opened, raising=False)


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


@pytest.mark.parametrize("url", ["mysql://host/db", "disk:", "disk://"])
def test_unknown_urls(url):
    """A URL of an unknown kind, or without a path, is refused with an example of a right one."""
    with pytest.raises(ConfigurationError, match="disk:/path/to/folder"):
        open_store(url)


@linux
def test_closing_closes_every_file(begun, folder):
    """A closed store has no file open but its lock files, which a process keeps."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, LARGE),), mark=b"m" * 40))
    store.close()
    found = {path.name for path in open_files() if folder in path.parents}
    assert found <= {"leases", "locks"}


def open_files():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [Path(os.readlink(link)) for link in links if os.path.lexists(link)]


@linux
def test_one_connection_for_all_threads(begun):
    """Threads share one connection, so that no two of a process write and checkpoint at once."""
    store, _ = begun

    def work(name):
        store.write(name, store.acquire(name, ME), records(1))
        return len(list(store.read(name)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, "abcd")) == [1] * 4
    # Each connection opens the log once; the guard of the locks has the database open, too.
    assert open_files().count(Path(f"{store._database}-wal")) == 1


OPENER = """
import os, sys
from stepwise.stores import Batch, Owner, open_store
print("ready")
sys.stdin.readline()
store = open_store(sys.argv[1])
epoch = store.acquire(sys.argv[2], Owner(os.getpid(), "", 0))
for number in range(1, 21):
    store.write(sys.argv[2], epoch, Batch(((number, b"x"),)))
"""


def test_processes_open_a_new_store_at_once(fork, store):
    """Processes that start together make one store, and each writes to it."""
    scripts = [fork(OPENER, store.url, f"run{number}") for number in range(4)]
    for script in scripts:
        assert script.hear() == "ready"
    for script in scripts:
        script.tell()
    assert [script.finish() for script in scripts] == [""] * 4
    for number in range(4):
        assert len(list(store.read(f"run{number}"))) == 20


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


# -- which store ---------------------------------------------------------------------------------


def test_a_store_that_wraps_another():
    """A store that hands everything on to another one is a store."""

    class Wrapping:
        def __getattr__(self, name):
            return getattr(wrapped, name)

    wrapped = MemoryStore()
    store = Wrapping()
    assert open_store(store) is store


@pytest.mark.parametrize("where", [5, None, object()])
def test_what_is_no_store(where):
    """What is neither a URL nor a path nor a store is refused, by its type and what it lacks."""
    with pytest.raises(
        ConfigurationError, match=rf"{type(where).__name__} is not a store: it has no"
    ):
        open_store(where)
