"""Output: tables, colours, times; recorded text is made printable."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
from tabulate import tabulate

from stepwise import Run, StepRecord
from stepwise._calls.doubt import ruling_commands
from stepwise._display.render import duration_text, printable
from stepwise._identity.parts import shown_part
from stepwise._journal.projection import Stop
from stepwise._journal.records import Call, RunFacts
from stepwise._matching.rulings import differing

__all__ = [
    "MadeAnew",
    "age",
    "ago",
    "call_text",
    "coloured",
    "echo_json",
    "error_text",
    "owned_by",
    "say",
    "shorten",
    "shown_value",
    "step_row",
    "store_url",
    "table",
    "tell_in_doubt",
    "tell_stops",
    "when",
]

_MADE_ANEW = 10  # steps whose reason is printed
_PART = 500  # rows that are printed at once
_NARROWEST, _WIDEST = 12, 1000  # characters in a cell
_NARROW = 100  # columns of a terminal
_COLOURS = {
    "completed": "green",
    "verified": "green",
    "running": "cyan",
    "started": "cyan",
    "ready": "cyan",
    "failed": "red",
    "crashed": "red",
    "in_doubt": "yellow",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class _Styled(str):
    """Text whose control characters are ours."""

    __slots__ = ()


def say(text: str = "", *, err: bool = False) -> None:
    """Print text; a terminal obeys only the colours of our own words in it.

    Most of what is shown was recorded: arguments, command lines, paths, errors.
    """
    parts = _OURS.split(text)
    click.echo(
        "".join(p if n % 2 else printable(p, sys.maxsize) for n, p in enumerate(parts)), err=err
    )


def coloured(word: str) -> str:
    """A status or a finding in its colour."""
    if "NO_COLOR" in os.environ or word not in _COLOURS:
        return word
    return _Styled(click.style(word, fg=_COLOURS[word]))


_OURS = re.compile(f"({'|'.join(re.escape(click.style(w, fg=c)) for w, c in _COLOURS.items())})")


def age(text: str) -> float:
    """``90s``, ``15m``, ``2h``, ``30d`` or ``4w`` in seconds; a bare number is days."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 2h, 30d or 4w")
    return float(match[1]) * _UNITS[match[2] or "d"]


def table(rows: Iterable[list[Any]], headers: list[str], less: Sequence[str] = ()) -> None:
    """Print a table; on a terminal it fits, but for its first column, which names things.

    A long one is printed part by part; a column becomes wider where a part needs that.

    Args:
        less: the columns that a narrow terminal does not get.
    """
    waiting = iter(rows)
    places = [*range(len(headers))]
    if less and sys.stdout.isatty() and shutil.get_terminal_size().columns < _NARROW:
        places = [n for n, name in enumerate(headers) if name not in less]
    above, widths = [headers[n] for n in places], list[int]()
    while part := [[row[n] for n in places] for row in itertools.islice(waiting, _PART)]:
        cells = _cells(part, above)
        if widths:  # a hundred thousand rows take tabulate too long
            before = [" " * width for width in widths]
            widths = [max(map(_width, column)) for column in zip(before, *cells, strict=True)]
            click.echo("\n".join(_line(row, widths) for row in cells))
        else:
            click.echo(tabulate(cells, above, tablefmt="plain", disable_numparse=True))
            headed = [each + "  " for each in above]  # tabulate pads them
            widths = [max(map(_width, column)) for column in zip(headed, *cells, strict=True)]


def _line(cells: list[str], widths: list[int]) -> str:
    """A row of a table whose columns are so wide."""
    padded = [cell + " " * (n - _width(cell)) for cell, n in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _width(cell: str) -> int:
    return len(click.unstyle(cell) if "\x1b" in cell else cell)


def _cells(rows: list[list[Any]], headers: list[str]) -> list[list[str]]:
    # A pipe gets whole cells, so that searches find everything.
    cells = [[shorten(cell, _WIDEST) for cell in row] for row in rows]
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lengths = [[_width(cell) for cell in row] for row in cells]
        limit = _limit([[len(each) + 2 for each in headers], *lengths], width)  # tabulate pads them
        cells = [[row[0], *(shorten(cell, limit) for cell in row[1:])] for row in cells]
    return cells


def echo_json(facts: Mapping[str, Any], file: Any = None) -> None:
    """Print facts as JSON, the items of an iterator one by one."""
    before = "{"
    for name, value in facts.items():
        click.echo(f"{before}\n  {json.dumps(name)}: ", file=file, nl=False)
        if isinstance(value, Iterator):
            _echo_items(value, file)
        else:
            click.echo(_indented(value, 2), file=file, nl=False)
        before = ","
    click.echo("\n}", file=file)


def _echo_items(items: Iterator[Any], file: Any) -> None:
    before = "["
    while part := [*itertools.islice(items, _PART)]:
        text = ",".join(f"\n    {_indented(each, 4)}" for each in part)
        click.echo(f"{before}{text}", file=file, nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n  ]", file=file, nl=False)


def _indented(value: Any, by: int) -> str:
    return json.dumps(value, indent=2).replace("\n", "\n" + " " * by)


def _limit(lengths: list[list[int]], width: int) -> int:
    """Return the cell length at which a table fits the width."""
    first, *others = (max(column) for column in zip(*lengths, strict=True))
    room = width - first - 2 * len(others)
    limits = range(_NARROWEST, _WIDEST)
    return next(
        (n for n in reversed(limits) if sum(min(n, each) for each in others) <= room), _NARROWEST
    )


def shorten(cell: Any, limit: int) -> str:
    """Return one line of limited length, without characters that a terminal obeys."""
    if isinstance(cell, _Styled):
        return cell
    text = printable(" ".join(str(cell)[: 4 * limit].split("\n")), 4 * limit)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def step_row(step: StepRecord) -> list[Any]:
    """A step in a table."""
    return [
        step.number,
        f"{step.name}({step.arguments})",
        coloured(step.status),
        step.preview,
        step.attempts,
        duration_text(step.duration),
        step.site,
    ]


def shown_value(value: object, limit: int = 100_000) -> str:
    """``repr(value)``, whatever that raises or holds."""
    try:
        return printable(repr(value), limit)
    except Exception as error:
        return f"<{type(value).__qualname__}: {type(error).__name__} in repr>"


def call_text(run: Run | RunFacts) -> str:
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


def owned_by(run: Run) -> str:
    """Describe the process that executes a run; return an empty text if it has no owner."""
    owner = run.owner
    return f"  by process {owner.pid} on {owner.host}" if owner is not None else ""


def tell_in_doubt(run: Run, steps: Sequence[StepRecord]) -> None:
    """Print how to settle the steps in doubt."""
    for step in steps:
        if step.status == "in_doubt":
            say(
                f"\nstep {step.number} is in doubt. Find out whether it happened (key "
                f"{step.idempotency_key}), then:\n"
                f"  stepwise resolve {run.id} {step.number} --landed JSON | --did-not-happen"
            )


class MadeAnew:
    """The known reasons why recorded steps did not answer calls of their name."""

    def __init__(self) -> None:
        self._told: deque[str] = deque(maxlen=_MADE_ANEW)
        self._count = 0

    def noting(self, steps: Iterable[StepRecord]) -> Iterator[StepRecord]:
        """Pass steps on, and note the steps that ran again."""
        for step in steps:
            if step.instead:
                names = " and ".join(map(shown_part, step.differs)) or "its arguments"
                verb = "differ" if len(step.differs) > 1 else "differs"
                text = f"{step.name} ran, since {names} {verb} from step {step.instead}"
                self._told.append(f"step {step.number} {printable(text, 1000)}")
                self._count += 1
            yield step

    def tell(self) -> None:
        """Print the reasons for the newest steps."""
        if self._told:
            say()
        for line in self._told:
            say(line)
        if self._count > len(self._told):
            say(f"and {self._count - len(self._told)} earlier steps")


def tell_stops(run: Run, stops: Iterable[tuple[Stop, list[Call]]]) -> None:
    """Print the calls at which a run stopped, and the commands that answer them."""
    known = list(stops)
    for stop, others in known:
        call = stop.call
        say(
            f"\nstopped at {printable(f'{call.name}({call.arguments})', 1000)}"
            f"{f' at {call.site}' if call.site else ''}, which could be a recorded side effect "
            f"(stop {stop.number}):"
        )
        for other in others:
            told = printable(f"{other.name}({other.arguments})", 1000)
            differs = ", ".join(map(shown_part, differing(call, other)))
            say(f"  step {other.number}  {told}{f'  differs: {differs}' if differs else ''}")
        if stop.ruled is not None:
            act = f"step {stop.ruled.steps[0]}" if stop.ruled.same else "another act"
            say(f"  resolved: it is {act}; run the program again")
            continue
        for line in ruling_commands(run.id, stop, [each for each, _ in known]):
            say(line)


def store_url() -> str:
    """Return the store of this command."""
    from stepwise._runtime import settings

    return str(settings.store())


def when(moment: float) -> str:
    """A local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def ago(moment: float) -> str:
    """Return how long ago a time is."""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
