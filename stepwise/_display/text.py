"""Runs as text: what a Python prompt and IPython in a terminal show."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from stepwise._display import render
from stepwise._display.render import RunShown, duration_text
from stepwise._display.terminal import Column, Terminal, line_of, when

__all__ = ["run_text", "runs_text"]

_RUNS = [Column("RUN"), Column("STATUS", whole=True), Column("UPDATED", whole=True), Column("CALL")]
_STEPS = [
    Column("STEP", right=True),
    Column("CALL"),
    Column("STATUS", whole=True),
    Column("TIME", whole=True),
    Column("RESULT"),
]


def _terminal() -> Terminal:
    return Terminal(shutil.get_terminal_size((120, 24)).columns)


def run_text(run: RunShown) -> str:
    """A run and its steps, in lines."""
    attempt, spent = (
        run.attempt and f"last attempt: {run.attempt}",
        run.spent and f"spent {run.spent}",
    )
    told = "; ".join(filter(None, (attempt, spent, run.gaps)))
    lines = [
        f"{line_of(run.call, 200)}: {run.status}{f', {run.owner}' if run.owner else ''}",
        f"  run {run.id}, begun {when(run.created_at)}; steps: {run.counts}",
        *([f"  {told}"] if told else []),
    ]
    lines += [f"  waits {line_of(each, 200)}" for each in run.waits]
    if run.error:
        what = "stopped by" if run.status == "interrupted" else "error"
        lines.append(f"  {what} {line_of(run.error, 200)}")
    if run.damage:
        lines.append(f"  {run.damage}")
    rows = [
        [
            each.number,
            f"{each.name}({each.arguments})",
            render._did(each, run),
            duration_text(each.duration),
            each.preview,
        ]
        for each in run.steps
    ]
    if run.earlier and rows:
        rows.insert(0, ["...", f"{run.earlier:,} earlier steps", "", "", ""])
    return "\n".join([*lines, *_terminal().table(_STEPS, rows)])


def runs_text(runs: Iterable[RunShown], more: int = 0) -> str:
    """Runs, one a line."""
    rows = [[each.id, each.status, when(each.updated_at), each.call] for each in runs]
    if not rows:
        return "no runs"
    lines = _terminal().table(_RUNS, rows)
    return "\n".join([*lines, f"and {more} more"] if more else lines)
