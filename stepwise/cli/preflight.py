"""``stepwise preflight``: what a deploy would make of the runs in progress."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

import stepwise
from stepwise._display.terminal import Column
from stepwise._execution.process_memory import memory
from stepwise._runs.replica import Replica
from stepwise._runtime.messages import count
from stepwise._workflows.preflight import Forecast, Forecasts, Replayed, replay, words_for
from stepwise._workflows.up import stores_for
from stepwise.cli._child import answers_of
from stepwise.cli._command import (
    PROBLEMS,
    call_text,
    chosen_store,
    command,
    echo_json,
    fail,
    note,
    say,
    show_table,
)
from stepwise.cli._modules import import_modules, module_of
from stepwise.stores import Store, store_for_pages

_MOST = 10_000  # unfinished runs that are examined
_GROUPS = 40  # lines of the table
_KEPT = 2000  # groups that are told apart
_IMPORT_FAILED = 2
_SECONDS = 60  # for the replay of a run


@command(
    "Check and learn",
    "stepwise preflight jobs  # with the new code here\n"
    "stepwise preflight jobs --replay  # executes it in memory\n"
    "stepwise preflight agent.py --store disk:./copy",
    short_help="Say what the code of MODULES would make of the runs in progress.",
)
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option(
    "--completed",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also the newest N completed.",
)
@click.option("--all", "each", is_flag=True, help="A line for each run, however many are alike.")
@click.option(
    "--replay",
    "replays",
    is_flag=True,
    help="Execute the code of the workflows with recorded results, each run in its own process.",
)
@click.option(
    "--most",
    type=click.IntRange(1),
    default=_MOST,
    show_default=True,
    metavar="N",
    help="Examine so many unfinished runs.",
)
def preflight(
    modules: tuple[str, ...], *, completed: int, each: bool, replays: bool, most: int, as_json: bool
) -> None:
    """Import MODULES, and say what their code would make of each unfinished run.

    A MODULE is a name as after python -m, or the path of a script.  Nothing is executed but
    imports, and the store is opened to read only.  A run resumes at a line, replays from the top,
    or cannot go on, each with the reason.  Where code decides that was not executed, the line says
    "not known".

    The exit code is 2 if a run could not go on, or if a module cannot be imported; 1 if a run would
    lose its place: it would resume at an older checkpoint, or replay; else 0.  Runs of programs
    that were not named do not count.
    """
    seen = Forecasts(_stores(modules), most, completed, _in_child if replays else None)
    if as_json:
        echo_json(to_dict(one) for one in seen)
    else:
        _show(seen, each=each)
    if seen.is_cut:
        note(f"only {count(most, 'unfinished run')} examined: --most takes more")
    sys.exit(seen.exit_code)


def _stores(modules: Sequence[str]) -> list[Store]:
    """Import the modules; return the stores that may hold their runs, opened to read only."""
    url = chosen_store()
    memory.only_looks = True
    try:
        names = [module_of(each) for each in modules]
        import_modules(names)
        stepwise.configure(quiet=True, store=url)
        return [store_for_pages(store, to_read=True) for store in stores_for(names)]
    except PROBLEMS as problem:
        fail(problem, _IMPORT_FAILED)


def _in_child(replica: Replica) -> Replayed:
    """Execute the code of a run in a process of its own."""

    def execute() -> Iterator[Replayed]:
        memory.only_looks = False
        yield replay(replica)

    for said in answers_of(execute, seconds=_SECONDS, silent=True):
        found = isinstance(said, list)
        return Replayed.loaded(*said) if found else Replayed(f"not replayed: {said}")
    return Replayed("not replayed: its process said nothing")


def to_dict(found: Forecast) -> dict[str, Any]:
    """Return a forecast as plain data, for JSON."""
    facts = found.facts
    return {
        "id": facts.run_id,
        "workflow": facts.workflow,
        "call": call_text(facts),
        "status": facts.status,
        "parent": facts.parent or None,
        "verdict": found.verdict,
        "at": found.at or None,
        "after": found.after or None,
        "steps": found.steps,
        "lost": found.lost,
        "why": found.why or None,
        "unknown": list(found.unknown),
        "notes": list(found.notes),
    }


# -- the table -------------------------------------------------------------------------------------


def _show(seen: Forecasts, *, each: bool) -> None:
    columns = [Column("RUN"), Column("CALL", wide=True), Column("VERDICT"), Column("WHY")]
    if each:
        show_table(columns, map(_row, seen))
        return
    many: Counter[tuple[Any, ...]] = Counter()
    first: dict[tuple[Any, ...], Forecast] = {}
    for one in seen:
        key = _key(one)
        if key not in many and len(many) >= _KEPT:
            key = (*key[:3], "", ())
        many[key] += 1
        first.setdefault(key, one)
    if not many:
        say("no unfinished runs")
        return
    keys = sorted(many, key=lambda key: (-first[key].severity, -many[key]))
    show_table(columns, (_row(first[key], many[key]) for key in keys[:_GROUPS]))
    if len(keys) > _GROUPS:
        note(f"and {count(len(keys) - _GROUPS, 'other line')}: --all, or --json")


def _key(found: Forecast) -> tuple[Any, ...]:
    facts = found.facts
    notes = (*found.unknown, *found.notes)
    why = found.why.replace(facts.run_id, "RUN").replace(f"({facts.arguments})", "(...)")
    return facts.workflow, found.verdict, found.lost, found.at, (why, *notes)


def _row(found: Forecast, many: int = 1) -> list[Any]:
    what, *rest = words_for(found)
    lost = " (loses its place)" if found.lost else ""
    run, call = found.facts.run_id, call_text(found.facts)
    if many > 1:
        run, call = f"{many} runs, as {run}", found.facts.label
    return [run, call, f"{what}{lost}", "; ".join(rest)]
