"""Open a run in a debugger: at a prompt, or for an editor."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._runs.starting import check_start, to_debug
from stepwise._runtime.messages import shell_word
from stepwise.cli import _command as cli
from stepwise.cli.steer import execute


@cli.command(
    "Steer",
    "stepwise debug trip-0573\n"
    "stepwise debug trip-0573 --at 4  # at most 4 steps were done\n"
    "stepwise debug trip-0573 --listen 5678  # for an editor\n"
    "stepwise debug trip-0573 --step 5  # the body of a failed step",
    short_help="Open a RUN in a debugger, in the frame where it stopped.",
)
@cli.run_argument(required=False)
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After so many steps, or fewer.")
@click.option(
    "--listen",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Wait for an editor, on this machine (extra debug).",
)
@click.option(
    "--step", type=click.IntRange(1), metavar="STEP", help="Execute a step's body, outside the RUN."
)
@click.option("--replay", is_flag=True, help="Execute the code from the checkpoint on again.")
@click.option("--allow", multiple=True, metavar="NAME", help="Let a step be executed once.")
def debug(run_id: str | None, *, port: int | None, as_json: bool, **asked: Any) -> None:
    """Open a RUN in a debugger, in the frame where it stopped; without RUN, the latest run.

    The program of the run is started, as stepwise resume does.  Nothing is recorded until the
    prompt is told to continue.  What is typed at the prompt is executed; steps are answered by the
    journal, or refused.  The exit code is that of the program.

    --replay stops before the step that follows --at, or where the recorded results end.  It
    executes the code between the steps, once you have agreed.
    """
    run = cli.find_run(run_id)
    _check(run, port, asked)
    if asked["replay"]:
        question = (
            "The code from the checkpoint on is executed again, and recorded results answer its "
            "steps. Does it act outside only through steps?"
        )
        click.confirm(question, abort=True, err=True)
    asked = {name: value for name, value in asked.items() if value is not None}
    with tempfile.TemporaryDirectory(prefix="stepwise-debug-") as folder:
        request, environment = to_debug(run, folder, port=port or 0, **asked)
        code = execute(request.command, request.cwd, environment, as_json=as_json)
        if not os.path.exists(request.sign) and not code:
            cli.note(
                f"stepwise: the program ended without a call of run {run.id!r}: does it still call "
                f"{run.label} with the same arguments?"
            )
            code = 1
    if as_json:
        cli.echo_json({**run.to_dict(), "exit_code": code})
    sys.exit(code)


def _check(run: Run, port: int | None, asked: dict[str, Any]) -> None:
    """Refuse what cannot be opened.

    Raises:
        click.UsageError: there is no terminal, or two options exclude each other.
        ConfigurationError: the message says what to do instead.
    """
    if port is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a prompt needs a terminal; for an editor: --listen PORT")
    if port is not None and (asked["replay"] or asked["step"]):
        raise click.UsageError("--replay and --step need a prompt: leave out --listen")
    if port is not None and importlib.util.find_spec("debugpy") is None:
        raise stepwise.ConfigurationError(
            "--listen needs debugpy: pip install 'stepwise-agents[debug]'"
        )
    if run.parent is not None:
        raise stepwise.ConfigurationError(
            f"run {run.id!r} is a child run, whose frame is inside the frame of its parent: "
            f"stepwise debug {shell_word(run.parent)}, and step enters the call"
        )
    number = asked["step"]
    if number is not None:
        found = [each for each in run.steps if each.number == number]
        if not found or found[0].status == "completed":
            why = "has completed" if found else "is not on record"
            raise stepwise.ConfigurationError(
                f"step {number} of run {run.id!r} {why}: only a step that the run would make again "
                f"can be entered. Its steps: stepwise show {shell_word(run.id)}"
            )
    check_start(run)
