"""The limits of a store as plain data: what is used of them now, and who waits."""

from __future__ import annotations

from typing import Any

from stepwise._calls.limited import figures_text
from stepwise._journal.journal import seal_for
from stepwise._journal.ledger import Ledger
from stepwise._journal.limit_store import ledgers
from stepwise._runtime import settings
from stepwise.stores import open_store


def limits_in_use() -> list[dict[str, Any]]:
    """Return the facts of each limit that was used in the default store, by name."""
    store = open_store(settings.store())
    return [_facts(name, ledger) for name, ledger in ledgers(store, seal_for(store))]


def _facts(name: str, ledger: Ledger) -> dict[str, Any]:
    """Return the state of a limit as plain data."""
    requests, tokens = ledger.used()
    figures, now = ledger.figures, ledger.at
    return {
        "name": name,
        "requests": figures.requests,
        "tokens": figures.tokens,
        "per": figures.per,
        "concurrent": figures.concurrent,
        "used_requests": requests,
        "used_tokens": tokens,
        "in_flight": sum(open_ for open_, _ in ledger.claims.values()),
        "paused_seconds": max(0.0, ledger.paused[0] - now),
        "waiting": [
            {"run": place.run, "seconds": now - place.since, "calls": len(place.wants)}
            for place in sorted(ledger.places, key=lambda place: place.since)
        ],
        "text": figures_text(figures),
    }
