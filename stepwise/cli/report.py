"""Whole runs: the difference of two, and one as a page or as data."""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise._display.render import duration_text, facts_html, printable, run_html
from stepwise.cli._command import as_json_option, find_run, main, run_argument, store_option
from stepwise.cli._display import echo_json, error_text, say, shown_value
from stepwise.cli.look import run_facts, step_facts

__all__: list[str] = []

_STEPS = 1000  # the newest ones, on a page

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em;
padding: 0 1em }}</style>
{parts}
</html>
"""


@main.command(short_help="Write a RUN as one HTML page, or as JSON.")
@run_argument()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "html"]),
    default="html",
    show_default=True,
    help="A page to look at, or data.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="The file to write; by default stdout.",
)
@store_option
def export(run_id: str, *, form: str, output: str) -> None:
    """Write all that is known of a RUN: as one HTML page that needs nothing else, or as JSON.

    A file is readable by its owner only, as the store is.
    """
    run = find_run(run_id)
    out: Any = click.open_file("-", "w", "utf-8") if output == "-" else _private(output)
    with out as file:
        _export(run, form, file)


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


def _export(run: Run, form: str, file: TextIO) -> None:
    variables, problem = _variables(run)
    if form == "json":
        facts = {
            **run_facts(run),
            "error": error_text(run),
            "steps": map(step_facts, run._each_step(run._seen(1))),
            "checkpoints": [
                {name: getattr(each, name) for name in each.__slots__} for each in run.checkpoints
            ],
            "locals": variables,
        }
        echo_json(facts, file)
        return
    shown = run._shown(run._seen(_STEPS))
    parts = [run_html(shown)]
    if variables or problem:
        title = f"local variables: {problem}" if problem else "local variables"
        parts.append(facts_html(title, variables))
    page = _PAGE.format(title=html.escape(f"{shown.call} {shown.status}"), parts="\n".join(parts))
    click.echo(page.encode("utf-8", "replace").decode(), file=file, nl=False)


def _variables(run: Run) -> tuple[dict[str, str], str]:
    """The variables at the newest checkpoint as text, or why they cannot be shown."""
    try:
        return {name: shown_value(value) for name, value in run._shown_locals().items()}, ""
    except stepwise.StepNotFoundError:
        return {}, ""
    except stepwise.UnreadableValueError as error:
        return {}, str(error)


# -- where two runs part -------------------------------------------------------------------------


@main.command(short_help="Show where two runs part.")
@run_argument("one", "RUN_A")
@run_argument("other", "RUN_B")
@as_json_option
@store_option
def diff(one: str, other: str, *, as_json: bool) -> None:
    """Show the first step and the first variable in which two runs differ.

    The exit code is 0 if they do not, and 1 if they do.
    """
    runs = find_run(one), find_run(other)
    step = _first_step(*runs)
    variable = _first_variable(*runs)
    if as_json:
        say(json.dumps({"step": step, "variable": variable}, indent=2))
    elif step is None and variable is None:
        say("the runs do not differ")
    if not as_json and step is not None:
        say(f"step {step['number']} is the first that differs, in its {step['what']}:")
        for run, told in zip(runs, step["runs"], strict=True):
            say(f"  {run.id}  {told}")
    if not as_json and variable is not None:
        say(
            f"variable {variable['name']} is the first that differs, "
            f"at {variable['at']} after step {variable['step']}:"
        )
        for run, told in zip(runs, variable["runs"], strict=True):
            say(f"  {run.id}  {told}")
    sys.exit(int(step is not None or variable is not None))


def _first_step(one: Run, other: Run) -> dict[str, Any] | None:
    for number, pair in enumerate(itertools.zip_longest(one.steps, other.steps), 1):
        what = _difference(*pair)
        if what:
            return {"number": number, "what": what, "runs": [_told(each) for each in pair]}
    return None


def _difference(one: StepRecord | None, other: StepRecord | None) -> str:
    if one is None or other is None:
        return "presence"
    for name in ("name", "arguments", "status", "preview"):
        if getattr(one, name) != getattr(other, name):
            return "result" if name == "preview" else name
    if one._entry.payload == other._entry.payload or one.status != "completed":
        return ""
    return "" if _equal(_result(one), _result(other)) else "result"


def _result(step: StepRecord) -> Any:
    try:
        return step.result
    except stepwise.UnreadableValueError:
        return step.preview


def _told(step: StepRecord | None) -> str:
    if step is None:
        return "(has no such step)"
    took = duration_text(step.duration)
    return f"{step.name}({step.arguments})  {step.status}  {printable(step.preview, 300)}  {took}"


def _first_variable(one: Run, other: Run) -> dict[str, Any] | None:
    places = [
        {each.step: each for each in run.checkpoints if each.verified} for run in (one, other)
    ]
    for step in sorted(places[0].keys() & places[1].keys()):
        variables = one._shown_locals(step), other._shown_locals(step)
        names = dict.fromkeys((*variables[0], *variables[1]))
        for name in names:
            pair = [each.get(name, _MISSING) for each in variables]
            if not _equal(*pair):
                told = [shown_value(value, 1000) for value in pair]
                at = places[0][step].position
                return {"name": name, "step": step, "at": at, "runs": told}
    return None


_ATOMS = (str, bytes, int, float, bool, type(None))


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


_MISSING = _Missing()


def _equal(one: Any, other: Any) -> bool:
    if _class_name(one) != _class_name(other):
        return _says_equal(one, other)
    if type(one) in _ATOMS:
        return bool(one == other) or repr(one) == repr(other)  # NaN is what it was
    # Objects without their own equality, and containers of them, are compared by their text.
    return _says_equal(one, other) or _text(one) == _text(other)


def _class_name(value: object) -> tuple[str, str]:
    """Compare classes by name, since placeholders for missing classes are made at each load."""
    return type(value).__module__, type(value).__qualname__


def _says_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, or somebody's __eq__
        return False


def _text(value: Any) -> str:
    """Return the text of a value, without memory addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shown_value(value, 1 << 40))
