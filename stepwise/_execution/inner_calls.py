"""The calls inside the steps in progress: where their records are, should an attempt fail."""

from __future__ import annotations

from collections.abc import Iterable

from stepwise._journal.projection import Flags, RecordedCall
from stepwise._journal.records import Call

__all__ = ["InnerCall", "InnerCalls"]


class InnerCall:
    """A call that was made or answered inside a step.

    Attributes:
        around: numbers of the steps that are executing it, the outermost first.
        records: numbers of its records.
        flags: of the call, as of its last record; ``None`` if the records say them.
        open: it has begun, and not ended.
        abandoned: nobody waits for it: a step around it has run out of time.
    """

    __slots__ = ("abandoned", "around", "effect", "flags", "open", "records")

    def __init__(self, call: Call, around: tuple[int, ...]) -> None:
        self.around = around
        self.effect = call.effect
        self.records: list[int] = []
        self.flags: Flags | None = None
        self.open = self.abandoned = False


class InnerCalls:
    """The calls made inside the steps of one run that are in progress.

    Attributes:
        over: the attempts that have failed: their lists of calls, by identity (kept here, so that
            no other list has it).
    """

    def __init__(self) -> None:
        self._calls: dict[int, dict[int, InnerCall]] = {}  # by the outermost step around them
        # The steps of an earlier process that a step continues, since their calls answer its own.
        self._continued: dict[int, set[int]] = {}
        self.over: dict[int, list[int]] = {}

    def begin(self, around: tuple[int, ...], call: Call, recorded: RecordedCall | None) -> None:
        """A call inside a step begins: it has got its number, that of a record if it continues."""
        if recorded is not None:
            self.answered(around, recorded)
        inner = self._calls.setdefault(around[0], {}).setdefault(
            call.number, InnerCall(call, around)
        )
        inner.around, inner.open = around, True

    def answered(self, around: tuple[int, ...], recorded: RecordedCall) -> None:
        """A record answers a call inside a step."""
        call = recorded.call
        inner = self._calls.setdefault(around[0], {}).setdefault(
            call.number, InnerCall(call, around)
        )
        known = {*inner.records, recorded.origin.number, recorded.entry.number}
        inner.records = sorted(known - {0})  # 0 of a call that a restored run may have lost
        inner.around, inner.flags = around, recorded.flags
        if len(call.around) == len(around):
            for mine, theirs in zip(around, call.around, strict=True):
                if mine != theirs:
                    self._continued.setdefault(mine, set()).add(theirs)

    def wrote(self, around: tuple[int, ...], call: Call, number: int) -> None:
        """A record of a call inside a step was written."""
        inner = self._calls.get(around[0], {}).get(call.number)
        if inner is not None:
            inner.records.append(number)
            inner.flags = None

    def handled(self, numbers: Iterable[int]) -> None:
        """The failures of these calls turned out to be handled."""
        for calls in self._calls.values() if self._calls else ():
            for number in numbers:
                if number in calls:
                    calls[number].flags = True, False, False

    def land(self, around: tuple[int, ...], number: int) -> None:
        """A call inside a step has ended, with a record or without one."""
        inner = self._calls.get(around[0], {}).get(number)
        if inner is not None:
            inner.open = False

    def end(self, number: int) -> None:
        """A step has ended; those inside it have, too, if it was called outside of all steps."""
        for step in (number, *self._calls.pop(number, ())):
            self._continued.pop(step, None)

    # -- a failed attempt ------------------------------------------------------------------------

    def inside(self, around: tuple[int, ...]) -> dict[int, InnerCall]:
        """Return the calls inside a step, in all of its attempts so far.

        Args:
            around: number of the step, behind those of the steps around it.
        """
        calls = self._calls.get(around[0])
        if not calls:
            return {}
        step = around[-1]  # a copy, since other tasks and threads go on
        return {number: each for number, each in calls.copy().items() if step in each.around}

    def steps(self, number: int) -> set[int]:
        """Return a step, and the steps of earlier processes that it continues."""
        return {number} | self._continued.get(number, set())

    def forget(self, around: tuple[int, ...], numbers: Iterable[int]) -> None:
        """Forget calls that were made in vain."""
        calls = self._calls.get(around[0], {})
        for number in numbers:
            calls.pop(number, None)
