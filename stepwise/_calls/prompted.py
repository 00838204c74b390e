"""Calls that are typed at the prompt of a debugger: answered by the journal, or refused.

Nothing of the run changes: no record is taken out of the pool, and no call is counted.
"""

from __future__ import annotations

from stepwise._calls.driver import Attempt, Core, Result
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.replaying import Replay
from stepwise._execution.viewer import view
from stepwise._journal.journal import entries_of
from stepwise._journal.projection import Calls
from stepwise._runtime.messages import notice
from stepwise.errors import OutsideRunError


def typed(active: ActiveRun, look: Replay, name: str, digest: str, attempt: Attempt | None) -> Core:
    """Answer a typed call by the last recorded call with these arguments, or execute it if allowed.

    Args:
        attempt: the body of the call; ``None`` if it cannot be executed outside of the run.

    Raises:
        OutsideRunError: the call was never made, and is not allowed.
    """
    if attempt is not None and look.takes(name):
        notice(f"{name} is executed outside of the run, and not recorded")
        return (yield attempt)
    journal = active.journal
    entries = entries_of(journal.store, journal.seal, active.facts)
    made = [each for each in Calls(entries) if (each.call.name, each.call.digest) == (name, digest)]
    for recorded in reversed(made):
        if recorded.answers:
            notice(f"{name} is answered by the journal: step {recorded.call.number}")
            outcome = view(recorded.entry, active.codec)
            return Result(outcome.value, outcome.error)
    raise not_on_record(active, name, is_allowable=attempt is not None)


def not_on_record(active: ActiveRun, name: str, *, is_allowable: bool) -> OutsideRunError:
    """Return the error for a call that is not on record, while the run is looked at."""
    allow = f"; allow {name} executes it once, outside of the run" if is_allowable else ""
    return OutsideRunError(
        f"{name} is refused: the run has no record of this call, and a debugger only looks at the "
        f"run{allow}. To make the call in the run: continue, next or step",
        run_id=active.run_id,
    )
