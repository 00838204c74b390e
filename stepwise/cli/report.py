"""Whole runs: the difference of two, and one as a page or as data."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TextIO

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise._display.terminal import Column, shown_value
from stepwise._runs.diff import first_step, first_variable
from stepwise._runs.page import html_page
from stepwise.cli._command import PROBLEMS, command, fail, find_run, run_argument
from stepwise.cli._display import (
    STEP_COLUMNS,
    echo_json,
    error_text,
    result_facts,
    say,
    show_table,
    step_row,
)
from stepwise.integrations._model_calls import model_calls

__all__: list[str] = []


@command(
    "Keep",
    "stepwise export trip-0573 -o run.html\nstepwise export trip-0573 --json > run.json\n"
    "stepwise export trip-0573 --format model-calls -o tests/run.json",
    short_help="Write a RUN as one HTML page, or as JSON.",
)
@run_argument()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "html", "model-calls"]),
    default="html",
    show_default=True,
    help="A page to look at, data, or the recorded model calls alone, for tests.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="The file to write; by default stdout.",
)
def export(run_id: str, *, form: str, output: str, as_json: bool) -> None:
    """Write all that is known of a RUN: as one HTML page that needs nothing else, or as JSON.

    The recorded model calls alone are a file for tests: stepwise.testing.recorded() answers the
    model calls of a program from it.

    A file is readable by its owner only, as the store is.
    """
    run = find_run(run_id)
    only_calls = model_calls(run) if form == "model-calls" else None
    if only_calls == []:
        fail(
            stepwise.ConfigurationError(
                f"run {run.id} has no recorded model calls: call stepwise.instrument() in the "
                "program, and run it again"
            )
        )
    page = html_page(run) if form == "html" and not as_json else ""  # before a file is opened
    out: Any = click.open_file("-", "w", "utf-8") if output == "-" else _private(output)
    with out as file:
        if page:
            click.echo(page, file=file, nl=False)
        elif only_calls is not None:
            echo_json({"model_calls": only_calls}, file)
        else:
            _write_json(run, file)


@contextlib.contextmanager
def _private(path: str) -> Iterator[TextIO]:
    """Open a file for writing that only its owner can read, whatever its mode was."""
    try:
        with open(path, "w", encoding="utf-8", opener=_open_private) as file:
            yield file
    except OSError as error:
        raise click.FileError(path, error.strerror or str(error)) from error


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not a pipe, nor /dev/null
            os.fchmod(descriptor, 0o600)  # before anything is in it
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write_json(run: Run, file: TextIO) -> None:
    facts = run.to_dict()
    facts |= {
        "error": error_text(run) or facts["error"],
        **result_facts(run),
        "steps": (step.to_dict() for step in run._each_step(run._seen(1))),
        "checkpoints": [each.to_dict() for each in run.checkpoints],
        "inbox": [each.to_dict() for each in run.inbox],
        "locals": _variables(run),
        "model_calls": model_calls(run),
    }
    echo_json(facts, file)


def _variables(run: Run) -> dict[str, str]:
    """The variables at the newest checkpoint as text; empty if they cannot be shown."""
    try:
        return {name: shown_value(value) for name, value in run._shown_locals().items()}
    except (stepwise.StepNotFoundError, stepwise.UnreadableValueError):
        return {}


# -- where two runs part -------------------------------------------------------------------------


@command(
    "Look",
    "stepwise diff trip-0573 three\nstepwise diff trip-0573 three --json | jq .variable",
    short_help="Show where two runs part.",
)
@run_argument("one", "RUN_A")
@run_argument("other", "RUN_B")
def diff(one: str, other: str, *, as_json: bool) -> None:
    """Show the first step and the first variable in which two runs differ.

    The exit code is 0 if they do not, 1 if they do, and 2 if that cannot be told.
    """
    try:
        runs = find_run(one), find_run(other)
        step, variable = first_step(*runs), first_variable(*runs)
    except PROBLEMS as problem:
        fail(problem, code=2)
    if as_json:
        echo_json(
            {
                "runs": [run.id for run in runs],
                "step": step.to_dict() if step is not None else None,
                "variable": asdict(variable) if variable is not None else None,
            }
        )
    elif step is None and variable is None:
        say("the runs do not differ")
    if not as_json and step is not None:
        say(f"step {step.number} is the first that differs, in its {step.what}:")
        show_table(
            [Column("RUN"), *STEP_COLUMNS[1:4], Column("TIME", wide=True)],
            [[f"  {run.id}", *_cells(each)] for run, each in zip(runs, step.steps, strict=True)],
        )
    if not as_json and variable is not None:
        say(
            f"{chr(10) if step is not None else ''}variable {variable.name} is the first that "
            f"differs, at {variable.position} after step {variable.step}:"
        )
        values = zip(runs, variable.values, strict=True)
        show_table(
            [Column("RUN"), Column("VALUE")], [[f"  {run.id}", value] for run, value in values]
        )
    sys.exit(int(step is not None or variable is not None))


def _cells(step: StepRecord | None) -> list[Any]:
    if step is None:
        return ["(has no such step)", "", "", ""]
    row = step_row(step)
    return [*row[1:4], row[5]]
