"""Runs, their steps, why they stand, and open questions, as text and as HTML for notebooks.

The HTML needs no outside resources.  It follows the theme of Jupyter or VS Code, and elsewhere the
theme of the browser.  The style names the class twice, to outrank Jupyter's rules for every table.

Everything that a person is asked to approve is shown, however long it is.  Buttons need ipywidgets;
without it, the commands that answer are shown.
"""

from __future__ import annotations

import html
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwise._display.markup import Content, Markup, block, markup, sheet, tag, whole
from stepwise._display.terminal import Column, Terminal, Word, line_of, one_line
from stepwise._display.timeline import did, last_span, placed
from stepwise._display.words import (
    cached_text,
    counts_text,
    duration_text,
    result_text,
    took_text,
    when,
)
from stepwise._runtime.messages import count, printable, publisher, shell_word
from stepwise._values.preview import NO_SECRETS
from stepwise.errors import StepwiseError

# -- render ---------------------------------------------------------------------------------------


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
        told = counts_text(self.statuses) or "none"
        return f"{self.total:,} ({told})" if len(self.statuses) > 1 else told

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
        records = count(self.unreadable, "record")
        return f"{records} cannot be read: stepwise verify {shell_word(self.id)}"


# -- HTML ----------------------------------------------------------------------------------------


def framed(*parts: Content, tables: bool = True) -> str:
    """Return HTML with the style of all displays; small displays leave out the style of tables."""
    style = sheet("basis", "tables") if tables else sheet("basis")
    return tag("div", Markup(f"<style>{style}</style>"), *parts, cls="stepwise")


def status_of(status: str) -> Markup:
    """Return a status for notebooks, whose hosts may drop the style: its dot is text."""
    return tag("span", "● ", status.replace("_", " "), cls=f"badge marked {status}")


def run_html(run: RunShown) -> str:
    """Return the HTML of a run with the timeline of its steps."""
    told = {"waits": "; ".join(run.waits), "last attempt": run.attempt, "spent": run.spent}
    told |= {"lost": run.gaps, "damage": run.damage}
    return framed(
        tag(
            "div",
            tag("b", one_line(run.call, 200)),
            " ",
            status_of(run.status),
            (" ", tag("small", run.owner)) if run.owner else None,
        ),
        tag(
            "small",
            ("run ", tag("code", run.id), f" of {run.workflow}, begun {when(run.created_at)}"),
            f", updated {when(run.updated_at)}; steps: {run.counts}",
        ),
        [tag("div", tag("small", f"{name}: {text}")) for name, text in told.items() if text],
        tag("pre", run.error) if run.error else None,
        _steps_table(run) if run.steps else None,
    )


def _table(heads: Mapping[str, str], rows: Iterable[Iterable[Content]]) -> Markup:
    """Return a table; the heads have the classes of their columns."""
    classes = [kind or None for kind in heads.values()]
    lines = [tag("tr", [tag("th", name, cls=kind or None) for name, kind in heads.items()])]
    for row in rows:
        cells = zip(row, classes, strict=True)
        lines.append(tag("tr", [tag("td", cell, cls=kind or "plain") for cell, kind in cells]))
    return tag("table", lines)


def _steps_table(run: RunShown) -> Markup:
    steps = run.steps
    now = time.time() if run.status == "running" else run.updated_at
    bars = placed([last_span(s, now) for s in steps])
    rows: list[list[Content]] = []
    for step, (left, width) in zip(steps, bars, strict=True):
        status = did(step, run.begun)
        bar = tag("i", style=f"left:{left:.2f}%;width:{width:.2f}%")
        track = tag("span", bar, cls=f"track {status}")
        took = took_text(step)
        rows.append([f"{step.number}", _unfolding(step), status_of(status), track, took])
    if run.earlier:
        rows.insert(0, ["…", tag("small", f"{run.earlier:,} earlier steps"), "", "", ""])
    heads = {"step": "", "call": "wide", "status": "", "timeline": "when", "time": ""}
    return _table(heads, rows)


def usage_text(usage: Mapping[str, Any]) -> str:
    """Return model, tokens and price of a request, as ``gpt-4o, 5 + 7 tokens, $0.0001``.

    Input tokens that the provider's prompt cache held are named: ``1,200 (1,024 cached) + 7``.
    """
    tokens = [f"{usage[name]:,}" for name in ("input_tokens", "output_tokens") if name in usage]
    if tokens and usage.get("cached_input_tokens"):
        tokens[0] += f" ({usage['cached_input_tokens']:,} cached)"
    told = [
        str(usage.get("model", "")),
        f"{' + '.join(tokens)} tokens" if tokens else "",
        f"${usage['cost_usd']:.4g}" if "cost_usd" in usage else "",
    ]
    return ", ".join(filter(None, told))


def _unfolding(step: Any) -> Markup:
    """Return a call whose arguments and result can be unfolded."""
    shown = {
        "arguments": step.arguments or "(none)",
        "result": step.preview,
        "traceback": step.traceback,
    }
    told = [
        f"from {step.site}" if step.site else "",
        f"attempt {step.attempts}" if step.attempts > 1 else "",
        f"idempotency key {step.idempotency_key}" if step.side_effect else "",
        f"decided by {step.by}" if step.by else "",
        f"child run {step.child}" if step.child else "",
        usage_text(step.usage),
        cached_text(step),
        f"begun {when(step.started_at)}",
    ]
    return tag(
        "details",
        tag("summary", tag("code", one_line(f"{step.name}({step.arguments})", 90))),
        [(tag("small", name), tag("pre", text)) for name, text in shown.items() if text],
        tag("small", " · ".join(filter(None, told))),
    )


def runs_html(runs: Iterable[RunShown], more: int = 0) -> str:
    """Return the HTML of a list of runs, one row each."""
    rows = [
        (
            tag("code", each.id),
            status_of(each.status),
            when(each.updated_at),
            tag("code", one_line(each.call, 90)),
        )
        for each in runs
    ]
    if not rows:
        return framed(tag("small", "no runs"))
    heads = {"run": "", "status": "", "updated": "less", "call": "wide"}
    return framed(_table(heads, rows), tag("small", f"and {more} more") if more else None)


def step_html(step: Any) -> str:
    """Return the HTML of one step, with its arguments and result."""
    took = took_text(step) or "unfinished"
    about = tag("small", f"step {step.number}, {took}")
    return framed(tag("div", status_of(step.status), " ", about), _unfolding(step))


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return the HTML of a few facts under a title; each fact can be unfolded."""
    rows = [
        tag(
            "details",
            tag("summary", f"{name}: ", tag("code", one_line(text, 90))),
            tag("pre", text),
        )
        for name, text in facts.items()
    ]
    return framed(tag("div", tag("b", one_line(title, 200))), rows)


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
            did(each, run.begun),
            took_text(each),
            result_text(each),
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


_BRANCHES = [
    Column("RUN"),
    Column("VARIATION"),
    Column("STATUS", whole=True),
    Column("STEPS", right=True, whole=True),
    Column("COST", right=True, whole=True),
    Column("TIME", right=True, whole=True),
    Column("PARTED", wide=True),
    Column("RESULT"),
]


def _branch_cells(row: Mapping[str, Any]) -> list[str]:
    cost = f"${row['usd']:.4g}" if row["usd"] else "-"
    amounts = str(row["steps"]), cost, duration_text(row["seconds"])
    run = row["run"].removeprefix(row["base"])
    return [run, row["variation"], row["status"], *amounts, row["parted"], row["result"]]


def branches_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the branches of a run as lines of text, one for each."""
    bases = ", ".join(dict.fromkeys(row["base"] for row in rows))
    lines = _terminal().table(_BRANCHES, [*map(_branch_cells, rows)])
    return "\n".join([f"branches of {bases}:", *lines])


def branches_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the branches of a run as a table."""
    heads = {each.name.lower(): "wide" if each.name == "RESULT" else "" for each in _BRANCHES}
    found = [_branch_cells(row) for row in rows]
    cells = [[*cells[:2], status_of(cells[2]), *cells[3:]] for cells in found]
    return framed(_table(heads, cells))


_MEANS = [
    Column("VARIATION"),
    Column("SCORED", right=True, whole=True),
    Column("SCORE", right=True, whole=True),
    Column("STEPS", right=True, whole=True),
    Column("COST", right=True, whole=True),
    Column("TIME", right=True, whole=True),
]
_SCORED = [*_BRANCHES[:3], _MEANS[2], *_BRANCHES[3:6], _BRANCHES[-1]]
_ROWS = 100  # that an evaluation shows


def _amount_cells(row: Mapping[str, Any]) -> list[str]:
    """Return the score, the steps, the cost and the time of a row; ``-`` for what is not known."""
    score, steps, usd, seconds = (row[name] for name in ("score", "steps", "usd", "seconds"))
    return [
        f"{score:.4g}" if score is not None else "-",
        f"{steps:.4g}" if steps is not None else "-",
        f"${usd:.4g}" if usd else "-",
        duration_text(seconds) if seconds is not None else "-",
    ]


def _mean_cells(row: Mapping[str, Any]) -> list[str]:
    return [row["variation"], f"{row['scored']}/{row['rows']}", *_amount_cells(row)]


def _scored_cells(row: Mapping[str, Any]) -> list[str]:
    run = row["run"].removeprefix(row["base"]) or row["run"]
    told = row["error"] or row["result"]
    return [run, row["variation"], row["status"] or "-", *_amount_cells(row), told]


def evaluation_text(rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]) -> str:
    """Return an evaluation as lines of text: the means of each variation, and the first rows."""
    terminal, more = _terminal(), len(rows) - _ROWS
    lines = [
        "means over what has a score:",
        *terminal.table(_MEANS, [*map(_mean_cells, means)]),
        "",
        *terminal.table(_SCORED, [*map(_scored_cells, rows[:_ROWS])]),
    ]
    return "\n".join([*lines, f"and {count(more, 'more row')}"] if more > 0 else lines)


def evaluation_html(rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]) -> str:
    """Return an evaluation as two tables: the means of each variation, and the first rows."""
    heads = {each.name.lower(): "wide" if each.name == "RESULT" else "" for each in _SCORED}
    found = [_scored_cells(row) for row in rows[:_ROWS]]
    more = len(rows) - _ROWS
    return framed(
        _table({each.name.lower(): "" for each in _MEANS}, map(_mean_cells, means)),
        _table(heads, [[*cells[:2], status_of(cells[2]), *cells[3:]] for cells in found]),
        tag("small", f"and {count(more, 'more row')}") if more > 0 else None,
    )


# -- why a run stands where it stands --------------------------------------------------------------


_WHY_VARIABLES = 8
_WHY_CHANGES = 5
_WHY_STEPS = 5
_WHY_FRAMES = 4
_FRAME_VARIABLES = 5
_WHY_WIDTH = 120  # columns, unless the terminal is known
_VARIABLE_COLUMNS = [
    Column("VARIABLE"),
    Column("TYPE"),
    Column("SIZE", whole=True, right=True),
    Column("VALUE"),
]


def why_text(why: Any, terminal: Terminal | None = None) -> str:
    """Return why a run (:class:`stepwise.Why`) stands where it stands, as one screen."""
    return "\n".join(_why_lines(why, terminal or Terminal(_WHY_WIDTH)))


def _why_lines(why: Any, terminal: Terminal) -> Iterator[str]:
    width = terminal.width or 1000

    def line(text: str, indent: int = 0) -> str:
        return " " * indent + line_of(text, max(20, width - indent))

    yield terminal.line(line(why.call)[: width - 14], "  ", Word(why.status))
    yield line(_about(why), 2)
    yield ""
    yield printable(why.said, 2000)
    if why.error and why.error not in why.said:
        yield printable(why.error, 2000)
    yield from (line(f"because of {each}") for each in why.because)
    if why.result:
        yield line(f"result: {why.result}")
    if why.place is not None:
        yield from ("", line(f"{why.place.file}, in {why.place.function}"))
        yield from map(line, why.place.numbered.splitlines())
        if why.place.note:
            yield line(f"({why.place.note})")
    yield from _why_frames(why.frames, line)
    if why.status == "completed" and why.newest:
        yield from ("", line(f"the newest steps, of {sum(why.counts.values()):,}:"))
        yield from (line(step_text(each), 2) for each in why.newest[-_WHY_STEPS:])
    for child in why.children:
        yield from ("", line(f"child run {child.id}: {child.said}"))
        if child.place is not None and child.place.statement:
            yield line(f"{child.place.file}:{child.place.line}: {child.place.statement}", 2)
    yield from _why_variables(why, terminal, line)
    yield from (line(f"({each})") for each in why.notes)
    if why.commands:
        yield ""
        yield from (f"  {printable(each)}    ({line_of(what, 100)})" for each, what in why.commands)


def _about(why: Any) -> str:
    """Return the run's id, its times, and what it has done and spent."""
    parts = [
        f"run {why.id}",
        f"begun {when(why.created_at)}",
        f"last change {when(why.updated_at)}",
        f"steps: {counts_text(why.counts) or 'none'}",
        f"spent {why.spent}" if f"{why.spent}" else "",
        f"resumed {why.resumed} times" if why.resumed > 1 else "resumed once" * why.resumed,
    ]
    return ", ".join(filter(None, parts))


def _why_frames(frames: Sequence[Any], line: Any) -> Iterator[str]:
    if len(frames) < 2 and not any(each.variables for each in frames):
        return  # the source shows it
    yield ""
    for each in frames[-_WHY_FRAMES:]:
        yield line(f"{os.path.basename(each.file)}:{each.line}, in {each.function}: {each.code}", 2)
        for name, text in [*each.variables.items()][:_FRAME_VARIABLES]:
            yield line(f"{name} = {text}", 6)


def _why_variables(why: Any, terminal: Terminal, line: Any) -> Iterator[str]:
    if why.step is None:
        return
    kept = f"{count(why.kept, 'checkpoint')} kept"
    yield ""
    yield line(f"variables after step {why.step}, at {why.position} ({kept}):")
    shown = why.variables[:_WHY_VARIABLES]
    rows = [
        [
            line_of(each.name, 60),
            line_of(each.type, 40)
            if each.length is None
            else f"{line_of(each.type, 40)}[{each.length:,}]",
            size_text(each.size),
            line_of(each.text, (terminal.width or 480) // 2),  # a table compares longer cells
        ]
        for each in shown
    ]
    yield from terminal.table(_VARIABLE_COLUMNS, rows) if rows else ()
    others = len(why.variables) - len(shown) + why.left_out
    if others:
        yield line(f"and {others} smaller ones")
    if why.changes:
        yield line("changed since the checkpoint before it:")
    for each in why.changes[:_WHY_CHANGES]:
        old, new = (text if text is not None else "(none)" for text in (each.old, each.new))
        yield line(f"{each.path}: {old} -> {new}", 2)


def why_html(why: Any) -> str:
    """Return why a run stands where it stands, as HTML."""
    return framed(
        tag("div", tag("b", line_of(why.call, 200)), " ", status_of(why.status)),
        tag("small", _about(why)),
        said_html(why),
        block("\n".join(why_text(why).splitlines()[4:])),  # without what is shown above
    )


def said_html(why: Any) -> Markup:
    """Return in a sentence what happened."""
    return tag("p", printable(why.said, 1000), cls="said")


def step_text(step: Any) -> str:
    """Return a step in a line: its number, call, and what came of it."""
    result = result_text(step)
    ended = f" -> {result}" if result else ""
    status = "" if step.status == "completed" else f" {step.status}"
    text = f"{step.number} {step.name}({step.arguments}){status}{ended}"
    return NO_SECRETS.cleaned_text(text)


def size_text(size: int) -> str:
    """Return a number of bytes in words."""
    if size < 1_000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 100_000 else f"{size / 1e6:,.1f} MB"


# -- asked ----------------------------------------------------------------------------------------


_VIEW = "application/vnd.jupyter.widget-view+json"


def question_text(question: Any) -> str:
    """Return a question (:class:`stepwise.Question`) in lines, with the commands that answer it."""
    return "\n".join(
        [
            f"step {question.step} asks since {when(question.asked_at)}: {_whole(question.text)}",
            *(f"    {line}" for line in _whole(question.details).splitlines()),
            *(f"  to be signed by {_whole(each)}" for each in question.approvers),
            *(f"  {command}" for command in answers_to(question)),
        ]
    )


def _whole(text: str) -> str:
    return printable(text, len(text))


def answers_to(question: Any) -> list[str]:
    """Return the commands that answer a question, yes, then no; for a proposal, the one before."""
    if question._proposed_by:
        return [f"stepwise adopt {shell_word(question._proposed_by)}"]
    step = f"{shell_word(question.run_id)} {question.step} {question.ticket}"
    step += " --key FILE" * bool(question.approvers)
    return [f"stepwise approve {step} [--note TEXT]", f"stepwise deny {step} --reason TEXT"]


def questions_html(questions: Iterable[Any], *, commands: bool = True) -> str:
    """Return questions as HTML, with the commands that answer them unless these are left out."""
    return framed(*(_question_html(each, commands=commands) for each in questions))


def _question_html(question: Any, *, commands: bool) -> Markup:
    lines = [tag("div", tag("code", each)) for each in answers_to(question)]
    return markup(
        tag("div", tag("b", f"step {question.step} asks: ", whole(question.text))),
        tag("pre", whole(question.details)) if question.details else None,
        [tag("div", "to be signed by ", tag("code", whole(each))) for each in question.approvers],
        tag("small", lines) if commands else None,
    )


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
