"""W13: what a run says: what it costs the run's steps, and what lies on the disk.

A thread of the run says 2,000 tokens a second while the run makes steps; in the same run, a thread
that does the same without ``emit`` is silent.  With ``--whole``, a stream of 100 MB is written, and
read from random offsets.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from collections.abc import Callable

import common

import stepwise

RATE, TOKEN = 2000, " word"  # tokens a second
_SLOWER = 1.1  # at most, with tokens over without
_BUSY = 100.0  # ms of a second
_WRITES = 21  # a second, at most: one each 50 ms


@stepwise.step
def work(number: int, seconds: float) -> str:
    """Take a while, and return 1 KB."""
    if seconds:
        time.sleep(seconds)
    return f"{number:04d}" * 256


@stepwise.step
def speak(tokens: int, seconds: float, says: bool) -> int:
    """Say tokens over some seconds, as a model does; or be as busy in silence."""
    emit, began = stepwise.emit if says else len, time.perf_counter()
    for number in range(tokens):
        emit(TOKEN)
        ahead = began + (number + 1) * seconds / tokens - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
    return tokens


def _speaks(over: threading.Event, emit: Callable[[str], object]) -> None:
    began, said = time.perf_counter(), 0
    while not over.is_set():
        due = int((time.perf_counter() - began) * RATE)
        for _ in range(due - said):
            emit(TOKEN)
        said = due
        time.sleep(0.001)


@stepwise.workflow(checkpoint_every=1000)
def run(steps: int, seconds: float, says: bool) -> float:
    """Make steps, while a thread of the run speaks; return the milliseconds of one."""
    over = threading.Event()
    thread = threading.Thread(target=_speaks, args=(over, stepwise.emit if says else len))
    thread.start()
    began = time.perf_counter()
    for number in range(steps):
        work(number, seconds)
    took = time.perf_counter() - began
    over.set()
    thread.join()
    return took / steps * 1e3


@stepwise.workflow
def spoken(seconds: int, says: bool = True) -> float:
    """Speak in steps of a second; return the milliseconds of processor time in each."""
    began = time.process_time()
    for _ in range(seconds):
        speak(RATE, 1.0, says)
    return (time.process_time() - began) / seconds * 1e3


@stepwise.workflow
def fast(tokens: int) -> float:
    """Say tokens as fast as possible; return the microseconds of one."""
    began = time.perf_counter()
    for _ in range(tokens):
        stepwise.emit(TOKEN)
    return (time.perf_counter() - began) / tokens * 1e6


def _fresh(workflow: Callable[..., float], *given: object) -> float:
    return float(workflow.options(fresh=True)(*given))  # type: ignore[attr-defined]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    few = arguments.quick
    rounds = arguments.rounds
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        rows = [_beside(20 if few else 200, seconds, rounds) for seconds in (0.0, 0.005)]
        fastest = common.Spread.of([_fresh(fast, 2000 if few else 20_000) for _ in range(rounds)])
        rows.append(common.Row("an emission", fastest, "us"))
        rows += _sizes(1 if few else 5)
        if arguments.whole:
            rows += _large(2 << 20 if few else 100 << 20)
    return rows


def _beside(steps: int, seconds: float, rounds: int) -> common.Row:
    return common.compare(
        f"a step of {seconds * 1e3:g} ms and 1 KB beside {RATE:,} tokens a second",
        "ms",
        lambda: _fresh(run, steps, seconds, True),
        lambda: _fresh(run, steps, seconds, False),
        "in silence",
        rounds=rounds,
        limit=_SLOWER if seconds else None,
    )


def _sizes(seconds: int) -> list[common.Row]:
    took = [_fresh(spoken, seconds) - _fresh(spoken, seconds, False) for _ in range(3)]
    done = spoken.options(fresh=True).execute(seconds)
    rows = [data for _, data in done.store.read(f"stream:{done.id}:")]
    tokens = seconds * RATE
    return [
        common.Row(
            f"processor time of {RATE:,} tokens a second",
            common.Spread.of(took),
            "ms a second",
            limit=_BUSY,
        ),
        common.Row(
            f"bytes on the disk of a token of {len(TOKEN)}",
            common.Spread.of([sum(map(len, rows)) / tokens]),
            "bytes",
        ),
        common.Row(
            f"writes at {RATE:,} tokens a second",
            common.Spread.of([len(rows) / (done.duration or 1.0)]),
            "a second",
            limit=_WRITES,
        ),
    ]


@stepwise.workflow
def large(size: int) -> None:
    """Say so many bytes."""
    for _ in range(size >> 10):
        stepwise.emit("x" * 1024)


def _large(size: int) -> list[common.Row]:
    began = time.perf_counter()
    done = large.options(fresh=True).execute(size)
    written = time.perf_counter() - began
    last, found = (size >> 10) - 1, []
    for _ in range(20):
        began = time.perf_counter()
        next(iter(done.stream(random.randrange(last))))
        found.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    for _ in done.stream():
        pass
    whole = time.perf_counter() - began
    megabytes = size / 1e6
    return [
        common.Row(
            f"{megabytes:.0f} MB said", common.Spread.of([megabytes / written]), "MB a second"
        ),
        common.Row(
            f"{megabytes:.0f} MB read", common.Spread.of([megabytes / whole]), "MB a second"
        ),
        common.Row("its first item from a random offset", common.Spread.of(found), "ms"),
    ]


if __name__ == "__main__":
    common.main(measure, "W13: streams")
