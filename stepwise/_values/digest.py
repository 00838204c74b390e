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
with the path to it.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import hashlib
import io
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from stepwise._runtime import settings
from stepwise._values.digest_atoms import (
    ATOMS,
    LENGTH,
    UndigestibleError,
    atom,
    called,
    class_name,
    fold,
    framed,
    join,
    lengthened,
    main_name,
    name_of,
    noun,
    string,
)
from stepwise._values.list_digest import LONG, SHORT, digest_grown, note
from stepwise._values.message_fields import EACH, Numbering, Rule, rules_of
from stepwise._values.moments import has_volatile_form
from stepwise.errors import DigestError

if TYPE_CHECKING:
    from pathlib import PurePath

    from stepwise._values.digest_types import Form

__all__ = [
    "Encoder",
    "Numbering",
    "class_name",
    "combine",
    "combined",
    "digest",
    "encode",
    "form_of",
    "framed",
]


T = TypeVar("T")

_NOT_STATE = frozenset({"__weakref__", "__dict__"})
_REFERENCES = frozenset({"str", "int", "bytes", "uuid.UUID"})
_TEXT = frozenset({str})
_FEW = 16  # keys of a dict, a message for example
_SHORT = 200  # characters in all of them
_KNOWN = 1000  # sets of keys
_TOO_OFTEN = 100_000  # visits of objects on cycles: some seconds


def digest(value: object, numbering: Numbering | None = None) -> str:
    """Digest ``value`` to 32 hexadecimal digits (128 bits of a SHA-256).

    Args:
        numbering: see :func:`encode`.

    Raises:
        DigestError: part of it cannot be part of an identity; says which part.
    """
    return hashlib.sha256(encode(value, numbering)).hexdigest()[:32]


def combine(*parts: bytes | str) -> str:
    """Digest several strings so that their boundaries count."""
    return combined([framed(part) for part in parts])


def combined(parts: Iterable[bytes]) -> str:
    """:func:`combine` parts that are :func:`framed`."""
    return hashlib.sha256(fold(b"+" + b"".join(parts))).hexdigest()[:32]


def encode(
    value: object, numbering: Numbering | None = None, by: type[Encoder] | None = None
) -> bytes:
    """Return the canonical bytes of ``value``, at most 64; :func:`digest` is their hash.

    Args:
        numbering: of the references in what makes one identity; what frameworks make up anew at
            every start does not count then.  Without one, all of the value counts.
        by: the kind of encoder.

    Raises:
        DigestError: see :func:`digest`.
    """
    try:
        simple = ATOMS.get(type(value))
        return simple(value) if simple is not None else (by or Encoder)(numbering).encode(value)
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


class Encoder:
    """One encoding.

    ``active`` holds the objects that are being encoded, each with its level, to see cycles; ``met``
    holds those that were, with their encoding if no cycle runs through them: an object that many
    refer to is taken apart once.
    """

    cycles = again = 0
    atoms: ClassVar = ATOMS
    list_tag = b"l"
    long = LONG
    grows = True  # long lists are remembered: they will be digested again

    def __init__(self, numbering: Numbering | None = None) -> None:
        self.numbering = numbering
        self.active: dict[int, int] = {}
        self.met: dict[int, tuple[Any, bytes | None]] = {}

    def encode(self, value: Any) -> bytes:
        cls: Any = type(value)
        form = _CONTAINERS.get(cls)
        if form is None:
            simple = ATOMS.get(cls) or atom(cls)
            if simple is not None:
                return simple(value)
        here, level = id(value), len(self.active)
        if here in self.active:  # a cycle is encoded as the number of levels it leads up
            self.cycles += 1
            return b"^%d" % (level - self.active[here])
        self.active[here] = level
        try:
            return form(self, value) if form is not None else self.object(value)
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
            encoded = form_of(cls)(self, value)
        except (UndigestibleError, RecursionError, MemoryError):
            raise
        except Exception as error:  # its own methods are asked
            raise UndigestibleError(
                f"{noun(value)} cannot be part of an identity ({_text(error)})",
                class_name(type(value)),
            ) from None
        self.met[id(value)] = value, encoded if self.cycles == cycles else None
        return encoded

    # -- containers ------------------------------------------------------------------------------

    def items(self, values: Iterable[Any], label: str = "[{}]") -> list[bytes]:
        encoded: list[bytes] = []
        atoms, encode = self.atoms, self.encode
        try:
            for item in values:
                encoded.append(atoms.get(type(item), encode)(item))  # noqa: PERF401 (the path)
        except UndigestibleError as error:
            error.path.append(label.format(len(encoded)))
            raise
        return encoded

    def list_(self, value: Iterable[Any]) -> bytes:
        if type(value) is list and len(value) >= SHORT:
            return self.long_list(value) if len(value) >= self.long else self.short_list(value)
        return join(b"l", self.items(value))

    def short_list(self, value: list[Any]) -> bytes:
        """Encode a list that continues the numbering around it.

        It is known from earlier calls only if nothing was numbered before it.
        """
        outer = self.numbering
        first = self.grows and not outer
        grown = self.grown(value, short=True) if first else None
        if grown is not None:
            if outer is not None and grown[1]:
                outer.take(grown[1])
            return b"#" + grown[0]
        items = self.items(value)
        if first and not (outer is not None and outer.lists):  # long ones are known by themselves
            note(value, self.kind(), items)
        return join(b"l", items)

    def long_list(self, value: list[Any]) -> bytes:  # it is folded
        outer = self.numbering
        grown = self.grown(value) if self.grows else None
        if grown is None:
            inner = Numbering() if outer is not None else None
            content = self.list_tag + self.joined(value, inner)
            grown = hashlib.sha256(content).digest(), inner
        encoded, numbering = b"#" + grown[0], grown[1]
        links = outer.attach(numbering) if outer is not None and numbering is not None else b""
        return join(b"&", [encoded, fold(links)]) if links else encoded

    def grown(
        self, value: list[Any], *, short: bool = False
    ) -> tuple[bytes, Numbering | None] | None:
        """Digest a list of which the items before are known."""
        kind, numbered = self.kind(), self.numbering is not None
        front, encode, around = self.list_tag, self.joined, self.active
        return digest_grown(value, front, encode, around, kind=kind, numbered=numbered, short=short)

    def kind(self) -> tuple[Any, ...]:
        """Return what the encoding of a list depends on, beside its items."""
        fields = settings.fields() if self.numbering is not None else None
        return self.list_tag, fields, main_name.get()

    def joined(self, values: Iterable[Any], numbering: Numbering | None) -> bytes:
        return lengthened(self.numbered(numbering, self.items, values))

    def numbered(
        self, numbering: Numbering | None, encode: Callable[..., T], value: Any, *more: Any
    ) -> T:
        """Encode with another numbering; values already met have another encoding then."""
        before = self.numbering, self.met
        self.numbering, self.met = numbering, {} if numbering is not self.numbering else self.met
        try:
            return encode(value, *more)
        finally:
            self.numbering, self.met = before

    def tuple_(self, value: Iterable[Any]) -> bytes:
        return join(b"t", self.items(value))

    def set_(self, value: Iterable[Any]) -> bytes:
        # In no order, so its references have none.
        return join(b"{", sorted(self.numbered(None, self.items, value, "{{...}}")))

    def pairs(self, value: dict[Any, Any], label: str = "[{}]") -> list[tuple[bytes, bytes]]:
        pairs, later = [], []
        atoms = self.atoms
        key: Any = None
        try:
            for key, item in value.items():
                form = atoms.get(type(key))
                if form is not None:
                    name = form(key)
                elif type(key) is str:  # refers to nothing
                    name = self.encode(key)
                else:
                    name = self.numbered(None, self.encode, key)
                form = atoms.get(type(item))
                if form is not None:
                    pairs.append((name, form(item)))
                elif type(item) is str:
                    pairs.append((name, self.encode(item)))
                else:
                    later.append((name, key, item))
            later.sort(key=_first)  # else the order of the dict would number the references
            for name, key, item in later:  # noqa: B007 (the path)
                pairs.append((name, self.encode(item)))
        except UndigestibleError as error:
            error.path.append(label.format(_short(key) if label == "[{}]" else key))
            raise
        return pairs

    def dict_(self, value: dict[Any, Any], label: str = "[{}]") -> bytes:
        if type(value) is dict and len(value) <= _FEW:
            held = value.copy()  # another thread may change it
            names = in_order(held)
            if names is not None:
                return self.named(b"d", held, names, label)
        return join(b"d", [part for pair in sorted(self.pairs(value, label)) for part in pair])

    def named(
        self,
        tag: bytes,
        value: dict[str, Any],
        names: Iterable[tuple[str, bytes]],
        label: str,
    ) -> bytes:
        """Encode the values under texts, of which order and encodings are known."""
        parts = [tag]
        atoms = self.atoms
        name = ""
        try:
            for name, framed_name in names:
                item = value[name]
                form = atoms.get(type(item))
                encoded = form(item) if form is not None else self.encode(item)
                parts += framed_name, LENGTH[len(encoded)], encoded
        except UndigestibleError as error:
            error.path.append(label.format(_short(name) if label == "[{}]" else name))
            raise
        return fold(b"".join(parts))

    def ordered_dict(self, value: dict[Any, Any]) -> bytes:
        # Two OrderedDicts are equal only in the same order.
        found = dict(self.pairs(value))
        ordered = [self.numbered(None, self.encode, key) for key in value]
        return join(b"D", [part for name in ordered for part in (name, found[name])])

    def counter(self, value: collections.Counter[Any]) -> bytes:
        # A count of zero is equal to no count.
        return join(b"C", [self.dict_({key: count for key, count in value.items() if count != 0})])

    def defaultdict(self, value: dict[Any, Any]) -> bytes:
        return self.dict_(value)  # the factory is not part of ``==``

    def deque(self, value: Iterable[Any]) -> bytes:
        return join(b"Q", self.items(value))  # nor is maxlen

    # -- objects ---------------------------------------------------------------------------------

    def rules(self, value: Any) -> dict[str, Rule] | None:
        """Return how those fields count that do not count unchanged."""
        return rules_of(type(value)) if self.numbering is not None else None

    def fields(self, value: Any, names: Iterable[str]) -> list[bytes]:
        """Names and values of attributes."""
        parts: list[bytes] = []
        rules, atoms = self.rules(value), self.atoms
        for name in names:
            try:
                held = getattr(value, name, None)
                rule = rules.get(name) if rules is not None else None
                if rule is None:
                    form = atoms.get(type(held), self.encode)
                    parts += name_of(name), form(held)
                elif rule != "volatile":
                    parts += name_of(name), self.ruled(held, rule)
            except UndigestibleError as error:
                error.path.append(f".{name}")
                raise
        return parts

    def ruled(self, value: Any, rule: Rule) -> bytes:
        """A value of which some parts do not count, or by the order of their appearance."""
        if isinstance(rule, str):
            refers = rule == "reference" and class_name(type(value)) in _REFERENCES
            numbering = self.numbering if refers else None
            return numbering.of(value) if numbering is not None else self.encode(value)
        if type(value) is list and EACH in rule:
            return join(b"l", [self.ruled(each, rule[EACH]) for each in value])
        if type(value) is not dict:
            return self.encode(value)
        kept = {key: item for key, item in value.items() if rule.get(key) != "volatile"}
        apart = {key: kept.pop(key) for key in sorted(rule) if key in kept}
        pairs = [(string(key), self.ruled(item, rule[key])) for key, item in apart.items()]
        return join(b"d", [part for pair in sorted([*pairs, *self.pairs(kept)]) for part in pair])

    def subclass(self, value: Any) -> bytes:
        """Encode an instance of a subclass of a builtin container, with its own state."""
        form = next(form for base, form in _SUBCLASSED if isinstance(value, base))
        state = _reduce(value)[2]
        return join(
            b"S", [string(class_name(type(value))), form(self, value), self.state(value, state)]
        )

    def reduced(self, value: Any) -> bytes:
        """Class and state of an ordinary object, as pickle protocol 2 would take it apart."""
        form = _reduce(value)
        if isinstance(form, str):
            return _named(value, form)
        cls = type(value)
        make, args, state, items, pairs = form
        if isinstance(value, (io.StringIO, io.BytesIO)) and not state[-1]:
            state = (*state[:-1], None)  # of attributes: {} once one was looked up
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
        state = {k: v for k, v in state.items() if k not in _NOT_STATE}
        rules = self.rules(value)
        return self.dict_(state, ".{}") if rules is None else self.ruled(state, rules)


_in_order: dict[tuple[str, ...], list[tuple[str, bytes]]] = {}


def in_order(value: dict[Any, Any]) -> list[tuple[str, bytes]] | None:
    """Return the keys of a dict in the order of their encodings, with these.

    Messages have few different sets of keys.  ``None`` for others: keys that are no texts, long
    ones, and those that an encoder may take for a time or an id (see ``moments``).
    """
    if not _TEXT.issuperset(map(type, value)):
        return None
    names = tuple(value)
    found = _in_order.get(names)
    if found is None:
        if sum(map(len, names)) > _SHORT or any(map(has_volatile_form, names)):
            return None
        ordered = sorted([(string(name), name) for name in names])
        if len(_in_order) >= _KNOWN:
            _in_order.clear()
        found = _in_order[names] = [(name, framed(encoded)) for encoded, name in ordered]
    return found


def _first(item: tuple[Any, ...]) -> Any:
    return item[0]


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


# -- the kinds of the interpreter ----------------------------------------------------------------


def _enum(encoder: Any, value: enum.Enum) -> bytes:
    cls = type(value)
    if value.name in cls.__members__:
        return join(b"e", [string(class_name(cls)), string(value.name)])
    return join(b"E", [string(class_name(cls)), encoder.encode(value.value)])  # READ | WRITE


def _namedtuple(encoder: Any, value: Any) -> bytes:
    name = string(class_name(type(value)))
    if encoder.rules(value) is not None:
        return join(b"o", [name, *encoder.fields(value, value._fields)])
    return join(b"o", [name, *encoder.items(value)])


def _function(_: Any, value: Any) -> bytes:
    return _named(value, value.__qualname__)


def _named(value: Any, name: str) -> bytes:
    """Encode a value by its own name, if that name leads back to it."""
    from stepwise._values.digest_types import leads_to

    # Functions know their module; singletons live beside their class.
    for module in (getattr(value, "__module__", None) or "builtins", type(value).__module__):
        if leads_to(module, name, value):
            return fold(f"c{name if module == 'builtins' else f'{called(module)}.{name}'}".encode())
    raise UndigestibleError(
        f"no importable name leads to {noun(value)} named {name!r}, so that two of them "
        "cannot be told apart",
        class_name(type(value)),
    )


def _method(encoder: Any, value: types.MethodType) -> bytes:
    name = value.__name__
    if getattr(value.__self__, name, None) == value:
        return join(b"M", [string(name), encoder.encode(value.__self__)])
    return join(b"m", encoder.items((value.__func__, value.__self__)))  # of a parent class


def _partial(encoder: Any, value: functools.partial[Any]) -> bytes:
    return join(b"P", encoder.fields(value, ("func", "args", "keywords")))


def _pattern(encoder: Any, value: re.Pattern[Any]) -> bytes:
    return join(b"R", encoder.items((value.flags, value.pattern)))


def _slice(encoder: Any, value: slice) -> bytes:
    return join(b":", encoder.fields(value, ("start", "stop", "step")))


def _memory(encoder: Any, value: memoryview) -> bytes:
    content = hashlib.sha256(value if value.contiguous else value.tobytes()).digest()
    return join(b"v", [*encoder.items((value.format, value.shape)), content])


def _path(_: Any, value: PurePath) -> bytes:
    windows = isinstance(value, sys.modules["pathlib"].PureWindowsPath)
    return (
        join(b"\\", [string(str(value).lower())]) if windows else join(b"/", [string(str(value))])
    )


def _module(_: Any, value: types.ModuleType) -> bytes:
    return fold(b"L" + value.__name__.encode())


_BASES: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, _enum),
    (types.ModuleType, _module),
    (re.Pattern, _pattern),
    (slice, _slice),
    (memoryview, _memory),
    (functools.partial, _partial),
    (types.MethodType, _method),
    ((types.FunctionType, types.BuiltinFunctionType), _function),
)
"""Classes, and how the values of these and of their subclasses are encoded."""

_CONTAINERS: dict[type, Form] = {
    list: Encoder.list_,
    tuple: Encoder.tuple_,
    dict: Encoder.dict_,
    set: Encoder.set_,
    frozenset: Encoder.set_,
    collections.OrderedDict: Encoder.ordered_dict,
    collections.defaultdict: Encoder.defaultdict,
    collections.Counter: Encoder.counter,
    collections.deque: Encoder.deque,
}

_SUBCLASSED: tuple[tuple[type, Form], ...] = (
    (collections.OrderedDict, Encoder.ordered_dict),
    (collections.defaultdict, Encoder.defaultdict),
    (collections.Counter, Encoder.counter),
    (collections.deque, Encoder.deque),
    (set, Encoder.set_),
    (frozenset, Encoder.set_),
)


@functools.lru_cache(maxsize=1000)
def form_of(cls: type) -> Form:
    """Return how to encode the values of a class that is neither an atom nor a container."""
    base: Any
    form: Form
    for base, form in _BASES:
        if issubclass(cls, base):
            return form
    pathlib = sys.modules.get("pathlib")  # it is not loaded for programs without paths
    if issubclass(cls, getattr(pathlib, "PurePath", ())):
        return _path
    from stepwise._values.digest_types import form_for  # on use: plain data needs none of these

    known = form_for(cls)
    if known is not None:
        return known
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _namedtuple
    if issubclass(cls, tuple(base for base, _ in _SUBCLASSED)):
        return Encoder.subclass
    return Encoder.reduced
