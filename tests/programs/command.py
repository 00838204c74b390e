"""The command line, in a process of its own."""

import contextlib
import os
import subprocess
import sysconfig

COMMAND = os.path.join(sysconfig.get_path("scripts"), "stepwise")


def process(*arguments, **env):
    """``stepwise ...``, to its end."""
    return subprocess.run(
        [COMMAND, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
