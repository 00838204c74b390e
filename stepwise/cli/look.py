"""Look at runs: the list, a history, calls in doubt, a page, the difference of two; at limits."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO, get_args

import click

import stepwise
from stepwise import RecordedFrame, Run, StepRecord
from stepwise._display.render import RunShown, question_text, usage_text, why_text
from stepwise._display.terminal import Below, Branch, Column, Terminal, Word, elided, line_of
from stepwise._display.words import cached_text, duration_text, resume_text, tries_text, when
from stepwise._runs.branching import existing, origin_of
from stepwise._runs.export import first_step, first_variable, html_page
from stepwise._runs.maintenance import limits_in_use, store_url
from stepwise._runs.overview import SHOWN, Overview
from stepwise._runs.paths import JSON_ROOM, find, find_recorded, short, short_values, shown
from stepwise._runs.replica import taken_from, test_of, to_data
from stepwise._runs.run import Listed, find_step, listed, number_of_runs, unsettled
from stepwise._runs.steps import UNFINISHED, RunStatus, begins_text, is_inner
from stepwise._runs.streaming import RunStream, shown_item
from stepwise._runtime.messages import count, printable, shell_word
from stepwise._runtime.system_limits import open_private
from stepwise.cli import _command as cli
from stepwise.errors import escaped
from stepwise.integrations._model_calls import model_calls, moved_prompt

# -- look -----------------------------------------------------------------------------------------


_RESUMES = 5  # resumes that are listed
_DOUBTFUL = 20  # steps in doubt that are shown beside the newest steps
_WATCHED = 500  # newest steps that watch reads again
_MANY = 100  # steps of a run in a tree
_FIXED = 32  # columns of a list of runs beside the ids, without calls, durations, errors, tags
_PAGE = 50  # runs that a terminal shows
_ROOM = 20  # columns that a call, an error or tags need at least


def pairs(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the tags of options ``NAME=TEXT``; the callback of such an option."""
    parts = [text.partition("=") for text in texts]
    for (name, sign, value), text in zip(parts, texts, strict=True):
        if not (name and sign and value):
            raise click.BadParameter(f"{text!r} is not NAME=TEXT, like customer=ann")
    return {name: value for name, _, value in parts}


def chosen_runs(function: cli.F) -> cli.F:
    """Add the options by which runs are chosen: ``workflow``, ``status`` and ``tags``."""
    options = (
        click.option("--workflow", help="Only runs of this workflow: its name or full name."),
        click.option(
            "--status",
            type=click.Choice(get_args(RunStatus)),
            metavar="STATUS",
            help="Only runs with this status: running, completed, suspended, ...",
        ),
        click.option(
            "--tag",
            "tags",
            metavar="NAME=TEXT",
            multiple=True,
            callback=pairs,
            help="Only runs with this tag; several times: with all of them.",
        ),
    )
    for option in reversed(options):  # reversed, like a stack of decorators
        function = option(function)
    return function


# -- the list ------------------------------------------------------------------------------------


@cli.command(
    "Look",
    "stepwise runs  # the newest first\n"
    "stepwise runs --status failed --since 2h\n"
    "stepwise runs --tag customer=ann -n 20\n"
    "stepwise runs --json | jq '.[].id'",
)
@chosen_runs
@click.option("--children", is_flag=True, help="Child runs and scores, too.")
@click.option(
    "--since", type=cli.age, metavar="AGE", help="Only those updated in the last 2h, 30d, ..."
)
@click.option(
    "--older-than", type=cli.age, metavar="AGE", help="Only those not updated since 2h, 30d, ..."
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    help=f"At most this many; on a terminal, {_PAGE} if nothing is said.",
)
def runs(
    workflow: str | None,
    status: Any,
    tags: dict[str, str],
    *,
    children: bool,
    since: float | None,
    older_than: float | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the runs, newest first."""
    now = time.time()

    def is_meant(facts: Any) -> bool:
        return (
            (children or not is_inner(facts, chosen=bool(workflow or tags)))
            and (since is None or facts.updated_at >= now - since)
            and (older_than is None or facts.updated_at <= now - older_than)
        )

    most = limit or (None if as_json else _page())
    # One more than shown tells whether there are more.
    more = None if most is None or as_json else most + 1
    found = listed(workflow, status, tags=tags, limit=more or most, where=is_meant)
    chosen = bool(workflow or status or tags or since is not None or older_than is not None)
    if as_json:
        cli.echo_json(each for each in map(_run_dict, found) if each is not None)
    elif not found:
        cli.note(f"no runs{' like that' if chosen else ''} in {store_url()}")
    else:
        _show_runs(found[:most])
        if most is not None and len(found) > most:
            _tell_of_more(most, chosen=chosen)


def _page() -> int | None:
    """Return the default number of runs: a page on a terminal, else ``None`` for all."""
    return None if Terminal.of(cli.answer()).width is None else _PAGE


def _tell_of_more(shown: int, *, chosen: bool) -> None:
    total = None if chosen else number_of_runs()
    these = f"the newest {shown} of {total:,} runs" if total else f"the newest {shown} like that"
    choose = "" if chosen else "; --status, --workflow, --since and --tag choose"
    cli.note(f"{these}; -n {10 * shown} shows more{choose}")


def _run_dict(each: Listed) -> dict[str, Any] | None:
    try:
        return each.to_dict()
    except stepwise.RunNotFoundError:  # deleted meanwhile
        return None


def _show_runs(found: list[Listed]) -> None:
    more = [Column("CALL")]
    more += [Column("ERROR")] if any(each.facts.error for each in found) else []
    more += [Column("WAITS")] if any(each.facts.waits for each in found) else []
    more += [Column("TAGS")] if any(each.facts.tags for each in found) else []
    width = Terminal.of(cli.answer()).width
    room = math.inf if width is None else width - _FIXED
    room -= max(len(each.facts.run_id) for each in found)
    narrow = room < 2 * _ROOM + (_ROOM + 2) * len(more)
    columns = [
        Column("RUN"),
        Column("STATUS", whole=True),
        Column("STEPS", whole=True, right=narrow),
        Column("UPDATED", whole=True),
    ]
    if not narrow:
        columns += [Column("TIME", whole=True, right=True), *more]
    elif room >= _ROOM:
        columns += more[:1]
    cli.show_table(columns, _run_rows(found, [each.name for each in columns], narrow=narrow))


def _run_rows(
    found: list[Listed], names: list[str], *, narrow: bool
) -> Iterator[list[Any] | Below]:
    """Yield the rows of a list of runs; a narrow one has errors and tags below the calls."""
    for each in found:
        facts = _run_dict(each)
        if facts is None:
            continue
        counts = facts["counts"]
        others = [f"{n} {s.replace('_', ' ')}" for s, n in counts.items() if s != "completed"]
        tags = ", ".join(f"{name}={text}" for name, text in facts["tags"].items())
        total, told = str(sum(counts.values())), ", ".join(others)
        cells = {
            "RUN": facts["id"],
            "STATUS": Word(facts["status"]),
            "STEPS": f"{total} ({told})" if told and not narrow else total,
            "UPDATED": cli.ago(facts["updated_at"]),
            "TIME": duration_text(facts["duration"]),
            "CALL": cli.call_text(each.facts),
            "ERROR": facts["error"] or "",
            "WAITS": "; ".join(str(stepwise.PendingWait(**wait)) for wait in facts["waits"]),
            "TAGS": tags,
        }
        yield [cells[name] for name in names]
        if "CALL" not in names:
            yield Below(cells["CALL"])
        told_below = (told, facts["error"], cells["WAITS"], tags)
        below = " · ".join(filter(None, told_below)) if narrow else ""
        if below:
            yield Below(below)


# -- one run -------------------------------------------------------------------------------------


@cli.command(
    "Look",
    "stepwise show  # the latest run\n"
    "stepwise show trip-0573  # the beginning of an id\n"
    "stepwise show trip-0573 3  # a step, its arguments in full\n"
    "stepwise show trip-0573 3 --path result\n"
    "stepwise show trip-0573 --all --locals\n"
    "stepwise show trip-0573 --tree  # with the steps of child runs\n"
    "stepwise show trip-0573 --json | jq .counts",
)
@cli.run_argument(required=False)
@click.argument("step", type=click.IntRange(1), required=False)
@click.option("--locals", "with_locals", is_flag=True, help="Also the variables where it resumes.")
@click.option("--all", "every", is_flag=True, help="Every step, not only the newest.")
@click.option("--tree", is_flag=True, help="The steps as a tree, with those of child runs.")
@click.option("--path", metavar="PATH", help="Only this: arguments.NAME, result, or a part of it.")
def show(
    run_id: str | None,
    step: int | None,
    *,
    path: str | None,
    with_locals: bool,
    every: bool,
    tree: bool,
    as_json: bool,
) -> None:
    """Show a run, the latest one without RUN, and its newest steps; or one STEP, by its number.

    A step is shown with its arguments in full and with the variables of its failures, if these
    were recorded: see record_arguments and record_locals of stepwise.configure.
    """
    run = cli.find_run(run_id)
    if path is not None:
        _show_part(run, step, path, as_json=as_json)
        return
    if step is not None:
        _show_step(run, find_step(run, step), as_json=as_json)
        return
    seen = run._seen(SHOWN)
    of_run = run._shown(seen)
    steps = run._each_step(seen) if every else iter(of_run.steps)
    variables = run._shown_locals() if with_locals else {}
    if as_json:
        facts = _all_facts(run, of_run, seen)
        facts["steps_left_out"] = 0 if every else of_run.earlier
        facts["steps"] = (each.to_dict() for each in steps)
        facts["frames"] = [each.to_dict() for each in run.frames]
        facts["stops"] = [each.to_dict() for each in seen.stops]
        facts["questions"] = [each.to_dict() for each in run._asked(seen)]
        facts["branches"] = existing(run, None if every else SHOWN).rows()
        facts["inbox"] = [each.to_dict() for each in run.inbox if every or each.status != "taken"]
        if with_locals:
            facts["locals"] = {name: shown(value, name) for name, value in variables.items()}
        cli.echo_json(facts)
        return
    _describe(run, of_run, seen)
    again = cli.RanAgain()
    if tree:
        cli.say()
        terminal = Terminal.of(cli.answer())
        click.echo(terminal.tree(_branch_of(run, terminal, every=every)), cli.answer())
    elif of_run.steps:
        cli.say()
        _show_steps(of_run, seen, again.noting(steps), every=every)
    _show_frames("the run failed here", run.frames)
    if with_locals:
        cli.say()
        cli.show_variables(variables)
    again.show()
    cli.show_in_doubt(run, seen.in_doubt)
    cli.show_stops(seen.stops)
    _show_questions(run, seen)
    _show_inbox(run, every=every)
    _show_branches(run, every=every)


def _show_questions(run: Run, seen: Overview) -> None:
    for question in run._asked(seen):
        cli.say()
        for line in question_text(question).splitlines():
            cli.say(line)


def _show_branches(run: Run, *, every: bool) -> None:
    """Print the branches of a run as a table: the newest ones, or all."""
    found = existing(run, None if every else SHOWN)
    if found:
        cli.say(f"\n{found}")
    if len(found) == SHOWN and not every:
        cli.note(f"the newest {SHOWN} branches; all of them: --all")


_INBOX = [
    Column("MESSAGE", right=True),
    Column("NAME"),
    Column("VALUE"),
    Column("STATUS", whole=True),
    Column("BY", wide=True),
    Column("SENT", whole=True, right=True),
]


def _show_inbox(run: Run, *, every: bool) -> None:
    """Print the messages that a run did not take, with the reason; with ``every``, all messages."""
    found = [each for each in run.inbox if every or each.status != "taken"]
    if not found:
        return
    rows = [
        [
            each.number,
            each.name or each.kind,
            each.note if each.kind != "signal" else shown(each.value, "value"),
            f"refused: {each.why}" if each.why else Word(each.status),
            each.by,
            cli.ago(each.at),
        ]
        for each in found
    ]
    cli.say("\ninbox:")
    cli.show_table(_INBOX, rows)


def _show_steps(
    shown: RunShown, seen: Overview, steps: Iterator[StepRecord], *, every: bool
) -> None:
    first: list[list[Any]] = []
    if shown.earlier and not every:
        first.append(["...", f"{shown.earlier:,} earlier steps: --all", *[""] * 5])
        numbers = {step.number for step in shown.steps}
        doubtful = [step for step in seen.in_doubt if step.number not in numbers]
        first += map(cli.step_row, doubtful[:_DOUBTFUL])
    cli.show_table(cli.STEP_COLUMNS, itertools.chain(first, map(cli.step_row, steps)))


def _show_part(run: Run, step: int | None, path: str, *, as_json: bool) -> None:
    """Print a part of the arguments or the result of a step, or of the run."""
    of: Any = run if step is None else find_step(run, step)
    value = find_recorded(of, path)
    if as_json:
        text, cut = short(value, path, JSON_ROOM)
        cli.echo_json({"id": run.id, "step": step, "path": path, "value": text, "cut": cut})
    else:
        cli.say(shown(value, path))


def _show_step(run: Run, step: StepRecord, *, as_json: bool) -> None:
    """Print everything that is recorded of a step."""
    inputs, failures, problem, moved = None, step.failures, "", None
    try:
        inputs = step.inputs if step.has_inputs else None
        moved = moved_prompt(step, run.steps) if step.usage else None
    except stepwise.UnreadableValueError as error:
        problem = str(error)
    texts = {n: shown(value, f"arguments[{n!r}]") for n, value in (inputs or {}).items()}
    if as_json:
        told = {n: [each.to_dict() for each in frames] for n, frames in failures.items()}
        inner = {"inputs": texts if inputs is not None else None, "failures": told}
        prompt = {"prompt_moved": moved._asdict()} if moved is not None else {}
        cli.echo_json({**step.to_dict(), **inner, **prompt})
        return
    cli.say(printable(f"{step.name}({step.arguments})", 1000))
    _say("run", printable(run.id))
    _say("step", f"{step.number}  ", Word(step.status), f"  {cli.took(step)}".rstrip())
    _say("from", printable(step.site))
    for each in tries_text(step):
        _say("try", printable(each, 1000))
    _say("by", printable(step.by))
    _say("key", printable(step.idempotency_key) if step.side_effect else "")
    _say("child", printable(step.child))
    _say("model", printable(usage_text(step.usage)))
    _say("answer", printable(cached_text(step)))
    _say("prompt", printable(str(moved), 1000) if moved is not None else "")
    _say("result", printable(step.preview, 1000))
    if inputs is not None:
        cli.say()
        cli.show_table([Column("ARGUMENT"), Column("VALUE")], map(list, texts.items()))
    _say("unread", printable(problem, 1000))
    if step.traceback:
        cli.say(f"\n{step.traceback.rstrip()}")
    for attempt, frames in failures.items():
        _show_frames(f"attempt {attempt} failed here", frames)


def _show_frames(title: str, frames: Sequence[RecordedFrame]) -> None:
    """Print the frames of a failure with their variables, the outermost first."""
    if frames:
        cli.say(f"\n{title}, the last line innermost:")
    for each in frames:
        where = f"{each.file}:{each.line}, in {each.function}: {each.code}"
        cli.say(f"  {printable(where, 1000)}")
        for name, text in each.variables.items():
            cli.say(f"    {printable(f'{name} = {text}', 1000)}")


def _branch_of(run: Run, terminal: Terminal, *, every: bool, depth: int = 0) -> Branch:
    """Return a run as the branch of a tree: its steps, with those of child runs below."""
    seen = run._seen(None if every else _MANY)
    room = (terminal.width or 1000) - 4 * (depth + 1) - 32
    calls = [f"{each.name}({each.arguments})" for each in seen.steps]
    below: list[Branch] = []
    left_out = seen.total - len(seen.steps)
    if left_out:
        below.append(Branch([f"{left_out:,} earlier steps: --all"]))
    for number, step in enumerate(seen.steps):
        near = [calls[n] for n in (number - 1, number + 1) if 0 <= n < len(calls)]
        call = elided(line_of(calls[number], 1000), max(room, 20), near)
        more = [f"  {told}" for told in (cli.took(step), cached_text(step)) if told]
        parts = [f"{step.number}  {call}  ", Word(step.status), *more]
        children: Sequence[Branch] = ()
        if step.child:
            try:
                child = stepwise.get_run(step.child, store=run.store)
                children = _branch_of(child, terminal, every=every, depth=depth + 1).below
            except stepwise.RunNotFoundError:
                parts.append("  (its run is gone)")
        below.append(Branch(parts, children))
    top = line_of(cli.call_text(run), max((terminal.width or 1000) - 20, 20))
    return Branch([f"{top}  ", Word(run.status)], tuple(below))


def _all_facts(run: Run, shown: RunShown, seen: Overview) -> dict[str, Any]:
    """Return everything that ``show`` prints, for JSON."""
    unfinished = shown.status in UNFINISHED
    where, line = run._goes_on() if unfinished else ("", "")
    return {
        **cli.run_facts(run),
        "resumes_at": {"where": where, "line": line} if unfinished else None,
        "resumes": [
            {"at": at, "how": how, "before": end} for at, how, end in seen.course.resumptions
        ],
        "resumed_from_step": shown.resumed_from,
        "steps_executed": shown.executed,
        "steps_skipped": shown.skipped,
        "seconds_saved": shown.saved,
        "seconds_lost": shown.lost,
        "unreadable_records": shown.unreadable,
        "steps_total": shown.total,
    }


def _describe(run: Run, shown: RunShown, seen: Overview) -> None:
    cli.say(printable(shown.call, 1000))
    _say("run", f"{run.id}  ", Word(shown.status), f"  {shown.owner}".rstrip())
    _say("workflow", printable(shown.workflow))
    _say("tags", ", ".join(f"{name}={text}" for name, text in run.tags.items()))
    _say("child of", run.parent or "")
    for name, text in origin_of(run):
        _say(name, text)
    length = duration_text(run.duration)
    started = f"{when(shown.created_at)}, updated {when(shown.updated_at)}"
    _say("started", f"{started}{f', took {length}' if length else ''}")
    _say("steps", shown.counts)
    resumes = seen.course.resumptions[-_RESUMES:]
    for at, how, end in resumes:
        _say("resumed", printable(resume_text(at, how, end)))
    if seen.course.resumed > len(resumes):
        _say("", f"and {count(seen.course.resumed - len(resumes), 'time')} before")
    _say("attempt", shown.attempt and f"the last one: {shown.attempt}")
    _say("spent", shown.spent)
    _say("lost", shown.gaps)
    if shown.status in ("crashed", "stuck"):
        _say("stopped", f"{cli.ago(seen.course.at)}, at its last record")
    if shown.status == "stuck":
        _say("stuck", "it died at the same step three times, so stepwise up leaves it: edit its")
        _say("", "workflow, settle or forget a step, or try it again by the command below")
    if shown.status == "interrupted":
        _say("stopped", f"{cli.ago(shown.updated_at)}, by {printable(shown.error)}")
    _say("damage", shown.damage)
    for each in shown.waits:
        _say("waits", printable(each))
    if run._facts().is_submitted:
        _say("begins", begins_text(run.store, run._facts()))
    elif shown.status in UNFINISHED:
        where, line = run._goes_on()
        _say("resumes", f"{where}: stepwise resume {shell_word(run.id)}")
        _say("", printable(line, 200))
    _say("error", run._error_text() or "")


def _say(name: str, *parts: str) -> None:
    if any(parts):
        cli.say(f"  {name:<9} ", *parts)


# -- while it runs -------------------------------------------------------------------------------


@cli.command(
    "Look",
    "stepwise watch trip-0573\nstepwise watch trip-0573 --stream main\n"
    "stepwise watch trip-0573 --json  # one JSON object a line",
    short_help="Print the steps of a RUN as they happen, or what it says.",
)
@cli.run_argument(required=False)
@click.option(
    "--stream", metavar="NAME", help="What the run says on a stream (main), not its steps."
)
@click.option(
    "--after", type=int, metavar="OFFSET", help="Only what follows an offset of the stream."
)
def watch(run_id: str | None, stream: str | None, after: int | None, *, as_json: bool) -> None:
    """Print each step of a RUN, the latest one without RUN, until it ends or its process is gone.

    As JSON, each line is an object: ``{"step": ...}``, and at the end ``{"run": ...}``.

    With ``--stream``, what the run says is printed, texts as they are: of a run in progress all
    that follows, even if it is killed and resumed meanwhile; of others what is there.  As JSON,
    each line has ``offset``, ``kind`` (item, reset, end) and ``value``.
    """
    run = cli.find_run(run_id)
    if stream is not None:
        follow = run.status == "running"
        _watch_stream(run.stream(after, stream, follow=follow), as_json=as_json)
        return
    if after is not None:
        raise click.UsageError("--after is an offset of a stream: give --stream main, too")
    shown: dict[int, str] = {}
    while True:
        began = time.monotonic()
        seen = run._seen(_WATCHED if shown else SHOWN)
        status = seen.standing.status
        missed = seen.steps[0].number - max(shown, default=0) - 1 if seen.steps else 0
        if missed > 0:
            cli.note(f"... {count(missed, 'step')}: stepwise show {shell_word(run.id)} --all")
        for step in seen.steps:
            if shown.get(step.number) != step.status:
                shown[step.number] = step.status
                _watched(step, as_json=as_json)
        if status != "running":
            break
        # The pause grows with the time that reading the journal takes.
        time.sleep(max(0.3, 5 * (time.monotonic() - began)))
    if as_json:
        _one_line({"run": run.to_dict()})
    else:
        cli.say(f"{run.id} {'has' if status in ('completed', 'failed') else 'is'} ", Word(status))


def _watch_stream(items: RunStream, *, as_json: bool) -> None:
    """Print what a run says; a value that is no plain data is not loaded."""
    items.load = shown_item
    for each in items:
        if as_json:
            _one_line({"offset": each.offset, "kind": each.kind, "value": each.value})
        elif each.kind == "item":
            text = each.value if isinstance(each.value, str) else f"{json.dumps(each.value)}\n"
            click.echo(escaped(text), cli.answer(), nl=False)
        elif each.kind == "reset":
            cli.note(f"... an attempt failed: what followed offset {each.value - 1} is withdrawn")
        else:
            cli.note(f"... {each.value}")


def _watched(step: StepRecord, *, as_json: bool) -> None:
    if as_json:
        _one_line({"step": step.to_dict()})
        return
    number, call, _, result, _, length, _ = (line_of(cell, 100) for cell in cli.step_row(step))
    moment = time.strftime("%H:%M:%S", time.localtime(step.finished_at or step.started_at))
    ended = f"  {length}  {result}" if step.finished_at is not None else ""
    cli.say(f"{moment}  {number}  {call}  ", Word(step.status), ended.rstrip())


def _one_line(facts: Mapping[str, Any]) -> None:
    click.echo(json.dumps(facts), cli.answer())


# -- in doubt ------------------------------------------------------------------------------------


@cli.command(
    "Settle",
    "stepwise in-doubt\nstepwise in-doubt --json | jq '.[].run_id'",
    name="in-doubt",
    short_help="List the side effects that may have happened.",
)
def in_doubt(*, as_json: bool) -> None:
    """List the side effects that may have happened, and the calls that could be recorded ones."""
    known = [*unsettled()]
    found = [(run, step) for run, seen in known for step in seen.in_doubt]
    stopped = [(run, seen.stops) for run, seen in known if seen.stops]
    if as_json:
        rows: list[Any] = [{"run_id": run.id, **step.to_dict()} for run, step in found]
        for run, stops in stopped:
            rows += [{"run_id": run.id, "status": "stopped", **each.to_dict()} for each in stops]
        cli.echo_json(rows)
        return
    if found:
        columns = [
            Column("RUN"),
            Column("STEP", whole=True, right=True),
            Column("CALL"),
            Column("STARTED", whole=True),
        ]
        rows = [
            [run.id, step.number, f"{step.name}({step.arguments})", when(step.started_at)]
            for run, step in found
        ]
        cli.show_table(columns, rows)
        cli.say("\nstepwise resolve RUN STEP --landed JSON | --did-not-happen")
    for run, stops in stopped:
        cli.say(f"\n{run.id}")
        cli.show_stops(stops)
    if not found and not stopped:
        cli.note("nothing is in doubt")


# -- report ---------------------------------------------------------------------------------------


@cli.command(
    "Keep",
    "stepwise export trip-0573 -o run.html\nstepwise export trip-0573 --json > run.json\n"
    "stepwise export trip-0573 --format model-calls -o tests/run.json\n"
    "stepwise export trip-0573 --format test -o tests/test_trip.py",
    short_help="Write a RUN as one HTML page, as JSON, or as a test.",
)
@cli.run_argument()
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "html", "model-calls", "test"]),
    default="html",
    show_default=True,
    help="A page, data, the recorded model calls alone, or a test of the code.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="The file to write; by default stdout.",
)
def export(run_id: str, *, form: str, output: str, as_json: bool) -> None:
    """Write everything known about a RUN: as one self-contained HTML page, or as JSON.

    The format model-calls is a file for tests: stepwise.testing.recorded() answers the model calls
    of a program from it.  The format test is a test file for pytest, with its data in a .json file
    beside it: it executes the code again, and needs no store, key or network.  Secrets are masked.

    The file is readable by its owner only, like the store.
    """
    run = cli.find_run(run_id)
    if form == "test":
        _write_test(run, output, as_json=as_json)
        return
    only_calls = model_calls(run) if form == "model-calls" else None
    if only_calls == []:
        cli.fail(
            stepwise.ConfigurationError(
                f"run {run.id} has no recorded model calls: call stepwise.instrument() in the "
                "program, and run it again"
            )
        )
    page = html_page(run) if form == "html" and not as_json else ""  # before a file is opened
    out: Any = contextlib.nullcontext(cli.answer()) if output == "-" else _private(output)
    with out as file:
        if page:
            click.echo(page, file=file, nl=False)
        elif only_calls is not None:
            cli.echo_json({"model_calls": only_calls}, file)
        else:
            _write_json(run, file)


def _write_test(run: Run, output: str, *, as_json: bool) -> None:
    """Write a test of a run, and its data beside it."""
    if not output.endswith(".py"):
        raise click.UsageError("a test is two files: name the first, -o tests/test_trip.py")
    beside = f"{output.removesuffix('.py')}.json"
    data = to_data(taken_from(run.store, run._seal, run.id), run)
    with open(beside, "w", encoding="utf-8") as file:  # for a repository, so not private
        json.dump(data, file, indent=1, ensure_ascii=False)
        file.write("\n")
    with open(output, "w", encoding="utf-8") as file:
        file.write(test_of(run, data, output))
    if as_json:
        facts = {"test": output, "data": beside, "masked": data["masked"]}
        cli.echo_json({**facts, "pickles": data["pickles"]})
        return
    cli.say(f"{output} and {beside}; run it: pytest {shell_word(output)}")
    if data["masked"]:
        cli.note(f"masked: {', '.join(data['masked'])}")
    if data["pickles"]:
        cli.note(
            f"{data['pickles']} of its values are pickles, which a test loads, and so executes"
        )


@contextlib.contextmanager
def _private(path: str) -> Iterator[TextIO]:
    """Open a file for writing that only its owner can read, whatever its mode was."""
    try:
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            yield file
    except OSError as error:
        raise click.FileError(path, error.strerror or str(error)) from error


def _write_json(run: Run, file: TextIO) -> None:
    facts = {
        **cli.run_facts(run),
        "steps": (step.to_dict() for step in run._each_step(run._seen(1))),
        "checkpoints": [each.to_dict() for each in run.checkpoints],
        "inbox": [each.to_dict() for each in run.inbox],
        "locals": _variables(run),
        "model_calls": model_calls(run),
    }
    cli.echo_json(facts, file)


def _variables(run: Run) -> dict[str, str]:
    """Return the variables at the newest checkpoint as text; empty if they cannot be shown."""
    try:
        return {name: shown(value, name) for name, value in run._shown_locals().items()}
    except (stepwise.StepNotFoundError, stepwise.UnreadableValueError):
        return {}


# -- where two runs part -------------------------------------------------------------------------


@cli.command(
    "Look",
    "stepwise diff trip-0573 three\nstepwise diff trip-0573 three --json | jq .variable",
    short_help="Show where two runs part.",
)
@cli.run_argument("one", "RUN_A")
@cli.run_argument("other", "RUN_B")
def diff(one: str, other: str, *, as_json: bool) -> None:
    """Show the first step and the first variable in which two runs differ.

    The exit code is 0 if they do not differ, 1 if they do, and 2 if they cannot be compared.
    """
    try:
        runs = cli.find_run(one), cli.find_run(other)
        step, variable = first_step(*runs), first_variable(*runs)
    except cli.PROBLEMS as problem:
        cli.fail(problem, code=2)
    if as_json:
        cli.echo_json(
            {
                "runs": [run.id for run in runs],
                "step": step.to_dict() if step is not None else None,
                "variable": asdict(variable) if variable is not None else None,
            }
        )
    elif step is None and variable is None:
        cli.say("the runs do not differ")
    if not as_json and step is not None:
        cli.say(f"step {step.number} is the first that differs, in its {step.what}:")
        cli.show_table(
            [Column("RUN"), *cli.STEP_COLUMNS[1:4], Column("TIME", wide=True)],
            [[f"  {run.id}", *_cells(each)] for run, each in zip(runs, step.steps, strict=True)],
        )
    if not as_json and variable is not None:
        cli.say(
            f"{chr(10) if step is not None else ''}variable {variable.name} is the first that "
            f"differs, at {variable.position} after step {variable.step}:"
        )
        values = zip(runs, variable.values, strict=True)
        cli.show_table(
            [Column("RUN"), Column("VALUE")], [[f"  {run.id}", value] for run, value in values]
        )
    sys.exit(int(step is not None or variable is not None))


def _cells(step: StepRecord | None) -> list[Any]:
    if step is None:
        return ["(has no such step)", "", "", ""]
    row = cli.step_row(step)
    return [*row[1:4], row[5]]


@cli.command(
    "Look",
    "stepwise why  # the latest run\n"
    "stepwise why trip-0573 --at 2  # its statement and variables after two steps\n"
    "stepwise why trip-0573 --json  # at most 2,000 tokens, for a coding agent",
    short_help="Show on one screen why a RUN stands where it stands.",
)
@cli.run_argument(required=False)
@click.option(
    "--at", type=click.IntRange(0), metavar="STEP", help="As it was after this many steps."
)
def why(run_id: str | None, *, at: int | None, as_json: bool) -> None:
    """Show why a RUN, the latest one without RUN, stands where it stands.

    One screen: what it was doing, what happened, what it has done and spent, its variables and
    which changed last, and the commands that go on.
    """
    found = cli.find_run(run_id).why(at)
    if as_json:
        cli.echo_json(found.to_dict())
        return
    for line in why_text(found, Terminal.of(cli.answer())).splitlines():
        click.echo(line, cli.answer())


@cli.command(
    "Look",
    "stepwise locals trip-0573\n"
    "stepwise locals trip-0573 --at 2  # after two steps\n"
    "stepwise locals trip-0573 'notes[0:3]'  # a part of a variable\n"
    "stepwise locals trip-0573 --changes notes  # its history\n"
    "stepwise locals trip-0573 --json | jq .locals",
    name="locals",
    short_help="Show the local variables at a checkpoint, or the history of one.",
)
@cli.run_argument()
@click.argument("path", required=False)
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After this many steps.")
@click.option("--changes", metavar="PATH", help="How a variable changed, over all checkpoints.")
def show_locals(
    run_id: str, *, path: str | None, at: int | None, changes: str | None, as_json: bool
) -> None:
    """Show the local variables at the newest checkpoint of a RUN, or at an older one.

    PATH is a variable or a part of it: messages[3].content, config['max tokens'], notes[0:10].
    """
    run = cli.find_run(run_id)
    if changes is not None:
        if path is not None or at is not None:
            raise click.UsageError(
                "--changes goes through all checkpoints: leave out PATH and --at"
            )
        _show_changes(run, changes, as_json=as_json)
        return
    loaded = run._checkpoint(at)
    values, step, position = run._shown_at(loaded), loaded.state.step, loaded.state.where
    facts: dict[str, Any] = {"id": run.id, "step": step, "position": position}
    if path is not None:
        if as_json:
            text, cut = short(find(values, path), path, JSON_ROOM)
            cli.echo_json({**facts, "path": path, "value": text, "cut": cut})
        else:
            text = shown(find(values, path), path)
            cli.note(f"{path} after step {step}, at {position}\n")
            cli.say(text)
        return
    if as_json:
        cli.echo_json({**facts, **short_values(values)})
        return
    cli.note(f"after step {step}, at {position}\n")
    cli.show_variables(values)


def _show_changes(run: Run, path: str, *, as_json: bool) -> None:
    found = run.history(path)
    if as_json:
        cli.echo_json({"id": run.id, "path": path, **found.to_dict()})
        return
    for change in found:
        cli.say(str(change))
    if found.note:
        cli.note(f"({found.note})")


@cli.command(
    "Look",
    "stepwise bisect trip-0573 'len(messages)>40'\n"
    "stepwise bisect trip-0573 'total < 0' --every  # looks at each checkpoint",
    short_help="Find the first checkpoint of a RUN at which an expression is true.",
)
@cli.run_argument()
@click.argument("expression")
@click.option("--every", is_flag=True, help="Look at each kept checkpoint, not only at some.")
def bisect(run_id: str, *, expression: str, every: bool, as_json: bool) -> None:
    """Find the first kept checkpoint of a RUN at which an EXPRESSION is true.

    EXPRESSION is Python over the local variables: it is executed, with the code of your classes
    that it calls. Some checkpoints are looked at, then the gap is halved. To find where a text
    first appears in any variable: "'Souza' in str(globals())".

    The exit code is 0 if there is such a checkpoint, and 1 if there is none.
    """
    found = cli.find_run(run_id).bisect(expression, every=every)
    if as_json:
        cli.echo_json(found.to_dict())
    else:
        cli.say(str(found))
    sys.exit(int(found.step is None))


# -- limits ----------------------------------------------------------------------------------------


@cli.command("Look", "stepwise limits\nstepwise limits --json | jq '.[].waiting'")
def limits(*, as_json: bool) -> None:
    """List the limits of the store: what is used of them now, and which runs wait."""
    found = limits_in_use()
    if as_json:
        cli.echo_json([{name: each[name] for name in each if name != "text"} for each in found])
    elif not found:
        cli.note(f"no limit was used in {store_url()}")
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
        cli.show_table(columns, map(_limit_row, found))


def _limit_row(facts: dict[str, Any]) -> list[Any]:
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
