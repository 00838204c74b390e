"""Programs that are killed everywhere, and run again by the same command until they have ended.

The programs are in ``tests/programs``.  Each passes named places: inside every step before and
after it does what it does, and after every call that returned.  An undisturbed run lists them.
"""

import pytest
from harness import PROGRAMS as FOLDER
from harness import Doubt, Lab, called
from judge import BROKEN, PROGRAMS, check, is_effect, programs, sampled, undisturbed

SAMPLES, PAIRS = 12, 5  # of each program's events


# -- killed everywhere ---------------------------------------------------------------------------


@programs
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_killed_at_every_boundary_and_inside_every_step(program, how, tally):
    """Killed anywhere and run again, a program ends as if nothing had happened."""
    places = undisturbed(program).places
    for place in places:
        with Lab(*PROGRAMS[program]) as lab:
            doubts = lab.run_to_end(place, how=how)
            check(lab, program, place)
            inside, _, when = place.rpartition(" ")
            if is_effect(inside) and when in ("before", "after"):
                assert any(called(inside, doubt.call) for doubt in doubts), lab.said
    tally("killed inside every step and between any two", len(places))


@programs
def test_killed_at_any_event(program, tally):
    """Killed at any call or return, the library's own included, it ends as if nothing had been."""
    events, doubts = sampled(program, SAMPLES), 0
    for event in events:
        with Lab(*PROGRAMS[program]) as lab:
            doubts += len(lab.run_to_end(event))
            check(lab, program, event)
    tally("killed at a call or return of the library", len(events), in_doubt=doubts)


@programs
def test_killed_again_while_it_recovers(program, tally):
    """Killed at any event, and again at any event of the recovery, it ends the same way."""
    firsts, seconds = sampled(program, PAIRS), sampled(f"{program} again", PAIRS, program)
    for first, second in zip(firsts, seconds, strict=True):
        with Lab(*PROGRAMS[program]) as lab:
            lab.run_to_end(first, second)
            check(lab, program, first, second)
    tally("killed at a call or return, and again in the recovery", len(firsts))


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
        with Lab(*PROGRAMS[program]) as lab:

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
    with Lab(*PROGRAMS[program]) as lab:
        assert lab.run(die_at=place).died
        first, second = lab.run(), lab.run()
        did = lab.did
        third = lab.run()
        assert first.code == second.code == third.code == 1
        assert Doubt.read(first.text) == Doubt.read(second.text) == Doubt.read(third.text)
        assert program == "threads" or lab.did == did
        assert not any(times > 1 for call, times in lab.did.items() if is_effect(call))


# -- what these tests can see --------------------------------------------------------------------


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_guarantee_is_noticed(broken):
    """A library without intents, outcomes or current variables does not pass these tests."""
    program = (FOLDER / "plain.py").read_text(encoding="utf-8")
    caught = 0
    for place in undisturbed("plain").places:
        with Lab(broken + program) as lab:
            try:
                lab.run_to_end(place)
                check(lab, "plain", place)
            except AssertionError:
                caught += 1
    assert caught
