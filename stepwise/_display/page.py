"""A run as one HTML page, which a colleague opens: no network, no other file, nothing executed.

The Content-Security-Policy of the page allows its own style and its own script, by their digests,
and nothing else.  The script filters the steps; without it everything can be read as well.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from stepwise._display.markup import Content, Markup, markup, tag
from stepwise._display.render import RunShown, duration_text
from stepwise._display.timeline import timeline

__all__ = ["CheckpointShown", "Different", "RunPage", "SourceShown", "Unsettled", "page"]

_LINES = 2000  # of source
_COMPARED = 5000  # characters of arguments


@dataclass(frozen=True)
class SourceShown:
    """The source of a workflow.

    Args:
        file: its name.
        first: the number of the first line.
        here: the number of the line at which the run resumes, or stopped; 0 if it is not known.
        note: a doubt about these lines; empty if there is none.
    """

    file: str
    first: int
    lines: Sequence[str]
    here: int = 0
    note: str = ""


@dataclass(frozen=True)
class CheckpointShown:
    """A checkpoint with its variables as text.

    Args:
        title: where it was taken.
        note: why the variables cannot be shown; empty if they can.
    """

    title: str
    variables: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class Different:
    """The recorded step that did not answer a call.

    Args:
        number: of that step.
        why: a sentence about the parts in which they differ.
        arguments: of that step; empty if they are not known.
    """

    number: int
    why: str
    arguments: str = ""


@dataclass(frozen=True)
class Unsettled:
    """A call that somebody has to settle.

    Args:
        call: the call.
        about: what is in question.
        could_be: the recorded steps that it could be.
        commands: the commands that answer it.
    """

    call: str
    about: str
    commands: Sequence[str]
    could_be: Sequence[str] = ()


@dataclass(frozen=True)
class RunPage:
    """The contents of the page of a run.

    Args:
        shown: the facts that every display shows.
        facts: further facts by name.
        resumes: when it was resumed, and how; the last few.
        resumed: how many times it was resumed.
        result: what it returned, as text; empty if it did not.
        where, line: where it resumes, and the source there; empty for a run that has ended.
        different: by the number of a step that ran although it was recorded.
        children: the pages of its child runs, by id.
    """

    shown: RunShown
    facts: Mapping[str, str] = field(default_factory=dict)
    resumes: Sequence[tuple[float, str]] = ()
    resumed: int = 0
    result: str = ""
    where: str = ""
    line: str = ""
    source: SourceShown | None = None
    checkpoints: Sequence[CheckpointShown] = ()
    questions: Sequence[Unsettled] = ()
    different: Mapping[int, Different] = field(default_factory=dict)
    children: Mapping[str, RunPage] = field(default_factory=dict)


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _digest(text: str) -> str:
    """Return the digest by which a Content-Security-Policy allows a style or a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(run: RunPage) -> str:
    """Return the page of a run, as a text that can be encoded."""
    style, script = _file("page.css"), _file("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    body = markup(_run(run, _Ids(run)), tag("footer", tag("small", "made by stepwise export")))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"{tag('title', f'{run.shown.call[:200]} {run.shown.status}')}\n"
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n<script>{script}</script>\n</body>\n"
        "</html>\n"
    )


class _Ids:
    """Prefixes of the ids of a run's entries; those of child runs have numbers."""

    def __init__(self, run: RunPage) -> None:
        numbers = itertools.count(1)
        self._prefixes: dict[str, str] = {run.shown.id: ""}

        def add(children: Mapping[str, RunPage]) -> None:
            for run_id, child in children.items():
                self._prefixes.setdefault(run_id, f"r{next(numbers)}-")
                add(child.children)

        add(run.children)

    def of(self, run_id: str) -> str | None:
        """Return the prefix of a run; ``None`` if the page does not have it."""
        return self._prefixes.get(run_id)


def _run(run: RunPage, ids: _Ids) -> Markup:
    prefix = ids.of(run.shown.id) or ""
    name = "h2" if prefix else "h1"
    heading = tag(name, tag("code", run.shown.call), " ", _badge(run.shown.status))
    children = [
        tag("section", _run(child, ids), cls="child", id=f"{ids.of(run_id)}run")
        for run_id, child in run.children.items()
    ]
    return markup(
        tag("header", heading, _facts(run)),
        [_question(each) for each in run.questions],
        _section("Timeline", _picture(run, prefix)),
        _section(f"Steps: {run.shown.counts}", _steps(run, ids)),
        _section("Source", _source(run, prefix)),
        _section("Local variables", [_checkpoint(each) for each in run.checkpoints]),
        _section("Child runs", children),
    )


def _section(title: str, *parts: Content) -> Markup:
    content = markup(*parts)
    return tag("section", tag("h2", title), "\n", content) if content else Markup()


def _badge(status: str) -> Markup:
    return tag("span", status.replace("_", " "), cls=f"badge {status}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _code(text: Content) -> Markup:
    return tag("pre", text)


# -- the facts of a run ----------------------------------------------------------------------------


def _facts(run: RunPage) -> Markup:
    shown = run.shown
    ended = shown.status in ("completed", "failed")
    earlier = run.resumed - len(run.resumes)
    resumes = [tag("div", f"{_when(at)}, {how}") for at, how in run.resumes]
    if earlier > 0:
        resumes.append(tag("small", f"and {earlier:,} times before"))
    where = tag("div", run.where), _code(run.line) if run.line else None
    facts: dict[str, Content] = {
        "run": tag("code", shown.id),
        "workflow": tag("code", shown.workflow),
        "started": _when(shown.created_at),
        "ended" if ended else "updated": _when(shown.updated_at),
        "took": duration_text(max(0.0, shown.updated_at - shown.created_at)) if ended else "",
        "executed by": shown.owner,
        **{name: tag("code", text) for name, text in run.facts.items() if text},
        "waits": [tag("div", each) for each in shown.waits],
        "resumed": resumes,
        "last attempt": shown.attempt,
        "spent": shown.spent,
        "lost": shown.gaps,
        "damage": shown.damage,
        "resumes": where if run.where else "",
        "stopped by" if shown.status == "interrupted" else "error": (
            tag("pre", shown.error, cls="error") if shown.error else ""
        ),
        "result": _code(run.result) if run.result else "",
    }
    rows = [markup(tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    return tag("dl", rows)


def _question(question: Unsettled) -> Markup:
    return tag(
        "section",
        tag("div", tag("code", question.call), " ", question.about),
        tag("ul", [tag("li", tag("code", each)) for each in question.could_be])
        if question.could_be
        else None,
        _code("\n".join(question.commands)),
        cls="ask",
    )


def _picture(run: RunPage, prefix: str) -> Markup:
    now = time.time() if run.shown.status == "running" else None
    drawn = timeline(run.shown.steps, now, [at for at, _ in run.resumes], prefix)
    shortened = tag("small", "pauses are shortened") if "<rect x" in drawn else None
    return markup(drawn, shortened)


# -- steps -----------------------------------------------------------------------------------------


def _steps(run: RunPage, ids: _Ids) -> Markup:
    prefix = ids.of(run.shown.id) or ""
    rows = [_step(step, run, ids, prefix) for step in run.shown.steps]
    if not rows:
        return Markup()
    if run.shown.earlier:
        rows.insert(0, tag("p", f"{run.shown.earlier:,} earlier steps", cls="soft"))
    listed = tag("div", Markup("\n".join(rows)), cls="rows")
    return markup(None if prefix else _filter(run), listed)


def _filter(run: RunPage) -> Markup:
    """Return the row of controls, which the script shows."""
    statuses = sorted({status for each in _all(run) for status in each.shown.statuses})
    options = [tag("option", status.replace("_", " "), value=status) for status in statuses]
    search = {"type": "search", "placeholder": "Find in the steps", "aria-label": "find"}
    return tag(
        "div",
        Markup(tag("input", **search).removesuffix("</input>")),
        tag("select", tag("option", "any status", value=""), options, **{"aria-label": "status"}),
        tag("small", role="status"),
        tag("button", "unfold all", type="button"),
        cls="filter",
        hidden=True,
    )


def _all(run: RunPage) -> list[RunPage]:
    return [run, *(each for child in run.children.values() for each in _all(child))]


def _step(step: Any, run: RunPage, ids: _Ids, prefix: str) -> Markup:
    called, took = f"{step.name}({step.arguments})", duration_text(step.duration)
    head = tag(
        "summary",
        tag("b", f"{step.number}"),
        tag("code", called[:300]),
        _badge(step.status),
        tag("i", step.preview[:200]),
        tag("u", f"{step.attempts} tries, " if step.attempts > 1 else "", took),
    )
    child = ids.of(step.child) if step.child else None
    link = step.child if child is None else tag("a", step.child, href=f"#{child}run")
    skipped = step.status == "completed" and step._entry.number < run.shown.begun
    began = f"{_when(step.started_at)}{', before the last attempt' if skipped else ''}"
    failed = step.status not in ("completed", "started")
    facts: dict[str, Content] = {
        "arguments": _code(step.arguments) if step.arguments else "",
        "error" if failed else "result": _code(step.preview) if step.preview else "",
        "traceback": _code(step.traceback) if step.traceback else "",
        "ran again": _compared(run.different.get(step.number), step.arguments, prefix),
        "called": ("at ", tag("code", step.site), ", ", began) if step.site else began,
        "tries": f"{step.attempts}" if step.attempts > 1 else "",
        "idempotency key": tag("code", step.idempotency_key) if step.side_effect else "",
        "child run": link,
    }
    rows = [markup(tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    kind = f"step is-{step.status}"
    return tag("details", head, tag("dl", rows), cls=kind, id=f"{prefix}s{step.number}")


def _compared(different: Different | None, arguments: str, prefix: str) -> Markup:
    """Show in what a call differs from the recorded step that did not answer it."""
    if different is None:
        return Markup()
    told = tag("div", tag("a", different.why, href=f"#{prefix}s{different.number}"))
    if not different.arguments:
        return told
    before, after = _differences(different.arguments[:_COMPARED], arguments[:_COMPARED])
    return markup(told, tag("small", "then"), _code(before), tag("small", "now"), _code(after))


def _differences(before: str, after: str) -> tuple[Markup, Markup]:
    """Mark the words in which two texts differ."""
    one, other = (re.findall(r"\w+|\s+|.", text, re.DOTALL) for text in (before, after))
    marked: tuple[list[Content], list[Content]] = ([], [])
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for side, (name, part) in enumerate([("del", one[i:j]), ("ins", other[k:m])]):
            text = "".join(part)
            marked[side].append(text if kind == "equal" or not text else tag(name, text))
    return markup(*marked[0]), markup(*marked[1])


# -- source and variables --------------------------------------------------------------------------


def _source(run: RunPage, prefix: str) -> Markup:
    source = run.source
    if source is None:
        return Markup()
    called: dict[int, list[int]] = {}
    for step in run.shown.steps:
        file, _, line = step.site.rpartition(":")
        if file == source.file and line.isdecimal():
            called.setdefault(int(line), []).append(step.number)
    rows = [
        tag(
            "tr",
            tag("td", f"{number}"),
            tag("td", _links(called.get(number, ()), prefix)),
            tag("td", text.rstrip("\n"), cls="code"),
            cls="here" if number == source.here else None,
        )
        for number, text in enumerate(source.lines[:_LINES], source.first)
    ]
    note = f": {source.note}" if source.note else ""
    return markup(
        tag("small", f"{source.file}{note}"),
        tag("div", tag("table", Markup("\n".join(rows))), cls="source"),
    )


def _links(numbers: Iterable[int], prefix: str) -> Markup:
    """Return links to steps; neighbours are joined: ``1-4, 7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    links = [
        tag("a", f"{a}" if a == b else f"{a}-{b}", href=f"#{prefix}s{a}") for a, b in spans[:8]
    ]
    if len(spans) > 8:
        links.append(markup("…"))
    return Markup(", ".join(links))


def _checkpoint(shown: CheckpointShown) -> Markup:
    rows = [
        tag("tr", tag("td", tag("code", name)), tag("td", _code(text)))
        for name, text in shown.variables.items()
    ]
    head = tag("tr", tag("th", "variable"), tag("th", "value"))
    content = tag("table", head, rows) if rows else tag("p", shown.note or "none", cls="soft")
    return tag("details", tag("summary", shown.title), content, cls="checkpoint")
