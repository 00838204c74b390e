"""docs/benchmarks.md and its plots, made of ``results/*.json`` and the prose of ``page.md``.

    python benchmarks/page.py [--results FOLDER] [--to FILE]

In the prose, ``{{rows:NAME}}`` becomes the table of a script, ``{{totals:NAME}}`` its rows of no
single case (``case: what``), ``{{cases:NAME}}`` the other rows with a column for each case,
``{{peers:WORKLOAD}}`` the table of a workload of the peers,
``{{overview}}`` that of all of them, ``{{shown}}`` the figures of ``shown.py`` that have a target,
``{{counted}}`` how many targets are met, ``{{machine}}`` what the figures depend on,
``{{skipped}}`` who could not run, and why, and ``{{others}}`` the names of all other scripts, whose
figures no user needs. An item of a list that begins with ``{{missed:NAME}}`` says why the script
misses targets, and is left out if it misses none. So no figure is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import comparison
import shown
from common import HERE, Spread

_ROOT = HERE.parent
_MISSING = "*Not measured yet: `make bench` does it.*"

_SPREAD = re.compile(r" \([\d.]+ - [\d.]+\)")

Report = dict[str, Any]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: list[float] | None) -> str:
    """A median with its smallest and largest value."""
    return "" if values is None else str(Spread(*values))


def _ours(row: Report) -> str:
    """The figure itself; beside a ratio, which has its spread, the median alone."""
    values = row["ours"]
    shown_values = values if row["ratio"] is None else values[:1] * 3
    return f"{spread(shown_values)} {row['unit']}".strip()


def _met(row: Report) -> bool:
    return (row["ratio"] or row["ours"])[0] <= row["limit"]


def judged(row: Report) -> str:
    if row["limit"] is None:
        return ""
    return f"{row['limit']:g}: {'met' if _met(row) else '**missed**'}"


def _with_target(report: Report) -> list[Report]:
    return [row for row in report.get("rows", ()) if row["limit"] is not None]


def counted(reports: dict[str, Report]) -> str:
    """How many targets are met."""
    met = [_met(row) for report in reports.values() for row in _with_target(report)]
    return f"{sum(met)} of {len(met)} are met"


_REASON = re.compile(r"^- \{\{missed:(\w+)\}\} (.*?\n)(?=- |\n)", re.MULTILINE | re.DOTALL)


def _missed(prose: str, reports: dict[str, Report]) -> str:
    """The prose with the reasons for what is missed, and no others."""

    def put(found: re.Match[str]) -> str:
        report = reports.get(found[1], {})
        met = [_met(row) for row in _with_target(report)]
        if all(met):
            return ""
        return f"- **{report['title']}**, {met.count(False)} of {len(met)} missed. {found[2]}"

    return _REASON.sub(put, prose)


def rows(report: Report, totals: bool) -> str:
    """The table of a script: the ratio first; columns that are empty in each row are left out."""
    lines = []
    for row in report["rows"]:
        if totals and ": " in row["what"]:
            continue
        ratio = f"**{spread(row['ratio'])}**" if row["ratio"] else ""
        other = _SPREAD.sub("", row["other"]) if row["ratio"] else row["other"]
        lines.append((row["what"], ratio, _ours(row), other, judged(row), row["note"]))
    head = ("", "ratio", "stepwise", "compared with", "target", "")
    filled = [n for n in range(len(head)) if not n or any(line[n] for line in lines)]
    whole, *lines = (tuple(line[n] for n in filled) for line in (head, *lines))
    return table(whole, lines)


def cases(report: Report) -> str:
    """Return a table with a row for each figure and a column for each case."""
    found: dict[str, dict[str, str]] = {}
    for row in report["rows"]:
        case, named, what = row["what"].partition(": ")
        if named:
            found.setdefault(what, {})[case] = _against(row)
    heads = list(dict.fromkeys(case for row in found.values() for case in row))
    lines = [(what, *(row.get(case, "") for case in heads)) for what, row in found.items()]
    return table(("", *heads), lines)


def _against(row: Report) -> str:
    """A figure in one cell: the ratio, ours, and what it is compared with."""
    if row["ratio"] is None:
        return _ours(row)
    return f"**{spread(row['ratio'])}**: {_ours(row)}, {_SPREAD.sub('', row['other'])}"


def machine(reports: dict[str, Report]) -> str:
    """What the figures depend on; the load of each script."""
    facts = [report["machine"] for report in reports.values()]
    if not facts:
        return _MISSING
    newest = max(facts, key=lambda fact: fact["at"])
    whole = f"{newest['system']}, {newest['disk']}, CPython {newest['python']}"
    dates = sorted({fact["at"][:10] for fact in facts})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    text = f"{whole}, SQLite {newest['sqlite']}; {when}; {shown.processors(reports, [*reports])}."
    small = [name for name, report in reports.items() if report.get("quick")]
    return text + (f" **Small sizes (`--quick`): {', '.join(small)}.**" if small else "")


def _shown(prose: str, reports: dict[str, Report]) -> str:
    """The figures that must be shown, but for those with the same target in another table."""
    lines = []
    before = ""
    for figure, line in shown.lines(reports):
        named, _, row = line.what.partition(": ")
        if not line.target or (figure.most is None and _has_place(figure.script, prose)):
            continue
        verdict = f"**{line.verdict.lower()}**" if line.verdict == "MISSED" else line.verdict
        told = line.measured.partition("; ")[0].removesuffix(" x")  # the row says what it is over
        lines.append((row if row and named == before else line.what, told, line.target, verdict))
        before = named
    return table(("", "measured", "at most", ""), lines)


def _has_place(name: str, prose: str) -> bool:
    """Return whether the prose has a table of all rows of a script."""
    return re.search(rf"\{{\{{(?:rows|cases):{name}\}}\}}", prose) is not None


def _others(prose: str, reports: dict[str, Report]) -> str:
    """The scripts that the prose has no place for."""
    return "\n".join(
        f"- `benchmarks/{name}.py`: {report['title']}"
        for name, report in reports.items()
        if "rows" in report and not _has_place(name, prose)
    )


def _compared(versus: Report, kind: str, name: str) -> str:
    if kind == "skipped":
        return comparison.skipped(versus)
    if kind == "overview":
        return table(*comparison.overview(versus))
    head, lines = comparison.lines(versus, name)
    return table(head, lines) if lines else _MISSING


def render(prose: str, reports: dict[str, Report]) -> str:
    """The page."""
    versus = reports.get("versus")

    def put(found: re.Match[str]) -> str:
        kind, _, name = found[1].partition(":")
        whole = {
            "counted": counted,
            "machine": machine,
            "shown": lambda each: _shown(prose, each),
        }.get(kind)
        if whole is not None:
            return whole(reports)
        if kind == "others":
            return _others(prose, reports)
        if kind in ("rows", "totals", "cases"):
            if name not in reports:
                return _MISSING
            return (
                cases(reports[name]) if kind == "cases" else rows(reports[name], kind == "totals")
            )
        return _MISSING if versus is None else _compared(versus, kind, name)

    found = re.sub(r"\{\{([a-z0-9_:]+)\}\}", put, _missed(prose, reports))
    return re.sub(r"\(([\d.]+) - ([\d.]+)\)", r"(\1-\2)", found)  # spreads


def read(folder: pathlib.Path) -> dict[str, Report]:
    """What the scripts have left, by their names: the workloads W1 to W9, then the others."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    titles = {name: str(report["title"]) for name, report in found.items()}
    order = sorted(found, key=lambda name: (not titles[name].startswith("W"), titles[name]))
    return {name: found[name] for name in order}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--to", type=pathlib.Path, default=_ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    reports = read(arguments.results)
    prose = (HERE / "page.md").read_text(encoding="utf-8")
    arguments.to.write_text(render(prose, reports), encoding="utf-8")
    print(arguments.to)
    if "versus" not in reports:
        return
    try:
        import plots
    except ImportError as error:
        print(f"no plots: {error} (pip install 'stepwise-agents[bench]')")
        return
    for path in plots.draw(reports, arguments.to.with_suffix("")):
        print(path)


if __name__ == "__main__":
    main()
