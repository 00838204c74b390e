"""``stepwise demo``: a program is killed in the middle, run again by the same command, and resumes.

It is one of the examples, on a real git history: the repository one is in, else a small one that is
made for the occasion.  Nothing is left behind.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from typing import Any

import click

from stepwise._display.terminal import Terminal
from stepwise.cli._command import command
from stepwise.cli._display import echo_json

__all__: list[str] = []

_LINES_BEFORE_THE_KILL = 6
_LIMIT = 10  # commits
_SUBJECTS = (
    "Initial import",
    "feat: ask the model in two steps",
    "fix: keep the last message when trimming",
    "docs: say what a tool may return",
    "test: cover the empty history",
    "feat!: tools return plain data",
    "fix: do not retry what the user cancelled",
    "chore: bump the linter",
    "docs: a page about costs",
    "feat: stream the answer",
)


@command(
    "Check and learn",
    "stepwise demo\nstepwise demo --json  # what the programs print goes to stderr",
)
def demo(*, as_json: bool) -> None:
    """See a program killed in the middle, run again, and resume."""
    sys.exit(_demonstrate(as_json=as_json))


def _demonstrate(*, as_json: bool) -> int:
    """Show it; the exit code is 0 if all went as promised."""
    script = _example("release_notes.py")
    with tempfile.TemporaryDirectory(prefix="stepwise-demo-") as folder:
        try:
            repository = _repository(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            click.echo(f"stepwise demo: it reads a git history, and git failed: {error}", err=True)
            return 1
        files = ["--out", f"{folder}/notes.md", "--outbox", f"{folder}/outbox.txt"]
        command = [sys.executable, "-u", script, repository, "--limit", str(_LIMIT), *files]
        shown = f"python {os.path.basename(script)} {shlex.quote(repository)} --limit {_LIMIT}"
        environment = {**os.environ, "STEPWISE_HOME": folder}
        for name in ("STEPWISE_STORE", "STEPWISE_QUIET", "STEPWISE_FRESH"):
            environment.pop(name, None)
        _say(f"$ {shown}", as_json, bold=True)
        first = _run(command, environment, as_json, kill_after=_LINES_BEFORE_THE_KILL)
        _say("Killed (kill -9). The same command again:\n", as_json, fg="red")
        _say(f"$ {shown}", as_json, bold=True)
        second = _run(command, environment, as_json)
        announced = len(pathlib.Path(f"{folder}/outbox.txt").read_text().splitlines())
        return _summary(first, second, announced, as_json)


def _example(name: str) -> str:
    spec = find_spec("stepwise.examples")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    # In a checkout that is not installed, the examples lie beside the package.
    folders.append(str(pathlib.Path(__file__).parents[2] / "examples"))
    return next(path for each in folders if os.path.exists(path := os.path.join(each, name)))


def _repository(folder: str) -> str:
    here = _git(os.getcwd(), "rev-parse", "--show-toplevel", check=False).strip()
    if here and int(_git(here, "rev-list", "--count", "HEAD", check=False) or 0) >= _LIMIT:
        return here
    made = os.path.join(folder, "agent")
    os.mkdir(made, 0o700)
    _git(made, "init", "--quiet")
    for subject in _SUBJECTS:
        identity = ("-c", "user.name=Demo", "-c", "user.email=demo@example.org")
        _git(made, *identity, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", subject)
    return made


def _git(folder: str, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *arguments], check=check, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else ""


def _say(text: str, as_json: bool, *, nl: bool = True, **style: Any) -> None:
    colour = Terminal.of(sys.stderr if as_json else sys.stdout).colour
    click.echo(click.style(text, **style) if colour else text, nl=nl, err=as_json)


def _run(
    command: list[str], environment: dict[str, str], as_json: bool, kill_after: int = 0
) -> list[str]:
    """Run a command, show its output, and kill it after some lines; the steps it executed."""
    steps: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _say(f"  {line}", as_json, nl=False)
            if line.startswith("["):
                steps.append(line.strip())
            if kill_after and len(steps) == kill_after:
                process.kill()
                break
    return steps


def _summary(first: list[str], second: list[str], announced: int, as_json: bool) -> int:
    twice = [step for step, count in Counter(first + second).items() if count > 1]
    # The step that was killed had printed its line, and was not recorded yet.
    whole = set(twice) <= {first[-1]} and announced == 1
    colour = "green" if whole else "red"
    _say(
        f"\n{len(first)} steps before the kill, {len(second)} after it; run twice: "
        f"{'only the one it was killed in' if twice else 'none'}. "
        f"Lines in the outbox: {announced}.",
        as_json,
        fg=colour,
    )
    if as_json:
        facts = {"before_the_kill": len(first), "after_it": len(second), "twice": twice}
        echo_json({**facts, "announced": announced, "as_promised": whole})
    return 0 if whole else 1
