"""The command line, in a process of its own."""

import contextlib
import os
import subprocess

from click.testing import CliRunner
from harness import COMMAND, python

from stepwise import cli

__all__ = ["COMMAND", "process", "run", "terminal", "waiting"]


def run(*arguments, **options):
    """What ``stepwise ...`` does in this process: exit code, and what it says."""
    return CliRunner().invoke(cli.main, arguments, **options)


def process(*arguments, **env):
    """``stepwise ...``, to its end."""
    return python("stepwise", *arguments, env={**os.environ, **env})


def terminal(*commands, text="", **env):
    """Commands like ``["stepwise", "runs"]`` on a terminal, one after the other, to the last one.

    What would start an interpreter in the terminal is ``stepwise`` in that process.
    """
    source = f"""
import os, pty, sys
import stepwise.cli

def become(_, *words):
    sys.argv = [*words]
    stepwise.cli.run()

os.execlp = become
for each in {commands!r}:
    code = pty.spawn(each)
sys.exit(os.waitstatus_to_exitcode(code))
"""
    return python("-c", source, text=text, env={**os.environ, **env})


@contextlib.contextmanager
def waiting(*arguments, command=(COMMAND,), **env):
    """``stepwise ...`` with a program that has printed ``waiting`` and waits for a line."""
    with subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        while started.stdout.readline().strip() != "waiting":
            pass
        yield started
