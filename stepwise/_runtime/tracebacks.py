"""Tracebacks without our frames: between the user's line and the user's error there is one at most.

Called where an exception leaves our outermost function, so it costs nothing while nothing fails.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TypeVar

from stepwise._runtime import settings
from stepwise._runtime.messages import is_ours

__all__ = ["fold"]

E = TypeVar("E", bound=BaseException)

_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__)) + os.sep
_BETWEEN = tuple(
    _LIBRARY + name for name in ("asyncio", "concurrent", "contextlib.py", "threading.py")
)


def fold(error: E) -> E:
    """Take our frames out of the tracebacks of an exception and of those that it refers to.

    Frames of pools and event loops go with them, where they stand between two of ours.
    """
    if settings.debug():
        return error
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
        if each.__traceback__ is not None:
            each.__traceback__ = _without_ours(each.__traceback__)
    return error


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    held: list[TracebackType] = []  # library frames that follow one of ours
    after_ours = changed = False
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if is_ours(path):
            after_ours = changed = True
            held.clear()
        elif after_ours and path.startswith(_BETWEEN):
            held.append(trace)
        else:
            entries += (*held, trace)
            held.clear()
            after_ours = False
        trace = trace.tb_next
    entries += held
    if not changed:
        return entries[0] if entries else None
    folded = None
    for entry in reversed(entries):
        folded = TracebackType(folded, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return folded
