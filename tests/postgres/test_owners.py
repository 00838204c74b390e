"""Owners that are cut off, paused and killed: who may write, and when another may take over."""

from __future__ import annotations

import os
import signal
import time

import pytest
from proxy import TO_SERVER
from server import let_pass, name_in, until, with_options

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

from world_of_owners import Owners, held_until

from stepwise import workflow
from stepwise._journal.lease import supervisor_name
from stepwise._workflows.engines import RunOutput
from stepwise._workflows.up import Supervisor, Terms
from stepwise.stores import Owner
from stepwise.stores.postgres import PostgresStore

LEASE = 2


@workflow
def job():
    return None


@pytest.fixture
def owners(fork, postgres, tmp_path):
    return Owners(fork, postgres, tmp_path, lease_seconds=LEASE)


@pytest.fixture
def patient(fork, postgres, tmp_path):
    """Owners whose lease does not run out within a test, however busy the machine is."""
    return Owners(fork, postgres, tmp_path, lease_seconds=600)


def settle(owners):
    """Say of what is in doubt that it happened, as the log tells."""
    run = owners.run()
    (doubt,) = [each for each in run.steps if each.status == "in_doubt"]
    run.resolve(doubt.number, landed=owners.whole[doubt.number - 1])


def end_of(process):
    """The word in which a process says how its run ended."""
    words = process.hear().split()
    return words[1] if words[0] == "stopped" else words[0]


# -- a connection that is cut ----------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["refused", "a black hole"])
def test_an_owner_that_was_cut_off_writes_nothing_after_a_takeover(owners, proxy, cut):
    """It stops with LeaseLostError at its next write, and its side effect is not repeated."""
    first = owners.stopped_at("first", "after act 3", proxy=proxy)
    if cut == "refused":
        proxy.refuse()
    else:
        proxy.stall(TO_SERVER)
    second = owners.process("second", on_owned="wait")
    assert end_of(second) == "StepInDoubtError"
    settle(owners)
    third = owners.process("third")
    assert end_of(third) == "result"
    rows = owners.rows()
    if cut == "refused":
        proxy.accept()
        first.tell()
    else:
        first.tell()  # its write is on its way while nobody forwards it
        proxy.flow()
    assert end_of(first) == "LeaseLostError"
    assert owners.rows() == rows
    assert owners.did() == owners.whole
    assert owners.did("third") == ["think 4", "act 5"]
    owners.check()


def test_an_owner_that_reconnects_in_time_goes_on(patient, proxy):
    """Its run is refused to others meanwhile, and nothing is done twice."""
    owners = patient
    first = owners.stopped_at("first", "after act 3", proxy=proxy)
    proxy.refuse()
    second = owners.process("second")
    assert end_of(second) == "RunBusyError"
    proxy.accept()
    first.tell()
    assert end_of(first) == "result"
    assert owners.did("first") == owners.whole
    assert owners.epoch() == 1
    owners.check()


# -- a process that is paused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "place, begun",
    [("after act 3", 4), ("before act 3", 4), ("between 3", 3), ("after think 2", 3)],
)
def test_an_owner_that_was_paused_for_longer_than_its_lease_writes_nothing(owners, place, begun):
    """Another takes over; the paused process wakes up, and its first write is refused."""
    first = owners.stopped_at("first", place)
    os.kill(first.pid, signal.SIGSTOP)
    second = owners.process("second", on_owned="wait")
    if "act" in place:
        assert end_of(second) == "StepInDoubtError"
        assert owners.did("second") == []
        settle(owners)
        second = owners.process("third")
    assert end_of(second) == "result"
    rows = owners.rows()
    first.tell()
    os.kill(first.pid, signal.SIGCONT)
    assert end_of(first) == "LeaseLostError"
    assert owners.rows() == rows
    # The body in which it was paused goes on to its end; no other side effect is begun.
    assert owners.did("first") == owners.whole[:begun], owners.lines
    assert [len(owners.moments("did", f"act {number}")) for number in (1, 3, 5)] == [1, 1, 1]
    owners.check()


# -- a process that is killed ----------------------------------------------------------------------


def test_a_death_that_is_proven_is_not_waited_for(patient):
    """A process of the same machine takes over at once, long before the lease has run out."""
    slow = patient
    first = slow.stopped_at("first", "after think 2")
    second = slow.process("second", on_owned="wait", stops=["start"])
    assert second.hear() == "at start"
    first.kill()
    second.tell()
    assert end_of(second) == "result"
    assert slow.did("second") == slow.whole[2:]
    slow.check()


@pytest.mark.parametrize("in_doubt", ["raise", "retry", "reconcile"])
def test_what_is_in_doubt_stays_so_until_the_lease_has_run_out(owners, in_doubt):
    """Of a death that nobody can prove, an open intent is touched only after lease_seconds."""
    first = owners.stopped_at("first", "after act 3", machine="elsewhere", in_doubt=in_doubt)
    second = owners.process("second", on_owned="wait", in_doubt=in_doubt, stops=["start"])
    assert second.hear() == "at start"
    first.kill()
    end = held_until(owners)
    second.tell()
    ended = second.hear().split()
    if in_doubt == "raise":
        assert ended[:2] == ["stopped", "StepInDoubtError"]
        assert float(ended[2]) >= end
        assert owners.did("second") == []
        return
    assert ended[0] == "result"
    if in_doubt == "retry":
        assert owners.moments("did", "act 3")[1] >= end
    else:
        assert owners.moments("reconciled", "act 3")[0] >= end
        assert owners.did() == owners.whole
    assert len(owners.moments("did", "think 2")) == 1
    owners.check()


def test_who_asks_before_the_lease_has_run_out_is_refused(patient):
    """A call of a run whose owner is not proven to be dead says who owns it."""
    owners = patient
    first = owners.stopped_at("first", "after think 2", machine="elsewhere")
    first.kill()
    assert end_of(owners.process("second")) == "RunBusyError"
    assert owners.did("second") == []


# -- a network that carries nothing ----------------------------------------------------------------


def run_out(owners, proxy):
    """The lease runs out, and nobody takes it."""
    proxy.refuse()
    let_pass(held_until(owners) + 1 - time.time())
    proxy.accept()


def cut_again_and_again(owners, proxy):
    for _ in range(5):
        proxy.cut()


@pytest.mark.parametrize("broken", [run_out, cut_again_and_again])
def test_an_owner_that_nobody_replaced_goes_on_however_late(owners, proxy, broken):
    """A lease that has run out is still its owner's, and connections that are cut are made anew."""
    first = owners.stopped_at("first", "after act 3", proxy=proxy)
    broken(owners, proxy)
    first.tell()
    assert end_of(first) == "result"
    assert owners.did("first") == owners.whole
    owners.check()


@pytest.mark.parametrize("how", ["carries nothing", "refuses"])
def test_a_network_that_carries_nothing_for_a_while_is_waited_for(owners, proxy, how):
    """A network in which an outcome has nowhere to go costs time and nothing else."""
    first = owners.stopped_at("first", "before act 3", proxy=proxy)
    proxy.refuse() if how == "refuses" else proxy.stall()
    first.tell()
    until(lambda: "act 3" in owners.did(), "the side effect")
    if how == "carries nothing":
        proxy.cut()  # what it opens now is answered by nobody
        let_pass(3)
    proxy.accept()
    proxy.flow()
    assert end_of(first) == "result"
    assert owners.did() == owners.whole
    owners.check()


def test_patience_ends(owners, proxy):
    """A server that is silent for patience_seconds is a StoreError; its effect is in doubt."""
    impatient = with_options(proxy.url(owners.url), patience_seconds=3)
    first = owners.stopped_at("first", "before act 3", store=impatient)
    proxy.stall()
    began = time.time()
    first.tell()
    word, name, ended = first.hear().split()
    assert (word, name) == ("stopped", "StoreError")
    assert float(ended) - began < 3 + 20  # its release waits, too
    proxy.cut()  # what it had sent is lost
    proxy.flow()
    second = owners.process("second", on_owned="wait")
    assert end_of(second) == "StepInDoubtError"
    settle(owners)
    assert end_of(owners.process("third")) == "result"
    assert owners.did() == owners.whole
    owners.check()


# -- stepwise up -----------------------------------------------------------------------------------


def test_a_supervisor_that_lost_its_lease_takes_it_again(any_server, postgres, store):
    """A supervisor whose lease another process took is known again once that one has gone."""
    name = supervisor_name(job.definition.full_name)
    supervisor = Supervisor([store], Terms(), [].append, RunOutput())
    supervisor._announce(store)
    version = supervisor_name(job.definition.full_name, job.definition.code)
    assert store.owner(name).pid == store.owner(version).pid == os.getpid()
    freed = "UPDATE stepwise.leases SET holder = NULL, owner = NULL"  # as after a long absence
    any_server.sql(freed, database=name_in(postgres))
    other = PostgresStore(postgres)
    epoch = other.acquire(name, Owner(1, "elsewhere", 1.0))
    supervisor._announce(store)
    assert store.owner(name).host == "elsewhere"
    other.release(name, epoch)
    other.close()
    supervisor._announce(store)
    assert store.owner(name).pid == os.getpid()
    supervisor._withdraw(store.url)
    assert store.owner(name) is store.owner(version) is None
