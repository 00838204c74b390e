"""Calls that end when they are awaited: how they are handed out, and how forgotten ones are found.

A plain function that returns an awaitable makes such a call.  The caller gets a coroutine (a task,
if the function returned a future), which its run tracks until somebody awaits it.  The call of a
coroutine function is known only when Python reports that nobody awaited it.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from stepwise._calls.driver import Result, Unfinished
from stepwise._execution.active_run import ActiveRun, current_scope, debugged
from stepwise._execution.flows import Unawaited
from stepwise._runtime import asyncio_state
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import caller, file_name, fold, is_ours
from stepwise.errors import NotRecordableError

_ORIGIN_DEPTH = 6  # frames from a coroutine of ours to the user's code, at most


def coroutine_of(function: Callable[..., Any], name: str, *args: Any) -> Any:
    """Return the coroutine of one of our functions, under the name that the user calls.

    Inside a run the coroutine keeps enough of its origin to include the user's line.
    """
    depth = sys.get_coroutine_origin_tracking_depth()
    if depth:
        sys.set_coroutine_origin_tracking_depth(max(depth, _ORIGIN_DEPTH))
    try:
        coroutine: Any = _folding(function, *args)
    finally:
        if depth:
            sys.set_coroutine_origin_tracking_depth(depth)
    coroutine.__name__ = coroutine.__qualname__ = name  # Python shows the name, too
    return coroutine


async def _folding(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return await function(*args)
    except BaseException as error:
        raise fold(error)  # noqa: B904


made_by: set[CodeType] = {_folding.__code__}
"""The code objects of functions that make coroutines for steps and workflows."""


def hand_out(active: ActiveRun, what: str, ending: Result | Unfinished) -> Any:
    """Return a call, or its recorded outcome, in the form that the function itself would return."""
    asyncio = asyncio_state.loaded()
    future = asyncio and asyncio.Future
    if isinstance(ending, Result):
        awaited = ending.awaited
    elif ending.value is None:
        awaited = getattr(ending.operation, "awaited", "")
    else:
        awaited = "task" if future and isinstance(ending.value, future) else "coroutine"

    token = object()

    async def rest() -> Any:
        active.unawaited.pop(token, None)
        try:
            if isinstance(ending, Result):
                return ending.unwrap()
            from stepwise._calls.async_driver import afinish

            return (await afinish(ending, awaited)).unwrap()
        except BaseException as error:
            raise fold(error)  # noqa: B904

    coroutine: Any = rest()
    coroutine.__name__ = coroutine.__qualname__ = what
    if awaited == "task":
        return sys.modules["asyncio"].ensure_future(coroutine)
    frame = caller()
    site = f"{file_name(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""

    def give_up() -> None:
        coroutine.close()
        if not isinstance(ending, Result):
            if inspect.iscoroutine(ending.value):
                ending.value.close()
            ending.core.close()

    active.unawaited[token] = Unawaited(what, site, give_up)
    return coroutine


# -- calls that are never awaited ----------------------------------------------------------------


def check_awaited(active: ActiveRun, value: object) -> None:
    """Refuse to complete a workflow that forgot to await a call, or that returns a coroutine.

    Raises:
        NotRecordableError: the message names the call and its line.
    """
    forgotten = _give_up_forgotten(active)
    if forgotten:
        what, site = forgotten[0].what, forgotten[0].site
        more = f" (and {len(forgotten) - 1} more)" if len(forgotten) > 1 else ""
        raise NotRecordableError(
            f"{what} was called at {site}{more} and never awaited, so that it was not executed to "
            f"its end: run {active.run_id!r} does not end as completed. Write `await` before the "
            "call; in a workflow that is a plain function, make it `async def`, or call "
            "asyncio.run(...)"
        )
    if inspect.iscoroutine(value):
        name = value.__qualname__
        value.close()
        raise NotRecordableError(
            f"{active.facts.label!r} returned the coroutine {name!r}, which would be executed "
            "outside of the run, unrecorded. Await it: make the workflow `async def`, or return "
            "asyncio.run(...)"
        )


def _give_up_forgotten(active: ActiveRun) -> list[Unawaited]:
    forgotten = list(active.unawaited.values())
    active.unawaited.clear()
    for each in forgotten:
        each.give_up()
    return forgotten


_mutex = process_lock()
_watching: dict[int, int] = {}  # runs, by the thread in which they are executed
_depths: dict[int, int] = {}  # origin depths of threads before the first run
_python_warns: Callable[[Any], None] | None = None


@contextmanager
def noticing_forgotten(active: ActiveRun) -> Iterator[None]:
    """Detect coroutines of steps that die without being awaited, and where they were made."""
    here = threading.get_ident()
    _watch_coroutines(here, 1)
    try:
        yield
    finally:
        active.frame = None  # a variable in the frame may hold an unrecordable value
        _watch_coroutines(here, -1)
        if sys.exc_info()[0] is not None:
            _give_up_forgotten(active)


def _watch_coroutines(thread: int, change: int) -> None:
    """Add a run to the runs of a thread whose coroutines are watched, or remove one."""
    global _python_warns  # noqa: PLW0603
    with _mutex:
        before = _watching.get(thread, 0)
        if not before:
            _depths[thread] = sys.get_coroutine_origin_tracking_depth()
            sys.set_coroutine_origin_tracking_depth(_depths[thread] or 1)
        _watching[thread] = before + change
        if not _watching[thread]:
            del _watching[thread]
            if not _depths.pop(thread) and threading.get_ident() == thread:
                sys.set_coroutine_origin_tracking_depth(0)
        if _watching and _python_warns is None:
            _python_warns = getattr(warnings, "_warn_unawaited_coroutine", None)
            if _python_warns is not None:
                warnings._warn_unawaited_coroutine = _unawaited  # type: ignore[attr-defined]
        elif not _watching and _python_warns is not None:
            if warnings._warn_unawaited_coroutine is _unawaited:  # type: ignore[attr-defined]
                warnings._warn_unawaited_coroutine = _python_warns  # type: ignore[attr-defined]
            _python_warns = None


def _in_collector() -> bool:
    """Return whether garbage is being collected: what dies then may belong to another run.

    A collection does not begin another one, so its counter stays.  A function in ``gc.callbacks``
    was rejected: a Ctrl-C that arrives while Python executes the callback is lost.
    """
    before = gc.get_stats()[0]["collections"]
    gc.collect(0)
    return bool(gc.get_stats()[0]["collections"] == before)


def _unawaited(coroutine: Any) -> None:
    """Record a coroutine that dies unawaited; Python calls this instead of its own warning."""
    original, scope = _python_warns, current_scope()
    code, origin = getattr(coroutine, "cr_code", None), getattr(coroutine, "cr_origin", None)
    if scope is not None and origin and code in made_by and not _in_collector():
        path, line, _ = next((each for each in origin if not is_ours(each[0])), origin[0])
        if debugged.look is not None and path.startswith("<"):  # typed at a prompt
            return
        site = f"{file_name(path)}:{line}"
        what = repr(coroutine.__qualname__)
        scope.run.unawaited[object()] = Unawaited(what, site, lambda: None)
    elif original is not None:
        original(coroutine)
