"""Metrics and spans of runs, for OpenTelemetry.

Metrics are made from the events alone, so they cost nothing between events.  Names that begin with
``gen_ai`` follow OpenTelemetry's conventions for generative AI.

The span of a run begins before the run's first record, which holds the span's place in the trace.
Where code of the run or a step's body is executed, the hooks of :mod:`stepwise._runtime.observers`
make the span current.  The events say how runs and steps ended.

Rejected: a span for each first attempt.  It would double the spans of ordinary runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stepwise._runtime.event import Event
from stepwise._values.codec import traceback_text
from stepwise._values.preview import error_text
from stepwise.integrations._model_protocols import MODEL_REQUEST, operation_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


# -- opentelemetry metrics ------------------------------------------------------------------------


_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4**power for power in range(14))
"""The bucket boundaries that the conventions recommend."""

_KINDS = {"input_tokens": "input", "output_tokens": "output"}
_ENDS = {"step_completed", "step_failed", "step_cancelled"}
"""The events that end a step; one that waits has not ended."""
_ASKED = re.compile(r"model='([^']+)'")  # the beginning of a request's shown arguments


def usage_of(name: str, arguments: str, usage: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes that name a model request: operation, provider, models.

    Args:
        name: of its step.
        arguments: in their display form.
        usage: the known facts about its answer.
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
    """The instruments of OpenTelemetry, and the listener that feeds them.

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
        """Count the work of an attempt that has to be repeated."""
        if seconds > 0:
            names = {"gen_ai.workflow.name": workflow, "stepwise.step.name": step}
            self._lost.add(seconds, {**names, "stepwise.reason": reason})

    def on_event(self, event: Event) -> None:
        """Count an event."""
        kind, workflow = event.kind, event.workflow.rpartition(":")[2]  # of /path/agent.py:agent
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
        elif kind in _ENDS:
            status = kind.removeprefix("step_")
            self._steps.record(event.duration or 0.0, {**names, "stepwise.step.status": status})
            self._count_request(event)
        elif kind == "run_resumed":
            self._save(event, {**names, "stepwise.reason": "checkpoint"})
        elif kind.startswith("run_") and kind != "run_started":
            self._runs.add(1, {**names, "stepwise.run.status": kind.removeprefix("run_")})

    def _save(self, event: Event, names: Mapping[str, str]) -> None:
        """Count the work that was not repeated."""
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
    """Return the numbers of tokens of a request, by their type."""
    known = ((event.usage.get(name), kind) for name, kind in _KINDS.items())
    return [(tokens, kind) for tokens, kind in known if tokens is not None]


# -- opentelemetry spans --------------------------------------------------------------------------


_FIRST = "first"
"""The key under which a resuming attempt records the ``traceparent`` of the first attempt."""

_PROPAGATOR = TraceContextTextMapPropagator()

_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cost_usd": "stepwise.cost_usd",
}


class _TracedStep:
    """A step in progress.

    Attributes:
        span: of the step.
        attempt: number of the attempt.
        current: the span of the attempt; the first attempt has the span of the step.
        began, left: when the attempt's body was last entered and left, in ns since 1970.
    """

    def __init__(self, span: Span, name: str, *, effect: bool) -> None:
        self.span = self.current = span
        self.name = name
        self.effect = effect
        self.attempt = 1
        self.began = self.left = time.time_ns()

    @property
    def seconds(self) -> float:
        """The seconds that the attempt has taken."""
        return (self.left - self.began) / 1e9

    def end_attempt(self) -> None:
        """End the span of a retry at the time when its body was left."""
        if self.current is not self.span:
            self.current.end(max(self.left, self.began))


class _TracedRun:
    """A run in progress, with its steps in progress, by number."""

    def __init__(self, span: Span, label: str) -> None:
        self.span = span
        self.label = label
        self.steps: dict[int, _TracedStep] = {}
        self.doubts: set[int] = set()
        self.lost: dict[int, float] = {}
        self.over = False  # whether an event has reported the end of the attempt


class Spans:
    """The tracer of the process; see :class:`stepwise._runtime.observers.Tracer`.

    Args:
        tracer: of OpenTelemetry.
        metrics: receives the seconds of failed attempts.
        content: whether to show arguments and results, as shortened and masked texts.
    """

    def __init__(self, tracer: trace.Tracer, metrics: Metrics, *, content: bool) -> None:
        self._tracer = tracer
        self._metrics = metrics
        self._content = content
        self._runs: dict[str, _TracedRun] = {}

    # -- runs ------------------------------------------------------------------------------------

    def begin(self, run: Any, previous: Mapping[str, str], scope: Any) -> Mapping[str, str]:
        """Begin the span of a run; a resuming run continues the trace of its first attempt."""
        parent, links = self._around(scope), list[Link]()
        earlier = _place(previous.get("traceparent", ""), previous.get("tracestate", ""))
        if earlier is not None:
            links.append(Link(earlier, {"stepwise.link": "previous attempt"}))
            caller = trace.get_current_span(parent).get_span_context()
            first = _place(previous.get(_FIRST, ""), "") or earlier
            if caller.trace_id != first.trace_id:
                if caller.is_valid:
                    links.append(Link(caller, {"stepwise.link": "caller"}))
                parent = trace.set_span_in_context(NonRecordingSpan(first), parent)
        span = self._tracer.start_span(
            f"invoke_workflow {run.label}",
            parent,
            attributes={
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": run.label,
                "stepwise.run.id": run.run_id,
                "stepwise.workflow": run.workflow,
                "stepwise.run.resumed": earlier is not None,
            },
            links=links,
        )
        place: dict[str, str] = {}
        _PROPAGATOR.inject(place, trace.set_span_in_context(span, Context()))
        if not place:  # there is no SDK, so the run's steps need no spans
            return previous
        self._runs[run.run_id] = _TracedRun(span, run.label)
        if earlier is not None:
            place[_FIRST] = previous.get(_FIRST) or previous["traceparent"]
        return place

    def enter(self, run_id: str) -> Callable[[BaseException | None], object]:
        """Make the span of a run current."""
        run = self._runs.get(run_id)
        if run is None:
            return _nothing
        return partial(_detach, otel_context.attach(trace.set_span_in_context(run.span)))

    def end(self, run_id: str) -> None:
        """End the span of a run, and the spans of its unfinished steps."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        for step in list(run.steps.values()):
            step.end_attempt()
            if step.effect:
                step.span.set_attribute("stepwise.step.in_doubt", True)
            step.span.set_status(StatusCode.ERROR, "the step had not ended")
            step.span.end()
        if not run.over:
            run.span.set_attribute("stepwise.run.status", "stopped")
            run.span.set_status(StatusCode.ERROR, "the attempt did not come to the run's code")
        run.span.end()

    def end_all(self) -> None:
        """End all spans, since tracing has stopped."""
        for run_id, run in list(self._runs.items()):
            run.over = True
            self.end(run_id)

    # -- steps -----------------------------------------------------------------------------------

    def enter_attempt(self, attempt: Any) -> Callable[[BaseException | None], object]:
        """Make the span of a step or of its retry current; begin the span if it is new."""
        scope = attempt.scope
        run, call = self._runs.get(scope.run.run_id), scope.call
        if run is None or call.child:  # a child run has its own span
            return _nothing
        step = run.steps.get(call.number)
        if step is None:
            step = run.steps[call.number] = self._begin_step(run, attempt)
        elif scope.attempt > step.attempt:
            self._retry(run, step, scope.attempt)
        token = otel_context.attach(trace.set_span_in_context(step.current))
        return partial(_left, token, step, step.current, scope)

    def _begin_step(self, run: _TracedRun, attempt: Any) -> _TracedStep:
        scope, call = attempt.scope, attempt.scope.call
        kind = attempt.kind or "step"
        attributes: dict[str, Any] = {
            "stepwise.run.id": scope.run.run_id,
            "stepwise.step.number": call.number,
            "stepwise.step.name": call.name,
            "stepwise.step.kind": kind,
            "stepwise.step.side_effect": call.effect,
            "stepwise.step.site": call.site,
        }
        name, span_kind = f"{kind} {call.name}", SpanKind.INTERNAL
        if kind == "tool":
            name = f"execute_tool {call.name}"
            attributes["gen_ai.operation.name"] = "execute_tool"
            attributes["gen_ai.tool.name"] = call.name
            attributes["gen_ai.tool.type"] = "function"
        elif kind == MODEL_REQUEST:
            named = usage_of(call.name, call.arguments, {})
            name, span_kind = _request_name(named), SpanKind.CLIENT
            attributes.update(named)
        if self._content and call.arguments:
            attributes[_ARGUMENTS[kind == "tool"]] = call.arguments
        if call.number in run.doubts:
            run.doubts.discard(call.number)
            attributes["stepwise.step.in_doubt"] = True
        lost = run.lost.pop(call.number, 0.0)
        if lost:
            attributes["stepwise.step.seconds_lost"] = lost
        parent = self._around(scope, scope.around[:-1])
        span = self._tracer.start_span(name, parent, span_kind, attributes)
        return _TracedStep(span, call.name, effect=call.effect)

    def _retry(self, run: _TracedRun, step: _TracedStep, attempt: int) -> None:
        self._metrics.lost(run.label, step.name, step.seconds, "retry")
        step.end_attempt()
        step.attempt = attempt
        step.current = self._tracer.start_span(
            f"retry {step.name}",
            trace.set_span_in_context(step.span),
            attributes={"stepwise.step.name": step.name, "stepwise.attempt": attempt},
        )
        step.began = time.time_ns()

    def _around(self, scope: Any, numbers: Iterable[int] | None = None) -> Context:
        """Return the context for a span that begins in a scope.

        The context is the current one if that belongs to the run, since the user's own spans may
        lie between.  A thread without such a context gets the context of the step that it works
        for.
        """
        here = otel_context.get_current()
        run = self._runs.get(scope.run.run_id) if scope is not None else None
        if run is None:
            return here
        around = [*(scope.around if numbers is None else numbers)]
        steps = (run.steps.get(number) for number in reversed(around))
        span = next((step.current for step in steps if step is not None), run.span)
        current = trace.get_current_span(here).get_span_context()
        if current.trace_id == span.get_span_context().trace_id:
            return here
        return trace.set_span_in_context(span, here)

    # -- events ----------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Mark an event on the spans."""
        run = self._runs.get(event.run_id)
        if run is None:
            return
        if event.kind == "step_answered":
            run.doubts.discard(event.step)
            self._add(run, "stepwise.step.answered", event)
        elif event.kind == "step_in_doubt":
            run.doubts.add(event.step)
            self._add(run, "stepwise.step.in_doubt", event)
        elif event.kind == "step_started":
            if event.lost:
                run.lost[event.step] = event.lost
        elif event.kind in _ENDS:
            step = run.steps.pop(event.step, None)
            if step is not None:
                self._end_step(step, event)
        elif event.kind.startswith("run_"):
            self._mark_run(run, event)

    def _add(self, run: _TracedRun, name: str, event: Event) -> None:
        facts: dict[str, Any] = {
            "stepwise.step.number": event.step,
            "stepwise.step.name": event.name,
        }
        if event.duration is not None:
            facts["stepwise.seconds_saved"] = event.duration
        if self._content:
            facts[_ARGUMENTS[False]] = event.arguments
            facts[_RESULT[False]] = event.detail
        facts.update(_request_facts(event))
        run.span.add_event(name, facts)

    def _end_step(self, step: _TracedStep, event: Event) -> None:
        span, facts = step.span, _request_facts(event)
        if facts:
            span.update_name(_request_name(facts))
            span.set_attributes(facts)
        span.set_attribute("stepwise.step.status", event.kind.removeprefix("step_"))
        span.set_attribute("stepwise.step.attempts", step.attempt)
        if event.kind == "step_completed":
            if self._content:
                is_tool = getattr(span, "name", "").startswith("execute_tool")
                span.set_attribute(_RESULT[is_tool], event.detail)
        else:
            span.set_attribute("error.type", _error_type(event.detail))
            span.set_status(StatusCode.ERROR, event.detail)
            if step.current is not span:
                step.current.set_status(StatusCode.ERROR, event.detail)
        step.end_attempt()
        span.end()

    def _mark_run(self, run: _TracedRun, event: Event) -> None:
        span = run.span
        if event.kind in ("run_started", "run_resumed"):
            if self._content and event.kind == "run_started":
                span.set_attribute(_ARGUMENTS[False], event.detail)
            if event.kind == "run_resumed":
                saved = {"stepwise.seconds_saved": event.duration or 0.0, **_counts(event)}
                span.add_event("stepwise.run.resumed", {"stepwise.detail": event.detail, **saved})
            return
        run.over = True
        span.set_attributes(
            {
                "stepwise.run.status": event.kind.removeprefix("run_"),
                "stepwise.steps.executed": event.executed,
                "stepwise.steps.skipped": event.skipped,
            }
        )
        if event.kind == "run_completed":
            if self._content:
                span.set_attribute(_RESULT[False], event.detail)
            return
        if run.doubts:
            span.set_attribute("stepwise.run.in_doubt", True)
        span.set_attribute("error.type", _error_type(event.detail))
        span.set_status(StatusCode.ERROR, event.detail)


_ARGUMENTS = {True: "gen_ai.tool.call.arguments", False: "stepwise.arguments"}
_RESULT = {True: "gen_ai.tool.call.result", False: "stepwise.result"}
"""The attributes of arguments and results, by whether the step is a tool."""


def _place(traceparent: str, tracestate: str) -> SpanContext | None:
    """Return the recorded span context, or ``None``."""
    found = _PROPAGATOR.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())
    place = trace.get_current_span(found).get_span_context()
    return place if place.is_valid else None


def _request_facts(event: Event) -> dict[str, Any]:
    """Return the attributes of an answered model request; empty for other events."""
    if not event.usage:
        return {}
    return {**usage_of(event.name, event.arguments, event.usage), **_counts(event)}


def _counts(event: Event) -> dict[str, Any]:
    known = ((name, event.usage.get(key)) for key, name in _USAGE.items())
    return {name: count for name, count in known if count is not None}


def _request_name(facts: Mapping[str, Any]) -> str:
    """Return the name of a model request's span, such as ``chat gpt-4o``."""
    model = facts.get("gen_ai.request.model") or facts.get("gen_ai.response.model", "")
    return f"{facts['gen_ai.operation.name']} {model}".strip()


def _error_type(detail: str) -> str:
    """Return the class of an exception from its text, such as ``ValueError('no')``."""
    name = detail.partition("(")[0]
    return name if name.isidentifier() else "_OTHER"


def _nothing(_: BaseException | None) -> None:
    """Do nothing, for a span that was not entered."""


def _detach(token: Any, _: BaseException | None) -> None:
    otel_context.detach(token)


def _left(
    token: Any, step: _TracedStep, span: Span, scope: Any, error: BaseException | None
) -> None:
    """Leave the body of a step; record its exception with secrets masked."""
    otel_context.detach(token)
    step.left = time.time_ns()
    if error is None or not span.is_recording():
        return
    mask = scope.run.secrets.cleaned_text
    text = mask(error_text(error))
    span.add_event(
        "exception",
        {
            "exception.type": f"{type(error).__module__}.{type(error).__qualname__}",
            "exception.message": text,
            "exception.stacktrace": traceback_text(error, mask),
            "stepwise.attempt": scope.attempt,
        },
    )
    if span is not step.span:
        span.set_status(StatusCode.ERROR, text)
