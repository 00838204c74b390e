"""A run as one HTML page that a colleague can open: no network, no other file, no other code.

The Content-Security-Policy of the page allows only the page's own style and script, by their
digests.  The script filters the steps; without the script everything stays readable.
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

from stepwise._display.render import Content, Markup, RunShown, markup, tag, timeline
from stepwise._display.terminal import duration_text, when
from stepwise._runtime.messages import shell_word

_LINES = 2000  # of source shown
_COMPARED = 5000  # characters of arguments compared


@dataclass(frozen=True)
class SourceShown:
    """The source of a workflow.

    Args:
        file: the name of the file.
        first: the number of the first line.
        lines: the lines of source.
        here: the number of the line at which the run resumes, or stopped; 0 if unknown.
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
        title: where the checkpoint was taken.
        variables: the values as text, by name.
        note: why the variables cannot be shown; empty if they can.
    """

    title: str
    variables: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class RunPage:
    """The contents of the page of a run.

    Args:
        shown: the facts that every display shows.
        facts: further facts by name.
        resumes: time and manner of the last few resumes.
        resumed: how many times the run was resumed.
        result: the returned value as text; empty if the run did not return.
        where, line: the place where the run resumes, and its source; empty for a run that has
            ended.
        source: the source of the workflow, if known.
        checkpoints: the checkpoints with their variables.
        in_doubt: the side effects that may or may not have happened.
        stops: the calls at which the run stopped, each with the recorded calls that it could be.
        children: the pages of child runs, by id.
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
    in_doubt: Sequence[Any] = ()
    stops: Sequence[Any] = ()
    children: Mapping[str, RunPage] = field(default_factory=dict)


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _digest(text: str) -> str:
    """Return the digest by which a Content-Security-Policy allows a style or a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(run: RunPage) -> str:
    """Return the page of a run, as encodable text."""
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
    """Prefixes of the ids of a run's entries; prefixes of child runs have numbers."""

    def __init__(self, run: RunPage) -> None:
        numbers = itertools.count(1)
        self._prefixes: dict[str, str] = {run.shown.id: ""}

        def add(children: Mapping[str, RunPage]) -> None:
            for run_id, child in children.items():
                self._prefixes.setdefault(run_id, f"r{next(numbers)}-")
                add(child.children)

        add(run.children)

    def of(self, run_id: str) -> str | None:
        """Return the prefix of a run; ``None`` if the page does not show the run."""
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
        [_doubt(each, run.shown.id) for each in run.in_doubt],
        [_stop(each) for each in run.stops if each.said is None],
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


def _code(text: Content) -> Markup:
    return tag("pre", text)


# -- the facts of a run ----------------------------------------------------------------------------


def _facts(run: RunPage) -> Markup:
    shown = run.shown
    ended = shown.status in ("completed", "failed")
    earlier = run.resumed - len(run.resumes)
    resumes = [tag("div", f"{when(at)}, {how}") for at, how in run.resumes]
    if earlier > 0:
        resumes.append(tag("small", f"and {earlier:,} times before"))
    where = tag("div", run.where), _code(run.line) if run.line else None
    facts: dict[str, Content] = {
        "run": tag("code", shown.id),
        "workflow": tag("code", shown.workflow),
        "started": when(shown.created_at),
        "ended" if ended else "updated": when(shown.updated_at),
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


def _doubt(step: Any, run_id: str) -> Markup:
    command = f"stepwise resolve {shell_word(run_id)} {step.number}"
    about = (
        f"is in doubt: step {step.number} may or may not have happened. Find out (its key is "
        f"{step.idempotency_key}), then run one of these:"
    )
    return _ask(step, about, [f"{command} --landed JSON", f"{command} --did-not-happen"])


def _stop(stop: Any) -> Markup:
    about = (
        f"is where the run stopped, called at {stop.site or '?'}: it could be one of these "
        "recorded steps. Say which:"
    )
    could_be = [
        f"step {each.number} {_call(each)}" + (f" (differs: {each.why})" if each.why else "")
        for each in stop.could_be
    ]
    answers = zip(stop.commands, stop.meanings, strict=True)
    return _ask(stop, about, [f"{each}    ({why})" for each, why in answers], could_be)


def _ask(call: Any, about: str, commands: Sequence[str], could_be: Sequence[str] = ()) -> Markup:
    listed = [tag("li", tag("code", each)) for each in could_be]
    return tag(
        "section",
        tag("div", tag("code", _call(call)), " ", about),
        tag("ul", listed) if listed else None,
        _code("\n".join(commands)),
        cls="ask",
    )


def _call(step: Any) -> str:
    return f"{step.name}({step.arguments})"


def _picture(run: RunPage, prefix: str) -> Markup:
    now = time.time() if run.shown.status == "running" else None
    drawn = timeline(run.shown.steps, now, [at for at, _ in run.resumes], prefix)
    shortened = tag("small", "pauses are shortened") if "<rect x" in drawn else None
    return markup(drawn, shortened)


# -- steps -----------------------------------------------------------------------------------------


def _steps(run: RunPage, ids: _Ids) -> Markup:
    prefix = ids.of(run.shown.id) or ""
    arguments = {step.number: step.arguments for step in run.shown.steps}
    rows = [
        _step(step, run, ids, prefix, arguments.get(step.instead, "")) for step in run.shown.steps
    ]
    if not rows:
        return Markup()
    if run.shown.earlier:
        rows.insert(0, tag("p", f"{run.shown.earlier:,} earlier steps", cls="soft"))
    listed = tag("div", Markup("\n".join(rows)), cls="rows")
    return markup(None if prefix else _filter(run), listed)


def _filter(run: RunPage) -> Markup:
    """Return the row of controls; it is hidden until the script shows it."""
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


def _step(step: Any, run: RunPage, ids: _Ids, prefix: str, before: str) -> Markup:
    """Return the row of a step.

    Args:
        step: the step.
        run: the page that holds the step.
        ids: the prefixes of all runs on the page.
        prefix: the prefix of this run.
        before: the arguments of the recorded step that did not answer the call, if known.
    """
    called, took = _call(step), duration_text(step.duration)
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
    began = f"{when(step.started_at)}{', before the last attempt' if skipped else ''}"
    failed = step.status not in ("completed", "started")
    facts: dict[str, Content] = {
        "arguments": _code(step.arguments) if step.arguments else "",
        "error" if failed else "result": _code(step.preview) if step.preview else "",
        "traceback": _code(step.traceback) if step.traceback else "",
        "ran again": _compared(step, before, prefix),
        "called": ("at ", tag("code", step.site), ", ", began) if step.site else began,
        "tries": f"{step.attempts}" if step.attempts > 1 else "",
        "idempotency key": tag("code", step.idempotency_key) if step.side_effect else "",
        "child run": link,
    }
    rows = [markup(tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    kind = f"step is-{step.status}"
    return tag("details", head, tag("dl", rows), cls=kind, id=f"{prefix}s{step.number}")


def _compared(step: Any, before: str, prefix: str) -> Markup:
    """Show the differences between a call and the recorded step that did not answer the call."""
    if not step.instead:
        return Markup()
    told = tag("div", tag("a", step.why, href=f"#{prefix}s{step.instead}"))
    if not before:
        return told
    one, other = _differences(before[:_COMPARED], step.arguments[:_COMPARED])
    return markup(told, tag("small", "then"), _code(one), tag("small", "now"), _code(other))


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
