"""What every ``peer_*.py`` shares: a peer, and what its child process does for a workload.

A script defines one `Peer` and ends with ``workloads.main(ThatPeer)``.  Its command line,

    python peer_X.py WORKLOAD [--variant V] [--n N] [--bytes B]

measures one workload once and prints one line of JSON.  That process only directs: each measurement
is a fresh child process (the same script, with a job as its only argument) on a fresh store, so
that nothing is warm but the page cache.  The clock is CLOCK_MONOTONIC, which processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import string
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

now = time.monotonic
_random = random.Random(7)
_TEXT = "".join(_random.choices(string.ascii_letters + string.digits, k=1 << 16))

POWER = "power cut"  # every step is on the disk before the next one begins
LATER = "power cut, later"  # written and flushed, but by a thread that may lag behind
PROCESS = "killed process"  # written, never flushed

Job = dict[str, Any]
Figures = dict[str, float]

hook: SimpleNamespace = SimpleNamespace(body=None, passed=None, waited=None)


def body(number: int) -> Any:
    """What a step does and returns: a peer calls it inside its own kind of step."""
    return hook.body(number)


async def abody(number: int) -> Any:
    """The same for an async step, after 10 ms."""
    await asyncio.sleep(0.010)
    return hook.body(number)


def passed(number: int) -> None:
    """A statement of the workflow's own that is no step: what runs again is counted here."""
    hook.passed(number)


def waited() -> None:
    """The first statement after the wait."""
    hook.waited()


class Peer:
    """A library as its users would use it."""

    name = ""
    variants: tuple[str, ...] = ("default",)
    distribution = ""  # whose version is told
    imports = ""  # what W5 times
    json_only = False  # results must be JSON: W4 returns text instead of bytes
    lease = 0.0  # seconds to wait before a crashed run can be resumed
    resuming = False  # the workload resumes
    survives: dict[str, str] = {}  # variant: one of the levels above
    cannot: dict[str, str] = {}  # "workload" or "variant:workload": why not
    sends_to_nobody = True  # a value can be sent while no process executes the run
    only_import = ""  # why nothing but W5 can be measured

    def __init__(self, variant: str, store: pathlib.Path, service: Job) -> None:
        self.variant, self.store, self.service = variant, store, service

    def open(self) -> None:
        """In the child: open the store."""

    def close(self) -> None:
        """In the child: close it."""

    def loop(self, run_id: str, count: int) -> None:
        """Start or resume a run of ``count`` steps, one after the other; each returns `body`."""
        raise NotImplementedError

    def agent(self, run_id: str, count: int) -> None:
        """The same; each step takes the list of all messages so far, and its own is appended."""
        raise NotImplementedError

    def fanout(self, run_id: str, count: int) -> None:
        """``count`` async steps at once; each awaits `abody`."""
        raise NotImplementedError

    def waiting(self, run_id: str, count: int) -> None:
        """Start or resume a run: ``count`` times `passed` and a step, a wait for a value, `waited`.

        Without ``sends_to_nobody``, what resumes the run brings the value.
        """
        raise NotImplementedError

    def sender(self, run_id: str) -> Callable[[], object]:
        """Return what sends the value, from another process than the one that waits."""
        raise NotImplementedError

    @classmethod
    def refusal(cls, variant: str, workload: str) -> str | None:
        """Why this cannot be measured here; ``None`` if it can."""
        if cls.only_import and workload != "w5":
            return cls.only_import
        return cls.cannot.get(f"{variant}:{workload}") or cls.cannot.get(workload)

    @classmethod
    @contextlib.contextmanager
    def services(cls, variant: str, store: pathlib.Path) -> Iterator[Job]:
        """In the parent: what has to run beside the child; what the child has to know of it."""
        yield {}

    @classmethod
    def disk_bytes(cls, variant: str, store: pathlib.Path, service: Job) -> int:
        """In the parent: the bytes that the store takes."""
        return tree_bytes(store)

    @classmethod
    def service_flushes(cls, service: Job) -> int:
        """In the parent: how often the services have waited for the disk so far.

        A process that ``services`` names by its ``pid`` is traced from the first call to the next.
        """
        pid = service.get("pid")
        if pid in _tracers:
            return _tracers.pop(pid).count()
        if pid is not None:
            _tracers[pid] = _Tracer(pid)
        return 0


FLUSHES = "fsync,fdatasync,msync,sync_file_range"


def count_flushes(trace: pathlib.Path) -> int:
    """How many there are in what strace wrote."""
    calls = rf" (?:{FLUSHES.replace(',', '|')})\("
    return len(re.findall(calls, trace.read_text(encoding="utf-8", errors="replace")))


_tracers: dict[int, _Tracer] = {}


class _Tracer:
    """strace, attached to a process that runs already."""

    def __init__(self, pid: int) -> None:
        self.trace = pathlib.Path(tempfile.mkstemp(prefix="stepwise-bench-")[1])
        command = ["strace", "-f", "-e", f"trace={FLUSHES}", "-o", str(self.trace), "-p", str(pid)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self.process.stderr.readline()  # it says when it is attached

    def count(self) -> int:
        """End it; what it has counted."""
        self.process.terminate()
        self.process.communicate()
        found = count_flushes(self.trace)
        self.trace.unlink()
        return found


def tree_bytes(root: pathlib.Path) -> int:
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def text(size: int) -> str:
    """Text that no compression gets rid of."""
    if size <= len(_TEXT):
        start = _random.randrange(len(_TEXT) - size + 1)
        return _TEXT[start : start + size]
    return "".join(_random.choices(_TEXT, k=size))


def _most_memory() -> int:
    """The most bytes that this program has taken."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def fresh_id() -> str:
    return uuid.uuid4().hex


class _Watched:
    """A body that notes when it is entered."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.times: list[float] = []

    def __call__(self, number: int) -> Any:
        self.times.append(now())
        return self.make(number)

    def gaps(self) -> list[float]:
        """Microseconds from each step's body to the next one's."""
        return [(b - a) * 1e6 for a, b in itertools.pairwise(self.times)]


@contextlib.contextmanager
def _opened(peer: Peer) -> Iterator[None]:
    peer.open()
    try:
        yield
    finally:
        peer.close()


def _payload(size: int) -> Callable[[int], Any]:
    return lambda number: {"i": number, "text": text(size)}


def _loop(peer: Peer, job: Job) -> Figures:
    """W1: what a step costs, over what its body costs."""
    count = job["n"]
    hook.body = watched = _Watched(_payload(job["bytes"]))
    began = now()
    for number in range(count):
        body(number)
    plain = now() - began
    with _opened(peer):
        if job["warm"]:
            peer.loop(fresh_id(), min(50, count))
        watched.times.clear()
        began, cpu = now(), time.process_time()
        peer.loop(fresh_id(), count)
        wall, cpu = now() - began, time.process_time() - cpu
    return {
        "us": (wall - plain) / count * 1e6,
        "us_p99": sorted(watched.gaps() or [0.0])[int((count - 1) * 0.99)],
        "cpu_us": cpu / count * 1e6,
    }


def _up_to_last(peer: Peer, job: Job, at_last: Callable[[list[int]], int]) -> NoReturn:
    """Run until the last step is entered, and end there.

    Args:
        at_last: gets the steps that were run on the way, and gives the exit code.
    """
    make, ran = _payload(job["bytes"]), list[int]()

    def until_last(number: int) -> Any:
        if number == job["n"]:
            os._exit(at_last(ran))
        ran.append(number)
        return make(number)

    hook.body = until_last
    peer.open()
    peer.loop(job["run"], job["n"] + 1)
    raise SystemExit("the last step was not reached")


def _crash(peer: Peer, job: Job) -> Figures:
    """W2: die at the entry of the last step."""
    _up_to_last(peer, job, lambda _: 9)


def _resume(peer: Peer, job: Job) -> Figures:
    """W2: go on after it, up to the entry of that step; what ran again on the way."""

    def reached(ran: list[int]) -> int:
        answer(job, {"ms": (now() - job["began"]) * 1e3, "ran_again": len(ran)})
        return 0

    _up_to_last(peer, job, reached)


def _agent(peer: Peer, job: Job) -> Figures:
    """W3: messages that grow."""
    hook.body = watched = _Watched(lambda _: {"role": "assistant", "content": text(job["bytes"])})
    with _opened(peer):
        peer.agent(fresh_id(), job["n"])
    gaps = watched.gaps()
    early, late = statistics.median(gaps[10:50]), statistics.median(gaps[-25:])
    return {"early_us": early, "late_us": late, "growth": late / early}


def _save(peer: Peer, job: Job) -> Figures:
    """W4: from the return of a step's body until the run has ended; the most memory it took."""
    big = text(job["bytes"]) if job["json_only"] else os.urandom(job["bytes"])
    left = [0.0]

    def give(_: int) -> Any:
        left[0] = now()
        return big

    hook.body = give
    with _opened(peer):
        before = _most_memory()
        peer.loop(fresh_id(), 1)
        took = (now() - left[0]) * 1e3
    return {"ms": took, "copies": (_most_memory() - before) / job["bytes"]}


def _fanout(peer: Peer, job: Job) -> Figures:
    """W6: many async steps at once."""
    hook.body = _payload(job["bytes"])
    with _opened(peer):
        peer.fanout(fresh_id(), 5)
        began = now()
        peer.fanout(fresh_id(), job["n"])
        return {"ms": (now() - began) * 1e3}


_SETTLED = 1.0  # seconds after the last step in which a run comes to its wait


class _Passing:
    """Counts the statements of the workflow's own; calls something when the run waits."""

    def __init__(self, job: Job, at_wait: Callable[[], object]) -> None:
        self.last, self.at_wait, self.count = job["n"] - 1, at_wait, 0
        self.done = threading.Event()
        threading.Thread(target=self.follow, daemon=True).start()  # before the run: none of its own

    def __call__(self, number: int) -> None:
        self.count += 1
        if number == self.last:
            self.done.set()

    def follow(self) -> None:
        self.done.wait()
        time.sleep(_SETTLED)
        self.at_wait()


def _waiting(peer: Peer, job: Job, at_wait: Callable[[], object]) -> NoReturn:
    """Run to the first statement after the wait, and end there; says when that was."""
    hook.body = _payload(job["bytes"])
    hook.passed = passing = _Passing(job, at_wait)

    def reached() -> None:
        at = now()
        answer(job, {"at": at, "ms": (at - job["began"]) * 1e3, "ran_again": passing.count})
        os._exit(0)

    hook.waited = reached
    peer.open()
    peer.waiting(job["run"], job["n"])
    threading.Event().wait(2 * _SETTLED)  # one that left the wait: nobody has sent yet
    os._exit(9)


def _wait_and_die(peer: Peer, job: Job) -> Figures:
    """W10: come to the wait, and die there."""
    _waiting(peer, job, lambda: os._exit(9))


def _listen(peer: Peer, job: Job) -> Figures:
    """W10: come to the wait, say so, and wait there."""
    _waiting(peer, job, pathlib.Path(job["ready"]).touch)


def _in_place(peer: Peer, job: Job) -> Figures:
    """W10, of a peer whose values come with what resumes the run: in the process that left it."""
    hook.body, hook.passed = _payload(job["bytes"]), lambda _: None
    peer.open()
    peer.waiting(job["run"], job["n"])
    began = now()

    def reached() -> None:
        answer(job, {"live_ms": (now() - began) * 1e3})
        os._exit(0)

    hook.waited = reached
    peer.waiting(job["run"], job["n"])
    raise SystemExit("the wait was not over")


def _go_on(peer: Peer, job: Job) -> Figures:
    """W10: go on in a fresh process, after the value was sent."""
    _waiting(peer, job, lambda: None)


def _send(peer: Peer, job: Job) -> Figures:
    """W10: send the value."""
    with _opened(peer):
        send = peer.sender(job["run"])
        began = now()
        send()
        return {"at": began, "ms": (now() - began) * 1e3}


JOBS: dict[str, Callable[[Peer, Job], Figures]] = {
    "loop": _loop,
    "crash": _crash,
    "resume": _resume,
    "agent": _agent,
    "save": _save,
    "fanout": _fanout,
    "wait_and_die": _wait_and_die,
    "listen": _listen,
    "in_place": _in_place,
    "go_on": _go_on,
    "send": _send,
}


def answer(job: Job, figures: Figures) -> None:
    pathlib.Path(job["answer"]).write_text(json.dumps(figures), encoding="utf-8")
