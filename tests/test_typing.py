"""Decorated functions keep their types, and wrong calls are rejected before they run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepwise
from stepwise._calls import steps
from stepwise._runtime import options as _options
from stepwise._workflows import definition, workflow
from stepwise._workflows.definition import Options

ROOT = Path(__file__).parent.parent
API = ROOT / "tests" / "typing" / "api.py"


def mypy(*arguments):
    """What ``mypy --strict`` says, line by line; empty if it is content."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_types_are_kept_and_wrong_calls_rejected():
    """``mypy --strict`` accepts every line of ``typing/api.py``, and needs every ``ignore`` in it.

    An accepted wrong call leaves its ``type: ignore`` unused, which is an error.
    """
    assert mypy(API) == []


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
    taken = taken - {"self", "function", "kind"}
    effects = {"side_effect", "in_doubt", "fails_cleanly", "idempotent", "compensate"}
    assert set(typed["step"]) == taken - effects == set(_options._OF_STEPS)
    assert set(typed["tool"]) == taken == set(_options._KINDS["tool"])
    options = {field.name for field in dataclasses.fields(Options)}
    tree = ast.parse(inspect.getsource(definition))
    nodes = [each for each in ast.walk(tree) if getattr(each, "name", "") == "options"]
    options |= {"fresh"}  # short for start="new"
    assert options == {each.arg for each in nodes[0].args.kwonlyargs}
    assert set(typed["workflow"]) == options - {"run_id", "fresh"}
    assert options == set(_options._OF_WORKFLOWS)


@pytest.mark.parametrize("decorator", [stepwise.step, stepwise.tool, stepwise.workflow])
def test_options_are_documented(decorator):
    """The docstring of a decorator describes each of its options, or says where that is done."""
    typed = {**overloads(steps), **overloads(workflow)}[decorator.__name__]
    described = set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(decorator), re.MULTILINE))
    if decorator is stepwise.tool:
        described |= set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(stepwise.step), re.MULTILINE))
    assert described - {"ConfigurationError"} == set(typed)
