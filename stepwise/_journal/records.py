"""Records of the journal: frozen facts, their form as a header, and the amounts they spent.

A record has a header (JSON, this module) and at most one payload (an encoded value or exception).
Everything that a listing shows is in the header, so that looking at a run never unpickles.

The end of a journal (:class:`.journal.Position`) carries the amounts spent by the records before
it, each counted once, and the number of side effects.  A checkpoint keeps that position.  So a
resumed run and a reader know the sums without reading the records, pruned ones included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from stepwise._runtime.facts import NamedTuple
from stepwise.errors import StoreError

# -- records --------------------------------------------------------------------------------------


StepStatus = Literal["completed", "failed", "cancelled"]
WaitKind = Literal["time", "signal", "approval", "limit", "start"]

_NOTHING: Mapping[str, Any] = {}

WAITS = "stepwise"
"""The module name of the calls that wait."""

ANY_ERROR = 0
"""Value of ``Call.unwinding`` for an exception that no recorded step raised; calls begin at 1."""


class Call(NamedTuple):
    """One call of a step, tool or child workflow in a run.

    Args:
        number: unique and growing within the run; listed by ``stepwise show``.
        name: the step's name.
        module: where the step is defined.
        digest: digest of the arguments.
        ordinal: the call's number among the calls of that name in the run.
        scope: name of the step that made the call; empty for the workflow itself.
        unwinding: number of the failed call that was being handled; ``ANY_ERROR`` for another
            exception, ``None`` if there was none.
        place: structural path of the workflow's statement; empty if unknown.
        site: ``file:line`` of the caller.
        arguments: the arguments as shortened text.
        effect: the call has side effects, or is a child workflow.
        key: idempotency key; empty for a plain step, whose key follows from the other fields.
        child: run id of a child workflow.
        at: when the call began, in seconds since 1970.
        branch: the branch that makes the call, if an executor runs branches side by side.
        serial: number, in the run, of the instance that is called; 0 for a plain function.
        parts: short digests of the parts that tell the call from others, by name; see ``identity``.
        instead: number of a recorded call of the same name and ordinal that did not answer this
            call.
        code: id of the version of the function; empty if its code is unknown.  An object beside
            the records holds the parts of the version.
        around: numbers of the steps that were executing the call, outermost first.
    """

    number: int
    name: str
    module: str
    digest: str
    ordinal: int
    scope: str = ""
    unwinding: int | None = None
    place: str = ""
    site: str = ""
    arguments: str = ""
    effect: bool = False
    key: str = ""
    child: str = ""
    at: float = 0.0
    branch: str = ""
    serial: int = 0
    parts: Mapping[str, str] = _NOTHING
    instead: int = 0
    code: str = ""
    around: tuple[int, ...] = ()

    @property
    def is_wait(self) -> bool:
        """True for a call of ``sleep``, ``sleep_until``, ``wait_for`` or ``approve``."""
        return self.module == WAITS


class Started(NamedTuple):
    """The run begins.  Payload: its arguments, if they can be recorded.

    Args:
        workflow: full name of the workflow.
        digest: digest of the arguments.
        arguments: the arguments as shortened text.
        code: fingerprint of the workflow's code.
        file: file of the workflow.
        parent: run id of the calling run; empty for none.
        python: version of Python.
        at: when the run began, in seconds since 1970.
        forked_from: the run of which this run is a fork.
        command, cwd: how and where the program was started; empty if unknown.
        form: of the payload; see :func:`stepwise._execution.outcomes.record_inputs`.  ``None`` if
            the payload holds only the mutable arguments.
        secrets, hidden: as in :class:`RunFacts`.
        parts: the parts that tell the run's call apart, by name; ``None`` if unknown.
        tags: strings by name, for people who look for the run.
        trace: the attempt's place in a trace, by name, as the process's tracer gave it.
        by: who made the fork (``user@host``); empty for other runs.
        effects: as in :class:`RunFacts`.
        made: versions of the program's classes among the arguments, by their full names.
    """

    workflow: str
    digest: str
    arguments: str
    code: str = ""
    file: str = ""
    parent: str = ""
    python: str | None = None
    at: float = 0.0
    forked_from: str = ""
    command: tuple[str, ...] = ()
    cwd: str = ""
    form: str | None = None
    secrets: str = ""
    hidden: str = ""
    parts: Mapping[str, str] | None = None
    tags: Mapping[str, str] = _NOTHING
    trace: Mapping[str, str] = _NOTHING
    by: str = ""
    effects: str = ""
    made: Mapping[str, str] = _NOTHING


class Branched(NamedTuple):
    """A branch begins: the records before this one are those of another run, which it shares.

    Args:
        base: the run whose records up to this number the branch shares.
        again: the idempotency key and the child run of each shared call that the branch may make
            again, by the call's number.
        by, command, cwd: as in :class:`Started`.
        effects: as in :class:`RunFacts`.
    """

    base: str
    again: Mapping[str, Any]
    at: float = 0.0
    by: str = ""
    command: tuple[str, ...] = ()
    cwd: str = ""
    effects: str = ""


REFUSE, COLLECT, ANSWER, ADOPTED = "refuse", "collect", "answer ", "adopted"
"""The policy of a branch for side effects; see :class:`RunFacts`."""


class Adopted(NamedTuple):
    """A branch goes on as the run that it is a branch of.

    Args:
        by: who adopted the branch (``user@host``).
    """

    by: str = ""
    at: float = 0.0


class Superseded(NamedTuple):
    """A branch of the run was adopted, and goes on instead of it.

    Args:
        branch: its run id.
        by: who adopted it (``user@host``).
    """

    branch: str
    by: str = ""
    at: float = 0.0


class Resumed(NamedTuple):
    """An attempt after the first one begins.

    Args:
        void: the end recorded before does not count, since the caller had not acted on it.
        command, cwd, trace: as in :class:`Started`.
        unknown: the previous attempt ended without a record, so it may have spent more than its
            records show.
        seen: number of the last message of the inbox, if the previous attempt had ended.  Requests
            to cancel the run up to that number are over.
    """

    epoch: int
    how: str
    step: int
    code: str = ""
    at: float = 0.0
    void: bool = False
    command: tuple[str, ...] = ()
    cwd: str = ""
    trace: Mapping[str, str] = _NOTHING
    unknown: bool = False
    seen: int = 0


class Intent(NamedTuple):
    """A side effect is about to happen.

    Payload: the arguments by name, if the tool can be compensated.

    Args:
        ticket: of the question that a person answered with yes; empty if no question was asked.
    """

    call: Call
    form: str | None = None
    ticket: str = ""


class Waiting(NamedTuple):
    """A call waits: for a time, for a signal, for a person, or for a limit.

    Payload of an approval: the arguments that the person sees, by name.  A later record of the same
    call replaces this one, for a wait that begins again or a question that is asked again.

    Args:
        name: of the signal or limit, or the question of an approval.
        until: when the wait ends by itself, in seconds since 1970; ``None`` for never.  For a
            limit, when the run should ask again.
        seconds: the intended length of the wait at its beginning; ``None`` if only a moment was
            given.
        ticket: of this question; random; an answer has to name it.
        digest: for an approval: digest of all arguments of the call, regardless of ``key=`` and
            ``ignore=``.
        schema: for a signal: the JSON schema of its values, as JSON; empty if any value will do.
        details: for an approval: the text shown to the person.
        form: of the payload.
        approvers: for an approval: the public keys of the people who may answer; empty for anybody.
    """

    call: Call
    kind: WaitKind
    name: str = ""
    until: float | None = None
    seconds: float | None = None
    ticket: str = ""
    digest: str = ""
    schema: str = ""
    details: str = ""
    form: str | None = None
    at: float = 0.0
    approvers: tuple[str, ...] = ()


class Answered(NamedTuple):
    """A person answered the question of a waiting call.

    Args:
        number: of the call.
        ticket: of the question.
        approved: whether the answer was yes.
        by: who answered, as the answering process knows it (``user@host``).
        note: the person's comment; for a denial, the reason.
        message: number of the answer in the inbox.
        sent_at: when the person answered; ``at`` is when the run took the answer.
        signature: of an approver, see ``approvers``; empty if the tool lists none.
    """

    number: int
    ticket: str
    approved: bool
    by: str = ""
    note: str = ""
    message: int = 0
    sent_at: float = 0.0
    at: float = 0.0
    signature: str = ""


class Refused(NamedTuple):
    """A waiting call received a message of the inbox that does not fit.

    Args:
        message: number in the inbox.
        number: of the call.
        name: of the signal; for an answer, the ticket of the question.
        why: the reason, in words.
    """

    message: int
    number: int
    name: str
    why: str
    at: float = 0.0


class RunWait(NamedTuple):
    """One thing that a suspended run waits for.

    Args:
        number: of the call; 0 for a run that was submitted, and has not begun.
        kind, name, until, ticket: as in :class:`Waiting`.  A submitted run waits for its
            ``start``, which comes at ``until`` at the earliest.
        since: when the wait began, in seconds since 1970.
        run: the child run that makes the call; empty for the run itself.
        seen: number of the last examined message in that run's inbox.
    """

    number: int
    kind: WaitKind
    name: str
    until: float | None
    since: float
    ticket: str = ""
    run: str = ""
    seen: int = 0

    @property
    def text(self) -> str:
        """The awaited event, in words."""
        return {
            "time": "for its time",
            "signal": f"for the signal {self.name!r}",
            "approval": f"for an answer to {self.name!r}",
            "limit": f"for the limit {self.name!r}",
            "start": "to be begun",
        }[self.kind]


class Suspended(NamedTuple):
    """The attempt ended, since nothing is left to do but wait.

    Args:
        waits: the awaited events, as values of :class:`RunWait`.
        seen: number of the last examined message of the inbox.
        rest: as in :class:`Ended`.
    """

    waits: tuple[Any, ...]
    seen: int = 0
    at: float = 0.0
    rest: Mapping[str, float] = _NOTHING


class Cancelling(NamedTuple):
    """Somebody asked for the end of the run; the run unwinds.

    Args:
        by: who asked (``user@host``).
        reason: in words; may be empty.
        message: number of the request in the inbox; 0 if the request was written to the journal
            directly.
    """

    by: str = ""
    reason: str = ""
    message: int = 0
    at: float = 0.0


class Outcome(NamedTuple):
    """A call ended.  Payload: its value or its exception.

    Args:
        clean: the call failed in a way that proves that nothing happened.
        inner: numbers of the calls that the call made or that were answered in it, to any depth.
        preview: the value or the exception, shortened.
        changed: objects given to the call and changed by it, name and kind; the payload then also
            holds their new states.
        form: see :class:`stepwise._values.codec.Encoded`.
        state: parts of the call's identity that proved to be state, since the call changed them.
        awaited: ``coroutine`` or ``task`` if a plain function returned one, which was awaited for
            the outcome.
        usage: for a model request, its model and tokens; see :class:`stepwise.Event`.
        message: number in the inbox of the message that a wait for a signal took; 0 for none.
        spent: amounts of the call that no other record holds, its failed attempts included, by
            unit: ``usd``, ``tokens``, ``seconds``, and ``steps`` if it is not one.
        tries: the newest attempts of a call that took several, oldest first: when each began and
            ended, and its exception, shortened.  The last one ended with the call.
        cached: for a call that the cache answered, what was saved: ``usd``, ``tokens`` and
            ``seconds``; the ``run`` that made the result, and ``at`` which time.  Older records
            without ``run`` have what requests in the body of the call saved.
    """

    call: Call
    status: StepStatus = "completed"
    attempts: int = 1
    clean: bool = False
    inner: tuple[int, ...] = ()
    preview: str = ""
    traceback: str = ""
    changed: Mapping[str, str] = _NOTHING
    form: str | None = None
    at: float = 0.0
    state: tuple[str, ...] = ()
    awaited: str = ""
    usage: Mapping[str, Any] = _NOTHING
    message: int = 0
    spent: Mapping[str, float] = _NOTHING
    tries: tuple[Any, ...] = ()
    cached: Mapping[str, Any] = _NOTHING


class AttemptFailed(NamedTuple):
    """An attempt of a step failed after it had made calls; the retry starts from this record.

    Args:
        number: of the step's call; 0 for the step loop of an agent.
        superseded: plain calls that the next attempt makes again: the calls after the last side
            effect.
        retry, spent: as in :class:`Ended`.
    """

    number: int
    superseded: tuple[int, ...] = ()
    retry: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    at: float = 0.0


class Handled(NamedTuple):
    """The workflow continued after these calls failed or were cancelled: that is their outcome."""

    numbers: tuple[int, ...]
    at: float = 0.0


class Settled(NamedTuple):
    """A person settled a call in doubt.  Payload, if the call landed: its value.

    Args:
        spent: amounts of a call that landed and has no outcome, as in :class:`Outcome`; such a call
            counts as a step.
        by: who settled it (``user@host``); empty if the program did, with ``reconcile``.
    """

    number: int
    landed: bool
    preview: str = ""
    form: str | None = None
    at: float = 0.0
    spent: Mapping[str, float] = _NOTHING
    by: str = ""


class Stopped(NamedTuple):
    """The run stopped at a call that could be a recorded side effect with other arguments.

    Args:
        steps: numbers of the recorded calls that it could be.
        records: numbers of the records that hold the arguments of these calls.
    """

    call: Call
    steps: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    at: float = 0.0


class Ruled(NamedTuple):
    """A person decided which act a stopped call is.

    Args:
        call: as it was when the run stopped at it.
        steps: the recorded call that it is; or the recorded calls that it is not.
        same: whether the stopped call is the call in ``steps``.
        beside: the calls differ, and the stopped tool had been called when the steps were made.  So
            it is another tool, not the same tool with a new name.
        by: who decided (``user@host``).
    """

    call: Call
    steps: tuple[int, ...]
    same: bool
    at: float = 0.0
    beside: bool = False
    by: str = ""


class Forgotten(NamedTuple):
    """These calls will run again.

    Args:
        by: who had them forgotten (``user@host``); empty if the program did.
    """

    numbers: tuple[int, ...]
    at: float = 0.0
    by: str = ""


class Compensating(NamedTuple):
    """A call is about to be undone; ``key`` is the compensation's own idempotency key.

    Args:
        by: who asked for it (``user@host``); empty if the run undoes its own calls.
    """

    number: int
    key: str
    at: float = 0.0
    by: str = ""


class Compensated(NamedTuple):
    """A call was undone, and counts as not made.

    Args:
        by: as in :class:`Compensating`.
    """

    number: int
    preview: str = ""
    at: float = 0.0
    by: str = ""


class Restored(NamedTuple):
    """The journal was put back from a backup that lacks everything recorded since."""

    at: float = 0.0


class Quarantined(NamedTuple):
    """These records are known to be unreadable; ``effects`` intents are among them or gone."""

    numbers: tuple[int, ...]
    effects: int
    at: float = 0.0


class Ended(NamedTuple):
    """An attempt ended by returning or raising.  Payload: the result or the exception.

    Args:
        recorded: there is a payload.
        changed: as in an outcome.
        retry: failed calls in the chain of the exception.
        spent: calls made while it unwound; they answer only the same unwinding.
        rest: amounts of the attempt that no outcome of a call holds, by unit.
        again: why a call of the run recreates the end from the journal, in words; empty if this
            record answers.  The payload then only serves people who look at the run.
    """

    status: Literal["completed", "failed", "cancelled"]
    recorded: bool = True
    changed: Mapping[str, str] = _NOTHING
    retry: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    resumed_from: int | None = None
    executed: int = 0
    skipped: int = 0
    preview: str = ""
    form: str | None = None
    at: float = 0.0
    rest: Mapping[str, float] = _NOTHING
    again: str = ""

    @property
    def answers(self) -> bool:
        """True if a call of the run is answered by this record alone."""
        return self.recorded and not self.again


SUBMITTED = "submitted"
"""Reason of an attempt that only recorded the run, for another process to execute."""


class Interrupted(NamedTuple):
    """The attempt ended in good order, but the run did not end.

    Args:
        why: in words: Ctrl-C, a cancellation, a caller that stopped iterating, a budget.
        decided: the run was stopped on purpose (Ctrl-C, a cancellation, a used-up budget), so that
            nothing resumes it automatically.  Otherwise its process was told to end, or a call
            stopped the run.  Such a run counts as crashed, but not as a run that died.
        rest: as in :class:`Ended`.
    """

    why: str = ""
    at: float = 0.0
    decided: bool = True
    rest: Mapping[str, float] = _NOTHING


Record = (
    Started
    | Branched
    | Adopted
    | Superseded
    | Resumed
    | Intent
    | Waiting
    | Answered
    | Refused
    | Outcome
    | AttemptFailed
    | Handled
    | Settled
    | Stopped
    | Ruled
    | Forgotten
    | Compensating
    | Compensated
    | Quarantined
    | Restored
    | Ended
    | Interrupted
    | Suspended
    | Cancelling
)

_STATES = (Intent, Waiting, Outcome)
"""Records that hold a call, and are the state of that call."""

ANNOUNCES = (Intent, Compensating, Cancelling)
"""Records that announce an outside change before it is made, or a person's decision to end the run.

None may be lost without a question, so the envelope counts them.
"""


def holds_plainly(record: Record) -> bool:
    """Return whether a record's payload is just the pickle, without code, of a returned value."""
    if isinstance(record, Outcome):
        return record.status == "completed" and not record.changed and record.form is None
    return isinstance(record, Settled) and record.landed and record.form is None


class Tally(NamedTuple):
    """The counts of a run's steps and what it has spent, for listings.

    Args:
        last: number of the last record that they cover.
        counts: how many steps have each status.
        spent: the facts of :class:`stepwise.Spent`, in their order.
    """

    last: int
    counts: Mapping[str, int]
    spent: tuple[Any, ...]


OVER = ("completed", "failed", "cancelled")
"""The statuses of a run that has ended."""


class RunFacts(NamedTuple):
    """The facts of a run in listings, derived from the journal and kept in the store's head.

    Args:
        workflow: its full name (``/path/agent.py:agent``).
        label: its short name (``agent``).
        digest: digest of the arguments.
        code: fingerprint of the workflow's code.
        parent: run id of the calling run; empty for none.
        forked_from: run id of the run of which this run is a fork; empty for none.
        error: the exception of a failed run, or the reason of an interruption.
        end: number of the record that ended the run; 0 while there is none.
        pruned: number of the last record that was pruned.
        undoing: the run's side effects are being undone.
        undone: how many times undoing has begun.
        codec: how values are recorded; see :class:`stepwise._values.codec.Codec`.
        created_at, updated_at: seconds since 1970.
        secrets: names of the arguments that are not recorded, separated by spaces.
        hidden: names of the arguments that are not shown as they are.
        parts: the parts that tell the run's call apart, by name, as short digests; ``None`` if
            unknown.
        restored: the run was put back from a backup; side effects missing from it are in doubt.
        tags: strings by name, for people who look for the run.
        trace: of the newest attempt; see :class:`Started`.
        waits: the events that a suspended run waits for.
        seen: number of the last message of the inbox that a suspended run had examined.
        cancelling: who asked for the run's end and why, in words; empty if nobody did, or once the
            run has ended.
        cancels: number of the last message of the inbox that is no new request to cancel the run.
        tally: the counts and spending up to an end of the run; later records make it stale.
        forked_by: who made the fork (``user@host``); empty for other runs.
        base: run id of the run whose records a branch shares; empty for other runs.
        effects: what happens to new side effects in a branch: ``refuse``, ``collect``, ``adopted``,
            or ``answer`` and the name of a function; empty for other runs, which make them.
        superseded: run id of the branch that goes on instead of the run; empty for other runs.
    """

    run_id: str
    workflow: str
    label: str
    status: Literal["running", "completed", "failed", "interrupted", "suspended", "cancelled"]
    arguments: str
    digest: str
    code: str = ""
    parent: str = ""
    error: str = ""
    end: int = 0
    pruned: int = 0
    undoing: bool = False
    codec: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    forked_from: str = ""
    undone: int = 0
    secrets: str = ""
    hidden: str = ""
    parts: Mapping[str, str] | None = None
    restored: bool = False
    tags: Mapping[str, str] = _NOTHING
    trace: Mapping[str, str] = _NOTHING
    waits: tuple[RunWait, ...] = ()
    seen: int = 0
    cancelling: str = ""
    cancels: int = 0
    tally: Tally | None = None
    forked_by: str = ""
    base: str = ""
    effects: str = ""
    superseded: str = ""

    @property
    def is_branch(self) -> bool:
        """True if the run is a branch that was not adopted, so that it makes no side effect."""
        return self.effects not in ("", ADOPTED)

    @property
    def is_submitted(self) -> bool:
        """True if the run was submitted, and has not begun."""
        return self.status == "suspended" and bool(self.waits) and self.waits[0].kind == "start"

    @property
    def due(self) -> float | None:
        """When a submitted run is to begin, in seconds since 1970; ``None`` for other runs."""
        return self.waits[0].until if self.is_submitted and not self.cancelling else None

    def unfinished(self, **changes: Any) -> RunFacts:
        """Return the facts of another run that goes on from records of this one."""
        facts = self._replace(status="running", error="", end=0, waits=(), undoing=False)
        return facts._replace(cancelling="", cancels=0, tally=None, **changes)

    def reopened(self, at: float) -> RunFacts:
        """Return the facts without an end; a run stopped on purpose stays so until it is called."""
        kept = ("interrupted", "cancelled")
        status: Any = self.status if self.status in kept else "running"
        return self._replace(status=status, end=0, updated_at=at, tally=None)


class Entry(NamedTuple):
    """A record in its place in the journal."""

    number: int
    record: Record
    payload: bytes

    @property
    def call(self) -> Call | None:
        """The call that the record announces, or whose wait or outcome the record is."""
        return self.record.call if isinstance(self.record, _STATES) else None

    @property
    def outcome(self) -> Outcome | None:
        """The record if it is an outcome, else ``None``."""
        return self.record if isinstance(self.record, Outcome) else None

    @property
    def ended(self) -> Ended | None:
        """The record if it is the end of an attempt, else ``None``."""
        return self.record if isinstance(self.record, Ended) else None

    @property
    def waits(self) -> bool:
        """True if the record is a wait of a call, or a person's answer to the call."""
        return isinstance(self.record, (Waiting, Answered))

    @property
    def limit(self) -> str:
        """The name of the limit that the call waits for; empty if it waits for none."""
        record = self.record
        return record.name if isinstance(record, Waiting) and record.kind == "limit" else ""

    @property
    def landed(self) -> bool:
        """True if the record is a person's finding that the call happened."""
        return isinstance(self.record, Settled) and self.record.landed

    @property
    def settled_by(self) -> str:
        """The person who settled the call; empty for other records."""
        return self.record.by if isinstance(self.record, Settled) else ""

    @property
    def step(self) -> int:
        """Number of the call whose state the record holds; 0 for other records."""
        if isinstance(self.record, _STATES):
            return self.record.call.number
        return self.record.number if isinstance(self.record, (Settled, Answered)) else 0

    @property
    def concerns_effects(self) -> bool:
        """False for records of a plain call that was made while no failure was being handled."""
        record = self.record
        if isinstance(record, _STATES):
            return record.call.effect or record.call.unwinding is not None
        return True


CODE = "code/"
"""The prefix of the objects with the parts of versions."""


class RecordedVersion(NamedTuple):
    """A version of a step, as a run recorded it; each record of a call has the id of a version.

    An object beside the records has the parts of the version: it is written once for each version,
    step and process, in the batch of the first record that refers to it.  Copies take it along, and
    pruned records leave it.

    Rejected: the parts in the first record of each version.  A resumed run does not read the
    records before its checkpoint, and they may be pruned.

    Args:
        id: of the version.
        name, module: of the step.
        parts: a short digest of each part, by name.
        files: a digest of each file that decides about the parts, by path.
        child: a child run that recorded it; empty for the run itself.
        used_by: id of a later version that used results of this one; empty if none did.
        differs: the parts that differ between the two.
        kept: the person who said that the results stay in use; empty if nobody did.
    """

    id: str
    name: str
    module: str
    parts: Mapping[str, str]
    files: Mapping[str, str]
    child: str = ""
    used_by: str = ""
    differs: tuple[str, ...] = ()
    kept: str = ""

    @property
    def key(self) -> str:
        """The name of the object beside the records; one for all child runs.

        The names of objects are readable in an encrypted store, so the step is a digest in it.
        """
        step = hashlib.sha256(f"{self.module}:{self.name}".encode()).hexdigest()[:16]
        return f"{CODE}{self.id}/{'child/' if self.child else ''}{step}"


# -- headers -------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {cls.__name__.lower(): cls for cls in get_args(Record)}
_NAMES = {cls: name for name, cls in KINDS.items()}
TURNS = frozenset(
    _NAMES[cls]
    for cls in (
        Started, Ended, Interrupted, Suspended, Cancelling, Compensating, Resumed, Forgotten,
        Quarantined, Restored, Branched, Adopted, Superseded,
    )
)  # fmt: skip
"""The kinds of records that change the facts of their run, so that a head is written with them."""
_TUPLES = {
    cls: [place for place, kind in enumerate(cls.__annotations__.values()) if "tuple[" in str(kind)]
    for cls in KINDS.values()
}
_OF_CALLS = (*_STATES, Stopped, Ruled)


def to_header(record: Record) -> list[Any]:
    """Return the record as JSON-able facts: its kind, then the values of its fields in order."""
    return [_NAMES[type(record)], *record]


def from_header(header: list[Any]) -> Record:
    """Return the record of a verified header; the inverse of :func:`to_header`.

    Raises:
        StoreError: a newer version of stepwise wrote the record.
    """
    kind, *facts = header
    cls = KINDS.get(kind)
    if cls is None or len(facts) != len(cls._fields):
        raise StoreError(
            f"a record of the kind {kind!r}, with {len(facts)} facts, is not known to this version "
            "of stepwise: a newer one wrote it. Use that version for this store",
        )
    if cls in _OF_CALLS:
        call = Call(*facts[0])
        facts[0] = call._replace(around=tuple(call.around))
    for place in _TUPLES[cls]:
        facts[place] = (*facts[place],)  # JSON has lists only
    record: Record = cls(*facts)
    return record


def to_fields(record: Record) -> dict[str, Any]:
    """Return the record as a readable dictionary, without fields at their default value."""
    fields = _unusual(record)
    if type(record) in _OF_CALLS:
        fields["call"] = _unusual(record[0])
    return {"record": _NAMES[type(record)], **fields}


def from_fields(fields: Mapping[str, Any]) -> Record:
    """Return the record that :func:`to_fields` wrote.

    Raises:
        LookupError, TypeError: a record of that kind has other fields.
    """
    given = {**fields}
    cls: Any = KINDS[given.pop("record")]
    if cls in _OF_CALLS:
        given["call"] = Call(**given["call"])
    return from_header(to_header(cls(**given)))


def _unusual(facts: Any) -> dict[str, Any]:
    usual = facts._field_defaults
    named = zip(facts._fields, facts, strict=True)
    return {name: each for name, each in named if name not in usual or usual[name] != each}


# -- spending -------------------------------------------------------------------------------------


_NO_STEP: Mapping[str, float] = {"steps": 0}


class Sums(NamedTuple):
    """Amounts spent, according to records.

    Args:
        usd: US dollars.
        tokens: of language models, input and output.
        steps: number of executed steps.
        seconds: time in which the run was executed.
        at_least: more may have been spent than the records show.
        open: an attempt has begun, and its end is not recorded.
        cached_tokens: the input tokens that a provider's prompt cache held.
    """

    usd: float = 0.0
    tokens: float = 0
    steps: int = 0
    seconds: float = 0.0
    at_least: bool = False
    open: bool = False
    cached_tokens: float = 0


NO_SUMS = Sums()


def sums_after(before: Sums, record: Record) -> Sums:
    """Return the sums of a journal after a record is added.

    Each outcome counts as one executed step, unless it says how many steps it stands for.  A call
    settled as landed has no outcome, and counts as one step too.
    """
    if isinstance(record, Outcome):
        more = record.spent
        if not more:  # as _replace() does, but faster: runs for every step
            usd, tokens, steps, seconds, least, is_open, held = before
            facts = (usd, tokens, steps + 1, seconds, least, is_open, held)
            return tuple.__new__(Sums, facts)
        return plus(before, more if "steps" in more else {**more, "steps": 1})
    if isinstance(record, Settled):
        return plus(before, record.spent) if record.spent else before
    if isinstance(record, (Started, Resumed)):
        unknown = isinstance(record, Resumed) and record.unknown
        return before._replace(open=True, at_least=before.at_least or unknown)
    if isinstance(record, (Ended, Interrupted, Suspended)):
        return plus(before, record.rest)._replace(open=False)
    return before


def uncounted(record: Record) -> Record:
    """Return a record that adds no amounts, for a call that another run has executed."""
    if isinstance(record, Outcome):
        return record._replace(spent=_NO_STEP)
    if isinstance(record, Settled):
        return record._replace(spent=_NOTHING)
    if isinstance(record, Resumed):
        return record._replace(unknown=False)
    if isinstance(record, (Ended, Interrupted, Suspended)):
        return record._replace(rest=_NOTHING)
    return record


def shared_entry(entry: Entry, branched: Branched) -> Entry:
    """Return a record of another run as a fork or a branch has it.

    The new run pays for nothing that it shares, undoes none of it, and asks its own questions.
    """
    _, record, payload = entry
    if isinstance(record, _STATES):
        renewed = branched.again.get(str(record.call.number))
        if renewed is not None:
            key, child = renewed
            record = record._replace(call=record.call._replace(key=key, child=child))
        elif isinstance(record, Intent):
            record, payload = record._replace(form=None), b""
        if isinstance(record, Waiting) and record.kind == "approval":
            record, payload = record._replace(ticket="", digest="", form=None), b""
    elif isinstance(record, Started):
        record = record._replace(
            at=branched.at,
            forked_from=branched.base,
            by=branched.by,
            command=branched.command,
            cwd=branched.cwd,
            effects=branched.effects,
            trace=_NOTHING,
        )
    elif isinstance(record, (Suspended, Cancelling)):
        record = Handled((), record.at)  # what was to end its base does not concern the new run
    return Entry(entry.number, uncounted(record), payload)


def plus(before: Sums, more: Mapping[str, Any]) -> Sums:
    """Return sums with the amounts of a record added, by unit."""
    return Sums(
        before.usd + more.get("usd", 0),
        before.tokens + more.get("tokens", 0),
        before.steps + int(more.get("steps", 0)),
        before.seconds + more.get("seconds", 0),
        before.at_least or bool(more.get("at_least")),
        before.open,
        before.cached_tokens + more.get("cached", 0),
    )


def together(*all_of: Sums) -> Sums:
    """Add several sums."""
    usd, tokens, steps, seconds, at_least, _, held = zip(NO_SUMS, *all_of, strict=True)
    amounts = sum(usd), sum(tokens), sum(steps), sum(seconds)
    return Sums(*amounts, any(at_least), cached_tokens=sum(held))


def difference(sums: Sums, less: Sums) -> Sums:
    """Return the amounts of a child run beyond earlier ones; its time is part of its parent's."""
    return Sums(
        max(0.0, sums.usd - less.usd),
        max(0, sums.tokens - less.tokens),
        max(0, sums.steps - less.steps),
        0.0,
        sums.at_least,
        cached_tokens=max(0, sums.cached_tokens - less.cached_tokens),
    )


class Claims:
    """The child runs that a run has announced, and their amounts in the run's records.

    A child run may be executed in several attempts of one call; each outcome of the call holds only
    the amounts that earlier outcomes lack.
    """

    def __init__(self) -> None:
        self.said: dict[int, Sums] = {}  # by the number of the call
        self.open: dict[int, str] = {}  # the child runs without an outcome, by call number

    def take(self, record: Record) -> None:
        """Take the next record of the run into account."""
        if isinstance(record, Intent):
            if record.call.child:
                self.said.setdefault(record.call.number, NO_SUMS)
                self.open[record.call.number] = record.call.child
        elif isinstance(record, Outcome) and record.call.child:
            number, spent = record.call.number, record.spent
            before = self.said.get(number, NO_SUMS)
            self.said[number] = plus(before, spent)
            self.open.pop(number, None)
