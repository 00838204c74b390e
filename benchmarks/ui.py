"""``stepwise ui`` with 100,000 runs and a run of 100,000 steps: how fast, how large, at whose cost.

The server is a process of its own, and so is the run that is looked at.  Seconds to the first byte
of a page, its kilobytes, seconds from the end of a step to the event that tells an open page of it,
megabytes of the server after all that, and thousands of instructions of a step, by valgrind, with
a page of its run open and without.

    [BENCH_STORES=disk,postgres] [BENCH_RUNS=100000] python benchmarks/ui.py [--quick]

``postgres`` is the server that ``STEPWISE_TEST_POSTGRES`` names.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import common
import instructions
import many_runs

import stepwise

_FIRST_BYTE, _EVENT, _SIZE, _SERVER = 0.2, 0.3, 150.0, 150.0  # s, s, KB, MB
_COUNTS = 100, 300  # steps whose instructions are counted
_STEPS = 20  # steps whose events are measured
_PATIENCE = 30.0  # seconds for an event, at most


@stepwise.step
def add(number: int) -> int:
    return number + 1


@stepwise.workflow(name="ui:long", run_id="long", durability="os", checkpoint_every=1000)
def long(count: int) -> int:
    number = 0
    for _ in range(count):
        number = add(number)
    return number


@stepwise.workflow(name="ui:counted")
def counting(count: int) -> int:
    number = 0
    for _ in range(count):
        number = add(number)
    return number


@stepwise.workflow(name="ui:live", run_id="live")
def live(count: int) -> int:
    """Make a step for each line of stdin, and print when it was made."""
    number = 0
    for _ in range(count):
        sys.stdin.readline()
        number = add(number)
        print(time.time(), flush=True)
    return number


class Page:
    """A running ``stepwise ui``, and what a browser does."""

    def __init__(self) -> None:
        command = [common.interpreter(), "-m", "stepwise", "ui", "--port", "0", "--no-open"]
        self.process = subprocess.Popen(
            command, env=common.surroundings(), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self._place = urlsplit(self.process.stdout.readline().strip())
        cookie = self._get(f"/?{self._place.query}").headers["set-cookie"]
        self._headers = {"cookie": cookie.partition(";")[0]}

    def _get(self, path: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._place.netloc)
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse()

    def load(self, path: str) -> tuple[float, float]:
        """Load a page: seconds to its first byte, and its kilobytes."""
        began = time.perf_counter()
        answer = self._get(path, self._headers)
        first = answer.read(1)
        took = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return took, len(first + answer.read()) / 1e3

    def events(self, path: str) -> Iterator[float]:
        """The moments at which events come that tell of a change."""
        answer = self._get(path, self._headers)
        for line in iter(answer.readline, b""):
            if line.startswith(b"data: ") and json.loads(line[6:])["runs"]:
                yield time.time()

    def megabytes(self) -> float:
        """What the server takes now."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s*(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024 / 1e6


@contextlib.contextmanager
def served() -> Iterator[Page]:
    page = Page()
    yield page
    page.process.send_signal(signal.SIGINT)
    page.process.wait()


def pages(page: Page, kind: str, many: int, steps: int, rounds: int) -> list[common.Row]:
    """Seconds to the first byte, and the sizes, of the pages."""
    looked_at = {
        f"{many:,} runs: the list": "/",
        f"{many:,} runs: status:failed": "/?q=status%3Afailed",
        f"{many:,} runs: a tag": "/?q=tag%3Acustomer%3Dc7",
        f"{many:,} runs: a word that no run has": "/?q=nowhere",
        f"{many:,} runs: the inbox": "/inbox",
        f"a run of {steps:,} steps": "/runs/long",
        f"a run of {steps:,} steps, in the middle": f"/runs/long?step={steps // 2}",
    }
    rows = []
    for what, path in looked_at.items():
        loaded = [page.load(path) for _ in range(rounds + 1)][1:]
        first, size = (common.Spread.of(each) for each in zip(*loaded, strict=True))
        name = f"{kind}: {what}"
        rows.append(common.Row(f"{name}: first byte", first, "s", limit=_FIRST_BYTE))
        rows.append(common.Row(f"{name}: size", size, "KB", limit=_SIZE))
    return rows


def latency(page: Page, kind: str, steps: int) -> common.Row:
    """Seconds from the end of a step to the event that an open page of its run gets."""
    program = subprocess.Popen(
        [common.interpreter(), __file__, "live", str(steps)],
        env=common.surroundings(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    while not any(run.id == "live" for run in stepwise.runs(limit=1)):
        time.sleep(0.05)
    told: queue.SimpleQueue[float] = queue.SimpleQueue()
    events = page.events("/runs/live/live")
    threading.Thread(target=lambda: [told.put(at) for at in events], daemon=True).start()
    found = []
    for _ in range(steps):
        time.sleep(0.5)  # so that an event is of one step
        program.stdin.write("\n")
        program.stdin.flush()
        made = float(program.stdout.readline())
        at = told.get(timeout=_PATIENCE)
        while at < made:
            at = told.get(timeout=_PATIENCE)
        found.append(at - made)
    program.communicate()
    return common.Row(f"{kind}: a step until its event", common.Spread.of(found), "s", limit=_EVENT)


def counted(folder: pathlib.Path, steps: int) -> int:
    """Instructions of a process whose run has so many steps."""
    log = folder / f"log-{steps}"
    count = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    wrap = [*count, f"--log-file={log}"]
    common.child(__file__, "counting", str(steps), wrap=wrap, PYTHONHASHSEED="0")
    return instructions._total(log)


def of_a_step(folder: pathlib.Path) -> float:
    """Thousands of instructions of a step."""
    few, more = (counted(folder, count) for count in _COUNTS)
    return (more - few) / (_COUNTS[1] - _COUNTS[0]) / 1e3


def cost(kind: str) -> list[common.Row]:
    """Thousands of instructions of a step, with a page of its run open and without."""
    if instructions.why_not():
        print(f"instructions are left out: {instructions.why_not()}", file=sys.stderr)
        return []
    with common.folder() as folder:
        os.environ["STEPWISE_FRESH"] = "1"
        alone = of_a_step(folder)
        with served() as page:
            told = page.events("/live")
            threading.Thread(target=lambda: [*told], daemon=True).start()
            watched = of_a_step(folder)
        del os.environ["STEPWISE_FRESH"]
    ratio = common.Spread.of([watched / alone])
    other = f"with no page open: {alone:.1f}"
    what = f"{kind}: a step of a run that is looked at"
    return [
        common.Row(what, common.Spread.of([watched]), "thousand instructions", ratio, other, 1.01)
    ]


def measure(arguments: Any) -> list[common.Row]:
    many = int(os.environ.get("BENCH_RUNS") or (200 if arguments.quick else 100_000))
    steps = 300 if arguments.quick else 100_000
    rows: list[common.Row] = []
    for kind in os.environ.get("BENCH_STORES", "disk").split(","):
        with many_runs.filled(kind, many):
            long(steps)
            with served() as page:
                rows += pages(page, kind, many, steps, arguments.rounds)
                rows.append(latency(page, kind, 3 if arguments.quick else _STEPS))
                size = common.Spread.of([page.megabytes()])
                rows.append(common.Row(f"{kind}: the server", size, "MB", limit=_SERVER))
            if not arguments.quick:
                rows += cost(kind)
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] in (["live"], ["counting"]):
        (live if sys.argv[1] == "live" else counting)(int(sys.argv[2]))
    else:
        common.main(measure, "The page of runs")
