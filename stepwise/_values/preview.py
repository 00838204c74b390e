"""Values shortened to a line, for listings and messages.  Imports nothing of ours."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

__all__ = ["error_text", "preview", "preview_arguments"]

Mask = Callable[[str], str]

_SHORT = frozenset({type(None), bool, float})
_SMALL = 10**18
_TEXT = 80  # characters of a text, and of an argument
_INNER_TEXT = 40  # characters of a text inside a container
_ITEMS = 6  # of a list or a tuple
_PAIRS = 8  # of a dict
_ALL = 1 << 60  # characters: no text is that long


class _Repr(reprlib.Repr):
    """``reprlib``, with the large and the address-bearing kept short.

    Args:
        text: characters of a text.
        mask: replaces what must not be shown in a text, before that is shortened.
    """

    def __init__(self, text: int, mask: Mask | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = _ITEMS
        self.maxdict = _PAIRS
        self.maxstring = text
        self.maxother = _TEXT
        self.maxlong = 40

    def repr1(self, x: Any, level: int, room: int = _ALL) -> str:
        """Return the text of a value.

        Args:
            room: the characters that are needed: a longer text may end anywhere behind them.
        """
        kind = type(x)  # the code below is many times as fast as the inherited way
        if kind is str:
            if self.mask is not None:
                x = self.mask(x)
            if len(x) <= self.maxstring and len(text := repr(x)) <= self.maxstring:
                return text
        elif kind in _SHORT or (kind is int and -_SMALL < x < _SMALL):
            return repr(x)
        try:
            form = _FORMS.get(kind)  # the inherited way looks it up by the name of the type
            return form(self, x, level, room) if form is not None else super().repr1(x, level)
        except Exception as error:  # a user's __repr__, __getattr__ or __len__
            return f"<{type(x).__name__}: {type(error).__name__} in repr>"

    def long_text(self, x: str, _level: int, _room: int) -> str:
        """The two ends of a text."""
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
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple):
            return f"<{cls.__name__} {'x'.join(map(str, shape))}>"
        names = _shown(cls)
        if names is not None:
            if level <= 0:
                return f"{cls.__name__}(...)"
            shown = [f"{n}={self.repr1(getattr(x, n, '?'), level - 1)}" for n in names[:4]]
            return f"{cls.__name__}({', '.join(shown + ['...'] * (len(names) > 4))})"
        if isinstance(x, dict):  # OrderedDict, Counter
            return f"{cls.__name__}({self.repr_dict(x, level)})"
        if getattr(cls, "__repr__", None) is object.__repr__:
            return f"<{cls.__name__}>"
        text = repr(x) if self.mask is None else self.mask(repr(x))
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"

    # The inherited ones sort all the items first.

    def repr_set(self, x: set[Any], level: int) -> str:
        return super().repr_set(set(self._few(x)), level)

    def repr_frozenset(self, x: frozenset[Any], level: int) -> str:
        return super().repr_frozenset(frozenset(self._few(x)), level)

    def _few(self, x: Collection[Any]) -> Iterable[Any]:
        return x if len(x) <= 50 else itertools.islice(x, self.maxset + 1)

    def repr_dict(self, x: dict[Any, Any], level: int, room: int = _ALL) -> str:
        if level <= 0 and x:
            return "{...}"
        shown = []
        for key, item in itertools.islice(x.items(), _PAIRS):
            text = f"{self.repr1(key, level - 1, room)}: {self.repr1(item, level - 1, room)}"
            shown.append(text)
            room -= len(text)
            if room < 0:
                break
        return f"{{{', '.join(shown + ['...'] * (len(x) > _PAIRS))}}}"

    def repr_bytes(self, x: bytes, level: int, room: int = _ALL) -> str:
        if len(x) > 40:
            return f"<{len(x)} bytes>"
        return repr(x) if self.mask is None else self.mask(repr(x))

    def repr_function(self, x: Any, level: int) -> str:
        return f"<function {x.__qualname__}>"


def _shown(cls: type) -> list[str] | None:
    """The fields that the class itself would show; a password is often not one of them."""
    if hasattr(cls, "__dataclass_fields__"):
        from dataclasses import fields  # on use, as everywhere in a start: it costs a fiftieth

        return [f.name for f in fields(cls) if f.repr]
    if hasattr(cls, "__pydantic_validator__"):
        return [name for name, f in getattr(cls, "model_fields", {}).items() if f.repr]
    return list(cls._fields) if issubclass(cls, tuple) and hasattr(cls, "_fields") else None


_FORMS: dict[type, Callable[[_Repr, Any, int, int], str]] = {
    str: _Repr.long_text,
    bytes: _Repr.repr_bytes,
    dict: _Repr.repr_dict,
    list: _Repr.list_,
    tuple: _Repr.tuple_,
}
_alone, _inside = _Repr(_TEXT), _Repr(_INNER_TEXT)


def preview(value: object, limit: int = 200, *, mask: Mask | None = None) -> str:
    """``repr(value)``, shortened to ``limit`` characters; never raises.

    Args:
        mask: replaces what must not be shown in a text.
    """
    kind = type(value)
    if mask is None and (kind in _SHORT or (kind is int and -_SMALL < value < _SMALL)):  # type: ignore[operator]
        text = repr(value)
    else:
        short = _alone if kind is str else _inside
        if mask is not None:
            short = _Repr(short.maxstring, mask)
        room = limit if mask is None else _ALL  # a mask may shorten what it is given
        try:
            text = short.repr1(value, short.maxlevel, room)
            if mask is not None:
                text = mask(text)  # of numbers, of keys
        except Exception as error:  # too deep to be told even that
            text = f"<{type(error).__name__} in repr>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def error_text(error: BaseException) -> str:
    """``str(error)``; never raises."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__qualname__}, whose text cannot be shown>"


def preview_arguments(
    arguments: Mapping[str, object],
    limit: int = 400,
    *,
    instead: Callable[[str, object], str | None] | None = None,
    mask: Mask | None = None,
) -> str:
    """``name=value, name=value``, shortened.

    Args:
        instead: gives the text of an argument that is not to be shown as it is.
        mask: replaces what must not be shown in a text.
    """
    if instead is None and mask is None:
        shown = [f"{name}={preview(value, _TEXT)}" for name, value in arguments.items()]
    else:
        shown = []
        for name, value in arguments.items():
            text = instead(name, value) if instead is not None else None
            shown.append(f"{name}={preview(value, _TEXT, mask=mask) if text is None else text}")
    text = ", ".join(shown)
    return text if len(text) <= limit else text[: limit - 3] + "..."
