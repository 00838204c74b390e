"""The clocks by which a run waits: the time of day, and the elapsed time.

The module imports only named tuples of ours.
"""

from __future__ import annotations

import time

from stepwise._runtime.facts import NamedTuple

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return the time of day, in seconds since 1970; somebody may set it."""
    return time.time()


def elapsed() -> float:
    """Return the seconds of a clock that nobody sets and that counts during machine suspension.

    On a system without such a clock, the seconds of a suspension do not count.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class End(NamedTuple):
    """The end of a wait in this process.

    Args:
        moment: seconds since 1970, by the time of day.
        passed: seconds by :func:`elapsed`.
    """

    moment: float | None = None
    passed: float | None = None

    @classmethod
    def of(cls, until: float | None, seconds: float | None) -> End:
        """Return the end of a wait that begins, or continues, now.

        A duration is measured by the clock that nobody sets.  A wait that began in another process
        has only its recorded end: it is over by then, and never lasts longer than its whole length
        from now on.

        Args:
            until: the moment of its end, as recorded; ``None`` for never.
            seconds: its whole length; ``None`` if only a moment was given.
        """
        if until is None or seconds is None:
            return cls(moment=until)
        return cls(passed=elapsed() + min(max(until - now(), 0.0), seconds))

    def left(self) -> float | None:
        """Return the remaining seconds, 0 or less once it is over; ``None`` without an end."""
        if self.passed is not None:
            return self.passed - elapsed()
        return None if self.moment is None else self.moment - now()
