"""The benchmarks of Postgres run, and their figures are on the page; no time decides here."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def run(*command, **environment):
    """Run a script of the benchmarks."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def free_port():
    """A port for the server that a benchmark starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def server_of_benchmarks(shared_server, free_port, tmp_path):
    """The environment of a script that starts a server of its own; none without the extra."""
    # Not below pytest's folders: where tests run as root, the server's user may not enter them.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield {
            "BENCH_POSTGRES_PORT": free_port,
            "BENCH_FOLDER": folder,
            "BENCH_VENVS": str(tmp_path / "none"),
        }


@pytest.mark.parametrize("script", ["postgres_step", "postgres_streams", "postgres_throughput"])
def test_each_script_measures_and_the_page_shows_its_figures(
    script, server_of_benchmarks, tmp_path
):
    """A script with --quick writes its figures as JSON; the page has a line for each, or a cell."""
    figures = tmp_path / f"{script}.json"
    options = ("--quick", "--rounds", "1", "--json", figures)
    run(BENCHMARKS / f"{script}.py", *options, **server_of_benchmarks)
    rows = json.loads(figures.read_text())["rows"]
    run(BENCHMARKS / "page.py", "--results", tmp_path, "--to", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert rows
    if f"{{{{rows:{script}}}}}" in (BENCHMARKS / "page.md").read_text():
        assert all(f"| {row['what']} |" in page for row in rows)
    else:
        cases, _, figures_of_cases = zip(
            *(row["what"].partition(": ") for row in rows), strict=True
        )
        assert f"|  | {' | '.join(dict.fromkeys(cases))} |" in page
        assert all(f"| {figure} |" in page for figure in figures_of_cases)
