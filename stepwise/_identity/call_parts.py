"""The parts that tell the calls of a workflow apart, each by its name and with a digest of its own.

``arg:q`` is an argument, the default of a parameter that was not given included; ``captured:model``
a variable of an enclosing function; ``self.model`` an attribute of the instance.  A derived run id
is made of them; a record that knows them tells what differs, and a part that it does not know does
not count.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stepwise._identity import identity
from stepwise._identity.captures import captured_parts, own_name
from stepwise._identity.identity import Parameters
from stepwise._identity.parts import class_digest
from stepwise._runtime.forks import cached
from stepwise._values import digest
from stepwise._values.instances import attributes
from stepwise._values.moments import is_momentary

__all__ = ["CallParts", "Parts", "short_digest", "spoken"]

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
        self._held: dict[str, bytes | None] = {}
        self._ignored = parameters.instance_ignored
        if not parameters.is_computed:
            self._encoded, self._defaulted = parameters.in_force(bound)
            given = self._encoded.keys() - set(self._defaulted)
            self.given = frozenset(f"arg:{name}" for name in given)
            captured, momentary = captured_parts(function, first_seen)
            self._captured = {f"captured:{name}": encoded for name, encoded in captured.items()}
            self._momentary |= {f"captured:{name}" for name in momentary}
        if instance is not None and not isinstance(instance, type):
            self._look_at(instance)
        self.arguments = parameters.digest(bound, call) if self.computed else self._of_arguments()
        self.instance, self.left_out = self._of_instance()

    def _look_at(self, instance: object) -> None:
        self._held = identity.instance_parts(instance)
        for name, value in attributes(instance).items():
            if is_momentary(value):
                self._momentary.add(f"self.{name}")
            elif issubclass(type(value), _GROWS):
                self._growing.add(f"self.{name}")

    # -- what ids are made of --------------------------------------------------------------------

    def _of_arguments(self, *, kept: frozenset[str] = frozenset()) -> str:
        """Digest the arguments without those at their default, except the ``kept`` ones."""
        out = set(self._defaulted) - kept
        parts: list[bytes] = []
        for name in sorted(self._encoded.keys() - out):
            parts += digest.framed(name), digest.framed(self._encoded[name])
        return digest.combined(parts)

    def _of_instance(
        self, module: str | None = None, *, whole: bool = False
    ) -> tuple[str, list[str]]:
        """Digest the instance; see :func:`stepwise._identity.identity.instance_digest`.

        Args:
            module: what its class counts as being defined in.
            whole: with the attributes that ``==`` leaves out or the workflow ignores.
        """
        if self._instance is None:
            return "", []
        held = self._held
        if not whole:
            cls: Any = type(self._instance)
            out = self._ignored | identity.uncompared(cls)
            held = {name: encoded for name, encoded in held.items() if name not in out}
        return identity.instance_digest(self._instance, held, module)

    def _extras(self) -> dict[str, bytes]:
        """Return what older versions did not count: captures, and what has no digest."""
        counted = {
            name: held for name, held in self._captured.items() if name not in self._momentary
        }
        if not self.computed:
            values = attributes(self._instance) if self.left_out else {}
            for name in self.left_out:
                counted[f"self.{name}"] = _class_of(values.get(name))
            content = self._instance is not None and class_digest(_class(self._instance))
            if content:
                counted["class"] = content.encode()
        return counted

    def digests(self, module: str | None = None) -> Iterator[tuple[str, ...]]:
        """Yield the possible bases of a run id; the first is that of a new run.

        The others are those of runs that began when the workflow had fewer parameters with a
        default or fewer captured variables, or under an older version.

        Args:
            module: what the instance's class counts as being defined in.
        """
        instance, _ = self._of_instance(module)
        if self.computed:
            yield self.arguments, ""
            if instance:
                yield self.arguments, self._of_instance(module, whole=True)[0]
            return
        extras = self._extras()
        first = self._of_arguments(kept=frozenset(self._defaulted))
        for extra in (extras, {}) if extras else ({},):
            for kept in self._kept():
                yield self._of_arguments(kept=kept), instance, *_combined(extra)
        for name in extras:
            fewer = {each: held for each, held in extras.items() if each != name}
            yield first, instance, *_combined(fewer)
        yield self.arguments, self._of_instance(module, whole=True)[0]

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
            return {name: short_digest(encoded) for name, encoded in parts.items()}
        parts.update(self._captured)
        if self._instance is not None:
            cls: Any = _class(self._instance)
            parts["class"] = (own_name(cls, self._function) + class_digest(cls)).encode()
            values = attributes(self._instance) if self.left_out else {}
            out = self._ignored | identity.uncompared(cls)
            for name in self._held.keys() - out:
                parts[f"self.{name}"] = self._held[name] or _class_of(values.get(name))
        return {name: short_digest(encoded) for name, encoded in parts.items()}

    @property
    def is_certain(self) -> bool:
        """Return whether equal runs have equal ids: all of the parts can exclude."""
        return not (self._momentary or self._defaulted or self._captured)


def _combined(extras: Mapping[str, bytes]) -> list[str]:
    parts = [digest.framed(part) for pair in sorted(extras.items()) for part in pair]
    return [digest.combined(parts)] if parts else []


def _class_of(value: object) -> bytes:
    if isinstance(value, type):
        return f"c{digest.class_name(value)} {class_digest(value)}".encode()
    return b"?" + digest.class_name(type(value)).encode()


def _class(instance: Any) -> Any:
    """The class of an instance; a class that a method is bound to is meant itself."""
    return instance if isinstance(instance, type) else type(instance)


def short_digest(encoded: bytes) -> str:
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
