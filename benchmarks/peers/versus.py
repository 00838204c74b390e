"""stepwise and its peers side by side: the same work, in turn, round after round.

    python benchmarks/peers/versus.py [--rounds N] [--quick] [--minutes M] [--json FILE]
                                      [--go-on] [--workload GLOB] [--only GLOB ...]

A round takes every workload once, and in it every contender once, in the other order than the round
before; ratios are formed within a round.  A contender that cannot run is skipped with its reason.
The first round is always whole: how long it will take is told first, by what it took the time
before.  In the rounds after it, nothing begins when the minutes are over, and what took longer than
20 s is not repeated.  The JSON grows with each measurement: interrupted, it is all there, and
``--go-on`` measures what is missing, or has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]  # after this folder, where the peers find their harness

import common  # noqa: E402
import environments  # noqa: E402

CONTENDERS = {
    "stepwise": ("disk-fsync", "disk-fsync-100", "disk-os", "disk-os-100"),
    "raw": ("sqlite-full", "sqlite-normal", "file-fdatasync", "diskcache-full"),
    "joblib": ("default",),
    "dbos": ("sqlite", "postgres"),
    "langgraph": ("functional", "graph", "graph-sync", "graph-delta"),
    "absurd": ("default",),
    "restate": ("default",),
    "prefect": ("default",),
    "temporal": ("default",),
    "resonate": ("default",),
}
_WORKLOADS = (  # name, arguments, the same for --quick, the most rounds
    ("flushes", "--n 100", "--n 20", 1),
    ("w1", "--n 1000", "--n 100", 9),
    ("w2", "--n 100", "--n 20", 9),
    ("w2", "--n 1000", None, 9),
    ("w3", "--n 500", "--n 60", 9),
    ("w4", "--bytes 10000000", "--bytes 1000000", 9),
    ("w6", "--n 200", "--n 20", 9),
    ("w10", "--n 100", "--n 20", 9),
    ("w5", "", "", 3),
)
_OURS = ("stepwise", "raw")  # they run in any environment that has stepwise
_WAITING = ("stepwise", "dbos", "langgraph")  # whose waits are compared
_SLOW = ("prefect",)  # 400 steps under strace take minutes
_LONG = 20.0  # seconds of a measurement that is not repeated
_USUAL = 5.0  # seconds of one that was never made

Found = dict[str, Any]


class Planned(NamedTuple):
    """One measurement to make."""

    round: int
    what: str
    peer: str
    variant: str
    workload: str
    arguments: str

    @property
    def who(self) -> str:
        return f"{self.peer}/{self.variant}"

    @property
    def key(self) -> tuple[int, str, str]:
        return self.round, self.what, self.who


def _who(patterns: list[str] | None) -> list[tuple[str, str]]:
    everyone = ((name, variant) for name, variants in CONTENDERS.items() for variant in variants)
    return [
        each
        for each in everyone
        if any(fnmatch.fnmatch("/".join(each), pattern) for pattern in patterns or ["*"])
    ]


def _python(name: str, workload: str) -> pathlib.Path | str:
    """The interpreter for a contender, or why there is none."""
    home = environments.OURS if name in _OURS else name
    why = environments.reason(home)
    if why is None:
        return environments.python(home)
    if name in _OURS and workload != "w5":  # which asks what a clean environment weighs
        return pathlib.Path(sys.executable)
    return why


def _measure(name: str, variant: str, workload: str, arguments: str, timeout: float) -> Found:
    if workload == "w5" and variant != CONTENDERS[name][0]:
        return {"skipped": "as the first variant"}
    if workload == "flushes" and shutil.which("strace") is None:
        return {"skipped": "no strace to count them (Debian: apt-get install strace)"}
    python = _python(name, workload)
    if isinstance(python, str):
        return {"skipped": python}
    script = str(HERE / f"peer_{name}.py")
    command = [str(python), script, workload, "--variant", variant, "--timeout", str(timeout)]
    try:
        printed, said = _outputs([*command, *arguments.split()], 2 * timeout + 60)
    except subprocess.TimeoutExpired as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    try:
        return json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError) as error:
        return {"failed": f"{type(error).__name__}: {said[-300:] or error}"}


def _outputs(command: list[str], timeout: float) -> tuple[str, str]:
    """What a program prints.  Interrupted, or late, it may end what it has started."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        _end(process)
        raise
    except KeyboardInterrupt:  # it has got the same
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=30)
    process.kill()


def _told(found: Found) -> str:
    for word in ("skipped", "failed"):
        if word in found:
            return f"{word}: {str(found[word]).splitlines()[0][:90]}"
    figures = (f"{k} {v:.4g}" for k, v in found.items() if isinstance(v, (int, float)))
    return ", ".join(figures)


def _plan(arguments: argparse.Namespace) -> list[Planned]:
    """All measurements, in their order."""
    plan = []
    for turn in range(1, 2 if arguments.quick else arguments.rounds + 1):
        for workload, usual, quick, most in _WORKLOADS:
            how = quick if arguments.quick else usual
            if how is None or turn > most or not fnmatch.fnmatch(workload, arguments.workload):
                continue
            for peer, variant in _who(arguments.only)[:: 1 if turn % 2 else -1]:
                if workload == "w10" and peer not in _WAITING:
                    continue
                size = quick if peer in _SLOW and workload == "flushes" else how
                what = f"{workload} {how}".strip()
                plan.append(Planned(turn, what, peer, variant, workload, size))
    return plan


def _before(arguments: argparse.Namespace) -> Found:
    """What the file holds: turns to go on from, and how long they took."""
    try:
        return json.loads(arguments.json.read_text("utf-8"))
    except (OSError, ValueError, AttributeError):
        return {"turns": []}


def _announce(plan: list[Planned], before: Found, minutes: float) -> None:
    took = {(turn["what"], turn["who"]): turn.get("seconds", _USUAL) for turn in before["turns"]}
    first = [took.get((each.what, each.who), _USUAL) for each in plan if each.round == 1]
    print(
        f"{len(first)} measurements in the first round: about {sum(first) / 60:.0f} minutes, if "
        f"they take as long as before; no round goes on after {minutes:.0f} minutes in all",
        flush=True,
    )


def measure(arguments: argparse.Namespace) -> None:
    """Every measurement; written to the file after each, if there is one."""
    plan, before = _plan(arguments), _before(arguments)
    report: Found = {
        "title": "stepwise and its peers",
        "machine": common.machine(),
        "quick": arguments.quick,
        "turns": [turn for turn in before["turns"] if arguments.go_on and "failed" not in turn],
    }
    turns = {(turn["round"], turn["what"], turn["who"]): turn for turn in report["turns"]}
    plan = [each for each in plan if each.key not in turns]
    _announce(plan, before, arguments.minutes)
    ends = time.monotonic() + arguments.minutes * 60
    for each in plan:
        first = turns.get((1, each.what, each.who), {})
        if each.round > 1 and (
            "skipped" in first  # said in the first round
            or first.get("seconds", 0.0) > _LONG
            or time.monotonic() > ends
        ):
            continue
        began = time.monotonic()
        found = _measure(each.peer, each.variant, each.workload, each.arguments, arguments.timeout)
        turns[each.key] = turn = {
            "round": each.round,
            "what": each.what,
            "who": each.who,
            **found,
            "seconds": round(time.monotonic() - began, 1),
        }
        report["turns"].append(turn)
        load = os.getloadavg()[0]
        report["machine"]["load"] = f"{load:.1f} at the end"
        if arguments.json is not None:
            _keep(report, arguments.json)
        print(
            f"  {time.strftime('%H:%M:%S')} load {load:4.1f}  {each.round}/{plan[-1].round}  "
            f"{each.what:20} {each.who:26} {_told(found)}",
            flush=True,
        )


def _keep(report: Found, path: pathlib.Path) -> None:
    """Write the file, or leave it as it was: an interrupt comes anywhere."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of the smallest sizes")
    parser.add_argument("--only", action="append", help="contenders, for example 'dbos/*'")
    parser.add_argument("--workload", default="*", help="for example 'w1'")
    parser.add_argument("--minutes", type=float, default=20, help="later rounds end after them")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one process")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--go-on", action="store_true", help="keep what the file has already")
    arguments = parser.parse_args()
    os.environ.setdefault("BENCH_POSTGRES_PORT", str(_free_port()))
    if environments.reason(environments.OURS) is None:
        environments.make(environments.OURS)  # of the tree as it is now
    try:
        measure(arguments)
    except KeyboardInterrupt:
        sys.exit("interrupted; what was measured is in the file: --go-on measures the rest")
    finally:
        subprocess.run([sys.executable, str(HERE / "postgres.py"), "stop"], check=False)


if __name__ == "__main__":
    main()
