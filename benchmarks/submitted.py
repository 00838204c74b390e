"""Submitted runs: what submitting, listing, waiting and draining many of them costs.

On a disk, on PostgreSQL, and beside queues of DBOS on the same server.  The runs do nothing, so
that the figures are those of the library.  ``--many`` runs are submitted for an hour from now, by
one loop, and listed while ``stepwise up`` waits with them; then ``--drained`` runs are submitted by
eight threads, and executed, eight at a time.  Each part is a fresh process.  ``BENCH_DBOS`` names a
Python that has DBOS, else ``peers/environments.py`` has made one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

import common
import postgres_throughput as throughput

sys.path.insert(0, str(common.HERE / "peers"))

import postgres

JOBS = textwrap.dedent(
    """
    from stepwise import workflow

    @workflow
    def job(number):
        return number
    """
)
SUBMIT = textwrap.dedent(
    """
    import concurrent.futures, datetime, json, sys, time
    import jobs

    many, threads, hours = map(int, sys.argv[1:])
    at = datetime.timedelta(hours=hours)
    began, used = time.perf_counter(), time.process_time()
    if threads == 1:
        for number in range(many):
            jobs.job.submit(number, at=at)
    else:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number: jobs.job.submit(number, at=at), range(many)))
    took = time.perf_counter() - began, time.process_time() - used
    print(json.dumps([seconds / many * 1e3 for seconds in took]))
    """
)
DBOS = textwrap.dedent(
    """
    import json, sys, time
    from dbos import DBOS

    @DBOS.workflow()
    def job(number):
        return number

    what, url, many = sys.argv[1], sys.argv[2], int(sys.argv[3])
    DBOS(config={"name": "jobs", "system_database_url": url, "log_level": "ERROR",
                 "application_version": "1"})
    if what == "submit":
        DBOS.listen_queues([])  # this process executes none
    DBOS.launch()
    queue = DBOS.register_queue("jobs", worker_concurrency=8, polling_interval_sec=0.1)
    began, used = time.perf_counter(), time.process_time()
    if what == "submit":
        for number in range(many):
            queue.enqueue(job, number)
        took = time.perf_counter() - began, time.process_time() - used
        print(json.dumps([seconds / many * 1e3 for seconds in took]))
    else:
        while DBOS.list_queued_workflows(queue_name="jobs", limit=1):
            time.sleep(0.1)
        print(json.dumps([time.perf_counter() - began, time.process_time() - used]))
    sys.stdout.flush()
    DBOS.destroy()
    """
)
_TICK = os.sysconf("SC_CLK_TCK")


class Place:
    """A folder with the module, and the environment of its processes."""

    def __init__(self, folder: str, store: str) -> None:
        self.folder = pathlib.Path(folder)
        (self.folder / "jobs.py").write_text(JOBS, "utf-8")
        os.environ.pop("STEPWISE_TEST_HOME", None)  # of our own tests
        here = str(common.HERE.parent)
        self.environment = {
            **os.environ,
            "STEPWISE_HOME": str(self.folder / "home"),
            "STEPWISE_STORE": store,
            "PYTHONPATH": os.pathsep.join([str(self.folder), here]),
        }

    def run(self, *words: str) -> str:
        command, env = [sys.executable, *words], self.environment
        done = subprocess.run(command, cwd=self.folder, env=env, check=True, capture_output=True)
        return done.stdout.decode()

    def submit(self, many: int, threads: int, hours: int) -> tuple[float, float]:
        """Submit runs; return the milliseconds for each, and those of processor time."""
        words = SUBMIT, str(many), str(threads), str(hours)
        took, used = json.loads(self.run("-c", *words))
        return took, used

    def listed(self) -> float:
        """Return the processor time of ``stepwise runs -n 50`` in ms, beyond that of its start."""
        took = []
        for words in (["--version"], ["runs", "-n", "50"]):
            before = os.times()
            self.run("-m", "stepwise", *words)
            after = os.times()
            took.append(after.children_user - before.children_user)
        return (took[1] - took[0]) * 1e3

    def up(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stepwise", "up", "jobs", "--max", "8"]
        with (self.folder / "errors").open("w") as errors:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=errors)

    def ended(self) -> int:
        return (self.folder / "errors").read_text().count(" completed")


def _seconds(process: subprocess.Popen[bytes]) -> float:
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]
    return sum(map(int, fields.split()[11:13])) / _TICK


def _megabytes(process: subprocess.Popen[bytes], which: str) -> float:
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(which))) / 1000


def _until(condition: object, seconds: float = 1800.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("it takes too long")
        time.sleep(0.02)


def ours(store: str, many: int, drained: int, span: float) -> dict[str, float]:
    """One round of stepwise."""
    with tempfile.TemporaryDirectory(prefix="stepwise-submitted-") as folder:
        place = Place(folder, store or f"disk:{folder}/store")
        found = dict(zip(SUBMITTED, place.submit(many, 1, 1), strict=True))
        found["list"] = place.listed()
        up = place.up()
        try:
            _until(lambda: "waiting" in (place.folder / "errors").read_text())
            time.sleep(1.0)
            before = _seconds(up)
            time.sleep(span)
            found["idle cpu"] = (_seconds(up) - before) / span * 1e3
            found["idle memory"] = _megabytes(up, "VmRSS")
            up.terminate()
            up.wait()
            found["submit, 8 threads"] = place.submit(drained, 8, 0)[0]
            up = place.up()
            _until(lambda: place.ended() > 0)
            began, used, before_count = time.perf_counter(), _seconds(up), place.ended()
            _until(lambda: place.ended() == drained)
            done = drained - before_count
            found["drained"] = done / (time.perf_counter() - began)
            found["drained, cpu"] = (_seconds(up) - used) / done * 1e3
            found["draining memory"] = _megabytes(up, "VmHWM")
        finally:
            up.terminate()
            up.wait()
    return found


def theirs(python: pathlib.Path, url: str, drained: int) -> dict[str, float]:
    """One round of DBOS."""
    url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    found = {}
    for what in ("submit", "drain"):
        command = [str(python), "-c", DBOS, what, url, str(drained)]
        done = subprocess.run(command, check=True, capture_output=True)
        found[what] = json.loads(done.stdout.decode().splitlines()[-1])
    took, used = found["drain"]
    drains = {"drained": drained / took, "drained, cpu": used / drained * 1e3}
    return {**dict(zip(SUBMITTED, found["submit"], strict=True)), **drains}


SUBMITTED = "submit, one loop", "submit, cpu"
UNITS = {
    "submit, one loop": "ms each",
    "submit, cpu": "ms of processor time each",
    "submit, 8 threads": "ms each",
    "list": "ms of processor time for the newest 50",
    "idle cpu": "ms of processor time a second",
    "idle memory": "MB",
    "drained": "runs a second, eight at a time",
    "drained, cpu": "ms of processor time each",
    "draining memory": "MB at most",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--drained", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("disk", "postgres", "dbos"), action="append")
    given = parser.parse_args()
    wanted = given.only or ["disk", "postgres", "dbos"]
    python = throughput.dbos() if "dbos" in wanted else None
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(given.rounds):
        for who in wanted:
            many = given.many if turn == 0 else min(given.many, 2000)
            if who == "disk":
                figures = ours("", many, given.drained, 10.0)
            elif who == "postgres":
                with postgres.database() as name:
                    figures = ours(postgres.url(name), many, given.drained, 10.0)
            elif python is not None:
                with postgres.database() as name:
                    figures = theirs(python, postgres.url(name), given.drained)
            else:
                continue
            for key, value in figures.items():
                found.setdefault((who, key), []).append(value)
                what = f"{value:8.2f} {UNITS[key]}"
                print(f"round {turn + 1}, {who}, {many:,} waiting: {key:18} {what}", flush=True)
    postgres.stop()
    for (who, key), values in found.items():
        print(f"{who:9} {key:18} {common.Spread.of(values)} {UNITS[key]}")


if __name__ == "__main__":
    main()
