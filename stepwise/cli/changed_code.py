"""Changed code with recorded runs: what a deploy would make of them, where their steps differ."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.terminal import Below, Column, Terminal, Word
from stepwise._execution.process_memory import memory
from stepwise._runs.replica import Replica
from stepwise._runs.run import listed
from stepwise._runtime.messages import count
from stepwise._workflows.preflight import Forecast, Forecasts, Replayed, replay, words_for
from stepwise._workflows.rerun import rerun as rerun_one
from stepwise._workflows.up import stores_for
from stepwise.cli import _command as cli
from stepwise.cli._modules import import_modules, module_of
from stepwise.cli.look import chosen_runs
from stepwise.stores import Store, store_for_pages

_SECONDS = 60  # for the code of a run


# -- preflight -------------------------------------------------------------------------------------


_MOST = 10_000  # unfinished runs that are examined
_GROUPS = 40  # lines of the table
_KEPT = 2000  # groups that are told apart
_IMPORT_FAILED = 2


@cli.command(
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
        cli.echo_json(_to_dict(one) for one in seen)
    else:
        _show_forecasts(seen, each=each)
    if seen.is_cut:
        cli.note(f"only {count(most, 'unfinished run')} examined: --most takes more")
    sys.exit(seen.exit_code)


def _stores(modules: Sequence[str]) -> list[Store]:
    """Import the modules; return the stores that may hold their runs, opened to read only."""
    url = cli.chosen_store()
    memory.only_looks = True
    try:
        names = [module_of(each) for each in modules]
        import_modules(names)
        stepwise.configure(quiet=True, store=url)
        return [store_for_pages(store, to_read=True) for store in stores_for(names)]
    except cli.PROBLEMS as problem:
        cli.fail(problem, _IMPORT_FAILED)


def _in_child(replica: Replica) -> Replayed:
    """Execute the code of a run in a process of its own."""

    def execute() -> Iterator[Replayed]:
        memory.only_looks = False
        yield replay(replica)

    for said in answers_of(execute, seconds=_SECONDS, silent=True):
        found = isinstance(said, list)
        return Replayed.loaded(*said) if found else Replayed(f"not replayed: {said}")
    return Replayed("not replayed: its process said nothing")


def _to_dict(found: Forecast) -> dict[str, Any]:
    """Return a forecast as plain data, for JSON."""
    facts = found.facts
    return {
        "id": facts.run_id,
        "workflow": facts.workflow,
        "call": cli.call_text(facts),
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


def _show_forecasts(seen: Forecasts, *, each: bool) -> None:
    columns = [Column("RUN"), Column("CALL", wide=True), Column("VERDICT"), Column("WHY")]
    if each:
        cli.show_table(columns, map(_forecast_row, seen))
        return
    many: Counter[tuple[Any, ...]] = Counter()
    first: dict[tuple[Any, ...], Forecast] = {}
    for one in seen:
        key = _likeness(one)
        if key not in many and len(many) >= _KEPT:
            key = (*key[:3], "", ())
        many[key] += 1
        first.setdefault(key, one)
    if not many:
        cli.say("no unfinished runs")
        return
    keys = sorted(many, key=lambda key: (-first[key].severity, -many[key]))
    cli.show_table(columns, (_forecast_row(first[key], many[key]) for key in keys[:_GROUPS]))
    if len(keys) > _GROUPS:
        cli.note(f"and {count(len(keys) - _GROUPS, 'other line')}: --all, or --json")


def _likeness(found: Forecast) -> tuple[Any, ...]:
    facts = found.facts
    notes = (*found.unknown, *found.notes)
    why = found.why.replace(facts.run_id, "RUN").replace(f"({facts.arguments})", "(...)")
    return facts.workflow, found.verdict, found.lost, found.at, (why, *notes)


def _forecast_row(found: Forecast, many: int = 1) -> list[Any]:
    what, *rest = words_for(found)
    lost = " (loses its place)" if found.lost else ""
    run, call = found.facts.run_id, cli.call_text(found.facts)
    if many > 1:
        run, call = f"{many} runs, as {run}", found.facts.label
    return [run, call, f"{what}{lost}", "; ".join(rest)]


# -- rerun -----------------------------------------------------------------------------------------


_INDENT = 6  # columns before a line below a row
_SAME, _DIFFERS, _IMPOSSIBLE = "same", "differs", "not possible"


@cli.command(
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
        runs = [cli.find_run(each) for each in run_ids]
    else:
        found = listed(workflow, status, tags=tags, limit=limit, where=lambda each: not each.parent)
        runs = [each.run for each in found]
    counted = Counter[str]()
    results = _counting(_each(runs, at), counted)
    if as_json:
        cli.echo_json(results)
    else:
        _show_reruns(results)
        said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
        cli.say(f"{count(counted.total(), 'run')}: {said}" if said else "no runs like that")
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
    except cli.PROBLEMS as problem:
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
    except cli.PROBLEMS as problem:
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


def _show_reruns(results: Iterable[dict[str, Any]]) -> None:
    columns = [Column("RUN"), Column("WORKFLOW"), Column("VERDICT", whole=True)]
    columns.append(Column("CALLS", whole=True, right=True))
    cli.show_table(columns, _rerun_rows(results))


def _rerun_rows(results: Iterable[dict[str, Any]]) -> Iterator[list[Any] | Below]:
    width = Terminal.of(cli.answer()).width
    for each in results:
        calls = str(len(each["calls"])) if "calls" in each else ""
        yield [each["id"], each["workflow"], Word(each["verdict"]), calls]
        why = (each.get("difference") or {}).get("text") or each.get("problem", "")
        if why:
            lines = textwrap.wrap(why, width - _INDENT) if width is not None else [why]
            yield from map(Below, lines)


# -- child processes -------------------------------------------------------------------------------


def answers_of(
    function: Callable[[], Iterator[Any]], *, seconds: float | None = None, silent: bool = False
) -> Iterator[Any]:
    """Yield what a function yields in a forked process, as JSON; the text of its death comes last.

    The process cannot harm the command that asks for its answer.

    What the function prints on stdout goes nowhere.

    Args:
        seconds: how long an answer may take; then the process is killed.
        silent: drop stderr, too.
    """
    cli.answer().flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _answer(function, writing, silent=silent)
    os.close(writing)
    why = ""
    with open(reading, encoding="utf-8") as pipe:
        while not why:
            if not select.select([pipe], [], [], seconds)[0]:
                os.kill(pid, signal.SIGKILL)
                why = f"it took longer than {seconds:.0f} s"
            elif line := pipe.readline():
                yield json.loads(line)
            else:
                break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        yield why or f"its process ended with {code}"


def _answer(function: Callable[[], Iterator[Any]], writing: int, *, silent: bool) -> None:
    """Write the answers into a pipe, and exit."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2) if silent else (0, 1):
        os.dup2(nowhere, each)
    code = 1
    try:
        with open(writing, "w", encoding="utf-8") as pipe:
            for answer in function():
                pipe.write(f"{json.dumps(answer)}\n")
                pipe.flush()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)
