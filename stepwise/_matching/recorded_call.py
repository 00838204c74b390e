"""A recorded call: whether it answers, is in doubt, or may have happened."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stepwise._journal.records import Call, Entry, Outcome, Settled

__all__ = ["Recorded", "Status"]


class Status(enum.Enum):
    OPEN = "started, and nothing else is known"
    COMPLETED = "returned a value"
    FAILED = "raised"
    CANCELLED = "was cancelled"
    FREE = "did not happen, as a person settled"


@dataclass(eq=False, repr=False, slots=True)
class Recorded:
    """A recorded call, and what became of it.

    Args:
        entry: the last record of it.
        origin: the last record of it that has its arguments; mostly the same.
        handled: the workflow went on after its failure, which is its outcome.
        retry: it failed, and the run with it; it is tried again.
        undoing: its compensation was started, and nothing else is known.
        spent: it was made by a clean-up that is over; it answers only the same clean-up.
    """

    call: Call
    status: Status
    entry: Entry
    origin: Entry
    handled: bool = False
    retry: bool = False
    undoing: bool = False
    spent: bool = False

    @property
    def flags(self) -> tuple[bool, bool, bool]:
        """The flags that a checkpoint keeps of the call."""
        return self.handled, self.retry, self.spent

    @property
    def outcome(self) -> Outcome | None:
        """Return how the call ended, unless it is open or was settled since."""
        record = self.entry.record
        return record if isinstance(record, Outcome) else None

    @property
    def answers(self) -> bool:
        """True if the recorded outcome answers a call."""
        if self.undoing:
            return False
        if self.status in (Status.FAILED, Status.CANCELLED):
            return self.handled and not self.retry
        return self.status is Status.COMPLETED

    @property
    def cancelled(self) -> bool:
        """True if the call ended by cancellation."""
        return self.status is Status.CANCELLED

    @property
    def in_doubt(self) -> bool:
        """True if it is unknown whether the side effect happened."""
        if not self.call.effect or self.call.child or self.answers:
            return False
        return self.undoing or self.status is Status.OPEN or self._unclean

    @property
    def over(self) -> bool:
        """True if the record may stay unmatched: a clean-up made it, and its result is known.

        Where the same failure is cleaned up after again, it still answers.
        """
        return self.spent and not self.in_doubt

    @property
    def settled(self) -> bool:
        """True if a person confirmed that the call happened, and gave its value."""
        return isinstance(self.entry.record, Settled) and self.status is Status.COMPLETED

    @property
    def may_have_happened(self) -> bool:
        """True if the side effect happened or may have happened."""
        if not self.call.effect:
            return False
        return self.status in (Status.OPEN, Status.COMPLETED) or self._unclean

    @property
    def _unclean(self) -> bool:
        outcome = self.outcome
        return (
            self.status in (Status.FAILED, Status.CANCELLED)
            and outcome is not None
            and not outcome.clean
        )
