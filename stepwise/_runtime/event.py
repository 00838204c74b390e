"""One event of a run, as a frozen record; created only if there are listeners."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwise._runtime.facts import public

Kind = Literal[
    "run_started",
    "run_resumed",
    "run_completed",
    "run_failed",
    "run_cancelled",
    "run_interrupted",
    "run_suspended",
    "run_stopped",
    "step_started",
    "step_waiting",
    "step_answered",
    "step_completed",
    "step_failed",
    "step_cancelled",
    "step_in_doubt",
    "checkpoint_taken",
]


@public
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Args:
        kind: the kind of event.  ``step_answered``: a step that was not executed, since it was
            done, or since the cache answered it, as ``detail`` then says.
            ``step_waiting``: a step that waits for a time, a signal or a person.
            ``run_interrupted``: a run stopped by Ctrl-C, by a cancellation or timeout in its
            caller, or by a used-up budget.
            ``run_suspended``: a run that released its process until something it waits for arrives.
            ``run_stopped``: a run that stopped otherwise, such as by a step in doubt or an exit.
        run_id: the id of the run.
        workflow: the full name of the workflow.
        step: the number of the step; for a checkpoint, the number of done steps.
        name: the name of the step.
        arguments: the arguments of the step, as shortened text.
        detail: the outcome, as shortened text: the result, the exception, the interruption, the
            place where the run resumes, or ``file:line`` of the checkpoint.
        duration: seconds that the step took, or had taken if it is answered; for a run that
            resumes, the seconds of the steps before the place where it resumes.
        lost: seconds that an earlier attempt spent in vain on a step that starts: exact if the
            attempt failed, a lower bound if its process died.
        executed: the number of steps that this attempt has executed so far.
        skipped: the number of steps that it did not execute, since they were done.
        attempts: the number of attempts of a step that ended; 0 in other events.
        usage: for a completed or answered model request, the known ones of ``model``, ``provider``
            (texts), ``input_tokens``, ``output_tokens``, ``cached_input_tokens`` (counts) and
            ``cost_usd`` (US dollars); for a run that resumes, the sums of the earlier requests.
        at: when it happened, in seconds since 1970.
    """

    kind: Kind
    run_id: str
    workflow: str
    step: int = 0
    name: str = ""
    arguments: str = ""
    detail: str = ""
    duration: float | None = None
    lost: float = 0.0
    executed: int = 0
    skipped: int = 0
    attempts: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        what = self.kind.replace("_", " ")
        call = f" {self.step} {self.name}({self.arguments})" if self.name else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.run_id}: {what}{call}{detail}"
