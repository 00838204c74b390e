"""What one checkpoint costs, by the size of the local variables.

Local variables are what an agent holds: a list of messages, each a dict with a text of 1 KB.  The
time that a statement boundary spends on its checkpoint is compared with ``pickle.dumps``, write and
fsync of the same list into a file, in turn.  (Up to 64 KB, the next record's commit then takes the
checkpoint into the database; that part is in the figures of ``steps.py``.)
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import time
from unittest import mock

import common

import stepwise
from stepwise._workflows.frame import WorkflowFrame

_SIZES = (1_000, 100_000, 1_000_000, 4_000_000, 10_000_000)
_REPEAT = 30
_LIMITS = {4_000_000: 50.0}  # milliseconds
_times: list[float] = []
_save = WorkflowFrame.save


def _timed(*arguments: object) -> None:
    began = time.perf_counter()
    _save(*arguments)
    _times.append((time.perf_counter() - began) * 1e3)


def talk(size: int) -> list[dict[str, object]]:
    """Messages of about ``size`` bytes."""
    return [
        {"role": "user" if n % 2 else "assistant", "content": f"{n:08d} " * 110, "tokens": n}
        for n in range(max(1, size // 1000))
    ]


@stepwise.step
def think(number: int) -> int:
    return number


@stepwise.workflow(checkpoint_every=1)
def agent(size: int) -> int:
    messages = talk(size)
    for number in range(_REPEAT):
        think(number)
    return len(messages)


def checkpoints(size: int) -> list[float]:
    """Milliseconds of each checkpoint of a run."""
    _times.clear()
    with mock.patch.object(WorkflowFrame, "save", _timed):
        agent.options(fresh=True)(size)
    return list(_times)


def files(messages: list[dict[str, object]], path: pathlib.Path) -> list[float]:
    """Milliseconds of pickle, write and fsync."""
    return [common.pickled(messages, path) for _ in range(_REPEAT)]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows = []
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        for size in _SIZES[: 2 if arguments.quick else None]:
            messages, tails = talk(size), []

            def ours(size: int = size, tails: list[float] = tails) -> float:
                found = checkpoints(size)
                tails.append(statistics.quantiles(found, n=20)[-1])
                return statistics.median(found)

            def theirs(messages: list[dict[str, object]] = messages) -> float:
                return statistics.median(files(messages, path))

            row = common.compare(
                f"a checkpoint of {size / 1000:,.0f} KB",
                "ms (p50)",
                ours,
                theirs,
                "pickle, write, fsync",
                rounds=arguments.rounds,
            )
            limit = _LIMITS.get(size)
            note = f"p95 {common.Spread.of(tails)} ms"
            if limit is not None:
                note += f", p50 {'within' if row.ours.median <= limit else 'MISSES'} {limit:g} ms"
            rows.append(common.Row(row.what, row.ours, row.unit, row.ratio, row.other, note=note))
    return rows


if __name__ == "__main__":
    common.main(measure, "The cost of a checkpoint")
