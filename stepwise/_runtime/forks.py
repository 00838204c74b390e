"""Resources that a forked child can still use: process-wide locks, values computed once.

A child has the one thread that forked.  A lock that another thread held stays held in it for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached", "process_lock"]

T = TypeVar("T")
Self = TypeVar("Self", bound="cached[Any]")


def process_lock() -> AbstractContextManager[bool]:
    """Return a lock for state that a whole process shares; a fork waits until it is free.

    So the child finds the lock free and what it guards complete.  It is for short moments, in which
    no other such lock is taken.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock


class cached(Generic[T]):  # noqa: N801 -- a decorator
    """A property that is computed once for each object, without a lock.

    ``functools.cached_property`` of Python 3.10 and 3.11 has one lock for all objects of a class.
    Two threads that ask at once may both compute it here; the last value stays.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self: Self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
