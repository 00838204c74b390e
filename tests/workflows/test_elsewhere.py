"""Runs that another process executes: what travels, and what comes back."""

import pickle
import time

import pytest

import stepwise
from stepwise import ConfigurationError, RunNotFoundError, StepwiseError, get_run, step, workflow
from stepwise._journal.journal import Journal, facts_of, seal_for
from stepwise._journal.lease import Lease
from stepwise._journal.records import Resumed
from stepwise._runtime import clock, settings
from stepwise._workflows.engines import RunOutput, carry_on, carry_out, continuation, place
from stepwise._workflows.handles import UnfinishedRun
from stepwise._workflows.up import Supervisor, Terms
from stepwise.stores import open_store

done = []
broken = set()


@step
def work(name):
    done.append(name)
    if name in broken:
        raise ValueError(name)
    return name


@workflow
def job(name):
    return work(name)


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    broken.clear()


def submitted(name, **options):
    """A run that was put on record for another process."""
    chosen = job.options(**options) if options else job
    return place(chosen, (name,), {}, what="test", check=lambda _: None)


def travelled(order):
    """What another process gets."""
    return pickle.loads(pickle.dumps(order))


def test_an_order_is_executed_once():
    """The run is on record before it is executed; carried out twice, it is executed once."""
    placement = submitted("a")
    assert placement.run.inputs == {"name": "a"}
    assert placement.run.status == "crashed"
    assert not done
    order = travelled(placement.order())
    for _ in range(2):
        assert placement.result(travelled(carry_out(order, "here"))) == "a"
    assert done == ["a"]


def test_a_failure_that_was_not_reported():
    """A task that is started again after its run has failed reports that, and tries nothing; an
    order that is made now tries the run again.
    """
    broken.add("b")
    placement = submitted("b")
    order = placement.order()
    for _ in range(2):
        with pytest.raises(ValueError, match="b"):
            placement.result(carry_out(order, "here"))
    assert done == ["b"]
    broken.clear()
    assert placement.result(carry_out(placement.order(), "here")) == "b"


def test_a_run_that_always_dies():
    """A run whose process died ten times before any step had ended is given up."""
    placement = submitted("c")
    order = placement.order()
    store = placement.run.store
    for _ in range(10):
        lease = Lease(store, placement.run.id).acquire()
        journal = Journal(store, seal_for(store), placement.run.id, lease.epoch, fsync=False)
        journal.load()
        facts = facts_of(store, seal_for(store), placement.run.id)
        code = job.definition.code
        resumed = Resumed(lease.epoch, "dies", 0, code=code, at=facts.created_at)
        journal.append((resumed, b""), durable=False, head=facts)
        lease.release()
    with pytest.raises(StepwiseError, match="died 10 times"):
        placement.result(carry_out(order, "here"))
    assert not done


def test_a_run_that_was_deleted_meanwhile():
    """A run that was deleted before its task begins, or is begun again, is not begun anew."""
    placement = submitted("a")
    order = placement.order()
    placement.run.delete()
    with pytest.raises(RunNotFoundError, match="it was deleted"):
        placement.result(carry_out(order, "here"))
    assert (done, stepwise.runs()) == ([], [])


def test_another_key(monkeypatch):
    """A process with another key executes nothing, and says what is to be done."""
    monkeypatch.setenv("STEPWISE_KEY", "the key of the submitter")
    placement = submitted("d")
    order = placement.order()
    monkeypatch.setenv("STEPWISE_KEY", "the key of somebody else")
    with pytest.raises(ConfigurationError, match=r"executed there: .*STEPWISE_KEY"):
        placement.result(carry_out(order, "there"))
    assert not done


def test_settings_travel():
    """What tells calls apart, encryption and the patience of waits are the submitter's."""
    stepwise.configure(suspend_after=7, injected=["a.Context"], volatile={"a.Message": ["at"]})
    order = travelled(submitted("e").order())
    settings.configure(suspend_after=1, injected=[], volatile={})
    carry_out(order, "here")
    assert settings.suspend_after() == 7
    assert settings.injected() == {"a.Context"}
    assert settings.fields().volatile == {"a.Message": ("at",)}


def test_a_continuation():
    """A run is continued with its recorded arguments, unless somebody else was faster."""
    placement = submitted("f")
    store = open_store(placement.run.store.url)
    seal = seal_for(store)
    run = UnfinishedRun(store, seal, facts_of(store, seal, placement.run.id))
    order = travelled(continuation(run, [], ""))
    assert carry_on(order, "here").kind == "recorded"
    assert get_run(placement.run.id).result == "f"
    again = carry_on(order, "here")
    with pytest.raises(stepwise.RunBusyError):
        placement.result(again)
    assert done == ["f"]


def test_a_submitted_run_is_left_to_its_task(monkeypatch):
    """``up`` does not begin a run at once that was submitted a moment ago; a minute later it does,
    since the process that submitted the run may be gone.
    """
    placement = submitted("g")
    said = []
    store = placement.run.store

    def events():
        made = Supervisor([store], Terms(once=True), said.append, RunOutput())
        with made._here._output:
            made.run()
        return [each.kind for each in said if each.facts is not None]

    assert events() == ["left"]
    assert "submitted" in said[-1].detail
    assert not done
    monkeypatch.setattr(clock, "now", lambda: time.time() + 61)
    assert "ended" in events()
    assert done == ["g"]
