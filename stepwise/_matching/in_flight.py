"""Calls in flight: the objects that each call holds, and the changes that it made to them.

A call holds its arguments, its instance and its captured variables.  Its changes to them are part
of its outcome.  If another call that holds the same object was in flight meanwhile, the change
cannot be attributed to either call.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stepwise._identity.held_parts import Holder, Sight
from stepwise._runtime.facts import NamedTuple
from stepwise._values.trees import ATOMS, reference, walk

if TYPE_CHECKING:
    from stepwise._changes import Snapshot


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


def let_go_of(made: Mapping[int, dict[str, Callable[[], object]]]) -> None:
    """Drop the lists, dicts and variables in which calls left their changes.

    Their contents could be mistaken for objects that the program still has.
    """
    for roots in list(made.values()):
        for name in [n for n, each in roots.items() if not isinstance(each, weakref.ref)]:
            roots.pop(name, None)


def _key(roots: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, id(each)) for name, each in roots.items())
