"""The IPython extension ``%load_ext stepwise``: cells that are steps, and a look at runs.

``%%step`` makes a cell a step of the notebook's run: its variables and its output are recorded.  A
restarted kernel that runs all cells again skips the cell, as long as neither its code nor its
inputs have changed.  ``%stepwise runs``, ``show``, ``forget`` and ``locals`` look at runs, and
``%stepwise debug`` opens one in a debugger; ``%resume`` takes over the variables of a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepwise._runs.run import Run, Runs, find_run, runs
from stepwise._runtime.messages import count, notice
from stepwise._workflows.handles import debug_here
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError

try:
    from IPython.core.error import UsageError
except ImportError as error:
    raise ConfigurationError(
        "stepwise in notebooks needs IPython: pip install 'stepwise-agents[notebook]'"
    ) from error

from stepwise.notebook._magics import ATTRIBUTE, Notebook, StepMagic

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_USAGE = """%stepwise COMMAND

  runs [STATUS]        the runs in the store, newest first
  show [RUN]           a run and its steps; by default this notebook's
  forget RUN [STEP]    delete a run; or make one of its steps run again
  locals RUN           the variables at its last checkpoint
  debug RUN [STEP]     a debugger in the frame where it stopped; or after STEP steps at most

RUN is an id, the beginning of one, or . for the run of this notebook."""
_COMMANDS = {
    "runs": (0, 1),
    "show": (0, 1),
    "forget": (1, 2),
    "locals": (1, 1),
    "debug": (1, 2),
}  # words after


def load_ipython_extension(shell: Any) -> None:
    """Define the magics; IPython calls this for ``%load_ext stepwise``."""
    steps = StepMagic(shell)
    looks = _Looks(shell, steps.notebook)
    setattr(shell, ATTRIBUTE, steps)
    shell.register_magic_function(steps.step, "cell", "step")
    shell.register_magic_function(looks.stepwise, "line", "stepwise")
    shell.register_magic_function(looks.resume, "line", "resume")
    shell.input_transformers_cleanup.append(steps.await_steps)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; IPython calls this for ``%unload_ext stepwise``."""
    steps: StepMagic = getattr(shell, ATTRIBUTE)
    shell.input_transformers_cleanup.remove(steps.await_steps)
    for kind, name in (("cell", "step"), ("line", "stepwise"), ("line", "resume")):
        shell.magics_manager.magics[kind].pop(name, None)
    delattr(shell, ATTRIBUTE)


class _Looks:
    """The line magics.

    Args:
        shell: IPython's shell.
        notebook: the run of this notebook.
    """

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        self._shell = shell
        self._notebook = notebook

    def stepwise(self, line: str) -> Any:
        """Look at runs, or forget runs or steps: ``%stepwise``."""
        command, *words = shlex.split(line) or ["runs"]
        least, most = _COMMANDS.get(command, (0, -1))
        if not least <= len(words) <= most:
            raise UsageError(_USAGE)
        if command == "runs":
            status: Any = words[0] if words else None
            return Runs(run for run in runs(status=status) if run.parent is None)
        with _as_usage():
            run = self._find(words[0] if words else ".")
            if command == "locals":
                return run._shown_locals()
            if command == "show":
                return run
            if command == "debug":
                return _debug(run, *map(_number, words[1:]))
            if len(words) == 2:
                run.forget(words[1])
                notice(f"step {words[1]} of {run.id} will run again")
            else:
                run.delete()
                notice(f"{run.id} is deleted")
        return None

    def resume(self, line: str) -> None:
        """Take over the variables at the last checkpoint of a run: ``%resume RUN``.

        Args:
            line: RUN is an id, or the beginning of one.
        """
        if len(shlex.split(line)) != 1:
            raise UsageError("%resume RUN: name a run; %stepwise runs lists them")
        with _as_usage():
            run = self._find(shlex.split(line)[0])
            variables = run.locals()
        self._shell.user_ns.update(variables)
        last = [each for each in run.checkpoints if each.verified][-1]
        notice(
            f"{run.id} {run.status}: its variables after {count(last.step, 'step')}, at "
            f"{last.position}, are here: {', '.join(variables) or 'none'}"
        )

    def _find(self, name: str) -> Run:
        return self._notebook.run() if name in (".", self._notebook.run_id) else find_run(name)


def _number(word: str) -> int:
    if not word.isdecimal():
        raise UsageError(_USAGE)
    return int(word)


def _debug(run: Run, at: int = -1) -> Any:
    """Open a run in a debugger; return its result, or ``None`` if the debugger was left."""
    try:
        return debug_here(run, at=at)
    except RunStopped as stop:
        if type(stop) is not RunStopped:  # the run went on, and stopped by itself
            raise
        notice(f"{stop}")
        return None


@contextmanager
def _as_usage() -> Iterator[None]:
    """Show errors of stepwise without a traceback."""
    try:
        yield
    except StepwiseError as error:
        raise UsageError(str(error)) from None
