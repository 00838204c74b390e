"""What the ``sqlite:`` store adds to the contract: few pages, and rows that lead nowhere else."""

from __future__ import annotations

import os

import pytest
from store_tools import LARGE, ME, edit, pages_written, records, step_of, use_all_of

import stepwise
from stepwise import CorruptStoreError, StoreError
from stepwise.stores import Batch, Head, open_store, sqlite
from stepwise.stores.disk import DiskStore
from stepwise.stores.sqlite import SqliteStore


@pytest.fixture
def kind():
    return SqliteStore


def test_a_step_writes_two_pages(begun):
    """A record of 1.5 KB and a checkpoint, with the older one gone, write two pages and a half."""
    store, epoch = begun
    assert pages_written(store, step_of(store, epoch, 1500)) < 2.6


def test_rows_fill_their_pages(begun):
    """Records of 2.5 KB, and objects whose names end in numbers, take little more than that."""
    store, epoch = begun
    for number in range(1, 301):
        data = os.urandom(2500)
        batch = Batch(((number, data),), {f"piece/{number}": data}, durable=False)
        store.write("run", epoch, batch)
    store.close()
    assert os.path.getsize(store._database) < 1.15 * 2 * 300 * 2500


@pytest.mark.parametrize("large", [b"", LARGE], ids=["small", "large"])
def test_objects_that_share_a_place(begun, folder, monkeypatch, large):
    """Names that lead to the same place are told apart, whatever is replaced and deleted."""
    monkeypatch.setattr(sqlite, "_place", lambda name: 7)
    store, epoch = begun
    expected = {}
    for step, name in enumerate("abcabacbbca"):
        data = b"%d" % step + large
        delete = tuple({"a", "b"} - {name})[: step % 2]
        store.write("run", epoch, Batch(put={name: data}, delete=delete))
        expected[name] = data
        for each in delete:
            expected.pop(each, None)
        assert {each: store.get("run", each) for each in store.names("run")} == expected
        assert len(list(folder.rglob("*.val"))) == len(expected) * bool(large)
    store.delete("run", epoch)
    assert store.names("run") == []
    assert list(folder.rglob("*.val")) == []


@pytest.mark.parametrize(
    "name", ["c/1", "c/01", "c/99999999999999999999", "1" * 5000, "c", "", "0"]
)
def test_names_with_numbers(begun, name):
    """A name may end in any number of digits, or be nothing else."""
    store, epoch = begun
    others = {"c/1 ": b"x", "c/9": b"y"}
    store.write("run", epoch, Batch(put={name: b"data", **others}))
    assert store.get("run", name) == b"data"
    assert store.names("run") == sorted([name, *others])


@pytest.mark.parametrize("data", ["'text'", "'aa/bb/../../secret 6'", "1", "1.5", "NULL", "x'00'"])
def test_a_row_that_was_changed(begun, tmp_path, data):
    """A value that somebody changed is damaged, and no file but the store's own is touched."""
    store, epoch = begun
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    batch = Batch(((1, b"1"), (2, LARGE)), {"a": b"a"}, head=Head("run", "flow", False, b"h"))
    store.write("run", epoch, batch)
    store.release("run", epoch)
    edit(store, f"UPDATE records SET data = {data}")
    edit(store, f"UPDATE objects SET data = {data}")
    edit(store, f"UPDATE runs SET head = {data}, lease = {data}")
    bad = b"\0" if data == "x'00'" else b""
    assert list(store.read("run")) == [(1, bad), (2, bad)]
    assert store.get("run", "a") == bad
    use_all_of(store)
    assert secret.read_bytes() == b"secret"


def test_an_index_that_leads_astray(begun):
    """Where the index of runs leads to another run, it is damage: no run is taken for another."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    store.acquire("other", ME)
    one, two = (key for (key,) in edit(store, "SELECT hash FROM runs ORDER BY id"))
    ((root,),) = edit(store, "SELECT rootpage FROM sqlite_schema WHERE name = 'runs'")
    with open(store._database, "r+b") as file:
        file.seek((root - 1) * 8192)
        page = file.read(8192)
        file.seek((root - 1) * 8192)
        file.write(page.replace(one, b"?" * 16).replace(two, one).replace(b"?" * 16, two))
    with pytest.raises(CorruptStoreError, match="points to another run"):
        list(store.read("run"))


def test_a_newer_format(begun):
    """A store that a newer version made says so, and is left as it is."""
    store, epoch = begun
    store.write("run", epoch, records(1))
    edit(store, "PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="format 2"):
        store.read("run").__next__()
    edit(store, "PRAGMA user_version = 1")
    assert list(store.read("run")) == [(1, b"1")]


def test_both_stores_in_one_folder(folder):
    """A ``disk:`` and a ``sqlite:`` store in one folder know nothing of each other's runs."""
    stores = open_store(f"disk:{folder}"), open_store(f"sqlite:{folder}")
    assert [type(store) for store in stores] == [DiskStore, SqliteStore]
    for data, store in zip((b"1", b"2"), stores, strict=True):
        epoch = store.acquire("run", ME)
        store.write("run", epoch, Batch(((1, data),), {"a": data}, mark=data * 40))
        store.release("run", epoch)
    for data, store in zip((b"1", b"2"), stores, strict=True):
        assert list(store.read("run")) == [(1, data)]
        assert store.get("run", "a") == data
        assert [mark.rstrip(b"\0") for mark in store.marks("run")] == [data * 40]


def test_a_workflow_in_a_sqlite_store(folder):
    """A run in a store chosen by ``sqlite:`` is found, shown and not repeated."""
    calls = []

    @stepwise.step
    def work(n):
        calls.append(n)
        return 2 * n

    @stepwise.workflow(store=f"sqlite:{folder}")
    def agent(n):
        return [work(each) for each in range(n)]

    assert agent.options(run_id="one")(3) == [0, 2, 4]
    assert agent.options(run_id="one")(3) == [0, 2, 4]
    assert calls == [0, 1, 2]
    stepwise.configure(store=f"sqlite:{folder}")
    assert [run.id for run in stepwise.runs()] == ["one"]
