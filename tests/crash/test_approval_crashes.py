"""Runs that ask a person, killed at every write; so is the person who answers."""

import pytest
from sweeping import WHOLE
from writes import swept


@pytest.mark.parametrize(("kind", "first"), [("plain", 3), ("tasks", 9)])
def test_a_run_that_asks_survives_a_kill_at_every_write(tmp_path, kind, first, tally):
    """Killed before or after any write, nothing is done that was not allowed, nor anything twice.

    The first processes pass other arguments than the later ones.
    """
    kills = swept("approving.py", tmp_path, *((1, 1) if WHOLE else (first, 21)), kind)
    assert kills >= (30 if WHOLE else 2)
    tally("a run that asks, or its person, killed at a write", kills)
