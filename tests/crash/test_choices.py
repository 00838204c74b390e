"""A run that chooses the best of several random results is killed at each write of its store."""

import pytest
from sweeping import WHOLE
from writes import swept


@pytest.mark.parametrize("flow", ["steps", "children", "plain", "tasks"])
def test_a_choice_stays(flow, tmp_path):
    """Killed at each write in turn, a run chooses the same result, and makes no score again."""
    kills = swept("choosing.py", tmp_path, *((1, 1) if WHOLE else (2, 11)), flow)
    assert kills > (20 if WHOLE else 1)


def test_an_evaluation_goes_on(tmp_path):
    """Killed at each write in turn, an evaluation ends, and makes no score or branch again."""
    kills = swept("evaluating.py", tmp_path, *((1, 1) if WHOLE else (2, 31)))
    assert kills > (60 if WHOLE else 3)
