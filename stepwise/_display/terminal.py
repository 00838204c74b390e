"""Tables, trees and coloured words for a terminal, by rich, which is imported on use.

Recorded text reaches rich as plain ``Text``, made printable before: neither markup (``[red]``) nor
what a terminal obeys is in it.  Only a :class:`Word` has a colour.

Things that do not work: ``rich.table`` for every row takes 0.3 ms for each, and the steps of a run
may be a hundred thousand; so it lays out the first part of a table, and the parts after it get its
widths.  ``rich.live`` for the progress of a run lays out again what the program prints.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwise._display.elide import elided
from stepwise._runtime.messages import printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["NARROW", "Branch", "Column", "Screen", "Word", "ago", "line_of", "when"]

NARROW = 100  # columns; a narrower table has fewer columns
_PART = 500  # rows that are printed at once
_NARROWEST, _WIDEST = 12, 1000  # characters in a cell
_COLOURS = {
    "completed": "green",
    "verified": "green",
    "running": "cyan",
    "started": "cyan",
    "ready": "cyan",
    "failed": "red",
    "crashed": "red",
    "in_doubt": "yellow",
    "cancelled": "yellow",
    "compensated": "yellow",
    "interrupted": "yellow",
    "stopped": "yellow",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
}
_HEAD, _SOFT = "bold", "dim"


class Word(str):
    """A status or a finding, in its colour."""

    __slots__ = ()

    @property
    def style(self) -> str:
        """The colour of the word."""
        return _COLOURS.get(self, "")


class Column(NamedTuple):
    """A column of a table.

    Args:
        whole: its cells are never shortened, like those of the first column.
        wide: a narrow terminal does not show it.
        right: numbers, which end below each other.
    """

    name: str
    whole: bool = False
    wide: bool = False
    right: bool = False


class Branch(NamedTuple):
    """A line of a tree, and the lines below it; its parts as those of :meth:`Screen.line`."""

    parts: Sequence[str]
    below: Sequence[Branch] = ()


def line_of(cell: object, limit: int) -> str:
    """Return one line of limited length, without characters that a terminal obeys."""
    text = re.sub(r"[\n\t]", " ", printable(str(cell)[: 4 * limit], 4 * limit))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def ago(seconds: float) -> str:
    """Return how long ago something was, in words."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def when(moment: float) -> str:
    """Return a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


class Screen:
    """The place where text is shown.

    Args:
        width: columns; ``None`` for a pipe, which gets whole cells, so that searches find all.
        colour: it obeys colours.
    """

    def __init__(self, width: int | None = None, *, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    @classmethod
    def of(cls, stream: Any) -> Screen:
        """Return the screen of a stream: a terminal, or a pipe unless ``COLUMNS`` is set."""
        try:
            terminal = bool(stream.isatty())
        except (AttributeError, ValueError):  # missing or closed
            terminal = False
        known = terminal or os.environ.get("COLUMNS", "").isdecimal()
        width = max(40, shutil.get_terminal_size().columns) if known else None
        dumb = os.environ.get("TERM") in ("dumb", "unknown")
        return cls(width, colour=terminal and not dumb and "NO_COLOR" not in os.environ)

    @property
    def is_narrow(self) -> bool:
        """True if tables have to do with fewer columns."""
        return self.width is not None and self.width < NARROW

    def line(self, *parts: str) -> str:
        """Return text whose words are coloured, and whose other parts are made printable."""
        return self._rendered(_text(parts)) if self.colour else _plain(parts)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """Lay out a table, part by part; a column becomes wider where a part needs that."""
        places = [n for n, each in enumerate(columns) if not (each.wide and self.is_narrow)]
        shown, waiting = [columns[n] for n in places], iter(rows)
        widths = [len(each.name) for each in shown]
        first = True
        while part := [*itertools.islice(waiting, _PART)]:
            cells = self._cells(shown, [[row[n] for n in places] for row in part])
            needed = [max(map(_width, column)) for column in zip(*cells, strict=True)]
            widths = [max(pair) for pair in zip(widths, needed, strict=True)]
            if first:
                yield self._laid_out(shown, cells, widths)
            else:
                yield "\n".join(self._row(shown, row, widths) for row in cells)
            first = False

    def tree(self, top: Branch) -> str:
        """Lay out a tree."""
        from rich.tree import Tree

        def grow(tree: Any, branch: Branch) -> Any:
            for each in branch.below:
                grow(tree.add(self._branch(each)), each)
            return tree

        return self._rendered(grow(Tree(self._branch(top), guide_style=_SOFT), top))

    # -- cells -----------------------------------------------------------------------------------

    def _cells(self, columns: Sequence[Column], rows: list[list[Any]]) -> list[list[str]]:
        cells = [
            [each if isinstance(each, Word) else line_of(each, _WIDEST) for each in row]
            for row in rows
        ]
        if self.width is None:
            return cells
        widths = [len(each.name) for each in columns]
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

    def _laid_out(
        self, columns: Sequence[Column], cells: list[list[str]], widths: list[int]
    ) -> str:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_HEAD)
        for column, width in zip(columns, widths, strict=True):
            justify: Any = "right" if column.right else "left"
            table.add_column(_text([column.name]), width=width, no_wrap=True, justify=justify)
        for row in cells:
            table.add_row(*(_text([cell]) for cell in row))
        return self._rendered(table, sum(widths) + 2 * len(widths))

    def _row(self, columns: Sequence[Column], row: list[str], widths: list[int]) -> str:
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            space = " " * (width - _width(cell))
            text = self.line(cell)
            padded.append(space + text if column.right else text + space)
        return "  ".join(padded).rstrip()

    def _branch(self, branch: Branch) -> Text:
        return _text(branch.parts)

    def _rendered(self, what: Any, width: int | None = None) -> str:
        from rich.console import Console

        out = io.StringIO()
        console = Console(
            file=out,
            width=width or 100_000,
            color_system="standard" if self.colour else None,
            force_terminal=self.colour,
            force_jupyter=False,
            legacy_windows=False,
            markup=False,
            highlight=False,
            emoji=False,
        )
        console.print(what, soft_wrap=width is None)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def _plain(parts: Iterable[str]) -> str:
    return "".join(printable(part, 1 << 62) for part in parts)


def _text(parts: Iterable[str]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for part in parts:
        text.append(_plain([part]), part.style if isinstance(part, Word) else None)
    return text


def _width(cell: str) -> int:
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _share(needed: list[int], room: int) -> int:
    """Return the length of a cell at which columns fit the room."""
    limits = range(_WIDEST, _NARROWEST, -1)
    return next((n for n in limits if sum(min(n, each) for each in needed) <= room), _NARROWEST)


def _fit(cells: list[list[str]], place: int, limit: int) -> None:
    """Shorten the cells of a column so that rows which differ look different."""
    before: dict[str, str] = {}
    after: dict[int, str] = {}
    following: dict[str, str] = {}
    texts = [row[place] for row in cells]
    for n in range(len(texts) - 1, -1, -1):
        name = _name(texts[n])
        after[n] = following.get(name, "")
        following[name] = texts[n]
    for n, text in enumerate(texts):
        name = _name(text)
        near = [each for each in (before.get(name), after[n]) if each and each != text]
        before[name] = text
        if not isinstance(text, Word):
            cells[n][place] = _shortened(text, limit, near)


def _name(text: str) -> str:
    found = re.match(r"[\w.]+", text)
    return found[0] if found else ""


def _shortened(text: str, limit: int, near: list[str]) -> str:
    shown = elided(text, limit, near)
    size = limit
    while _width(shown) > limit and size:  # wide characters
        size -= max(1, (_width(shown) - limit) // 2)
        shown = elided(text, size, near)
    return shown
