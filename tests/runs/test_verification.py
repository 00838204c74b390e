"""Looking for damage before it is met, and putting right what can be."""

import contextlib
import sqlite3

import pytest

import stepwise
from stepwise import step, tool, workflow
from stepwise.stores import disk
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

DONE = []


@step
def think(n):
    DONE.append(f"think {n}")
    return n


@tool(side_effect=True)
def send(text):
    DONE.append(f"send {text}")
    return text


@workflow(retention="all")
def agent(limit):
    done = [think(0)]
    done.append(think(1))
    done.append(send("a"))
    for n in range(2, limit):
        done.append(think(n))
    return done


@pytest.fixture
def folder(tmp_path):
    """The store of a run that crashed after its side effect."""
    DONE.clear()
    path = tmp_path / "store"
    with fresh_store(path), pytest.raises(SimulatedCrash), crash_at(think, "before", call=4):
        agent.options(run_id="job")(5)
    return path


@contextlib.contextmanager
def opened(folder):
    """The store, as another process would open it."""
    with fresh_store(folder):
        yield stepwise.get_run("job")


def sql(folder, text, *parameters):
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database, database:
        return database.execute(text, parameters).fetchall()


def rows(folder, like):
    return [k for (k,) in sql(folder, "SELECT key FROM Cache ORDER BY key") if k.startswith(like)]


def damage(folder, key):
    ((value,),) = sql(folder, "SELECT value FROM Cache WHERE key = ?", key)
    value = value[:-1] + bytes([value[-1] ^ 1])
    sql(folder, "UPDATE Cache SET value = ? WHERE key = ?", value, key)


def delete(folder, key):
    sql(folder, "DELETE FROM Cache WHERE key = ?", key)


def kinds(folder):
    """The key of the row of each record, by kind and order."""
    with opened(folder) as run:
        names = [type(entry.record).__name__ for entry in run._entries()]
    return list(zip(names, rows(folder, "r/"), strict=True))


def key_of(folder, kind):
    return next(key for name, key in kinds(folder) if name == kind)


def test_an_intact_run_verifies(folder, monkeypatch):
    """Of an intact run every record and checkpoint verifies, and repairing changes nothing.

    Nothing is unpickled for that; there is nothing to verify of a run that does not exist.
    """
    with opened(folder) as run:
        count = len(run.checkpoints)
        monkeypatch.setattr("pickle.loads", None)
        verified = run.verify()
        assert verified.ok
        assert verified.problems == []
        assert verified.records == len(rows(folder, "r/"))
        assert verified.checkpoints == count > 0
        assert run.repair() == verified
        with pytest.raises(stepwise.RunNotFoundError):
            stepwise.Run(run.store, "other").verify()
    assert rows(folder, "o/") == [key for key in rows(folder, "o/") if "quarantine" not in key]


def test_a_damaged_checkpoint_is_set_aside(folder):
    """A damaged checkpoint is found, moved to quarantine, and the run resumes at an older one."""
    newest = [each for each in rows(folder, "o/") if "/checkpoint/" in each][-1]
    damage(folder, newest)
    with opened(folder) as run:
        verified = run.verify()
        assert not verified.ok
        assert verified.damaged_checkpoints == (int(newest[-12:]),)
        assert run.repair().ok
        assert agent.options(run_id="job")(5) == [0, 1, "a", 2, 3, 4]
    assert DONE.count("send a") == 1
    assert any("/quarantine/checkpoint/" in key for key in rows(folder, "o/"))


def test_a_damaged_version_is_set_aside(folder):
    """A damaged version of a step is found, moved to quarantine, and the run goes on."""
    damage(folder, next(each for each in rows(folder, "o/") if "/code/" in each))
    with opened(folder) as run:
        assert run.verify().damaged_versions == 1
        assert "whether these steps have changed since is not known" in run.verify().problems[0]
        assert run.repair().ok
        assert agent.options(run_id="job")(5) == [0, 1, "a", 2, 3, 4]
    assert any("/quarantine/code/" in key for key in rows(folder, "o/"))


def test_a_damaged_step_is_given_up(folder, capsys):
    """A damaged record of a plain step is set aside; the step runs again, told of once."""
    key = key_of(folder, "Outcome")
    damage(folder, key)
    with opened(folder) as run:
        verified = run.verify()
        assert verified.lost == (int(key[-12:]),)
        assert verified.effects == 0
        assert run.repair().ok
        stepwise.configure(quiet=False)
        assert agent.options(run_id="job")(5) == [0, 1, "a", 2, 3, 4]
    assert "cannot be read" not in capsys.readouterr().err
    assert DONE.count("send a") == 1


def test_a_lost_side_effect_is_not_given_up_silently(folder):
    """Where a side effect may be gone, repairing alone leaves the run stopped, and says so."""
    intent = key_of(folder, "Intent")
    outcome = min(key for name, key in kinds(folder) if name == "Outcome" and key > intent)
    damage(folder, intent)
    damage(folder, outcome)
    with opened(folder) as run:
        assert run.verify().effects == 1
        assert not run.repair().ok
    for key in rows(folder, "o/"):
        if "quarantine" not in key:
            delete(folder, key)
    with opened(folder) as run:
        with pytest.raises(stepwise.JournalLostError, match="--repair --accept-loss"):
            agent.options(run_id="job")(5)
        assert run.repair(accept_loss=True).ok
        assert agent.options(run_id="job")(5) == [0, 1, "a", 2, 3, 4]
    assert DONE.count("send a") == 2  # as was accepted


@pytest.mark.parametrize("positions", [[0], [1], [0, 1]])
def test_a_fork_of_a_run_that_has_lost_records(folder, positions):
    """A run whose lost records were given up can be forked, and the fork has lost nothing."""
    found = kinds(folder)
    for position in positions:
        damage(folder, found[position][1])
    with opened(folder) as run:
        assert run.repair().ok
        fork = run.fork()
        verified = fork.verify()
        assert verified.ok
        assert not verified.lost
        assert agent.options(run_id=fork.id)(5) == [0, 1, "a", 2, 3, 4]
    assert DONE.count("send a") == 1


def test_a_lost_tail(folder):
    """Acknowledged records gone from the end are noticed; accepted, the run resumes before them."""
    for name, key in reversed(kinds(folder)):
        delete(folder, key)
        if name == "Intent":
            break
    for key in rows(folder, "o/"):
        delete(folder, key)
    with opened(folder) as run:
        verified = run.verify()
        assert verified.tail > 0
        assert verified.effects == 1
        with pytest.raises(stepwise.JournalLostError, match="announced a side effect"):
            agent.options(run_id="job")(5)
        assert run.repair().tail > 0
        assert run.repair(accept_loss=True).ok
    with opened(folder) as run:
        assert run.verify().ok
        assert agent.options(run_id="job")(5) == [0, 1, "a", 2, 3, 4]


def test_a_damaged_listing_is_made_again(folder):
    """The entry in the listing is derived from the records, and made again."""
    sql(folder, "UPDATE Heads SET value = substr(value, 1, length(value) - 1) || x'00'")
    with opened(folder) as run:
        assert not run.verify().listing
        assert run.repair().ok
        assert [each.id for each in stepwise.runs()] == ["job"]


def test_a_run_of_which_only_the_head_is_left(folder):
    """A run whose records are gone, while listings still show it, is not forked."""
    sql(folder, "DELETE FROM Cache WHERE key LIKE 'r/%'")
    with opened(folder) as run:
        assert [each.id for each in stepwise.runs()] == ["job"]
        with pytest.raises(stepwise.CorruptStoreError, match="its records are gone"):
            run.fork()


def test_a_run_that_goes_on_meanwhile_is_whole(monkeypatch):
    """What a run records, sends and says while it is verified is not missing from it."""
    store = disk.DiskStore
    whole, written, at_work = store.read, [], []

    @workflow(run_id="job")
    def busy():
        run = stepwise.get_run("job")
        think(0)
        stepwise.emit("before")

        def read_slowly(self, name, after=0):
            yield from whole(self, name, after=after)
            if not at_work:
                written.append(name)
                at_work.append(name)
                think(1)
                send("a")
                run.send("name")
                stepwise.emit("x" * 100_000)  # more than waits for a batch
                at_work.clear()

        monkeypatch.setattr(store, "read", read_slowly)
        return run.verify().problems, [*written]

    problems, names = busy()
    assert (problems, len({*names})) == ([], 3)


def test_a_run_that_is_executed_is_not_repaired(folder):
    """Repairing needs the run for itself, so it is refused while the run is being executed."""
    damage(folder, [each for each in rows(folder, "o/") if "/checkpoint/" in each][-1])
    store = disk.DiskStore(folder)
    epoch = store.acquire("job", stepwise.stores.Owner(1, "here", 0.0))
    try:
        with opened(folder) as run, pytest.raises(stepwise.RunBusyError):
            run.repair()
    finally:
        store.release("job", epoch)
        store.close()
