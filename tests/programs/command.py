"""The command line, in a process of its own."""

import contextlib
import os
import subprocess

from harness import COMMAND, python

__all__ = ["COMMAND", "process", "waiting"]


def process(*arguments, **env):
    """``stepwise ...``, to its end."""
    return python("stepwise", *arguments, env={**os.environ, **env})


@contextlib.contextmanager
def waiting(*arguments, **env):
    """``stepwise ...`` with a program that has printed ``waiting`` and waits for a line."""
    with subprocess.Popen(
        [COMMAND, *arguments],
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
