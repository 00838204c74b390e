"""The evaluation of an expression over the variables of a checkpoint, in a process of its own.

The expression may do anything, so the server offers this only on request, and neither an endless
loop nor ``os._exit`` ends the server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from stepwise._runs.paths import short
from stepwise._runs.run import Run, get_run
from stepwise._runs.starting import environment_for
from stepwise._values.preview import error_text
from stepwise.errors import ConfigurationError

_SECONDS = 20  # that an expression may take
_LONGEST = 6000  # characters of a result


def evaluate(run: Run, expression: str, at: int | None) -> dict[str, str]:
    """Evaluate an expression; return its text as ``value``, or ``error``.

    Args:
        run: the run whose variables the expression sees.
        expression: a Python expression.
        at: a number of steps, as :meth:`Run.locals` takes it.

    Raises:
        ConfigurationError: the expression did not end in time, or ended its process.
    """
    program = run.program
    folder = program.cwd if program is not None and os.path.isdir(program.cwd) else None
    with subprocess.Popen(
        [sys.executable, "-m", "stepwise.mcp._evaluation"],
        cwd=folder,
        env={**os.environ, **environment_for(run)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            asked = {"run": run.id, "expression": expression, "at": at}
            told, _ = process.communicate(json.dumps(asked), _SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise ConfigurationError(
                f"the expression was ended after {_SECONDS} s: evaluate a smaller part"
            ) from None
    try:
        found: dict[str, str] = json.loads(told)
    except ValueError:
        raise ConfigurationError(
            f"the process of the expression ended with the exit code {process.returncode}"
        ) from None
    return found


def _main() -> None:
    """Answer the request on stdin."""
    asked = json.loads(sys.stdin.read())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the expression prints is no part of the answer
    names = get_run(asked["run"])._shown_locals(asked["at"])
    try:
        value = eval(asked["expression"], names)  # noqa: S307 -- asked for, and said
        found = {"value": short(value, "value", _LONGEST // 2).text}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error_text(error)}"[:_LONGEST]}
    with answers:
        json.dump(found, answers)


if __name__ == "__main__":
    _main()
