"""W7: what a workflow adds to steps that take 10 ms, 100 ms and 1 s.

The workflow holds 100 KB of local variables, a list of messages, and takes a checkpoint at every
step as by default.  It is compared, in turn, with the same loop without stepwise.  The processor
time that a step costs more is told as well: the part that other users of the disk do not change.
So is the limit: the loop with one plain SQLite insert of each result, which waits for the disk too.
After a pause that insert alone takes several times as long as in a loop of nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import pickle
import sqlite3
import time
from collections.abc import Callable

import common

import stepwise

_SIZE = 100_000
# seconds of a step, how many of them, the most that a run may take of the plain loop's time
_KINDS = ((0.010, 100, 1.05), (0.100, 20, 1.01), (1.0, 4, 1.001))
_serial = itertools.count()


def wait(number: int, seconds: float) -> dict[str, object]:
    time.sleep(seconds)
    return {"role": "assistant", "content": f"{number:08d} " * 10, "tokens": number}


recorded = stepwise.step(wait)


def talk() -> list[dict[str, object]]:
    """Messages of about 100 KB."""
    return [
        {"role": "user" if n % 2 else "assistant", "content": f"{n:08d} " * 110, "tokens": n}
        for n in range(_SIZE // 1000)
    ]


@stepwise.workflow
def agent(count: int, seconds: float) -> int:
    messages = talk()
    for number in range(count):
        messages.append(recorded(number, seconds))
    return len(messages)


def plain(count: int, seconds: float) -> int:
    messages = talk()
    for number in range(count):
        messages.append(wait(number, seconds))
    return len(messages)


def inserting(path: pathlib.Path) -> Callable[[int, float], int]:
    """The same loop; each result is inserted, and on the disk before the next step."""
    database = sqlite3.connect(path / f"raw{next(_serial)}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE results (number INTEGER PRIMARY KEY, value BLOB)")

    def talking(count: int, seconds: float) -> int:
        messages = talk()
        for number in range(count):
            messages.append(wait(number, seconds))
            row = (number, pickle.dumps(messages[-1], 5))
            database.execute("INSERT INTO results VALUES (?, ?)", row)
        return len(messages)

    return talking


def _each(function: Callable[[int, float], int], count: int, seconds: float) -> tuple[float, float]:
    """Milliseconds per step: of the clock, of the processor."""
    began, used = time.perf_counter(), time.process_time()
    function(count, seconds)
    took, spent = time.perf_counter() - began, time.process_time() - used
    return took / count * 1e3, spent / count * 1e3


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows = []
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        store = f"disk:{path / 'store'}"
        agent.options(store=store, run_id="first")(2, 0.0)  # opens the store
        for seconds, usual, limit in _KINDS[: 2 if arguments.quick else None]:
            added: list[float] = []
            count = usual // 5 if arguments.quick else usual
            rows.append(_row(store, seconds, count, limit, added, arguments.rounds))
            rows.append(_limit(path, seconds, count, arguments.rounds))
    return rows


def _limit(path: pathlib.Path, seconds: float, count: int, rounds: int) -> common.Row:
    return common.compare(
        f"steps of {seconds * 1e3:.0f} ms, one plain insert each",
        "ms",
        lambda: _each(inserting(path), count, seconds)[0],
        lambda: _each(plain, count, seconds)[0],
        "without it",
        rounds=rounds,
    )


def _row(
    store: str, seconds: float, count: int, limit: float, added: list[float], rounds: int
) -> common.Row:
    spent: dict[str, float] = {}

    def ours() -> float:
        run = agent.options(store=store, run_id=f"measured {next(_serial)}")
        took, spent["ours"] = _each(run, count, seconds)
        return took

    def theirs() -> float:
        took, spent["plain"] = _each(plain, count, seconds)
        return took

    def noted(function: Callable[[], float]) -> float:
        took = function()
        if len(spent) == 2:
            added.append(spent.pop("ours") - spent.pop("plain"))
        return took

    row = common.compare(
        f"steps of {seconds * 1e3:.0f} ms",
        "ms",
        lambda: noted(ours),
        lambda: noted(theirs),
        "without stepwise",
        rounds=rounds,
        limit=limit,
    )
    note = f"{common.Spread.of(added)} ms of processor time added to a step"
    return common.Row(row.what, row.ours, row.unit, row.ratio, row.other, row.limit, note)


if __name__ == "__main__":
    common.main(measure, "W7: what a workflow adds to its steps")
