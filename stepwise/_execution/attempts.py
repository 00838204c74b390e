"""The attempts of a run, counted record by record: time, losses, answered steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwise._journal.records import (
    Ended,
    Entry,
    Intent,
    Interrupted,
    Outcome,
    Resumed,
    Ruled,
    Started,
    Stopped,
)
from stepwise._matching.stops import is_over

__all__ = ["Course"]

_RESUMES = 20  # resumes that are listed


@dataclass
class Course:
    """The attempts of a run.

    Args:
        born: when it began, seconds since 1970; what a fork shares is older.
        forked: it is a fork.
        started, command: numbers of the records that say where its workflow is defined, and how
            its program was started the last time.
        resumes: each time it was gone on with, the last few: number of the record, when, where.
        resumed: how many times.
        at: when the last record was made.
        taken: seconds that the completed steps took that the workflow itself called.
        saved: those of them that the last attempt need not execute.
        lost: seconds from the last record of each attempt to the beginning of the next.
        resumed_from, executed, skipped: of the last attempt; see :class:`stepwise.Run`.
        effects: how many side effects were announced, by tool.
        stops: numbers of the records of the calls at which it stopped, and of what somebody said of
            them since, while it has not gone on.
        stopped: when it stopped.
    """

    born: float = 0.0
    forked: bool = False
    started: int = 0
    command: int = 0
    resumes: list[list[Any]] = field(default_factory=list)
    resumed: int = 0
    at: float = 0.0
    taken: float = 0.0
    saved: float = 0.0
    lost: float = 0.0
    resumed_from: int | None = None
    executed: int = 0
    skipped: int = 0
    effects: dict[str, int] = field(default_factory=dict)
    stops: list[int] = field(default_factory=list)
    stopped: float = 0.0

    @property
    def begun(self) -> int:
        """The number of the record that began the last attempt; 0 for the first one."""
        return self.resumes[-1][0] if self.resumes else 0

    def add(self, entry: Entry) -> None:
        """Follow a record."""
        record = entry.record
        if isinstance(record, Interrupted):
            return  # work in flight is lost from the previous record on
        if self.stops and is_over(self.stopped, entry):
            self.stops = []
        if isinstance(record, Outcome):
            if record.status == "completed" and not record.call.scope:
                self.taken += max(0.0, record.at - record.call.at)
            at = record.at
            self.executed += self._is_own(at)
        elif isinstance(record, Intent):
            at, name = record.call.at, record.call.name
            if not record.call.child:
                self.effects[name] = self.effects.get(name, 0) + 1
        else:
            at = record.at
            self._add_rare(entry, at)
        self.at = max(self.at, at)

    def _add_rare(self, entry: Entry, at: float) -> None:
        record = entry.record
        if isinstance(record, (Started, Resumed)) and record.command:
            self.command = entry.number
        if isinstance(record, Started):
            self.started, self.forked, self.born = entry.number, bool(record.forked_from), at
        elif isinstance(record, Resumed) and self._is_own(at):
            self.lost += max(0.0, at - max(self.at, self.born))
            self.resumed += 1
            self.resumes = [*self.resumes, [entry.number, at, record.how]][-_RESUMES:]
            self.saved = self.taken
            self.resumed_from, self.executed, self.skipped = record.step, 0, 0
        elif isinstance(record, (Stopped, Ruled)):
            self.stops = [*self.stops, entry.number]
            self.stopped = max(self.stopped, at) if isinstance(record, Stopped) else self.stopped
        elif isinstance(record, Ended) and self._is_own(at):
            self.resumed_from, self.executed = record.resumed_from, record.executed
            self.skipped = record.skipped

    def _is_own(self, at: float) -> bool:
        """Return whether a record from that time is the run's own, not shared by a fork."""
        return not self.forked or at > self.born
