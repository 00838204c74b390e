"""A process that is killed at any write while a run is cancelled: it unwinds once, in the end."""

import pytest
from sweeping import WHOLE
from writes import swept


@pytest.mark.parametrize("who", ["itself", "another"])
@pytest.mark.parametrize("flow", ["plain", "slow"])
def test_killed_while_it_is_cancelled(tmp_path, flow, who):
    """Who executes the run, or cancels it, is killed at each write in turn; it is unwound once."""
    kills = swept("cancelling.py", tmp_path, *((1, 1) if WHOLE else (2, 9)), flow, who)
    assert kills > (24 if WHOLE else 2)
