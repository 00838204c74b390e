"""What an attempt takes over from those before it: what answers its calls, where it counts from.

Imports: run, checkpoints, matching, counts, journal, process, steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from stepwise._checkpoints import State
from stepwise._counts import Ordinals, Progress
from stepwise._journal import Position
from stepwise._matching import Pool
from stepwise._process import command as process_command
from stepwise._records import Entry, Resumed
from stepwise._run import ActiveRun
from stepwise._steps import known_steps

__all__ = ["go_on_at", "go_on_from_the_top", "record_resumed", "state_of"]


def state_of(active: ActiveRun, **place: Any) -> State:
    """What a checkpoint holds of the run; ``place`` is what it holds of the frame."""
    at, (ordinals, children) = active.journal.position, active.ordinals.kept()
    with active.lock:
        return State(
            step=active.progress.done,
            calls=active.journal.calls,
            ordinals=ordinals,
            children=children,
            journal=[at.last, (at.link or b"").hex(), at.effects],
            unused=[
                [each.origin.number, each.entry.number, *each.flags] for each in active.pool.all
            ],
            at=time.time(),
            **place,
        )


def go_on_at(active: ActiveRun, state: State, entries: Iterable[Entry]) -> None:
    """Be where a checkpoint was taken; the records after it answer the calls that follow."""
    journal = active.journal
    earlier = list(state.earlier(journal.store, journal.seal, journal.run_id))
    flags = {entry.number: known for entry, known in earlier}
    children = {(name, digest): count for name, digest, count in state.children}
    active.pool = Pool([*(entry for entry, _ in earlier), *entries], known_steps, flags)
    active.ordinals = Ordinals(state.ordinals, children)
    active.progress = Progress(skipped=state.step, resumed_from=state.step)
    journal.calls = max(journal.calls, state.calls)


def go_on_from_the_top(active: ActiveRun, entries: Iterable[Entry] | None = None) -> int:
    """Be where the run began; all that is recorded answers the calls that follow.

    Args:
        entries: the journal, if it is loaded.

    Returns:
        how many recorded calls have an answer.
    """
    if entries is None:
        entries = active.journal.load(Position())
    active.pool = Pool(entries, known_steps)
    active.ordinals = Ordinals()
    active.progress = Progress(resumed_from=0)
    return sum(each.answers for each in active.pool.all)


def record_resumed(
    active: ActiveRun, how: str, step: int, *, code: str, void: bool = False
) -> None:
    """Record that the run goes on, in words, and after how many steps; see :class:`Resumed`."""
    now = time.time()
    command, cwd = process_command() if active.parent is None else ((), "")
    active.facts = active.facts._replace(
        status="running", end=0, error="", code=code, updated_at=now
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
    )
    active.write((resumed, b""), durable=False, head=active.facts)
