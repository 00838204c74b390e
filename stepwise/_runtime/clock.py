"""The clocks by which a run waits: the time of day, and the time that has passed.

Of ours it imports named tuples only.
"""

from __future__ import annotations

import time

from stepwise._runtime.facts import NamedTuple

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return the time of day, in seconds since 1970; somebody may set it."""
    return time.time()


def elapsed() -> float:
    """Return seconds of a clock that nobody sets, and that counts while the machine is suspended.

    Where the system has no such clock, it does not count then.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class End(NamedTuple):
    """When a wait ends in this process.

    Args:
        moment: seconds since 1970, by the time of day.
        passed: by :func:`elapsed`.
    """

    moment: float | None = None
    passed: float | None = None

    @classmethod
    def of(cls, until: float | None, seconds: float | None) -> End:
        """Return the end of a wait that begins, or continues, now.

        A duration is measured by the clock that nobody sets.  One that began in another process
        has only its recorded end to go by: it is over by then, and in no case lasts longer than
        its whole length from now on.

        Args:
            until: the moment of its end, as recorded; ``None`` for never.
            seconds: its whole length; ``None`` if only a moment was given.
        """
        if until is None or seconds is None:
            return cls(moment=until)
        return cls(passed=elapsed() + min(max(until - now(), 0.0), seconds))

    def left(self) -> float | None:
        """Return the seconds that remain, 0 or less once it is over; ``None`` without an end."""
        if self.passed is not None:
            return self.passed - elapsed()
        return None if self.moment is None else self.moment - now()
