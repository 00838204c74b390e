"""Decorated functions keep their types, and wrong calls are rejected before they run."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PROGRAMS
from pythons import copy_library, interpreter

import stepwise
from stepwise._calls import steps
from stepwise._runtime import options as _options
from stepwise._workflows import definition, workflow
from stepwise._workflows.definition import Options

ROOT = Path(__file__).parent.parent
API = ROOT / "tests" / "typing" / "api.py"
PROGRAM = ROOT / "tests" / "typing" / "program.py"


def ran(*command, cwd=ROOT, **environment):
    """A program that has run to its end."""
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def checker(*words, **how):
    """What a type checker prints that ran to its end, content or not."""
    done = ran(sys.executable, "-m", *words, **how)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy(*files):
    """What ``mypy --strict`` says, line by line; empty if it is content."""
    pytest.importorskip("mypy")
    return checker("mypy", "--strict", "--no-error-summary", *files).splitlines()


def pyright(folder, text):
    """What pyright says of a file in strict mode: the lines with errors, with their rules."""
    pytest.importorskip("pyright")
    if shutil.which("node") is None:  # pyright would download one
        pytest.skip("pyright needs node, which is not on this machine")
    (folder / "checked.py").write_text(text, "utf-8")
    settings = {
        "include": ["checked.py"],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "reportUnusedVariable": False,  # what api.py is made of
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = "pyright", "--outputjson", "--pythonpath", sys.executable
    text = checker(*words, cwd=folder, PYRIGHT_PYTHON_IGNORE_WARNINGS="1")  # looks for no newer one
    said = json.loads(text)["generalDiagnostics"]
    return {(each["range"]["start"]["line"] + 1, each["rule"]) for each in said}


def test_pyright_accepts_a_program_of_a_user(tmp_path):
    """In strict mode pyright accepts the same program."""
    assert pyright(tmp_path, PROGRAM.read_text("utf-8")) == set()


def test_that_program_runs(tmp_path):
    """The program that the type checkers read does what it says."""
    command = sys.executable, "-W", "error", PROGRAM
    done = ran(*command, cwd=tmp_path, STEPWISE_HOME=tmp_path / "home", PYTHONPATH=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[6]", "True"]


STRICTER = {
    "reportIncompatibleVariableOverride",  # it compares the ``self`` of methods behind descriptors
    "reportUnknownArgumentType",
    "reportUnknownLambdaType",  # key= and backoff= take functions of any arguments
    "reportUnknownMemberType",
    "reportUnknownVariableType",
}
"""Rules of pyright that say more of ``api.py`` than mypy does."""


def test_pyright_rejects_the_same_calls(tmp_path):
    """Each wrong call in ``typing/api.py`` is an error for pyright too, and no right one is."""
    text = API.read_text("utf-8")
    marked = {n for n, line in enumerate(text.splitlines(), 1) if "  # type: ignore[" in line}
    right = {n for n in marked if "mypy cannot tell" in text.splitlines()[n - 2]}
    said = pyright(tmp_path, re.sub(r"  # type: ignore\[.*\]", "", text))
    assert marked - right - {line for line, _ in said} == set()
    assert {(n, rule) for n, rule in said if n not in marked and rule not in STRICTER} == set()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_annotations_can_be_read(version, tmp_path):
    """``typing.get_type_hints`` works of everything public, and names public classes only."""
    python, library = interpreter(version), copy_library(tmp_path)
    done = ran(python, "-W", "error", PROGRAMS / "hints.py", PYTHONPATH=library)
    assert (done.stdout, done.stderr) == ("read\n", "")


def test_types_are_kept_and_wrong_calls_rejected():
    """``mypy --strict`` accepts every line of ``typing/api.py``, and needs every ``ignore`` in it.

    An accepted wrong call leaves its ``type: ignore`` unused, which is an error.  It accepts a
    program that uses all of the interface without an ignore.
    """
    assert "type: ignore" not in PROGRAM.read_text("utf-8")
    assert mypy(API, PROGRAM) == []


def test_wrong_calls_are_rejected_where_they_are(tmp_path):
    """Without the ``type: ignore`` comments there is an error on each of their lines, and no other.

    So the file is not merely accepted because everything in it is ``Any``.
    """
    text = API.read_text("utf-8")
    copy = tmp_path / "api_without_ignores.py"
    copy.write_text(re.sub(r"  # type: ignore\[.*\]", "", text), "utf-8")
    marked = {n for n, line in enumerate(text.splitlines(), 1) if "  # type: ignore[" in line}
    said = {int(m[1]) for line in mypy(copy) if (m := re.match(r".*?:(\d+): error:", line))}
    assert len(marked) > 80
    assert said == marked


def test_the_package_says_that_it_is_typed():
    """The marker ``py.typed`` is in the package, or a type checker would not look at it."""
    assert (Path(stepwise.__file__).parent / "py.typed").exists()


def overloads(module):
    """The keyword options of the called form of each decorator: name -> parameter names."""
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs:
            overloaded = any(ast.unparse(each) == "overload" for each in node.decorator_list)
            found.update(
                {node.name: [each.arg for each in node.args.kwonlyargs]} if overloaded else {}
            )
    return found


def test_the_options_that_are_typed_are_those_that_there_are():
    """A decorator's typed options and those that it takes at run time are the same."""
    typed = {**overloads(steps), **overloads(workflow)}
    taken = set(inspect.signature(steps.Step.__init__).parameters)
    taken |= set(inspect.signature(steps.SentStep.__init__).parameters)
    taken -= {"self", "function", "kind", "options"}
    effects = {"side_effect", "in_doubt", "fails_cleanly", "idempotent", "approve"}
    effects |= {"approvers", "compensate"}
    assert set(typed["step"]) == taken - effects == set(_options._OF_STEPS)
    assert set(typed["tool"]) == taken == set(_options._KINDS["tool"])
    schedule = {"every", "timezone", "missed", "arguments"}  # which copies do not have
    options = set(Options.__annotations__) - schedule
    tree = ast.parse(inspect.getsource(definition))
    nodes = [each for each in ast.walk(tree) if getattr(each, "name", "") == "options"]
    options |= {"fresh"}  # short for start="new"
    assert options == {each.arg for each in nodes[0].args.kwonlyargs}
    assert options == set(_options._OF_WORKFLOWS) - schedule
    assert set(typed["workflow"]) == options - {"run_id", "fresh"} | schedule


@pytest.mark.parametrize("decorator", [stepwise.step, stepwise.tool, stepwise.workflow])
def test_options_are_documented(decorator):
    """The docstring of a decorator describes each of its options, or says where that is done."""
    typed = {**overloads(steps), **overloads(workflow)}[decorator.__name__]
    described = set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(decorator), re.MULTILINE))
    if decorator is stepwise.tool:
        described |= set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(stepwise.step), re.MULTILINE))
    assert described - {"ConfigurationError"} == set(typed)
