"""Ctrl-C, delayed during work that must not be interrupted; SIGTERM, counted.

The module imports nothing of ours.
"""

from __future__ import annotations

# The functions themselves: signal.signal creates three enum members at each call.
import _signal  # type: ignore[import-not-found]
import os
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

AFTER_SIGTERM = 128 + 15
"""The exit status of a program that ends after SIGTERM, if it cannot end by the signal."""


class Ending:
    """The end of the interpreter: whether it has begun, and whether a Ctrl-C caused it."""

    begun = False
    by_ctrl_c = False

    def begin(self) -> None:
        """Note that the interpreter has executed the program."""
        self.begun = True
        # The exception that ended the program was printed, and is kept in sys.last_value.
        self.by_ctrl_c = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


_LOOK = 1.0  # seconds after which a waiting thread sees a Ctrl-C that came before it waited

ending = Ending()
"""Set only if something was started that the interpreter has to wait for."""


class Latch:
    """An event for which a Ctrl-C ends the waiting, as such, whenever it comes.

    ``threading.Event`` waits in Python code: a Ctrl-C between its locks becomes a RuntimeError.
    Python notices a Ctrl-C that comes just before a thread waits when the waiting ends, so that
    ends now and then.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._first, self._lock = threading.Lock(), threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let all waiters continue."""
        if self._first.acquire(blocking=False):  # it was not set before
            self.is_set = True
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return False if ``timeout`` seconds pass first."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_set:
            left = _LOOK if until is None else until - time.monotonic()
            if self._lock.acquire(timeout=max(0.0, min(left, _LOOK))):
                self._lock.release()
            elif left <= 0:
                break
        return self.is_set


class SigtermWatch:
    """A counter of SIGTERMs while runs are in progress, which drains a program without a handler.

    A server that receives SIGTERM cancels its requests.  Without the signal, these cancellations
    would look like callers that gave up.  The program's handler stays in charge: it is called as
    usual.

    A program without a handler would die in the middle of a step.  So it gets a handler, which
    notes that no step may begin any more and calls ``drain``.  The handler removes itself first, so
    that a second signal ends the process in the kernel, whatever the program does.

    Attributes:
        draining: True if a SIGTERM has arrived and the program had no handler.
        ends_process: True if the process ends with the last run; False if the program ends itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self.draining = False
        self.ends_process = True
        self._drain: Callable[[], None] | None = None
        self._handler: Any = None
        self._forks_known = False

    def begin(self, drain: Callable[[], None]) -> None:
        """Note that a run begins: watch the installed handler, or install ours.

        Args:
            drain: called by our handler; may raise an exception that ends the code of the main
                thread.
        """
        self._drain = drain
        handler = _signal.getsignal(_signal.SIGTERM)
        # Only the main thread may install a handler.
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
        """Note that no run is in progress any more."""
        # The handler is kept: other code may have saved ours, and may restore it later.
        if _in_main_thread() and self._is_ours(_signal.getsignal(_signal.SIGTERM)):
            _signal.signal(_signal.SIGTERM, self._handler)

    @property
    def handler(self) -> Any:
        """The handler of the program itself, which ours may have replaced."""
        handler = _signal.getsignal(_signal.SIGTERM)
        return self._handler if self._is_ours(handler) else handler

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
        """Restore the default handler in a forked process, in which no run is in progress."""
        self.draining = False
        if _signal.getsignal(_signal.SIGTERM) == self._begin_draining:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)


sigterms = SigtermWatch()
"""The watch of this process."""


class _MainThread:
    """The thread that runs signal handlers: in a forked child, the thread that forked.

    Attributes:
        block: the outermost uninterrupted block of the thread.  Not an attribute of the class of
            blocks: Python would look up all its methods anew in each block.
    """

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident
        self.block: Uninterrupted | None = None
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        if self.ident != get_ident():  # a block of the thread that is gone
            self.ident, self.block = get_ident(), None


_main = _MainThread()


def _in_main_thread() -> bool:
    return get_ident() == _main.ident


class Uninterrupted:
    """A block in which a signal raises nothing; what it would raise is raised at its end.

    That holds for Ctrl-C if Python's own handler is installed, and for :func:`raise_from_signal`;
    the main thread alone can be interrupted.  It costs about a microsecond.  Blocking the signal
    with ``pthread_sigmask`` was rejected: Python's C handler runs in any thread that does not block
    the signal, and the main thread raises all the same.
    """

    __slots__ = ("_installed", "_outermost", "error")

    def __enter__(self) -> None:
        self.error: BaseException | None = None
        self._installed = self._outermost = False
        if get_ident() == _main.ident:
            if _handler_of(_SIGINT) is _INTERRUPTS:
                _handle(_SIGINT, self._note)
                self._installed = True
            if _main.block is None:
                self._outermost, _main.block = True, self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.error = KeyboardInterrupt()

    def __exit__(self, *exception: object) -> None:
        if self._outermost:
            _main.block = None
        if self._installed:
            _handle(_SIGINT, _INTERRUPTS)
        if self.error is not None:
            raise self.error


def raise_from_signal(error: BaseException) -> None:
    """Raise an error from a signal handler; in an uninterrupted block, at its end."""
    if _main.block is None:
        raise error
    _main.block.error = error


_handler_of, _handle = _signal.getsignal, _signal.signal
_SIGINT, _INTERRUPTS = _signal.SIGINT, _signal.default_int_handler
