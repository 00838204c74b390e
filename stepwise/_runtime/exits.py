"""The end of a program whose run was suspended or cancelled: one line on stderr, an exit code."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from stepwise._runtime.tracebacks import members
from stepwise.errors import RunCancelled, RunStopped, RunSuspended

__all__ = ["EX_TEMPFAIL", "prepare"]

EX_TEMPFAIL = 75
"""The exit code: nothing failed, and the program has to be started again."""

_before: Any = None  # the hooks that were installed
_before_in_threads: Any = None


def prepare() -> None:
    """Have uncaught errors of suspended and cancelled runs reported in one line from now on."""
    global _before, _before_in_threads
    if sys.excepthook is not _report:
        _before, sys.excepthook = sys.excepthook, _report
    if threading.excepthook is not _report_thread:
        _before_in_threads, threading.excepthook = threading.excepthook, _report_thread


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    found = _stopped(error)
    if not found:
        _before(kind, error, trace)
        return
    _print(found)
    if not (sys.flags.interactive or hasattr(sys, "ps1")):
        suspended = all(isinstance(each, RunSuspended) for each in found)
        # Python heeds it here, too, and ends in good order.
        raise SystemExit(EX_TEMPFAIL if suspended else 1)


def _report_thread(given: Any) -> None:
    found = _stopped(given.exc_value)
    if found:
        _print(found)
    else:
        _before_in_threads(given)


def _stopped(error: BaseException | None) -> list[RunStopped]:
    """Return the suspensions and cancellations that an exception is, or its group has."""
    if isinstance(error, (RunSuspended, RunCancelled)):
        return [error]
    found = []
    for each in members(error) if error is not None else ():
        inner = _stopped(each)
        if not inner:
            return []
        found += inner
    return found


def _print(found: list[RunStopped]) -> None:
    for each in dict.fromkeys(found):
        if not each.__dict__.get("_told"):
            each.__dict__["_told"] = True
            if sys.stderr is not None:
                sys.stderr.write(f"stepwise: {each}\n")
