"""Shortened texts that keep the parts in which they differ from their neighbours.

A table has less room than its texts need.  Cutting off ends would make rows look equal that differ
only at their end, like two calls of a step whose last arguments are different.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from itertools import groupby

__all__ = ["elided"]

_TOKEN = re.compile(r"\w{1,8}|\s+|.", re.DOTALL)
_LIMIT = 1000  # characters that are compared
_NAME = 24  # longest name of a call that is always kept
_ALIKE = 4  # a shorter part that two texts share by chance is not left out
_GAP = "…"

Parts = list[tuple[bool, str]]  # whether a part differs, and its text


def elided(text: str, width: int, others: Iterable[str] = (), *, every: bool = False) -> str:
    """Shorten a text to a width; the parts in which it differs from other texts stay visible.

    Where not all of these parts have room, those that tell it from the most similar text do.

    Args:
        every: rather show the beginnings of all of these parts.
    """
    if len(text) <= width:
        return text
    short = text[:_LIMIT]
    known = {other[:_LIMIT]: _differing(short, other[:_LIMIT]) for other in others}
    known.pop(short, None)
    if not known:
        return _cut(text, width)
    beginning = _cut(text, width)
    are_others = not every and all(map(_is_other, known.values()))
    if are_others and all(_cut(other, width) != beginning for other in known):
        return beginning
    nearest = min(known.values(), key=sum)
    both = [any(each) for each in zip(*known.values(), strict=True)]
    for marks in (both,) if every else (both, nearest):
        parts = _parts(short, marks)
        name = min(text.find("(") + 1, _NAME)
        for context in range(width, -1, -1):
            spare = width - len(_shown(parts, name, context))
            if spare >= 0:
                return _cut(_shown(parts, name + spare, context), width)
    return _cut_evenly(parts, name if name <= width // 3 else 0, width)


def _is_other(marks: list[bool]) -> bool:
    """Return whether a text shares less than half of it with another, so that it is no variant."""
    return 2 * sum(marks) > len(marks)


def _cut_evenly(parts: Parts, name: int, width: int) -> str:
    """Cut the differing parts, so that each of them is seen by its beginning."""
    shown = ""
    for room in range(width, 1, -1):
        even = [(differs, _cut(each, room) if differs else each) for differs, each in parts]
        shown = _shown(even, name, 0)
        if len(shown) <= width:
            break
    return _cut(shown, width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + _GAP


def _differing(text: str, other: str) -> list[bool]:
    """Return for each token of a text whether it is in none of the parts shared with another."""
    from difflib import SequenceMatcher  # on use: looking at a run usually needs no room

    tokens = _tokens(text)
    differs = [True] * len(tokens)
    matcher = SequenceMatcher(None, tokens, _tokens(other), autojunk=False)
    for block in matcher.get_matching_blocks():
        alike = "".join(tokens[block.a : block.a + block.size])
        if len(alike) >= _ALIKE or block.a == 0:
            differs[block.a : block.a + block.size] = [False] * block.size
    return differs


def _parts(text: str, marks: list[bool]) -> Parts:
    """Split a text into parts, each of them differing or not."""
    marked = zip(marks, _tokens(text), strict=True)
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
