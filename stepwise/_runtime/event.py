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
        kind: what; ``step_answered`` is a step that was not executed, since it was done;
            ``step_waiting`` one that waits for a time, a signal or a person;
            ``run_interrupted`` a run that somebody stopped: Ctrl-C, a cancellation, a timeout;
            ``run_suspended`` one that gave up its process until what it waits for is there;
            ``run_stopped`` one that stopped otherwise: something in doubt, an exit.
        run_id: of the run.
        workflow: its full name.
        step: the step's number; of a checkpoint, how many steps were done.
        name: of the step.
        arguments: of the step, as shortened text.
        detail: what came of it, as shortened text: the result, the exception, what interrupted
            it, where the run resumes, ``file:line`` of the checkpoint.
        duration: seconds that the step took, or had taken if it is answered; of a run that resumes,
            what the steps before the place where it resumes had taken.
        lost: seconds that an earlier attempt had worked for nothing at a step that starts: exactly
            if it failed, at least if its process died.
        executed: steps that this attempt has executed so far.
        skipped: steps that it did not execute, since they were done.
        usage: of a completed or answered model request, what is known of ``model``, ``provider``
            (texts), ``input_tokens``, ``output_tokens``, ``cached_input_tokens`` (counts) and
            ``cost_usd`` (US dollars); of a run that resumes, the sums of the requests before.
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
    usage: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        what = self.kind.replace("_", " ")
        call = f" {self.step} {self.name}({self.arguments})" if self.name else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.run_id}: {what}{call}{detail}"
