"""``stepwise rerun``: today's code with the records of many runs."""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import click

from stepwise import Run
from stepwise._display.terminal import Below, Column, Terminal, Word
from stepwise._execution.process_memory import memory
from stepwise._runs.run import listed
from stepwise._runtime.messages import count
from stepwise._workflows.rerun import rerun as rerun_one
from stepwise.cli._child import answers_of
from stepwise.cli._command import PROBLEMS, command, echo_json, find_run, say, show_table
from stepwise.cli._modules import import_modules, module_of
from stepwise.cli.look import chosen_runs

_SECONDS = 60  # for a run
_INDENT = 6  # columns before a line below a row
_SAME, _DIFFERS, _IMPOSSIBLE = "same", "differs", "not possible"


@command(
    "Check and learn",
    "stepwise rerun trip-0573\n"
    "stepwise rerun trip-0573 --at 4  # begins after four steps\n"
    "stepwise rerun --workflow agent -n 50\n"
    "stepwise rerun --tag customer=ann --json",
    short_help="Execute the code of RUNS again, and say where it differs.",
)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@chosen_runs
@click.option("-n", "--limit", type=click.IntRange(1), help="At most this many, the newest.")
@click.option("--at", metavar="AT", help="Begin after so many steps, at FILE:LINE, or at a step.")
def rerun(
    run_ids: tuple[str, ...],
    workflow: str | None,
    status: Any,
    tags: dict[str, str],
    *,
    limit: int | None,
    at: str | None,
    as_json: bool,
) -> None:
    """Execute the code of RUNS again, with their records, and say where it first differs.

    The program of a run is imported, and its workflow is executed in a process of its own.  The
    record answers its steps; other calls are refused, and nothing is written.  What the code does
    outside of steps is done.

    The exit code is 1 if a run differs, or cannot be executed again.
    """
    chosen = bool(workflow or status or tags or limit)
    if bool(run_ids) == chosen:
        raise click.UsageError("name RUNS, or choose them: --workflow, --status, --tag, -n")
    if run_ids:
        runs = [find_run(each) for each in run_ids]
    else:
        found = listed(workflow, status, tags=tags, limit=limit, where=lambda each: not each.parent)
        runs = [each.run for each in found]
    counted = Counter[str]()
    results = _counting(_each(runs, at), counted)
    if as_json:
        echo_json(results)
    else:
        _show(results)
        said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
        say(f"{count(counted.total(), 'run')}: {said}" if said else "no runs like that")
    sys.exit(1 if counted[_DIFFERS] or counted[_IMPOSSIBLE] else 0)


def _each(runs: Iterable[Run], at: str | None) -> Iterator[dict[str, Any]]:
    """Yield what became of each run, program by program."""
    programs: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        program = run.program
        folder = program.cwd if program is not None and os.path.isdir(program.cwd) else os.getcwd()
        programs.setdefault((run.workflow.removesuffix(f":{run.label}"), folder), []).append(run)
    for (place, folder), those in programs.items():
        waiting = [*those]
        for answer in answers_of(partial(_with_program, place, folder, those, at)):
            if isinstance(answer, dict):
                waiting.pop(0)
                yield answer
            else:
                yield from (_impossible(each, answer) for each in waiting)


def _with_program(
    place: str, folder: str, runs: list[Run], at: str | None
) -> Iterator[dict[str, Any]]:
    """Import a program, and yield what became of its runs."""
    os.chdir(folder)
    try:
        memory.only_looks = True
        import_modules([module_of(place)])
        memory.only_looks = False
    except PROBLEMS as problem:
        yield from (_impossible(each, str(problem)) for each in runs)
        return
    for run in runs:
        answers = answers_of(partial(_rerun, run, at), seconds=_SECONDS, silent=True)
        answer = next(answers, "")
        yield answer if isinstance(answer, dict) else _impossible(run, answer)


def _rerun(run: Run, at: str | None) -> Iterator[dict[str, Any]]:
    where: Any = int(at) if at is not None and at.isdecimal() else at
    try:
        again = rerun_one(run, at=where)
    except PROBLEMS as problem:
        yield _impossible(run, str(problem))
        return
    except BaseException as error:  # the code of the workflow may raise anything
        yield _impossible(run, f"it raises {traceback.format_exception_only(error)[-1].strip()}")
        return
    yield {"verdict": _SAME if again.same else _DIFFERS, **again.to_dict()}


def _impossible(run: Run, why: str) -> dict[str, Any]:
    return {"verdict": _IMPOSSIBLE, "id": run.id, "workflow": run.label, "problem": why}


def _counting(results: Iterable[dict[str, Any]], counted: Counter[str]) -> Iterator[dict[str, Any]]:
    for each in results:
        counted[each["verdict"]] += 1
        yield each


def _show(results: Iterable[dict[str, Any]]) -> None:
    columns = [Column("RUN"), Column("WORKFLOW"), Column("VERDICT", whole=True)]
    columns.append(Column("CALLS", whole=True, right=True))
    show_table(columns, _rows(results))


def _rows(results: Iterable[dict[str, Any]]) -> Iterator[list[Any] | Below]:
    width = Terminal.of(sys.stdout).width
    for each in results:
        calls = str(len(each["calls"])) if "calls" in each else ""
        yield [each["id"], each["workflow"], Word(each["verdict"]), calls]
        why = (each.get("difference") or {}).get("text") or each.get("problem", "")
        if why:
            lines = textwrap.wrap(why, width - _INDENT) if width is not None else [why]
            yield from map(Below, lines)
