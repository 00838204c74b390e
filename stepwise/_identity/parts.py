"""The identity of a call in parts: one short digest for each argument, attribute and variable.

A part is named ``question`` (an argument), ``self.model`` (an attribute of the instance),
``closure.unit`` (a captured variable), ``@class``, ``@function`` (these two are plain text) or
``@key`` (what a ``key`` function returned).  Its text is

- a ``.`` if the value is a scalar,
- a digest of 8 characters in which times and UUIDs count by their type alone,
- ``~`` and the exact digest, if there are times or UUIDs in the value (a scalar that is one has
  the digest ``*``),
- ``?`` and serial numbers of the objects in it that have no digest (a lock, a client) and count by
  their class.

What has no digest counts by its class, or by the fields that are declared or known of that, there
where it stands; what stands beside it counts by its contents.  Attributes and captured variables
never fail a call.  Arguments are told exactly where everything in them has a digest; only what a
call uses up or what is nothing but data (an iterator, an array of a special kind) is an error.
"""

from __future__ import annotations

import binascii
import datetime as dt
import enum
import functools
import hashlib
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, ClassVar

from stepwise._identity.clients import declared, field, fields_of, is_foreign
from stepwise._runtime.facts import NamedTuple
from stepwise._values.class_contents import cell_content, content_of
from stepwise._values.digest import Encoder, Numbering, encode, form_of
from stepwise._values.digest_atoms import ATOMS, class_name, fold, join, main_name, string
from stepwise._values.moments import has_volatile_form, is_clock
from stepwise.errors import DigestError

__all__ = [
    "CLASS",
    "FUNCTION",
    "KEY",
    "Part",
    "as_function",
    "captured",
    "class_digest",
    "digest_part",
    "lenient",
    "module_key",
    "of_argument",
    "parse",
    "short",
    "shown_part",
    "started_module",
    "uncounted",
    "unknown_in",
]

CLASS, FUNCTION, KEY = "@class", "@function", "@key"
_VOLATILE = "*"
_SCALARS = (str, int, float, bool, bytes, complex, type(None))
_SHORT = 100  # characters
_URLSAFE = bytes.maketrans(b"+/", b"-_")  # base64.urlsafe_b64encode is two Python functions
_LONG = 8  # items of a list that is digested as it grows

uncounted: dict[type, str] = {}
"""The field of a class that the library itself changes while calls that hold it are in flight."""

_made: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()
"""The encodings of classes that no name leads to."""

_CAPTURES_NOTHING: Mapping[str, types.CellType] = {}


def short(encoded: bytes) -> str:
    """Shorten canonical bytes to 8 characters (48 bits of their SHA-256).

    ``None``, booleans and small whole numbers are shorter as they are, behind a ``=``.
    """
    if len(encoded) <= 6 and encoded[0] in b"NT!i":
        return "=" + encoded.decode()
    text = binascii.b2a_base64(hashlib.sha256(encoded).digest()[:6], newline=False)
    return text.translate(_URLSAFE).decode()


class Part(NamedTuple):
    """The text of a part, taken apart.

    Args:
        scalar: the value is a text, a number, a moment or the like.
        digest: in which times and UUIDs count by their type.
        exact: the whole digest.
        unknown: serial numbers of what has no digest.
    """

    scalar: bool
    digest: str
    exact: str
    unknown: str

    @property
    def volatile(self) -> bool:
        """True if the value itself is a time or a UUID."""
        return self.digest == _VOLATILE

    def same(self, other: Part) -> bool:
        """Return whether both may be digests of one value, times and UUIDs aside."""
        return (
            self.volatile
            or other.volatile
            or self.digest == other.digest
            or self.exact == other.exact
        )


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Part:
    """Take the text of a part apart."""
    scalar = text.startswith(".")
    rest, _, unknown = text.removeprefix(".").partition("?")
    digest, _, exact = rest.partition("~")
    return Part(scalar, digest, exact or digest, unknown)


def unknown_in(parts: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the serial numbers of what has no digest, by the names of the parts that hold it."""
    texts = {name: parse(text).unknown for name, text in parts.items() if "?" in text}
    return {name: tuple(map(int, text.split(","))) for name, text in texts.items()}


def digest_part(
    value: object, around: Sequence[object] = (), *, once: bool = False
) -> tuple[str, list[object]]:
    """Digest the value of an attribute or a captured variable.

    Args:
        around: the objects that hold it, from the instance inwards, each of which counts as itself
            wherever it is met; none for a captured variable.  A function in one counts without what
            it captured itself, since that is a part of its own (see :func:`captured`).
        once: it will hardly be digested again, so that nothing is kept for that.

    Returns:
        the text of the part, without serial numbers, and the objects that have no digest.
    """
    cls: Any = type(value)
    if isinstance(value, str) and cls is str and len(value) < _SHORT:
        return _text(value), []
    if cls in _SCALARS:
        test = _TESTS.get(cls)
        exact = short(ATOMS[cls](value))
        return (f".{_VOLATILE}~{exact}" if test is not None and test(value) else f".{exact}"), []
    if "uuid" in sys.modules:
        _meet_uuids()
    if cls in _MOMENTS or isinstance(value, enum.Enum):
        encoder = _Lenient(around, masking=False)
        exact = short(encoder.encode(value))
        return (f".{_VOLATILE}~{exact}" if encoder.volatile else f".{exact}"), []
    token = main_name.set(module_key("__main__"))
    try:
        return _digest_part(value, around, once=once)
    except MemoryError:
        raise
    except Exception:  # nested too deeply, or changed by another thread meanwhile
        return short(_by_class(cls)), [value]
    finally:
        main_name.reset(token)


def lenient(
    value: object,
    around: Sequence[object] = (),
    numbering: Numbering | None = None,
    *,
    masking: bool = False,
    exactly: bool = False,
) -> tuple[bytes, list[object]]:
    """Encode a value that nobody chose to be part of an identity.

    What has no digest counts by its class, or by the fields that are known of it, there where it
    stands; the rest by its contents.

    Args:
        around: see :func:`digest_part`.
        numbering: of the references in all that makes the identity.
        masking: times and UUIDs count by their type.
        exactly: a function that no name leads to counts by its code, too.

    Returns:
        the canonical bytes, and the objects that have no digest.
    """
    encoder = _Lenient(around, masking=masking)
    encoder.exactly = exactly
    if numbering is not None:
        encoder.numbering = numbering
    if "uuid" in sys.modules:
        _meet_uuids()
    token = main_name.set(module_key("__main__"))
    try:
        return encoder.encode(value), encoder.unknown
    except MemoryError:
        raise
    except Exception:  # nested too deeply, or changed by another thread meanwhile
        return _by_class(type(value)), [value]
    finally:
        main_name.reset(token)


def of_argument(value: object, numbering: Numbering) -> tuple[bytes, list[object]]:
    """Encode an argument: exactly, or leniently where something in it has no digest.

    Args:
        numbering: see :func:`lenient`.

    Raises:
        DigestError: what has no digest is used up by the call, or is data: nothing can replace it.
    """
    try:
        return encode(value, numbering, by=_Exact), []
    except DigestError:
        found, unknown = lenient(value, (), numbering, exactly=True)
        if any(map(_is_irreplaceable, unknown)):
            raise
        return found, unknown


def _is_irreplaceable(value: object) -> bool:
    """Return whether a value is consumed by a call, or is a container or an array of data."""
    cls = type(value)
    asyncio = sys.modules.get("asyncio")
    used_up = (Iterator, AsyncIterator, Coroutine, *((asyncio.Future,) if asyncio else ()))
    data = (list, tuple, dict, set, frozenset, deque, memoryview)
    return issubclass(cls, (*used_up, *data)) or hasattr(cls, "__array__")


@functools.lru_cache(maxsize=1000)
def class_digest(cls: Any) -> str:
    """Digest what tells a class from others of its name; empty if nothing does."""
    return parse(digest_part(cls)[0]).digest if content_of(cls) else ""


def _digest_part(
    value: object, around: Sequence[object], *, once: bool
) -> tuple[str, list[object]]:
    masked = _Lenient(around, masking=True)
    masked.grows = not once
    masked.without_cells = not around and as_function(value) is not None
    digest = short(masked.encode(value))
    if not masked.volatile:
        return digest, masked.unknown
    whole = _Lenient(around, masking=False)
    whole.grows = not once
    return f"{digest}~{short(whole.encode(value))}", masked.unknown


@functools.lru_cache(maxsize=1000)
def _text(value: str) -> str:
    """The part of a short text: names and models are asked for at every call."""
    exact = short(string(value))
    return f".{_VOLATILE}~{exact}" if has_volatile_form(value) else f".{exact}"


class _Exact(Encoder):
    """An encoder of arguments: classes that the user has declared count by their fields."""

    def object(self, value: Any) -> bytes:
        cls: Any = type(value)
        fields = declared(cls)
        return super().object(value) if fields is None else _by_fields(self, value, fields)


def _by_fields(encoder: Encoder, value: Any, fields: Iterable[str]) -> bytes:
    held = {name: field(value, name) for name in fields}
    return join(b"K", [string(class_name(type(value))), encoder.dict_(held)])


class _Lenient(Encoder):
    """An encoder that never fails, whatever the value contains.

    Args:
        masking: times and UUIDs count by their type.
    """

    atoms: ClassVar = {
        cls: form
        for cls, form in ATOMS.items()
        if cls not in (str, int, float, dt.datetime, dt.time)
    }

    def __init__(self, around: Sequence[object], *, masking: bool) -> None:
        super().__init__(Numbering())
        self.active.update((id(each), level) for level, each in enumerate(around))
        self.masking = masking
        self.volatile = False
        self.without_cells = False  # variables that the function itself captured count elsewhere
        self.in_class = False
        self.exactly = False
        self.whole = False  # in an object that counts by its class if any part has no digest
        self.unknown: list[object] = []
        # Long lists are remembered by what stands at the front of their digest.
        self.list_tag, self.long = b"*" if masking else b"m", _LONG

    def encode(self, value: Any) -> bytes:
        if type(value) is str and not has_volatile_form(value):
            return string(value)  # most of what messages hold
        test = _TESTS.get(type(value))
        if test is not None and test(value):
            self.volatile = True
            if self.masking:
                return join(b"*", [string(class_name(type(value)))])
        return super().encode(value)

    def object(self, value: Any) -> bytes:
        cls: Any = type(value)
        before = self.whole
        try:
            fields = fields_of(cls)
            if fields is not None:
                return _by_fields(self, value, fields)
            if cls in uncounted:
                held = {k: v for k, v in vars(value).items() if k != uncounted[cls]}
                return join(b"K", [string(class_name(cls)), self.dict_(held)])
            function = as_function(value)
            if function is not None:
                return self.code(function)
            if isinstance(value, type):
                return self.class_(value)
            self.whole = before or (form_of(cls) is Encoder.reduced and is_foreign(cls))
            encoded = super().object(value)
            return join(b"k", [self.class_(cls), encoded]) if content_of(cls) else encoded
        except (RecursionError, MemoryError):
            raise
        except Exception:
            if before:
                raise
            self.unknown.append(value)
            return _by_class(cls)
        finally:
            self.whole = before

    def class_(self, cls: type) -> bytes:
        """Encode a class by its name, and by its contents if it cannot be found by that name.

        It counts as it was when it was first asked for: what is called may change what it holds.
        """
        known = _made.get(cls)
        if known is not None and not self.in_class:
            return known
        held = content_of(cls)
        if held is None:
            return fold(b"c" + class_name(cls).encode())
        encoder = self
        if not self.in_class:
            encoder = _Lenient((cls,), masking=True)
            encoder.in_class = True
        encoded = join(b"k", [string(class_name(cls)), encoder.dict_(held)])
        if not self.in_class:
            _made[cls] = encoded
        return encoded

    def code(self, function: types.FunctionType) -> bytes:
        """Encode a function by its name, captured variables and defaults; not by its text."""
        known = self.met.get(id(function))
        if known is not None and known[1] is not None:
            return known[1]
        cells = {} if self.without_cells else _own_cells(function)
        self.without_cells = False
        held = {name: cell_content(cell) for name, cell in cells.items()}
        encoded = join(
            b"F",
            [
                string(module_key(function.__module__)),
                string(function.__qualname__),
                *_text_of_code(function, local=self.exactly),
                self.dict_(held),
                self.tuple_(function.__defaults__ or ()),
                self.dict_(function.__kwdefaults__ or {}),
            ],
        )
        self.met[id(function)] = function, encoded
        return encoded


def _text_of_code(function: types.FunctionType, *, local: bool) -> list[bytes]:
    """The code of a lambda: nothing else tells two of them apart that one function defines.

    Args:
        local: that of any function inside another one.
    """
    if function.__name__ != "<lambda>" and not (local and "<locals>" in function.__qualname__):
        return []
    code = function.__code__
    constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
    inner = [each.co_code for each in code.co_consts if isinstance(each, types.CodeType)]
    return [fold(repr((code.co_code, constants, inner, code.co_names)).encode())]


def _by_class(cls: type) -> bytes:
    return join(b"?", [string(class_name(cls))])


def _wraps(cls: Any) -> bool:
    """Return whether objects of a class may stand for a function: functions and wrapt's proxies."""
    return cls is types.FunctionType or cls.__module__ in ("wrapt", "stepwise")


# -- times and UUIDs -----------------------------------------------------------------------------


_TESTS: dict[type, Callable[[Any], bool]] = {
    str: has_volatile_form,
    float: is_clock,
    int: is_clock,
    dt.datetime: lambda _: True,
    dt.time: lambda _: True,
}
_MOMENTS = {dt.datetime, dt.time, dt.date, dt.timedelta}


def _meet_uuids() -> None:
    """Register UUIDs once their module is loaded; importing it here would slow every start."""
    uuid = sys.modules.get("uuid")
    if uuid is not None and uuid.UUID not in _TESTS:
        _TESTS[uuid.UUID] = lambda _: True
        _MOMENTS.add(uuid.UUID)


def shown_part(name: str) -> str:
    """Return the name of a part in messages."""
    kind, _, short_name = name.partition(".")
    if kind == "self":
        return f"the attribute {short_name!r} of its instance"
    if kind == "closure":
        return f"the captured variable {short_name!r}"
    kinds = {CLASS: "the class of its instance", FUNCTION: "the function", KEY: "its key"}
    return kinds.get(name, f"the argument {name!r}")


# -- functions -----------------------------------------------------------------------------------


def captured(function: Any) -> Mapping[str, types.CellType]:
    """The variables that a function captured, by name, and those that captured functions did.

    The latter under dotted names: ``helper.count``.
    """
    if not getattr(getattr(function, "__code__", None), "co_freevars", ()):
        return _CAPTURES_NOTHING
    cells: dict[str, types.CellType] = {}
    met: set[int] = set()
    waiting = [("", function)]
    while waiting:
        prefix, each = waiting.pop()
        for name, cell in _own_cells(each).items():
            if id(cell) not in met:
                met.add(id(cell))
                cells[prefix + name] = cell
                inner = as_function(cell_content(cell))
                if inner is not None:
                    waiting.append((f"{prefix}{name}.", inner))
    return cells


def _own_cells(function: Any) -> dict[str, types.CellType]:
    code = getattr(function, "__code__", None)  # a built-in function has none
    names = getattr(code, "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell for name, cell in cells if name != "__class__"}


def as_function(value: Any) -> types.FunctionType | None:
    """The plain function that a value is, or is made of: a step, a tool, a workflow."""
    wrapped = getattr(value, "__wrapped__", None) if _wraps(type(value)) else None
    function = wrapped if isinstance(wrapped, types.FunctionType) else value
    return function if isinstance(function, types.FunctionType) else None


def module_key(module: str | None) -> str:
    """The name of a module, the same whether its file is run, run by ``-m`` or imported."""
    if module not in ("__main__", "__mp_main__"):
        return module or ""
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        name: str = spec.name.removesuffix(".__main__")
        return name
    path = getattr(main, "__file__", None)
    return _dotted(path) if path else ""


def started_module() -> str:
    """The name of the module that was started, the same where it is imported."""
    return module_key("__main__") or "__main__"


@functools.lru_cache(maxsize=16)
def _dotted(path: str) -> str:
    """The packages that a file lies in, and its own name."""
    folder, name = os.path.split(os.path.realpath(path))
    packages = []
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        packages.append(package)
    return ".".join([*reversed(packages), os.path.splitext(name)[0]])
