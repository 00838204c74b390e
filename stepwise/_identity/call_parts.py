"""The parts that tell the calls of a workflow apart, each by its name and with a digest of its own.

``arg:q`` is an argument, the default of a parameter that was not given included; ``captured:model``
a variable of an enclosing function; ``self.model`` an attribute of the instance, and
``self.agent.persona`` one of an object that it holds (see ``leaves``).  What has no digest counts
by its class, or by the fields that distinguish clients.  A derived run id is made of the parts; a
record that knows them tells what differs, and a part that it does not know does not count.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from stepwise._identity import identity
from stepwise._identity.captures import (
    FIXED,
    captured_parts,
    fixed_cells,
    own_name,
    plain_function,
    within,
)
from stepwise._identity.clients import field, fields_of
from stepwise._identity.identity import Parameters
from stepwise._identity.leaves import NO_LEAVES, leaves_of
from stepwise._identity.parts import class_digest, lenient
from stepwise._runtime.forks import cached
from stepwise._values import digest
from stepwise._values.instances import attributes
from stepwise._values.moments import is_momentary

__all__ = ["CallParts", "HeldParts", "Parts", "instance_values", "spoken"]

_GROWS = (list, dict, set, bytearray, collections.deque)


class Parts:
    """The identity of a call, part by part.

    Attributes:
        recorded: a short digest of each part, by its name.
        given: the parts in which a record differs that does not know them.
        has_instance: whether it is the call of a method.
    """

    recorded: Mapping[str, str]
    given: frozenset[str] = frozenset()
    has_instance = False

    def __init__(self) -> None:
        self._momentary: set[str] = set()  # times and UUIDs: they prefer, and never exclude
        self._growing: set[str] = set()

    def differing(
        self, other: Mapping[str, str] | None, *, momentary: bool = False, growing: bool = True
    ) -> list[str]:
        """Name the parts in which a recorded call differs from this one.

        Args:
            other: the parts of the recorded call; ``None`` if they are not known.
            momentary: look at times and UUIDs, too.
            growing: look at containers that an instance holds, too.
        """
        if other is None:
            return []
        mine = self.recorded
        return [
            name
            for name, short in mine.items()
            if (other[name] != short if name in other else name in self.given)
            and (momentary or name not in self._momentary)
            and (growing or name not in self._growing)
        ]

    def left_out_by(self, differing: Sequence[str]) -> str:
        """Return the option that leaves these parts out, or some argument; empty if none does."""
        return "@workflow(ignore=...)"


class CallParts(Parts):
    """The parts of one call of a workflow.

    Args:
        function: the plain function.
        first_seen: what captured variables held when the function was called first; filled here.
        bound: the arguments by parameter name, without ``self``.
        call: the arguments as they were passed.
        instance: the object or class that a method is bound to.

    Raises:
        DigestError: an argument cannot be part of an identity.
    """

    def __init__(
        self,
        parameters: Parameters,
        function: Callable[..., Any],
        first_seen: dict[str, bytes],
        bound: Mapping[str, Any],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        instance: Any,
    ) -> None:
        super().__init__()
        self._function = function
        self._instance = instance
        self.has_instance = instance is not None
        self.computed = parameters.is_computed
        self._encoded: dict[str, bytes] = {}
        self._defaulted: list[str] = []
        self._captured: dict[str, bytes] = {}
        self._held: dict[str, bytes] = {}
        self._by_class: list[str] = []
        if not parameters.is_computed:
            self._encoded, self._defaulted, unknown = parameters.in_force(bound)
            self._by_class += [f"{name}=" for name in unknown]
            given = self._encoded.keys() - set(self._defaulted)
            self.given = frozenset(f"arg:{name}" for name in given)
            captured, momentary = captured_parts(function, first_seen)
            self._captured = {f"captured:{name}": encoded for name, encoded in captured.items()}
            self._momentary |= {f"captured:{name}" for name in momentary}
        if instance is not None and not isinstance(instance, type):
            self._look_at(instance, parameters.instance_ignored)
        self.arguments = parameters.digest(bound, call) if self.computed else self._of_arguments()
        self.instance = self._of_instance()

    def _look_at(self, instance: object, ignored: frozenset[str]) -> None:
        values = instance_values(instance, ignored)
        leaves = leaves_of(values, instance)
        if leaves is not NO_LEAVES:
            values = leaves.values
        numbering = digest.Numbering()
        for part, value in values.items():
            node = leaves.nodes.get(part)
            if node is not None:
                self._held[part] = node.encode()
            else:
                around = leaves.around(part, (instance,))
                self._held[part], unknown = lenient(value, around, numbering)
                if unknown:
                    self._by_class.append(part.removeprefix("self."))
            if is_momentary(value):
                self._momentary.add(part)
            elif issubclass(type(value), _GROWS):
                self._growing.add(part)

    def by_class(self) -> list[str]:
        """Name the arguments (``client=``) and attributes in which something has no digest."""
        return self._by_class

    # -- what ids are made of --------------------------------------------------------------------

    def _of_arguments(self, *, kept: frozenset[str] = frozenset()) -> str:
        """Digest the arguments without those at their default, except the ``kept`` ones."""
        out = set(self._defaulted) - kept
        parts: list[bytes] = []
        for name in sorted(self._encoded.keys() - out):
            parts += digest.framed(name), digest.framed(self._encoded[name])
        return digest.combined(parts)

    def _of_instance(self, module: str | None = None) -> str:
        """Digest the instance.

        Args:
            module: what its class counts as being defined in.
        """
        if self._instance is None:
            return ""
        cls = _class(self._instance)
        counted: list[bytes | str] = [digest.class_name(cls)]
        if module is not None:
            counted = [f"{module}.{cls.__qualname__}"]
        for part, encoded in sorted(self._held.items()):
            counted += part, encoded
        return digest.combine(*counted)

    def _extras(self) -> dict[str, bytes]:
        """Return what counts beside the arguments and the instance."""
        counted = {n: held for n, held in self._captured.items() if n not in self._momentary}
        content = self._instance is not None and class_digest(_class(self._instance))
        if content and not self.computed:
            counted["class"] = content.encode()
        return counted

    def digests(self, module: str | None = None) -> Iterator[tuple[str, ...]]:
        """Yield the possible bases of a run id; the first is that of a new run.

        The others are those of runs that began when the workflow had fewer parameters with a
        default, or one captured variable less.

        Args:
            module: what the instance's class counts as being defined in.
        """
        if self.computed:
            yield self.arguments, ""
            return
        instance, extras = self._of_instance(module), self._extras()
        for kept in self._kept():
            yield self._of_arguments(kept=kept), instance, *_combined(extras)
        first = self._of_arguments(kept=frozenset(self._defaulted))
        for name in extras:
            fewer = {each: held for each, held in extras.items() if each != name}
            yield first, instance, *_combined(fewer)

    def _kept(self) -> Iterator[frozenset[str]]:
        """The parameters at their default that a run may know of, all of them first."""
        names = self._defaulted
        for count in range(len(names), -1, -1):
            yield frozenset(names[:count])
        for name in names[:-1]:
            yield frozenset(names) - {name}

    def bases(self, name: str, label: str, module: str | None = None) -> list[str]:
        """The run ids that :meth:`digests` give, for a workflow of that name."""
        ids = [identity.derived_id(name, label, *digests) for digests in self.digests(module)]
        return list(dict.fromkeys(ids))

    def of_instance_of(self, module: str) -> bool:
        """Return whether its instance is of a class that a module of this name defines."""
        cls = self._instance if isinstance(self._instance, type) else type(self._instance)
        return self._instance is not None and cls.__module__ == module

    def of_child(self) -> list[str]:
        """Return the digests of a call of a child workflow; see :meth:`digests` for their order."""
        found = []
        for arguments, instance, *extra in self.digests():
            told = [arguments, instance] if instance else [arguments]
            found.append(digest.combine(*told, *extra) if told[1:] or extra else arguments)
        return list(dict.fromkeys(found))

    # -- records ---------------------------------------------------------------------------------

    @cached
    def recorded(self) -> dict[str, str]:  # type: ignore[override]
        """A short digest of each part, by its name."""
        parts: dict[str, bytes] = {f"arg:{name}": held for name, held in self._encoded.items()}
        if self.computed:
            parts["key"] = self.arguments.encode()
            return {name: _short_digest(encoded) for name, encoded in parts.items()}
        parts.update(self._captured)
        parts.update(self._held)
        if self._instance is not None:
            cls = _class(self._instance)
            parts["class"] = (own_name(cls, self._function) + class_digest(cls)).encode()
        return {name: _short_digest(encoded) for name, encoded in parts.items()}

    @property
    def is_certain(self) -> bool:
        """Return whether equal runs have equal ids: all of the parts can exclude."""
        return not (self._momentary or self._defaulted or self._captured)


# -- given functions ---------------------------------------------------------------------------

# By type, not isinstance: the __class__ of a proxy may raise.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_assigned: set[tuple[str, str]] = set()  # classes, and attributes that a run assigned


class HeldParts(Parts):
    """The values that given functions hold: the nodes of a graph, or an agent function.

    ``of:node 'ask':model`` is a captured variable, a default or an attribute ``model`` of the
    function (or bound method, partial, callable object) of the node ``ask``;
    ``of:node 'ask':agents[0].persona`` one of an object of the user's own inside it.  Only texts,
    numbers and the like, functions with what they captured, classes, and the fields of clients
    count.  A change that a call makes inside an object (a list, an agent's history) must not make
    the next run another one; nor must an attribute or a captured variable that is assigned.

    Args:
        functions: what the run calls, by what a message calls it.
        ignore: names of what they hold that do not count.
    """

    def __init__(self, functions: Mapping[str, Any], ignore: Collection[str]) -> None:
        super().__init__()
        self._functions, self._ignored = functions, ignore
        self._values = {name: value for name, value, _ in self._held()}
        self.recorded = {name: _short_digest(value) for name, value in self._values.items()}

    def digests(self) -> list[str]:
        """Return what an id is made of beside the arguments; nothing if there are no parts."""
        told = [part for pair in sorted(self.recorded.items()) for part in pair]
        return [digest.combine(*told)] if told else []

    def left_out_by(self, differing: Sequence[str]) -> str:
        """Return the option that leaves these parts out; empty if there are none."""
        names = [name.rpartition(":")[2] for name in differing]
        return f"ignore={names!r}" if names else ""

    def note_assigned(self) -> None:
        """Mark attributes that the ended run assigned as state from now on."""
        for name, value, attribute in list(self._held()):
            if attribute is not None and self._values.get(name) != value:
                _assigned.add(attribute)

    def _held(self) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        """Yield each part's name and encoded value; of an attribute, its class and name."""
        known: dict[int, list[tuple[str, bytes, tuple[str, str] | None]]] = {}
        for where, function in self._functions.items():
            held = known.get(id(function))  # many nodes may have one function
            if held is None:
                held = known[id(function)] = [*self._held_by(function)]
            for path, encoded, attribute in held:
                yield f"of:{where}:{path}", encoded, attribute

    def _held_by(self, function: Any) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        for name, value, cls in _values_of(function):
            attribute = (own_name(cls, function), name) if cls is not None else None
            if name in self._ignored or attribute in _assigned or is_momentary(value):
                continue
            for path, each in within(name, value, objects=False):
                yield from self._fixed(path, each, attribute, function)
                leaves = leaves_of({path: each}, None)
                for inner, place in leaves.places.items():
                    if not place.is_item:  # a list may grow
                        own = own_name(type(place.around[-1]), function), place.key
                        yield from self._fixed(inner, leaves.values[inner], own, function)
            for path, encoded in _clients_within(name, value):
                if path not in self._ignored:
                    yield path, encoded, attribute

    def _fixed(
        self, path: str, value: Any, attribute: tuple[str, str] | None, function: Any
    ) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        """Encode a value if it is a text, a number, a function or a class."""
        if path in self._ignored or attribute in _assigned or is_momentary(value):
            return
        if type(value) in FIXED:
            yield path, digest.encode(value), attribute
        elif issubclass(type(value), _NAMED):
            named = own_name(value, plain_function(function) or value)
            yield path, digest.encode(("named", named)), attribute


def _values_of(function: Any) -> Iterator[tuple[str, Any, type | None]]:
    """Yield the values that a function holds, by name; with the class for instance attributes."""
    if isinstance(function, functools.partial):
        yield from ((f"argument {n}", value, None) for n, value in enumerate(function.args, 1))
        yield from ((name, value, None) for name, value in function.keywords.items())
        yield from _values_of(function.func)
        return
    instance = function.__self__ if isinstance(function, types.MethodType) else function
    plain = plain_function(function)
    if plain is not None:
        yield from ((name, value, None) for name, value in fixed_cells(plain))
        defaults = inspect.signature(plain).parameters.values()
        yield from ((p.name, p.default, None) for p in defaults if p.default is not p.empty)
    if plain is None or instance is not function:
        held = attributes(instance).items()
        yield from ((name, value, type(instance)) for name, value in held)


# -- digests -------------------------------------------------------------------------------------


def instance_values(instance: object, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return what tells an instance from others of its class, by the names of the parts."""
    cls: Any = type(instance)
    held = attributes(instance)
    for extra in ("__pydantic_extra__", "__pydantic_private__"):
        held.update(held.pop(extra, None) or {})
    out = identity.uncompared(cls)
    values = {f"self.{n}": held[n] for n in sorted(held) if n not in out and n not in ignored}
    read = identity.reader_of(cls)
    items = None if read is None else read(instance)
    if items:
        values["self.its items"] = items
    return values


def _combined(extras: Mapping[str, bytes]) -> list[str]:
    parts = [digest.framed(part) for pair in sorted(extras.items()) for part in pair]
    return [digest.combined(parts)] if parts else []


def _fields_of(value: object) -> tuple[str, ...] | None:
    cls: Any = type(value)
    return fields_of(cls)


def _clients_within(where: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Encode the fields that distinguish the clients that a value is or holds, by their paths."""
    for path, each in within(where, value):
        for name in _fields_of(each) or ():
            yield f"{path}.{name}", digest.encode(field(each, name))


def _class(instance: Any) -> Any:
    """The class of an instance; a class that a method is bound to is meant itself."""
    return instance if isinstance(instance, type) else type(instance)


def _short_digest(encoded: bytes) -> str:
    """Return the digest of a part as a record keeps it: 16 hexadecimal digits."""
    return hashlib.sha256(encoded).hexdigest()[:16]


def spoken(names: list[str]) -> str:
    """Parts in words: ``argument 'q', captured variable 'model', self.history``."""
    words = {"arg": "argument", "captured": "captured variable"}
    told = []
    for name in names:
        kind, _, rest = name.partition(":")
        if kind == "of":
            where, _, held = rest.rpartition(":")
            told.append(f"{held} of {where}")
            continue
        told.append(f"{words[kind]} {rest!r}" if rest and kind in words else _WORDS.get(name, name))
    return ", ".join(told)


_WORDS = {"class": "the class of the instance", "key": "what its key= gives"}
