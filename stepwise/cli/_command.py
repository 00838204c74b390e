"""The command itself: its entry point, what its parts share, and how they find a run."""

from __future__ import annotations

import sys

import click

import stepwise
from stepwise import Run
from stepwise.cli._display import ago

__all__ = ["as_json_option", "find_run", "main", "run", "store_option"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stepwise.__version__, prog_name="stepwise")
def main() -> None:
    """Look at durable runs, steer them, and settle what is in doubt."""


def _use_store(_: click.Context, __: click.Parameter, url: str | None) -> None:
    if url is not None:
        stepwise.configure(store=url)


store_option = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    is_eager=True,
    callback=_use_store,
    help="disk:/path; by default STEPWISE_STORE, else ~/.stepwise.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def run() -> None:
    """Run the command line; what stepwise raises is a message, not a traceback."""
    try:
        main(prog_name="stepwise")
    except (stepwise.StepwiseError, stepwise.RunStopped) as error:
        click.echo(f"stepwise: {error}", err=True)
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
        f"{len(found)} runs begin with {run_id!r}; say more of it:\n{listed}{more}", run_id=run_id
    )
