"""Maintenance of a whole store: deleting old runs, freeing space, backups, the cache of calls."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepwise._journal.cache import CallCache, cache_of
from stepwise._journal.journal import seal_for
from stepwise._journal.stream import StreamLog
from stepwise._runs.copying import Copier
from stepwise._runs.run import Listed, each_listed, listed
from stepwise._runs.steps import RunStatus
from stepwise._runs.verify import (
    ChildRuns,
    Deleter,
    is_over,
    note_restored,
)
from stepwise._runtime import settings
from stepwise._runtime.store_urls import public_url
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError, StoreError
from stepwise.stores import Store, open_store


def _store() -> Any:
    return open_store(settings.store())


def check_there(store: Store) -> None:
    """Refuse a store in which no other process can have left runs.

    Raises:
        ConfigurationError: its folder is not there, or it is in the memory of one process.
    """
    path = getattr(store, "path", None)
    if path is not None and not os.path.isdir(path):
        raise ConfigurationError(
            f"there is no store at {path} yet: run a workflow first, or name another store with "
            "--store or STEPWISE_STORE"
        )
    if not store.persistent:
        raise ConfigurationError(
            f"the store {public_url(store.url)} is in the memory of one process, so no other "
            "process has left runs there: name another one with --store or STEPWISE_STORE"
        )


def store_url() -> str:
    """Return the URL of the store that commands and programs use."""
    return public_url(str(settings.store()))


def hand_down(url: str) -> str:
    """Return a URL without its password, for the command line of a child process.

    If a password was removed, ``STEPWISE_STORE`` passes the whole URL to the child process.
    """
    shown = public_url(url)
    if shown != url:
        os.environ["STEPWISE_STORE"] = url
    return shown


def old_runs(
    before: float, keep: int, limit: int | None = None, *, streams: bool = False
) -> Iterator[Listed]:
    """Yield the completed, cancelled and superseded runs not updated since a time, one by one.

    Child runs are left out: they are deleted with their parents.

    Args:
        before: the time, in seconds since 1970.
        keep: the number of newest completed and cancelled runs of each workflow to leave out.
        limit: the maximum number of runs; if ``keep`` is 0, these are roughly the oldest runs.
        streams: only the runs that have said something, themselves or in child runs.
    """
    found = _old(before, keep)
    return itertools.islice(_with_streams(found) if streams else found, limit)


def _old(before: float, keep: int) -> Iterator[Listed]:
    seen = Counter[str]()
    for each in each_listed(oldest=not keep, where=is_over):
        seen[each.facts.workflow] += 1
        if seen[each.facts.workflow] > keep and each.facts.updated_at <= before:
            yield each


def _with_streams(found: Iterable[Listed]) -> Iterator[Listed]:
    """Yield the runs whose streams, or whose child runs' streams, hold something to delete."""
    children = None
    for each in found:
        run = each.run
        children = children or ChildRuns(run.store, run._seal)
        ids = children.below(run.id)
        if any(StreamLog(run.store, run._seal, run_id).has_items() for run_id in ids):
            yield each


def delete_each(
    found: Iterable[Listed], *, streams: bool = False
) -> Iterator[tuple[Listed, StepwiseError | RunStopped | None]]:
    """Delete runs; yield each run with the problem that prevented its deletion, or ``None``.

    A run that is being executed stays.  The first failure of the store itself is the last item.

    Args:
        found: the runs.
        streams: delete only what the runs and their child runs have said.
    """
    store = _store()
    deleter = Deleter(store, seal_for(store))
    for each in found:
        try:
            if streams:
                deleter.empty(each.run.id)
            elif not deleter.delete(each.facts):
                continue  # it was executed again since it was found
        except (StepwiseError, RunStopped) as problem:
            yield each, problem
            if isinstance(problem, StoreError):
                return
        else:
            yield each, None
    deleter.erase()


def free_space() -> int:
    """Return the number of bytes that deleted runs left free in the store for later runs."""
    free = getattr(_store(), "free", None)
    return int(free()) if free is not None else 0


def compact() -> int:
    """Give the space of deleted runs back to the disk; return the number of bytes."""
    squeeze = getattr(_store(), "compact", None)
    return int(squeeze()) if squeeze is not None else 0


def put_back() -> list[str]:
    """Record that the store was restored from a backup; return the ids of its unfinished runs."""
    store = _store()
    return note_restored(store, seal_for(store))


def copier(target: str, **how: Any) -> Copier:
    """Return a copier from the configured store into another store.

    Args:
        target: the URL of the other store.
        how: keyword arguments of :class:`Copier`.
    """
    return Copier(_store(), open_store(target), **how)


def to_copy(workflow: str | None, status: RunStatus | None, tags: Mapping[str, str]) -> list[str]:
    """Return the ids of the runs to copy, oldest first; child runs come with their parents."""
    ids = {head.run_id for head in _store().heads()}
    found = listed(workflow, status, tags=tags)
    return [each.run.id for each in reversed(found) if each.facts.parent not in ids]


def has_objects(name: str) -> bool:
    """Return whether the store has objects of a run id, such as checkpoints without a journal."""
    return bool(_store().names(name))


# -- the cache of calls --------------------------------------------------------------------------


def cache_facts() -> dict[str, Any]:
    """Return the size of the cache, its limit, and the number of its entries by step."""
    cache = _cache()
    steps = sorted(cache.steps()) if cache is not None else []
    return {
        "size": cache.size if cache is not None else 0,
        "limit": settings.cache_size(),
        "steps": [{"name": name, "entries": entries} for name, entries in steps],
    }


def clear_cache(name: str | None = None) -> int:
    """Delete all entries of the cache, or those of one step; return how many they were."""
    cache = _cache()
    return cache.clear(name) if cache is not None else 0


def _cache() -> CallCache | None:
    store = _store()
    return cache_of(store, seal_for(store))
