"""The schedules of workflows, which ``stepwise up`` advances.

A schedule has a row in the store, which says up to where its instants are over.  A process takes
the lease of the rows, submits the runs of the instants that have come since, and writes the row.
The id of a run is made from its instant, so that the process that follows a killed one submits no
run twice.

A new schedule begins with its next instant, and so does one whose program says something else now:
instants of the past are not made up for.  If programs of two versions run at the same time, what
the later one says counts.

A clock that is set back repeats no instant: the row says that they are over.  A row that is more
than a day ahead comes from a clock that was wrong, and the schedule goes on from now.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from stepwise import errors
from stepwise._execution.process_memory import known_workflows
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import is_served
from stepwise._journal.schedule_rows import ScheduleRow, ScheduleRows, entry_of, run_id_of
from stepwise._runtime import clock, settings
from stepwise._runtime.messages import count
from stepwise._runtime.options import OF_SCHEDULES
from stepwise._values.preview import error_text
from stepwise._workflows.definition import Definition
from stepwise._workflows.instants import Instants
from stepwise._workflows.submitted import submit
from stepwise.stores import Store, open_store

_ON_TIME = 60.0  # seconds after which an instant is missed
_BATCH = 200  # instants for which the lease is held
_BUSY, _AGAIN = 0.5, 5.0  # seconds to the next look, after another process and after a problem
_WRONG = 86400.0  # seconds by which a row is ahead after a clock was wrong


class Schedule:
    """When ``stepwise up`` begins runs of a workflow.

    Raises:
        ConfigurationError: an option is invalid.
    """

    def __init__(self, workflow: Definition) -> None:
        options = workflow.options
        assert options.every is not None
        self.workflow, self.name = workflow, workflow.label
        self.instants = Instants(options.every, options.timezone, f"workflow {self.name!r}")
        zone = f" {options.timezone or 'UTC'}" if isinstance(options.every, str) else ""
        self.text = f"{options.every}{zone}"

    def to_begin(self, due: list[int], now: float, *, more: bool) -> list[int]:
        """Return the instants whose runs begin; the others are missed.

        Args:
            due: instants that have come, in order.
            more: whether others have come after them.
        """
        missed = self.workflow.options.missed
        on_time = [each for each in due if now - each <= _ON_TIME]
        if missed == "all":
            return due
        return on_time or (due[-1:] if missed == "once" and not more else [])

    def call(self, instant: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of the run of an instant, by position and by name.

        Raises:
            ConfigurationError: ``arguments=`` returned something else.
            Exception: any error of ``arguments=``.
        """
        arguments = self.workflow.options.arguments
        if arguments is None:
            return (), {}
        given = arguments(self.instants.at(instant))
        if isinstance(given, Mapping):
            return (), given
        if isinstance(given, (tuple, list)):
            return tuple(given), {}
        raise errors.ConfigurationError(
            f"arguments= of workflow {self.name!r} returned {given!r:.100}: return a tuple of "
            "arguments, or a dict of arguments by name"
        )


def check_schedule(workflow: Definition, given: Iterable[str]) -> None:
    """Refuse a schedule that never begins a run.

    Args:
        given: the options of the decorator.

    Raises:
        ConfigurationError: the message says what to write.
    """
    what, function = f"workflow {workflow.label!r}", workflow.function
    if workflow.options.every is None:
        lone = [each for each in OF_SCHEDULES if each in given and each != "every"]
        if lone:
            raise errors.ConfigurationError(
                f"{lone[0]}= of {what} belongs to a schedule: add every="
            )
        return
    if workflow.is_generator or workflow.is_async_generator:
        raise errors.ConfigurationError(
            f"every= of {what}: a generator needs somebody who takes its items"
        )
    if "." in function.__qualname__.rpartition("<locals>.")[2]:
        raise errors.ConfigurationError(
            f"every= of {what}: a schedule has no instance for a method. Write a function that "
            "calls the method, and decorate that"
        )
    Schedule(workflow)
    if workflow.options.arguments is None:
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise errors.ConfigurationError(
                f"every= of {what}: {error}. Say what its runs are called with, for example "
                "arguments=lambda at: (at.date(),)"
            ) from None


class _Tracked:
    """A schedule of this process with its rows; ``due`` is when to look at its row."""

    def __init__(self, schedule: Schedule, rows: ScheduleRows) -> None:
        self.schedule, self.rows = schedule, rows
        self.due = 0.0


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
        self._started = clock.now()
        self._entries: list[_Tracked] = []
        self._without: list[tuple[ScheduleRows, Definition]] = []  # workflows to look at once
        rows = {store.url: ScheduleRows(store, seal_for(store)) for store in stores}
        for each in (known.definition for known in known_workflows()):
            store = open_store(each.options.store or settings.store())
            if store.url not in rows:
                continue
            if each.options.every is None:
                self._without.append((rows[store.url], each))
                continue
            entry = _Tracked(Schedule(each), rows[store.url])
            for other in self._entries:
                if (other.schedule.name, other.rows) == (entry.schedule.name, entry.rows):
                    raise errors.ConfigurationError(
                        f"{other.schedule.workflow.full_name} and {each.full_name} both have "
                        f"every=, and their runs would have the same ids: give one of them a name, "
                        "@workflow(name=...)"
                    )
            self._entries.append(entry)

    @property
    def next(self) -> float:
        """When a schedule is due, in seconds since 1970; infinite without schedules."""
        return min((each.due for each in self._entries), default=float("inf"))

    def begin_due(self, *, look: bool = False) -> bool:
        """Submit the runs that are due; return whether there were any.

        Args:
            look: look at all rows, since somebody may have changed them.
        """
        now, found = clock.now(), False
        for rows, workflow in self._without:
            with self._reporting(workflow.label):
                self._note_removed(rows, workflow)
        self._without.clear()
        for each in self._entries:
            if not look and each.due > now:
                continue
            each.due = now + _AGAIN
            with self._reporting(each.schedule.name):
                row = each.rows.read(each.schedule.name)
                if row is not None and _is_settled(each.schedule, row, now):
                    each.due = _due(row)
                    continue
                try:
                    with each.rows.owned(_BUSY) as epoch:
                        found |= self._advance(each, epoch)
                except errors.RunBusyError:
                    each.due = now + _BUSY
        return found

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (errors.StepwiseError, errors.RunStopped) as error:
            self._report("problem", f"schedule {name!r}: {error}")

    def _note_removed(self, rows: ScheduleRows, workflow: Definition) -> None:
        """Note in its row that a workflow has no schedule any more."""
        row = rows.opened(entry_of(workflow.label))
        if row is not None and row.every and row.workflow == workflow.full_name:
            with rows.owned() as epoch:
                row = row._replace(every="", next=None, stated=self._started)
                rows.write(epoch, row.name, row)

    # -- one schedule ------------------------------------------------------------------------------

    def _advance(self, entry: _Tracked, epoch: int) -> bool:
        """Submit the runs of a schedule that are due, and write its row, under the lease.

        Returns:
            whether there were any.
        """
        schedule, rows, now = entry.schedule, entry.rows, clock.now()
        known = rows.read(schedule.name)
        row = self._adopted(schedule, rows.store, known, now)
        due, at = list[int](), 0
        if not row.paused:
            at = schedule.instants.after(row.last)
            while at <= now and len(due) < _BATCH:
                due.append(at)
                at = schedule.instants.after(at)
            row = row._replace(last=due[-1] if due else row.last, next=at)
        to_begin = schedule.to_begin(due, now, more=at <= now)
        for instant in to_begin:
            row = row._replace(ran=_begin(schedule, rows.store, instant, fired=False))
        missed = len(due) - len(to_begin)
        row = row._replace(missed=row.missed + missed)
        if row != known:
            rows.write(epoch, row.name, row)
        if (known is None or known.every != row.every) and not row.paused:
            at_first = (
                f"schedule {row.name!r}, {row.every}: it begins at {schedule.instants.at(at)}"
            )
            self._report("schedule", at_first)
        if missed:
            self._report("schedule", f"schedule {row.name!r}: {count(missed, 'instant')} missed")
        entry.due = _due(row)
        for instant in row.fired:
            ran = _begin(schedule, rows.store, instant, fired=True)
            row = row._replace(ran=ran, fired=tuple(each for each in row.fired if each != instant))
            rows.write(epoch, row.name, row)
            to_begin.append(instant)
        return bool(to_begin)

    def _adopted(
        self, schedule: Schedule, store: Store, row: ScheduleRow | None, now: float
    ) -> ScheduleRow:
        """Return the row with what this program says.

        Raises:
            ConfigurationError: another workflow has the row, or a later program's word counts.
        """
        ours, text = schedule.workflow.full_name, schedule.text
        if row is None:
            return ScheduleRow(schedule.name, ours, text, self._started, now)
        if row.workflow != ours and is_served(store, row.workflow):
            raise errors.ConfigurationError(
                f"it belongs to {row.workflow}, which another stepwise up has: give "
                f"{ours} another name, @workflow(name=...)"
            )
        if row.every != text and self._started < row.stated <= now:
            raise errors.ConfigurationError(
                f"a program that was started later says {row.every or 'that there is none'!r}, "
                f"and not {text!r}: it is left to that program"
            )
        last = now if row.every != text or row.last > now + _WRONG else row.last
        stated = row.stated if row.every == text else self._started
        return row._replace(workflow=ours, every=text, stated=stated, last=last)


def _is_settled(schedule: Schedule, row: ScheduleRow, now: float) -> bool:
    """Return whether nothing is to be done, as the row of a schedule says."""
    says = (row.workflow, row.every) == (schedule.workflow.full_name, schedule.text)
    return says and not row.fired and _due(row) > now and row.last <= now + _WRONG


def _due(row: ScheduleRow) -> float:
    return float("inf") if row.next is None or row.paused else row.next


def _begin(schedule: Schedule, store: Store, instant: int, *, fired: bool) -> str:
    """Submit the run of an instant, unless that was done; return its id."""
    run_id = run_id_of(schedule.name, instant, fired=fired)
    if facts_of(store, seal_for(store), run_id) is not None:
        return run_id
    try:
        args, kwargs = schedule.call(instant)
        options = schedule.workflow.options.changed({"run_id": run_id})
        definition = Definition(schedule.workflow.function, options, schedule.workflow)
        submit(None, None, definition, None, args, kwargs)
        return run_id
    except errors.StepwiseError:
        raise
    except Exception as error:
        raise errors.ConfigurationError(
            f"run {run_id!r} cannot be submitted: {type(error).__name__}: {error_text(error)}"
        ) from error
