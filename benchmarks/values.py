"""W4: a large value, as the result of a step and as a local variable in a checkpoint.

Saving is compared with ``pickle.dumps(protocol=5)``, write and fsync of the same value, in turn, a
new file each time.  A result: from the return of the step's body until the workflow has it.  A
checkpoint: from the return of a small step until the body of the next one is entered; the variable
has not changed at the *second* checkpoint, which may put it into chunks, and at those *later*.  The
most memory is that of a child process, over what it took before it made the value, for one save;
the value itself is a part of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import common

import stepwise

_LIMIT = 1.3
_MEMORY = 1.2
_times: list[float] = []
_made: list[Any] = []


def make(kind: str, size: int) -> Any:
    """A value of about ``size`` bytes."""
    if kind == "bytes":
        return os.urandom(size)
    if kind == "array":
        import numpy as np

        return np.random.default_rng(7).random(size // 8)
    return [
        {"role": "user", "content": f"{n:08d} " * 110, "tokens": n} for n in range(size // 1000)
    ]


@stepwise.step
def give(kind: str, size: int) -> Any:
    _times.append(time.perf_counter())
    return _made[-1]


@stepwise.step
def small(number: int) -> int:
    _times.append(time.perf_counter())
    return number


@stepwise.workflow(checkpoint_every=1_000_000)
def results(kind: str, size: int) -> float:
    give(kind, size)
    _times.append(time.perf_counter())
    return 0.0


@stepwise.workflow(checkpoint_every=1)
def variables(kind: str, size: int) -> int:
    value = _made[-1]
    for number in range(5):
        small(number)
    return len(value)


def result(kind: str, size: int) -> float:
    """Milliseconds to save a result."""
    _times.clear()
    results.options(fresh=True)(kind, size)
    return (_times[1] - _times[0]) * 1e3


def checkpoints(kind: str, size: int) -> tuple[float, float, float]:
    """Milliseconds of the first checkpoint that holds the value, the second, and those after."""
    _times.clear()
    variables.options(fresh=True)(kind, size)
    first, second, *later = ((b - a) * 1e3 for a, b in itertools.pairwise(_times))
    return first, second, statistics.median(later)


def memory(kind: str, size: int, how: str) -> float:
    """In a child: the most memory, over the value's size."""
    make(kind, 1000)
    _made.append(b"x")
    save = {"result": result, "checkpoint": checkpoints, "plain": _plainly}[how]
    save("warm", 1)
    before = common.peak()
    _made.append(make(kind, size))
    save(kind, size)
    return (common.peak() - before) * 1e6 / size


def _plainly(_kind: str, _size: int) -> float:
    return common.pickled(_made[-1], pathlib.Path(os.environ["STEPWISE_HOME"]))


def _memory(kind: str, size: int, how: str) -> float:
    with common.folder() as path:
        said = common.child(__file__, "memory", kind, str(size), how, STEPWISE_HOME=str(path))
    return float(said)


def _rows(kind: str, size: int, rounds: int, path: pathlib.Path) -> list[common.Row]:
    _made[:] = [make(kind, size)]
    name = f"{size / 1e6:g} MB of {'a list of dicts' if kind == 'dicts' else kind}"
    seconds: list[float] = []
    laters: list[float] = []

    def checkpoint() -> float:
        first, second, later = checkpoints(kind, size)
        seconds.append(second)
        laters.append(later)
        return first

    rows = []
    for what, ours in (("result", lambda: result(kind, size)), ("checkpoint", checkpoint)):
        row = common.compare(
            f"{name}, {what}",
            "ms",
            ours,
            lambda: common.pickled(_made[-1], path),
            "pickle, write, fsync",
            rounds=rounds,
            limit=_LIMIT,
        )
        rows.append(row)
    second, later = common.Spread.of(seconds), common.Spread.of(laters)
    note = f"unchanged, the second: {second} ms; later ones: {later} ms"
    return [rows[0], dataclasses.replace(rows[1], note=note)]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    sizes = (1_000_000,) if arguments.quick else (1_000_000, 10_000_000, 100_000_000)
    rounds = min(3, arguments.rounds)
    rows = []
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        for kind in ("bytes", "array", "dicts"):
            for size in sizes:
                rows += _rows(kind, size, rounds if size < 100_000_000 else 1, path)
        _made.clear()
    size = 10_000_000 if arguments.quick else sizes[-1]
    for kind in ("bytes",) if arguments.quick else ("bytes", "array", "dicts"):
        for how in ("result", "checkpoint"):
            other = common.Spread.of([_memory(kind, size, "plain")])
            rows.append(
                common.Row(
                    f"the most memory over the size of {size / 1e6:g} MB, {kind}, {how}",
                    common.Spread.of([_memory(kind, size, how)]),
                    "x",
                    other=f"pickle, write, fsync: {other} x",
                    limit=None if kind == "dicts" else _MEMORY,
                )
            )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        print(memory(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
    else:
        common.main(measure, "W4: large values")
