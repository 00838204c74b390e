"""W2: how long a fresh process takes from its start to the first new step, after a crash.

A run of k + 1 steps dies by ``os._exit`` inside the last one; the next process is timed from before
it is started until the body of that step is entered.  Beside it, the same for a Python that only
imports stepwise.  It is compared with two things:

- a bare Python, with nothing imported but sqlite3, that reads one row of 1 KB from a plain SQLite
  database of as many;
- the same program with plain SQLite, as in ``peers/``: it keeps its results in a database, and
  reads them back one by one.  Both import what directs the workloads (asyncio, tempfile and
  more), as most programs import something; that is in both figures.  Counted in instructions, too.

The Python of all of them is that of an ordinary installation (``common.interpreter``).  Then the
fallback, where a run is replayed from the top by its journal: the code above the step was edited.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sqlite3
import time

import common
import instructions

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
_OVER = 1.4  # the same work with plain SQLite
_REPLAY = 1.0  # seconds for 10,000 steps
_READ = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1])
row = database.execute("SELECT v FROM kv WHERE k = ?", sys.argv[2:]).fetchone()
print(len(row[0]), time.monotonic())
"""


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


def rows_in(path: pathlib.Path, count: int) -> pathlib.Path:
    """A plain database with as many rows."""
    file = path / f"raw{count}.db"
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE kv (k INTEGER PRIMARY KEY, v BLOB)")
    rows = ((number, bytes(1024)) for number in range(count))
    with database:
        database.executemany("INSERT INTO kv VALUES (?, ?)", rows)
    database.close()
    return file


def read(file: pathlib.Path, count: int) -> float:
    """Milliseconds of a process that reads the last row of a plain database."""
    began = time.monotonic()
    said = common.child("-c", _READ, str(file), str(count - 1))
    return (float(said.split()[-1]) - began) * 1e3


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    counts = [100, 1_000, 10_000, *([100_000] if arguments.whole else [])]
    if arguments.quick:
        counts = [20, 100]
    edited = 10_000 if 10_000 in counts else counts[-1]
    with common.folder() as path:
        programs = {count: prepare(path, count) for count in counts}
        raw = {count: rows_in(path, count) for count in counts}
        times: dict[int, list[float]] = {count: [] for count in counts}
        reads: dict[int, list[float]] = {count: [] for count in counts}
        starts = []
        for turn in range(arguments.rounds + 1):  # the first one only warms up
            starts.append(bare())
            for count in counts:
                os.environ["STEPWISE_HOME"] = str(path / str(count))
                base = read(raw[count], count)
                took = resume(programs[count], count)
                if turn:
                    times[count].append(took)
                    reads[count].append(base)
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
        rows += [
            common.Row(
                f"after {count:,} steps, over a bare Python's start and a plain SQLite read",
                spreads[count],
                "ms",
                common.Spread.of([a / b for a, b in zip(times[count], base, strict=True)]),
                f"Python and a read: {common.Spread.of(base)} ms",
            )
            for count, base in reads.items()
        ]
        rows += [_beside_plain(count, arguments.rounds) for count in counts[:2]]
        rows += _counted(counts[0])
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


def _beside_plain(count: int, rounds: int) -> common.Row:
    """As W2 of the peers: the same program with either, which dies and is started again."""

    def resumed(peer: str, variant: str) -> float:
        script = str(common.HERE / "peers" / f"peer_{peer}.py")
        said = common.child(script, "w2", "--variant", variant, "--n", str(count))
        return float(json.loads(said.splitlines()[-1])["ms"])

    return common.compare(
        f"after {count:,} steps, over a program with plain SQLite",
        "ms",
        lambda: resumed("stepwise", "disk-fsync"),
        lambda: resumed("raw", "sqlite-full"),
        "plain SQLite",
        rounds=rounds,
        limit=_OVER,
        note="the same program, from its start to the first new step",
    )


def _counted(count: int) -> list[common.Row]:
    """The same in instructions, where they can be counted."""
    if instructions.why_not():
        return []
    ours, plain = instructions.resumes(count)
    return [
        common.Row(
            f"after {count:,} steps, over a program with plain SQLite, instructions",
            common.Spread.of([ours]),
            "million",
            common.Spread.of([ours / plain]),
            f"plain SQLite: {plain:.0f}",
            limit=_OVER,
        )
    ]


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
