"""The command that starts the program of a run again."""

from __future__ import annotations

import os
import sys

from stepwise._runs.run import Run
from stepwise._runtime.messages import shell_word
from stepwise._values.secrets import HIDDEN
from stepwise.errors import ConfigurationError

__all__ = ["start_command"]


def start_command(run: Run) -> tuple[tuple[str, ...], str]:
    """Return the command that starts the program of a run, and the folder to start it in.

    Raises:
        ConfigurationError: the program is gone, or was not started from a command line.
    """
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
    raise ConfigurationError(
        f"the program of run {run.id!r} cannot be started from here: {why}. Start it yourself (in "
        f"a notebook, run the cell): the call {run.label}({run.arguments}) resumes. If it "
        f"does not find the run, set STEPWISE_RESUME={shell_word(run.id)}"
    )
