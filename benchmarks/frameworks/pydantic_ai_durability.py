"""pydantic-ai on our engine and on DBOS, in turns: what a kill repeats, and the time of a run.

    python benchmarks/frameworks/pydantic_ai_durability.py PYTHON [--rounds N] [--runs N]

PYTHON is the interpreter of an environment with ``pydantic-ai-slim[dbos]`` and what stepwise
needs.  An agent asks its model four times and sends three e-mails in between.  The model is a
function that notes its calls in a file; so are the tools.  It is killed at each request and inside
each tool, and run again.  Both engines have their usual settings: stepwise keeps its runs in
files, DBOS in an SQLite database.  DBOS stands twice: with tools as they are, and with
``@DBOS.step`` above each, as its users are told to write.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).with_name("pydantic_ai_program.py")
STEPWISE = PROGRAM.parents[2]
ENGINES = ("stepwise", "stepwise side effects", "dbos", "dbos steps")
PLACES = ("request 0", "send 0", "request 1", "send 1", "request 2", "send 2", "request 3")


def start(python, folder, engine, *, place="", runs=1):
    """Start the program; return whether it was killed, and what it printed."""
    settings = {
        "FOLDER": str(folder),
        "KILL": place,
        "PYTHONPATH": str(STEPWISE),
        "STEPWISE_HOME": str(folder / "home"),
        "STEPWISE_QUIET": "1",
    }
    done = subprocess.run(
        [python, PROGRAM, engine, str(runs)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def repeated(python, engine):
    """Kill the agent at each place, and run it again; return what was done twice, by kind."""
    found = {"requests": 0, "e-mails": 0, "open requests": 0, "open e-mails": 0, "asked": 0}
    for place in PLACES:
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            code, _, error = start(python, folder, engine, place=place)
            assert code == -9, error
            code, _, error = start(python, folder, engine)
            if code:
                assert "StepInDoubtError" in error, error
                found["asked"] += 1
            notes = (folder / "notes").read_text("utf-8").split("\n")[:-1]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for note in set(notes):
            kind = "requests" if note.startswith("request") else "e-mails"
            kind = f"open {kind}" if note == place else kind
            found[kind] += notes.count(note) - 1
    return found


def milliseconds(python, engine, runs):
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        code, out, error = start(python, folder, engine, runs=runs)
        assert code == 0, error
        return json.loads(out.split("\n")[-2])["ms"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("python", help="interpreter of an environment with pydantic-ai and DBOS")
    parser.add_argument("--rounds", type=int, default=5, help="how often each time is taken")
    parser.add_argument("--runs", type=int, default=50, help="runs of the agent in a round")
    parser.add_argument("--times-only", action="store_true", help="kill nothing")
    arguments = parser.parse_args()
    took = {engine: [] for engine in ("plain", *ENGINES)}
    for _ in range(arguments.rounds):
        for engine, times in took.items():
            times.append(milliseconds(arguments.python, engine, arguments.runs))
    head = "| engine | ms per run | time, over that of stepwise | completed requests made again "
    print(head + "| completed e-mails sent again | open requests | open e-mails | stops and asks |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for engine, times in took.items():
        killed = engine != "plain" and not arguments.times_only
        found = repeated(arguments.python, engine) if killed else {}
        ratios = [one / other for one, other in zip(times, took["stepwise"], strict=True)]
        kinds = ("requests", "e-mails", "open requests", "open e-mails", "asked")
        cells = [engine, spread(times), spread(ratios), *(found.get(kind, "") for kind in kinds)]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
