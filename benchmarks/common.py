"""What the benchmarks share: alternating rounds, spreads, flush counts, tables and JSON.

A machine is never quiet, so a figure is taken side by side with what it is compared with: the two
take turns, and the ratio is formed within each turn.  A median stands with its smallest and largest
value.

    python benchmarks/NAME.py [--rounds N] [--whole] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import pathlib
import pickle
import platform
import re
import shutil
import site
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import venv
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent


class Spread(NamedTuple):
    """The median of some values, the smallest and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        if self.low == self.high:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(self.low)} - {_short(self.high)})"


def _short(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    digits = 4 if abs(value - 1) < 0.05 else 3  # a ratio of 1.003 is not 1
    return f"{value:.{digits}g}"


@dataclass(frozen=True)
class Row:
    """One figure.

    Args:
        what: is measured.
        ratio: to what it is compared with; ``None`` where there is nothing to compare.
        ours: the figure itself, in ``unit``.
        other: what it is compared with, and its figure.
        limit: the most that ``judged`` (the median of the ratio, or of the figure) may be.
        note: more about it, flushes for example.
    """

    what: str
    ours: Spread
    unit: str
    ratio: Spread | None = None
    other: str = ""
    limit: float | None = None
    note: str = ""

    @property
    def judged(self) -> float:
        return (self.ratio if self.ratio is not None else self.ours).median

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return f"{'within' if self.judged <= self.limit else 'MISSES'} {self.limit:g}"


def compare(
    what: str,
    unit: str,
    ours: Callable[[], float],
    other: Callable[[], float],
    name: str,
    *,
    rounds: int,
    limit: float | None = None,
    note: str = "",
) -> Row:
    """Measure two things in turn, each turn in the other order than the one before."""
    pairs: list[tuple[float, float]] = []
    for turn in range(rounds):
        if turn % 2:
            pairs.append((ours(), other()))
        else:
            base = other()
            pairs.append((ours(), base))
    mine, theirs = (Spread.of(values) for values in zip(*pairs, strict=True))
    ratio = Spread.of([a / b for a, b in pairs])
    return Row(what, mine, unit, ratio, f"{name}: {theirs}", limit, note)


@functools.cache
def interpreter() -> str:
    """Return a Python that starts as where stepwise was installed in the ordinary way.

    An editable installation loads a finder of paths into every Python, some 14 ms of modules: what
    is compared with a bare Python would look better than it is.  So this is the interpreter of a
    new environment that names the folders of the present one; their ``.pth`` files are not read.
    """
    folder = tempfile.mkdtemp(prefix="stepwise-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.EnvBuilder(symlinks=True).create(folder)
    python = pathlib.Path(folder, "bin", "python")
    paths = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    named = "".join(f"{path}\n" for path in [HERE.parent, *site.getsitepackages()])
    pathlib.Path(paths.stdout.strip(), "benchmarked.pth").write_text(named, encoding="utf-8")
    return str(python)


def surroundings(**environment: str) -> dict[str, str]:
    """Return the environment of a child: without what would make it compile at each start."""
    found = {**os.environ, **environment}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def child(*argv: str, expect: int = 0, wrap: Sequence[str] = (), **environment: str) -> str:
    """Run a Python program to its end; what it printed on stdout.

    Raises:
        RuntimeError: it ended with another code than ``expect``.
    """
    done = subprocess.run(
        [*wrap, interpreter(), *argv],
        env=surroundings(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != expect:
        raise RuntimeError(f"{argv}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def peak_of(*argv: str, **environment: str) -> float:
    """Run ``python -m MODULE ...`` to its end; the most megabytes that it has taken."""
    _, module, *words = argv
    watched = (
        "import atexit, runpy, sys\n"
        f"sys.argv = [{module!r}, *{words!r}]\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "def tell():\n"
        "    status = open('/proc/self/status').read().split('VmHWM:')[1]\n"
        "    print('\\n', int(status.split()[0]) * 1024 / 1e6)\n"
        "atexit.register(tell)\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    return float(child("-c", watched, **environment).split()[-1])


def flushes(*argv: str, **environment: str) -> int | None:
    """How often a program waits for the disk; ``None`` where there is no strace to count it."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile("r") as trace:
        wrap = (strace, "-f", "-e", "trace=fsync,fdatasync,msync,sync_file_range", "-o", trace.name)
        child(*argv, wrap=wrap, **environment)
        return len(re.findall(r" (?:fsync|fdatasync|msync|sync_file_range)\(", trace.read()))


def flushes_each(what: str, counts: tuple[int, int], *argv: str) -> str:
    """Flushes of one step, in words: what a long run of a program has more than a short one.

    Args:
        what: a step is called.
        counts: of a short and of a long run, the program's last argument.
    """
    found = []
    for count in counts:
        with folder() as path:
            found.append(flushes(*argv, str(count), STEPWISE_HOME=str(path)))
    short, long = found
    if short is None or long is None:
        return "flushes not counted: no strace"
    return f"{(long - short) / (counts[1] - counts[0]):.2f} flushes per {what}"


def pickled(value: object, path: pathlib.Path) -> float:
    """Milliseconds of a pickle that is written into a new file and flushed."""
    draft = path / f"pickled-{uuid.uuid4()}"  # one that is there has its pages of memory already
    began = time.perf_counter()
    with open(draft, "wb") as file:
        file.write(pickle.dumps(value, 5))
        file.flush()
        os.fsync(file.fileno())
    return (time.perf_counter() - began) * 1e3


def written(counter: str = "wchar") -> int:
    """How many bytes this process has written so far; 0 where the system does not tell.

    Args:
        counter: of the kernel: ``wchar`` counts the bytes that calls of write were given,
            ``write_bytes`` the pages that they made dirty, hence 0 for a folder in memory.
    """
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/self/io").read_text(encoding="ascii")
        return int(text.split(f"{counter}:")[1].split()[0])
    return 0


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """A new folder on the disk that ``BENCH_FOLDER`` names, else that of temporary files."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as path:
        yield pathlib.Path(path)


def peak() -> float:
    """The most megabytes that this process has taken.

    The kernel's own mark begins with the program; ``getrusage`` begins with the process that
    started it, whose memory would hide ours.
    """
    with contextlib.suppress(OSError):
        found = re.search(
            r"VmHWM:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text(encoding="ascii")
        )
        if found is not None:
            return int(found[1]) * 1024 / 1e6
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def now() -> float:
    """Seconds of a clock that all processes share."""
    return time.monotonic()


def machine() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cpu": f"{os.cpu_count()} x {_cpu()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "disk": _filesystem(os.environ.get("BENCH_FOLDER") or tempfile.gettempdir()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def _filesystem(path: str) -> str:
    """The kind of file system that a folder is on."""
    with contextlib.suppress(OSError):
        mounts = pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        points = {place: kind for _, place, kind, *_ in map(str.split, mounts)}
        place = pathlib.Path(path).resolve()
        return next(points[str(p)] for p in (place, *place.parents) if str(p) in points)
    return "unknown"


def _cpu() -> str:
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = re.search(r"model name\s*: (.*)", text)
        if found is not None:
            return found[1]
    return platform.processor()


def main(measure: Callable[[argparse.Namespace], list[Row]], title: str) -> None:
    """Measure, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is taken")
    parser.add_argument("--whole", action="store_true", help="also what takes minutes")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = min(2, arguments.rounds)
    os.environ.setdefault("STEPWISE_QUIET", "1")
    warnings.filterwarnings("ignore", message="checkpoints take")  # that is what is measured
    began = time.monotonic()
    rows = measure(arguments)
    print(f"{title}  [{', '.join(machine().values())}]")
    for row in rows:
        ratio = f"{row.ratio} x  " if row.ratio is not None else ""
        facts = [f"{row.ours} {row.unit}", row.other, row.verdict, row.note]
        print(f"  {row.what}: {ratio}{'; '.join(fact for fact in facts if fact)}")
    if arguments.json is not None:
        report = {
            "title": title,
            "machine": machine(),
            "quick": arguments.quick,
            "seconds": round(time.monotonic() - began),
            "rows": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
