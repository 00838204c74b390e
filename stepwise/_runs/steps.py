"""The parts of a run as people see them: its facts, checkpoints, stops and steps.

A call has two places in the journal: its first record and its last record.  One pass notes both as
numbers, and a second pass builds the steps.  One pass is not enough: the end of a call may be
recorded long after the calls that follow it.
"""

from __future__ import annotations

import errno
import math
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from stepwise._calls.doubt import ruling_commands
from stepwise._checkpoints.checkpoints import PREFIX, Loaded, load_checkpoint, number_of
from stepwise._checkpoints.references import Vault
from stepwise._display.render import facts_html, step_html
from stepwise._execution.budget import Spent
from stepwise._execution.inputs import inputs_name
from stepwise._execution.suspension import pending
from stepwise._execution.viewer import attempts_with_frames, view, view_frames, view_inputs
from stepwise._identity.identity import shown_part, shown_parts
from stepwise._journal.journal import (
    Journal,
    Position,
    entries_of,
    facts_of,
    is_ready,
    newest_mark,
    place_of_run,
    read,
    read_one,
    recorded_versions,
)
from stepwise._journal.lease import is_served
from stepwise._journal.projection import Calls, Places
from stepwise._journal.records import OVER, Call, Entry, RunFacts
from stepwise._journal.run_facts import Course, Stop, stops_in
from stepwise._journal.seal import Seal
from stepwise._journal.summary import deaths_of
from stepwise._matching.pool import differing, key_of
from stepwise._runtime.facts import NamedTuple, PlainFacts, public
from stepwise._runtime.messages import printable, shell_word
from stepwise.errors import (
    RunNotFoundError,
    RunStopped,
    StepwiseError,
    StoreError,
    UnreadableValueError,
)
from stepwise.stores import Owner, Store

T = TypeVar("T")

# -- as dict --------------------------------------------------------------------------------------


RunStatus = Literal[
    "running",
    "completed",
    "failed",
    "interrupted",
    "crashed",
    "stuck",
    "ready",
    "suspended",
    "cancelling",
    "cancelled",
    "superseded",
]


UNFINISHED = ("crashed", "stuck", "failed", "interrupted", "ready", "suspended")
"""The statuses of runs that resume when their program is started again."""


_SCORE = "stepwise._workflows.evaluation:score"


def is_inner(facts: RunFacts, *, chosen: bool = False) -> bool:
    """Return whether a list leaves a run out that nobody started: a child run, or a score.

    Args:
        chosen: True to keep the scores of ``evaluate``, since the workflow or the tags of the runs
            were chosen.
    """
    return bool(facts.parent) or (facts.workflow == _SCORE and not chosen)


def known_facts(store: Store, seal: Seal, run_id: str) -> RunFacts:
    """Return the facts of a run that existed a moment ago.

    Raises:
        RunNotFoundError: the run was deleted since.
        JournalLostError: acknowledged records of side effects are lost.
    """
    facts = facts_of(store, seal, run_id)
    # Whoever deletes a run holds its lease until no mark of it is left.
    if facts is None and store.owner(run_id) is None:
        Journal(store, seal, run_id, 0, fsync=True).load()  # raises if it is lost
        is_marked = newest_mark(store, seal, run_id).last
        facts = facts_of(store, seal, run_id)  # it may have begun meanwhile
        if facts is None and is_marked:
            raise RunNotFoundError(
                f"{gone(store, run_id)}: only marks of it are left. Put the folder back from a "
                "backup and run stepwise restore, or delete them: "
                f"stepwise forget {shell_word(run_id)}",
                run_id=run_id,
            )
    if facts is None:
        raise gone(store, run_id)
    return facts


_LOOKS = 100  # at a run that moves each time


def settled(
    store: Store, seal: Seal, run_id: str, read: Callable[[RunFacts, Owner | None], T]
) -> T:
    """Return what a function reads of a run, as of one moment.

    The function is called again if an attempt began or ended, or records were pruned, meanwhile:
    what was read earlier and later would not fit, and an error might be of no moment at all.

    Args:
        read: called with the facts of the run and the process that executes it; may raise
            :func:`moved`.

    Raises:
        RunNotFoundError: there is no such run, or it was deleted meanwhile.
        StoreError: the run moved during each attempt.
    """
    for _ in range(_LOOKS):
        facts = known_facts(store, seal, run_id)
        owner = store.owner(run_id)
        try:
            found = read(facts, owner)
        except (StepwiseError, RunStopped) as error:
            is_over = getattr(error, "errno", None) != errno.EAGAIN
            if known_facts(store, seal, run_id) == facts and is_over:
                raise
        else:
            if known_facts(store, seal, run_id) == facts:
                return found
    raise moved(store, run_id)


def moved(store: Store, run_id: str) -> StoreError:
    """Return the error for a run of which something was replaced while it was read."""
    return StoreError(
        f"run {run_id!r} in {store.url} changes each time that it is looked at; look again",
        path=store.url,
        errno=errno.EAGAIN,
    )


class Observed(NamedTuple):
    """How a run stands at one moment: its facts, the process that executes it, its status."""

    facts: RunFacts
    owner: Owner | None
    status: RunStatus


def standing(store: Store, seal: Seal, facts: RunFacts, owner: Owner | None) -> Observed:
    """Return how a run stands, by its facts and the process that executes it."""
    return Observed(facts, owner, status_of(store, seal, facts, owned=owner is not None))


def owned(store: Store, seal: Seal, facts: RunFacts) -> tuple[RunFacts, Owner | None]:
    """Return the facts of a run and the process that executes it, as of one moment.

    Args:
        facts: of the run, as they were a moment ago.

    Raises:
        RunNotFoundError: the run was deleted since.
    """
    owner = store.owner(facts.run_id) if facts.status == "running" else None
    if facts.status != "running" or owner is not None:
        return facts, owner
    return settled(store, seal, facts.run_id, lambda *both: both)  # it may have ended since


def facts_to_go_on(store: Store, seal: Seal, run_id: str) -> RunFacts:
    """Return the facts of a run, or of the adopted branch that goes on instead of it.

    Raises:
        RunNotFoundError: the run or that branch was deleted.
    """
    facts = known_facts(store, seal, run_id)
    while facts.superseded:
        branch = facts_of(store, seal, facts.superseded)
        if branch is None:
            raise RunNotFoundError(
                f"run {run_id!r} is superseded: {instead(store, seal, facts)}",
                run_id=facts.superseded,
            )
        facts = branch
    return facts


def top_facts(store: Store, seal: Seal, facts: RunFacts) -> RunFacts:
    """Return the facts of the outermost run: the run itself, or one that called it."""
    while facts.parent and (outer := facts_of(store, seal, facts.parent)) is not None:
        facts = outer
    return facts


def instead(store: Store, seal: Seal, facts: RunFacts) -> str:
    """Return in words which branch goes on instead of a run, or that it was deleted since."""
    branch = facts.superseded
    if facts_of(store, seal, branch) is not None:
        return f"{branch} goes on instead"
    return (
        f"{branch} went on instead, and is gone, with what it returned. To begin anew: "
        f".options(fresh=True), or stepwise forget {shell_word(facts.run_id)}"
    )


def command_to_begin(facts: RunFacts) -> str:
    """Return the command that begins a submitted run."""
    place = place_of_run(facts)
    name = os.path.splitext(os.path.basename(place))[0] if os.path.isabs(place) else place
    return f"stepwise up {shell_word(name)}"


def begins_text(store: Store, facts: RunFacts) -> str:
    """Return in words how a submitted run begins, and whether somebody is there to begin it."""
    nobody = "" if is_served(store, facts.workflow) else "; no stepwise up has it now"
    return f"by {command_to_begin(facts)}{nobody}"


def gone(store: Store, run_id: str) -> RunNotFoundError:
    """Return the error for a run that was deleted."""
    return RunNotFoundError(f"run {run_id!r} is gone from {store.url}", run_id=run_id)


def status_of(store: Store, seal: Seal, facts: RunFacts, *, owned: bool) -> RunStatus:
    """Return the status of a run, as a listing shows it.

    Args:
        owned: True if a process is executing the run.
    """
    if facts.superseded:
        return "superseded"
    unwinds = facts.cancelling and facts.status not in OVER
    if unwinds or (facts.undoing and facts.status == "cancelled"):
        return "cancelling"
    if facts.status != "running" or owned:
        return facts.status
    if is_ready(facts):
        return "ready"
    is_stuck = deaths_of(store, seal, facts).are_deadly
    # An attempt that has begun since is no death.
    return "stuck" if is_stuck and facts_of(store, seal, facts.run_id) == facts else "crashed"


def or_why(read: Callable[[], Any]) -> Any:
    """Return what a function reads, or why it cannot be shown: a text in brackets."""
    try:
        return read()
    except UnreadableValueError as problem:
        return f"({problem})"


def duration_of(facts: RunFacts) -> float | None:
    """Return the seconds from the start of a run to its end; ``None`` before its end."""
    if facts.status in ("running", "suspended"):
        return None
    return max(0.0, facts.updated_at - facts.created_at)


def error_line(preview: str) -> str:
    """Return ``Name: text`` for the ``repr`` of an exception; another ``repr`` stays as it is."""
    match = re.fullmatch(r"(\w+)\((['\"])([^\\]*)\2\)", preview)
    return f"{match[1]}: {match[3]}" if match is not None else preview


def text_of_error(error: BaseException) -> str:
    """Return ``Name: text`` of an exception, even if its ``__str__`` fails."""
    name = type(error).__name__
    try:
        return printable(f"{name}: {error}")
    except Exception as problem:
        return f"{name} (its text cannot be shown: {type(problem).__name__})"


def run_dict(standing: Observed, counts: Mapping[str, int], spent: Spent) -> dict[str, Any]:
    """Return the facts of a run that a listing shows, as plain data.

    Args:
        counts: the number of steps by status.
        spent: the spending of the run.
    """
    facts, owner, status = standing
    return {
        "id": facts.run_id,
        "workflow": facts.workflow,
        "label": facts.label,
        "arguments": facts.arguments,
        "status": status,
        "tags": dict(facts.tags),
        "error": error_line(facts.error) if facts.error else None,
        "counts": dict(counts),
        "spent": spent.to_dict(),
        "duration": duration_of(facts),
        "waits": [each.to_dict() for each in pending(facts)],
        "created_at": facts.created_at,
        "updated_at": facts.updated_at,
        "parent": facts.parent or None,
        "forked_from": facts.forked_from or None,
        "forked_by": facts.forked_by or None,
        "superseded_by": facts.superseded or None,
        "owner": None if owner is None else {"pid": owner.pid, "host": owner.host},
    }


# -- checkpoints ----------------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class RunCheckpoint(PlainFacts):
    """A checkpoint of a run, as :attr:`Run.checkpoints` lists it.

    Args:
        number: the number of the journal record that the checkpoint follows.
        step: the number of steps that were done before it.
        position: ``file:line`` of the last executed statement.
        size: the size in bytes.
        created_at: the time of the checkpoint, in seconds since 1970.
        verified: True if its contents verify; otherwise the run resumes at an older checkpoint.
    """

    number: int
    step: int
    position: str
    size: int
    created_at: float
    verified: bool

    def _repr_html_(self) -> str:
        facts = {name: str(value) for name, value in self.to_dict().items()}
        return facts_html(f"checkpoint after step {self.step}, at {self.position}", facts)


def newest_checkpoint(
    store: Store, seal: Seal, run_id: str, at: int | None = None
) -> Loaded | None:
    """Return the newest checkpoint that verifies, or ``None``.

    Args:
        at: consider only checkpoints after this many steps or fewer.
    """
    for _ in range(_LOOKS):
        try:
            found = kept_checkpoints((store, seal, run_id))
            return next((each for each in found if at is None or each.state.step <= at), None)
        except StoreError as error:  # newer ones have taken the place of one meanwhile
            if error.errno != errno.EAGAIN:
                raise
    raise moved(store, run_id)


def kept_checkpoints(place: Place, until: float = math.inf) -> Iterator[Loaded]:
    """Yield the checkpoints that verify, the newest first.

    Args:
        until: the number of the last record that they may follow.

    Raises:
        StoreError: one was deleted since; see :func:`moved`.
    """
    store, _, run_id = place
    vault = Vault(*place)
    for name in reversed(store.names(run_id, PREFIX)):
        loaded = listed_checkpoint(place, name, vault) if number_of(name) <= until else None
        if loaded is not None:
            yield loaded


def checkpoint_at(store: Store, seal: Seal, run_id: str, at: int, course: Course) -> Loaded | None:
    """Return the newest checkpoint after ``at`` steps or fewer, as :func:`newest_checkpoint` does.

    Within one attempt, a later checkpoint has as many steps or more.  So a run that keeps all its
    checkpoints is searched by halving its attempts, the newest first.

    Args:
        course: the attempts of the run.
    """
    place, names = (store, seal, run_id), store.names(run_id, PREFIX)
    for began, *_ in reversed(course.resumes):
        first = bisect_left(names, began, key=number_of)
        found = _last_until(place, names[first:], at)
        if found is not None:
            return found
        names = names[:first]
    if course.resumed == len(course.resumes):
        return _last_until(place, names, at)
    last = number_of(names[-1]) if names else 0
    found_ones = kept_checkpoints(place, last)  # of several attempts
    return next((each for each in found_ones if each.state.step <= at), None)


def listed_checkpoint(place: Place, name: str, vault: Vault | None = None) -> Loaded | None:
    """Return a checkpoint that was listed, or ``None`` if it does not verify.

    Args:
        vault: what was read of the run for other checkpoints.

    Raises:
        StoreError: it was deleted since; see :func:`moved`.
    """
    store, _, run_id = place
    loaded = load_checkpoint(vault or Vault(*place), name)
    if loaded is None and store.get(run_id, name) is None:
        raise moved(store, run_id)
    return loaded


def _last_until(place: Place, names: list[str], at: int) -> Loaded | None:
    """Return the last checkpoint after ``at`` steps or fewer, of checkpoints of one attempt."""
    vault, low, high, found = Vault(*place), 0, len(names), None
    while low < high:
        middle = (low + high) // 2
        loaded = listed_checkpoint(place, names[middle], vault)
        if loaded is None:  # it does not verify
            del names[middle]
            high -= 1
        elif loaded.state.step <= at:
            low, found = middle + 1, loaded
        else:
            high = middle
    return found


def checkpoints_of(
    store: Store, seal: Seal, run_id: str
) -> list[tuple[RunCheckpoint, Loaded | None]]:
    """Return the checkpoints of a run, oldest first, each with its content if it verifies."""
    found: list[tuple[RunCheckpoint, Loaded | None]] = []
    vault, met, is_gone = Vault(store, seal, run_id), set[str](), True
    while is_gone:  # newer ones have taken the place of one that was listed
        is_gone = False
        for name in store.names(run_id, PREFIX):
            data = None if name in met else store.get(run_id, name)
            is_gone = is_gone or (data is None and name not in met)
            met.add(name)
            if data is None:
                continue
            loaded, number = load_checkpoint(vault, name), number_of(name)
            if loaded is not None:
                state = loaded.state
                facts = state.step, state.where, len(data), state.at
                found.append((RunCheckpoint(number, *facts, verified=True), loaded))
            elif store.get(run_id, name) is None:
                is_gone = True
            else:
                unread = RunCheckpoint(number, 0, "", len(data), 0.0, verified=False)
                found.append((unread, None))
    return found


# -- stops ----------------------------------------------------------------------------------------


@public
@dataclass(frozen=True)
class PossibleStep:
    """A recorded side effect that a stopped call could be.

    Args:
        number: the number of the recorded step.
        name: the name of the step.
        arguments: shortened text of the recorded arguments.
        differs: the parts of the call (arguments by name) in which the two calls differ.
    """

    number: int
    name: str
    arguments: str
    differs: tuple[str, ...]

    @property
    def why(self) -> str:
        """The differing parts, in words."""
        return shown_parts(self.differs)


@public
@dataclass(frozen=True)
class StoppedCall:
    """A call at which a run stopped, to be answered with :meth:`Run.resolve`.

    Args:
        stop: the number of the stop, for ``resolve(..., stop=...)``.
        name: the name of the step or tool.
        arguments: shortened text of the arguments.
        site: the ``file:line`` that made the call.
        at: the time of the stop, in seconds since 1970.
        could_be: the recorded side effects that the call could be.
        said: the answer, ``same`` or ``another``; ``None`` while there is no answer.
        step: the number of the recorded step that the call is, if the answer is ``same``.
        by: the person who gave the answer (``user@host``); empty while there is no answer.
        commands: the commands that give an answer.
        meanings: the meaning of each command, in the same order.
    """

    stop: int
    name: str
    arguments: str
    site: str
    at: float
    could_be: tuple[PossibleStep, ...]
    said: str | None
    step: int | None
    by: str
    commands: tuple[str, ...]
    meanings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, for JSON."""
        return asdict(self)


def stopped_calls(
    store: Store, seal: Seal, run_id: str, numbers: Iterable[int]
) -> list[StoppedCall]:
    """Return the stopped calls in these records of stops and answers.

    Args:
        numbers: the numbers of the records.
    """

    def records(numbers: Iterable[int]) -> list[Entry]:
        found = (read_one(store, seal, run_id, number) for number in numbers)
        return [each for each in found if each is not None]

    stops = stops_in(records(numbers))
    return [
        _stopped(run_id, stop, [e.call for e in records(stop.records) if e.call is not None], stops)
        for stop in stops
    ]


def _stopped(run_id: str, stop: Stop, others: list[Call], stops: list[Stop]) -> StoppedCall:
    call, ruled = stop.call, stop.ruled
    said = None if ruled is None else ("same" if ruled.same else "another")
    answers = ruling_commands(run_id, stop, stops) if ruled is None else []
    return StoppedCall(
        stop=stop.number,
        name=call.name,
        arguments=call.arguments,
        site=call.site,
        at=stop.at,
        could_be=tuple(
            PossibleStep(each.number, each.name, each.arguments, tuple(differing(call, each)))
            for each in others
        ),
        said=said,
        step=ruled.steps[0] if ruled is not None and ruled.same else None,
        by=ruled.by if ruled is not None else "",
        commands=tuple(command for command, _ in answers),
        meanings=tuple(meaning for _, meaning in answers),
    )


# -- frames ---------------------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class RecordedFrame(PlainFacts):
    """A frame of the traceback of a failure, as ``record_locals=True`` records it.

    Args:
        file: the file of the function.
        line: the line that was being executed.
        function: the name of the function.
        code: the text of that line.
        variables: short forms of the local variables, by name.
    """

    file: str
    line: int
    function: str
    code: str
    variables: Mapping[str, str]


Place = tuple[Store, Seal, str]
"""A store, the seal of its records, and the id of a run."""


def failures_of(place: Place, call: int) -> dict[int, tuple[RecordedFrame, ...]]:
    """Return the recorded frames of a call's failed attempts, by the numbers of the attempts.

    Args:
        call: the number of the step; 0 for the run, whose attempts are the records of its ends.

    Raises:
        UnreadableValueError: the frames of an attempt are damaged.
    """
    store, _, run_id = place
    return {
        attempt: tuple(RecordedFrame(*each) for each in view_frames(*place, call, attempt))
        for attempt in attempts_with_frames(store, run_id, call)
    }


# -- steps ----------------------------------------------------------------------------------------


_NEAR = 256  # records that are kept, since tasks do not end in the order in which they begin
_LARGE = 10_000  # bytes; a larger record is not kept, and is read again when needed


@public
@dataclass(frozen=True, slots=True)
class StepAttempt(PlainFacts):
    """One try of a step's body.

    Args:
        number: the number of the attempt, from 1, over all processes that made the step.
        status: ``completed``, ``failed`` or ``cancelled``; ``started`` while it is in progress;
            ``crashed`` if its process died.
        started_at: the time at which it began, in seconds since 1970.
        finished_at: the time at which it ended; ``None`` if it did not, or if its process died.
        error: shortened text of its exception; empty if it raised none.
    """

    number: int
    status: str
    started_at: float
    finished_at: float | None
    error: str


def _attempts_in(entry: Entry, before: int, answered: float) -> Iterator[StepAttempt]:
    """Yield the attempts that a record of a call names: its outcome or its announcement.

    Args:
        before: the number of the attempts before them.
        answered: when the run took a person's answer about the call.
    """
    outcome, call = entry.outcome, entry.call
    if outcome is None:
        if call is not None and not entry.waits:
            yield StepAttempt(before + 1, "crashed", max(call.at, answered), None, "")
        return
    tries = outcome.tries or ((outcome.call.at, 0.0, ""),)[: outcome.attempts]
    first = before + outcome.attempts - len(tries) + 1
    for number, (began, ended, text) in enumerate(tries, first):
        status, error, until = "failed", text, ended
        if number == before + outcome.attempts:
            status, until = outcome.status, outcome.at
            error = "" if status == "completed" else outcome.preview
        start = answered if began < answered <= until else began  # it waited for the answer
        yield StepAttempt(number, status, start, until, error)


@public
@dataclass(frozen=True, slots=True)
class StepRecord:
    """One call of a step, tool or child workflow, as recorded in the journal.

    Args:
        number: the number of the step in the run, which the command line calls STEP.
        name: the name of the step.
        status: ``started``, ``completed``, ``failed``, ``cancelled`` or ``waiting``; ``in_doubt``
            if a side effect (or its compensation) was started, has no outcome, and its process is
            gone; ``compensated`` if it was undone.
        arguments: shortened text of the arguments.
        preview: shortened text of the value or exception.
        attempts: the number of tries of the body, in all processes that the records tell of.
        started_at: the time of the call, in seconds since 1970.
        finished_at: the time of the outcome, in seconds since 1970; ``None`` while unfinished.
        side_effect: True if the call was announced before it ran.
        idempotency_key: the key that ``current_step()`` gave the call.
        site: the ``file:line`` that made the call.
        child: the run id of a child workflow; empty for other calls.
        instead: the number of the step that an earlier start recorded in place of this call, and
            that did not answer it; 0 for none.
        differs: the parts of the call (arguments by name) in which it differs from that step.
        usage: for a model request, the known values of ``model``, ``provider``, ``input_tokens``,
            ``output_tokens``, ``cached_input_tokens`` and ``cost_usd`` (US dollars).
        by: the person (``user@host``) who settled the step or had it undone; empty if nobody did.
        waited: the seconds that the call waited for a time, a signal or a person; 0 while it waits.
        version: id of the version of the step's code that made the call; empty if unknown.
        edited: the parts of the code that were edited before a later start used the result.
        cached: for a step that the cache answered, what was saved: ``usd``, ``tokens`` and
            ``seconds``; the ``run`` that made the result, and ``at`` which time.
    """

    number: int
    name: str
    status: str
    arguments: str
    preview: str
    attempts: int
    started_at: float
    finished_at: float | None
    side_effect: bool
    idempotency_key: str
    site: str
    child: str
    _entry: Entry = field(repr=False)
    _place: Place | None = field(repr=False, compare=False)  # not in a pickle: a seal has the key
    instead: int = 0
    differs: tuple[str, ...] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    waited: float = 0.0
    version: str = ""
    edited: tuple[str, ...] = ()
    cached: Mapping[str, Any] = field(default_factory=dict)
    _answered: float = field(repr=False, compare=False, default=0.0)
    _earlier: tuple[Entry, ...] = field(repr=False, compare=False, default=())

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return StepRecord, (*{**values, "_place": None}.values(),)

    @property
    def duration(self) -> float | None:
        """Seconds that the step took itself, without those that it ``waited``.

        The pauses between two attempts count.  If the step was made again after its run had
        stopped, the time before does not.  ``None`` if unfinished or settled by a person.
        """
        call = self._entry.call
        if self.finished_at is None or call is None:
            return None
        return 0.0 if call.is_wait else max(0.0, self.finished_at - max(call.at, self._answered))

    @property
    def tries(self) -> tuple[StepAttempt, ...]:
        """The attempts of the step, oldest first: of each process, the last and 20 before it.

        Empty for a wait, a child run, and a call that was not allowed.
        """
        call, found = self._entry.call, list[StepAttempt]()
        if self.child or (call is not None and call.is_wait):
            return ()
        for entry in (*self._earlier, self._entry):
            found += _attempts_in(entry, found[-1].number if found else 0, self._answered)
        if found and found[-1].status == "crashed" and self.status == "started":
            found[-1] = replace(found[-1], status="started")
        return tuple(found)

    @property
    def result(self) -> Any:
        """The value that a completed step returned; ``None`` otherwise.

        Raises:
            UnreadableValueError: the value needs a class that this program does not have.
        """
        return view(self._entry).value if self.status == "completed" else None

    @property
    def has_inputs(self) -> bool:
        """True if the arguments of the step are recorded in full; see ``record_arguments=``."""
        if self._place is None:
            return False
        store, _, run_id = self._place
        return store.get(run_id, inputs_name(self.number)) is not None

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of the step as they were when the call began, by parameter name.

        ``self`` and arguments at their default are left out.  Placeholders replace hidden
        arguments, and arguments that could not be recorded.

        Raises:
            UnreadableValueError: the arguments were not recorded (``record_arguments=True``), are
                damaged, or need a class that this program does not have.
        """
        if self._place is None:
            raise UnreadableValueError(
                "a pickled step has no arguments: ask stepwise.get_run() for its run"
            )
        return view_inputs(*self._place, self.number)

    @property
    def frames(self) -> tuple[RecordedFrame, ...]:
        """The frames of the last failed attempt, outermost first; see ``record_locals=``.

        Empty if they are not recorded.

        Raises:
            UnreadableValueError: the frames are damaged.
        """
        return ((), *self.failures.values())[-1]

    @property
    def failures(self) -> dict[int, tuple[RecordedFrame, ...]]:
        """The recorded frames of all failed attempts, by the number of the attempt, from 1.

        Raises:
            UnreadableValueError: the frames of an attempt are damaged.
        """
        return failures_of(self._place, self.number) if self._place is not None else {}

    @property
    def error(self) -> BaseException | None:
        """The exception that a failed or cancelled step raised; ``None`` otherwise."""
        outcome = self._entry.outcome
        failed = outcome is not None and outcome.status != "completed"
        return view(self._entry).error if failed else None

    @property
    def why(self) -> str:
        """Why the step ran, or waits, beside a recorded one, or which edit its result outlived."""
        if self.edited:
            return f"{self.name} has changed since ({'; '.join(self.edited)}); its result was used"
        if not self.instead:
            return ""
        names = " and ".join(map(shown_part, self.differs)) or "its arguments"
        verb = "differ" if len(self.differs) > 1 else "differs"
        does = "waits" if self.status == "waiting" else "ran"
        return f"{self.name} {does}, since {names} {verb} from step {self.instead}"

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, for JSON.

        ``error`` is a text, and nothing is unpickled.
        """
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "duration": self.duration,
            "tries": [each.to_dict() for each in self.tries],
            "error": error_line(self.preview) if self.status == "failed" else None,
            "traceback": self.traceback,
        }

    def _repr_html_(self) -> str:
        return step_html(self)

    @property
    def traceback(self) -> str:
        """The traceback of the step's exception, as text; empty if there is none."""
        outcome = self._entry.outcome
        return outcome.traceback if outcome is not None else ""


_PLAIN = [each.name for each in fields(StepRecord) if not each.name.startswith("_")]


def steps_of(place: Place, entries: list[Entry], *, owned: bool) -> list[StepRecord]:
    """Return every recorded call, in the order in which the calls were first made.

    Args:
        owned: True if a process is executing the run, so that open calls are not in doubt yet.
    """
    doubtful = () if owned else Calls(entries).in_doubt
    return steps_with(place, entries, {each.call.number for each in doubtful})


def steps_with(place: Place, entries: list[Entry], doubtful: Container[int]) -> list[StepRecord]:
    """Return the steps of a run whose calls in doubt are already known."""
    numbered = {entry.number: entry for entry in entries}
    return [*_steps(place, Places(entries), numbered.get, doubtful)]


def each_step(
    store: Store,
    seal: Seal,
    facts: RunFacts,
    doubtful: Container[int],
    places: Places | None = None,
) -> Iterator[StepRecord]:
    """Read the steps of a run one by one, with only the next one in memory.

    Args:
        doubtful: the numbers of the steps in doubt.
        places: the places of their records, if known.
    """
    place = store, seal, facts.run_id
    if places is None:
        places = Places(entries_of(store, seal, facts))
    return _steps(place, places, _Entries(*place, facts.pruned).get, doubtful)


def _steps(
    place: Place, places: Places, get: Callable[[int], Entry | None], doubtful: Container[int]
) -> Iterator[StepRecord]:
    older = {(e.id, e.name): e.differs for e in recorded_versions(*place) if e.used_by}
    for number, first in enumerate(places.first):
        entry = get(first) if first else None
        call, last = entry.call if entry is not None else None, places.last[number]
        entry = entry if last == first else get(last)
        if call is None or entry is None:
            continue
        derived = "in_doubt" if number in doubtful else None
        derived = "compensated" if number in places.undone else derived
        before = places.first[call.instead] if call.instead < len(places.first) else 0
        other = get(before) if before else None
        step = step_record(place, call, entry, derived, other.call if other is not None else None)
        more: dict[str, Any] = {}
        if (call.code, call.name) in older:
            more["edited"] = older[call.code, call.name]
        if number in places.undone:
            more["by"] = places.undone[number]
        if number in places.answered:
            answered = places.answered[number]
            more.update(_answered=answered, waited=max(0.0, answered - call.at))
        if number in places.before and not call.child:
            found = tuple(each for each in map(get, places.before[number]) if each is not None)
            many = sum(each.outcome.attempts if each.outcome else 1 for each in found)
            more.update(_earlier=found, attempts=step.attempts + many)
        yield replace(step, **more) if more else step


def step_record(
    place: Place, call: Call, entry: Entry, derived: str | None, other: Call | None = None
) -> StepRecord:
    """Return the step record of a call.

    Args:
        entry: the last record of the call.
        derived: the status that follows from other records, if any.
        other: the recorded call that did not answer this call.
    """
    outcome = entry.outcome
    ended: Any = entry.record if outcome is not None or entry.landed else None
    status: str = outcome.status if outcome is not None else "completed" if ended else "started"
    if entry.waits:
        status = "waiting"
    waited = max(0.0, ended.at - call.at) if ended and call.is_wait else 0.0
    return StepRecord(
        number=call.number,
        name=call.name,
        status=derived or status,
        arguments=call.arguments,
        preview=ended.preview if ended else f"for the limit {entry.limit!r}" if entry.limit else "",
        attempts=outcome.attempts if outcome is not None else 1,
        started_at=call.at,
        finished_at=ended.at if ended else None,
        side_effect=call.effect and not call.child,
        idempotency_key=call.key or key_of(place[2], call),
        site=call.site,
        child=call.child,
        _entry=entry,
        _place=place,
        instead=call.instead,
        differs=tuple(differing(call, other)) if other is not None else (),
        usage=outcome.usage if outcome is not None else {},
        by=entry.settled_by,
        waited=waited,
        version=call.code,
        cached=outcome.cached if outcome is not None else {},
    )


class _Entries:
    """The records of a run by number, usually requested in order."""

    def __init__(self, store: Store, seal: Seal, run_id: str, start: int) -> None:
        self._place = store, seal, run_id
        self._reading = read(*self._place, Position(start, None))
        self._at, self._far = start, 0
        self._recent: dict[int, Entry] = {}

    def get(self, number: int) -> Entry | None:
        """Return a record that verifies, or ``None``."""
        if number > self._at + _NEAR and 0 <= number - self._far <= _NEAR:  # a second far request
            self._reading = read(*self._place, Position(number - 1, None))
            self._at = number - 1
        if number > self._at + _NEAR:
            self._far = number
        while self._at < number <= self._at + _NEAR:
            entry, position = next(self._reading, (None, Position(number)))
            self._at = position.last
            if not isinstance(entry, Entry):
                continue
            if entry.number == number and len(entry.payload) > _LARGE:
                return entry
            if len(entry.payload) <= _LARGE:
                self._recent[entry.number] = entry
            if len(self._recent) > _NEAR:
                del self._recent[next(iter(self._recent))]
        return self._recent.get(number) or read_one(*self._place, number)
