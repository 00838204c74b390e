"""A recorded model call as a conversation: the messages, and the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stepwise._display.markup import Content, Markup, block, section, tag
from stepwise._display.render import usage_text
from stepwise._display.terminal import shown_value
from stepwise._runs.steps import StepRecord
from stepwise.errors import UnreadableValueError
from stepwise.integrations._model_calls import answer_of, request_of

_TURNS = 30  # newest messages that are shown
_LISTS = ("messages", "input", "contents")
_ROLES = ("system", "user", "assistant", "tool", "model", "developer")


def conversation(step: StepRecord, steps: Sequence[StepRecord]) -> Markup:
    """Return the conversation of a model call; nothing for another step.

    Args:
        step: the step.
        steps: the steps before it, whose messages its record may refer to.
    """
    try:
        body = request_of(step, [each for each in steps if each.number < step.number])
        answer = answer_of(step)
    except UnreadableValueError:
        return Markup()
    turns = [*_request_turns(body), *_answer_turns(answer)]
    if not turns:
        return Markup()
    left_out = len(turns) - _TURNS
    shown = [_turn(role, content) for role, content in turns[-_TURNS:]]
    if left_out > 0:
        shown.insert(0, tag("p", f"{left_out} earlier messages", cls="soft"))
    usage = usage_text(step.usage)
    return section(("Conversation ", tag("small", usage)), shown, cls="conversation")


def _request_turns(body: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(body, Mapping):
        return
    for name in ("system", "instructions"):
        if body.get(name):
            yield "system", body[name]
    for name in _LISTS:
        given = body.get(name)
        if isinstance(given, str):
            yield "user", given
        for each in given if isinstance(given, list) else ():
            if isinstance(each, Mapping):
                yield str(each.get("role", each.get("type", "user"))), each


def _answer_turns(answer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the messages of an answer, as the APIs of models write them."""
    body = answer.get("json")
    if not isinstance(body, Mapping):
        text = answer.get("text") or "".join(answer.get("events", ()))
        if text:
            yield "assistant", text
        return
    if isinstance(body.get("choices"), list):
        found: Iterable[Any] = [
            each.get("message") for each in body["choices"] if isinstance(each, Mapping)
        ]
    elif isinstance(body.get("candidates"), list):
        found = [each.get("content") for each in body["candidates"] if isinstance(each, Mapping)]
    elif isinstance(body.get("output"), list):
        found = body["output"]
    else:
        found = [body]
    for each in found:
        yield "assistant", each


def _turn(role: str, content: Any) -> Markup:
    kind = role if role in _ROLES else "other"
    return tag(
        "div",
        tag("b", role),
        tag("div", [_part(each) for each in _parts(content)]),
        cls=f"turn {kind}",
    )


def _parts(content: Any) -> Iterator[Any]:
    """Yield the texts and other parts of a message."""
    if isinstance(content, Mapping):
        inner = content.get("content", content.get("parts"))
        if inner is None and not content.get("tool_calls"):
            yield content
            return
        yield from _parts(inner)
        yield from content.get("tool_calls") or ()
    elif isinstance(content, list):
        yield from content
    elif content:
        yield content


def _part(part: Any) -> Content:
    """Return a text, a call of a tool, a tool's result, or anything else as JSON."""
    if isinstance(part, str):
        return tag("p", part)
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return tag("p", part["text"])
        function = part.get("function", part)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            given = function.get("arguments", function.get("input", function.get("args", "")))
            return tag("p", tag("code", f"{function['name']}({_text(given)})"))
        if part.get("type") == "tool_result":
            return [_part(each) for each in _parts(part.get("content"))]
    return block(_text(part))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return shown_value(value, 2000)
