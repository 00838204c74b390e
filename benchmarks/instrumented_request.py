"""What ``stepwise.instrument()`` adds to a request to a model.

The same requests by the OpenAI SDK, plain and inside a run, in turn; the server is another process.
A run is in a folder on the disk, as a user has it.  In a loop of one's own, each request is a
statement of the workflow, with a checkpoint; in a framework's loop all of them are one statement.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import common

import stepwise

SERVER = common.HERE.parent / "tests" / "frameworks" / "scripted_server.py"
_serial = itertools.count()
_client = None


def request(number: int) -> int:
    messages = [{"role": "user", "content": f"question {number}: " + "word " * 200}]
    completion = _client.chat.completions.create(model="gpt-4o", messages=messages)
    return len(completion.choices[0].message.tool_calls)


def plain(count: int) -> int:
    found = 0
    for number in range(count):
        found += request(number)
    return found


@stepwise.workflow
def own_loop(count: int) -> int:
    found = 0
    for number in range(count):
        found += request(number)
    return found


@stepwise.workflow
def other_loop(count: int) -> int:
    return plain(count)


def milliseconds(call: Callable[[int], int], count: int, clock: Callable[[], float]) -> float:
    began = clock()
    assert call(count) == count
    return (clock() - began) * 1e3 / count


def added(
    what: str,
    workflow,
    path: pathlib.Path,
    arguments: argparse.Namespace,
    *,
    durability: str,
    limit: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> common.Row:
    """Measure plain and recorded requests in turn; the figure is the difference."""
    count = 30 if arguments.quick else 300
    run = workflow.options(store=f"disk:{path / f'store{next(_serial)}'}", durability=durability)
    run.options(run_id="first")(1)  # opens the store
    plain(1)
    pairs = []
    for turn in range(arguments.rounds):
        pair = {}
        for instrumented in (False, True) if turn % 2 else (True, False):
            call = run.options(run_id=f"run{turn}") if instrumented else plain
            pair[instrumented] = milliseconds(call, count, clock)
        pairs.append((pair[True], pair[False]))
    return common.Row(
        what,
        common.Spread.of([ours - other for ours, other in pairs]),
        "ms more",
        other=f"a plain request: {common.Spread.of([other for _, other in pairs])} ms",
        limit=limit,
    )


def flushed(path: pathlib.Path, arguments: argparse.Namespace) -> common.Row:
    """Measure a bare fsync of the same file system, after a write of a page."""
    values = []
    with open(path / "flushed", "wb") as file:
        for _ in range(10 * arguments.rounds):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            values.append((time.perf_counter() - began) * 1e3)
    return common.Row("a bare fsync, for comparison", common.Spread.of(values), "ms")


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    global _client  # noqa: PLW0603 -- as in a program
    import openai

    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        subprocess.Popen(
            [sys.executable, str(SERVER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
        common.folder() as path,
    ):
        url = server.stdout.readline().strip()
        warnings.filterwarnings("ignore", message="20 steps were called")  # one statement, meant
        _client = openai.OpenAI(api_key="none", base_url=f"{url}/v1")
        stepwise.instrument()
        cpu = time.process_time
        rows = [
            added("framework's loop, os", other_loop, path, arguments, durability="os", limit=1.0),
            added("own loop, os", own_loop, path, arguments, durability="os", limit=1.0),
            added(
                "framework's loop, os, processor time",
                other_loop, path, arguments, durability="os", clock=cpu,
            ),
            added(
                "own loop, os, processor time",
                own_loop, path, arguments, durability="os", clock=cpu,
            ),
            added("framework's loop, fsync", other_loop, path, arguments, durability="fsync"),
            added("own loop, fsync", own_loop, path, arguments, durability="fsync"),
            flushed(path, arguments),
        ]  # fmt: skip
        stepwise.uninstrument()
        server.stdin.close()
    return rows


if __name__ == "__main__":
    common.main(measure, "An instrumented request to a model")
