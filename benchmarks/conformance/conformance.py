"""What libraries hold of "Resume Means Resume", and of named anomalies: real processes, SIGKILL.

    python benchmarks/conformance/conformance.py [--quick] [--rounds N] [--only PEER]
        [--cell NAME] [--json FILE] [--page FILE]

Each library has one program (``with_NAME.py``), written as its own documentation would, with its
feature for idempotency where it has one, and an environment of its own with pinned versions.  A
result is ``held`` only if it held in every trial.

Only a whole run writes the results and the table of the page, so that these are of one machine, one
day and one state of the code.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import environments  # noqa: E402
from cells import BROKEN, CELLS, NOT, Cell  # noqa: E402
from trial import Trial  # noqa: E402

PEERS = {
    "stepwise": "",
    "langgraph": "langgraph",
    "dbos": "dbos",
    "pydantic_ai": "pydantic-ai-slim",
    "restate": "restate-sdk",
}
"""The libraries, in the order of the table, with their distributions."""
UNKNOWN = "unknown"  # no trial could be played


def python_of(peer: str) -> str:
    """Return the interpreter of a library, whose environment is made if there is none.

    Raises:
        RuntimeError: it cannot be made.
    """
    if peer == "stepwise":
        return sys.executable
    why = environments.make(peer)
    if why is not None:
        raise RuntimeError(why)
    return str(environments.python(peer))


def version_of(peer: str, python: str) -> str:
    if not PEERS[peer]:
        return ""
    told = f"from importlib.metadata import version; print(version({PEERS[peer]!r}))"
    return subprocess.run(
        [python, "-c", told], capture_output=True, text=True, check=True
    ).stdout.strip()


def played(cell: Cell, peer: str, python: str, rounds: int) -> dict[str, Any]:
    """Play a cell in so many trials; return its result, the trials, and what happened.

    A trial that fails by itself, as where no process was killed, counts as none.
    """
    found: Counter[str] = Counter()
    said: dict[str, Counter[str]] = {}
    root = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        for number in range(rounds):
            trial = Trial(
                python, HERE / f"with_{peer}.py", root / str(number), number, **cell.settings
            )
            try:
                result, words = cell.play(trial)
            except (AssertionError, OSError) as error:
                print(
                    f"{peer}, {cell.name}: trial {number} failed by itself: {error!r}", flush=True
                )
                continue
            finally:
                trial.close()
            found[result] += 1
            said.setdefault(result, Counter()).update([words] * bool(words))
            if result == NOT:
                break
    finally:
        shutil.rmtree(root, ignore_errors=True)
    worst = next((each for each in (BROKEN, "asks", "held", NOT) if found[each]), UNKNOWN)
    what = "; ".join(words for words, _ in said.get(worst, Counter()).most_common(2))
    return {"result": worst, "times": found[worst], "trials": found.total(), "what": what}


MARK = re.compile(r"(<!-- conformance -->\n).*(<!-- end -->)", re.DOTALL)


def with_table(page: str, results: dict[str, Any]) -> str:
    """Return a page with the table of these results between its marks."""
    peers = [peer for peer in PEERS if peer in results["versions"]]
    heads = [f"{peer.replace('_', '-')} {results['versions'][peer]}".strip() for peer in peers]
    lines = [f"{results['when']}, at most {results['rounds']} trials of each cell", ""]
    lines += [f"| cell | what goes wrong | {' | '.join(heads)} |", "|---" * (2 + len(peers)) + "|"]
    notes: list[str] = []
    for cell in CELLS:
        row = results["cells"].get(cell.name, {})
        lines.append(
            f"| {cell.name} | {cell.fault} | "
            + " | ".join(_shown(row.get(peer), notes) for peer in peers)
            + " |"
        )
    lines += [
        "",
        *(
            f"{number}. {note}"
            for number, note in enumerate((" ".join(each.split()) for each in notes), 1)
        ),
        "",
    ]
    return MARK.sub(lambda found: found[1] + "\n" + "\n".join(lines) + "\n" + found[2], page)


def _shown(found: dict[str, Any] | None, notes: list[str]) -> str:
    """Return a result as the table shows it; what happened becomes a note under the table."""
    if found is None:
        return "-"
    if found["result"] == NOT:
        return NOT
    if found["what"] and found["what"] not in notes:
        notes.append(found["what"])
    mark = f" ({notes.index(found['what']) + 1})" if found["what"] else ""
    return f"{found['result']} {found['times']}/{found['trials']}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one trial of each cell")
    parser.add_argument("--rounds", type=int, default=6, help="trials of each cell")
    parser.add_argument("--only", choices=PEERS, help="one library")
    parser.add_argument("--cell", default="", help="cells whose name contains this")
    parser.add_argument("--json", type=pathlib.Path, help="write the results there")
    parser.add_argument("--page", type=pathlib.Path, help="write the table into this page")
    arguments = parser.parse_args()
    began, loads = time.monotonic(), [os.getloadavg()[0]]
    rounds = 1 if arguments.quick else arguments.rounds
    when = f"{time.strftime('%Y-%m-%d')}, {platform.system()}, Python {platform.python_version()}"
    results: dict[str, Any] = {"when": when, "rounds": rounds, "versions": {}, "cells": {}}
    for peer in [arguments.only] if arguments.only else PEERS:
        try:
            python = python_of(peer)
        except RuntimeError as error:
            print(f"{peer}: {error}", flush=True)
            continue
        results["versions"][peer] = version_of(peer, python)
        for cell in CELLS:
            if arguments.cell in cell.name:
                found = played(cell, peer, python, rounds)
                loads.append(os.getloadavg()[0])
                results["cells"].setdefault(cell.name, {})[peer] = found
                counted = f"{found['times']}/{found['trials']}"
                print(
                    f"{peer:12} {cell.name:34} {found['result']:16} {counted} {found['what']}",
                    flush=True,
                )
    minutes, load = round((time.monotonic() - began) / 60), f"{min(loads):.1f} to {max(loads):.1f}"
    results["when"] += f", in one run of {minutes} minutes (load average {load})"
    if arguments.quick or arguments.only or arguments.cell or {*results["versions"]} != {*PEERS}:
        print("no whole run: the results and the page stay as they are")
        return
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
