"""Open a run in a debugger: at a prompt, or for an editor."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile

import click

import stepwise
from stepwise._execution.looking import Request
from stepwise._runs.starting import check_start, environment_for, start_command
from stepwise._runtime.messages import shell_word
from stepwise.cli._command import command, echo_json, find_run, note, run_argument
from stepwise.cli.steer import execute


@command(
    "Steer",
    "stepwise debug trip-0573\n"
    "stepwise debug trip-0573 --at 4  # the newest kept checkpoint after 4 steps or fewer\n"
    "stepwise debug trip-0573 --listen 5678  # for VS Code, PyCharm\n"
    "stepwise debug trip-0573 --step 5  # the body of a step that failed",
    short_help="Open a RUN in a debugger, in the frame where it stopped.",
)
@run_argument()
@click.option(
    "--at", type=click.IntRange(0), metavar="STEP", help="After this many steps, or fewer."
)
@click.option(
    "--listen",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Wait for an editor, on this machine (extra debug).",
)
@click.option(
    "--step", type=click.IntRange(1), metavar="STEP", help="Execute a step's body, outside of it."
)
@click.option("--replay", is_flag=True, help="Execute the code from the checkpoint to --at.")
@click.option("--allow", multiple=True, metavar="NAME", help="Let a step be executed once.")
def debug(
    run_id: str,
    *,
    at: int | None,
    port: int | None,
    step: int | None,
    replay: bool,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Open a RUN in a debugger, in the frame where it stopped, with its variables.

    The program of the run is started, as stepwise resume does.  Nothing is recorded until the
    prompt is told to continue.  What is typed at the prompt is executed; steps are answered by the
    journal or refused.  The exit code is that of the program.
    """
    run = find_run(run_id)
    if port is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a prompt needs a terminal; for an editor: --listen PORT")
    if port is not None and importlib.util.find_spec("debugpy") is None:
        raise stepwise.ConfigurationError(
            "--listen needs debugpy: pip install 'stepwise-agents[debug]'"
        )
    if port is not None and (replay or step):
        raise click.UsageError("--listen excludes --replay and --step, which need a prompt")
    if run.parent is not None:
        raise stepwise.ConfigurationError(
            f"run {run.id!r} is a child run, whose frame is inside that of its parent: "
            f"stepwise debug {shell_word(run.parent)}, and step goes into the call"
        )
    if replay:
        click.confirm(
            "The code between the checkpoint and the step is executed again, with recorded "
            "results. Does it act on nothing outside but through steps?",
            abort=True,
            err=True,
        )
    check_start(run)
    words, folder = start_command(run)
    with tempfile.TemporaryDirectory(prefix="stepwise-debug-") as private:
        request = Request(
            run.id,
            private,
            words,
            folder,
            at=-1 if at is None else at,
            port=port or 0,
            step=step or 0,
            replay=replay,
            allow=allow,
        )
        environment = environment_for(run) | request.environment() | {"STEPWISE_PROGRESS": "0"}
        code = execute(words, folder, environment, as_json=as_json)
        if not os.path.exists(request.sign) and not code:
            note(
                f"stepwise: the program ended without a call of run {run.id!r}: does it still call "
                f"{run.label} with the same arguments?"
            )
            code = 1
    if as_json:
        echo_json({**run.to_dict(), "command": [*words], "cwd": folder, "exit_code": code})
    sys.exit(code)
