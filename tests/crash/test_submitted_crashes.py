"""Submitted runs whose submitters and supervisors are killed: each is executed once, to its end."""

import pathlib

import pytest
from submitting import Storm
from sweeping import size


@pytest.mark.parametrize("seed", range(size(1, 40)))
def test_submitters_and_supervisors_are_killed(tmp_path, monkeypatch, seed):
    """What was acknowledged is executed to its end, and by one process at a time."""
    monkeypatch.chdir(tmp_path)
    storm = Storm(seed, f"disk:{tmp_path / 'store'}")
    storm.check(storm.rage())


@pytest.mark.parametrize("seed", range(size(1, 20)))
def test_one_place_begins_in_order(tmp_path, monkeypatch, seed):
    """With one place the runs begin in the order of submission, though supervisors are killed."""
    monkeypatch.chdir(tmp_path)
    storm = Storm(seed, f"disk:{pathlib.Path(tmp_path, 'store')}", ups=1, most=1, kills=4)
    logged = storm.rage()
    storm.check(logged)
    storm.check_order(logged)
