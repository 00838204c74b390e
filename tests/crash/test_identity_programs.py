"""Random programs with several objects: a recorded outcome answers only its own call.

How that is checked: ``tests/programs/identity``.  A failure prints the seed and the program;
``python tests/programs/identity SEED`` repeats it.
"""

import os
import pickle
from collections import Counter

import pytest
from identity.judge import PROMISED, check_seeds
from identity.programs import CARRIERS, draw
from identity.rules import NAIVE, TODAY
from sweeping import SEED, size

BLOCK = 8  # programs of one test
SAMPLE = 1  # blocks, in CI
BLOCKS = range(size(SAMPLE, 1000))
FIRST = SEED if len(BLOCKS) > SAMPLE else 0  # CI looks at the same programs each time
UNSEEN = 0.05  # wrong answers and effects where nobody can tell objects apart, of these trials
SEEN = {"ordinary", "a body configures"}
HARM = {"wrong", "lost", "doubled", "key", "state"}
NEEDLESS = 0.02  # trials with a step that ran, or a side effect that asked, without need


@pytest.fixture(scope="session")
def block(tmp_path_factory):
    """Return what came of a block of programs, which one process of the session has run."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def block(number):
        file, new = shared / f"identity {number}", own / f"new {number}"
        if not file.exists():
            first = FIRST + number * BLOCK
            new.write_bytes(pickle.dumps(check_seeds(range(first, first + BLOCK))))
            new.replace(file)
        return pickle.loads(file.read_bytes())

    return block


@pytest.mark.parametrize("number", BLOCKS)
def test_a_recorded_outcome_answers_only_its_own_call(number, block, tally):
    """Killed anywhere, a program of several objects ends as it would without the library."""
    came = block(number)
    seen = [each for each in came.broken if each.program.category in SEEN]
    assert not any(HARM & set(each.broken) for each in seen), came.text()
    tally(
        "programs of several objects killed",
        came.trials,
        in_doubt=came.needed,
        asked_without_need=came.found["stop"],
        repeated_steps=came.found["repeat"],
    )


def test_what_nobody_can_tell_apart_seldom_goes_wrong(block):
    """Objects that look alike and hold different accounts hardly ever get each other's answers.

    Ordinary ones hardly ever run a recorded step again, or ask without need.
    """
    came = [block(number) for number in BLOCKS]
    unseen = [
        each.by_category.get(kind, Counter()) for each in came for kind in set(PROMISED) - SEEN
    ]
    found = sum(unseen, Counter())
    wrong = found["wrong"] + found["lost"] + found["doubled"]
    assert wrong <= 1 + UNSEEN * found["trials"], found
    needless = sum(len(each.broken) for each in came)
    assert needless <= 1 + NEEDLESS * sum(each.trials for each in came), found


def test_the_programs_hold_every_kind_of_object():
    """Among the programs of a sample is every carrier of identity, in each way of being called."""
    programs = [draw(seed) for seed in range(400)]
    assert {each.carrier for each in programs} == set(CARRIERS)
    forms = {statement.form for each in programs for statement in each.statements}
    assert forms >= {"seq", "set", "plugins", "gather", "helpers", "threads", "pool", "map"}
    assert {each.category for each in programs} >= {"ordinary", "twins", "a body configures"}


# -- the check itself: with another rule put in, it fails ----------------------------------------


@pytest.mark.parametrize(
    ("rule", "kinds"),
    [(TODAY, ["wrong", "lost", "doubled"]), (NAIVE, ["repeat or stop"])],
    ids=["names and arguments", "whole objects"],
)
def test_another_rule_fails(rule, kinds):
    """A rule without objects gives wrong answers; one of whole objects pays or asks again."""

    def enough(tally):
        found = tally.by_category.get("ordinary", Counter())
        return all(sum(found[each] for each in kind.split(" or ")) >= 3 for kind in kinds)

    assert enough(check_seeds(range(80), kills=2, before=rule, enough=enough))
