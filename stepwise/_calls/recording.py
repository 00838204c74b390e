"""Calls whose arguments are recorded in full, for people who look at the run.

The class of a call is chosen when its step is decorated, or by the run that makes the call.  So
other calls do not ask whether their arguments are to be recorded.
"""

from __future__ import annotations

from typing import Any

from stepwise._calls.driver import Core, Result
from stepwise._execution.inputs import record_inputs_of
from stepwise._execution.location import Origin
from stepwise._journal.records import Call
from stepwise._matching.pool import Match


def record_arguments(made: Any, call: Call) -> None:
    """Record the arguments of a call as it begins; ``made`` is its :class:`.Performance`."""
    performer = made.performer
    given, function = performer.inputs(made.bound), getattr(performer, "function", None)
    record_inputs_of(made.scope.run, call.number, given, performer.hiding, function)


class RecordingCall:
    """A call that records its arguments as it begins, mixed into the class of a step's calls."""

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Record the arguments, make the call, and record its outcome."""
        record_arguments(self, call)
        kind: Any = super()
        result: Result = yield from kind.conduct(call, origin, match)
        return result
