"""Steps and side effects of runs by several processes, with a log that is soon full.

The first process dies in a step and leaves its log behind.  The next one continues its run, and
executes another one; somebody deletes the lock file, and a third process takes the first run over,
and with it the log of a living process.  A variable is too large for a log at times.  What is named
among the arguments is left out on purpose, in all processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from stepwise import LeaseLostError, spend, step, tool, workflow
from stepwise.stores import _process_log

ACKS = os.open(os.environ["POWER_ACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
LIMIT, PART, BROKEN = int(sys.argv[1]), *[*sys.argv[2:], "", ""][:2]
READY, TAKEN = threading.Event(), threading.Event()
_process_log._LARGEST_LOG = 7 << 10  # bytes: a few steps
_process_log._FIRST_SIZE = 1 << 12


def leave_out() -> None:
    if BROKEN == "flush":
        _process_log.os.fdatasync = lambda descriptor: None
    elif BROKEN == "name":
        _process_log.sync = lambda folder: None


def acknowledged(what: str) -> None:
    os.write(ACKS, f"{what}\n".encode())


def beside(part: str) -> None:
    subprocess.run([sys.executable, __file__, f"{LIMIT}", part, BROKEN], check=True)


@step
def think(run: str, n: int) -> str:
    if (run, n, PART) == ("job", 4, "dies"):
        os._exit(0)
    if (run, n, PART) == ("job", 7, "is late"):
        READY.wait()
        os.unlink(f"{os.environ['STEPWISE_HOME']}/store/leases")
        beside("takes over")
        TAKEN.set()
    if (run, n, PART) == ("own", 2, "is late"):
        READY.set()
        TAKEN.wait()
    spend(usd=1)
    return f"{n} " * 40


@tool(side_effect=True)
def send(run: str, n: int) -> int:
    acknowledged(f"announced {run} send(run='{run}', n={n})")
    return n


def grown(n: int) -> bytes:
    return os.urandom(_process_log.LARGEST_BATCH) if n == 6 else b""


@workflow(durability=os.environ["POWER_DURABILITY"])
def agent(run: str, limit: int) -> int:
    for n in range(limit):
        large = grown(n)
        think(run, n)
        acknowledged(f"done {run} think(run='{run}', n={n})")
        if n % 3 == 1:
            send(run, n)
            acknowledged(f"done {run} send(run='{run}', n={n})")
    return len(large)


def execute(run: str) -> None:
    agent.options(run_id=run)(run, LIMIT + 2)
    acknowledged(f"done {run} agent")


leave_out()
if PART == "is late":
    other = threading.Thread(target=execute, args=("own",))
    other.start()
    try:
        execute("job")
    except LeaseLostError:
        other.join()
elif PART:
    execute("job")
else:
    for part in ("dies", "is late", "ends"):
        beside(part)
