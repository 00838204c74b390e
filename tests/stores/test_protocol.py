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
LOST, CRASH = Faults(drops=1, crashes=0, deaths=0), Faults(drops=0, crashes=1, deaths=0)
STOP = Faults(drops=0, crashes=0, deaths=0, stops=1)
CRASH_AND_STOP = CRASH._replace(stops=1, expiries=0)
WORLDS = {
    "two-takeovers": Faults(drops=0, crashes=0, deaths=0, expiries=2),
    "lost-answer": LOST,
    "crash-of-the-server": CRASH,
    "death": Faults(drops=0, crashes=0, deaths=1),
    "stop": STOP,
}
if WHOLE:  # several million states; they change when the model does
    WORLDS |= {
        "lost-answers": LOST._replace(drops=2),
        "lost-answer-and-takeovers": LOST._replace(expiries=2),
        "lost-answer-and-crash": LOST._replace(crashes=1),
        "lost-answer-and-death": LOST._replace(deaths=1),
        "lost-answer-and-stop": LOST._replace(stops=1, expiries=0),
        "stop-and-crash": CRASH_AND_STOP,
        "all": Faults(drops=1, crashes=1, deaths=1, stops=1),
        "two-of-each": Faults(drops=2, crashes=2, deaths=1),
    }

# For each rule, what goes wrong without it, and a small world in which it does.
MUTANTS = {
    "epoch_in_statement": (LOST, "of epoch 1 is written under epoch 2"),
    "turn_in_statement": (LOST, "is written twice"),
    "acquisition_flushed": (CRASH, "its epoch is gone"),
    "intent_flushed": (LOST, "begins without a durable intent"),
    "drop_is_no_death": (LOST, "a takeover from a live owner"),
    "grace_after_start": (CRASH, "in the time of grace"),
    "expiry_in_statement": (LOST, "a takeover from a live owner"),
    "refusal_is_read": (LOST, "a live owner is locked out"),
    "lost_answer_is_read": (LOST, "acknowledged batch 1 of epoch 1 is lost"),
    "acquisition_names_epoch": (LOST, "its own late statement"),
    "release_names_epoch": (STOP, "a takeover from a live owner"),
    "release_flushed": (CRASH_AND_STOP, "the run can never end"),
    "release_repeated": (CRASH_AND_STOP, "the run can never end"),
    "open_intent_is_settled": (LOST, "begins without a durable intent of its epoch"),
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
    world, wrong = MUTANTS[rule]
    found = explore(Rules(**{rule: False}), world)
    assert wrong in found.wrong, str(found)
    assert 1 < len(found.trace) <= 16, str(found)
    print(found)
