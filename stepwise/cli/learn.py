"""Check and learn: explain a name, find problems here, see a run killed and resumed.

``stepwise demo`` executes one of the examples on a real git history: the history of the current
repository, else a small one that is created for the demo.  Nothing is left behind.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

import stepwise
from stepwise import errors
from stepwise._display.terminal import Terminal, Word
from stepwise._runs.doctor import findings
from stepwise.cli._command import command, echo_json, note, say

# -- explain --------------------------------------------------------------------------------------


_OPTIONS_OF = ("configure", "workflow", "tool", "step")


class Explanation(NamedTuple):
    """The explanation of a name.

    Args:
        kind: an error, a warning, a setting, an option, or a name of the library.
        facts: the attributes of an error.
    """

    name: str
    kind: str
    text: str
    facts: tuple[str, ...] = ()


def explanations() -> dict[str, Explanation]:
    """Return every name that can be explained, from the docstrings."""
    found: dict[str, Explanation] = {}
    for name in stepwise.__all__:
        if name != "errors":
            text = _plain(inspect.getdoc(getattr(stepwise, name)) or "")
            found[name] = Explanation(f"stepwise.{name}", "public name", text)
    for decorator in _OPTIONS_OF:
        kind = "setting of stepwise.configure" if decorator == "configure" else "option of @"
        kind += "" if decorator == "configure" else decorator
        for name, text in _arguments(inspect.getdoc(getattr(stepwise, decorator)) or ""):
            if name not in stepwise.__all__:
                found[name] = _joined(found.get(name), Explanation(name, kind, text))
    settings = sys.modules[stepwise.configure.__module__].__doc__ or ""
    for name, lines in re.findall(r"^``(STEPWISE_\w+)``\s+(.*(?:\n .*)*)", settings, re.MULTILINE):
        text = _plain(re.sub(r"\s+", " ", lines))
        found[name] = Explanation(name, "environment variable", text)
    for name in errors.__all__:
        found[name] = _of_class(getattr(errors, name))
    return found


def _of_class(cls: type[Any]) -> Explanation:
    kind = "warning" if issubclass(cls, Warning) else "error"
    bases = [each.__name__ for each in cls.__bases__ if not each.__name__.startswith("_")]
    facts = [name for each in cls.__mro__[::-1] for name in vars(each).get("__annotations__", ())]
    shown = f"{kind}, a kind of {' and '.join(bases)}" if bases else kind
    text = _plain(inspect.cleandoc(cls.__doc__ or ""))
    text = re.sub(r"\s*`stepwise explain \w+` says [^.]*\.", "", text)  # redundant here
    return Explanation(f"stepwise.{cls.__name__}", shown, text, tuple(dict.fromkeys(facts)))


def _joined(before: Explanation | None, new: Explanation) -> Explanation:
    """Return the explanation of an option that several decorators have."""
    if before is None or before.text == new.text:
        kind = new.kind if before is None else f"{before.kind} and {new.kind.rpartition(' ')[2]}"
        return new._replace(kind=kind)
    return before._replace(text=f"{before.text}\n\nAs {new.kind}: {new.text}")


def _arguments(docstring: str) -> list[tuple[str, str]]:
    """Return the names and descriptions in the section "Args" of a docstring."""
    section = re.search(r"^Args:\n((?: {4}.*\n|\n)+)", docstring + "\n", re.MULTILINE)
    if section is None:
        return []
    found = re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", section[1], re.MULTILINE)
    return [
        (name, _plain(re.sub(r"\s+", " ", text)))
        for names, text in found
        for name in names.split(", ")
    ]


def _filled(text: str) -> str:
    """Return a text in lines of the terminal's width, with indented lines and lists unchanged."""
    width = min(Terminal.of(sys.stdout).width or 80, 100)
    return "\n\n".join(
        part if re.search(r"^( |[-*] |\d\. )", part, re.MULTILINE) else textwrap.fill(part, width)
        for part in text.split("\n\n")
    )


def _plain(text: str) -> str:
    """Return the text of a docstring without its markup."""
    text = re.sub(r":\w+:`~?\.?([^`<]*?)`", r"\1", text)
    return text.replace("``", "`").strip()


@command(
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
    known = explanations()
    wanted = name.strip().rstrip(":").partition("=")[0].lstrip("@-").rpartition(".")[2]
    by_case = {each.lower(): each for each in known}
    found = known.get(by_case.get(wanted.lower().replace("-", "_"), ""))
    if found is None:
        near = difflib.get_close_matches(wanted.lower(), by_case, n=3, cutoff=0.5)
        hint = f". Did you mean {' or '.join(by_case[each] for each in near)}?" if near else ""
        note(f"stepwise: there is nothing called {name!r} to explain{hint}")
        sys.exit(1)
    if as_json:
        echo_json({**found._asdict(), "facts": list(found.facts)})
        return
    say(f"{found.name}  ({found.kind})\n")
    say(_filled(found.text))
    if found.facts:
        say(f"\nattributes: {', '.join(found.facts)}")


# -- doctor ---------------------------------------------------------------------------------------


_STATE = len("warning")


@command(
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
        echo_json([dataclasses.asdict(each) for each in found])
    for each in found if not as_json else ():
        space = " " * (_STATE - len(each.state))
        say(f"{each.what:<12}  ", Word(each.state), f"{space}  {each.text}")
        if each.todo:
            say(f"{'':<12}  {'':<{_STATE}}  {each.todo}")
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


@command(
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
    colour = Terminal.of(sys.stderr if as_json else sys.stdout).colour
    click.echo(click.style(text, **style) if colour else text, nl=nl, err=as_json)


def _run(
    command: list[str], environment: dict[str, str], as_json: bool, kill_after: int = 0
) -> list[str]:
    """Run a command, show its output, and kill it after some steps; return the executed steps."""
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
    # The killed step had printed its line, but was not recorded yet.
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
