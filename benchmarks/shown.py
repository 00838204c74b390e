"""The price of a step: the figures that must be shown, each beside its target, in one table.

    python benchmarks/shown.py [--results FOLDER]

They stand in what the scripts have left in the folder; ``bench.py`` prints the table in the end,
and ``page.py`` puts it where its prose says ``{{shown}}``.  Here are the targets, and nothing is
measured.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from common import HERE, Spread

Report = dict[str, Any]


class Figure(NamedTuple):
    """A figure that must be shown.

    Args:
        what: it is.
        script: measures it.
        rows: matches the names of its rows; there is a line for each.
        most: it may be; ``None`` if it has no target.
    """

    what: str
    script: str
    rows: str
    most: float | None = None


FIGURES = (
    Figure(
        "a step, fsync, a checkpoint at each, over a SQLite FULL insert",
        "steps",
        "a step, fsync",
        1.7,
    ),
    Figure("a side effect, over a SQLite FULL insert", "steps", "a side effect, fsync", 2.8),
    Figure("a step, os, over a SQLite NORMAL insert", "steps", "a step, os", 2.2),
    Figure("bytes written for a step of 1 KB", "steps", "a step, fsync, bytes written", 6),
    Figure(
        "processor time of a step, 64 runs at once over one run",
        "concurrency",
        "64 runs as .*: processor time a step",
        1.3,
    ),
    Figure(
        "time of a step, 8 processes on one store, over the former version's",
        "processes",
        "a step, 8 processes on one store, over stepwise .*",
        0.5,
    ),
    Figure(
        "start to the first new step, over a program with plain SQLite",
        "recovery",
        "after [0-9,]+ steps, over a program with plain SQLite",
        1.7,
    ),
    Figure(
        "the same, over a bare Python that reads one row",
        "recovery",
        "after [0-9,]+ steps, over a bare Python's start .*",
    ),
    Figure(
        "a late step over step 50, messages growing",
        "agent_loop",
        "step [0-9,]+ against step 50.*",
        2,
    ),
    Figure(
        "the same of smaller messages, processor time",
        "growth",
        "step [0-9,]+ against step 50, messages growing.*",
        2,
    ),
    Figure("steps of 10 ms, run over plain", "overhead", "steps of 10 ms", 1.08),
    Figure(
        "a node of 10 ms of a graph, over one without checkpoints",
        "graph_overhead",
        "a node of 10 ms, .*",
        1.08,
    ),
    Figure("instructions of a step", "instructions", ".*"),
)


class Line(NamedTuple):
    """A figure as it was measured."""

    what: str
    measured: str
    target: str
    verdict: str


def lines(reports: dict[str, Report]) -> Iterator[Line]:
    """All figures; what was not measured is named with its command."""
    for figure in FIGURES:
        rows = reports.get(figure.script, {}).get("rows", ())
        pattern = re.compile(rf"(?:(?:disk|sqlite|memory): )?(?:{figure.rows})")
        found = [row for row in rows if pattern.fullmatch(row["what"])]
        target = f"{figure.most:g}" if figure.most is not None else ""
        if not found:
            missing = f"not measured: python benchmarks/{figure.script}.py"
            yield Line(figure.what, missing, target, "")
        for row in found:
            yield _line(figure, row, target)


def _line(figure: Figure, row: Report, target: str) -> Line:
    told = f"{Spread(*row['ours'])} {row['unit']}".strip()
    if row["ratio"] is not None:
        told = f"{Spread(*row['ratio'])} x; {told}"
    judged = (row["ratio"] or row["ours"])[0]
    verdict = "" if figure.most is None else "met" if judged <= figure.most else "MISSED"
    return Line(f"{figure.what}: {row['what']}", told, target, verdict)


def processors(reports: dict[str, Report]) -> str:
    """The processors on which the figures were measured, and the load meanwhile."""
    named: dict[str, list[str]] = {}
    for script in dict.fromkeys(figure.script for figure in FIGURES):
        if script in reports:
            machine = reports[script]["machine"]
            small = " --quick" if reports[script].get("quick") else ""
            named.setdefault(machine["cpu"], []).append(f"{script}{small} {machine['load']}")
    return "; ".join(f"{cpu} (load: {', '.join(loads)})" for cpu, loads in named.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    folder = parser.parse_args().results
    reports = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    found = list(lines(reports))
    print(f"The price of a step, on {processors(reports)}")
    for line in found:
        most = f"at most {line.target}" if line.target else ""
        print(f"  {line.verdict:6}  {most:12}  {line.what}\n{'':24}{line.measured}")
    judged = [line.verdict for line in found if line.verdict]
    print(f"{judged.count('met')} of {len(judged)} met")


if __name__ == "__main__":
    main()
