"""What a call asks its driver to do: what takes time, and what came of it.

Imports: run, flows, records, pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Union

from stepwise._flows import Flows
from stepwise._pieces import Data
from stepwise._records import Record
from stepwise._run import ActiveRun, Scope

__all__ = ["Attempt", "Change", "Core", "Operation", "Ready", "Result", "Sleep", "Write"]


class Result:
    """What came of an operation: a value, or an exception that is yet to be raised.

    Exceptions travel as values: thrown through a generator, a ``StopIteration`` would change type.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error

    def unwrap(self) -> Any:
        """The value; raises the exception."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # no cycle through the traceback


class Attempt(NamedTuple):
    """One try of a body, inside the scope of its call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scope: Scope | None
    name: str
    timeout: float | None = None


class Sleep(NamedTuple):
    """Wait between two attempts."""

    seconds: float


class Change(NamedTuple):
    """Wait until another flow of control of the run did something; the value says if one did."""

    flows: Flows
    seen: int


class Ready(NamedTuple):
    """The journal has been asked, and nothing was done yet."""


class Write(NamedTuple):
    """Append a record with its payload to the journal of a run.

    The value of its result is the record's number; with it may come an error that is not the
    journal's: a cancellation of who waited for it.
    """

    run: ActiveRun
    item: tuple[Record, Data]
    durable: bool = True


Operation = Union[Attempt, Sleep, Change, Ready, Write]
Core = Generator[Operation, Result, Result]
