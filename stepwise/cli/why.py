"""Find out why a run stopped: the screen of a run, its variables and their history."""

from __future__ import annotations

import sys
from typing import Any

import click

from stepwise import Run
from stepwise._display.stops import why_text
from stepwise._display.terminal import Terminal
from stepwise._runs.paths import JSON_ROOM, find, short, short_values, shown
from stepwise._runs.steps import newest_checkpoint
from stepwise.cli import _command as cli


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
    for line in why_text(found, Terminal.of(sys.stdout)).splitlines():
        click.echo(line)


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
    values = run._shown_locals(at)
    taken = newest_checkpoint(run.store, run._seal, run.id, at)
    step, position = (taken.state.step, taken.state.where) if taken is not None else (None, None)
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
