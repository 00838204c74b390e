"""What ``stepwise up`` keeps of ended runs, and which ledgers of limits it deletes."""

import datetime as dt
import itertools
import os

import pytest
from harness import Watched, python

import stepwise
from stepwise import Limit, Retain, emit, step, workflow
from stepwise._calls import limited
from stepwise._journal.journal import seal_for
from stepwise._journal.lease import Lease
from stepwise._journal.ledger import StoredLedger, drop_idle_ledgers, ledgers
from stepwise._runs import maintenance, verify
from stepwise._runs import run as runs
from stepwise._runs.maintenance import Retention
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError, RunNotFoundError
from stepwise.stores import Batch, open_store

broken = set()


@step
def work(name):
    if name in broken:
        raise ValueError(name)
    return name


@workflow
def job(name):
    emit(f"{name} is said")
    return work(name)


@workflow
def family(name):
    return job(f"{name}-child")


@pytest.fixture(autouse=True)
def nothing_configured():
    broken.clear()
    yield
    stepwise.configure(retain=None)


def store():
    return open_store(settings.store())


def keeping(**retain):
    """Make one pass; return what was told."""
    stepwise.configure(retain=Retain(**retain) if retain else None)
    told = []
    Retention([store()], told.append).work()
    return told


def ids():
    return {run.id for run in stepwise.runs()}


def call(name):
    return job.options(run_id=name)(name)


def make(*names):
    for name in names:
        call(name)


# -- which runs -----------------------------------------------------------------------------------


def test_the_oldest_above_a_number():
    """Above a number of runs the oldest ended ones are deleted, and that is told once."""
    make("a", "b", "c", "d")
    assert keeping(runs=2) == ["retention: deleted 2 runs"]
    assert ids() == {"c", "d"}
    assert keeping(runs=2) == []


def test_by_age(monkeypatch):
    """A run is deleted once it has ended so long ago, and no younger one."""
    make("a", "b")
    first, second = (stepwise.get_run(each).updated_at for each in "ab")
    monkeypatch.setattr(maintenance.time, "time", lambda: second + 100)
    assert keeping(age=dt.timedelta(hours=1)) == []
    assert keeping(age=100 + (second - first) / 2) == ["retention: deleted 1 run"]
    assert ids() == {"b"}


def test_by_size():
    """Above a size the oldest are deleted, until the data are no larger, and not many more."""
    for number in range(40):
        job.options(run_id=str(number))(f"{number} {'x' * 20_000}")
    before = store().used(0)
    (told,) = keeping(bytes=before // 2)
    assert store().used(0) <= before // 2
    assert len(ids()) >= 12, told
    assert "39" in ids()


def test_what_stays():
    """Runs that failed, were submitted or are executed stay, also above a number."""
    broken.add("bad")
    with pytest.raises(ValueError, match="bad"):
        call("bad")
    make("a", "b")
    submitted = job.submit("later")
    lease = Lease(store(), "a").acquire()
    assert keeping(runs=1, age=0) == ["retention: deleted 1 run"]
    lease.release()
    assert ids() == {"bad", "a", submitted.id}


def test_children_go_with_their_parents():
    """A child run is deleted with its parent, and never without it."""
    family("f")
    make("a")
    assert len(ids()) == 3
    assert keeping(runs=2) == ["retention: deleted 2 runs"]
    assert ids() == {"a"}


def test_forks_go_on():
    """A fork does not need its source."""
    make("a")
    forked = stepwise.get_run("a").fork()
    keeping(age=0)
    assert ids() == {forked.id}
    assert forked.resume().result() == "a"


def test_a_run_that_began_anew_since_it_was_listed(monkeypatch):
    """A run that was called again between the listing and its deletion stays."""
    make("a")
    plain = Lease.acquire

    def acquire(self, **how):
        if self.run_id == "a":
            monkeypatch.setattr(Lease, "acquire", plain)
            broken.add("a")
            stepwise.get_run("a").forget("work")
            with pytest.raises(ValueError, match="a"):
                call("a")
        return plain(self, **how)

    monkeypatch.setattr(Lease, "acquire", acquire)
    assert keeping(age=0) == []
    assert stepwise.get_run("a").status == "failed"


def test_a_run_that_is_looked_at_while_it_is_deleted(monkeypatch, capfd):
    """Whoever looks at a run in the middle of its deletion hears that it is gone, not of a loss."""
    broken.add("older")
    with pytest.raises(ValueError, match="older"):
        call("older")
    stepwise.configure(quiet=False)
    make("a", "b")
    one, other = stepwise.get_run("a"), stepwise.get_run("b")
    looked, bury, result_of = [], verify.bury_anchor, runs.result_of

    def looking(store, run_id):
        for look in (lambda: one.status, lambda: one.result, one.stream):
            with pytest.raises(RunNotFoundError, match="gone"):
                look()
            looked.append(run_id)
        bury(store, run_id)

    def late(*place):
        keeping(age=0)
        return result_of(*place)

    monkeypatch.setattr(verify, "bury_anchor", looking)
    keeping(runs=2)
    assert looked == ["a"] * 3
    assert "acknowledged" not in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(runs, "result_of", late)
    with pytest.raises(RunNotFoundError, match="gone"):
        other.result  # noqa: B018


def test_streams_alone():
    """``streams=`` deletes what old runs said, and leaves the runs with their results."""
    make("a", "b")
    assert keeping(streams=0) == ["retention: deleted what 2 runs said"]
    with pytest.raises(ConfigurationError, match="was deleted"):
        stepwise.get_run("a").stream()
    assert call("a") == "a"
    assert keeping(streams=0) == []


def test_a_pass_is_made_by_one_process():
    """While another process makes a pass, this one does nothing, and reports nothing."""
    make("a", "b")
    with Lease(store(), "up:retention").acquire():
        assert keeping(runs=1) == []
    assert keeping(runs=1) == ["retention: deleted 1 run"]


def test_a_damaged_run_stops_no_other():
    """A head that does not verify is left, and the others are deleted."""
    make("a", "b", "c")
    at = store()
    with Lease(at, "a").acquire() as lease:
        head = at.head("a")
        at.write("a", lease.epoch, Batch(head=head._replace(data=head.data[:-1] + b"?")))
    assert keeping(age=0) == ["retention: deleted 2 runs"]
    assert {head.run_id for head in at.heads()} == {"a"}


def test_work_is_bounded(monkeypatch):
    """With ``--once`` a pass ends when its time is over, and the next start goes on."""
    monkeypatch.setattr(maintenance.time, "monotonic", itertools.count().__next__)
    make(*map(str, range(8)))
    stepwise.configure(retain=Retain(runs=1))
    keeper = Retention([store()], lambda _: None)
    keeper.work(5)
    first = keeper.deleted
    assert 0 < first < 7
    while len(ids()) > 1:
        keeper.work(5)
    assert ids() == {"7"}


def test_many_young_runs_are_not_looked_at(monkeypatch):
    """A look for old runs ends after some runs in a row that are too young."""
    monkeypatch.setattr(maintenance, "_YOUNG", 3)
    make(*map(str, range(9)))
    opened = []
    plain = maintenance.open_head
    monkeypatch.setattr(maintenance, "open_head", lambda *a: opened.append(a) or plain(*a))
    keeping(age=3600)
    assert len(opened) == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "deletes nothing"),
        ({"age": -1}, "age=-1"),
        ({"age": "30d"}, "age='30d'"),
        ({"streams": True}, "streams=True"),
        ({"runs": 0}, "runs=0"),
        ({"bytes": 1.5}, "bytes=1.5"),
    ],
)
def test_mistakes(given, words):
    """A wrong argument is refused by name."""
    with pytest.raises(ConfigurationError, match=words):
        Retain(**given)
    with pytest.raises(ConfigurationError, match=r"retain=stepwise\.Retain"):
        stepwise.configure(retain={"age": 1})


# -- kills ----------------------------------------------------------------------------------------


PROGRAM = """
import sys
import stepwise
from stepwise import emit, step, workflow
from stepwise._runs.maintenance import Retention
from stepwise._runtime import settings
from stepwise.stores import Batch, open_store

@step
def work(name):
    return name

@workflow
def child(name):
    emit(name)
    return work(name)

@workflow
def job(name):
    return child(f"{name}-child")

if sys.argv[1] == "make":
    for number in range(30):
        job(str(number))
else:
    stepwise.configure(retain=stepwise.Retain(runs=20))
    print("begins", flush=True)
    Retention([open_store(settings.store())], print).work()
    print("ends", flush=True)
"""


def test_kills(tmp_path):
    """Killed at any moment, retention leaves whole runs, and the next start ends its work."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    python(str(program), "make")
    assert len(ids()) == 60
    for number in range(8):
        how = {"cwd": tmp_path, "env": os.environ, "err": tmp_path / "err"}
        with Watched(str(program), "keep", **how) as other:
            other.stdout.readline()
            left = max(20, store().count_heads() - number)
            while store().count_heads() > left:
                pass
        for run in stepwise.runs():
            assert run.verify().ok
            assert run.status == "completed"
    done = python(str(program), "keep")
    assert "ends" in done.stdout
    assert len(ids()) == 20
    kept = {run.parent for run in stepwise.runs() if run.parent}
    assert kept == {run.id for run in stepwise.runs() if not run.parent}


# -- limits ---------------------------------------------------------------------------------------


def test_ledgers_of_idle_values():
    """The ledger of a value of ``key=`` is deleted once nothing counts; that of a name stays."""
    limit = Limit("api", requests=5, per=3600)
    for each in (limit, limit.of("ann"), limit.of("bob")):
        with each:
            pass
    limited.settle(store())
    at, seal = store(), seal_for(store())
    keeping()
    assert [name for name, _ in ledgers(at, seal)] == ["api", "api[ann]", "api[bob]"]
    with StoredLedger(at, seal, "api[ann]").changing() as ledger:
        ledger.over.clear()
    keeping()
    assert [name for name, _ in ledgers(at, seal)] == ["api", "api[bob]"]
    with limit.of("ann"):
        pass
    limited.settle(store())
    assert [name for name, _ in ledgers(at, seal)] == ["api", "api[ann]", "api[bob]"]


def test_a_ledger_of_a_dead_process():
    """What a dead process has taken counts for one more window before the ledger is deleted."""
    at, seal = store(), seal_for(store())
    limit = Limit("api", requests=5, per=3600)
    with limit.of("ann"):
        pass
    limited.settle(at)
    with StoredLedger(at, seal, "api[ann]").changing() as ledger:
        ledger.over.clear()
        ledger.claims["77/1.0"] = (2, 0)
    drop_idle_ledgers(at, seal, lambda: True)
    ((_, found),) = ledgers(at, seal)
    assert (found.claims, found.used()) == ({}, (2, 0))
