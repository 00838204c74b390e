"""Instructions that a step takes of the processor: a figure that no other program can move.

Cachegrind counts them in user mode.  A run of 300 steps has so many more than one of 100: divided
by 200, that is a step.  Waiting for the disk takes no instructions, nor do the caches of a
processor count: see ``steps.py`` for the time.

    python benchmarks/instructions.py [--json FILE]

A process under valgrind starts slowly, so one is started for all figures: it imports everything and
forks a child for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable

if sys.argv[1:2] == ["count"]:
    # Under valgrind all takes fifty times as long, and what is done once a second would be done in
    # every other step: each look at these clocks finds them a microsecond later.
    time.monotonic = time.perf_counter = itertools.count(0, 1e-6).__next__

import common
import graph_overhead
import steps

import stepwise
from stepwise.graph import CheckpointManager

_COUNTS = 100, 300  # steps of a short run and of a long one
QUICK = 20, 40
_COUNTING = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
RAW = "a plain SQLite insert"
MANY = "disk: a step, 64 runs at once"
RUN = "disk: a run of three steps"
_RUNS = 64
_EACH = 0.05  # of the count: the steps of each of these runs


@stepwise.step
async def fetch(number: int) -> bytes:
    return number.to_bytes(4, "big") * 256


@stepwise.workflow
async def fetching(count: int) -> int:
    size = 0
    for number in range(count):
        size += len(await fetch(number))
    return size


@stepwise.step
def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    return {"role": "assistant", "content": f"{len(messages):08d} " * 10}


@stepwise.workflow
def asking(count: int) -> int:
    messages = [{"role": "user", "content": "hello"}]
    for _ in range(count):
        messages.append(ask(messages))
    return len(messages)


@stepwise.step(record_arguments=True)
def noted(number: int) -> bytes:
    return number.to_bytes(4, "big") * 256


@stepwise.workflow
def noting(count: int) -> int:
    size = 0
    for number in range(count):
        size += len(noted(number))
    return size


@stepwise.step(record_arguments=True)
def told(messages: list[dict[str, str]]) -> dict[str, str]:
    return {"role": "assistant", "content": f"{len(messages):08d} " * 10}


@stepwise.workflow
def telling(count: int) -> int:
    messages = [{"role": "user", "content": "hello"}]
    for _ in range(count):
        messages.append(told(messages))
    return len(messages)


def _steps(scheme: str, workflow: object = steps.thinking, **options: object) -> Counted:
    return lambda path, count: steps.steps(workflow, scheme, "fsync", path, count, **options)


def _awaited(path: pathlib.Path, count: int) -> None:
    run = fetching.options(store=f"disk:{path}/store")
    asyncio.run(run.options(run_id="measured")(count))


def _together(path: pathlib.Path, count: int) -> None:
    run = fetching.options(store=f"disk:{path}/store")

    async def main() -> None:
        runs = [run.options(run_id=f"run {number}") for number in range(_RUNS)]
        await asyncio.gather(*[each(int(count * _EACH)) for each in runs])

    asyncio.run(main())


def _runs(path: pathlib.Path, count: int) -> None:
    run = steps.thinking.options(store=f"disk:{path}/store")
    for number in range(count):
        run.options(run_id=f"run {number}")(3)


def _node(path: pathlib.Path, count: int) -> None:
    graph = graph_overhead.loop(graph_overhead.count, count)
    graph_overhead.execution(graph, CheckpointManager(f"disk:{path}/store"), count)


Counted = Callable[[pathlib.Path, int], object]
KINDS: dict[str, Counted] = {
    RAW: lambda path, count: steps.inserts("FULL", path, count),
    "memory: a step": _steps("memory"),
    "memory: a step, a checkpoint every 1,000": _steps("memory", checkpoint_every=1000),
    "disk: a step": _steps("disk"),
    "disk: a step, a checkpoint every 1,000": _steps("disk", checkpoint_every=1000),
    "disk: a side effect": _steps("disk", steps.sending),
    "disk: a step whose argument is the growing messages": _steps("disk", asking),
    "disk: an asynchronous step": _awaited,
    MANY: _together,
    "disk: a node of a graph": _node,
    RUN: _runs,
    "disk: a step, its arguments recorded": _steps("disk", noting),
    "disk: the growing messages, recorded": _steps("disk", telling),
    "disk: a step, checkpoints thinned": _steps("disk", retention="thinned"),
    "disk: a step, all checkpoints kept": _steps("disk", retention="all"),
}


def why_not() -> str:
    """Return why nothing can be counted here; empty if it can."""
    if shutil.which("valgrind") is None:
        return "valgrind, which counts instructions, is not installed"
    return ""


def instructions(
    kinds: Iterable[str] = KINDS, counts: tuple[int, int] = _COUNTS
) -> dict[str, float]:
    """Thousands of instructions of a step of each kind."""
    kinds = list(kinds)
    with tempfile.TemporaryDirectory() as logs:
        common.child(__file__, "count", "4", "4", *kinds)  # makes the bytecode of what is imported
        program = [common.interpreter(), __file__, "count", *map(str, counts), *kinds]
        said = subprocess.run(
            ["valgrind", *_COUNTING, f"--log-file={logs}/%p", *program],
            # Sets and dictionaries of texts lie differently in memory with each seed.
            env=common.surroundings(PYTHONHASHSEED="0", STEPWISE_QUIET="1"),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        short, long = counts
        totals = [_total(pathlib.Path(logs, pid)) for pid in said.split()]
    pairs = zip(totals[::2], totals[1::2], strict=True)
    found = [(more - few) / (long - short) / 1e3 for few, more in pairs]
    each = dict(zip(kinds, found, strict=True))
    if MANY in each:
        each[MANY] /= _RUNS * _EACH
    return each


def resumes(count: int = 100) -> tuple[float, float]:
    """Millions of instructions of a process, from its start to the first new step.

    The programs are those of ``peers/``, killed after ``count`` steps and started again: one with
    stepwise, and the same with results in plain SQLite, which it reads back one by one.  Both
    import what directs the workloads: asyncio and more, as most programs do.
    """
    return _resume("stepwise", "disk-fsync", count), _resume("raw", "sqlite-full", count)


def _resume(peer: str, variant: str, count: int) -> float:
    script = str(common.HERE / "peers" / f"peer_{peer}.py")
    with tempfile.TemporaryDirectory(dir=memory_for_files()) as folder:
        path = pathlib.Path(folder)
        (path / "store").mkdir()
        job = {"variant": variant, "n": count, "run": "counted", "bytes": 1000, "service": {}}
        job |= {"store": f"{path}/store", "answer": f"{path}/answer", "began": 0.0}
        common.child(script, json.dumps({**job, "kind": "crash"}), expect=9)
        shutil.copytree(path / "store", path / "copy")
        resume = {**job, "kind": "resume"}
        common.child(script, json.dumps({**resume, "store": f"{path}/copy"}))  # makes the bytecode
        counted = ["valgrind", *_COUNTING, f"--log-file={path}/log"]
        common.child(script, json.dumps(resume), wrap=counted, PYTHONHASHSEED="0")
        return _total(path / "log") / 1e6


def _total(log: pathlib.Path) -> int:
    found = re.search(r"I +refs: +([\d,]+)", log.read_text(encoding="utf-8"))
    if found is None:
        raise RuntimeError(log.read_text(encoding="utf-8"))
    return int(found[1].replace(",", ""))


def _count(counts: Iterable[int], kinds: Iterable[str]) -> None:
    """Do the work of each kind, each count in a child of its own; print the children's ids."""
    # One full collection more in the longer run would count all that was imported as steps.
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory(dir=memory_for_files()) as folder:
        os.environ["STEPWISE_HOME"] = folder
        for kind in kinds:
            for count in counts:
                path = pathlib.Path(tempfile.mkdtemp(dir=folder))
                child = os.fork()
                if child == 0:
                    KINDS[kind](path, count)
                    os._exit(0)
                if os.waitpid(child, 0)[1]:
                    raise RuntimeError(f"{kind} failed")
                print(child)


def memory_for_files() -> str | None:
    """The folder in memory, where there is one: a flush takes no instructions, but time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    if why_not():
        return [common.Row("nothing", common.Spread.of([0.0]), "counted", note=why_not())]
    found = instructions(counts=QUICK if arguments.quick else _COUNTS)
    raw = found.pop(RAW)
    return [
        common.Row(
            kind,
            common.Spread.of([each]),
            "thousand instructions",
            common.Spread.of([each / raw]),
            f"{RAW}: {raw:.0f}",
        )
        for kind, each in found.items()
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["count"]:
        short, long, *kinds = sys.argv[2:]
        _count((int(short), int(long)), kinds)
    else:
        common.main(measure, "Instructions of a step")
