"""W6: many steps at once, against the time that they take themselves, and against no library.

Steps wait 10 ms.  200 tasks make one each; 64 threads make ten each; 8 processes with a run each in
one store make fifty each, one after the other.  The *ideal* is the waiting alone: 10, 100, 500 ms.
64 runs of ten steps each, in threads or as tasks of one event loop, begin and end in that time too.
*Plain* is the same on asyncio, threads and processes with an insert that waits for the disk (SQLite
WAL FULL) for each step.  Flushes are counted in processes of their own.

The processor time of a step of 64 runs at once stands beside that of the same runs one after the
other; their steps do nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import os
import pathlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import common

import stepwise

_WAIT = 0.010  # seconds
_LIMIT = 1.5
_TASKS, _THREADS, _EACH, _PROCESSES, _TURNS = 200, 64, 10, 8, 50
_LIMIT_OF_MANY, _STEPS = 1.3, 20
_serial = itertools.count()


@stepwise.step
async def fetch(number: int) -> int:
    await asyncio.sleep(_WAIT)
    return number


@stepwise.step
def work(number: int) -> int:
    time.sleep(_WAIT)
    return number


@stepwise.workflow
async def tasks(count: int) -> int:
    return sum(await asyncio.gather(*[fetch(number) for number in range(count)]))


@stepwise.workflow
def threads(count: int) -> int:
    return sum(stepwise.map(work, range(count), max_workers=_THREADS))


@stepwise.workflow
def one_by_one(count: int) -> int:
    total = 0
    for number in range(count):
        total += work(number)
    return total


@stepwise.workflow
async def one_after_another(count: int) -> int:
    total = 0
    for number in range(count):
        total += await fetch(number)
    return total


@stepwise.step
async def think(number: int) -> bytes:
    await asyncio.sleep(0)
    return bytes(1024)


@stepwise.step
def work_at_once(number: int) -> bytes:
    return bytes(1024)


@stepwise.workflow
async def thinking(count: int) -> int:
    return sum([len(await think(number)) for number in range(count)])


@stepwise.workflow
def working(count: int) -> int:
    return sum([len(work_at_once(number)) for number in range(count)])


class Raw:
    """A database that takes one insert for each step, from any thread."""

    def __init__(self, path: pathlib.Path) -> None:
        self._mutex = threading.Lock()
        self._database = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=60
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS kv (k TEXT PRIMARY KEY, v BLOB)")
        self.insert(f"{os.getpid()}")

    def insert(self, key: str) -> None:
        with self._mutex:
            self._database.execute("INSERT INTO kv VALUES (?, ?)", (key, bytes(300)))

    def work(self, number: int) -> None:
        time.sleep(_WAIT)
        self.insert(f"{os.getpid()}/{number}")

    async def fetch(self, number: int) -> None:
        await asyncio.sleep(_WAIT)
        self.insert(f"{number}")

    def close(self) -> None:
        self._database.close()


def _timed(function: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e3


# -- the three workloads, each in a new store or database ----------------------------------------


def run_tasks(path: pathlib.Path, count: int = _TASKS) -> float:
    run = tasks.options(store=f"disk:{path / f'store{next(_serial)}'}")

    async def main() -> float:
        await run.options(run_id="first")(2)
        measured = run.options(run_id="measured")(count)
        began = time.perf_counter()
        await measured
        return (time.perf_counter() - began) * 1e3

    return asyncio.run(main())


def plain_tasks(path: pathlib.Path) -> float:
    raw = Raw(path / f"raw{next(_serial)}.db")

    async def main() -> float:
        began = time.perf_counter()
        await asyncio.gather(*[raw.fetch(number) for number in range(_TASKS)])
        return (time.perf_counter() - began) * 1e3

    took = asyncio.run(main())
    raw.close()
    return took


def run_threads(path: pathlib.Path, count: int = _THREADS * _EACH) -> float:
    run = threads.options(store=f"disk:{path / f'store{next(_serial)}'}")
    run.options(run_id="first")(2)
    return _timed(lambda: run.options(run_id="measured")(count))


def plain_threads(path: pathlib.Path) -> float:
    raw = Raw(path / f"raw{next(_serial)}.db")

    def whole() -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(raw.work, range(_THREADS * _EACH)))

    took = _timed(whole)
    raw.close()
    return took


def run_runs(path: pathlib.Path, count: int = _THREADS * _EACH) -> float:
    """Runs in threads, a thread each."""
    run = one_by_one.options(store=f"disk:{path / f'store{next(_serial)}'}")
    run.options(run_id="first")(2)

    def whole() -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            runs = [run.options(run_id=f"run{number}") for number in range(_THREADS)]
            list(pool.map(lambda each: each(count // _THREADS), runs))

    return _timed(whole)


def run_runs_as_tasks(path: pathlib.Path, count: int = _THREADS * _EACH) -> float:
    """Runs as tasks of one event loop."""
    run = one_after_another.options(store=f"disk:{path / f'store{next(_serial)}'}")

    async def main() -> float:
        await run.options(run_id="first")(2)
        runs = [run.options(run_id=f"run{number}") for number in range(_THREADS)]
        began = time.perf_counter()
        await asyncio.gather(*[each(count // _THREADS) for each in runs])
        return (time.perf_counter() - began) * 1e3

    return asyncio.run(main())


def plain_runs_as_tasks(path: pathlib.Path) -> float:
    raw = Raw(path / f"raw{next(_serial)}.db")

    async def one(task: int) -> None:
        for number in range(_EACH):
            await raw.fetch(task * _EACH + number)

    async def main() -> float:
        began = time.perf_counter()
        await asyncio.gather(*[one(task) for task in range(_THREADS)])
        return (time.perf_counter() - began) * 1e3

    took = asyncio.run(main())
    raw.close()
    return took


def run_processes(path: pathlib.Path) -> float:
    return _together("process", path / f"store{next(_serial)}")


def plain_processes(path: pathlib.Path) -> float:
    return _together("plain", path / f"raw{next(_serial)}.db")


def _together(kind: str, path: pathlib.Path) -> float:
    """Milliseconds from when all processes may begin to when the last one has ended."""
    children = [
        subprocess.Popen(
            [sys.executable, __file__, kind, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(_PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"

    def whole() -> None:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"

    took = _timed(whole)
    for child in children:
        child.wait()
    return took


def process(kind: str, path: pathlib.Path, number: str) -> None:
    """One of the processes: prepare, wait until told, do the work."""
    if kind == "process":
        run = one_by_one.options(store=f"disk:{path}")
        run.options(run_id=f"first {number}")(1)
        measured = run.options(run_id=f"measured {number}")
    else:
        raw = Raw(path)

        def measured(count: int) -> None:
            for turn in range(count):
                raw.work(turn)

    print("ready", flush=True)
    sys.stdin.read()
    measured(_TURNS)
    print("done", flush=True)


# -- the processor time of many runs ---------------------------------------------------------------


def processor_time(url: str, kind: str, *, at_once: bool) -> float:
    """Microseconds of this process for a step of 64 runs, at once or one after the other."""
    workflow = (thinking if kind == "tasks" else working).options(store=url)
    calls = [workflow.options(run_id=f"run {next(_serial)}") for _ in range(_THREADS)]
    began = time.process_time()
    if kind == "tasks":
        asyncio.run(_tasks_of(calls, at_once=at_once))
    else:
        with ThreadPoolExecutor(_THREADS if at_once else 1) as pool:
            list(pool.map(lambda call: call(_STEPS), calls))
    return (time.process_time() - began) * 1e6 / (_THREADS * _STEPS)


async def _tasks_of(calls: list[Callable[[int], Awaitable[int]]], *, at_once: bool) -> None:
    if at_once:
        await asyncio.gather(*[call(_STEPS) for call in calls])
        return
    for call in calls:
        await call(_STEPS)


def _of_many_runs(path: pathlib.Path, rounds: int) -> list[common.Row]:
    rows = []
    for scheme, kind in itertools.product(("disk", "memory"), ("tasks", "threads")):
        url = f"{scheme}:{path / f'store{next(_serial)}'}"
        processor_time(url, kind, at_once=True)
        row = common.compare(
            f"{_THREADS} runs as {kind} on {scheme}: processor time a step",
            "us",
            functools.partial(processor_time, url, kind, at_once=True),
            functools.partial(processor_time, url, kind, at_once=False),
            "one run after the other",
            rounds=rounds,
            limit=_LIMIT_OF_MANY,
        )
        rows.append(row)
    return rows


# -- the table -----------------------------------------------------------------------------------

_KINDS = (
    # what, ours, plain, ideal in milliseconds, what is counted
    (f"{_TASKS} tasks", run_tasks, plain_tasks, _WAIT * 1e3, "tasks"),
    (f"{_THREADS} threads", run_threads, plain_threads, _WAIT * _EACH * 1e3, "threads"),
    (f"{_PROCESSES} processes", run_processes, plain_processes, _WAIT * _TURNS * 1e3, ""),
    (f"{_THREADS} runs in threads", run_runs, plain_threads, _WAIT * _EACH * 1e3, "runs"),
    (
        f"{_THREADS} runs as tasks",
        run_runs_as_tasks,
        plain_runs_as_tasks,
        _WAIT * _EACH * 1e3,
        "runs-as-tasks",
    ),
)
_COUNTED = {
    "tasks": run_tasks,
    "threads": run_threads,
    "runs": run_runs,
    "runs-as-tasks": run_runs_as_tasks,
}


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows = []
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        for what, ours, plain, ideal, counted in _KINDS[: 1 if arguments.quick else None]:
            note, limit = "", None if counted.startswith("runs") else _LIMIT
            if counted and not arguments.quick:
                note = common.flushes_each("step", (200, 1000), __file__, counted)
            against = (
                (f"{what}, against the ideal", lambda ideal=ideal: ideal, "ideal", limit),
                (f"{what}, against plain", lambda p=plain: p(path), "plain", None),
            )
            for title, other, name, most in against:
                row = common.compare(
                    title,
                    "ms",
                    lambda ours=ours: ours(path),
                    other,
                    name,
                    rounds=arguments.rounds,
                    limit=most,
                    note=note,
                )
                rows.append(row)
        if not arguments.quick:
            rows += _of_many_runs(path, arguments.rounds)
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _COUNTED:
        _COUNTED[sys.argv[1]](pathlib.Path(os.environ["STEPWISE_HOME"]), int(sys.argv[2]))
    elif sys.argv[1:2] in (["process"], ["plain"]):
        process(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3])
    else:
        common.main(measure, "W6: many steps at once")
