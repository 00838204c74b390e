"""The search for a call's record, while other tasks and threads of the run search for theirs."""

from __future__ import annotations

import time
from collections.abc import Generator

from stepwise._calls.operations import Change, Result
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Origin
from stepwise._execution.other_tasks import others_alive, others_may_claim
from stepwise._journal.records import Call
from stepwise._matching.callers import NOBODY, Asks, Caller
from stepwise._matching.pool import Match, Verdict
from stepwise._matching.subjects import Identity
from stepwise._runtime.messages import notice, reports

__all__ = ["PATIENCE", "claim"]

PATIENCE = 1.0  # seconds without any change in the run after which a blocked call raises


def claim(
    scope: Scope, call: Call, origin: Origin, identity: Identity
) -> Generator[Change, Result, Match]:
    """Find the record of the call, and take it out of the pool.

    Where a recorded side effect could be this very call with other arguments, the other tasks and
    threads of the run are first given the time to claim theirs: until nothing has changed for a
    second, and none of them executes a step.
    """
    active, flows = scope.run, scope.run.flows
    caller = Caller(active.subjects, identity) if identity.holder is not None else NOBODY
    began, told = 0.0, False
    try:
        while True:
            seen = flows.changes
            match = active.match(call, origin, identity, caller, lambda: not others_alive(active))
            if caller.has_twins and active.is_first(f"twins {call.name}"):
                _tell_twins(active, caller)
            if match.verdict is Verdict.BLOCKED:
                began = began or time.monotonic()
                flows.block(call, scope.around, match)
                if others_may_claim(active):
                    changed = yield Change(flows, seen, PATIENCE)
                    if changed.value or flows.others_working():
                        active.check(call.name)
                        if not told and time.monotonic() - began >= PATIENCE:
                            told = True
                            _tell_waiting(active, call, match)
                        continue
                from stepwise._calls.doubt import stopped_at

                error = stopped_at(active, call, match)
                if error is not None:
                    raise error
                continue  # another call has just taken the record
            if not match.recorded:
                with active.lock:
                    return match._replace(instead=active.pool.instead(call))
            if active.take(match.recorded[0]):
                active.subjects.met(identity, match.recorded[0].call)
                return match
    finally:
        if began:
            flows.unblock(call)


@reports
def _tell_twins(active: ActiveRun, caller: Asks) -> None:
    notice(f"{active.run_id}: {caller.twins_text()}")


@reports
def _tell_waiting(active: ActiveRun, call: Call, match: Match) -> None:
    from stepwise._calls.doubt import waiting_text  # on use: calls rarely wait

    notice(f"run {active.run_id}: {waiting_text(call, match)}")
