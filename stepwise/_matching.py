"""Which recorded call answers which call of a resumed run.  Pure: no store, no clock, no threads.

The *pool* holds the recorded calls that may still be met again.  A call is matched by name and
argument digest; identity is a multiset, so two identical calls made on purpose are two.  What
makes a side effect safe is the other half: one that matches nothing runs only if nothing recorded
could be itself with other arguments.

Imports: recorded, records.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from stepwise._recorded import Recorded, Status
from stepwise._records import (
    Call,
    Compensated,
    Compensating,
    Ended,
    Entry,
    Forgotten,
    Handled,
    Intent,
    Outcome,
    Settled,
)

__all__ = ["FRESH", "Match", "Pool", "Verdict"]


class Verdict(enum.Enum):
    """What is to be done with a call."""

    ANSWER = "return the recorded outcome"
    CHANGED = "return the recorded outcome, and warn that the arguments changed"
    AGAIN = "run it again under its recorded number and idempotency key"
    DOUBT = "its side effect may have happened: decide"
    BLOCKED = "it may be a recorded side effect with other arguments"
    FRESH = "run it"


class Match(NamedTuple):
    """A verdict, and the recorded calls that it is about."""

    verdict: Verdict
    recorded: tuple[Recorded, ...] = ()


FRESH = Match(Verdict.FRESH)


class Pool:
    """The recorded calls of a run that no call of this attempt has used yet.

    Args:
        entries: the journal's records, in order.
        known: the names (module, name) of steps this program defines now.  A record made by a
            function of the same name in another module is not taken for a call of this one while
            that other function is still there.
        flags: what a checkpoint knew of earlier records, by their number.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        known: Container[tuple[str, str]] = (),
        flags: Mapping[int, tuple[bool, bool, bool]] | None = None,
    ) -> None:
        self._known = known
        self._flags = flags or {}
        self._unused: dict[int, Recorded] = {}
        # Ordered dicts, not lists or dicts: the first of many equal calls leaves in constant time.
        self._by_key: dict[tuple[str, str], OrderedDict[int, None]] = {}
        self._by_ordinal: dict[tuple[str, str, int], OrderedDict[int, None]] = {}
        self._by_name: dict[str, set[int]] = {}
        self._covered: dict[int, int] = {}
        for entry in entries:
            self._load(entry)
        for recorded in self._unused.values():
            self._index(recorded)

    def __len__(self) -> int:
        return len(self._unused)

    @property
    def unused(self) -> list[Recorded]:
        """What no call used, in order; calls made inside an unused completed one left out.

        So are those of a clean-up that is over: that nobody meets them is no wonder.
        """
        return [
            each
            for number, each in self._unused.items()
            if number not in self._covered and not each.over
        ]

    @property
    def all(self) -> list[Recorded]:
        """What no call used, in order."""
        return list(self._unused.values())

    def get(self, number: int) -> Recorded | None:
        """The recorded call of that number, while unused."""
        return self._unused.get(number)

    # -- loading ---------------------------------------------------------------------------------

    def _load(self, entry: Entry) -> None:
        record = entry.record
        loader = _LOADERS.get(type(record))
        if loader is not None:
            loader(self, entry)
        if entry.number in self._flags:
            number = getattr(record, "number", None) or record.call.number  # type: ignore[union-attr]
            recorded = self._unused[number]
            recorded.handled, recorded.retry, recorded.spent = self._flags[entry.number]

    def _load_intent(self, entry: Entry) -> None:
        call = entry.record.call  # type: ignore[union-attr]
        self._acted_on(call)
        self._unused[call.number] = Recorded(call, Status.OPEN, entry, entry)

    def _load_outcome(self, entry: Entry) -> None:
        outcome = entry.record
        assert isinstance(outcome, Outcome)
        self._acted_on(outcome.call)
        self._unused[outcome.call.number] = Recorded(
            outcome.call, Status[outcome.status.upper()], entry, entry
        )

    def _acted_on(self, call: Call) -> None:
        """A call made while handling a failure shows that the workflow acted on that failure."""
        failed = self._unused.get(call.unwinding or 0)
        if failed is not None:
            failed.handled = True

    def _load_handled(self, entry: Entry) -> None:
        for number in entry.record.numbers:  # type: ignore[union-attr]
            if number in self._unused:
                self._unused[number].handled = True

    def _load_settled(self, entry: Entry) -> None:
        settled = entry.record
        assert isinstance(settled, Settled)
        recorded = self._unused.get(settled.number)
        if recorded is not None and recorded.undoing:
            recorded.undoing = False
            if settled.landed:  # it was undone
                del self._unused[settled.number]
        elif recorded is not None:
            status = Status.COMPLETED if settled.landed else Status.FREE
            self._unused[settled.number] = Recorded(
                recorded.call, status, entry, recorded.origin, spent=recorded.spent
            )

    def _load_forgotten(self, entry: Entry) -> None:
        for number in entry.record.numbers:  # type: ignore[union-attr]
            self._unused.pop(number, None)

    def _load_compensating(self, entry: Entry) -> None:
        recorded = self._unused.get(entry.record.number)  # type: ignore[union-attr]
        if recorded is not None:
            recorded.undoing = True

    def _load_compensated(self, entry: Entry) -> None:
        self._unused.pop(entry.record.number, None)  # type: ignore[union-attr]

    def _load_ended(self, entry: Entry) -> None:
        ended = entry.record
        assert isinstance(ended, Ended)
        for number in ended.retry:
            if number in self._unused:
                self._unused[number].retry = True
        for number in ended.spent:
            if number in self._unused:
                self._unused[number].spent = True

    def _index(self, recorded: Recorded) -> None:
        call = recorded.call
        for index, key in self._keys(call):
            index.setdefault(key, OrderedDict())[call.number] = None
        self._by_name.setdefault(call.name, set()).add(call.number)
        outcome = recorded.outcome
        if outcome is not None and recorded.answers:
            for inner in outcome.inner:
                self._covered[inner] = call.number

    def _keys(self, call: Call) -> Iterator[tuple[dict[Any, OrderedDict[int, None]], Any]]:
        yield self._by_key, (call.name, call.digest)
        yield self._by_ordinal, (call.name, call.digest, call.ordinal)

    # -- matching --------------------------------------------------------------------------------

    def match(self, call: Call, *, directly: bool, alone: Callable[[], bool]) -> Match:
        """Decide a call; the recorded calls it names stay in the pool until :meth:`take`.

        Args:
            call: what is being called; its ``number`` does not matter.
            directly: it is made by the workflow's own statement, which makes it at most once.
            alone: whether no other task or thread of the run could make the recorded call.
        """
        recorded = self._candidate(call)
        if recorded is not None:
            return Match(self._verdict(recorded), (recorded,))
        if not call.effect:
            return FRESH
        rivals = self._rivals(call)
        if not rivals:
            return FRESH
        only = rivals[0]
        if (
            directly
            and len(rivals) == 1
            and only.answers
            and self._fits(only, call)
            and (only.call.name, only.call.place, only.call.site)
            == (call.name, call.place, call.site)
            and alone()
        ):
            return Match(Verdict.CHANGED, (only,))
        return Match(Verdict.BLOCKED, tuple(rivals))

    def _verdict(self, recorded: Recorded) -> Verdict:
        if recorded.answers:
            return Verdict.ANSWER
        return Verdict.DOUBT if recorded.in_doubt else Verdict.AGAIN

    def _candidate(self, call: Call) -> Recorded | None:
        """The record of this very call, that of the same ordinal first."""
        same = self._by_ordinal.get((call.name, call.digest, call.ordinal), ())
        numbers = self._by_key.get((call.name, call.digest), ())
        for fits in (self._fits, self._fits_in_doubt)[: 2 if call.effect else 1]:
            for number in itertools.chain(same, numbers):
                recorded = self._unused[number]
                if fits(recorded, call):
                    return recorded
        return None

    def _fits(self, recorded: Recorded, call: Call) -> bool:
        """Whether it could be this very call, its arguments apart."""
        return recorded.call.unwinding == call.unwinding and self._fits_code(recorded, call)

    def _fits_in_doubt(self, recorded: Recorded, call: Call) -> bool:
        """The same for what was left in doubt by one unwinding and is met in another.

        The tool can then say what is to be done, and the answer of somebody who looked counts.
        """
        return (recorded.in_doubt or recorded.settled) and self._fits_code(recorded, call)

    def _fits_code(self, recorded: Recorded, call: Call) -> bool:
        other = recorded.call
        if other.branch != call.branch:
            return False
        if other.module != call.module and (other.module, other.name) in self._known:
            return False
        # What was called inside a completed step answers only inside a step of that name, unless
        # the code was rearranged around it.
        return other.scope == call.scope or other.number not in self._covered

    def _rivals(self, call: Call) -> list[Recorded]:
        """Recorded effects that this call could be, with other arguments."""
        numbers = set(self._by_name.get(call.name, ()))
        if call.place:
            numbers.update(
                number
                for number, recorded in self._unused.items()
                if recorded.call.place == call.place and recorded.in_doubt
            )
        return [
            self._unused[number]
            for number in sorted(numbers)
            if number in self._unused
            and number not in self._covered
            and self._may_be(self._unused[number], call)
        ]

    def _may_be(self, recorded: Recorded, call: Call) -> bool:
        if recorded.call.branch != call.branch:
            return False
        # Settled, it is like what the clean-up completed: it answers its own call only.
        return recorded.may_have_happened and not recorded.over

    def put_back(self, recorded: Recorded) -> None:
        """This call may be met again: what made it is tried again."""
        self._unused[recorded.call.number] = recorded
        self._index(recorded)

    def take(self, recorded: Recorded) -> None:
        """A call uses this record; what was called inside it is used with it."""
        self._remove(recorded.call.number)
        outcome = recorded.outcome
        if outcome is not None and recorded.answers:
            for number in outcome.inner:
                self._remove(number)

    def _remove(self, number: int) -> None:
        recorded = self._unused.pop(number, None)
        self._covered.pop(number, None)
        if recorded is not None:
            call = recorded.call
            for index, key in self._keys(call):
                del index[key][number]
            self._by_name[call.name].discard(number)


_LOADERS: dict[type, Callable[[Pool, Entry], None]] = {
    Intent: Pool._load_intent,
    Outcome: Pool._load_outcome,
    Handled: Pool._load_handled,
    Settled: Pool._load_settled,
    Forgotten: Pool._load_forgotten,
    Compensating: Pool._load_compensating,
    Compensated: Pool._load_compensated,
    Ended: Pool._load_ended,
}
