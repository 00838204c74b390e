"""Graphs that are killed at every node boundary and inside every node and tool, and started again.

The program is ``tests/programs/graphs.py``.  It passes named places, and each of its events (a line
logged, a record written) is a place to die as well.  What may be done again: ``judge.in_flight``.
"""

import pytest
from judge import check, graphs, lab_of, sampled, undisturbed
from sweeping import WHOLE, thinned


def survives(program, *places, how="kill"):
    """Killed there, one place in each start, a graph ends as if undisturbed."""
    with lab_of(program) as lab:
        doubts = lab.run_to_end(*places, how=how)
        assert len(doubts) <= len(places), lab.said
        check(lab, program, *places)


@graphs
def test_killed_at_every_place(program):
    """Killed before, inside and after every node and tool, a graph ends as if undisturbed."""
    for place in thinned(undisturbed(program).places, 5):
        survives(program, place)


@graphs
def test_killed_at_any_event(program):
    """Killed anywhere else, inside the library too, or again as it recovers, it ends the same."""
    one, *others = sampled(program, 10 if WHOLE else 3)
    for event in others:
        survives(program, event)
    survives(program, one, others[0])


@graphs
@pytest.mark.parametrize("how", ["int", "term"])
def test_interrupted(program, how):
    """After a Ctrl-C or a SIGTERM in any node, too, no branch is lost and no tool called again."""
    for place in thinned(undisturbed(program).places[1::3], 4):
        survives(program, place, how=how)
