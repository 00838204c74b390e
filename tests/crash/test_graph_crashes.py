"""Graphs that are killed at every node boundary and inside every node and tool, and started again.

The program is ``tests/programs/graphs.py``.  It passes named places, and each of its events (a line
logged, a record written) is a place to die as well.
"""

import functools
import re

import pytest
from harness import Lab
from sweeping import WHOLE, many, size

KINDS = ["chain", "fan", "loop", "retry", "pause"]
RETENTION = ["latest_only", "all"]
SAMPLES, PAIRS = (10, 5) if WHOLE else (6, 3)  # of the events of each kind


@functools.cache
def undisturbed(kind):
    """The result, the places and the number of events of a run that nothing happens to."""
    with Lab("graphs.py", kind, "latest_only") as lab:
        ended = lab.run(die_at="event 0")
        assert ended.code == 0, ended.text
        events = int(re.search(r"^events (\d+)$", "\n".join(lab.log), re.MULTILINE)[1])
        return lab.result, tuple(lab.places), events


def in_flight(places):
    """The visits that had begun, and of which none that follows had: the last of each branch."""
    last = {}
    for name in (each.removesuffix(" begins") for each in places if each.endswith(" begins")):
        branch, is_branch, _ = name.rpartition(".")
        last = {**last, branch: name} if is_branch else {"": name}
        if is_branch:
            last.pop("", None)
    return set(last.values())


def is_late(kind, place):
    """Whether an event may be missing from an execution: how many there are depends on its speed.

    A run looks twice a second whether somebody cancelled it, and records how long its steps took.
    """
    number = int(place.split()[1]) if place.startswith("event") else 0
    return number > 0.8 * undisturbed(kind)[2]


def check(kind, place, keep="latest_only"):
    """Killed there and started again, it ends as if undisturbed, and repeats nothing done."""
    with Lab("graphs.py", kind, keep) as lab:
        killed = lab.run(die_at=place)
        if not killed.died and is_late(kind, place):
            assert lab.result == undisturbed(kind)[0]
            return
        assert killed.died, killed.text
        begun = in_flight(lab.places)
        doubts = lab.run_to_end()
        assert lab.result == undisturbed(kind)[0]
        assert len(doubts) <= 1
        for call, times in lab.did.items():
            what, _, name = call.rstrip(")").partition("(")
            inside = place.startswith(("event", call))
            may_repeat = name in begun and (what == "node" or (what == "look" and inside))
            assert times == 1 or may_repeat, (call, begun, lab.log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", RETENTION)
def test_killed_at_every_place(kind, keep):
    """Killed before, inside and after every node and tool, a graph ends as if undisturbed."""
    found = undisturbed(kind)[1]
    for place in found if WHOLE or keep == "latest_only" else found[::4]:
        check(kind, place, keep)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_event(kind):
    """Killed anywhere else, inside the library too, a graph ends as if undisturbed."""
    events = undisturbed(kind)[2]
    for number in range(1, events + 1, max(1, events // many(SAMPLES, events))):
        check(kind, f"event {number}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["int", "term"])
def test_interrupted(kind, how):
    """After a Ctrl-C or a SIGTERM in any node, too, no branch is lost and no tool called again."""
    result, places, _ = undisturbed(kind)
    for place in places if WHOLE else places[1::3]:
        with Lab("graphs.py", kind, "latest_only") as lab:
            if lab.run(die_at=place, how=how).code != 0:
                lab.run_to_end()
            assert lab.result == result
            assert all(times == 1 for call, times in lab.did.items() if call.startswith("post"))


@pytest.mark.parametrize("kind", KINDS)
def test_killed_again(kind):
    """Killed at any event, and again while it recovers, a graph ends as if undisturbed."""
    result, _, events = undisturbed(kind)
    for event in range(events // 7, events, max(1, events // size(PAIRS, 60))):
        with Lab("graphs.py", kind, "latest_only") as lab:
            lab.run_to_end(f"event {event}", f"event {event * 2 // 3}")
            assert lab.result == result
            assert all(times == 1 for call, times in lab.did.items() if call.startswith("post"))
