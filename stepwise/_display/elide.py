"""Shortened texts that keep the parts in which they differ from their neighbours.

A table has less room than its texts need.  Cutting off ends would make rows look equal that differ
only at their end, like two calls of a step whose last arguments are different.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import groupby

__all__ = ["elided"]

_TOKEN = re.compile(r"\w{1,8}|\s+|.", re.DOTALL)
_LIMIT = 1000  # characters that are compared
_NAME = 24  # longest name of a call that is always kept
_ALIKE = 4  # a shorter part that two texts share by chance is not left out
_GAP = "…"

Parts = list[tuple[bool, str]]  # whether a part differs, and its text


def elided(text: str, width: int, others: Iterable[str] = ()) -> str:
    """Shorten a text to a width; the parts in which it differs from other texts stay visible."""
    if len(text) <= width:
        return text
    parts = _parts(text[:_LIMIT], [other[:_LIMIT] for other in others])
    if not any(differs for differs, _ in parts):
        return _cut(text, width)
    name = min(text.find("(") + 1, _NAME)
    context = next((n for n in range(width, -1, -1) if len(_shown(parts, name, n)) <= width), None)
    if context is not None:
        spare = width - len(_shown(parts, name, context))
        return _cut(_shown(parts, name + spare, context), width)
    name = name if name <= width // 3 else 0
    for room in range(width, 1, -1):
        even = [(differs, _cut(each, room) if differs else each) for differs, each in parts]
        shown = _shown(even, name, 0)
        if len(shown) <= width:
            break
    return _cut(shown, width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + _GAP


def _parts(text: str, others: list[str]) -> Parts:
    """Split a text into the parts that it shares with the others, and those that differ."""
    tokens = _tokens(text)
    differs = [False] * len(tokens)
    for other in {*others} - {text}:
        there = [True] * len(tokens)
        matcher = SequenceMatcher(None, tokens, _tokens(other), autojunk=False)
        for block in matcher.get_matching_blocks():
            alike = "".join(tokens[block.a : block.a + block.size])
            if len(alike) >= _ALIKE or block.a == 0:
                there[block.a : block.a + block.size] = [False] * block.size
        differs = [one or two for one, two in zip(differs, there, strict=True)]
    marked = zip(differs, tokens, strict=True)
    return [
        (differing, "".join(token for _, token in pairs))
        for differing, pairs in groupby(marked, key=lambda pair: pair[0])
    ]


@functools.lru_cache(maxsize=64)
def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


def _shown(parts: Parts, first: int, context: int) -> str:
    """Return the differing parts, with so many characters around each.

    Args:
        first: characters of the beginning, if that does not differ.
    """
    shown = []
    for number, (differs, text) in enumerate(parts):
        before = context if number else first
        after = context if number < len(parts) - 1 else 0
        if differs or len(text) <= before + after + 1:
            shown.append(text)
        else:
            shown += [text[:before], _GAP, text[len(text) - after :] if after else ""]
    return "".join(shown).replace(_GAP * 2, _GAP)
