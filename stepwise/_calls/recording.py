"""Calls whose arguments are recorded in full, for people who look at the run.

The classes are chosen when a step is decorated, or by the run that makes the call.  So other calls
do not ask whether their arguments are to be recorded.
"""

from __future__ import annotations

from stepwise._calls.call import Performance
from stepwise._calls.driver import Core
from stepwise._execution.inputs import record_inputs_of
from stepwise._execution.location import Origin
from stepwise._journal.records import Call
from stepwise._matching.pool import Match


def record_arguments(made: Performance, call: Call) -> None:
    """Record the arguments of a call as it begins."""
    performer = made.performer
    given, function = performer.inputs(made.bound), getattr(performer, "function", None)
    record_inputs_of(made.scope.run, call.number, given, performer.hiding, function)


class RecordingCall(Performance):
    """A call that records its arguments."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Record the arguments, make the call, and record its outcome."""
        record_arguments(self, call)
        return (yield from super().conduct(call, origin, match))
