"""How long ended runs are kept, as ``configure(retain=...)`` takes it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from stepwise._runtime.facts import public
from stepwise.errors import ConfigurationError


@public
class Retain:
    """The limits up to which ``stepwise up`` keeps ended runs; see ``configure(retain=...)``.

    Completed and cancelled runs are deleted with their child runs, the oldest first, as ``stepwise
    prune`` does.  All other runs stay, and count.

    Args:
        age: the time after its end at which a run is deleted, in seconds or as a ``timedelta``.
        runs: the number of runs, with child runs, above which the oldest are deleted.
        bytes: the size of all data above which the oldest are deleted; measured every ten minutes.
        streams: the time after its end at which what a run said is deleted; the run stays.

    Raises:
        ConfigurationError: an argument is invalid, or nothing is limited.
    """

    def __init__(
        self,
        age: float | dt.timedelta | None = None,
        runs: int | None = None,
        bytes: int | None = None,  # noqa: A002
        streams: float | dt.timedelta | None = None,
    ) -> None:
        self.age, self.streams = _amount("age", age), _amount("streams", streams)
        self.runs, self.bytes = _amount("runs", runs), _amount("bytes", bytes)
        if self.age is self.runs is self.bytes is self.streams is None:
            raise ConfigurationError(
                "Retain() deletes nothing: give it age=, runs=, bytes= or streams="
            )


_SECONDS = (int, float), 0, "seconds, 0 or more, or a timedelta"
_NUMBER = (int,), 1, "a number, 1 or more"
_ALLOWED = {"age": _SECONDS, "runs": _NUMBER, "bytes": _NUMBER, "streams": _SECONDS}


def _amount(name: str, value: Any) -> Any:
    amount = value.total_seconds() if isinstance(value, dt.timedelta) else value
    allowed, least, meaning = _ALLOWED[name]
    good = isinstance(amount, allowed) and not isinstance(amount, bool)
    if value is not None and not (good and amount >= least):
        raise ConfigurationError(f"Retain({name}={value!r}): it must be {meaning}")
    return amount
