"""The recorded model calls of a run, as data for a file that people read, compare and keep."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwise._runs.run import Run
from stepwise._runs.steps import StepRecord
from stepwise.errors import RunNotFoundError
from stepwise.integrations._model_protocols import SENDER, ModelRequest, said_in
from stepwise.integrations._recorded_responses import Bodies, body_of, whole_bodies

_EVENTS = re.compile(r"(?<=\n\n)|(?<=\r\n\r\n)")
"""The positions at which an event of a stream ends."""


def model_calls(run: Run) -> list[dict[str, Any]]:
    """Return the recorded model calls of a run and of its child runs, in their order.

    Each call has an ``id``, the identity of the request (``method``, ``url``, ``headers``,
    ``body``) and the ``answer``: its status, headers and content (``json``, ``events``, ``text`` or
    ``base64``).  In a body, ``$like`` names an earlier body that it shares content with.
    """
    forms = [*_forms(run, set())]
    whole = whole_bodies((None, form["request"].get("body")) for form in forms)
    bodies, calls = Bodies(), []
    for number, (form, body) in enumerate(zip(forms, whole, strict=True), 1):
        request = form["request"]
        facts = {"id": number, **{name: request[name] for name in ("endpoint", "method", "url")}}
        if request.get("headers"):
            facts["headers"] = request["headers"]
        calls.append({**facts, "body": bodies.shortened(body, number), "answer": _answer(form)})
    return calls


def _forms(run: Run, met: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the recorded answers of a run, including those of child runs."""
    met.add(run.id)
    for step in run._each_step(run._seen(1)):
        if step.child and step.child not in met:
            with contextlib.suppress(RunNotFoundError):  # the child run was deleted
                yield from _forms(Run(run.store, step.child, run._seal), met)
        form = _form_of(step)
        if form:
            yield form


def _form_of(step: StepRecord) -> Mapping[str, Any]:
    """Return the recorded answer of a model call; nothing for another step."""
    call = step._entry.call
    if step.status == "completed" and call is not None and call.module == SENDER:
        form = step.result
        if isinstance(form, Mapping) and _dict(form.get("request")).get("endpoint"):
            return form
    return {}


def request_of(step: StepRecord, before: Iterable[StepRecord]) -> Any:
    """Return the body of the request of a model call; ``None`` if it is not known.

    Args:
        step: the step.
        before: earlier steps, whose bodies this body may share content with.

    Raises:
        UnreadableValueError: a record cannot be loaded here.
    """
    return bodies_of(before, step)[-1][2]


def bodies_of(before: Iterable[StepRecord], step: StepRecord) -> list[tuple[int, str, Any]]:
    """Return the model calls among some steps, each as its number, URL and body; ``step`` last.

    A body that is not known is ``None``.  If ``step`` is no model call, it stands there alone.

    Raises:
        UnreadableValueError: a record cannot be loaded here.
    """
    form = _form_of(step)
    if not form:
        return [(step.number, "", None)]
    forms = [(each.number, _form_of(each)) for each in before]
    requests = [(n, each["request"]) for n, each in [*forms, (step.number, form)] if each]
    bodies = whole_bodies((None, each.get("body")) for _, each in requests)
    return [(n, each["url"], body) for (n, each), body in zip(requests, bodies, strict=True)]


def answer_of(step: StepRecord) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the tool calls of the answer of a model call; see ``said_in``.

    Raises:
        RecursionError: a part of the answer is nested too deeply.
    """
    form = _form_of(step)
    return said_in(form["headers"].get("content-type", ""), body_of(form)) if form else ("", [])


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# -- answers -------------------------------------------------------------------------------------


def _answer(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded answer in readable form."""
    answer: dict[str, Any] = {"status": form["status"], "headers": dict(form["headers"])}
    if "left" in form:
        answer["left"] = True
    if "base64" in form:
        return {**answer, "base64": form["base64"]}
    text, kind = form["body"], form["headers"].get("content-type", "")
    if "event-stream" in kind:
        return {**answer, "events": [each for each in re.split(_EVENTS, text) if each]}
    if "json" in kind:
        try:
            return {**answer, "json": json.loads(text)}
        except (ValueError, RecursionError):
            return {**answer, "text": text}
    return {**answer, "text": text}


def calls_in(calls: Iterable[Mapping[str, Any]]) -> list[tuple[str, ModelRequest, dict[str, Any]]]:
    """Return the calls that :func:`model_calls` wrote: names, identities, recorded answers.

    Raises:
        LookupError, TypeError, ValueError: a call differs from the written form.
    """
    calls = [*calls]
    found = []
    for call, body in zip(
        calls, whole_bodies((each["id"], each["body"]) for each in calls), strict=True
    ):
        if body is None:
            raise LookupError(f"call {call['id']} refers to a call that is missing")
        headers = dict(call.get("headers") or {})
        request = ModelRequest(call["method"], call["url"], headers, body, streamed=False)
        found.append((f"call {call['id']}", request, _form(call["answer"])))
    return found


def _form(answer: Mapping[str, Any]) -> dict[str, Any]:
    form = {"status": int(answer["status"]), "headers": dict(answer["headers"])}
    if answer.get("left"):
        form["left"] = 1
    if "base64" in answer:
        base64.b64decode(answer["base64"], validate=True)  # a binascii.Error is a ValueError
        return {**form, "base64": answer["base64"]}
    if "events" in answer:
        sizes = [len(event.encode()) for event in answer["events"]]
        return {**form, "body": "".join(answer["events"]), "sizes": sizes}
    text = answer["text"] if "text" in answer else json.dumps(answer["json"])
    body_of({"body": text})
    return {**form, "body": text}
