"""One log of a process against a log for each run: why the runs of a process share one.

Without stepwise: runs append batches of a step's size to files that are zeroed ahead, and wait
until a batch is on the disk.  Either all append to one file, where one flush serves all that wait,
or each to its own.  Runs in threads flush by themselves; those of an event loop have one thread
that writes for all.  The ratio is the time of a batch with a log for each over that with one log.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import threading
import time
from collections.abc import Callable

import common

_BATCHES = 40  # of each run
_RUNS = 1, 8, 64
_FRAME = b"x" * 1700  # a step's record and its checkpoint


def _file(path: pathlib.Path, frames: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(descriptor, bytes(len(_FRAME) * frames), 0)
    os.fsync(descriptor)
    return descriptor


def _in_threads(runs: int, function: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=function, args=(run,)) for run in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def each_flushes(descriptors: list[int]) -> None:
    """Each run has a file and a thread."""

    def run(number: int) -> None:
        for batch in range(_BATCHES):
            os.pwrite(descriptors[number], _FRAME, batch * len(_FRAME))
            os.fdatasync(descriptors[number])

    _in_threads(len(descriptors), run)


def first_flushes(descriptor: int, runs: int) -> None:
    """Each run has a thread; who comes first flushes, and then one of those that came meanwhile."""
    mutex = threading.Lock()
    waiting: list[threading.Lock] = []
    flushed = set[threading.Lock]()
    written, leads = 0, False

    def run(_: int) -> None:
        nonlocal written, leads
        for _ in range(_BATCHES):
            bell = threading.Lock()
            with mutex:
                os.pwrite(descriptor, _FRAME, written * len(_FRAME))
                written += 1
                follows, leads = leads, True
                if follows:
                    bell.acquire()
                    waiting.append(bell)
            if follows:
                bell.acquire()  # until a leader has flushed it, or it is the next leader
                if bell in flushed:
                    continue
            with mutex:
                served = waiting.copy()
                waiting.clear()
            os.fdatasync(descriptor)
            with mutex:
                flushed.update(served)
                leads = bool(waiting)
                for each in (*served, *waiting[:1]):
                    each.release()
                del waiting[:1]

    _in_threads(runs, run)


def one_writes(descriptors: list[int], runs: int) -> None:
    """One thread writes a batch of each run, and flushes each file, again and again."""
    for batch in range(_BATCHES):
        for number in range(runs):
            file = number % len(descriptors)
            at = (batch * runs + number) // len(descriptors)
            os.pwrite(descriptors[file], _FRAME, at * len(_FRAME))
        for descriptor in descriptors:
            os.fdatasync(descriptor)


def _took(path: pathlib.Path, files: int, runs: int, work: Callable[[list[int]], None]) -> float:
    """Microseconds a batch, of those that all runs wrote."""
    paths = [path / f"log-{number}" for number in range(files)]
    descriptors = [_file(each, _BATCHES * runs // files) for each in paths]
    began = time.perf_counter()
    work(descriptors)
    took = time.perf_counter() - began
    for descriptor, each in zip(descriptors, paths, strict=True):
        os.close(descriptor)
        each.unlink()
    return took / (runs * _BATCHES) * 1e6


def _rows(path: pathlib.Path, runs: int, rounds: int) -> list[common.Row]:
    return [
        common.compare(
            f"a log for each of {runs} runs, {how}",
            "us a batch",
            lambda each=each: _took(path, runs, runs, each),
            lambda one=one: _took(path, 1, runs, one),
            "one log",
            rounds=rounds,
        )
        for how, each, one in (
            ("in threads", each_flushes, lambda files: first_flushes(files[0], runs)),
            ("one writer", *[lambda files: one_writes(files, runs)] * 2),
        )
    ]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    with common.folder() as path:
        return [row for runs in _RUNS for row in _rows(path, runs, arguments.rounds)]


if __name__ == "__main__":
    common.main(measure, "One log for all runs of a process, or one for each")
