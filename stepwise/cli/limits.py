"""Look at limits: what is used of them now, and who waits."""

from __future__ import annotations

from typing import Any

from stepwise._display.terminal import Column, duration_text
from stepwise._execution.turns import figures_text
from stepwise._journal.journal import seal_for
from stepwise._journal.ledger import Ledger
from stepwise._journal.limit_store import ledgers
from stepwise._runs.housekeeping import store_url
from stepwise._runtime import settings
from stepwise.cli._command import command, echo_json, note, show_table
from stepwise.stores import open_store


@command("Look", "stepwise limits\nstepwise limits --json | jq '.[].waiting'")
def limits(*, as_json: bool) -> None:
    """List the limits of the store: what is used of them now, and which runs wait."""
    store = open_store(settings.store())
    found = [_facts(name, ledger) for name, ledger in ledgers(store, seal_for(store))]
    if as_json:
        echo_json([{name: each[name] for name in each if name != "text"} for each in found])
    elif not found:
        note(f"no limit was used in {store_url()}")
    else:
        columns = [
            Column("LIMIT"),
            Column("ALLOWED"),
            Column("REQUESTS", whole=True, right=True),
            Column("TOKENS", whole=True, right=True),
            Column("IN FLIGHT", whole=True, right=True),
            Column("PAUSED", whole=True, right=True),
            Column("WAITING"),
        ]
        show_table(columns, map(_row, found))


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


def _row(facts: dict[str, Any]) -> list[Any]:
    waiting = facts["waiting"]
    first = f"{waiting[0]['run']} since {duration_text(waiting[0]['seconds'])}" if waiting else ""
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return [
        facts["name"],
        facts["text"],
        facts["used_requests"] if facts["requests"] is not None else "",
        facts["used_tokens"] if facts["tokens"] is not None else "",
        facts["in_flight"],
        duration_text(facts["paused_seconds"]) if facts["paused_seconds"] else "",
        first + more,
    ]
