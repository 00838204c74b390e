"""Whether code is in a clean-up: a ``finally`` block, or the exit of a ``with`` block.

Known by the position of the frames between a call and its workflow; asked only while a run is to
end.  The exit of a task group or a pool is none: the work itself goes on there.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._rewrite import finally_lines
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import is_ours

if TYPE_CHECKING:

    class Executed(Protocol):
        """A run in progress."""

        task: Any
        home: int
        executor: FrameType | None


__all__ = ["cleans_up", "task_cleans_up"]

_EXITS = ("__exit__", "__aexit__")
_WAITING = ("aiotools", "anyio", "asyncio", "concurrent", "joblib", "multiprocessing", "trio")


def cleans_up(run: Executed) -> bool:
    """Return whether the code that calls this, or the run's own flow of control, cleans up."""
    if _are_in_cleanup(_until(sys._getframe(1), run.executor)):
        return True
    if run.task is not None:
        return asyncio_state.current() is not run.task and task_cleans_up(run.task)
    if run.home == threading.get_ident():
        return False
    return _are_in_cleanup(_until(sys._current_frames().get(run.home), run.executor))


def task_cleans_up(task: Any) -> bool:
    """Return whether a task that waits does so in a clean-up."""
    return _are_in_cleanup([*_awaiting(task.get_coro())][::-1])


def _until(frame: FrameType | None, last: FrameType | None) -> list[FrameType]:
    """Return the frames inside a workflow, the innermost first; none of code outside of it."""
    found: list[FrameType] = []
    while frame is not None and frame is not last:
        found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine that waits, the outermost first."""
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                inner = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
                coroutine = getattr(coroutine, inner, None)
                break
        else:
            return


def _are_in_cleanup(frames: Iterable[FrameType]) -> bool:
    """Return whether one of these frames, the innermost first, is in a clean-up."""
    waits = False  # for the work of a group
    for frame in frames:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if is_ours(code.co_filename):
            continue
        if code.co_name in _EXITS:
            if module.partition(".")[0] in _WAITING:
                waits = True
            elif not waits:
                return True
        linecache.getlines(code.co_filename, frame.f_globals)  # of a cell, or a zipped module
        line = frame.f_lineno or 0
        if any(first <= line <= last for first, last in _finally_blocks(code.co_filename)):
            return True
    return False


@cache
def _finally_blocks(path: str) -> list[tuple[int, int]]:
    """Return the lines of the ``finally`` blocks of a file, as it was when it was first needed."""
    return finally_lines("".join(linecache.getlines(path)))
