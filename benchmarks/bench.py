"""All benchmarks by one command, and the page that shows them.

    python benchmarks/bench.py [--peers [--go-on]] [--quick] [--only NAME] [--shown] [--rounds N]
                               [--results FOLDER]

Each script leaves its figures in ``results/NAME.json``; ``page.py`` then writes docs/benchmarks.md
and its plots, and ``shown.py`` prints what users feel; with ``--shown`` only the scripts run
that measure it.  A script that fails is reported, and the others run nevertheless; its former
figures stay.  With ``--peers`` the same work is done by other libraries as well, each in an
environment of its own (`peers/environments.py`); with ``--go-on`` only what an interrupted run of
theirs has left.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

import common
import shown

# name, rounds, more arguments
SCRIPTS = (
    ("steps", 5, ()),
    ("growth", 3, ()),
    ("recovery", 9, ("--whole",)),
    ("agent_loop", 3, ()),
    ("values", 3, ()),
    ("start", 5, ()),
    ("from_nothing", 3, ()),
    ("concurrency", 5, ()),
    ("overhead", 3, ()),
    ("instrumented_request", 5, ()),
    ("many_runs", 3, ()),
    ("graph_overhead", 3, ()),
    ("waiting_runs", 1, ()),
    ("server_waits", 1, ()),
    ("instructions", 1, ()),
)
_NOT_SCRIPTS = {"bench", "common", "comparison", "page", "plots", "shown"}
_NOT_SCRIPTS |= {"langgraph_saver"}  # needs LangGraph
_NOT_SCRIPTS |= {
    "branches",
    "changes",
    "edits",
    "limits",
    "submitted",
    "versions",
}  # trials: they count, and print it
_NOT_SCRIPTS |= {"postgres_step", "postgres_streams", "postgres_throughput"}  # need a server
RESULTS = common.HERE / "results"


def _scripts() -> list[tuple[str, int, tuple[str, ...]]]:
    """Those above in their order, then any other that stands here."""
    here = {path.stem for path in common.HERE.glob("*.py")} - _NOT_SCRIPTS
    listed = [script for script in SCRIPTS if script[0] in here]
    return [*listed, *((name, 3, ()) for name in sorted(here - {name for name, *_ in listed}))]


def _minutes(folder: pathlib.Path, scripts: list[tuple[str, int, tuple[str, ...]]]) -> str:
    """How long they took the time before."""
    paths = [folder / f"{name}.json" for name, *_ in scripts]
    took = [json.loads(path.read_text("utf-8"))["seconds"] for path in paths if path.exists()]
    return f"about {sum(took) / 60:.0f} minutes" if took else "never run before"


def _run(title: str, *command: str) -> bool:
    print(f"\n== {title}  {time.strftime('%H:%M:%S')}", flush=True)
    process = subprocess.Popen([sys.executable, *command])
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it ends what it has started
        raise
    if code:
        print(f"{title} FAILED with exit code {code}", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", action="store_true", help="also the other libraries")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--only", help="one script, or 'versus' for the other libraries")
    parser.add_argument("--shown", action="store_true", help="only what that table needs")
    parser.add_argument("--rounds", type=int, help="how often each figure is taken")
    parser.add_argument("--minutes", type=float, default=20, help="then the peers' rounds end")
    parser.add_argument("--go-on", action="store_true", help="only what the peers still lack")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--no-page", action="store_true", help="figures only")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    quick, began, failed = ["--quick"] * arguments.quick, time.monotonic(), []
    only = "versus" if arguments.go_on else arguments.only

    scripts = [script for script in _scripts() if only in (None, script[0])]
    if arguments.shown:
        needed = {figure.script for figure in shown.FIGURES}
        scripts = [script for script in scripts if script[0] in needed]
    print(f"{len(scripts)} scripts, {_minutes(arguments.results, scripts)}", flush=True)
    for name, rounds, more in scripts:
        script = common.HERE / f"{name}.py"
        how = ["--rounds", str(arguments.rounds or rounds), *quick, *more]
        if not _run(name, str(script), *how, "--json", str(arguments.results / f"{name}.json")):
            failed.append(name)
    if arguments.peers and only in (None, "versus"):
        peers = common.HERE / "peers"
        _run("environments of the peers", str(peers / "environments.py"))
        how = ["--rounds", str(arguments.rounds or 3), "--minutes", str(arguments.minutes), *quick]
        how += ["--go-on"] * arguments.go_on
        found = arguments.results / "versus.json"
        if not _run("versus", str(peers / "versus.py"), *how, "--json", str(found)):
            failed.append("versus")
    if not arguments.no_page:
        page = ["--results", str(arguments.results)]
        if not _run("the page", str(common.HERE / "page.py"), *page):
            failed.append("page")
    _run("what users feel", str(common.HERE / "shown.py"), "--results", str(arguments.results))
    print(f"\n{(time.monotonic() - began) / 60:.0f} minutes; failed: {', '.join(failed) or 'none'}")
    return len(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the figures so far are there, the page is as it was")
