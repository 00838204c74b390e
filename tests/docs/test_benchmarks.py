"""The benchmarks run, and the page shows what they measured; no time decides here."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
NOT_SCRIPTS = {"bench", "common", "comparison", "page", "plots", "shown"}
NOT_SCRIPTS |= {"langgraph_saver"}  # needs LangGraph, which is not in this environment
NOT_SCRIPTS |= {
    "branches",
    "changes",
    "edits",
    "limits",
    "submitted",
    "versions",
}  # trials, which leave no figures
NOT_SCRIPTS |= {f"postgres_{name}" for name in ("step", "streams", "throughput")}  # tests/postgres
SCRIPTS = sorted({path.stem for path in BENCHMARKS.glob("*.py")} - NOT_SCRIPTS)


def run(*command, **environment):
    """Run a script of the benchmarks; what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PATH": "", **environment},  # without strace, which takes long
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def page_of(folder):
    run(BENCHMARKS / "page.py", "--results", folder, "--to", folder / "page.md")
    return (folder / "page.md").read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_measures_and_the_page_shows_its_figures(script, tmp_path):
    """A script with --quick writes its figures; the page has a line for each, or its name."""
    figures = tmp_path / f"{script}.json"
    run(BENCHMARKS / f"{script}.py", "--quick", "--rounds", "1", "--json", figures)
    rows = json.loads(figures.read_text())["rows"]
    page = page_of(tmp_path)
    assert rows
    if f"{{{{rows:{script}}}}}" in (BENCHMARKS / "page.md").read_text():  # cases: tests/postgres
        assert [row["what"] for row in rows if f"| {row['what']} |" not in page] == []
    else:
        assert f"- `benchmarks/{script}.py`: " in page
    assert "Small sizes" in page
    assert "{{" not in page


def test_the_price_of_a_step_names_what_was_measured_and_what_was_not(tmp_path):
    """Each figure stands beside its target, met or missed; one that is missing has its command."""
    machine = dict.fromkeys(("python", "sqlite", "disk", "at"), "")
    rows = [row("disk: a step, fsync", 1.4, 1.7), row("memory: a step, fsync", 1.8, 1.7)]
    report = {"title": "steps", "machine": {**machine, "cpu": "2 x Fast", "load": "0.1"}}
    (tmp_path / "steps.json").write_text(json.dumps({**report, "rows": rows}))
    said = run(BENCHMARKS / "shown.py", "--results", tmp_path)
    assert "on 2 x Fast (load: steps 0.1)" in said
    assert re.search(r"met +at most 1.7 .*: disk: a step, fsync\n +1.4 x; 1.4 us\n", said)
    assert re.search(r"MISSED +at most 1.7 .*: memory: a step, fsync\n", said)
    assert "not measured: python benchmarks/overhead.py" in said
    assert "1 of 2 met" in said


def test_what_users_feel_stands_beside_the_peers_and_the_target_of_its_row(tmp_path):
    """A figure takes the target of its row; our figure over a peer's is formed within a round."""
    machine = {**dict.fromkeys(("python", "sqlite", "disk", "at"), ""), "cpu": "", "load": "0.1"}
    grown = {**row("W1: memory of that start, results kept", 60.0, 50.0), "ratio": None}
    grown["other"] = "dropped: 26 MB"
    report = {"title": "growth", "machine": machine, "rows": [grown]}
    (tmp_path / "growth.json").write_text(json.dumps(report))
    turns = [
        {"what": "w6 --n 200", "who": who, "round": 1, "survives": "power cut", "ms": ms}
        for who, ms in (("stepwise/disk-fsync", 40.0), ("restate/default", 100.0))
    ]
    (tmp_path / "versus.json").write_text(json.dumps({"machine": machine, "turns": turns}))
    said = run(BENCHMARKS / "shown.py", "--results", tmp_path)
    assert re.search(r"MISSED +at most 50 .*results kept\n +60 us; dropped: 26 MB\n", said)
    assert re.search(r"met +at most 0.5 .*restate/default\n +0.4 x; 40 ms; .*: 100\n", said)


def test_the_one_command_runs_a_script_and_writes_its_figures(tmp_path):
    """bench.py leaves one file of figures per script in its folder."""
    run(
        BENCHMARKS / "bench.py",
        *("--quick", "--rounds", "1", "--only", "start", "--results", tmp_path, "--no-page"),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["start.json"]


def test_peers_stand_beside_stepwise_or_are_skipped_with_the_reason(tmp_path):
    """Who has no environment is skipped and named on the page; the others are compared."""
    run(
        BENCHMARKS / "peers" / "versus.py",
        *("--quick", "--workload", "w[13]", "--json", tmp_path / "versus.json"),
        *("--only", "stepwise/disk-fsync", "--only", "raw/sqlite-full", "--only", "dbos/sqlite"),
        BENCH_VENVS=str(tmp_path / "none"),
    )
    page = page_of(tmp_path)
    assert re.search(r"\| \*\*stepwise disk-fsync\*\* \| power cut \|  \| [\d.]+ us \|", page)
    assert re.search(r"\| \*limit: sqlite-full\* \| power cut \|  \| [\d.]+ \|", page)
    assert "|  | survives | flushes per step | W1: a step |" in page
    assert "- dbos sqlite, W1, W3: not installed: make bench-peers does it" in page
    for name in ("w1", "w3"):
        plot = tmp_path / "page" / f"{name}.svg"
        assert "stepwise disk-fsync" in "".join(ET.parse(plot).getroot().itertext())
        assert plot.stat().st_size < 100_000


def test_a_page_without_figures_says_how_to_get_them(tmp_path):
    """Where nothing was measured, the page tells the command."""
    assert "make bench" in page_of(tmp_path)


def test_every_peer_has_its_requirements_pinned():
    """Each script of a peer but ours has a file of exact versions."""
    ours = {"stepwise", "raw"}
    scripts = [*BENCHMARKS.glob("peers/peer_*.py"), *BENCHMARKS.glob("conformance/with_*.py")]
    peers = {path.stem.partition("_")[2] for path in scripts}
    pinned = {path.stem: path.read_text() for path in BENCHMARKS.glob("peers/requirements/*.txt")}
    assert set(pinned) == peers - ours
    assert all("==" in line for text in pinned.values() for line in text.splitlines())


def row(what, value, limit):
    spread = [value] * 3
    return {
        "what": what,
        "ours": spread,
        "unit": "us",
        "ratio": spread,
        "other": "",
        "limit": limit,
        "note": "",
    }


def test_only_what_is_missed_is_explained(tmp_path):
    """The page counts the targets, and gives the reason where one is missed, and nowhere else."""
    machine = dict.fromkeys(("cpu", "system", "python", "sqlite", "disk", "load", "at"), "")
    for name, value in (("steps", 3.0), ("growth", 1.0)):
        rows = [row(f"{name} made", value, 2.0), row(f"{name} told", value, None)]
        report = {"title": f"all {name}", "machine": machine, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    page = page_of(tmp_path)
    assert "1 of 2 are met" in page
    assert "- **all steps**, 1 of 1 missed." in page
    assert "- **all growth**" not in page


def test_cases_stand_side_by_side(tmp_path):
    """A figure of two cases is one row of the page, with the ratio, ours and theirs of each."""
    machine = dict.fromkeys(("cpu", "system", "python", "sqlite", "disk", "load", "at"), "")
    rows = [{**row("one run: flushes", 0.5, None), "other": "theirs: 2 (1 - 3)"}]
    rows += [{**row("64 runs: flushes", 0.25, None), "ratio": None}]
    report = {"title": "all streams", "machine": machine, "rows": rows}
    (tmp_path / "postgres_streams.json").write_text(json.dumps(report))
    page = page_of(tmp_path)
    assert "|  | one run | 64 runs |\n" in page
    assert "| flushes | **0.5**: 0.5 us, theirs: 2 | 0.25 us |\n" in page


def test_an_interrupted_comparison_goes_on(tmp_path):
    """After a Ctrl-C, --go-on keeps what was measured before, and measures the rest."""
    figures = tmp_path / "versus.json"
    command = (
        *(BENCHMARKS / "peers" / "versus.py", "--quick", "--json", figures),
        *("--workload", "w[13]", "--only", "raw/sqlite-*", "--go-on"),
    )
    none = {"BENCH_VENVS": str(tmp_path / "none")}
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, **none},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    next(line for line in process.stdout if "raw/sqlite-full" in line)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert "--go-on measures the rest" in process.communicate()[1]
    assert process.returncode == 1
    before = json.loads(figures.read_text())["turns"]
    run(*command, **none)
    after = json.loads(figures.read_text())["turns"]
    assert after[: len(before)] == before
    assert [(turn["what"][:2], turn["who"]) for turn in after] == [
        (what, f"raw/{who}") for what in ("w1", "w3") for who in ("sqlite-full", "sqlite-normal")
    ]
