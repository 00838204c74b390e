"""Equality of calls and runs: when two calls are the same call, two invocations the same run.

A call is identified by its step's name and the digest of its arguments.  The arguments are bound to
the signature, without those equal to their default.  So ``f(1, 2)``, ``f(1, b=2)`` and ``f(b=2,
a=1)`` are one call, and a new parameter with a default keeps old runs.  A run is identified by its
workflow's name and that digest.

*Parts* are short digests of each argument, attribute and variable, which show what differs.  A part
is named ``question`` (an argument), ``self.model`` (an attribute of the instance), ``closure.unit``
(a captured variable), ``@class``, ``@function`` (these two are plain text) or ``@key`` (the result
of a ``key`` function).  The text of a part of a call consists of

- a ``.`` if the value is a scalar,
- a digest of 8 characters in which times and UUIDs count by their type alone, since they differ at
  each start and so cannot tell runs apart,
- ``~`` and the exact digest, if there are times or UUIDs in the value (a scalar that is one has the
  digest ``*``),
- ``?`` and serial numbers of the objects in the value that have no digest (a lock, a client) and
  count by their class.

A value without a digest counts by its class, or by the declared or known fields of that class, in
its place.  Values beside it count by their contents.  Attributes and captured variables never fail
a call.  Arguments are compared exactly if everything in them has a digest.  The only errors are
values that a call uses up, and pure data without a digest (an iterator, an array of a special
kind).
"""

from __future__ import annotations

import binascii
import builtins
import collections
import contextlib
import datetime as dt
import enum
import functools
import hashlib
import inspect
import os
import re
import sys
import time
import types
import typing
import weakref
from collections import OrderedDict, deque
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
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._values import digest as _digest
from stepwise._values.digest import (
    ATOMS,
    COMMON,
    LENGTH,
    Encoder,
    Numbering,
    cell_content,
    class_name,
    content_of,
    encode,
    fold,
    form_of,
    join,
    module_key,
    shape_of,
    string,
)
from stepwise._values.preview import Hiding, Redact, attributes_in
from stepwise._values.reducers import is_lock
from stepwise._values.trees import NOT_STATE
from stepwise.errors import ConfigurationError, DigestError

# -- moments --------------------------------------------------------------------------------------


_RANDOM = "1467"  # versions of UUIDs made from time or chance; others derive from a name
_UUID = r"(?i)[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # compiled on use
_WRITTEN = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|[A-Z][a-z]{2},? [\w ]{5,15} \d\d:\d\d:\d\d "
"""The beginning of a string that is a time: ISO 8601, ``time.ctime()``, mails or HTTP."""
_LENGTHS = (32, 36)  # characters of a UUID's text
_FORMS = ("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT")


def is_momentary(value: object) -> bool:
    """Return whether a value is a random UUID or a time since this process began."""
    cls: Any = type(value)  # not isinstance: the __class__ of a proxy may raise
    if cls in (int, float):
        return is_clock(value)  # type: ignore[arg-type]
    if issubclass(cls, str):
        return _is_written(str(value))
    if issubclass(cls, dt.datetime):
        return _is_now(value)  # type: ignore[arg-type]
    uuid: Any = sys.modules.get("uuid")  # not imported: there are no UUIDs
    return (
        uuid is not None and issubclass(cls, uuid.UUID) and str(cls.version.fget(value)) in _RANDOM
    )


def has_volatile_form(text: str) -> bool:
    """Return whether a string has the form of a UUID or a time, whenever it was made."""
    return 16 <= len(text) <= 40 and (_is_uuid(text) or _of_form(_WRITTEN).match(text) is not None)


@functools.cache
def _of_form(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _is_uuid(text: str) -> bool:
    return len(text) in _LENGTHS and _of_form(_UUID).fullmatch(text) is not None


def _is_written(text: str) -> bool:
    if _is_uuid(text):
        digits = text.replace("-", "")
        return digits[12] in _RANDOM and digits[16] in "89abAB"  # version and variant
    if not has_volatile_form(text):
        return False
    for form in ("", *_FORMS):
        with contextlib.suppress(ValueError):
            return _is_now(_read(text, form))
    return False


def _read(text: str, form: str) -> dt.datetime:
    if form:
        return dt.datetime.strptime(text, form)  # noqa: DTZ007 (any zone is tried)
    return dt.datetime.fromisoformat(text.removesuffix("Z"))


def _is_now(moment: dt.datetime) -> bool:
    begun, now = _began(), time.time()
    try:
        if moment.tzinfo is not None:
            return begun <= moment.timestamp() <= now
        # Without a zone, the time may be local or UTC.
        here, there = moment.timestamp(), moment.replace(tzinfo=dt.timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        return False
    return begun - 1 <= here <= now or begun - 1 <= there <= now  # cut to a second


def is_clock(number: float) -> bool:
    """Return whether a clock of this process has shown a number, in seconds or fractions."""
    if not 1 <= number <= 1 << 62:  # NaN fails this test too
        return False
    if number < 1000 and number == round(number, 3):
        return False  # likely a count: soon after boot clocks are as small, but have finer digits
    now, begun = time.time(), _began() - 1
    for unit in (1, 10**3, 10**6, 10**9):
        if begun * unit <= number <= now * unit:
            return True
    if type(number) is int:
        return False
    return any(
        0 <= clock() - number <= now - begun for clock in (time.monotonic, time.perf_counter)
    )


@functools.cache
def _began() -> float:
    """Return when this process began, in seconds since 1970."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        age = time.process_time() + 60  # no such file: the process began at least that long ago
    return time.time() - max(age, 0)


# -- parts ----------------------------------------------------------------------------------------


CLASS, FUNCTION, KEY = "@class", "@function", "@key"
ITEMS = "self.[]"
"""Part of an instance that is itself a list, a string or the like."""
HELD = "of:"
"""Prefix of the parts of functions that a run was given: ``of:node 'ask':model``."""
_VOLATILE = "*"
_SCALARS = (str, int, float, bool, bytes, complex, type(None))
_SHORT = 100  # characters
_URLSAFE = bytes.maketrans(b"+/", b"-_")  # base64.urlsafe_b64encode is two Python functions

uncounted: dict[type, str] = {}
"""By class, the field that the library itself changes while calls that hold it are in flight."""

_made: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()
"""Encodings of classes that cannot be found by their name."""

_CAPTURES_NOTHING: Mapping[str, types.CellType] = {}


def short(encoded: bytes) -> str:
    """Shorten canonical bytes to 8 characters (48 bits of their SHA-256).

    ``None``, booleans and small whole numbers are shorter as they are, after a ``=``.
    """
    if len(encoded) <= 6 and encoded[0] in b"NT!i":
        return "=" + encoded.decode()
    text = binascii.b2a_base64(hashlib.sha256(encoded).digest()[:6], newline=False)
    return text.translate(_URLSAFE).decode()


class Part(NamedTuple):
    """The parsed text of a part.

    Args:
        digest: the digest in which times and UUIDs count by their type.
        exact: the exact digest.
        unknown: serial numbers of the objects without a digest.
    """

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
    """Parse the text of a part."""
    rest, _, unknown = text.removeprefix(".").partition("?")
    digest, _, exact = rest.partition("~")
    return Part(digest, exact or digest, unknown)


def unknown_in(parts: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the serial numbers of objects without a digest, by the names of the parts."""
    texts = {name: parse(text).unknown for name, text in parts.items() if "?" in text}
    return {name: tuple(map(int, text.split(","))) for name, text in texts.items()}


def digest_part(
    value: object, around: Sequence[object] = (), *, once: bool = False
) -> tuple[str, list[object]]:
    """Digest the value of an attribute or a captured variable.

    Args:
        value: the value.
        around: the objects that hold the value, from the instance inwards; none for a captured
            variable.  Each counts as itself wherever it occurs.  A function in one counts without
            its captures, since they are separate parts (see :func:`captured`).
        once: the value will hardly be digested again, so nothing is kept for a second time.

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
    _meet_uuids()
    if cls in _MOMENTS or isinstance(value, enum.Enum):
        encoder = Lenient(around, masking=False)
        exact = short(encoder.encode(value))
        return (f".{_VOLATILE}~{exact}" if encoder.volatile else f".{exact}"), []
    masked = Lenient(around, masking=True)
    masked.grows = not once
    masked.without_cells = not around and as_function(value) is not None
    digest = short(masked.whole_of(value))
    if not masked.volatile:
        return digest, masked.unknown
    whole = Lenient(around, masking=False)
    whole.grows = not once
    return f"{digest}~{short(whole.whole_of(value))}", whole.unknown


def lenient(
    value: object,
    around: Sequence[object] = (),
    numbering: Numbering | None = None,
    *,
    masking: bool = False,
    exactly: bool = False,
) -> tuple[bytes, list[object]]:
    """Encode a value that the user did not choose as part of an identity.

    A value without a digest counts by its class, or by the known fields of that class, in its
    place; other values count by their contents.

    Args:
        value: the value.
        around: see :func:`digest_part`.
        numbering: the numbering of references in the whole identity.
        masking: times and UUIDs count by their type.
        exactly: a function that cannot be found by its name also counts by its code.

    Returns:
        the canonical bytes, and the objects that have no digest.
    """
    encoder = Lenient(around, masking=masking)
    encoder.exactly = exactly
    if numbering is not None:
        encoder.numbering = numbering
    _meet_uuids()
    return encoder.whole_of(value), encoder.unknown


def of_argument(value: object, numbering: Numbering) -> tuple[bytes, list[object]]:
    """Encode an argument: exactly, or leniently if something in it has no digest.

    Args:
        value: the argument.
        numbering: see :func:`lenient`.

    Raises:
        DigestError: an object without a digest is used up by the call, or is data, so that its
            class cannot replace it.
    """
    try:
        return encode(value, numbering, by=_Exact), []
    except DigestError:
        found, unknown = lenient(value, (), numbering, exactly=True)
        if any(map(_is_irreplaceable, unknown)):
            raise
        return found, unknown


def whole(value: object) -> tuple[bytes, list[object]]:
    """Encode a value with all that tells it from others, times and ids too, as :func:`lenient`."""
    encoder = Lenient((), masking=False)
    encoder.exactly, encoder.numbering = True, None
    return encoder.whole_of(value), encoder.unknown


def _is_irreplaceable(value: object) -> bool:
    """Return whether a value is consumed by a call, or is a container or an array of data."""
    cls = type(value)
    asyncio = sys.modules.get("asyncio")
    used_up = (Iterator, AsyncIterator, Coroutine, *((asyncio.Future,) if asyncio else ()))
    data = (list, tuple, dict, set, frozenset, deque, memoryview)
    return issubclass(cls, (*used_up, *data)) or hasattr(cls, "__array__")


@functools.lru_cache(maxsize=1000)
def class_digest(cls: Any) -> str:
    """Return a digest that tells a class from others of its name; empty if nothing does."""
    return parse(digest_part(cls)[0]).digest if content_of(cls) else ""


@functools.lru_cache(maxsize=1000)
def _text(value: str) -> str:
    """Return the part of a short string; cached, since names and models occur in every call."""
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


class Lenient(Encoder):
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
        self.whole = False  # inside an object that counts by its class if any part lacks a digest
        self.unknown: list[object] = []
        # Long lists are remembered by the tag at the front of their digest.
        self.list_tag = b"*" if masking else b"m"

    def whole_of(self, value: Any) -> bytes:
        """Encode a value, or only its class if the encoding fails."""
        try:
            return self.encode(value)
        except MemoryError:
            raise
        except Exception:  # nested too deeply, or changed by another thread meanwhile
            self.unknown, self.volatile = [value], False
            return _by_class(type(value))

    def encode(self, value: Any) -> bytes:
        if type(value) is str and not has_volatile_form(value):
            return string(value)  # the common case in messages
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

        The class counts as it was at its first encoding, since calls may change its contents.
        """
        known = _made.get(cls)
        if known is not None and not self.in_class:
            return known
        held = content_of(cls)
        if held is None:
            return fold(b"c" + class_name(cls).encode())
        encoder = self
        if not self.in_class:
            encoder = Lenient((cls,), masking=True)
            encoder.in_class = True
        encoded = join(b"k", [string(class_name(cls)), encoder.dict_(held)])
        if not self.in_class:
            _made[cls] = encoded
        return encoded

    def code(self, function: types.FunctionType) -> bytes:
        """Encode a function by its name, captured variables and defaults, not by its text."""
        known = self.met.get(id(function))
        if known is not None and known[1] is not None:
            return known[1]
        cells = {} if self.without_cells else own_cells(function)
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
    """Return the encoded code of a lambda: only the code tells two lambdas of one function apart.

    Args:
        function: the function; other functions give an empty list.
        local: include any function that is defined inside another one.
    """
    if function.__name__ != "<lambda>" and not (local and "<locals>" in function.__qualname__):
        return []
    return [fold(repr(shape_of(function.__code__)).encode())]


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


_SPREAD = re.compile(r"__pydantic_(?:private|extra)__\['(\w+)'\]")


def attribute_path(name: str) -> str:
    """Return an instance's part as its user writes it: ``agent.history``, ``_private``."""
    return _SPREAD.sub(r"\1", name.removeprefix("self."))


def shown_part(name: str) -> str:
    """Return the name of a part for messages."""
    kind, dot, rest = name.partition(".")
    if name == ITEMS:
        return "the content of its instance"
    if kind == "self" and dot:
        return f"the attribute {attribute_path(name)!r} of its instance"
    if kind == "closure" and dot:  # else it is an argument of that name
        return f"the captured variable {rest!r}"
    if name.startswith(HELD):
        where, _, held = name.removeprefix(HELD).rpartition(":")
        return f"{held} of {where}"
    kinds = {CLASS: "the class of its instance", FUNCTION: "the function", KEY: "its key"}
    return kinds.get(name, f"the argument {name!r}")


def shown_parts(names: Iterable[str]) -> str:
    """Return the names of several parts for messages."""
    return ", ".join(map(shown_part, names))


# -- functions -----------------------------------------------------------------------------------


def contents(function: Any) -> list[Any]:
    """Return the values of the variables that a function captured."""
    return [_digest.cell_content(cell) for cell in captured(function).values()]


def captured(function: Any) -> Mapping[str, types.CellType]:
    """Return the variables that a function and its captured functions captured, by name.

    Variables of captured functions have dotted names: ``helper.count``.
    """
    if not getattr(getattr(function, "__code__", None), "co_freevars", ()):
        return _CAPTURES_NOTHING
    cells: dict[str, types.CellType] = {}
    met: set[int] = set()
    waiting = [("", function)]
    while waiting:
        prefix, each = waiting.pop()
        for name, cell in own_cells(each).items():
            if id(cell) not in met:
                met.add(id(cell))
                cells[prefix + name] = cell
                inner = as_function(cell_content(cell))
                if inner is not None:
                    waiting.append((f"{prefix}{name}.", inner))
    return cells


def own_cells(function: Any) -> dict[str, types.CellType]:
    """Return the variables that a function itself captured, by name, with or without a value."""
    code = getattr(function, "__code__", None)  # a built-in function has none
    names = getattr(code, "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell for name, cell in cells if name != "__class__"}


def as_function(value: Any) -> types.FunctionType | None:
    """Return the function that a value is or wraps (a step, a tool, a workflow), or ``None``."""
    wrapped = getattr(value, "__wrapped__", None) if _wraps(type(value)) else None
    function = wrapped if isinstance(wrapped, types.FunctionType) else value
    return function if isinstance(function, types.FunctionType) else None


# -- identity -------------------------------------------------------------------------------------


Key = Callable[..., Any] | Sequence[str] | None
_FUNCTIONS = {
    "key": ", or a function of the arguments",
    "redact": ", or a function of a name and a value that gives a text",
}

_NOTHING = object()
Unknown = Mapping[str, Sequence[object]]
_NONE: Unknown = {}


class Parameters:
    """The parameters of a step or workflow, and the rules that distinguish its calls.

    Args:
        function: the plain function.
        ignore: names of parameters that do not tell calls apart, and of attributes of the instance
            (``self.session``).
        key: replaces all arguments in telling calls apart: a callable that gets the arguments, or
            names of parameters.
        secret: names of parameters whose values are stored nowhere; they are ignored as well.
        redact: names of parameters that are not shown.  Or a function of name and value that
            returns the text to show, or ``None`` for the usual one.
        what: for messages: ``step 'think'``.

    Attributes:
        hiding: the values of calls that are not stored, or not shown.
        instance_ignored: attributes that ``ignore`` and ``secret`` name as ``self.NAME``.

    Raises:
        ConfigurationError: ``ignore``, ``key``, ``secret`` or ``redact`` is not the names of
            parameters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        ignore: Iterable[str] = (),
        key: Key = None,
        secret: Iterable[str] = (),
        redact: Redact = (),
        what: str,
    ) -> None:
        self.what = what
        self._signature = _signature(function, what)
        self._called = f"{function.__qualname__}()"
        parameters = self._signature.parameters.values()
        kinds = {p.kind for p in parameters}
        self._simple = kinds <= {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }
        self._positional = [
            p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._names = {p.name for p in parameters}
        self._framed = {name: _digest.framed(name) for name in self._names}
        self._required = {p.name for p in parameters if p.default is p.empty}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._encoded_defaults: dict[str, bytes | None] = {}
        self._default_parts: dict[str, str] = {}  # of those that are atoms
        self._key: Callable[..., Any] | None = key if callable(key) else None
        self._function = function
        ignored, secret = self._check(ignore, "ignore"), self._check(secret, "secret")
        redacted = redact if callable(redact) else self._check(redact, "redact")
        self.hiding = Hiding(ignored, secret, redacted, self._defaults)
        self.instance_ignored = attributes_in(ignored | secret)
        self._ignored = (ignored | secret) & self._names
        if key is not None and not callable(key):
            kept = self._check(key, "key")
            if kept & secret:
                raise ConfigurationError(
                    f"{min(kept & secret)!r} of {self.what} is named by key= and by secret=: "
                    "a secret takes no part in the identity of a call"
                )
            self._ignored |= self._names - kept

    @cached
    def _left_out(self) -> set[str]:
        # Computed at the first call: configure(injected=...) may come after the import.
        return self._ignored | self._injected

    # These are computed on use: a step pickled by value keeps what __init__ made at the time.

    @cached
    def changeable_defaults(self) -> Mapping[str, Any]:
        """The defaults that a body may change, by parameter name."""
        return {n: each for n, each in self._defaults.items() if type(each) not in ATOMS}

    @cached
    def _counting(self) -> list[str]:
        return sorted(self._names - self._left_out)

    @cached
    def _injected(self) -> set[str]:
        return _injected(self._function, self._signature)

    @cached
    def _rest(self) -> str:
        """The name of ``*args`` if no parameter comes before it, else an empty text."""
        first = next(iter(self._signature.parameters.values()), None)
        return first.name if first is not None and first.kind is first.VAR_POSITIONAL else ""

    def _check(self, names: Iterable[str], option: str) -> set[str]:
        if isinstance(names, str):
            names = (names,)
        chosen = set(names) if isinstance(names, Iterable) else {names}
        if not all(isinstance(name, str) for name in chosen):
            function = _FUNCTIONS.get(option, "")
            raise ConfigurationError(
                f"{option}={names!r} of {self.what}: it is the names of parameters{function}; "
                f"the parameters are {sorted(self._names)!r}"
            )
        unknown = sorted(chosen - self._names)
        if option in ("ignore", "secret") and self._positional:  # it may be a method
            unknown = [name for name in unknown if not attributes_in([name])]
        if unknown:
            inner = inspect.signature(self._function).parameters
            hint = (
                f": put the decorator that supplies arguments above {self.what.partition(' ')[0]}"
            )
            raise ConfigurationError(
                f"{option}={sorted(chosen)!r} of {self.what}: it has no parameter {unknown[0]!r}; "
                f"its parameters are {sorted(self._names)!r}{hint if unknown[0] in inner else ''}"
            )
        return chosen

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return list(self._signature.parameters)

    @property
    def first(self) -> str | None:
        """The name of the first positional parameter; ``self`` if the parameter is in ``*args``."""
        if self._rest:
            return "self"
        return self._positional[0] if self._positional else None

    def take_instance(self, bound: dict[str, Any]) -> None:
        """Remove the instance of a method from the arguments that :meth:`bind` returned."""
        if self._rest:
            bound[self._rest] = bound[self._rest][1:]
        else:
            bound.pop(self.first or "", None)

    def has_instance(self, args: tuple[Any, ...], bound: Mapping[str, Any]) -> bool:
        """Return whether the first argument was removed as the instance."""
        if self._rest:
            return len(args) > len(bound.get(self._rest, ()))
        return bool(args) and self.first not in bound

    def call_of(
        self, values: Mapping[str, Any], method: str
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the instance, the positional and the keyword arguments of a call.

        Args:
            values: the arguments by parameter name.
            method: the parameter that has the instance; empty for a function.
        """
        names = self._signature.parameters
        by_name = {name: value for name, value in values.items() if name in names}
        call = inspect.BoundArguments(self._signature, OrderedDict(by_name))
        if not method:
            return None, call.args, call.kwargs
        if method in names:
            return call.args[0], call.args[1:], call.kwargs
        return values[method], call.args, call.kwargs

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name; extra ones under ``*args`` and their own names.

        Raises:
            TypeError: the call does not fit the signature.
        """
        if self._simple and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args))  # noqa: B905 -- parsing takes half the time
            bound.update(kwargs)
            if (
                len(bound) == len(args) + len(kwargs)
                and bound.keys() <= self._names
                and bound.keys() >= self._required
            ):
                return bound
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._called} {error}") from None

    def all_of(self, bound: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all arguments of a call: the passed ones, and the defaults in force.

        ``key=`` and ``ignore=`` leave no argument out.  Arguments that a framework injects are in
        neither.
        """
        kept = {name: value for name, value in bound.items() if name not in self._injected}
        passed = {n: v for n, v in kept.items() if v is not self._defaults.get(n, _NOTHING)}
        rest = self._defaults.keys() - passed.keys() - self._injected
        return passed, {
            name: self._defaults[name] for name in self._signature.parameters if name in rest
        }

    def replaced(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        bound: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, with some of those in ``bound`` replaced."""
        call = self._signature.bind(*args, **kwargs)
        call.arguments.update(values)
        if self._rest in values and self.has_instance(args, bound):
            call.arguments[self._rest] = (args[0], *values[self._rest])
        return call.args, call.kwargs

    def digest(
        self, bound: Mapping[str, Any], call: tuple[tuple[Any, ...], Mapping[str, Any]]
    ) -> str:
        """Digest a call; see :meth:`identify`."""
        return self.identify(bound, call)[0]

    def identify(
        self,
        bound: Mapping[str, Any],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
    ) -> tuple[str, dict[str, str], Unknown]:
        """Digest a call, as a whole and in parts.

        Args:
            bound: the result of :meth:`bind`, without a ``self``.
            call: the arguments as they were passed, for a ``key`` function.

        Returns:
            the digest of the arguments that differ from their default; by name, the parts (see
            above) of all arguments, with the value in force; and by name, the objects in them
            without a digest.

        Raises:
            DigestError: an argument cannot be part of an identity; the message names it and the way
                out.
        """
        if self._key is not None:
            args, kwargs = call
            digest = self._digest_key(self._key(*args, **kwargs))
            return digest, {KEY: digest[:8]}, _NONE
        encoded, unknown = self._passed(bound)
        parts = {name: short(each) for name, each in encoded.items()}
        for name in self._defaults:
            if name not in parts and name not in self._left_out:
                parts[name] = self._default_part(name)
        if self._defaults:
            encoded = {n: each for n, each in encoded.items() if not self._is_default(n, each)}
        return self.combined(encoded), parts, unknown

    def _passed(self, bound: Mapping[str, Any]) -> tuple[dict[str, bytes], Unknown]:
        """Encode the passed arguments; also return, by name, objects in them without a digest."""
        encoded: dict[str, bytes] = {}
        unknown: Unknown = _NONE
        numbering = None  # one for the whole call: arguments may share objects
        for name in self._counting:
            value = bound.get(name, _NOTHING)
            if value is _NOTHING or value is self._defaults.get(name, _NOTHING):
                continue
            encode = COMMON.get(type(value))
            if encode is not None:
                encoded[name] = encode(value)
                continue
            numbering = numbering or _digest.Numbering()
            encoded[name], without = self._encode(name, value, numbering)
            if without:
                unknown = {**unknown, name: without}
        return encoded, unknown

    def _is_default(self, name: str, encoded: bytes) -> bool:
        return name in self._defaults and encoded == self._encoded_default(name)

    def combined(self, encoded: Mapping[str, bytes]) -> str:
        """Digest the encodings of arguments."""
        parts: list[bytes] = []
        for name in sorted(encoded):
            parts += self._framed[name], LENGTH[len(encoded[name])], encoded[name]
        return _digest.combined(parts)

    def _default_part(self, name: str) -> str:
        """Return the part of a parameter that is at its default."""
        known = self._default_parts.get(name)
        if known is None:
            encoded = self._encoded_default(name)
            text, _ = digest_part(self._defaults[name])
            known = text if encoded is None or parse(text).volatile else short(encoded)
            if type(self._defaults[name]) in ATOMS:  # which nothing changes
                self._default_parts[name] = known
        return known

    def default_parts(self) -> dict[str, str]:
        """Return the parts of a step's parameters at their default."""
        return {n: self._default_part(n) for n in self._defaults if n not in self._left_out}

    def counting(self, bound: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments that tell calls apart, with defaults; ``None`` if ``key`` does."""
        if self._key is not None:
            return None
        given = {**self._defaults, **bound}
        return {name: given[name] for name in self._counting if name in given}

    @property
    def is_computed(self) -> bool:
        """True if a user's function of the arguments tells two calls apart."""
        return self._key is not None

    def in_force(self, bound: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str], list[str]]:
        """Encode the arguments by name, values of defaulted parameters included.

        Returns:
            the encodings; the names of the parameters that are at their default; and the names of
            the parameters that hold an object without a digest, other than a lock.

        Raises:
            DigestError: see :meth:`digest`.
        """
        passed, unknown = self._passed(bound)
        encoded: dict[str, bytes] = {}
        defaulted = []
        for name in self._signature.parameters:
            if name in passed and not self._is_default(name, passed[name]):
                encoded[name] = passed[name]
            elif name in self._defaults and name not in self._left_out:
                # A sentinel made for this parameter counts by its class.
                cls = type(self._defaults[name])
                stands = self._encoded_default(name)
                encoded[name] = stands or _digest.encode(_digest.class_name(cls))
                defaulted.append(name)
        by_class = [n for n in self.names if not all(map(is_lock, unknown.get(n, ())))]
        return encoded, defaulted, by_class

    def _digest_key(self, value: Any) -> str:
        try:
            return _digest.digest(value, _digest.Numbering())
        except DigestError as error:
            reason = str(error).replace("(at value", "(at key")
            raise DigestError(
                f"the result of key= of {self.what}: {reason}. Return plain data that "
                "distinguishes two calls: a string, a number, a tuple of them",
                path="key" + error.path,
                type_name=error.type_name,
            ) from None

    def _encode(
        self, name: str, value: Any, numbering: _digest.Numbering
    ) -> tuple[bytes, list[object]]:
        try:
            return of_argument(value, numbering)
        except DigestError as error:
            reason = str(error).replace("(at value", f"(at {name}")
            raise DigestError(
                f"argument {name!r} of {self.what}: {reason}. {_way_out(name, value)}",
                path=name + error.path,
                type_name=error.type_name,
            ) from None

    def _encoded_default(self, name: str) -> bytes | None:
        if name not in self._encoded_defaults:
            try:
                encoded = _digest.encode(self._defaults[name], _digest.Numbering())
            except DigestError:
                encoded = None  # no digest: only the default itself equals it
            self._encoded_defaults[name] = encoded
        return self._encoded_defaults[name]


def _way_out(name: str, value: Any) -> str:
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        return (
            "Pass a list of what it yields: a call that the journal answers would take nothing "
            "from it"
        )
    return (
        f"Leave it out of the identity with ignore=({name!r},), or choose with key= what "
        "distinguishes two calls"
    )


def _signature(function: Callable[..., Any], what: str) -> inspect.Signature:
    # functools.wraps shows the parameters of the wrapped function; a wrapper may supply some.
    if hasattr(function, "__wrapped__") or isinstance(
        function, (functools.partial, types.MethodType)
    ):
        from stepwise._rewrite.decorators import filled_in  # on use: few functions are wrapped

        function = filled_in(function)
    how: dict[str, Any] = {"follow_wrapped": hasattr(function, "__signature__")}
    if sys.version_info >= (3, 14):
        import annotationlib

        # A name that exists only for the type checker has no value.
        how["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        return inspect.signature(function, **how)
    except ValueError:  # some built-in functions have none
        raise ConfigurationError(
            f"{what} has no signature by which its calls could be told apart: decorate a function "
            "of yours that calls it"
        ) from None


# -- names and run ids ---------------------------------------------------------------------------


def label_of(function: Callable[..., Any]) -> str:
    """Return the short name of a function: its qualified name without the functions around it."""
    return function.__qualname__.rpartition("<locals>.")[2]


def derived_id(name: str, label: str, *digests: str) -> str:
    """Return the run id of a workflow called with these arguments."""
    return f"{_slug(label)}-{_digest.combine(name, *digests)[:12]}"


def random_id(label: str) -> str:
    """Return a run id that no other run has."""
    return f"{_slug(label)}-{os.urandom(6).hex()}"


def child_id(parent: str, label: str, digest: str, ordinal: int) -> str:
    """Return the run id of the ``ordinal``-th equal call of a child workflow in a run."""
    full = f"{parent}/{_slug(label)}-{_digest.digest((label, digest))[:16]}-{ordinal}"
    if len(full) <= 160:
        return full
    root = parent.partition("/")[0]
    return f"{root}/.../{hashlib.sha256(full.encode()).hexdigest()[:24]}"


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "_", label)[:60]


def idempotency_key(run_id: str, name: str, digest: str, ordinal: int, undone: int = 0) -> str:
    """Return a string that stays the same when this call is repeated, and is unique to the call.

    Args:
        run_id: id of the run.
        name, digest, ordinal: identify the call.
        undone: how often the run's side effects were undone.  A call made again after that is
            another act, which nobody outside may confuse with the undone one.
    """
    again = (str(undone),) if undone else ()
    return "sw-" + _digest.combine(run_id, name, digest, str(ordinal), *again)


def compensation_key(key: str) -> str:
    """Return the idempotency key for undoing the call with the given key."""
    return "sw-" + _digest.combine("compensate", key)


@functools.lru_cache(maxsize=1000)
def uncompared(cls: type) -> frozenset[str]:
    """Return the attributes of instances that ``==``, and so every identity, leaves out."""
    names = set(NOT_STATE)
    fields: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
    names.update(name for name, field in fields.items() if not field.compare)
    names.update(each.name for each in getattr(cls, "__attrs_attrs__", ()) if not each.eq)
    return frozenset(names)


@functools.lru_cache(maxsize=1000)
def reader_of(cls: type) -> Callable[[Any], Any] | None:
    """Return a function that reads the content of instances that are lists, strings or the like.

    Return ``None`` for classes whose instances hold attributes only.
    """
    return next((read for base, read in _READERS.items() if issubclass(cls, base)), None)


_READERS: dict[type, Callable[[Any], Any]] = {
    # These are methods of the builtin class: methods of a subclass may do anything.
    dict: lambda held: dict(dict.items(held)),
    list: lambda held: [*list.__iter__(held)],
    set: lambda held: {*set.__iter__(held)},
    str: str.__str__,
    tuple: lambda held: (*tuple.__iter__(held),),
    frozenset: lambda held: frozenset(frozenset.__iter__(held)),
    int: int.__int__,
    float: float.__float__,
    bytes: lambda held: bytes(memoryview(held)),
    bytearray: lambda held: bytes(memoryview(held)),
    collections.deque: lambda held: [*collections.deque.__iter__(held)],
    BaseException: lambda held: held.args,
}


# -- parameters that a framework injects ---------------------------------------------------------
#
# Parameters that a framework fills in are new at every call, and never part of an identity.  The
# annotation identifies them: one of the classes below, a generic alias of it, or ``Optional`` or
# ``Annotated`` with it.  A ``list`` of them is an argument like any other.

_INJECTED = {
    "RunContext": ("pydantic_ai", "livekit"),
    "RunContextWrapper": ("agents",),
    "ToolContext": ("agents", "google"),
    "RunnableConfig": ("langchain_core",),
    "ToolRuntime": ("langchain", "langgraph"),
    "Runtime": ("langgraph",),
    "InjectedState": ("langgraph",),
    "InjectedStore": ("langgraph",),
    "CallbackContext": ("google",),
    "Context": ("mcp", "fastmcp", "llama_index", "workflows"),
}
_AMBIGUOUS = {"Context", "Runtime"}  # ambiguous as bare words in a string


def _injected(function: Callable[..., Any], signature: inspect.Signature) -> set[str]:
    """Return the names of the parameters of ``function`` that a framework injects."""
    names = _AnnotationNames(getattr(inspect.unwrap(function), "__globals__", {}))
    return {
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not parameter.empty and _is_injected(parameter.annotation, names)
    }


def _is_injected(annotation: Any, names: _AnnotationNames) -> bool:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, {}, names)  # noqa: S307
        except Exception:  # an annotation may be anything; one that fails is not injected
            return False
        return not isinstance(annotation, str) and _is_injected(annotation, names)
    if isinstance(annotation, _Unknown):
        return annotation.is_injected()
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_injected(part, names) for part in typing.get_args(annotation))
    cls = origin if origin is not None else annotation
    return _is_known(cls if isinstance(cls, type) else type(cls))


def _is_known(cls: type) -> bool:
    roots = _INJECTED.get(cls.__qualname__, ())
    full = f"{cls.__module__}.{cls.__qualname__}"
    return cls.__module__.partition(".")[0] in roots or full in settings.injected()


# -- annotations that are strings ----------------------------------------------------------------


class _AnnotationNames(dict[str, Any]):
    """The namespace of an annotation, with placeholders for names that have no value here."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        super().__init__({**vars(builtins), **namespace})

    def __missing__(self, name: str) -> _Unknown:
        return _Unknown(name)


class _Unknown:
    """A class known only by its (dotted) name, which behaves like a class in an annotation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_injected(self) -> bool:
        """Return whether the name can only mean a class that is injected."""
        root, last = self._name.partition(".")[0], self._name.rpartition(".")[2]
        configured = settings.injected()
        return (
            (last in _INJECTED and (last not in _AMBIGUOUS or root in _INJECTED[last]))
            or self._name in configured
            or ("." not in self._name and any(full.endswith(f".{last}") for full in configured))
        )

    def __getattr__(self, part: str) -> _Unknown:
        if part.startswith("__"):
            raise AttributeError(part)
        return _Unknown(f"{self._name}.{part}")

    def __getitem__(self, arguments: Any) -> _Unknown:
        return self  # stands for a generic alias

    def __call__(self, *args: Any, **kwargs: Any) -> _Unknown:
        return self  # stands for an instance, in Annotated

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]
