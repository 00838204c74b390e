"""Copy runs from one store into another."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

import stepwise
from stepwise._display.terminal import Column, Terminal, Word
from stepwise._runs import housekeeping
from stepwise._runs.copying import Copied, Copier, log_kind_of
from stepwise._runtime.messages import count
from stepwise.cli import _command as cli
from stepwise.cli.look import chosen_runs

_ERASE = "\r\x1b[2K"


def _size_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


@cli.command(
    "Keep",
    "stepwise copy --to postgresql://db.example/stepwise  # all runs\n"
    "stepwise copy --from disk:./runs --to disk:./one trip-0573\n"
    "stepwise copy --from disk:./backup --to disk:./runs --restored",
    short_help="Copy runs from one store into another.",
)
@cli.run_argument("run_ids", "[RUN]...", nargs=-1)
@click.option(
    "--from",
    metavar="URL",
    expose_value=False,
    is_eager=True,
    callback=cli.use_store,
    help="The store that they are in; by default the configured one.",
)
@click.option("--to", "target", metavar="URL", required=True, help="The store to copy them into.")
@chosen_runs
@click.option("--restored", is_flag=True, help="It is a backup: mark runs as restore does.")
@click.option("--messages", is_flag=True, help="Also runs that may still act on messages.")
@click.option("--wait", is_flag=True, help="Wait for runs that are being executed.")
@click.option("--dry-run", is_flag=True, help="Only compare, and say what would be copied.")
def copy(
    run_ids: tuple[str, ...],
    target: str,
    workflow: str | None,
    status: Any,
    tags: dict[str, str],
    *,
    restored: bool,
    messages: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy the RUNs, or all, into another store; they keep their ids and continue there.

    Child runs and inboxes are copied, too.  Without RUN and filters, so are the threads and
    sessions of frameworks.  Every record is verified before it is written.  Given again, the
    command copies what is missing.  The exit code is 1 if a run was left out.
    """
    chosen = bool(workflow or status or tags)
    if run_ids and chosen:
        raise click.UsageError("give RUNs, or --workflow, --status and --tag, not both")
    began = time.monotonic()
    how = {"restored": restored, "messages": messages, "wait": wait, "dry_run": dry_run}
    copier = housekeeping.copier(target, **how)
    names = [_name_of(each) for each in run_ids]
    if not names:
        names = housekeeping.to_copy(workflow, status, tags)
        names += [] if chosen else copier.logs()
    found: list[Copied] = []
    rows = _rows(copier, names, found, dry_run=dry_run)
    if as_json:
        for _ in rows:
            pass
    else:
        _show(rows)
    seconds = time.monotonic() - began
    if as_json:
        cli.echo_json(_as_dict(copier, found, seconds, dry_run=dry_run))
    else:
        _sum_up(copier, found, seconds, dry_run=dry_run)
    if any(each.problem for each in found):
        sys.exit(1)


def _name_of(text: str) -> str:
    """Return the id of the named run; return the name of a log or of objects unchanged."""
    if log_kind_of(text) is not None:
        return text
    try:
        return cli.find_run(text).id
    except stepwise.RunNotFoundError:
        if housekeeping.has_objects(text):
            return text
        raise


def _rows(
    copier: Copier, names: list[str], found: list[Copied], *, dry_run: bool
) -> Iterator[list[Any]]:
    """Copy, and yield the rows of a table, without runs that were there already."""
    for each in _shown_on_a_line(copier.copy_each(names), found, len(names)):
        if each.problem:
            cli.note(f"stepwise: {each.problem}")
        if each.outcome != "there":
            told = "would be copied" if dry_run and each.outcome == "copied" else each.outcome
            size = _size_text(each.size) if each.size else ""
            yield [each.id, each.records or "", size, Word(told)]


def _shown_on_a_line(copied: Iterator[Copied], found: list[Copied], total: int) -> Iterator[Copied]:
    """Note and yield the copied runs until a store fails, with progress on a terminal."""
    is_on, records, size = Terminal.of(sys.stderr).colour, 0, 0  # a terminal that is not dumb
    try:
        with contextlib.suppress(stepwise.StoreError):  # the last item has reported the error
            for each in copied:
                found.append(each)
                records, size = records + each.records, size + each.size
                click.echo(_ERASE * is_on, nl=False, err=True)
                yield each
                line = f"{len(found):,} of {total:,} runs, {count(records, 'record')}, "
                click.echo(f"{line}{_size_text(size)}" * is_on, nl=False, err=True)
    finally:
        click.echo(_ERASE * is_on, nl=False, err=True)


def _show(rows: Iterator[list[Any]]) -> None:
    first = next(rows, None)
    if first is None:
        return
    columns = [
        Column("RUN"),
        Column("RECORDS", whole=True, right=True),
        Column("SIZE", whole=True, right=True),
        Column("RESULT", whole=True),
    ]
    cli.show_table(columns, itertools.chain([first], rows))


def _sum_up(copier: Copier, found: list[Copied], seconds: float, *, dry_run: bool) -> None:
    outcomes = Counter(each.outcome for each in found)
    way = f"from {copier.source.url} to {copier.target.url}"
    if not found:
        cli.note(f"nothing to copy {way}: no runs like that")
        return
    below = sum(each.children for each in found)
    records, size = sum(each.records for each in found), sum(each.size for each in found)
    runs = count(outcomes["copied"], "run") + f" with {count(below, 'child run')}" * bool(below)
    verb = "would be copied" if dry_run else "copied"
    sums = f"{runs}, {count(records, 'record')}, {_size_text(size)} {verb} {way} in {seconds:.1f} s"
    parts = [sums if outcomes["copied"] else f"nothing copied {way}"]
    parts += [f"{outcomes['there']:,} already there"] if outcomes["there"] else []
    parts += [f"{outcomes['busy']:,} being executed"] if outcomes["busy"] else []
    parts += [f"{outcomes['refused']:,} refused"] if outcomes["refused"] else []
    cli.say("; ".join(parts))


def _as_dict(
    copier: Copier, found: list[Copied], seconds: float, *, dry_run: bool
) -> dict[str, Any]:
    runs = [{**each._asdict(), "problem": each.problem or None} for each in found]
    return {
        "from": copier.source.url,
        "to": copier.target.url,
        "dry_run": dry_run,
        "runs": runs,
        "records": sum(each.records for each in found),
        "size": sum(each.size for each in found),
        "seconds": seconds,
    }
