"""A function in a child process, which cannot harm the command that asks for its answer."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


def answers_of(
    function: Callable[[], Iterator[Any]], *, seconds: float | None = None, silent: bool = False
) -> Iterator[Any]:
    """Yield what a function yields in a forked process, as JSON; the text of its death comes last.

    What the function prints on stdout goes nowhere.

    Args:
        seconds: how long an answer may take; then the process is killed.
        silent: drop stderr, too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _answer(function, writing, silent=silent)
    os.close(writing)
    why = ""
    with open(reading, encoding="utf-8") as pipe:
        while not why:
            if not select.select([pipe], [], [], seconds)[0]:
                os.kill(pid, signal.SIGKILL)
                why = f"it took longer than {seconds:.0f} s"
            elif line := pipe.readline():
                yield json.loads(line)
            else:
                break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        yield why or f"its process ended with {code}"


def _answer(function: Callable[[], Iterator[Any]], writing: int, *, silent: bool) -> None:
    """Write the answers into a pipe, and exit."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2) if silent else (0, 1):
        os.dup2(nowhere, each)
    code = 1
    try:
        with open(writing, "w", encoding="utf-8") as pipe:
            for answer in function():
                pipe.write(f"{json.dumps(answer)}\n")
                pipe.flush()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)
