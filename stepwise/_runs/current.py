"""The call that the code of a step is in: ``current_step`` and its idempotency key."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stepwise._execution.active_run import current_scope
from stepwise._journal.counters import key_of
from stepwise._runtime.public_names import public

__all__ = ["CurrentStep", "current_step"]


@public
@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed.

    Args:
        name: of the step; empty outside of one.
        idempotency_key: the same whenever this very call is repeated, and no other call's: send it
            outside so that repeats are dropped there.
        attempt: which try of the body this is, from 1.
        run_id: of the run; empty outside of one.
    """

    name: str
    idempotency_key: str
    attempt: int
    run_id: str


def current_step() -> CurrentStep:
    """Return the step that is being executed, with its idempotency key.

    Outside of a run, where nothing is repeated, each call returns a new key, so that a tool works
    there as well.
    """
    scope = current_scope()
    if scope is None or scope.call is None:
        return CurrentStep("", f"sw-{os.urandom(16).hex()}", 1, "")
    call = scope.call
    run_id = scope.run.run_id
    return CurrentStep(call.name, call.key or key_of(run_id, call), scope.attempt, run_id)
