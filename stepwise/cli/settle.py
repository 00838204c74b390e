"""Settle calls in doubt, repair damage, delete old runs."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections import Counter
from typing import Any

import click

import stepwise
from stepwise import StepRecord
from stepwise._display.render import printable
from stepwise._journal.journal import seal_for
from stepwise._runs.listing import listed
from stepwise._runs.verify import note_restored
from stepwise._runtime import settings
from stepwise._runtime.messages import count
from stepwise.cli._command import as_json_option, find_run, main, run_argument, store_option
from stepwise.cli._display import age, ago, call_text, coloured, say
from stepwise.stores import open_store
from stepwise.stores._folder_store import FolderStore


@main.command()
@run_argument()
@click.argument("step")
@click.option("--landed", metavar="JSON", help="It happened; JSON is its result.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen, and may run.")
@click.option("--same", is_flag=True, help="The call that the run stopped at is STEP.")
@click.option("--another", is_flag=True, help="That call is another act: it runs once.")
@click.option(
    "--stop", type=int, metavar="STOP", help="The stopped call, if several could be STEP."
)
@store_option
def resolve(
    run_id: str,
    step: str,
    landed: str | None,
    *,
    did_not_happen: bool,
    same: bool,
    another: bool,
    stop: int | None,
) -> None:
    """Settle a side effect in doubt, or say which act a stopped call is.

    STEP is the number or the name of the recorded side effect.
    """
    if sum((landed is not None, did_not_happen, same, another)) != 1:
        raise click.UsageError(
            "give exactly one answer: --landed JSON or --did-not-happen for a step in doubt, "
            "--same or --another for a call at which the run stopped because of STEP"
        )
    if stop is not None and not (same or another):
        raise click.UsageError("--stop chooses a stopped call: add --same or --another")
    value = _parsed(landed) if landed is not None else None
    run = find_run(run_id)
    if same or another:
        run.resolve(step, same=same, another=another, stop=stop)
        says = (
            f"the stopped call is step {step} of {run.id}; the next run of the program returns its "
            "recorded result"
            if same
            else f"the stopped call and step {step} of {run.id} are two acts; the next run of the "
            "program makes the call, once"
        )
    elif landed is None:
        run.resolve(step, did_not_happen=True)
        says = f"step {step} of {run.id} did not happen; the next run of the program makes it"
    else:
        run.resolve(step, landed=value)
        says = (
            f"step {step} of {run.id} landed; the next run of the program continues with {landed}"
        )
    say(says)


def _parsed(landed: str) -> Any:
    try:
        return json.loads(landed)
    except ValueError as error:
        # The likeliest mistake is a bare word, since the shell removes its quotes.
        word = landed if re.fullmatch(r"[\w .@:/-]+", landed) else "text"
        raise click.BadParameter(
            f"{landed!r} is not JSON ({error}). Write the result as JSON, in quotes for the "
            f"shell: '\"{word}\"', 42, null, '{{\"id\": 1}}'",
            param_hint="--landed",
        ) from None


@main.command(short_help="Verify every stored byte of runs.")
@run_argument("run_ids", "[RUN]...", nargs=-1)
@click.option("--repair", is_flag=True, help="Set damaged data aside, derive what can be derived.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --repair: give up lost records, even of side effects, which may then be repeated.",
)
@as_json_option
@store_option
def verify(run_ids: tuple[str, ...], *, repair: bool, accept_loss: bool, as_json: bool) -> None:
    """Verify every stored byte of the RUNs, or of all; the exit code is 1 if any is damaged."""
    if accept_loss and not repair:
        raise click.UsageError("--accept-loss says how to repair: add --repair")
    found = [find_run(run_id) for run_id in run_ids] or stepwise.runs()
    verified = [run.repair(accept_loss=accept_loss) if repair else run.verify() for run in found]
    if as_json:
        facts = [{**dataclasses.asdict(each), "problems": each.problems} for each in verified]
        say(json.dumps(facts, indent=2))
    else:
        for each in verified:
            told = "; ".join(each.problems) or coloured("verified")
            held = f"{each.records} records, {each.checkpoints} checkpoints"
            say(f"{each.run_id}  {held}  {told}")
    if not all(each.ok for each in verified):
        if not as_json and not repair:
            say("to repair what can be repaired: stepwise verify --repair", err=True)
        elif not as_json and any(each.effects for each in verified):
            say(
                "records of side effects are gone: find out which happened, then run "
                "stepwise verify RUN --repair --accept-loss (or put a backup back, then run "
                "stepwise restore)",
                err=True,
            )
        sys.exit(1)


@main.command(short_help="Mark a store that was put back from a backup.")
@store_option
def restore() -> None:
    """Mark a store that was put back from a backup, which lacks everything recorded since.

    Its unfinished runs then ask about each side effect that is not recorded, before it happens.
    Runs that began after the backup are not in it: called again, they begin anew.
    """
    store = open_store(settings.store())
    found = note_restored(store, seal_for(store))
    for run_id in found:
        say(run_id)
    say(
        f"{count(len(found), 'unfinished run')} of {store.url}: each side effect that is "
        "missing in the backup is in doubt until you settle it (stepwise resolve)",
        err=True,
    )


@main.command()
@run_argument()
@click.argument("step", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
def forget(run_id: str, step: str | None, *, yes: bool) -> None:
    """Delete a RUN, or have one STEP of it run again."""
    run = find_run(run_id)
    if step is not None:
        done = [
            each
            for each in run.steps
            if each.side_effect
            and each.status in ("completed", "in_doubt")
            and step in (each.name, str(each.number))
        ]
        if done and not yes:
            state = "happened" if done[0].status == "completed" else "may have happened"
            click.confirm(
                f"step {done[0].number}, {_effect(done[0])}, is a side effect "
                f"that {state}; called again, it happens again. Forget it?",
                abort=True,
            )
        run.forget(step)
        say(f"step {step} of {run.id} runs again when the workflow is called")
        return
    effects = [each for each in run.steps if each.side_effect and each.status != "failed"]
    if effects and not yes:
        told = ", ".join(map(_effect, effects[:5]))
        click.confirm(
            f"{printable(run.id)} holds {count(len(effects), 'side effect')} ({told}); called "
            "again, the workflow repeats them. Delete it?",
            abort=True,
        )
    run.delete()
    say(f"{run.id} is deleted")
    _tell_free()


def _effect(step: StepRecord) -> str:
    return printable(f"{step.name}({step.arguments})", 1000)


@main.command(short_help="Delete old completed runs.")
@click.option(
    "--older-than",
    "seconds",
    metavar="AGE",
    type=age,
    default="30d",
    show_default=True,
    help="Completed at least this long ago: 2h, 30d, ...",
)
@click.option(
    "--keep", type=click.IntRange(0), default=0, help="Keep the newest runs of each workflow."
)
@click.option("--dry-run", is_flag=True, help="Only list them.")
@store_option
def prune(seconds: float, *, keep: int, dry_run: bool) -> None:
    """Delete completed runs; called again, their workflows start afresh."""
    before, seen, old = time.time() - seconds, Counter[str](), []
    for each in listed(status="completed"):
        facts = each.facts
        if facts.parent:
            continue
        seen[facts.workflow] += 1
        if seen[facts.workflow] > keep and facts.updated_at <= before:
            old.append(each.run)
    for run in old:
        say(f"{run.id}  {ago(run.updated_at)}  {call_text(run)}")
        if not dry_run:
            run.delete()
    noun = "run" if len(old) == 1 else "runs"
    verb = "would be deleted" if dry_run else "deleted"
    say(f"{len(old)} {noun} completed more than {seconds / 86400:g} days ago: {verb}")
    _tell_free()


_MUCH = 64 << 20  # bytes


def _tell_free() -> None:
    store = open_store(settings.store())
    free = store.free() if isinstance(store, FolderStore) else 0
    if free >= _MUCH:
        say(
            f"{_megabytes(free)} are free in the store for later runs; to give them back to the "
            "disk: stepwise compact",
            err=True,
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


@main.command(short_help="Give the space of deleted runs back to the disk.")
@store_option
def compact() -> None:
    """Give the space that deleted runs left in the store back to the disk.

    For a moment it takes twice the space of the runs that stay.  Others go on, and wait for it.
    """
    store = open_store(settings.store())
    freed = store.compact() if isinstance(store, FolderStore) else 0
    say(f"{store.url}: {_megabytes(freed)} given back")
