"""The recorded model calls of a run: for a file, and where a prompt departs from an earlier one.

A file has the calls as data that people read, compare and keep.

A provider's prompt cache holds the beginning of a prompt.  It is lost from the first byte that
differs: a time of day in the system prompt, tools in another order.  Prompts are compared as they
are recorded, so masked secrets and the ids of tool calls are not compared.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwise._runs.run import Run
from stepwise._runs.steps import StepRecord
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import RunNotFoundError
from stepwise.integrations._model_protocols import SENDER, ModelRequest, said_in
from stepwise.integrations._recorded_responses import Bodies, body_of, in_order, whole_bodies

# -- calls for a file ------------------------------------------------------------------------------


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


# -- the calls of steps ----------------------------------------------------------------------------


def _form_of(step: StepRecord) -> Mapping[str, Any]:
    """Return the recorded answer of a model call; nothing for another step."""
    call = step._entry.call
    if step.status == "completed" and call is not None and call.module == SENDER:
        form = step.result
        if isinstance(form, Mapping):
            request = form.get("request")
            if isinstance(request, Mapping) and request.get("endpoint"):
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


# -- where a prompt departs ------------------------------------------------------------------------


# In the order in which providers lay a prompt out.
_FIRST = ("response_format", "tools", "functions", "toolConfig")
_SYSTEM = ("system", "systemInstruction", "system_instruction", "instructions")
_TURNS = ("messages", "input", "contents")
_NEWEST = 50  # earlier requests that are compared
_AROUND = 24  # characters that are shown on each side


class MovedPrompt(NamedTuple):
    """The first byte at which a prompt departs from that of an earlier request.

    Args:
        step: the number of the earlier request, whose prompt begins most alike.
        path: the part of the request that differs, as ``messages[0].content``.
        at: the bytes of the prompt before the first byte that differs.
        of: the bytes of the earlier prompt.
        before: characters of the earlier prompt around this byte.
        now: characters of this prompt around it.
    """

    step: int
    path: str
    at: int
    of: int
    before: str
    now: str

    def __str__(self) -> str:
        return (
            f"differs from step {self.step} after {self.at:,} of {self.of:,} bytes, at {self.path}:"
            f" {self.before!r} became {self.now!r}"
        )


def moved_prompt(step: StepRecord, steps: Iterable[StepRecord]) -> MovedPrompt | None:
    """Return where the prompt of a model request departs from earlier requests of its conversation.

    ``None`` if one of the 50 newest requests before it, to the same URL and model, is wholly its
    beginning (or the reverse), or if none shares a message with it.

    Args:
        step: the step.
        steps: the steps of the run.

    Raises:
        UnreadableValueError: a record cannot be loaded here.
    """
    *earlier, (_, url, body) = bodies_of(
        [each for each in steps if each.number < step.number], step
    )
    if not isinstance(body, Mapping):
        return None
    parts, best = [*_parts(body)], None
    for number, other_url, other in reversed(earlier[-_NEWEST:]):
        asked = isinstance(other, Mapping) and (other_url, other.get("model")) == (
            url,
            body.get("model"),
        )
        if not asked or not _share_turns(body, other):
            continue
        found = _compared(number, [*_parts(other)], parts)
        if found is None:
            return None
        best = found if best is None or found.at > best.at else best
    return best


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a prompt, in their order, each with its path."""
    for name in (*_FIRST, *_SYSTEM, *_TURNS):
        value = body.get(name)
        if isinstance(value, list):
            yield from ((f"{name}[{number}]", each) for number, each in enumerate(value))
        elif value:
            yield name, value


def _share_turns(body: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two requests have a message in common, besides the system prompt."""
    texts = [
        {in_order(each) for name, each in _parts(of) if name.startswith(_TURNS) and _is_turn(each)}
        for of in (body, other)
    ]
    return not texts[0].isdisjoint(texts[1])


def _is_turn(value: Any) -> bool:
    return not (isinstance(value, Mapping) and value.get("role") in ("system", "developer"))


def _compared(
    number: int, before: list[tuple[str, Any]], now: list[tuple[str, Any]]
) -> MovedPrompt | None:
    at = 0
    for (path, one), (other_path, other) in zip(before, now, strict=False):
        texts = in_order(one), in_order(other)
        if path == other_path and texts[0] == texts[1]:
            at += _size(texts[0])
            continue
        if path == other_path:
            at += _size(texts[0][: _alike(*texts)])
        where, *differing = _innermost(other_path, one, other)
        shown = [each if isinstance(each, str) else in_order(each) for each in differing]
        start = max(0, _alike(*shown) - _AROUND)
        around = [each[start : start + 2 * _AROUND] for each in shown]
        of = sum(_size(in_order(each)) for _, each in before)
        return MovedPrompt(number, where, at, of, *around)
    return None


def _innermost(path: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Return the innermost part in which two values first differ, with its path."""
    if isinstance(one, dict) and isinstance(other, dict):
        for (key, mine), (other_key, theirs) in zip(one.items(), other.items(), strict=False):
            if key != other_key:
                break
            if in_order(mine) != in_order(theirs):
                return _innermost(f"{path}.{key}", mine, theirs)
    elif isinstance(one, list) and isinstance(other, list):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            if in_order(mine) != in_order(theirs):
                return _innermost(f"{path}[{number}]", mine, theirs)
    return path, one, other


def _alike(one: str, other: str) -> int:
    """Return the number of characters at the beginning of both texts."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
