"""Where the path of every step takes a short cut, what must hold all the same.

A checkpoint on its way into the database has no transaction of its own, and yet is never lost.
"""

import contextlib
import inspect
import os

import pytest

from stepwise import LeaseLostError, step, workflow
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore

OWNER = Owner(os.getpid(), "here", 0.0)


@pytest.fixture
def opened(tmp_path):
    """Gives a store in one folder, as each process has its own."""
    with contextlib.ExitStack() as stores:
        yield lambda: stores.enter_context(contextlib.closing(DiskStore(str(tmp_path / "store"))))


@pytest.fixture
def written(opened):
    """A store in which a run has one object that no transaction has taken along."""
    store = opened()
    epoch = store.acquire("run", OWNER)
    for number, data in ((1, b"first"), (2, b"second")):  # the second one names the log
        store.write("run", epoch, Batch(records=((number, data),)))
    store.write("run", epoch, Batch(put={"checkpoint/1": b"one"}, durable=False))
    return store, epoch


def rows(store):
    """The keys in the database."""
    return [key for (key,) in store._opened()._con.execute("SELECT key FROM Cache")]


def test_costs_no_transaction(written):
    """A small object that need not survive a power cut is not written to the database at once."""
    store, _ = written
    assert not any("checkpoint" in key for key in rows(store))


def test_is_seen_by_its_owner_and_by_others(written, opened):
    """An object is there as soon as it was written, for this process and for any other."""
    for store in (written[0], opened()):
        assert store.names("run", "checkpoint/") == ["checkpoint/1"]
        assert store.get("run", "checkpoint/1") == b"one"


def test_goes_with_the_next_transaction(written):
    """What the database lacks of a run is in it after its next transaction."""
    store, epoch = written
    store.write("run", epoch, Batch(records=((3, b"third"),)))
    assert not any("checkpoint/1" in key for key in rows(store))
    store.write("run", epoch, Batch(prune=1))
    assert any("checkpoint/1" in key for key in rows(store))
    assert store.get("run", "checkpoint/1") == b"one"


def test_survives_its_process(written, opened):
    """What a killed process had not taken into the database, the next owner finds and keeps."""
    written[0].release("run", written[1])
    store = opened()
    epoch = store.acquire("run", OWNER)
    assert store.get("run", "checkpoint/1") == b"one"
    store.write("run", epoch, Batch(put={"checkpoint/2": b"two"}, durable=False))
    assert store.names("run") == ["checkpoint/1", "checkpoint/2"]
    assert any("checkpoint/1" in key for key in rows(store))


def test_deleting_holds(written):
    """An object that is deleted is gone, also if it was just being written."""
    store, epoch = written
    store.write("run", epoch, Batch(delete=("checkpoint/1",)))
    assert store.names("run") == []
    assert store.get("run", "checkpoint/1") is None


def test_pruning_goes_along(written):
    """What an object replaces is deleted with it."""
    store, epoch = written
    store.write("run", epoch, Batch(records=((3, b"third"),)))
    batch = Batch(put={"checkpoint/2": b"two"}, delete=("checkpoint/1",), durable=False)
    store.write("run", epoch, batch)
    store.write("run", epoch, Batch(records=((4, b"fourth"),)))
    assert store.names("run") == ["checkpoint/2"]


def test_an_older_owner_changes_nothing(written, opened):
    """Who has lost the lease is refused, for an object as for a record."""
    store, epoch = written
    store.release("run", epoch)
    other = opened()
    other.acquire("run", OWNER)
    for batch in (Batch(put={"checkpoint/9": b"nine"}, durable=False), Batch(((3, b"third"),))):
        with pytest.raises(LeaseLostError):
            store.write("run", epoch, batch)
    assert other.names("run") == ["checkpoint/1"]


def test_deleting_the_run_deletes_it(written, opened):
    """Nothing of a deleted run is left."""
    store, epoch = written
    store.delete("run", epoch)
    other = opened()
    assert store.names("run") == other.names("run") == []
    store.release("run", epoch)
    other.acquire("run", OWNER)
    assert store.names("run") == other.names("run") == []
    assert not any("checkpoint" in key for key in rows(other))


@pytest.mark.parametrize("damage", [b"", b"\xff" * 400, bytes(400)])
def test_damage_is_told_from_content(written, opened, damage):
    """A damaged file gives no object, or one that does not verify, and never an error."""
    store, _ = written
    (name,) = {*os.listdir(os.path.join(store.path, "logs"))} - {"locks"}
    other = opened()
    assert other.get("run", "checkpoint/1") == b"one"
    with open(os.path.join(store.path, "logs", name), "wb") as file:
        file.write(damage)
    assert other.get("run", "checkpoint/1") in (None, b"")
    assert [number for number, _ in other.read("run")] == [1, 2]


@step
def note(text):
    """A step that returns what it is given."""
    return text


def through(make, text):
    """A function of the user that calls something for the workflow."""
    return make(text)


@workflow(durability="os")
def calling():
    """Calls from many lines, and from code that is made anew again and again."""
    note("one")
    note("two"), note("three")
    for text in ("four", "five"):
        through(note, text)
    for number in range(1100):
        exec(compile(f"\n\nmake({number})", f"made_{number % 3}.py", "exec"), {"make": note})
    through(
        note,
        "six",
    )


def test_the_line_of_every_call(home):
    """Each call is listed with the file and line that make it, whichever came before."""
    sites = {each.arguments: each.site for each in calling.execute().steps}
    first = inspect.getsourcelines(calling.__wrapped__)[1] + 3
    here = os.path.basename(__file__)
    assert sites["text='one'"] == f"{here}:{first}"
    assert sites["text='two'"] == sites["text='three'"] == f"{here}:{first + 1}"
    inside = inspect.getsourcelines(through)[1] + 2
    for text in ("four", "five", "six"):
        assert sites[f"text={text!r}"] == f"{here}:{inside}"
    assert {sites[f"text={number}"] for number in range(0, 1100, 3)} == {"made_0.py:3"}
    assert sites["text=1099"] == "made_1.py:3"
