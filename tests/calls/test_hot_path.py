"""What must hold of the path of every step, however short it is made.

A checkpoint on its way into the database has no transaction of its own, and yet is never lost.
"""

import inspect
import os

import pytest
from store_tools import Recorder

import stepwise
from stepwise import StoreError, step, tool, workflow
from stepwise._execution import location
from stepwise._journal.journal import read_entries, seal_for
from stepwise.stores import Batch, Owner
from stepwise.stores.disk import DiskStore


def test_a_checkpoint_goes_with_the_next_transaction(tmp_path):
    """A checkpoint costs no transaction, is there at once for all, and goes with the next that is.

    That it survives its process, can be deleted and is fenced is tested with the stores.
    """
    store, other = (DiskStore(str(tmp_path / "store")) for _ in range(2))
    owner = Owner(os.getpid(), "here", 0.0)
    epoch = store.acquire("run", owner)

    def taken():
        keys = store._opened()._con.execute("SELECT key FROM Cache")
        return any("checkpoint/1" in key for (key,) in keys)

    for number, data in ((1, b"first"), (2, b"second")):  # the second one names the log
        store.write("run", epoch, Batch(records=((number, data),)))
    store.write("run", epoch, Batch(put={"checkpoint/1": b"one"}, durable=False))
    for each in (store, other):
        assert each.names("run", "checkpoint/") == ["checkpoint/1"]
        assert each.get("run", "checkpoint/1") == b"one"
    store.write("run", epoch, Batch(records=((3, b"third"),)))
    assert not taken()
    store.write("run", epoch, Batch(prune=1))
    assert taken()
    assert store.get("run", "checkpoint/1") == b"one"
    store.close()
    other.close()


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
    for number in range(300):
        exec(compile(f"\n\nmake({number})", f"made_{number % 3}.py", "exec"), {"make": note})
    through(
        note,
        "six",
    )


def test_the_line_of_every_call(monkeypatch):
    """Each call is listed with the file and line that make it, whichever came before."""
    monkeypatch.setattr(location, "_MANY", 100)  # call sites that a run remembers
    sites = {each.arguments: each.site for each in calling.execute().steps}
    first = inspect.getsourcelines(calling.__wrapped__)[1] + 3
    here = os.path.basename(__file__)
    assert sites["text='one'"] == f"{here}:{first}"
    assert sites["text='two'"] == sites["text='three'"] == f"{here}:{first + 1}"
    inside = inspect.getsourcelines(through)[1] + 2
    for text in ("four", "five", "six"):
        assert sites[f"text={text!r}"] == f"{here}:{inside}"
    for number in range(300):
        assert sites[f"text={number}"] == f"made_{number % 3}.py:3"


def batches(store):
    """The kind of the last record of each batch so far, and whether the batch was flushed."""
    kinds = [
        type(each.record).__name__ for each in read_entries(store, seal_for(store), "run", None)
    ]
    return [
        (kinds[batch.records[-1][0] - 1], batch.durable)
        for _, _, batch in store.batches
        if batch.records
    ]


def test_a_side_effect_is_announced_before_its_body_and_recorded_after_it():
    """When the body begins, its announcement is flushed; the outcome follows, flushed as well."""
    store = Recorder()

    @tool(side_effect=True)
    def look():
        return batches(store)

    @workflow
    def looking():
        return [look() for _ in range(2)], look(), look()

    found = looking.options(store=store, run_id="run", checkpoint_every=100)()
    for seen in (*found[0], *found[1:]):
        assert seen[-1] == ("Intent", True)
    assert batches(store)[-2:] == [("Outcome", True), ("Ended", True)]


def test_a_secret_given_within_a_body_is_not_shown():
    """A returned secret is masked, though the run knew none when the call began."""

    @step(secret=("token",))
    def login(token):
        return 1

    @step
    def leak():
        login("secret of " + "a step")
        return "the secret of a step"

    @workflow
    def leaking():
        leak()

    leaking.options(store="memory:leaks", run_id="run")()
    shown = [each.preview for each in stepwise.get_run("run", store="memory:leaks").steps]
    assert shown == ["'the <secret>'", "1"]


@pytest.mark.parametrize("fails_at", [2, 4, 6, 8])  # the batches of outcomes
def test_a_run_that_stopped_executes_no_call(fails_at):
    """After its store failed, a run that swallows the error executes no other body."""
    done, stops = [], []

    @step
    def note(number):
        assert not stops
        done.append(number)

    @workflow(name="stubborn")
    def stubborn():
        for number in range(5):
            try:
                note(number)
            except StoreError as error:
                stops.append(error)

    with pytest.raises(StoreError):
        stubborn.options(store=Recorder(fails_at=fails_at), run_id="run")()
    assert stops
    assert done == [*range(6 - len(stops))]
