"""Ctrl-C, held back while something must be done whole.  Imports nothing of ours."""

from __future__ import annotations

# The functions themselves: signal.signal makes three enum members each time.
import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType, TracebackType

__all__ = ["Uninterrupted"]


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
        if (
            threading.current_thread() is threading.main_thread()
            and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
        ):
            _signal.signal(_signal.SIGINT, self._note)
            self._installed = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            if self._noted:
                raise KeyboardInterrupt
