"""Runs, their steps and open questions as text, and as HTML for notebooks.

Recorded values may be anything (HTML, ANSI codes, ten megabytes), so they are shortened, made
printable, and escaped.

The HTML needs no outside resources.  It follows the theme of Jupyter or VS Code, and elsewhere the
theme of the browser.  The style names the class twice, to outrank Jupyter's rules for every table.
The timeline fills the page's width: positions are percentages.  It has no inline styles, since the
page's policy refuses them.

Everything that a person is asked to approve is shown, however long it is.  Buttons need ipywidgets;
without it, the commands that answer are shown.
"""

from __future__ import annotations

import bisect
import heapq
import html
import importlib.util
import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from stepwise._display.terminal import Column, Terminal, duration_text, line_of, one_line, when
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import printable, publisher, shell_word
from stepwise.errors import StepwiseError

# -- markup ---------------------------------------------------------------------------------------


_LONG = 20_000  # characters of one text that are shown


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = Union[str, None, Iterable["Content"]]


def markup(*parts: Content) -> Markup:
    """Join texts and markup; texts are escaped, and huge texts lose their middle."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Markup):
            found.append(part)
        elif isinstance(part, str):
            found.append(html.escape(printable(part, _LONG)))
        elif part is not None:
            found.append(markup(*part))
    return Markup("".join(found))


def tag(name: str, *parts: Content, **attributes: object) -> Markup:
    """Return an element with its content.

    Args:
        name: the name of the element.
        parts: its content.
        attributes: ``cls`` is the attribute ``class``.  ``None`` leaves an attribute out, and
            ``True`` gives one without a value.
    """
    given = {"class" if key == "cls" else key: value for key, value in attributes.items()}
    text = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(printable(str(value), _LONG))}"'
        for key, value in given.items()
        if value is not None
    )
    return Markup(f"<{name}{text}>{markup(*parts)}</{name}>")


# -- timeline -------------------------------------------------------------------------------------


_GAP = 4.0  # percent: the maximum for a pause
_THIN = 0.4  # percent: the minimum for a step; a shorter pause is not drawn
_LANE, _THINNEST = 22, 5  # pixels
_HIGH = 528  # pixels that many lanes share
_LETTER = 0.85  # percent of the width for a letter of a label, about
_APART = 20.0  # percent between two labels


class Pause(NamedTuple):
    """A time in which no step ran.

    Args:
        left, width: the place of the pause, in percent.
        seconds: its real length.
        down: no process executed the run for a part of the pause.
    """

    left: float
    width: float
    seconds: float
    down: bool


class _Axis:
    """Mapping of moments to percentages, in which pauses between steps are cut short.

    Args:
        spans: start and end of each step, in seconds since 1970.
        resumes: when the run was resumed.
    """

    def __init__(self, spans: Iterable[tuple[float, float]], resumes: Sequence[float]) -> None:
        busy: list[list[float]] = []
        for start, end in sorted([*spans, *((at, at) for at in resumes)]):
            if busy and start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([start, end])
        total = sum(end - start for start, end in busy)
        most = _GAP / 100 * (total or 1.0)
        self._pieces: list[tuple[float, float]] = []  # start, offset
        pauses: list[tuple[float, float, float, bool]] = []
        offset = 0.0
        for (_, before), (start, end) in itertools.pairwise([[0.0, busy[0][0]], *busy]):
            seconds, down = start - before, start in resumes
            width = min(seconds, most)
            if down and pauses and pauses[-1][3] and pauses[-1][0] + pauses[-1][1] == offset:
                first, _, lost, _ = pauses.pop()  # resumed, and killed before any step
                pauses.append((first, offset - first + width, seconds + lost, True))
            elif seconds:
                pauses.append((offset, width, seconds, down))
            offset += width
            self._pieces.append((start, offset))
            offset += end - start
        self._scale = 100 / (offset or 1.0)
        self.pauses = [
            Pause(left * self._scale, width * self._scale, seconds, down)
            for left, width, seconds, down in pauses
            if down or width * self._scale >= _THIN
        ]

    def at(self, moment: float) -> float:
        """Return the place of a moment of a step, in percent."""
        start, offset = self._pieces[bisect.bisect(self._pieces, (moment, math.inf)) - 1]
        return (offset + (moment - start)) * self._scale


def placed(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the offset and the length of each span, in percent."""
    axis = _Axis(spans, ()) if spans else None
    return [(axis.at(start), axis.at(end) - axis.at(start)) for start, end in spans if axis]


def _lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a lane for each span, so that spans in one lane do not overlap."""
    busy: list[tuple[float, int]] = []  # when each lane becomes free
    free: list[int] = []
    found: dict[int, int] = {}
    for number, (start, end) in sorted(enumerate(spans), key=lambda pair: pair[1]):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        found[number] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, found[number]))
    return [found[number] for number in range(len(spans))]


def timeline(
    steps: Sequence[Any], now: float | None, resumes: Sequence[float], prefix: str = ""
) -> Markup:
    """Draw the steps of a run; each step links to its entry.

    Args:
        steps: the steps.
        now: the end of unfinished steps; ``None`` if the run is not being executed, so that the
            length of such steps is unknown.
        resumes: when the run was resumed.
        prefix: the prefix of the entries' ids.
    """
    if not steps:
        return Markup()
    first = min(step.started_at for step in steps)
    resumes = [at for at in resumes if at >= first]
    spans = [_span(step, now, resumes) for step in steps]
    axis, lanes = _Axis(spans, resumes), _lanes(spans)
    each = min(_LANE, max(_THINNEST, _HIGH // (max(lanes) + 1)))
    most = _HIGH // each
    height = each * min(max(lanes) + 1, most)
    bars = [
        _bar(step, axis.at(start), axis.at(end), (lane % most * each, each), prefix)
        for step, (start, end), lane in zip(steps, spans, lanes, strict=True)
    ]
    return tag(
        "svg",
        [_pause(pause, height) for pause in axis.pauses],
        _labels(axis.pauses, height),
        bars,
        cls="timeline",
        width="100%",
        height=height + 20,
        role="group",
        **{"aria-label": f"timeline of {len(steps)} steps"},
    )


def _span(step: Any, now: float | None, resumes: Sequence[float]) -> tuple[float, float]:
    """Return when a step began and ended; for a repeated step, its last beginning."""
    start = float(step.started_at)
    if step.finished_at is None:
        return start, start if now is None else max(start, now)
    end = start + (step.duration or 0.0)
    return max([start, *(at for at in resumes if start < at < end)]), end


def _bar(step: Any, left: float, right: float, lane: tuple[int, int], prefix: str) -> Markup:
    top, height = lane[0], lane[1] - max(1, lane[1] // 5)
    width = max(right - left, _THIN)
    left = min(left, 100 - width)
    took = duration_text(step.duration) or "unfinished"
    tries = f", {step.attempts} tries" if step.attempts > 1 else ""
    label = step.name.rpartition(".")[2]
    room = int(width / _LETTER)
    return tag(
        "a",
        tag(
            "svg",
            tag("title", f"{step.number} {step.name}: {step.status}, {took}{tries}"),
            tag("rect", width="100%", height=height),
            tag("text", label, x=4, y=13) if room >= len(label) and lane[1] == _LANE else None,
            x=f"{left:.2f}%",
            y=top,
            width=f"{width:.2f}%",
            height=height,
            cls=step.status,
        ),
        href=f"#{prefix}s{step.number}",
    )


def _told(pause: Pause) -> str:
    return f"{'down' if pause.down else 'no step'} for {duration_text(pause.seconds)}"


def _pause(pause: Pause, height: int) -> Markup:
    return tag(
        "rect",
        tag("title", _told(pause)),
        x=f"{pause.left:.2f}%",
        width=f"{pause.width:.2f}%",
        height=height,
        cls="down" if pause.down else "idle",
    )


def _labels(pauses: Iterable[Pause], height: int) -> list[Markup]:
    """Return the labels of the times in which the run was down, where there is room."""
    found, last = list[Markup](), -_APART
    for pause in pauses:
        middle = pause.left + pause.width / 2
        if pause.down and middle - last >= _APART:
            last = middle
            anchor = "start" if middle < _APART / 2 else "end" if middle > 100 - _APART / 2 else ""
            where = {"text-anchor": anchor or "middle"}
            found.append(tag("text", _told(pause), x=f"{middle:.2f}%", y=height + 14, **where))
    return found


# -- render ---------------------------------------------------------------------------------------


_UNFOLDED = 20_000  # characters shown when unfolded


@dataclass(frozen=True)
class RunShown:
    """The fields of a run that displays show.

    Args:
        call: ``label(arguments)``.
        resumed_from: steps that were done where the last attempt resumed; ``None`` for the first
            attempt.
        begun: number of the record that began the last attempt; the attempt skipped older steps.
        error: the exception of a failed run, or the reason of an interruption.
        steps: the newest steps; ``total`` counts all, ``statuses`` by status.
        saved: seconds taken by the steps that the last attempt skipped.
        lost: seconds between attempts.
        unreadable: how many records of the run do not verify.
        waits: what a suspended run waits for, in words.
        spent: the costs of the run, in words.
    """

    id: str
    call: str
    status: str
    workflow: str = ""
    owner: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    steps: Sequence[Any] = ()
    resumed_from: int | None = None
    executed: int = 0
    skipped: int = 0
    begun: int = 0
    error: str = ""
    total: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict)
    saved: float = 0.0
    lost: float = 0.0
    unreadable: int = 0
    waits: Sequence[str] = ()
    spent: str = ""

    @property
    def earlier(self) -> int:
        """Number of steps before the shown ones."""
        return self.total - len(self.steps)

    @property
    def counts(self) -> str:
        """Number of steps of each status, in words."""
        told = [f"{n:,} {status.replace('_', ' ')}" for status, n in sorted(self.statuses.items())]
        if len(told) < 2:
            return "".join(told) or "none"
        return f"{self.total:,} ({', '.join(told)})"

    @property
    def attempt(self) -> str:
        """A sentence about the last attempt; empty if there was only one."""
        if self.resumed_from is None:
            return ""
        told = f"{self.executed:,} executed, {self.skipped:,} skipped"
        return f"{told}, which saved {duration_text(self.saved)}" if self.saved else told

    @property
    def gaps(self) -> str:
        """A sentence about the time lost between attempts; empty if none was."""
        if not self.lost:
            return ""
        return f"{duration_text(self.lost)} from the last record of an attempt to the next attempt"

    @property
    def damage(self) -> str:
        """A sentence about unreadable records; empty if there are none."""
        if not self.unreadable:
            return ""
        noun = "record" if self.unreadable == 1 else "records"
        return f"{self.unreadable:,} {noun} cannot be read: stepwise verify {shell_word(self.id)}"


def _did(step: Any, run: RunShown) -> str:
    """Return the status of a step; ``skipped`` if it was done before the last attempt began."""
    if step.status == "completed" and run.begun and step._entry.number < run.begun:
        return "skipped"
    return str(step.status)


# -- HTML ----------------------------------------------------------------------------------------

_STYLE = """
.stepwise{--sw-text:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1f2328));
--sw-soft:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#59636e));
--sw-line:var(--jp-border-color2,var(--vscode-panel-border,#d1d9e0));
--sw-code:var(--jp-content-font-color0,var(--sw-text));--sw-panel:rgba(127,127,127,.1);
--sw-good:#1a7f37;--sw-bad:#d1242f;--sw-doubt:#9a6700;--sw-now:#0969da;
color:var(--sw-text);overflow-wrap:anywhere;
font:13px/1.5 system-ui,sans-serif;max-width:100%;overflow-x:auto;container-type:inline-size}
@media (prefers-color-scheme:dark){.stepwise{
--sw-text:var(--jp-content-font-color1,var(--vscode-editor-foreground,#e6edf3));
--sw-soft:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#9198a1));
--sw-line:var(--jp-border-color2,var(--vscode-panel-border,#3d444d));
--sw-good:#3fb950;--sw-bad:#f85149;--sw-doubt:#d29922;--sw-now:#4493f8}}
body[data-jp-theme-light=false] .stepwise,body.vscode-dark .stepwise{
--sw-good:#3fb950;--sw-bad:#f85149;--sw-doubt:#d29922;--sw-now:#4493f8}
body[data-jp-theme-light=true] .stepwise,body.vscode-light .stepwise{
--sw-good:#1a7f37;--sw-bad:#d1242f;--sw-doubt:#9a6700;--sw-now:#0969da}
.stepwise.stepwise code,.stepwise.stepwise pre{font:12px/1.5 ui-monospace,monospace;
color:var(--sw-code);background:none;padding:0}
.stepwise.stepwise small{color:var(--sw-soft);font-size:12px}
.stepwise .sw-completed{color:var(--sw-good)}
.stepwise .sw-failed,.stepwise .sw-crashed,.stepwise .sw-stuck{color:var(--sw-bad)}
.stepwise .sw-in_doubt,.stepwise .sw-cancelled,.stepwise .sw-compensated,
.stepwise .sw-interrupted,.stepwise .sw-stopped{color:var(--sw-doubt)}
.stepwise .sw-suspended,.stepwise .sw-waiting,
.stepwise .sw-running,.stepwise .sw-started,.stepwise .sw-ready{color:var(--sw-now)}
.stepwise .sw-skipped{color:var(--sw-soft)}
.stepwise .sw-late{opacity:0;animation:stepwise-late 1s 5s forwards}
@keyframes stepwise-late{to{opacity:1}}
"""
_TABLES = """
.stepwise.stepwise table{border-collapse:collapse;width:100%;margin:.4em 0;font:inherit;
color:inherit;table-layout:auto}
.stepwise.stepwise tr{background:none}
.stepwise.stepwise th,.stepwise.stepwise td{text-align:left;vertical-align:top;
padding:.2em .8em .2em 0;font-size:inherit;line-height:inherit;
border:0;border-bottom:1px solid var(--sw-line);background:none;white-space:nowrap}
.stepwise.stepwise th{color:var(--sw-soft);font-weight:500}
.stepwise.stepwise td.sw-wide{white-space:normal;width:50%;overflow-wrap:anywhere}
.stepwise.stepwise td.sw-when{min-width:9em;width:25%}
@container (max-width:36em){.stepwise.stepwise .sw-when,.stepwise.stepwise .sw-less{display:none}
.stepwise.stepwise td.sw-wide{width:90%}}
.stepwise.stepwise pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 .4em;
padding:.3em .5em;max-height:24em;overflow:auto;background:var(--sw-panel);border-radius:4px}
.stepwise.stepwise details{margin:0}
.stepwise.stepwise summary{cursor:pointer;margin:0}
.stepwise .sw-track{display:block;position:relative;height:.7em;margin-top:.4em}
.stepwise .sw-track i{position:absolute;top:0;bottom:0;min-width:3px;border-radius:2px;
background:currentColor}
.stepwise .sw-track.sw-skipped i{opacity:.5}
"""


def _escaped(text: str, limit: int = _UNFOLDED) -> str:
    return html.escape(printable(text, limit))


def _status(status: str) -> str:
    name = html.escape(status)
    return f'<span class="sw-{name}">● {name.replace("_", " ")}</span>'


def framed(*parts: str, tables: bool = True) -> str:
    """Return HTML with the style of all displays; small displays leave out the style of tables."""
    text, style = "".join(parts), _STYLE + _TABLES * tables
    return f'<div class="stepwise"><style>{style}</style>{printable(text, len(text))}</div>'


def run_html(run: RunShown) -> str:
    """Return the HTML of a run with the timeline of its steps."""
    owner = f" <small>{_escaped(run.owner)}</small>" if run.owner else ""
    parts = [
        f"<div><b>{html.escape(one_line(run.call, 200))}</b> {_status(run.status)}{owner}</div>",
        f"<small>run <code>{_escaped(run.id)}</code> of {_escaped(run.workflow)}, ",
        f"begun {when(run.created_at)}, updated {when(run.updated_at)}; ",
        f"steps: {run.counts}</small>",
    ]
    waits = "; ".join(run.waits)
    told = {"waits": waits, "last attempt": run.attempt, "spent": run.spent}
    told |= {"lost": run.gaps, "damage": run.damage}
    parts += [f"<div><small>{k}: {_escaped(v)}</small></div>" for k, v in told.items() if v]
    if run.error:
        parts.append(f"<pre>{_escaped(run.error)}</pre>")
    if run.steps:
        parts.append(_steps_table(run))
    return framed(*parts)


def _steps_table(run: RunShown) -> str:
    steps = run.steps
    now = time.time() if run.status == "running" else run.updated_at
    bars = placed([(s.started_at, s.started_at + _length(s, now)) for s in steps])
    rows = []
    for step, (left, width) in zip(steps, bars, strict=True):
        did = _did(step, run)
        rows.append(
            f'<tr><td>{step.number}</td><td class="sw-wide">{_unfolding(step)}</td>'
            f'<td>{_status(did)}</td><td class="sw-when"><span class="sw-track sw-{did}">'
            f'<i style="left:{left:.2f}%;width:{width:.2f}%"></i></span></td>'
            f"<td>{duration_text(step.duration)}</td></tr>"
        )
    if run.earlier:
        told = f"{run.earlier:,} earlier steps"
        rows.insert(0, f'<tr><td>…</td><td colspan="4"><small>{told}</small></td></tr>')
    timeline = '<th class="sw-when">timeline</th>'
    head = f"<tr><th>step</th><th>call</th><th>status</th>{timeline}<th>time</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _length(step: Any, now: float) -> float:
    """Return the seconds of a step in the timeline; 0 for a step that a person settled."""
    if step.duration is None and step.finished_at is None:
        return max(0.0, now - float(step.started_at))
    return step.duration or 0.0


def usage_text(usage: Mapping[str, Any]) -> str:
    """Return model, tokens and price of a request, as ``gpt-4o, 5 + 7 tokens, $0.0001``."""
    tokens = [f"{usage[name]:,}" for name in ("input_tokens", "output_tokens") if name in usage]
    told = [
        str(usage.get("model", "")),
        f"{' + '.join(tokens)} tokens" if tokens else "",
        f"${usage['cost_usd']:.4g}" if "cost_usd" in usage else "",
    ]
    return ", ".join(filter(None, told))


def _unfolding(step: Any) -> str:
    """Return the HTML of a call whose arguments and result can be unfolded."""
    called = f"{step.name}({step.arguments})"
    parts = [f"<small>arguments</small><pre>{_escaped(step.arguments) or '(none)'}</pre>"]
    if step.preview:
        parts.append(f"<small>result</small><pre>{_escaped(step.preview)}</pre>")
    if step.traceback:
        parts.append(f"<small>traceback</small><pre>{_escaped(step.traceback)}</pre>")
    told = [
        f"from {step.site}" if step.site else "",
        f"attempt {step.attempts}" if step.attempts > 1 else "",
        f"idempotency key {step.idempotency_key}" if step.side_effect else "",
        f"child run {step.child}" if step.child else "",
        usage_text(step.usage),
        f"begun {when(step.started_at)}",
    ]
    parts.append(f"<small>{_escaped(' · '.join(filter(None, told)))}</small>")
    return (
        f"<details><summary><code>{html.escape(one_line(called, 90))}</code></summary>"
        f"{''.join(parts)}</details>"
    )


def runs_html(runs: Iterable[RunShown], more: int = 0) -> str:
    """Return the HTML of a list of runs, one row each."""
    rows = "".join(
        f"<tr><td><code>{_escaped(each.id)}</code></td><td>{_status(each.status)}</td>"
        f'<td class="sw-less">{when(each.updated_at)}</td>'
        f'<td class="sw-wide"><code>{html.escape(one_line(each.call, 90))}</code></td></tr>'
        for each in runs
    )
    if not rows:
        return framed("<small>no runs</small>")
    updated = '<th class="sw-less">updated</th>'
    head = f"<tr><th>run</th><th>status</th>{updated}<th>call</th></tr>"
    rest = f"<small>and {more} more</small>" if more else ""
    return framed(f"<table>{head}{rows}</table>{rest}")


def step_html(step: Any) -> str:
    """Return the HTML of one step, with its arguments and result."""
    return framed(
        f"<div>{_status(step.status)} <small>step {step.number}, "
        f"{duration_text(step.duration) or 'unfinished'}</small></div>{_unfolding(step)}"
    )


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return the HTML of a few facts under a title; each fact can be unfolded."""
    rows = "".join(
        f"<details><summary>{_escaped(name)}: <code>{html.escape(one_line(text, 90))}</code>"
        f"</summary><pre>{_escaped(text)}</pre></details>"
        for name, text in facts.items()
    )
    return framed(f"<div><b>{html.escape(one_line(title, 200))}</b></div>{rows}")


# -- text -----------------------------------------------------------------------------------------


_RUNS = [Column("RUN"), Column("STATUS", whole=True), Column("UPDATED", whole=True), Column("CALL")]
_STEPS = [
    Column("STEP", right=True),
    Column("CALL"),
    Column("STATUS", whole=True),
    Column("TIME", whole=True),
    Column("RESULT"),
]


def _terminal() -> Terminal:
    return Terminal(shutil.get_terminal_size((120, 24)).columns)


def run_text(run: RunShown) -> str:
    """Return a run and its steps as lines of text."""
    attempt, spent = (
        run.attempt and f"last attempt: {run.attempt}",
        run.spent and f"spent {run.spent}",
    )
    told = "; ".join(filter(None, (attempt, spent, run.gaps)))
    lines = [
        f"{line_of(run.call, 200)}: {run.status}{f', {run.owner}' if run.owner else ''}",
        f"  run {run.id}, begun {when(run.created_at)}; steps: {run.counts}",
        *([f"  {told}"] if told else []),
    ]
    lines += [f"  waits {line_of(each, 200)}" for each in run.waits]
    if run.error:
        what = "stopped by" if run.status == "interrupted" else "error"
        lines.append(f"  {what} {line_of(run.error, 200)}")
    if run.damage:
        lines.append(f"  {run.damage}")
    rows = [
        [
            each.number,
            f"{each.name}({each.arguments})",
            _did(each, run),
            duration_text(each.duration),
            each.preview,
        ]
        for each in run.steps
    ]
    if run.earlier and rows:
        rows.insert(0, ["...", f"{run.earlier:,} earlier steps", "", "", ""])
    return "\n".join([*lines, *_terminal().table(_STEPS, rows)])


def runs_text(runs: Iterable[RunShown], more: int = 0) -> str:
    """Return a list of runs, one line each."""
    rows = [[each.id, each.status, when(each.updated_at), each.call] for each in runs]
    if not rows:
        return "no runs"
    lines = _terminal().table(_RUNS, rows)
    return "\n".join([*lines, f"and {more} more"] if more else lines)


# -- asked ----------------------------------------------------------------------------------------


_VIEW = "application/vnd.jupyter.widget-view+json"


def question_text(question: Any) -> str:
    """Return a question (:class:`stepwise.Question`) in lines, with the commands that answer it."""
    return "\n".join(
        [
            f"step {question.step} asks since {when(question.asked_at)}: {_whole(question.text)}",
            *(f"    {line}" for line in _whole(question.details).splitlines()),
            *(f"  to be signed by {_whole(each)}" for each in question.approvers),
            *(f"  {command}" for command in _commands(question)),
        ]
    )


def _whole(text: str) -> str:
    return printable(text, len(text))


def _commands(question: Any) -> list[str]:
    step = f"{shell_word(question.run_id)} {question.step} {question.ticket}"
    step += " --key FILE" * bool(question.approvers)
    return [f"stepwise approve {step} [--note TEXT]", f"stepwise deny {step} --reason TEXT"]


def questions_html(questions: Iterable[Any], *, commands: bool = True) -> str:
    """Return questions as HTML, with the commands that answer them unless these are left out."""
    return framed(*(_question_html(each, commands=commands) for each in questions))


def _question_html(question: Any, *, commands: bool) -> str:
    parts = [
        f"<div><b>step {question.step} asks: {html.escape(_whole(question.text))}</b></div>",
        f"<pre>{html.escape(_whole(question.details))}</pre>" if question.details else "",
    ]
    parts += [
        f"<div>to be signed by <code>{html.escape(_whole(each))}</code></div>"
        for each in question.approvers
    ]
    if commands:
        lines = "".join(
            f"<div><code>{html.escape(each)}</code></div>" for each in _commands(question)
        )
        parts.append(f"<small>{lines}</small>")
    return "".join(parts)


# -- buttons -------------------------------------------------------------------------------------


def buttons(around: str, questions: Sequence[Any]) -> dict[str, Any]:
    """Return a notebook output with buttons that answer questions; empty without ipywidgets.

    Args:
        around: HTML that is shown above the questions.
        questions: the questions.
    """
    if not questions or publisher() is None or importlib.util.find_spec("ipywidgets") is None:
        return {}
    import ipywidgets

    rows = [_row(ipywidgets, each) for each in questions]
    shown = ipywidgets.VBox([*([ipywidgets.HTML(around)] if around else []), *rows])
    view: Any = shown._repr_mimebundle_()
    return {_VIEW: view[_VIEW]} if _VIEW in view else {}


def _row(ipywidgets: Any, question: Any) -> Any:
    """Return the widgets of one question: the question, a line for a note, two buttons."""
    asked = ipywidgets.HTML(questions_html([question], commands=False))
    note = ipywidgets.Text(placeholder="a note; to deny, the reason")
    yes = ipywidgets.Button(description="Approve", button_style="success")
    no = ipywidgets.Button(description="Deny", button_style="danger")
    said = ipywidgets.HTML()

    def answers(answer: Callable[[str], None], done: str) -> Callable[[Any], None]:
        def click(_: Any) -> None:
            try:
                answer(note.value)
            except StepwiseError as error:
                said.value = html.escape(str(error))
                return
            yes.disabled = no.disabled = note.disabled = True
            said.value = done

        return click

    yes.on_click(answers(question.approve, "approved"))
    no.on_click(answers(question.deny, "denied"))
    return ipywidgets.VBox([asked, ipywidgets.HBox([note, yes, no, said])])
