"""Submitted runs on a server: order, submission by id, and kills of submitters and supervisors."""

from __future__ import annotations

import pytest
from server import with_options

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

from submitting import Storm


@pytest.mark.parametrize("most", [3, 1])
def test_submitters_and_supervisors_are_killed(postgres, tmp_path, monkeypatch, most):
    """What was acknowledged is executed once, to its end; with one place, in order."""
    monkeypatch.chdir(tmp_path)
    url = with_options(postgres, lease_seconds=3)
    storm = Storm(most, url, each=12, ups=2 if most > 1 else 1, most=most, kills=4)
    logged = storm.rage()
    storm.check(logged)
    if most == 1:
        storm.check_order(logged)
