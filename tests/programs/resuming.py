"""Calls of workflows that crash at a step, played in one process."""

import pytest

from stepwise.testing import SimulatedCrash, crash_at


def crashed(call, *args, at, when="before", nth=1):
    """Call a workflow; it crashes at a step."""
    with pytest.raises(SimulatedCrash), crash_at(at, when, call=nth):
        call(*args)


def resumed(call, *args, at, when="before", nth=1):
    """The same, and call it again; what that gives."""
    crashed(call, *args, at=at, when=when, nth=nth)
    return call(*args)
