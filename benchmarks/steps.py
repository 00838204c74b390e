"""W1: what a step costs, against a plain SQLite insert of the same bytes with their digest.

One process runs both in turn, each in a new database: 1,000 steps with results of 1 KB, a
checkpoint at every step as by default, and 1,000 inserts that wait for the disk (``fsync``) or do
not (``os``).  Processor time is told as well: the part that other users of the disk do not change;
so is what a step writes, its log included.  Flushes are counted in processes of their own.

Steps that are methods of an agent are compared with plain steps of the same process: what the agent
holds is looked at before and after each of them, and so is what a step gets as an argument.  Two
sizes have a limit of their own: 5,000 messages of 1 KB, and a table of 50 MB.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import hmac
import importlib.util
import itertools
import os
import pathlib
import pickle
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import common

import stepwise

_BYTES = 1024
_KILOBYTES = 6
_MESSAGES = 5000
_TABLE = 50_000_000  # bytes
_serial = itertools.count()


@stepwise.step
def think(number: int) -> bytes:
    return number.to_bytes(4, "big") * (_BYTES // 4)


@stepwise.tool(side_effect=True)
def send(number: int) -> bytes:
    return number.to_bytes(4, "big") * (_BYTES // 4)


@stepwise.workflow
def thinking(count: int) -> int:
    size = 0
    for number in range(count):
        size += len(think(number))
    return size


@stepwise.workflow
def sending(count: int) -> int:
    size = 0
    for number in range(count):
        size += len(send(number))
    return size


def _message(role: str, number: int, size: int = 0) -> dict[str, str]:
    return {"role": role, "content": f"message {number}".ljust(size)}


class Agent:
    """An agent of ordinary make."""

    def __init__(self, messages: int, size: int = 0) -> None:
        self.model = "large"
        self.temperature = 0.5
        self.created = time.time()
        self.limits = {"tokens": 4096, "calls": 100}
        self.history = [_message("user", n, size) for n in range(messages)]
        self.calls = 0

    @stepwise.step
    def ask(self, number: int) -> bytes:
        return number.to_bytes(4, "big") * (_BYTES // 4)

    @stepwise.step
    def converse(self, number: int) -> bytes:
        self.history.append(_message("assistant", number))
        self.calls += 1
        return number.to_bytes(4, "big") * (_BYTES // 4)


@stepwise.workflow
def asking(count: int, messages: int = 10) -> int:
    agent, size = Agent(messages), 0
    for number in range(count):
        size += len(agent.ask(number))
    return size


@stepwise.workflow
def conversing(count: int, messages: int = 10, each: int = 0) -> int:
    agent, size = Agent(messages, each), 0
    for number in range(count):
        size += len(agent.converse(number))
    return size


@stepwise.step
def extend(messages: list[dict[str, str]], number: int) -> bytes:
    messages.append(_message("assistant", number))
    return number.to_bytes(4, "big") * (_BYTES // 4)


@stepwise.workflow
def extending(count: int, messages: int, each: int) -> int:
    history, size = [_message("user", n, each) for n in range(messages)], 0
    for number in range(count):
        size += len(extend(history, number))
    return size


@stepwise.step
def read(table: Any, number: int) -> bytes:
    return number.to_bytes(4, "big") * (_BYTES // 4)


@stepwise.step
def write(table: Any, number: int) -> bytes:
    table["c0"][number] = number + 1.0
    return number.to_bytes(4, "big") * (_BYTES // 4)


@functools.cache
def _table(kind: str) -> Any:
    """A table of 50 MB: a dict of arrays, or a DataFrame."""
    import numpy as np

    columns = {f"c{n}": np.arange(_TABLE / 80) for n in range(10)}
    if kind == "arrays":
        return columns
    import pandas as pd

    if kind == "texts":
        columns = {f"c{n}": [f"{n} {row:044d}" for row in range(_TABLE // 500)] for n in range(10)}
    return pd.DataFrame(columns)


@stepwise.workflow(checkpoint_every=1_000_000)
def reading(count: int, kind: str) -> int:
    table, size = _table(kind), 0
    for number in range(count):
        size += len(read(table, number))
    return size


@stepwise.workflow(checkpoint_every=1_000_000)
def writing(count: int, kind: str) -> int:
    table, size = _table(kind), 0
    for number in range(count):
        size += len(write(table, number))
    return size


Clock = Callable[[], float]


def steps(
    workflow,
    scheme: str,
    durability: str,
    path: pathlib.Path,
    count: int,
    clock: Clock = time.perf_counter,
    more: tuple[Any, ...] = (),
    **options,
) -> float:
    """Microseconds per step.

    Args:
        more: arguments of the workflow.
    """
    run = workflow.options(
        store=f"{scheme}:{path / f'store{next(_serial)}'}", durability=durability, **options
    )
    run.options(run_id="first")(1, *more)  # opens the store
    measured = run.options(run_id="measured")
    began = clock()
    measured(count, *more)
    return (clock() - began) / count * 1e6


def inserts(
    synchronous: str,
    path: pathlib.Path,
    count: int,
    clock: Clock = time.perf_counter,
    *,
    bare: bool = False,
) -> float:
    """Microseconds per insert of a value that is pickled and sealed; ``bare``: of its bytes."""
    database = sqlite3.connect(path / f"raw{next(_serial)}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("CREATE TABLE kv (k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID")
    began = clock()
    for number in range(count):
        value = think.__wrapped__(number)
        if not bare:
            value = pickle.dumps(value, 5)
            value = hmac.digest(b"key", value, hashlib.sha256) + value
        database.execute("INSERT INTO kv VALUES (?, ?)", (f"run/{number:012d}", value))
    each = (clock() - began) / count * 1e6
    database.close()
    return each


class Kind(NamedTuple):
    """What is measured, of each store."""

    what: str
    workflow: Any
    durability: str
    limit: float | None = None
    every: int = 1
    clock: Clock = time.perf_counter


_KINDS = (
    Kind("a step, fsync", thinking, "fsync", 1.5),
    Kind("a step, fsync, a checkpoint every 100", thinking, "fsync", every=100),
    Kind("a side effect, fsync", sending, "fsync", 3.0),
    Kind("a step, os", thinking, "os", 2.0),
    Kind("a step, os, a checkpoint every 100", thinking, "os", every=100),
    Kind("a step, os, processor time", thinking, "os", clock=time.process_time),
)


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows, count = [], 50 if arguments.quick else 1000
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        rows += [_row("disk", kind, path, count, arguments.rounds) for kind in _KINDS]
        rows.append(_bytes("disk", path, count))
        rows += [_of_agent(method, path, count, arguments.rounds) for method in _METHODS]
        for what, workflow, more in _LARGE:
            few = max(2, count // (10 if more[0] == _MESSAGES else 200))
            rows.append(_large(what, workflow, more, path, few, arguments.rounds))
    return rows


_LARGE: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("a step that adds to 5,000 messages of 1 KB, its argument", extending, (_MESSAGES, 1000)),
    ("a method that adds to 5,000 messages of 1 KB in self", conversing, (_MESSAGES, 1000)),
]
if importlib.util.find_spec("numpy"):
    _LARGE += [
        ("a step that reads 50 MB of arrays, its argument", reading, ("arrays",)),
        ("a step that changes a number in 50 MB of arrays", writing, ("arrays",)),
    ]
if importlib.util.find_spec("pandas"):
    _LARGE += [
        ("a step that reads a DataFrame of 50 MB, its argument", reading, ("frame",)),
        ("a step that reads a DataFrame of 50 MB of texts, its argument", reading, ("texts",)),
    ]


def _large(
    what: str, workflow: Any, more: tuple[Any, ...], path: pathlib.Path, count: int, rounds: int
) -> common.Row:
    """What a step costs that gets much, in milliseconds of processor time."""
    raw = ""
    if more[0] in ("arrays", "frame", "texts"):
        raw = f"pickle, written and flushed: {common.pickled(_table(more[0]), path):.0f} ms"
    times = [
        steps(workflow, "disk", "os", path, count, time.process_time, more) / 1e3
        for _ in range(rounds)
    ]
    limit = 3 if more[0] == _MESSAGES else 200
    what = f"{what}, os, processor time"
    return common.Row(what, common.Spread.of(times), "ms", other=raw, limit=limit)


_METHODS = (  # what, the workflow, messages, the most times a plain step
    ("a method of an agent", asking, 10, None),
    ("a method that adds to its history and counts", conversing, 10, 1.5),
    ("a method of an agent with 5,000 messages", asking, 5000, None),
    ("a method that adds to 5,000 messages", conversing, 5000, 6.0),
)


def _of_agent(
    method: tuple[str, Any, int, float | None], path: pathlib.Path, count: int, rounds: int
) -> common.Row:
    """What a step costs that is a method, against one that is a function."""
    what, workflow, messages, limit = method

    def each(workflow: Any, *more: int) -> float:
        return steps(workflow, "disk", "os", path, count, time.process_time, more)

    return common.compare(
        f"{what}, os, processor time",
        "us",
        lambda: each(workflow, messages),
        lambda: each(thinking),
        "a plain step",
        rounds=rounds,
        limit=limit,
    )


def _row(scheme: str, kind: Kind, path: pathlib.Path, count: int, rounds: int) -> common.Row:
    synchronous = "FULL" if kind.durability == "fsync" else "NORMAL"

    def ours() -> float:
        every = {"checkpoint_every": kind.every}
        return steps(kind.workflow, scheme, kind.durability, path, count, kind.clock, **every)

    if kind.clock is time.perf_counter:
        flushed = _flushes(kind.workflow, scheme, kind.durability, count)
        bare = [inserts(synchronous, path, count, bare=True) for _ in range(rounds)]
        without = f"the insert without pickle and HMAC: {common.Spread.of(bare)} us"
        note = ", ".join(filter(None, (flushed, _written(ours, count), without)))
    else:
        note = ""
    return common.compare(
        f"{scheme}: {kind.what}",
        "us",
        ours,
        lambda: inserts(synchronous, path, count, kind.clock),
        f"SQLite WAL {synchronous}, pickle and HMAC",
        rounds=rounds,
        limit=kind.limit,
        note=note,
    )


def _written(run: Callable[[], object], count: int) -> str:
    """What a step writes."""
    before = common.written()
    run()
    each = (common.written() - before) / count / 1e3
    return f"{each:.1f} KB written" if each else ""


def _bytes(scheme: str, path: pathlib.Path, count: int) -> common.Row:
    """What a step of 1 KB writes, by the kernel's count; the end of its run is included."""

    def each(counter: str) -> float:
        clock = functools.partial(common.written, counter)
        return steps(thinking, scheme, "fsync", path, count, clock) / 1e9

    return common.Row(
        f"{scheme}: a step, fsync, bytes written",
        common.Spread.of([each("wchar")]),
        "KB given to write (wchar)",
        limit=_KILOBYTES,
        note=f"{each('write_bytes'):.1f} KB of pages made dirty (write_bytes)",
    )


def _flushes(workflow, scheme: str, durability: str, count: int) -> str:
    short = max(20, count // 10)
    argv = (__file__, workflow.__name__, scheme, durability)
    return common.flushes_each("step", (short, 3 * short), *argv)


if __name__ == "__main__":
    if sys.argv[1:2] in (["thinking"], ["sending"]):
        _, name, scheme, durability, count = sys.argv
        home = pathlib.Path(os.environ["STEPWISE_HOME"])
        steps(globals()[name], scheme, durability, home, int(count))
    else:
        common.main(measure, "W1: the cost of a step")
