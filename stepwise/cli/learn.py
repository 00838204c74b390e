"""Check and learn: explain a name, teach coding agents, find problems here, see a demonstration.

``stepwise demo`` executes one of the examples on a real git history: the history of the current
repository, else a small one that is created for the demo.  Nothing is left behind.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import click

import stepwise
from stepwise._display.terminal import Terminal, Word
from stepwise._runs.doctor import findings
from stepwise._runtime.messages import count
from stepwise.cli import _command as cli
from stepwise.mcp._knowledge import explanation

# -- explain --------------------------------------------------------------------------------------


def _filled(text: str) -> str:
    """Return a text in lines of the terminal's width, with indented lines and lists unchanged."""
    width = min(Terminal.of(cli.answer()).width or 80, 100)
    return "\n\n".join(
        part if re.search(r"^( |[-*] |\d\. )", part, re.MULTILINE) else textwrap.fill(part, width)
        for part in text.split("\n\n")
    )


@cli.command(
    "Check and learn",
    "stepwise explain StepInDoubtError\n"
    "stepwise explain STEPWISE_START\n"
    "stepwise explain checkpoint_every",
    short_help="Explain an error, a warning, a setting or an option.",
)
@click.argument("name")
def explain(name: str, *, as_json: bool) -> None:
    """Explain an error or warning, a setting or an option: its cause and the way out.

    NAME is the name of a class, as a traceback shows it, an environment variable, or an option.
    """
    try:
        found = explanation(name)
    except LookupError as problem:
        cli.note(f"stepwise: {problem.args[0]}")
        sys.exit(1)
    if as_json:
        cli.echo_json({**found._asdict(), "facts": list(found.facts)})
        return
    cli.say(f"{found.name}  ({found.kind})\n")
    cli.say(_filled(found.text))
    if found.facts:
        cli.say(f"\nattributes: {', '.join(found.facts)}")


# -- skill -----------------------------------------------------------------------------------------


_SKILLS = ".claude/skills"


@cli.command(
    "Check and learn",
    f"stepwise skill  # in {_SKILLS}\n"
    "stepwise skill .agents/skills\n"
    "stepwise skill ~/.claude/skills --replace",
    short_help="Write instructions for coding agents.",
)
@click.argument("folder", type=click.Path(), default=_SKILLS)
@click.option("--replace", is_flag=True, help="Replace a file that has another text.")
def skill(folder: str, *, replace: bool, as_json: bool) -> None:
    """Write stepwise/SKILL.md into a FOLDER of skills, which coding agents read.

    It says how to decorate a program, and how to mend, test and debug it.
    """
    text = files("stepwise.mcp").joinpath("SKILL.md").read_text("utf-8")
    path = pathlib.Path(folder).expanduser() / "stepwise" / "SKILL.md"
    try:
        old = path.read_text("utf-8") if path.exists() else text
        if old != text and not replace:
            raise stepwise.ConfigurationError(
                f"{path} has another text, which is of another version or was edited. To replace "
                f"it: stepwise skill {shlex.quote(folder)} --replace"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from error
    if as_json:
        cli.echo_json({"file": str(path)})
        return
    cli.say(str(path))
    cli.note("coding agents read it when they start")


# -- doctor ---------------------------------------------------------------------------------------


_STATE = len("warning")


@cli.command(
    "Check and learn",
    "stepwise doctor\nstepwise doctor --store disk:./runs",
    short_help="Check that stepwise can work here.",
)
def doctor(*, as_json: bool) -> None:
    """Look for what could keep stepwise from working here, and change nothing.

    The exit code is 1 if there is a problem.
    """
    found = [*findings(stepwise.__version__)]
    if as_json:
        cli.echo_json([dataclasses.asdict(each) for each in found])
    for each in found if not as_json else ():
        space = " " * (_STATE - len(each.state))
        cli.say(f"{each.what:<12}  ", Word(each.state), f"{space}  {each.text}")
        if each.todo:
            cli.say(f"{'':<12}  {'':<{_STATE}}  {each.todo}")
    sys.exit(int(any(each.state == "problem" for each in found)))


# -- demo -----------------------------------------------------------------------------------------


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


@cli.command(
    "Check and learn",
    "stepwise demo\nstepwise demo --json  # what the programs print goes to stderr",
)
def demo(*, as_json: bool) -> None:
    """See a program killed in the middle, run again, and resume."""
    sys.exit(_demonstrate(as_json=as_json))


def _demonstrate(*, as_json: bool) -> int:
    """Run the demo; return 0 if all went as promised, else 1."""
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
    # In a checkout that is not installed, the examples are beside the package.
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
    stream = sys.stderr if as_json else cli.answer()
    click.echo(click.style(text, **style) if Terminal.of(stream).colour else text, stream, nl=nl)


def _run(
    command: list[str], environment: dict[str, str], as_json: bool, kill_after: int = 0
) -> list[str]:
    """Run a command, show its output, and kill it after some steps; return the executed steps."""
    steps: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        if kill_after:  # who reads comes first: the kill is to hit the step whose line was read
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        for line in process.stdout:
            if line.startswith("["):
                steps.append(line.strip())
            if kill_after and len(steps) == kill_after:
                process.kill()
            _say(f"  {line}", as_json, nl=False)
            if kill_after and len(steps) == kill_after:
                break
    return steps


def _summary(first: list[str], second: list[str], announced: int, as_json: bool) -> int:
    twice = [step for step, times in Counter(first + second).items() if times > 1]
    # The killed step had printed its line, but was not recorded yet.
    whole = set(twice) <= {first[-1]} and announced == 1
    colour = "green" if whole else "red"
    _say(
        f"\n{count(len(first), 'step')} before the kill, {len(second)} after it; run twice: "
        f"{'only the one it was killed in' if twice else 'none'}. "
        f"Lines in the outbox: {announced}.",
        as_json,
        fg=colour,
    )
    if as_json:
        facts = {"before_the_kill": len(first), "after_it": len(second), "twice": twice}
        cli.echo_json({**facts, "announced": announced, "as_promised": whole})
    return 0 if whole else 1
