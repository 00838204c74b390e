"""OpenTelemetry: a span for each run and step, and metrics; a resumed run continues its trace.

:func:`instrument` turns it on, once per process, beside the set-up of the SDK; :func:`uninstrument`
turns it off.  Nothing is recorded by stepwise itself but the place of a run in its trace.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from stepwise._runtime import observers
from stepwise._runtime.event import on_event
from stepwise.integrations._supported import require

__all__ = ["instrument", "uninstrument"]

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ends: list[Callable[[], None]] = []


def instrument(
    tracer_provider: Any = None, meter_provider: Any = None, *, capture_content: bool | None = None
) -> Callable[[], None]:
    """Have the runs of this process traced and counted; a second call replaces the first.

    Args:
        tracer_provider, meter_provider: of the SDK; by default the global ones, which may be set
            later.
        capture_content: show arguments and results, as the shortened texts that
            ``stepwise show`` prints, with secrets masked.  By default what
            ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says, else not.

    Returns:
        :func:`uninstrument`.

    Raises:
        ConfigurationError: ``opentelemetry-api`` is not installed, or too old.
    """
    require("opentelemetry")
    from opentelemetry import metrics, trace

    from stepwise.integrations._opentelemetry_spans import Metrics, Spans

    uninstrument()
    if capture_content is None:
        capture_content = os.environ.get(_CAPTURE, "").strip().lower() in ("true", "1", "yes")
    version = sys.modules["stepwise"].__version__
    counts = Metrics(metrics.get_meter("stepwise", version, meter_provider))
    tracer = trace.get_tracer("stepwise", version, tracer_provider)
    spans = Spans(tracer, counts, content=capture_content)
    observers.set_tracer(spans)
    _ends.extend(
        (
            on_event(spans.on_event),
            on_event(counts.on_event),
            lambda: observers.set_tracer(None),
            spans.end_all,
        )
    )
    return uninstrument


def uninstrument() -> None:
    """End what :func:`instrument` began; spans in progress end now."""
    while _ends:
        _ends.pop(0)()
