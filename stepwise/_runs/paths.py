"""Paths into recorded values: ``messages[3].content``; short texts of values, and what differs.

A path names a variable and a place inside it.  ``.name`` is a key of a dict or an attribute of an
instance, ``['key']`` a key, ``[3]`` an item, ``[0:10]`` some items.  No code of a user's class is
called: only plain containers, and what an instance holds in its ``__dict__`` and its slots, are
looked at.  Fields that the class itself does not show (``repr=False``) are not shown here either.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Any

from stepwise._display.terminal import shown_value
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import printable
from stepwise._values.credentials import is_secret_name, is_suspect, is_suspect_name
from stepwise._values.preview import HIDDEN as HIDDEN
from stepwise._values.preview import (
    NO_SECRETS,
    WITH_SHAPES,
    NotShown,
    is_of_python,
    preview,
    shown_fields,
    type_name,
)
from stepwise._values.trees import held_by, place_of
from stepwise.errors import ConfigurationError

# -- parts of values ------------------------------------------------------------------------------


_ORDERED = (list, tuple, deque)
_TEXTS = (str, bytes, bytearray)
_CONTAINERS = (*_ORDERED, dict, set, frozenset)
_ATOMS = frozenset((str, bytes, int, float, bool, complex, type(None)))
_PLAIN = (*_TEXTS, int, float, complex, type(None))
_SINGLE = (type, types.ModuleType, types.FunctionType)  # described by their names


class _Absent:
    """The place of a value that does not exist."""


ABSENT: Any = _Absent()


def _is(value: object, *kinds: type) -> bool:
    """Return whether a value is an instance, without asking its class (``__class__``)."""
    return issubclass(type(value), kinds)


def fields_of(value: Any) -> dict[str, Any]:
    """Return what an instance holds, by attribute, as far as its class shows it."""
    cls = type(value)
    if (
        cls in _ATOMS
        or _is(value, *_SINGLE)
        or any("get_secret_value" in vars(base) for base in cls.__mro__)
    ):
        return {}
    shown = shown_fields(cls)
    if shown is not None and issubclass(cls, tuple):
        return dict(zip(shown, tuple.__iter__(value), strict=False))
    held = held_by(value)
    names = held if shown is None else (name for name in shown if name in held)
    return {name: held[name] for name in names if name[:2] != "__"}


def _items(value: Any) -> list[Any]:
    """Return the items of a list, tuple, deque or set, whatever its class overrides."""
    kind: Any = next(each for each in (*_ORDERED, set, frozenset) if _is(value, each))
    return [*kind.__iter__(value)]


def length_of(value: Any) -> int | None:
    """Return the number of items or characters of a plain value; ``None`` for other values."""
    for kind in (*_CONTAINERS, *_TEXTS):
        if _is(value, kind):
            return int(kind.__len__(value))
    return None


def size_of(value: Any, most: int = 20_000) -> int:
    """Return about how many bytes of memory a value takes, with what it holds.

    Args:
        most: how many objects are counted; of a larger value, the size of so many.
    """
    todo: list[Any] = [value]
    met, size = set[int](), 0
    while todo and len(met) < most:
        each = todo.pop()
        if type(each) in _ATOMS:  # almost always
            size += sys.getsizeof(each)
            most -= 1
            continue
        if id(each) in met or _is(each, *_SINGLE):
            continue
        met.add(id(each))
        size += _own_size(each)
        if _is(each, dict):
            pairs = islice(dict.items(each), most)
            todo += [part for pair in pairs for part in pair]
        elif _is(each, *_CONTAINERS):
            todo += _items(each)[:most]
        todo += fields_of(each).values()
    return size


def _own_size(value: Any) -> int:
    if type(value) in (*_CONTAINERS, *_TEXTS):
        return sys.getsizeof(value)
    buffer = value.nbytes if type(value).__module__ == "numpy" else 0
    return int(buffer) + object.__sizeof__(value) + 8 * (length_of(value) or 0)


# -- looking up -----------------------------------------------------------------------------------


_LONGEST = 1000  # characters of a path
_PART = re.compile(
    r"""\.?(?P<name>[^\W\d]\w*)|\[(?P<inside>(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]'"])*)\]"""
)
_SLICE = re.compile(r"\s*(-?\d{1,18})?\s*:\s*(-?\d{1,18})?\s*")


class _PathName(str):
    """A part that is written ``.name``: a key or an attribute."""

    __slots__ = ()


def parsed(path: str) -> list[Any]:
    """Return the parts of a path: names, keys, indices and slices.

    Raises:
        ConfigurationError: the text is not a path; the message shows how one is written.
    """
    parts: list[Any] = []
    at = 0
    while at < len(path) <= _LONGEST:
        found = _PART.match(path, at)
        if found is None or (bool(parts) != (path[at] in ".[")):
            break
        try:
            parts.append(_PathName(found["name"]) if found["name"] else _key(found["inside"]))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            break
        at = found.end()
    if at < len(path) or not parts:
        raise ConfigurationError(
            f"{path[:80]!r} is not a path (see its character {at + 1}). Write a variable, then "
            "parts of it, like messages[3].content, config['max tokens'] or notes[0:10]"
        )
    return parts


def _key(text: str) -> Any:
    piece = _SLICE.fullmatch(text)
    if piece is not None:
        return slice(*(int(each) if each else None for each in piece.groups()))
    return ast.literal_eval(text.strip())


def find(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path.

    Args:
        values: the variables, by name.

    Raises:
        ConfigurationError: the text is not a path, or there is no such value; the message names
            the part that is missing, and what there is.
    """
    value: Any = dict(values)
    done = ""
    for part in parsed(path):
        inside = _part_of(value, part)
        if inside is ABSENT:
            raise ConfigurationError(_missing(value, part, done))
        value, done = inside, joined(done, part)
    return value


def find_recorded(of: Any, path: str) -> Any:
    """Return a part of the arguments or the result of a step or a run.

    Args:
        of: a :class:`stepwise.StepRecord` or a :class:`stepwise.Run`.
        path: begins with ``arguments`` or ``result``: ``arguments.messages[3]``, ``result``.

    Raises:
        ConfigurationError: there is no such value; the message says what there is.
        UnreadableValueError: it was not recorded, or cannot be loaded here.
    """
    first = parsed(path)[0]
    if first not in ("arguments", "result"):
        raise ConfigurationError(
            f"{path[:80]!r} is no path of it: write arguments.NAME or result, and then a part of "
            "it, like result.choices[0]"
        )
    if first == "result" and of.status != "completed":
        raise ConfigurationError(f"it has no result: it is {of.status.replace('_', ' ')}")
    return find({first: of.inputs if first == "arguments" else of.result}, path)


def _part_of(value: Any, part: Any) -> Any:
    if type(part) is slice or (type(part) is int and not _is(value, dict)):
        return _cut_out(value, part)
    if _is(value, dict):
        key = str(part) if type(part) is _PathName else part
        for each, held in dict.items(value):
            if _same_key(each, key):
                return held
    return fields_of(value).get(part, ABSENT) if type(part) is _PathName else ABSENT


def _same_key(one: Any, other: Any) -> bool:
    if _is(one, str) and _is(other, str):  # the member of an enumeration may be a text
        return str.__eq__(one, other)
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_same_key, one, other))
    return type(one) in (str, bytes, int, float, bool, complex, type(None)) and bool(one == other)


def _cut_out(value: Any, part: Any) -> Any:
    if _is(value, *_TEXTS):
        kind: Any = next(each for each in _TEXTS if _is(value, each))
        value = kind.__getitem__(value, slice(None))
    elif _is(value, dict):
        return dict([*dict.items(value)][part])
    elif _is(value, *_CONTAINERS):
        value = _items(value)
    else:
        return ABSENT
    try:
        return value[part]
    except IndexError:
        return ABSENT


def _missing(value: Any, part: Any, done: str) -> str:
    if not done:
        there = ", ".join(f"{name}" for name in islice(value, 20))
        more = f" and {len(value) - 20} more" if len(value) > 20 else ""
        return f"there is no {part}; there is {there or 'nothing'}{more}"
    return f"{done} has no {joined('', part)}: it is {_described(value)}"


def _described(value: Any) -> str:
    """Return what a value is and what it holds, in words."""
    kind, length = type_name(value), length_of(value)
    if _is(value, dict):
        keys = [preview(key, 40) for key in islice(dict.keys(value), 12)]
        rest = ", ..." if dict.__len__(value) > len(keys) else ""
        return f"a {kind} of {length:,} with the keys {', '.join(keys)}{rest}" if keys else "empty"
    held = fields_of(value)
    if held:
        names, rest = ", ".join(islice(held, 12)), ", ..." if len(held) > 12 else ""
        return f"a {kind} with the attributes {names}{rest}"
    if length is None:
        return f"a {kind}"
    unit = "characters" if _is(value, str) else "bytes" if _is(value, *_TEXTS) else "items"
    return f"a {kind} of {length:,} {unit}"


def joined(path: str, part: Any) -> str:
    """Return a path with one more part, as :func:`find` reads it."""
    if type(part) is slice:
        ends = ("" if each is None else str(each) for each in (part.start, part.stop))
        return f"{path}[{':'.join(ends)}]"
    if type(part) in (str, _PathName) and part.isidentifier():
        return f"{path}.{part}" if path else str(part)
    return f"{path}[{part!r}]"


# -- short texts ----------------------------------------------------------------------------------


JSON_ROOM = 3000  # characters of a value for a coding agent; twice as many at most
_JSON = 7000  # characters of all variables as JSON
_WHOLE = 1 << 1000  # characters: a room that no value fills
_MOST_SHOWN = 100_000  # characters
_LEAST = 24  # characters that a part gets before others are left out
_DEEPEST = 8
_MOST_CUT = 4  # paths that are named
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_LONGEST_KEY = 200  # characters
_LARGEST_KEY = 10**18


class Short(NamedTuple):
    """A value as short text.

    Args:
        text: its ``repr``, with ``…`` for what was cut out.
        cut: the paths of parts that were cut out.
    """

    text: str
    cut: tuple[str, ...] = ()


def short(value: Any, path: str, room: int = 200) -> Short:
    """Return the text of a value, and the paths at which its cut parts are found.

    Secrets by name, and texts that look like credentials, are masked.

    Args:
        path: the path of the value.
        room: about how many characters the text may have; it is never twice as long.
    """
    made = _Shortener()
    text = NO_SECRETS.cleaned_text(made.text(value, path, room, _last_name(path)))
    if len(text) > 2 * room:
        text, made.cut = f"{text[:room]}…", [path]
    return Short(text, tuple(dict.fromkeys(made.cut))[:_MOST_CUT])


def shown(value: Any, path: str, most: int = _MOST_SHOWN) -> str:
    """Return the whole value of a path as printable text, without secrets by name and credentials.

    Args:
        path: the path of the value.
        most: characters of the text; of a longer one the middle is left out.
    """
    text = _Shortener(whole=True).text(value, path, _WHOLE, _last_name(path))
    return printable(NO_SECRETS.cleaned_text(text), most)


def short_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables as short texts, whose JSON has about 8,000 characters at most.

    ``locals`` has the texts, ``cut`` the paths of cut parts, and ``left_out`` the number of
    variables that have no room.
    """
    found: dict[str, Any] = {}
    for room in (JSON_ROOM, 1500, 700, 300, 150, 80, 40):
        texts = {name: short(value, name, room) for name, value in values.items()}
        left = _JSON
        found = {"locals": {}, "cut": []}
        for name, (text, cut) in texts.items():
            left -= len(json.dumps([name, text, *cut[:1]])) + 12
            if left < 0:
                break
            found["locals"][name] = text
            found["cut"] += cut[:1]
        found["left_out"] = len(values) - len(found["locals"])
        if not found["left_out"]:
            break
    return found


def _last_name(path: str) -> str:
    return str(next((each for each in reversed(parsed(path)) if _is(each, str)), ""))


class _Shortener:
    """The texts of a value and its parts, each with a share of the room."""

    def __init__(self, *, whole: bool = False) -> None:
        self.cut: list[str] = []
        self.whole, self._deepest = whole, 100 if whole else _DEEPEST
        self._inside: set[int] = set()  # containers, by id; a value may hold itself

    def text(self, value: Any, path: str, room: int, name: str = "", depth: int = 0) -> str:
        if _is(value, NotShown):
            return repr(value)
        if _is(value, *_TEXTS):
            secret = _is(value, str) and _is_secret(name, value)
            return HIDDEN if secret else self._long(value, path, room)
        if place_of(value) is not None or _is(value, type):
            lacking = _is(value, type) and vars(value).get("_stands_for")  # this program lacks it
            return f"<{lacking}>" if lacking else preview(value, room)
        held = fields_of(value)
        around = functools.partial(
            self._around, value, path=path, room=room, name=name, depth=depth
        )
        if held and (shown_fields(type(value)) is not None or _is_users(value)):
            return around("()", [*held.items()], "=")
        if _is(value, *_CONTAINERS):
            is_dict = _is(value, dict)
            ends = "[]" if _is(value, list, deque) else "()" if _is(value, tuple) else "{}"
            parts = [*dict.items(value)] if is_dict else [*enumerate(_items(value))]
            return around(ends, parts, ": " if is_dict else "")
        if self.whole and not _is_users(value) and is_of_python(value):
            text = shown_value(value, _MOST_SHOWN)
        else:
            text = preview(value, max(room, 20))
        if "..." in text and held:
            self.cut.append(path)
        return text

    def _long(self, value: Any, path: str, room: int) -> str:
        kind: Any = next(each for each in _TEXTS if _is(value, each))
        size = int(kind.__len__(value))
        if size <= room and len(text := kind.__repr__(value)) <= room + 2:
            return str(text)
        self.cut.append(path)
        back = room // 4
        front = kind.__repr__(kind.__getitem__(value, slice(0, room - back)))
        end = kind.__repr__(kind.__getitem__(value, slice(size - back, size))) if back else "''"
        unit = "characters" if kind is str else "bytes"
        return f"{front[: room - back]}…{end[-back - 1 :]} ({size:,} {unit})"

    def _around(
        self,
        value: Any,
        ends: str,
        parts: list[tuple[Any, Any]],
        sign: str,
        path: str,
        room: int,
        name: str,
        depth: int,
    ) -> str:
        """Return the text of a container or an instance: as many parts as there is room for.

        If not all have room, the last ones are shown as well as the first: they are the newest.

        Args:
            parts: the parts with their keys.
            sign: stands between a key and a part; empty for items, whose keys are not shown.
        """
        cls, count = type(value), len(parts)
        kind = "" if cls in (list, tuple, dict) or (cls is set and parts) else type_name(value)
        if not parts and _is(value, set, frozenset):
            return f"{kind}()"
        if parts and (id(value) in self._inside or depth > self._deepest or room < _LEAST):
            self.cut.append(path)
            return f"{kind}{ends[0]}… {count:,}{ends[1]}"
        if self.whole:
            self._inside.add(id(value))
        left = room - len(kind) - 2
        front: list[str] = []
        back: list[str] = []
        few = count * _needed(parts) <= room  # all have room, and share it evenly
        while len(front) + len(back) < count and (few or left >= _LEAST):
            first = few or len(front) <= len(back)
            key, part = parts[len(front) if first else -1 - len(back)]
            is_text = self.whole and type(key) is str
            said = key if sign == "=" else repr(key) if is_text else preview(key, 60)
            before = f"{said}{sign}" if sign else ""
            share = left // (count - len(front)) if few else left // 3
            has_path = _has_path(key) and (sign or ends != "{}")  # not an item of a set
            inner = joined(path, key) if has_path else path
            held_as = key if type(key) is str else name  # each item of "passwords" is one
            if cls is tuple and count == 2 and key == 1 and type(value[0]) is str:  # of a header
                held_as = value[0]
            share = max(16, share - len(before) - 2)
            text = before + self.text(part, inner, share, held_as, depth + 1)
            (front if first else back).append(text)
            left -= len(text) + 2
        self._inside.discard(id(value))
        texts = [*front, *reversed(back)]
        if len(texts) < count:
            texts.insert(len(front), f"… {count - len(texts):,} more …")
            last = slice(len(front), count - len(back))
            self.cut.insert(0, path if sign else joined(path, last))
        inside = ", ".join(texts)
        inside += "," if cls is tuple and len(texts) == 1 else ""
        text = f"{ends[0]}{inside}{ends[1]}"
        return f"{kind}({text})" if kind and ends != "()" else f"{kind}{text}"


def _has_path(key: Any) -> bool:
    """Return whether a key can be written in a path."""
    if type(key) is tuple:
        return len(key) <= _DEEPEST and all(map(_has_path, key))
    if type(key) in (str, bytes):
        return len(key) <= _LONGEST_KEY
    if type(key) is float:
        return isfinite(key)  # ``inf`` is no literal
    return type(key) in (bool, type(None)) or (
        type(key) is int and -_LARGEST_KEY < key < _LARGEST_KEY
    )


def _needed(parts: list[tuple[Any, Any]]) -> int:
    """Return how many characters a part needs to tell something, judged by the first and last."""
    ends = [part for _, part in (*parts[:1], *parts[-1:])]
    inside = any(_is(each, *_CONTAINERS) or fields_of(each) for each in ends)
    return 3 * _LEAST if inside and len(parts) > 3 else _LEAST


def _is_secret(name: str, value: Any) -> bool:
    if not name:
        return False
    return is_secret_name(name) or (is_suspect_name(name) and is_suspect(str.__str__(value)))


def _is_users(value: Any) -> bool:
    """Return whether the class of a value is neither Python's nor an extension's."""
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    libraries = module in sys.stdlib_module_names or module in WITH_SHAPES
    return bool(cls.__flags__ & _MADE_BY_PYTHON) and not libraries


# -- differences ----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A part that two values do not share, as short texts.

    Args:
        path: the path of the part.
        old, new: the part in either value; ``None`` if the value does not have it.
        cut: the paths of parts that were cut out of ``new``.
    """

    path: str
    old: str | None
    new: str | None
    cut: tuple[str, ...] = ()


def same_value(one: Any, other: Any) -> bool:
    """Return whether two recorded values are the same, without calling code of their classes."""
    return next(_differing(one, other, "x", set()), None) is None


def differences(
    one: Any, other: Any, path: str, most: int = 3, room: int = 120
) -> list[Difference]:
    """Return the parts in which two values differ, the deepest that tell; none if they are equal.

    Args:
        one, other: the values; ``ABSENT`` for a variable that is missing.
        path: their path.
        most: the number of parts; where more differ, the whole is the part.
        room: characters of a text.
    """
    found = [*islice(_differing(one, other, path, set()), most + 1)]
    if len(found) > most:
        found = [(path, one, other)]
    return [_shown_difference(*each, room) for each in found]


def _shown_difference(path: str, old: Any, new: Any, room: int) -> Difference:
    if type(old) is str and type(new) is str and max(len(old), len(new)) > room:
        return _of_long_texts(path, shown(old, path), shown(new, path), room)
    before = short(old, path, room).text if old is not ABSENT else None
    after, cut = short(new, path, room) if new is not ABSENT else (None, ())
    return Difference(path, before, after, cut)


def _of_long_texts(path: str, one: str, other: str, room: int) -> Difference:
    """Return the difference of two texts, each cut to what is around the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    begin, end = max(0, at - room // 2), max(room, at + room // 2)
    before, after = (
        f"{'…' * bool(begin)}{each[begin:end]}{'…' * (len(each) > end)}" for each in (one, other)
    )
    return Difference(path, before, after, (path,) if after != other else ())


_Differing = Iterator[tuple[str, Any, Any]]


def _differing(one: Any, other: Any, path: str, met: set[tuple[int, int]]) -> _Differing:
    if one is other or (id(one), id(other)) in met:
        return
    met.add((id(one), id(other)))
    if _class_name(one) != _class_name(other):
        yield path, one, other
    elif _is(one, *_PLAIN):
        base: Any = next(each for each in _PLAIN if _is(one, each))
        # NaN does not equal itself, and a large int has no text.
        by_text = base in (float, complex)
        if base.__repr__(one) != base.__repr__(other) if by_text else base.__ne__(one, other):
            yield path, one, other
    elif _is(one, dict):
        yield from _differing_keys(one, other, path, met)
    elif _is(one, *_ORDERED) and shown_fields(type(one)) is None:
        yield from _differing_items(_items(one), _items(other), path, met)
    elif _is(one, set, frozenset):
        if sorted(map(_text, _items(one))) != sorted(map(_text, _items(other))):
            yield path, one, other
    elif (_is_users(one) or shown_fields(type(one))) and (fields_of(one) or fields_of(other)):
        # What the class does not show counts, too, and is named as the whole.
        olds, news = (held_by(each) or fields_of(each) for each in (one, other))
        shown = fields_of(one).keys() | fields_of(other).keys()
        for name in dict.fromkeys((*olds, *news)):
            inner = f"{path}.{name}" if name in shown else path
            old, new = olds.get(name, ABSENT), news.get(name, ABSENT)
            found = _differing(old, new, inner, met)
            yield from found if name in shown else ((path, one, other) for _ in islice(found, 1))
    elif not _library_equal(one, other):
        yield path, one, other


def _differing_keys(one: Any, other: Any, path: str, met: set[tuple[int, int]]) -> _Differing:
    olds, news = ({_named(k): (k, v) for k, v in dict.items(each)} for each in (one, other))
    for name in dict.fromkeys((*olds, *news)):
        key = (olds.get(name) or news[name])[0]
        inner = joined(path, key) if _has_path(key) else path
        old, new = (each[name][1] if name in each else ABSENT for each in (olds, news))
        yield from _differing(old, new, inner, met)


def _named(key: Any) -> Any:
    return (type(key), key) if type(key) in (str, int, bytes, float, bool) else _text(key)


def _differing_items(
    one: list[Any], other: list[Any], path: str, met: set[tuple[int, int]]
) -> _Differing:
    for number, (old, new) in enumerate(zip(one, other, strict=False)):
        if type(old) is type(new) and type(old) in _ATOMS and old == new:  # almost always
            continue
        yield from _differing(old, new, f"{path}[{number}]", met)
    least = min(len(one), len(other))
    if len(one) != len(other):
        last = max(len(one), len(other))
        key: Any = slice(least, last) if last - least > 1 else least
        old, new = (each[key] if len(each) > least else ABSENT for each in (one, other))
        yield joined(path, key), old, new


def _class_name(value: object) -> tuple[str, str]:
    """Return the name of a class, since each load makes new placeholders for missing classes."""
    cls = type(value)
    return cls.__module__, cls.__qualname__


def _text(value: Any) -> str:
    """Return the text of a value, without memory addresses."""
    return _without_addresses(preview(value, 10_000))


def _library_equal(one: Any, other: Any) -> bool:
    """Compare objects of Python's library and of extensions by equality or by their text."""
    if _is_users(one):
        return True  # it holds nothing
    with contextlib.suppress(Exception):  # an array has no truth
        if bool(one == other):
            return True
    for method in ("tobytes", "equals", "equal"):  # of numpy; of pandas and others; of torch
        compare = getattr(one, method, None)
        with contextlib.suppress(Exception):
            if compare is not None and (
                compare() == other.tobytes() if method == "tobytes" else bool(compare(other))
            ):
                return True
    if type(one).__module__.partition(".")[0] in WITH_SHAPES:
        return False  # their texts leave out the middle
    return _without_addresses(shown_value(one, 1 << 40)) == _without_addresses(
        shown_value(other, 1 << 40)
    )


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
