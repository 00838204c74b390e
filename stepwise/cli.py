"""The command line: look at runs, settle what is in doubt, see the demonstration.

Everything shown comes from :class:`stepwise.Run`; every listing also as JSON.  A run may be named
by the beginning of its id.  Exit codes: 0 done, 1 a problem that the message explains, 2 a wrong
command line.  Imports: the public names.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
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
    "verified": "green",
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
        main(prog_name="stepwise")
    except (stepwise.StepwiseError, stepwise.RunStopped) as error:
        click.echo(f"stepwise: {error}", err=True)
        sys.exit(1)


def _find(run_id: str) -> Run:
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
    listed = "\n".join(f"  {run.id}  {run.status}  {_ago(run.updated_at)}" for run in found[:8])
    more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
    raise stepwise.RunNotFoundError(
        f"{len(found)} runs begin with {run_id!r}; say more of it:\n{listed}{more}", run_id=run_id
    )


# -- listings ------------------------------------------------------------------------------------


@main.command()
@click.option("--workflow", help="Only runs of this workflow: its name or full name.")
@click.option(
    "--status",
    type=click.Choice(["running", "completed", "failed", "crashed"]),
    help="Only runs of this status.",
)
@click.option("--children", is_flag=True, help="Child runs too.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Only so many.")
@_as_json
@_store
def runs(
    workflow: str | None, status: Any, *, children: bool, limit: int | None, as_json: bool
) -> None:
    """List the runs, newest first."""
    found = [run for run in stepwise.runs(workflow, status) if children or run.parent is None]
    found = found[:limit]
    if as_json:
        click.echo(json.dumps([_run_facts(run) for run in found], indent=2))
    elif not found:
        click.echo(
            f"no runs{' like that' if workflow or status else ''} in {_store_url()}", err=True
        )
    else:
        rows = [
            [run.id, _coloured(run.status), _ago(run.updated_at), f"{run.label}({run.arguments})"]
            for run in found
        ]
        _table(rows, ["RUN", "STATUS", "UPDATED", "CALL"])


@main.command()
@click.argument("run_id", metavar="RUN")
@click.option("--locals", "with_locals", is_flag=True, help="The variables where it goes on, too.")
@_as_json
@_store
def show(run_id: str, *, with_locals: bool, as_json: bool) -> None:
    """Show a run and its steps."""
    run = _find(run_id)
    steps = run.steps
    variables = run.locals() if with_locals else {}
    if as_json:
        facts = {**_run_facts(run), "error": _error(run), "steps": [_step_facts(s) for s in steps]}
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
                _coloured(step.status),
                step.preview,
                step.attempts,
                _duration(step.duration),
                step.site,
            ]
            for step in steps
        ]
        _table(rows, ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"])
    if with_locals:
        click.echo()
        _table([[name, repr(value)] for name, value in variables.items()], ["VARIABLE", "VALUE"])
    _tell_in_doubt(run, steps)


def _describe(run: Run) -> None:
    status = run.status
    click.echo(f"{run.label}({run.arguments})")
    click.echo(f"  run       {run.id}  {_coloured(status)}{_owned_by(run)}")
    click.echo(f"  workflow  {run.workflow}")
    click.echo(f"  started   {_when(run.created_at)}, updated {_when(run.updated_at)}")
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
        click.echo("nothing is in doubt", err=True)
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
    value = _parsed(landed) if landed is not None else None
    run = _find(run_id)
    if landed is None:
        run.resolve(step, did_not_happen=True)
        click.echo(f"step {step} of {run.id} did not happen; the next run of the program makes it")
    else:
        run.resolve(step, landed=value)
        click.echo(
            f"step {step} of {run.id} landed; the next run of the program goes on with {landed}"
        )


def _parsed(landed: str) -> Any:
    try:
        return json.loads(landed)
    except ValueError as error:
        # A bare word is the likeliest mistake, and its quotes get lost in the shell.
        word = landed if re.fullmatch(r"[\w .@:/-]+", landed) else "text"
        raise click.BadParameter(
            f"{landed!r} is not JSON ({error}). Write the result as JSON, in quotes for the "
            f"shell: '\"{word}\"', 42, null, '{{\"id\": 1}}'",
            param_hint="--landed",
        ) from None


@main.command()
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Set aside what is damaged, derive what can be.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --repair: give up lost records, even of side effects, which may then be repeated.",
)
@_as_json
@_store
def verify(run_ids: tuple[str, ...], *, repair: bool, accept_loss: bool, as_json: bool) -> None:
    """Verify every stored byte of the RUNs, or of all; the exit code is 1 if any is damaged."""
    if accept_loss and not repair:
        raise click.UsageError("--accept-loss says how to repair: add --repair")
    found = [_find(run_id) for run_id in run_ids] or stepwise.runs()
    verified = [run.repair(accept_loss=accept_loss) if repair else run.verify() for run in found]
    if as_json:
        facts = [{**dataclasses.asdict(each), "problems": each.problems} for each in verified]
        click.echo(json.dumps(facts, indent=2))
    else:
        for each in verified:
            told = "; ".join(each.problems) or _coloured("verified")
            held = f"{each.records} records, {each.checkpoints} checkpoints"
            click.echo(f"{each.run_id}  {held}  {told}")
    if not all(each.ok for each in verified):
        if not as_json and not repair:
            click.echo("put right what can be: stepwise verify --repair", err=True)
        elif not as_json and any(each.effects for each in verified):
            click.echo(
                "records of side effects are gone: restore the store from a backup, or look "
                "outside what happened, then: stepwise verify RUN --repair --accept-loss",
                err=True,
            )
        sys.exit(1)


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("step", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_store
def forget(run_id: str, step: str | None, *, yes: bool) -> None:
    """Delete a RUN, or have one STEP of it run again."""
    run = _find(run_id)
    if step is not None:
        run.forget(step)
        click.echo(f"step {step} of {run.id} runs again when the workflow is called")
        return
    effects = [each for each in run.steps if each.side_effect and each.status != "failed"]
    if effects and not yes:
        told = ", ".join(f"{each.name}({each.arguments})" for each in effects[:5])
        click.confirm(
            f"{run.id} holds {len(effects)} side effect{'s' if len(effects) > 1 else ''} ({told}); "
            "called again, the workflow repeats what it did. Delete it?",
            abort=True,
        )
    run.delete()
    click.echo(f"{run.id} is deleted")


@main.command()
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="Since they completed.",
)
@click.option("--dry-run", is_flag=True, help="Only say which.")
@_store
def prune(days: float, *, dry_run: bool) -> None:
    """Delete completed runs; called again, their workflows start afresh."""
    before = time.time() - days * 86400
    old = [
        run
        for run in stepwise.runs(status="completed")
        if run.parent is None and run.updated_at <= before
    ]
    for run in old:
        click.echo(f"{run.id}  {_ago(run.updated_at)}  {run.label}({run.arguments})")
        if not dry_run:
            run.delete()
    noun = "run" if len(old) == 1 else "runs"
    verb = "would be deleted" if dry_run else "deleted"
    click.echo(f"{len(old)} {noun} completed more than {days:g} days ago: {verb}")


@main.command()
def demo() -> None:
    """See a program killed in the middle, run again, and go on."""
    from stepwise import _demo

    sys.exit(_demo.main())


# -- how it looks --------------------------------------------------------------------------------


def _table(rows: list[list[Any]], headers: list[str]) -> None:
    # A pipe gets whole cells: who searches them wants to find things.
    limit = max(24, shutil.get_terminal_size().columns // 3) if sys.stdout.isatty() else 1000
    shortened = [[_shorten(cell, limit) for cell in row] for row in rows]
    click.echo(tabulate(shortened, headers, tablefmt="plain", disable_numparse=True))


def _shorten(cell: Any, limit: int) -> str:
    text = " ".join(str(cell).splitlines())
    plain = click.unstyle(text)
    return text if len(plain) <= limit else plain[: limit - 3] + "..."


def _coloured(status: str) -> str:
    if "NO_COLOR" in os.environ:
        return status
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
