"""Random programs, crashed everywhere: resumed, they are what they were undisturbed.

Half of them have statements of every kind; the others are agents whose steps change their state in
place.  How that is checked: ``tests/programs/equivalence``.  A failure prints the seed and the
program; ``python tests/programs/equivalence SEED [--states FEATURES]`` repeats it.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections import Counter

import pytest
from equivalence import states
from equivalence.checker import Differs, check_seeds, kinds_of_statements
from equivalence.programs import write
from equivalence.state_writer import StateWriter
from equivalence.states import KINDS, OPERATIONS, write_states
from equivalence.world import world
from sweeping import WHOLE, size

from stepwise._changes import Snapshot
from stepwise._matching.pool import Pool
from stepwise._rewrite.frame import Rewritten
from stepwise._workflows import frame

BLOCK, AGENTS = 25, 4  # programs, and agents, of one test
BLOCKS, BLOCKS_OF_AGENTS = range(size(2, 800)), range(size(1, 100))
CRASHES = 8 if WHOLE else 3  # of each kind, of one program
COMPOUND = {"If", "For", "AsyncFor", "While", "Try", "With", "AsyncWith", "Match"}
FEATURES = ["", "changes", "clients", "retries", "changes,clients,retries"]


def check_agents(block, features):
    """Check the agents of a block; ``,`` separates their features."""
    seeds, chosen = range(block * AGENTS, (block + 1) * AGENTS), features.split(",")
    return check_seeds(seeds, sample=CRASHES, write=lambda seed: write_states(seed, chosen))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_crashed_program_is_what_it_was_undisturbed(block):
    """Killed or interrupted anywhere, and again in its recovery, a program does the same."""
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    assert check_seeds(seeds, sample=CRASHES).crashes > BLOCK


@pytest.mark.parametrize("block", BLOCKS_OF_AGENTS)
@pytest.mark.parametrize("features", FEATURES)
def test_a_crashed_agent_is_what_it_was_undisturbed(features, block):
    """Killed anywhere, and again in its recovery, an agent has the same state and does the same."""
    assert check_agents(block, features).crashes > AGENTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is missing here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("block", range(size(1, 20)))
def test_a_program_whose_process_ended_is_what_it_was_undisturbed(block):
    """A program whose process ends itself in a step, twice, and then goes on, does the same."""
    seeds = range(block * 20, (block + 1) * 20)
    assert check_seeds(seeds, forked=True).programs == 20


def test_programs_are_crashed_in_every_kind_of_statement():
    """The programs of the sample have resume points inside every compound statement."""
    inside = Counter()
    for seed in range(300):
        inside += kinds_of_statements(write(seed))
        if all(inside[kind] >= 3 for kind in COMPOUND):
            return
    pytest.fail(str(inside))


def test_the_agents_have_all_kinds_and_operations():
    """Agents make every kind of state object that is installed, and change it in every way."""
    missing = {f"make('{kind}'" for kind in KINDS} | {f"'{operation}'" for operation in OPERATIONS}
    missing |= {"'small')", "def crew1", "captured(", "for q in", "self.touch(", "'peer', given"}
    for seed in range(100):
        source = write_states(seed, ["changes", "clients", "retries"]).source
        missing = {each for each in missing if each not in source}
    assert not missing
    kinds = [kind for kind in KINDS if kind not in ("grid", "attrs", "model")]
    writers = [StateWriter(seed, ["changes"], kinds, OPERATIONS) for seed in range(40)]
    assert not any("'grid', 3" in writer.program() for writer in writers)


# -- the check itself: with a fault put in, it fails ---------------------------------------------


def target_too_far(monkeypatch):
    right = Rewritten.number
    monkeypatch.setattr(Rewritten, "number", lambda *args: (right(*args) or 0) + 1)


def target_too_near(monkeypatch):
    right = Rewritten.number
    monkeypatch.setattr(Rewritten, "number", lambda *args: max((right(*args) or 0) - 1, 0))


def local_dropped(monkeypatch):
    change_loaded(monkeypatch, lambda values: values.pop("a", None))


def sharing_lost(monkeypatch):
    def unshare(values):
        if "alias" in values:
            values["alias"] = pickle.loads(pickle.dumps(values["alias"]))

    change_loaded(monkeypatch, unshare)


def change_loaded(monkeypatch, change):
    def load(*args, **more):
        values = right(*args, **more)
        change(values)
        return values

    right = frame.load_values
    monkeypatch.setattr(frame, "load_values", load)


def record_skipped(monkeypatch):
    right = Pool.__init__
    monkeypatch.setattr(Pool, "__init__", lambda self, es=(), *more: right(self, es[:-1], *more))


# Where a variable is missing, the coroutines that were made for the same ``gather`` are left over.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    "fault", [target_too_far, target_too_near, local_dropped, sharing_lost, record_skipped]
)
def test_a_fault_is_noticed(fault, monkeypatch):
    """A rewriter that is off by one, or a variable or record that is lost, fails the check."""
    fault(monkeypatch)
    with pytest.raises(Differs, match=r"seed \d+: program \d+, "):
        check_seeds(range(50), sample=4)


def lengths_only(monkeypatch):
    """Watch the lengths of the arguments alone, as stepwise did before."""
    changed = Snapshot.changed

    def longer_or_shorter(self):
        roots = set(map(id, self.roots.values()))
        return [
            each
            for each in changed(self)
            if each.facet == "items" and id(each.obj) in roots and len(each.obj) != len(each.before)
        ]

    monkeypatch.setattr(Snapshot, "changed", longer_or_shorter)


def change_lost(monkeypatch):
    """A step that runs again after a kill changes a copy of its state."""

    def changed(state, operation, x):
        return right(copy.deepcopy(state) if world.before else state, operation, x)

    right = states.VOCABULARY["change"]
    monkeypatch.setitem(states.VOCABULARY, "change", changed)


@pytest.mark.parametrize("fault", [lengths_only, change_lost])
def test_a_lost_change_is_noticed(fault, monkeypatch):
    """A watch that misses changes, and a change that is lost after a kill, fail the check."""
    fault(monkeypatch)
    with pytest.raises(Differs, match=r"seed \d+: program \d+, "):
        for block in range(3):
            check_agents(block, "changes")
