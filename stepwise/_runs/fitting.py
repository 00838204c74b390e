"""Plain data cut until it is short enough for a coding agent, which pays for each token.

Long texts lose their middle, and lists and dicts some of their items; the first size that fits is
used.  Texts that look like credentials are masked.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._runtime.messages import printable
from stepwise._values.preview import NO_SECRETS, preview

LIMIT = 8000
"""The length of an answer as JSON: about 2,000 tokens of four characters."""

_SIZES = (
    *((4000, 200), (1500, 80), (800, 50), (500, 40), (350, 30), (250, 24), (160, 16)),
    *((100, 10), (60, 8), (40, 6), (24, 3), (16, 2), (12, 1)),
)
"""Characters of a text, and items of a list or a dict."""
_ASCII = 40  # characters of a text, of which JSON may otherwise make twelve times as many
_DEEPEST = 8  # levels
_LARGEST = 2**53
_KEY = 200  # characters
_EMPTY: tuple[Any, ...] = ("", None, [], {})


class NamedFacts(dict[str, Any]):
    """A record: it keeps its names, but for those that have an empty value."""


class Uncut(str):
    """A text that is of no use without its middle."""

    __slots__ = ()


def fitted(
    make: Callable[[int], Any], limit: int = LIMIT, length: Callable[[Any], int] | None = None
) -> dict[str, Any]:
    """Return plain data as short as it has to be.

    Args:
        make: returns the data, given the characters after which a text is cut.
        length: returns the length of an answer; by default that of its JSON as commands print it.
    """
    found: dict[str, Any] = {}
    for text, items in _SIZES:
        found = cut(make(text), text, items)
        if (length or _length)(found) <= limit:
            break
    return found


def _length(value: Any) -> int:
    return len(json.dumps(value, indent=2))


def cut(value: Any, text: int, items: int, depth: int = 0) -> Any:
    """Return plain data with shortened texts, and with fewer items of lists and dicts.

    Args:
        text: characters of a text.
        items: of a list or a dict.
        depth: the number of lists and dicts around the value.
    """
    if isinstance(value, (Mapping, list, tuple)):
        return _cut_inside(value, text, items, depth)
    if isinstance(value, (int, float)) and abs(value) > _LARGEST:
        return preview(value)  # JSON has neither NaN nor large numbers
    is_short = isinstance(value, (bool, int, float, type(None), Uncut))
    return value if is_short else _shortened(str(value), text)


def _cut_inside(value: Any, text: int, items: int, depth: int) -> Any:
    def inner(each: Any) -> Any:
        return cut(each, text, items, depth + 1)

    if isinstance(value, NamedFacts):
        return {n: told for n, each in value.items() if (told := inner(each)) not in _EMPTY}
    if depth >= _DEEPEST:
        return f"[... {len(value):,} inside ...]"
    left_out = [f"[... {len(value) - items:,} more ...]"] * (len(value) > items)
    if isinstance(value, Mapping):
        kept_items = itertools.islice(value.items(), items)
        found = {_shortened(str(key), 4 * text)[:_KEY]: inner(each) for key, each in kept_items}
        return {**found, "...": left_out[0]} if left_out else found
    return [*map(inner, value[:items]), *left_out]


def _shortened(text: str, room: int) -> str:
    text = NO_SECRETS.cleaned_text(text[: 20 * room])
    text = text if len(text) <= room else f"{text[: room * 2 // 3]}…{text[-(room // 3) :]}"
    return printable(text if room > _ASCII else re.sub(r"[^\n -~]", "?", text))
