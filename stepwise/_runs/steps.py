"""The steps of a run, in the order in which they were first called, however many they are.

A call is found at two places of the journal: its first record and its last one.  One pass notes
both as numbers; another one makes the steps, since what becomes of a call may be recorded long
after the calls that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from stepwise._display.render import step_html
from stepwise._execution.viewer import view
from stepwise._identity.parts import shown_part
from stepwise._journal.counters import key_of
from stepwise._journal.journal import Position, read, read_entries, read_one
from stepwise._journal.projection import Calls, Places
from stepwise._journal.records import Call, Entry, RunFacts
from stepwise._journal.seal import Seal
from stepwise._matching.rulings import differing
from stepwise._runs.as_dict import error_line
from stepwise._runtime.public_names import public
from stepwise.stores import Store

__all__ = ["StepRecord", "each_step", "step_record", "steps_of", "steps_with"]

_NEAR = 256  # records that are kept, since tasks do not end in the order in which they begin
_LARGE = 10_000  # bytes; a larger record is read again when it is needed again


@public
@dataclass(frozen=True, slots=True)
class StepRecord:
    """One call of a step, tool or child workflow, as the journal has it.

    Args:
        number: in the run; what the command line calls STEP.
        name: of the step.
        status: ``started``, ``completed``, ``failed``, ``cancelled``; ``in_doubt`` for a side
            effect that was started, has no outcome, and whose owner is gone (its compensation
            too); ``compensated`` when it was undone.
        arguments, preview: shortened text of the arguments; of the value or exception.
        attempts: how many tries of the body the outcome took.
        started_at, finished_at: seconds since 1970; ``None`` while unfinished.
        side_effect: it was announced before it ran.
        idempotency_key: the key that ``current_step()`` gave the call.
        site: ``file:line`` it was called from.
        child: run id of a child workflow.
        instead: number of the step that was recorded as this one at an earlier start, and did not
            answer the call; 0 if there was none.
        differs: the parts of the call (arguments by name) in which it differs from that step.
        usage: of a model request, what is known of ``model``, ``provider``, ``input_tokens``,
            ``output_tokens``, ``cached_input_tokens`` and ``cost_usd`` (US dollars).
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
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration(self) -> float | None:
        """Seconds from the call to its outcome; ``None`` if a person settled it."""
        if self.finished_at is None or self._entry.landed:
            return None
        return max(0.0, self.finished_at - self.started_at)

    @property
    def result(self) -> Any:
        """The value that a completed step returned; ``None`` otherwise.

        Raises:
            UnreadableValueError: it needs a class that this program does not have.
        """
        return view(self._entry).value if self.status == "completed" else None

    @property
    def error(self) -> BaseException | None:
        """The exception that a failed step raised."""
        outcome = self._entry.outcome
        failed = outcome is not None and outcome.status != "completed"
        return view(self._entry).error if failed else None

    @property
    def why(self) -> str:
        """Why it ran although the same call was recorded; empty if none was."""
        if not self.instead:
            return ""
        names = " and ".join(map(shown_part, self.differs)) or "its arguments"
        verb = "differ" if len(self.differs) > 1 else "differs"
        return f"{self.name} ran, since {names} {verb} from step {self.instead}"

    def to_dict(self) -> dict[str, Any]:
        """Its attributes as plain data, for JSON; ``error`` is a text, and nothing is unpickled."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "duration": self.duration,
            "error": error_line(self.preview) if self.status == "failed" else None,
            "traceback": self.traceback,
        }

    def _repr_html_(self) -> str:
        return step_html(self)

    @property
    def traceback(self) -> str:
        """The traceback of that exception, as text."""
        outcome = self._entry.outcome
        return outcome.traceback if outcome is not None else ""


_PLAIN = [each.name for each in fields(StepRecord) if not each.name.startswith("_")]


def steps_of(run_id: str, entries: list[Entry], *, owned: bool) -> list[StepRecord]:
    """Every recorded call, in the order in which they were first made.

    Args:
        owned: somebody is executing the run, so that what is open is not in doubt yet.
    """
    doubtful = () if owned else Calls(entries).in_doubt
    return steps_with(run_id, entries, {each.call.number for each in doubtful})


def steps_with(run_id: str, entries: list[Entry], doubtful: Container[int]) -> list[StepRecord]:
    """Return the steps of a run whose calls in doubt are already known."""
    numbered = {entry.number: entry for entry in entries}
    return [*_steps(run_id, Places(entries), numbered.get, doubtful)]


def each_step(
    store: Store,
    seal: Seal,
    facts: RunFacts,
    doubtful: Container[int],
    places: Places | None = None,
) -> Iterator[StepRecord]:
    """Read the steps of a run one by one, with only the next one in memory.

    Args:
        doubtful: the numbers of those that are in doubt.
        places: where they are, if that is known.
    """
    place = store, seal, facts.run_id
    if places is None:
        places = Places(read_entries(*place, Position(facts.pruned, None)))
    return _steps(facts.run_id, places, _Entries(*place, facts.pruned).get, doubtful)


def _steps(
    run_id: str, places: Places, get: Callable[[int], Entry | None], doubtful: Container[int]
) -> Iterator[StepRecord]:
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
        yield step_record(run_id, call, entry, derived, other.call if other is not None else None)


def step_record(
    run_id: str, call: Call, entry: Entry, derived: str | None, other: Call | None = None
) -> StepRecord:
    """A call, its last record, and what follows from others.

    Args:
        other: the recorded call that did not answer it.
    """
    outcome = entry.outcome
    ended: Any = entry.record if outcome is not None or entry.landed else None
    status: str = outcome.status if outcome is not None else "completed" if ended else "started"
    if entry.waits:
        status = "waiting"
    return StepRecord(
        number=call.number,
        name=call.name,
        status=derived or status,
        arguments=call.arguments,
        preview=ended.preview if ended else "",
        attempts=outcome.attempts if outcome is not None else 1,
        started_at=call.at,
        finished_at=ended.at if ended else None,
        side_effect=call.effect and not call.child,
        idempotency_key=call.key or key_of(run_id, call),
        site=call.site,
        child=call.child,
        _entry=entry,
        instead=call.instead,
        differs=tuple(differing(call, other)) if other is not None else (),
        usage=outcome.usage if outcome is not None else {},
    )


class _Entries:
    """The records of a run by number, asked for mostly in their order."""

    def __init__(self, store: Store, seal: Seal, run_id: str, start: int) -> None:
        self._place = store, seal, run_id
        self._reading = read(*self._place, Position(start, None))
        self._at, self._far = start, 0
        self._recent: dict[int, Entry] = {}

    def get(self, number: int) -> Entry | None:
        """Return a record that verifies, or ``None``."""
        if number > self._at + _NEAR and 0 <= number - self._far <= _NEAR:  # so is the one before
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
