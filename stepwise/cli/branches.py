"""Branches: one moment of a run, continued many times; one of them adopted."""

from __future__ import annotations

import itertools
import os
import subprocess
from typing import Any

import click

from stepwise import Run, RunBranch
from stepwise._runs import starting
from stepwise._runs.branching import make, to_execute
from stepwise.cli import _command as cli
from stepwise.cli._command import command
from stepwise.cli.steer import pair


@command(
    "Steer",
    "stepwise branch trip-0573 --at 2 --set model=small --set model=large\n"
    "stepwise branch trip-0573 -n 8 --effects collect",
    short_help="Continue one moment of a RUN many times, without side effects.",
)
@cli.run_argument()
@click.option("--at", metavar="STEP", help="Share the steps up to this one; or FILE:LINE.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value of a variable; of several, each makes a branch.",
)
@click.option("-n", "count", type=click.IntRange(1), default=1, help="Branches of each kind.")
@click.option(
    "--effects",
    type=click.Choice(["refuse", "collect"]),
    default="refuse",
    help="Stop at a side effect, or propose it for adopt.",
)
@click.option("--max-workers", type=click.IntRange(1), default=8, help="Programs at a time.")
def branch(
    run_id: str,
    *,
    at: str | None,
    changes: tuple[str, ...],
    count: int,
    effects: str,
    max_workers: int,
    as_json: bool,
) -> None:
    """Continue one moment of a RUN several times, each time with other variables.

    VALUE is JSON; any other VALUE is taken as text.  Values of several variables are combined. The
    program of the RUN is started for each branch; what it prints is left out. Given again, the
    command goes on with the branches that have not ended.
    """
    values = dict[str, list[Any]]()
    for name, value in (pair(each, "--set") for each in changes):
        values.setdefault(name, []).append(value)
    combined = [
        dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())
    ]
    run = cli.find_run(run_id)
    found = make(run, at, [each for each in combined for _ in range(count)], effects)
    _execute([each.run for each in found if to_execute(each)], max_workers)
    if as_json:
        cli.echo_json(found.rows())
    else:
        cli.say(str(found))


def _execute(runs: list[Run], most: int) -> None:
    """Start the program of each run, so many at a time, and wait for all of them."""
    live = list[subprocess.Popen[bytes]]()
    try:
        for run in runs:
            starting.check_start(run)
            command, folder = starting.start_command(run)
            environment = {**os.environ, **starting.environment_for(run)}
            if len(live) == most:
                live.pop(0).wait()
            live.append(
                subprocess.Popen(  # noqa: S603
                    command,
                    cwd=folder or None,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
    finally:
        for each in live:
            each.wait()


@command(
    "Steer",
    "stepwise adopt trip-0573.1-93f27705",
    short_help="Go on with a branch instead of its base.",
)
@cli.run_argument()
def adopt(run_id: str, *, as_json: bool) -> None:
    """Go on with the branch RUN instead of its base, whose other branches are cancelled.

    What it has proposed is asked for from now on: stepwise approve, or stepwise deny.
    """
    run = cli.find_run(run_id)
    RunBranch(run, {}).adopt()
    if as_json:
        cli.echo_json(run.to_dict())
        return
    cli.say(f"{run.id} goes on instead of {run.forked_from}")
    cli.say_next(run, waited_for=False)
