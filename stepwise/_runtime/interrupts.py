"""Ctrl-C, held back while something must be done whole; SIGTERM, noted.

Imports nothing of ours.
"""

from __future__ import annotations

# The functions themselves: signal.signal makes three enum members each time.
import _signal  # type: ignore[import-not-found]
import os
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

AFTER_SIGTERM = 128 + 15
"""The exit status of a program that ends since SIGTERM came, where it cannot end by the signal."""


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
    """Counts SIGTERMs while runs are in progress, and drains a program that has no handler.

    A server that is told to end cancels what it executes.  Without the signal, that would look like
    callers that gave up.  The program's handler stays in charge: it is called as ever.

    A program without a handler would die in the middle of a step.  It gets one, which notes that no
    step may begin any more and has ``drain`` do the rest.  The handler takes itself away first, so
    that a second signal ends the process in the kernel, whatever the program does.

    Attributes:
        draining: a SIGTERM has come, and the program had no handler.
        ends_process: the process ends with the last run; a program may end by itself instead.
    """

    def __init__(self) -> None:
        self.count = 0
        self.draining = False
        self.ends_process = True
        self._drain: Callable[[], None] | None = None
        self._handler: Any = None
        self._forks_known = False

    def begin(self, drain: Callable[[], None]) -> None:
        """A run begins: the handler that is installed now is watched, or ours is installed.

        Args:
            drain: called by ours; may raise what ends the code of the main thread.
        """
        self._drain = drain
        handler = _signal.getsignal(_signal.SIGTERM)
        # Only the main thread may install one.
        if not _in_main_thread() or self._is_ours(handler):
            return
        if handler == _signal.SIG_DFL:
            if not self._forks_known:
                os.register_at_fork(after_in_child=self._in_child)
                self._forks_known = True
            self._handler = handler
            _signal.signal(_signal.SIGTERM, self._begin_draining)
        elif callable(handler):
            self._handler = handler
            _signal.signal(_signal.SIGTERM, self._note)

    def end(self) -> None:
        """No run is in progress any more."""
        # The handler stays: other code may have saved ours, and may restore it.
        if _in_main_thread() and self._is_ours(_signal.getsignal(_signal.SIGTERM)):
            _signal.signal(_signal.SIGTERM, self._handler)

    def _is_ours(self, handler: Any) -> bool:
        return handler in (self._note, self._begin_draining)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._handler(number, frame)

    def _begin_draining(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        self.draining = True
        if self._drain is not None:
            self._drain()

    def _in_child(self) -> None:
        """Give a forked process, in which no run is in progress, the default handler again."""
        self.draining = False
        if _signal.getsignal(_signal.SIGTERM) == self._begin_draining:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)


sigterms = SigtermWatch()
"""The one of this process."""


class _MainThread:
    """Which thread runs signal handlers: in a forked child, the one that forked."""

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.ident = get_ident()


_main = _MainThread()


def _in_main_thread() -> bool:
    return get_ident() == _main.ident


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
        if get_ident() == _main.ident and _handler_of(_SIGINT) is _INTERRUPTS:
            _handle(_SIGINT, self._note)
            self._installed = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True

    def __exit__(self, *exception: object) -> None:
        if self._installed:
            _handle(_SIGINT, _INTERRUPTS)
            if self._noted:
                raise KeyboardInterrupt


_handler_of, _handle = _signal.getsignal, _signal.signal
_SIGINT, _INTERRUPTS = _signal.SIGINT, _signal.default_int_handler
