"""HTML that is escaped by its construction: a text becomes markup in :func:`tag` only.

What is recorded may be anything: it is made of printable characters, shortened and escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

from stepwise._runtime.messages import printable

__all__ = ["Content", "Markup", "markup", "tag"]

_LONG = 20_000  # characters of one text


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = Union[str, None, Iterable["Content"]]


def markup(*parts: Content) -> Markup:
    """Join texts and markup; texts are escaped, and their middle is left out if they are huge."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Markup):
            found.append(part)
        elif isinstance(part, str):
            found.append(html.escape(printable(part, _LONG)))
        elif part is not None:
            found.append(markup(*part))
    return Markup("".join(found))


def tag(name: str, *parts: Content, **attributes: object) -> Markup:
    """Return an element with its content.

    Args:
        attributes: ``cls`` is the attribute ``class``; those that are ``None`` are left out, and
            ``True`` stands for one without a value.
    """
    given = {"class" if key == "cls" else key: value for key, value in attributes.items()}
    text = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(printable(str(value), _LONG))}"'
        for key, value in given.items()
        if value is not None
    )
    return Markup(f"<{name}{text}>{markup(*parts)}</{name}>")
