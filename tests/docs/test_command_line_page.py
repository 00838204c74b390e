"""``docs/reference/command-line.md``: what ``test_pages.py`` does not see of it."""

import os
import pathlib
import re
import subprocess
import sysconfig

import pytest

from stepwise import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
(PROGRAM,) = (text for language, text in BLOCKS if language == "python")
COMPLETION = next(text for language, text in BLOCKS if language == "bash").splitlines()
CONSOLE = "".join(text for language, text in BLOCKS if language == "console")
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE)


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
            timeout=300,
            check=False,
        ).stdout

    return execute


def test_a_fork_in_python(shell, tmp_path):
    """What the page says of forks in Python does what its commands do."""
    shell("CRASH=1 python trip.py Oslo Rome Bern")
    fork, call = re.search(r"In Python: `(.*?)`, then\n`(.*?)`", PAGE).groups()
    fork = fork.replace("get_run(...)", "runs()[0]")
    program = PROGRAM.partition("print(trip(")[0]
    (tmp_path / "trip.py").write_text(f"{program}import stepwise\n{fork}\nprint({call})")
    printed = shell("python trip.py").splitlines()[-1]
    assert (
        printed
        == next(shown for line, shown in COMMANDS if "resume three" in line).splitlines()[-1]
    )


def test_the_completions(shell):
    """The lines for the shells make stepwise print what these understand."""
    for line, name in zip(COMPLETION, ("bash", "zsh", "fish"), strict=True):
        command = re.search(r"_STEPWISE_COMPLETE=\w+ stepwise", line)[0]
        assert f"_STEPWISE_COMPLETE={name}_complete" in shell(command).replace("COMP_WORDS", "")


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
