"""The first byte at which the prompt of a model request departs from an earlier one.

A provider's prompt cache holds the beginning of a prompt.  It is lost from the first byte that
differs: a time of day in the system prompt, tools in another order.  Prompts are compared as they
are recorded, so masked secrets and the ids of tool calls are not compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwise._runs.steps import StepRecord
from stepwise._runtime.facts import NamedTuple
from stepwise.integrations._model_calls import bodies_of
from stepwise.integrations._recorded_responses import in_order

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
