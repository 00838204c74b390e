"""Knowledge of the library for people and agents: names explained, pages searched.

The explanations are those of the docstrings; the pages are the guides, concepts and reference of
``docs/``.
"""

from __future__ import annotations

import difflib
import inspect
import math
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import stepwise
from stepwise import errors

# -- names ----------------------------------------------------------------------------------------


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


def _plain(text: str) -> str:
    """Return the text of a docstring without its markup."""
    text = re.sub(r":\w+:`~?\.?([^`<]*?)`", r"\1", text)
    return text.replace("``", "`").strip()


def explanation(name: str) -> Explanation:
    """Return the explanation of a name, as a traceback, a shell or a decorator shows it.

    Raises:
        LookupError: there is none; the message names similar names.
    """
    known = explanations()
    wanted = name.strip().rstrip(":").partition("=")[0].lstrip("@-").rpartition(".")[2]
    by_case = {each.lower(): each for each in known}
    found = known.get(by_case.get(wanted.lower().replace("-", "_"), ""))
    if found is None:
        near = difflib.get_close_matches(wanted.lower(), by_case, n=3, cutoff=0.5)
        hint = f". Did you mean {' or '.join(by_case[each] for each in near)}?" if near else ""
        raise LookupError(f"there is nothing called {name!r} to explain{hint}")
    return found


# -- pages ----------------------------------------------------------------------------------------


_HERE = pathlib.Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^(#{1,4}) (.+)$", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9_]+")
_SAYS_NOTHING = "a an and do for how i in is of the to what with"
_TITLE = 8  # occurrences in the text that an occurrence in the title counts for
_NOT_SHOWN = re.compile(r"<!--.*?-->\n?|^!\[.*\n", re.DOTALL | re.MULTILINE)


class Section(NamedTuple):
    """A section of a page.

    Args:
        page: the path of the page below ``docs/``.
        title: the headings above the section and its own, outermost first.
        text: its Markdown, without the sections below.
    """

    page: str
    title: str
    text: str


def sections() -> Iterator[Section]:
    """Yield the sections of the pages, which lie in the package or beside it in a checkout."""
    inside, beside = _HERE / "pages", _HERE.parent / "docs"
    for name in ("how-to", "concepts", "reference"):
        packed = inside / name.replace("-", "_")
        for path in sorted((packed if packed.is_dir() else beside / name).glob("*.md")):
            yield from _sections(f"{name}/{path.name}", _NOT_SHOWN.sub("", path.read_text("utf-8")))


def _sections(page: str, text: str) -> Iterator[Section]:
    code = [found.span() for found in re.finditer(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)]
    heads = [
        head
        for head in _HEADING.finditer(text)
        if not any(start < head.start() < end for start, end in code)  # a comment of a program
    ]
    above: list[str] = []
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        above = [*above[: len(head[1]) - 1], head[2]]
        body = text[head.end() : after.start() if after is not None else None]
        yield Section(page, " > ".join(above), body.strip())


def _words(text: str) -> list[str]:
    """Return the words of a text, without the endings of a plural."""
    return [re.sub(r"ies$", "y", word).rstrip("s") for word in _WORD.findall(text.lower())]


def search(query: str) -> list[Section]:
    """Return the sections that have a word of a query, the best first."""
    wanted = {*_words(query)} - {*_words(_SAYS_NOTHING)}
    found: list[tuple[Section, Counter[str], int]] = []
    for each in sections():
        words = _words(each.text)
        counts = Counter(words + _words(f"{each.page} {each.title}") * _TITLE)
        found.append((each, counts, len(words)))
    has = {word: sum(word in counts for _, counts, _ in found) for word in wanted}
    rare = {word: math.log(1 + len(found) / number) for word, number in has.items() if number}

    def score(item: tuple[Section, Counter[str], int]) -> float:
        # Okapi BM25 without its tuning: a word counts more where it is rare, and ever less often.
        _, counts, length = item
        size = 1 + length / 200
        return sum(weight * counts[word] / (counts[word] + size) for word, weight in rare.items())

    ranked = sorted(found, key=score, reverse=True)
    return [item[0] for item in ranked if score(item) > 0]
