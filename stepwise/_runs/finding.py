"""Runs by the beginning of their ids, and the runs with side effects in doubt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from stepwise._display.terminal import elided, line_of
from stepwise._display.words import ago
from stepwise._runs.maintenance import store_url
from stepwise._runs.overview import Overview
from stepwise._runs.run import Run, each_listed, get_run, known_run, listed
from stepwise._runs.steps import UNFINISHED, StepRecord, is_inner
from stepwise._runtime import settings
from stepwise._runtime.messages import printable, shell_word
from stepwise.errors import RunNotFoundError, StepNotFoundError
from stepwise.stores import open_store


def call_text(run: Any) -> str:
    """Return the call of a run as ``label(arguments)``."""
    return printable(f"{run.label}({run.arguments})", 500)


def find_run(run_id: str | None) -> Run:
    """Return the run with that id, or the only run whose id begins with it.

    A child run is returned only if no other run matches.

    Without an id, return the latest run.
    """
    if run_id is None:
        latest = next((each for each in each_listed() if not is_inner(each.facts)), None)
        if latest is None:
            raise RunNotFoundError(f"no runs in {store_url()}", run_id="")
        return latest.run
    run = known_run(open_store(settings.store()), run_id)
    if run is not None:
        return run
    begun = [*each_listed(prefix=run_id)] if run_id else []
    found = [each for each in begun if not is_inner(each.facts)] or begun
    if not found:
        return get_run(run_id)  # its error names runs with a similar id
    if len(found) == 1:
        return found[0].run
    calls = [line_of(call_text(each.facts), 1000) for each in found[:8]]
    lines = "\n".join(
        f"  {each.run.id}  {each.status}  {ago(time.time() - each.facts.updated_at)}  "
        f"{elided(call, 60, calls, every=True)}"
        for each, call in zip(found, calls, strict=False)
    )
    more = f"\n  and {len(found) - 8} more: stepwise runs" if len(found) > 8 else ""
    raise RunNotFoundError(
        f"{len(found)} runs begin with {run_id!r}; write more of the id:\n{lines}{more}",
        run_id=run_id,
    )


def find_step(run: Run, number: int) -> StepRecord:
    """Return a step by its number.

    Raises:
        StepNotFoundError: the run has no such step.
    """
    for step in run._each_step(run._seen(1)):
        if step.number == number:
            return step
    run._facts()  # raises if it was deleted meanwhile
    raise StepNotFoundError(
        f"run {run.id!r} has no step {number}. Its steps: stepwise show {shell_word(run.id)}",
        run_id=run.id,
        step=number,
    )


def unsettled() -> Iterator[tuple[Run, Overview]]:
    """Yield the runs with steps in doubt or stopped calls, each with its overview."""
    for each in listed():
        with suppress(RunNotFoundError):  # deleted meanwhile
            seen = each.run._seen(1) if each.status in UNFINISHED else None
            if seen is not None and (seen.in_doubt or seen.stops):
                yield each.run, seen
