"""The cache of the default store, as people look at it and clear it."""

from __future__ import annotations

from typing import Any

from stepwise._journal.cache import CallCache, cache_of
from stepwise._journal.journal import seal_for
from stepwise._runtime import settings
from stepwise.stores import open_store


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
    store = open_store(settings.store())
    return cache_of(store, seal_for(store))
