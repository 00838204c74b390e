"""Metrics of runs: steps, answers, doubts, seconds lost and saved, tokens.

Made of the events alone, so they cost nothing between them.  The names that begin with ``gen_ai``
are those of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwise._runtime.event import Event
from stepwise.integrations._model_requests import operation_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Metrics", "label_of", "usage_of"]

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))
"""The boundaries of buckets that the conventions recommend."""

_KINDS = {"input_tokens": "input", "output_tokens": "output"}
_ASKED = re.compile(r"model='([^']+)'")  # what a request's shown arguments begin with


def label_of(workflow: str) -> str:
    """Return the short name of a workflow: ``agent`` of ``/path/agent.py:agent``."""
    return workflow.rpartition(":")[2]


def usage_of(name: str, arguments: str, usage: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes that name a model request: operation, provider, models.

    Args:
        name: of its step.
        arguments: as they are shown.
        usage: what is known of its answer.
    """
    asked = _ASKED.match(arguments)
    names = {
        "gen_ai.operation.name": operation_of(name),
        "gen_ai.provider.name": usage.get("provider"),
        "gen_ai.request.model": asked[1] if asked is not None else None,
        "gen_ai.response.model": usage.get("model"),
    }
    return {key: value for key, value in names.items() if value}


class Metrics:
    """The instruments, and the listener that feeds them.

    Args:
        meter: of OpenTelemetry.
    """

    def __init__(self, meter: Meter) -> None:
        counter, histogram = meter.create_counter, meter.create_histogram
        self._runs = counter("stepwise.runs", "{run}", "Attempts of runs that ended, by status.")
        self._steps = histogram(
            "stepwise.step.duration",
            "s",
            "Duration of executed steps, by status.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._answered = counter(
            "stepwise.steps.answered", "{step}", "Steps that were answered instead of repeated."
        )
        self._doubts = counter(
            "stepwise.steps.in_doubt", "{step}", "Side effects that may or may not have happened."
        )
        self._saved = counter(
            "stepwise.seconds.saved", "s", "Duration of done steps that were not repeated."
        )
        self._lost = counter(
            "stepwise.seconds.lost", "s", "Work of failed or killed attempts of steps, at least."
        )
        self._tokens_saved = counter(
            "stepwise.tokens.saved", "{token}", "Tokens of model requests that were not repeated."
        )
        self._requests = histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

    def lost(self, workflow: str, step: str, seconds: float, reason: str) -> None:
        """Count the work of an attempt that has to be made again."""
        if seconds > 0:
            names = {"gen_ai.workflow.name": workflow, "stepwise.step.name": step}
            self._lost.add(seconds, {**names, "stepwise.reason": reason})

    def on_event(self, event: Event) -> None:
        """Count what happened."""
        kind, workflow = event.kind, label_of(event.workflow)
        names = {"gen_ai.workflow.name": workflow}
        if event.name:
            names["stepwise.step.name"] = event.name
        if kind == "step_started":
            self.lost(workflow, event.name, event.lost, "restart")
        elif kind == "step_answered":
            self._answered.add(1, names)
            self._save(event, {**names, "stepwise.reason": "answered"})
        elif kind == "step_in_doubt":
            self._doubts.add(1, names)
        elif kind.startswith("step_"):
            status = kind.removeprefix("step_")
            self._steps.record(event.duration or 0.0, {**names, "stepwise.step.status": status})
            self._count_request(event)
        elif kind == "run_resumed":
            self._save(event, {**names, "stepwise.reason": "checkpoint"})
        elif kind.startswith("run_") and kind != "run_started":
            self._runs.add(1, {**names, "stepwise.run.status": kind.removeprefix("run_")})

    def _save(self, event: Event, names: Mapping[str, str]) -> None:
        """Count what was not repeated."""
        if event.duration:
            self._saved.add(event.duration, names)
        for tokens, kind in _tokens_of(event):
            self._tokens_saved.add(tokens, {**names, "gen_ai.token.type": kind})

    def _count_request(self, event: Event) -> None:
        if event.usage:
            names = usage_of(event.name, event.arguments, event.usage)
            self._requests.record(event.duration or 0.0, names)
            for tokens, kind in _tokens_of(event):
                self._tokens.record(tokens, {**names, "gen_ai.token.type": kind})


def _tokens_of(event: Event) -> list[tuple[int, str]]:
    """Return how many tokens a request took, by their type."""
    known = ((event.usage.get(name), kind) for name, kind in _KINDS.items())
    return [(tokens, kind) for tokens, kind in known if tokens is not None]
