"""Look at runs: which there are, what happened in one, what is in doubt."""

from __future__ import annotations

import dataclasses
import json
import linecache
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise._display import RunShown, printable
from stepwise._history import resumes_of
from stepwise._listing import listed
from stepwise._records import RunFacts
from stepwise.cli._command import as_json_option, find_run, main, store_option
from stepwise.cli._display import (
    FIRST,
    age,
    ago,
    call_text,
    coloured,
    duration,
    error_text,
    few,
    owned_by,
    shorten,
    shown_value,
    step_row,
    store_url,
    table,
    tell_in_doubt,
    when,
)

_RESUMES = 5  # of which it is said when and where

__all__ = ["run_facts", "source_line", "step_facts"]


@main.command()
@click.option("--workflow", help="Only runs of this workflow: its name or full name.")
@click.option(
    "--status",
    type=click.Choice(["running", "completed", "failed", "crashed"]),
    help="Only runs of this status.",
)
@click.option("--children", is_flag=True, help="Child runs too.")
@click.option(
    "--since", type=age, metavar="AGE", help="Only those updated in the last 2h, 30d, ..."
)
@click.option(
    "--older-than", type=age, metavar="AGE", help="Only those not updated since 2h, 30d, ..."
)
@click.option("-n", "--limit", type=click.IntRange(1), help="Only so many.")
@as_json_option
@store_option
def runs(
    workflow: str | None,
    status: Any,
    *,
    children: bool,
    since: float | None,
    older_than: float | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the runs, newest first."""
    now = time.time()
    found = [
        each
        for each in listed(workflow, status)  # one look at each, however many there are
        if (children or not each.facts.parent)
        and (since is None or each.facts.updated_at >= now - since)
        and (older_than is None or each.facts.updated_at <= now - older_than)
    ][:limit]
    if as_json:
        click.echo(json.dumps([_facts(each.facts, each.status) for each in found], indent=2))
    elif not found:
        click.echo(
            f"no runs{' like that' if workflow or status or since or older_than else ''} in "
            f"{store_url()}",
            err=True,
        )
    else:
        rows = [
            [facts.run_id, coloured(each.status), ago(facts.updated_at), call_text(facts)]
            for each in found
            if (facts := each.facts)
        ]
        table(rows, ["RUN", "STATUS", "UPDATED", "CALL"])


@main.command()
@click.argument("run_id", metavar="RUN")
@click.option("--locals", "with_locals", is_flag=True, help="The variables where it goes on, too.")
@click.option("--all", "every", is_flag=True, help="Every step, if there are many.")
@as_json_option
@store_option
def show(run_id: str, *, with_locals: bool, every: bool, as_json: bool) -> None:
    """Show a run and its steps."""
    run = find_run(run_id)
    shown = run._shown(steps=True)  # one look into the journal for all of it
    variables = run.locals() if with_locals else {}
    if as_json:
        facts = {**run_facts(run), "error": error_text(run)}
        facts["steps"] = [step_facts(step) for step in shown.steps]
        if with_locals:
            facts["locals"] = {name: shown_value(value) for name, value in variables.items()}
        click.echo(json.dumps(facts, indent=2))
        return
    _describe(run, shown)
    if shown.steps:
        click.echo()
        steps, left_out = few(shown.steps, every=every)
        rows = [step_row(step) for step in steps]
        if left_out:
            rows.insert(FIRST, ["...", f"{left_out} more: --all", *[""] * 5])
        table(rows, ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"])
    if with_locals:
        click.echo()
        show_variables(variables)
    tell_in_doubt(run, shown.steps)


def _describe(run: Run, shown: RunShown) -> None:
    click.echo(printable(shown.call, 1000))
    click.echo(f"  run       {run.id}  {coloured(shown.status)}{owned_by(run)}")
    click.echo(f"  workflow  {shown.workflow}")
    click.echo(f"  started   {when(shown.created_at)}, updated {when(shown.updated_at)}")
    if (source := run.forked_from) is not None:
        click.echo(f"  fork of   {source}")
    if shown.resumed_from is not None:
        saved = sum(
            each.duration or 0
            for each in shown.steps
            if each.finished_at is not None and each._entry.number < shown.begun
        )
        # Those before it began are of the run that it is a fork of.
        resumes = [each for each in resumes_of(run._entries()) if each[0] >= shown.created_at]
        for at, how in resumes[-_RESUMES:]:
            click.echo(f"  resumed   {when(at)}, {how}")
        if len(resumes) > _RESUMES:
            click.echo(f"            and {len(resumes) - _RESUMES} times before")
        click.echo(
            f"  steps     of the last attempt: {shown.executed} executed, {shown.skipped} "
            f"skipped, which saved {duration(saved)}"
        )
    if shown.status in ("crashed", "failed"):
        places = [each for each in run.checkpoints if each.verified]
        where = f"at {places[-1].position}" if places else "from the top, answered by the journal"
        click.echo(f"  goes on   {where}, when the program is run again: stepwise resume {run.id}")
        if places and (line := source_line(run, places[-1].position)):
            click.echo(f"            after  {line}")
    if (error := error_text(run)) is not None:
        click.echo(f"  error     {error}")


def source_line(run: Run, position: str) -> str:
    """The line of source at ``file:line``, where the workflow's file is still there."""
    name, _, number = position.rpartition(":")
    program = run.program
    if program is None or os.path.basename(program.file) != name:
        return ""
    return printable(linecache.getline(program.file, int(number)).strip(), 200)


def show_variables(variables: Mapping[str, Any]) -> None:
    """A table of local variables."""
    rows = [[name, shown_value(value)] for name, value in variables.items()]
    table(rows, ["VARIABLE", "VALUE"])


@main.command("locals")
@click.argument("run_id", metavar="RUN")
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After so many steps.")
@as_json_option
@store_option
def show_locals(run_id: str, *, at: int | None, as_json: bool) -> None:
    """Show the local variables at the newest checkpoint of a RUN, or at an older one."""
    run = find_run(run_id)
    variables = run.locals(at)
    if as_json:
        told = {name: shown_value(value) for name, value in variables.items()}
        click.echo(json.dumps(told, indent=2))
        return
    places = [each for each in run.checkpoints if each.verified and (at is None or each.step <= at)]
    click.echo(f"at {places[-1].position}, after step {places[-1].step}\n", err=True)
    show_variables(variables)


@main.command()
@click.argument("run_id", metavar="RUN")
@store_option
def watch(run_id: str) -> None:
    """Print each step of a RUN as it happens, until the run ends or its process is gone."""
    run = find_run(run_id)
    seen: dict[int, str] = {}
    while True:
        status, began = run.status, time.monotonic()
        for step in run.steps:
            if seen.get(step.number) != step.status:
                seen[step.number] = step.status
                number, call, _, result, _, took, _ = (shorten(c, 100) for c in step_row(step))
                moment = time.strftime("%H:%M:%S", time.localtime(step.finished_at))
                told = f"{took}  {result}" if step.finished_at is not None else ""
                click.echo(f"{moment}  {number}  {call}  {coloured(step.status)}  {told}".rstrip())
        if status != "running":
            click.echo(f"{run.id} {'is' if status == 'crashed' else 'has'} {coloured(status)}")
            break
        # A journal that takes long to read is read less often.
        time.sleep(max(0.3, 5 * (time.monotonic() - began)))


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
    return _facts(run._facts(), run.status)


def _facts(facts: RunFacts, status: str) -> dict[str, Any]:
    return {
        "run": facts.run_id,
        "workflow": facts.workflow,
        "arguments": facts.arguments,
        "status": status,
        "created_at": facts.created_at,
        "updated_at": facts.updated_at,
        "parent": facts.parent or None,
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
