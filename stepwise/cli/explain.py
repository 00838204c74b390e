"""Explain an error, a warning, a setting or an option: what it means, and the way out."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import textwrap
from typing import Any, NamedTuple

import click

import stepwise
from stepwise import errors
from stepwise._display.terminal import Terminal
from stepwise.cli._command import command
from stepwise.cli._display import echo_json, note, say

__all__ = ["Explanation", "explanations"]

_OPTIONS_OF = ("configure", "workflow", "tool", "step")


class Explanation(NamedTuple):
    """The text about a name.

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
    text = re.sub(r"\s*`stepwise explain \w+` says [^.]*\.", "", text)  # it is being said
    return Explanation(f"stepwise.{cls.__name__}", shown, text, tuple(dict.fromkeys(facts)))


def _joined(before: Explanation | None, new: Explanation) -> Explanation:
    """Return the explanation of an option that several decorators have."""
    if before is None or before.text == new.text:
        kind = new.kind if before is None else f"{before.kind} and {new.kind.rpartition(' ')[2]}"
        return new._replace(kind=kind)
    return before._replace(text=f"{before.text}\n\nAs {new.kind}: {new.text}")


def _arguments(docstring: str) -> list[tuple[str, str]]:
    """The names and descriptions in the section "Args" of a docstring."""
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
    """Return a text in lines of the terminal's width; indented lines and lists stay."""
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
