"""Space and backups: work on a whole store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepwise._journal.heads import children_of
from stepwise._journal.journal import seal_for
from stepwise._runs.listing import Listed, listed
from stepwise._runs.verify import note_restored
from stepwise._runtime import settings
from stepwise.errors import RunStopped, StepwiseError, StoreError
from stepwise.stores import open_store

__all__ = ["compact", "delete_each", "free_space", "old_runs", "put_back", "store_url"]


def _store() -> Any:
    return open_store(settings.store())


def store_url() -> str:
    """Return the URL of the store that commands and programs use."""
    return str(settings.store())


def old_runs(before: float, keep: int) -> list[Listed]:
    """Return the completed runs that have not been updated since a time, the newest first.

    Args:
        keep: how many of the newest completed runs of each workflow stay.
    """
    seen, old = Counter[str](), []
    for each in listed(status="completed"):
        if each.facts.parent:
            continue
        seen[each.facts.workflow] += 1
        if seen[each.facts.workflow] > keep and each.facts.updated_at <= before:
            old.append(each)
    return old


def delete_each(found: list[Listed]) -> Iterator[tuple[Listed, StepwiseError | RunStopped | None]]:
    """Delete runs; yield each one with the problem that kept it from being deleted.

    A run that is being executed stays.  The first failure of the store itself is the last item.
    """
    children = children_of(found[0].run.store, found[0].run._seal) if found else {}
    for each in found:
        try:
            each.run._delete(children)
        except (StepwiseError, RunStopped) as problem:
            yield each, problem
            if isinstance(problem, StoreError):
                return
        else:
            yield each, None


def free_space() -> int:
    """Return the bytes that deleted runs left in the store for later runs."""
    free = getattr(_store(), "free", None)
    return int(free()) if free is not None else 0


def compact() -> int:
    """Give the space of deleted runs back to the disk; return the bytes."""
    squeeze = getattr(_store(), "compact", None)
    return int(squeeze()) if squeeze is not None else 0


def put_back() -> list[str]:
    """Note that the store was put back from a backup; return the ids of its unfinished runs."""
    store = _store()
    return note_restored(store, seal_for(store))
