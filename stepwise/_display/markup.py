"""HTML that is safe with any recorded value, and the one style sheet of pages and notebooks.

Recorded values may be anything (HTML, ANSI codes, ten megabytes), so :func:`markup` shortens texts,
makes them printable, and escapes them.  The elements here are the same in an exported page, in a
notebook, and in ``stepwise ui``.
"""

from __future__ import annotations

import functools
import html
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Union

from stepwise._runtime.messages import printable

# -- elements -------------------------------------------------------------------------------------


_LONG = 20_000  # characters of one text that are shown
_TALL, _LINES = 400, 8  # characters and lines of a text that may not fit its place
_VOID = ("br", "input", "link", "meta")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = Union[str, None, Iterable["Content"]]


def markup(*parts: Content) -> Markup:
    """Join texts and markup; texts are escaped, and huge texts lose their middle."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Markup):
            found.append(part)
        elif isinstance(part, str):
            found.append(html.escape(printable(part, _LONG)))
        elif part is not None:
            found.append(markup(*part))
    return Markup("".join(found))


def whole(text: str) -> Markup:
    """Return a text as markup without shortening it, for what a person is asked to approve."""
    return Markup(html.escape(printable(text, len(text))))


def tag(name: str, /, *parts: Content, **attributes: object) -> Markup:
    """Return an element with its content.

    Args:
        name: the name of the element.
        parts: its content.
        attributes: ``cls`` is the attribute ``class``, ``for_`` is ``for``, and ``data_live`` is
            ``data-live``.  ``None`` and ``False`` leave an attribute out, and ``True`` gives one
            without a value.
    """
    text = "".join(
        f" {_attribute(key)}"
        if value is True
        else f' {_attribute(key)}="{html.escape(printable(str(value), _LONG))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{text}>" + ("" if name in _VOID else f"{markup(*parts)}</{name}>"))


@functools.cache
def _attribute(key: str) -> str:
    return "class" if key == "cls" else key.rstrip("_").replace("_", "-")


# -- the style sheet ------------------------------------------------------------------------------


@functools.cache
def sheet(*parts: str) -> str:
    """Return the style sheet, or only its named parts: ``basis``, ``tables``, ``page``, ``ui``."""
    with open(os.path.join(os.path.dirname(__file__), "page.css"), encoding="utf-8") as file:
        text = file.read()
    found = re.split(r"/\* == (\w+) == \*/\n", text)[1:]
    named = dict(zip(found[::2], found[1::2], strict=True))
    return "".join(named[part] for part in parts or named)


class Rules:
    """The positions of elements, as rules of one style element: pages refuse inline styles."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def at(self, **lengths: str) -> str:
        """Return the class of the elements with these lengths: ``at(left="3%", width="9%")``."""
        rule = ";".join(f"{name}:{length}" for name, length in lengths.items())
        return self._names.setdefault(rule, f"at{len(self._names)}")

    @property
    def text(self) -> str:
        """The rules of all positions."""
        return "".join(f".{name}{{{rule}}}\n" for rule, name in self._names.items())


# -- the parts of every page ----------------------------------------------------------------------


def badge(status: str) -> Markup:
    """Return a status as a coloured dot and a word."""
    return tag("span", status.replace("_", " "), cls=f"badge {status}")


def block(text: str, shown: Content = None, **attributes: object) -> Markup:
    """Return lines of text as they are; a long text scrolls in its place, by keys, too.

    Args:
        text: the text.
        shown: its markup, if it is not the text.
        attributes: attributes of the element.
    """
    scrolls = len(text) > _TALL or text.count("\n") > _LINES
    return tag(
        "pre", text if shown is None else shown, tabindex=0 if scrolls else None, **attributes
    )


def section(title: Content, *parts: Content, **attributes: object) -> Markup:
    """Return a section with its heading; nothing if it has no content."""
    content = markup(*parts)
    heading = tag("h2", title)
    return tag("section", heading, "\n", content, **attributes) if content else Markup()


def facts(named: Mapping[str, Content]) -> Markup:
    """Return a list of names and values, without those that are empty."""
    rows = [markup(tag("dt", name), tag("dd", value)) for name, value in named.items() if value]
    return tag("dl", rows) if rows else Markup()


def table(heads: Sequence[str], rows: Iterable[Sequence[Content]], **attributes: object) -> Markup:
    """Return a table; where it is narrow, each row becomes a card with the heads as names."""
    head = tag("tr", [tag("th", each, scope="col") for each in heads])
    lines = []
    for row in rows:
        named = zip(heads, row, strict=True)
        lines.append(tag("tr", [tag("td", cell, data_name=name or None) for name, cell in named]))
    given = {"cls": "cards", **attributes}
    return tag("table", tag("thead", head), "\n", tag("tbody", Markup("\n".join(lines))), **given)
