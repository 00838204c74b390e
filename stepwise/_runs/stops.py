"""The calls at which a run stopped, since each could be a recorded side effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from stepwise._calls.doubt import ruling_commands
from stepwise._identity.parts import shown_part
from stepwise._journal.course import Stop, stops_in
from stepwise._journal.journal import read_one
from stepwise._journal.records import Call, Entry
from stepwise._journal.seal import Seal
from stepwise._matching.rulings import differing
from stepwise._runtime.public_names import public
from stepwise.stores import Store

__all__ = ["PossibleStep", "StoppedCall", "stopped_calls"]


@public
@dataclass(frozen=True)
class PossibleStep:
    """A recorded side effect that a stopped call could be.

    Args:
        differs: the parts of the call (arguments by name) in which the two differ.
    """

    number: int
    name: str
    arguments: str
    differs: tuple[str, ...]

    @property
    def why(self) -> str:
        """The differing parts, in words."""
        return ", ".join(map(shown_part, self.differs))


@public
@dataclass(frozen=True)
class StoppedCall:
    """A call at which a run stopped, to be answered with :meth:`Run.resolve`.

    Args:
        stop: its number, for ``resolve(..., stop=...)``.
        site: ``file:line`` it was made from.
        at: seconds since 1970.
        could_be: the recorded side effects that it could be.
        said: the answer: ``same``, ``another``, or ``None`` while nobody gave one.
        step: the recorded step that it is, if somebody said so.
        commands: the commands that answer it.
        meanings: what each of the commands says of the call, in their order.
    """

    stop: int
    name: str
    arguments: str
    site: str
    at: float
    could_be: tuple[PossibleStep, ...]
    said: str | None
    step: int | None
    commands: tuple[str, ...]
    meanings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Its attributes as plain data, for JSON."""
        return asdict(self)


def stopped_calls(
    store: Store, seal: Seal, run_id: str, numbers: Iterable[int]
) -> list[StoppedCall]:
    """Return the calls that these records of stops and answers tell of."""

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
        commands=tuple(command for command, _ in answers),
        meanings=tuple(meaning for _, meaning in answers),
    )
