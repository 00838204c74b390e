"""Answers of people about steps in doubt, and about calls at which a run stopped."""

from __future__ import annotations

import time
from typing import Any

from stepwise._calls.doubt import DidNotHappen, Landed
from stepwise._execution.outcomes import settled
from stepwise._journal.course import Stop, stops_in
from stepwise._journal.projection import Calls, RecordedCall
from stepwise._journal.records import Entry, Record, Resumed, Ruled
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import shell_word
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec
from stepwise.errors import ConfigurationError, StepNotFoundError

__all__ = ["UNSET", "choose", "said_of", "to_record"]

UNSET: Any = object()


def choose(run_id: str, step: int | str, among: list[RecordedCall], what: str) -> RecordedCall:
    """The one of these calls that a number or a name means.

    Raises:
        StepNotFoundError: none, or more than one.
    """
    number = int(step) if isinstance(step, int) or step.isdecimal() else None
    found = [each for each in among if step == each.call.name or number == each.call.number]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{each.call.number} ({each.call.name})" for each in among[:20])
    problem = f"is not a step {what}" if not found else "names more than one; give its number"
    raise StepNotFoundError(
        f"{step!r} of run {run_id!r} {problem}. Steps {what}: {listed or 'none'}",
        run_id=run_id,
        step=step,
    )


class _Said(NamedTuple):
    """A person's answer.

    Args:
        happened: of a step in doubt, whether it did; ``value`` is what it returned.
        same: of a stopped call, whether it is the recorded one.
        stop: number of the record that tells of the stopped call; needed if several could be it.
    """

    happened: bool | None = None
    value: Any = None
    same: bool | None = None
    stop: int | None = None


def said_of(
    answer: Any, landed: Any, did_not_happen: bool, same: bool, another: bool, stop: int | None
) -> _Said:
    """Return the answer in the arguments of ``resolve``.

    Raises:
        ConfigurationError: not exactly one thing is said.
    """
    given = [answer is not None, landed is not UNSET, did_not_happen, same, another]
    if sum(map(bool, given)) != 1:
        raise ConfigurationError(
            "give exactly one answer: for a step in doubt, resolve(step, landed=value) or "
            "resolve(step, did_not_happen=True); for a call at which the run stopped because of a "
            "step, resolve(step, same=True) or resolve(step, another=True)"
        )
    if same or another:
        return _Said(same=bool(same), stop=stop)
    if stop is not None:
        raise ConfigurationError(
            "stop= chooses a stopped call, for same=True and another=True only"
        )
    if isinstance(answer, Landed):
        return _Said(happened=True, value=answer.value)
    if answer is DidNotHappen or isinstance(answer, DidNotHappen) or did_not_happen:
        return _Said(happened=False)
    if answer is not None:
        raise ConfigurationError(f"resolve() takes Landed(value) or DidNotHappen, not {answer!r}")
    return _Said(happened=True, value=landed)


def to_record(
    run_id: str, step: int | str, entries: list[Entry], said: _Said, codec: Codec
) -> list[tuple[Record, Data]]:
    """Build the records of a person's answer for a step; none, if it is recorded already.

    Raises:
        StepNotFoundError: no such step is in doubt, or no stopped call could be it.
        ConfigurationError: it contradicts what was said of another stopped call.
        NotRecordableError: the value cannot be recorded.
    """
    if said.same is not None:
        ruled = _ruling(run_id, step, entries, said.same, said.stop)
        return [] if ruled is None else [(ruled, b"")]
    # Those in doubt, and the cancelled calls that the workflow handled.
    among = [
        each
        for each in Calls(entries)
        if each.in_doubt or (each.cancelled and each.may_have_happened and not each.call.child)
    ]
    recorded = choose(run_id, step, among, "in doubt")
    happened, is_open = bool(said.happened), recorded.outcome is None
    return [settled(codec, recorded.call, landed=happened, value=said.value, is_open=is_open)]


# -- stopped calls -------------------------------------------------------------------------------


def _ruling(
    run_id: str, step: int | str, entries: list[Entry], same: bool, wanted: int | None
) -> Ruled | None:
    """Build a ruling on a stopped call; return ``None`` if it is recorded already."""
    stops = stops_in(entries)
    if not stops:
        raise StepNotFoundError(
            f"run {run_id!r} has not stopped at a call that could be a recorded one. Run the "
            "program again: if it stops at such a call, it names the step to resolve",
            run_id=run_id,
            step=step,
        )
    steps = {number for each in stops for number in each.steps}
    among = [each for each in Calls(entries) if each.call.number in steps]
    number = choose(run_id, step, among, "that a stopped call could be").call.number
    chosen = _stop_at(run_id, number, stops, wanted)
    for other in stops:
        if same and other is not chosen and (other.ruled or ())[1:3] == ((number,), True):
            raise ConfigurationError(
                f"step {number} of run {run_id!r} was resolved as the call of stop {other.number}, "
                f"{_text(other)}, and a recorded call answers one call only. To take that back: "
                f"stepwise resolve {shell_word(run_id)} {number} --another --stop {other.number}"
            )
    beside = not same and _were_beside(chosen, entries)
    ruled = Ruled(chosen.call, (number,) if same else chosen.steps, same, time.time(), beside)
    return None if ruled[1:3] == (chosen.ruled or ())[1:3] else ruled


def _were_beside(stop: Stop, entries: list[Entry]) -> bool:
    """Return whether the stopped tool was called by the attempts that made the recorded calls."""
    made = min(stop.records, default=0)
    for entry in entries:
        if isinstance(entry.record, Resumed) and entry.number > made:
            return False
        if entry.call is not None and entry.call.name == stop.call.name:
            return True
    return False


def _stop_at(run_id: str, number: int, stops: list[Stop], wanted: int | None) -> Stop:
    found = [each for each in stops if number in each.steps and wanted in (None, each.number)]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{each.number} is {_text(each)}" for each in stops if number in each.steps)
    raise StepNotFoundError(
        f"stop {wanted} of run {run_id!r} is not a call that could be step {number}: {listed}"
        if wanted is not None
        else f"several stopped calls of run {run_id!r} could be step {number}; choose one with "
        f"stop= or --stop: {listed}",
        run_id=run_id,
        step=number,
    )


def _text(stop: Stop) -> str:
    at = f" at {stop.call.site}" if stop.call.site else ""
    return f"{stop.call.name}({stop.call.arguments}){at}"
