"""Locks, events, semaphores, conditions, barriers and queues: to their state, and back.

Pickle refuses most of them.  Their state is little: whether an event is set, how far a semaphore
has counted, the items of a queue.  One that somebody holds or waits for has no state that another
process could go on with.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

__all__ = [
    "is_as_it_was",
    "is_synchronizer",
    "lock_of",
    "put_state",
    "snapshot",
    "state_of",
    "synchronizer_form",
]

_SHARED = ("multiprocessing.queues", "multiprocessing.synchronize")
_SIMPLE = ("queue.SimpleQueue", "_queue.SimpleQueue")
_LOCKS = ("_thread.lock", "_thread.RLock", "threading._RLock", "asyncio.locks.Lock")
_CONDITIONS = ("threading.Condition", "asyncio.locks.Condition")
_SEMAPHORES = ("threading.Semaphore", "asyncio.locks.Semaphore")
_BARRIERS = ("threading.Barrier", "asyncio.locks.Barrier")
_QUEUES = ("queue.Queue", "asyncio.queues.Queue")
_EVENTS = ("threading.Event", "asyncio.locks.Event")
_KINDS = frozenset((*_SIMPLE, *_LOCKS, *_CONDITIONS, *_SEMAPHORES, *_BARRIERS, *_QUEUES, *_EVENTS))
_MACHINERY = frozenset(
    (
        *("_cond", "_waiters", "_loop", "_lock", "mutex", "not_empty", "not_full"),
        *("all_tasks_done", "_getters", "_putters", "_finished"),
    )
)
"""Attributes that are made anew: what waits, and what it waits with."""


@functools.lru_cache(maxsize=1000)
def _kind_of(cls: Any) -> str:
    for base in cls.__mro__:
        module: str = base.__module__
        name = f"{module}.{base.__qualname__}"
        if module in _SHARED or name in _KINDS:
            return module if module in _SHARED else name
    return ""


def is_synchronizer(value: object) -> bool:
    """Return whether tasks or threads coordinate by an object."""
    cls: Any = type(value)
    return bool(_kind_of(cls))


def lock_of(value: Any) -> Any:
    """Return the lock that a condition enters when it is entered; ``None`` for others."""
    cls: Any = type(value)
    return value._lock if _kind_of(cls) in _CONDITIONS else None


def synchronizer_form(value: Any, entered: int = 0) -> Any:
    """Return the reduced form of a lock, event or the like; ``NotImplemented`` for others.

    Args:
        entered: see :func:`state_of`.
    """
    cls: Any = type(value)
    kind = _kind_of(cls)
    if not kind:
        return NotImplemented
    state = state_of(value, entered)
    if kind in _CONDITIONS:
        return cls, (value._lock,)
    if kind in _MADE:
        return _lock, (kind,)
    return _synchronizer, (cls, kind, state.get("_parties")), state, None, None, put_state


def state_of(value: Any, entered: int = 0) -> dict[str, Any]:
    """Return the state of a lock, event or the like; a lock that nobody holds has none.

    Args:
        entered: how many times the code that goes on later has entered it, and enters it again.

    Raises:
        TypeError: it is held, or somebody waits for it.
    """
    cls: Any = type(value)
    kind = _kind_of(cls)
    if kind in _SHARED:
        raise TypeError("its state is with the processes that share it")
    if kind in _SIMPLE:
        raise TypeError("it does not show its items; a queue.Queue does")
    if _held(value, kind) > entered:
        raise TypeError("it is held")
    if kind.startswith("_thread.") or kind == "threading._RLock":
        return {}
    if any(_waits(value, name) for name in ("", "_cond", "_finished", *_MACHINERY)):
        raise TypeError("something waits for it")
    if kind in _BARRIERS and vars(value)["_count"]:
        raise TypeError("something waits for it")
    state = {name: held for name, held in vars(value).items() if name not in _MACHINERY}
    if kind == "asyncio.locks.Lock":
        del state["_locked"]
    elif kind in _CONDITIONS:
        return {}  # its lock is an object of its own, and all else is that of the lock
    elif kind in _SEMAPHORES:
        state["_value"] += entered
    return state


def _held(value: Any, kind: str) -> int:
    """Return how many times a lock is held."""
    if kind in ("_thread.lock", "asyncio.locks.Lock"):
        return int(value.locked())
    if kind in _LOCKS:  # asked otherwise, it answers for the thread that asks
        count = repr(value).partition(" count=")[2].partition(" ")[0]
        return int(count or 0)
    return 0


def _waits(value: Any, name: str) -> bool:
    """Return whether something waits, as an attribute of a lock or the like shows."""
    part = getattr(value, name, None) if name else value
    waiting = part if name in ("_waiters", "_getters", "_putters") else None
    if waiting is None:
        waiting = getattr(part, "_waiters", None)
    return any(not getattr(each, "done", bool)() for each in waiting or ())


def snapshot(value: Any) -> dict[str, Any] | None:
    """Return the state of a lock, event or the like to compare later; ``None`` if it is in use.

    Of what it holds, the items as they are now.
    """
    try:
        state = state_of(value)
    except TypeError:
        return None
    return {n: list(held) if isinstance(held, (list, deque)) else held for n, held in state.items()}


def is_as_it_was(value: Any, before: dict[str, Any] | None, entered: int = 0) -> bool:
    """Return whether a lock, event or the like has the state that :func:`snapshot` returned."""
    now = state_of(value, entered)
    if before is None or before.keys() != now.keys():
        return False
    for name, held in now.items():
        then = before[name]
        if not isinstance(held, (list, deque)):
            if held is not then and held != then:
                return False
        elif len(held) != len(then) or not all(map(is_, held, then)):
            return False
    return True


def put_state(value: Any, state: dict[str, Any]) -> None:
    """Give a lock, event or the like this state."""
    vars(value).update(state)
    finished = getattr(value, "_finished", None)
    if finished is not None:  # a queue of asyncio
        (finished.clear if state["_unfinished_tasks"] else finished.set)()


def _lock(kind: str) -> Any:
    return _MADE[kind]()


_MADE: dict[str, Callable[[], Any]] = {
    "_thread.RLock": threading.RLock,
    "_thread.lock": threading.Lock,
}


def _synchronizer(cls: Any, kind: str, parties: int | None) -> Any:
    base = next(each for each in cls.__mro__ if f"{each.__module__}.{each.__qualname__}" == kind)
    made = cls.__new__(cls)
    base.__init__(made, *([parties] if parties is not None else []))
    return made
