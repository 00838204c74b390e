"""Servers, connections and processes that break at each operation of a run on Postgres."""

from __future__ import annotations

import random
import time

import pytest
from harness import PROGRAMS as FOLDER
from harness import Lab
from judge import FLOWS, PROGRAMS, check
from server import let_pass, until
from sweeping import SEED, many, some

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

from world_of_owners import Owners

LEASE = 2

# Dies before the N-th exchange with the server, when it is sent, or when its answer is there.
DYING = """
import atexit as _atexit
import os as _os
import signal as _signal
import threading as _threading
import world as _world
from stepwise.stores import _postgres_connections as _connections
from stepwise.stores import _postgres_presence as _presence

_wait, _serve, _count = _connections.Connection.wait, _presence.Presence._serve, 0
_beats = _threading.local()

def _serving(self):
    _beats.here = True  # a thread of its own, at moments of its own
    _serve(self)

def _die(when):
    if _os.environ["DIE_AT"] == f"exchange {_count} {when}":
        _os.kill(_os.getpid(), _signal.SIGKILL)

def _sent(exchange):
    try:
        state = next(exchange)
        _die("sent")
        while True:
            state = exchange.send((yield state))
    except StopIteration as stop:  # at once, where no answer is waited for
        _die("sent")
        return stop.value

def _dying(self, exchange, *args, **kwargs):
    global _count
    if hasattr(_beats, "here"):
        return _wait(self, exchange, *args, **kwargs)
    _count += 1
    _die("before")
    answer = _wait(self, _sent(exchange), *args, **kwargs)
    _die("after")
    return answer

_connections.Connection.wait, _presence.Presence._serve = _dying, _serving
_atexit.register(lambda: _world.log(f"exchanges {_count}"))
"""


@pytest.fixture
def fresh(any_server):
    """Make databases: ``fresh() -> URL``."""
    made = []

    def make():
        made.append(any_server.create_database())
        return made[-1]

    yield make
    for url in made:
        any_server.drop_database(url)


def lab_at(url, *words):
    """A folder in which a program is run with the store of that URL."""
    return Lab(*words, STEPWISE_STORE=url, STEPWISE_TEST_HOME="")


# -- the server is killed --------------------------------------------------------------------------


def test_a_run_goes_on_while_the_server_is_killed_and_started_again(
    server, fork, postgres, tmp_path
):
    """Every step is done once, by the same process under the same lease."""
    times = many(6, 40)
    owners = Owners(fork, postgres, tmp_path, steps=10 * times, lease_seconds=LEASE)
    process = owners.process("first", seconds=0.02)
    chance = random.Random(f"{SEED} servers")
    for each in range(times):
        until(lambda each=each: len(owners.did()) > 8 * each, "more steps")
        let_pass(chance.uniform(0, 0.1))
        server.restart()
    assert process.hear().startswith("result")
    assert owners.did() == owners.whole
    assert owners.epoch() == 1
    owners.check()


def test_nothing_is_taken_over_for_the_time_of_a_lease_after_the_server_began(
    server, fork, postgres, tmp_path
):
    """An owner that could not reach the server has that long to come back."""
    owners = Owners(fork, postgres, tmp_path, lease_seconds=LEASE)
    first = owners.stopped_at("first", "after think 2", machine="elsewhere")
    first.kill()
    (beat,) = owners.sql("SELECT extract(epoch FROM max(beat))::float FROM stepwise.processes")[0]
    until(lambda: time.time() > beat + LEASE, "an end of the lease")
    server.restart()
    second = owners.process("second", on_owned="wait")
    assert second.hear().startswith("result")
    (began,) = owners.sql("SELECT extract(epoch FROM pg_postmaster_start_time())::float")[0]
    taken = owners.moments("did", "act 3")[0]
    assert began + LEASE <= taken < began + LEASE + 20
    owners.check()


def test_a_server_that_lost_what_it_had_flushed_stops_the_run(server, fork, postgres, tmp_path):
    """As after a failover to a replica that lags: the owner writes nothing behind a hole."""
    owners = Owners(fork, postgres, tmp_path, lease_seconds=LEASE)
    first = owners.stopped_at("first", "after act 3")
    owners.sql("UPDATE stepwise.leases SET turn = turn - 5")  # the row of a moment ago
    rows = owners.rows()
    first.tell()
    assert first.hear().startswith("stopped StoreError")
    assert owners.rows() == rows


# -- an answer is lost -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["answer", "request", "late"])
@pytest.mark.parametrize("program", ["plain", "gather"])
def test_what_is_lost_on_the_way_is_written_once(proxy, fresh, program, what, tally):
    """A write whose answer is lost, that never arrives, or that arrives late is there once."""

    def run(**losing):
        url = fresh()
        proxy.lose(**losing)
        with lab_at(proxy.url(url), *PROGRAMS[program]) as lab:
            ended = lab.run()
            assert ended.code == 0, (losing, ended.text)
            check(lab, program)
            verified = lab.run(command=["verify"])
            assert verified.code == 0, (losing, verified.text)
            proxy.deliver()
            verified = lab.run(command=["verify"])
            assert verified.code == 0, (losing, verified.text)
        return proxy.commits

    # A transaction that is left open keeps its locks: only single statements come late.
    of = r"^WITH held|^INSERT INTO stepwise.leases" if what == "late" else ""
    commits = run(what="", of=of)
    assert commits > 10
    trials = some(range(1, commits + 1), 5, f"{program} {what}")
    for number in trials:
        late_by = random.Random(f"{SEED} {number}").choice([0, 1, 2])
        run(what=what, at={number}, of=of, late_by=late_by)
    tally(f"a write whose {what} is lost", len(trials))


@pytest.mark.parametrize("what", ["answer", "request"])
def test_every_second_one_is_lost(proxy, fresh, what):
    """A run ends although the connection breaks at every second of its writes, by chance."""
    chance = random.Random(f"{SEED} every second {what}")
    with lab_at(proxy.url(fresh()), *PROGRAMS["plain"]) as lab:
        proxy.lose(what, at=[number for number in range(1, 2000) if chance.random() < 0.5])
        ended = lab.run()
        assert ended.code == 0, ended.text
        check(lab, "plain")
        assert proxy.lost > 10
        proxy.lose("")
        assert lab.run(command=["verify"]).code == 0


# -- the process is killed -------------------------------------------------------------------------


def text_of(program):
    """A program that dies at exchanges with the server, and its arguments."""
    name, *arguments = PROGRAMS[program]
    source = (FOLDER / name).read_text(encoding="utf-8")
    head, _, rest = source.partition("\nimport ")  # after the docstring
    return f"{head}\n{DYING}\nimport {rest}", arguments


@pytest.mark.parametrize("program", ["plain", "gather", "nested"])
def test_killed_at_any_exchange_with_the_server(fresh, program, tally):
    """Killed anywhere and run again at once, a run ends as if nothing had been."""
    text, arguments = text_of(program)
    with lab_at(fresh(), text, *arguments) as lab:
        ended = lab.run()
        assert ended.code == 0, ended.text
        check(lab, program)
        (count,) = [int(line.split()[1]) for line in lab.log if line.startswith("exchanges")]
    assert count > 20
    every = [f"exchange {n} {when}" for n in range(1, count + 1) for when in ("sent", "before")]
    trials = some(every, 6, f"exchanges {program}")
    kills = 0
    for place in trials:
        with lab_at(fresh(), text, *arguments) as lab:
            doubts = lab.run_to_end(place)
            check(lab, program, place)
            assert len(doubts) <= FLOWS.get(program, 1), lab.said
            assert lab.run(command=["verify"]).code == 0
            kills += lab.codes.count(-9)
    assert kills >= len(trials) * 0.7  # with flows beside each other, some numbers are not reached
    tally("killed at an exchange with a Postgres server", len(trials), kills=kills)
