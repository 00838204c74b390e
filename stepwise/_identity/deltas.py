"""Changes of attributes and captured variables, recorded so that they can be repeated.

A change is recorded as what was added, where that can be told: a history that grows by two messages
at each call costs two messages a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from stepwise._values.addresses import same

__all__ = ["MISSING", "WHOLE", "Delta", "applied", "as_data", "copied", "delta"]

Delta = tuple[Any, ...]
MISSING: Any = object()  # an attribute that is not there
WHOLE: Delta = ("whole",)
"""The object is changed inside; what it holds now is recorded as a whole."""

_NUMBERS = (int, float)


def copied(value: Any) -> Any:
    """Return a container's items, to compare with later; ``None`` for anything else."""
    kind = type(value)
    if kind is list or kind is deque:
        return list(value)
    if kind is SimpleNamespace:
        return dict(vars(value))
    return kind(value) if kind in (dict, set) else None


def delta(before: Any, held: Any, now: Any) -> Delta:
    """Return how a value changed into another.

    Args:
        held: what it held before, see :func:`copied`.
    """
    if now is MISSING:
        return ("gone",)
    if now is not before:
        return _replaced(before, held, now)
    inside = _INSIDE.get(type(now))
    return inside(held, now) if inside is not None else WHOLE


def _replaced(before: Any, held: Any, now: Any) -> Delta:
    if type(now) is type(before):
        if type(now) in _NUMBERS:
            return "number", before, now
        if type(now) is tuple and same(list(before), list(now[: len(before)])):
            return "longer", now[len(before) :]
        if type(now) is list and same(held, now[: len(held)]):
            return "longer", now[len(held) :]
    return "value", now


def _list(held: list[Any], now: list[Any]) -> Delta:
    if same(held, now[: len(held)]):
        return ("append", now[len(held) :]) if len(now) > len(held) else WHOLE
    return "contents", list(now)


def _dict(held: dict[Any, Any], now: dict[Any, Any]) -> Delta:
    put = {k: v for k, v in now.items() if k not in held or held[k] is not v}
    gone = [key for key in held if key not in now]
    return ("update", put, gone) if put or gone else WHOLE


def _set(held: set[Any], now: set[Any]) -> Delta:
    return "members", now - held, held - now


def _deque(held: list[Any], now: deque[Any]) -> Delta:
    return WHOLE if same(held, list(now)) else ("contents", list(now))


_INSIDE: dict[type, Callable[[Any, Any], Delta]] = {
    list: _list,
    dict: _dict,
    set: _set,
    deque: _deque,
    SimpleNamespace: lambda held, now: _dict(held, vars(now)),
}


def applied(change: Delta, now: Any) -> Any:
    """Repeat a change on today's value, in place where it was made in place; give the value."""
    kind, *what = change
    if type(now) is SimpleNamespace and kind == "update":
        applied(change, vars(now))
    elif kind == "append" and isinstance(now, list):
        now.extend(what[0])
    elif kind == "update" and isinstance(now, dict):
        now.update(what[0])
        for key in what[1]:
            now.pop(key, None)
    elif kind == "members" and isinstance(now, set):
        now |= what[0]
        now -= what[1]
    elif kind == "contents" and isinstance(now, list):
        now[:] = what[0]
    elif kind == "contents" and isinstance(now, deque):
        now.clear()
        now.extend(what[0])
    elif kind == "number":
        before, after = what
        now = now + (after - before) if type(now) is type(after) and now != before else after
    elif kind == "longer" and isinstance(now, (list, tuple)):
        now = type(now)([*now, *what[0]])
    elif kind == "gone":
        now = MISSING
    elif kind == "value":
        now = what[0]
    return now


def as_data(change: Delta, now: Any) -> Delta:
    """A change of a container inside, which has no pickle to be a part of, as its new contents."""
    if change != WHOLE:
        return change
    if type(now) is list or type(now) is deque:
        return "contents", list(now)
    return ("update", dict(now), []) if type(now) is dict else WHOLE
