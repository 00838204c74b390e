"""W2: how long a fresh process takes from its start to the first new step, after a crash.

A run of k + 1 steps dies by ``os._exit`` inside the last one; the next process is timed from before
it is started until the body of that step is entered.  Beside it, the same for a Python that only
imports stepwise.  Then the fallback, where a run is replayed from the top by its journal: the code
above the step was edited.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import common

_PROGRAM = """
import os, sys, time
import stepwise

LAST = int(sys.argv[1])

@stepwise.step
def think(number):
    if number == LAST:
        if len(sys.argv) > 2:
            print("entered", time.monotonic(), flush=True)
        os._exit(9)
    return {"number": number, "text": "x" * 1000}

@stepwise.workflow(durability="os")
def agent():
    size = 0
    # EDIT
    for number in range(LAST + 1):
        size += len(think(number)["text"])
    return size

agent()
"""
_MOST = 0.2  # seconds
_FLAT = 1.2  # the largest, in the smallest
_REPLAY = 1.0  # seconds for 10,000 steps


def prepare(path: pathlib.Path, count: int) -> pathlib.Path:
    """A store with a run that died inside its last step; the program."""
    program = path / "agent.py"
    program.write_text(_PROGRAM, encoding="utf-8")
    os.environ["STEPWISE_HOME"] = str(path / str(count))
    common.child(str(program), str(count), expect=9)
    return program


def resume(program: pathlib.Path, count: int) -> float:
    """Milliseconds from the start of the process to the first new step."""
    began = time.monotonic()
    said = common.child(str(program), str(count), "timed", expect=9)
    return (float(said.split()[-1]) - began) * 1e3


def bare() -> float:
    """Milliseconds of a process that imports stepwise and ends."""
    began = time.monotonic()
    said = common.child("-c", "import stepwise, time; print(time.monotonic())")
    return (float(said) - began) * 1e3


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    counts = [100, 1_000, 10_000, *([100_000] if arguments.whole else [])]
    if arguments.quick:
        counts = [20, 100]
    edited = 10_000 if 10_000 in counts else counts[-1]
    with common.folder() as path:
        programs = {count: prepare(path, count) for count in counts}
        times: dict[int, list[float]] = {count: [] for count in counts}
        starts = []
        for turn in range(arguments.rounds + 1):  # the first one only warms up
            starts.append(bare())
            for count in counts:
                os.environ["STEPWISE_HOME"] = str(path / str(count))
                took = resume(programs[count], count)
                if turn:
                    times[count].append(took)
        spreads = {count: common.Spread.of(found) for count, found in times.items()}
        start = common.Spread.of(starts[1:])
        rows = [
            common.Row(
                f"after {count:,} steps, start to first new step",
                spread,
                "ms",
                other=f"Python and import alone: {start} ms",
                limit=_MOST * 1e3,
            )
            for count, spread in spreads.items()
        ]
        turns = [list(found) for found in zip(*times.values(), strict=True)]
        flat = common.Spread.of([max(found) / min(found) for found in turns])
        medians = [spread.median for spread in spreads.values()]
        whole = max(medians) / min(medians)
        rows.append(
            common.Row(
                "the largest of these medians over the smallest",
                common.Spread.of([whole]),
                "x",
                limit=_FLAT,
                note=f"within one turn: {flat} x",
            )
        )
        rows.append(_replay(path, programs[edited], edited, arguments.rounds))
    return rows


def _replay(path: pathlib.Path, program: pathlib.Path, count: int, rounds: int) -> common.Row:
    """The code above the step is edited before each attempt, so that no checkpoint fits."""
    os.environ["STEPWISE_HOME"] = str(path / str(count))
    times = []
    for turn in range(rounds):
        edited = _PROGRAM.replace("# EDIT", f"unused = {turn}")
        program.write_text(edited, encoding="utf-8")
        times.append(resume(program, count) / 1e3)
    return common.Row(
        f"replay of {count:,} steps from the top", common.Spread.of(times), "s", limit=_REPLAY
    )


if __name__ == "__main__":
    common.main(measure, "W2: going on after a crash")
