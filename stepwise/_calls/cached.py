"""Calls that results of other runs may answer: ``@step(cache=...)`` and instrumented requests.

The cache is asked when the journal does not answer: before a limit is taken, and before an attempt.
Its answer becomes a record of this run, so that a resumed run needs no cache.  A result is kept
once its record is written, and only if it is all that the call did: the call changed nothing that
it was given, made no other recorded call, and said nothing.

The class of a cached call is chosen when its step is decorated, as that of a limited call.

Within a run, code that was edited since is reported.  A cache has nobody to report to, so its keys
hold everything that decides about the result of a pure function: its arguments, its instance, its
captured variables, the code that it reaches, the variables of modules that this code reads, and the
code of each object, class and function among these values.  What cannot be told has no key.

Code sees more than ``==`` compares: the order of a dict, the sign of a zero, the zone of a time, a
field with ``compare=False``, and whether two names mean one object.  All of this counts.  Whether
Python makes one object or two of equal constants is left open to it, so a tuple or a text has no
identity of its own.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import gc
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from inspect import unwrap
from traceback import format_exception
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from stepwise._calls.call import RecordingCall, record_outcome
from stepwise._calls.driver import Core, Result
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Origin
from stepwise._identity.call_parts import shape_digest
from stepwise._identity.clients import declared, fields_of, held_by, is_foreign, is_foreign_module
from stepwise._identity.following import Code, code_of
from stepwise._identity.identity import Lenient
from stepwise._journal.cache import CacheEntry, CallCache, cache_of
from stepwise._journal.records import Call
from stepwise._matching.pool import Match
from stepwise._matching.subjects import Held
from stepwise._runtime import settings
from stepwise._runtime.messages import Once, notice, reports
from stepwise._values import digest
from stepwise._values.codec import JSON, Encoded
from stepwise._values.digest import DECORATED, class_name, fold, join, string
from stepwise._values.trees import ATOMS, changes, walk
from stepwise.errors import UnreadableValueError

_CODE = (type, types.FunctionType, types.ModuleType)
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
            if self.entry is None or self.entry.run != made_by:
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
        performer, active = self.performer, self.scope.run
        age = settings.cache_age(performer.cache_for(self.bound))
        if age is None:
            return None
        key, why = performer.cache_key(self)
        if not key:
            _tell_untold(performer.what, why)
            return None
        journal, root = active.journal, active.root
        cache = cache_of(journal.store, journal.seal) if settings.cache_size() else None
        if cache is None:
            return None
        several = root if performer.says_again else None
        return Lookup(cache, performer.name, key, age, several, root.run_id)

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
        usd, tokens, _ = amounts_of_usage(self.ended[0].usage)
        spent = self.scope.run.account.open.get(call.number)
        more = (spent.usd, spent.tokens) if spent is not None else (0.0, 0)
        self.cost = usd + more[0], tokens + more[1]
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


# -- keys ------------------------------------------------------------------------------------------


_HANDLES = {"_thread", "asyncio", "concurrent", "logging", "threading"}
_PLAIN_HANDLES = {*_HANDLES, "anyio"}  # their fields tell all that code sees of them
_OF_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _exactly(number: float) -> bytes:
    return fold(b"V" + number.hex().encode())


def _by_text(value: object) -> bytes:
    return join(b"V", [string(class_name(type(value))), string(repr(value))])


class _Coded(Lenient):
    """An encoder of values with their code.

    Attributes:
        untold: why there is no key; empty if there is one.
    """

    grows = False
    compares = False
    atoms: ClassVar = {
        **Lenient.atoms,
        float: _exactly,
        **dict.fromkeys((complex, range, dt.timezone), _by_text),
    }

    def __init__(self, around: Sequence[object]) -> None:
        super().__init__(around, masking=False)
        self.list_tag = b"V"  # no list is digested as another encoder would
        self.exactly = True
        self.untold = ""
        self._told: dict[Code | type, list[bytes]] = {}
        self._numbers: dict[int, tuple[object, int]] = {}

    def rules(self, value: Any) -> None:
        """Return no rules: volatile fields and ids count, too."""

    def encode(self, value: Any) -> bytes:
        """Encode a value, and for an object that was met before, which one it is."""
        cls: Any = type(value)
        exact = self.atoms.get(cls) or _EXACT.get(f"{cls.__module__}.{cls.__qualname__}")
        if exact is not None:
            return exact(value)
        encoded = super().encode(value)
        if issubclass(cls, dict):
            order = [self.encode(key) for key in dict.keys(value)]
            factory = self.encode(getattr(value, "default_factory", None))
            encoded = join(b"V", [encoded, factory, *order])
        elif issubclass(cls, deque):
            encoded = join(b"V", [encoded, self.encode(value.maxlen)])
        elif issubclass(cls, (dt.datetime, dt.time)):
            text = string(f"{value.isoformat()} {value.fold}")
            encoded = join(b"V", [encoded, text, self.encode(value.tzinfo)])
        elif issubclass(cls, BaseException):
            encoded = join(b"V", [encoded, string("".join(format_exception(value)))])
        # Items of a set have no order, so they are not numbered: self.numbering is None then.
        if cls in digest.ATOMS or issubclass(cls, _WITHOUT_IDENTITY) or self.numbering is None:
            return encoded
        known = self._numbers.get(id(value))
        if known is None:
            self._numbers[id(value)] = value, len(self._numbers)
            return encoded
        return join(b"V", [encoded, b"%d" % known[1]])

    def object(self, value: Any) -> bytes:
        """Encode an object with the code of its class."""
        cls: Any = type(value)
        if cls is types.ModuleType and not is_foreign_module(value.__name__):
            self.untold = self.untold or f"the module {value.__name__} is among its values"
        elif cls is types.BuiltinFunctionType and not isinstance(value.__self__, _PLACES):
            return join(b"V", [string(value.__name__), self.encode(value.__self__)])
        elif cls is types.MappingProxyType:
            return join(b"V", [self.encode({**value})])
        elif _is_of_stepwise(value):
            return join(b"V", [string(cls.__qualname__)])  # no cached call makes other steps
        elif cls is types.FunctionType:
            return self.code(value)
        elif cls.__module__ == "random":
            self.untold = self.untold or "a random generator is among its values"
        elif cls is _CachedFunction:
            return self.encode(value.__wrapped__)
        encoded = super().object(value) if declared(cls) is not None else self._undeclared(value)
        return join(b"V", [encoded, *self._methods(cls)])

    def _undeclared(self, value: Any) -> bytes:
        """Encode an object without declared fields: a client counts by all that it holds."""
        cls: Any = type(value)
        held = held_by(value)
        if held is not None:
            return join(b"V", [string(class_name(cls)), self.dict_({**held})])
        if fields_of(cls) is not None and _root(cls) not in _PLAIN_HANDLES:
            self.unknown.append(value)  # the known fields do not tell all
        return super().object(value)

    def class_(self, cls: type) -> bytes:
        """Encode a class with its code."""
        return join(b"V", [super().class_(cls), *self._methods(cls)])

    def code(self, function: types.FunctionType) -> bytes:
        """Encode a function with its code, attributes, captured variables and defaults."""
        encoded = super().code(function)
        if is_foreign_module(function.__module__ or "") and not _is_generated(function):
            return encoded
        own = {n: each for n, each in vars(function).items() if not n.startswith("__")}
        told = self.told(code_of(function), function.__qualname__)  # of what it wraps
        shape = string(shape_digest(function) if hasattr(function, "__wrapped__") else "")
        return join(b"V", [encoded, self.dict_(own), shape, *told])

    def told(self, code: Code | None, name: str) -> list[bytes]:
        """Return the encodings of code and of the variables that it reads."""
        if code is None:
            self.untold = self.untold or _UNKNOWN.format(name)
            return []
        if code not in self._told:
            self._told[code] = [string(code.id)]  # for the values that hold objects with this code
            read = [*code.values, *((name, space) for name, space, _, _ in code.held)]
            values = {f"{space.get('__name__')}.{name}": space.get(name) for name, space in read}
            self._told[code] = [string(code.id), self._of_modules(values)]
        return self._told[code]

    def _of_modules(self, values: dict[str, Any]) -> bytes:
        """Encode variables of modules and classes, where clients and locks count by their class."""
        unknown = len(self.unknown)
        encoded = self.dict_(values)
        self.unknown[unknown:] = [each for each in self.unknown[unknown:] if not _is_client(each)]
        return encoded

    def _methods(self, cls: type) -> list[bytes]:
        if cls not in self._told:
            self._told[cls] = []  # for constants that hold objects of the class
            told: list[bytes] = []
            for base in cls.__mro__:
                if not is_foreign(base):
                    told += self.told(code_of(base), base.__qualname__)
                    told.append(self._of_modules(_attributes(base)))
            self._told[cls] = told
        return self._told[cls]


def _is_client(value: object) -> bool:
    """Return whether the class of a value tells enough of it: a client, a lock, a logger."""
    cls, root = type(value), _root(type(value))
    return cls is not threading.local and (
        root in _HANDLES if root in sys.stdlib_module_names else is_foreign(cls)
    )


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_of_stepwise(value: object) -> bool:
    held = getattr(value, "__dict__", {})
    return DECORATED in held or type(value).__module__.startswith("stepwise")


def _is_generated(function: Any) -> bool:
    file: str = function.__code__.co_filename
    return file.startswith(("<string>", "<attrs "))


def _attributes(cls: type) -> dict[str, Any]:
    """Return what the attributes of a class hold, its methods with what they captured."""
    held: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if name in ("__dataclass_fields__", "__pydantic_fields__"):
            fields = [(each.default, each.default_factory) for each in value.values()]
            held[name] = [each for both in fields for each in both if each is not MISSING]
            continue
        inner = getattr(value, "__func__", getattr(value, "func", value))
        parts = (inner.fget, inner.fset, inner.fdel) if isinstance(inner, property) else (inner,)
        for number, each in enumerate(parts):
            if isinstance(each, types.FunctionType):
                is_made = name.startswith("__") and _is_generated(unwrap(each))
                held[f"{name} {number}"] = each.__defaults__ if is_made else each
            elif name.startswith("__") or name == "_abc_impl" or isinstance(each, _OF_SLOTS):
                continue
            elif not (hasattr(type(each), "__get__") and is_foreign(type(each))):
                held[f"{name} {number}"] = each
    return held


_EXACT = {"decimal.Decimal": _by_text}
_WITHOUT_IDENTITY = (
    *(tuple, frozenset, type, enum.Enum),
    *(types.ModuleType, types.MethodType, types.BuiltinFunctionType, types.MappingProxyType),
)
_CachedFunction = type(functools.cache(len))
_PLACES = (types.ModuleType, type, type(None))
_UNKNOWN = (
    "it is not known which code {} reads: it may use globals(), importlib or __subclasses__(), a "
    "whole module as a value, a module that is imported later, or a file that was edited"
)


def key_of_values(
    code: Code | None, name: str, values: Mapping[str, Any], around: Sequence[object] = ()
) -> tuple[str, str]:
    """Return the key of a call and an empty text; or an empty key and why there is none.

    Args:
        code: the code of the function.
        name: the name of the function, for the reason.
        values: everything else that counts, by name.
        around: the instance that holds some of the values.
    """
    encoder = _Coded(around)
    told = encoder.told(code, name)
    encoded = join(b"V", [*told, encoder.whole_of(dict(values))])
    if encoder.unknown:
        cls = type(encoder.unknown[0]).__qualname__
        way = "name it in ignore=, or declare its fields with stepwise.identity()"
        return "", f"a {cls} among its arguments or captured values has no digest: {way}"
    return ("", encoder.untold) if encoder.untold else (encoded.hex(), "")
