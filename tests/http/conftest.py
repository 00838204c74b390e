"""What the tests over HTTP share: servers on the store of the test."""

import pytest
from reconnecting import Server


@pytest.fixture
def server():
    """Makes servers."""
    made = []

    def make(**how):
        made.append(Server(**how))
        return made[-1].start()

    yield make
    for each in made:
        each.close()
