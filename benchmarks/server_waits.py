"""Many suspended runs in one server: its memory, its threads, and how soon each run wakes.

One process starts the runs, which wait for a signal and suspend, and holds their handles, as a
server does.  Then signals are sent to runs that are chosen at random, one after the other: from the
end of the send to the result in the caller's hands.
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

import common

SERVER = textwrap.dedent(
    """
    import asyncio, json, pathlib, random, sys, threading, time
    import stepwise

    stepwise.configure(suspend_after=0, quiet=True)
    number, woken, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    @stepwise.workflow(durability="os")
    def thread(order):
        return stepwise.wait_for("go")

    @stepwise.workflow(durability="os")
    async def task(order):
        return await stepwise.wait_for("go")

    def resident():
        fields = pathlib.Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in fields if line.startswith("VmRSS"))) / 1000

    async def until_suspended(handles):
        while any(each.status != "suspended" for each in handles):
            await asyncio.sleep(0.01)

    async def main():
        handles, flow = [], thread if kind == "thread" else task
        for first in range(0, number, 50):
            some = [flow.options(run_id=f"r{n}").start(n) for n in range(first, first + 50)]
            await until_suspended(some)
            handles += some
        begun, idle = time.process_time(), 5.0 if number > 1_000 else 0.5
        await asyncio.sleep(idle)
        found = {
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
            "megabytes": resident(),
            "processor": (time.process_time() - begun) * 60 / idle,
            "woken": [],
        }
        for handle in random.sample(handles, woken):
            await asyncio.to_thread(stepwise.get_run(handle.id).send, "go", 1)
            sent = time.perf_counter()
            await (handle if kind == "task" else asyncio.to_thread(handle.result))
            found["woken"].append((time.perf_counter() - sent) * 1e3)
        print(json.dumps(found))

    asyncio.run(main())
    """
)


def served(number: int, woken: int, kind: str, store: str) -> dict[str, object]:
    """Return what a server with so many suspended runs says of itself."""
    with tempfile.TemporaryDirectory(prefix="stepwise-server-") as folder:
        script = pathlib.Path(folder, "server.py")
        script.write_text(SERVER, "utf-8")
        environment = {
            **os.environ,
            "STEPWISE_HOME": f"{folder}/home",
            "STEPWISE_STORE": f"{store}:{folder}/store",
            "PYTHONPATH": str(common.HERE.parent),
        }
        environment.pop("STEPWISE_TEST_HOME", None)  # of our own tests
        command = [sys.executable, str(script), str(number), str(woken), kind]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    number, woken = (100, 5) if arguments.quick else (10_000, 100)
    rows = []
    for kind in ("thread", "task"):
        found = served(number, woken, kind, "disk")
        wakes = found["woken"]
        assert isinstance(wakes, list)
        what = f"{number} suspended runs ({kind})"
        for key, unit, limit in (
            ("megabytes", "MB", 100),
            ("threads", "threads", 3),
            ("tasks", "tasks", 1),
            ("processor", "s a minute", None),
        ):
            value = found[key]
            assert isinstance(value, (int, float))
            rows.append(common.Row(f"{what}: {key}", common.Spread.of([value]), unit, limit=limit))
        rows.append(
            common.Row(f"{what}: from send to result", common.Spread.of(wakes), "ms", limit=200)
        )
    return rows


if __name__ == "__main__":
    common.main(measure, "suspended runs of a server")
