"""The source of a run's workflow as it is on this machine now, with its checkpoints' places."""

from __future__ import annotations

import linecache
import os

from stepwise._checkpoints.checkpoints import State
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import how_started
from stepwise._rewrite import (
    FunctionNode,
    fingerprint,
    following_line,
    functions_named,
    prefix_fingerprint,
    statement_lines,
)
from stepwise._runtime.forks import cached
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
        if self.file:
            linecache.checkcache(self.file)
        self.lines = linecache.getlines(self.file) if self.file else []

    @cached
    def nodes(self) -> list[FunctionNode]:
        """All functions of the file."""
        return [*functions_named("".join(self.lines))]

    @property
    def named(self) -> list[FunctionNode]:
        """The functions of the file that have the name of the workflow."""
        return [node for node in self.nodes if node.name == self.name]

    def same_code(self, code: str) -> FunctionNode | None:
        """Return the function with this fingerprint, whatever its name, or ``None``."""
        nodes = [*self.named, *self.nodes]
        return next((node for node in nodes if fingerprint(node) == code), None)

    def fitting(self, state: State) -> FunctionNode | None:
        """Return the function if its code before a checkpoint is unchanged, else ``None``."""
        place = state.position, state.visited
        fits = (node for node in self.named if prefix_fingerprint(node, *place) == state.prefix)
        return next(fits, None)

    def next_line(self, state: State) -> int:
        """Return the line that follows a checkpoint; 0 if it is unknown."""
        node = self.fitting(state) if self.holds(state.where) else None
        return (following_line(node, state.position) or 0) if node is not None else 0

    def holds(self, site: str) -> bool:
        """Return whether a place, ``file:line``, may be in this file."""
        return site.rpartition(":")[0] == os.path.basename(self.file)

    def statement(self, state: State) -> str:
        """Return the statement after which a checkpoint was taken; empty if it is unknown."""
        node = self.fitting(state) if self.holds(state.where) else None
        found = statement_lines(node, state.position) if node is not None else None
        if found is None:
            return ""
        text = " ".join(line.strip() for line in self.lines[found[0] - 1 : found[1]])
        return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"

    def text_of(self, line: int) -> str:
        """Return a line without its indent; empty if there is no such line."""
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
