"""Look at the cache of a store, and clear it."""

from __future__ import annotations

import click

from stepwise._display.stops import size_text
from stepwise._display.terminal import Column
from stepwise._runs.maintenance import cache_facts, clear_cache, store_url
from stepwise._runtime.messages import count
from stepwise.cli._command import command, echo_json, note, show_table


@command(
    "Keep",
    "stepwise cache\nstepwise cache --clear\nstepwise cache --clear --step ask  # of one step",
    short_help="Show what the cache of the store holds, or clear it.",
)
@click.option("--stats", is_flag=True, help="Show what it holds, which is the default.")
@click.option("--clear", is_flag=True, help="Delete its entries.")
@click.option("--step", metavar="NAME", help="With --clear: only the entries of this step.")
def cache(*, stats: bool, clear: bool, step: str | None, as_json: bool) -> None:
    """Show what the cache of the store holds, or clear it: see cache= of steps and instrument()."""
    if stats and clear:
        raise click.UsageError("--stats shows the cache and --clear empties it: give one of them")
    if step is not None and not clear:
        raise click.UsageError("--step says what to clear: add --clear")
    deleted = clear_cache(step) if clear else 0
    facts = cache_facts()
    if as_json:
        echo_json({**facts, "deleted": deleted})
        return
    held = sum(each["entries"] for each in facts["steps"])
    if clear:
        note(f"{count(deleted, 'entry')} deleted")
    if facts["steps"]:
        columns = [Column("STEP"), Column("ENTRIES", whole=True, right=True)]
        show_table(columns, [[each["name"], each["entries"]] for each in facts["steps"]])
    size, limit = size_text(facts["size"]), size_text(facts["limit"])
    note(f"{count(held, 'entry')} in the cache of {store_url()}: {size} of at most {limit}")
