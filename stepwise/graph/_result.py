"""The result of executing a graph.

Imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ExecutionResult"]


@dataclass
class ExecutionResult:
    """The result of an execution.

    Args:
        success: no node has failed for good.  A paused execution counts as a success, too.
        status: ``"completed"``, ``"failed"`` or ``"paused"``.
        run_id: of the run; empty if nothing was recorded.
        output: the memory at the end.
        error, exception: why it failed: as text, and what the node raised.
        path: the nodes that were visited, those of parallel branches in the order of the graph.
        steps_executed: how many visits there were, whoever made them.
        paused_at: the node at which a human is to answer.
        session_state: what ``execute`` goes on with, together with the answer if it is paused.
        recovered_from_step: of the checkpoint at which it went on; 0 for the beginning, ``None``
            if it was not resumed.
        total_tokens, total_latency_ms: of all visits.
        total_retries, retry_details: how many attempts followed failed ones; by node.
        nodes_with_failures: those with a failed attempt.
    """

    success: bool
    status: Literal["completed", "failed", "paused"] = "completed"
    run_id: str = ""
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    exception: BaseException | None = None
    path: list[str] = field(default_factory=list)
    steps_executed: int = 0
    paused_at: str | None = None
    session_state: dict[str, Any] = field(default_factory=dict)
    recovered_from_step: int | None = None
    total_tokens: int = 0
    total_latency_ms: int = 0
    total_retries: int = 0
    retry_details: dict[str, int] = field(default_factory=dict)
    nodes_with_failures: list[str] = field(default_factory=list)

    @property
    def had_partial_failures(self) -> bool:
        """True if an attempt of any node failed."""
        return bool(self.nodes_with_failures)

    @property
    def execution_quality(self) -> Literal["clean", "degraded", "failed"]:
        """``"degraded"`` if it succeeded, but not every attempt did."""
        if not self.success:
            return "failed"
        return "degraded" if self.nodes_with_failures else "clean"

    @property
    def is_clean_success(self) -> bool:
        """Return whether the run and every attempt succeeded."""
        return self.execution_quality == "clean"

    @property
    def is_degraded_success(self) -> bool:
        """Return whether the run succeeded although an attempt failed."""
        return self.execution_quality == "degraded"


ExecutionResult.__module__ = "stepwise.graph"
