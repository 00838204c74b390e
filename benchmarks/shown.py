"""What users feel: the figures that must be shown, each beside its target, in one table.

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
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import comparison
from common import HERE, Spread

Report = dict[str, Any]


class Figure(NamedTuple):
    """A figure that must be shown.

    Args:
        what: it is.
        script: measures it.
        rows: matches the names of its rows; there is a line for each.
        most: it may be; ``None`` if the rows have targets of their own, or none.
    """

    what: str
    script: str
    rows: str
    most: float | None = None


FIGURES = (
    Figure("results kept and dropped", "growth", "(?:W1|an agent): .*"),
    Figure("a list of arrays that grows", "growth", "a list of arrays .*"),
    Figure("an index for retrieval, run over plain", "growth", "an index of .*"),
    Figure("a large argument", "steps", "a step that reads .*"),
    Figure("over a plain step", "steps", "a method that adds .*"),
    Figure("a run of three steps, without its steps", "growth", "a run of three steps.*"),
    Figure("a listing", "many_runs", ".* (?:runs: (?:runs|show).*|of runs.*)"),
    Figure("a long run shown", "growth", "stepwise show of .*"),
    Figure("an instrumented request over a plain one", "instrumented_request", ".*loop, .*"),
    Figure("200 steps at once over Restate's", "versus", "w6 .*: restate/default", 0.5),
    Figure(
        "a step on Postgres over DBOS's",
        "postgres_throughput",
        ".*: server and process, for one step",
        1 / 3,
    ),
    Figure("a takeover on Postgres", "postgres_throughput", "from (?:a kill .* p50|the loss) .*"),
    Figure(
        "over a SQLite FULL insert, a checkpoint at each",
        "steps",
        "a step, fsync",
        1.7,
    ),
    Figure("over the same insert", "steps", "a side effect, fsync", 2.8),
    Figure("over a SQLite NORMAL insert", "steps", "a step, os", 2.2),
    Figure("bytes written for a step of 1 KB", "steps", "a step, fsync, bytes written", 6),
    Figure(
        "over one run",
        "concurrency",
        "64 runs as .*: processor time a step",
        1.3,
    ),
    Figure(
        "start to the first new step",
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
        "messages growing",
        "agent_loop",
        "step [0-9,]+ against step 50.*",
        2,
    ),
    Figure("over plain", "overhead", "steps of 10 ms", 1.08),
    Figure(
        "over a graph without checkpoints",
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


def lines(reports: dict[str, Report]) -> Iterator[tuple[Figure, Line]]:
    """All figures; what was not measured is named with its command."""
    for figure in FIGURES:
        report = reports.get(figure.script, {})
        rows = _beside_peers(report) if "turns" in report else report.get("rows", ())
        pattern = re.compile(rf"(?:(?:disk|sqlite|memory): )?(?:{figure.rows})")
        found = [row for row in rows if pattern.fullmatch(row["what"])]
        if not found:
            script = "peers/versus" if figure.script == "versus" else figure.script
            missing = f"not measured: python benchmarks/{script}.py"
            yield figure, Line(figure.what, missing, _target(figure.most), "")
        for row in found:
            yield figure, _line(figure, row)


def _target(most: float | None) -> str:
    return f"{most:.3g}" if most is not None else ""


def _line(figure: Figure, row: Report) -> Line:
    most = figure.most if figure.most is not None else row["limit"]
    told = f"{Spread(*row['ours'])} {row['unit']}".strip()
    if row["ratio"] is not None:
        told = f"{Spread(*row['ratio'])} x; {told}"
    if row["other"]:
        told = f"{told}; {row['other']}"
    judged = (row["ratio"] or row["ours"])[0]
    verdict = "" if most is None else "met" if judged <= most else "MISSED"
    return Line(f"{figure.what}: {row['what']}", told, _target(most), verdict)


def _beside_peers(versus: Report) -> Iterator[Report]:
    """Yield our figures over those of the peers, as rows."""
    for what in dict.fromkeys(turn["what"] for turn in versus["turns"]):
        name = what.split()[0]
        if name not in comparison.FIGURES:
            continue
        key = comparison.FIGURES[name][0].key
        found = {line.who: line for line in comparison.measured(versus, what)}
        for who, line in found.items():
            ours = found.get(comparison.OURS.get(line.survives, ""))
            if line.ratio is None or ours is None or who.startswith(("stepwise", "raw")):
                continue
            yield {
                "what": f"{what}: {who}",
                "ours": ours.figures[key],
                "unit": key,
                "ratio": (1 / line.ratio.median, 1 / line.ratio.high, 1 / line.ratio.low),
                "other": f"{who}: {line.figures[key]}",
                "limit": None,
            }


def processors(reports: dict[str, Report], scripts: Iterable[str]) -> str:
    """The processors on which the figures of scripts were measured, and the load meanwhile."""
    named: dict[str, list[str]] = {}
    for script in dict.fromkeys(scripts):
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
    found = [line for _, line in lines(reports)]
    measured_on = processors(reports, (figure.script for figure in FIGURES))
    print(f"What users feel, and the price of a step, on {measured_on}")
    for line in found:
        most = f"at most {line.target}" if line.target else ""
        print(f"  {line.verdict:6}  {most:12}  {line.what}\n{'':24}{line.measured}")
    judged = [line.verdict for line in found if line.verdict]
    print(f"{judged.count('met')} of {len(judged)} met")


if __name__ == "__main__":
    main()
