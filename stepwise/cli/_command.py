"""The command itself: entry point, help, shared options, lookup of runs, output."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

import stepwise
from stepwise import Run, StepRecord
from stepwise._display import words
from stepwise._display.render import usage_text
from stepwise._display.terminal import Below, Column, Terminal, Word
from stepwise._display.words import cached_text, duration_text, took_text
from stepwise._runs.messages import parsed_json
from stepwise._runs.paths import shown
from stepwise._runs.run import call_text as call_text
from stepwise._runs.run import each_listed
from stepwise._runs.run import find_run as find_run
from stepwise._runs.steps import StoppedCall, is_inner
from stepwise._runtime.messages import printable, shell_word

# -- display --------------------------------------------------------------------------------------


_AGAIN = 10  # steps whose reason is printed
_PART = 500  # items that are printed at once

STEP_COLUMNS = [
    Column("STEP", right=True),
    Column("CALL"),
    Column("STATUS", whole=True),
    Column("RESULT"),
    Column("TRIES", wide=True, right=True),
    Column("TIME", whole=True, right=True, least=len("999 ms")),
    Column("FROM", wide=True),
]


_answers: list[IO[str]] = []  # of commands in progress: more than one where one invokes another


def answer() -> IO[str]:
    """Return the stdout of the command, which holds nothing but its answer."""
    return _answers[-1] if _answers else sys.stdout


def descriptor_of(stream: IO[str]) -> int | None:
    """Return the number of a stream's file; ``None`` if it is closed, or in memory in a test."""
    try:
        return stream.fileno()
    except (AttributeError, OSError):  # Python has no stream in the place of a closed one
        return None


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Keep stdout for the answer: the user's code, and processes that it starts, print on stderr.

    A command imports the user's modules, by name or for the classes of recorded values.
    """
    printed = sys.stdout
    number = descriptor_of(printed)
    with contextlib.ExitStack() as ends:
        if number is None:
            out = printed
            ends.enter_context(contextlib.redirect_stdout(sys.stderr))
        else:
            printed.flush()
            private = os.dup(number)
            out = ends.enter_context(
                open(private, "w", encoding=printed.encoding, errors=printed.errors)
            )
            ends.callback(os.dup2, private, number)
            ends.callback(printed.flush)
            # A process that was started without stderr may have any file under its number.
            errors = sys.stderr or ends.enter_context(open(os.devnull, "w", encoding="utf-8"))
            os.dup2(errors.fileno(), number)
        _answers.append(out)
        ends.callback(_answers.pop)
        yield


def say(*parts: str, err: bool = False) -> None:
    """Print a text; the terminal interprets nothing in it but the colours of our own words.

    Most of the shown text was recorded: arguments, command lines, paths, errors.
    """
    stream = sys.stderr if err else answer()
    click.echo(Terminal.of(stream).line(*parts), stream)


def note(*parts: str) -> None:
    """Print a notice on stderr, so that stdout holds only the answer."""
    say(*parts, err=True)


def age(text: str) -> float:
    """Return the seconds of ``90s``, ``15m``, ``2h``, ``30d`` or ``4w``; a bare number is days."""
    seconds = words.seconds_in(text if text[-1:].isalpha() else f"{text}d")
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 2h, 30d or 4w")
    return seconds


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[Any] | Below]) -> None:
    """Print a table part by part."""
    for part in Terminal.of(answer()).table(columns, rows):
        click.echo(part, answer())


def show_variables(variables: Mapping[str, Any]) -> None:
    """Print a table of local variables."""
    rows = [[name, shown(value, name)] for name, value in variables.items()]
    show_table([Column("VARIABLE"), Column("VALUE")], rows)


# -- JSON ----------------------------------------------------------------------------------------


def echo_json(value: Any, file: IO[str] | None = None) -> None:
    """Print plain data as JSON, and the items of iterators in it one by one."""
    file = file or answer()
    _put(value, "", file)
    click.echo("", file=file)


def typed_json(text: str, hint: str) -> Any:
    """Parse JSON from the command line.

    Args:
        hint: the argument or option with the text.

    Raises:
        click.BadParameter: the text is not JSON; the message shows how to write it.
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


def _put(value: Any, indent: str, file: IO[str]) -> None:
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
    """Return how long ago a moment was."""
    return words.ago(time.time() - moment)


def run_facts(run: Run) -> dict[str, Any]:
    """Return the facts of a run for JSON, with its result and exception as text, if any.

    For a result that cannot be shown, the reason is given instead.
    """
    facts = run.to_dict()
    facts |= {"error": run._error_text() or facts["error"], "result": None}
    if run.status == "completed":
        try:
            facts["result"] = shown(run.result, "result")
        except stepwise.UnreadableValueError as problem:
            facts["result_unreadable"] = printable(str(problem))
    return facts


def step_row(step: StepRecord) -> list[Any]:
    """Return the row of a step in a table."""
    return [
        step.number,
        f"{step.name}({step.arguments})",
        Word(step.status),
        " · ".join(filter(None, (step.preview, usage_text(step.usage), cached_text(step)))),
        step.attempts,
        took(step),
        step.site,
    ]


def took(step: StepRecord) -> str:
    """Return how long a step took, or how long it has been in progress."""
    if step.status == "started":
        return f"{duration_text(max(0.0, time.time() - step.started_at - step.waited))} so far"
    return took_text(step)


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
        """Yield the steps, and note those that ran again."""
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
            say(f"  resolved: it is {act}, says {printable(stop.by)}; run the program again")
        for command, meaning in zip(stop.commands, stop.meanings, strict=True):
            say(f"  {command}    ({meaning})")


# -- command --------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])

_SECTIONS = ("Look", "Steer", "Settle", "Keep", "Check and learn")
_CHOSEN = "stepwise store"
_COMPLETED = 1000  # the largest number of ids offered to a shell

PROBLEMS = (stepwise.StepwiseError, stepwise.RunStopped, MemoryError)
"""The exceptions that are shown as messages, not tracebacks."""


class _Command(click.Command):
    """A command in a section of the list."""

    section: str
    answers = True

    def invoke(self, ctx: click.Context) -> Any:
        with _answering() if self.answers else contextlib.nullcontext():
            return super().invoke(ctx)


class _Main(click.Group):
    """The group of all commands, listed in sections."""

    command_class = _Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [each for each in self.commands.values() if isinstance(each, _Command)]
        width = max(len(each.name or "") for each in found)
        for section in _SECTIONS:
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (f"{each.name:<{width}}", each.get_short_help_str(70))
                        for each in found
                        if each.section == section
                    ]
                )


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="RUN is the id of a run, or its beginning.  stepwise COMMAND --help has examples.",
)
@click.version_option(stepwise.__version__, prog_name="stepwise")
def main() -> None:
    """Look at durable runs, steer them, and settle calls in doubt."""


def use_store(context: click.Context, _: click.Parameter, url: str | None) -> None:
    """Use a store for the command; the callback of an option."""
    if url is not None:
        stepwise.configure(store=url)
        context.meta[_CHOSEN] = url


def chosen_store() -> str | None:
    """Return the URL that ``--store`` gave this command."""
    url: str | None = click.get_current_context().meta.get(_CHOSEN)
    return url


def command(
    section: str, examples: str, name: str | None = None, *, answers: bool = True, **how: Any
) -> Callable[[F], Any]:
    """Make a function a command, with ``--json``, ``--store`` and examples in its help.

    Args:
        section: the part of the list in which the command appears.
        examples: one on each line, with an explanation after ``#``.
        answers: keep stdout for the answer; ``False`` where a library speaks over it.
    """

    def decorate(function: F) -> Any:
        made: Any = main.command(name, epilog=_epilog(examples), **how)(function)
        made.section, made.answers = section, answers
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="As JSON."),
            click.Option(
                ["--store"],
                metavar="URL",
                expose_value=False,
                is_eager=True,
                callback=use_store,
                help="disk:/path; by default STEPWISE_STORE, else ~/.stepwise.",
            ),
        ]
        return made

    return decorate


def _epilog(examples: str) -> str:
    """Return the end of a help text, formatted so that click keeps its lines."""
    lines = [each.partition("  # ") for each in examples.splitlines()]
    width = max(len(line) for line, _, _ in lines)
    shown = [f"  {line:<{width}}  # {why}" if why else f"  {line}" for line, _, why in lines]
    return "\n".join(["\b", "Examples:", *shown])


def _ids(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the runs whose id begins so, for completion in a shell."""
    try:
        return [
            CompletionItem(each.facts.run_id, help=f"{each.status} {call_text(each.facts)}")
            for each in itertools.islice(each_listed(prefix=begun), _COMPLETED)
            if (begun or not is_inner(each.facts)) and each.facts.run_id.isprintable()
        ]
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return []


def token_option(what: str) -> Callable[[F], F]:
    """Return the decorator for the option ``--token``, which gives ``token``.

    Args:
        what: what the token is, for the help.
    """

    def read(_: click.Context, __: click.Parameter, text: str) -> str:
        return sys.stdin.readline().strip() if text == "-" else text

    told = f"{what}, instead of a random one; - reads it from stdin."
    return click.option("--token", default="", metavar="TEXT", callback=read, help=told)


def run_argument(name: str = "run_id", metavar: str = "RUN", **how: Any) -> Callable[[F], F]:
    """Return the decorator for an argument that names a run."""
    return click.argument(name, metavar=metavar, shell_complete=_ids, **how)


def run() -> None:
    """Run the command line, and show errors of stepwise as messages, not tracebacks."""
    try:
        main(prog_name="stepwise")
    except PROBLEMS as problem:
        fail(problem)


def fail(problem: BaseException, code: int = 1) -> NoReturn:
    """Report a problem on stderr, and exit."""
    text = str(problem)
    if isinstance(problem, MemoryError):
        text = f"{text or 'memory ran out'}; give it more memory (ulimit -v)"
    say(f"stepwise: {text}", err=True)
    sys.exit(code)


def id_and_status(run: Run) -> dict[str, Any]:
    """Return the facts that the JSON of an answer begins with."""
    return {"id": run.id, "status": run.status}


def say_next(run: Run, *, waited_for: bool) -> None:
    """Print what happens with the sent message or answer.

    Args:
        waited_for: True if the run is suspended until it arrives.
    """
    status, owner = run.status, run.owner
    if owner is not None:
        note(f"process {owner.pid} on {owner.host} executes the run, and has it now")
        return
    if status in ("completed", "failed", "cancelled"):
        note(f"the run has {'been ' * (status == 'cancelled')}{status} since")
        return
    resume = f"stepwise resume {shell_word(run.id)}"
    if waited_for:
        note(
            f"it is {status}, and goes on when its program is started again, by itself where "
            f"stepwise up or a server has it: {resume}"
        )
    else:
        note(f"it is {status}: that is kept until it goes on and waits for it: {resume}")
