"""Schedules whose ``stepwise up`` is killed, while the clock jumps: each instant is one run."""

from schedule_trial import each_instant_is_one_run
from sweeping import SEED, size


def test_each_instant_is_one_run(tmp_path):
    """Two supervisors that are killed, and a clock that jumps: each instant is one run."""
    each_instant_is_one_run(tmp_path, f"disk:{tmp_path / 'store'}", days=size(8, 366), seed=SEED)
