"""Steer a run: resume it, run a script that can be stopped, start a fork."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.terminal import Word
from stepwise._runs import starting
from stepwise._runs.messages import parsed_json
from stepwise._runs.run import listed
from stepwise._runtime.messages import count, printable, shell_word
from stepwise.cli import _command as cli
from stepwise.cli._command import command


@command(
    "Steer",
    "stepwise resume trip-0573\n"
    "stepwise resume trip-0573 --dry-run  # only print the command\n"
    "stepwise resume --all-crashed  # after a power cut",
)
@cli.run_argument(metavar="[RUN]", required=False)
@click.option("--all-crashed", is_flag=True, help="Every run that crashed, one after another.")
@click.option("--dry-run", is_flag=True, help="Only print the command.")
def resume(run_id: str | None, *, all_crashed: bool, dry_run: bool, as_json: bool) -> None:
    """Resume a RUN: start its program with the original command line.

    The exit code is that of the program, or 1 if the run has not completed afterwards.  With
    --json, what the program prints on stdout goes to stderr.  With STEPWISE_TRUST=data the recorded
    command line is only shown.
    """
    if (run_id is None) != all_crashed:
        raise click.UsageError("name a RUN, or use --all-crashed")
    if run_id is not None:
        done = _resume(starting.top_of(cli.find_run(run_id)), dry_run=dry_run, as_json=as_json)
        if as_json:
            cli.echo_json(done)
        sys.exit(done["exit_code"])
    crashed = [each.run for each in listed(status="crashed") if not each.facts.parent]
    if not crashed:
        cli.note("no run has crashed")
    for each in listed(status="stuck"):
        cli.note(f"{each.run.id} is stuck, and left: it died at the same step three times")
    found = []
    for run in crashed[::-1]:
        try:
            if _is_crashed(run):
                found.append(_resume(run, dry_run=dry_run, as_json=as_json))
        except (stepwise.StepwiseError, stepwise.RunStopped) as problem:
            cli.note(f"stepwise: {problem}")
            found.append({**_known(run), "exit_code": 1, "problem": str(problem)})
    if as_json:
        cli.echo_json(found)
    codes = [each["exit_code"] for each in found if each["exit_code"]]
    sys.exit(codes[-1] if codes else 0)


def _is_crashed(run: Run) -> bool:
    """Return whether a run is still crashed; another program may have resumed or deleted it."""
    try:
        return run.status == "crashed"
    except stepwise.RunNotFoundError as problem:
        cli.note(str(problem))
        return False


def _known(run: Run) -> dict[str, Any]:
    """Return the facts of a run for JSON, or only its id if they cannot be read."""
    try:
        return run.to_dict()
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return {"id": run.id}


def _resume(run: Run, *, dry_run: bool, as_json: bool) -> dict[str, Any]:
    """Resume a run; return what was done, as plain data."""
    status = run.status
    if status == "completed":
        cli.note(f"{run.id} has completed; there is nothing to resume")
        return {**run.to_dict(), "command": None, "cwd": None, "exit_code": 0}
    starting.refuse_running(run)
    command, folder = starting.start_command(run)
    where, line = run._goes_on()
    verb = "would resume" if dry_run else "resumes"
    cli.note(f"{cli.call_text(run)}, ", Word(status), f", {verb} {where}")
    if line:
        cli.note(f"  {printable(line, 200)}")
    cli.note(f"  in {folder}: {shlex.join(command)}")
    code = 0
    if not dry_run:
        starting.check_start(run)
        code = execute(command, folder, starting.environment_for(run), as_json=as_json)
        after = run.status
        if after != "completed":
            hint = "" if code else f": does it still call {run.label} with the same arguments?"
            cli.note(f"stepwise: {run.id} is {after} after the program ended{hint}")
        code = code or int(after != "completed")
    return {**run.to_dict(), "command": [*command], "cwd": folder, "exit_code": code}


def execute(
    command: tuple[str, ...], folder: str, environment: dict[str, str], *, as_json: bool
) -> int:
    """Run a command until it ends and return its exit code; a Ctrl-C reaches the command, too.

    Args:
        as_json: True if stdout is for JSON, so that the command prints on stderr.
    """
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=folder or None,
        env={**os.environ, **environment},
        stdout=2 if as_json else None,
    )
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the child gets the same signal, and ends when it has cleaned up
        return code if code >= 0 else 128 - code


@command(
    "Steer",
    "stepwise run agent.py tides\n"
    "stepwise run -m package.module\n"
    "stepwise run --store disk:./runs agent.py",
    name="run",
    short_help="Run a SCRIPT or module, and show its progress.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run_script(program: tuple[str, ...], *, as_module: bool, as_json: bool) -> None:
    """Run a SCRIPT, or with -m a module, and show its progress on stderr.

    The exit code is that of the program; 130 after Ctrl-C.  Options of stepwise come before
    SCRIPT.  With --json, what the program prints on stdout goes to stderr.
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
    if (url := cli.chosen_store()) is not None:
        environment["STEPWISE_STORE"] = url
    command, began = (sys.executable, *program), time.time()
    code = execute(command, "", environment, as_json=as_json)
    if code:
        again = shlex.join(("stepwise", "run", *program))
        cli.note(f"stepwise: stopped (exit code {code}); to resume: {again}")
    if as_json:
        duration = time.time() - began
        cli.echo_json({"command": [*command], "exit_code": code, "duration": duration})
    sys.exit(code)


# -- fork ----------------------------------------------------------------------------------------


@command(
    "Steer",
    "stepwise fork trip-0573 --at 2 --set guests=3\n"
    "stepwise fork trip-0573 --result 'search=\"Hotel Roma\"' --id roma\n"
    "stepwise fork trip-0573 --at 0 --json | jq -r .id",
)
@cli.run_argument()
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
@click.option("--messages", is_flag=True, help="Take along signals that the RUN takes, too.")
def fork(
    run_id: str,
    *,
    at: int | None,
    changes: tuple[str, ...],
    results: tuple[str, ...],
    new_id: str | None,
    messages: bool,
    as_json: bool,
) -> None:
    """Start a new run from a point of a RUN, which stays as it is.

    VALUE is JSON; any other VALUE is taken as text.
    """
    variables = dict(_pair(each, "--set") for each in changes)
    answers: dict[int | str, Any] = {
        int(step) if step.isdecimal() else step: value
        for step, value in (_pair(each, "--result") for each in results)
    }
    run = cli.find_run(run_id)
    made = run.fork(at=at, run_id=new_id, locals=variables, results=answers, messages=messages)
    if as_json:
        cli.echo_json(made.to_dict())
        return
    where, _ = made._goes_on()
    cli.say(made.id)
    cli.note(f"shares {count(made._seen(1).total, 'step')}, resumes {where}:")
    cli.note(f"  stepwise resume {shell_word(made.id)}")


def _pair(text: str, option: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    try:
        return name, parsed_json(value)
    except ValueError:
        return name, value


@command(
    "Steer",
    "stepwise cancel trip-0573\nstepwise cancel trip-0573 --reason 'the customer called it off'",
    short_help="Cancel a RUN, which then cleans up.",
)
@cli.run_argument()
@click.option("--reason", default="", metavar="TEXT", help="What is recorded about it.")
def cancel(run_id: str, *, reason: str, as_json: bool) -> None:
    """Cancel a RUN: it makes only the calls of its clean-up, and ends.

    If no process executes it, it cleans up when its program is started again.
    """
    run = cli.find_run(run_id)
    run.cancel(reason)
    if as_json:
        cli.echo_json({**cli.id_and_status(run), "reason": reason})
        return
    cli.say(f"{run.id} is to be cancelled")
    cli.say_next(run, waited_for=True)
