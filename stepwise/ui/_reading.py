"""Rows of runs, and the inbox, read from a store.

A head says almost everything of a run that has ended.  Of an unfinished run the journal is read,
and what it says is kept for as long as its head and its marks stay the same.  A request reads
journals for a tenth of a second at most, the newest runs first; the next request continues from
there.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stepwise._execution.budget import Spent
from stepwise._execution.suspension import PendingWait
from stepwise._journal.journal import open_head, seal_for
from stepwise._journal.lease import describe_owner
from stepwise._journal.log import Bell
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import open_waits
from stepwise._runs.messages import ENDED, messages_of
from stepwise._runs.overview import overview
from stepwise._runs.questions import questions_of
from stepwise._runs.run import Listed, Run, newest_heads
from stepwise._runs.steps import UNFINISHED
from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.up import supervisor_name
from stepwise.errors import RunStopped, StepwiseError
from stepwise.stores import Head, Store
from stepwise.ui._view import Matter, Matters, RunRow

_SECONDS = 0.1  # that a request reads journals
_HEADS = 1000  # newest unfinished runs that may have open matters
_SHOWN = 100  # matters of each kind that a page shows
_KEPT = 4 * _HEADS  # runs that are remembered
_FRESH = 1.0  # seconds for which the count of open matters holds
_RESUMABLE = ("failed", "crashed", "stuck", "interrupted")


class _ReadRun(NamedTuple):
    """An unfinished run, as of its last reading.

    Args:
        data: its head; ``b""`` if unknown.
        is_owned: a process executes it.
        version: its facts, and its marks.
        row: its row.
        matters: its open matters.
    """

    data: bytes
    is_owned: bool
    version: tuple[Any, ...]
    row: RunRow
    matters: Matters


class OpenMatters(NamedTuple):
    """The number of open matters.

    Args:
        at_least: there may be more.
    """

    total: int
    at_least: bool


class RunReader:
    """The reader of one store, for all requests."""

    def __init__(self, store: Store) -> None:
        self.store, self.seal = store, seal_for(store)
        self._lock = threading.RLock()
        self._known: dict[str, _ReadRun] = {}
        self._opened: dict[str, tuple[bytes, RunFacts]] = {}  # the heads of unfinished runs
        self._open: list[_ReadRun] = []  # the runs with open matters, newest first
        self._unread, self._more = 0, False
        self._looked = float("-inf")
        self._bell = Bell(store, self.seal)
        self._supervisors: dict[str, tuple[float, str]] = {}

    # -- rows ------------------------------------------------------------------------------------

    def rows(self) -> _RowMaker:
        """Return what makes the rows of one page."""
        return _RowMaker(self, time.monotonic() + _SECONDS)

    def supervisor(self, workflow: str) -> str:
        """Return the process of ``stepwise up`` that continues the runs of a workflow, in words.

        Return an empty text if there is none.
        """
        until, text = self._supervisors.get(workflow, (0.0, ""))
        if until < time.monotonic():
            owner = self.store.owner(supervisor_name(workflow))
            text = f"stepwise up, {describe_owner(owner)}" if owner is not None else ""
            self._supervisors[workflow] = time.monotonic() + _FRESH, text
        return text

    def _row(self, each: Listed, counts: Mapping[str, int], spent: Spent | None) -> RunRow:
        row = RunRow(each.facts, each.status, counts, spent)
        served_by = self.supervisor(each.facts.workflow) if row.can_resume else ""
        return replace(row, served_by=served_by)

    # -- open matters ----------------------------------------------------------------------------

    def open_matters(self) -> OpenMatters:
        """Return the number of open matters, as of a second ago or less."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH:
                self._look()
            total = sum(known.matters.total for known in self._open)
            return OpenMatters(total, bool(self._unread or self._more))

    def heads(self) -> dict[str, bytes]:
        """Return the heads of the unfinished runs, as of the last look, by the ids of the runs."""
        with self._lock:
            return {run_id: data for run_id, (data, _) in self._opened.items()}

    def inbox(self) -> Matters:
        """Return all that waits for a person."""
        with self._lock:
            self._look()
            found = [known.matters for known in self._open]
            told = [
                f"{self._unread:,} more unfinished runs are not read yet: load this page again"
                if self._unread
                else "",
                f"only the newest {_HEADS:,} unfinished runs are looked at" if self._more else "",
            ]
        names = ("questions", "doubts", "stops", "waits", "resumable")
        parts = {n: [each for part in found for each in getattr(part, n)] for n in names}
        if max(map(len, parts.values())) > _SHOWN:
            told.append(f"the newest {_SHOWN} of each kind are shown")
        shown = {name: part[:_SHOWN] for name, part in parts.items()}
        return Matters(**shown, left_out="; ".join(filter(None, told)))

    def _look(self) -> None:
        """Read the unfinished runs that have changed since the last look."""
        until = time.monotonic() + _SECONDS
        for run_id in self._bell.look():
            self._forget(run_id)
        heads = [
            *itertools.islice(newest_heads(self.store, self.seal, unfinished=True), _HEADS + 1)
        ]
        self._more = len(heads) > _HEADS
        self._opened = {head.run_id: self._facts(head) for head in heads[:_HEADS]}
        self._open, self._unread = [], 0
        for run_id, (data, facts) in self._opened.items():
            known = self._known.get(run_id)
            # What nobody executes does not change without its head.
            if known is None or known.is_owned or known.data != data:
                known = self.known(self._listed(facts), until, data)
            if known is None:
                self._unread += 1
            elif known.matters.total:
                self._open.append(known)
        # A run whose child run waits for a person is listed by what the child run waits for.
        waiting = {above for known in self._open for above in self._above(known.row.facts.parent)}
        self._open = [
            known
            for known in self._open
            if not (known.matters.resumable and known.row.id in waiting)
        ]
        self._looked = time.monotonic()

    def _facts(self, head: Head) -> tuple[bytes, RunFacts]:
        """Return a head with its facts, which are read again only if the head has changed."""
        data, facts = self._opened.get(head.run_id, (b"", None))
        if facts is None or data != head.data:
            facts = open_head(self.seal, head)
        return head.data, facts or RunFacts(head.run_id, "", "", "running", "", "")

    def _forget(self, run_id: str) -> None:
        """Read a run, and those above it, at the next look: its inbox has a new message."""
        for each in self._above(run_id):
            self._known.pop(each, None)

    def _above(self, run_id: str) -> Iterator[str]:
        """Yield a run and those above it, by the heads of the last look."""
        while run_id:
            yield run_id
            run_id = self._opened[run_id][1].parent if run_id in self._opened else ""

    def _listed(self, facts: RunFacts) -> Listed:
        owner = self.store.owner(facts.run_id) if facts.status == "running" else None
        return Listed(Run(self.store, facts.run_id, self.seal), facts, owner)

    def known(self, each: Listed, until: float, data: bytes = b"") -> _ReadRun | None:
        """Return what the journal of an unfinished run says; ``None`` if there is no time for that.

        Args:
            until: by the monotonic clock.
            data: the head of the run.
        """
        facts, is_owned = each.facts, each.owner is not None
        found, late = self._known.get(facts.run_id), time.monotonic() > until
        if found is None and late:
            return None  # before the store is asked: the marks of 1,000 runs take half a second
        version = (facts, *self.store.marks(facts.run_id))
        if found is not None and (found.version, found.is_owned) == (version, is_owned):
            self._known[facts.run_id] = found = found._replace(data=data or found.data)
            return found
        if late:
            return None
        try:
            row, matters = self._read(each)
        except (StepwiseError, RunStopped) as problem:  # one damaged run does not hide the others
            row = RunRow(facts._replace(error=str(problem)), facts.status)
            matters = Matters(resumable=[row])
        found = _ReadRun(data, is_owned, version, row, matters)
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[facts.run_id] = found
        return found

    def _read(self, each: Listed) -> tuple[RunRow, Matters]:
        """Return the row of a run, and its open matters."""
        facts, place = each.facts, (self.store, self.seal)
        seen = overview(*place, facts, each.owner, count=1)
        row = self._row(each, seen.statuses, seen.spent)
        is_waiting, is_stopped = "waiting" in seen.statuses, row.status in UNFINISHED
        waits = is_waiting and row.status not in (*ENDED, "cancelling")
        # A child run has a head of its own, and its questions with it.
        asked = questions_of(*place, facts) if is_waiting else []
        matters = Matters(
            questions=[Matter(row, each) for each in asked if each.run_id == row.id],
            doubts=[Matter(row, step) for step in seen.in_doubt] if is_stopped else (),
            stops=[Matter(row, call) for call in seen.stops if call.said is None],
            waits=[*_signals(*place, row)] if waits else (),
        )
        # Of what a suspended run waits for, nothing is open any more.
        asks = any(each.kind in ("signal", "approval") for each in facts.waits)
        has_come = row.status == "suspended" and asks
        if not matters.total and row.can_resume and (has_come or row.status in _RESUMABLE):
            matters = Matters(resumable=[row])
        return row, matters


class _RowMaker:
    """The maker of the rows of one page, which reads journals until a moment."""

    def __init__(self, reader: RunReader, until: float) -> None:
        self._reader, self._until = reader, until

    def __call__(self, each: Listed) -> RunRow:
        tally = each.facts.tally
        if each.facts.status != "running" and tally is not None:
            return self._reader._row(each, tally.counts, Spent(*tally.spent))
        with self._reader._lock:
            known = self._reader.known(each, self._until)
        return known.row if known is not None else self._reader._row(each, {}, None)


def _signals(store: Store, seal: Any, row: RunRow) -> Iterator[Matter]:
    """Yield the signals that a run waits for, and that nobody has sent yet."""
    facts = row.facts
    sent = {each.name for each in messages_of(store, seal, facts) if each.status == "kept"}
    for call in open_waits(store, seal, facts):
        wait = call.wait
        if wait is not None and wait.kind == "signal" and wait.name not in sent:
            number = wait.call.number
            waiting = PendingWait(facts.run_id, number, "signal", wait.name, wait.at, wait.until)
            yield Matter(row, waiting, json.loads(wait.schema) if wait.schema else None)
