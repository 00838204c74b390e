"""The command itself: its entry point, its help, shared options, and the search for a run."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

import stepwise
from stepwise import Run
from stepwise._display.terminal import line_of
from stepwise._runs.listing import each_listed
from stepwise.cli._display import ago, call_text, say

__all__ = [
    "PROBLEMS",
    "chosen_store",
    "command",
    "fail",
    "find_run",
    "main",
    "run",
    "run_argument",
    "use_store",
]

F = TypeVar("F", bound=Callable[..., Any])

_SECTIONS = ("Look", "Steer", "Settle", "Keep", "Check and learn")
_CHOSEN = "stepwise store"
_COMPLETED = 1000  # ids that a shell offers at most

PROBLEMS = (stepwise.StepwiseError, stepwise.RunStopped, MemoryError)
"""The exceptions that are messages, not tracebacks."""


class _Command(click.Command):
    """A command that stands in a section of the list."""

    section: str


class _Main(click.Group):
    """All commands, in sections."""

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
    """Let the command work with a store: the callback of an option."""
    if url is not None:
        stepwise.configure(store=url)
        context.meta[_CHOSEN] = url


def chosen_store() -> str | None:
    """Return the URL that ``--store`` gave this command."""
    url: str | None = click.get_current_context().meta.get(_CHOSEN)
    return url


def command(section: str, examples: str, name: str | None = None, **how: Any) -> Callable[[F], Any]:
    """Make a function a command, with ``--json``, ``--store`` and examples in its help.

    Args:
        section: the part of the list of commands that it stands in.
        examples: one a line, with an explanation after ``#``.
    """

    def decorate(function: F) -> Any:
        made: Any = main.command(name, epilog=_epilog(examples), **how)(function)
        made.section = section
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="As JSON."),
            click.Option(
                ["--store"],
                metavar="URL",
                expose_value=False,
                is_eager=True,
                callback=use_store,
                help="disk:/path or sqlite:/path; by default STEPWISE_STORE, else ~/.stepwise.",
            ),
        ]
        return made

    return decorate


def _epilog(examples: str) -> str:
    """Return the end of a help text, whose lines click leaves as they are."""
    lines = [each.partition("  # ") for each in examples.splitlines()]
    width = max(len(line) for line, _, _ in lines)
    shown = [f"  {line:<{width}}  # {why}" if why else f"  {line}" for line, _, why in lines]
    return "\n".join(["\b", "Examples:", *shown])


def _ids(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The runs whose id begins so, for a shell that completes it."""
    try:
        return [
            CompletionItem(each.facts.run_id, help=f"{each.status} {call_text(each.facts)}")
            for each in itertools.islice(each_listed(begins=begun), _COMPLETED)
            if (begun or not each.facts.parent) and each.facts.run_id.isprintable()
        ]
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return []


def run_argument(name: str = "run_id", metavar: str = "RUN", **how: Any) -> Callable[[F], F]:
    """An argument that names a run."""
    return click.argument(name, metavar=metavar, shell_complete=_ids, **how)


def run() -> None:
    """Run the command line; what stepwise raises is a message, not a traceback."""
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


def find_run(run_id: str) -> Run:
    """The run of that id, or the only one whose id begins so; children only if no other does."""
    try:
        return stepwise.get_run(run_id)
    except stepwise.RunNotFoundError:
        begun = [*each_listed(begins=run_id)]
        found = [each for each in begun if not each.facts.parent] or begun
        if not run_id or not found:
            raise
    if len(found) == 1:
        return found[0].run
    lines = "\n".join(
        f"  {each.run.id}  {each.status}  {ago(each.facts.updated_at)}  "
        f"{line_of(call_text(each.facts), 60)}"
        for each in found[:8]
    )
    more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
    raise stepwise.RunNotFoundError(
        f"{len(found)} runs begin with {run_id!r}; write more of the id:\n{lines}{more}",
        run_id=run_id,
    )
