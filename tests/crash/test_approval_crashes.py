"""Runs that ask a person, killed at every write; so is the person who answers."""

import json
import pathlib
import subprocess
import sys

import pytest
from sweeping import WHOLE

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "approving.py"


@pytest.mark.parametrize(("kind", "first"), [("plain", 3), ("tasks", 5)])
def test_a_run_that_asks_survives_a_kill_at_every_write(tmp_path, kind, first, tally):
    """Killed before or after any write, nothing is done that was not allowed, nor anything twice.

    The first processes pass other arguments than the later ones.
    """
    place = (1, 1) if WHOLE else (first, 9)
    command = [sys.executable, str(PROGRAM), str(tmp_path), kind, *map(str, place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["kills"] >= (30 if WHOLE else 4)
    tally("a run that asks, or its person, killed at a write", found["kills"])
