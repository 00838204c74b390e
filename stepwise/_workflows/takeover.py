"""The takeover from earlier attempts: the records that answer calls, and the counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stepwise._calls.steps import is_defined_now, known_steps
from stepwise._checkpoints.checkpoints import State
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.process_memory import command as process_command
from stepwise._execution.waits import Taken
from stepwise._journal.counters import Ordinals, Progress
from stepwise._journal.heads import is_ready
from stepwise._journal.journal import Position, holds
from stepwise._journal.projection import made_again
from stepwise._journal.records import Cancelling, Entry, Resumed
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import Subjects
from stepwise._values.pickling import PYTHON
from stepwise._workflows.definition import is_defined

__all__ = [
    "go_on_at_newest",
    "go_on_from_the_top",
    "record_resumed",
    "state_of",
]

T = TypeVar("T")


def state_of(
    active: ActiveRun,
    *,
    position: str,
    line: int,
    file: str,
    prefix: str,
    visited: list[str],
    arguments: dict[str, str],
) -> State:
    """Return a checkpoint's state of the run; the arguments are the state of the frame."""
    journal, pool, progress = active.journal, active.pool, active.progress
    ordinals, children = active.ordinals.kept()
    with active.lock:
        facts: tuple[Any, ...] = (  # the constructor would take a Python function more
            position,
            line,
            file,
            prefix,
            visited,
            progress.done,
            journal.calls,
            ordinals,
            children,
            journal.position.kept(),
            _unused(pool) if pool else [],
            arguments,
            PYTHON,
            time.time(),
            {},
            (),
            sorted(map(list, active.subjects.state)) if active.subjects.state else (),
            active.subjects.last,
            None,
            round(progress.seconds, 3),
            dict(progress.usage),
            active.inbox.kept(),
            active.steering.told is not None,
        )
    return tuple.__new__(State, facts)


def _unused(pool: Pool) -> list[list[Any]]:
    """Return the records that no call has used, as a checkpoint keeps them."""
    rulings = [[number, number, False, False, False] for number, _ in pool.rulings.values()]
    return [*([e.origin.number, e.entry.number, *e.flags] for e in pool.all), *rulings]


def go_on_at_newest(
    active: ActiveRun,
    checkpoints: Iterable[tuple[T, State | None]],
    *,
    load: Callable[[Position], list[Entry]],
    damaged: Callable[[T], None],
) -> tuple[T, State | None] | None:
    """Continue at the newest checkpoint that holds; return it, or None if none does.

    A checkpoint holds if the journal before it is intact, and no call before it has to be made
    again.  The records after it answer the calls that follow; without a state, all records do.

    Args:
        checkpoints: the newest first, each with its state.
        load: returns the records after a position.
        damaged: called with a checkpoint before which the journal is damaged.
    """
    journal = active.journal
    for checkpoint, state in checkpoints:
        if state is None:
            go_on_from_the_top(active)
        elif not holds(journal.store, journal.seal, journal.run_id, state.start):
            damaged(checkpoint)
            continue
        else:
            entries = load(state.start)
            if any(number <= state.calls for number in made_again(entries)):
                continue
            _go_on_at(active, state, entries)
        return checkpoint, state
    return None


def _go_on_at(active: ActiveRun, state: State, entries: list[Entry]) -> None:
    journal = active.journal
    earlier = list(state.earlier(journal.store, journal.seal, journal.run_id))
    flags = {entry.number: known for entry, known in earlier}
    children = {(name, digest): count for name, digest, count in state.children}
    active.subjects.leave(completed=False)
    active.subjects = Subjects(
        active.run_id, ((whose, part) for whose, part in state.state), state.serial
    )
    active.pool = Pool(
        [*(entry for entry, _ in earlier), *entries],
        known_steps,
        flags,
        active.subjects.state,
        defined=_is_defined,
        counted=state.ordinals,
    )
    active.subjects.go_on_after(max(state.serial, active.pool.highest))
    active.ordinals = Ordinals(state.ordinals, children)
    active.account.take_over([*(entry for entry, _ in earlier), *entries])
    active.progress = Progress(
        skipped=state.step, resumed_from=state.step, seconds=state.seconds, usage=state.usage
    )
    active.alive = max([state.at, *map(_at, entries[-1:])])
    active.inbox.taken = Taken(state.taken, entries)
    if state.told and not any(isinstance(each.record, Cancelling) for each in entries):
        active.steering.has_been_told()
    journal.calls = max(journal.calls, state.calls)


def go_on_from_the_top(active: ActiveRun, entries: list[Entry] | None = None) -> int:
    """Continue from the top; all records answer the calls that follow.

    Args:
        entries: the journal, if it is loaded.

    Returns:
        how many recorded calls have an answer.
    """
    if entries is None:
        entries = active.journal.load(Position())
    active.subjects.leave(completed=False)
    active.subjects = Subjects(active.run_id)
    active.pool = Pool(entries, known_steps, state=active.subjects.state, defined=_is_defined)
    active.subjects.go_on_after(active.pool.highest)
    active.ordinals = Ordinals()
    active.account.take_over(entries)
    active.progress = Progress(resumed_from=0)
    active.alive = max(map(_at, entries[-1:]), default=0.0)
    active.inbox.taken = Taken(entries=entries)
    return sum(each.answers for each in active.pool.all)


def _is_defined(module: str, name: str) -> bool:
    """Return whether the program has a step or a workflow of that name."""
    return is_defined_now(module, name) or is_defined(module, name)


def _at(entry: Entry) -> float:
    """Return when a record was written, in seconds since 1970; 0 if it does not tell."""
    at: float = getattr(entry.record, "at", 0.0) or (entry.call.at if entry.call else 0.0)
    return at


def record_resumed(
    active: ActiveRun, how: str, step: int, *, code: str, void: bool = False
) -> None:
    """Record that the run resumes, in words, and after how many steps; see :class:`Resumed`."""
    now, facts = time.time(), active.facts
    had_ended = facts.end or facts.status in ("failed", "cancelled")
    # Requests to cancel the attempt that ended are over; two may have come at once.
    before = active.inbox.messages if had_ended else []
    seen = before[-1].number if before else 0
    command, cwd = process_command(active.secrets.mask) if active.parent is None else ((), "")
    sums = active.journal.position.sums
    unknown = sums.open and not is_ready(facts)
    active.account.resume(sums)
    active.facts = facts._replace(
        status="running",
        end=0,
        error="",
        code=code,
        updated_at=now,
        waits=(),
        cancels=max(seen, facts.cancels),
    )
    resumed = Resumed(
        active.journal.epoch,
        how,
        step,
        code=code,
        at=now,
        void=void,
        command=command,
        cwd=cwd,
        trace=active.facts.trace,
        unknown=unknown,
        seen=seen,
    )
    active.write((resumed, b""), durable=False, head=active.facts)
