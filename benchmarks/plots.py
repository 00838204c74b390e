"""The plots of the page: bars on a logarithmic scale, readable on light and on dark.

Who survives the same stands together, since only these can be compared.
"""

from __future__ import annotations

import pathlib
from typing import Any

import comparison
import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

Report = dict[str, Any]

_GREY = "#7d8590"  # legible on white and on black
_COLOURS = {"stepwise": "#2da44e", "raw": _GREY}
_OTHERS = "#4c8dd6"
_TITLES = {
    "w1": "W1: a step, us",
    "w2": "W2: from the start of a process to the first new step, ms",
    "w3": "W3: bytes on disk over the messages' own",
    "w4": "W4: saving one large result, ms",
    "w6": "W6: 200 concurrent async steps of 10 ms, ms",
    "w10": "W10: from the start of a process to the statement after a wait, ms",
}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small files
    "svg.hashsalt": "stepwise",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


_GROUPS = {  # from below; what survives: what stands above the group
    "killed process": "a step survives a killed process",
    "power cut, later": "a step survives a power cut some time after it has returned",
    "power cut": "a step survives a power cut",
}


def _grouped(lines: list[comparison.Line], key: str) -> list[comparison.Line | str]:
    """From below: of each group its lines, the slowest first, and its heading."""
    places: list[comparison.Line | str] = []
    for survives, heading in _GROUPS.items():
        group = [line for line in lines if line.survives == survives]
        places += sorted(group, key=lambda line: -line.figures[key].median)
        places += [heading] * bool(group)
    return places


def _bars(title: str, lines: list[comparison.Line], key: str, path: pathlib.Path) -> None:
    places = _grouped(lines, key)
    labels = [
        "" if isinstance(each, str) else comparison.name(each.who).strip("*") for each in places
    ]
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7, 0.6 + 0.24 * len(places)))
        for place, line in enumerate(places):
            if isinstance(line, str):
                across = axes.get_yaxis_transform()
                axes.text(0.01, place, line, style="italic", va="center", transform=across)
                continue
            median, low, high = line.figures[key]
            colour = _COLOURS.get(line.who.split("/")[0], _OTHERS)
            axes.barh(place, median, color=colour, height=0.7)
            axes.plot([low, high], [place, place], color=_GREY, linewidth=1)
            axes.annotate(
                f"{median:,.3g}" if median < 100 else f"{median:,.0f}",
                (max(median, high), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(range(len(places)), labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.8, len(places))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xmargin(0.12)
        axes.set_title(title, fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


def draw(reports: dict[str, Report], folder: pathlib.Path) -> list[pathlib.Path]:
    """A plot for each workload that the peers were measured with; the files."""
    versus = reports.get("versus", {"turns": []})
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in _TITLES.items():
        whats = comparison.workloads(versus, name)
        lines = comparison.measured(versus, whats[-1]) if whats else []
        lines = [line for line in lines if not line.who.endswith("-100")]  # they are in the table
        if lines:
            paths.append(folder / f"{name}.svg")
            _bars(title, lines, comparison.FIGURES[name][0].key, paths[-1])
    return paths
