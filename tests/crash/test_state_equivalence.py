"""Random agents whose steps change their state in place, crashed everywhere.

How that is checked: ``tests/programs/equivalence``.  A failure prints the seed and the program;
``python tests/programs/equivalence SEED --states FEATURES`` repeats it.
"""

from __future__ import annotations

import copy
import os

import pytest
from equivalence.checker import Differs, check_renamed, check_seeds
from equivalence.state_writer import StateWriter
from equivalence.states import KINDS, OPERATIONS, VOCABULARY, write_states
from equivalence.world import world
from sweeping import WHOLE, size

from stepwise._changes.snapshots import Snapshot

BLOCK = 20  # programs of one test
BLOCKS = range(size(1, 20))  # of each set of features: 2,800 programs in all
CRASHES = 8 if WHOLE else 3  # of each kind, of one program
FEATURES = ["", "changes", "clients", "retries", "changes,clients,retries"]


def check_block(block, features, **options):
    """Check the programs of a block; ``,`` separates their features."""
    chosen = features.split(",")
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    return check_seeds(
        seeds, sample=CRASHES, write=lambda seed: write_states(seed, chosen), **options
    )


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("features", FEATURES)
def test_a_crashed_agent_is_what_it_was_undisturbed(features, block):
    """Killed anywhere, and again in its recovery, an agent has the same state and does the same."""
    assert check_block(block, features).crashes > BLOCK


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("features", ["renames", "changes,retries,renames"])
def test_an_agent_whose_tool_is_renamed_does_nothing_twice(features, block):
    """Killed anywhere, an agent whose tool got another name asks, and does the same."""
    assert check_block(block, features, check=check_renamed).programs == BLOCK


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is missing here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("block", range(size(1, 10)))
def test_an_agent_whose_process_ended_is_what_it_was_undisturbed(block):
    """An agent whose process ends itself in a step, twice, and then goes on, does the same."""
    assert check_block(block, "changes,retries", forked=True).programs == BLOCK


def test_the_programs_have_all_kinds_and_operations():
    """The programs of the sample make every kind of state object, and change it in every way."""
    missing = {f"make('{kind}'" for kind in KINDS} | {f"'{operation}'" for operation in OPERATIONS}
    missing |= {"'small')", "def crew1", "captured(", "for q in", "self.touch(", "'peer', given"}
    for seed in range(100):
        source = write_states(seed, ["changes", "clients", "retries"]).source
        missing = {each for each in missing if each not in source}
    assert not missing


def test_a_kind_that_is_not_installed_is_left_out():
    """Without numpy, attrs or pydantic, the programs consist of the kinds that there are."""
    kinds = [kind for kind in KINDS if kind not in ("grid", "attrs", "model")]
    writers = [StateWriter(seed, ["changes"], kinds, OPERATIONS) for seed in range(40)]
    assert not any("'grid', 3" in writer.program() for writer in writers)


# -- the check itself: with a fault put in, it fails ---------------------------------------------


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

    right = VOCABULARY["change"]
    monkeypatch.setitem(VOCABULARY, "change", changed)


@pytest.mark.parametrize("fault", [lengths_only, change_lost])
def test_a_lost_change_is_noticed(fault, monkeypatch):
    """A watch that misses changes, and a change that is lost after a kill, fail the check."""
    fault(monkeypatch)
    with pytest.raises(Differs, match=r"seed \d+: program \d+, "):
        check_block(0, "changes")
