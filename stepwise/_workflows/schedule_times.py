"""The instants of a schedule: from a cron expression in a time zone, or from a period.

cronsim reads the expression, and walks the times of day of a calendar without time zones.  The
zone is applied here.  Rejected: the zones of cronsim and croniter.  Where summer time moves the
clock by half an hour (Lord Howe), cronsim leaves out times of that day; asked in the hour that
comes twice, it answers with a time that is over.  croniter begins a daily job twice in autumn.
Both move the jobs of the day that Apia left out to the next one, a Saturday.

As cron does, an expression whose minute or hour begins with ``*`` follows the clock on the wall: a
time that the clock leaves out does not come, and a time that the clock shows twice comes twice.
Any other expression names times of a day.  Such a time comes once: it comes at the first moment
after it if the clock leaves it out, and it comes the first time if the clock shows it twice.  A
jump of three hours or more is no summer time, and its times do not come.
"""

from __future__ import annotations

import difflib
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from stepwise.errors import ConfigurationError

_DAY = 86400
_JUMP = 3 * 3600  # seconds that summer time never moves the clock by
_FORM = "write minute, hour, day, month and weekday, like '0 9 * * mon-fri'"


class Instants:
    """The instants of a schedule, in whole seconds since 1970; all processes compute the same.

    Args:
        every: a cron expression of five fields, or the period of instants counted from 1970 on.
        zone: the name of the time zone of the expression; ``None`` for UTC.
        what: the workflow, for messages.

    Raises:
        ConfigurationError: there are no such instants, or cronsim is missing.
    """

    def __init__(self, every: str | timedelta, zone: str | None, what: str) -> None:
        self.zone = timezone.utc if zone is None else _zone(zone, what)
        self._every, self._period, self._what = every, 0, what
        if isinstance(every, timedelta):
            self._period = int(every.total_seconds())
            if self._period < 1 or every % timedelta(seconds=1):
                raise ConfigurationError(f"every={every!r} of {what}: write whole seconds, above 0")
            if zone is not None:
                raise ConfigurationError(
                    f"timezone={zone!r} of {what}: a timedelta is counted from 1970-01-01 00:00 "
                    "UTC on. For a time of day, write a cron expression, like every='0 9 * * *'"
                )
            return
        fields = every.split()
        if len(fields) != 5:
            raise ConfigurationError(f"every={every!r} of {what}: {_FORM}")
        self._follows_the_wall = fields[0].startswith("*") or fields[1].startswith("*")
        self._next_local(datetime(2000, 1, 1))  # noqa: DTZ001

    def after(self, moment: float) -> int:
        """Return the first instant after a moment."""
        if self._period:
            return int(moment // self._period + 1) * self._period
        second = int(moment // 1)
        return self._of_the_wall(second) if self._follows_the_wall else self._of_the_day(second)

    def at(self, instant: float) -> datetime:
        """Return the date and time of an instant, in the time zone."""
        return datetime.fromtimestamp(instant, self.zone)

    # -- cron --------------------------------------------------------------------------------------

    def _next_local(self, local: datetime) -> datetime:
        """Return the next time after another, both of a calendar without time zones."""
        try:
            from cronsim import CronSim, CronSimError  # on use: an extra
        except ImportError:
            raise ConfigurationError(
                f"every={self._every!r} of {self._what} needs cronsim: "
                "pip install 'stepwise-agents[schedules]'. A timedelta needs nothing"
            ) from None
        try:
            return next(CronSim(str(self._every), local))
        except CronSimError as error:
            problem = f"{str(error)[:1].lower()}{str(error)[1:]}"
            raise ConfigurationError(
                f"every={self._every!r} of {self._what}: {problem}; {_FORM}"
            ) from None
        except StopIteration:
            raise ConfigurationError(
                f"every={self._every!r} of {self._what}: there is no such day in fifty years"
            ) from None

    def _of_the_wall(self, second: int) -> int:
        """Return the first instant after a moment; see the module's docstring."""
        first = second + 1
        while True:
            offset = self._offset(first)
            found = _seconds(self._next_local(_local(first - 1 + offset))) - offset
            low = first
            while low < found:  # day by day, since two changes may lie in between
                high = min(found, low + _DAY)
                if self._offset(high) != offset:
                    first = self._change(low, high)
                    break
                low = high
            else:
                return found

    def _of_the_day(self, second: int) -> int:
        """Return the first instant after a moment; see the module's docstring."""
        local = _local(second + self._offset(second))
        while True:
            local = self._next_local(local)
            found = self._moment(local)
            if found is not None and found > second:
                return found

    def _moment(self, local: datetime) -> int | None:
        """Return when the clock shows a time first, or the end of a jump across the time."""
        before, after = (
            int(local.replace(tzinfo=self.zone, fold=fold).utcoffset().total_seconds())  # type: ignore[union-attr]
            for fold in (0, 1)
        )
        found, jump = _seconds(local) - before, after - before
        if jump <= 0:
            return found
        return self._change(found - jump, found) if jump < _JUMP else None

    def _offset(self, second: int) -> int:
        offset: Any = self.at(second).utcoffset()
        return int(offset.total_seconds())

    def _change(self, low: int, high: int) -> int:
        """Return when the offset of ``low``, which ``high`` no longer has, ends."""
        offset = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


def _local(seconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001


def _seconds(local: datetime) -> int:
    return int((local - datetime(1970, 1, 1)).total_seconds())  # noqa: DTZ001


def _zone(name: str, what: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # KeyError: of ZoneInfoNotFoundError
        close = difflib.get_close_matches(name, available_timezones(), n=1)
        hint = (
            f"did you mean {close[0]!r}?" if close else "write 'Europe/Zurich' (or install tzdata)"
        )
        raise ConfigurationError(f"timezone={name!r} of {what}: no such zone; {hint}") from None
