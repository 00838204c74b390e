"""What the ``disk:`` store does about the hazards of diskcache: eviction, pickles, settings."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import sys
import threading

import diskcache
import pytest
from diskcache import core
from harness import interpreted
from store_tools import ME, edit, pages_written, pragma, records, step_of, use_all_of

from stepwise import StoreError
from stepwise.stores import Batch, Head, _rows, disk
from stepwise.stores._cache import ByteCache
from stepwise.stores.base import FORMAT, LAST_READER, LAST_READERS
from stepwise.stores.disk import DiskStore

# -- eviction, settings ------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "while open"])
def test_nothing_is_evicted(store, folder, when):
    """Past the limits of size that another opener left in the database, every record stays."""
    epoch = store.acquire("run", ME)
    if when == "before":
        store.release("run", epoch)
        store.close()
    diskcache.Cache(
        str(folder), size_limit=1, cull_limit=100, eviction_policy="least-recently-stored"
    ).close()
    if when == "before":
        epoch = store.acquire("run", ME)
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


def test_diskcache_opens_a_store(begun, folder):
    """Diskcache finds and counts every value in a store; one that it has opened goes on."""
    store, epoch = begun
    store.write("run", epoch, Batch(((1, b"1"), (2, b"2")), {"a": b"a"}))
    store.close()
    with diskcache.Cache(str(folder)) as cache:
        values = {key[0]: cache[key] for key in cache}
        assert (values["r"], values["o"]) == (b"2", b"a")
        cache["r/other"] = b"not ours"
    assert list(store.read("run")) == [(1, b"1"), (2, b"2")]
    epoch = store.acquire("run", ME)
    assert pages_written(store, step_of(store, epoch, 1500)) < 8
    store.close()
    with diskcache.Cache(str(folder)) as cache:
        assert len(cache) == len(list(cache))


def test_a_made_store_opens_without_diskcache(begun):
    """A store in good order opens without diskcache; a changed one is repaired by it."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.close()
    code = f"""
import sys
from stepwise.stores.disk import DiskStore
store = DiskStore({str(store.path)!r})
assert [data for _, data in store.read("run")] == [b"1"]
assert ("diskcache" in sys.modules) == (len(sys.argv) > 1)
"""
    interpreted("-c", code)
    edit(store, "UPDATE Settings SET value = 10 WHERE key = 'cull_limit'")
    interpreted("-c", code, "loaded")
    interpreted("-c", code)


def test_the_settings_are_all_of_diskcache():
    """The store names each setting of a cache, its metadata and its modes as diskcache does."""
    assert _rows._OF_CACHE.keys() == core.DEFAULT_SETTINGS.keys()
    assert core.METADATA.keys() == _rows._METADATA
    assert (core.MODE_RAW, core.MODE_BINARY) == (_rows.MODE_RAW, _rows.MODE_BINARY)


# -- tampered rows -------------------------------------------------------------------------------


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@pytest.mark.parametrize("letter", "rohl")
@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, None, b"1"])
def test_nothing_is_unpickled(begun, tmp_path, letter, mode):
    """A row that was changed into somebody's pickle is never loaded, whatever row it is."""
    store, epoch = begun
    head = Head("run", "flow", False, b"head")
    store.write("run", epoch, Batch(((1, b"1"),), {"a": b"a"}, head=head))
    store.release("run", epoch)
    payload = pickle.dumps(Payload(tmp_path / "canary"))
    (tmp_path / "store" / "payload").write_bytes(payload)
    sql = "UPDATE Cache SET mode = ?, value = ?, filename = 'payload' WHERE key LIKE ?"
    if letter == "h":
        edit(store, "UPDATE Heads SET words = ?, value = ?", mode, payload)
    edit(store, sql, mode, payload, f"{letter}/%")
    found = {"r": lambda: next(store.read("run"))[1], "o": lambda: store.get("run", "a")}
    if letter in found:
        assert found[letter]() == (payload if mode == 1 else b"")
    use_all_of(store)
    assert not (tmp_path / "canary").exists()


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
        b"\x00\xff",  # a BLOB
    ],
)
def test_no_file_outside_is_touched(begun, tmp_path, name):
    """A row that names a file elsewhere neither reads nor deletes it, and can be replaced."""
    store, epoch = begun
    secret = tmp_path / "secret.val"
    secret.write_bytes(b"secret")
    batch = Batch(((1, b"1"), (2, b"2")), {"a": b"a", "b": b"b"})
    store.write("run", epoch, batch)
    sql = "UPDATE Cache SET mode = 2, value = NULL, filename = ? WHERE key LIKE 'r/%' OR key LIKE ?"
    edit(store, sql, name.format(outside=tmp_path) if type(name) is str else name, "o/%")
    assert [data for _, data in store.read("run")] == [b"", b""]
    assert [store.get("run", each) for each in "ab"] == [b"", b""]
    store.write("run", epoch, Batch(((2, b"2"),), {"a": b"a"}, ("b",), prune=1))
    assert [*store.read("run")] == [(2, b"2")]
    store.delete("run", epoch)
    assert secret.read_bytes() == b"secret"
    assert {"cache.db", "leases"} <= set(os.listdir(store.path))


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


def test_another_format_that_cannot_be_written(begun, monkeypatch):
    """The refusal names the store, not the copy that is read where nothing can be written."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.release("run", epoch)
    edit(store, "PRAGMA user_version = 2")
    monkeypatch.setattr(disk, "unwritable", lambda _: errno.EROFS)
    with pytest.raises(StoreError, match=f"the store disk:{store.path} is of format 2") as refused:
        list(DiskStore(store.path).read("run"))
    assert refused.value.path == f"disk:{store.path}"
    monkeypatch.undo()
    edit(store, f"PRAGMA user_version = {FORMAT}")


@pytest.mark.parametrize("found", [0, 2, 3, 4, 5, 99])
def test_another_format(begun, found):
    """A store of another format is refused, left as it is, and the way out is said."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.release("run", epoch)
    edit(store, f"PRAGMA user_version = {found}")
    reader = LAST_READERS.get(found, LAST_READER)
    way_out = (
        "newer version" if found == 99 else f"commit {reader} .* is the last one that reads it"
    )
    for use in (lambda: list(store.read("run")), lambda: store.acquire("run", ME)):
        with pytest.raises(
            StoreError, match=f"of format {found}.*reads format {FORMAT}: .*{way_out}"
        ):
            use()
    edit(store, f"PRAGMA user_version = {FORMAT}")
    assert list(store.read("run")) == [(1, b"1")]


def test_unfinished_runs_are_not_sorted(begun):
    """A look at the newest unfinished runs costs the same, however many of them there are."""
    store, _ = begun
    for workflow in (None, "flow"):
        sql, parameters = _rows.WantedHeads(workflow, True, newest=True).query((7,))
        plan = edit(store, f"EXPLAIN QUERY PLAN {sql}", *parameters, 1)
        assert "Heads_" in str(plan)
        assert "ORDER BY" not in str(plan)


# -- pages -----------------------------------------------------------------------------------------


def test_a_page_of_large_records_is_bounded(store, monkeypatch):
    """However small the first records are, a reader holds a few MB of the large ones at a time."""
    epoch, pages, page = store.acquire("run", ME), [], _rows.Rows.page

    def noted(rows, *where):
        found = page(rows, *where)
        pages.append(sum(len(data) for _, data in found[0]))
        return found

    monkeypatch.setattr(_rows.Rows, "page", noted)
    store.write("run", epoch, records(1))
    for number in range(2, 41):
        batch = Batch(((number, bytes(1_000_000)),), durable=False)
        store.write("run", epoch, batch)
    assert [number for number, _ in store.read("run")] == [*range(1, 41)]
    assert [number for number, _ in store.read("run", after=1)] == [*range(2, 41)]
    assert 1_000_000 <= max(pages) < 5_000_000


@pytest.mark.skipif(sys.version_info < (3, 13), reason="earlier Pythons close it without a warning")
@pytest.mark.filterwarnings("always::ResourceWarning")
def test_the_connection_of_a_cache_is_closed_with_its_thread(tmp_path, recwarn):
    """A thread that has used the cache leaves no open connection behind, nor does the cache."""
    cache = ByteCache(str(tmp_path / "cache"))
    thread = threading.Thread(target=cache.put, args=("key", b"data", 10**6, None))
    thread.start()
    thread.join()
    assert cache.get("key") == b"data"
    del cache, thread
    gc.collect()
    assert not [each for each in recwarn if "unclosed database" in str(each.message)]
