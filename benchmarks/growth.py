"""W8: what grows with a run, and by how much: results kept and dropped beside each other.

The same program in four forms: the steps of W1 and those of an agent, each with its results dropped
(a variable holds the last one) or kept (a list, a conversation that each step is given).  A process
of each makes N steps and dies inside the next one; others go on from there (W2), which is timed
from the start of the process to the body of that step, with the most memory that it takes.  So each
N has a figure of a step, of a start and of memory, for what is kept and what is dropped.

The limit that the start of a process with kept results stands beside is a Python that reads as many
rows of plain SQLite into a list: as bytes, unpickled, and unpickled after an HMAC was verified,
which is what stepwise does for each.

Further figures are of values that grow within a run: a list of arrays, an index of 500 files, and
of what a run costs besides its steps.

    python benchmarks/growth.py [--quick] [--whole] [--rounds N]

``--whole`` adds runs of 100,000 steps of W1, and ``stepwise show`` of one.  (Each step of an agent
proves that none of the messages so far has changed: 100,000 would take hours.)
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import common

import stepwise

_PROGRAM = """
import os, sys, time
import stepwise

LAST = int(sys.argv[2])
TENTHS = {0, LAST // 10, LAST - LAST // 10, LAST}
at = []

def enter(number):
    if number in TENTHS:
        at.append(time.perf_counter())
    if number < LAST:
        return
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    each = (at[-1] - at[0]) / LAST * 1e6
    grows = (at[-1] - at[-2]) / (at[1] - at[0]) if at[1:] else 0
    print(time.monotonic(), peak * 1024 / 1e6, each, grows)
    sys.stdout.flush()
    os._exit(9)

@stepwise.step
def think(number):
    enter(number)
    return {"role": "assistant", "content": f"{number:08d}" * 125}

@stepwise.step
def answer(messages):
    enter(messages[-1]["number"])
    return {"role": "assistant", "content": f"{len(messages):08d}" * 125}

@stepwise.workflow(durability="os")
def w1_dropped():
    size = 0
    for number in range(LAST + 1):
        size += len(think(number)["content"])
    return size

@stepwise.workflow(durability="os")
def w1_kept():
    notes = []
    for number in range(LAST + 1):
        notes.append(think(number))
    return len(notes)

@stepwise.workflow(durability="os")
def agent_dropped():
    size = 0
    for number in range(LAST + 1):
        size += len(answer([{"role": "user", "content": "go on", "number": number}])["content"])
    return size

@stepwise.workflow(durability="os")
def agent_kept():
    messages = []
    for number in range(LAST + 1):
        messages.append({"role": "user", "content": "go on", "number": number})
        messages.append(answer(messages))
    return len(messages)

globals()[sys.argv[1]].options(run_id="measured")()
"""

_READ = """
import hashlib, hmac, pickle, sqlite3, sys, time
WHAT = sys.argv[2]
kept = []
for row, in sqlite3.connect(sys.argv[1]).execute("SELECT v FROM kv ORDER BY k"):
    if WHAT == "verified" and hmac.digest(b"key", row[32:], hashlib.sha256) != row[:32]:
        raise ValueError
    kept.append(row if WHAT == "bytes" else pickle.loads(row[32:]))
print(time.monotonic())
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6)
"""
_WRITE = """
import hashlib, hmac, pickle, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("CREATE TABLE kv (k INTEGER PRIMARY KEY, v BLOB)")
for number in range(int(sys.argv[2])):
    value = pickle.dumps({"role": "assistant", "content": f"{number:08d}" * 125}, 5)
    row = hmac.digest(b"key", value, hashlib.sha256) + value
    database.execute("INSERT INTO kv VALUES (?, ?)", (number, row))
database.commit()
"""
_READINGS = ("bytes", "unpickled", "verified")

_STEP = 1.3  # a step with results kept, over one with results dropped
_STARTS = {10_000: (300.0, 50.0), 100_000: (1500.0, 250.0)}  # milliseconds, megabytes
_FLAT = 1.2  # the last tenth of the steps over the first, where nothing grows
_KILOBYTE = 1.0  # microseconds for a kilobyte of arrays
_INDEX = 1.3  # an index of files, over no library
_RUN = 2.0  # milliseconds of a run besides its steps
_SHOW = 0.5  # seconds
_serial = itertools.count()


class Found(NamedTuple):
    """One workload of N steps.

    Args:
        step: microseconds, on the average.
        grows: the last tenth of the steps over the first.
        ran: megabytes of the whole run.
        start: milliseconds from the start of the next process to the first new step.
        memory: megabytes until there.
    """

    step: list[float]
    grows: list[float]
    ran: list[float]
    start: list[float]
    memory: list[float]

    def spread(self, name: str) -> common.Spread:
        return common.Spread.of(getattr(self, name))


def program(path: pathlib.Path, what: str, count: int) -> tuple[float, ...]:
    """Run the program until it dies: milliseconds, megabytes, microseconds of a step, growth."""
    began = time.monotonic()
    said = common.child(str(path / "program.py"), what, str(count), expect=9)
    entered, *others = map(float, said.split())
    return (entered - began) * 1e3, *others


def workload(path: pathlib.Path, name: str, count: int, rounds: int, runs: int) -> dict[str, Found]:
    """Measure a workload with its results kept and dropped, which take turns.

    Args:
        runs: of all steps, at most; each round starts a process that goes on with the first one.
    """
    found = {form: Found([], [], [], [], []) for form in ("kept", "dropped")}
    homes = {form: path / f"{name}-{form}-{count}" for form in found}
    for turn in range(rounds + 1):
        for form in found if turn % 2 else reversed(found):
            this, what = found[form], f"{name}_{form}"
            if turn < max(1, min(rounds, runs)):
                os.environ["STEPWISE_HOME"] = str(homes[form] / str(turn))
                _, memory, each, grows = program(path, what, count)
                this.step.append(each)
                this.grows.append(grows)
                this.ran.append(memory)
            os.environ["STEPWISE_HOME"] = str(homes[form] / "0")
            start, memory, *_ = program(path, what, count)
            if turn:  # the first one only warms up
                this.start.append(start)
                this.memory.append(memory)
    return found


def reading(path: pathlib.Path, count: int, rounds: int) -> str:
    """What the machine itself takes: a Python that reads rows into a list, in three forms."""
    file = path / f"rows{count}.db"
    common.child("-c", _WRITE, str(file), str(count))
    said = []
    for what in _READINGS:
        times, memory = [], 0.0
        for _ in range(rounds):
            began = time.monotonic()
            ended, memory = map(float, common.child("-c", _READ, str(file), what).split())
            times.append((ended - began) * 1e3)
        said.append(f"{what} {statistics.median(times):.0f} ms, {memory:.0f} MB")
    return f"plain rows into a list: {'; '.join(said)}"


def kept_and_dropped(path: pathlib.Path, count: int, rounds: int) -> list[common.Row]:
    rows, raw = [], reading(path, count, rounds)
    (path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    for name, title, steps in (("w1", "W1", 30_000), ("agent", "an agent", 3_000)):
        if count > 10 * steps:  # a step of the agent looks at all messages: hours
            continue
        found = workload(path, name, count, rounds, steps // count)
        kept, dropped = found["kept"], found["dropped"]
        plain = name == "w1"  # an agent's step is given all that is kept
        limits = _STARTS.get(count, (None, None)) if plain else (None, None)
        ratio = [a / b for a, b in zip(kept.step, dropped.step, strict=True)]
        rows += [
            common.Row(
                f"{title}: a step, average over {count:,}, results kept over dropped",
                kept.spread("step"),
                "us",
                common.Spread.of(ratio),
                f"dropped: {dropped.spread('step')} us",
                limit=_STEP if plain else None,
            ),
            common.Row(
                f"{title}: the last tenth of {count:,} steps over the first, results dropped",
                dropped.spread("grows"),
                "x",
                other=f"results kept: {kept.spread('grows')} x",
                limit=_FLAT,
                note=f"memory of the run: kept {kept.spread('ran')}, dropped "
                f"{dropped.spread('ran')} MB",
            ),
            common.Row(
                f"{title}: start to the first new step after {count:,}, results kept",
                kept.spread("start"),
                "ms",
                other=f"dropped: {dropped.spread('start')} ms; {raw}",
                limit=limits[0],
            ),
            common.Row(
                f"{title}: memory of that start, results kept",
                kept.spread("memory"),
                "MB",
                other=f"dropped: {dropped.spread('memory')} MB",
                limit=limits[1],
            ),
        ]
    return rows


def show(path: pathlib.Path, count: int, rounds: int) -> common.Row:
    """``stepwise show`` of the run of W1 with results kept, and its memory."""
    os.environ["STEPWISE_HOME"] = str(path / f"w1-kept-{count}" / "0")
    times, memory = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        memory.append(common.peak_of("-m", "stepwise", "show", "measured"))
        times.append(time.perf_counter() - began)
    return common.Row(
        f"stepwise show of a run of {count:,} steps",
        common.Spread.of(times),
        "s",
        limit=_SHOW,
        note=f"memory: {common.Spread.of(memory)} MB",
    )


# -- values that grow within a run ---------------------------------------------------------------

_times: list[float] = []


@stepwise.step
def embed(number: int) -> Any:
    import numpy as np

    _times.append(time.process_time())
    return np.full(1024, number, "float32")  # 4 KB


@stepwise.workflow(durability="os")
def embedding(count: int) -> int:
    vectors = []
    for number in range(count):
        vectors.append(embed(number))  # noqa: PERF401 -- as in a program
    return len(vectors)


def arrays(store: str, early: int, late: int) -> common.Row:
    """A list of arrays: what a step takes more for each kilobyte of the list."""
    _times.clear()
    embedding.options(store=store, fresh=True)(late)
    gaps = [(b - a) * 1e6 for a, b in itertools.pairwise(_times)]
    first, last = (statistics.median(gaps[at - 10 : at]) for at in (early, late - 1))
    each = (last - first) / ((late - early) * 4.096)
    return common.Row(
        f"a list of arrays of 4 KB that grows: a KB of it, from step {early} to step {late:,}",
        common.Spread.of([max(0.0, each)]),
        "us (processor)",
        other=f"step {early}: {first / 1e3:.2f} ms, step {late:,}: {last / 1e3:.2f} ms",
        limit=_KILOBYTE,
    )


def _chunks(number: int) -> list[dict[str, Any]]:
    """The chunks of a file: texts of 1 KB, each with its vector."""
    import numpy as np

    text = f"line {number} of a file that is read, cut and embedded. " * 400
    parts = [text[at : at + 1000] for at in range(0, len(text), 1000)]
    weights = np.random.default_rng(number).standard_normal((256, 384), "float32")
    counts = np.array([[part.count(chr(each)) for each in range(256)] for part in parts], "float32")
    return [
        {"file": number, "text": part, "vector": vector}
        for part, vector in zip(parts, counts @ weights, strict=True)
    ]


read_file = stepwise.step(_chunks)


@stepwise.workflow
def indexing(count: int) -> int:
    index: list[dict[str, Any]] = []
    for number in range(count):
        index.extend(read_file(number))
    return len(index)


def index(path: pathlib.Path, count: int, rounds: int) -> common.Row:
    """An index of files for retrieval, by a run and by the plain function."""

    def ours() -> float:
        return _seconds(indexing.options(store=f"disk:{path}/store{next(_serial)}"), count)

    return common.compare(
        f"an index of {count} files, 20 chunks with vectors each, run over plain",
        "s",
        ours,
        lambda: _seconds(indexing.__wrapped__, count),
        "no library",
        rounds=rounds,
        limit=_INDEX,
    )


def _seconds(function: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    function(count)
    return time.perf_counter() - began


# -- what a run costs besides its steps ----------------------------------------------------------


@stepwise.step
def note(number: int) -> int:
    return number


@stepwise.workflow
def noting(count: int) -> int:
    total = 0
    for number in range(count):
        total += note(number)
    return total


def small_runs(path: pathlib.Path, many: int, rounds: int) -> common.Row:
    """Runs of three steps, one after the other, less what three steps of a long run take."""
    run = noting.options(store=f"disk:{path}/store{next(_serial)}")
    run.options(run_id="first")(3)
    found, raw, left = [], [], 0.0
    for _ in range(rounds):
        step = _seconds(run.options(run_id=f"long {next(_serial)}"), 300) / 300
        before, began = len([*path.rglob("*")]), time.perf_counter()
        for _ in range(many):
            run.options(run_id=f"short {next(_serial)}")(3)
        found.append(((time.perf_counter() - began) / many - 3 * step) * 1e3)
        left = (len([*path.rglob("*")]) - before) / many
        raw.append(common.pickled(b"x" * 1024, path))
    return common.Row(
        "a run of three steps, without its steps",
        common.Spread.of(found),
        "ms",
        other=f"a file of 1 KB that is made and flushed: {common.Spread.of(raw)} ms",
        limit=_RUN,
        note=f"{left:.1f} files are left of each",
    )


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    quick, rounds = arguments.quick, arguments.rounds
    counts = (20, 60) if quick else (1_000, 10_000, *([100_000] if arguments.whole else []))
    rows = []
    with common.folder() as path:
        for count in counts:
            rows += kept_and_dropped(path, count, rounds if count < 100_000 else 1)
        rows.append(show(path, counts[-1], rounds))
        os.environ["STEPWISE_HOME"] = str(path / "home")
        if importlib.util.find_spec("numpy"):
            rows.append(arrays(f"disk:{path}/arrays", *((12, 40) if quick else (125, 1_500))))
            rows.append(index(path, 10 if quick else 500, min(2, rounds)))
        rows.append(small_runs(path, 5 if quick else 100, rounds))
    return rows


if __name__ == "__main__":
    common.main(measure, "W8: what grows with a run")
