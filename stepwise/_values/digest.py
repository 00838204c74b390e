"""The canonical digest of a value: equal values of one type give equal digests, everywhere.

A digest is the same across processes, hash seeds, dict orders, string interning, machines and
versions of Python.  The bytes of a pickle depend on object identity and on set order, so a value is
*encoded* instead:

- an atom is a tag and its bytes;
- a container is a tag and its children;
- dicts and sets are ordered by the encodings of their keys;
- an object is its class, by name, and its state: for dataclasses, attrs, pydantic and msgspec
  classes the fields that ``==`` compares, else the state that ``copyreg`` would pickle;
- every encoding is *folded* to at most 64 bytes (a longer one is replaced by its SHA-256), so that
  a large value costs no large intermediate copy.

A value without such a form (a lock, a client, a lambda) raises
:class:`~stepwise.errors.DigestError` with the path to the value.  A library is imported only for
values of its classes.

Message classes have fields with new contents at every start.  A *volatile* field (a time, the
usage) does not distinguish calls.  A *reference* is an id that other fields may name.  A reference
counts by the order of first appearance in the call, so that a tool's result still belongs to the
right call.  The message classes are known by package and name, with their subclasses; a plain dict
has no such fields.  Checked with pydantic-ai 2.68, langchain-core 1.7, openai 3.54, openai-agents
0.24, anthropic 2.12; a listed field that another version lacks has no effect.

A list of messages is an argument of every step of an agent.  The digest of a list is a SHA-256 over
the encodings of its items, so the digest of a list that grew continues from the digest before.  A
watch proves that no earlier item was changed (see ``trees``).  The digest is the same as without
this shortcut.

A class that can be found by its name is identified by the name alone.  A class that a function or
``type()`` made is identified by its contents as well.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import datetime as dt
import dis
import enum
import functools
import hashlib
import io
import math
import os
import re
import struct
import sys
import threading
import types
import typing
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._values.preview import error_text, short_repr
from stepwise._values.trees import HEAP_TYPE, Watch, by_name, found_at, starts_with, walk
from stepwise.errors import DigestError

if TYPE_CHECKING:
    import decimal
    from pathlib import PurePath


# -- digest atoms ---------------------------------------------------------------------------------


FOLD = 64
"""The largest number of bytes in a folded encoding; longer encodings are hashed."""
LENGTH = [bytes((length,)) for length in range(FOLD + 1)]
"""The byte that precedes an encoding, by the length of the encoding."""


class UndigestibleError(Exception):
    """A value without a digest; each container on the way out adds its piece of the path."""

    def __init__(self, reason: str, type_name: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name
        self.path: list[str] = []


def fold(encoded: bytes) -> bytes:
    """Return the encoding itself, or its hash if it is long."""
    return encoded if len(encoded) <= FOLD else b"#" + hashlib.sha256(encoded).digest()


def join(tag: bytes, children: Iterable[bytes]) -> bytes:
    """Join folded encodings, each behind a byte with its length, so that boundaries count."""
    return fold(tag + lengthened(children))


def lengthened(children: Iterable[bytes]) -> bytes:
    """Return the encodings one after the other, each behind a byte with its length."""
    return b"".join([LENGTH[len(child)] + child for child in children])


def framed(part: bytes | str) -> bytes:
    """Return a folded part behind its length, to be digested with other parts."""
    folded = fold(part.encode() if isinstance(part, str) else part)
    return LENGTH[len(folded)] + folded


def module_key(module: str | None) -> str:
    """Return the name of a module, the same whether its file is run, run by ``-m`` or imported."""
    if module not in ("__main__", "__mp_main__"):
        return module or ""
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        name: str = spec.name.removesuffix(".__main__")
        return name
    path = getattr(main, "__file__", None)
    return dotted(path) if path else ""


@functools.lru_cache(maxsize=16)
def dotted(path: str) -> str:
    """Return the dotted name by which a file is imported, with its packages."""
    folder, name = os.path.split(os.path.realpath(path))
    packages = []
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        packages.append(package)
    return ".".join([*reversed(packages), os.path.splitext(name)[0]])


def called(module: str) -> str:
    """Return the name of a module for use in the names of its definitions."""
    return module_key(module) or module


def class_name(cls: Any) -> str:
    """Return ``module.qualname`` of a class or function, or the name alone for builtins."""
    module = getattr(cls, "__module__", None)
    name = getattr(cls, "__qualname__", None) or repr(cls)
    return name if module in (None, "builtins") else f"{called(module)}.{name}"


def noun(value: object) -> str:
    """Return the class name of a value with an article, for messages: ``a lock``, ``an Agent``."""
    name = class_name(type(value))
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


@functools.lru_cache(maxsize=1000)
def name_of(name: str) -> bytes:
    """Encode the name of a field or a class; cached, since there are few names."""
    return string(name)


# -- single values -------------------------------------------------------------------------------


_NAN = b"f" + struct.pack(">d", math.nan)


def _float(value: float) -> bytes:
    # -0.0 == 0.0; a NaN is a NaN
    return b"f" + struct.pack(">d", value + 0.0) if value == value else _NAN  # noqa: PLR0124


def string(value: str) -> bytes:
    return _tagged(b"s", value.encode("utf-8", "surrogatepass"))


def _tagged(tag: bytes, value: bytes | bytearray) -> bytes:
    if len(value) < 64:
        return tag + value
    hashed = hashlib.sha256(tag)
    hashed.update(value)
    return b"#" + hashed.digest()


def _decimal(value: decimal.Decimal) -> bytes:
    if not value.is_finite():
        return fold(b"m" + str(value).encode())
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    assert isinstance(exponent, int)
    if not stripped:
        return b"m0"
    return fold(b"m%d:%s:%d" % (sign, stripped.encode(), exponent + len(text) - len(stripped)))


def _datetime(value: dt.datetime) -> bytes:
    if value.utcoffset() is not None:  # aware datetimes are equal when their instants are
        with contextlib.suppress(OverflowError):  # within a day of year 1 or 9999
            value = value.astimezone(dt.timezone.utc)
    return b"w" + value.isoformat().encode()


def _time(value: dt.time) -> bytes:
    offset = value.utcoffset()
    if offset is None:
        return b"h" + value.isoformat().encode()
    clock = dt.timedelta(
        hours=value.hour,
        minutes=value.minute,
        seconds=value.second,
        microseconds=value.microsecond,
    )
    return b"z" + repr(clock - offset).encode()


def _range(value: range) -> bytes:
    # Not its len(), which has a limit.
    items = (value[-1] - value.start) // value.step + 1 if value else 0
    content = (items, value.start if value else 0, value.step if items > 1 else 0)
    return fold(b"r%d:%d:%d" % content)


def _zone(value: Any) -> bytes:
    if value.key is None:
        raise UndigestibleError("a ZoneInfo made from a file has no name", "zoneinfo.ZoneInfo")
    return fold(b"Z" + value.key.encode())


ATOMS: dict[type, Callable[[Any], bytes]] = {
    str: string,
    int: lambda value: fold(b"i%x" % value),  # hexadecimal: no limit on the number of digits
    float: _float,
    bool: lambda value: b"T" if value else b"!",
    type(None): lambda _: b"N",
    bytes: lambda value: _tagged(b"b", value),
    bytearray: lambda value: _tagged(b"B", value),
    complex: lambda value: b"x" + _float(value.real) + _float(value.imag),
    type(Ellipsis): lambda _: b".",
    type(NotImplemented): lambda _: b"~",
    dt.datetime: _datetime,
    dt.date: lambda value: b"y" + value.isoformat().encode(),
    dt.time: _time,
    dt.timedelta: lambda value: b"q%d:%d:%d" % (value.days, value.seconds, value.microseconds),
    dt.timezone: lambda value: b"k" + repr(value.utcoffset(None)).encode(),
    range: _range,
}
"""The encoding functions by the exact type of the value."""

COMMON = {cls: ATOMS[cls] for cls in (str, int, float, bool, type(None), bytes)}
"""The encoding functions of the most common types; none of these functions can fail."""

_SELDOM: dict[tuple[str, str], Callable[[Any], bytes]] = {
    ("decimal", "Decimal"): _decimal,
    ("fractions", "Fraction"): lambda n: fold(b"g%x/%x" % (n.denominator, n.numerator)),
    ("uuid", "UUID"): lambda value: b"u" + value.bytes,
    ("zoneinfo", "ZoneInfo"): _zone,
}


@functools.lru_cache(maxsize=1000)
def atom(cls: type) -> Callable[[Any], bytes] | None:
    """Return the function that encodes atoms of a type; ``None`` if they are not atoms.

    Classes whose modules take long to import are known by name, and join ``ATOMS`` when met.
    """
    found = ATOMS.get(cls)
    if found is None:
        seldom = _SELDOM.get((cls.__module__, cls.__qualname__))
        if seldom is not None and getattr(sys.modules[cls.__module__], cls.__name__, None) is cls:
            found = ATOMS[cls] = seldom
    return found


# -- message fields -------------------------------------------------------------------------------


EACH = "[]"


FieldKind = Literal["volatile", "reference", "plain"]
"""The way in which a field counts: not at all, by the order of first appearance, or as is."""

Rule = Union[FieldKind, "dict[str, Rule]"]
"""The way in which a value counts, or its parts, by field or key; ``[]`` is for each item."""


class _FieldPaths(NamedTuple):
    volatile: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()


def _of(volatile: str = "", references: str = "", plain: str = "") -> _FieldPaths:
    return _FieldPaths((*volatile.split(),), (*references.split(),), (*plain.split(),))


_TIME, _ID, _CALL = _of("timestamp"), _of("", "id"), _of("", "tool_call_id id")
_TIME_AND_CALL, _RUN = _of("timestamp", "tool_call_id"), "run_id conversation_id"

_KNOWN: dict[str, dict[str, _FieldPaths]] = {
    "pydantic_ai": {
        "SystemPromptPart": _TIME,
        "UserPromptPart": _TIME,
        "RetryFeedbackPart": _TIME,
        "BaseToolReturnPart": _TIME_AND_CALL,
        "ToolReturnPart": _TIME_AND_CALL,
        "BuiltinToolReturnPart": _TIME_AND_CALL,
        "RetryPromptPart": _TIME_AND_CALL,
        "BaseToolCallPart": _CALL,
        "ToolCallPart": _CALL,
        "BuiltinToolCallPart": _CALL,
        "ToolAvailabilityDeltaPart": _CALL,
        "CapabilityLoadDeltaPart": _CALL,
        "TextPart": _ID,
        "ThinkingPart": _ID,
        "FilePart": _ID,
        "CompactionPart": _ID,
        "SpeechPart": _ID,
        "ModelRequest": _of("timestamp", _RUN),
        "ModelResponse": _of(
            "timestamp usage provider_details vendor_details history_digest failed_attempts",
            f"provider_response_id vendor_id {_RUN}",
        ),
    },
    "langchain_core": {
        "BaseMessage": _of("response_metadata", "id"),
        "AIMessage": _of(
            "usage_metadata",
            "tool_calls[].id invalid_tool_calls[].id content[].id "
            "additional_kwargs.tool_calls[].id",
        ),
        "AIMessageChunk": _of("", "tool_call_chunks[].id"),
        "ToolMessage": _of("", "tool_call_id"),
        "RemoveMessage": _of("", "", "id"),  # the message that it removes
        "ChatResult": _of("llm_output"),
        "ChatGeneration": _of("generation_info"),
        "LLMResult": _of("llm_output run"),
    },
    "openai": {
        "ChatCompletion": _of("created usage system_fingerprint service_tier", "id"),
        "ChatCompletionChunk": _of("created usage system_fingerprint service_tier", "id"),
        "ChatCompletionMessageToolCall": _ID,
        "ChatCompletionMessageFunctionToolCall": _ID,
        "ChatCompletionMessageCustomToolCall": _ID,
        "Response": _of("created_at completed_at usage", "id previous_response_id"),
        "ResponseOutputMessage": _ID,
        "ResponseReasoningItem": _ID,
        "ResponseFunctionToolCall": _of("", "id call_id"),
        "ResponseFunctionToolCallOutputItem": _of("", "id call_id"),
        "ResponseCustomToolCall": _of("", "id call_id"),
    },
    "agents": {
        "ModelResponse": _of("usage raw_usage request_id", "response_id"),
        "RunItemBase": _of("_agent_ref"),
        "HandoffOutputItem": _of("_source_agent_ref _target_agent_ref"),
    },
    "anthropic": {
        "Message": _of("usage", "id"),
        "ToolUseBlock": _ID,
        "ServerToolUseBlock": _ID,
        "WebSearchToolResultBlock": _of("", "tool_use_id"),
    },
}


def rules_of(cls: type) -> dict[str, Rule] | None:
    """Return the rules for the fields of a class that do not count as is, or ``None``."""
    return _rules(cls, settings.fields())


@functools.lru_cache(maxsize=1000)
def _rules(cls: type, given: settings.Fields) -> dict[str, Rule] | None:
    rules: dict[str, Rule] = {}
    for base in reversed(cls.__mro__):
        of_package = _KNOWN.get(base.__module__.partition(".")[0], {})
        known = of_package.get(base.__qualname__, _FieldPaths())
        name = f"{base.__module__}.{base.__qualname__}"
        fields = known._replace(
            volatile=given.volatile.get(name, known.volatile),
            references=given.references.get(name, known.references),
        )
        for mark, paths in zip(get_args(FieldKind), fields, strict=True):
            for path in paths:
                _add(rules, path.replace(EACH, f".{EACH}").split("."), mark)
    return rules or None


def _add(rules: dict[str, Rule], path: Iterable[str], mark: FieldKind) -> None:
    *around, last = path
    for each in around:
        inner = rules.get(each)
        if not isinstance(inner, dict):
            inner = rules[each] = {}
        rules = inner
    rules[last] = mark


class Numbering:
    """The order in which references first appear in one digest.

    A long list numbers its references separately, so that its digest can continue from one call to
    the next.  *Links* record which of its references appeared before the list.
    """

    __slots__ = ("lists", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.lists: tuple[dict[Any, int], ...] = ()

    def of(self, reference: object) -> bytes:
        """Return the token that replaces a reference."""
        number = self.numbers.get(reference)
        if number is None:
            for place, table in enumerate(self.lists):
                if reference in table:
                    return b"&%d:%d" % (place, table[reference])
            number = self.numbers[reference] = len(self.numbers)
        return b"&%d" % number

    def attach(self, inner: Numbering) -> bytes:
        """Add the numbering of a long list; return the links to references that appeared before.

        The result is empty if there are no links.
        """
        links: list[tuple[int, int, int, int]] = []
        if not inner.numbers and not inner.lists:  # the usual case
            self.lists += (inner.numbers,)
            return b""
        for table in (inner.numbers, *inner.lists):
            for place, known in enumerate((self.numbers, *self.lists)):
                links += [
                    (place, known[each], len(self.lists), table[each])
                    for each in known.keys() & table.keys()
                ]
            self.lists += (table,)
        return b"".join(b"&%d:%d=%d:%d" % link for link in sorted(links))


# -- list digest ----------------------------------------------------------------------------------


LONG = 16
"""Items: a list of at least this length numbers its own references, and is encoded as a hash."""

_MOST = 16  # lists

Encode = Callable[[list[Any], Union[Numbering, None]], bytes]

_lock = threading.Lock()
_grown: dict[tuple[int, object], _Grown] = {}


class _Grown:
    """The digested part of a list: its items, their contents, and the hash over them."""

    __slots__ = ("classes", "hash", "items", "state", "value", "watch")

    def __init__(self, value: list[Any], front: bytes, state: Numbering | None) -> None:
        self.value = value
        self.state = state
        self.items: list[Any] = []
        self.watch = Watch()
        self.classes: set[type] = set()
        self.hash = hashlib.sha256(front)

    def stands(self) -> bool:
        """Return whether the list still begins with the digested items, and these are unchanged."""
        return starts_with(self.value, self.items) and self.watch.holds()

    def take(self, new: list[Any], encode: Encode, around: Container[int]) -> bool:
        """Digest new items; return False if they cannot be watched."""
        tree = walk(new, refused=around)
        if tree is None:
            return False
        watch = Watch(tree.nodes[1:])
        classes = set(tree.classes) - self.classes
        if classes:  # an instance's encoding also depends on its class
            watch.extend(Watch.of_classes(classes))
        encoded = encode(new, self.state)
        self.watch.extend(watch)
        self.classes |= classes
        self.hash.update(encoded)
        self.items += new
        return True


def digest_grown(
    value: list[Any],
    front: bytes,
    encode: Encode,
    around: Container[int],
    *,
    kind: object,
    numbered: bool,
) -> tuple[bytes, Numbering | None] | None:
    """Digest a list with SHA-256 over ``front`` and its encoded items, from its last state on.

    Args:
        encode: encodes several items and joins the encodings; receives the numbering of the
            references before the items.
        around: ids of the list and of the objects that hold the list.
        kind: the kind of encoding; digests of another kind are not continued.
        numbered: whether references are numbered.

    Returns:
        the digest and the numbering; ``None`` if the items are not a tree or cannot be encoded, or
        if another thread is digesting a list.
    """
    if not _lock.acquire(blocking=False):
        return None
    try:
        key = id(value), kind
        grown = _grown.pop(key, None)  # an interrupted digest is not kept
        if grown is None or not grown.stands():
            grown = _Grown(value, front, Numbering() if numbered else None)
        new = value[len(grown.items) :]
        if new and not grown.take(new, encode, around):
            return None
        _grown[key] = grown
        for oldest in [*_grown][:-_MOST]:
            _grown.pop(oldest, None)  # another thread may have removed it
        return grown.hash.digest(), grown.state
    except UndigestibleError:
        return None  # encoding the whole list reports the path
    finally:
        _lock.release()


def held(value: list[Any]) -> int:
    """Return how many references to a list this module holds."""
    return sum(each.value is value for each in [*_grown.values()])


def forget() -> None:
    """Release the remembered lists."""
    _grown.clear()


# -- digest types ---------------------------------------------------------------------------------


Form = Callable[[Any, Any], bytes]
"""A function that encodes a value; receives an encoder and the value."""


@contextlib.contextmanager
def _at(piece: str) -> Iterator[None]:
    try:
        yield
    except UndigestibleError as error:
        error.path.append(piece)
        raise


def leads_to(module: str | None, name: str, value: object) -> bool:
    """Return whether a dotted name leads to this very object, or to a decorated form of it."""
    found: Any = found_at(module or "builtins", name)
    for _ in range(20):  # decorators around it
        # Each access to a method of a builtin class makes a new object.
        if found is value or (type(found) is types.BuiltinMethodType and found == value):
            return True
        found = getattr(found, "__wrapped__", None)
    return False


# -- which kind ----------------------------------------------------------------------------------


def form_for(cls: type) -> Form | None:
    """Return the form for values of a class that this module knows, or ``None``."""
    if issubclass(cls, type):
        return _class
    for module, names, form in _OF_LIBRARIES:
        library = sys.modules.get(module)
        known = tuple(getattr(library, name) for name in names if hasattr(library, name))
        if issubclass(cls, known):
            return form
    for attribute, form in _MARKED:
        if hasattr(cls, attribute):
            return form
    if cls.__module__ == "typing" or issubclass(cls, (types.GenericAlias, types.UnionType)):
        return _annotation
    return None


# -- data classes of several makers --------------------------------------------------------------


def _object(value: Any, parts: Iterable[bytes]) -> bytes:
    return join(b"o", [name_of(class_name(type(value))), *parts])


def _dataclass(encoder: Any, value: Any) -> bytes:
    from dataclasses import fields  # on use: it costs a fiftieth of a start

    if not encoder.compares:
        return encoder.reduced(value)  # type: ignore[no-any-return]
    # Not cached: a class may get other fields, and classes may be equal to each other.
    compared = tuple([f.name for f in fields(value) if f.compare])
    return _object(value, encoder.fields(value, compared))


def _attrs(encoder: Any, value: Any) -> bytes:
    if not encoder.compares:
        return encoder.reduced(value)  # type: ignore[no-any-return]
    compared = [a for a in value.__attrs_attrs__ if a.eq]
    parts = encoder.fields(value, [a.name for a in compared if a.eq_key is None])
    for field in compared:
        if field.eq_key is not None:  # attrs.field(eq=str.lower)
            with _at(f".{field.name}"):
                parts.append(encoder.encode(field.eq_key(getattr(value, field.name))))
    return _object(value, parts)


def _pydantic(encoder: Any, value: Any) -> bytes:
    # Not by __dict__, which also holds cached properties; these are not compared.
    cls: Any = type(value)
    names = tuple(sorted(cls.model_fields))
    for extra in ("__pydantic_extra__", "__pydantic_private__"):
        more = getattr(value, extra, None)
        if more:
            names = tuple(sorted({*names, *more}))
    if not encoder.compares:
        names = tuple(sorted({*names, *vars(value), "model_fields_set"}))
    return _object(value, encoder.fields(value, names))


# -- classes and annotations ---------------------------------------------------------------------


def _class(encoder: Any, value: Any) -> bytes:
    """Encode a class by its name if it can be found by its name, else by its fields.

    The fields are for output types of agents, which may be made on the fly.
    """
    name = class_name(value)
    if not value.__flags__ & HEAP_TYPE or leads_to(value.__module__, value.__qualname__, value):
        return fold(b"c" + name.encode())
    described = description(value)
    if described is None:
        raise UndigestibleError(
            f"no importable name leads to the class {value.__qualname__!r}, so that two of that "
            "name cannot be told apart",
            class_name(type(value)),
        )
    return join(b"k", [string(name), encoder.encode(described)])


def description(cls: Any) -> list[Any] | None:
    """Return the fields or members of a class that describes data; ``None`` for other classes."""
    if issubclass(cls, enum.Enum):
        return [(name, member.value) for name, member in cls.__members__.items()]
    if hasattr(cls, "__dataclass_fields__"):
        from dataclasses import fields  # on use, as above

        return [(f.name, f.type) for f in fields(cls)]
    if hasattr(cls, "__pydantic_validator__"):
        return [
            (name, f.annotation, None if f.is_required() else f.default, f.description, f.metadata)
            for name, f in cls.model_fields.items()
        ]
    if hasattr(cls, "__attrs_attrs__"):
        return [(a.name, a.type) for a in cls.__attrs_attrs__]
    if typing.is_typeddict(cls) or hasattr(cls, "_fields"):
        annotations = typing.get_type_hints(cls, include_extras=True)
        return [(name, annotations.get(name)) for name in getattr(cls, "_fields", annotations)]
    return None


def _annotation(encoder: Any, value: Any) -> bytes:
    """Encode an annotation (``list[int]``, ``str | None``), the same on every Python version."""
    origin = typing.get_origin(value)
    if origin is None:
        name = getattr(value, "__forward_arg__", None)
        if name is not None:
            return join(b"y", [b"forward", string(name)])
        name = getattr(value, "__name__", None) or value._name
        if not leads_to(value.__module__, name, value):
            raise UndigestibleError(
                f"no importable name leads to {noun(value)} named {name!r}", class_name(type(value))
            )
        return fold(f"c{called(value.__module__)}.{name}".encode())
    parts = encoder.items(typing.get_args(value))
    if origin in (typing.Union, types.UnionType):
        return join(b"y", [b"union", *sorted(parts)])
    if origin is typing.Literal:
        return join(b"y", [b"literal", *sorted(parts)])
    kind = b"plain" if isinstance(value, types.GenericAlias) else b"typing"
    return join(b"y", [kind, encoder.encode(origin), *parts])


# -- numpy ---------------------------------------------------------------------------------------


def _array(encoder: Any, value: Any) -> bytes:
    """Encode a numpy array or scalar."""
    import numpy as np

    if not (type(value) is np.ndarray or isinstance(value, (np.generic, np.memmap))):
        raise UndigestibleError(
            f"{noun(value)} is a special kind of array; convert it with numpy.asarray first",
            class_name(type(value)),
        )
    return join(b"n" if isinstance(value, np.generic) else b"a", _elements(encoder, value))


def _elements(encoder: Any, value: Any) -> list[bytes]:
    """Return the element type, the shape, and the elements in C order, little-endian."""
    import numpy as np

    array = np.asarray(value)
    dtype = array.dtype
    shape = encoder.encode(array.shape)
    if dtype.names is not None:  # field by field: the padding between them does not count
        parts = [b"V", shape]
        for name in dtype.names:
            with _at(f"[{name!r}]"):
                parts += [string(name), join(b"a", _elements(encoder, array[name]))]
        return parts
    if dtype.hasobject or dtype.kind == "T":
        return [dtype.kind.encode(), shape, *_cells(encoder, array.ravel().tolist())]
    if dtype.char == "G":
        return [b"G", *_elements(encoder, array.real), *_elements(encoder, array.imag)]
    if dtype.char == "g":  # extended floats differ by machine, and their bytes hold padding
        texts = [np.format_float_scientific(each + 0) for each in array.ravel()]
        return [b"g", shape, *encoder.items(texts)]
    little = dtype.newbyteorder("<")
    name = little.str if encoder.compares else f"{dtype.str} {array.flags.fnc}"
    if dtype.type.__module__ != "numpy":  # bfloat16: one of several types of two bytes
        name += class_name(dtype.type)
    return [string(name), shape, _hash_of_elements(array, little, signed=not encoder.compares)]


def _cells(encoder: Any, cells: list[Any]) -> list[bytes]:
    """Encode cells; many texts together, in a fifth of the time that they take one by one."""
    kinds = set(map(type, cells))
    if str in kinds and kinds <= COMMON.keys() & encoder.atoms.keys():
        mixed = len(kinds) > 1
        texts = [e if type(e) is str else "" for e in cells] if mixed else cells
        joined = "\0".join(texts)
        if joined.count("\0") < len(cells):  # no text holds one
            others = {n: e for n, e in enumerate(cells if mixed else ()) if e is not texts[n]}
            hashed = hashlib.sha256(joined.encode("utf-8", "surrogatepass")).digest()
            return [b'"' + hashed, fold(repr([*others]).encode()), *encoder.items(others.values())]
    return encoder.items(cells)  # type: ignore[no-any-return]


def _hash_of_elements(array: Any, little: Any, *, signed: bool) -> bytes:
    import numpy as np

    contiguous: Any = [["readonly", "contig"]]  # numpy's stubs do not know the second
    blocks: Any = np.nditer(  # in blocks: no copy of a large array is made
        [array],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=contiguous,
        op_dtypes=[little],
        order="C",
        casting="equiv",
        buffersize=1 << 16,
    )
    hashed = hashlib.sha256()
    for block in blocks:
        numbers = block
        if block.dtype.kind in "fc":
            numbers = block.copy().view(block.real.dtype)
            with np.errstate(invalid="ignore"):
                if not signed:
                    numbers += 0  # -0.0 == 0.0
                unknown = np.isnan(numbers)
            if unknown.any():
                numbers[unknown] = np.nan
        hashed.update(numbers.view("B"))
    return hashed.digest()


# -- pandas --------------------------------------------------------------------------------------


def _table(encoder: Any, value: Any) -> bytes:
    """Encode a DataFrame, Series, Index or array of pandas: cell by cell, with its labels."""
    import pandas as pd

    if isinstance(value, pd.Index):
        kind = "Index" if encoder.compares else type(value).__name__
        return join(b"p", [kind.encode(), *_labels(encoder, value)])
    if isinstance(value, pd.Series):
        parts = [encoder.encode(value.name), *_column(encoder, value.array)]
    elif isinstance(value, pd.DataFrame):
        parts = _labels(encoder, value.columns)
        for name, series in value.items():
            with _at(f"[{name!r}]"):
                parts.append(join(b"p", _column(encoder, series.array)))
    else:
        return join(b"p", [b"array", *_column(encoder, value)])
    if not encoder.compares:
        parts.append(encoder.encode(value.attrs))
    return join(b"p", [type(value).__name__.encode(), *_labels(encoder, value.index), *parts])


def _labels(encoder: Any, index: Any) -> list[bytes]:
    levels = [index.get_level_values(n).array for n in range(index.nlevels)]
    columns = [join(b"p", _column(encoder, level)) for level in levels]
    return [*encoder.items(index.names), *columns]


def _column(encoder: Any, array: Any) -> list[bytes]:
    import numpy as np
    import pandas as pd

    dtype = array.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        labels = _labels(encoder, dtype.categories)
        return [b"category", encoder.encode(dtype.ordered), *labels, _array(encoder, array.codes)]
    name = string(str(dtype))
    if isinstance(dtype, pd.DatetimeTZDtype):
        return [name, *_elements(encoder, array.to_numpy(f"M8[{dtype.unit}]"))]
    if not isinstance(dtype, np.dtype) and not isinstance(array, pd.arrays.NumpyExtensionArray):
        return [name, *_cells(encoder, array.to_numpy(object).tolist())]
    return [name, *_elements(encoder, array.to_numpy())]


def _timestamp(encoder: Any, value: Any) -> bytes:
    """Encode a pandas Timestamp; equal ones are the same instant, whatever their unit and zone."""
    if not encoder.compares:
        return encoder.reduced(value)  # type: ignore[no-any-return]
    instant = value if value.tzinfo is None else value.tz_convert("UTC")
    return _object(value, [string(instant.isoformat(timespec="nanoseconds"))])


_OF_LIBRARIES: tuple[tuple[str, tuple[str, ...], Form], ...] = (
    ("numpy", ("ndarray", "generic"), _array),
    ("pandas", ("DataFrame", "Series", "Index"), _table),
    ("pandas.api.extensions", ("ExtensionArray",), _table),
    ("pandas", ("Timestamp",), _timestamp),
    ("pandas", ("Timedelta",), lambda _, value: _object(value, [string(value.isoformat())])),
)
_MARKED: tuple[tuple[str, Form], ...] = (
    ("__dataclass_fields__", _dataclass),
    ("__pydantic_validator__", _pydantic),
    ("__attrs_attrs__", _attrs),
    ("__struct_fields__", lambda enc, v: _object(v, enc.fields(v, v.__struct_fields__))),
)


# -- digest ---------------------------------------------------------------------------------------


T = TypeVar("T")

_NOT_STATE = frozenset({"__weakref__", "__dict__"})
_REFERENCES = frozenset({"str", "int", "bytes", "uuid.UUID"})
_TOO_OFTEN = 100_000  # visits of objects on cycles: some seconds


def digest(value: object, numbering: Numbering | None = None) -> str:
    """Digest ``value`` to 32 hexadecimal digits (128 bits of a SHA-256).

    Args:
        numbering: see :func:`encode`.

    Raises:
        DigestError: some part of the value cannot be part of an identity; names the part.
    """
    return hashlib.sha256(encode(value, numbering)).hexdigest()[:32]


def combine(*parts: bytes | str) -> str:
    """Digest several strings so that their boundaries count."""
    return combined([framed(part) for part in parts])


def combined(parts: Iterable[bytes]) -> str:
    """Digest parts that are already :func:`framed`, with the result of :func:`combine`."""
    return hashlib.sha256(fold(b"+" + b"".join(parts))).hexdigest()[:32]


def encode(
    value: object, numbering: Numbering | None = None, by: type[Encoder] | None = None
) -> bytes:
    """Return the canonical bytes of ``value``, at most 64; :func:`digest` is their hash.

    Args:
        numbering: the references met so far in one identity.  Volatile fields and the contents of
            ids do not count then.  Without a numbering, the whole value counts.
        by: the class of the encoder.

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
            type_name=class_name(type(value)),
        ) from None


class Encoder:
    """The encoder of one value.

    ``active`` holds the objects that are being encoded, each with its level, to detect cycles.
    ``met`` holds the objects that were encoded, with their encodings if no cycle runs through them:
    an object with many references is encoded once.
    """

    cycles = again = 0
    compares = True  # leave out what == leaves out
    atoms: ClassVar = ATOMS
    list_tag = b"l"
    grows = True  # remember long lists, which will be digested again

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
        if here in self.active:  # a cycle is encoded as the number of levels that it leads up
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
        except Exception as error:  # methods of the value are called
            raise UndigestibleError(
                f"{noun(value)} cannot be part of an identity ({error_text(error)})",
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
        if type(value) is list and len(value) >= LONG:
            return self.long_list(value)
        return join(b"l", self.items(value))

    def long_list(self, value: list[Any]) -> bytes:  # folded
        outer = self.numbering
        grown = self.grown(value) if self.grows else None
        if grown is None:
            inner = Numbering() if outer is not None else None
            content = self.list_tag + self.joined(value, inner)
            grown = hashlib.sha256(content).digest(), inner
        encoded, numbering = b"#" + grown[0], grown[1]
        links = outer.attach(numbering) if outer is not None and numbering is not None else b""
        return join(b"&", [encoded, fold(links)]) if links else encoded

    def grown(self, value: list[Any]) -> tuple[bytes, Numbering | None] | None:
        """Digest a list from its last digest on; ``None`` as for :func:`digest_grown`."""
        numbered = self.numbering is not None
        kind = self.list_tag, settings.fields() if numbered else None
        front, encode, around = self.list_tag, self.joined, self.active
        return digest_grown(value, front, encode, around, kind=kind, numbered=numbered)

    def joined(self, values: Iterable[Any], numbering: Numbering | None) -> bytes:
        return lengthened(self.numbered(numbering, self.items, values))

    def numbered(
        self, numbering: Numbering | None, encode: Callable[..., T], value: Any, *more: Any
    ) -> T:
        """Encode with another numbering, and without the encodings of values already met."""
        before = self.numbering, self.met
        self.numbering, self.met = numbering, {} if numbering is not self.numbering else self.met
        try:
            return encode(value, *more)
        finally:
            self.numbering, self.met = before

    def tuple_(self, value: Iterable[Any]) -> bytes:
        return join(b"t", self.items(value))

    def set_(self, value: Iterable[Any]) -> bytes:
        # Items of a set have no order, so references in them are not numbered.
        return join(b"{", sorted(self.numbered(None, self.items, value, "{{...}}")))

    def pairs(self, value: dict[Any, Any], label: str = "[{}]") -> list[tuple[bytes, bytes]]:
        pairs, later = [], []
        atoms = self.atoms
        key: Any = None
        try:
            for key, item in [*value.items()]:  # another thread may change it
                form = atoms.get(type(key))
                if form is not None:
                    name = form(key)
                elif type(key) is str:  # holds no reference
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
            error.path.append(label.format(short_repr(key) if label == "[{}]" else key))
            raise
        return pairs

    def dict_(self, value: dict[Any, Any], label: str = "[{}]") -> bytes:
        return join(b"d", [part for pair in sorted(self.pairs(value, label)) for part in pair])

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
        """Return the rules for fields that do not count as is; ``None`` without a numbering."""
        return rules_of(type(value)) if self.numbering is not None else None

    def fields(self, value: Any, names: Iterable[str]) -> list[bytes]:
        """Return the encoded names and values of attributes, without volatile ones."""
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
        """Encode a value with volatile parts or references in it, by the rule for the value."""
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
        """Encode an ordinary object as class and state, as pickle protocol 2 would reduce it."""
        form = _reduce(value)
        if isinstance(form, str):
            return _named(value, form)
        cls = type(value)
        make, args, state, items, pairs = form
        if isinstance(value, (io.StringIO, io.BytesIO)) and not state[-1]:
            state = (*state[:-1], None)  # the attributes are {} once any was looked up
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
            state = {**(state[0] or {}), **state[1]}  # __dict__ and __slots__
        if not isinstance(state, dict):
            return self.encode(state)
        state = {k: v for k, v in state.items() if k not in _NOT_STATE}
        rules = self.rules(value)
        return self.dict_(state, ".{}") if rules is None else self.ruled(state, rules)


def _first(item: tuple[Any, ...]) -> Any:
    return item[0]


def _reduce(value: Any) -> Any:
    reducer = copyreg.dispatch_table.get(type(value))
    form: Any = reducer(value) if reducer is not None else value.__reduce_ex__(2)
    return form if isinstance(form, str) else (*form, None, None, None)[:5]


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


def _named(value: Any, name: str) -> bytes:
    """Encode a value by a name that leads to the value.

    Raises:
        UndigestibleError: the name leads elsewhere.
    """
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


def _memory(encoder: Any, value: memoryview) -> bytes:
    content = hashlib.sha256(value if value.contiguous else value.tobytes()).digest()
    return join(b"v", [*encoder.items((value.format, value.shape)), content])


def _path(_: Any, value: PurePath) -> bytes:
    windows = isinstance(value, sys.modules["pathlib"].PureWindowsPath)
    return (
        join(b"\\", [string(str(value).lower())]) if windows else join(b"/", [string(str(value))])
    )


_BASES: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, _enum),
    (types.ModuleType, lambda _, value: fold(b"L" + value.__name__.encode())),
    (re.Pattern, lambda enc, v: join(b"R", enc.items((v.flags, v.pattern)))),
    (slice, lambda enc, v: join(b":", enc.fields(v, ("start", "stop", "step")))),
    (memoryview, _memory),
    (functools.partial, lambda enc, v: join(b"P", enc.fields(v, ("func", "args", "keywords")))),
    (types.MethodType, _method),
    ((types.FunctionType, types.BuiltinFunctionType), lambda _, v: _named(v, v.__qualname__)),
)
"""Classes, with the functions that encode their instances and instances of their subclasses."""

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
    """Return the form for values of a class that is neither an atom nor a container."""
    base: Any
    form: Form
    for base, form in _BASES:
        if issubclass(cls, base):
            return form
    pathlib = sys.modules.get("pathlib")  # not loaded in programs without paths
    if issubclass(cls, getattr(pathlib, "PurePath", ())):
        return _path
    known = form_for(cls)
    if known is not None:
        return known
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _namedtuple
    if issubclass(cls, tuple(base for base, _ in _SUBCLASSED)):
        return Encoder.subclass
    return Encoder.reduced


# -- class contents -------------------------------------------------------------------------------


DECORATED = "__stepwise_step__"
"""The attribute of a decorated function that holds its step."""
_CHANGED = (list, dict, set, bytearray)  # the program may change these in place


@functools.lru_cache(maxsize=1000)
def content_of(cls: type) -> dict[str, Any] | None:
    """Return the contents that distinguish a class from others of the same name.

    Return ``None`` if the name leads to the class.  The contents are the fields, the attributes of
    the class and of its bases that no name leads to, and the captured variables of methods.  Left
    out are contents that a run may change: containers, and captured variables that a method
    assigns.  Captured variables of steps are left out as well: they are part of the steps' calls.
    """
    if _is_named(cls):
        return None
    bases = reversed([each for each in cls.__mro__ if not _is_named(each)])
    attributes = {n: _plain(v) for base in bases for n, v in vars(base).items()}
    functions = {n: v for n, v in attributes.items() if isinstance(v, types.FunctionType)}
    plain = [getattr(each, "__wrapped__", each) for each in functions.values()]
    codes = [each.__code__ for each in plain if isinstance(each, types.FunctionType)]
    assigned = {name for code in codes for name in assigned_in(code)}
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in functions and not hasattr(value, DECORATED):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for each, cell in cells:
                if each not in assigned and each != "__class__":
                    found[f"{name}.{each}"] = cell_content(cell)
        elif name[:2] != "__" and not hasattr(type(value), "__get__"):
            found[name] = value
    found = {name: value for name, value in found.items() if not isinstance(value, _CHANGED)}
    try:
        fields = description(cls)
    except Exception:  # its annotations may name anything
        fields = None
    return found if fields is None else {**found, "__fields__": fields}


def _is_named(cls: type) -> bool:
    return not cls.__flags__ & HEAP_TYPE or by_name(cls, cls.__module__) is not None


def _plain(value: Any) -> Any:
    """Return the function that a class method, a static method or a property calls."""
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def cell_content(cell: types.CellType, missing: Any = None) -> Any:
    """Return the value of a captured variable, or ``missing`` if the variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return missing


@functools.lru_cache(maxsize=1000)
def assigned_in(code: types.CodeType) -> frozenset[str]:
    """Return the captured variables that code assigns or deletes, with the code inside it."""
    names = {
        str(each.argval)
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= assigned_in(inner)
    return frozenset(names & set(code.co_freevars))


# -- code -----------------------------------------------------------------------------------------


_OWN = "@"  # replaces the function's own name; no identifier equals it


def shape_of(code: types.CodeType, own: str = "", inside: str = _OWN) -> tuple[Any, ...]:
    """Return plain data that is equal for two functions that do the same.

    Args:
        code: the code of the function.
        own: the name of the outermost function.
        inside: the prefix of the qualified names of functions inside the function.
    """
    names = [
        [_OWN if each == own and _calls_itself(code, own) else each for each in held]
        for held in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    ]
    counts = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags
    constants = [_constant(each, own, inside) for each in code.co_consts]
    return code.co_code, getattr(code, "co_exceptiontable", b""), counts, names, constants


def _calls_itself(code: types.CodeType, own: str) -> bool:
    """Return whether a name means the function itself wherever the code uses that name.

    The name does as a global or captured variable, but not as an attribute: ``client.search()``.
    """
    used = {each.opname for each in dis.get_instructions(code) if each.argval == own}
    return all("GLOBAL" in each or "DEREF" in each or "CLOSURE" in each for each in used)


def _constant(value: Any, own: str, inside: str) -> Any:
    if isinstance(value, types.CodeType):
        return value.co_name, shape_of(value, own, inside)
    if isinstance(value, str) and value.startswith(inside):  # Python 3.10 keeps such names here
        return _OWN, value.removeprefix(inside)
    if isinstance(value, frozenset):  # its order differs between processes
        return "frozenset", sorted(repr(_constant(each, own, inside)) for each in value)
    if isinstance(value, tuple):
        return "tuple", [_constant(each, own, inside) for each in value]
    return repr(value)
