"""The history of a run as its journal tells it: steps, and calls in doubt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stepwise._display.render import step_html
from stepwise._execution.viewer import look_into_value
from stepwise._journal.counters import key_of
from stepwise._journal.records import (
    Call,
    Compensated,
    Compensating,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    Resumed,
    Settled,
    Started,
)
from stepwise._matching.pool import Pool
from stepwise._matching.recorded_call import Recorded
from stepwise._matching.stops import differing
from stepwise._values import codec

__all__ = [
    "Program",
    "StepRecord",
    "concerns_effects",
    "in_doubt",
    "program_of",
    "step_record",
    "steps_of",
    "steps_with",
    "to_settle",
]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One call of a step, tool or child workflow, as the journal has it.

    Args:
        number: in the run; what the command line calls STEP.
        status: ``started``, ``completed``, ``failed``, ``cancelled``; ``in_doubt`` for a side
            effect that was started, has no outcome, and whose owner is gone (its compensation
            too); ``compensated`` when it was undone.
        arguments, preview: shortened text of the arguments; of the value or exception.
        attempts: how many tries of the body the outcome took.
        started_at, finished_at: seconds since 1970; ``None`` while unfinished.
        side_effect: it was announced before it ran.
        site: ``file:line`` it was called from.
        child: run id of a child workflow.
        instead: number of the step that was recorded as this one at an earlier start, and did not
            answer the call; 0 if there was none.
        differs: the parts of the call (arguments by name) in which it differs from that step.
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
    instead: int = 0
    differs: tuple[str, ...] = ()

    @property
    def duration(self) -> float | None:
        """Seconds from the call to its outcome; ``None`` if somebody settled it."""
        if isinstance(self._entry.record, Settled):
            return None
        return None if self.finished_at is None else max(0.0, self.finished_at - self.started_at)

    @property
    def result(self) -> Any:
        """The value that a completed step returned; ``None`` otherwise.

        Raises:
            UnreadableValueError: it needs a class that this program does not have.
        """
        if self.status != "completed":
            return None
        record, payload = self._entry.record, self._entry.payload
        if isinstance(record, Outcome) and record.changed:
            return look_into_value(payload, record.form, record.changed)
        return codec.decode(payload, getattr(record, "form", None))

    @property
    def error(self) -> BaseException | None:
        """The exception that a failed step raised."""
        record = self._entry.record
        if isinstance(record, Outcome) and record.status != "completed":
            told = (self._entry.payload, record.form)
            if record.changed:
                told = look_into_value(*told, record.changed, failed=True)
            return codec.decode_error(*told)
        return None

    def _repr_html_(self) -> str:
        return step_html(self)

    @property
    def traceback(self) -> str:
        """The traceback of that exception, as text."""
        record = self._entry.record
        return record.traceback if isinstance(record, Outcome) else ""


StepRecord.__module__ = "stepwise"  # tracebacks and pickles show the public name


def in_doubt(entries: Iterable[Entry]) -> list[Recorded]:
    """Return the calls whose side effect may or may not have happened."""
    return [each for each in _effects(entries) if each.in_doubt]


def to_settle(entries: Iterable[Entry]) -> list[Recorded]:
    """Return the calls in doubt, and the cancelled calls that the workflow handled."""
    return [
        each
        for each in _effects(entries)
        if each.in_doubt or (each.cancelled and each.may_have_happened and not each.call.child)
    ]


def _effects(entries: Iterable[Entry]) -> list[Recorded]:
    return Pool(filter(concerns_effects, entries)).all


def concerns_effects(entry: Entry) -> bool:
    """Return whether a record concerns side effects, or a failure that the workflow acted on."""
    record = entry.record
    if isinstance(record, (Outcome, Intent)):
        return record.call.effect or record.call.unwinding is not None
    return True


def steps_of(run_id: str, entries: list[Entry], *, owned: bool) -> list[StepRecord]:
    """Every recorded call, in the order in which they were first made.

    Args:
        owned: somebody is executing the run, so that what is open is not in doubt yet.
    """
    doubtful = () if owned else {each.call.number for each in in_doubt(entries)}
    return steps_with(run_id, entries, doubtful)


def steps_with(run_id: str, entries: list[Entry], doubtful: Iterable[int]) -> list[StepRecord]:
    """Return the steps of a run whose calls in doubt are already known."""
    calls: dict[int, Call] = {}
    last: dict[int, Entry] = {}
    undone: set[int] = set()
    undoing: set[int] = set()
    for entry in entries:
        record = entry.record
        if isinstance(record, (Intent, Outcome)):
            calls.setdefault(record.call.number, record.call)
            last[record.call.number] = entry
        elif isinstance(record, Settled) and record.number in undoing:
            undoing.discard(record.number)
            undone.update({record.number} if record.landed else ())
        elif isinstance(record, Settled):
            last[record.number] = entry
        elif isinstance(record, Compensating):
            undoing.add(record.number)
        elif isinstance(record, Compensated):
            undoing.discard(record.number)
            undone.add(record.number)
        elif isinstance(record, Forgotten):
            for number in record.numbers:
                calls.pop(number, None)
    derived = {**dict.fromkeys(doubtful, "in_doubt"), **dict.fromkeys(undone, "compensated")}
    return [
        step_record(run_id, call, last[number], derived.get(number), calls.get(call.instead))
        for number, call in sorted(calls.items())
    ]


def step_record(
    run_id: str, call: Call, entry: Entry, derived: str | None, other: Call | None = None
) -> StepRecord:
    """A call, its last record, and what follows from others.

    Args:
        other: the recorded call that did not answer it.
    """
    record = entry.record
    status, shown, attempts, finished = "started", "", 1, None
    if isinstance(record, Outcome):
        status, shown, attempts, finished = (
            record.status,
            record.preview,
            record.attempts,
            record.at,
        )
    elif isinstance(record, Settled) and record.landed:
        status, shown, finished = "completed", record.preview, record.at
    return StepRecord(
        number=call.number,
        name=call.name,
        status=derived or status,
        arguments=call.arguments,
        preview=shown,
        attempts=attempts,
        started_at=call.at,
        finished_at=finished,
        side_effect=call.effect and not call.child,
        idempotency_key=call.key or key_of(run_id, call),
        site=call.site,
        child=call.child,
        _entry=entry,
        instead=call.instead,
        differs=tuple(differing(call, other)) if other is not None else (),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """Return how the program that executed a run was started.

    Args:
        command: as an operating system would get it; empty if it cannot be started again.
        cwd: the folder it was started in.
        file: where the workflow is defined.
    """

    command: tuple[str, ...]
    cwd: str
    file: str


def program_of(entries: Iterable[Entry]) -> Program | None:
    """Return how the program was started the last time, or ``None`` if it is not recorded."""
    command: tuple[str, ...] = ()
    cwd = file = ""
    for entry in entries:
        record = entry.record
        if isinstance(record, Started):
            file = record.file
        if isinstance(record, (Started, Resumed)) and record.command:
            command, cwd = record.command, record.cwd
    return Program(command, cwd, file) if command or file else None
