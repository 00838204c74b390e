"""The drawings of the pages: ``make pictures`` writes ``docs/pictures/*.svg``.

Greys and colours that can be read on light and on dark pages.  One unit is a tenth of an inch.
The same code gives the same files.  Imports: matplotlib, pexpect.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib as mpl
import pexpect

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

HERE = pathlib.Path(__file__).resolve().parent / "pictures"

GREY = "#7d8590"  # legible on white and on black
GREEN = "#2da44e"
BLUE = "#4c8dd6"
RED = "#d9534f"
WIDTH = 72.0
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "stepwise",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": GREY,
}


class Drawing:
    """A sheet with texts, boxes and arrows; y grows downwards."""

    def __init__(self, height: float) -> None:
        self.figure = plt.figure(figsize=(WIDTH / 10, height / 10))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, WIDTH)
        self.axes.set_ylim(height, 0)
        self.axes.set_axis_off()

    def text(self, x: float, y: float, text: str, color: str = GREY, **style: Any) -> None:
        """Write a text; by default its left edge is at x."""
        self.axes.text(x, y, text, color=color, va="center", **style)

    def code(self, x: float, y: float, lines: Iterable[str], color: str = GREY) -> None:
        """Write lines of code, two units apart."""
        for number, line in enumerate(lines):
            self.text(x, y + 2 * number, line, color, family="DejaVu Sans Mono", size=8.5)

    def box(
        self, x: float, y: float, width: float, height: float, color: str = GREY, **style: Any
    ) -> None:
        """Draw a box, (x, y) is its upper left corner."""
        style = {"fill": False, "linewidth": 1.2} | style
        self.axes.add_patch(Rectangle((x, y), width, height, edgecolor=color, **style))

    def shade(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Fill an area faintly."""
        patch = Rectangle((x, y), width, height, facecolor=color, alpha=0.18, linewidth=0)
        self.axes.add_patch(patch)

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        color: str = GREY,
        bend: float = 0,
    ) -> None:
        """Draw an arrow."""
        how = {"arrowstyle": "->", "color": color, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
        if bend:
            how["connectionstyle"] = f"arc3,rad={bend}"
        self.axes.annotate("", end, start, arrowprops=how)

    def line(self, *points: tuple[float, float], color: str = GREY, **style: Any) -> None:
        """Draw a line through points."""
        self.axes.plot(*zip(*points, strict=True), color=color, **({"linewidth": 1.2} | style))

    def dot(self, x: float, y: float, color: str = BLUE) -> None:
        """Draw a dot."""
        self.axes.plot([x], [y], "o", color=color, markersize=4.5)


def resuming() -> Drawing:
    """A function with its resume points: where it was cut off, and what the checkpoint holds."""
    draw = Drawing(24)
    lines = (
        "def plan(cities):",
        '    print("planning", ...)',
        '    began = time.strftime("%H:%M:%S")',
        "    found = []",
        "    for city in cities:",
        "        found.append(search(city))",
        '    return f"{began}: ..."',
    )
    draw.shade(3, 4.6, 30, 8, GREY)
    draw.code(4, 3.5, lines)
    for number in (1, 2, 4, 5, 6):
        draw.dot(1.6, 3.5 + 2 * number)
    draw.text(1, 18.3, "●", BLUE, size=7)
    draw.text(2.6, 18.3, "resume point: a statement that contains a call", size=8)
    draw.text(1, 20.3, "■", GREY, size=8, alpha=0.4)
    draw.text(2.6, 20.3, "not executed again: its effects are in the variables", size=8)
    draw.text(1, 22.3, "✕", RED, size=8, weight="bold")
    draw.text(2.6, 22.3, "the 1st process ends in search('Rome');", RED, size=8)
    draw.text(28, 22.3, "the 2nd loads the checkpoint, and begins at this statement", GREEN, size=8)
    draw.text(30.2, 13.5, "✕", RED, size=13, weight="bold")
    draw.box(42, 2.5, 28, 14.5, BLUE)
    draw.text(43.2, 4.2, "checkpoint", BLUE, weight="bold")
    draw.text(43.2, 6.4, "position", size=8)
    draw.code(50, 6.4, ["body[3].body[0]"])
    draw.text(43.2, 8.6, "locals", size=8)
    held = (
        "cities = ['Oslo', 'Rome']",
        "began  = '21:48:35'",
        "found  = [→ record 2]",
        "city   = 'Rome'",
    )
    draw.code(50, 8.6, held)
    draw.arrow((32.3, 13), (41.7, 8.2), BLUE, bend=-0.15)
    draw.text(33.2, 8.2, "saved before", BLUE, size=8)
    draw.arrow((41.7, 14.6), (33, 14), GREEN, bend=-0.15)
    draw.text(34, 16.2, "restored", GREEN, size=8)
    return draw


def checkpoints() -> Drawing:
    """The records of a run in a row, and the checkpoints between them."""
    draw = Drawing(21)
    names = ("started", "search\n'Oslo'", "search\n'Rome'", "search\n'Bern'")
    draw.text(1, 1.6, "journal", weight="bold")
    for number, name in enumerate(names):
        x = 1.0 + 14 * number
        draw.box(x, 3, 11, 5, BLUE)
        draw.text(x + 0.7, 4.1, f"{number + 1}", BLUE, size=7)
        draw.text(x + 5.5, 5.7, name, ha="center", size=8.5)
        if number:
            draw.arrow((x - 3, 5.5), (x, 5.5))
    draw.text(58.5, 5.5, "✕  killed", RED, weight="bold")
    for number, (x, name) in enumerate(((27.5, "after record 2"), (41.5, "after record 3"))):
        color = (GREY, GREEN)[number]
        draw.line((x, 2.4), (x, 11), color=color, linestyle=(0, (3, 2)))
        draw.box(x - 6.6, 11, 13.2, 4.6, color)
        draw.text(x, 12.3, name, color, ha="center", size=8)
        draw.text(x, 14.2, "position, locals", color, ha="center", size=7.5)
    draw.text(1, 13.3, "checkpoints", weight="bold")
    draw.text(
        1,
        18,
        "1. The newest checkpoint that verifies is loaded: its variables, its position.",
        GREEN,
    )
    draw.text(
        1,
        19.9,
        "2. The function continues there. Record 4 came later: it answers search('Bern').",
        BLUE,
    )
    draw.arrow((48.5, 12.2), (49, 8.4), BLUE, bend=0.3)
    return draw


def edits() -> Drawing:
    """What an edit means: below the position, between two checkpoints, above all."""
    draw = Drawing(23)
    cases = (
        ("edit below", 5, 3, "resumes there,\nwith the new code", GREEN),
        ("edit above", 2, 1, "resumes at an older\ncheckpoint", BLUE),
        ("edit above all", 0, 0, "replays from the top;\nthe journal answers", GREY),
    )
    for number, (title, edited, begins, told, color) in enumerate(cases):
        x = 2 + 24 * number
        draw.text(x, 1.6, title, weight="bold")
        for row in range(6):
            y = 4.5 + 2.0 * row
            draw.line((x + 3, y), (x + 14 - row % 3 * 2, y), linewidth=4, alpha=0.35)
        for row in (1, 3):
            draw.dot(x + 1.4, 4.5 + 2 * row, BLUE)
        y = 4.5 + 2.0 * edited
        draw.line((x + 3, y), (x + 14 - edited % 3 * 2, y), color=RED, linewidth=4)
        draw.text(x + 15, y, "edited", RED, size=8)
        y = 4.5 + 2.0 * begins
        draw.arrow((x - 1.6, y), (x + 0.7 + 1.7 * (begins == 0), y), color)
        draw.text(x, 18.2, told, color, size=8.5)
    draw.dot(1.6, 21.6, BLUE)
    draw.text(
        2.8, 21.6, "checkpoint: the older one, and the newest, where the process ended", size=8
    )
    return draw


def journal() -> Drawing:
    """Sealed records in a chain, the mark beside them, the lease."""
    draw = Drawing(24)
    names = ("started", "search\ncompleted", "book\nintent", "book\ncompleted")
    draw.box(0.5, 3, 58, 12.5, alpha=0.5)
    draw.text(1, 1.6, "database", weight="bold")
    for number, name in enumerate(names):
        x = 2 + 14.3 * number
        draw.box(x, 4.5, 11, 5, BLUE)
        draw.text(x + 0.6, 5.6, f"{number + 1}", BLUE, size=7)
        draw.text(x + 5.5, 7.2, name, ha="center", size=8.5)
        draw.box(x, 9.5, 11, 2.4, GREEN)
        draw.text(x + 5.5, 10.7, f"seal {number + 1}", GREEN, ha="center", size=8)
        if number:
            draw.arrow((x - 3.3, 10.7), (x, 10.7), GREEN)
    draw.text(
        2,
        13.7,
        "Each seal covers its record, the place of the record, and the seal before it.",
        GREEN,
        size=8,
    )
    draw.box(61, 3, 10.5, 8.9, GREEN)
    draw.text(61, 1.6, "mark", weight="bold")
    draw.text(66.2, 5.6, "4 records", ha="center", size=8)
    draw.text(66.2, 7.5, "1 intent", ha="center", size=8)
    draw.text(66.2, 9.4, "seal 4", GREEN, ha="center", size=8)
    draw.arrow((55.9, 11.4), (60.8, 9.6), GREEN, bend=0.2)
    draw.text(61, 13.3, "a lost end", GREEN, size=8)
    draw.text(61, 14.9, "is noticed", GREEN, size=8)
    draw.box(0.5, 18, 27, 4.6, RED)
    draw.text(1.5, 19.5, "lease: process 4711, epoch 3", RED, size=8.5)
    draw.text(1.5, 21.3, "a lock that the kernel frees", RED, size=8)
    draw.arrow((14, 17.8), (14, 15.7), RED)
    draw.text(
        29, 19.5, "Each write names the epoch. Another process that took the run over", size=8
    )
    draw.text(29, 21.3, "has epoch 4: then a write with epoch 3 is refused.", size=8)
    return draw


def identity() -> Drawing:
    """A call that is compared with the records of its run, part by part."""
    draw = Drawing(21)
    draw.text(1, 1.6, "a call in the resumed run", weight="bold")
    draw.text(35, 1.6, "a record of the run", weight="bold")
    cases = (
        ("search('Oslo')", "search", "'Oslo'", "'Oslo'", "equal: the record answers", GREEN),
        ("search('Rom')", "search", "'Rom'", "'Rome'", "differs: a plain step runs", BLUE),
        ("book('Rom')", "book", "'Rom'", "'Rome'", "differs: a side effect\nstops and asks", RED),
    )
    for number, (call, name, given, recorded, told, color) in enumerate(cases):
        y = 3.2 + 6 * number
        draw.code(1, y + 2.2, [call])
        draw.arrow((12.5, y + 2.2), (15, y + 2.2))
        for x, value in ((15.5, given), (35.5, recorded)):
            draw.box(x, y, 14, 4.4, color)
            draw.text(x + 0.8, y + 1.2, "step", size=8)
            draw.code(x + 7, y + 1.2, [name])
            draw.text(x + 0.8, y + 3.2, "argument", size=8)
            draw.code(x + 7, y + 3.2, [value], color)
        draw.line((30, y + 2.2), (35, y + 2.2), color=color, linestyle=(0, (3, 2)))
        draw.text(32.5, y + 1.1, "=" if given == recorded else "≠", color, ha="center")
        draw.text(51, y + 2.2, told, color, size=8.5)
    return draw


def doubt() -> Drawing:
    """A side effect on a line of time, and what a crash at each moment means."""
    draw = Drawing(22)
    moments = ((10, "intent\nrecorded"), (24, "request\nsent"), (37, "effect\nhappens"),
               (49, "answer\narrives"), (62, "outcome\nrecorded"))  # fmt: skip
    draw.shade(1, 7, 9, 4, GREY)
    draw.shade(10, 7, 52, 4, RED)
    draw.shade(62, 7, 9, 4, GREEN)
    draw.arrow((1, 9), (71, 9))
    for x, name in moments:
        recorded = "recorded" in name
        color = BLUE if recorded else GREY
        draw.line((x, 6.5), (x, 11.5), color=color, linewidth=2 if recorded else 1)
        draw.text(x, 4, name, color, ha="center", size=8.5, weight="bold" if recorded else None)
    draw.text(1, 1.2, "time →", size=8)
    draw.text(5.5, 13.2, "nothing\nhappened", ha="center", size=8)
    draw.text(36, 13.2, "in doubt", RED, ha="center", weight="bold")
    draw.text(
        36, 15.1, "the journal looks the same, wherever the process died", RED, ha="center", size=8
    )
    draw.text(66.5, 13.2, "it\nhappened", GREEN, ha="center", size=8)
    draw.text(5.5, 19, "the call\nruns", ha="center", size=8.5)
    draw.text(36, 19, "the run stops and asks, or in_doubt= decides", RED, ha="center", size=8.5)
    draw.text(66.5, 19, "the record\nanswers", GREEN, ha="center", size=8.5)
    draw.text(1, 16.9, "next start:", size=8, style="italic")
    return draw


def debugging() -> Drawing:
    """The session at the prompt of docs/how-to/debugging.md, as it happens on a terminal."""
    page = (HERE.parent / "how-to" / "debugging.md").read_text("utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    commands = ("p total, quote", "ask('Rome')", "book(cities, 0)", "quote = '95'", "continue")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "trip.py").write_text(program, "utf-8")
        (path / "IPython.py").write_text("raise ImportError('the prompt of pdb')", "utf-8")
        env = {
            **os.environ,
            "STEPWISE_HOME": f"{folder}/home",
            "PYTHONPATH": folder,
            "TERM": "dumb",
        }
        words: Any = {"cwd": folder, "env": env, "encoding": "utf-8", "dimensions": (50, 400)}
        pexpect.run(f"{sys.executable} trip.py", **words)
        command = str(pathlib.Path(sys.executable).parent / "stepwise")
        terminal = pexpect.spawn(command, ["debug", "trip"], timeout=60, **words)
        said = ""
        for line in commands:
            terminal.expect_exact("(debug) ")
            said += terminal.before + terminal.after
            terminal.sendline(line)
        terminal.expect(pexpect.EOF)
        said += terminal.before
    said = re.sub(r"the variables of \S+", "its variables", said.replace(folder, "~"))
    lines = ["$ stepwise debug trip"]
    for line in said.splitlines():
        lines += textwrap.wrap(line, 92, subsequent_indent="    ") if line else []
    draw = Drawing(2.0 * len(lines) + 2)
    for number, line in enumerate(lines):
        typed = line.startswith(("(debug)", "$"))
        draw.code(1, 1.8 + 2 * number, [line.replace("$", r"\$")], BLUE if typed else GREY)
    return draw


PICTURES: tuple[Callable[[], Drawing], ...] = (
    resuming,
    checkpoints,
    edits,
    journal,
    identity,
    doubt,
    debugging,
)


def main(folder: pathlib.Path = HERE) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for picture in PICTURES:
            draw = picture()
            path = folder / f"{picture.__name__}.svg"
            # Neither the time nor the version of matplotlib is a fact of the picture.
            metadata: Any = {"Date": None, "Creator": None}
            draw.figure.savefig(path, transparent=True, metadata=metadata)
            plt.close(draw.figure)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
