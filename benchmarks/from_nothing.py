"""From nothing to a resumed run, its page and an approval: what a new user waits for.

A fresh virtual environment gets the wheel of this tree with the extra ``ui``, as pip fetches it
without its cache.  Then come the program of the README, killed at the line where its console says
so, the page of its runs, and the program of the guide to approvals.  The programs are read from
these pages.  ``--quick`` lets pip use its cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar

import common

ROOT = common.HERE.parent
KILLED_AT = "researching winds"  # in its second step, which the next start makes again


def program(page: str) -> tuple[str, str]:
    """Return name and text of the first program on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"^```python\n# (\S+)\n.*?(?=^```)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, page
    return found[1], found[0].partition("\n")[2]


class Newcomer:
    """A home and a virtual environment that hold nothing yet; the seconds of each stage.

    Args:
        place: an empty folder for both.
    """

    def __init__(self, place: pathlib.Path) -> None:
        self.home, self.bin = place / "home", place / "venv" / "bin"
        self.home.mkdir()
        theirs = ("STEPWISE_", "PYTHON", "PYTEST", "COVERAGE")
        kept = {name: each for name, each in os.environ.items() if not name.startswith(theirs)}
        self.environment = {**kept, "HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        self.took: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took[what] = time.perf_counter() - began

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Begin a command of the environment, with its output and errors in one pipe."""
        return subprocess.Popen(
            [self.bin / command[0], *command[1:]],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, expect: int = 0) -> str:
        """Run a command to its end, and return what it printed.

        Raises:
            RuntimeError: it ended with another code than ``expect``.
        """
        process = self.begin(*command)
        said, _ = process.communicate()
        if process.returncode != expect:
            raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{said[-3000:]}")
        return said

    def write(self, page: str) -> str:
        """Copy the first program of a page, and return its name."""
        name, text = program(page)
        (self.home / name).write_text(text, encoding="utf-8")
        return name

    def is_installed(self, wheel: pathlib.Path, *options: str) -> None:
        with self.stage("a virtual environment"):
            subprocess.run([sys.executable, "-m", "venv", self.bin.parent], check=True)
        with self.stage("pip install of the wheel, with the extra ui"):
            self.run("python", "-m", "pip", "install", "--quiet", *options, f"{wheel}[ui]")

    def resumes(self) -> None:
        script = self.write("README.md")
        with self.stage("the README's program: to its first step"):
            process = self.begin("python", script)
            _read_to(process, "researching")
        _read_to(process, KILLED_AT)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with self.stage("killed and started again: to the step that was cut off"):
            process = self.begin("python", script)
            resumed = _read_to(process, KILLED_AT)
        assert any(" resumes at " in line for line in resumed), resumed
        said, _ = process.communicate()
        assert process.returncode == 0, said
        assert "3 notes sent" in said, said

    def looks(self) -> None:
        with self.stage("stepwise ui: to the first answer"):
            server = self.begin("stepwise", "ui", "--no-open", "--port", "0")
            address = _read_to(server, "http://")[-1].strip()
            cookies = urllib.request.HTTPCookieProcessor(CookieJar())
            page = urllib.request.build_opener(cookies).open(address, timeout=60).read().decode()
        server.send_signal(signal.SIGINT)
        server.communicate()
        assert "agent" in page, page[:3000]
        assert "completed" in page, page[:3000]

    def approves(self) -> None:
        script = self.write("docs/how-to/approvals.md")
        with self.stage("a refund: to its question"):
            said = self.run("python", script, "ann", expect=75)
        asked = re.search(r"(stepwise approve \S+ \d+ ask-\w+)", said)
        assert asked is not None, said
        with self.stage("stepwise approve"):
            self.run(*asked[1].split())
        with self.stage("started again: to the end of the approved refund"):
            said = self.run("python", script, "ann")
        assert "ann has 25000 back" in said, said


def _read_to(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read lines up to one with this text, and return them."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise RuntimeError(f"exit {process.wait()} before {text!r}: {''.join(lines)[-3000:]}")


def built(folder: pathlib.Path) -> pathlib.Path:
    """Build the wheel of this tree into a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rounds: list[dict[str, float]] = []
    with common.folder() as folder:
        wheel = built(folder)
        for number in range(arguments.rounds):
            place = folder / str(number)
            place.mkdir()
            user = Newcomer(place)
            user.is_installed(wheel, *["--no-cache-dir"] * (not arguments.quick))
            user.resumes()
            user.looks()
            user.approves()
            rounds.append(user.took)
    rows = [
        common.Row(what, common.Spread.of([took[what] for took in rounds]), "s")
        for what in rounds[0]
    ]
    whole = common.Spread.of([sum(took.values()) for took in rounds])
    return [*rows, common.Row("together", whole, "s")]


if __name__ == "__main__":
    common.main(measure, "From nothing to the first approval")
