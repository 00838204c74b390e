"""Records of the journal: frozen facts, their form as a header, and what they say was spent.

A record has a header (JSON, this module) and at most one payload (an encoded value or exception).
Everything that a listing shows is in the header, so that looking at a run never unpickles.

The end of a journal (:class:`.journal.Position`) carries the sums of what the records before it say
was spent, each counted once, as it carries the number of side effects.  A checkpoint keeps that
position, so that a resumed run and a reader know the sums without the records, pruned ones
included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from stepwise._runtime.facts import NamedTuple
from stepwise.errors import StoreError

# -- records --------------------------------------------------------------------------------------


StepStatus = Literal["completed", "failed", "cancelled"]
WaitKind = Literal["time", "signal", "approval"]

_NOTHING: Mapping[str, str] = {}
_NO_USAGE: Mapping[str, Any] = {}

WAITS = "stepwise"
"""The module of the calls that wait."""

ANY_ERROR = 0
"""``Call.unwinding`` for an exception that no recorded step raised; numbers of calls begin at 1."""


class Call(NamedTuple):
    """One call of a step, tool or child workflow in a run.

    Args:
        number: unique in the run, growing; what ``stepwise show`` lists.
        name: the step's name.
        module: where the step is defined.
        digest: of its arguments.
        ordinal: how many-th call of that name in the run.
        scope: name of the step that made the call; empty for the workflow itself.
        unwinding: number of the failed call that was being handled, ``ANY_ERROR`` for another
            exception, ``None`` if none was.
        place: structural path of the workflow's statement; empty if unknown.
        site: ``file:line`` of the caller.
        arguments: shortened text of them.
        effect: it has side effects, or is a child workflow.
        key: idempotency key; empty for a plain step, where it follows from the rest.
        child: run id, for a child workflow.
        at: when it began, seconds since 1970.
        branch: of the branches that an executor runs side by side, the one that makes the call.
        serial: number in the run of the instance that is called; 0 for a plain function.
        parts: short digests of what tells the call from others, by name; see ``identity``.
        instead: number of the recorded call of its name and ordinal, which did not answer it.
        code: fingerprint of the function's body, its own name left out; empty if it has none.
        around: numbers of the steps that were executing it, the outermost first.
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
    """The run begins.  Payload: its arguments, where they can be recorded.

    Args:
        forked_from: the run that this one is a fork of.
        command, cwd: how the program was started, and where; empty if that is not known.
        form: of the payload; see :func:`stepwise._execution.outcomes.record_inputs`.  ``None`` for
            one that holds the mutable arguments only.
        secrets, hidden: as of :class:`RunFacts`.
        parts: what tells its call apart, by name; ``None`` if that is not known.
        tags: texts by name, for people who look for the run.
        trace: what the process's tracer gave: the attempt's place in a trace, by name.
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


class Resumed(NamedTuple):
    """An attempt after the first one begins.

    Args:
        void: the end recorded before it does not count, since the caller had not acted on it.
        command, cwd, trace: as of :class:`Started`.
        unknown: the attempt before ended without a record: it may have spent more than its records
            say.
        seen: number of the last message of the inbox, if the attempt before had ended: requests to
            cancel the run that came by then are over.
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
        ticket: of the question that a person answered with yes; empty if none was asked.
    """

    call: Call
    form: str | None = None
    ticket: str = ""


class Waiting(NamedTuple):
    """A call waits: for a time, for a signal, or for a person.

    Payload of an approval: the arguments that the person sees, by name.  A later record of the same
    call takes the place of this one: a wait that begins again, a question that is asked anew.

    Args:
        name: of the signal; of an approval, the question.
        until: when it ends by itself, in seconds since 1970; ``None`` for never.
        seconds: how long it was to last when it began; ``None`` if only a moment was given.
        ticket: of this question, which an answer has to name; random.
        digest: of an approval: of all arguments of the call, ``key=`` and ``ignore=`` disregarded.
        schema: of a signal: the JSON schema of its values, as JSON; empty if any value will do.
        details: of an approval: what the person is shown, as text.
        form: of the payload.
        approvers: of an approval: the public keys of those who may answer; empty for anybody.
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
    """A person answered the question of a call that waits for it.

    Args:
        number: of the call.
        ticket: of the question.
        by: who answered, as the answering process knows it (``user@host``).
        note: what the person said about it; of a denial, the reason.
        message: number of the answer in the inbox.
        sent_at: when the person answered; ``at`` is when the run took it.
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
    """A message of the inbox was met by the call that waited for it, and does not fit.

    Args:
        message: number in the inbox.
        number: of the call.
        name: of the signal; of an answer, the ticket of the question.
        why: in words.
    """

    message: int
    number: int
    name: str
    why: str
    at: float = 0.0


class RunWait(NamedTuple):
    """One thing that a suspended run waits for.

    Args:
        number: of the call.
        kind, name, until, ticket: as of :class:`Waiting`.
        since: when the wait began, in seconds since 1970.
        run: the child run whose call it is; empty for the run itself.
        seen: number of the last message in that run's inbox that was looked at.
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
        """The event that it waits for, in words."""
        return {
            "time": "for its time",
            "signal": f"for the signal {self.name!r}",
            "approval": f"for an answer to {self.name!r}",
        }[self.kind]


class Suspended(NamedTuple):
    """The attempt ended, since all that is left to do is to wait.

    Args:
        waits: what for, as values of :class:`RunWait`.
        seen: number of the last message of the inbox that was looked at.
        rest: as of :class:`Ended`.
    """

    waits: tuple[Any, ...]
    seen: int = 0
    at: float = 0.0
    rest: Mapping[str, float] = _NO_USAGE


class Cancelling(NamedTuple):
    """Somebody asked for the end of the run; it unwinds.

    Args:
        by: who asked (``user@host``).
        reason: in words; may be empty.
        message: number of the request in the inbox; 0 if it was written to the journal directly.
    """

    by: str = ""
    reason: str = ""
    message: int = 0
    at: float = 0.0


class Outcome(NamedTuple):
    """A call ended.  Payload: its value or its exception.

    Args:
        clean: a failure that proves that nothing happened.
        inner: numbers of the calls that it made or was answered, to any depth.
        preview: the value or the exception, shortened.
        changed: objects that it was given, name and kind, if it changed any; the payload then
            holds what they became, too.
        form: see :class:`stepwise._values.codec.Encoded`.
        state: parts of the call's identity that turned out to be state, since it changed them.
        awaited: ``coroutine`` or ``task`` if a function that is no coroutine function returned
            such, which was awaited for the outcome.
        usage: of a model request, its model and tokens; see :class:`stepwise.Event`.
        message: number in the inbox of the message that a wait for a signal took; 0 for none.
        spent: what the call spent that no other record says, its failed attempts included, by unit:
            ``usd``, ``tokens``, ``seconds``, and ``steps`` if it is not one; see ``spending``.
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
    usage: Mapping[str, Any] = _NO_USAGE
    message: int = 0
    spent: Mapping[str, float] = _NO_USAGE


class AttemptFailed(NamedTuple):
    """An attempt of a step failed after it had made calls, which is what its retry starts from.

    Args:
        number: of the step's call; 0 for the step loop of an agent.
        superseded: plain calls that the next attempt makes again: those after the last side effect.
        retry, spent: as of :class:`Ended`.
    """

    number: int
    superseded: tuple[int, ...] = ()
    retry: tuple[int, ...] = ()
    spent: tuple[int, ...] = ()
    at: float = 0.0


class Handled(NamedTuple):
    """The workflow went on after these failed or cancelled calls: that is their outcome."""

    numbers: tuple[int, ...]
    at: float = 0.0


class Settled(NamedTuple):
    """A person settled a call in doubt.  Payload, if it landed: its value.

    Args:
        spent: by a call that landed and has no outcome, as of :class:`Outcome`: it was a step.
    """

    number: int
    landed: bool
    preview: str = ""
    form: str | None = None
    at: float = 0.0
    spent: Mapping[str, float] = _NO_USAGE


class Stopped(NamedTuple):
    """The run stopped at a call, which could be a recorded side effect with other arguments.

    Args:
        steps: numbers of the recorded calls that it could be.
        records: numbers of the records that hold the arguments of those.
    """

    call: Call
    steps: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    at: float = 0.0


class Ruled(NamedTuple):
    """A person resolved which act a stopped call is.

    Args:
        call: as it was when the run stopped at it.
        steps: the recorded call that it is; or those that it is not.
        same: which of these.
        beside: they are not, and the stopped tool had been called when the steps were made: it is
            another tool, not the same one with a new name.
    """

    call: Call
    steps: tuple[int, ...]
    same: bool
    at: float = 0.0
    beside: bool = False


class Forgotten(NamedTuple):
    """These calls are to run again."""

    numbers: tuple[int, ...]
    at: float = 0.0


class Compensating(NamedTuple):
    """A call is about to be undone; ``key`` is the compensation's own idempotency key."""

    number: int
    key: str
    at: float = 0.0


class Compensated(NamedTuple):
    """A call was undone, and counts as not made."""

    number: int
    preview: str = ""
    at: float = 0.0


class Restored(NamedTuple):
    """The journal was put back from a backup, which lacks everything recorded since."""

    at: float = 0.0


class Quarantined(NamedTuple):
    """These records cannot be read, which is known; so many intents are among them or gone."""

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
        rest: what the attempt spent that no outcome of a call says, by unit.
        again: why a call of the run has its journal make the end anew, in words; empty if this
            record answers.  A payload beside it is for who looks at the run.
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
    rest: Mapping[str, float] = _NO_USAGE
    again: str = ""

    @property
    def answers(self) -> bool:
        """True if a call of the run is answered by this record alone."""
        return self.recorded and not self.again


SUBMITTED = "submitted"
"""Why an attempt ended that only put the run on record, for another process to execute."""


class Interrupted(NamedTuple):
    """The attempt ended in good order, and the run did not.

    Args:
        why: in words: Ctrl-C, a cancellation, a caller that stopped iterating, a budget.
        decided: somebody stopped the run on purpose, so that nothing brings it back by itself.
            Otherwise its process was told to end, or a call stopped the run: it counts as crashed,
            but not as a run that died.
        rest: as of :class:`Ended`.
    """

    why: str = ""
    at: float = 0.0
    decided: bool = True
    rest: Mapping[str, float] = _NO_USAGE


Record = (
    Started
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
"""Records that hold the call whose state they are."""

ANNOUNCES = (Intent, Compensating, Cancelling)
"""Records that announce an outside change before it is made, or a person's decision to end the run:
none may be lost without a question.  The envelope counts these."""


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


class RunFacts(NamedTuple):
    """The facts that a listing shows of a run; kept in the store's head, derived from the journal.

    Args:
        workflow: its full name (``/path/agent.py:agent``).
        label: its short name (``agent``).
        digest: of the arguments.
        code: fingerprint of the workflow's code.
        parent: run id of the run that called it; empty for none.
        forked_from: run id of the run that this one is a fork of; empty for none.
        error: what a failed run raised, or what interrupted it.
        end: number of the record that ended it; 0 while there is none.
        pruned: number of the last record that was pruned.
        undoing: its side effects are being undone.
        undone: how often they were, or are.
        codec: how its values are recorded; see :class:`stepwise._values.codec.Codec`.
        created_at, updated_at: seconds since 1970.
        secrets: names of the arguments that are not recorded, with spaces between them.
        hidden: names of the arguments that are not shown as they are.
        parts: what tells its call apart, by name, as short digests; ``None`` if not known.
        restored: it was put back from a backup; side effects that it does not know are in doubt.
        tags: texts by name, for people who look for the run.
        trace: of the newest attempt; see :class:`Started`.
        waits: what a suspended run waits for.
        seen: number of the last message of its inbox that a suspended run had looked at.
        cancelling: who asked for its end and why, in words, while it has not ended; or empty.
        cancels: number of the last message of its inbox that is no new request to cancel it.
        tally: of the records up to an end of the run; later records make it stale.
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

    def reopened(self, at: float) -> RunFacts:
        """Return the facts without an end; what somebody stopped stays so until it is called."""
        kept = ("interrupted", "cancelled")
        status: Any = self.status if self.status in kept else "running"
        return self._replace(status=status, end=0, updated_at=at)


class Entry(NamedTuple):
    """A record in its place in the journal."""

    number: int
    record: Record
    payload: bytes

    @property
    def call(self) -> Call | None:
        """The call that the record announces, or whose wait or outcome it is."""
        return self.record.call if isinstance(self.record, _STATES) else None

    @property
    def outcome(self) -> Outcome | None:
        """The record, if it is an outcome."""
        return self.record if isinstance(self.record, Outcome) else None

    @property
    def ended(self) -> Ended | None:
        """The record, if it is the end of an attempt."""
        return self.record if isinstance(self.record, Ended) else None

    @property
    def waits(self) -> bool:
        """True if the record says that a call waits, or what a person answered to it."""
        return isinstance(self.record, (Waiting, Answered))

    @property
    def landed(self) -> bool:
        """True if the record is a person's finding that the call happened."""
        return isinstance(self.record, Settled) and self.record.landed

    @property
    def step(self) -> int:
        """The number of the call whose state the record holds; 0 for other records."""
        if isinstance(self.record, _STATES):
            return self.record.call.number
        return self.record.number if isinstance(self.record, (Settled, Answered)) else 0

    @property
    def concerns_effects(self) -> bool:
        """False for the records of a plain call that was made while no failure was handled."""
        record = self.record
        if isinstance(record, _STATES):
            return record.call.effect or record.call.unwinding is not None
        return True


# -- headers -------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {cls.__name__.lower(): cls for cls in get_args(Record)}
_NAMES = {cls: name for name, cls in KINDS.items()}
_TURNS = frozenset(
    _NAMES[cls]
    for cls in (
        Started, Ended, Interrupted, Suspended, Cancelling, Compensating, Resumed, Forgotten,
        Quarantined, Restored,
    )
)  # fmt: skip
_TUPLES = {
    cls: [place for place, kind in enumerate(cls.__annotations__.values()) if "tuple[" in str(kind)]
    for cls in KINDS.values()
}
_OF_CALLS = (*_STATES, Stopped, Ruled)


def is_turn(header: list[Any]) -> bool:
    """Return whether a record changes the facts of its run, so that a head is written with it."""
    return header[0] in _TURNS


def to_header(record: Record) -> list[Any]:
    """Return the record as JSON-able facts: its kind, and its fields' values in their order."""
    return [_NAMES[type(record)], *record]


def from_header(header: list[Any]) -> Record:
    """Return the record of a verified header; the inverse of :func:`to_header`.

    Raises:
        StoreError: a newer version of stepwise wrote it.
    """
    kind, *facts = header
    cls = KINDS.get(kind)
    if cls is None or len(facts) != len(cls._fields):
        raise StoreError(
            f"a record of the kind {kind!r}, with {len(facts)} facts, is not known to this version "
            "of stepwise: a newer one wrote it. Use that version for this store",
            path="",
            errno=None,
        )
    if cls in _OF_CALLS:
        call = Call(*facts[0])
        facts[0] = call._replace(around=tuple(call.around))
    for place in _TUPLES[cls]:
        facts[place] = (*facts[place],)  # JSON has lists only
    record: Record = cls(*facts)
    return record


# -- spending -------------------------------------------------------------------------------------


_NO_AMOUNTS: Mapping[str, Any] = {}
_NO_STEP: Mapping[str, float] = {"steps": 0}


class Sums(NamedTuple):
    """Amounts that records say were spent.

    Args:
        usd: US dollars.
        tokens: of language models, input and output.
        steps: that were executed.
        seconds: in which the run was executed.
        at_least: something may have been spent that no record says.
        open: an attempt has begun, and its end is not recorded.
    """

    usd: float = 0.0
    tokens: float = 0
    steps: int = 0
    seconds: float = 0.0
    at_least: bool = False
    open: bool = False


NO_SUMS = Sums()


def sums_after(before: Sums, record: Record) -> Sums:
    """Return the sums of a journal to which a record is added.

    Each outcome is a step that was executed, unless it says how many steps it stands for.  So is
    a call that was settled as landed, which has no outcome.
    """
    if isinstance(record, Outcome):
        more = record.spent
        if not more:  # as _replace() does it, but faster: it is asked for every step
            usd, tokens, steps, seconds, at_least, is_open = before
            return tuple.__new__(Sums, (usd, tokens, steps + 1, seconds, at_least, is_open))
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
    """Return a record that counts nothing: of a call that another run has executed."""
    if isinstance(record, Outcome):
        return record._replace(spent=_NO_STEP)
    if isinstance(record, Settled):
        return record._replace(spent=_NO_AMOUNTS)
    if isinstance(record, Resumed):
        return record._replace(unknown=False)
    if isinstance(record, (Ended, Interrupted, Suspended)):
        return record._replace(rest=_NO_AMOUNTS)
    return record


def plus(before: Sums, more: Mapping[str, Any]) -> Sums:
    """Return sums to which the amounts of a record are added, by unit."""
    return Sums(
        before.usd + more.get("usd", 0),
        before.tokens + more.get("tokens", 0),
        before.steps + int(more.get("steps", 0)),
        before.seconds + more.get("seconds", 0),
        before.at_least or bool(more.get("at_least")),
        before.open,
    )


def together(*all_of: Sums) -> Sums:
    """Return the sum of several sums."""
    usd, tokens, steps, seconds, at_least, _ = zip(NO_SUMS, *all_of, strict=True)
    return Sums(sum(usd), sum(tokens), sum(steps), sum(seconds), any(at_least))


def difference(sums: Sums, less: Sums) -> Sums:
    """Return what some sums of a child run say beyond others; its time is its parent's, too."""
    return Sums(
        max(0.0, sums.usd - less.usd),
        max(0, sums.tokens - less.tokens),
        max(0, sums.steps - less.steps),
        0.0,
        sums.at_least,
    )


class Claims:
    """The child runs that a run has announced, and what its records say that they have spent.

    A child run may be executed in several attempts of one call, and each outcome of the call says
    what no earlier one said.
    """

    def __init__(self) -> None:
        self.said: dict[int, Sums] = {}  # by the number of the call
        self.open: dict[int, str] = {}  # the child runs without an outcome, by the same

    def take(self, record: Record) -> None:
        """Take the next record."""
        if isinstance(record, Intent):
            if record.call.child:
                self.said.setdefault(record.call.number, NO_SUMS)
                self.open[record.call.number] = record.call.child
        elif isinstance(record, Outcome) and record.call.child:
            number, spent = record.call.number, record.spent
            before = self.said.get(number, NO_SUMS)
            self.said[number] = plus(before, spent)
            self.open.pop(number, None)
