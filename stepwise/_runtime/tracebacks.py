"""Linked exceptions, and tracebacks without our frames.

Between the user's line and the user's error there is one of our frames at most.  Tracebacks are
folded where an exception leaves our outermost function, so it costs nothing while nothing fails.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from stepwise._runtime import settings
from stepwise._runtime.messages import is_ours

__all__ = ["chain", "fold", "linked_to", "members"]

E = TypeVar("E", bound=BaseException)

_LINKS = 50  # exceptions of a chain that are recorded with their causes and contexts

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
    for each in chain(error):
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
        frame = entry.tb_frame
        line = entry.tb_lineno or frame.f_code.co_firstlineno  # a signal may come between lines
        folded = TracebackType(folded, frame, entry.tb_lasti, line)
    return folded


# -- linked exceptions ---------------------------------------------------------------------------


def chain(
    error: BaseException | None, ambient: BaseException | None = None
) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the members of groups, up to ``ambient``."""
    todo, seen = [error], {id(None), id(ambient)}
    while todo:
        each = todo.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += [each.__cause__, each.__context__, *_attached(each)]


def _attached(error: BaseException) -> list[BaseException]:
    """Return the exceptions in the attribute ``exceptions``: of a group, or of a user's class.

    Not by the class: on Python 3.10 groups come from more than one package.
    """
    try:
        found = getattr(error, "exceptions", ())
    except Exception:  # a property of a user's class may raise anything
        return []
    if not isinstance(found, (list, tuple)):
        return []
    return [each for each in found if isinstance(each, BaseException)]


def linked_to(
    error: BaseException, held: Callable[[BaseException], Iterable[BaseException]]
) -> tuple[list[BaseException], dict[int, int]]:
    """Return an exception with all that it is linked to, and the place of each by its id.

    Args:
        held: returns the exceptions that one holds.
    """
    chain, index = [error], {id(error): 0}
    for each in chain:
        links = (each.__cause__, each.__context__) if len(chain) < _LINKS else ()
        for other in (*held(each), *links):
            if other is not None and id(other) not in index:
                index[id(other)] = len(chain)
                chain.append(other)
    return chain, index


def members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group."""
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    return error.exceptions if isinstance(error, group) else ()
