"""The account of a run: what its records say it has spent, each of them counted once.

The end of a journal (:class:`.chain.Position`) carries the sums of the records before it, as it
carries the number of side effects.  A checkpoint keeps that position, so that a resumed run and a
reader know the sums without the records, pruned ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwise._journal.records import (
    Ended,
    Intent,
    Interrupted,
    Outcome,
    Record,
    Resumed,
    Settled,
    Started,
    Suspended,
)
from stepwise._runtime.facts import NamedTuple

__all__ = ["NO_SUMS", "Claims", "Sums", "difference", "plus", "sums_after", "together", "uncounted"]

_NOTHING: Mapping[str, Any] = {}
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
        return record._replace(spent=_NOTHING)
    if isinstance(record, Resumed):
        return record._replace(unknown=False)
    if isinstance(record, (Ended, Interrupted, Suspended)):
        return record._replace(rest=_NOTHING)
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
