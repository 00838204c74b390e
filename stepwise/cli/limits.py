"""Look at limits: what is used of them now, and who waits."""

from __future__ import annotations

from typing import Any

from stepwise._display.terminal import Column
from stepwise._display.words import duration_text
from stepwise._runs.maintenance import limits_in_use, store_url
from stepwise.cli._command import command, echo_json, note, show_table


@command("Look", "stepwise limits\nstepwise limits --json | jq '.[].waiting'")
def limits(*, as_json: bool) -> None:
    """List the limits of the store: what is used of them now, and which runs wait."""
    found = limits_in_use()
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
