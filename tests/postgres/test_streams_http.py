"""Streams over HTTP with a store on a server."""

import pytest
from reconnecting import Server, storm
from server import with_options
from sweeping import SEED, size


@pytest.fixture
def served(postgres, monkeypatch):
    """A server whose runs are in a database."""
    monkeypatch.setenv("STEPWISE_STORE", with_options(postgres, lease_seconds=3))
    made = Server().start()
    yield made
    made.close()


@pytest.mark.parametrize("workflow", ["talk", "read_out"])
def test_nothing_is_lost_or_doubled(served, workflow):
    """Readers that reconnect at random offsets to a server that is killed get each item once."""
    readers, reconnects, kills = size(5, 20), size(40, 1000), size(2, 100)
    storm(served, workflow, readers=readers, reconnects=reconnects, kills=kills, seed=SEED)
