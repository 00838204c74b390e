"""A run as one HTML page that a colleague can open: no network, no other file, no other code.

The Content-Security-Policy of the page allows only the page's own style and script, by their
digests.  The script filters the steps; without the script everything stays readable.  The pages of
``stepwise ui`` show a run with the same functions.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from stepwise._display.markup import (
    Content,
    Markup,
    Rules,
    badge,
    block,
    facts,
    markup,
    section,
    sheet,
    table,
    tag,
)
from stepwise._display.render import RunShown, usage_text
from stepwise._display.timeline import RunBars, timeline
from stepwise._display.words import (
    cached_text,
    duration_text,
    resume_text,
    took_text,
    tries_text,
    when,
)
from stepwise._runtime.messages import count, settling_commands
from stepwise.errors import UnreadableValueError

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
        resumes: time and manner of the last few resumes, and how the attempt before had ended.
        resumed: how many times the run was resumed.
        result: the returned value as text; empty if the run did not return.
        where, line: the place where the run resumes, and its source; empty for a run that has
            ended.
        source: the source of the workflow, if known.
        checkpoints: the checkpoints with their variables.
        in_doubt: the side effects that may or may not have happened.
        stops: the calls at which the run stopped, each with the recorded calls that it could be.
        frames: the frames of the run's failure with their local variables, if recorded.
        inputs: the arguments of steps in full as text, by name, by the number of the step; only
            those that are recorded.
        children: the pages of child runs, by id.
    """

    shown: RunShown
    facts: Mapping[str, str] = field(default_factory=dict)
    resumes: Sequence[tuple[float, str, str]] = ()
    resumed: int = 0
    result: str = ""
    where: str = ""
    line: str = ""
    source: SourceShown | None = None
    checkpoints: Sequence[CheckpointShown] = ()
    in_doubt: Sequence[Any] = ()
    stops: Sequence[Any] = ()
    frames: Sequence[Any] = ()
    inputs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    children: Mapping[str, RunPage] = field(default_factory=dict)


@functools.cache
def _script() -> str:
    return Path(__file__).with_name("page.js").read_text("utf-8")


def _digest(text: str) -> str:
    """Return the digest by which a Content-Security-Policy allows a style or a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, body: Markup, *head: Content, **attributes: object) -> str:
    """Return a page as encodable text.

    Args:
        title: the title.
        body: the content of the body.
        head: further elements of the head.
        attributes: attributes of the body.
    """
    first = tag("meta", charset="utf-8")
    others = [
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title[:200]),
    ]
    shown = tag("body", "\n", body, "\n", cls="stepwise", **attributes)
    return (
        f'<!doctype html>\n<html lang="en">\n{tag("head", first, *head, *others)}\n{shown}\n'
        "</html>\n"
    )


def page(run: RunPage) -> str:
    """Return the page of a run, as encodable text."""
    rules = Rules()
    shown = _run(run, _Ids(run), rules)
    style, script = sheet("basis", "tables", "page") + rules.text, _script()
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    body = markup(
        tag("main", shown),
        tag("footer", tag("small", "made by stepwise export")),
        Markup(f"<script>{script}</script>"),
    )
    return document(
        f"{run.shown.call[:200]} {run.shown.status}",
        body,
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="referrer", content="no-referrer"),
        Markup(f"<style>{style}</style>"),
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


def _run(run: RunPage, ids: _Ids, rules: Rules) -> Markup:
    prefix = ids.of(run.shown.id) or ""
    name = "h2" if prefix else "h1"
    children = [
        tag("section", _run(child, ids, rules), cls="child", id=f"{ids.of(run_id)}run")
        for run_id, child in run.children.items()
    ]
    return markup(
        tag("header", title_of(run.shown, name), run_facts(run)),
        [_doubt(each, run.shown.id) for each in run.in_doubt],
        [_stop(each) for each in run.stops if each.said is None],
        section("Variables where it failed", frames(run.frames)),
        section("Timeline", _picture(run, prefix, rules)),
        section(f"Steps: {run.shown.counts}", _steps(run, ids)),
        section("Source", source(run, lambda number: f"#{prefix}s{number}")),
        section("Local variables", [_checkpoint(each) for each in run.checkpoints]),
        section("Child runs", children),
    )


# -- the facts of a run ----------------------------------------------------------------------------


def title_of(shown: RunShown, name: str = "h1") -> Markup:
    """Return the heading of a run: its call and its status."""
    return tag(name, tag("code", shown.call), " ", badge(shown.status))


def run_facts(run: RunPage) -> Markup:
    """Return the facts of a run as a list of names and values."""
    shown = run.shown
    ended = shown.status in ("completed", "failed")
    earlier = run.resumed - len(run.resumes)
    resumes = [tag("div", resume_text(*each)) for each in run.resumes]
    if earlier > 0:
        resumes.append(tag("small", f"and {count(earlier, 'time')} before"))
    where = tag("div", run.where), block(run.line) if run.line else None
    return facts(
        {
            "run": tag("code", shown.id),
            "workflow": tag("code", shown.workflow),
            "started": when(shown.created_at),
            "ended" if ended else "updated": when(shown.updated_at),
            "took": duration_text(max(0.0, shown.updated_at - shown.created_at)) if ended else "",
            "executed": shown.owner,
            **{name: tag("code", text) for name, text in run.facts.items() if text},
            "waits": [tag("div", each) for each in shown.waits],
            "resumed": resumes,
            "last attempt": shown.attempt,
            "spent": shown.spent,
            "lost": shown.gaps,
            "damage": shown.damage,
            "resumes": where if run.where else "",
            "stopped by" if shown.status == "interrupted" else "error": (
                block(shown.error, cls="error") if shown.error else ""
            ),
            "result": block(run.result) if run.result else "",
        }
    )


def _doubt(step: Any, run_id: str) -> Markup:
    about = (
        f"is in doubt: step {step.number} may or may not have happened. Find out (its key is "
        f"{step.idempotency_key}), then run one of these:"
    )
    return _ask(step, about, settling_commands(run_id, step.number))


def _stop(stop: Any) -> Markup:
    about = (
        f"is where the run stopped, called at {stop.site or '?'}: it could be one of these "
        "recorded steps. Say which:"
    )
    answers = zip(stop.commands, stop.meanings, strict=True)
    return _ask(stop, about, [f"{each}    ({why})" for each, why in answers], could_be(stop))


def could_be(stop: Any) -> list[str]:
    """Return the recorded steps that a stopped call could be, one text each."""
    return [
        f"step {each.number} {called(each)}" + (f" (differs: {each.why})" if each.why else "")
        for each in stop.could_be
    ]


def _ask(call: Any, about: str, commands: Sequence[str], could_be: Sequence[str] = ()) -> Markup:
    listed = [tag("li", tag("code", each)) for each in could_be]
    return tag(
        "section",
        tag("div", tag("code", called(call)), " ", about),
        tag("ul", listed) if listed else None,
        block("\n".join(commands)),
        cls="ask",
    )


def called(step: Any) -> str:
    """Return a call as text: its name and its arguments."""
    return f"{step.name}({step.arguments})"


def _picture(run: RunPage, prefix: str, rules: Rules) -> Markup:
    now = time.time() if run.shown.status == "running" else None
    group = RunBars("", run.shown.steps, lambda number: f"#{prefix}s{number}", run.shown.begun)
    return timeline([group], now, [(at, end) for at, _, end in run.resumes], rules)


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
    return tag("div", Markup("\n".join(rows)), cls="rows")


def _step(step: Any, run: RunPage, ids: _Ids, prefix: str, before: str) -> Markup:
    """Return the row of a step.

    Args:
        step: the step.
        run: the page that holds the step.
        ids: the prefixes of all runs on the page.
        prefix: the prefix of this run.
        before: the arguments of the recorded step that did not answer the call, if known.
    """
    child = ids.of(step.child) if step.child else None
    link = step.child if child is None else tag("a", step.child, href=f"#{child}run")
    whole = run.inputs.get(step.number, {})
    inputs = variables({name: block(text) for name, text in whole.items()})
    shown = step_facts(
        step,
        **({"arguments": inputs} if inputs else {}),
        begun=run.shown.begun,
        again=compared(step, before, f"#{prefix}s{step.instead}"),
        child=link,
    )
    kind = f"step is-{step.status}"
    return tag(
        "details", tag("summary", step_line(step)), shown, cls=kind, id=f"{prefix}s{step.number}"
    )


def step_line(step: Any) -> Markup:
    """Return the cells of a step in a list: number, call, status, result, time."""
    tries = f"{step.attempts} tries, " if step.attempts > 1 else ""
    answered = f" · {made}" if (made := cached_text(step)) else ""
    return markup(
        tag("b", f"{step.number}"),
        tag("code", called(step)[:300]),
        badge(step.status),
        tag("i", step.preview[:200], answered),
        tag("u", tries, took_text(step)),
    )


def step_facts(step: Any, *, begun: int, again: Content, child: Content, **more: Content) -> Markup:
    """Return everything that is recorded of a step.

    Args:
        step: the step.
        begun: the number of the record that began the last attempt.
        again: why the step ran although it was recorded.
        child: the child run.
        more: values that replace the short texts, by name: ``arguments``, ``result``.
    """
    skipped = step.status == "completed" and step._entry.number < begun
    began = f"{when(step.started_at)}{', before the last attempt' if skipped else ''}"
    failed = step.status not in ("completed", "started")
    texts: dict[str, Content] = {**_texts(step), **more}
    return facts(
        {
            "arguments": texts["arguments"],
            "error" if failed else "result": texts["result"],
            "traceback": texts["traceback"],
            "variables": failed_frames(step),
            "ran again": again,
            "called": ("at ", tag("code", step.site), ", ", began) if step.site else began,
            "took": took_text(step),
            "tries": [tag("div", each) for each in tries_text(step)],
            "decided by": step.by,
            "model": usage_text(step.usage),
            "answer": cached_text(step),
            "idempotency key": tag("code", step.idempotency_key) if step.side_effect else "",
            "child run": child,
        }
    )


def _texts(step: Any) -> dict[str, Content]:
    texts = {"arguments": step.arguments, "result": step.preview, "traceback": step.traceback}
    return {name: block(text) if text else "" for name, text in texts.items()}


def compared(step: Any, before: str, href: str) -> Markup:
    """Show the differences between a call and the recorded step that did not answer the call."""
    if not step.instead:
        return Markup()
    told = tag("div", tag("a", step.why, href=href))
    if not before:
        return told
    one, other = differences(before[:_COMPARED], step.arguments[:_COMPARED])
    return markup(
        told, tag("small", "then"), tag("pre", one), tag("small", "now"), tag("pre", other)
    )


def differences(before: str, after: str) -> tuple[Markup, Markup]:
    """Mark the words in which two texts differ."""
    one, other = (re.findall(r"\w+|\s+|.", text, re.DOTALL) for text in (before, after))
    marked: tuple[list[Content], list[Content]] = ([], [])
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for side, (name, part) in enumerate([("del", one[i:j]), ("ins", other[k:m])]):
            text = "".join(part)
            marked[side].append(text if kind == "equal" or not text else tag(name, text))
    return markup(*marked[0]), markup(*marked[1])


# -- source and variables --------------------------------------------------------------------------


def source(run: RunPage, link: Callable[[int], str]) -> Markup:
    """Return the source of the workflow, with the steps that each line called and their time.

    Args:
        run: the page of the run.
        link: returns the address of a step, given its number.
    """
    shown = run.source
    if shown is None:
        return Markup()
    called: dict[int, list[Any]] = defaultdict(list)
    for step in run.shown.steps:
        file, _, line = step.site.rpartition(":")
        if file == shown.file and line.isdecimal():
            called[int(line)].append(step)
    rows = [
        tag(
            "tr",
            tag("td", f"{number}"),
            tag("td", _calls(called.get(number, ()), link)),
            tag("td", text.rstrip("\n"), cls="code"),
            cls="here" if number == shown.here else None,
            aria_current="step" if number == shown.here else None,
        )
        for number, text in enumerate(shown.lines[:_LINES], shown.first)
    ]
    note = f": {shown.note}" if shown.note else ""
    return markup(
        tag("small", f"{shown.file}{note}"),
        tag(
            "div",
            tag("table", tag("tbody", Markup("\n".join(rows)))),
            cls="source",
            tabindex="0",
            role="region",
            aria_label=f"source of {shown.file}",
        ),
    )


def _calls(steps: Sequence[Any], link: Callable[[int], str]) -> Markup:
    """Return links to the steps of a line, neighbours joined (``1-4, 7``), and their time."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step.number == spans[-1][1] + 1:
            spans[-1][1] = step.number
        else:
            spans.append([step.number, step.number])
    links = [tag("a", f"{a}" if a == b else f"{a}-{b}", href=link(a)) for a, b in spans[:8]]
    if len(spans) > 8:
        links.append(markup("…"))
    took = [step.duration for step in steps if step.duration is not None]
    told = f"{len(took)} in " if len(took) > 1 else ""
    times = tag("span", f"{told}{duration_text(sum(took))}", cls="soft") if took else None
    return markup(Markup(", ".join(links)), " " if took else None, times)


def failed_frames(step: Any) -> Markup:
    """Return the local variables of each failed attempt of a step, if they are recorded."""
    if step.attempts < 2 and step.status != "failed":
        return Markup()
    try:
        found = step.failures
    except UnreadableValueError as error:
        return tag("p", str(error))
    last = max(found, default=0)
    return markup(
        (tag("small", f"attempt {attempt}") if last > 1 else None, frames(each))
        for attempt, each in found.items()
    )


def frames(found: Sequence[Any]) -> Markup:
    """Return the frames of a failure with their local variables, outermost first."""
    return markup(
        tag(
            "details",
            tag("summary", tag("code", f"{each.file}:{each.line}"), f" in {each.function}"),
            block(each.code) if each.code else None,
            variables({name: block(text) for name, text in each.variables.items()}),
            open=each is found[-1],
        )
        for each in found
    )


def variables(values: Mapping[str, Content], marks: Mapping[str, str] | None = None) -> Markup:
    """Return a table of variables.

    Args:
        values: the values, by name.
        marks: a word for each variable that changed, by name.
    """
    marks = marks or {}
    rows = [
        [
            markup(tag("code", name), (" ", tag("ins", marks[name])) if name in marks else None),
            value,
        ]
        for name, value in values.items()
    ]
    return table(["variable", "value"], rows, cls="cards plain-values") if rows else Markup()


def _checkpoint(shown: CheckpointShown) -> Markup:
    content = variables({name: block(text) for name, text in shown.variables.items()})
    content = content or tag("p", shown.note or "none", cls="soft")
    return tag("details", tag("summary", shown.title), content, cls="checkpoint")
