"""Look at runs: which there are, what happened in one, what is in doubt."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise.cli._command import as_json_option, find_run, main, store_option
from stepwise.cli._display import (
    ago,
    coloured,
    duration,
    owned_by,
    store_url,
    table,
    tell_in_doubt,
    when,
)

__all__ = ["run_facts", "step_facts"]


@main.command()
@click.option("--workflow", help="Only runs of this workflow: its name or full name.")
@click.option(
    "--status",
    type=click.Choice(["running", "completed", "failed", "crashed"]),
    help="Only runs of this status.",
)
@click.option("--children", is_flag=True, help="Child runs too.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Only so many.")
@as_json_option
@store_option
def runs(
    workflow: str | None, status: Any, *, children: bool, limit: int | None, as_json: bool
) -> None:
    """List the runs, newest first."""
    found = [run for run in stepwise.runs(workflow, status) if children or run.parent is None]
    found = found[:limit]
    if as_json:
        click.echo(json.dumps([run_facts(run) for run in found], indent=2))
    elif not found:
        click.echo(
            f"no runs{' like that' if workflow or status else ''} in {store_url()}", err=True
        )
    else:
        rows = [
            [run.id, coloured(run.status), ago(run.updated_at), f"{run.label}({run.arguments})"]
            for run in found
        ]
        table(rows, ["RUN", "STATUS", "UPDATED", "CALL"])


@main.command()
@click.argument("run_id", metavar="RUN")
@click.option("--locals", "with_locals", is_flag=True, help="The variables where it goes on, too.")
@as_json_option
@store_option
def show(run_id: str, *, with_locals: bool, as_json: bool) -> None:
    """Show a run and its steps."""
    run = find_run(run_id)
    steps = run.steps
    variables = run.locals() if with_locals else {}
    if as_json:
        facts = {**run_facts(run), "error": _error(run), "steps": [step_facts(s) for s in steps]}
        if with_locals:
            facts["locals"] = {name: repr(value) for name, value in variables.items()}
        click.echo(json.dumps(facts, indent=2))
        return
    _describe(run)
    if steps:
        click.echo()
        rows = [
            [
                step.number,
                f"{step.name}({step.arguments})",
                coloured(step.status),
                step.preview,
                step.attempts,
                duration(step.duration),
                step.site,
            ]
            for step in steps
        ]
        table(rows, ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"])
    if with_locals:
        click.echo()
        table([[name, repr(value)] for name, value in variables.items()], ["VARIABLE", "VALUE"])
    tell_in_doubt(run, steps)


def _describe(run: Run) -> None:
    status = run.status
    click.echo(f"{run.label}({run.arguments})")
    click.echo(f"  run       {run.id}  {coloured(status)}{owned_by(run)}")
    click.echo(f"  workflow  {run.workflow}")
    click.echo(f"  started   {when(run.created_at)}, updated {when(run.updated_at)}")
    if run.resumed_from_step is not None:
        click.echo(
            f"  resumed   steps of the last attempt: {run.steps_executed} executed, "
            f"{run.steps_skipped} skipped"
        )
    if status in ("crashed", "failed"):
        places = [each for each in run.checkpoints if each.verified]
        where = f"at {places[-1].position}" if places else "from the top, answered by the journal"
        click.echo(f"  goes on   {where}, when the program is run again")
    if (error := _error(run)) is not None:
        click.echo(f"  error     {error}")


def _error(run: Run) -> str | None:
    error = run.error
    return None if error is None else f"{type(error).__name__}: {error}"


@main.command("in-doubt")
@as_json_option
@store_option
def in_doubt(*, as_json: bool) -> None:
    """List the side effects of which nobody knows whether they happened."""
    found = [
        (run, step)
        for run in stepwise.runs()
        if run.status in ("crashed", "failed")
        for step in run.steps
        if step.status == "in_doubt"
    ]
    if as_json:
        rows: list[Any] = [{"run": run.id, **step_facts(step)} for run, step in found]
        click.echo(json.dumps(rows, indent=2))
    elif not found:
        click.echo("nothing is in doubt", err=True)
    else:
        rows = [
            [run.id, step.number, f"{step.name}({step.arguments})", when(step.started_at)]
            for run, step in found
        ]
        table(rows, ["RUN", "STEP", "CALL", "STARTED"])
        click.echo("\nstepwise resolve RUN STEP --landed JSON | --did-not-happen")


def run_facts(run: Run) -> dict[str, Any]:
    """What a listing says of a run, for JSON."""
    return {
        "run": run.id,
        "workflow": run.workflow,
        "arguments": run.arguments,
        "status": run.status,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "parent": run.parent,
    }


def step_facts(step: StepRecord) -> dict[str, Any]:
    """What a listing says of a step, for JSON."""
    fields = [field.name for field in dataclasses.fields(step) if not field.name.startswith("_")]
    return {name: getattr(step, name) for name in fields}


@main.command()
def demo() -> None:
    """See a program killed in the middle, run again, and go on."""
    from stepwise import _demo

    sys.exit(_demo.main())
