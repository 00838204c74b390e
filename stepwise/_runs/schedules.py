"""The schedules of a store: looking at them, pausing them, asking for a run."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import is_served
from stepwise._journal.schedule_rows import (
    SCHEDULES,
    ScheduleRow,
    ScheduleRows,
    entry_of,
    run_id_of,
)
from stepwise._runs.run import Run
from stepwise._runtime import clock, settings
from stepwise._runtime.messages import count, shell_word
from stepwise.errors import ConfigurationError, RunNotFoundError
from stepwise.stores import Store, open_store

Action = Literal["pause", "resume", "fire", "forget"]
"""The actions on a schedule; see ``stepwise schedules --help``."""

_LATE = 60.0  # seconds after its next instant, when a schedule is one that nobody has


def schedules(store: Store | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return the facts of each schedule of a store by name, and how many rows are damaged.

    Args:
        store: ``None`` for the default store.
    """
    rows = _rows(store)
    found = rows.all()
    return [_facts(rows.store, row) for row in sorted(filter(None, found))], found.count(None)


def act(action: Action, name: str) -> tuple[dict[str, Any], str]:
    """Do something to a schedule; return its facts, and what was done, as text.

    Raises:
        ConfigurationError: the store has no such schedule.
    """
    rows, now = _rows(), clock.now()
    store = rows.store
    with rows.owned() as epoch:
        if store.get(SCHEDULES, entry_of(name)) is None:
            names = ", ".join(each["name"] for each in schedules()[0]) or "none"
            raise ConfigurationError(
                f"{store.url} has no schedule {name!r}; it has {names}. A schedule appears once "
                "stepwise up has seen its workflow"
            )
        if action == "forget":  # also a damaged one
            rows.write(epoch, name, None)
            return {"name": name}, f"{name} is forgotten; its runs stay"
        row = rows.read(name)
        assert row is not None
        if action == "pause":
            row = row._replace(paused=True)
            told = f"{name} is paused; to resume it: stepwise schedules resume {shell_word(name)}"
        elif action == "resume":
            row = row._replace(paused=False, last=now, next=now) if row.paused else row
            told = f"{name} continues with its next instant"
        else:
            at, ran = int(now), run_id_of(name, int(now), fired=True)
            while at in row.fired or facts_of(store, seal_for(store), ran) is not None:
                at += 1
                ran = run_id_of(name, at, fired=True)
            row = row._replace(fired=(*row.fired, at), ran=ran)
            told = f"stepwise up begins {row.ran}"
            if not is_served(store, row.workflow):
                told = f"{told}, once it is started: none has {row.workflow} now"
        rows.write(epoch, name, row)
    return _facts(store, row), told


def _rows(store: Store | None = None) -> ScheduleRows:
    store = store or open_store(settings.store())
    return ScheduleRows(store, seal_for(store))


def _facts(store: Store, row: ScheduleRow) -> dict[str, Any]:
    status, served = None, is_served(store, row.workflow)
    if row.ran:
        with contextlib.suppress(RunNotFoundError):  # it was deleted, or has not been submitted
            status = Run(store, row.ran, seal_for(store)).status
    is_late = row.next < clock.now() - _LATE
    notes = {
        "paused": row.paused,
        f"{count(len(row.fired), 'run')} asked for": row.fired,
        "no program has it": served and is_late and not row.paused,
        "no stepwise up has it": not served,
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
