"""W3: an agent whose messages grow by 2 KB at every step, with a checkpoint at every step.

Each step takes all the messages so far, as a language model does.  The bytes that the store takes
in the end are compared with those of the messages themselves, and the time of the last steps with
that of the fiftieth.  How many of these bytes are the last checkpoint, and chunks, is told as well.
The same is done with messages that are dataclasses, as agents have them, under ``disk:``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import random
import statistics
import string
import time
from typing import Any, NamedTuple

import common

import stepwise
from stepwise.stores import Store, open_store

_SIZE = 2048
_GROWTH = 2.0
_DISK = 1.5
_PATIENCE = 240  # seconds for 5,000 steps
_LETTERS = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=1 << 16))
_times: list[float] = []


def _content(number: int) -> str:
    start = number * 1009 % (len(_LETTERS) - _SIZE)
    return _LETTERS[start : start + _SIZE]


@stepwise.step
def say(messages: list[dict[str, str]]) -> dict[str, str]:
    _times.append(time.perf_counter())
    return {"role": "assistant", "content": _content(len(messages))}


@dataclasses.dataclass
class Message:
    role: str
    content: str
    parts: list[str] = dataclasses.field(default_factory=list)


@stepwise.step
def reply(messages: list[Message]) -> Message:
    _times.append(time.perf_counter())
    return Message("assistant", _content(len(messages)))


@stepwise.workflow(durability="os")
def agent(count: int, typed: bool) -> int:
    messages: list[Any] = []
    for _ in range(count):
        messages.append(reply(messages) if typed else say(messages))
    return len(messages)


class Found(NamedTuple):
    """What a run has shown: microseconds of a step, bytes over the messages' own, and kilobytes."""

    early: float
    late: float
    disk: float
    checkpoint: float
    chunks: float


def run(path: pathlib.Path, count: int, kind: str = "disk", *, typed: bool = False) -> Found:
    _times.clear()
    store = path / f"store{count}-{time.monotonic_ns()}"
    where = open_store(f"{kind}:{store}")
    agent.options(store=where, run_id="agent")(count, typed)
    checkpoint, chunks = (_kilobytes(where, prefix) for prefix in ("checkpoint/", "chunk/"))
    where.close()  # as at the end of the process: its log is merged into the database
    gaps = [(b - a) * 1e6 for a, b in itertools.pairwise(_times)]
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    return Found(
        statistics.median(gaps[25:75]),
        statistics.median(gaps[-50:]),
        size / (count * _SIZE),
        checkpoint[-1],
        sum(chunks),
    )


def _kilobytes(store: Store, prefix: str) -> list[float]:
    names = store.names("agent", prefix)
    return [len(store.get("agent", name) or b"") / 1e3 for name in names]


def _rows(count: int, found: list[Found], what: str = "") -> list[common.Row]:
    early, late, disk, checkpoint, chunks = (
        common.Spread.of(values) for values in zip(*found, strict=True)
    )
    growth = common.Spread.of([each.late / each.early for each in found])
    return [
        common.Row(
            f"bytes on disk after {count:,} steps, over the messages' own{what}",
            disk,
            "x",
            limit=_DISK,
            note=f"the last checkpoint: {checkpoint.median:.3g} KB; all chunks: "
            f"{chunks.median:.3g} KB",
        ),
        common.Row(
            f"step {count:,} against step 50{what}",
            late,
            "us",
            growth,
            f"step 50: {early} us",
            limit=_GROWTH,
        ),
    ]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    count = 100 if arguments.quick else 500
    with common.folder() as path:
        os.environ["STEPWISE_HOME"] = str(path)
        found = [run(path, count) for _ in range(min(3, arguments.rounds))]
        rows = _rows(count, found)
        typed = [run(path, count, "disk", typed=True) for _ in range(min(3, arguments.rounds))]
        rows += _rows(count, typed, "; dataclasses")
        if not arguments.quick:
            # If the cost of a step grows with the messages, the last ones take ten times as long.
            seconds = 5_000 * statistics.median(each.late for each in found) * 10 / 2 / 1e6
            if seconds < _PATIENCE or arguments.whole:
                rows += _rows(5_000, [run(path, 5_000)])
    return rows


if __name__ == "__main__":
    common.main(measure, "W3: messages that grow")
