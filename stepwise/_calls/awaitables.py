"""Calls that end when they are awaited, and how they are handed out.

A plain function that returns an awaitable makes such a call.  The caller gets a coroutine (a task,
if the function returned a future), which its run tracks until somebody awaits it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from stepwise._calls.driver import Result, Unfinished
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.flows import Unawaited
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import caller, file_name, fold

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
