"""Comparison of a value with its copy: types, items, order and attributes, to any depth.

``==`` is too weak here: a ``defaultdict`` equals a dict, ``True`` equals 1, and a list equals any
list of equal items.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

from stepwise._values.trees import NOT_STATE, attributes

_CONTAINERS = (list, tuple, deque, dict, set, frozenset)


def alike(one: Any, other: Any) -> bool:
    """Return whether a copy is indistinguishable from the value.

    Two time zones with the same fixed offset from UTC are alike, whatever their classes.  A
    pydantic model's set of passed fields does not count, as in its ``==``.
    """
    cls = type(one)
    if one is other or cls is not type(other) or issubclass(cls, (type, Enum)):
        return one is other
    for kind, compare in _ATOMS.items():
        if isinstance(one, kind):
            return compare(one, other) and (cls in _ATOMS or _alike_states(one, other))
    if isinstance(one, _CONTAINERS):
        return _alike_items(one, other) and _alike_states(one, other)
    # Attributes in classes of the standard library may be caches.
    if state_of(one) and cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
        return _alike_states(one, other)
    return bool(one == other)


def _alike_floats(one: float, other: float) -> bool:
    if math.isnan(one):
        return math.isnan(other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def _alike_times(one: Any, other: Any) -> bool:
    if one.replace(tzinfo=None) != other.replace(tzinfo=None) or one.fold != other.fold:
        return False
    zones = one.tzinfo, other.tzinfo
    if None in zones:
        return zones == (None, None)
    offsets = [zone.utcoffset(None) for zone in zones]
    if None in offsets:  # the offset of a zone depends on the date
        return type(zones[0]) is type(zones[1]) and bool(zones[0] == zones[1])
    return bool(offsets[0] == offsets[1])


def _alike_states(one: Any, other: Any) -> bool:
    return _alike_mappings(state_of(one), state_of(other), ordered=False)


def _alike_items(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple, deque)):
        if isinstance(one, deque) and one.maxlen != other.maxlen:
            return False
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
            return False
        return _alike_mappings(one, other, ordered=True)
    if isinstance(one, (set, frozenset)):
        found = {item: item for item in other}
        return len(one) == len(found) and all(
            item in found and alike(item, found[item]) for item in one
        )
    return True


def _alike_mappings(one: Any, other: Any, *, ordered: bool) -> bool:
    if len(one) != len(other):
        return False
    if ordered:
        return all(
            alike(*keys) and alike(*items)
            for keys, items in (
                zip(*pairs, strict=True) for pairs in zip(one.items(), other.items(), strict=True)
            )
        )
    return all(name in other and alike(held, other[name]) for name, held in one.items())


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance that a copy must have as well."""
    return {n: held for n, held in attributes(value).items() if n not in NOT_STATE}


def held_twice(value: Any) -> Any:
    """Return a mutable object that a value holds more than once, or ``None``."""
    met: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (*_ATOMS, type, Enum)):
            continue
        state = state_of(each)
        if isinstance(each, _CONTAINERS):
            waiting.extend([*each, *each.values()] if isinstance(each, dict) else each)
        waiting.extend(state.values())
        if isinstance(each, (list, dict, set, bytearray, deque)) or _can_change(each, state):
            if id(each) in met:
                return each
            met[id(each)] = each
    return None


def _can_change(value: Any, state: dict[str, Any]) -> bool:
    if not state or isinstance(value, dt.tzinfo):
        return False
    cls = type(value)
    parameters = getattr(cls, "__dataclass_params__", None)
    config = getattr(cls, "model_config", None)
    frozen = isinstance(config, dict) and config.get("frozen")
    return not frozen and not getattr(parameters, "frozen", False)


_ATOMS: dict[type, Callable[[Any, Any], bool]] = {
    str: operator.eq,
    bytes: operator.eq,
    int: operator.eq,
    bool: operator.eq,
    type(None): operator.is_,
    float: _alike_floats,
    complex: lambda a, b: _alike_floats(a.real, b.real) and _alike_floats(a.imag, b.imag),
    Decimal: lambda one, other: one.as_tuple() == other.as_tuple(),
    dt.datetime: _alike_times,
    dt.time: _alike_times,
}
