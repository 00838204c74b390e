"""stepwise and its peers from ``versus.json``: ratios formed within a round, in tables."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from common import Spread

Report = dict[str, Any]

OURS = {  # what survives: the variant of ours that keeps as much
    "power cut": "stepwise/disk-fsync",
    "power cut, later": "stepwise/disk-fsync",
    "killed process": "stepwise/disk-os",
}


class Figure(NamedTuple):
    """One of a workload's figures.

    Args:
        key: its name in the JSON.
        head: what stands above it.
        compared: whether a ratio to ours is formed.
    """

    key: str
    head: str
    compared: bool = False


FIGURES = {
    "w1": (Figure("us", "us per step", compared=True), Figure("cpu_us", "processor time, us")),
    "w2": (
        Figure("ms", "ms to the first new step", compared=True),
        Figure("ran_again", "steps run again"),
    ),
    "w3": (
        Figure("disk_ratio", "bytes on disk over the messages' own", compared=True),
        Figure("growth", "last steps over the first"),
        Figure("late_us", "us per step in the end"),
    ),
    "w4": (Figure("ms", "ms to save it", compared=True), Figure("copies", "memory over its size")),
    "w5": (
        Figure("ms", "ms to import", compared=True),
        Figure("distributions", "distributions"),
        Figure("mb", "MB"),
    ),
    "w6": (Figure("ms", "ms", compared=True),),
    "w10": (
        Figure("ms", "ms to the statement after the wait, in a fresh process", compared=True),
        Figure("ran_again", "statements run again"),
        Figure("live_ms", "ms from the send to it, in a live process"),
    ),
}


# Other settings of stepwise, which its own benchmarks measure.
_LEFT_OUT = {
    f"stepwise/{variant}"
    for variant in (
        *("disk-fsync-100", "disk-os-100", "sqlite-fsync", "sqlite-os"),
        *("sqlite-fsync-100", "sqlite-os-100"),
    )
}

_SHORT = {
    "w1": "W1: a step",
    "w2": "W2: to go on",
    "w3": "W3: bytes",
    "w4": "W4: 10 MB",
    "w5": "W5: import",
    "w6": "W6: 200 at once",
    "w10": "W10: a wait",
}


_UNITS = {"us": "us", "ms": "ms", "disk_ratio": "of the messages"}


class Line(NamedTuple):
    """What one contender did in one workload."""

    who: str
    survives: str
    flushes: float | None
    ratio: Spread | None
    figures: dict[str, Spread]


def workloads(report: Report, name: str) -> list[str]:
    """The sizes at which a workload was measured: "w2 --n 100", "w2 --n 1000"."""
    found = (turn["what"] for turn in report["turns"])
    return list(dict.fromkeys(what for what in found if what.split()[0] == name))


def measured(report: Report, what: str) -> list[Line]:
    """Everybody's figures of one workload; ours first, then by what they survive."""
    figures = FIGURES[what.split(maxsplit=1)[0]]
    by_who: dict[str, dict[int, Report]] = defaultdict(dict)
    for turn in report["turns"]:
        if turn["what"] == what and figures[0].key in turn:
            by_who[turn["who"]][turn["round"]] = turn
    flushes = {turn["who"]: turn.get("flushes") for turn in report["turns"] if "flushes" in turn}
    lines = []
    for who, turns in by_who.items():
        survives = next(iter(turns.values()))["survives"]
        like = None if what.startswith("w5") else OURS.get(survives)  # an import is an import
        ours = by_who.get(like or "stepwise/disk-fsync", {})
        key = figures[0].key
        ratios = [turns[n][key] / ours[n][key] for n in turns if n in ours]
        lines.append(
            Line(
                who,
                survives,
                flushes.get(who),
                Spread.of(ratios) if ratios and figures[0].compared else None,
                {
                    figure.key: Spread.of([turn[figure.key] for turn in turns.values()])
                    for figure in figures
                    if all(figure.key in turn for turn in turns.values())
                },
            )
        )
    return sorted(lines, key=lambda line: (_rank(line), line.figures[figures[0].key].median))


def _rank(line: Line) -> tuple[int, int]:
    """At most what survives a power cut; ours, the limits, and the others."""
    group = 0 if line.who.startswith("stepwise") else 1 if line.who.startswith("raw") else 2
    return [*OURS, ""].index(line.survives), group


def name(who: str) -> str:
    """For people: "raw/sqlite-full" is the limit, "joblib/default" is joblib."""
    peer, _, variant = who.partition("/")
    if peer == "raw":
        return f"*limit: {variant}*"
    label = peer if variant == "default" else f"{peer} {variant}"
    return f"**{label}**" if peer == "stepwise" else label


def lines(report: Report, name_: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the lines of a workload's table."""
    figures = FIGURES[name_]
    whats = workloads(report, name_)[-1:]  # the largest size
    head = ("", "times ours", *(f.head for f in figures))
    found = []
    for what in whats:
        for line in measured(report, what):
            if line.who in _LEFT_OUT:
                continue
            ratio = f"**{line.ratio}**" if line.ratio else ""
            cells = (_figure(line, figure) for figure in figures)
            found.append((name(line.who), ratio, *cells))
    return head, found


def overview(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the lines of a table of all ratios to ours, which stands with its figures."""
    compared = {name_: first for name_, (first, *_) in FIGURES.items() if first.compared}
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    level: dict[str, Line] = {}
    of_peer: dict[str, str] = {}
    for name_, figure in compared.items():
        whats = workloads(report, name_)
        for line in measured(report, whats[-1]) if whats else ():
            peer = line.who.split("/")[0]
            if line.who in _LEFT_OUT or line.ratio is None:
                continue
            ratio = line.ratio.median
            told = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
            again = line.figures.get("ran_again")
            if again is not None and again.median:
                told += f" ({again.median:.0f} again)"
            if peer == "stepwise":
                told = f"{_figure(line, figure)} {_UNITS.get(figure.key, '')}".strip()
            if name_ == "w5":
                of_peer[peer] = told  # whichever of its variants was imported
            else:
                cells[line.who][name_] = told
                level.setdefault(line.who, line)
    head = ("", "survives", "flushes per step", *(_SHORT[name_] for name_ in compared))
    order = sorted(level, key=lambda who: (_rank(level[who]), who))
    for who in order:
        cells[who]["w5"] = of_peer.get(who.split("/")[0], "")
    ratios = [[cells[who].get(name_, "") for name_ in compared] for who in order]
    told_of = [(name(who), level[who].survives, _flushes(level[who])) for who in order]
    return head, [(*told, *row) for told, row in zip(told_of, ratios, strict=True)]


def _figure(line: Line, figure: Figure) -> str:
    """The median alone where a ratio, formed within each round, has its spread."""
    found = line.figures.get(figure.key)
    if found is None:
        return ""
    return str(Spread.of([found.median]) if line.ratio else found)


def _flushes(line: Line) -> str:
    return "" if line.flushes is None else f"{line.flushes:.2f}"


def skipped(report: Report) -> str:
    """Who could not run what, and why."""
    why: dict[tuple[str, str], list[str]] = defaultdict(list)
    for turn in report["turns"]:
        if turn["what"].startswith("flushes") and "skipped" in turn:
            continue  # counted for W1 only, which says the same
        if turn["who"] in _LEFT_OUT or turn["who"].startswith("raw"):
            continue
        for word in ("skipped", "failed"):
            if word in turn and "as the first" not in turn[word]:
                reason = " ".join(str(turn[word]).split())[:160]
                told = reason if word == "skipped" else f"failed: {reason}"
                why[turn["who"], told].append(turn["what"].split()[0].upper())
    return "\n".join(
        f"- {name(who)}, {', '.join(dict.fromkeys(whats))}: {told}"
        for (who, told), whats in why.items()
    )
