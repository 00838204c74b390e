"""Check a store, repair damage, delete old runs, copy runs into another store; its cache."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

import stepwise
from stepwise import Run, StepRecord
from stepwise._display.render import size_text
from stepwise._display.terminal import Column, Word
from stepwise._runs import maintenance
from stepwise._runs.copying import Copied, Copier, log_kind_of
from stepwise._runs.maintenance import cache_facts, clear_cache, store_url
from stepwise._runs.run import Listed
from stepwise._runtime.messages import count, printable
from stepwise.cli import _command as cli
from stepwise.cli.look import chosen_runs


@cli.command(
    "Check and learn",
    "stepwise verify  # all runs\nstepwise verify trip-0573 --repair",
    short_help="Verify every stored byte of runs.",
)
@cli.run_argument("run_ids", "[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Set damaged data aside, derive what can be derived.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --repair: give up lost records, even of side effects, which may then be repeated.",
)
def verify(run_ids: tuple[str, ...], *, repair: bool, accept_loss: bool, as_json: bool) -> None:
    """Verify every stored byte of the RUNs, or of all; the exit code is 1 if any is damaged."""
    if accept_loss and not repair:
        raise click.UsageError("--accept-loss says how to repair: add --repair")
    found = [cli.find_run(run_id) for run_id in run_ids] or stepwise.runs()
    verified = [run.repair(accept_loss=accept_loss) if repair else run.verify() for run in found]
    if as_json:
        cli.echo_json([_verification(each) for each in verified])
    elif not verified:
        cli.note(f"nothing to verify: no runs in {store_url()}")
    else:
        columns = [
            Column("RUN"),
            Column("RECORDS", whole=True, right=True),
            Column("CHECKPOINTS", whole=True, right=True),
            Column("FOUND", whole=True),
        ]
        rows = [
            [each.run_id, each.records, each.checkpoints, problem]
            for each in verified
            for problem in (each.problems or [Word("verified")])
        ]
        cli.show_table(columns, rows)
    if not all(each.ok for each in verified):
        if not as_json and not repair:
            cli.note("to repair what can be repaired: stepwise verify --repair")
        elif not as_json and any(each.effects for each in verified):
            cli.note(
                "records of side effects are gone: find out which happened, then run "
                "stepwise verify RUN --repair --accept-loss (or put a backup back, then run "
                "stepwise restore)"
            )
        sys.exit(1)


def _verification(each: Any) -> dict[str, Any]:
    facts = dataclasses.asdict(each)
    return {"id": facts.pop("run_id"), "ok": each.ok, "problems": each.problems, **facts}


@cli.command(
    "Check and learn",
    "stepwise restore\nstepwise restore --store disk:/backup/store",
    short_help="Mark a store that was put back from a backup.",
)
def restore(*, as_json: bool) -> None:
    """Mark a store that was put back from a backup, which lacks everything recorded since.

    Its unfinished runs then ask about each side effect that is not recorded, before it happens.
    Runs that began after the backup are not in it: called again, they begin anew.
    """
    found = maintenance.put_back()
    if as_json:
        cli.echo_json({"store": store_url(), "runs": found})
        return
    for run_id in found:
        cli.say(run_id)
    if not found:
        cli.note(f"nothing to mark: no unfinished runs in {store_url()}")
        return
    cli.note(
        f"{count(len(found), 'unfinished run')} of {store_url()}: each side effect that is "
        "missing in the backup is in doubt until you settle it (stepwise resolve)"
    )


# -- deleting ------------------------------------------------------------------------------------


@cli.command(
    "Keep",
    "stepwise forget trip-0573 4  # step 4 runs again\n"
    "stepwise forget trip-0573  # delete the run\n"
    "stepwise forget trip-0573 --yes --json",
)
@cli.run_argument()
@click.argument("step", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(run_id: str, step: str | None, *, yes: bool, as_json: bool) -> None:
    """Delete a RUN, or have one STEP of it run again."""
    run = cli.find_run(run_id)
    if not yes:
        _ask(run, step)
    if step is not None:
        run.forget(step)
        done = f"step {step} of {run.id} runs again when the workflow is called"
    else:
        run.delete()
        done = f"{run.id} is deleted"
    if as_json:
        cli.echo_json({"id": run.id, "step": step, "deleted": step is None})
    else:
        cli.say(done)
    if step is None:
        _tell_free()


def _ask(run: Run, step: str | None) -> None:
    """Ask before side effects are forgotten, which would then happen again."""

    def confirm(told: str) -> None:
        click.confirm(printable(told, 10_000), abort=True, err=True)

    verified = run.verify()
    if step is None and verified.effects:
        confirm(
            f"{run.id} announced {count(verified.effects, 'side effect')} of which the records are "
            "gone; called again, the workflow may repeat them. Delete it?"
        )
    steps = run.steps if verified.records or step is not None else []
    effects = [each for each in steps if each.side_effect and each.status != "failed"]
    if step is None and effects:
        told = ", ".join(map(_effect, effects[:5]))
        confirm(
            f"{run.id} holds {count(len(effects), 'side effect')} ({told}); called again, the "
            "workflow repeats them. Delete it?"
        )
    happened = {"completed": "happened", "in_doubt": "may have happened"}
    for each in effects:
        if each.status in happened and step in (each.name, str(each.number)):
            confirm(
                f"step {each.number}, {_effect(each)}, is a side effect that "
                f"{happened[each.status]}; called again, it happens again. Forget it?"
            )
            return


def _effect(step: StepRecord) -> str:
    return printable(f"{step.name}({step.arguments})", 1000)


@cli.command(
    "Keep",
    "stepwise prune --dry-run  # what would be deleted\nstepwise prune --older-than 7d --keep 10\n"
    "stepwise prune --older-than 7d --streams",
    short_help="Delete completed runs that are old.",
)
@click.option(
    "--older-than",
    "seconds",
    metavar="AGE",
    type=cli.age,
    default="30d",
    show_default=True,
    help="Completed at least this long ago: 2h, 30d, ...",
)
@click.option(
    "--keep", type=click.IntRange(0), default=0, help="Keep the newest runs of each workflow."
)
@click.option(
    "-n", "--limit", type=click.IntRange(1), help="Delete at most this many, about the oldest."
)
@click.option("--streams", is_flag=True, help="Delete what they said (emit); the runs stay.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
def prune(
    seconds: float,
    *,
    keep: int,
    limit: int | None = None,
    streams: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete completed runs; called again, their workflows start afresh.

    A run that is being executed again stays; the exit code is then 1.  With ``--streams``, the runs
    and their results stay, and what they and their child runs said is deleted.
    """
    facts: dict[str, Any] = {}

    def noted(each: Listed) -> Listed:
        with contextlib.suppress(stepwise.RunNotFoundError):  # deleted by another process meanwhile
            facts[each.run.id] = each.to_dict()
        return each

    found = maintenance.old_runs(time.time() - seconds, keep, limit, streams=streams)
    old = map(noted, found) if as_json else found
    deleting = maintenance.delete_each(old, streams=streams)
    done = ((each, None) for each in old) if dry_run else deleting
    deleted: list[Listed] = []
    skipped = []
    for each, problem in done:
        if problem is None:
            deleted.append(each)
        else:
            cli.note(f"stepwise: {each.run.id} is not deleted: {problem}")
            skipped.append({"id": each.run.id, "problem": str(problem)})
    deleted.sort(key=lambda each: each.facts.created_at, reverse=True)
    if as_json:
        rows = [facts[each.run.id] for each in deleted if each.run.id in facts]
        cli.echo_json({"runs": rows, "skipped": skipped, "dry_run": dry_run})
    else:
        _show_pruned(deleted, seconds, "streams " * streams, dry_run=dry_run)
    if skipped:
        sys.exit(1)


def _show_pruned(deleted: list[Listed], seconds: float, what: str, *, dry_run: bool) -> None:
    if deleted:
        rows = [
            [each.run.id, cli.ago(each.facts.updated_at), cli.call_text(each.facts)]
            for each in deleted
        ]
        cli.show_table([Column("RUN"), Column("UPDATED", whole=True), Column("CALL")], rows)
    verb = "would be deleted" if dry_run else "deleted"
    which = f"completed more than {_in_words(seconds)} ago" if seconds else "completed so far"
    cli.say(f"{count(len(deleted), 'run')} {which}: {what}{verb}")
    _tell_free()


def _in_words(seconds: float) -> str:
    """Return a duration in the largest unit that gives a whole number."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            return count(int(seconds / size), unit)
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


_MUCH = 64 << 20  # bytes


def _tell_free() -> None:
    free = maintenance.free_space()
    if free >= _MUCH:
        cli.note(
            f"{size_text(free)} are free in the store for later runs; to give them back to the "
            "disk: stepwise compact"
        )


@cli.command(
    "Keep",
    "stepwise compact\nstepwise compact --store disk:./runs",
    short_help="Give the space of deleted runs back to the disk.",
)
def compact(*, as_json: bool) -> None:
    """Give the space that deleted runs left in the store back to the disk.

    For a moment this needs twice the space of the remaining runs.  Other programs need
    not be stopped; they wait for it.
    """
    freed = maintenance.compact()
    if as_json:
        cli.echo_json({"store": store_url(), "freed": freed})
    else:
        cli.say(f"{store_url()}: {size_text(freed)} given back")


_COPIED = [
    Column("RUN"),
    Column("RECORDS", whole=True, right=True),
    Column("SIZE", whole=True, right=True),
    Column("RESULT", whole=True),
]


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
    how = {"restored": restored, "messages": messages, "dry_run": dry_run}
    copier = maintenance.copier(target, **how)
    names = [_name_of(each) for each in run_ids]
    if not names:
        names = maintenance.to_copy(workflow, status, tags)
        names += [] if chosen else copier.logs()
    found: list[Copied] = []
    rows = _rows(copier, names, found, dry_run=dry_run)
    if as_json:
        for _ in rows:
            pass
    else:
        cli.show_table(_COPIED, rows)
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
        if maintenance.has_objects(text):
            return text
        raise


def _rows(
    copier: Copier, names: list[str], found: list[Copied], *, dry_run: bool
) -> Iterator[list[Any]]:
    """Copy, and yield the rows of a table, without runs that were there already."""
    with contextlib.suppress(stepwise.StoreError):  # the last item has reported the error
        for each in copier.copy_each(names):
            found.append(each)
            if each.problem:
                cli.note(f"stepwise: {each.problem}")
            if each.outcome != "there":
                told = "would be copied" if dry_run and each.outcome == "copied" else each.outcome
                size = size_text(each.size) if each.size else ""
                yield [each.id, each.records or "", size, Word(told)]


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
    sums = f"{runs}, {count(records, 'record')}, {size_text(size)} {verb} {way} in {seconds:.1f} s"
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


# -- the cache -------------------------------------------------------------------------------------


@cli.command(
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
        cli.echo_json({**facts, "deleted": deleted})
        return
    held = sum(each["entries"] for each in facts["steps"])
    if clear:
        cli.note(f"{count(deleted, 'entry')} deleted")
    if facts["steps"]:
        columns = [Column("STEP"), Column("ENTRIES", whole=True, right=True)]
        cli.show_table(columns, [[each["name"], each["entries"]] for each in facts["steps"]])
    size, limit = size_text(facts["size"]), size_text(facts["limit"])
    cli.note(f"{count(held, 'entry')} in the cache of {store_url()}: {size} of at most {limit}")
