"""Lists every public name, option, error, setting and command with the pages that document it.

``python tests/docs/coverage_of_pages.py`` prints the list, and exits with 1 if one has none.
A page documents a name if the page is made from the name's docstring, and that says something; the
other pages that mention the name are listed behind it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import from_code  # noqa: E402 -- where that is

import stepwise  # noqa: E402
from stepwise import cli  # noqa: E402

PACKAGES = ("", ".agent", ".graph", ".notebook", ".stores", ".testing", ".ui", ".integrations.hive")
PACKAGES += tuple(
    f".integrations.{name}" for name in ("openai_agents", "opentelemetry", "pydantic_ai", "ray")
)
OF_PYTEST = ("setup_method", "teardown_method")
PLUGIN = {"stepwise_store": "--stepwise-store", "crash_everywhere": "crash_everywhere"}


class Thing(NamedTuple):
    """Something that a user can write, and where it is documented."""

    kind: str
    name: str
    page: str  # empty: nowhere
    mention: str  # as it stands in other pages


@functools.cache
def text_of(page: str) -> str:
    """The source of a page."""
    return (DOCS / page).read_text("utf-8")


@functools.cache
def made() -> dict[str, str]:
    """The pages that the directives of the reference make, by what they name."""
    found = {}
    for path in sorted((DOCS / "reference").glob("*.md")):
        page, module = f"reference/{path.name}", "stepwise"
        directive = r"\.\. ([\w:]+):: ?(\S*)((?:\n   :.*)*)"
        directive += r"|(?:```\{|<!-- from code: )(\w+)\}? ?(\w*)"
        for kind, name, settings, own, argument in re.findall(directive, path.read_text("utf-8")):
            if kind == "py:currentmodule":
                module = name
            elif kind == "automodule":
                found[f"members {name}"] = page if ":members:" in settings else ""
                only = re.findall(r"\w+", settings.partition(":members:")[2].split("\n")[0])
                found |= {f"{name}.{each}": page for each in only}
                if only:
                    del found[f"members {name}"]
            elif kind in ("autofunction", "autoclass"):
                full = name if name.startswith("stepwise.") else f"{module}.{name}"
                found[full] = page
                members = re.search(r":members:(.*)", settings)
                if members and members[1].strip():
                    found |= {
                        f"{full}.{each}": page for each in members[1].replace(" ", "").split(",")
                    }
                elif members:
                    found[f"members {full}"] = page
            elif kind == "click":
                found["commands"] = page
            elif own in ("options", "environment", "problems"):
                found[f"{own} {argument}".strip()] = page
    return found


def page_of(full: str) -> str:
    """The page that is made from the docstring of a public name."""
    above = full.rpartition(".")[0]
    package = above.rpartition(".")[0]
    places = (full, f"members {above}", f"members {package}")
    return next(filter(None, map(made().get, places)), "")


def public(package: str) -> Iterator[tuple[str, object]]:
    """The public names of a package."""
    module = importlib.import_module(f"stepwise{package}")
    for name in module.__all__:
        yield f"stepwise{package}.{name}", getattr(module, name)


def names() -> Iterator[Thing]:
    """The public names, and the methods and properties of public classes."""
    for package in PACKAGES:
        for full, value in public(package):
            short = full.rpartition(".")[2]
            known = f"stepwise.{short}" if short in stepwise.__all__ else full
            if isinstance(value, type) and issubclass(value, BaseException) and not package:
                continue  # errors have a list of their own
            if inspect.ismodule(value):
                yield Thing("name", full, made()["problems"], full)
                continue
            yield Thing("name", full, page_of(known) if inspect.getdoc(value) else "", short)
            if inspect.isclass(value):
                yield from members(known, value)


def members(full: str, cls: type) -> Iterator[Thing]:
    """The public methods and properties that a class defines itself."""
    mine = [each for each in cls.__mro__ if each.__module__.startswith("stepwise")]
    for name in sorted({name for each in mine for name in vars(each)}):
        value = inspect.getattr_static(cls, name)
        if name.startswith(("_", "test_")) or name in OF_PYTEST:
            continue
        value = getattr(value, "__func__", value)
        if inspect.isfunction(value) or isinstance(value, property | functools.cached_property):
            page = page_of(f"{full}.{name}") if inspect.getdoc(value) else ""
            yield Thing("member", f"{full}.{name}", page, name)


def options() -> Iterator[Thing]:
    """The options of the decorators, of ``options()`` and of ``configure()``."""
    for of in ("step", "tool", "workflow", "options", "configure"):
        for each in from_code.options(of):
            page = made().get(f"options {of}", "") if each.meaning else ""
            yield Thing("option", f"{of}({each.name}=)", page, f"{each.name}=")


def errors() -> Iterator[Thing]:
    """The errors and warnings."""
    described = {each.name for each in from_code.problems() if each.cause and each.way_out}
    for name in stepwise.errors.__all__:
        page = f"{made()['problems']}#{name.lower()}" if name in described else ""
        yield Thing("error", name, page, name)


def settings() -> Iterator[Thing]:
    """The environment variables that the code reads, and the settings of pytest."""
    sources = [*(ROOT / "stepwise").rglob("*.py"), ROOT / "stepwise_pytest.py"]
    read = {
        name
        for path in sources
        for name in re.findall(r"\"(STEPWISE_[A-Z_]+)\"", path.read_text("utf-8"))
    }
    described = from_code.environment()
    for name in sorted(read):
        yield Thing("variable", name, made()["environment"] if described.get(name) else "", name)
    for name, written in PLUGIN.items():
        page = "reference/settings.md"
        found = page if name in text_of(page) else page_of(f"stepwise.testing.{name}")
        yield Thing("pytest", written, found, written)


def commands() -> Iterator[Thing]:
    """The commands, and their options."""
    page = made().get("commands", "")
    for name, command in sorted(cli.main.commands.items()):
        yield Thing("command", f"stepwise {name}", page if command.help else "", f"stepwise {name}")
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                found = page if each.help else ""
                yield Thing("flag", f"stepwise {name} {each.opts[0]}", found, each.opts[0])


def things() -> list[Thing]:
    """Everything."""
    return [*names(), *options(), *errors(), *settings(), *commands()]


def mentions(thing: Thing) -> list[str]:
    """The other pages that mention it."""
    pages = [p for p in sorted(DOCS.rglob("*.md")) if "design" not in p.name]
    found = [str(path.relative_to(DOCS)) for path in pages]
    end = "" if thing.mention.endswith("=") else r"(?![\w-])"
    pattern = re.compile(rf"(?<![\w-]){re.escape(thing.mention)}{end}")
    return [p for p in found if p != thing.page.partition("#")[0] and pattern.search(text_of(p))]


def main() -> int:
    """Print the list, then how much of each kind has a page."""
    every = things()
    for thing in every:
        others = ", ".join(mentions(thing)) or "-"
        print(f"{thing.kind:<9} {thing.name:<48} {thing.page or 'NOWHERE':<34} {others}")
    print()
    for kind in dict.fromkeys(thing.kind for thing in every):
        of_kind = [thing for thing in every if thing.kind == kind]
        there = sum(bool(thing.page) for thing in of_kind)
        print(f"{kind:<9} {there} of {len(of_kind)}")
    return any(not thing.page for thing in every)


if __name__ == "__main__":
    sys.exit(main())
