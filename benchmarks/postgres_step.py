"""What a step, a run and a takeover cost a PostgreSQL server: rows, log, flushes, processor time.

A run of the second size of each pair has more steps than one of the first, and nothing else: so the
difference is what steps cost, and the remainder is what a run costs.  The counters are the server's
own (``pg_stat_database``, ``pg_current_wal_lsn``, ``pg_stat_wal``), and the processor time of its
processes.  ``fleet_simulation.py`` reads these figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import uuid

import common
import postgres_throughput as throughput

sys.path.insert(0, str(common.HERE / "peers"))

import postgres

COUNTED = (  # key of the counter, what it is called, unit
    ("transactions", "transactions", ""),
    ("inserted", "rows inserted", ""),
    ("updated", "rows updated", ""),
    ("deleted", "rows deleted", ""),
    ("wal_bytes", "bytes of the write-ahead log", "bytes"),
    ("flushes", "flushes of the write-ahead log", ""),
    ("bytes", "bytes of tables and indexes", "bytes"),
)
_SIZES = {  # runs at once, steps of each, of the small and of the large measurement
    "one run at a time": ((1, 50), (1, 450)),
    "64 runs at once": ((64, 10), (64, 30)),
}
_LEASE = 6.0  # seconds
_ELSEWHERE = "unshare", "--pid", "--fork", "--kill-child"
"""Starts a process with other process ids: nobody here can prove its death, as of another host."""
_QUICK = {"one run at a time": ((1, 5), (1, 25))}


def _measured(runs: int, steps: int) -> dict[str, float]:
    """What the server did for so many runs at once."""
    with postgres.database() as name:
        job = {"url": postgres.url(name), "runs": runs, "steps": steps, "bytes": 1024}
        with throughput.process_of(sys.executable, "stepwise", kind="throughput", **job) as process:
            throughput.answer_of(process)  # it is warm
            before = postgres.counters(name)
            throughput.say(process, "go")
            found = throughput.answer_of(process)
        after = postgres.counters(name)
    took = {key: after[key] - before[key] for key in after}
    return {**took, "client_seconds": found["cpu_ms"] * runs * steps / 1e3}


def _of_steps(sizes: tuple[tuple[int, int], tuple[int, int]]) -> dict[str, float]:
    """What one step costs: the large measurement less the small one."""
    small, large = (_measured(*size) for size in sizes)
    (runs, few), (_, many) = sizes
    return {key: (large[key] - small[key]) / (runs * (many - few)) for key in large}


def _rows(name: str, rounds: list[dict[str, float]]) -> list[common.Row]:
    def of(key: str, factor: float = 1.0) -> common.Spread:
        return common.Spread.of([each[key] * factor for each in rounds])

    rows = [common.Row(f"a step, {name}: {called}", of(key), unit) for key, called, unit in COUNTED]
    rows.append(
        common.Row(f"a step, {name}: processor time of the server", of("server_seconds", 1e3), "ms")
    )
    rows.append(
        common.Row(
            f"a step, {name}: processor time of our process", of("client_seconds", 1e3), "ms"
        )
    )
    return rows


class _Runs:
    """Runs of other processes that are taken over here, one after the other."""

    def __init__(self, url: str, steps: int) -> None:
        self.url, self.steps = url, steps
        self.client: list[float] = []
        self.server: list[float] = []
        self.database = url.rpartition("/")[2]

    def take(self, count: int) -> None:
        """A process begins ``count`` runs and is killed; another one resumes them all."""
        job = {"url": self.url, "runs": count, "steps": self.steps, "prefix": uuid.uuid4().hex}
        with throughput.process_of(sys.executable, "stepwise", kind="hold_many", **job) as first:
            throughput.answer_of(first)
            first.kill()
        with throughput.process_of(sys.executable, "stepwise", kind="take_many", **job) as second:
            throughput.answer_of(second)
            before = postgres.counters(self.database)["server_seconds"]
            throughput.say(second, "go")
            found = throughput.answer_of(second)
            after = postgres.counters(self.database)["server_seconds"]
        self.client.append(found["cpu_ms"])
        self.server.append((after - before) * 1e3 / count)


def _takeovers(arguments: argparse.Namespace) -> list[common.Row]:
    with postgres.database() as name:
        runs = _Runs(postgres.url(name), 20)
        for _ in range(arguments.rounds):
            runs.take(5 if arguments.quick else 100)
    what = "a takeover after 20 steps: processor time of"
    return [
        common.Row(f"{what} our process", common.Spread.of(runs.client), "ms"),
        common.Row(f"{what} the server", common.Spread.of(runs.server), "ms"),
    ]


def _lost_host(arguments: argparse.Namespace) -> list[common.Row]:
    """Seconds from the death of a host until another one goes on with its run."""
    if subprocess.run([*_ELSEWHERE, "true"], check=False, capture_output=True).returncode:
        print("a lost host is left out: unshare is not allowed here", file=sys.stderr)
        return []
    found = [
        throughput.takeover(sys.executable, "stepwise", f"?lease_seconds={_LEASE:g}", _ELSEWHERE)
        for _ in range(arguments.rounds)
    ]
    what = f"a takeover after a lost host, with lease_seconds={_LEASE:g}"
    # From the last sign of life on, which is lease_seconds / 3 old at most; then a look.
    spread = common.Spread.of([each / 1e3 for each in found])
    return [common.Row(what, spread, "s", limit=_LEASE + 1)]


def _restart() -> common.Row:
    """Milliseconds from a kill of the server until it answers again."""
    postgres.query("CREATE TABLE IF NOT EXISTS written AS SELECT generate_series(1, 200000)")
    postgres.kill()
    began = time.monotonic()
    postgres.start()
    postgres.query("SELECT 1")
    return common.Row(
        "a killed server: until it answers again",
        common.Spread.of([(time.monotonic() - began) * 1e3]),
        "ms",
    )


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    """The rows."""
    os.environ.setdefault("BENCH_POSTGRES_PORT", "55438")
    postgres.start()
    rows = []
    try:
        for name, sizes in (_QUICK if arguments.quick else _SIZES).items():
            rows += _rows(name, [_of_steps(sizes) for _ in range(arguments.rounds)])
        rows += _takeovers(arguments)
        rows += _lost_host(arguments)
        rows.append(_restart())
    finally:
        postgres.stop()
    return rows


if __name__ == "__main__":
    common.main(measure, "What a step costs a PostgreSQL server")
