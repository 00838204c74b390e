"""Tables, trees and coloured words for a terminal; shortened texts that still differ.

A table has less room than its texts need.  Cutting off ends would make rows look equal that differ
only at their end, like two calls of a step whose last arguments are different.  Recorded text is
made printable: a terminal obeys nothing in it.  Only a :class:`Word` has a colour.

Rejected: rich.  It would not slow down runs, since only commands would load it.  But:

- It brings three more packages: an installation has 10 (the limit of ``benchmarks/start.py`` is 8)
  in 9.5 MB instead of 3.5.
- Its tables take 0.3 ms for each row, and a run may have a hundred thousand steps.
- It lacks the hard part: shortened cells that still differ.
- Its live display lays out again what the program prints.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import printable

# -- elide ----------------------------------------------------------------------------------------


_TOKEN = re.compile(r"\w{1,8}|\s+|.", re.DOTALL)
_LIMIT = 1000  # characters compared
_NAME = 24  # longest call name that is always kept
_ALIKE = 4  # a shorter part that two texts share by chance is not left out
_GAP = "…"

Parts = list[tuple[bool, str]]  # whether a part differs, and its text


def elided(text: str, width: int, others: Iterable[str] = (), *, every: bool = False) -> str:
    """Shorten a text to a width; the parts that differ from other texts stay visible.

    If these parts do not all have room, the parts that differ from the most similar text stay.

    Args:
        text: the text to shorten.
        width: the maximal length.
        others: the texts to differ from.
        every: show the beginning of every differing part instead.
    """
    if len(text) <= width:
        return text
    short = text[:_LIMIT]
    known = {other[:_LIMIT]: _differing(short, other[:_LIMIT]) for other in others}
    known.pop(short, None)
    if not known:
        return _cut(text, width)
    beginning = _cut(text, width)
    # A text that shares less than half with another is no variant of it.
    are_others = not every and all(2 * sum(marks) > len(marks) for marks in known.values())
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


def _cut_evenly(parts: Parts, name: int, width: int) -> str:
    """Cut the differing parts evenly, so that the beginning of each part is visible."""
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
    """Return, for each token of a text, whether it is outside all parts shared with another."""
    from difflib import SequenceMatcher  # imported on use: most tables have room enough

    tokens = _tokens(text)
    differs = [True] * len(tokens)
    matcher = SequenceMatcher(None, tokens, _tokens(other), autojunk=False)
    for block in matcher.get_matching_blocks():
        alike = "".join(tokens[block.a : block.a + block.size])
        if len(alike) >= _ALIKE or block.a == 0:
            differs[block.a : block.a + block.size] = [False] * block.size
    return differs


def _parts(text: str, marks: list[bool]) -> Parts:
    """Split a text into differing and shared parts."""
    marked = zip(marks, _tokens(text), strict=True)
    return [
        (differing, "".join(token for _, token in pairs))
        for differing, pairs in groupby(marked, key=lambda pair: pair[0])
    ]


@functools.lru_cache(maxsize=64)
def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


def _shown(parts: Parts, first: int, context: int) -> str:
    """Return the differing parts, with a number of characters around each.

    Args:
        parts: the parts of the text.
        first: characters kept of the beginning, if the beginning does not differ.
        context: characters kept around each differing part.
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


# -- terminal -------------------------------------------------------------------------------------


NARROW = 100  # columns; a narrower table has fewer columns
_PART = 500  # rows printed at once
_ROUNDS, _MOST = 4, 8  # attempts to make rows look different; rows that each is compared with
_NARROWEST, _WIDEST = 12, 1000  # characters in a cell
_GREEN, _CYAN, _RED, _YELLOW, _BOLD = 32, 36, 31, 33, 1
_COLOURS = {
    **dict.fromkeys(("completed", "verified", "ok", "same"), _GREEN),
    **dict.fromkeys(("running", "started", "ready", "suspended", "waiting"), _CYAN),
    **dict.fromkeys(("failed", "crashed", "stuck", "problem", "differs"), _RED),
    **dict.fromkeys(("in_doubt", "cancelled", "compensated"), _YELLOW),
    **dict.fromkeys(("interrupted", "stopped", "warning", "not possible"), _YELLOW),
}


class Word(str):
    """A status or a finding, shown in its colour."""

    __slots__ = ()


class Below(str):
    """A line of a table that belongs to the row above, and has the width of the table."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table.

    Args:
        name: the heading.
        whole: cells are never shortened, like the cells of the first column.
        wide: a narrow terminal does not show the column.
        right: cells are aligned to the right, for numbers.
        least: the fewest characters that the column takes, so that the others keep their widths
            from one showing to the next.
    """

    name: str
    whole: bool = False
    wide: bool = False
    right: bool = False
    least: int = 0


class Branch(NamedTuple):
    """A line of a tree, and the lines below it; parts are as for :meth:`Terminal.line`."""

    parts: Sequence[str]
    below: Sequence[Branch] = ()


def line_of(cell: object, limit: int) -> str:
    """Return one line of limited length, without characters that a terminal obeys."""
    text = re.sub(r"[\n\t]", " ", printable(str(cell)[: 4 * limit], 4 * limit))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def one_line(text: str, limit: int) -> str:
    """Return a text as one line of limited length, with spaces and line ends as single spaces."""
    shown = printable(" ".join(text[: 4 * limit].split()), 4 * limit)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def shown_value(value: object, limit: int = 100_000) -> str:
    """Return ``repr(value)`` as printable text, even if ``repr`` raises."""
    try:
        return printable(repr(value), limit)
    except Exception as error:
        return f"<{type(value).__qualname__}: {type(error).__name__} in repr>"


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # missing or closed
        return False


class Terminal:
    """The place where text is shown.

    Args:
        width: columns; ``None`` for a pipe, which gets whole cells so that searches find
            everything.
        colour: the terminal supports colours.
    """

    def __init__(self, width: int | None = None, *, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    @classmethod
    def of(cls, stream: Any) -> Terminal:
        """Return the screen of a stream: a terminal, or a pipe unless ``COLUMNS`` is set."""
        terminal = is_terminal(stream)
        known = terminal or os.environ.get("COLUMNS", "").isdecimal()
        width = max(40, shutil.get_terminal_size().columns) if known else None
        dumb = os.environ.get("TERM") in ("dumb", "unknown")
        return cls(width, colour=terminal and not dumb and "NO_COLOR" not in os.environ)

    @property
    def is_narrow(self) -> bool:
        """True if tables have to use fewer columns."""
        return self.width is not None and self.width < NARROW

    def line(self, *parts: str) -> str:
        """Return a line whose words are coloured, and whose other parts are made printable."""
        return "".join(map(self._part, parts))

    def _part(self, part: str) -> str:
        if not isinstance(part, Word):
            return printable(part, sys.maxsize)
        return self._styled(part, _COLOURS.get(part, 0))

    def _styled(self, text: str, style: int) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style else text

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Any] | Below]
    ) -> Iterator[str]:
        """Lay out a table, part by part; a column becomes wider where a part needs it."""
        places = [n for n, each in enumerate(columns) if not (each.wide and self.is_narrow)]
        shown, waiting = [columns[n] for n in places], iter(rows)
        widths = [max(len(each.name), each.least) for each in shown]
        first = True
        while part := [*itertools.islice(waiting, _PART)]:
            chosen = [[row[n] for n in places] for row in part if not isinstance(row, Below)]
            cells = self._cells(shown, chosen)
            needed = [max(map(_width, column)) for column in zip(*cells, strict=True)]
            widths = [max(pair) for pair in zip(widths, needed or widths, strict=True)]
            cut, below = iter(cells), self._below([row for row in part if isinstance(row, Below)])
            lines = [
                next(below) if isinstance(row, Below) else self._row(shown, next(cut), widths)
                for row in part
            ]
            if first:
                head = self._row(shown, [each.name for each in shown], widths)
                lines.insert(0, self._styled(head, _BOLD))
            yield "\n".join(lines)
            first = False

    def tree(self, top: Branch) -> str:
        """Lay out a tree."""
        return "\n".join(self._branch(top))

    def _branch(self, branch: Branch) -> Iterator[str]:
        yield self.line(*branch.parts)
        for number, each in enumerate(branch.below, 1):
            last = number == len(branch.below)
            lines = self._branch(each)
            yield f"{'└── ' if last else '├── '}{next(lines)}"
            for line in lines:
                yield f"{'    ' if last else '│   '}{line}"

    # -- cells -----------------------------------------------------------------------------------

    def _cells(self, columns: Sequence[Column], rows: list[list[Any]]) -> list[list[str]]:
        cells = [
            [each if isinstance(each, Word) else line_of(each, _WIDEST) for each in row]
            for row in rows
        ]
        if self.width is None:
            return cells
        widths = [max(len(each.name), each.least) for each in columns]
        needed = [
            max([width, *map(_width, column)])
            for width, column in zip(widths, zip(*cells, strict=True), strict=True)
        ]
        elastic = [n for n, each in enumerate(columns) if n and not each.whole]
        elastic = [n for n in elastic if not all(isinstance(row[n], Word) for row in cells)]
        room = self.width - sum(needed) + sum(needed[n] for n in elastic) - 2 * (len(columns) - 1)
        limit = _share([needed[n] for n in elastic], room)
        for n in elastic:
            if needed[n] > limit:
                _fit(cells, n, limit)
        return cells

    def _below(self, rows: Sequence[Below]) -> Iterator[str]:
        cells = [[line_of(row, _WIDEST)] for row in rows]
        if self.width is not None:
            _fit([each for each in cells if _name(each[0])], 0, self.width - 4)
            cells = [[_shortened(each, self.width - 4, [])] for (each,) in cells]
        return (f"    {cell}" for (cell,) in cells)

    def _row(self, columns: Sequence[Column], row: list[str], widths: list[int]) -> str:
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            space = " " * (width - _width(cell))
            text = self.line(cell)
            padded.append(space + text if column.right else text + space)
        return "  ".join(padded).rstrip()


def _width(cell: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if cell.isascii():
        return len(cell)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in cell)
    return len(cell) + wide - sum(unicodedata.combining(each) > 0 for each in cell)


def _share(needed: list[int], room: int) -> int:
    """Return the cell length at which columns fit the room."""
    limits = range(_WIDEST, _NARROWEST, -1)
    return next((n for n in limits if sum(min(n, each) for each in needed) <= room), _NARROWEST)


def _fit(cells: list[list[str]], place: int, limit: int) -> None:
    """Shorten the cells of a column so that different rows look different."""
    shown: dict[str, str] = {}
    near: dict[str, list[str]] = {}
    texts = {row[place] for row in cells if not isinstance(row[place], Word)}
    for _, group in itertools.groupby(sorted(texts), key=_name):
        alike = [*group]  # sorted: texts that begin alike are neighbours
        for number, text in enumerate(alike):
            near[text] = alike[max(0, number - 1) : number] + alike[number + 1 : number + 2]
            shown[text] = _shortened(text, limit, near[text])
    for _ in range(_ROUNDS):
        same = collections.defaultdict(list)
        for text, short in shown.items():
            same[short].append(text)
        for equal in same.values():
            for text in equal if len(equal) > 1 else ():
                near[text] += [each for each in equal if each != text][:_MOST]
                shown[text] = _shortened(text, limit, near[text], every=True)
    for row in cells:
        row[place] = shown.get(row[place], row[place])


def _name(text: str) -> str:
    """Return the call's name with its bracket; empty if the text is no call."""
    found = re.match(r"[\w.<>]+\(", text)
    return found[0] if found else ""


def _shortened(text: str, limit: int, near: list[str], *, every: bool = False) -> str:
    shown = elided(text, limit, near, every=every)
    size = limit
    while _width(shown) > limit and size:  # wide characters
        size -= max(1, (_width(shown) - limit) // 2)
        shown = elided(text, size, near, every=every)
    return shown
