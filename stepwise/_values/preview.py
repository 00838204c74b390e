"""The display form of values: shortened to a line, and without secrets.

No code of a user's class is called: a ``__repr__`` may load data, or query a database.  An object
is shown by its fields if its class has a generated ``__repr__``, otherwise by its class.

A value is a secret from the moment at which it is passed as one.  The texts of a secret are the
value itself, if it is a text, bytes or a number, or else the texts inside a container or instance.
Short texts would mask half of every message.  They are therefore not searched for: below four
characters, or below eight in a container.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import re
import reprlib
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from stepwise._values.trees import held_by, place_of
from stepwise._values.unpickling import Data

# -- preview --------------------------------------------------------------------------------------


Mask = Callable[[str], str]

_SHORT = frozenset({type(None), bool, float})
_SORTED = frozenset({*_SHORT, int, str, bytes})
_SMALL = 10**18
_TEXT = 80  # characters of a text, and of an argument
_ARGUMENTS = 400  # characters of all arguments of a call
_INNER_TEXT = 40  # characters of a text inside a container
_ITEMS = 6  # of a list or a tuple
_PAIRS = 8  # of a dict
_ALL = 1 << 60  # characters: no text is that long


class _Repr(reprlib.Repr):
    """``reprlib`` with shorter texts for large values, and without memory addresses.

    Args:
        text: the maximum length of a text, in characters.
        mask: replaces hidden parts of a text, before the text is shortened.
    """

    def __init__(self, text: int, mask: Mask | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.maxlevel = 4
        self.maxdeque = _ITEMS
        self.maxstring = text
        self.maxother = _TEXT
        self.maxlong = 40

    def whole(self, x: Any, room: int = _ALL) -> str:
        """Return the text of a value, masked as a whole, too; never raise."""
        try:
            text = self.repr1(x, self.maxlevel, room)
            return text if self.mask is None else self.mask(text)  # also numbers and keys
        except Exception as error:  # nested too deeply even for repr1's own handler
            return f"<{type(error).__name__} in repr>"

    def repr1(self, x: Any, level: int, room: int = _ALL) -> str:
        """Return the text of a value.

        Args:
            room: the number of characters that are needed; a longer text may end anywhere after
                them.
        """
        kind = type(x)  # the code below is many times as fast as the inherited method
        if kind is str:
            if self.mask is not None:
                x = self.mask(x)
            if len(x) <= self.maxstring and len(text := repr(x)) <= self.maxstring:
                return text
        elif kind in _SHORT or (kind is int and -_SMALL < x < _SMALL):
            return repr(x)
        try:
            form = _FORMS.get(kind)  # the inherited method looks it up by the type's name
            if form is not None:
                return form(self, x, level, room)
            known = kind in _KNOWN or kind.__module__ == "array"
            return super().repr1(x, level) if known else self.repr_instance(x, level)
        except Exception as error:  # from a library's __repr__
            return f"<{type(x).__name__}: {type(error).__name__} in repr>"

    def long_text(self, x: str, _level: int, _room: int) -> str:
        """Return the beginning and the end of a long text."""
        front = (self.maxstring - 3) // 2
        back = self.maxstring - 3 - front
        text = repr(x[:front] + x[len(x) - back :])
        return f"{text[:front]}...{text[-back:]}"

    def list_(self, x: list[Any], level: int, room: int) -> str:
        return f"[{self.items(x, level - 1, room)}]"

    def tuple_(self, x: tuple[Any, ...], level: int, room: int) -> str:
        end = ",)" if len(x) == 1 and level > 0 else ")"
        return f"({self.items(x, level - 1, room)}{end}"

    def items(self, x: Collection[Any], level: int, room: int) -> str:
        if level < 0 and x:
            return "..."
        shown = []
        for each in itertools.islice(x, _ITEMS):
            text = self.repr1(each, level, room)
            shown.append(text)
            room -= len(text)
            if room < 0:
                break
        return ", ".join(shown + ["..."] * (len(x) > _ITEMS))

    def repr_instance(self, x: Any, level: int) -> str:
        cls = type(x)
        names, place = shown_fields(cls), place_of(x)
        if place is not None:
            return f"<{'.'.join(place)}>"
        if names is not None:
            if level <= 0:
                return f"{cls.__name__}(...)"
            is_tuple = issubclass(cls, tuple)
            held = dict(zip(names, tuple.__iter__(x), strict=False)) if is_tuple else held_by(x)
            shown = [f"{n}={self.repr1(held.get(n, '?'), level - 1)}" for n in names[:4]]
            return f"{cls.__name__}({', '.join(shown + ['...'] * (len(names) > 4))})"
        if cls.__module__.partition(".")[0] in WITH_SHAPES and hasattr(x, "shape") and x.shape:
            return f"<{cls.__name__} {'x'.join(map(str, x.shape))}>"
        if issubclass(cls, dict):  # OrderedDict, Counter
            return f"{cls.__name__}({self.repr_dict(x, level)})"
        if isinstance(x, type):
            text = type.__repr__(x)  # the metaclass may have a __repr__
        elif _repr_of(cls) is object.__repr__ or _asks_others(x):
            text = f"<{cls.__name__}>"
        else:
            text = repr(x) if self.mask is None else self.mask(repr(x))
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"

    def set_(self, x: set[Any] | frozenset[Any], level: int, room: int) -> str:
        few = [*(x if len(x) <= 50 else itertools.islice(x, _ITEMS + 1))]  # sorting all is slow
        if _SORTED.issuperset(map(type, few)):
            with contextlib.suppress(TypeError):
                few.sort()
        text = f"{{{self.items(few, level - 1, room)}}}" if x else ""
        return text if x and type(x) is set else f"{type(x).__name__}({text})"

    def repr_dict(self, x: dict[Any, Any], level: int, room: int = _ALL) -> str:
        if (place := place_of(x)) is not None:
            return f"<{'.'.join(place)}>"
        if level <= 0 and x:
            return "{...}"
        shown = []
        for key, item in itertools.islice(dict.items(x), _PAIRS):
            text = f"{self.repr1(key, level - 1, room)}: {self.item(key, item, level - 1, room)}"
            shown.append(text)
            room -= len(text)
            if room < 0:
                break
        return f"{{{', '.join(shown + ['...'] * (dict.__len__(x) > _PAIRS))}}}"

    def item(self, key: Any, item: Any, level: int, room: int) -> str:
        """Return the text of an item of a dict."""
        return self.repr1(item, level, room)

    def repr_bytes(self, x: bytes, level: int, room: int = _ALL) -> str:
        if len(x) > 40:
            return f"<{len(x)} bytes>"
        return repr(x) if self.mask is None else self.mask(repr(x))

    def repr_function(self, x: Any, level: int) -> str:
        return f"<function {x.__qualname__}>"


def shown_fields(cls: type) -> list[str] | None:
    """Return the fields that the class itself would show; a password is often left out."""
    if hasattr(cls, "__dataclass_fields__"):
        from dataclasses import fields  # on use: importing it takes a fiftieth of a start

        return [f.name for f in fields(cls) if f.repr]
    if hasattr(cls, "__pydantic_validator__"):
        return [name for name, f in getattr(cls, "model_fields", {}).items() if f.repr]
    if hasattr(cls, "__attrs_attrs__"):
        return [each.name for each in cls.__attrs_attrs__ if each.repr]
    return list(cls._fields) if issubclass(cls, tuple) and hasattr(cls, "_fields") else None


def _repr_of(cls: type) -> Any:
    return next(vars(base)["__repr__"] for base in cls.__mro__ if "__repr__" in vars(base))


def is_of_python(x: Any) -> bool:
    """Return whether the ``repr`` of an object calls code of Python or of arrays only."""
    return type(x).__module__.partition(".")[0] in WITH_SHAPES or not _asks_others(x)


def _asks_others(x: Any) -> bool:
    """Return whether the ``repr`` of an object calls, or might call, code that is not Python's.

    The objects that it holds are examined as well, since its ``repr`` may show them.
    """
    waiting, met = [x], set[int]()
    while waiting:
        each = waiting.pop()
        cls = type(each)
        if id(each) in met or (met and issubclass(cls, _SHOWN_BY_NAME)):
            continue
        own = _repr_of(cls)
        if isinstance(own, types.FunctionType):
            module = str(own.__globals__.get("__name__"))
            if module.partition(".")[0] not in sys.stdlib_module_names:
                return True
        elif not isinstance(own, types.WrapperDescriptorType):
            return True
        met.add(id(each))
        if len(met) > _LOOK:
            return True
        is_error = issubclass(cls, BaseException)  # which also refers to its traceback
        waiting += _args.__get__(each) if is_error else gc.get_referents(each)
    return False


_args: Any = BaseException.args
_LOOK = 200  # maximum number of objects to examine
_SHOWN_BY_NAME = (type, types.ModuleType, types.FunctionType, types.CodeType)
WITH_SHAPES = frozenset(
    (
        "cupy",
        "jax",
        "jaxlib",
        "numpy",
        "pandas",
        "polars",
        "pyarrow",
        "scipy",
        "tensorflow",
        "torch",
    )
)
"""Packages whose objects are shown with their shapes."""

_KNOWN = frozenset(
    (
        *(collections.deque, int, str),
        *(types.BuiltinFunctionType, types.FunctionType),
    )
)
"""Types that the inherited method handles."""

_FORMS: dict[type, Callable[[_Repr, Any, int, int], str]] = {
    str: _Repr.long_text,
    bytes: _Repr.repr_bytes,
    dict: _Repr.repr_dict,
    list: _Repr.list_,
    tuple: _Repr.tuple_,
    set: _Repr.set_,
    frozenset: _Repr.set_,
}
_alone, _inside = _Repr(_TEXT), _Repr(_INNER_TEXT)


def preview(value: object, limit: int = 200, *, mask: Mask | None = None) -> str:
    """Return ``repr(value)``, shortened to ``limit`` characters; never raise.

    Args:
        mask: replaces hidden parts of a text.
    """
    kind = type(value)
    if mask is None and (kind in _SHORT or (kind is int and -_SMALL < value < _SMALL)):  # type: ignore[operator]
        text = repr(value)
    else:
        short = _alone if kind is str else _inside
        if mask is not None:
            short = _Repr(short.maxstring, mask)
        room = limit if mask is None else _ALL  # a mask may shorten its text
        text = short.whole(value, room)
    return _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


_BY_CONTENT: tuple[type, ...] = (
    *(str, bool, int, float, complex, type(None), bytes, range),
    *(dict, list, tuple, set, frozenset, collections.deque),
)
_LONGEST = 1 << 16  # characters: longer texts are not searched for what must be masked


def is_plain(value: object) -> bool:
    """Return whether a value is of exactly one of Python's own types for data."""
    cls = type(value)
    return any(cls is each for each in _BY_CONTENT)  # ``in`` would ask a user's metaclass


class PlainPreview(_Repr):
    """The display of plain values and containers; another object is shown by its type alone.

    Args:
        mask: replaces hidden parts of a text.
        instead: returns the text in place of a hidden value, else an empty text, by the key of a
            dict (else an empty text) and the value.
        until: the time, by ``time.thread_time()``, after which parts are left out.
    """

    def __init__(self, mask: Mask, instead: Callable[[str, object], str], until: float) -> None:
        super().__init__(_TEXT, mask)
        self._instead, self._until = instead, until

    def of(self, value: object, limit: int = 200) -> str:
        """Return the text of a value, in at most ``limit`` characters; never raise."""
        return _cut(self.whole(value), limit)

    def repr1(self, x: Any, level: int, room: int = _ALL) -> str:
        """Return the text of a value."""
        if not is_plain(x):
            return f"<{type_name(x)}>"
        cls = type(x)
        if time.thread_time() > self._until:
            return "..."
        if text := self._instead("", x):
            return text
        if cls is str and len(x) > _LONGEST:
            return f"<a text of {len(x):,} characters>"
        return super().repr1(x, level, room)

    def item(self, key: Any, item: Any, level: int, room: int) -> str:
        """Return the text of an item of a dict, or the text in place of a hidden value."""
        hidden = self._instead(key, item) if type(key) is str else ""
        return hidden or self.repr1(item, level, room)


_name_of_type = type.__dict__["__name__"].__get__


def type_name(value: object) -> str:
    """Return the name of an object's class without asking its metaclass."""
    text: str = _name_of_type(type(value))
    return text


def error_text(error: BaseException) -> str:
    """Return ``str(error)``; never raise."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__qualname__}, whose text cannot be shown>"


def short_repr(value: object) -> str:
    """Return ``repr(value)`` in at most 40 characters; never raise."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"
    return _cut(text, _INNER_TEXT)


def preview_arguments(
    arguments: Mapping[str, object],
    *,
    instead: Callable[[str, object], str | None] | None = None,
    mask: Mask | None = None,
) -> str:
    """Return ``name=value, name=value``, shortened.

    Args:
        instead: returns the replacement text of a hidden argument; ``None`` for the usual text.
        mask: replaces hidden parts of a text.
    """
    shown = []
    for name, value in arguments.items():
        text = instead(name, value) if instead is not None else None
        shown.append(f"{name}={preview(value, _TEXT, mask=mask) if text is None else text}")
    return _cut(", ".join(shown), _ARGUMENTS)


# -- secrets --------------------------------------------------------------------------------------


HIDDEN = "<secret>"
"""The text that replaces a secret."""

_LEAST, _LEAST_INSIDE = 4, 8  # minimum length of a text to search for
_DEPTH = 6
_MARKS_OF_DATA = (
    "__dataclass_fields__",
    "__pydantic_validator__",
    "__attrs_attrs__",
    "get_secret_value",
)


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a value: its own, or the texts in the data that it holds.

    A client, or any other object that is not data, is left out: it holds too many texts that are
    no secrets (``utf-8``).
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = str(value)
        if len(text) >= (_LEAST_INSIDE if depth else _LEAST):
            yield text
    elif depth < _DEPTH:
        for item in _items(value):
            yield from texts_in(item, depth + 1)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    from stepwise._values.comparison import state_of  # on use

    cls = type(value)
    is_data = any(hasattr(cls, mark) for mark in _MARKS_OF_DATA)
    return state_of(value).values() if is_data and not isinstance(value, type) else ()


class Secrets:
    """The secrets of a run and of its child runs that were passed so far.

    Attributes:
        are_none: whether no secret was passed; faster than ``bool()`` for several checks a step.
    """

    def __init__(self) -> None:
        self.are_none = True
        self._mutex = threading.Lock()
        self._texts: dict[str, str] = {}
        self._objects: dict[int, tuple[Any, str]] = {}
        self._forms: list[tuple[bytes, str]] = []
        self._pattern: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        return not self.are_none

    def add(self, secret: Mapping[str, Any]) -> None:
        """Add secret values, by the names of their parameters."""
        with self._mutex:
            for name, value in secret.items():
                known = self._objects.get(id(value))
                if value is None or isinstance(value, bool) or known is not None:
                    continue
                self._objects[id(value)] = value, name
                self.are_none = False
                for text in texts_in(value):
                    self._texts.setdefault(text, name)
            # The longest first, since one text may begin with another.
            written = {form: name for text, name in self._texts.items() for form in _forms(text)}
            self._forms = [(_bytes(form), name) for form, name in written.items()]
            forms = sorted(written, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    def mask(self, text: str) -> str:
        """Replace the texts of secrets, plain and as programs write them into other texts."""
        return self._pattern.sub(HIDDEN, text) if self._pattern is not None else text

    def masked(self, value: Any) -> Any:
        """Replace the texts of secrets in plain data; return anything else unchanged."""
        return _mapped(value, self.mask, self._texts)

    def cleaned_text(self, text: str) -> str:
        """Replace secrets, and texts that look like credentials, in the text of an error."""
        from stepwise._values.credentials import masked_error_text  # on use

        return masked_error_text(self.mask(text))

    def cleaned(self, value: Any) -> Any:
        """Apply :meth:`cleaned_text` to plain data; return anything else unchanged."""
        return _mapped(value, self.cleaned_text, self._texts)

    def changes(self, value: Any) -> bool:
        """Return whether :meth:`cleaned` would change plain data."""
        try:
            return bool(self.cleaned(value) != value)
        except RecursionError:
            return False

    def holds(self, value: Any) -> bool:
        """Return whether a value is a known secret."""
        known = self._objects.get(id(value))
        if known is not None and known[0] is value:
            return True
        if isinstance(value, (bytes, bytearray)):
            most = 4 * max(map(len, self._texts), default=0)  # bytes of the longest
            value = value[: most + 1].decode("utf-8", "replace")
        return type(value) in (str, int, float) and str(value) in self._texts

    def found_in(self, data: Data) -> str:
        """Return the parameter whose secret text occurs in these bytes, or an empty text."""
        if not self._forms:
            return ""
        whole = bytes(data)
        return next((name for form, name in self._forms if form in whole), "")

    def preview(self, value: object) -> str:
        """Return a preview of a value, masked before it is shortened."""
        if isinstance(value, BaseException):
            return preview(value, mask=self.cleaned_text)
        return preview(value, mask=self.mask if self._pattern is not None else None)


def _mapped(value: Any, mask: Callable[[str], str], numbers: Container[str]) -> Any:
    """Return plain data with masked texts; a secret number becomes a text."""
    cls = type(value)
    if cls is str:
        return mask(value)
    if cls in (int, float):
        return HIDDEN if str(value) in numbers else value
    if cls in (bytes, bytearray):
        text = value.decode("utf-8", "surrogateescape")
        return cls(mask(text).encode("utf-8", "surrogateescape"))
    if cls in (list, tuple, set, frozenset):
        return cls(_mapped(item, mask, numbers) for item in value)
    if cls is dict:
        return {
            _mapped(key, mask, numbers): _mapped(each, mask, numbers) for key, each in value.items()
        }
    return value


def _forms(text: str) -> list[str]:
    """Return a text as it is, and in the forms of ``repr``, JSON, URLs and base64."""
    import json

    written = [repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    in_base64 = _in_base64(text) if len(text) >= _LEAST_INSIDE else []
    return list(dict.fromkeys([text, *written, *_in_urls(text), *in_base64]))


def _restorable(text: str) -> list[str]:
    """Return the forms that can be made from another secret as well: plain, and in URLs."""
    from urllib.parse import quote, quote_plus

    data = _bytes(text)
    return [text, quote(data, safe=""), quote(data), quote_plus(data)]


def _in_urls(text: str) -> list[str]:
    found = _restorable(text)
    lower = [re.sub("%[0-9A-F]{2}", lambda each: each[0].lower(), form) for form in found]
    return [*found, *lower]


def _in_base64(text: str) -> list[str]:
    """Return the part of the text's base64 that is the same at any offset, as in basic auth."""
    from base64 import b64encode

    found = []
    for before in range(3):
        data = bytes(before) + _bytes(text)
        whole = b64encode(data + bytes(-len(data) % 3)).decode()
        end = len(data) * 8 // 6  # characters without a bit of the following text
        found.append(whole[(before * 8 + 5) // 6 : end])
    urlsafe = [each.replace("+", "-").replace("/", "_") for each in found]
    return [*found, *urlsafe]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


NO_SECRETS = Secrets()
"""The secrets of a run without any; nothing is ever added."""


# -- in pickles of variables ---------------------------------------------------------------------

REFERENCE = "?"
"""The first part of a reference that replaces a secret in a pickle."""

_Reference = tuple[str, str, Any]


class SecretReferences:
    """References that replace the secrets of one call in a pickle: the names of their parameters.

    Args:
        secret: the values by name.
    """

    def __init__(self, secret: Mapping[str, Any]) -> None:
        known = {n: v for n, v in secret.items() if v is not None and not isinstance(v, bool)}
        self._objects = {id(value): name for name, value in known.items()}
        self._atoms = {(type(v), v): n for n, v in known.items() if type(v) in (str, int, float)}
        self._texts: dict[str, tuple[str, int, int]] = {}
        for name, value in known.items():
            for index, text in enumerate(texts_in(value)):
                for form, written in enumerate(_restorable(text)):
                    self._texts.setdefault(written, (name, index, form))
        longest = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest))})") if longest else None

    def of(self, obj: Any) -> _Reference | None:
        """Return the reference that replaces a secret, or a text with a secret in it."""
        cls = type(obj)
        if cls in (str, int, float):
            name = self._atoms.get((cls, obj))
            if name is not None:
                return REFERENCE, "whole", name
        elif id(obj) in self._objects:
            return REFERENCE, "whole", self._objects[id(obj)]
        if cls is str:
            return self._in_text("text", obj)
        return self._in_text("bytes", obj.decode("utf-8", "replace")) if cls is bytes else None

    def _in_text(self, form: str, text: str) -> _Reference | None:
        parts = self._pattern.split(text) if self._pattern is not None else [text]
        if len(parts) == 1 or (form == "bytes" and "\ufffd" in text):
            return None
        return REFERENCE, form, [self._texts[p] if n % 2 else p for n, p in enumerate(parts)]


def restored(reference: _Reference, secret: Mapping[str, Any]) -> Any:
    """Return the object of a reference, made from the secrets of the current call.

    Raises:
        LookupError: the call has no such secret.
    """
    _, form, parts = reference
    if form == "whole":
        return secret[parts]
    text = "".join(
        part
        if isinstance(part, str)
        else _restorable([*texts_in(secret[part[0]])][part[1]])[part[2]]
        for part in parts
    )
    return text.encode() if form == "bytes" else text


# -- hidden arguments -----------------------------------------------------------------------------


Redact = Iterable[str] | Callable[[str, Any], str | None]

_SELF = "self."


def attributes_in(names: Iterable[str]) -> frozenset[str]:
    """Return the attributes of the instance (``self.NAME``) among names of parameters."""
    attributes = (name.removeprefix(_SELF) for name in names if name.startswith(_SELF))
    return frozenset(name for name in attributes if name.isidentifier())


class Hiding:
    """The options ``ignore``, ``secret`` and ``redact`` of one step or workflow.

    Args:
        defaults: the default values of the parameters, by name.

    Attributes:
        secret: parameters whose values are never stored; attributes as ``self.NAME``.
        defaults: the defaults of the secret parameters.
        hides: whether any argument may be shown as another text.
    """

    def __init__(
        self,
        ignored: AbstractSet[str],
        secret: AbstractSet[str],
        redact: AbstractSet[str] | Callable[[str, Any], str | None],
        defaults: Mapping[str, Any],
    ) -> None:
        self.secret = secret
        self.defaults = {name: defaults[name] for name in secret & defaults.keys()}
        self._all_defaults = defaults
        self._redact = redact if callable(redact) else None
        self._only_ignored = ignored - secret - (set() if callable(redact) else redact)
        self._instead = {
            **dict.fromkeys(ignored, "<ignored>"),
            **dict.fromkeys(() if callable(redact) else redact, "<redacted>"),
            **dict.fromkeys(secret, HIDDEN),
        }
        self.hides = bool(self._instead or self._redact is not None)

    def secrets_of(self, bound: Mapping[str, Any], instance: Any = None) -> dict[str, Any]:
        """Return the values of a call's secrets, by name."""
        if not self.secret:
            return {}
        found = {**self.defaults, **{name: bound[name] for name in self.secret & bound.keys()}}
        if instance is not None:
            for name in attributes_in(self.secret):
                found[f"{_SELF}{name}"] = getattr(instance, name, None)
        return found

    def stored(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call without its secrets."""
        if not self.secret:
            return bound
        return {name: value for name, value in bound.items() if name not in self.secret}

    def shown(self, bound: Mapping[str, Any], secrets: Secrets) -> str:
        """Return the arguments of a call as text, without hidden values."""
        if secrets.are_none and not self.hides:
            return preview_arguments(bound)
        instead = self.instead if self.hides else None
        return preview_arguments(bound, instead=instead, mask=secrets.mask if secrets else None)

    def hidden_in(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of hidden arguments, and of hidden attributes as ``self.NAME``."""
        attributes = (name for name in self._instead if name.startswith(_SELF))
        return (*self.names(bound), *attributes)

    def variables(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the hidden variables: arguments, those left at their default, too."""
        return self.names({**self._all_defaults, **bound}) if self.hides else ()

    def names(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the arguments that are hidden."""
        return tuple(name for name, value in bound.items() if self.instead(name, value) is not None)

    def instead(self, name: str, value: Any, *, ignored: bool = True) -> str | None:
        """Return the text shown instead of an argument; ``None`` for the usual text.

        Args:
            ignored: False for a person who decides about the call, and who sees ignored arguments.
        """
        text = self._instead.get(name) if ignored or name not in self._only_ignored else None
        if text is not None or self._redact is None:
            return text
        try:
            given = self._redact(name, value)
            return None if given is None else str(given)
        except Exception as error:  # the user's function failed: the value stays hidden
            return f"<{type(error).__name__} in redact>"


NO_HIDING = Hiding(frozenset(), frozenset(), frozenset(), {})
"""The options of a call that stores and shows everything."""


class NotShown:
    """The text in place of a value that is not shown, or was not recorded."""

    def __init__(self, text: str = "<not shown>") -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return type(other) is NotShown and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


NOT_SHOWN = NotShown()
"""The text in place of a variable that holds a hidden parameter."""
