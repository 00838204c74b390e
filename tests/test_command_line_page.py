"""``docs/command-line.md`` is true: its commands are executed in order, and print what it shows."""

import functools
import os
import pathlib
import re
import subprocess
import sysconfig

import pytest

from stepwise import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PROGRAM = next(text for language, text in BLOCKS if language == "python")
CONSOLE = "".join(text for language, text in BLOCKS if language == "console")
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE)


def normal(text):
    """Without what differs from one time to the next: ids, times, sizes, versions, folders."""
    text = re.sub(r"\btrip-[0-9a-f]{3,12}\b", "trip-ID", text)
    text = re.sub(r"\d+(\.\d+)? (ms|s|min)\b", "TIME", text)
    text = re.sub(r"(^|\s)in \S+: \S+ trip", r"\1in FOLDER: PYTHON trip", text)
    text = re.sub(r"(disk:)?/\S+", "PATH", text)
    text = re.sub(r"\d+(\.\d+)+", "VERSION", text)
    text = re.sub(r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d", "WHEN", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.fixture
def shell(tmp_path, home):
    """Execute a line of a shell, next to the program."""
    (tmp_path / "trip.py").write_text(PROGRAM)
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    del env["STEPWISE_QUIET"]

    def execute(line):
        return subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        ).stdout

    return execute


def test_the_page_is_what_happens(shell):
    """Every command of the page prints what the page shows."""
    assert len(COMMANDS) >= 10
    ids: list[tuple[str, str]] = []  # of the run, as the page has it and as it is, long and short
    for command, shown in COMMANDS:
        printed = shell(functools.reduce(lambda text, pair: text.replace(*pair), ids, command))
        if not ids:
            found = re.findall(r"^trip-[0-9a-f]{12}", printed, re.MULTILINE)
            for real in found:
                written = re.search(r"^trip-[0-9a-f]{12}", shown, re.MULTILINE)[0]
                ids = [(written, real), (written[:8], real[:8])]
        assert sorted(normal(printed)) == sorted(normal(shown)), command


@pytest.mark.parametrize("name", sorted(cli.main.commands))
def test_every_command_is_on_the_page(name):
    """Every command is described there."""
    assert re.search(rf"`{name}\b|stepwise {name}\b", PAGE), name


@pytest.mark.parametrize("page", ["README", "docs"])
def test_every_command_on_the_page_exists(page):
    """Every command that is named there exists, and so does each of its options."""
    text = README if page == "README" else PAGE
    named = re.findall(
        r"^\$ stepwise ([a-z-]+)(.*)$|`stepwise ([a-z-]+)([^`]*)`", text, re.MULTILINE
    )
    assert named
    for first, options, second, more in named:
        command = cli.main.commands[first or second]
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", options + more)) <= known, (first or second, known)
