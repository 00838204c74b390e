"""``stepwise.integrations.hive.HiveCheckpointStore`` beside (a stand-in of) hive's own store."""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from harness import Lab, python_path
from sweeping import some

import stepwise
from stepwise.errors import ConfigurationError, CorruptStoreError
from stepwise.integrations.hive import HiveCheckpointStore as CheckpointStore

HERE = pathlib.Path(__file__).parents[1]
ODD_IDS = [
    *("../x", "..", ".", "", "index", "Index", "a/b/c", "/etc/passwd", ".hidden", ".lock", "%2Fx"),
    *("50%", "nul\0byte", "line\nbreak", "tab\tand space ", "ünïcödé 漢字 🙂", "C:\\odd", "a.json"),
    *("x" * 246, "x" * 247, "y" * 5000, "漢" * 300),
]


@pytest.fixture(autouse=True)
def hive(monkeypatch):
    """Hive's package, as far as it is needed."""
    monkeypatch.syspath_prepend(str(HERE / "hive_stand_in"))
    monkeypatch.setenv("STEPWISE_QUIET", "1")
    yield
    for name in [each for each in sys.modules if each.split(".")[0] == "framework"]:
        del sys.modules[name]


@pytest.fixture
def store(tmp_path):
    """A store with the checkpoints ``one``, ``two``, ``three``."""
    found = CheckpointStore(tmp_path)
    for number, name in enumerate(("one", "two", "three")):
        run(found.save_checkpoint(made(name, day=10 + number)))
    return found


run = asyncio.run


def made(name="one", value=1, day=10, kind="node_complete", **more):
    """A checkpoint of hive's."""
    from framework.schemas.checkpoint import Checkpoint

    facts = {"session_id": "s", "created_at": f"2026-01-{day}T10:00:00", **more}
    return Checkpoint(
        checkpoint_id=name, checkpoint_type=kind, shared_memory={"value": value}, **facts
    )


def hives(path):
    """Hive's own store on the same folder."""
    from framework.storage.checkpoint_store import CheckpointStore as Hives

    return Hives(path)


def names(store, **filters):
    """The ids that the store lists."""
    return [each.checkpoint_id for each in run(store.list_checkpoints(**filters))]


def files(store):
    """The files of checkpoints and of the index, by name."""
    return sorted(store.checkpoints_dir.glob("*.json"))


# -- hive's methods --------------------------------------------------------------------------------


def test_save_and_load(store):
    """A checkpoint comes back as it was saved, by its id or as the latest."""
    saved = made("four", {"deep": [1, 2.5, None, "ü"]}, day=9, is_clean=False, extra="kept")
    run(store.save_checkpoint(saved))
    assert run(store.load_checkpoint("four")) == saved
    assert run(store.load_checkpoint()) == saved
    assert run(store.load_checkpoint("one")) == made("one")
    assert run(store.load_checkpoint("five")) is None


def test_a_copy_is_saved(store):
    """What happens to a checkpoint while it is being saved, or later, is not in it."""
    checkpoint = made("four", [1])

    async def change():
        saving = asyncio.create_task(store.save_checkpoint(checkpoint))
        await asyncio.sleep(0)
        checkpoint.shared_memory["value"].append(2)
        await saving

    run(change())
    assert run(store.load_checkpoint("four")).shared_memory == {"value": [1]}


def test_list(store):
    """Summaries are listed in the order of saving, by type and by whether they are clean."""
    run(store.save_checkpoint(made("four", kind="node_start", is_clean=False)))
    assert names(store) == ["one", "two", "three", "four"]
    assert names(store, checkpoint_type="node_start") == ["four"]
    assert names(store, is_clean=True) == ["one", "two", "three"]
    assert names(store, checkpoint_type="node_start", is_clean=True) == []
    assert run(store.load_index()).total_checkpoints == 4


def test_save_again(store):
    """A checkpoint of the same id takes the place of the first, and is the latest."""
    run(store.save_checkpoint(made("one", 2)))
    assert names(store) == ["two", "three", "one"]
    assert run(store.load_checkpoint()).shared_memory == {"value": 2}


def test_delete(store):
    """A deleted checkpoint is gone; the one before it is the latest; nothing is deleted twice."""
    assert run(store.delete_checkpoint("three"))
    assert not run(store.delete_checkpoint("three"))
    assert not run(store.checkpoint_exists("three"))
    assert run(store.checkpoint_exists("two"))
    assert run(store.load_checkpoint()).checkpoint_id == "two"
    assert names(store) == ["one", "two"]


def test_prune(tmp_path):
    """Pruning deletes what is older than so many days; hive's local times and others alike."""
    store, now = CheckpointStore(tmp_path), datetime.now(timezone.utc)
    ages = {"old": now - timedelta(days=8), "young": now - timedelta(days=6)}
    for name, when in ages.items():
        run(store.save_checkpoint(made(name, created_at=when.isoformat())))
        local = when.astimezone().replace(tzinfo=None).isoformat()
        run(store.save_checkpoint(made(f"{name} local", created_at=local)))
    run(store.save_checkpoint(made("undated", created_at="soon")))
    assert run(store.prune_checkpoints(max_age_days=7)) == 2
    assert names(store) == ["young", "young local", "undated"]
    assert run(store.prune_checkpoints()) == 0


def test_an_empty_folder(tmp_path):
    """Where nothing was saved, nothing is found, and nothing is made."""
    store = CheckpointStore(tmp_path / "none")
    assert run(store.load_checkpoint()) is None
    assert run(store.load_index()) is None
    assert run(store.list_checkpoints()) == []
    assert run(store.prune_checkpoints()) == 0
    assert not run(store.delete_checkpoint("x"))
    assert run(store.verify_checkpoint("x")) is None
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder(tmp_path, monkeypatch):
    """By default the files are under ``$HOME/.hive``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run(CheckpointStore().save_checkpoint(made()))
    assert sorted(path.name for path in (tmp_path / ".hive/checkpoints").glob("*.json")) == [
        "index.json",
        "one.json",
    ]


def test_wrong_use(tmp_path, monkeypatch):
    """An unknown ``on_corrupt`` is refused, and another version of hive with what is supported."""
    with pytest.raises(ConfigurationError, match="'none', 'raise' or 'fallback'"):
        CheckpointStore(tmp_path, on_corrupt="ignore")
    monkeypatch.setitem(sys.modules, "framework.schemas.checkpoint", None)
    known = r"a version of hive that is not known.*v0\.5\.1 to v0\.11\.0"
    with pytest.raises(ConfigurationError, match=known):
        CheckpointStore(tmp_path)


def test_odd_ids(tmp_path):
    """Any text is an id: it is saved inside the folder, found, and deleted; no other is touched."""
    store, left = CheckpointStore(tmp_path / "session"), [*ODD_IDS]
    for each in ODD_IDS:
        run(store.save_checkpoint(made(each, each)))
    assert names(store) == ODD_IDS
    for name in ODD_IDS:
        assert run(store.load_checkpoint(name)) == made(name, name)
        assert run(store.verify_checkpoint(name)) == "verified"
        assert run(store.delete_checkpoint(name))
        assert not run(store.checkpoint_exists(name))
        left.remove(name)
        assert sorted(names(store)) == sorted(left)
        store.index_path.unlink()
        assert sorted(names(store)) == sorted(left)
    assert {path.name for path in tmp_path.iterdir()} == {"session"}
    assert {path.name for path in store.base_path.iterdir()} == {"checkpoints"}


# -- beside hive's own store -----------------------------------------------------------------------


def test_hive_reads_ours(store, tmp_path):
    """Hive's own store reads the checkpoints and the index, and adds to them."""
    own = hives(tmp_path)
    assert run(own.load_checkpoint("one")).shared_memory == {"value": 1}
    assert run(own.load_checkpoint()).checkpoint_id == "three"
    run(own.save_checkpoint(made("four")))
    assert names(store) == ["one", "two", "three", "four"]
    run(store.save_checkpoint(made("five")))
    assert [each.checkpoint_id for each in run(own.load_index()).checkpoints] == names(store)


def test_we_read_hives(tmp_path):
    """What hive's own store wrote is loaded, and known to be unverified."""
    own, store = hives(tmp_path), CheckpointStore(tmp_path, on_corrupt="raise")
    for name in ("plain", "with/slash", "50%", "漢"):
        run(own.save_checkpoint(made(name)))
        assert run(store.load_checkpoint(name)) == made(name)
        assert run(store.load_checkpoint()) == made(name)
        assert run(store.verify_checkpoint(name)) == "unverified"
    run(store.save_checkpoint(made("plain", 2)))
    assert run(store.verify_checkpoint("plain")) == "verified"
    assert run(own.load_checkpoint("plain")).shared_memory == {"value": 2}
    assert run(store.delete_checkpoint("with/slash"))


def test_hive_writes_ours_again(store, tmp_path):
    """A checkpoint that hive loaded, changed and saved again is its own, not a damaged one."""
    own = hives(tmp_path)
    checkpoint = run(own.load_checkpoint("one"))
    checkpoint.shared_memory["value"] = 2
    run(own.save_checkpoint(checkpoint))
    assert run(store.verify_checkpoint("one")) == "unverified"
    assert run(store.load_checkpoint("one")) == made("one", 2)
    run(store.save_checkpoint(checkpoint))
    assert run(store.load_checkpoint("one")) == made("one", 2)
    assert run(store.verify_checkpoint("one")) == "verified"


# -- damage ----------------------------------------------------------------------------------------


def test_every_flipped_bit(store, tmp_path):
    """A flipped bit anywhere in a checkpoint is detected, and the one before it can be had."""
    path = store.checkpoints_dir / "three.json"
    intact = path.read_bytes()
    strict = CheckpointStore(tmp_path, on_corrupt="none")
    for bit in some(range(len(intact) * 8), 300, "hive checkpoint"):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert store._verify("three") == "damaged", (bit, bytes(data))
        assert strict._load("three") is None
        if bit % 8 == 0:
            assert store._load(None) == made("two", day=11)


def test_every_flipped_bit_of_the_index(store, tmp_path):
    """A flipped bit anywhere in the index changes nothing: it is made anew of the files."""
    intact = store.index_path.read_bytes()
    for bit in some(range(len(intact) * 8), 150, "hive index"):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        store.index_path.write_bytes(data)
        for each in (store, CheckpointStore(tmp_path)):
            assert each._listed() == ["one", "two", "three"], (bit, bytes(data))


def test_every_truncation(store):
    """A file that was cut off anywhere is detected."""
    path = store.checkpoints_dir / "three.json"
    intact = path.read_bytes()
    for size in some(range(len(intact)), 80, "hive size"):
        path.write_bytes(intact[:size])
        assert store._verify("three") == "damaged", size
        path.write_bytes(bytes(size) + intact[size:])
        assert size == 0 or store._verify("three") == "damaged", size


@pytest.mark.parametrize("wanted", ["three", None])
@pytest.mark.parametrize("how", ["bytes", "gone", "other"])
def test_damage(store, tmp_path, wanted, how):
    """By default the newest intact one before it takes its place; without one, none.

    With ``"none"`` it is none, as with hive; with ``"raise"`` an error names the checkpoint, its
    file and the ways out, and these work.
    """
    path = damage(store, "three", how)
    if how == "bytes":
        assert run(CheckpointStore(tmp_path, on_corrupt="none").load_checkpoint(wanted)) is None
        assert run(store.checkpoint_exists("three"))
    kind, strict = CheckpointStore(tmp_path), CheckpointStore(tmp_path, on_corrupt="raise")
    assert run(kind.load_checkpoint(wanted)).checkpoint_id == "two"
    with pytest.raises(CorruptStoreError) as caught:
        run(strict.load_checkpoint(wanted))
    assert caught.value.path == str(path)
    for part in ("'three'", str(path), "delete_checkpoint('three')", "on_corrupt='fallback'"):
        assert part in str(caught.value)
    run(strict.delete_checkpoint("three"))
    assert run(strict.load_checkpoint()).checkpoint_id == "two"
    damage(store, "two")
    assert run(kind.load_checkpoint("two")).checkpoint_id == "one"
    damage(store, "one")
    assert run(kind.load_checkpoint("two")) is None


def damage(store, name, how="bytes"):
    """Damage the file of a checkpoint."""
    path = store.checkpoints_dir / f"{name}.json"
    if how == "bytes":
        path.write_bytes(path.read_bytes().replace(b"value", b"valve"))
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes((store.checkpoints_dir / "one.json").read_bytes())
    return path


@pytest.mark.parametrize("index", ["gone", "empty", "behind", "of another", "no JSON"])
def test_the_index_is_made_anew(store, index):
    """An index that is missing, damaged or behind is made anew, in the order of the times."""
    behind = store.index_path.read_bytes()
    run(store.save_checkpoint(made("four", day=20)))
    if index == "gone":
        store.index_path.unlink()
    else:
        there = {"empty": b"", "behind": behind, "of another": b"[1]", "no JSON": b"{"}
        store.index_path.write_bytes(there[index])
    assert names(store) == ["one", "two", "three", "four"]
    assert run(store.load_checkpoint()).checkpoint_id == "four"
    assert run(store.load_index()).session_id == "s"
    run(store.save_checkpoint(made("five", day=21)))
    assert [
        each["checkpoint_id"] for each in json.loads(store.index_path.read_bytes())["checkpoints"]
    ] == ["one", "two", "three", "four", "five"]


def test_index_and_newest_are_damaged(store, tmp_path):
    """Without an index, a damaged file is not passed over in silence; a stranger's file is."""
    store.index_path.unlink()
    damage(store, "three")
    (store.checkpoints_dir / "notes.json").write_text('{"mine": 1}')
    assert names(store) == ["one", "two", "three"]
    assert run(store.load_checkpoint()).checkpoint_id == "two"
    with pytest.raises(CorruptStoreError, match="'three'"):
        run(CheckpointStore(tmp_path, on_corrupt="raise").load_checkpoint())
    assert run(CheckpointStore(tmp_path, on_corrupt="none").load_checkpoint()) is None


def test_the_documented_substitution_falls_back(store, monkeypatch):
    """Hive's executor, given our class by its name, gets the newest intact checkpoint."""
    import framework.graph.executor as executor

    monkeypatch.setattr(executor, "CheckpointStore", CheckpointStore, raising=False)
    damage(store, "three")
    found = executor.CheckpointStore(store.base_path)  # as hive makes it
    assert run(found.load_checkpoint("three")).checkpoint_id == "two"


def test_a_save_reads_no_index(store, monkeypatch):
    """A save reads neither the index nor checkpoints again, however many there are."""
    from stepwise.integrations import hive

    run(store.save_checkpoint(made("four", day=13)))
    monkeypatch.setattr(hive, "read", None)
    for number in range(30):
        run(store.save_checkpoint(made(f"more {number}", day=14)))
    monkeypatch.undo()
    assert len(names(store)) == len(names(CheckpointStore(store.base_path))) == 34


def test_what_others_write_between_saves_is_seen(store, tmp_path):
    """What another process or hive's own store changed between two saves is in the index."""
    run(store.save_checkpoint(made("four", day=13)))
    run(CheckpointStore(tmp_path).save_checkpoint(made("five", day=14)))
    run(hives(tmp_path).save_checkpoint(made("six", day=15)))
    unlisted = (store.checkpoints_dir / "six.json").read_bytes()
    (store.checkpoints_dir / "seven.json").write_bytes(unlisted.replace(b'"six"', b'"seven"'))
    run(CheckpointStore(tmp_path).delete_checkpoint("one"))
    for _ in range(2):
        run(store.save_checkpoint(made("eight", day=16)))
    expected = {"two", "three", "four", "five", "six", "seven", "eight"}
    assert set(names(store)) == expected
    assert sorted(names(store)) == sorted(names(CheckpointStore(tmp_path)))
    assert len(names(store)) == len(expected)


def test_what_is_listed_can_be_changed(store):
    """What a caller does to an index that it was given changes none that is written."""
    index = run(store.load_index())
    index.checkpoints.clear()
    assert names(store) == ["one", "two", "three"]


# -- disks that fail, processes that die, others that write ----------------------------------------


def test_the_disk_fails_for_a_while(store, monkeypatch):
    """A save is tried again when the disk fails; if it fails for good, what was there stays."""
    from stepwise.integrations import hive

    real, left = hive.os.replace, [2]

    def replace(*paths):
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        real(*paths)

    monkeypatch.setattr(hive.os, "replace", replace)
    run(store.save_checkpoint(made("one", 2), backoff_base=0))
    assert run(store.load_checkpoint("one")).shared_memory == {"value": 2}
    left[0] = 1000
    with pytest.raises(OSError, match="No space left"):
        run(store.save_checkpoint(made("one", 3), max_retries=1, backoff_base=0))
    assert run(store.load_checkpoint("one")).shared_memory == {"value": 2}
    assert not list(store.checkpoints_dir.glob(".*.tmp"))


def test_killed_at_every_file_operation():
    """SIGKILL before or after any file operation: all that was saved is there, and whole."""
    with Lab("hive_store.py") as lab:
        assert lab.run().code == 0
        places = list(lab.places)
    assert len(places) > 100
    for place in some(places, 8, "hive kills"):
        with Lab("hive_store.py") as lab:
            assert lab.run(die_at=place).died
            log = (lab.folder / "log").read_text().splitlines()
            _check_killed(CheckpointStore(lab.folder / "home", on_corrupt="raise"), log, place)
            assert lab.run().code == 0  # a new process goes on with what is there
            left = CheckpointStore(lab.folder / "home")
            assert names(left) == []
            assert [path.name for path in files(left)] == ["index.json"]
            assert not list(left.checkpoints_dir.glob(".*.tmp"))


def _check_killed(store, log, place):
    saved = {}
    for line in log:
        if found := re.fullmatch(r"saved (\w+) (\d)", line):
            saved[found[1]] = int(found[2])
    deleted = "deleted one" in log
    deleting = saved.get("two") == 2  # "one" may be gone already, and after it all of them
    for path in files(store):
        assert path.stem == "index" or store._verify(path.stem) == "verified", place
    own = hives(store.base_path)
    for name, value in saved.items():
        if deleted or (name == "one" and deleting):
            continue
        found = run(store.load_checkpoint(name))
        assert found.shared_memory["value"] in (value, value + (name == "two")), place
        assert run(own.load_checkpoint(name)) is not None
    if saved and not deleting:
        assert run(store.load_checkpoint()).checkpoint_id in {*list(saved)[-1:], "two", "three"}
    if deleted:
        assert "one" not in names(store)


def test_threads_and_instances(tmp_path):
    """Threads with stores of their own lose nothing of each other's in the index."""
    stores, before = [CheckpointStore(tmp_path) for _ in range(4)], {*threading.enumerate()}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_save_some, stores, "abcd"))
    assert sorted(names(stores[0])) == sorted(f"{a}{n}" for a in "abcd" for n in range(5))
    index = json.loads(stores[0].index_path.read_bytes())
    assert index["total_checkpoints"] == 20
    assert len({*threading.enumerate()} - before) < 20


def _save_some(store, letter):
    async def save():
        await asyncio.gather(*(store.save_checkpoint(made(f"{letter}{n}")) for n in range(5)))

    run(save())


PROCESS = """
import asyncio, sys
from framework.schemas.checkpoint import Checkpoint
from stepwise.integrations.hive import HiveCheckpointStore

async def save():
    store, facts = HiveCheckpointStore(sys.argv[1]), {"session_id": "s", "shared_memory": {}}
    when = {"checkpoint_type": "node_complete", "created_at": "2026-01-10T10:00:00"}
    made = [Checkpoint(checkpoint_id=f"{sys.argv[2]}{n}", **when, **facts) for n in range(5)]
    await asyncio.gather(*map(store.save_checkpoint, made))

asyncio.run(save())
"""


def test_processes(tmp_path):
    """Processes that save at once lose nothing of each other's in the index."""
    environment = {**os.environ, "PYTHONPATH": python_path(HERE / "hive_stand_in")}
    others = [
        subprocess.Popen([sys.executable, "-c", PROCESS, tmp_path, letter], env=environment)
        for letter in "abc"
    ]
    assert [each.wait(300) for each in others] == [0, 0, 0]
    store = CheckpointStore(tmp_path)
    index = json.loads(store.index_path.read_bytes())
    written = sorted(each["checkpoint_id"] for each in index["checkpoints"])
    assert written == sorted(f"{a}{n}" for a in "abc" for n in range(5))


def test_the_import_is_cheap():
    """Hive's package is not needed to import the integration."""
    assert stepwise.integrations.hive.CheckpointStore is CheckpointStore
    assert "framework.schemas.checkpoint" not in sys.modules
