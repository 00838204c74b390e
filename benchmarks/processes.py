"""Steps per second of 8 processes that share a store, against those of a former version.

Each process makes one run of steps with results of 1 KB, a checkpoint at each, and each step waits
for the disk; all begin at the same time.  The version before a step was made cheaper is taken out
of the history of this repository, and both take turns on the same disk; so does plain SQLite, with
8 processes that insert the same bytes into one database.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pathlib
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator

import common

FORMER = "34f29beb070fd48820227c598c5888202829b999"
_PROCESSES = 8
_BYTES = 1024
_TWICE = 0.5  # of the time: twice the steps per second
_serial = itertools.count()


def together(path: pathlib.Path, count: int, code: pathlib.Path | None) -> float:
    """Microseconds of a step, over all processes.

    Args:
        count: of the steps that each of them makes.
        code: the folder with ``stepwise``; ``None`` for plain SQLite.
    """
    store = path / f"store{next(_serial)}"
    environment = {**os.environ, "STEPWISE_HOME": str(path), "PYTHONPATH": str(code or "")}
    argv = [sys.executable, __file__, "stepwise" if code else "plain", str(store), str(count)]
    children = [
        subprocess.Popen(
            [*argv, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(_PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
    took = time.perf_counter() - began
    for child in children:
        child.wait()
    return took / (count * _PROCESSES) * 1e6


def work(kind: str, store: str, count: int, number: int) -> None:
    """One of the processes: prepare, wait until told, do the work."""
    measured = (_stepwise if kind == "stepwise" else _plain)(store, number)
    print("ready", flush=True)
    sys.stdin.read()
    measured(count)
    print("done", flush=True)


def _stepwise(store: str, number: int):
    import stepwise

    @stepwise.step(name="think")
    def think(turn: int) -> bytes:
        return turn.to_bytes(4, "big") * (_BYTES // 4)

    @stepwise.workflow(name="thinking", store=f"disk:{store}", durability="fsync")
    def thinking(count: int) -> int:
        size = 0
        for turn in range(count):
            size += len(think(turn))
        return size

    thinking.options(run_id=f"first {number}")(1)
    return thinking.options(run_id=f"measured {number}")


def _plain(store: str, number: int):
    database = sqlite3.connect(store, isolation_level=None, timeout=60)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS kv (k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID")

    def inserting(count: int) -> None:
        for turn in range(count):
            row = f"{number}/{turn:012d}", turn.to_bytes(4, "big") * (_BYTES // 4)
            database.execute("INSERT INTO kv VALUES (?, ?)", row)

    return inserting


@contextlib.contextmanager
def former() -> Iterator[pathlib.Path | None]:
    """The folder of the former version; ``None`` without the history of the repository."""
    with common.folder() as path:
        archive = path / "former.tar"
        command = ["git", "-C", str(common.HERE.parent), "archive", "-o", str(archive), FORMER]
        try:
            subprocess.run([*command, "stepwise"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        with tarfile.open(archive) as opened:
            opened.extractall(path, filter="data")
        yield path


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    count, what = 20 if arguments.quick else 250, f"a step, {_PROCESSES} processes on one store"
    with common.folder() as path, former() as before:

        def each(code: pathlib.Path | None) -> float:
            return together(path, count, code)

        def row(against: str, code: pathlib.Path | None, limit: float | None = None) -> common.Row:
            return common.compare(
                f"{what}, over {against}",
                "us",
                lambda: each(common.HERE.parent),
                lambda: each(code),
                against,
                rounds=arguments.rounds,
                limit=limit,
            )

        rows = [row("plain SQLite", None)]
        if before is not None:
            rows.append(row(f"stepwise {FORMER[:7]}", before, _TWICE))
        return rows


if __name__ == "__main__":
    if sys.argv[1:2] in (["stepwise"], ["plain"]):
        work(*sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]))
    else:
        common.main(measure, "Processes that share a store")
