"""``examples/research_fleet.py`` and the page about Ray, on a cluster with a shared store."""

import pathlib
import re
import signal
import subprocess
import sys

import pytest
from ray_cluster import SECONDS, address, ended, environment, until

from stepwise import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "research_fleet.py"
TOPICS = ("tides", "winds", "currents", "stars", "clocks", "maps")


def begun(store, out, *, latency="0", ray=True):
    """Start the program, on the cluster or in one process; only what it is told differs."""
    command = [sys.executable, str(PROGRAM), "--out", out, "--latency", latency]
    env = environment(store)
    if ray:
        env["RAY_ADDRESS"] = address()
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def reports(text):
    """The topics of reports, one a line."""
    return sorted(re.findall(r"^(\w+): [A-Z]", text, re.MULTILINE))


def filed(out):
    """The topics of the reports in the file."""
    return reports(pathlib.Path(out).read_text("utf-8"))


@pytest.mark.parametrize("ray", [False, True], ids=["laptop", "cluster"])
def test_the_example_runs_unchanged(cluster, store, tmp_path, ray):
    """The same file reports every topic, and files each report once, in one process or on nodes."""
    out = str(tmp_path / "reports.txt")
    process = begun(store, out, ray=ray)
    printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert reports(printed) == filed(out) == sorted(TOPICS)
    assert {run.status for run in runs()} == {"completed"}
    assert len(runs()) == len(TOPICS)


def test_a_killed_example_goes_on_where_it_was(cluster, store, tmp_path):
    """Its driver is killed in the middle; the next start reads nothing twice, files each once."""
    out = str(tmp_path / "reports.txt")
    process = begun(store, out, latency="0.5")
    until(lambda: sum(len(run.steps) for run in runs()) >= len(TOPICS))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = begun(store, out)
    printed, errors = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, errors
    assert reports(printed) == filed(out) == sorted(TOPICS)
    assert [len(run.steps) for run in runs()] == [5] * len(TOPICS)


def test_the_program_of_the_page_about_clusters_works(cluster, store, tmp_path):
    """The page's program submits its run, and prints the result and the status."""
    page = (ROOT / "docs" / "how-to" / "cluster.md").read_text("utf-8")
    [program] = re.findall(r"```python\n(# analyse\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "analyse.py").write_text(program, "utf-8")
    done = ended([sys.executable, "analyse.py", address()], store, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = ["14", "completed"]  # Ray may tell that a node of an earlier test has died
    assert [line for line in done.stdout.splitlines() if line in told] == told
