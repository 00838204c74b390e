"""The parts of the reference that are read from the code: options, settings, errors, names.

``make map`` writes the tables between the comments ``from code`` and ``end`` into the pages, so
that a forge shows them, too; a test says when they are out of date.  The directive ``problems`` has
the errors in full on the site.  ``tests/docs/coverage_of_pages.py`` reads the same tables.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import stepwise
from stepwise._calls.steps import SentStep, Step
from stepwise._journal import records as journal
from stepwise._runtime import settings
from stepwise._runtime.options import _KINDS as ACCEPTED
from stepwise._workflows.definition import Options
from stepwise._workflows.workflow import Workflow

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

RETURNED = {  # users get these, and make none
    *("AsyncHandle", "CodePlace", "CompletedCall", "CurrentStep", "Event", "FirstTrue", "Handle"),
    "Evaluation",
    *("BranchCall", "RunBranch", "RunBranches"),
    *("InDoubtCall", "Program", "VariableChange", "VariableShown", "Why"),
    *("InboxMessage", "PendingWait", "Question", "RecordedFrame", "Recovered", "Run"),
    *(
        "RunCheckpoint",
        "RunStream",
        "Spent",
        "StepAttempt",
        "StepRecord",
        "StreamItem",
        "Verification",
        "Workflow",
    ),
}
_DESCRIBED_BY_OTHERS = RETURNED - {"Event", "Run", "Workflow"}
OF_ONE_CALL = ("run_id", "fresh")
_LEFT_ALONE = "as it is"


class Option(NamedTuple):
    """An option of a decorator, or an argument of a function."""

    name: str
    default: str
    meaning: str


def arguments(function: object) -> dict[str, str]:
    """Read the section ``Args:`` of a docstring: the meaning of each argument."""
    text = re.split(r"^Args:\n", inspect.getdoc(function) or "", flags=re.MULTILINE)[1:]
    if not text:
        return {}
    section = re.split(r"\n(?=\S)", text[0])[0]
    found = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + section):
        names, _, meaning = entry.strip().partition(":")
        for name in filter(None, names.split(",")):
            found[name.strip().lstrip("*")] = markdown(" ".join(meaning.split()))
    return found


def markdown(text: str) -> str:
    """Turn the inline markup of a docstring into Markdown."""
    text = re.sub(r":\w+:`[~!]?([^`]+)`", r"`\1`", text)
    return re.sub(r"``(.+?)``", r"`\1`", text)


def options(name: str) -> list[Option]:
    """Return what ``step``, ``tool``, ``workflow``, ``options`` or ``configure`` takes.

    The names are those that the code accepts, the meanings those of the docstrings; ``tool`` has
    those only that ``step`` has not, and ``options`` those that ``workflow`` has not.
    """
    if name == "configure":
        return _described(stepwise.configure, stepwise.configure)
    if name in ("step", "tool"):
        names = [*ACCEPTED["step"]]
        if name == "tool":
            names = [each for each in ACCEPTED["tool"] if each not in names]
        return _described(getattr(stepwise, name), Step.__init__, names)
    names = [each for each in ACCEPTED["workflow"] if each not in OF_ONE_CALL]
    if name == "workflow":
        return _described(stepwise.workflow, Options, names)
    meanings = arguments(Workflow.options)
    return [
        Option("run_id", "`None`", meanings.get("run_id", "")),
        Option("fresh", "`False`", meanings.get("fresh", "")),
    ]


def _described(
    documented: object, function: Callable[..., Any], names: Iterable[str] = ()
) -> list[Option]:
    meanings = arguments(documented)
    known = {**inspect.signature(function).parameters}
    if function is Step.__init__:  # a class of its own has the options of executors
        known.update(inspect.signature(SentStep.__init__).parameters)
    if function is Options:  # its constructor takes whatever fields it has
        kind = inspect.Parameter.KEYWORD_ONLY
        known = {
            each: inspect.Parameter(each, kind, default=getattr(Options, each))
            for each in Options.__annotations__
        }
    return [
        Option(each, _default(known[each].default), meanings.get(each, ""))
        for each in names or known
    ]


def _default(value: object) -> str:
    if type(value) is object:  # stands for a setting that is left out, where `None` is a value
        return _LEFT_ALONE
    return f"`{value.__name__}`" if isinstance(value, type) else f"`{value!r}`"


# -- settings ------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Return the environment variables that settings.py describes, with their meanings."""
    found: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(settings) or "").splitlines():
        entry = re.match(r"``(\w+)`` *(.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith(" "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return {each: markdown(text) for each, text in found.items()}


# -- errors --------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """An error or warning: its first sentence, and the sections of its docstring."""

    name: str
    bases: list[str]
    message: str
    cause: str
    way_out: str
    facts: dict[str, str]


def problems() -> list[Problem]:
    """Return every error and warning, in the order of the tree."""
    order = re.findall(r"^ {4}[^\w\n]*(\w+)", inspect.getdoc(stepwise.errors) or "", re.MULTILINE)
    return [_problem(getattr(stepwise.errors, each)) for each in order if each[0].isupper()]


def _problem(cls: type) -> Problem:
    message, *rest = (inspect.getdoc(cls) or "").split("\n\n")
    sections = {}
    for each in rest:
        title, _, text = each.partition(":")
        sections[title] = markdown(" ".join(text.split()))
    return Problem(
        cls.__name__,
        [base.__name__ for base in cls.__bases__ if not base.__name__.startswith("_")],
        markdown(" ".join(message.split())),
        sections.get("Cause", ""),
        sections.get("What to do", ""),
        {name: str(kind) for name, kind in inspect.get_annotations(cls).items()},
    )


# -- records -------------------------------------------------------------------------------------


def records_text(which: str) -> str:
    """Write the kinds of records, or the facts of a call, as a table."""
    if which == "call":
        meanings = arguments(journal.Call)
        rows = [f"| `{name}` | {meanings[name]} |" for name in journal.Call._fields]
        return "\n".join(["| fact | meaning |", "|---|---|", *rows])
    rows = []
    for kind, cls in journal.KINDS.items():
        meaning = markdown(" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()))
        facts = ", ".join(f"`{name}`" for name in cls._fields)
        rows.append(f"| `{kind}` | {meaning} | {facts} |")
    return "\n".join(["| kind | meaning | facts |", "|---|---|---|", *rows])


# -- tables and sections --------------------------------------------------------------------------


def options_text(name: str) -> str:
    """Write the options as a table."""
    rows = [f"| `{_with_default(each)}` | {each.meaning} |" for each in options(name)]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _with_default(option: Option) -> str:
    default = option.default.strip("`")
    return option.name if default in ("None", _LEFT_ALONE) else f"{option.name}={default}"


def environment_text() -> str:
    """Write the environment variables as a table."""
    return _table("variable", environment())


def _table(of: str, meanings: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    return "\n".join([f"| {of} | meaning |", "|---|---|", *rows])


# -- at a glance ---------------------------------------------------------------------------------

_BLOCK = re.compile(r"(<!-- from code: (.+?) -->\n).*?(\n<!-- end -->)", re.DOTALL)
_NAMED = re.compile(r"\.\. (py:currentmodule|auto\w+):: ([\w.]+)((?:\n +:.*)*)")


def at_a_glance(page: str) -> str:
    """Return a page with the tables in it that the code gives now."""

    def instead(block: re.Match[str]) -> str:
        what, _, of = block[2].partition(" ")
        return f"{block[1]}\n{_written(what, of, page)}\n{block[3]}"

    return _BLOCK.sub(instead, page)


def _written(what: str, of: str, page: str) -> str:
    if what == "options":
        return options_text(of)
    if what == "environment":
        return environment_text()
    if what == "records":
        return records_text(of)
    if what == "errors":
        return _table("error", {each.name: each.message for each in problems()})
    names = dict(_names(page))
    returned = ", ".join(f"`{name}`" for name in names if name in _DESCRIBED_BY_OTHERS)
    table = _table("name", {n: said for n, said in names.items() if n not in _DESCRIBED_BY_OTHERS})
    return (
        f"{table}\n\nWhat these return, or pass to your functions: {returned}."
        if returned
        else table
    )


def _names(page: str) -> Iterator[tuple[str, str]]:
    """Return the names that a page documents, with the first sentences of their docstrings."""
    prefix = ""
    for kind, name, more in _NAMED.findall(page):
        if kind == "py:currentmodule":
            prefix = f"{name}."
        elif kind == "automodule":
            if ":no-members:" not in more:
                members = re.search(r":members:(.*)", more)
                chosen = (members[1] if members else "").replace(",", " ").split()
                module = importlib.import_module(name)
                for each in chosen or module.__all__:
                    yield f"{name}.{each}", _first_sentence(getattr(module, each))
        else:
            yield _described_name(name if name.startswith("stepwise.") else prefix + name)


def _described_name(name: str) -> tuple[str, str]:
    module, _, short = name.rpartition(".")
    meaning = _first_sentence(getattr(importlib.import_module(module), short))
    return short if module == "stepwise" else name, meaning


def _first_sentence(value: object) -> str:
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return markdown(re.split(r"(?<=\.)\s", text)[0]).replace("|", "\\|")


def errors_text() -> str:
    """Write a section for each error and warning."""
    return "\n\n".join(map(_section, problems()))


def _section(problem: Problem) -> str:
    lines = [
        f"## {problem.name}",
        "",
        f"````{{py:exception}} stepwise.{problem.name}",
        ":no-contents-entry:",
        "",
        f"{problem.message}",
        "",
    ]
    if problem.cause:
        lines += [f"**Cause**: {problem.cause}", ""]
    if problem.way_out:
        lines += [f"**What to do**: {problem.way_out}", ""]
    if problem.facts:
        facts = ", ".join(f"`{name}`" for name in problem.facts)
        lines += [f"**Attributes**: {facts}", ""]
    bases = ", ".join(f"`{base}`" for base in problem.bases)
    return "\n".join([*lines, f"**Derived from**: {bases}", "````"])


def signature(
    _: Sphinx, __: str, name: str, ___: object, ____: object, known: str | None, *_____: object
) -> tuple[str, str] | None:
    """Return the signature of what takes options by name: the options."""
    kind = {"step": "step", "tool": "tool", "workflow": "workflow", "Workflow.options": "options"}
    short = name.removeprefix("stepwise.")
    if short in RETURNED:
        return "", ""
    of = kind.get(short)
    if of is None:
        return (known.replace("<factory>", "..."), "") if known else None
    every = [*options({"tool": "step", "options": "workflow"}.get(of, of))]
    every += options(of) if of in ("tool", "options") else []
    return f"(*, {', '.join(f'{each.name}={each.default[1:-1]}' for each in every)})", ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    from sphinx.util.docutils import SphinxDirective

    class FromCode(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(errors_text(), allow_section_headings=True)

    app.connect("autodoc-process-signature", signature)
    app.add_directive("problems", FromCode)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for path in sorted(pathlib.Path(__file__).parent.glob("reference/*.md")):
        path.write_text(at_a_glance(path.read_text(encoding="utf-8")), encoding="utf-8")
