"""Many research runs at once: on a laptop, or on a cluster without a change.

    python examples/research_fleet.py [TOPIC ...] [--out FILE] [--ray [ADDRESS]]

Each topic is a run of its own: it reads sources, writes a report, and files the report as a side
effect.  On a laptop the runs have threads of this process and the default store.  On a cluster the
store is PostgreSQL, and Ray chooses the machines::

    export STEPWISE_STORE=postgresql://agents@db.example.org/agents
    export STEPWISE_KEY=...                                  # the same on every machine
    python examples/research_fleet.py --ray ray://head.example.org:10001

Every step prints a line when it really runs.  Kill the program, a worker or a node, and run the
same command again: sources that were read are not read again, and each report is filed once.  With
``stepwise up --ray ADDRESS research_fleet`` beside it, nobody has to run it again.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable

from stepwise import DidNotHappen, InDoubtCall, Landed, current_step, step, tool, workflow

SOURCES = {
    "tides": ["The moon pulls the sea.", "The sun pulls it, too.", "Harbours keep tables."],
    "winds": ["Air flows to low pressure.", "The earth turns below it.", "Sailors name winds."],
    "currents": ["Salt makes water sink.", "The Gulf Stream warms Bergen.", "Ships drift."],
    "stars": ["The pole star stands still.", "Others turn around it.", "Charts list them."],
    "clocks": ["Longitude is a time.", "Springs replace pendulums.", "Harrison made four."],
    "maps": ["A globe cannot be flat.", "Mercator keeps angles.", "Coasts are measured."],
}


def say(line: str) -> None:
    """Print a line as a whole: many runs print at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@step
def find_sources(topic: str) -> list[int]:
    """The sources of a topic."""
    say(f"[find_sources] {topic}")
    return list(range(len(SOURCES[topic])))


@step(retries=2, ignore=("latency",))
def read(topic: str, source: int, latency: float) -> str:
    """What a source says, as a model or a server would answer."""
    say(f"[read] {topic} {source}")
    time.sleep(latency)
    return SOURCES[topic][source]


def was_filed(call: InDoubtCall) -> Landed | type[DidNotHappen]:
    """Look into the file whether the report was appended before the crash."""
    out = pathlib.Path(call.arguments["out"])
    there = out.exists() and call.idempotency_key in out.read_text("utf-8")
    return Landed() if there else DidNotHappen


@tool(side_effect=True, in_doubt=was_filed)
def file_report(out: str, report: str) -> None:
    """Append a report to a file that all machines see."""
    say(f"[file_report] {report.partition(':')[0]}")
    line = f"{report} <!-- {current_step().idempotency_key} -->\n"
    with open(out, "a", encoding="utf-8") as file:
        file.write(line)


@workflow(ignore=("latency",))
def research(topic: str, out: str, latency: float = 0.0) -> str:
    """Read the sources of a topic, one by one, and file a report."""
    notes = []
    for source in find_sources(topic):
        notes.append(read(topic, source, latency))  # noqa: PERF401 - each turn is a place to resume
    report = f"{topic}: {' '.join(notes)}"
    file_report(out, report)
    return report


def starter(ray_address: str | None) -> Callable[..., object]:
    """What starts a run: a thread of this process, or a task of Ray's."""
    if not ray_address:
        return research.start
    import ray

    from stepwise.integrations.ray import submit

    if not ray.is_initialized():
        ray.init(address=ray_address, log_to_driver=False)
    return lambda *arguments: submit(research, *arguments)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Research topics, all at once.")
    parser.add_argument("topics", nargs="*", help=f"some of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--out", default="reports.txt", help="file that is appended to")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds to read a source")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        default=os.environ.get("RAY_ADDRESS"),
        metavar="ADDRESS",
        help="execute the runs on this cluster of Ray's; default: RAY_ADDRESS",
    )
    given = parser.parse_args()
    start, out = starter(given.ray), str(pathlib.Path(given.out).resolve())
    handles = [start(topic, out, given.latency) for topic in given.topics or SOURCES]
    print("\n".join([handle.result() for handle in handles]))


if __name__ == "__main__":
    main()
