"""Output of the commands: lines, tables and JSON on stdout, notices on stderr."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise._display import terminal
from stepwise._display.render import duration_text, printable, shell_word, usage_text
from stepwise._display.terminal import Below, Column, Terminal, Word, shown_value
from stepwise._runs.stops import StoppedCall

__all__ = [
    "STEP_COLUMNS",
    "RanAgain",
    "age",
    "ago",
    "call_text",
    "echo_json",
    "error_text",
    "note",
    "owned_by",
    "parsed_json",
    "result_facts",
    "say",
    "show_in_doubt",
    "show_stops",
    "show_table",
    "show_variables",
    "step_row",
    "typed_json",
]

_AGAIN = 10  # steps whose reason is printed
_PART = 500  # items that are printed at once
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

STEP_COLUMNS = [
    Column("STEP", right=True),
    Column("CALL"),
    Column("STATUS", whole=True),
    Column("RESULT"),
    Column("TRIES", wide=True, right=True),
    Column("TIME", whole=True, right=True),
    Column("FROM", wide=True),
]


def say(*parts: str, err: bool = False) -> None:
    """Print a text; a terminal obeys nothing in it but the colours of our own words.

    Most of what is shown was recorded: arguments, command lines, paths, errors.
    """
    click.echo(Terminal.of(sys.stderr if err else sys.stdout).line(*parts), err=err)


def note(*parts: str) -> None:
    """Print a notice on stderr, where it is in nobody's way."""
    say(*parts, err=True)


def age(text: str) -> float:
    """``90s``, ``15m``, ``2h``, ``30d`` or ``4w`` in seconds; a bare number is days."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 2h, 30d or 4w")
    return float(match[1]) * _UNITS[match[2] or "d"]


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[Any] | Below]) -> None:
    """Print a table part by part."""
    for part in Terminal.of(sys.stdout).table(columns, rows):
        click.echo(part)


def show_variables(variables: Mapping[str, Any]) -> None:
    """Print a table of local variables."""
    rows = [[name, shown_value(value)] for name, value in variables.items()]
    show_table([Column("VARIABLE"), Column("VALUE")], rows)


# -- JSON ----------------------------------------------------------------------------------------


def echo_json(value: Any, file: Any = None) -> None:
    """Print plain data as JSON; the items of iterators in it one by one."""
    _put(value, "", file)
    click.echo("", file=file)


def parsed_json(text: str) -> Any:
    """Parse JSON that somebody typed.

    Raises:
        ValueError: the text is not JSON; ``NaN`` and numbers beyond a float are not, either.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def typed_json(text: str, hint: str) -> Any:
    """Parse JSON of the command line.

    Args:
        hint: where it stands there.

    Raises:
        click.BadParameter: the text is not JSON; shows how to write it.
    """
    try:
        return parsed_json(text)
    except ValueError as error:
        # The likeliest mistake is a bare word, since the shell removes its quotes.
        word = text if re.fullmatch(r"[\w .@:/-]{1,100}", text) else "text"
        raise click.BadParameter(
            f"{printable(text, 200)!r} is not JSON ({error}). Write it as JSON, in quotes for the "
            f"shell: '\"{word}\"', 42, null, '{{\"id\": 1}}'",
            param_hint=hint,
        ) from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number


def _put(value: Any, indent: str, file: Any) -> None:
    inner = f"{indent}  "
    if isinstance(value, Iterator):
        before = "["
        while part := [*itertools.islice(value, _PART)]:
            text = ",".join(f"\n{inner}{_json(each, inner)}" for each in part)
            click.echo(f"{before}{text}", file=file, nl=False)
            before = ","
        click.echo("[]" if before == "[" else f"\n{indent}]", file=file, nl=False)
    elif isinstance(value, dict) and any(isinstance(each, Iterator) for each in value.values()):
        before = "{"
        for name, each in value.items():
            click.echo(f"{before}\n{inner}{json.dumps(name)}: ", file=file, nl=False)
            _put(each, inner, file)
            before = ","
        click.echo(f"\n{indent}}}", file=file, nl=False)
    else:
        click.echo(_json(value, indent), file=file, nl=False)


def _json(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2).replace("\n", f"\n{indent}")


# -- texts ---------------------------------------------------------------------------------------


def ago(moment: float) -> str:
    """Return how long ago a time is."""
    return terminal.ago(time.time() - moment)


def call_text(run: Any) -> str:
    """``label(arguments)``."""
    return printable(f"{run.label}({run.arguments})", 500)


def error_text(run: Run) -> str | None:
    """Return the text of a run's exception, even if its ``__str__`` fails."""
    error = run.error
    if error is None:
        return None
    name = type(error).__name__
    try:
        return printable(f"{name}: {error}")
    except Exception as problem:
        return f"{name} (its text cannot be shown: {type(problem).__name__})"


def result_facts(run: Run) -> dict[str, str | None]:
    """Return the result of a completed run as text, or why there is none to show."""
    if run.status != "completed":
        return {"result": None}
    try:
        return {"result": shown_value(run.result)}
    except stepwise.UnreadableValueError as problem:
        return {"result": None, "result_unreadable": printable(str(problem))}


def owned_by(run: Run) -> str:
    """Describe the process that executes a run; return an empty text if it has no owner."""
    owner = run.owner
    return f"  by process {owner.pid} on {owner.host}" if owner is not None else ""


def step_row(step: StepRecord) -> list[Any]:
    """A step in a table."""
    return [
        step.number,
        f"{step.name}({step.arguments})",
        Word(step.status),
        " · ".join(filter(None, (step.preview, usage_text(step.usage)))),
        step.attempts,
        duration_text(step.duration),
        step.site,
    ]


def show_in_doubt(run: Run, steps: Sequence[StepRecord]) -> None:
    """Print how to settle the steps in doubt."""
    for step in steps:
        if step.status == "in_doubt":
            say(
                f"\nstep {step.number} is in doubt. Find out whether it happened (key "
                f"{step.idempotency_key}), then:\n"
                f"  stepwise resolve {shell_word(run.id)} {step.number} --landed JSON | "
                "--did-not-happen"
            )


class RanAgain:
    """The known reasons why recorded steps did not answer calls of their name."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_AGAIN)
        self._count = 0

    def noting(self, steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """Pass steps on, and note the steps that ran again."""
        for step in steps:
            if step.why:
                self._lines.append(f"step {step.number} {printable(step.why, 1000)}")
                self._count += 1
            yield step

    def show(self) -> None:
        """Print the reasons for the newest steps."""
        if self._lines:
            say()
        for line in self._lines:
            say(line)
        if self._count > len(self._lines):
            say(f"and {self._count - len(self._lines)} earlier steps")


def show_stops(stops: Iterable[StoppedCall]) -> None:
    """Print the calls at which a run stopped, and the commands that answer them."""
    for stop in stops:
        say(
            f"\nstopped at {printable(f'{stop.name}({stop.arguments})', 1000)}"
            f"{f' at {stop.site}' if stop.site else ''}, which could be a recorded side effect "
            f"(stop {stop.stop}):"
        )
        for step in stop.could_be:
            call = printable(f"{step.name}({step.arguments})", 1000)
            say(f"  step {step.number}  {call}{f'  differs: {step.why}' if step.why else ''}")
        if stop.said is not None:
            act = f"step {stop.step}" if stop.said == "same" else "another act"
            say(f"  resolved: it is {act}; run the program again")
        for command, meaning in zip(stop.commands, stop.meanings, strict=True):
            say(f"  {command}    ({meaning})")
