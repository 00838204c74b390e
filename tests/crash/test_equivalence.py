"""Random programs, crashed everywhere: resumed, they are what they were undisturbed.

How that is checked: ``tests/programs/equivalence``.  A failure prints the seed and the program;
``python tests/programs/equivalence SEED`` repeats it.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter

import pytest
from equivalence.checker import Differs, check_seeds, kinds_of_statements
from equivalence.programs import write
from sweeping import WHOLE, size

from stepwise._matching.pool import Pool
from stepwise._rewrite import Rewritten
from stepwise._workflows import frame

BLOCK = 50  # programs of one test
BLOCKS = range(size(6, 400))
CRASHES = 8 if WHOLE else 4  # of each kind, of one program
FORKED = range(size(2, 20))
COMPOUND = {"If", "For", "AsyncFor", "While", "Try", "With", "AsyncWith", "Match"}


def seeds(block, count=BLOCK):
    return range(block * count, (block + 1) * count)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_crashed_program_is_what_it_was_undisturbed(block):
    """Killed or interrupted anywhere, and again in its recovery, a program does the same."""
    assert check_seeds(seeds(block), sample=CRASHES).crashes > BLOCK


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is missing here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("block", FORKED)
def test_a_program_whose_process_ended_is_what_it_was_undisturbed(block):
    """A program whose process ends itself in a step, twice, and then goes on, does the same."""
    assert check_seeds(seeds(block, 20), forked=True).programs == 20


def test_programs_are_crashed_in_every_kind_of_statement():
    """The programs of the sample have resume points inside every compound statement."""
    inside = Counter()
    for seed in range(len(BLOCKS) * BLOCK):
        inside += kinds_of_statements(write(seed))
        if all(inside[kind] >= 3 for kind in COMPOUND):
            return
    pytest.fail(str(inside))


# -- the check itself: with a fault put in, it fails ---------------------------------------------


def target_too_far(monkeypatch):
    right = Rewritten.number
    monkeypatch.setattr(Rewritten, "number", lambda *args: (right(*args) or 0) + 1)


def target_too_near(monkeypatch):
    right = Rewritten.number
    monkeypatch.setattr(Rewritten, "number", lambda *args: max((right(*args) or 0) - 1, 0))


def local_dropped(monkeypatch):
    def load(*args, **more):
        values = right(*args, **more)
        values.pop("a", None)
        return values

    right = frame.load_values
    monkeypatch.setattr(frame, "load_values", load)


def sharing_lost(monkeypatch):
    def load(*args, **more):
        values = right(*args, **more)
        if "alias" in values:
            values["alias"] = pickle.loads(pickle.dumps(values["alias"]))
        return values

    right = frame.load_values
    monkeypatch.setattr(frame, "load_values", load)


def record_skipped(monkeypatch):
    right = Pool.__init__
    monkeypatch.setattr(Pool, "__init__", lambda self, es=(), *more: right(self, es[:-1], *more))


# Where a variable is missing, the coroutines that were made for the same ``gather`` are left over.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    "fault",
    [
        target_too_far,
        target_too_near,
        local_dropped,
        sharing_lost,
        record_skipped,
    ],
)
def test_a_fault_is_noticed(fault, monkeypatch):
    """A rewriter that is off by one, or a variable or record that is lost, fails the check."""
    fault(monkeypatch)
    with pytest.raises(Differs, match=r"seed \d+: program \d+, "):
        check_seeds(seeds(0), sample=CRASHES)
