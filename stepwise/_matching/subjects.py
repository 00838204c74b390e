"""Subjects of calls: instances with step methods, and functions with captured variables.

Each instance or function that a run meets becomes a *subject* with a serial number in the run. For
each call the subject gives its identity in parts (see ``identity``).  Parts that the body of a call
changes are *state*.  State stays out of the identity from then on, and is restored when the call is
answered from the journal.

A call in flight holds its arguments, its instance and its captured variables.  Its changes to them
are part of its outcome (see ``_execution.changes``).  If another call that holds the same object
was in flight meanwhile, the change cannot be attributed to either call.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stepwise._identity.held_parts import Holder, Sight, Sights, class_text
from stepwise._identity.identity import CLASS, FUNCTION, Parameters
from stepwise._journal.records import Call
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest
from stepwise._values.trees import ATOMS, reference, walk

if TYPE_CHECKING:
    from stepwise._changes import Snapshot

# -- calls in flight -------------------------------------------------------------------------------


_NOTHING: Mapping[str, Any] = {}
_TRIES = 3  # attempts at a snapshot that another thread disturbs
_MOST = 1000  # objects in a returned value that are looked at
_KEPT = 4  # large snapshots that are kept for the next call
_REMEMBERED = 1024  # calls


class Watched(NamedTuple):
    """The arguments of a call that its body may change.

    Args:
        arguments: the arguments by name.
        hidden: names of arguments and attributes (``self.NAME``) that are never recorded.
        unrecorded: why no change is recorded at all; empty if changes are recorded.
        function: the function with these parameters.
        copies: True if the arguments are copies, so that ``unrecorded`` concerns only them.
    """

    arguments: Mapping[str, Any] = _NOTHING
    hidden: Collection[str] = ()
    unrecorded: str = ""
    function: Callable[..., Any] | None = None
    copies: bool = False


NOTHING_WATCHED = Watched()


class Targets(NamedTuple):
    """The objects given to a call that a record answers.

    Args:
        roots: the objects by name.
        left: returns whether an attempt in this process left its changes in a root.
        function: the function with these parameters.
    """

    roots: Mapping[str, Any]
    left: Callable[[str], bool]
    function: Callable[..., Any] | None = None


class Held:
    """A call in flight.

    Args:
        holder: the holder of the subject's parts; ``None`` for a call without a subject.
        sight: the contents of the subject before the call.
    """

    def __init__(self, holder: Holder | None, sight: Sight | None) -> None:
        self.number = 0
        self.looked = False  # whether the changes of the call were determined
        self.holder = holder
        self.sight = sight
        self.watched = NOTHING_WATCHED
        self.snapshot: Snapshot | None = None  # taken when the body begins
        self.unwatched = ""  # why the snapshot is missing
        self.around: Collection[int] = ()  # the numbers of the calls around it
        self.began = self.ended = 0  # moments of InFlight
        self.flying: InFlight | None = None  # the calls in flight to which it was added
        self._ids: set[int] | None = None

    def holds(self, obj: object) -> bool:
        """Return whether an object is the subject, or a mutable object that the call holds."""
        if self.snapshot is not None and self.snapshot.knows(obj):
            return True
        if self._ids is None:
            self._ids = set()
            if self.holder is not None and self.sight is not None:
                self._ids.update(map(id, self.holder.cells.values()))
                self._ids.add(id(self.holder.instance))
                values = self.sight.values.values()
                self._ids.update(id(each) for each in values if type(each) not in ATOMS)
        return obj is not None and id(obj) in self._ids

    def given_in(self, value: Any) -> list[object]:
        """Return the given objects that a returned value holds."""
        cls, snapshot = type(value), self.snapshot
        if cls in ATOMS or snapshot is None or self.watched.unrecorded:
            return []
        if cls is dict and ATOMS.issuperset(map(type, value.values())):
            return [value] if snapshot.knows(value) else []  # as most replies of a model are
        tree = walk(value, most=_MOST)
        return [*filter(snapshot.knows, (value,) if tree is None else tree.nodes)]

    def held_by_others(self, *objects: object) -> bool:
        """Return whether calls that were in flight meanwhile hold one of these objects."""
        if self.flying is None:
            return False
        others = self.flying.beside(self)
        return any(other.holds(each) for other in others for each in objects)

    def shared(self, part: str) -> bool:
        """Return whether another call may have changed this attribute or variable."""
        if self.holder is None or self.sight is None:
            return False
        both = self.holder.place(part), self.sight.values.get(part)
        return self.held_by_others(*(each for each in both if type(each) not in ATOMS))


def _are_nested(one: Held, other: Held) -> bool:
    """Return whether one of two calls was made inside the other."""
    return one.number in other.around or other.number in one.around


def roots_of(holder: Holder | None, watched: Watched) -> dict[str, Any]:
    """Return the objects that a call may change, by name."""
    found = {n: each for n, each in watched.arguments.items() if type(each) not in ATOMS}
    if holder is not None:
        if holder.instance is not None:
            found["self"] = holder.instance
        found.update((f"closure.{name}", cell) for name, cell in holder.cells.items())
    return found


class InFlight:
    """The calls of one run that are in flight.

    The moments at which calls began and ended show which calls overlapped.  The moments are
    compared only when a call has changed something.  Rejected: a list of overlapping calls in each
    call, which took a look at all calls whenever a call began.

    An ended call is kept while any call that was beside it is in flight.  The calls around an ended
    call do not keep it, since a step may make any number of calls.

    Attributes:
        calls: the calls in flight, in the order in which they began.
        made: the objects in which calls of this process left their changes, by call number.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self.calls: dict[Held, None] = {}
        self._over: deque[Held] = deque()  # ended calls that were beside a call in flight
        self._moments = 0  # how often a call has begun or ended
        self._snapshots: OrderedDict[tuple[Any, ...], Snapshot] = OrderedDict()
        self.made: OrderedDict[int, dict[str, Callable[[], object]]] = OrderedDict()

    def let_go(self) -> None:
        """Drop the snapshots, which hold objects of earlier calls."""
        self._snapshots.clear()

    def add(self, held: Held, around: Collection[int]) -> None:
        """Add a call that begins.

        Args:
            held: the call.
            around: the numbers of the calls around the call.
        """
        held.flying, held.around = self, around
        held.began = self._moments = self._moments + 1
        self.calls[held] = None

    def beside(self, held: Held) -> list[Held]:
        """Return the other calls that were in flight at the same time as a call, in no order.

        The calls around a call and the calls inside it do not count.
        """
        with self._lock:  # other threads begin and end calls
            late = itertools.takewhile(lambda other: other.ended > held.began, reversed(self._over))
            others = [*self.calls, *late]
        return [each for each in others if each is not held and not _are_nested(each, held)]

    def _is_met(self, over: Held) -> bool:
        """Return whether a call in flight was beside a call that has ended."""
        began = itertools.takewhile(lambda each: each.began < over.ended, self.calls)
        return any(not _are_nested(each, over) for each in began)

    def watch(self, held: Held, watched: Watched) -> None:
        """Take a snapshot of the objects that a call was given, right before its body begins."""
        held.watched = watched
        roots = roots_of(held.holder, watched)
        if not roots:
            return
        from stepwise._changes import Snapshot  # imported on use: often not needed

        with self._lock:
            kept = self._snapshots.pop(_key(roots), None)
        if kept is not None and kept.renewed():
            held.snapshot = kept
            return
        for last in reversed(range(_TRIES)):
            try:
                held.snapshot = Snapshot(roots)
            except RuntimeError as problem:  # another thread changes a dict at this moment
                if not last:
                    held.unwatched = f"which cannot be looked at ({problem})"
            except Exception as problem:  # a user's class raises
                held.unwatched = f"which cannot be looked at ({type(problem).__name__}: {problem})"
                return
            else:
                return

    def remove(self, held: Held) -> None:
        """Remove a call that has ended; keep its snapshot for the next call if it is large."""
        del self.calls[held]
        held.ended = self._moments = self._moments + 1
        if self._is_met(held):
            self._over.append(held)
        while self._over and not self._is_met(self._over[0]):
            self._over.popleft()
        snapshot = held.snapshot
        if snapshot is not None and snapshot.is_large:
            self._snapshots[_key(snapshot.roots)] = snapshot
            while len(self._snapshots) > _KEPT:
                self._snapshots.popitem(last=False)

    # -- changes ---------------------------------------------------------------------------------

    @staticmethod
    def is_unchanged(held: Held) -> bool:
        """Return whether a call has certainly changed nothing so far, which is the usual case."""
        snapshot = held.snapshot
        if snapshot is None or held.unwatched:
            return not held.unwatched
        return not snapshot.unwatched and snapshot.holds_surely()

    def remember(self, number: int, roots: Mapping[str, Any]) -> None:
        """Remember the objects in which a call of this process left its changes."""
        self.made[number] = {name: reference(each) for name, each in roots.items()}
        while len(self.made) > _REMEMBERED:
            self.made.popitem(last=False)

    def given(self, number: int, roots: Mapping[str, Any]) -> Targets:
        """Return the objects given to a call that a record answers."""
        made = self.made.get(number, {})
        return Targets(roots, lambda name: name in made and made[name]() is roots.get(name))


def _let_go_of(made: Mapping[int, dict[str, Callable[[], object]]]) -> None:
    """Drop the lists, dicts and variables in which calls left their changes.

    Their contents could be mistaken for objects that the program still has.
    """
    for roots in list(made.values()):
        for name in [n for n, each in roots.items() if not isinstance(each, weakref.ref)]:
            roots.pop(name, None)


def _key(roots: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, id(each)) for name, each in roots.items())


# -- subjects -------------------------------------------------------------------------------------


FIRST = "@"
"""The suffix of a part's name for the value when the run first saw the subject."""
UNKNOWN = "."
"""The first value of a part, if unknown: the subject was restored from a checkpoint."""

_NUMBERS = 1_000_000  # serial numbers that one attempt may give out


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


class Looked(NamedTuple):
    """The first look at the changes of a call.

    Args:
        unchanged: True if the call has certainly changed nothing.
        given: the given objects that its returned value holds.
    """

    unchanged: bool
    given: list[object]


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
    """The subjects of one run, and which of their parts are state: pairs of owner and part.

    Attributes:
        lock: held while the changes of a call are found.
    """

    def __init__(self, run_id: str, state: Iterable[tuple[str, str]] = (), last: int = 0) -> None:
        self._run_id = run_id
        before = _left.get(run_id)
        self.state = {*state, *(before.state if before is not None else ())}
        self.last = last
        self._before = last  # the highest number when the checkpoint was taken
        self._known: dict[int, Subject] = {}
        self._serials: dict[int, tuple[Callable[[], object], int]] = {}  # of undigestible objects
        self._alive: dict[int, Callable[[], object]] = {}
        self.lock = threading.RLock()
        self._flying = InFlight(self.lock)
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
        with self.lock:
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
        with self.lock:
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
        with self.lock:
            self._flying.let_go()
            for made in (self._flying.made, *(each.made for each in list(_left.values()))):
                _let_go_of(made)
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
            with self.lock:
                if len(subject.serials) == 1 and not subject.restored:
                    subject.serial = recorded.serial
                subject.serials.add(recorded.serial)

    def __len__(self) -> int:
        return len(self._known)

    def adopt(self, restored: Iterable[tuple[tuple[int, ...], object]]) -> None:
        """Register objects from a checkpoint, with their serial numbers."""
        with self.lock:
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
        with self.lock:
            if around:
                self._note_others(identity, around)
            self._flying.add(held, around)

    def watch(self, identity: Identity, watched: Watched, around: Collection[int]) -> None:
        """Remember the arguments of a call, right before its body begins."""
        held = identity.held
        if held is None:
            held = identity.held = Held(None, None)
            with self.lock:
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

    def end(self, identity: Identity) -> None:
        """Note that a call is over, or changes nothing until it begins again."""
        held, identity.held = identity.held, None
        if held is not None:
            with self.lock:
                self._flying.remove(held)

    def look(self, identity: Identity, value: object = None) -> Looked | None:
        """Return what is seen of the changes of a call so far; ``None`` if it certainly made none.

        Args:
            value: the returned value, which may hold given objects.
        """
        held = identity.held
        if held is None:
            return None
        held.looked = True
        with self.lock:
            found = Looked(self._flying.is_unchanged(held), held.given_in(value))
        return None if found.unchanged and not (found.given or identity.noted) else found

    def note_changes(
        self, identity: Identity, parts: Iterable[str], *, stay: bool
    ) -> tuple[str, ...]:
        """Note the parts of its subject that a call has changed; return those that became state.

        Args:
            stay: True if the changes stay in the objects that the call was given.
        """
        held, state = identity.held, [*identity.noted]
        assert held is not None
        for part in parts if held.holder is not None else ():
            assert held.holder is not None
            if held.holder.key(part) not in self.state:
                self.state.add(held.holder.key(part))
                state.append(part)
        if stay and held.snapshot is not None:
            self._flying.remember(held.number, held.snapshot.roots)
        return tuple(state)

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
        with self.lock:
            self._flying.remember(number, given.roots)

    def leave(self, *, completed: bool) -> None:
        """End the attempt; keep what is needed to resume an unfinished run in this process."""
        with self.lock:
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
