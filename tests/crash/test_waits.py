"""Runs that wait, killed at every write."""

import json
import pathlib
import subprocess
import sys

import pytest
from sweeping import WHOLE

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "waiting.py"


@pytest.mark.parametrize(
    ("kind", "every", "first"),
    [("plain", 1, 2), ("plain", 3, 5), ("tasks", 1, 3), ("tasks", 3, 7)],
)
def test_a_run_that_waits_survives_a_kill_at_every_write(tmp_path, kind, every, first):
    """Killed before or after any write, a run that waits goes on with its end and its messages.

    Each message is taken once, and nothing is executed again but the statement that was killed.
    """
    place = (1, 1) if WHOLE else (first, 11)
    command = [sys.executable, str(PROGRAM), str(tmp_path), kind, str(every), *map(str, place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["kills"] >= (40 if WHOLE else 4)
