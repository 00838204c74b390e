"""What the programs do when nothing happens to them, and whether a killed one did the same."""

import functools
import random
import re
import sys
from typing import NamedTuple

import pytest
from harness import Lab
from sweeping import LARGE, WHOLE, many

PROGRAMS = {
    "plain": ("plain.py",),
    "gather": ("branches.py", "gathered"),
    "task group": ("branches.py", "grouped"),
    "method": ("methods.py", "run"),
    "class method": ("methods.py", "of_class"),
    "cron": ("starting.py", "cron"),
    "server": ("starting.py", "server"),
    "nested": ("nested.py", "parent"),
    "nested async": ("nested.py", "aparent"),
    "map": ("threaded.py", "mapped"),
    "async map": ("threaded.py", "amapped"),
    "threads": ("threaded.py", "threads"),
}
FEW = ("plain", "method", "server", "nested async", "threads")  # what a small sample is of
RETENTION = {"chain": "latest_only", "fan": "all", "loop": "all", "retry": "latest_only"}
GRAPHS = {
    f"graph {kind}{f', {keep}' if WHOLE else ''}": ("graphs.py", kind, keep)
    for kind in (*RETENTION, "pause")
    for keep in (("latest_only", "all") if WHOLE else (RETENTION.get(kind, "latest_only"),))
}
FLOWS = {"gather": 3, "task group": 3, "nested async": 2, "map": 2, "async map": 2, "threads": 3}

NEEDS_311 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="asyncio.TaskGroup is new in 3.11"
)


def _each(names):
    marks = {"task group": NEEDS_311}
    return pytest.mark.parametrize(
        "program", [pytest.param(name, marks=marks.get(name, ())) for name in names]
    )


programs = _each(PROGRAMS if LARGE else FEW)
all_programs = _each(PROGRAMS)
graphs = pytest.mark.parametrize("program", GRAPHS)


class Undisturbed(NamedTuple):
    """What a program does when nothing happens to it."""

    places: list
    result: object
    did: dict
    events: int


def lab_of(program, **options):
    """A folder in which a program, or graph, can be run."""
    return Lab(*{**PROGRAMS, **GRAPHS}[program], **options)


@functools.cache
def undisturbed(program):
    with lab_of(program) as lab:
        ended = lab.run(die_at="event 0")
        assert ended.code == 0, ended.text
        places = lab.places
        assert len(places) == len(set(places))
        assert set(lab.did.values()) == {1}
        events = int(re.search(r"^events (\d+)$", "\n".join(lab.log), re.MULTILINE)[1])
        return Undisturbed(places, lab.result, lab.did, events)


def sampled(seed, count, program=None):
    """Events of a program, of which it has tens of thousands: the same in every session."""
    events = undisturbed(program or seed).events
    chosen = random.Random(seed).sample(range(1, events + 1), many(count, events))
    return [f"event {number}" for number in chosen]


def check(lab, program, *killed):
    """The run that was killed there ended like the undisturbed one, and repeated nothing."""
    whole, story = undisturbed(program), "\n".join([f"killed at {killed}", *lab.said, *lab.log])
    assert lab.result == whole.result, story
    assert lab.did.keys() == whole.did.keys() or program in GRAPHS, story
    returned = set()
    for line in lab.log:
        call = line.partition(" ")[2].partition(" -> ")[0]
        if line.startswith("got "):
            returned.add(call)
        assert not (line.startswith("did ") and call in returned), story
    repeats = {call: times - 1 for call, times in lab.did.items() if times > 1}
    assert not any(is_effect(call) for call in repeats), story
    if program in GRAPHS:
        allowed = in_flight(lab, killed)
        assert repeats.keys() <= allowed, (repeats, allowed, story)
        return
    # A kill can cost what was in flight, and nothing else: that is one step for each flow.
    assert sum(repeats.values()) <= len(killed) * FLOWS.get(program, 1), story


def in_flight(lab, killed):
    """What of a graph may be done again: the last visit of each branch that had begun at a kill."""
    cuts, allowed = lab.reached[:-1], set()
    cuts += [lab.lines.index(f"@{place}") for place in killed if f"@{place}" in lab.lines]
    for cut in cuts:
        last = {}
        for line in lab.lines[:cut]:
            name, _, begins = line[1:].partition(" ")
            branch, is_branch, _ = name.rpartition(".")
            if line[0] == "@" and begins == "begins":
                last = {**last, branch: name} if is_branch else {"": name}
                if is_branch:
                    last.pop("", None)
        allowed |= {f"node({name})" for name in last.values()}
        looks = (f"look({name})" for name in last.values())
        allowed |= {each for each in looks if any(k.startswith(("event", each)) for k in killed)}
    return allowed


def is_effect(call):
    return call.startswith(("post", "apost", "say", "wave"))


# -- libraries that do not keep their word -------------------------------------------------------

WITHOUT_INTENTS = "import stepwise\nstepwise.tool = lambda **options: stepwise.step\n"
FORGETFUL = """
from stepwise._journal.journal import Journal

append = Journal.append

def forget(self, *items, **options):
    kept = [each for each in items if type(each[0]).__name__ != "Outcome"]
    if kept:
        append(self, *kept, **options)

Journal.append = forget
"""
WITH_OLD_VARIABLES = """
from stepwise._workflows.frame import WorkflowFrame

dump = WorkflowFrame._referring

def stale(self, values):
    self.old, old = dump(self, values), getattr(self, "old", None)
    return self.old if old is None else old

WorkflowFrame.__slots__ = ()
WorkflowFrame._referring = stale
"""
BROKEN = (WITHOUT_INTENTS, FORGETFUL, WITH_OLD_VARIABLES)  # what a program begins with
