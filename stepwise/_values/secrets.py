"""Values that must not be stored or shown: the known secrets, and the masking of texts.

A value is a secret from the moment at which it is passed as one.  Its texts are the value itself,
if that is a text, bytes or a number, and the texts inside it, if it is a container or an instance.
Short texts would mask half of every message: below four characters, or eight in a container, they
are not looked for.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwise._values.buffers import Data
from stepwise._values.preview import preview

__all__ = [
    "HIDDEN",
    "NO_SECRETS",
    "REFERENCE",
    "SECRET_NAMES",
    "SecretReferences",
    "Secrets",
    "is_secret_name",
    "plain_name",
    "restored",
]

HIDDEN = "<secret>"
"""The mark in place of the text of a secret."""

_SHORT, _SHORT_INSIDE = 4, 8  # characters of a text that is looked for, at least
_DEPTH = 6
_MARKS_OF_DATA = (
    "__dataclass_fields__",
    "__pydantic_validator__",
    "__attrs_attrs__",
    "get_secret_value",
)


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a value: its own, or those in the data that it holds.

    A client or another object that is no data holds too much that is no secret (``utf-8``).
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = str(value)
        if len(text) >= (_SHORT_INSIDE if depth else _SHORT):
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
    """The secrets of a run and of its child runs, as far as they were passed yet.

    Attributes:
        are_none: no secret was passed; asked several times a step, where ``bool()`` is a call.
    """

    def __init__(self) -> None:
        self.are_none = True
        self._mutex = threading.Lock()
        self._texts: dict[str, str] = {}
        self._objects: dict[int, tuple[Any, str]] = {}
        self._pattern: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        return not self.are_none

    def add(self, secret: Mapping[str, Any]) -> None:
        """Know these values, by the names of their parameters."""
        with self._mutex:
            for name, value in secret.items():
                known = self._objects.get(id(value))
                if value is None or isinstance(value, bool) or known is not None:
                    continue
                self._objects[id(value)] = value, name
                self.are_none = False
                for text in texts_in(value):
                    self._texts.setdefault(text, name)
            # The longest first: one may begin with another.
            longest = sorted(self._texts, key=len, reverse=True)
            forms = dict.fromkeys(each for text in longest for each in _forms(text))
            self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    def mask(self, text: str) -> str:
        """Replace the texts of secrets, plain and as ``repr`` and JSON write them."""
        return self._pattern.sub(HIDDEN, text) if self._pattern is not None else text

    def masked(self, value: Any) -> Any:
        """Replace the texts of secrets in plain data; anything else is returned as it is."""
        cls = type(value)
        if cls is str:
            return self.mask(value)
        if cls in (bytes, bytearray):
            text = value.decode("utf-8", "surrogateescape")
            return cls(self.mask(text).encode("utf-8", "surrogateescape"))
        if cls in (list, tuple, set, frozenset):
            return cls(self.masked(item) for item in value)
        if cls is dict:
            return {self.masked(key): self.masked(item) for key, item in value.items()}
        return value

    def holds(self, value: Any) -> bool:
        """Return whether a value is one of the secrets."""
        known = self._objects.get(id(value))
        if known is not None and known[0] is value:
            return True
        if isinstance(value, (bytes, bytearray)):
            value = value.decode("utf-8", "replace")
        return isinstance(value, str) and value in self._texts

    def found_in(self, data: Data) -> str:
        """Return the parameter whose secret text is in these bytes, or an empty text."""
        if not self._texts:
            return ""
        whole = bytes(data)
        for text, name in list(self._texts.items()):
            if any(form.encode("utf-8", "surrogatepass") in whole for form in _forms(text)):
                return name
        return ""

    def preview(self, value: object) -> str:
        """A preview of a value, masked before it is shortened."""
        return preview(value, mask=self.mask if self._pattern is not None else None)


def _forms(text: str) -> list[str]:
    """A text as it is, and as ``repr`` and JSON write it."""
    import json

    written = [repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    return list(dict.fromkeys([text, *written]))


NO_SECRETS = Secrets()
"""Those of a run that has none; nothing is ever added."""


# -- in pickles of variables ---------------------------------------------------------------------

REFERENCE = "?"
"""The first part of what stands for a secret in a pickle."""

_Reference = tuple[str, str, Any]


class SecretReferences:
    """Placeholders for the secrets of one call in a pickle: the names of their parameters.

    Args:
        secret: the values by name.
    """

    def __init__(self, secret: Mapping[str, Any]) -> None:
        known = {n: v for n, v in secret.items() if v is not None and not isinstance(v, bool)}
        self._objects = {id(value): name for name, value in known.items()}
        self._atoms = {(type(v), v): n for n, v in known.items() if type(v) in (str, int, float)}
        self._texts: dict[str, tuple[str, int]] = {}
        for name, value in known.items():
            for index, text in enumerate(texts_in(value)):
                self._texts.setdefault(text, (name, index))
        longest = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest))})") if longest else None

    def of(self, obj: Any) -> _Reference | None:
        """Return the reference that replaces a secret, or a text that contains one."""
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
    """Return the object for a reference, made from the secrets of the current call.

    Raises:
        LookupError: the call has no such secret.
    """
    _, form, parts = reference
    if form == "whole":
        return secret[parts]
    text = "".join(
        part if isinstance(part, str) else [*texts_in(secret[part[0]])][part[1]] for part in parts
    )
    return text.encode() if form == "bytes" else text


# -- names that say that a value is a secret -----------------------------------------------------

SECRET_NAMES = r"""
    (x_(goog_)?)?api_?key | (aws_)?secret(_access)?_key | aws_access_key_id | private_key
    | (ocp_apim_)?subscription_key | (client_)?secret | passw(or)?d | passphrase | credentials?
    | ((api|access|refresh|id|(x_)?auth|bearer|(aws_)?session|security)_)?token | jwt
    | (proxy_)?authorization | (set_)?cookies?
"""  # noqa: S105  # names, no secrets
"""The names, as a verbose regular expression over :func:`plain_name`."""

_FIELD = re.compile(SECRET_NAMES, re.VERBOSE)


@functools.lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return whether a field, header or attribute of this name holds a secret."""
    return _FIELD.fullmatch(plain_name(name)) is not None


def plain_name(name: str) -> str:
    """Return ``api_key`` for ``apiKey``, ``Api-Key`` and ``_api_key``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").strip("_")
