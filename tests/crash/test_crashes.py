"""Programs that are killed everywhere, and run again by the same command until they have ended.

The programs are in ``tests/programs``.  Each passes named places: inside every step before and
after it does what it does, and after every call that returned.  An undisturbed run lists them.
*Events* are the calls and returns of Python.  *Operations* are what a program does to the files of
its home; a shim (``tests/power/shim.c``) kills the process before its N-th write, fsync, rename,
unlink, truncation or new file.
"""

import random
import signal
from collections import Counter

import pytest
from harness import PROGRAMS as FOLDER
from harness import Doubt, Lab, called
from judge import (
    BROKEN,
    FEW,
    FLOWS,
    all_programs,
    check,
    is_effect,
    lab_of,
    programs,
    sampled,
    undisturbed,
)
from sweeping import SEED, WHOLE, many, needs_the_shim, shim, some, thinned

SAMPLES, PAIRS = (12, 5) if WHOLE else (4, 2)  # of each program's events
WORKLOADS = ("plain", "gather", "nested")
workloads = pytest.mark.parametrize("program", WORKLOADS)
SOON_FULL = """
from stepwise.stores import _process_log
_process_log._LARGEST_LOG = _process_log._FIRST_SIZE = 4 << 10
"""


def survived(program, *places, how="kill", text="", **options):
    """Kill a program at these places, one in each attempt, until it ends well; kills, doubts."""
    with Lab(text, **options) if text else lab_of(program, **options) as lab:
        doubts = lab.run_to_end(*places, how=how)
        check(lab, program, *places)
        if program in WORKLOADS:  # in others a doubt cancels what runs beside it
            # What was in flight, and nothing else: one call for each flow of control.
            assert len(doubts) <= len(places) * FLOWS.get(program, 1), lab.said
        inside, _, when = places[0].rpartition(" ")
        if is_effect(inside) and when in ("before", "after"):
            assert any(called(inside, doubt.call) for doubt in doubts), lab.said
        return Counter(kills=lab.codes.count(-signal.SIGKILL), in_doubt=len(doubts))


def swept(tally, sweep, program, trials, **options):
    """Kill a program at the places of each trial, and report what came of all trials."""
    trials = list(trials)
    came = sum((survived(program, *places, **options) for places in trials), Counter())
    tally(sweep, len(trials), **came)


def operations(program, text="", path=""):
    """Return what a program does to the files of its home when nothing happens to it."""
    with Lab(text, preload=shim()) if text else lab_of(program, preload=shim()) as lab:
        assert lab.run().code == 0
        (done,) = lab.operations
        assert len(done) > 50
        return [f"operation {number}" for number, each in enumerate(done, 1) if path in each]


# -- killed everywhere ---------------------------------------------------------------------------


@all_programs
def test_killed_at_every_boundary_and_inside_every_step(program, tally):
    """Killed anywhere and run again, a program ends as if nothing had happened."""
    # Of programs that are like another one fewer are tried, if not asked for all.
    places = thinned(undisturbed(program).places, 9 if program in FEW else 25)
    trials = [(place,) for place in places]
    swept(tally, "killed inside every step and between any two", program, trials)


@programs
def test_exits_at_a_boundary_or_inside_a_step(program, tally):
    """A process that ends itself is as one that was killed: for the files both ends are one."""
    trials = [(place,) for place in thinned(undisturbed(program).places, 31)]
    swept(tally, "killed inside every step and between any two", program, trials, how="exit")


@programs
def test_killed_at_any_event(program, tally):
    """Killed at any call or return, the library's own included, it ends as if nothing had been."""
    trials = [(event,) for event in sampled(program, SAMPLES)]
    swept(tally, "killed at a call or return of the library", program, trials)


@programs
def test_killed_again_while_it_recovers(program, tally):
    """Killed at any event, and again at any event of the recovery, it ends the same way."""
    pairs = zip(sampled(program, PAIRS), sampled(f"{program} again", PAIRS, program), strict=True)
    swept(tally, "killed at a call or return, and again in the recovery", program, pairs)


@needs_the_shim
@workloads
def test_killed_before_any_operation_on_the_store(program, tally):
    """Killed before any write, fsync, rename, ... of the store, it ends as if nothing had been."""
    trials = [(each,) for each in some(operations(program), 4, program)]
    swept(tally, "killed before an operation of the store", program, trials, preload=shim())


@needs_the_shim
def test_killed_before_any_operation_on_a_log_that_is_soon_full(tally):
    """Killed while the log is written, taken in or written over, it ends as if nothing had been."""
    text = SOON_FULL + (FOLDER / "plain.py").read_text(encoding="utf-8")
    every = operations("plain", text, "logs/")
    assert len(every) > 20
    trials = [(each,) for each in some(every, 5, "log")]
    sweep = "killed before an operation on a small log"
    swept(tally, sweep, "plain", trials, preload=shim(), text=text)


@needs_the_shim
@workloads
def test_killed_again_during_the_recovery(program, tally):
    """Killed before any operation, and before any of the recovery, it ends the same way."""
    every, chance = operations(program), random.Random(f"{SEED} pairs {program}")
    pairs = [chance.choices(every, k=2) for _ in range(many(4 if WHOLE else 2, 334))]
    swept(tally, "killed again during the recovery", program, pairs, preload=shim())


@workloads
def test_killed_at_a_random_instant(program, tally):
    """Killed at any instant, it ends as if nothing had been."""
    with lab_of(program) as lab:
        seconds = lab.run().seconds
    chance = random.Random(f"{SEED} instants {program}")
    count = many(7 if WHOLE else 2, 3334)
    trials = [(f"second {chance.uniform(0, seconds)}",) for _ in range(count)]
    swept(tally, "killed at a random instant", program, trials)


# -- in doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["plain", "gather", "method", "map"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_answered_is_what_counts(program, when):
    """A call in doubt returns what ``resolve --landed`` says, or runs after ``--did-not-happen``.

    Whatever is true: stepwise cannot know, and does not pretend to.
    """
    whole = undisturbed(program)
    place = next(p for p in whole.places if is_effect(p) and p.endswith(when))
    call = place.rpartition(" ")[0]
    for landed in ('"so I was told"', None):
        with lab_of(program) as lab:

            def answer(doubt, lab=lab, landed=landed):
                return landed if called(call, doubt.call) else lab.truth(doubt)

            doubts = lab.run_to_end(place, answer=answer)
            assert sum(called(call, doubt.call) for doubt in doubts) == 1
            again = 0 if landed else 1
            assert lab.did[call] == (when == "after") + again
            assert ("so I was told" in str(lab.result)) == bool(landed)
            assert all(n == 1 for each, n in lab.did.items() if each != call and is_effect(each))


@pytest.mark.parametrize("program", ["plain", "gather", "threads"])
def test_a_doubt_stays_until_it_is_settled(program):
    """Run again and again without an answer, it stops at the same doubt and repeats nothing.

    Nor does it do anything else, unless in threads that have not seen yet that the run stopped.
    """
    place = next(p for p in undisturbed(program).places if is_effect(p) and p.endswith("after"))
    with lab_of(program) as lab:
        assert lab.run(die_at=place).died
        first, second = lab.run(), lab.run()
        did = lab.did
        third = lab.run()
        assert first.code == second.code == third.code == 1
        said = [Doubt.read(each.text) for each in (first, second, third)]
        if program == "threads":  # each may have been inside a side effect: one of them is named
            said = [each._replace(number="", call="", key="") for each in said]
        assert said[0] is not None
        assert said[0] == said[1] == said[2]
        assert program == "threads" or lab.did == did
        assert not any(times > 1 for call, times in lab.did.items() if is_effect(call))


# -- what these tests can see --------------------------------------------------------------------


@pytest.mark.parametrize("broken", BROKEN, ids=["no intents", "no outcomes", "old variables"])
@pytest.mark.parametrize("where", ["place", pytest.param("operation", marks=needs_the_shim)])
def test_a_broken_guarantee_is_noticed(broken, where):
    """A library without intents, outcomes or current variables does not pass these tests."""
    text = broken + (FOLDER / "plain.py").read_text(encoding="utf-8")
    options = {"preload": shim()} if where == "operation" else {}
    places = sorted(undisturbed("plain").places, key=is_effect, reverse=True)
    every = operations("plain")[::-1] if options else places
    for place in [*every[::6], *every]:  # most operations are far from a side effect
        try:
            survived("plain", place, text=text, **options)
        except AssertionError:
            return
    pytest.fail("nothing was noticed")
