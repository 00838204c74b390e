"""Whether a step costs more, or a run takes more memory, the longer the run is.

A workflow whose variables stay small makes many steps; the time of a step late in the run is
compared with one early in it, by the medians of 200 steps each, and the memory at the end with that
after the first tenth.  (Where the variables themselves grow, so does a checkpoint: see
``checkpoint_cost.py``.)

Where messages grow, every step has to prove that nothing in the earlier ones was changed.  A second
workflow appends one message at each step, and passes them all to the next: its processor time, with
a checkpoint at each step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import statistics
import time
from collections import deque
from typing import Any

import common

import stepwise

_WINDOW = 200
_TWICE = 2.0
_MEMORY = 1.1
_first: list[float] = []
_last: deque[float] = deque(maxlen=_WINDOW)  # no list of all: it is memory that grows
_memory: list[float] = []


@stepwise.step
def think(number: int) -> bytes:
    (_first if len(_first) < _WINDOW else _last).append(time.perf_counter())
    if number % 100 == 0:
        _memory.append(resident())
    return number.to_bytes(4, "big") * 256


_used: list[float] = []  # the process's time at each step of the conversation


@stepwise.step
def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    _used.append(time.process_time())
    return message(len(messages))


def message(number: int) -> dict[str, Any]:
    """A message of a conversation; one in four calls a tool."""
    text = f"{number:08d} An answer of a model takes a line or two of text. " * 4
    if number % 4:
        return {"role": "user" if number % 2 else "assistant", "content": text}
    call = {"name": "search", "arguments": f'{{"query": "{number}"}}'}
    calls = [{"id": f"call_{number}", "type": "function", "function": call}]
    return {"role": "assistant", "content": text, "tool_calls": calls}


@stepwise.workflow(durability="fsync")
def conversation(count: int) -> int:
    messages = [message(0)]
    for _ in range(count):
        reply = answer(messages)
        messages.append(reply)
    return len(messages)


@stepwise.workflow(durability="os")
def agent(count: int) -> int:
    size = 0
    for number in range(count):
        size += len(think(number))
    return size


def resident() -> float:
    """Megabytes that this process takes."""
    try:
        text = pathlib.Path("/proc/self/statm").read_text(encoding="ascii")
    except FileNotFoundError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(count: int) -> tuple[float, float]:
    """Microseconds of a step about the 50th, and of the last ones."""
    _first.clear()
    _last.clear()
    agent.options(fresh=True)(count)
    early, late = (
        statistics.median((b - a) * 1e6 for a, b in itertools.pairwise(times))
        for times in (_first, _last)
    )
    return early, late


def talk(count: int, store: str | None) -> tuple[float, float]:
    """Microseconds of processor time of a step about the 50th, and of the last ones."""
    _used.clear()
    options = {"store": store} if store is not None else {}
    conversation.options(fresh=True, **options)(count)
    times = [(b - a) * 1e6 for a, b in itertools.pairwise(_used)]
    return statistics.median(times[25:75]), statistics.median(times[-_WINDOW:])


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        count = 450 if arguments.quick else 5_000
        found = [run(count) for _ in range(arguments.rounds)]
        rows = [_row(count, found)]
        _memory.clear()
        count = 100_000 if arguments.whole and not arguments.quick else 4 * count
        rows.append(_row(count, [run(count)]))
        first, last = _memory[len(_memory) // 10], _memory[-1]
        rows.append(
            common.Row(
                f"memory of a run of {count:,} steps, at the end",
                common.Spread.of([last]),
                "MB",
                common.Spread.of([last / first]),
                f"after a tenth of it: {first:.1f} MB",
                limit=_MEMORY,
            )
        )
        count = 450 if arguments.quick else 5_000
        for store in (None, "memory:"):
            found = [talk(count, store) for _ in range(arguments.rounds)]
            rows.append(_row(count, found, f", messages growing, {store or 'disk:'} (processor)"))
    return rows


def _row(count: int, found: list[tuple[float, float]], also: str = "") -> common.Row:
    early, late = (common.Spread.of(values) for values in zip(*found, strict=True))
    ratio = common.Spread.of([b / a for a, b in found])
    what = f"step {count:,} against step 50{also}"
    return common.Row(what, late, "us", ratio, f"step 50: {early} us", limit=_TWICE)


if __name__ == "__main__":
    common.main(measure, "W8: whether costs grow with a run's length")
