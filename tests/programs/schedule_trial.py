"""A trial of schedules: two ``stepwise up`` that are killed, and a clock that jumps."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timezone

from harness import PROGRAMS, python_path
from scheduled import SCHEDULES

import stepwise
from stepwise._journal.journal import seal_for
from stepwise._journal.schedule_rows import ScheduleRows
from stepwise._workflows.schedules import Instants
from stepwise.stores import open_store

BEGIN = datetime(2030, 3, 29, 12, tzinfo=timezone.utc).timestamp()  # before summer time begins
HOUR, DAY = 3600, 86400
SECONDS = 240  # without a step
AT_ONCE = 8  # runs that a supervisor executes


class Supervisors:
    """Two processes of ``stepwise up``, and the clock that they have in common."""

    def __init__(self, folder, url):
        self._folder, self._url = folder, url
        self.log, self._clock, self.kills = folder / "log", folder / "clock", 0
        self.log.touch()
        self.set(BEGIN)
        self._running = [self._start(number) for number in range(2)]

    def _start(self, number):
        environment = {
            **os.environ,
            "LOG": str(self.log),
            "STEPWISE_STORE": self._url,
            "PYTHONPATH": python_path(PROGRAMS),
        }
        command = [sys.executable, PROGRAMS / "scheduled.py", self._clock]
        with open(self._folder / f"said {number}", "ab") as said:
            return subprocess.Popen(command, env=environment, stdout=said, stderr=said)

    def set(self, moment):
        new = self._clock.with_suffix(".new")
        new.write_text(repr(moment), "ascii")
        new.replace(self._clock)

    def kill(self, number):
        self._running[number].kill()
        self._running[number].wait()
        self._running[number] = self._start(number)
        self.kills += 1

    def close(self):
        for each in self._running:
            each.kill()
            each.wait()

    def logged(self):
        return Counter(self.log.read_text("ascii").splitlines())

    def until(self, condition):
        """Wait; only a standstill is a failure, however slow the machine is."""
        size, end = -1, 0.0
        while not condition():
            if (found := self.log.stat().st_size) != size:
                size, end = found, time.monotonic() + SECONDS
            if time.monotonic() >= end:
                said = [each.read_text("utf-8")[-3000:] for each in self._folder.glob("said *")]
                raise AssertionError("\n".join(said))
            time.sleep(0.1)


def expected(name, end):
    instants, found, at = Instants(*SCHEDULES[name], name), set(), BEGIN
    while (at := instants.after(at)) <= end:
        found.add(f"{name} {at}")
    return found


def each_instant_is_one_run(folder, url, *, days, seed):
    """Let the clock of two supervisors jump over many days, and kill them now and then."""
    drawn, store, now = random.Random(seed), open_store(url), BEGIN
    supervisors, end = Supervisors(folder, url), BEGIN + days * DAY
    rows = ScheduleRows(store, seal_for(store))
    try:
        supervisors.until(lambda: len(rows.all()) == len(SCHEDULES))
        while now < end:
            now = min(end, now + drawn.choice([HOUR, 2 * HOUR, DAY, 5 * DAY]))
            supervisors.set(now)
            supervisors.until(lambda day=now - DAY: all(row.last > day for row in rows.all()))
            if drawn.random() < 0.2:
                supervisors.set(now - drawn.choice([1, HOUR / 2, 3 * HOUR, 20 * HOUR]))
                time.sleep(drawn.random() / 10)
                supervisors.set(now)
            if drawn.random() < 0.2:
                time.sleep(drawn.random() / 5)
                supervisors.kill(drawn.randrange(2))
        supervisors.until(lambda: all(row.next > end for row in rows.all()))
        # Submissions of one moment are microseconds apart, and a run that died waits for its retry.
        supervisors.set(end + HOUR / 2)
        wanted = set().union(*(expected(name, end) for name in SCHEDULES))
        supervisors.until(lambda: supervisors.logged().keys() >= wanted)
        supervisors.until(lambda: all(r.status == "completed" for r in stepwise.runs(store=store)))
    finally:
        supervisors.close()
    logged, kills = supervisors.logged(), supervisors.kills
    assert set(logged) == wanted
    assert len(stepwise.runs(store=store)) == len(wanted)
    again = logged.total() - len(wanted)
    assert again <= AT_ONCE * kills  # a step that is killed before its record runs again
    return {"instants": len(wanted), "kills": kills, "steps again": again}
