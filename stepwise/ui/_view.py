"""The data of the pages: a request's facts, rows of runs, open matters, spending."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from stepwise._execution.budget import Spent
from stepwise._journal.records import RunFacts
from stepwise._runs.steps import UNFINISHED, RunStatus, error_line
from stepwise._runtime.facts import NamedTuple

# -- a request ------------------------------------------------------------------------------------


def address(root: str, parts: Iterable[object], query: Sequence[tuple[str, object]] = ()) -> str:
    """Return the address of a page.

    A browser follows ``..`` in a path, ``%2E%2E`` too, and proxies take ``%2F`` for a slash.  Such
    parts are quoted by a ``~`` instead.

    Args:
        root: the path under which the application is mounted, quoted.
        parts: the parts of the path below.
        query: the names and values of parameters.
    """
    path = "/".join(_quoted(str(part)) for part in parts)
    return f"{root}/{path}{'?' * bool(query)}{urlencode(query, errors='replace')}"


def _quoted(part: str) -> str:
    text = quote(part, safe="", errors="surrogatepass")
    text = text.replace("~", "~7E").replace("%2F", "~2F")
    return text.replace(".", "~2E") if part in (".", "..") else text


def part_meant(part: str) -> str:
    """Return the part of a path that :func:`address` has quoted, after the percent signs."""
    return re.sub("~(2E|2F|7E)", lambda found: chr(int(found[1], 16)), part)


@dataclass(frozen=True)
class ProgramOutput:
    """The output of a program that the page has started.

    Args:
        command: the command line.
        pid: of the process.
        exit_code: its exit code; negative for a signal, ``None`` while it runs.
        text: the end of what it printed, on stdout and stderr.
    """

    command: str
    pid: int
    exit_code: int | None
    text: str


@dataclass(frozen=True)
class View:
    """The facts of a request that its page needs.

    Args:
        root: the path under which the application is mounted, without a slash at its end.
        form_token: the value of the hidden field ``token`` of each form.
        read_only: True if the page offers no action.
        open_matters: the number of matters in the inbox.
        nonce: the nonce of the page's one style element.
        who: the person who looks, as answers and requests record it.
        store: the URL of the store, without a password.
        at_least: True if there may be more open matters than ``open_matters``.
        output: on the page of a run: what its program printed, if this server has started it.
        now: the time of the request, in seconds since 1970.
    """

    root: str
    form_token: str
    read_only: bool
    open_matters: int
    nonce: str
    who: str
    store: str
    now: float
    at_least: bool = False
    output: ProgramOutput | None = None

    def at(self, *parts: object, **query: object) -> str:
        """Return the address of a page: ``at("runs", run.id, step=3)``.

        Args:
            parts: the parts of the path; see :func:`address`.
            query: parameters; ``None`` and ``""`` leave one out.
        """
        given = [(name, value) for name, value in query.items() if value not in (None, "")]
        return address(self.root, parts, given)


# -- runs -----------------------------------------------------------------------------------------


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


# -- branches -------------------------------------------------------------------------------------


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


# -- inbox ----------------------------------------------------------------------------------------


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


# -- spending -------------------------------------------------------------------------------------


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
