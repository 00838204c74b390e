"""The command itself: its entry point, shared options, and the search for a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

import stepwise
from stepwise import Run
from stepwise._runs.listing import listed
from stepwise.cli._display import ago, call_text, say

__all__ = ["as_json_option", "find_run", "main", "run", "run_argument", "store_option"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stepwise.__version__, prog_name="stepwise")
def main() -> None:
    """Look at durable runs, steer them, and settle calls in doubt."""


def _use_store(_: click.Context, __: click.Parameter, url: str | None) -> None:
    if url is not None:
        stepwise.configure(store=url)


store_option = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    is_eager=True,
    callback=_use_store,
    help="disk:/path or sqlite:/path; by default STEPWISE_STORE, else ~/.stepwise.",
)


def _ids(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The runs whose id begins so, for a shell that completes it."""
    try:
        return [
            CompletionItem(each.facts.run_id, help=f"{each.status} {call_text(each.facts)}")
            for each in listed()
            if each.facts.run_id.startswith(begun)
            and (begun or not each.facts.parent)
            and each.facts.run_id.isprintable()
        ]
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return []


def run_argument(name: str = "run_id", metavar: str = "RUN", **how: Any) -> Callable[[F], F]:
    """An argument that names a run."""
    return click.argument(name, metavar=metavar, shell_complete=_ids, **how)


as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def run() -> None:
    """Run the command line; what stepwise raises is a message, not a traceback."""
    try:
        main(prog_name="stepwise")
    except (stepwise.StepwiseError, stepwise.RunStopped) as error:
        say(f"stepwise: {error}", err=True)
        sys.exit(1)
    except MemoryError as error:
        say(
            f"stepwise: {str(error) or 'memory ran out'}; give it more memory (ulimit -v)", err=True
        )
        sys.exit(1)


def find_run(run_id: str) -> Run:
    """The run of that id, or the only one whose id begins so; children only if no other does."""
    try:
        return stepwise.get_run(run_id)
    except stepwise.RunNotFoundError:
        begun = [run for run in stepwise.runs() if run.id.startswith(run_id)]
        found = [run for run in begun if run.parent is None] or begun
        if not run_id or not found:
            raise
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {run.id}  {run.status}  {ago(run.updated_at)}" for run in found[:8])
    more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
    raise stepwise.RunNotFoundError(
        f"{len(found)} runs begin with {run_id!r}; write more of the id:\n{listed}{more}",
        run_id=run_id,
    )
