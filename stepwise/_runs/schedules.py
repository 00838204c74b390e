"""The schedules of a store: looking at them, pausing them, asking for a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import is_served
from stepwise._journal.schedule_rows import ScheduleRow, ScheduleRows, entry_of, run_id_of
from stepwise._runs.run import Run
from stepwise._runtime import clock, settings
from stepwise._runtime.messages import count
from stepwise.errors import ConfigurationError, RunNotFoundError
from stepwise.stores import Store, open_store


def schedules(store: Store | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return the facts of each schedule of a store by name, and how many rows are damaged.

    Args:
        store: ``None`` for the default store.
    """
    rows = _rows(store)
    found = [rows.opened(entry) for entry in rows.names()]
    known = sorted(row for row in found if row is not None)
    return [_facts(rows.store, row) for row in known], found.count(None)


def pause(name: str) -> dict[str, Any]:
    """Let a schedule begin no runs until :func:`resume`; return its facts.

    Raises:
        ConfigurationError: the store has no such schedule.
    """
    return _change(name, lambda row: row._replace(paused=True))


def resume(name: str) -> dict[str, Any]:
    """Let a paused schedule continue with its next instant; return its facts.

    Raises:
        ConfigurationError: the store has no such schedule.
    """

    def resumed(row: ScheduleRow) -> ScheduleRow:
        now = clock.now()
        return row._replace(paused=False, last=now, next=now) if row.paused else row

    return _change(name, resumed)


def fire(name: str) -> tuple[dict[str, Any], str]:
    """Ask for a run of a schedule now; return its facts, and the id that the run will have.

    Raises:
        ConfigurationError: the store has no such schedule.
    """
    rows, fired = _rows(), list[int]()

    def asked(row: ScheduleRow) -> ScheduleRow:
        at = int(clock.now())
        while at in row.fired or _exists(rows.store, run_id_of(name, at, fired=True)):
            at += 1
        fired.append(at)
        return row._replace(fired=(*row.fired, at))

    facts = _change(name, asked)
    return facts, run_id_of(name, fired[-1], fired=True)


def forget(name: str) -> dict[str, Any]:
    """Delete a schedule's row, also a damaged one; return its name.  Its runs stay.

    Raises:
        ConfigurationError: the store has no such schedule.
    """
    rows = _rows()
    with rows.owned() as epoch:
        if entry_of(name) not in rows.names():
            raise _missing(rows, name)
        rows.write(epoch, name, None)
    return {"name": name}


def _change(name: str, change: Callable[[ScheduleRow], ScheduleRow]) -> dict[str, Any]:
    rows = _rows()
    with rows.owned() as epoch:
        row = rows.read(name)
        if row is None:
            raise _missing(rows, name)
        row = change(row)
        rows.write(epoch, name, row)
    return _facts(rows.store, row)


def _missing(rows: ScheduleRows, name: str) -> ConfigurationError:
    names = ", ".join(each["name"] for each in schedules()[0])
    return ConfigurationError(
        f"{rows.store.url} has no schedule {name!r}; it has {names or 'none'}. A schedule appears "
        "once stepwise up has seen its workflow"
    )


def _rows(store: Store | None = None) -> ScheduleRows:
    store = store or open_store(settings.store())
    return ScheduleRows(store, seal_for(store))


def _exists(store: Store, run_id: str) -> bool:
    return facts_of(store, seal_for(store), run_id) is not None


def _facts(store: Store, row: ScheduleRow) -> dict[str, Any]:
    try:
        status = Run(store, row.ran, seal_for(store)).status if row.ran else None
    except RunNotFoundError:  # it was deleted
        status = None
    served = is_served(store, row.workflow)
    notes = {
        "paused": row.paused,
        f"{count(len(row.fired), 'run')} asked for": row.fired,
        "no program has it": not row.every,
        "no stepwise up has it": row.every and not served,
    }
    return {
        "name": row.name,
        "workflow": row.workflow,
        "every": row.every,
        "next": None if row.paused else row.next,
        "run": row.ran or None,
        "status": status,
        "missed": row.missed,
        "paused": row.paused,
        "asked": len(row.fired),
        "served": served,
        "note": ", ".join(text for text, holds in notes.items() if holds),
    }
