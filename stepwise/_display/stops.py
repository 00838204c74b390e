"""Why a run stands where it stands, as one screen of text, and as HTML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from stepwise._display.markup import Markup, block, tag
from stepwise._display.render import framed, status_of
from stepwise._display.terminal import Column, Terminal, Word, line_of
from stepwise._display.words import counts_text, result_text, when
from stepwise._runtime.messages import count, printable
from stepwise._values.preview import NO_SECRETS

_VARIABLES = 8
_CHANGES = 5
_NEWEST = 5  # steps
_FRAMES = 4
_OF_FRAME = 5  # variables
_WIDTH = 120  # columns, unless the terminal is known
_COLUMNS = [
    Column("VARIABLE"),
    Column("TYPE"),
    Column("SIZE", whole=True, right=True),
    Column("VALUE"),
]


def step_text(step: Any) -> str:
    """Return a step in a line: its number, call, and what came of it."""
    result = result_text(step)
    ended = f" -> {result}" if result else ""
    status = "" if step.status == "completed" else f" {step.status}"
    text = f"{step.number} {step.name}({step.arguments}){status}{ended}"
    return NO_SECRETS.cleaned_text(text)


def size_text(size: int) -> str:
    """Return a number of bytes in words."""
    if size < 10_000:
        return f"{size:,} B"
    return f"{size / 1e3:,.0f} KB" if size < 10_000_000 else f"{size / 1e6:,.0f} MB"


def why_text(why: Any, terminal: Terminal | None = None) -> str:
    """Return why a run (:class:`stepwise.Why`) stands where it stands, as one screen."""
    return "\n".join(_lines(why, terminal or Terminal(_WIDTH)))


def _lines(why: Any, terminal: Terminal) -> Iterator[str]:
    width = terminal.width or 1000

    def line(text: str, indent: int = 0) -> str:
        return " " * indent + line_of(text, max(20, width - indent))

    yield terminal.line(line(why.call)[: width - 14], "  ", Word(why.status))
    yield line(about(why), 2)
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
    yield from _frames(why.frames, line)
    if why.status == "completed" and why.newest:
        yield from ("", line(f"the newest steps, of {sum(why.counts.values()):,}:"))
        yield from (line(step_text(each), 2) for each in why.newest[-_NEWEST:])
    for child in why.children:
        yield from ("", line(f"child run {child.id}: {child.said}"))
        if child.place is not None and child.place.statement:
            yield line(f"{child.place.file}:{child.place.line}: {child.place.statement}", 2)
    yield from _variables(why, terminal, line)
    yield from (line(f"({each})") for each in why.notes)
    if why.commands:
        yield ""
        yield from (f"  {printable(each)}    ({line_of(what, 100)})" for each, what in why.commands)


def about(why: Any) -> str:
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


def _frames(frames: Sequence[Any], line: Any) -> Iterator[str]:
    if len(frames) < 2 and not any(each.variables for each in frames):
        return  # the source shows it
    yield ""
    for each in frames[-_FRAMES:]:
        yield line(f"{os.path.basename(each.file)}:{each.line}, in {each.function}: {each.code}", 2)
        for name, text in [*each.variables.items()][:_OF_FRAME]:
            yield line(f"{name} = {text}", 6)


def _variables(why: Any, terminal: Terminal, line: Any) -> Iterator[str]:
    if why.step is None:
        return
    kept = f"{count(why.kept, 'checkpoint')} kept"
    yield ""
    yield line(f"variables after step {why.step}, at {why.position} ({kept}):")
    shown = why.variables[:_VARIABLES]
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
    yield from terminal.table(_COLUMNS, rows) if rows else ()
    others = len(why.variables) - len(shown) + why.left_out
    if others:
        yield line(f"and {others} smaller ones")
    if why.changes:
        yield line("changed since the checkpoint before it:")
    for each in why.changes[:_CHANGES]:
        old, new = (text if text is not None else "(none)" for text in (each.old, each.new))
        yield line(f"{each.path}: {old} -> {new}", 2)


def why_html(why: Any) -> str:
    """Return why a run stands where it stands, as HTML."""
    return framed(
        tag("div", tag("b", line_of(why.call, 200)), " ", status_of(why.status)),
        tag("small", about(why)),
        said_html(why),
        block("\n".join(why_text(why).splitlines()[4:])),  # without what is shown above
    )


def said_html(why: Any) -> Markup:
    """Return in a sentence what happened."""
    return tag("p", printable(why.said, 1000), cls="said")
