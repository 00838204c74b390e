"""Runs, their steps and checkpoints, as HTML for notebooks.

What is recorded may be anything (HTML, ANSI codes, ten megabytes): it is shortened, made of
printable characters, and escaped.  The HTML needs nothing from outside, follows the theme of
Jupyter or VS Code, and that of the browser elsewhere.  The class is named twice in the style, so
that it weighs more than what Jupyter says of every table.
"""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwise._runtime.messages import printable, shell_word

__all__ = [
    "RunShown",
    "duration_text",
    "facts_html",
    "framed",
    "printable",
    "run_html",
    "runs_html",
    "shell_word",
    "step_html",
    "usage_text",
]

_SHORT, _LONG = 60, 20_000  # characters in a row of a table, and unfolded
_GAP = 0.03  # largest share of a timeline that a gap between steps takes


@dataclass(frozen=True)
class RunShown:
    """The fields of a run that displays show.

    Args:
        call: ``label(arguments)``.
        resumed_from: steps that were done where the last attempt went on; ``None`` for the first.
        begun: number of the record that began the last attempt; what is older was skipped by it.
        error: what a failed run raised, or what interrupted it.
        steps: the newest ones, of as many as there are (``total``, by status).
        saved: seconds that the steps took that the last attempt did not execute.
        lost: seconds between its attempts.
        unreadable: how many of its records do not verify.
        waits: what a suspended run waits for, in words.
        spent: what it has spent, in words.
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
        """Return the number of steps before the shown ones."""
        return self.total - len(self.steps)

    @property
    def counts(self) -> str:
        """Return the number of steps of each status, in words."""
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


def _line(text: str, limit: int = _SHORT) -> str:
    """One line of it, for a row of a table."""
    shown = printable(" ".join(text[: 4 * limit].split()), 4 * limit)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration_text(seconds: float | None) -> str:
    """Some seconds, in words."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes / 60:.1f} h"


def _did(step: Any, run: RunShown) -> str:
    """Its status; ``skipped`` if it was done before the last attempt began."""
    if step.status == "completed" and run.begun and step._entry.number < run.begun:
        return "skipped"
    return str(step.status)


# -- HTML ----------------------------------------------------------------------------------------

_STYLE = """<style>
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
.stepwise.stepwise code,.stepwise.stepwise pre{font:12px/1.5 ui-monospace,monospace;
color:var(--sw-code);background:none;padding:0}
.stepwise.stepwise pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 .4em;
padding:.3em .5em;max-height:24em;overflow:auto;background:var(--sw-panel);border-radius:4px}
.stepwise.stepwise details{margin:0}
.stepwise.stepwise summary{cursor:pointer;margin:0}
.stepwise.stepwise small{color:var(--sw-soft);font-size:12px}
.stepwise .sw-track{display:block;position:relative;height:.7em;margin-top:.4em}
.stepwise .sw-track i{position:absolute;top:0;bottom:0;min-width:3px;border-radius:2px;
background:currentColor}
.stepwise .sw-completed{color:var(--sw-good)}
.stepwise .sw-failed,.stepwise .sw-crashed{color:var(--sw-bad)}
.stepwise .sw-in_doubt,.stepwise .sw-cancelled,.stepwise .sw-compensated,
.stepwise .sw-interrupted{color:var(--sw-doubt)}
.stepwise .sw-suspended,.stepwise .sw-waiting,
.stepwise .sw-running,.stepwise .sw-started,.stepwise .sw-ready{color:var(--sw-now)}
.stepwise .sw-skipped{color:var(--sw-soft)}
.stepwise .sw-track.sw-skipped i{opacity:.5}
</style>"""


def _escaped(text: str, limit: int = _LONG) -> str:
    return html.escape(printable(text, limit))


def _status(status: str) -> str:
    name = html.escape(status)
    return f'<span class="sw-{name}">● {name.replace("_", " ")}</span>'


def framed(*parts: str) -> str:
    """Return HTML with the style of all displays."""
    return f'<div class="stepwise">{_STYLE}{"".join(parts)}</div>'


def run_html(run: RunShown) -> str:
    """A run with the timeline of its steps."""
    owner = f" <small>{_escaped(run.owner)}</small>" if run.owner else ""
    parts = [
        f"<div><b>{html.escape(_line(run.call, 200))}</b> {_status(run.status)}{owner}</div>",
        f"<small>run <code>{_escaped(run.id)}</code> of {_escaped(run.workflow)}, ",
        f"begun {_when(run.created_at)}, updated {_when(run.updated_at)}; ",
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
    bars = _timeline([(s.started_at, s.started_at + _length(s, now)) for s in steps])
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
    """The seconds that a step takes in the timeline; none if somebody settled it."""
    if step.duration is None and step.finished_at is None:
        return max(0.0, now - float(step.started_at))
    return step.duration or 0.0


def _timeline(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return offset and length of each span, in percent; gaps between spans are shortened."""
    busy: list[list[float]] = []  # merged spans, each with the time cut out before it
    for start, end in sorted(spans):
        if busy and start <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], end)
        else:
            busy.append([start, end, 0.0])
    most = _GAP * (sum(end - start for start, end, _ in busy) or 1.0)
    for before, each in itertools.pairwise(busy):
        each[2] = before[2] + max(0.0, each[0] - before[1] - most)
    if not busy:
        return []
    zero, total = busy[0][0], (busy[-1][1] - busy[-1][2] - busy[0][0]) or 1.0
    placed = []
    for start, end in spans:
        cut = next(gone for first, last, gone in busy if first <= start <= last)
        placed.append((100 * (start - cut - zero) / total, 100 * (end - start) / total))
    return placed


def usage_text(usage: Mapping[str, Any]) -> str:
    """The model of a request, its tokens and its price: ``gpt-4o, 5 + 7 tokens, $0.0001``."""
    tokens = [f"{usage[name]:,}" for name in ("input_tokens", "output_tokens") if name in usage]
    told = [
        str(usage.get("model", "")),
        f"{' + '.join(tokens)} tokens" if tokens else "",
        f"${usage['cost_usd']:.4g}" if "cost_usd" in usage else "",
    ]
    return ", ".join(filter(None, told))


def _unfolding(step: Any) -> str:
    """Render a call whose arguments and result can be unfolded."""
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
        f"begun {_when(step.started_at)}",
    ]
    parts.append(f"<small>{_escaped(' · '.join(filter(None, told)))}</small>")
    return (
        f"<details><summary><code>{html.escape(_line(called, 90))}</code></summary>"
        f"{''.join(parts)}</details>"
    )


def runs_html(runs: Iterable[RunShown], more: int = 0) -> str:
    """Runs, one a row."""
    rows = "".join(
        f"<tr><td><code>{_escaped(each.id)}</code></td><td>{_status(each.status)}</td>"
        f'<td class="sw-less">{_when(each.updated_at)}</td>'
        f'<td class="sw-wide"><code>{html.escape(_line(each.call, 90))}</code></td></tr>'
        for each in runs
    )
    if not rows:
        return framed("<small>no runs</small>")
    updated = '<th class="sw-less">updated</th>'
    head = f"<tr><th>run</th><th>status</th>{updated}<th>call</th></tr>"
    rest = f"<small>and {more} more</small>" if more else ""
    return framed(f"<table>{head}{rows}</table>{rest}")


def step_html(step: Any) -> str:
    """One step, with its arguments and result."""
    return framed(
        f"<div>{_status(step.status)} <small>step {step.number}, "
        f"{duration_text(step.duration) or 'unfinished'}</small></div>{_unfolding(step)}"
    )


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """A few facts under a title; each can be unfolded."""
    rows = "".join(
        f"<details><summary>{_escaped(name)}: <code>{html.escape(_line(text, 90))}</code>"
        f"</summary><pre>{_escaped(text)}</pre></details>"
        for name, text in facts.items()
    )
    return framed(f"<div><b>{html.escape(_line(title, 200))}</b></div>{rows}")
