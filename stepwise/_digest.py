"""The canonical digest of a value: equal values of one type give equal digests, everywhere.

Across processes, hash seeds, dict orders, string interning, machines and versions of Python.  A
pickle is not fit for this (its bytes depend on object identity and on set order), so a value is
*encoded* instead:

- an atom is a tag and its bytes;
- a container is a tag and its children;
- dicts and sets are ordered by the encodings of their keys;
- an object is its class, by name, and its state: the fields that its ``==`` compares for
  dataclasses, attrs, pydantic and msgspec classes, else what ``copyreg`` would pickle;
- every encoding is *folded* to at most 64 bytes (a longer one is replaced by its SHA-256), so that
  a large value costs no large intermediate copy.

What has no such form (a lock, a client, a lambda) raises :class:`~stepwise.errors.DigestError`
with the path to it.  Imports: errors and the forms of single values; those of types on use.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import hashlib
import pathlib
import re
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepwise._digest_atoms import (
    ATOMS,
    UndigestibleError,
    atom,
    class_name,
    fold,
    framed,
    join,
    lengthened,
    noun,
    string,
)
from stepwise._grown import LONG, digest_grown
from stepwise.errors import DigestError

if TYPE_CHECKING:
    from stepwise._digest_types import Form

__all__ = ["class_name", "combine", "combined", "digest", "encode", "framed"]

_NOT_STATE = frozenset({"__weakref__", "__dict__"})
_TOO_OFTEN = 100_000  # visits of objects on cycles: some seconds


def digest(value: object) -> str:
    """Digest ``value`` to 32 hexadecimal digits (128 bits of a SHA-256).

    Raises:
        DigestError: part of it cannot be part of an identity; says which part.
    """
    return hashlib.sha256(encode(value)).hexdigest()[:32]


def combine(*parts: bytes | str) -> str:
    """Digest several strings so that their boundaries count."""
    return combined([framed(part) for part in parts])


def combined(parts: Iterable[bytes]) -> str:
    """:func:`combine` parts that are :func:`framed`."""
    return hashlib.sha256(fold(b"+" + b"".join(parts))).hexdigest()[:32]


def encode(value: object) -> bytes:
    """The canonical bytes of ``value``, at most 64, of which :func:`digest` is the hash.

    Raises:
        DigestError: see :func:`digest`.
    """
    try:
        simple = ATOMS.get(type(value))
        return simple(value) if simple is not None else _Encoder().encode(value)
    except UndigestibleError as error:
        path = "".join(reversed(error.path))
        raise DigestError(
            f"{error.reason} (at value{path})" if path else error.reason,
            path=path,
            type_name=error.type_name,
        ) from None
    except RecursionError:
        raise DigestError(
            "the value is nested too deeply to be part of an identity",
            path="",
            type_name=class_name(type(value)),
        ) from None


class _Encoder:
    """One encoding.

    ``active`` holds the objects that are being encoded, each with its level, to see cycles; ``met``
    holds those that were, with their encoding if no cycle runs through them: an object that many
    refer to is taken apart once.
    """

    cycles = again = 0

    def __init__(self) -> None:
        self.active: dict[int, int] = {}
        self.met: dict[int, tuple[Any, bytes | None]] = {}

    def encode(self, value: Any) -> bytes:
        cls = type(value)
        simple = atom(cls)
        if simple is not None:
            return simple(value)
        here, level = id(value), len(self.active)
        if here in self.active:  # a cycle is told by how many levels up it leads
            self.cycles += 1
            return b"^%d" % (level - self.active[here])
        self.active[here] = level
        try:
            container = _CONTAINERS.get(cls)
            return container(self, value) if container is not None else self.object(value)
        finally:
            del self.active[here]

    def object(self, value: Any) -> bytes:
        known = self.met.get(id(value))
        if known is not None:
            if known[1] is not None:
                return known[1]
            self.again += 1
            if self.again > _TOO_OFTEN:
                raise UndigestibleError(
                    "its parts refer to each other in too many ways", class_name(type(value))
                )
        cycles = self.cycles
        cls: type = type(value)
        try:
            encoded = _form_of(cls)(self, value)
        except (UndigestibleError, RecursionError, MemoryError):
            raise
        except Exception as error:  # its own methods are asked
            raise UndigestibleError(
                f"{noun(value)} cannot be part of an identity ({_text(error)})",
                class_name(type(value)),
            ) from None
        self.met[id(value)] = value, encoded if self.cycles == cycles else None
        return encoded

    # -- containers ----------------------------------------------------------------------------

    def items(self, values: Iterable[Any], label: str = "[{}]") -> list[bytes]:
        encoded: list[bytes] = []
        atoms, encode = ATOMS, self.encode
        try:
            for item in values:
                encoded.append(atoms.get(type(item), encode)(item))  # noqa: PERF401 (the path)
        except UndigestibleError as error:
            error.path.append(label.format(len(encoded)))
            raise
        return encoded

    def list_(self, value: Iterable[Any]) -> bytes:
        if type(value) is list and len(value) >= LONG:  # then it is folded
            digest = digest_grown(value, b"l", self.joined, self.active)
            if digest is not None:
                return b"#" + digest
        return join(b"l", self.items(value))

    def joined(self, values: Iterable[Any]) -> bytes:
        return lengthened(self.items(values))

    def tuple_(self, value: Iterable[Any]) -> bytes:
        return join(b"t", self.items(value))

    def set_(self, value: Iterable[Any]) -> bytes:
        return join(b"{", sorted(self.items(value, "{{...}}")))

    def pairs(self, value: dict[Any, Any], label: str = "[{}]") -> list[tuple[bytes, bytes]]:
        pairs = []
        atoms, encode = ATOMS, self.encode
        key: Any = None
        try:
            for key, item in value.items():
                name = atoms.get(type(key), encode)(key)
                pairs.append((name, atoms.get(type(item), encode)(item)))
        except UndigestibleError as error:
            error.path.append(label.format(_short(key) if label == "[{}]" else key))
            raise
        return pairs

    def dict_(self, value: dict[Any, Any], label: str = "[{}]") -> bytes:
        return join(b"d", [part for pair in sorted(self.pairs(value, label)) for part in pair])

    def ordered_dict(self, value: dict[Any, Any]) -> bytes:
        # Two OrderedDicts are equal only in the same order.
        return join(b"D", [part for pair in self.pairs(value) for part in pair])

    def counter(self, value: collections.Counter[Any]) -> bytes:
        # A count of zero is equal to no count.
        return join(b"C", [self.dict_({key: count for key, count in value.items() if count != 0})])

    def defaultdict(self, value: dict[Any, Any]) -> bytes:
        return self.dict_(value)  # the factory is not part of ``==``

    def deque(self, value: Iterable[Any]) -> bytes:
        return join(b"Q", self.items(value))  # nor is maxlen

    def slice(self, value: slice) -> bytes:
        return join(b":", self.fields(value, ("start", "stop", "step")))

    def memory(self, value: memoryview) -> bytes:
        content = hashlib.sha256(value if value.contiguous else value.tobytes()).digest()
        return join(b"v", [*self.items((value.format, value.shape)), content])

    # -- objects -------------------------------------------------------------------------------

    def fields(self, value: Any, names: Iterable[str]) -> list[bytes]:
        """Names and values of attributes."""
        parts = []
        for name in names:
            try:
                parts += [string(name), self.encode(getattr(value, name, None))]
            except UndigestibleError as error:
                error.path.append(f".{name}")
                raise
        return parts

    def enum(self, value: enum.Enum) -> bytes:
        cls = type(value)
        if value.name in cls.__members__:
            return join(b"e", [string(class_name(cls)), string(value.name)])
        return join(b"E", [string(class_name(cls)), self.encode(value.value)])  # READ | WRITE

    def namedtuple(self, value: Any) -> bytes:
        return join(b"o", [string(class_name(type(value))), *self.items(value)])

    def function(self, value: Any) -> bytes:
        return self.named(value, value.__qualname__)

    def named(self, value: Any, name: str) -> bytes:
        """What is its own name, if that name leads back to it."""
        from stepwise._digest_types import leads_to

        # Functions know their module; singletons live beside their class.
        for module in (getattr(value, "__module__", None) or "builtins", type(value).__module__):
            if leads_to(module, name, value):
                return fold(f"c{name if module == 'builtins' else f'{module}.{name}'}".encode())
        raise UndigestibleError(
            f"no importable name leads to {noun(value)} named {name!r}, so that two of them "
            "cannot be told apart",
            class_name(type(value)),
        )

    def method(self, value: types.MethodType) -> bytes:
        name = value.__name__
        if getattr(value.__self__, name, None) == value:
            return join(b"M", [string(name), self.encode(value.__self__)])
        return join(b"m", self.items((value.__func__, value.__self__)))  # of a parent class

    def partial(self, value: functools.partial[Any]) -> bytes:
        return join(b"P", self.fields(value, ("func", "args", "keywords")))

    def pattern(self, value: re.Pattern[Any]) -> bytes:
        return join(b"R", self.items((value.flags, value.pattern)))

    def subclass(self, value: Any) -> bytes:
        """Of a builtin container whose pickle holds more than ``==`` compares, or its set order."""
        form = next(form for base, form in _SUBCLASSED if isinstance(value, base))
        state = _reduce(value)[2]
        return join(
            b"S", [string(class_name(type(value))), form(self, value), self.state(value, state)]
        )

    def reduced(self, value: Any) -> bytes:
        """Class and state of an ordinary object, as pickle protocol 2 would take it apart."""
        form = _reduce(value)
        if isinstance(form, str):
            return self.named(value, form)
        cls = type(value)
        make, args, state, items, pairs = form
        parts = [string(class_name(cls))]
        if make not in (copyreg.__newobj__, copyreg._reconstructor, cls):  # type: ignore[attr-defined]
            parts.append(self.encode(make))
        parts.append(self.tuple_(each for each in args if each is not cls))
        if state is not None:
            parts.append(self.state(value, state))
        parts.append(self.list_(items or ()))
        parts.append(self.dict_(dict(pairs or ())))
        return join(b"o", parts)

    def state(self, value: Any, state: Any) -> bytes:
        inherited = getattr(object, "__getstate__", None)  # there since 3.11
        if (
            isinstance(state, tuple)
            and len(state) == 2
            and isinstance(state[1], dict)
            and getattr(type(value), "__getstate__", None) is inherited
        ):
            state = {**(state[0] or {}), **state[1]}  # of __dict__ and __slots__
        if not isinstance(state, dict):
            return self.encode(state)
        return self.dict_({k: v for k, v in state.items() if k not in _NOT_STATE}, ".{}")


def _reduce(value: Any) -> Any:
    reducer = copyreg.dispatch_table.get(type(value))
    form: Any = reducer(value) if reducer is not None else value.__reduce_ex__(2)
    return form if isinstance(form, str) else (*form, None, None, None)[:5]


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"<{class_name(type(value))}>"
    return text if len(text) <= 40 else text[:37] + "..."


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _path(_: _Encoder, value: pathlib.PurePath) -> bytes:
    windows = isinstance(value, pathlib.PureWindowsPath)
    return (
        join(b"\\", [string(str(value).lower())]) if windows else join(b"/", [string(str(value))])
    )


def _module(_: _Encoder, value: types.ModuleType) -> bytes:
    return fold(b"L" + value.__name__.encode())


_CONTAINERS: dict[type, Form] = {
    list: _Encoder.list_,
    tuple: _Encoder.tuple_,
    dict: _Encoder.dict_,
    set: _Encoder.set_,
    frozenset: _Encoder.set_,
    collections.OrderedDict: _Encoder.ordered_dict,
    collections.defaultdict: _Encoder.defaultdict,
    collections.Counter: _Encoder.counter,
    collections.deque: _Encoder.deque,
}

_SUBCLASSED: tuple[tuple[type, Form], ...] = (
    (collections.OrderedDict, _Encoder.ordered_dict),
    (collections.defaultdict, _Encoder.defaultdict),
    (collections.Counter, _Encoder.counter),
    (collections.deque, _Encoder.deque),
    (set, _Encoder.set_),
    (frozenset, _Encoder.set_),
)

_BASES: tuple[tuple[Any, Form], ...] = (
    (enum.Enum, _Encoder.enum),
    (pathlib.PurePath, _path),
    (types.ModuleType, _module),
    (re.Pattern, _Encoder.pattern),
    (slice, _Encoder.slice),
    (memoryview, _Encoder.memory),
    (functools.partial, _Encoder.partial),
    (types.MethodType, _Encoder.method),
    ((types.FunctionType, types.BuiltinFunctionType), _Encoder.function),
)


@functools.lru_cache(maxsize=1000)
def _form_of(cls: type) -> Form:
    """How the values of a class that is neither an atom nor a container are taken apart."""
    for base, form in _BASES:
        if issubclass(cls, base):
            return form
    from stepwise._digest_types import form_for  # on use: plain data needs none of these

    known = form_for(cls)
    if known is not None:
        return known
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _Encoder.namedtuple
    if issubclass(cls, tuple(base for base, _ in _SUBCLASSED)):
        return _Encoder.subclass
    return _Encoder.reduced
