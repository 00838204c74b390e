"""Comparison of the callers of a recorded call and of a call of today."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from stepwise._identity.parts import (
    CLASS,
    FUNCTION,
    digest_part,
    lenient,
    parse,
    shown_part,
    unknown_in,
)
from stepwise._identity.sights import ATOMS
from stepwise._journal.records import Call
from stepwise._matching.subjects import FIRST, UNKNOWN, Identity, Subjects, attempt_of, owner
from stepwise._runtime.facts import NamedTuple

__all__ = ["NOBODY", "AnyCaller", "caller_of", "differences", "nearness", "of_subject"]

State = Collection[tuple[str, str]]


def differences(recorded: Call, call: Call, state: State) -> list[str]:
    """The parts in which two calls differ so that they cannot be one call.

    A part that only one of them knows does not count.  What is state does not either, but for the
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
    """The caller of a call, as far as it decides which record answers the call; it may be unknown.

    Attributes:
        has_twins: another live subject was found that cannot be told from the caller's.
    """

    has_twins = False

    def owns(self, serial: int) -> bool:
        """Return whether a serial number is one of the caller's own."""
        return serial == 0

    def accepts(self, serial: int) -> bool:
        """Return whether the caller may have made a record with this serial number."""
        return True

    def is_only(self) -> bool:
        """Return whether no other instance or function could have made the recorded calls."""
        return True

    def another_fits(self, recorded: Call, call: Call) -> bool:
        """Return whether another live subject fits a recorded call that differs in one part."""
        return False

    def has_twin(self, call: Call, recorded: Call, made: Iterable[Call]) -> bool:
        """Return whether the record's maker is ambiguous; ``made`` are recorded equal calls."""
        return False

    def twins_text(self) -> str:
        """Return the message about twins."""
        return ""


NOBODY = AnyCaller()


class ArgumentsCaller(AnyCaller):
    """The caller of a call, as far as its arguments hold what has no digest.

    Two calls that are equal but for such objects are *twins*: nobody can tell their records apart.
    """

    def __init__(self, subjects: Subjects, identity: Identity) -> None:
        self._subjects = subjects
        self._identity = identity

    def has_twin(self, call: Call, recorded: Call, made: Iterable[Call]) -> bool:
        given = self._identity.given
        self.has_twins = bool(given) and (
            self._lives(self._other_arguments) or self._has_recorded_twin(call, made)
        )
        return self.has_twins

    def _other_arguments(self) -> list[object]:
        """Find live objects that are equal to arguments but for what has no digest."""
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
        # By attempt, and by the subject and the arguments.
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

        What nothing refers to any more cannot be called, so garbage is collected before one counts
        that was never seen to outlive that: once for each, since it is dear in a large process.
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
            f"calls cannot be told apart: several are equal except for {_places(held)}, which has "
            f"no digest ({kinds}). {_CONSEQUENCE} Leave the argument out with ignore=, or declare "
            f"what distinguishes the objects: {_declaration(kinds)}"
        )


_CONSEQUENCE = (
    "A recorded call of one could answer another, so plain steps run again and side effects stop "
    "and ask."
)


def _kinds(held: Mapping[str, Iterable[object]]) -> str:
    return ", ".join(sorted({type(each).__name__ for objs in held.values() for each in objs}))


def _places(held: Iterable[str]) -> str:
    return ", ".join(map(shown_part, held))


def _declaration(kinds: str) -> str:
    return f"stepwise.identity({kinds.partition(',')[0]}, fields=(...))"


def _carriers(value: object) -> list[object]:
    """Return the objects in an argument that are, or hold, what has no digest."""
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


_MOST = 1000  # items of arguments that are looked at


class _Other(NamedTuple):
    """Another live subject: the record of a call that it would make, and its contents."""

    call: Call
    defaults: Mapping[str, str]
    values: Mapping[str, Any]
    unknown: list[object]


class Caller(ArgumentsCaller):
    """The subject of a call, among the other live ones of its kind."""

    def __init__(self, subjects: Subjects, identity: Identity) -> None:
        super().__init__(subjects, identity)
        assert identity.holder is not None
        assert identity.subject is not None
        self._subject = identity.subject
        self._holder = identity.holder

    def is_only(self) -> bool:
        return not self._is_any(self._identity.parts.get(CLASS, ""), lambda _: True)

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

        Another call that is in flight, or another function that captured the variable, may have
        changed it before that.
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
            f"except for {_places(held)}, which has no digest ({kinds}). {_CONSEQUENCE} Give each "
            f"a name as an attribute or variable, or declare what distinguishes the objects: "
            f"{_declaration(kinds)}"
        )

    def _begins(self, name: str, other: _Other) -> bool:
        """Return whether one of two lists begins the other, so they tell no subjects apart."""
        mine, theirs = self._identity.values.get(name), other.values.get(name)
        if type(mine) is not type(theirs) or not isinstance(mine, (list, tuple)):
            return False
        assert isinstance(theirs, (list, tuple))
        length = min(len(mine), len(theirs))
        return digest_part(mine[:length])[0] == digest_part(theirs[:length])[0]

    def _others(self, class_text: str) -> Iterator[tuple[object, _Other]]:
        """The other live subjects of a class, or the other functions that the same code made."""
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
    """Return the caller of a call of this identity."""
    if identity.holder is not None:
        return Caller(subjects, identity)
    return ArgumentsCaller(subjects, identity) if identity.given else NOBODY
