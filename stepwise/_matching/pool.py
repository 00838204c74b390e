"""The pool: which recorded call answers which call.  Pure: no store, no clock, no threads.

The *pool* holds the recorded calls that may still be met again.  A record answers a call of its
name if all parts that both know are equal, state aside (see ``identity``).  Identity is a multiset,
so two identical calls made on purpose are two calls.  A side effect without a match runs only if no
recorded call could be the same call with other parts, or under the former name of its function.

The side effects of a failed attempt are done, so they answer the next attempt.  So does everything
recorded before the last side effect: with other values before it, that side effect could not be
recognised.  The plain calls after it led only to the failure.  They are made again, or an attempt
that failed because a model answered nonsense would get the same nonsense forever.

A *ruling* is a person's answer about a call at which a run stopped: which act the call is.  The
call is recognised by its call site and its ordinal, since its arguments may differ at every start.
If several calls of one name were ruled on, the arguments tell them apart.

Simulated (22,000 random scenarios): a digest of the arguments alone gives 5,631 wrong answers.  A
digest of the whole instance gives 6,399 needless repeats.  Parts, with parts changed by steps used
only for ranking, give 63 and 2,649.
"""

from __future__ import annotations

import enum
import gc
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from stepwise._identity.identity import (
    CLASS,
    FUNCTION,
    digest_part,
    idempotency_key,
    lenient,
    parse,
    shown_parts,
    unknown_in,
)
from stepwise._journal.projection import CallKey, Calls, Flags, RecordedCall, Ruling
from stepwise._journal.records import Call, Entry
from stepwise._matching.subjects import FIRST, UNKNOWN, Identity, Subjects, attempt_of, owner
from stepwise._runtime.facts import NamedTuple
from stepwise._values.trees import ATOMS

# -- ordinals -------------------------------------------------------------------------------------


_TURNS = 1 << 40


def turn(call: Call) -> int:
    """Return the ordinal of a call among calls of its name, without its key's offset."""
    return call.ordinal % _TURNS


def counted_as(name: str, branch: str) -> str:
    """Return the name under which a call is counted."""
    return f"{branch}\n{name}" if branch else name


def key_of(run_id: str, call: Call) -> str:
    """Return the idempotency key of a call that is made in this run."""
    counted = counted_as(call.name, call.branch)
    return idempotency_key(run_id, counted, call.digest, call.ordinal)


def apart(call: Call, run_id: str, undone: int, taken: Container[tuple[str, str, int]]) -> Call:
    """Return a new call with an ordinal, and so an idempotency key, that no recorded call has.

    The call's own ordinal may be taken: if objects call in another order than before, the first has
    the ordinal under which another object's call was recorded.  The new ordinal is below zero, so
    that the following calls keep theirs; :func:`turn` returns the call's own ordinal.
    """
    counted, ordinal = counted_as(call.name, call.branch), call.ordinal
    while (counted, call.digest, ordinal) in taken:
        ordinal -= _TURNS
    if ordinal == call.ordinal:
        return call
    key = idempotency_key(run_id, counted, call.digest, ordinal, undone) if call.effect else ""
    return call._replace(ordinal=ordinal, key=key)


# -- attempts -------------------------------------------------------------------------------------


def superseded(calls: Iterable[RecordedCall]) -> tuple[int, ...]:
    """Return the numbers of the calls that do not answer the next attempt.

    The position of a call is its last record.  Attempts are ordered by their records, so that a
    process that was killed between two records decides like one that was not.

    Args:
        calls: the calls made or answered inside the failed step, at any depth, including calls in
            doubt.
    """
    known = list(calls)
    last = max((each.entry.number for each in known if _binds(each)), default=0)
    return tuple(
        sorted(
            each.call.number
            for each in known
            if each.answers and not _binds(each) and each.entry.number > last
        )
    )


def _binds(recorded: RecordedCall) -> bool:
    """Return whether a call had an effect outside that must not be repeated."""
    call = recorded.call  # a wait has taken a message, or a person's answer
    return call.is_wait or (call.effect and (bool(call.child) or recorded.may_have_happened))


# -- rulings --------------------------------------------------------------------------------------


def ruling_on(
    call: Call, rulings: Mapping[CallKey, Ruling], owned: Container[int] = ()
) -> Ruling | None:
    """Return the ruling on a call, and the number of the record that holds the ruling.

    Args:
        owned: the unused recorded calls of the retried step that makes the call.  The next attempt
            of the step makes these calls again, in their order but with other ordinals.
    """
    near = [each for each in rulings.values() if _is_at(each[1].call, call)]
    again = [each for each in near if each[1].same and each[1].steps[0] in owned]
    if again:
        again.sort(key=lambda each: each[1].steps)
        return max(again, key=lambda each: _nearness(each[1].call, call)[0])
    if (call.name, call.branch, call.ordinal) not in rulings:
        return None
    return max(near, key=lambda each: _nearness(each[1].call, call), default=None)


def made_since(number: int, stopped: Call, among: Iterable[RecordedCall]) -> RecordedCall | None:
    """Return the record of a call that was made because a person resolved it as another act.

    Args:
        number: the number of the record with the ruling.
    """
    for each in among:
        here = turn(each.call) == stopped.ordinal and _is_at(each.call, stopped)
        if here and each.origin.number > number:
            return each
    return None


def _is_at(one: Call, other: Call) -> bool:
    """Return whether calls of the same name are made at the same place in the code.

    A structural place survives edits above it, but not every thread knows it.
    """
    if (one.name, one.branch, one.scope) != (other.name, other.branch, other.scope):
        return False
    return one.site == other.site or (bool(one.place) and one.place == other.place)


def _nearness(one: Call, other: Call) -> tuple[int, bool]:
    known = one.parts.keys() & other.parts.keys()
    equal = sum(_alike(one.parts[name], other.parts[name]) for name in known)
    return equal, one.ordinal == other.ordinal


def differing(call: Call, other: Call) -> list[str]:
    """Return the names of the parts that two calls both know and that differ."""
    return [
        name
        for name, text in call.parts.items()
        if name in other.parts and not _alike(text, other.parts[name])
    ]


def agrees(call: Call, stopped: Call, recorded: Call) -> bool:
    """Return whether a call equals the stopped call in all parts where that matched the record.

    Serial numbers of objects without a digest are ignored: every process assigns new ones.
    """
    return all(
        _alike(call.parts.get(name, text), text)
        for name, text in stopped.parts.items()
        if name in recorded.parts and _alike(recorded.parts[name], text)
    )


def _alike(one: str, other: str) -> bool:
    """Return whether two texts of a part may be of one value, whatever their serial numbers."""
    return one == other or parse(one).same(parse(other))


# -- callers --------------------------------------------------------------------------------------


State = Collection[tuple[str, str]]


def differences(recorded: Call, call: Call, state: State) -> list[str]:
    """Return the parts whose difference shows that two calls are not the same call.

    A part that only one of them knows does not count.  State does not count either, except the
    value of a scalar when the run first saw the subject.

    Args:
        state: pairs of :func:`owner` and part.
    """
    theirs, mine = recorded.parts, call.parts
    if theirs == mine:
        return []
    found = []
    for name, text in mine.items():
        other = theirs.get(name)
        if other is None or name.endswith(FIRST) or name == FUNCTION:
            continue
        one, two = text, other
        if (owner(call.name, mine, name), name) in state:
            if text[0] != "." or other[0] != ".":
                continue
            one, two = mine.get(name + FIRST, text), theirs.get(name + FIRST, other)
            if UNKNOWN in (one, two):
                continue
            if text == other and not (name + FIRST in mine and name + FIRST in theirs):
                continue  # an earlier attempt in this process left this state
        if one == two:
            continue
        if name == CLASS or not parse(one).same(parse(two)):
            found.append(name)
    return found


def nearness(recorded: Call, call: Call) -> int:
    """Count the equal parts of two calls, including state and times."""
    theirs = recorded.parts
    return sum(theirs.get(name) == text for name, text in call.parts.items())


def of_subject(names: Iterable[str]) -> list[str]:
    """Return the parts that belong to the subject, not to the arguments."""
    return [name for name in names if name == CLASS or name.startswith(("self.", "closure."))]


class AnyCaller:
    """The caller of a call, as far as it decides which record answers the call.

    Its arguments may hold objects without a digest.  Two calls that are equal except for such
    objects are *twins*: their records cannot be told apart.

    Attributes:
        has_twins: True if another live subject was found that cannot be told from the caller's.
    """

    has_twins = False

    def __init__(self, subjects: Subjects, identity: Identity) -> None:
        self._subjects = subjects
        self._identity = identity

    def owns(self, serial: int) -> bool:
        """Return whether a serial number is one of the caller's own."""
        return serial == 0

    def accepts(self, serial: int) -> bool:
        """Return whether the caller may have made a record with this serial number."""
        return True

    def made(self, recorded: Call) -> bool | None:
        """Return whether the called function, not another of its name, made a record.

        ``None`` means that nobody knows.
        """
        return self._identity.made(recorded)

    def another_fits(self, recorded: Call, call: Call) -> bool:
        """Return whether another live subject fits a recorded call that differs in one part."""
        return False

    def has_twin(self, call: Call, recorded: Call, made: Iterable[Call]) -> bool:
        """Return whether the record's maker is ambiguous; ``made`` are recorded equal calls."""
        given = self._identity.given
        self.has_twins = bool(given) and (
            self._lives(self._other_arguments) or self._has_recorded_twin(call, made)
        )
        return self.has_twins

    def _other_arguments(self) -> list[object]:
        """Return live objects that equal arguments except for objects without a digest."""
        carriers = [each for value in self._identity.arguments for each in _carriers(value)]
        passed = set(map(id, carriers))
        found = []
        for each in carriers:
            cls: Any = type(each)
            encoded, unknown = lenient(each)
            same = set(map(id, unknown))
            for other in gc.get_referrers(cls):
                if type(other) is not cls or id(other) in passed:
                    continue
                theirs, without = lenient(other)
                if theirs == encoded and same != set(map(id, without)):
                    found.append(other)
        return found

    def _has_recorded_twin(self, call: Call, made: Iterable[Call]) -> bool:
        """Return whether one attempt recorded equal calls of several different objects."""
        # By attempt, then by the subject and the arguments.
        held: dict[int, dict[object, Mapping[str, tuple[int, ...]]]] = {}
        for each in made:
            if not of_subject(differences(each, call, self._subjects.state)):
                unknown = unknown_in(each.parts)
                attempt = attempt_of(next(chain(*unknown.values())))
                given = tuple(sorted(pair for pair in unknown.items() if pair[0].isidentifier()))
                held.setdefault(attempt, {})[each.serial, given] = unknown
        one_attempt = (list(subjects.values()) for subjects in held.values())
        return any(each != first for first, *others in one_attempt for each in others)

    def _lives(self, find: Callable[[], list[object]]) -> bool:
        """Return whether one of the found objects is alive.

        Unreferenced objects cannot be called, so garbage is collected before an object counts that
        was never seen to survive a collection.  This happens once for each object, since a
        collection is expensive in a large process.
        """
        subjects = self._subjects
        found = find()
        if not found or any(map(subjects.has_outlived, found)):
            return bool(found)
        del found
        subjects.let_go()
        gc.collect()
        found = find()
        for obj in found:
            subjects.outlives(obj)
        return bool(found)

    def twins_text(self) -> str:
        """Return the text about a call that cannot be distinguished from another object's."""
        held = self._identity.given
        kinds = _kinds(held)
        return (
            f"calls cannot be told apart: several are equal except for {shown_parts(held)}, which "
            f"has no digest ({kinds}). {_CONSEQUENCE} Leave the argument out with ignore=, or "
            f"declare what distinguishes the objects: {_declaration(kinds)}"
        )


_CONSEQUENCE = (
    "A recorded call of one could answer another, so plain steps run again and side effects stop "
    "and ask."
)


def _kinds(held: Mapping[str, Iterable[object]]) -> str:
    return ", ".join(sorted({type(each).__name__ for objs in held.values() for each in objs}))


def _declaration(kinds: str) -> str:
    return f"stepwise.identity({kinds.partition(',')[0]}, fields=(...))"


def _carriers(value: object) -> list[object]:
    """Return the objects in an argument that are, or hold, objects without a digest."""
    waiting, found = [value], []
    for each in waiting:
        if isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif type(each) not in ATOMS and lenient(each)[1]:
            found.append(each)
        if len(waiting) > _MOST:
            break
    return found


_MOST = 1000  # items of arguments that are examined


class _Other(NamedTuple):
    """Another live subject: the record of a call that it would make, and its contents."""

    call: Call
    defaults: Mapping[str, str]
    values: Mapping[str, Any]
    unknown: list[object]


class Caller(AnyCaller):
    """The subject of a call, among the other live subjects of its kind."""

    def __init__(self, subjects: Subjects, identity: Identity) -> None:
        super().__init__(subjects, identity)
        assert identity.holder is not None
        assert identity.subject is not None
        self._subject = identity.subject
        self._holder = identity.holder

    def owns(self, serial: int) -> bool:
        return serial in self._subject.serials

    def accepts(self, serial: int) -> bool:
        return self._subjects.accepts(self._subject, serial)

    def another_fits(self, recorded: Call, call: Call) -> bool:
        state, defaults = self._subjects.state, self._holder.parameters.default_parts()
        differing = differences(recorded, call, state)
        at_default = [name for name in differing if call.parts[name] == defaults.get(name)]
        fixed = [n for n in of_subject(differing) if self._is_fixed(n, recorded, call)]
        if not (at_default or fixed):
            return False

        def fits(other: _Other) -> bool:
            return not of_subject(differences(recorded, other.call, state)) and all(
                other.defaults.get(name) == recorded.parts[name] for name in at_default
            )

        return self._is_any(recorded.parts.get(CLASS, ""), fits)

    def _is_fixed(self, name: str, recorded: Call, call: Call) -> bool:
        """Return whether a part has not changed since the run first saw the subject.

        Another call in flight, or another function that captured the variable, may have changed the
        part before.
        """
        if name == CLASS:
            return True
        held, whose = self._identity.held, owner(call.name, call.parts, name)
        if name.startswith("closure.") and (whose, name) in self._subjects.state:
            return False
        if held is not None and held.shared(name):
            return False
        fixed = self._subjects.first(self._identity, name) == call.parts[name]
        return fixed and name + FIRST not in recorded.parts

    def has_twin(self, call: Call, recorded: Call, made: Iterable[Call]) -> bool:
        if super().has_twin(call, recorded, made):
            return True
        if not self._identity.unknown or (self._subject.restored and self.owns(recorded.serial)):
            return False
        state, mine = self._subjects.state, self._identity.unknown.values()
        held = sorted(id(each) for objects in mine for each in objects)

        def is_twin(other: _Other) -> bool:
            if not other.unknown or held == sorted(map(id, other.unknown)):
                return False
            names = of_subject(differences(other.call, call, state))
            return all(self._begins(name, other) for name in names)

        if self._is_any(call.parts.get(CLASS, ""), is_twin):
            self.has_twins = True
            return True
        self.has_twins = self._has_recorded_twin(call, made)
        return self.has_twins

    def _is_any(self, class_text: str, fits: Callable[[_Other], bool]) -> bool:
        """Return whether another live subject fits."""
        return self._lives(lambda: [obj for obj, other in self._others(class_text) if fits(other)])

    def twins_text(self) -> str:
        held = self._identity.unknown
        if self._identity.given:
            return super().twins_text()
        kinds = _kinds(held)
        whose = self._holder.cls.__qualname__ if self._holder.cls is not None else "functions"
        return (
            f"calls of {self._holder.name!r} cannot be told apart: several {whose} are equal "
            f"except for {shown_parts(held)}, which has no digest ({kinds}). {_CONSEQUENCE} Give "
            f"each a name as an attribute or variable, or declare what distinguishes the objects: "
            f"{_declaration(kinds)}"
        )

    def _begins(self, name: str, other: _Other) -> bool:
        """Return whether one of two lists begins the other, so that they tell no subjects apart."""
        mine, theirs = self._identity.values.get(name), other.values.get(name)
        if type(mine) is not type(theirs) or not isinstance(mine, (list, tuple)):
            return False
        assert isinstance(theirs, (list, tuple))
        length = min(len(mine), len(theirs))
        return digest_part(mine[:length])[0] == digest_part(theirs[:length])[0]

    def _others(self, class_text: str) -> Iterator[tuple[object, _Other]]:
        """Yield the other live subjects of a class, or other functions made by the same code."""
        for obj, holder in self._holder.others(class_text):
            parts, unknown, values = {CLASS: class_text} if class_text else {}, [], holder.values()
            first = self._subjects.first_of(obj)
            for name, value in values.items():
                parts[name], without = holder.digest(name, value)
                unknown += without
                before = first.get(name, parts[name]).partition("?")[0]
                if before != parts[name]:
                    parts[name + FIRST] = before
            call = Call(0, self._holder.name, "", "", 0, parts=parts)
            yield obj, _Other(call, holder.parameters.default_parts(), values, unknown)


def caller_of(subjects: Subjects, identity: Identity) -> AnyCaller:
    """Return the caller of a call with this identity."""
    made = AnyCaller if identity.holder is None else Caller
    return made(subjects, identity)


NOBODY = AnyCaller(Subjects(""), Identity("", {}))


# -- pool -----------------------------------------------------------------------------------------


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
        instead: the number of the recorded call of the same name and ordinal that does not answer.
    """

    verdict: Verdict
    recorded: tuple[RecordedCall, ...] = ()
    instead: int = 0


FRESH = Match(Verdict.FRESH)


def _always(*_: str) -> bool:
    """Return True: every function counts as one that still exists."""
    return True


class _Index:
    """Recorded calls by a key, those of one key in the order in which they were added.

    Ordered dicts, not lists or dicts: removing the first of many equal calls takes constant time.
    """

    def __init__(self, key: Callable[[Call], tuple[Any, ...]]) -> None:
        self._key = key
        self._numbers: dict[tuple[Any, ...], OrderedDict[int, None]] = {}

    def add(self, call: Call) -> None:
        self._numbers.setdefault(self._key(call), OrderedDict())[call.number] = None

    def remove(self, call: Call) -> None:
        self._numbers.get(self._key(call), _NO_NUMBERS).pop(call.number, None)

    def at(self, *key: Any) -> Collection[int]:
        """Return the numbers of the calls with a key."""
        return self._numbers.get(key, _NO_NUMBERS)


_NO_NUMBERS: OrderedDict[int, None] = OrderedDict()


class Pool:
    """The recorded calls of a run that no call of this attempt has used yet.

    Args:
        entries: the journal's records, in order.
        known: the steps that this program defines now, each as (module, name) and as (module, name,
            qualified name).  A record made by another function of the same name does not match a
            call of this function while that other function still exists.
        flags: the facts that a checkpoint keeps of earlier records, by their number.
        state: the parts that are state, pairs of owner and part; the records add further ones.
        defined: returns whether the program has a function of a module and name now, as far as can
            be known.  A record of a missing function may come from a renamed function.
        counted: the number of calls of each name before these records, as a checkpoint counted
            them.
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
        self._by_key = _Index(lambda call: (call.name, call.digest))
        self._by_ordinal = _Index(lambda call: (call.name, call.digest, call.ordinal))
        self._by_turn = _Index(lambda call: (call.name, call.branch, call.ordinal))
        self._by_name = _Index(lambda call: (call.name,))
        self._by_effect = _Index(lambda call: (call.effect,))
        # Plain calls by the code of their function and their arguments; built on first use.
        self._by_code: _Index | None = None
        # By all arguments, including defaults, for calls whose default has changed since.
        self._by_arguments: dict[str, _Index] = {}
        self.highest = 0  # serial number of a subject, or of an object without a digest
        self._made: dict[tuple[str, str], list[Call]] = {}  # by name and digest
        self._covered: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self.taken: set[tuple[str, str, int]] = set()  # counted names, digests and ordinals
        self.children: set[str] = set()  # ids of child runs
        self.done: set[str] = set()  # name prefixes of branches that a host continues
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
        """The unused records, in order, without calls inside an unused completed call.

        Records of a finished clean-up are left out, too, and completed records of a branch that a
        host continues where it was: it is normal that no call uses them.
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

    @property
    def answering(self) -> int:
        """The number of records that answer calls."""
        return sum(each.answers for each in self._unused.values())

    def holds(self, name: str, digest: str) -> bool:
        """Return whether a call of this name with these arguments is unused."""
        return bool(self._by_key.at(name, digest))

    def get(self, number: int) -> RecordedCall | None:
        """Return the recorded call of that number while it is unused, else None."""
        return self._unused.get(number)

    def _index(self, recorded: RecordedCall) -> None:
        call = recorded.call
        self._by_arguments.pop(call.name, None)
        self._by_code = None
        for index in self._indices(call):
            index.add(call)
        outcome = recorded.outcome
        if outcome is not None and recorded.answers:
            for inner in outcome.inner:
                self._covered[inner] = call.number

    def _indices(self, call: Call) -> Iterator[_Index]:
        """Yield the indices that exist and may hold a call."""
        yield from (self._by_key, self._by_ordinal, self._by_turn, self._by_name, self._by_effect)
        yield from filter(None, (self._by_code, self._by_arguments.get(call.name)))

    # -- matching --------------------------------------------------------------------------------

    def match(
        self,
        call: Call,
        *,
        directly: bool,
        alone: Callable[[], bool],
        caller: AnyCaller = NOBODY,
    ) -> Match:
        """Decide on a call; the recorded calls of the result stay in the pool until :meth:`take`.

        Args:
            call: the current call; its ``number`` does not matter.
            directly: True if the workflow's own statement makes the call, at most once.
            alone: returns whether no other task or thread of the run could make the recorded call.
            caller: the instance or function that is called.
        """
        recorded = self._candidate(call, caller)
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

        If the call is a recorded one, the match is that record, or ``BLOCKED`` if another call has
        taken the record.  Otherwise the match is ``FRESH``, with the recorded calls that it is not.

        A ruling does not apply to a call that differs in a part in which the stopped call matched
        the record.  Such a call comes from another object in the same place.
        """
        if not self.rulings:
            return None
        owned = {n for n, owner in self._owners.items() if owner in call.around}
        found = ruling_on(call, self.rulings, owned)
        if found is None:
            return None
        said, ruled = found
        if ruled.same:
            recorded = self._unused.get(ruled.steps[0])
        else:
            named = (self._unused[number] for number in self._by_name.at(call.name))
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
        """Return the record of this very call.

        A record of the same subject is preferred, then one of the same ordinal, then the one with
        the nearest state.
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
        """Yield the recorded calls with the same arguments, calls of the same ordinal first."""
        yield from self._by_ordinal.at(call.name, call.digest, call.ordinal)
        yield from self._by_key.at(call.name, call.digest)
        if call.parts and self._by_name.at(call.name):
            index = self._by_arguments.get(call.name)
            if index is None:
                index = self._by_arguments[call.name] = _Index(_arguments)
                for number in sorted(self._by_name.at(call.name)):
                    index.add(self._unused[number].call)
            for number in index.at(*_arguments(call)):
                if self._unused[number].call.digest != call.digest:
                    yield number

    def _under_its_old_name(self, call: Call, caller: AnyCaller) -> RecordedCall | None:
        """Return the record of this plain call by a function that has been renamed since.

        The body of that function was equal except for the name, and the function no longer exists.
        """
        if self._by_code is None:
            self._by_code = _Index(lambda call: (call.code, call.digest))
            for recorded in self._unused.values():
                if recorded.call.code and not recorded.call.effect and recorded.answers:
                    self._by_code.add(recorded.call)
        for number in self._by_code.at(call.code, call.digest):
            recorded = self._unused[number]
            if (
                self.is_gone(recorded.call, call)
                and self._fits(recorded, call)
                and self._is_same(recorded.call, call, caller)
            ):
                return recorded
        return None

    def is_gone(self, other: Call, call: Call) -> bool:
        """Return whether the function that made a record no longer exists, as far as can be known.

        A function of its name in the module of the called function counts, too.  The file may have
        been started as a script then and be imported now, or the function was moved.
        """
        return other.name != call.name and not any(
            self._defined(module, other.name) for module in (other.module, call.module)
        )

    def _is_covered(self, number: int, call: Call) -> bool:
        """Return whether a record was made inside a completed step that may yet be called.

        The step cannot be called if its function no longer exists: it runs again under another
        name.
        """
        around = self._unused.get(self._covered.get(number, 0))
        return around is not None and not self.is_gone(around.call, call)

    def _is_same(self, recorded: Call, call: Call, caller: AnyCaller) -> bool:
        """Return whether all parts that both calls know are equal, state aside."""
        if not caller.accepts(recorded.serial) or differences(recorded, call, self._state):
            return False
        return bool(caller.made(recorded))

    def _fits(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether the record could be this very call, its parts aside."""
        return recorded.call.unwinding == call.unwinding and self._fits_code(recorded, call)

    def _fits_in_doubt(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether a record left in doubt by one unwinding can answer a call in another.

        The tool then decides what to do, and a person's answer counts.
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
        return theirs != mine and known in self._known

    def _rivals(self, call: Call, caller: AnyCaller) -> list[RecordedCall]:
        """Return the recorded effects that this call could be.

        They are effects of the same name with other arguments, and effects in doubt of the same
        statement. Effects of a missing function at the same statement or turn count, too: it may
        have been renamed.
        """
        found = []
        for number in sorted(self._by_effect.at(True)):
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

        Turns are counted since the checkpoint, which counted calls by the old name.
        """
        if other.place and call.place:
            here = other.place.partition("@")[0] == call.place.partition("@")[0]
        else:
            here = bool(call.site) and other.site == call.site
        return here or self._turn(other) == self._turn(call)

    def _turn(self, call: Call) -> int:
        return turn(call) - self._counted.get(counted_as(call.name, call.branch), 0)

    def _is_known_as_another(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether a person ruled that no call of this tool is this record of a missing tool.

        A ruling says so if this tool is not a new name: both tools had been called side by side.
        """
        return any(
            ruled.beside and ruled.call.name == call.name and recorded.call.number in ruled.steps
            for _, ruled in self.rulings.values()
        )

    def _may_be(self, recorded: RecordedCall, call: Call, caller: AnyCaller) -> bool:
        other = recorded.call
        if other.branch != call.branch or not self._is_owned(other, call):
            return False
        if other.name == call.name and caller.made(other) is False:
            return False
        if other.name == call.name and other.parts:
            if self._is_of_other_code(other, call) or not caller.accepts(other.serial):
                return False
            if recorded.may_have_happened and caller.another_fits(other, call):
                return False
        # Like a completed call of the clean-up, a settled call answers only its own call.
        return recorded.may_have_happened and not recorded.over

    def instead(self, call: Call) -> int:
        """Return the number of the unused record of this turn, which differs; 0 if missing."""
        numbers = self._by_turn.at(call.name, call.branch, call.ordinal)
        return next((each for each in numbers if each not in self._covered), 0)

    def _is_owned(self, recorded: Call, call: Call) -> bool:
        """Return whether a record has no owner, or its owner, a retried step, makes the call."""
        owner = self._owners.get(recorded.number) if self._owners else None
        return owner is None or owner in call.around

    def put_back(self, recorded: RecordedCall, owner: int = 0) -> None:
        """Put a record back into the pool, because its caller is retried.

        Args:
            owner: the retried step, which alone makes such a call; 0 for any caller.
        """
        number = recorded.call.number
        self._owners.pop(number, None)
        if owner:
            self._owners[number] = owner
        if number in self._unused:
            return
        self._unused[recorded.call.number] = recorded
        self._know(recorded.call)
        self._index(recorded)

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove records that must not answer any call."""
        for number in numbers:
            self._remove(number)

    def take(self, recorded: RecordedCall) -> list[RecordedCall]:
        """Remove a record from the pool; remove and return the calls inside it, too."""
        self._remove(recorded.call.number)
        outcome = recorded.outcome
        inner = outcome.inner if outcome is not None and recorded.answers else ()
        return [each for each in map(self._remove, inner) if each is not None]

    def _remove(self, number: int) -> RecordedCall | None:
        recorded = self._unused.pop(number, None)
        self._covered.pop(number, None)
        self._owners.pop(number, None)
        if recorded is not None:
            for index in self._indices(recorded.call):
                index.remove(recorded.call)
        return recorded


def _arguments(call: Call) -> tuple[tuple[str, str], ...]:
    """Return the arguments of a call in parts, including those at their default."""
    parts = call.parts.items()  # without serial numbers of objects without a digest
    return tuple(sorted((n, text.partition("?")[0]) for n, text in parts if n.isidentifier()))
