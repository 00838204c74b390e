"""Look at runs: the list, the history of one, the calls in doubt."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from stepwise import Run, StepRecord
from stepwise._display.render import RunShown, printable
from stepwise._journal.projection import Stop
from stepwise._journal.records import Call, RunFacts
from stepwise._matching.rulings import differing
from stepwise._runs.checkpoints import newest_checkpoint
from stepwise._runs.listing import listed
from stepwise._runs.overview import SHOWN, Overview
from stepwise.cli._command import as_json_option, find_run, main, run_argument, store_option
from stepwise.cli._display import (
    MadeAnew,
    age,
    ago,
    call_text,
    coloured,
    echo_json,
    error_text,
    owned_by,
    say,
    shorten,
    shown_value,
    step_row,
    store_url,
    table,
    tell_in_doubt,
    tell_stops,
    when,
)

_RESUMES = 5  # resumes that are listed
_DOUBTFUL = 20  # steps in doubt that are shown although they are not among the newest
_WATCHED = 500  # newest steps that watch reads again
_UNFINISHED = ("crashed", "failed", "interrupted", "ready")

__all__ = ["run_facts", "step_facts"]


@main.command()
@click.option("--workflow", help="Only runs of this workflow: its name or full name.")
@click.option(
    "--status",
    type=click.Choice(["running", "completed", "failed", "interrupted", "crashed", "ready"]),
    help="Only runs with this status.",
)
@click.option("--children", is_flag=True, help="Child runs too.")
@click.option(
    "--since", type=age, metavar="AGE", help="Only those updated in the last 2h, 30d, ..."
)
@click.option(
    "--older-than", type=age, metavar="AGE", help="Only those not updated since 2h, 30d, ..."
)
@click.option("-n", "--limit", type=click.IntRange(1), help="At most this many.")
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
        say(json.dumps([_facts(each.facts, each.status) for each in found], indent=2))
    elif not found:
        say(
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
@run_argument()
@click.option("--locals", "with_locals", is_flag=True, help="Also the variables where it resumes.")
@click.option("--all", "every", is_flag=True, help="Every step, not only the newest.")
@as_json_option
@store_option
def show(run_id: str, *, with_locals: bool, every: bool, as_json: bool) -> None:
    """Show a run and its newest steps."""
    run = find_run(run_id)
    seen = run._seen(SHOWN)
    shown = run._shown(seen)
    steps = run._each_step(seen) if every else iter(shown.steps)
    variables = run._shown_locals() if with_locals else {}
    if as_json:
        facts = _all_facts(run, shown, seen)
        facts["steps_left_out"] = 0 if every else shown.earlier
        facts["steps"] = map(step_facts, steps)
        facts["stops"] = [stop_facts(*each) for each in seen.stops]
        if with_locals:
            facts["locals"] = {name: shown_value(value) for name, value in variables.items()}
        echo_json(facts)
        return
    _describe(run, shown, seen)
    anew = MadeAnew()
    if shown.steps:
        say()
        first: list[list[Any]] = []
        if shown.earlier and not every:
            first.append(["...", f"{shown.earlier:,} earlier steps: --all", *[""] * 5])
            numbers = {step.number for step in shown.steps}
            doubtful = [step for step in seen.in_doubt if step.number not in numbers]
            first += map(step_row, doubtful[:_DOUBTFUL])
        headers = ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"]
        rows = itertools.chain(first, map(step_row, anew.noting(steps)))
        table(rows, headers, less=("TRIES", "FROM"))
    if with_locals:
        say()
        show_variables(variables)
    anew.tell()
    tell_in_doubt(run, seen.in_doubt)
    tell_stops(run, seen.stops)


def _all_facts(run: Run, shown: RunShown, seen: Overview) -> dict[str, Any]:
    """Return everything that ``show`` prints, for JSON."""
    unfinished = shown.status in _UNFINISHED
    where, line = run._goes_on() if unfinished else ("", "")
    return {
        **run_facts(run),
        "forked_from": run.forked_from,
        "error": error_text(run),
        "goes_on": {"where": where, "line": line} if unfinished else None,
        "resumes": [{"at": at, "how": how} for _, at, how in seen.course.resumes],
        "last_attempt": {
            "resumed_from": shown.resumed_from,
            "executed": shown.executed,
            "skipped": shown.skipped,
        },
        "seconds_saved": shown.saved,
        "seconds_lost": shown.lost,
        "unreadable_records": shown.unreadable,
        "steps_total": shown.total,
        "steps_by_status": shown.statuses,
    }


def _describe(run: Run, shown: RunShown, seen: Overview) -> None:
    say(printable(shown.call, 1000))
    _say("run", f"{run.id}  {coloured(shown.status)}{owned_by(run)}")
    _say("workflow", printable(shown.workflow))
    _say("started", f"{when(shown.created_at)}, updated {when(shown.updated_at)}")
    _say("fork of", run.forked_from or "")
    _say("steps", shown.counts)
    resumes = seen.course.resumes[-_RESUMES:]
    for _, at, how in resumes:
        _say("resumed", f"{when(at)}, {printable(how)}")
    if seen.course.resumed > len(resumes):
        _say("", f"and {seen.course.resumed - len(resumes)} times before")
    _say("attempt", shown.attempt and f"the last one: {shown.attempt}")
    _say("lost", shown.gaps)
    if shown.status == "crashed":
        _say("stopped", f"{ago(seen.course.at)}, at its last record")
    if shown.status == "interrupted":
        _say("stopped", f"{ago(shown.updated_at)}, by {printable(shown.error)}")
    _say("damage", shown.damage)
    if shown.status in _UNFINISHED:
        where, line = run._goes_on()
        _say("resumes", f"{where}: stepwise resume {run.id}")
        _say("", printable(line, 200))
    _say("error", error_text(run) or "")


def _say(name: str, text: str) -> None:
    if text:
        say(f"  {name:<8}  {text}")


def show_variables(variables: Mapping[str, Any]) -> None:
    """A table of local variables."""
    rows = [[name, shown_value(value)] for name, value in variables.items()]
    table(rows, ["VARIABLE", "VALUE"])


@main.command("locals", short_help="Show the local variables at a checkpoint.")
@run_argument()
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After this many steps.")
@as_json_option
@store_option
def show_locals(run_id: str, *, at: int | None, as_json: bool) -> None:
    """Show the local variables at the newest checkpoint of a RUN, or at an older one."""
    run = find_run(run_id)
    variables = run._shown_locals(at)
    if as_json:
        told = {name: shown_value(value) for name, value in variables.items()}
        say(json.dumps(told, indent=2))
        return
    taken = newest_checkpoint(run.store, run._seal, run.id, at)
    if taken is not None:
        say(f"after step {taken.state.step}, at {taken.state.where}\n", err=True)
    show_variables(variables)


@main.command(short_help="Print the steps of a RUN as they happen.")
@run_argument()
@store_option
def watch(run_id: str) -> None:
    """Print each step of a RUN as it happens, until the run ends or its process is gone."""
    run = find_run(run_id)
    told: dict[int, str] = {}
    while True:
        status, began = run.status, time.monotonic()
        seen = run._seen(_WATCHED if told else SHOWN)
        missed = seen.steps[0].number - max(told, default=0) - 1 if seen.steps else 0
        if missed > 0:
            say(f"... {missed:,} steps: stepwise show {run.id} --all")
        for step in seen.steps:
            if told.get(step.number) != step.status:
                told[step.number] = step.status
                number, call, _, result, _, took, _ = (shorten(c, 100) for c in step_row(step))
                moment = time.strftime("%H:%M:%S", time.localtime(step.finished_at))
                ended = f"{took}  {result}" if step.finished_at is not None else ""
                say(f"{moment}  {number}  {call}  {coloured(step.status)}  {ended}".rstrip())
        if status != "running":
            verb = "has" if status in ("completed", "failed") else "is"
            say(f"{run.id} {verb} {coloured(status)}")
            break
        # The pause grows with the time that reading the journal takes.
        time.sleep(max(0.3, 5 * (time.monotonic() - began)))


@main.command("in-doubt", short_help="List the side effects that may have happened.")
@as_json_option
@store_option
def in_doubt(*, as_json: bool) -> None:
    """List the side effects that may have happened, and the calls that could be recorded ones."""
    found, stopped = [], []
    for each in listed():
        if each.status in _UNFINISHED:
            seen = each.run._seen(1)
            found += [(each.run, step) for step in seen.in_doubt]
            stopped += [(each.run, seen.stops)] if seen.stops else []
    if as_json:
        rows: list[Any] = [{"run": run.id, **step_facts(step)} for run, step in found]
        for run, stops in stopped:
            rows += [{"run": run.id, "status": "stopped", **stop_facts(*stop)} for stop in stops]
        say(json.dumps(rows, indent=2))
        return
    if found:
        rows = [
            [run.id, step.number, f"{step.name}({step.arguments})", when(step.started_at)]
            for run, step in found
        ]
        table(rows, ["RUN", "STEP", "CALL", "STARTED"])
        say("\nstepwise resolve RUN STEP --landed JSON | --did-not-happen")
    for run, stops in stopped:
        say(f"\n{run.id}")
        tell_stops(run, stops)
    if not found and not stopped:
        say("nothing is in doubt", err=True)


def stop_facts(stop: Stop, others: list[Call]) -> dict[str, Any]:
    """Return the entry of a listing for a call at which a run stopped, for JSON."""
    ruled = stop.ruled
    return {
        "stop": stop.number,
        "name": stop.call.name,
        "arguments": stop.call.arguments,
        "site": stop.call.site,
        "at": stop.at,
        "could_be": [
            {
                "number": other.number,
                "name": other.name,
                "arguments": other.arguments,
                "differs": differing(stop.call, other),
            }
            for other in others
        ],
        "said": None if ruled is None else ("same" if ruled.same else "another"),
    }


def run_facts(run: Run) -> dict[str, Any]:
    """Return the facts of a run in a listing, for JSON."""
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
    """Return the facts of a step in a listing, for JSON."""
    fields = [field.name for field in dataclasses.fields(step) if not field.name.startswith("_")]
    return {name: getattr(step, name) for name in fields}


@main.command()
def demo() -> None:
    """See a program killed in the middle, run again, and resume."""
    from stepwise.cli import _demo

    sys.exit(_demo.main())
