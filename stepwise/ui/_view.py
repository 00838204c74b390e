"""The data of the pages: a request's facts, rows of runs, open matters, spending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from stepwise._execution.budget import Spent
from stepwise._execution.suspension import PendingWait
from stepwise._runs.questions import Question
from stepwise._runs.steps import RunStatus, StepRecord, StoppedCall

# -- a request ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProgramOutput:
    """The output of a program that the page has started.

    Args:
        command: the command line.
        pid: of the process.
        began_at: when it was started, in seconds since 1970.
        exit_code: its exit code; negative for a signal, ``None`` while it runs.
        text: the end of what it printed, on stdout and stderr.
    """

    command: str
    pid: int
    began_at: float
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
            parts: the parts of the path; a slash inside a part is quoted.
            query: parameters; ``None`` and ``""`` leave one out.
        """
        path = "/".join(quote(str(part), safe="", errors="surrogatepass") for part in parts)
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        asked = f"?{urlencode(given, errors='replace')}" if given else ""
        return f"{self.root}/{path}{asked}"


# -- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRow:
    """A run in a list.

    Args:
        id: the id of the run.
        status: the status, as :attr:`stepwise.Run.status` has it.
        label: the workflow's short name.
        workflow: the workflow's full name.
        arguments: the arguments, as shortened text.
        created_at: when it began, in seconds since 1970.
        updated_at: when its status changed last, in seconds since 1970.
        duration: seconds from its start to its end; ``None`` until it ends.
        counts: the number of steps by status; empty if only the journal has them.
        spent: what it has spent and saved; ``None`` if only the journal has that.
        error: its exception, or the reason of its interruption, on one line; else empty.
        waits: what a suspended run waits for, in words.
        tags: its tags.
        parent: the id of the run that called it; empty for other runs.
        forked_from: the id of the run that it is a fork of; empty for other runs.
        can_resume: True if starting its program continues it.
        can_cancel: True if it has not ended, and is no child run.
        served_by: the process of ``stepwise up`` that starts it again by itself; else empty.
    """

    id: str
    status: RunStatus
    label: str
    workflow: str
    arguments: str
    created_at: float
    updated_at: float
    duration: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    spent: Spent | None = None
    error: str = ""
    waits: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    forked_from: str = ""
    can_resume: bool = False
    can_cancel: bool = False
    served_by: str = ""


# -- inbox ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """A question that a run asks.

    Args:
        run: the run that asks.
        question: the question; ``question.details`` has all arguments in full.
        before: the details of the question that the same call asked before; empty for none.
    """

    run: RunRow
    question: Question
    before: str = ""


@dataclass(frozen=True)
class InDoubt:
    """A side effect that may or may not have happened."""

    run: RunRow
    step: StepRecord


@dataclass(frozen=True)
class StoppedAt:
    """A call at which a run stopped, since it could be a recorded side effect."""

    run: RunRow
    call: StoppedCall


@dataclass(frozen=True)
class Awaited:
    """A signal that a run waits for.

    Args:
        run: the run.
        wait: the wait.
        schema: the JSON schema of the signal's value; ``None`` if any value will do.
    """

    run: RunRow
    wait: PendingWait
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

    questions: Sequence[Asking] = ()
    doubts: Sequence[InDoubt] = ()
    stops: Sequence[StoppedAt] = ()
    waits: Sequence[Awaited] = ()
    resumable: Sequence[RunRow] = ()
    left_out: str = ""

    @property
    def total(self) -> int:
        """The number of open matters that are listed."""
        parts = self.questions, self.doubts, self.stops, self.waits, self.resumable
        return sum(map(len, parts))


# -- spending -------------------------------------------------------------------------------------


@dataclass(frozen=True)
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
    saved: Mapping[str, float] = field(default_factory=dict)
    at_least: bool = False
    query: str = ""


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
