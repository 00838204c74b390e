"""Look at the schedules of workflows, pause them, and ask for a run."""

from __future__ import annotations

from typing import Any, get_args

import click

from stepwise._display.terminal import Column, Word
from stepwise._display.words import when
from stepwise._runs import schedules as of_store
from stepwise._runs.maintenance import store_url
from stepwise._runtime.messages import count
from stepwise.cli._command import command, echo_json, note, show_table

_COLUMNS = [
    *map(Column, ("SCHEDULE", "EVERY", "NEXT", "NEWEST RUN", "STATUS")),
    Column("MISSED", whole=True, right=True),
    Column("NOTE"),
]


@command(
    "Steer",
    "stepwise schedules\n"
    "stepwise schedules pause report\n"
    "stepwise schedules fire report  # a run now, beside those of the schedule",
    short_help="List the schedules of the store, pause them, ask for a run.",
)
@click.argument("action", type=click.Choice(get_args(of_store.Action)), required=False)
@click.argument("name", required=False)
def schedules(action: of_store.Action | None, name: str | None, *, as_json: bool) -> None:
    """List the schedules of the store: the next instant, the newest run, what was missed.

    NAME is a schedule.  After pause, its instants pass without runs; after resume, it continues
    with its next instant.  fire asks for a run now, which stepwise up begins, also while the
    schedule is paused.  forget deletes what the store knows of the schedule; its runs stay, and a
    program that still has it begins anew with the next instant.
    """
    if action is not None and name is None:
        raise click.UsageError(f"name the schedule: stepwise schedules {action} NAME")
    if action is not None and name is not None:
        facts, told = of_store.act(action, name)
        echo_json(facts) if as_json else note(told)
        return
    found, damaged = of_store.schedules()
    if as_json:
        echo_json(found)
    elif found:
        show_table(_COLUMNS, map(_row, found))
    else:
        note(f"no schedule was seen by stepwise up in {store_url()}")
    if damaged:
        note(f"{count(damaged, 'row')} damaged; stepwise up says which schedules these are")


def _row(facts: dict[str, Any]) -> list[Any]:
    following = when(facts["next"]) if facts["next"] is not None else ""
    newest = facts["run"] or "", Word(facts["status"] or "")
    return [facts["name"], facts["every"], following, *newest, facts["missed"] or "", facts["note"]]
