"""The command that starts the program of a run again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from stepwise._execution.replaying import Request
from stepwise._journal.journal import is_half_adopted, place_of_run
from stepwise._journal.lease import describe_owner
from stepwise._runs.run import Run
from stepwise._runs.steps import command_to_begin, top_facts
from stepwise._runtime import settings
from stepwise._runtime.messages import shell_word
from stepwise._runtime.settings import with_password
from stepwise._values.preview import HIDDEN
from stepwise.errors import ConfigurationError, RunBusyError


def top_of(run: Run) -> Run:
    """Return the run that the program starts: the one above a child run, or its adopted branch."""
    top = top_facts(run.store, run._seal, run._facts())
    return Run(run.store, top.run_id, run._seal)._to_go_on()


def refuse_running(run: Run) -> None:
    """Refuse to start the program of a run that a process executes.

    Raises:
        RunBusyError: the message names the process.
    """
    owner = run.owner
    if owner is not None:
        raise RunBusyError(
            f"run {run.id!r} is being executed {describe_owner(owner)}; to follow it: "
            f"stepwise watch {shell_word(run.id)}",
            run_id=run.id,
            owner=owner,
        )


def can_resume(run: Run) -> bool:
    """Return whether a run has anything to resume, which is so unless it has completed.

    A cancelled run resumes, as with :meth:`Run.resume`: somebody asks for this very run.

    Raises:
        RunBusyError: a process executes the run.
    """
    refuse_running(run)
    return run.status != "completed"


def environment_for(run: Run) -> dict[str, str]:
    """Return the environment variables by which a started program finds its run.

    The program of a branch makes no side effect outside of it, either.
    """
    found = {"STEPWISE_RESUME": run.id, "STEPWISE_STORE": with_password(run.store.url)}
    facts = run._facts()
    if facts.is_branch and not is_half_adopted(run.store, run._seal, facts):
        found[settings.IN_BRANCH] = run.id
    return found


def to_debug(run: Run, folder: str, **asked: Any) -> tuple[Request, dict[str, str]]:
    """Return how a program is started to open a run in a debugger, and its environment.

    A run that has no command line is opened by importing the module of its workflow here.

    Args:
        folder: a private folder.
        asked: as for :class:`.looking.Request`.

    Raises:
        ConfigurationError: the program is gone, or unknown.
    """
    program, place = run.program, place_of_run(run._facts())
    if (program is not None and program.command) or os.path.isabs(place):
        command, cwd = start_command(run)
    else:
        words = f"{place!r}, {run.id!r}, {with_password(run.store.url)!r}"
        source = f"from stepwise._workflows.handles import debug_module; debug_module({words})"
        command, cwd = (sys.executable, "-c", source), os.getcwd()
    request = Request(run.id, folder, command, cwd, **asked)
    quiet = {"STEPWISE_PROGRESS": "0"}
    return request, {**environment_for(run), **request.environment(), **quiet}


def check_start(run: Run) -> None:
    """Refuse to start the recorded command of a run if records are not trusted.

    Raises:
        ConfigurationError: ``trust="data"`` is set.
    """
    if settings.trusts_data_only():
        raise ConfigurationError(
            "trust='data' starts no command line of a record, which somebody else with the key may "
            "have written. Start the program yourself, or without STEPWISE_TRUST=data. If it does "
            f"not find the run, set STEPWISE_RESUME={shell_word(run.id)}"
        )


def launch(run: Run, **how: Any) -> subprocess.Popen[bytes]:
    """Start the program of a run, and return its process.

    Args:
        how: the arguments of ``Popen``, such as ``stdout``.

    Raises:
        ConfigurationError: the program cannot be started; the message says why.
    """
    command, folder = start_command(run)
    check_start(run)
    environment = {**os.environ, **environment_for(run)}
    try:
        return subprocess.Popen(command, cwd=folder or None, env=environment, **how)  # noqa: S603
    except OSError as error:
        raise ConfigurationError(
            f"the program cannot be started: {error}. It is: {shlex.join(command)}"
        ) from error


def start_command(run: Run) -> tuple[tuple[str, ...], str]:
    """Return the command that starts the program of a run, and the folder to start it in.

    Raises:
        ConfigurationError: the program is gone, or was not started from a command line.
    """
    program = run.program
    if run._facts().is_submitted:
        raise ConfigurationError(
            f"run {run.id!r} was submitted, and has not begun: {command_to_begin(run._facts())} "
            f"begins it, and so does {run.label}({run.arguments}) with .options(run_id={run.id!r})"
        )
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
