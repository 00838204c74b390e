"""The pool: which recorded call answers which call.  Pure: no store, no clock, no threads.

The *pool* holds the recorded calls that may still be met again.  A record answers a call of its
name if all parts that both know are equal, state aside (see ``parts``); identity is a multiset, so
two identical calls made on purpose are two.  What makes a side effect safe is the other half: one
that matches nothing runs only if nothing recorded could be itself with other parts, or under the
name that its function had before.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from stepwise._identity.parts import CLASS, FUNCTION, unknown_in
from stepwise._journal.counters import counted_as, turn
from stepwise._journal.projection import Calls, Flags, RecordedCall
from stepwise._journal.records import Call, Entry
from stepwise._matching.callers import NOBODY, AnyCaller, differences, nearness, of_subject
from stepwise._matching.subjects import owner
from stepwise._runtime.facts import NamedTuple

__all__ = ["FRESH", "Match", "Pool", "Verdict"]


class Verdict(enum.Enum):
    """The decision on how to handle a call."""

    ANSWER = "return the recorded outcome"
    CHANGED = "return the recorded outcome, and warn that the arguments changed"
    AGAIN = "run it again under its recorded number and idempotency key"
    DOUBT = "its side effect may have happened: in_doubt decides"
    BLOCKED = "it may be a recorded side effect with other arguments"
    FRESH = "run it"


class Match(NamedTuple):
    """A verdict, and the recorded calls that it is about.

    Args:
        instead: number of the recorded call of the same name and ordinal, which does not answer.
    """

    verdict: Verdict
    recorded: tuple[RecordedCall, ...] = ()
    instead: int = 0


FRESH = Match(Verdict.FRESH)


def _nothing() -> None:
    """Give none."""


def _always(*_: str) -> bool:
    """Take every function for one that still exists."""
    return True


class Pool:
    """The recorded calls of a run that no call of this attempt has used yet.

    Args:
        entries: the journal's records, in order.
        known: the steps that this program defines now, each as (module, name) and as (module, name,
            qualified name).  A record made by another function of the same name is not taken for a
            call of this one while that other function is still there.
        flags: what a checkpoint knew of earlier records, by their number.
        state: what parts are state, pairs of owner and part; what the records say is added.
        defined: returns whether the program has a function of a module and name now, as far as can
            be told.  A record of one that exists no more may be of a function that was renamed.
        counted: how many calls of each name were made before these, as a checkpoint counted them.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        known: Container[tuple[str, ...]] = (),
        flags: Mapping[int, Flags] | None = None,
        state: set[tuple[str, str]] | None = None,
        *,
        defined: Callable[[str, str], bool] = _always,
        counted: Mapping[str, int] | None = None,
    ) -> None:
        calls = Calls(entries, flags)
        self._known, self._defined, self._counted = known, defined, counted or {}
        self._state: set[tuple[str, str]] = set() if state is None else state
        for made in calls.changing:
            whose, parts = made.call.name, made.call.parts
            self._state.update((owner(whose, parts, part), part) for part in made.state)
        self.rulings = calls.rulings
        self._unused = calls.known
        # Ordered dicts, not lists or dicts: removing the first of many equal calls takes constant
        # time.
        self._by_key: dict[tuple[str, str], OrderedDict[int, None]] = {}
        self._by_ordinal: dict[tuple[str, str, int], OrderedDict[int, None]] = {}
        self._by_turn: dict[tuple[str, str, int], OrderedDict[int, None]] = {}
        self._by_name: dict[str, set[int]] = {}
        self._effects: set[int] = set()
        # Plain calls by the code of their function and their arguments; made on first use.
        self._by_code: dict[tuple[str, str], OrderedDict[int, None]] | None = None
        # By all arguments, defaults included, for calls whose default has changed since.
        self._by_arguments: dict[str, dict[Any, OrderedDict[int, None]]] = {}
        self.highest = 0  # serial number of a subject, or of what has no digest
        self._made: dict[tuple[str, str], list[Call]] = {}  # by subjects with parts of no digest
        self._covered: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self.taken: set[tuple[str, str, int]] = set()  # names as counted, digests and ordinals
        self.children: set[str] = set()  # ids of child runs
        self.done: set[str] = set()  # beginnings of the names of branches that a host continues
        for recorded in calls:
            self._know(recorded.call)
        for number in calls.superseded:
            self._unused.pop(number, None)
        for recorded in self._unused.values():
            self._index(recorded)

    def _know(self, call: Call) -> None:
        self.taken.add((counted_as(call.name, call.branch), call.digest, call.ordinal))
        self.children.add(call.child)
        unknown = unknown_in(call.parts)
        self.highest = max(self.highest, call.serial, *chain(*unknown.values()))
        if unknown:
            self._made.setdefault((call.name, call.digest), []).append(call)

    def __len__(self) -> int:
        return len(self._unused)

    def __bool__(self) -> bool:
        return bool(self._unused or self.rulings)

    @property
    def unused(self) -> list[RecordedCall]:
        """The unused records, in order; calls inside an unused completed one are left out.

        So are those of a clean-up that is over, and completed ones of a branch that a host
        continues where it was: that nobody meets them is no wonder.
        """
        done = tuple(self.done)
        return [
            each
            for number, each in self._unused.items()
            if number not in self._covered and not each.over
            if not (done and each.answers and each.call.branch.startswith(done))
        ]

    @property
    def all(self) -> list[RecordedCall]:
        """The records that no call used, in order."""
        return list(self._unused.values())

    def holds(self, name: str, digest: str) -> bool:
        """Return whether a call of this name with these arguments is unused."""
        return bool(self._by_key.get((name, digest)))

    def get(self, number: int) -> RecordedCall | None:
        """The recorded call of that number, while unused."""
        return self._unused.get(number)

    def _index(self, recorded: RecordedCall) -> None:
        call = recorded.call
        for index, key in self._keys(call):
            index.setdefault(key, OrderedDict())[call.number] = None
        self._by_name.setdefault(call.name, set()).add(call.number)
        if call.effect:
            self._effects.add(call.number)
        self._by_arguments.pop(call.name, None)
        self._by_code = None
        outcome = recorded.outcome
        if outcome is not None and recorded.answers:
            for inner in outcome.inner:
                self._covered[inner] = call.number

    def _keys(self, call: Call) -> Iterator[tuple[dict[Any, OrderedDict[int, None]], Any]]:
        yield self._by_key, (call.name, call.digest)
        yield self._by_ordinal, (call.name, call.digest, call.ordinal)
        yield self._by_turn, (call.name, call.branch, call.ordinal)

    # -- matching --------------------------------------------------------------------------------

    def match(
        self,
        call: Call,
        *,
        directly: bool,
        alone: Callable[[], bool],
        caller: AnyCaller = NOBODY,
        older: Callable[[], Call | None] = _nothing,
    ) -> Match:
        """Decide a call; the recorded calls it names stay in the pool until :meth:`take`.

        Args:
            call: what is being called; its ``number`` does not matter.
            directly: it is made by the workflow's own statement, which makes it at most once.
            alone: whether no other task or thread of the run could make the recorded call.
            caller: the instance or function that is called.
            older: gives the call as an older version would have recorded it.
        """
        recorded = self._candidate(call, caller)
        if recorded is None and call.name in self._by_name and (before := older()) is not None:
            recorded = self._candidate(before, caller)
        if recorded is None and call.code and not call.effect:
            recorded = self._under_its_old_name(call, caller)
        if recorded is not None and not self._has_twin(call, recorded, caller):
            return Match(self._verdict(recorded), (recorded,))
        if not call.effect:
            return FRESH
        ruled = self._as_ruled(call)
        verdict = Verdict.FRESH if ruled is None else ruled.verdict
        if ruled is not None and verdict not in (Verdict.FRESH, Verdict.BLOCKED):
            return ruled
        rivals = self._rivals(call, caller)
        if ruled is not None:
            rivals = [each for each in rivals if each not in ruled.recorded]
        if not rivals:
            return Match(verdict)
        only = rivals[0]
        if (
            recorded is None
            and verdict is Verdict.FRESH
            and directly
            and len(rivals) == 1
            and only.answers
            and self._fits(only, call)
            and not of_subject(differences(only.call, call, self._state))
            and (only.call.name, only.call.place, only.call.site)
            == (call.name, call.place, call.site)
            and alone()
        ):
            return Match(Verdict.CHANGED, (only,))
        return Match(Verdict.BLOCKED, tuple(rivals))

    def _as_ruled(self, call: Call) -> Match | None:
        """Apply a person's ruling on this call; return ``None`` if there is none.

        The recorded call that it is (blocked if another call has taken that); or ``FRESH``, with
        the recorded calls that it is not.  Nobody spoke of a call that differs in a part in which
        the stopped call was the recorded one: it is of another object, which comes in its place.
        """
        if not self.rulings:
            return None
        from stepwise._matching.rulings import agrees, made_since, ruling_on  # on use

        owned = {n for n, owner in self._owners.items() if owner in call.around}
        found = ruling_on(call, self.rulings, owned)
        if found is None:
            return None
        said, ruled = found
        if ruled.same:
            recorded = self._unused.get(ruled.steps[0])
        else:
            named = (self._unused[number] for number in self._by_name.get(call.name, ()))
            recorded = made_since(said, ruled.call, named)
            if recorded is None:
                known = [self._unused[n] for n in ruled.steps if n in self._unused]
                known = [each for each in known if agrees(call, ruled.call, each.call)]
                return Match(Verdict.FRESH, tuple(known))
        if recorded is None:
            return Match(Verdict.BLOCKED)
        if not agrees(call, ruled.call, recorded.call):
            return None
        verdict = self._verdict(recorded)
        return Match(Verdict.CHANGED if verdict is Verdict.ANSWER else verdict, (recorded,))

    def _verdict(self, recorded: RecordedCall) -> Verdict:
        if recorded.answers:
            return Verdict.ANSWER
        return Verdict.DOUBT if recorded.in_doubt else Verdict.AGAIN

    def _has_twin(self, call: Call, recorded: RecordedCall, caller: AnyCaller) -> bool:
        made = self._made.get((recorded.call.name, recorded.call.digest), ())
        return caller.has_twin(call, recorded.call, made)

    def _candidate(self, call: Call, caller: AnyCaller) -> RecordedCall | None:
        """The record of this very call.

        First one of the same subject, then one of the same ordinal, then that of the nearest state.
        """
        for fits in (self._fits, self._fits_in_doubt)[: 2 if call.effect else 1]:
            best: tuple[bool, bool, int] | None = None
            found = None
            for number in self._equal(call):
                recorded = self._unused[number]
                if not fits(recorded, call) or not self._is_same(recorded.call, call, caller):
                    continue
                other = recorded.call
                near = caller.owns(other.serial), other.ordinal == call.ordinal
                if all(near) or not (call.serial or other.serial):
                    return recorded  # records without a subject are in the right order
                order = *near, nearness(other, call)
                if best is None or order > best:
                    best, found = order, recorded
            if found is not None:
                return found
        return None

    def _equal(self, call: Call) -> Iterator[int]:
        """Yield the recorded calls with the same arguments, those of the same ordinal first."""
        yield from self._by_ordinal.get((call.name, call.digest, call.ordinal), ())
        yield from self._by_key.get((call.name, call.digest), ())
        arguments = _arguments(call)
        if call.parts and call.name in self._by_name:
            if call.name not in self._by_arguments:
                self._index_arguments(call.name)
            for number in self._by_arguments[call.name].get(arguments, ()):
                if self._unused[number].call.digest != call.digest:
                    yield number

    def _index_arguments(self, name: str) -> None:
        index = self._by_arguments[name] = {}
        for number in sorted(self._by_name[name]):
            arguments = _arguments(self._unused[number].call)
            index.setdefault(arguments, OrderedDict())[number] = None

    def _under_its_old_name(self, call: Call, caller: AnyCaller) -> RecordedCall | None:
        """Return the record of this plain call by a function that has been renamed since.

        The body of that function was equal but for the name, and the function exists no more.
        """
        if self._by_code is None:
            self._by_code = {}
            for number, recorded in self._unused.items():
                other = recorded.call
                if other.code and not other.effect and recorded.answers:
                    found = self._by_code.setdefault((other.code, other.digest), OrderedDict())
                    found[number] = None
        for number in self._by_code.get((call.code, call.digest), ()):
            recorded = self._unused[number]
            if (
                self.is_gone(recorded.call, call)
                and self._fits(recorded, call)
                and self._is_same(recorded.call, call, caller)
            ):
                return recorded
        return None

    def is_gone(self, other: Call, call: Call) -> bool:
        """Return whether the function that made a record exists no more, as far as can be told.

        A function of its name where the called one is counts, too: the file may have been started
        then, and be imported now; or the function was moved.
        """
        return other.name != call.name and not any(
            self._defined(module, other.name) for module in (other.module, call.module)
        )

    def _is_covered(self, number: int, call: Call) -> bool:
        """Return whether a record was made inside a completed step that may yet be called.

        It may not if its function exists no more: it runs again under another name.
        """
        around = self._unused.get(self._covered.get(number, 0))
        return around is not None and not self.is_gone(around.call, call)

    def _is_same(self, recorded: Call, call: Call, caller: AnyCaller) -> bool:
        """Return whether all parts that both calls know are equal, state aside."""
        if not recorded.parts and CLASS in call.parts:
            return caller.is_only()  # made by a version without parts
        return caller.accepts(recorded.serial) and not differences(recorded, call, self._state)

    def _fits(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether the record could be this very call, its parts aside."""
        return recorded.call.unwinding == call.unwinding and self._fits_code(recorded, call)

    def _fits_in_doubt(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether a record left in doubt by one unwinding can answer a call in another.

        The tool can then say what is to be done, and the answer of somebody who looked counts.
        """
        return (recorded.in_doubt or recorded.settled) and self._fits_code(recorded, call)

    def _fits_code(self, recorded: RecordedCall, call: Call) -> bool:
        other = recorded.call
        if other.branch != call.branch or self._is_of_other_code(other, call):
            return False
        if not self._is_owned(other, call):
            return False
        # A call made inside a completed step answers only inside a step of that name, unless the
        # code around it was rearranged.
        return other.scope == call.scope or not self._is_covered(other.number, call)

    def _is_of_other_code(self, other: Call, call: Call) -> bool:
        """Return whether an existing function of the same name, but other code, made a record."""
        if other.module != call.module and (other.module, other.name) in self._known:
            return True
        theirs, mine = other.parts.get(FUNCTION, ""), call.parts.get(FUNCTION, "")
        known = (other.module, other.name, theirs or other.name)
        return theirs != mine and bool(other.parts) and known in self._known

    def _rivals(self, call: Call, caller: AnyCaller) -> list[RecordedCall]:
        """Return the recorded effects that this call could be.

        Those of its name, with other arguments; those in doubt of the same statement; and those of
        a function that exists no more, at the same statement or turn: it may have been renamed.
        """
        found = []
        for number in sorted(self._effects):
            recorded = self._unused[number]
            other = recorded.call
            if other.name == call.name:
                could_be = not self._is_covered(number, call)
            elif self.is_gone(other, call) and self._is_at(other, call):
                inside = other.scope == call.scope or not self._is_covered(number, call)
                could_be = inside and not self._is_known_as_another(recorded, call)
            else:
                here = bool(call.place) and other.place == call.place
                could_be = here and recorded.in_doubt and number not in self._covered
            if could_be and self._may_be(recorded, call, caller):
                found.append(recorded)
        return found

    def _is_at(self, other: Call, call: Call) -> bool:
        """Return whether a call is made at the statement or the turn of a recorded one.

        The turn is that since the checkpoint, which counted calls by the old name.
        """
        if other.place and call.place:
            here = other.place.partition("@")[0] == call.place.partition("@")[0]
        else:
            here = bool(call.site) and other.site == call.site
        return here or self._turn(other) == self._turn(call)

    def _turn(self, call: Call) -> int:
        return turn(call) - self._counted.get(counted_as(call.name, call.branch), 0)

    def _is_known_as_another(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether a person said that no call of this tool is the recorded one of a gone one.

        An answer says so if this tool is no new name: both had been called side by side.
        """
        return any(
            ruled.beside and ruled.call.name == call.name and recorded.call.number in ruled.steps
            for _, ruled in self.rulings.values()
        )

    def _may_be(self, recorded: RecordedCall, call: Call, caller: AnyCaller) -> bool:
        other = recorded.call
        if other.branch != call.branch or not self._is_owned(other, call):
            return False
        if other.name == call.name and other.parts:
            if self._is_of_other_code(other, call) or not caller.accepts(other.serial):
                return False
            if recorded.may_have_happened and caller.another_fits(other, call):
                return False
        # A settled call is like a completed call of the clean-up: it answers its own call only.
        return recorded.may_have_happened and not recorded.over

    def instead(self, call: Call) -> int:
        """Return the number of the unused record of this turn, which differs; 0 if missing."""
        numbers = self._by_turn.get((call.name, call.branch, call.ordinal), ())
        return next((each for each in numbers if each not in self._covered), 0)

    def _is_owned(self, recorded: Call, call: Call) -> bool:
        """Return whether a record is nobody's, or that of a retried step that makes the call."""
        owner = self._owners.get(recorded.number) if self._owners else None
        return owner is None or owner in call.around

    def put_back(self, recorded: RecordedCall, owner: int = 0) -> None:
        """Put a record back into the pool: its caller is retried.

        Args:
            owner: the step that is retried, and alone makes such a call; 0 for any.
        """
        number = recorded.call.number
        if owner:
            self._owners[number] = owner
        if number in self._unused:
            return
        self._unused[recorded.call.number] = recorded
        self._know(recorded.call)
        self._index(recorded)

    def drop(self, numbers: Iterable[int]) -> None:
        """Take records out of the pool that are to answer no call."""
        for number in numbers:
            self._remove(number)

    def take(self, recorded: RecordedCall) -> list[RecordedCall]:
        """Take a record out of the pool, and return the calls inside it, which are taken, too."""
        self._remove(recorded.call.number)
        outcome = recorded.outcome
        inner = outcome.inner if outcome is not None and recorded.answers else ()
        return [each for each in map(self._remove, inner) if each is not None]

    def _remove(self, number: int) -> RecordedCall | None:
        recorded = self._unused.pop(number, None)
        self._covered.pop(number, None)
        self._owners.pop(number, None)
        if recorded is not None:
            call = recorded.call
            for index, key in self._keys(call):
                del index[key][number]
            self._by_name[call.name].discard(number)
            self._effects.discard(number)
            if self._by_code is not None:
                self._by_code.get((call.code, call.digest), OrderedDict()).pop(number, None)
            arguments = self._by_arguments.get(call.name)
            if arguments is not None:
                arguments.get(_arguments(call), OrderedDict()).pop(number, None)
        return recorded


def _arguments(call: Call) -> tuple[tuple[str, str], ...]:
    """The arguments of a call in parts, those at their default too."""
    parts = call.parts.items()  # without the serial numbers of what has no digest
    return tuple(sorted((n, text.partition("?")[0]) for n, text in parts if n.isidentifier()))
