"""Ctrl-C, held back while something must be done whole; SIGTERM, noted.

Imports nothing of ours.
"""

from __future__ import annotations

# The functions themselves: signal.signal makes three enum members each time.
import _signal  # type: ignore[import-not-found]
import sys
import threading
from types import FrameType
from typing import Any

__all__ = ["Ending", "SigtermWatch", "Uninterrupted", "ending", "sigterms"]


class Ending:
    """The end of the interpreter: whether it has begun, and whether a Ctrl-C caused it."""

    begun = False
    by_ctrl_c = False

    def begin(self) -> None:
        """The interpreter has executed the program."""
        self.begun = True
        # The exception that ended the program was printed, and is kept in sys.last_value.
        self.by_ctrl_c = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


ending = Ending()
"""Set only if something was started that the interpreter has to wait for."""


class SigtermWatch:
    """Counts the SIGTERMs that the program handles itself, while runs are in progress.

    A server that is told to end cancels what it executes.  Without the signal, that would look like
    callers that gave up.  The program's handler stays in charge: it is called as ever.
    """

    def __init__(self) -> None:
        self.count = 0
        self._handler: Any = None

    def begin(self) -> None:
        """A run begins: the handler that is installed now is watched."""
        handler = _signal.getsignal(_signal.SIGTERM)
        # Without a Python handler the process just ends.  Only the main thread may install one.
        if callable(handler) and handler != self._note and _in_main_thread():
            self._handler = handler
            _signal.signal(_signal.SIGTERM, self._note)

    def end(self) -> None:
        """No run is in progress any more."""
        # The handler stays: other code may have saved ours, and may restore it.
        if _in_main_thread() and _signal.getsignal(_signal.SIGTERM) == self._note:
            _signal.signal(_signal.SIGTERM, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._handler(number, frame)


sigterms = SigtermWatch()
"""The one of this process."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Uninterrupted:
    """Within the block Ctrl-C is only noted; ``KeyboardInterrupt`` is raised at its end.

    Only where Python's own handler is installed and only in the main thread, which alone can be
    interrupted.  Costs about a microsecond.  Blocking the signal with ``pthread_sigmask`` was
    rejected: Python's C handler runs in any thread that does not block it and the main thread
    raises all the same.
    """

    __slots__ = ("_installed", "_noted")

    def __enter__(self) -> None:
        self._noted = self._installed = False
        if _in_main_thread() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, self._note)
            self._installed = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True

    def __exit__(self, *exception: object) -> None:
        if self._installed:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            if self._noted:
                raise KeyboardInterrupt
