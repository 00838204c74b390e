"""Steer a run: resume it, run a script that can be stopped, start a fork."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.render import printable
from stepwise._values.secrets import HIDDEN
from stepwise.cli._command import find_run, main, run_argument, store_option
from stepwise.cli._display import call_text, coloured, say

__all__: list[str] = []


@main.command()
@run_argument(metavar="[RUN]", required=False)
@click.option("--all-crashed", is_flag=True, help="Every run that crashed, one after another.")
@click.option("--dry-run", is_flag=True, help="Only print the command.")
@store_option
def resume(run_id: str | None, *, all_crashed: bool, dry_run: bool) -> None:
    """Resume a RUN: start its program with the original command line.

    The exit code is that of the program, or 1 if the run has not completed afterwards.
    """
    if (run_id is None) != all_crashed:
        raise click.UsageError("name a RUN, or use --all-crashed")
    if run_id is not None:
        sys.exit(_resume(_top(find_run(run_id)), dry_run=dry_run))
    crashed = [run for run in stepwise.runs(status="crashed") if run.parent is None]
    if not crashed:
        say("no run has crashed", err=True)
    code = 0
    for run in crashed[::-1]:
        # The program of one run may have resumed another.
        if run.status == "crashed":
            try:
                code = _resume(run, dry_run=dry_run) or code
            except stepwise.StepwiseError as problem:
                say(f"stepwise: {problem}", err=True)
                code = code or 1
    sys.exit(code)


def _top(run: Run) -> Run:
    """Return the top-level run above a run: the one that the program starts."""
    while run.parent is not None:
        run = stepwise.get_run(run.parent)
    return run


def _resume(run: Run, *, dry_run: bool) -> int:
    status = run.status
    if status == "completed":
        say(f"{run.id} has completed; there is nothing to resume", err=True)
        return 0
    if status == "running":
        owner = run.owner
        raise stepwise.RunBusyError(
            f"run {run.id!r} is being executed by process {owner.pid if owner else '?'}; to follow "
            f"it: stepwise watch {run.id}",
            run_id=run.id,
            owner=owner,
        )
    command, folder = _command_of(run)
    where, line = run._goes_on()
    verb = "would resume" if dry_run else "resumes"
    say(f"{call_text(run)}, {coloured(status)}, {verb} {where}", err=True)
    if line:
        say(f"  {printable(line, 200)}", err=True)
    say(f"  in {folder}: {shlex.join(command)}", err=True)
    if dry_run:
        return 0
    url = run.store.url
    code = _execute(command, folder, {"STEPWISE_RESUME": run.id, "STEPWISE_STORE": url})
    after = run.status
    if after != "completed":
        hint = "" if code else f": does it still call {run.label} with the same arguments?"
        say(f"stepwise: {run.id} is {after} after the program ended{hint}", err=True)
    return code or int(after != "completed")


def _command_of(run: Run) -> tuple[tuple[str, ...], str]:
    """The command that starts the program of a run, and the folder to start it in."""
    program = run.program
    command, folder = (program.command, program.cwd) if program is not None else ((), "")
    script = program.file if program and run.workflow.startswith(f"{program.file}:") else ""
    if script and not command:
        command, folder = (sys.executable, script), os.path.dirname(script)
    needed = (*command[:1], folder, *([script] if script else []))
    missing = [part for part in needed if not os.path.exists(part)]
    if command and not missing and not any(HIDDEN in part for part in command):
        return command, folder
    why = f"{missing[0]} is gone" if missing else "it was not started from a command line"
    if any(HIDDEN in part for part in command):
        why = "its command line held a secret, which is never stored"
    raise stepwise.ConfigurationError(
        f"the program of run {run.id!r} cannot be started from here: {why}. Start it yourself (in "
        f"a notebook, run the cell): the call {call_text(run)} resumes. If it "
        f"does not find the run, set STEPWISE_RESUME={run.id}"
    )


def _execute(command: tuple[str, ...], folder: str, environment: dict[str, str]) -> int:
    """Run a command to its end and return its exit code; a Ctrl-C reaches the command, too."""
    process = subprocess.Popen(command, cwd=folder or None, env={**os.environ, **environment})  # noqa: S603
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the child gets the same signal, and ends when it has cleaned up
        return code if code >= 0 else 128 - code


@main.command(
    "run",
    short_help="Run a SCRIPT or module, and show its progress.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@store_option
def run_script(program: tuple[str, ...], *, as_module: bool) -> None:
    """Run a SCRIPT, or with -m a module, and show its progress on stderr.

    The exit code is that of the program; 130 after Ctrl-C.
    """
    if not program:
        raise click.UsageError("name a SCRIPT, or -m MODULE")
    if as_module:
        program = ("-m", *program)
    elif not os.path.isfile(program[0]):
        is_name = all(part.isidentifier() for part in program[0].split("."))
        hint = f" To run a module: stepwise run -m {program[0]}" if is_name else ""
        raise click.UsageError(f"there is no script {program[0]!r}.{hint}")
    environment = {"STEPWISE_PROGRESS": os.environ.get("STEPWISE_PROGRESS", "1")}
    if (url := _chosen_store()) is not None:
        environment["STEPWISE_STORE"] = url
    code = _execute((sys.executable, *program), "", environment)
    if code:
        again = shlex.join(("stepwise", "run", *program))
        say(f"stepwise: stopped (exit code {code}); to resume: {again}", err=True)
    sys.exit(code)


def _chosen_store() -> str | None:
    from stepwise._runtime import settings

    chosen = settings._settings.store
    return chosen if isinstance(chosen, str) else None


# -- fork ----------------------------------------------------------------------------------------


@main.command()
@run_argument()
@click.option(
    "--at", type=click.IntRange(0), metavar="STEP", help="Share the steps up to this one."
)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change the value of a variable."
)
@click.option(
    "--result", "results", multiple=True, metavar="STEP=VALUE", help="Change the result of a step."
)
@click.option("--id", "new_id", metavar="ID", help="The id of the fork.")
@store_option
def fork(
    run_id: str,
    *,
    at: int | None,
    changes: tuple[str, ...],
    results: tuple[str, ...],
    new_id: str | None,
) -> None:
    """Start a new run from a point of a RUN, which stays as it is.

    VALUE is JSON; what is not, is text.
    """
    variables = dict(_pair(each, "--set") for each in changes)
    answers: dict[int | str, Any] = {
        int(step) if step.isdecimal() else step: value
        for step, value in (_pair(each, "--result") for each in results)
    }
    made = find_run(run_id).fork(at=at, run_id=new_id, locals=variables, results=answers)
    where, _ = made._goes_on()
    say(made.id)
    say(f"shares {made._seen(1).total} steps, resumes {where}:", err=True)
    say(f"  stepwise resume {made.id}", err=True)


def _pair(text: str, option: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
