"""Submitters and ``stepwise up`` that are killed: each submitted run is executed once, to its end.

A storm is drawn from a seed.  Kills follow what the runs have logged, not the time.
"""

import os
import pathlib
import random
import signal
import sys
import time
from collections import Counter, defaultdict

from harness import SOON, python_path, talking

import stepwise

JOBS = """
import os

from stepwise import step, workflow

def log(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

@step
def work(name):
    log(f"work {name} {os.getpid()}")

@workflow
def job(name):
    log(f"begin {name} {os.getpid()}")
    work(name)
    log(f"end {name} {os.getpid()}")
"""
SUBMITTER = """
import sys

import jobs

who, many = sys.argv[1], int(sys.argv[2])
for number in range(many):
    name = f"{who}.{number}"
    for run_id in [name, name] if number % 3 else [None]:
        found = jobs.job.submit(name, run_id=run_id)
    print(found.id, flush=True)
"""
SECONDS = 600


class Storm:
    """One storm in the current folder.

    Args:
        store: the URL of the store.
        ups: how many supervisors there are at a time, each for ``most`` runs.
    """

    def __init__(self, seed, store, *, submitters=3, each=25, ups=2, most=3, kills=6):
        self._draw = random.Random(seed)
        self._store, self._each, self._ups, self._most = store, each, ups, most
        self._submitters, self._kills = submitters, kills
        self._killed, self._dead, self._acknowledged = set(), [], []
        pathlib.Path("jobs.py").write_text(JOBS, "utf-8")
        pathlib.Path("submitter.py").write_text(SUBMITTER, "utf-8")
        pathlib.Path("log").touch()

    def _start(self, *words, first=""):
        environment = {
            **os.environ,
            "STEPWISE_STORE": self._store,
            "STEPWISE_TEST_HOME": "",
            "PYTHONPATH": python_path(os.getcwd(), *sys.path),
        }
        return talking(*words, env=environment, first=first)

    def _up(self):
        return self._start("-m", "stepwise", "up", "jobs", "--max", str(self._most), first=SOON)

    def _kill(self, process):
        process.kill()
        process.wait()
        self._killed.add(process.pid)
        self._dead.append(process)

    def rage(self):
        """Start all, kill some, wait until every run has ended; return what was logged."""
        writers = [
            self._start("submitter.py", f"s{n}", str(self._each)) for n in range(self._submitters)
        ]
        ups = [self._up() for _ in range(self._ups)]
        total = self._submitters * self._each
        moments = sorted(self._draw.randrange(2 * total) for _ in range(self._kills))
        try:
            for moment in moments:
                _until(lambda m=moment: len(_logged()) >= m or self._is_quiet(writers))
                if self._draw.random() < 0.3 and writers[1:]:
                    self._kill(writers[-1])
                    self._acknowledge(writers.pop())
                else:
                    place = self._draw.randrange(len(ups))
                    self._kill(ups[place])
                    ups[place] = self._up()
            for process in writers:
                self._acknowledge(process)
                assert process.returncode == 0
            _until(self._all_have_ended)
        finally:
            for process in [*ups, *writers]:
                process.send_signal(signal.SIGTERM)
            for process in [*ups, *writers, *self._dead]:
                process.wait()
                process.stdin.close()
                process.stdout.close()
        return _logged()

    def _is_quiet(self, writers):
        return all(each.poll() is not None for each in writers) and self._all_have_ended()

    def _acknowledge(self, submitter):
        self._acknowledged += submitter.stdout.read().splitlines()
        submitter.wait()

    def _all_have_ended(self):
        return not any(stepwise.runs(status=each, store=self._store, limit=1) for each in
                       ("suspended", "running", "crashed", "stuck"))  # fmt: skip

    def check(self, logged):
        """Compare the runs with what was acknowledged, and with what they logged."""
        runs = stepwise.runs(store=self._store)
        assert Counter(run.status for run in runs).keys() == {"completed"}
        assert {*self._acknowledged} <= {run.id for run in runs}
        assert len({run.arguments for run in runs}) == len(runs)
        events = defaultdict(list)
        for line in logged:
            what, name, pid = line.split()
            events[name].append((what, int(pid)))
        assert len(events) == len(runs)
        for name, each in events.items():
            begins = [pid for what, pid in each if what == "begin"]
            # A run is begun again only once the process that executed it has been killed.
            assert {*begins[:-1]} <= self._killed, (name, each)
            assert len({*begins}) == len(begins), (name, each)
            last = [what for what, pid in each if pid == begins[-1]]
            assert len(last) == len({*last}), (name, each)
            assert "end" in [what for what, _ in each], (name, each)

    def check_order(self, logged):
        """Compare the order in which the runs of each submitter began with that of submission."""
        # What was begun by a process that was killed before the first line is begun again later.
        again = {run.arguments for run in stepwise.runs(store=self._store)
                 if run._seen(1).course.resumed > 1}  # fmt: skip
        begun = (line.split()[1] for line in logged if line.startswith("begin"))
        began = [name for name in dict.fromkeys(begun) if f"name={name!r}" not in again]
        for who in range(self._submitters):
            mine = [int(name.split(".")[1]) for name in began if name.startswith(f"s{who}.")]
            assert mine == sorted(mine), (who, mine)


def _logged():
    return pathlib.Path("log").read_text("utf-8").splitlines()


def _until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
