"""Subjects of calls: instances with step methods, and functions with captured variables.

Each instance or function that a run meets becomes a *subject* with a serial number in the run. For
each call the subject gives its identity in parts (see ``identity``).  Parts that the body of a call
changes are *state*.  State stays out of the identity from then on, and is restored when the call is
answered from the journal.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._identity.held_parts import Holder, Sight, Sights, class_text
from stepwise._identity.identity import CLASS, FUNCTION, Parameters
from stepwise._journal.records import Call
from stepwise._matching.in_flight import Held, InFlight, Targets, Watched, let_go_of, roots_of
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest
from stepwise._values.trees import reference

FIRST = "@"
"""The suffix of a part's name for the value when the run first saw the subject."""
UNKNOWN = "."
"""The first value of a part, if unknown: the subject was restored from a checkpoint."""

_NUMBERS = 1_000_000  # serial numbers that one attempt may give out
_NOTHING: Mapping[str, Any] = {}


def owner(name: str, parts: Mapping[str, str], part: str) -> str:
    """Return the owner of a part of a call: a class, the function around a step, or the step."""
    if part.startswith("self."):
        return parts.get(CLASS, "")
    return parts.get(FUNCTION, "").rpartition(".<locals>.")[0] or name


def attempt_of(serial: int) -> int:
    """Return the attempt that assigned a serial number; each attempt numbers objects anew."""
    return serial // _NUMBERS


def _made(recorded: Call) -> bool:  # noqa: ARG001
    """Return True: no other function has the name."""
    return True


class Identity:
    """The identity of a call.

    Args:
        digest: the digest of the arguments.
        parts: the parts of the call without those of a subject; see ``identity``.
    """

    def __init__(self, digest: str, parts: dict[str, str]) -> None:
        self.digest = digest
        self.parts = parts
        self.held: Held | None = None  # while the call is in flight
        self.noted: list[str] = []  # parts found to be state when the call began
        self.holder: Holder | None = None
        self.subject: Subject | None = None
        self.sight: Sight | None = None  # when the call was made
        self.given: Mapping[str, Sequence[object]] = _NOTHING  # undigestible objects, by argument
        self.arguments: Sequence[object] = ()  # the arguments that hold such objects
        # Returns whether the called function made a record of its name; ``None`` if nobody knows.
        self.made: Callable[[Call], bool | None] = _made

    @property
    def serial(self) -> int:
        """The number of the subject; 0 for a call without one."""
        return self.subject.serial if self.subject is not None else 0

    @property
    def values(self) -> Mapping[str, Any]:
        """The values that the subject held, by the names of the parts."""
        return self.sight.values if self.sight is not None else _NOTHING

    @property
    def unknown(self) -> Mapping[str, Sequence[object]]:
        """The objects among these values that have no digest."""
        return self.sight.unknown if self.sight is not None else _NOTHING

    def began(self, number: int) -> None:
        """Note the number of the call, by which the calls made in it know it."""
        if self.held is not None:
            self.held.number = number


class Subject:
    """An instance or function that a run has met.

    Args:
        restored: True if a checkpoint knew it, so that its serial numbers belong to it alone.
        serials: its number, and its numbers in earlier processes.
        first: its parts when the run first met it.
    """

    __slots__ = ("first", "reference", "restored", "serial", "serials", "sights")

    def __init__(
        self, reference: Callable[[], object], serial: int, sights: Sights, *, restored: bool
    ) -> None:
        self.reference = reference
        self.serial = serial
        self.serials = {serial}
        self.restored = restored
        self.first: dict[str, str] = {}
        self.sights = sights


if TYPE_CHECKING:
    from stepwise._matching.changes_of_calls import CallChanges


class _Left(NamedTuple):
    """Leftovers of a stopped attempt in this process.

    Args:
        state: the parts that the attempt found to be state.
        made: the objects in which calls left their changes, by the numbers of the calls.  The
            objects are held weakly if possible, since a held instance would be a twin of the next
            attempt's.
        first: the parts of subjects when the attempt first met them, by id, with references.
    """

    state: set[tuple[str, str]]
    made: OrderedDict[int, dict[str, Callable[[], object]]]
    first: dict[int, tuple[Callable[[], object], dict[str, str]]]


_left: OrderedDict[str, _Left] = OrderedDict()  # by run id
_STOPPED = 32  # runs


class Subjects:
    """The subjects of one run, and which of their parts are state: pairs of owner and part."""

    def __init__(self, run_id: str, state: Iterable[tuple[str, str]] = (), last: int = 0) -> None:
        self._run_id = run_id
        before = _left.get(run_id)
        self.state = {*state, *(before.state if before is not None else ())}
        self.last = last
        self._before = last  # the highest number when the checkpoint was taken
        self._known: dict[int, Subject] = {}
        self._serials: dict[int, tuple[Callable[[], object], int]] = {}  # of undigestible objects
        self._alive: dict[int, Callable[[], object]] = {}
        self._lock = threading.RLock()
        self._flying = InFlight(self._lock)
        self._first = before.first if before is not None else {}
        if before is not None:
            self._flying.made.update(before.made)

    def go_on_after(self, highest: int) -> None:
        """Start serial numbers above the numbers of earlier attempts."""
        if highest:
            self.last = (attempt_of(highest) + 1) * _NUMBERS

    # -- the identity of a call ------------------------------------------------------------------

    def complete(
        self,
        identity: Identity,
        name: str,
        function: Callable[..., Any],
        parameters: Parameters,
        instance: object,
    ) -> None:
        """Add the parts of the call's subject to an identity.

        Args:
            name, function, parameters: those of the called step or workflow.
            instance: the object or class that a method is bound to.
        """
        cls: type | None = None
        if instance is not None:
            cls = instance if isinstance(instance, type) else type(instance)
            identity.parts[CLASS] = class_text(cls)
        held, family = (
            None if cls is instance else instance,
            owner(name, identity.parts, "closure."),
        )
        holder = Holder(name, function, parameters, held, cls, family)
        subject = function if instance is None else instance
        identity.holder = holder
        with self._lock:
            known = identity.subject = self._subject(subject)
            sight = identity.sight = known.sights.look(holder, self.state)
            if sight.state != len(self.state):
                sight.state = len(self.state)
                sight.recorded = self._recorded(known, sight, holder)
            identity.parts.update(sight.recorded)

    def give(
        self,
        identity: Identity,
        unknown: Mapping[str, Sequence[object]],
        bound: Mapping[str, object],
    ) -> None:
        """Add the serial numbers of objects without a digest in the arguments of a call.

        Args:
            unknown: these objects, by the names of the arguments.
            bound: the arguments.
        """
        identity.given, identity.arguments = unknown, [bound[name] for name in unknown]
        with self._lock:
            for name, objects in unknown.items():
                identity.parts[name] += self._numbered(objects)

    def _recorded(self, known: Subject, sight: Sight, holder: Holder) -> dict[str, str]:
        """Return the recorded parts of a subject, with first values for the changed parts."""
        if known.first:  # a part that a step added later has no first value
            late = {part: UNKNOWN for part in sight.leaves.places if part not in known.first}
            known.first = {**sight.texts, **late, **known.first}
        else:
            known.first = dict(sight.texts)
        recorded = {**sight.texts}
        for part, text in sight.texts.items():
            first = known.first[part]
            if text[0] == "." and holder.key(part) in self.state:
                if known.restored:
                    recorded[part + FIRST] = UNKNOWN
                elif first != text:
                    recorded[part + FIRST] = first
        return recorded

    def changing(self, identity: Identity) -> list[str]:
        """Return the names of the parts of a call's subject that steps of the run change."""
        holder, sight = identity.holder, identity.sight
        if holder is None or sight is None:
            return []
        return [part for part in sight.texts if holder.key(part) in self.state]

    def has_outlived(self, obj: object) -> bool:
        """Return whether an object was seen alive right after a garbage collection."""
        reference = self._alive.get(id(obj))
        return reference is not None and reference() is obj

    def outlives(self, obj: object) -> None:
        """Note an object that is alive right after a garbage collection."""
        here = id(obj)
        self._alive[here] = reference(obj, lambda _: self._alive.pop(here, None))

    def let_go(self) -> None:
        """Release the looked-at values, so that unused objects become garbage."""
        digest.forget()
        with self._lock:
            self._flying.let_go()
            for made in (self._flying.made, *(each.made for each in list(_left.values()))):
                let_go_of(made)
            for known in list(self._known.values()):
                known.sights.let_go()

    def first(self, identity: Identity, part: str) -> str | None:
        """Return the text that a part of a subject had when the run first saw it."""
        return identity.subject.first.get(part) if identity.subject is not None else None

    def first_of(self, obj: object) -> dict[str, str]:
        """Return the first texts of an object's parts, if it is a subject of this run."""
        known = self._known.get(id(obj))
        return known.first if known is not None and known.reference() is obj else {}

    def _numbered(self, unknown: Sequence[object]) -> str:
        """Return the text that replaces objects without a digest in a part."""
        return "?" + ",".join(map(str, sorted({self._serial_of(each) for each in unknown})))

    def _subject(self, obj: object) -> Subject:
        known = self._known.get(id(obj))
        if known is not None and known.reference() is obj:
            return known
        self.last += 1
        return self._add(obj, self.last, restored=False)

    def _add(self, obj: object, serial: int, *, restored: bool) -> Subject:
        here = id(obj)
        alive = reference(obj, lambda _: self._known.pop(here, None))
        sights = Sights(self._numbered)
        known = self._known[here] = Subject(alive, serial, sights, restored=restored)
        left = self._first.get(here)
        if left is not None and left[0]() is obj and not restored:
            known.first = dict(left[1])  # an attempt in this process met it
        return known

    def _serial_of(self, obj: object) -> int:
        here = id(obj)
        found = self._serials.get(here)
        if found is None or found[0]() is not obj:
            self.last += 1
            alive = reference(obj, lambda _: self._serials.pop(here, None))
            found = self._serials[here] = alive, self.last
        return found[1]

    # -- checkpoints -----------------------------------------------------------------------------

    def serials(self, obj: object) -> tuple[int, ...]:
        """Return the serial numbers of a subject, the current one first; none for other objects."""
        known = self._known.get(id(obj))
        if known is None or known.reference() is not obj:
            return ()
        return known.serial, *sorted(known.serials - {known.serial})

    def accepts(self, subject: Subject, serial: int) -> bool:
        """Return whether a subject may have made a record with this serial number.

        A number of another subject from a checkpoint is refused.  A subject from a checkpoint made
        no record with a number that was assigned after the checkpoint.
        """
        if serial in subject.serials:
            return True
        if subject.restored and serial > self._before:
            return False
        return not any(
            known.restored and serial in known.serials and known.reference() is not None
            for known in list(self._known.values())
        )

    def met(self, identity: Identity, recorded: Call) -> None:
        """Give a subject the serial number of the recorded call that it matched."""
        subject = identity.subject
        if subject is not None and recorded.serial:
            with self._lock:
                if len(subject.serials) == 1 and not subject.restored:
                    subject.serial = recorded.serial
                subject.serials.add(recorded.serial)

    def __len__(self) -> int:
        return len(self._known)

    def adopt(self, restored: Iterable[tuple[tuple[int, ...], object]]) -> None:
        """Register objects from a checkpoint, with their serial numbers."""
        with self._lock:
            for serials, obj in restored:
                known = self._add(obj, serials[0], restored=True)
                known.serials.update(serials)

    # -- a call in flight ------------------------------------------------------------------------

    def begin(self, identity: Identity, around: Collection[int]) -> None:
        """Note that a call of a subject begins.

        Args:
            around: the numbers of the calls around the call.
        """
        if identity.holder is None:
            return
        held = identity.held = Held(identity.holder, identity.sight)
        with self._lock:
            if around:
                self._note_others(identity, around)
            self._flying.add(held, around)

    def watch(self, identity: Identity, watched: Watched, around: Collection[int]) -> None:
        """Remember the arguments of a call, right before its body begins."""
        held = identity.held
        if held is None:
            held = identity.held = Held(None, None)
            with self._lock:
                self._flying.add(held, around)
        self._flying.watch(held, watched)

    def _note_others(self, identity: Identity, around: Collection[int]) -> None:
        """Mark as state the parts that a call in flight has already changed in the same subject.

        Otherwise the calls made inside it would not be recognised again if it dies.
        """
        holder = identity.holder
        assert holder is not None
        for other in self._flying.calls:
            if other.number not in around or other.sight is None or other.holder is None:
                continue
            for part, text in other.sight.texts.items():
                key = holder.key(part)
                if (
                    identity.parts.get(part, text) != text
                    and key not in self.state
                    and holder.place(part) is other.holder.place(part)
                ):
                    self.state.add(key)
                    identity.noted.append(part)

    def pause(self, identity: Identity) -> None:
        """Note that a call waits for its turn, and so changes nothing until it begins again."""
        held, identity.held = identity.held, None
        if held is not None:
            with self._lock:
                self._flying.remove(held)

    def end(self, identity: Identity) -> None:
        """Note that the call is over."""
        held = identity.held
        if held is None:
            return
        if not held.looked:  # no outcome: the changes may stay in this process
            self.changes(identity)
        identity.held = None
        with self._lock:
            self._flying.remove(held)

    def changes(self, identity: Identity, value: object = None) -> CallChanges | None:
        """Return the changes that a call in flight made to its arguments so far, or ``None``.

        Args:
            value: the returned value, which may hold given objects.
        """
        held = identity.held
        if held is None:
            return None
        held.looked = True
        with self._lock:
            unchanged = self._flying.is_unchanged(held)
            given = held.given_in(value)
            if unchanged and not (given or identity.noted):
                return None
            from stepwise._matching.changes_of_calls import (  # on use: few calls change anything
                CallChanges,
                changes_of,
                returned,
            )

            found = (None if unchanged else changes_of(held)) or CallChanges([], [], ())
            if given and unchanged:
                found = found._replace(edits=returned(held, given), snapshot=held.snapshot)
            state = [*identity.noted]
            for part in found.state if held.holder is not None else ():
                assert held.holder is not None
                if held.holder.key(part) not in self.state:
                    self.state.add(held.holder.key(part))
                    state.append(part)
            if found.edits and held.snapshot is not None:
                self._flying.remember(held.number, held.snapshot.roots)
        found = found._replace(state=tuple(state))
        return found if any((found.edits, found.untold, found.state, found.unwatched)) else None

    @staticmethod
    def abandon(identity: Identity) -> None:
        """Stop recording changes of a call whose body continues although the call has ended."""
        held = identity.held
        if held is not None:
            why = "by a body that goes on past its timeout, so that no change is recorded"
            held.watched = held.watched._replace(unrecorded=why, copies=False)

    def given(self, identity: Identity, number: int, watched: Watched) -> Targets:
        """Return the current arguments of a call that the record of this number answers."""
        given = self._flying.given(number, roots_of(identity.holder, watched))
        return given._replace(function=watched.function)

    def repeated(self, number: int, given: Targets) -> None:
        """Remember that the changes of an answered call are present in its arguments."""
        with self._lock:
            self._flying.remember(number, given.roots)

    def leave(self, *, completed: bool) -> None:
        """End the attempt; keep what is needed to resume an unfinished run in this process."""
        with self._lock:
            _left.pop(self._run_id, None)
            self._flying.let_go()
            if completed or not (self._flying.made or self.state):
                return
            first = dict(self._first)
            for here, known in self._known.items():
                obj = known.reference()
                if obj is not None and known.first:  # a subject's own would keep all of it alive
                    first[here] = reference(obj), known.first
            obj = None
            _left[self._run_id] = _Left(set(self.state), self._flying.made, first)
            while len(_left) > _STOPPED:
                _left.popitem(last=False)
