"""W9: many suspended runs and one ``stepwise up``: memory, processor time, and how soon each wakes.

The runs are real: a workflow that waits for a signal was executed and suspended.  ``up`` is looked
at from outside, by ``/proc``, while nothing happens.  Then signals are sent, one after the other,
to runs that are chosen at random: from the beginning of the send to the workflow's first statement
after the wait, which is in another process.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import textwrap
import time

import common

JOBS = textwrap.dedent(
    """
    import time
    import stepwise

    @stepwise.workflow
    def job(number):
        name = stepwise.wait_for("go", type=str)
        at = time.time()
        with open("woken", "a") as file:
            file.write(f"{at}\\n")
        return name
    """
)
BEGIN = textwrap.dedent(
    """
    import sys
    import jobs
    import stepwise

    stepwise.configure(suspend_after=0, quiet=True)
    for number in range(int(sys.argv[1])):
        try:
            jobs.job(number)
        except stepwise.RunSuspended:
            pass
    """
)
_TICK = os.sysconf("SC_CLK_TCK")
_PATIENCE = 120.0  # seconds


class Waiting:
    """A folder with so many suspended runs, and one ``up`` that waits with them."""

    def __init__(self, number: int, store: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stepwise-waiting-")
        self.folder = pathlib.Path(self._folder.name)
        (self.folder / "jobs.py").write_text(JOBS, "utf-8")
        here = str(common.HERE.parent)
        os.environ.pop("STEPWISE_TEST_HOME", None)  # of our own tests
        self.environment = {
            **os.environ,
            "STEPWISE_HOME": str(self.folder / "home"),
            "STEPWISE_STORE": f"{store}:{self.folder}/store",
            "PYTHONPATH": os.pathsep.join([str(self.folder), here]),
        }
        subprocess.run(
            [sys.executable, "-c", BEGIN, str(number)],
            cwd=self.folder,
            env=self.environment,
            check=True,
        )
        self._errors = (self.folder / "errors").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwise", "up", "jobs"],
            cwd=self.folder,
            env=self.environment,
            stderr=self._errors,
        )
        _until(lambda: f"{number} waiting" in (self.folder / "errors").read_text())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(_PATIENCE)
        self._errors.close()
        self._folder.cleanup()

    @property
    def seconds(self) -> float:
        """Processor time of ``up``."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        return sum(map(int, fields.split()[11:13])) / _TICK

    @property
    def megabytes(self) -> float:
        """Resident memory of ``up``."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
        return int(kilobytes) / 1000

    def idle(self, span: float) -> float:
        """Seconds of processor time in a minute in which nothing happens."""
        before = self.seconds
        time.sleep(span)
        return (self.seconds - before) * 60 / span

    def wake(self, count: int) -> list[float]:
        """Milliseconds from a send to the first statement after the wait."""
        os.environ.update(self.environment)
        import stepwise

        stepwise.configure(store=self.environment["STEPWISE_STORE"])
        found, woken = [], self.folder / "woken"
        for number, run in enumerate(random.sample(stepwise.runs(status="suspended"), count), 1):
            began = time.time()
            run.send("go", "on")
            _until(lambda number=number: _lines(woken) == number)  # type: ignore[misc]
            found.append((float(woken.read_text("utf-8").split()[-1]) - began) * 1e3)
        return found


def _lines(path: pathlib.Path) -> int:
    return path.read_text("utf-8").count("\n") if path.exists() else 0


def _until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("it takes too long")
        time.sleep(0.01)


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    sizes = (3, 10) if arguments.quick else (10, 100, 1000)
    span, woken = (2.0, 3) if arguments.quick else (60.0, 50)
    rows = []
    for number in sizes:
        waiting = Waiting(number, "disk")
        try:
            time.sleep(1.0)  # what it did at its start is over
            idle, memory = waiting.idle(span), waiting.megabytes
            spread = common.Spread.of(waiting.wake(min(woken, number)))
        finally:
            waiting.close()
        rows += [
            common.Row(f"{number} waiting: memory of up", common.Spread.of([memory]), "MB"),
            common.Row(f"{number} waiting: processor time", common.Spread.of([idle]), "s a minute"),
            common.Row(
                f"{number} waiting: from send to the next statement", spread, "ms", limit=1000
            ),
        ]
    return rows


if __name__ == "__main__":
    common.main(measure, "W9: waiting runs")
