"""The schedules of workflows, which ``stepwise up`` advances.

A schedule has a row in the store, which says up to where its instants are over.  A process takes
the lease of the rows, submits the runs of the instants that have come since, and writes the row.
The id of a run is made from its instant, so that the process that follows a killed one submits no
run twice.

A new schedule begins with its next instant, and one whose program says something else now with
those of the last minute: instants of the past are not made up for.  While programs of two versions
run, what the later one says counts.  A lease shows that the program lives; without one, a version
that died would keep the other from the schedule.

A clock that is set back repeats no instant: the row says that they are over.  A row that is more
than a day ahead comes from a clock that was wrong, and the schedule goes on from now.

An instant comes from a cron expression in a time zone, or from a period.  cronsim reads the
expression, and walks the times of day of a calendar without time zones.  The zone is applied here.
Rejected: the zones of cronsim and croniter.  Where summer time moves the clock by half an hour
(Lord Howe), cronsim leaves out times of that day; asked in the hour that comes twice, it answers
with a time that is over.  croniter begins a daily job twice in autumn.  Both move the jobs of the
day that Apia left out to the next one, a Saturday.

As cron does, an expression whose minute or hour begins with ``*`` follows the clock on the wall: a
time that the clock leaves out does not come, and a time that the clock shows twice comes twice.
Any other expression names times of a day.  Such a time comes once: it comes at the first moment
after it if the clock leaves it out, and it comes the first time if the clock shows it twice.  A
jump of three hours or more is no summer time, and its times do not come.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from stepwise import errors
from stepwise._execution.process_memory import known_workflows
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import is_served, supervisor_name
from stepwise._journal.schedule_rows import ScheduleRow, ScheduleRows, run_id_of
from stepwise._runtime import clock, settings
from stepwise._runtime.messages import count
from stepwise._runtime.options import OF_SCHEDULES
from stepwise._values.preview import error_text
from stepwise._workflows.definition import Definition
from stepwise._workflows.submitted import submit
from stepwise.stores import Store, open_store

_ON_TIME = 60.0  # seconds after which an instant is missed
_BATCH = 200  # instants for which the lease is held
_BUSY, _AGAIN = 0.5, 5.0  # seconds to the next look, after another process and after a problem
_WRONG = 86400.0  # seconds by which a row is ahead after a clock was wrong


def check_schedule(workflow: Definition, given: Iterable[str]) -> None:
    """Refuse a schedule that never begins a run.

    Args:
        given: the options of the decorator.

    Raises:
        ConfigurationError: the message says what to write.
    """
    what, function = f"workflow {workflow.label!r}", workflow.function
    problem = ""
    if workflow.options.every is None:
        lone = [each for each in OF_SCHEDULES if each in given and each != "every"]
        if lone:
            raise errors.ConfigurationError(f"{lone[0]}= of {what} needs a schedule: add every=")
        return
    if workflow.is_generator or workflow.is_async_generator:
        problem = "a generator needs somebody who takes its items"
    elif "." in function.__qualname__.rpartition("<locals>.")[2]:
        problem = "a method has no instance there. Decorate a function that calls the method"
    elif workflow.options.arguments is None:
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            problem = f"{error}. Say with what it is called, as arguments=lambda at: (at.date(),)"
    if problem:
        raise errors.ConfigurationError(f"every= of {what}: {problem}")
    _instants(workflow)


def _instants(workflow: Definition) -> Instants:
    options = workflow.options
    assert options.every is not None
    return Instants(options.every, options.timezone, f"workflow {workflow.label!r}")


class Schedule:
    """A schedule of this process.

    Attributes:
        due: when to look at its row.
        lease: the name of the lease that shows that a program says so.
    """

    due = 0.0

    def __init__(self, workflow: Definition, rows: ScheduleRows) -> None:
        self.workflow, self.rows, self.name = workflow, rows, workflow.label
        self.instants = _instants(workflow)
        every, zone = workflow.options.every, workflow.options.timezone
        self._text = f"{every} {zone or 'UTC'}" if isinstance(every, str) else str(every)
        self.lease = supervisor_name(workflow.full_name, self._text)
        self._started = clock.now()

    def advance(self, *, look: bool, report: Callable[[str], object]) -> bool:
        """Submit the runs that are due, and write the row; return whether there were any.

        Args:
            look: look at the row, since somebody may have changed it.
            report: called with what a user should know.
        """
        now = clock.now()
        if not look and self.due > now:
            return False
        self.due = now + _AGAIN
        row = self.rows.read(self.name)
        if row is not None and self._is_settled(row, now):
            self.due = _due(row)
            return False
        try:
            with self.rows.owned(_BUSY) as epoch:
                return self._advance(epoch, report)
        except errors.RunBusyError:
            self.due = now + _BUSY
            return False

    def _is_settled(self, row: ScheduleRow, now: float) -> bool:
        says = (row.workflow, row.every) == (self.workflow.full_name, self._text)
        return says and not row.fired and _due(row) > now and row.last <= now + _WRONG

    def _advance(self, epoch: int, report: Callable[[str], object]) -> bool:
        """Submit and write under the lease; see :meth:`advance`."""
        now, known = clock.now(), self.rows.read(self.name)
        row, due = self._adopted(known, now), list[int]()
        if not row.paused:
            at = self.instants.after(row.last)
            while at <= now and len(due) < _BATCH:
                due.append(at)
                at = self.instants.after(at)
            row = row._replace(last=due[-1] if due else row.last, next=at)
        to_begin = self._to_begin(due, now, more=row.next <= now)
        for instant in to_begin:
            row = row._replace(ran=self._begin(instant, fired=False))
        missed = len(due) - len(to_begin)
        row = row._replace(missed=row.missed + missed)
        if row != known:
            self.rows.write(epoch, row.name, row)
        if known is None or known.every != row.every:
            report(f"schedule {row.name!r}, {row.every}: it begins at {self.instants.at(row.next)}")
        if missed:
            report(f"schedule {row.name!r}: {count(missed, 'instant')} missed")
        self.due = _due(row)
        for instant in row.fired:
            ran = self._begin(instant, fired=True)
            row = row._replace(ran=ran, fired=tuple(each for each in row.fired if each != instant))
            self.rows.write(epoch, row.name, row)
            to_begin.append(instant)
        return bool(to_begin)

    def _to_begin(self, due: list[int], now: float, *, more: bool) -> list[int]:
        """Return the instants whose runs begin; the others are missed.

        Args:
            due: instants that have come, in order.
            more: whether others have come after them.
        """
        missed = self.workflow.options.missed
        if missed == "all":
            return due
        on_time = [each for each in due if now - each <= _ON_TIME]
        return on_time or (due[-1:] if missed == "once" and not more else [])

    def _adopted(self, row: ScheduleRow | None, now: float) -> ScheduleRow:
        """Return the row with what this program says.

        Raises:
            ConfigurationError: another workflow has the row, or a later program's word counts.
        """
        ours, text = self.workflow.full_name, self._text
        if row is None:
            return ScheduleRow(self.name, ours, text, self._started, now)
        if row.workflow != ours and is_served(self.rows.store, row.workflow):
            raise errors.ConfigurationError(
                f"it belongs to {row.workflow}, which another stepwise up has: give {ours} another "
                "name, @workflow(name=...)"
            )
        if row.every == text:
            return row._replace(workflow=ours, last=now if row.last > now + _WRONG else row.last)
        theirs = supervisor_name(row.workflow, row.every)
        if self._started < row.stated <= now and self.rows.store.owner(theirs) is not None:
            raise errors.ConfigurationError(
                f"a program that was started later says {row.every!r}, and not {text!r}: it is "
                "left to that program"
            )
        last = max(now - _ON_TIME, min(now, row.last))
        return row._replace(workflow=ours, every=text, stated=self._started, last=last)

    def _begin(self, instant: int, *, fired: bool) -> str:
        """Submit the run of an instant, unless that was done; return its id."""
        store, run_id = self.rows.store, run_id_of(self.name, instant, fired=fired)
        if facts_of(store, seal_for(store), run_id) is not None:
            return run_id
        options = self.workflow.options.changed({"run_id": run_id})
        definition = Definition(self.workflow.function, options, self.workflow)
        try:
            given = options.arguments(self.instants.at(instant)) if options.arguments else ()
            submit(None, None, definition, None, *_call_of(given))
        except errors.StepwiseError:
            raise
        except Exception as error:
            raise errors.ConfigurationError(
                f"run {run_id!r} cannot be submitted: {type(error).__name__}: {error_text(error)}"
            ) from error
        return run_id


def _call_of(given: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return (), given
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    raise TypeError(f"arguments= returned {given!r:.100}, no tuple and no dict")


def _due(row: ScheduleRow) -> float:
    return float("inf") if row.paused else row.next


class Timetable:
    """The schedules of the workflows that this process knows.

    Args:
        stores: the stores whose schedules are advanced.
        report: called with ``"problem"`` or ``"schedule"``, and a text for the user.

    Raises:
        ConfigurationError: two workflows of one name have schedules in one store.
    """

    def __init__(
        self,
        stores: Iterable[Store],
        report: Callable[[Literal["problem", "schedule"], str], object],
    ) -> None:
        self._report = report
        self._schedules: dict[tuple[str, str], Schedule] = {}
        rows = {store.url: ScheduleRows(store, seal_for(store)) for store in stores}
        for each in known_workflows():
            url = open_store(each.options.store or settings.store()).url
            if each.options.every is None or url not in rows:
                continue
            schedule = Schedule(each, rows[url])
            other = self._schedules.setdefault((url, each.label), schedule)
            if other is not schedule:
                raise errors.ConfigurationError(
                    f"{other.workflow.full_name} and {each.full_name} both have every=, and their "
                    "runs would have the same ids: give one of them a name, @workflow(name=...)"
                )

    @property
    def next(self) -> float:
        """When a schedule is due, in seconds since 1970; infinite without schedules."""
        return min((each.due for each in self._schedules.values()), default=float("inf"))

    def leases(self, url: str) -> set[str]:
        """Return the names of the leases of the schedules in a store."""
        return {each.lease for (where, _), each in self._schedules.items() if where == url}

    def begin_due(self, *, look: bool = False) -> bool:
        """Submit the runs that are due; return whether there were any.

        Args:
            look: look at all rows, since somebody may have changed them.
        """
        found = False
        for (_, name), each in self._schedules.items():
            try:
                found |= each.advance(look=look, report=functools.partial(self._report, "schedule"))
            except (errors.StepwiseError, errors.RunStopped) as error:
                self._report("problem", f"schedule {name!r}: {error}")
        return found


# -- instants --------------------------------------------------------------------------------------


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
                raise errors.ConfigurationError(
                    f"every={every!r} of {what}: write whole seconds, above 0"
                )
            if zone is not None:
                raise errors.ConfigurationError(
                    f"timezone={zone!r} of {what}: a timedelta is counted from 1970-01-01 00:00 "
                    "UTC on. For a time of day, write a cron expression, like every='0 9 * * *'"
                )
            return
        fields = every.split()
        if len(fields) != 5:
            raise errors.ConfigurationError(f"every={every!r} of {what}: {_FORM}")
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
            raise errors.ConfigurationError(
                f"every={self._every!r} of {self._what} needs cronsim: "
                "pip install 'stepwise-agents[schedules]'. A timedelta needs nothing"
            ) from None
        try:
            return next(CronSim(str(self._every), local))
        except CronSimError as error:
            problem = f"{str(error)[:1].lower()}{str(error)[1:]}"
            raise errors.ConfigurationError(
                f"every={self._every!r} of {self._what}: {problem}; {_FORM}"
            ) from None
        except StopIteration:
            raise errors.ConfigurationError(
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
        raise errors.ConfigurationError(
            f"timezone={name!r} of {what}: no such zone; {hint}"
        ) from None
