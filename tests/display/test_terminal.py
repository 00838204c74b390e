"""Tables and trees on a terminal: they fit, and rows that differ look different."""

import io
import itertools
import random

import pytest

from stepwise._display.terminal import Below, Branch, Column, Terminal, Word, _width, elided

CITIES = ["Oslo", "Rome", "Bern", "Paris", "London", "Madrid"]
CALLS = [
    f"trip(cities={CITIES[:n]}, guests={guests}, hotel='{hotel}')"
    for n in (2, 6)
    for guests in (1, 2, 13)
    for hotel in ("Grand Hotel Central", "Grand Hotel Central Annex")
]


def lines(width, rows, *names, colour=False, **how):
    columns = [Column(name, **how) for name in names]
    return "\n".join(Terminal(width, colour=colour).table(columns, rows)).splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_what_differs_stays_visible(width):
    """Texts that differ are shown differently, however little room there is, and never longer."""
    for one, other in itertools.combinations(CALLS, 2):
        pair = elided(one, width, [other]), elided(other, width, [one])
        assert pair[0] != pair[1]
        assert max(map(len, pair)) <= width


def test_a_text_that_fits_is_whole():
    """A text that has room is not changed, and one without others is cut at its end."""
    assert elided("book(guests=2)", 14, ["book(guests=3)"]) == "book(guests=2)"
    assert elided("book(guests=2)", 9) == "book(gue…"
    assert elided("book(guests=2)", 9, ["book(guests=2)"]) == "book(gue…"


def test_the_argument_that_differs():
    """The argument in which calls differ is shown, with as much around it as there is room for."""
    one, other = (f"book(hotel='{'x' * 60}', guests={n}, breakfast=True)" for n in (2, 3))
    assert "guests=2, " in elided(one, 40, [other])
    assert elided(one, 40, [other]).startswith("book(")


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("seed", range(20))
def test_rows_that_differ_look_different(width, seed):
    """A table fits its terminal, and no two rows of other calls look the same."""
    chance = random.Random(seed)
    calls = chance.sample(CALLS, 8)
    rows = [[f"trip-{n:012x}", Word("completed"), call, "booked"] for n, call in enumerate(calls)]
    shown = lines(width, rows, "RUN", "STATUS", "CALL", "RESULT")
    assert max(map(len, shown)) <= width
    assert len({line[18:] for line in shown[1:]}) == len(rows)
    both = lines(width, [[*row[:3], row[2]] for row in rows], "RUN", "STATUS", "CALL", "RESULT")
    assert max(map(len, both)) <= width
    assert len({line[18:] for line in both[1:]}) == len(rows)


def test_a_wide_terminal_is_used():
    """With room for whole cells, nothing is left out; a pipe leaves nothing out either."""
    rows = [["1", call] for call in CALLS]
    for width in (300, None):
        assert all(call in "\n".join(lines(width, rows, "STEP", "CALL")) for call in CALLS)


def test_the_first_column_is_whole():
    """The names that commands take are never cut, nor are cells that say how many or when."""
    rows = [["family-0123456789ab/trip-0123456789abcdef-1", "2026-11-22 22:13:58"]]
    columns = [Column("RUN"), Column("STARTED", whole=True)]
    (shown,) = Terminal(40).table(columns, rows)
    assert all(cell in shown for cell in rows[0])


def test_lines_below():
    """A line below a row has the width of the terminal, and does not widen a column."""
    rows = [["one", "short"], Below("x" * 200), ["two", "short"]]
    shown = lines(60, rows, "RUN", "CALL")
    assert shown[1] == "one  short"
    assert shown[2].startswith("    xxx")
    assert len(shown[2]) == 60


def test_wide_characters():
    """Characters that take two columns count as two; marks that take none as none."""
    assert (_width("漢字"), _width("e\u0301"), _width("abc")) == (4, 1, 3)
    shown = lines(40, [["1", "漢字" * 50], ["2", "漢字" * 50 + "!"]], "STEP", "CALL")
    assert max(map(_width, shown)) <= 40


@pytest.mark.parametrize("colour", [True, False])
def test_only_our_words_have_colours(colour):
    """Escape sequences, markup, line breaks and turned text in a cell are written out."""
    evil = "\x1b[31mred\x1b[0m [bold]x[/bold] \u202eturned\nnext\tcell :smile: \x9b31m"
    rows = [[evil, Word("failed"), evil], Below(evil)]
    text = "\n".join(lines(300, rows, "RUN", "STATUS", "CALL", colour=colour))
    tree = Terminal(colour=colour).tree(Branch([evil, Word("failed")], [Branch([evil])]))
    line = Terminal(colour=colour).line(evil, Word("failed"))
    for shown in (text, tree, line):
        assert ("\x1b[31mfailed\x1b[0m" in shown) is colour
        plain = shown.replace("\x1b[31mfailed\x1b[0m", "").replace("\x1b[1m", "")
        assert {"\x1b", "\u202e", "\x9b"}.isdisjoint(plain.replace("\x1b[0m", ""))
        assert "\\x1b[31mred" in shown
        assert "[bold]x[/bold]" in shown
        assert ":smile:" in shown
    assert len(text.splitlines()) == 3


def test_a_tree():
    """A tree shows what is below what."""
    below = [Branch(["1 a"], [Branch(["1 b"]), Branch(["2 c"])]), Branch(["2 d"])]
    assert Terminal().tree(Branch(["top"], below)).splitlines() == [
        "top",
        "├── 1 a",
        "│   ├── 1 b",
        "│   └── 2 c",
        "└── 2 d",
    ]


class Stream(io.StringIO):
    def isatty(self):
        return True


def test_which_terminal(monkeypatch):
    """Colours are for terminals without ``NO_COLOR``; a pipe has no width without ``COLUMNS``."""
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal.of(Stream()).colour
    assert Terminal.of(Stream()).width is not None
    assert (Terminal.of(io.StringIO()).colour, Terminal.of(io.StringIO()).width) == (False, None)
    monkeypatch.setenv("COLUMNS", "72")
    assert (Terminal.of(io.StringIO()).width, Terminal.of(Stream()).width) == (72, 72)
    assert Terminal.of(None).width == 72
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Terminal.of(Stream()).colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal.of(Stream()).colour


def test_a_long_table_comes_in_parts():
    """The first rows of a long table are laid out before the last ones are made."""
    made = []

    def rows():
        for number in range(2000):
            made.append(number)
            yield [number, "x" * (number // 600)]

    parts = Terminal(80).table([Column("STEP", right=True), Column("CALL")], rows())
    assert next(parts).startswith("STEP")
    assert len(made) < 1000
    assert sum(len(part.splitlines()) for part in parts) == 1500
