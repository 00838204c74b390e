"""The protocol of a shared store, as a model of which every interleaving is visited.

The model is ``programs/lease_model.py``; the store on Postgres does what it does, statement by
statement (``tests/postgres`` compares the two).
"""

import dataclasses

import pytest
from lease_model import Faults, Rules, explore
from sweeping import WHOLE

# Each world has all pauses, cut networks, late statements, and one takeover of a lease that ran
# out (or two).
WORLDS = {
    "two-takeovers": Faults(drops=0, crashes=0, deaths=0, expiries=2),
    "lost-answer": Faults(drops=1, crashes=0, deaths=0, expiries=2),
    "lost-answers": Faults(drops=2, crashes=0, deaths=0),
    "crash-of-the-server": Faults(drops=1, crashes=1, deaths=0),
    "death": Faults(drops=1, crashes=0, deaths=1),
    "stop": Faults(drops=1, crashes=0, deaths=0, stops=1, expiries=0),
    "stop-and-crash": Faults(drops=0, crashes=1, deaths=0, stops=1, expiries=0),
}
if WHOLE:  # several million states
    WORLDS |= {
        "all": Faults(drops=1, crashes=1, deaths=1, stops=1),
        "two-of-each": Faults(drops=2, crashes=2, deaths=1),
    }

# For each rule, what goes wrong without it.
MUTANTS = {
    "epoch_in_statement": "of epoch 1 is written under epoch 2",
    "turn_in_statement": "is written twice",
    "acquisition_flushed": "its epoch is gone",
    "intent_flushed": "begins without a durable intent",
    "drop_is_no_death": "a takeover from a live owner",
    "grace_after_start": "in the time of grace",
    "expiry_in_statement": "a takeover from a live owner",
    "refusal_is_read": "a live owner is locked out",
    "lost_answer_is_read": "acknowledged batch 1 of epoch 1 is lost",
    "acquisition_names_epoch": "its own late statement",
    "release_names_epoch": "a takeover from a live owner",
    "release_flushed": "the run can never end",
    "release_repeated": "the run can never end",
    "open_intent_is_settled": "begins without a durable intent of its epoch",
}
FEW = {
    "acquisition_names_epoch": Faults(drops=1, crashes=0, deaths=0),
    "release_names_epoch": Faults(drops=1, crashes=0, deaths=0, stops=1),
    "release_flushed": Faults(drops=0, crashes=1, deaths=0, stops=1, expiries=0),
    "release_repeated": Faults(drops=0, crashes=1, deaths=0, stops=1, expiries=0),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_interleaving_keeps_every_promise(world):
    """No order of two processes, a server, late statements and some faults breaks a promise."""
    found = explore(Rules(), WORLDS[world])
    assert not found.wrong, str(found)
    assert found.states > 1_000, str(found)


@pytest.mark.parametrize("rule", [each.name for each in dataclasses.fields(Rules)])
def test_each_rule_is_needed(rule):
    """Without any one of its rules the protocol breaks a promise, and a short trace shows how."""
    found = explore(Rules(**{rule: False}), FEW.get(rule, Faults()))
    assert MUTANTS[rule] in found.wrong, str(found)
    assert 1 < len(found.trace) <= 16, str(found)
    print(found)
