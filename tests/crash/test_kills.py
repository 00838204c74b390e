"""Programs killed in front of every operation on the store's files, and at random instants.

A shim (``tests/power/shim.c``) kills the process before its N-th write, fsync, rename, unlink,
truncation or new file in its home; ``test_crashes.py`` kills at the calls and returns of Python.
Whatever is killed is run again by the same command until it has ended.
"""

import random
import signal
from collections import Counter

import pytest
from harness import PROGRAMS as FOLDER
from harness import Lab
from judge import BROKEN, FLOWS, PROGRAMS, check, undisturbed
from sweeping import SEED, many, needs_the_shim, shim, some

pytestmark = needs_the_shim
WORKLOADS = ("plain", "gather", "nested")
workloads = pytest.mark.parametrize("program", WORKLOADS)
stores = pytest.mark.parametrize("store", ["disk", "sqlite"])


def operations(program, store):
    """What a program does to the files of its home when nothing happens to it."""
    with Lab(*PROGRAMS[program], preload=shim(), store=store) as lab:
        assert lab.run().code == 0
        (done,) = lab.operations
        assert len(done) > 50
        return done


def killed(program, store, *places):
    """Kill a program at these places, one in each attempt, until it ends well; kills, doubts."""
    with Lab(*PROGRAMS[program], preload=shim(), store=store) as lab:
        doubts = lab.run_to_end(*places)
        check(lab, program, *places)
        # What was in flight, and nothing else: one call for each flow of control.
        assert len(doubts) <= len(places) * FLOWS.get(program, 1), lab.said
        return Counter(kills=lab.codes.count(-signal.SIGKILL), in_doubt=len(doubts))


@workloads
@stores
def test_killed_before_any_operation_on_the_store(program, store, tally):
    """Killed before any write, fsync, rename, ... of the store, it ends as if nothing had been."""
    numbers = range(1, len(operations(program, store)) + 1)
    chosen = some(numbers, 10, f"{program} {store}")
    came = sum((killed(program, store, f"operation {n}") for n in chosen), Counter())
    tally("killed before an operation of the store", len(chosen), **came)


@workloads
@stores
def test_killed_again_during_the_recovery(program, store, tally):
    """Killed before any operation, and before any of the recovery, it ends the same way."""
    count = len(operations(program, store))
    chance = random.Random(f"{SEED} pairs {program} {store}")
    pairs = [(chance.randint(1, count), chance.randint(1, count)) for _ in range(many(4, 334))]
    kills = ((f"operation {first}", f"operation {second}") for first, second in pairs)
    came = sum((killed(program, store, *places) for places in kills), Counter())
    tally("killed again during the recovery", len(pairs), **came)


@workloads
@stores
def test_killed_at_a_random_instant(program, store, tally):
    """Killed at any instant, it ends as if nothing had been."""
    with Lab(*PROGRAMS[program], store=store) as lab:
        seconds = lab.run().seconds
    chance = random.Random(f"{SEED} instants {program} {store}")
    instants = [chance.uniform(0, seconds) for _ in range(many(7, 3334))]
    came = sum((killed(program, store, f"second {instant}") for instant in instants), Counter())
    tally("killed at a random instant", len(instants), **came)


@pytest.mark.parametrize("broken", BROKEN, ids=["no intents", "no outcomes", "old variables"])
def test_a_broken_guarantee_is_noticed(broken):
    """A library without intents, outcomes or current variables does not survive these kills."""
    program = broken + (FOLDER / "plain.py").read_text(encoding="utf-8")
    undisturbed("plain")
    for number in range(len(operations("plain", "disk")), 0, -2):
        with Lab(program, preload=shim()) as lab:
            try:
                lab.run_to_end(f"operation {number}")
                check(lab, "plain", number)
            except AssertionError:
                return
    pytest.fail("nothing was noticed")
