"""The facts of a store that the pages show: rows of runs, open matters, searches, spending.

A head says almost everything of a run that has ended.  Of an unfinished run the journal is read,
and what it says is kept for as long as its head and its marks stay the same.  A request reads
journals for a tenth of a second at most, the newest runs first; the next request continues from
there.

A word of the search field finds itself in a run's name, arguments, id, error and tags.  The other
words are::

    status:crashed workflow:agent tag:customer=ann since:2d error:timeout cost:>1

All of them have to hold.  Quotes keep a text with spaces together: ``error:"timed out"``.

Listings find a status, a workflow and tags by an index; anything else opens every head.  So a
search looks for a fraction of a second, and its page says how far back that went.

The head of a run that ended says what it has spent, its child runs included.  Models are named by
the records of steps only.  Both are read for a tenth of a second, the newest runs first; the page
says how many runs that were, and whether one of them was too long to be read to its end.  A link
reads for longer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from stepwise._display.words import seconds_in
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.budget import Spent
from stepwise._execution.suspension import PendingWait
from stepwise._journal.journal import entries_of, facts_of, newest_mark, open_head, seal_for
from stepwise._journal.lease import describe_owner, supervisor_name
from stepwise._journal.logs import Bell
from stepwise._journal.records import OVER, Entry, RunFacts
from stepwise._journal.summary import kept_summary, open_waits
from stepwise._runs.branching import BranchRows, in_order, variation_of
from stepwise._runs.messages import messages_of
from stepwise._runs.overview import overview
from stepwise._runs.questions import RunQuestions
from stepwise._runs.run import Listed, Run, each_listed, newest_heads, number_of_runs
from stepwise._runs.steps import UNFINISHED, RunStatus, error_line, is_inner
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise.errors import RunNotFoundError, RunStopped, StepwiseError, StoreError
from stepwise.stores import Head, Store

# -- rows and matters ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRow:
    """A run in a list.

    Args:
        facts: what its head says, or its journal.
        status: the status, as :attr:`stepwise.Run.status` has it.
        counts: the number of steps by status; empty if only the journal has them.
        spent: what it has spent and saved; ``None`` if only the journal has that.
        served_by: the process of ``stepwise up`` that starts it again by itself; else empty.
    """

    facts: RunFacts
    status: RunStatus
    counts: Mapping[str, int] = field(default_factory=dict)
    spent: Spent | None = None
    served_by: str = ""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.facts.run_id

    @property
    def error(self) -> str:
        """Its exception, or the reason of its interruption, on one line; else empty."""
        return error_line(self.facts.error)

    @property
    def can_resume(self) -> bool:
        """True if starting its program continues it."""
        return self.status in UNFINISHED and not self.facts.parent


class BranchPage(NamedTuple):
    """Some branches of a run.

    Args:
        rows: what is shown of each; see :meth:`stepwise.RunBranches.rows`.
        start: the number of branches before them.
        total: the number of branches that can be listed.
        left_out: a sentence that says which are not listed; empty if all are.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    start: int = 0
    total: int = 0
    left_out: str = ""

    @property
    def following(self) -> int | None:
        """The number of branches before the next page; ``None`` on the last page."""
        end = self.start + len(self.rows)
        return end if end < self.total else None


NO_BRANCHES = BranchPage()


class Matter(NamedTuple):
    """One matter that waits for a person.

    Args:
        run: the run.
        what: a question, a step in doubt, a call at which the run stopped, or a wait for a signal.
        schema: of the signal's value, as a JSON schema; ``None`` if any value will do.
    """

    run: RunRow
    what: Any
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Matters:
    """All that waits for a person.

    Args:
        questions: approvals.
        doubts: steps in doubt.
        stops: calls at which a run stopped.
        waits: signals that runs wait for.
        resumable: runs that wait for nothing else than being resumed: they failed, crashed or were
            interrupted, or what they waited for has come.
        left_out: a sentence that says what is not listed; empty if everything is.
    """

    questions: Sequence[Matter] = ()
    doubts: Sequence[Matter] = ()
    stops: Sequence[Matter] = ()
    waits: Sequence[Matter] = ()
    resumable: Sequence[RunRow] = ()
    left_out: str = ""

    @property
    def total(self) -> int:
        """The number of open matters that are listed."""
        parts = self.questions, self.doubts, self.stops, self.waits, self.resumable
        return sum(map(len, parts))


# -- reading ---------------------------------------------------------------------------------------


_SECONDS = 0.1  # that a request reads
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
        self._branches: dict[str, tuple[Any, dict[str, Any]]] = {}  # rows, each with its version

    # -- rows ------------------------------------------------------------------------------------

    def rows(self) -> Callable[[Listed], RunRow]:
        """Return what makes the rows of one page; it reads journals for a tenth of a second."""
        until = time.monotonic() + _SECONDS

        def row(each: Listed) -> RunRow:
            counted = each.counted
            if counted is not None:
                return self._row(each, *counted)
            with self._lock:
                known = self.known(each, until)
            return known.row if known is not None else self._row(each, {}, None)

        return row

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

    # -- branches --------------------------------------------------------------------------------

    def branches(self, run: Run, start: int, most: int) -> BranchPage:
        """Return branches of a run, as many as can be read in the time of a request.

        Args:
            run: the base.
            start: the number of branches to leave out.
            most: the number of branches to return at most.
        """
        known = in_order(self.store, self.seal, run.id, _HEADS + 1)
        is_cut, known = len(known) > _HEADS, known[-_HEADS:]
        if not known:
            return BranchPage()
        maker, base = BranchRows(self.store, self.seal, run.id), run._facts()
        rows, until = list[Mapping[str, Any]](), time.monotonic() + _SECONDS
        for facts in known[start : start + most]:
            if rows and time.monotonic() > until:
                break
            with self._lock, contextlib.suppress(RunNotFoundError):  # deleted meanwhile
                rows.append(self._branch(maker, facts, base))
        told = f"only the newest {_HEADS:,} branches are listed" if is_cut else ""
        return BranchPage(rows, start, len(known), told)

    def _branch(self, maker: BranchRows, facts: RunFacts, base: RunFacts) -> dict[str, Any]:
        """Return the row of a branch; what nobody executes does not change without its head."""
        run_id, runs = facts.run_id, facts.status == "running"
        moves = (self.store.owner(run_id), *self.store.marks(run_id)) if runs else ()
        version = facts, base, moves
        before, row = self._branches.pop(run_id, (None, {}))
        if before != version:
            try:
                given = variation_of(self.store, self.seal, facts)
                row = maker.row(Run(self.store, run_id, self.seal), given)
            except StoreError as problem:  # one damaged branch does not hide the others
                row = maker.unread(facts, str(problem))
        self._branches[run_id] = version, row
        if len(self._branches) > _KEPT:
            del self._branches[next(iter(self._branches))]
        return row

    # -- open matters ----------------------------------------------------------------------------

    def open_matters(self) -> OpenMatters:
        """Return the number of open matters, as of a second ago or less."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH:
                self._look()
            total = sum(known.matters.total for known in self._open)
            return OpenMatters(total, bool(self._unread or self._more))

    def heads(self) -> dict[str, tuple[bytes, RunFacts]]:
        """Return the heads of the unfinished runs with their facts, as of the last look, by id."""
        with self._lock:
            return dict(self._opened)

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
            elif known.matters.total and not self._is_moot(facts):
                self._open.append(known)
        # A run whose child run waits for a person is listed by what the child run waits for.
        waiting = {above for known in self._open for above in self._above(known.row.facts.parent)}
        self._open = [
            known
            for known in self._open
            if not (known.matters.resumable and known.row.id in waiting)
        ]
        self._looked = time.monotonic()

    def _is_moot(self, facts: RunFacts) -> bool:
        """Return whether a branch goes on instead of a run above, so that nobody resumes it."""
        while facts.parent:
            _, above = self._opened.get(facts.parent, (b"", None))
            above = above or facts_of(self.store, self.seal, facts.parent)
            if above is None or above.superseded:
                return above is not None
            facts = above
        return False

    def _facts(self, head: Head) -> tuple[bytes, RunFacts]:
        """Return a head with its facts, which are read again only if the head has changed."""
        data, facts = self._opened.get(head.run_id, (b"", None))
        if facts is None or data != head.data:
            facts = open_head(self.seal, head)
        return head.data, facts or RunFacts(head.run_id, "", "", "running", "", "")

    def acted_on(self, run_id: str) -> None:
        """Note that the page has changed a run, without waiting for the store to tell it."""
        with self._lock:
            self._forget(run_id)
            self._looked = float("-inf")

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
        except RunNotFoundError:  # deleted meanwhile
            return None
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
        place = self.store, self.seal
        seen = overview(*place, each.run.id, count=1)
        each = Listed(each.run, *seen.standing[:2])
        facts = each.facts
        row = self._row(each, seen.statuses, seen.spent)
        is_waiting, is_stopped = "waiting" in seen.statuses, row.status in UNFINISHED
        waits = is_waiting and row.status not in (*OVER, "cancelling")
        # A child run has a head of its own, and its questions with it.
        asked = RunQuestions(*place, facts).open if is_waiting else []
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


# -- searches --------------------------------------------------------------------------------------


PAGE = 50  # runs
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_STATUSES = get_args(RunStatus)


class WrongWordsError(Exception):
    """A search that cannot be understood; the text says how to write it."""


class SearchPage(NamedTuple):
    """A page of a listing.

    Args:
        rows: the runs.
        older: the cursor of the next page; ``None`` on the last page.
        note: how far back the search went, if it did not fill its page; else empty.
    """

    rows: list[RunRow]
    older: str | None
    note: str


class Search(NamedTuple):
    """The conditions of a search; see the module.

    Args:
        workflow, status, tags: as of ``each_listed``.
        where: further conditions.
    """

    workflow: str | None = None
    status: RunStatus | None = None
    tags: dict[str, str] = {}  # noqa: RUF012  # never changed
    where: tuple[Callable[[RunFacts], bool], ...] = ()

    def is_meant(self, facts: RunFacts) -> bool:
        """Return whether a run is looked for, as far as its facts say."""
        if is_inner(facts, chosen=bool(self.workflow or self.tags)):
            return False
        return all(holds(facts) for holds in self.where)


def parsed(query: str, now: float) -> Search:
    """Read the words of the search field.

    Args:
        now: in seconds since 1970.

    Raises:
        WrongWordsError: a word cannot be understood.
    """
    try:
        words = shlex.split(query)
    except ValueError:
        raise WrongWordsError('a quote is not closed: error:"timed out"') from None
    search = Search(tags={})
    for word in words:
        name, colon, value = word.partition(":")
        reader = _READERS.get(name) if colon else None
        if reader is None:
            search = _with(search, _says(word, _texts))
        else:
            search = reader(search, value, now)
    return search


def _with(search: Search, condition: Callable[[RunFacts], bool]) -> Search:
    return search._replace(where=(*search.where, condition))


def _texts(facts: RunFacts) -> Iterator[str]:
    yield from (facts.label, facts.arguments, facts.run_id, facts.error)
    yield from (f"{name}={text}" for name, text in facts.tags.items())


def _says(word: str, texts: Callable[[RunFacts], Iterator[str]]) -> Callable[[RunFacts], bool]:
    folded = word.casefold()
    return lambda facts: any(folded in text.casefold() for text in texts(facts))


def _status(search: Search, value: str, _: float) -> Search:
    if value not in _STATUSES:
        raise WrongWordsError(f"status:{value} is none of {', '.join(_STATUSES)}")
    status: Any = value
    return search._replace(status=status)


def _tag(search: Search, value: str, _: float) -> Search:
    name, sign, text = value.partition("=")
    if not (name and sign and text):
        raise WrongWordsError(f"tag:{value} has no value: write tag:customer=ann")
    return search._replace(tags={**search.tags, name: text})


def _since(search: Search, value: str, now: float) -> Search:
    seconds = seconds_in(value)
    if seconds is None:
        raise WrongWordsError(f"since:{value} is not a duration: write since:90s, 15m, 2h, 30d, 4w")
    return _with(search, lambda facts: facts.updated_at >= now - seconds)


def _error(search: Search, value: str, _: float) -> Search:
    return _with(search, _says(value, lambda facts: iter((facts.error,))))


def _cost(search: Search, value: str, _: float) -> Search:
    match = re.fullmatch(r"([<>]=?)(\d{1,12}(?:\.\d+)?)", value)
    if match is None:
        raise WrongWordsError(f"cost:{value} is no limit: write cost:>1 or cost:<0.5")
    compare, limit = _COMPARED[match[1]], float(match[2])
    return _with(
        search,
        lambda facts: compare(facts.tally.spent[0] if facts.tally is not None else 0, limit),
    )


_READERS: dict[str, Callable[[Search, str, float], Search]] = {
    "status": _status,
    "workflow": lambda search, value, _: search._replace(workflow=value),
    "tag": _tag,
    "since": _since,
    "error": _error,
    "cost": _cost,
}


class _EnoughError(Exception):
    """The page is full, or its time is over."""


def find(
    store: Store, search: Search, before: str, row_of: Callable[[Listed], RunRow]
) -> SearchPage:
    """Return a page of the runs that a search finds, newest first.

    Args:
        before: the cursor of the page; empty for the first page.
        row_of: makes a row of a run.
    """
    if before and store.head(before) is None:
        raise RunNotFoundError(
            f"the run {before!r}, after which this page begins, is gone", run_id=before
        )
    until, last, looked = time.monotonic() + _SECONDS, "", 0
    rows: list[RunRow] = []

    def look(run_id: str) -> None:
        nonlocal last, looked
        if len(rows) == PAGE or (looked and time.monotonic() > until):
            raise _EnoughError
        last, looked = run_id, looked + 1

    asked = search.workflow, search.status, store, search.tags
    try:
        for each in each_listed(*asked, where=search.is_meant, look=look, before=before):
            with contextlib.suppress(RunNotFoundError):  # deleted meanwhile
                rows.append(row_of(each))
    except _EnoughError:
        note = f"searched {count(looked, 'run')}; older ones may follow"
        return SearchPage(rows, last, "" if len(rows) == PAGE else note)
    return SearchPage(rows, None, "")


# -- spending --------------------------------------------------------------------------------------


_LONGER = 20.0  # seconds that it reads on request
_ROWS = 200  # rows of a page
_RECORDS = 5000  # of an unfinished run without a summary, that are read at once
_OFTEN = 500  # records between two looks at the time
_UNITS = ("usd", "tokens", "steps", "seconds")
_NO_MODEL, _UNREAD = "other steps", "not read"


@dataclass
class SpendingRow:
    """The spending of the runs of one workflow, model, day or tag.

    Args:
        name: the workflow, the model, the day (``2025-11-29``), or the tag (``customer=ann``).
        runs: the number of runs.
        usd: US dollars.
        tokens: tokens, input and output.
        steps: executed steps; for a model, its requests.
        seconds: execution time; for a model, the time of its requests.
        saved: what resuming did not spend again: ``usd``, ``tokens`` and ``seconds``, by unit.
        at_least: True if more may have been spent.
        query: the search that finds these runs; empty if none does.
    """

    name: str
    runs: int = 0
    usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    saved: dict[str, float] = field(default_factory=dict)
    at_least: bool = False
    query: str = ""

    def add(self, spent: Spent) -> None:
        """Add what a run has spent."""
        self.runs += 1
        self.usd += spent.usd
        self.tokens += spent.tokens
        self.steps += spent.steps
        self.seconds += spent.seconds
        self.at_least = self.at_least or spent.at_least
        for unit, amount in (spent.saved or {}).items():
            self.saved[unit] = self.saved.get(unit, 0) + amount


@dataclass(frozen=True)
class Spending:
    """The spending of the runs of a store.

    Args:
        by: ``workflow``, ``model``, ``day`` or ``tag``.
        rows: the rows, the largest amounts first; days are newest first.
        total: all runs together.
        left_out: a sentence that says which runs are not counted; empty if all are.
        more: True if a page that reads for longer counts more of them.
    """

    by: str
    rows: Sequence[SpendingRow]
    total: SpendingRow
    left_out: str = ""
    more: bool = False


def spending(reader: RunReader, by: str, *, longer: bool = False) -> Spending:
    """Return what the runs of a store have spent.

    Args:
        by: one of ``WAYS``.
        longer: True to read for longer, so that more runs are counted.
    """
    until = time.monotonic() + (_LONGER if longer else _SECONDS)
    most = _RECORDS if not longer else None
    found: dict[str, SpendingRow] = {}
    total, looked, children, parts = SpendingRow("all runs"), 0, 0, 0
    for each in each_listed(store=reader.store):
        if time.monotonic() > until:
            break
        looked += 1
        if each.facts.parent:  # its parent has the same amounts
            children += 1
            continue
        spent = _spent(reader, each, most)
        if spent is None:
            total.at_least = True
            parts += 1
            continue
        total.add(spent)
        for name, query, part in _BY[by](reader, each, spent, until):
            parts += name == _UNREAD
            row = found.setdefault(name, SpendingRow(name))
            row.add(part)
            row.query = query
    known = number_of_runs(reader.store)
    left = max(0, known - looked) if known is not None else 0
    told = [f"the newest {looked - children:,} runs are counted" if left else ""]
    if parts:
        told.append(f"{count(parts, 'run')} could not be read, or not to the end")
    if len(found) > _ROWS:
        told.append(f"the largest {_ROWS} of {len(found):,} rows are shown")
    key = (lambda row: row.name) if by == "day" else _size
    rows = sorted(found.values(), key=key, reverse=True)
    more = bool(left or parts) and not longer
    return Spending(by, rows[:_ROWS], total, "; ".join(filter(None, told)), more)


def _size(row: SpendingRow) -> tuple[float, ...]:
    return row.usd, row.tokens, row.seconds


def _spent(reader: RunReader, each: Listed, most: int | None) -> Spent | None:
    """Return what a run has spent; ``None`` if its journal cannot be read.

    Args:
        most: a longer journal is not read whole.
    """
    counted, place = each.counted, (reader.store, reader.seal, each.facts.run_id)
    if counted is not None:
        return counted[1]
    with contextlib.suppress(StepwiseError, RunStopped):
        records = newest_mark(*place).last - each.facts.pruned
        if most is not None and records > most and kept_summary(*place) is None:
            return None
        return overview(*place, count=1).spent
    return None


_Part = tuple[str, str, Spent]  # the name of a row, the search for its runs, and amounts


def _quoted(word: str) -> str:
    return f'"{word}"' if any(map(str.isspace, word)) else word


def _by_tag(_: RunReader, each: Listed, spent: Spent, _until: float) -> Iterable[_Part]:
    tags = [f"{name}={text}" for name, text in each.facts.tags.items()]
    return [(tag, _quoted(f"tag:{tag}"), spent) for tag in tags] or [("no tag", "", spent)]


def _by_model(reader: RunReader, each: Listed, spent: Spent, until: float) -> Iterator[_Part]:
    """Yield the amounts of each model that a run has asked, and of the remaining steps.

    Args:
        until: what is not read by then has a row of its own.
    """
    found: dict[str, Spent] = {}
    remaining, entries = _NO_MODEL, entries_of(reader.store, reader.seal, each.facts)
    with contextlib.suppress(StepwiseError, RunStopped):
        for entry in entries if spent.tokens else ():
            if entry.number % _OFTEN == 0 and time.monotonic() > until:
                remaining = _UNREAD
                break
            record = entry.outcome  # a fork has not spent what its source spent
            if record is not None and record.usage and record.spent.get("steps", 1):
                name = str(record.usage.get("model") or "unknown model")
                found[name] = _more(found.get(name, Spent()), entry)
    yield from ((name, "", part) for name, part in found.items())
    rest = {n: getattr(spent, n) - sum(getattr(p, n) for p in found.values()) for n in _UNITS}
    if not found or rest["steps"] > 0:
        rest = {unit: max(0, amount) for unit, amount in rest.items()}
        yield remaining, "", replace(spent, **rest)


def _more(before: Spent, entry: Entry) -> Spent:
    """Return amounts with those of a model request added."""
    record: Any = entry.outcome
    usd, tokens, _ = amounts_of_usage(record.usage)
    seconds = before.seconds + max(0.0, record.at - record.call.at)
    return Spent(before.usd + usd, before.tokens + int(tokens), before.steps + 1, seconds)


_BY: dict[str, Callable[[RunReader, Listed, Spent, float], Iterable[_Part]]] = {
    "workflow": lambda _, each, spent, __: [
        (each.facts.label, _quoted(f"workflow:{each.facts.label}"), spent)
    ],
    "model": _by_model,
    "day": lambda _, each, spent, __: [
        (time.strftime("%Y-%m-%d", time.localtime(each.facts.created_at)), "", spent)
    ],
    "tag": _by_tag,
}
WAYS = tuple(_BY)
"""By what spending can be listed."""
