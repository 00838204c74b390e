"""The state of asyncio, read without importing it, so that synchronous programs need not load it.

The module imports nothing of ours.
"""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Set as AbstractSet
from typing import Any

TaskReference = weakref.ReferenceType[Any]
_asyncio: Any = None


def loaded() -> Any:
    """Return asyncio, or ``None`` while it is not fully imported, so that no loop can run.

    Another thread may be importing asyncio: a partly imported module lacks attributes.
    """
    global _asyncio  # noqa: PLW0603
    if _asyncio is None:
        found = sys.modules.get("asyncio")
        if found is None:
            return None
        if not getattr(getattr(found, "__spec__", None), "_initializing", False):
            _asyncio = found
    return _asyncio


def current() -> Any:
    """Return the asyncio task that is running in this thread, or ``None``."""
    asyncio = loaded()
    if asyncio is None:
        return None
    loop = asyncio._get_running_loop()  # current_task() would raise without one, which is slow
    return None if loop is None else asyncio.current_task(loop)


def loop_runs() -> bool:
    """Return whether an event loop is running in this thread."""
    asyncio = loaded()
    return asyncio is not None and asyncio._get_running_loop() is not None


def who() -> int:
    """Return an id of this flow of control: the id of its task, or of its thread without a task."""
    task = current()
    return id(task) if task is not None else threading.get_ident()


def is_cancellation(error: BaseException | None) -> bool:
    """Return whether ``error`` is asyncio's ``CancelledError``."""
    asyncio = loaded()
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def cancellation() -> BaseException:
    """Return a new ``CancelledError``."""
    error: BaseException = sys.modules["asyncio"].CancelledError()
    return error


def closes_generator(task: Any) -> bool:
    """Return whether asyncio made a task to close an asynchronous generator left half-way."""
    return type(task.get_coro()).__name__ == "async_generator_athrow"


def loop_of(task: Any) -> Any:
    return loaded().futures._get_loop(task)


def context_of(task: Any) -> contextvars.Context | None:
    if hasattr(task, "get_context"):  # Python 3.12
        context: contextvars.Context = task.get_context()
        return context
    for held in gc.get_referents(task):
        if isinstance(held, contextvars.Context):
            return held
    return None


def known_references() -> AbstractSet[TaskReference]:
    """Return references to the tasks of all loops, as far as asyncio keeps them in one set."""
    if loaded() is None or sys.version_info >= (3, 14):
        return frozenset()
    return frozenset(references())


def reference_to(task: Any) -> TaskReference:
    return weakref.ref(task)


def references() -> AbstractSet[TaskReference]:
    """Return references to all tasks of this thread's loop, and perhaps to other tasks.

    Callers must only read the set, and immediately.  The result is asyncio's own set if there is
    one: ``all_tasks()`` asks every task of the process in Python, which takes 200 us with 130 tasks
    at each call.
    """
    asyncio = loaded()
    tasks = asyncio.tasks
    if sys.version_info >= (3, 14):  # the interpreter lists tasks in C
        return set(map(weakref.ref, asyncio.all_tasks()))
    if sys.version_info < (3, 12):
        every: set[TaskReference] = tasks._all_tasks.data
        return every
    scheduled: set[TaskReference] = tasks._scheduled_tasks.data
    if tasks._eager_tasks:
        return scheduled.union(map(weakref.ref, tuple(tasks._eager_tasks)))
    return scheduled
