"""Look at the schedules of workflows, pause them, and ask for a run."""

from __future__ import annotations

from typing import Any

import click

from stepwise._display.terminal import Column, Word, when
from stepwise._runs import schedules as of_store
from stepwise._runs.housekeeping import store_url
from stepwise._runtime.messages import count, shell_word
from stepwise.cli._command import command, echo_json, note, show_table

_ACTIONS = ("pause", "resume", "fire", "forget")


@command(
    "Steer",
    "stepwise schedules\n"
    "stepwise schedules pause report\n"
    "stepwise schedules fire report  # a run now, beside those of the schedule",
    short_help="List the schedules of the store, pause them, ask for a run.",
)
@click.argument("action", type=click.Choice(_ACTIONS), required=False)
@click.argument("name", required=False)
def schedules(action: str | None, name: str | None, *, as_json: bool) -> None:
    """List the schedules of the store: the next instant, the newest run, what was missed.

    NAME is a schedule.  After pause, its instants pass without runs; after resume, it continues
    with its next instant.  fire asks for a run now, which stepwise up begins, also while the
    schedule is paused.  forget deletes what the store knows of the schedule; its runs stay, and a
    program that still has it begins anew with the next instant.
    """
    if action is None:
        _list(as_json=as_json)
        return
    if name is None:
        raise click.UsageError(f"name the schedule: stepwise schedules {action} NAME")
    if action == "forget":
        facts, told = of_store.forget(name), f"{name} is forgotten; its runs stay"
    elif action == "fire":
        facts, run_id = of_store.fire(name)
        facts["run"], told = run_id, f"stepwise up begins {run_id}"
        if not facts["served"]:
            told = f"{told}, once it is started: none has {facts['workflow']} now"
    elif action == "pause":
        facts, told = of_store.pause(name), f"{name} is paused; to resume it: stepwise schedules "
        told = f"{told}resume {shell_word(name)}"
    else:
        facts, told = of_store.resume(name), f"{name} continues with its next instant"
    if as_json:
        echo_json(facts)
    else:
        note(told)


def _list(*, as_json: bool) -> None:
    found, damaged = of_store.schedules()
    if as_json:
        echo_json(found)
    elif not found:
        note(f"no schedule was seen by stepwise up in {store_url()}")
    else:
        columns = [Column("SCHEDULE"), Column("EVERY"), Column("NEXT", whole=True),
                   Column("NEWEST RUN"), Column("STATUS", whole=True),
                   Column("MISSED", whole=True, right=True), Column("NOTE")]  # fmt: skip
        show_table(columns, map(_row, found))
    if damaged:
        note(f"{count(damaged, 'row')} damaged; stepwise up says which schedules these are")


def _row(facts: dict[str, Any]) -> list[Any]:
    return [
        facts["name"],
        facts["every"],
        "" if facts["next"] is None else when(facts["next"]),
        facts["run"] or "",
        Word(facts["status"] or ""),
        facts["missed"] or "",
        facts["note"],
    ]
