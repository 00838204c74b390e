"""Runs that wait, killed at every write."""

import pytest
from sweeping import WHOLE
from writes import swept


@pytest.mark.parametrize(
    ("kind", "every", "first"),
    [("plain", 1, 2), ("plain", 3, 5), ("tasks", 1, 3), ("tasks", 3, 7)],
)
def test_a_run_that_waits_survives_a_kill_at_every_write(tmp_path, kind, every, first):
    """Killed before or after any write, a run that waits goes on with its end and its messages.

    Each message is taken once, and nothing is executed again but the statement that was killed.
    """
    kills = swept("waiting.py", tmp_path, *((1, 1) if WHOLE else (first, 61)), kind, every)
    assert kills >= (20 if WHOLE else 2)
