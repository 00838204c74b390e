"""How it looks: tables, colours, times."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import click
from tabulate import tabulate

from stepwise import Run, StepRecord

__all__ = [
    "ago",
    "coloured",
    "duration",
    "owned_by",
    "shorten",
    "store_url",
    "table",
    "tell_in_doubt",
    "when",
]

_STATUS_COLOURS = {
    "completed": "green",
    "verified": "green",
    "running": "cyan",
    "started": "cyan",
    "failed": "red",
    "crashed": "red",
    "in_doubt": "yellow",
    "cancelled": "yellow",
}


def table(rows: list[list[Any]], headers: list[str]) -> None:
    # A pipe gets whole cells: who searches them wants to find things.
    limit = max(24, shutil.get_terminal_size().columns // 3) if sys.stdout.isatty() else 1000
    shortened = [[shorten(cell, limit) for cell in row] for row in rows]
    click.echo(tabulate(shortened, headers, tablefmt="plain", disable_numparse=True))


def shorten(cell: Any, limit: int) -> str:
    text = " ".join(str(cell).splitlines())
    plain = click.unstyle(text)
    return text if len(plain) <= limit else plain[: limit - 3] + "..."


def coloured(status: str) -> str:
    if "NO_COLOR" in os.environ:
        return status
    return click.style(status, fg=_STATUS_COLOURS.get(status))


def owned_by(run: Run) -> str:
    owner = run.owner
    return f"  by process {owner.pid} on {owner.host}" if owner is not None else ""


def tell_in_doubt(run: Run, steps: list[StepRecord]) -> None:
    for step in steps:
        if step.status == "in_doubt":
            click.echo(
                f"\nstep {step.number} is in doubt. Look outside whether it happened (key "
                f"{step.idempotency_key}), then:\n"
                f"  stepwise resolve {run.id} {step.number} --landed JSON | --did-not-happen"
            )


def store_url() -> str:
    from stepwise import _config

    return str(_config.store())


def when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
