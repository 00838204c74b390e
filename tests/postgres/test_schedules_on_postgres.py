"""Schedules on a server: each instant is one run, although the leases of killed ones lapse."""

import pytest
from schedule_trial import each_instant_is_one_run
from server import with_options

pytest.importorskip("psycopg", reason="needs the extra test-cluster")


def test_each_instant_is_one_run_on_a_server(tmp_path, postgres):
    """Two supervisors that are killed, and a clock that jumps: each instant is one run."""
    url = with_options(postgres, lease_seconds=3)
    each_instant_is_one_run(tmp_path, url, days=3, seed=1)
