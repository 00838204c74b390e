"""Calls that results of other runs may answer: ``@step(cache=...)`` and instrumented requests.

The cache is asked when the journal does not answer: before a limit is taken, and before an attempt.
Its answer becomes a record of this run, so that a resumed run needs no cache.  A result is kept
once its record is written, and only if it is all that the call did: the call changed nothing that
it was given, made no other recorded call, and said nothing.

The class of a cached call is chosen when its step is decorated, as that of a limited call.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

from stepwise._calls.call import RecordingCall, record_outcome
from stepwise._calls.driver import Core, Result
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Origin
from stepwise._journal.cache import CacheEntry, CallCache, cache_of
from stepwise._journal.journal import seal_for
from stepwise._journal.records import Call
from stepwise._journal.seal import Seal
from stepwise._matching.in_flight import Held
from stepwise._matching.pool import Match
from stepwise._runtime import settings
from stepwise._runtime.messages import Once, notice, reports
from stepwise._values.codec import JSON, Encoded
from stepwise._values.trees import ATOMS, changes, walk
from stepwise.errors import UnreadableValueError
from stepwise.stores import Store, open_store

_CODE = (type, FunctionType, ModuleType)
_MOST = 100_000  # objects of a result that are looked at
_is_first = Once()
_taken: WeakKeyDictionary[ActiveRun, dict[str, set[int]]] = WeakKeyDictionary()


class Lookup:
    """A look into the cache for one call.

    Args:
        cache: of the store.
        name: of the step.
        key: all that distinguishes the call.
        age: the highest age of an answer, in seconds.
        run: the outermost run, if its equal calls are several answers: the n-th one is answered by
            the n-th one of another run.
        made_by: the id of the outermost run, whose own results never answer: whoever makes a call
            again wants another result.

    Attributes:
        entry: the answer, or ``None``.
        key: see above.
    """

    def __init__(
        self, cache: CallCache, name: str, key: str, age: float, run: ActiveRun | None, made_by: str
    ) -> None:
        self._cache, self._name, self.key, self._age, self._run = cache, name, key, age, run
        self._made_by = made_by
        self.number = 0
        self.entry: CacheEntry | None = None
        while True:
            self.number = self._next()
            self.entry = cache.get(name, self._place, age)
            if self.entry is None or self.entry.run != made_by or not made_by:
                return
            if run is None:
                self.entry = None
                return

    @property
    def _place(self) -> str:
        return f"{self.key} {self.number}"

    def _next(self) -> int:
        if self._run is None:
            return 0
        with self._run.lock:
            taken = _taken.setdefault(self._run, {}).setdefault(self.key, set())
            number = next(n for n in range(len(taken) + 1) if n not in taken)
            taken.add(number)
            return number

    def release(self) -> None:
        """Note that the call has no result: a retry takes its place."""
        if self._run is not None:
            with self._run.lock:
                _taken[self._run][self.key].discard(self.number)

    def keep(self, cost: tuple[float, float, float], awaited: str, encoded: Encoded) -> None:
        """Keep the result of the call.

        Args:
            cost: the seconds, the US dollars and the tokens that it took.
            awaited: see :class:`.records.Outcome`.
            encoded: the value.
        """
        entry = CacheEntry(self._made_by, time.time(), *cost, awaited, encoded.form, encoded.data)
        self._cache.put(self._name, self._place, entry, self._age)


def place_of(scope: Scope | None) -> tuple[Store, Seal]:
    """Return the store of a run, or outside of runs the default one, with its seal."""
    if scope is not None:
        return scope.run.journal.store, scope.run.journal.seal
    store = open_store(settings.store())
    return store, seal_for(store)


def look_up(
    place: tuple[Store, Seal],
    cache: settings.Cache,
    name: str,
    key: str,
    root: ActiveRun | None,
    *,
    several: bool,
) -> Lookup | None:
    """Look for the answer to a call; ``None`` if the cache is off; see :class:`Lookup`.

    Args:
        root: the outermost run; ``None`` outside of runs.
        several: whether equal calls of a run are several answers.
    """
    age = settings.cache_age(cache)
    found = cache_of(*place) if age is not None and settings.cache_size() else None
    if found is None or age is None:
        return None
    return Lookup(found, name, key, age, root if several else None, root.run_id if root else "")


class CachedCall:
    """One call of a step with ``cache=``, mixed into the class of its calls.

    Attributes:
        ended: the record of the call's outcome, with its payload.
        cost: the US dollars and tokens that the call took.
        changed: whether the call changed what it was given, or may have.
    """

    performer: Any
    scope: Any
    identity: Any
    bound: Mapping[str, Any]
    ended: Any = None
    cost = 0.0, 0.0
    changed = False

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Answer the call from the cache, or make it, and record its outcome."""
        lookup, kind = None if call.effect else self._look_up(), cast("Any", super())
        if lookup is None:
            made: Result = yield from kind.conduct(call, origin, match)
            return made
        kept = False
        try:
            if lookup.entry is not None:
                answer: Result | None = yield from self._answered(lookup.entry, call, origin)
                if answer is not None:
                    kept = True
                    return answer
            said = self._said()
            result: Result = yield from kind.conduct(call, origin, match)
            kept = result.error is None and self._keep(lookup, result, said)
            return result
        finally:
            if not kept:
                lookup.release()

    def _look_up(self) -> Lookup | None:
        performer, root = self.performer, self.scope.run.root
        cache = performer.cache_for(self.bound)
        if settings.cache_age(cache) is None:
            return None
        key, why = performer.cache_key(self)
        if not key:
            _tell_untold(performer.what, why)
            return None
        place, several = place_of(self.scope), performer.says_again
        return look_up(place, cache, performer.name, key, root, several=several)

    def _answered(self, entry: CacheEntry, call: Call, origin: Origin) -> Core:
        """Record the answer of the cache; return ``None`` in its place if it cannot be loaded."""
        performer, scope, active = self.performer, self.scope, self.scope.run
        try:
            value = active.codec.decode(bytes(entry.payload), entry.form, performer.returns)
        except UnreadableValueError:
            return None  # type: ignore[return-value]
        made = cast("Any", self)
        if isinstance(self, RecordingCall):
            self.record_arguments(call)
        made.takes_off(call)
        try:
            inner = Scope(active, call, (*scope.around, call.number), 0, scope.branch, scope)
            value = performer.from_cache(value, self.bound, inner)
            looked = active.look(scope, value) if performer.hands_out else None
            record, payload = self._completed(call, value, inner, ())
            record = record._replace(usage={}, cached=entry.saved)
            yield from record_outcome(
                scope,
                (record, payload),
                looked=looked,
                helper=origin.helper,
                awaited=entry.awaited,
            )
            return Result(value, awaited=entry.awaited)
        finally:
            made.landed(call)

    def _completed(self, call: Call, value: object, inner: Scope, tries: Any) -> Any:
        self.ended = cast("Any", super())._completed(call, value, inner, tries)
        account = self.scope.run.account
        usd, tokens, _ = amounts_of_usage(self.ended[0].usage)
        spent, saved = account.open.get(call.number), account.cached.get(call.number, {})
        more = (spent.usd, spent.tokens) if spent is not None else (0.0, 0)
        self.cost = (
            usd + more[0] + saved.get("usd", 0.0),
            tokens + more[1] + saved.get("tokens", 0),
        )
        return self.ended

    def _changes(self, call: Call, value: object = None) -> Any:
        found = cast("Any", super())._changes(call, value)
        self.changed = found is not None
        return found

    def _said(self) -> int:
        emissions = self.scope.run.emissions
        return emissions.total if emissions is not None else 0

    def _keep(self, lookup: Lookup, result: Result, said: int) -> bool:
        """Keep the result if it is all that the call did; return whether it is kept."""
        performer, active = self.performer, self.scope.run
        if self.ended is None or self.changed:
            return False
        (record, payload), value = self.ended, performer.to_cache(result.value)
        # Variables of modules, too, are as they were: the key holds them.
        if performer.cache_key(self)[0] != lookup.key:
            return False
        more = record.inner or (self._said() != said and not performer.says_again)
        is_whole = value is not None or result.value is None
        if more or not is_whole or _holds(self.identity.held, value):
            return False
        form = record.form
        if value is not result.value:
            payload, form = active.codec.encode(value, f"the answer of {record.call.name!r}")
        if form not in (None, JSON) or active.codec.secrets.found_in(payload):
            return False
        cost = max(0.0, record.at - record.call.at), *self.cost
        lookup.keep(cost, result.awaited, Encoded(payload, form))
        return True


def _holds(held: Held | None, value: object) -> bool:
    """Return whether a result shares an object with what the call was given, or may do so.

    A copy from the cache would not show later changes of that object.
    """
    if held is None or held.snapshot is None:
        return False
    tree = walk(value)
    nodes = tree.nodes if tree is not None else _reached(value)
    return nodes is None or any(held.holds(node) for node in nodes if changes(node))


def _reached(value: object) -> Sequence[object] | None:
    """Return all objects that a value holds; ``None`` if there may be others.

    Arrays are views of memory that other objects may have, too.
    """
    found, waiting = {id(value): value}, [value]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if type(each) in ATOMS or isinstance(each, _CODE) or id(each) in found:
                continue
            if hasattr(type(each), "__array__") or len(found) > _MOST:
                return None
            found[id(each)] = each
            waiting.append(each)
    return [*found.values()]


@reports
def _tell_untold(what: str, why: str) -> None:
    if _is_first((what, why)):
        notice(f"calls of {what} are made, and not answered by the cache, since {why}")
