"""The source of a run's workflow as it is on this machine now, with its checkpoints' places."""

from __future__ import annotations

import linecache
import os

from stepwise._checkpoints.checkpoints import State
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import how_started
from stepwise._rewrite.source import (
    FunctionNode,
    fingerprint,
    following_line,
    functions_named,
    loop_around,
    prefix_fingerprint,
    statement_lines,
    writers_of,
)
from stepwise._runtime.forks import cached
from stepwise._values.preview import NO_SECRETS
from stepwise.stores import Store

_TEXT = 200  # characters of a statement


class WorkflowSource:
    """The file of a workflow: its lines, and the function if its code still fits a checkpoint.

    Attributes:
        file: the path of the file; empty if unknown.
        lines: the lines of the file; none if the file is not on this machine.
        name: the name of the function.
    """

    def __init__(self, store: Store, seal: Seal, facts: RunFacts) -> None:
        how = how_started(store, seal, facts)
        self.file = how[2] if how is not None else ""
        self.name = facts.workflow.rpartition(":")[2].rpartition(".")[2]
        self._fitting: dict[tuple[str, tuple[str, ...], str], FunctionNode | None] = {}
        self._writers: dict[tuple[FunctionNode, str], list[tuple[int, int]]] = {}
        if self.file:
            linecache.checkcache(self.file)
        self.lines = linecache.getlines(self.file) if self.file else []

    @cached
    def nodes(self) -> list[FunctionNode]:
        """All functions of the file."""
        return [*functions_named("".join(self.lines))]

    @cached
    def named(self) -> list[FunctionNode]:
        """The functions of the file that have the name of the workflow."""
        return [node for node in self.nodes if node.name == self.name]

    def same_code(self, code: str) -> FunctionNode | None:
        """Return the function with this fingerprint, whatever its name, or ``None``."""
        nodes = [*self.named, *self.nodes]
        return next((node for node in nodes if fingerprint(node) == code), None)

    def fitting(self, state: State) -> FunctionNode | None:
        """Return the function if its code before a checkpoint is unchanged, else ``None``."""
        key = state.position, tuple(state.visited), state.prefix
        if key not in self._fitting:
            where = state.position, state.visited
            fits = (n for n in self.named if prefix_fingerprint(n, *where) == state.prefix)
            self._fitting[key] = next(fits, None)
        return self._fitting[key]

    def next_line(self, state: State) -> int:
        """Return the line that follows a checkpoint; 0 if it is unknown."""
        node = self.fitting(state) if self.holds(state.where) else None
        return (following_line(node, state.position) or 0) if node is not None else 0

    def holds(self, site: str) -> bool:
        """Return whether a place, ``file:line``, may be in this file."""
        return site.rpartition(":")[0] == os.path.basename(self.file)

    def lines_of(self, state: State) -> tuple[int, int] | None:
        """Return the lines of the statement after which a checkpoint was taken, if known."""
        node = self.fitting(state) if self.holds(state.where) else None
        return statement_lines(node, state.position) if node is not None else None

    def writer(self, name: str, before: State | None, state: State) -> tuple[str, str]:
        """Return the place and text of the statement that changed a variable between checkpoints.

        Without exactly one such statement, it is the one after which the later checkpoint was
        taken, and its text begins with ``(before)`` unless it may be the one.

        Args:
            name: the variable.
            before: the earlier checkpoint; ``None`` for the beginning of the function.
        """
        own, node = self.lines_of(state), self.fitting(state)
        if own is None or node is None:
            return state.where, ""
        last = self.lines_of(before) if before is not None else (node.lineno, node.lineno)
        if (node, name) not in self._writers:
            self._writers[node, name] = writers_of(node, name)
        writers = self._writers[node, name]
        if last is not None:
            spans = [(last[1] + 1, own[1])]
            loop = loop_around(node, own[0])
            if own[0] > last[0] and loop is not None and loop[0] == own[0]:  # its next item
                spans = [(last[1] + 1, loop[1])]
            elif own[0] <= last[0] and (loop := loop_around(node, last[0], own[0])) is not None:
                spans = [(last[1] + 1, loop[1]), (loop[0], own[1])]
            writers = [w for w in writers if any(s <= w[0] <= e for s, e in spans)]
        if len(writers) == 1:
            return f"{state.file}:{writers[0][0]}", self._text(*writers[0])
        text = self._text(*own)
        return state.where, text if own in writers or not text else f"(before) {text}"

    def _text(self, first: int, last: int) -> str:
        text = " ".join(line.strip() for line in self.lines[first - 1 : last])
        text = NO_SECRETS.cleaned_text(text)
        return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"

    def statement(self, state: State) -> str:
        """Return the statement after which a checkpoint was taken; empty if it is unknown."""
        found = self.lines_of(state)
        return self._text(*found) if found is not None else ""

    def text_of(self, line: int) -> str:
        """Return a line without its indent; empty if there is no such line."""
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
