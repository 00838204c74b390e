"""The command line: look at runs, settle what is in doubt, see the demonstration.

Everything shown comes from :class:`stepwise.Run`; every listing also as JSON.  Exit codes: 0 done,
1 a problem that the message explains, 2 a wrong command line.  Imports: the public names.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from typing import Any

import click
from tabulate import tabulate

import stepwise
from stepwise import Run, StepRecord

_STATUS_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "started": "cyan",
    "failed": "red",
    "crashed": "red",
    "in_doubt": "yellow",
    "cancelled": "yellow",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stepwise.__version__, prog_name="stepwise")
def main() -> None:
    """Look at durable runs, and settle what is in doubt."""


def _use_store(_: click.Context, __: click.Parameter, url: str | None) -> None:
    if url is not None:
        stepwise.configure(store=url)


_store = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    is_eager=True,
    callback=_use_store,
    help="disk:/path; by default STEPWISE_STORE, else ~/.stepwise.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def run() -> None:
    """Run the command line; what stepwise raises is a message, not a traceback."""
    try:
        main()
    except (stepwise.StepwiseError, stepwise.RunStopped) as error:
        click.echo(f"stepwise: {error}", err=True)
        sys.exit(1)


# -- listings ------------------------------------------------------------------------------------


@main.command()
@click.option("--workflow", help="Only runs of this workflow: its name or full name.")
@click.option(
    "--status",
    type=click.Choice(["running", "completed", "failed", "crashed"]),
    help="Only runs of this status.",
)
@click.option("--children", is_flag=True, help="Child runs too.")
@_as_json
@_store
def runs(workflow: str | None, status: Any, *, children: bool, as_json: bool) -> None:
    """List the runs, newest first."""
    found = [run for run in stepwise.runs(workflow, status) if children or run.parent is None]
    if as_json:
        click.echo(json.dumps([_run_facts(run) for run in found], indent=2))
    elif not found:
        click.echo(f"no runs{' like that' if workflow or status else ''} in {_store_url()}")
    else:
        rows = [
            [run.id, _coloured(run.status), _ago(run.updated_at), f"{run.label}({run.arguments})"]
            for run in found
        ]
        _table(rows, ["RUN", "STATUS", "UPDATED", "CALL"])


@main.command()
@click.argument("run_id", metavar="RUN")
@_as_json
@_store
def show(run_id: str, *, as_json: bool) -> None:
    """Show a run and its steps."""
    run = stepwise.get_run(run_id)
    steps = run.steps
    if as_json:
        facts = {**_run_facts(run), "steps": [_step_facts(step) for step in steps]}
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(f"{run.label}({run.arguments})")
    click.echo(f"  run       {run.id}  {_coloured(run.status)}{_owned_by(run)}")
    click.echo(f"  workflow  {run.workflow}")
    click.echo(f"  started   {_when(run.created_at)}, updated {_when(run.updated_at)}")
    if run.resumed_from_step is not None:
        click.echo(
            f"  resumed   the last attempt executed {run.steps_executed} steps and skipped "
            f"{run.steps_skipped}"
        )
    if run.error is not None:
        click.echo(f"  error     {type(run.error).__name__}: {run.error}")
    if steps:
        click.echo()
        rows = [
            [
                step.number,
                f"{step.name}({step.arguments})",
                _coloured(step.status),
                step.preview,
                step.attempts,
                _duration(step.duration),
                step.site,
            ]
            for step in steps
        ]
        _table(rows, ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"])
    _tell_in_doubt(run, steps)


@main.command("in-doubt")
@_as_json
@_store
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
        rows: list[Any] = [{"run": run.id, **_step_facts(step)} for run, step in found]
        click.echo(json.dumps(rows, indent=2))
    elif not found:
        click.echo("nothing is in doubt")
    else:
        rows = [
            [run.id, step.number, f"{step.name}({step.arguments})", _when(step.started_at)]
            for run, step in found
        ]
        _table(rows, ["RUN", "STEP", "CALL", "STARTED"])
        click.echo("\nstepwise resolve RUN STEP --landed JSON | --did-not-happen")


def _run_facts(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "workflow": run.workflow,
        "arguments": run.arguments,
        "status": run.status,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "parent": run.parent,
    }


def _step_facts(step: StepRecord) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(step) if not field.name.startswith("_")]
    return {name: getattr(step, name) for name in fields}


# -- changes -------------------------------------------------------------------------------------


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@click.option("--landed", metavar="JSON", help="It happened, and this is its result.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen, and may run.")
@_store
def resolve(run_id: str, step: str, landed: str | None, *, did_not_happen: bool) -> None:
    """Settle a side effect in doubt: STEP is its number or its name."""
    if (landed is None) != did_not_happen:
        raise click.UsageError("say one thing: --landed JSON or --did-not-happen")
    run = stepwise.get_run(run_id)
    if landed is None:
        run.resolve(step, did_not_happen=True)
        click.echo(f"step {step} of {run_id} did not happen; the next run of the program makes it")
        return
    try:
        value = json.loads(landed)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}. Write the result as JSON: '\"text\"', '42', 'null', '{{\"id\": 1}}'",
            param_hint="--landed",
        ) from None
    run.resolve(step, landed=value)
    click.echo(f"step {step} of {run_id} landed; the next run of the program goes on with {landed}")


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_store
def forget(run_id: str, step: str | None, *, yes: bool) -> None:
    """Delete a RUN, or have one STEP of it run again."""
    run = stepwise.get_run(run_id)
    if step is not None:
        run.forget(step)
        click.echo(f"step {step} of {run_id} runs again when the workflow is called")
        return
    effects = [each for each in run.steps if each.side_effect and each.status != "failed"]
    if effects and not yes:
        told = ", ".join(f"{each.name}({each.arguments})" for each in effects[:5])
        click.confirm(
            f"{len(effects)} side effects are recorded in it ({told}); called again, the workflow "
            "repeats them. Delete it?",
            abort=True,
        )
    run.delete()
    click.echo(f"{run_id} is deleted")


@main.command()
def demo() -> None:
    """See a program killed in the middle, run again, and go on."""
    from stepwise import _demo

    sys.exit(_demo.main())


# -- how it looks --------------------------------------------------------------------------------


def _table(rows: list[list[Any]], headers: list[str]) -> None:
    width = shutil.get_terminal_size((100, 24)).columns
    shortened = [[_shorten(cell, max(24, width // 3)) for cell in row] for row in rows]
    click.echo(tabulate(shortened, headers, tablefmt="plain", disable_numparse=True))


def _shorten(cell: Any, limit: int) -> str:
    text = str(cell)
    plain = click.unstyle(text)
    return text if len(plain) <= limit else plain[: limit - 3] + "..."


def _coloured(status: str) -> str:
    return click.style(status, fg=_STATUS_COLOURS.get(status))


def _owned_by(run: Run) -> str:
    owner = run.owner
    return f"  by process {owner.pid} on {owner.host}" if owner is not None else ""


def _tell_in_doubt(run: Run, steps: list[StepRecord]) -> None:
    for step in steps:
        if step.status == "in_doubt":
            click.echo(
                f"\nstep {step.number} is in doubt. Look outside whether it happened (key "
                f"{step.idempotency_key}), then:\n"
                f"  stepwise resolve {run.id} {step.number} --landed JSON | --did-not-happen"
            )


def _store_url() -> str:
    from stepwise import _config

    return str(_config.store())


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
