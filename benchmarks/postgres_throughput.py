"""stepwise on PostgreSQL beside DBOS on PostgreSQL: the same server, the same durability, in turn.

Steps with a result of 1 KB; a step is on the disk of the server before the next one of its run
begins (``synchronous_commit=on``), and stepwise takes a checkpoint at each (its default).  Each
measurement is a fresh process on a fresh database.  ``BENCH_DBOS`` names a Python that has DBOS,
else ``peers/environments.py`` has made one (``make bench-peers``).  No turn begins after
``BENCH_MINUTES`` (20).

The time of a takeover is from the kill of a process to the first statement that a second process,
which lives already, executes of its run.  stepwise finds out that the first one is dead; DBOS has
to be told so, and is told at once.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

import common

sys.path.insert(0, str(common.HERE / "peers"))

import environments
import postgres

CROWD = common.HERE / "peers" / "crowd.py"
AT_ONCE = ((1, 200), (16, 40), (64, 20))  # runs, steps of each
QUICK = ((1, 10), (4, 5))
Figures = dict[str, Any]


def dbos() -> pathlib.Path | None:
    """The interpreter that has DBOS."""
    named = os.environ.get("BENCH_DBOS")
    if named:
        return pathlib.Path(named)
    why = environments.reason("dbos")
    if why is not None:
        print(f"dbos is left out: {why}", file=sys.stderr)
    return environments.python("dbos") if why is None else None


def process_of(
    python: pathlib.Path | str, who: str, *, by: Sequence[str] = (), **job: object
) -> subprocess.Popen[str]:
    """A process of a crowd; ``by`` is the command that starts it."""
    environment = {**os.environ, "STEPWISE_QUIET": "1", "PYTHONPATH": str(common.HERE.parent)}
    return subprocess.Popen(
        [*by, str(python), str(CROWD), who, json.dumps(job)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer_of(process: subprocess.Popen[str]) -> Figures:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended with {process.wait()}")
    return json.loads(line)


def throughput(python: pathlib.Path | str, who: str, runs: int, steps: int) -> Figures:
    """One measurement; the flushes of the server's log for each step are counted, too."""
    with postgres.database() as name:
        job = {"url": postgres.url(name), "runs": runs, "steps": steps, "bytes": 1024}
        with process_of(python, who, kind="throughput", **job) as process:
            answer_of(process)  # it is warm
            before = postgres.flushes()
            say(process, "go")
            found = answer_of(process)
        # A server process reports what it did, at the latest, when it ends.
        return {**found, "flushes": (postgres.flushes() - before) / (runs * steps)}


def say(process: subprocess.Popen[str], word: str) -> None:
    """Write a line to a process that waits for it."""
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def takeover(
    python: pathlib.Path | str, who: str, options: str = "", by: Sequence[str] = ()
) -> float:
    """Milliseconds from a kill to the first statement in the other process.

    Args:
        options: of the URL of the database.
        by: the command that starts the process which is killed.
    """
    with postgres.database() as name:
        job = {"url": postgres.url(name) + options, "run": uuid.uuid4().hex, "steps": 20}
        with process_of(python, who, by=by, kind="hold", **job) as first:
            answer_of(first)
            with process_of(python, who, kind="survive", **job) as second:
                answer_of(second)
                time.sleep(1.5)  # it has found the run owned, and waits
                at = time.monotonic()
                os.kill(first.pid, signal.SIGKILL)
                say(second, "dead")
                return (answer_of(second)["at"] - at) * 1e3


def _of(values: list[Figures], key: str) -> common.Spread:
    return common.Spread.of([each[key] for each in values])


def _rows_of(what: str, ours: list[Figures], theirs: list[Figures]) -> list[common.Row]:
    """The rows of one number of runs at once: time for a step over all runs, then one run's."""
    rows = []
    for key, name in (
        ("ms", "server and process, for one step"),
        ("p50_ms", "a step of one run, p50"),
        ("p99_ms", "a step of one run, p99"),
    ):
        ratio, other, note = None, "", ""
        if theirs:
            pairs = zip(ours, theirs, strict=True)
            ratio = common.Spread.of([a[key] / b[key] for a, b in pairs])
            other = f"DBOS: {_of(theirs, key)}"
        if key == "ms":
            facts = []
            for who, values in (("stepwise", ours), ("DBOS", theirs)):
                if values:
                    rate = common.Spread.of([1e3 / each["ms"] for each in values])
                    flushes, cpu = _of(values, "flushes").median, _of(values, "cpu_ms").median
                    facts.append(
                        f"{who}: {rate} steps/s, {flushes:.2f} flushes a step, "
                        f"{cpu:.2g} ms of its processor time"
                    )
            note = "; ".join(facts)
        limit = 0.5 if key == "ms" and theirs else None
        rows.append(common.Row(f"{what}: {name}", _of(ours, key), "ms", ratio, other, limit, note))
    return rows


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    """All sizes in turn, round after round, each in the other order than the one before."""
    os.environ.setdefault("BENCH_POSTGRES_PORT", "55438")
    contenders = {"stepwise": pathlib.Path(sys.executable), "dbos": dbos()}
    present = {who: python for who, python in contenders.items() if python is not None}
    postgres.start()
    try:
        assert postgres.query("SHOW synchronous_commit") == "on"
        assert postgres.query("SHOW fsync") == "on"
        return _measured(arguments, present)
    finally:
        postgres.stop()


def _measured(arguments: argparse.Namespace, present: dict[str, pathlib.Path]) -> list[common.Row]:
    sizes = QUICK if arguments.quick else AT_ONCE
    ends = common.now() + 60 * float(os.environ.get("BENCH_MINUTES", "20"))
    found: dict[tuple[int, str], list[Figures]] = {}
    taken: dict[str, list[float]] = {who: [] for who in present}
    for turn in range(arguments.rounds):
        order = list(present)[:: 1 if turn % 2 else -1]
        for runs, steps in sizes:
            for who in order:
                figures = throughput(present[who], who, runs, steps)
                found.setdefault((runs, who), []).append(figures)
        for who in order:
            taken[who] += [takeover(present[who], who) for _ in range(1 if arguments.quick else 3)]
        print(f"turn {turn + 1}: {_summary(found, turn)}", file=sys.stderr, flush=True)
        if common.now() > ends:
            break  # a busy machine: fewer turns are figures, too
    rows = []
    for runs, _ in sizes:
        what = f"{runs} run{'s' * (runs > 1)} at once"
        rows += _rows_of(what, found[runs, "stepwise"], found.get((runs, "dbos"), []))
    return [*rows, *_takeovers(taken)]


def _takeovers(taken: dict[str, list[float]]) -> list[common.Row]:
    rows = []
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        ours, *theirs = (
            common.Spread.of([sorted(values)[int(len(values) * part)]])
            for values in (taken[who] for who in ("stepwise", "dbos") if who in taken)
        )
        ratio = common.Spread.of([ours.median / theirs[0].median]) if theirs else None
        other = f"DBOS, told at once: {theirs[0]}" if theirs else ""
        limit, note = (1000.0, "") if not theirs else (None, "")
        rows.append(
            common.Row(
                f"from a kill to the other process, {name} of {len(taken['stepwise'])}",
                *(ours, "ms", ratio, other, limit, note),
            )
        )
    return rows


def _summary(found: dict[tuple[int, str], list[Figures]], turn: int) -> str:
    return ", ".join(
        f"{runs} {who} {1e3 / values[turn]['ms']:.0f}/s p50 {values[turn]['p50_ms']:.1f}"
        for (runs, who), values in found.items()
    )


if __name__ == "__main__":
    common.main(measure, "stepwise and DBOS on PostgreSQL")
