"""The straight way of a usual checkpoint: written as ``WorkflowFrame.save`` writes it.

A loop comes to the same point again and again, and almost always nothing has changed there: the
same variables, of the same kinds, which are plain data; no other task or thread; no record that
waits for its call.  What ``save`` found out about the point is then settled
(:class:`SettledPoint`), and this module does what remains, in the same order: look at the
variables, pickle them, write.  The bytes are the same.

Whether a checkpoint is usual is decided before anything is done; if not, ``save`` goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stepwise._checkpoints.checkpoints import place_text, thousandths, usual_text
from stepwise._checkpoints.variables import dump_apart, dump_few
from stepwise._execution.other_tasks import others_alive
from stepwise._runtime.events import heard
from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.reach import Reach, SeenNames

__all__ = ["SettledPoint", "save_usual", "settled_at"]


class SettledPoint(NamedTuple):
    """Facts that are settled at a point, as long as the variables there are of the same kinds.

    Args:
        seen: what the outlook depends on.
        drawn: see :class:`Outlook`.
        calls: a step is called before the next point; if not, nothing is.
        names: of all variables, in their order.
        kept: of those that are state; empty until a checkpoint was taken.
        visited: how many branches had been entered.
        place: what the checkpoint's header begins with.
        where: the same for an event.
    """

    seen: SeenNames
    drawn: bool
    calls: bool
    names: list[str]
    kept: list[str]
    visited: int
    place: str
    where: str


def settled_at(frame: Any, number: int, names: list[str], kept: list[str]) -> SettledPoint | None:
    """Return what is settled at a point where ``save`` has just decided; ``None`` if too little is.

    A client that is made again on resume is no plain data, so ``save`` writes it.  A test replaces
    this by a function that returns ``None``.

    Args:
        names: of all variables there, in their order.
        kept: of those that are state; empty if no checkpoint was taken.
    """
    known, rewritten, all_names = frame.outlooks.known(number), frame.rewritten, {*names}
    if (
        known is None
        or rewritten.files
        or rewritten.points[number].withs
        or frame.around.arguments
        or frame.around.secret
        or not all_names.issuperset(kept)  # a module's variable is state, too
    ):
        return None
    seen, (reach, drawn) = known
    point, ahead, visited = rewritten.points[number], rewritten.ahead[number], len(frame.visited)
    calls = reach is Reach.STEP or reach is Reach.EFFECT
    if calls and not (frame.every == 1 or number in frame.seen):
        return None
    if not calls and (reach is not Reach.NOTHING or ahead.ends or ahead.escapes):
        return None
    entered, prefix = frame.prefixes.get((number, visited), ([], ""))
    if prefix is None:
        return None
    place = place_text(point.position, point.line, frame.file, prefix, *entered)
    where = f"{frame.file}:{point.line}"
    return SettledPoint(seen, drawn, calls, names, kept, visited, place, where)


def save_usual(frame: Any, number: int, values: dict[str, Any]) -> bool:
    """Take a checkpoint here if it is a usual one, or none; false if ``save`` has to decide.

    As ``WorkflowFrame._wants`` decides it.
    """
    here = frame.settled.get(number)
    if here is None or frame.shut or frame.active.stopped is not None:
        return False
    seen, draws, calls, names, kept, visited, place, where = here  # faster than by their names
    if names != [*values] or visited != len(frame.visited) or not seen.still(values):
        return False
    drawn = frame.drawn or draws
    if frame.wanted and (calls or not drawn):
        if not (kept and _is_written(frame, kept, place, where, values)):
            return False
    elif frame.wanted:  # the next point is soon enough
        frame.due = True
    elif calls and not frame.drawn:
        frame.due = False
    else:
        return False
    if calls:
        frame.asked = number
    frame.guesses, frame.drawn = False, drawn
    frame.helped.clear()
    frame.without = 0
    values.clear()  # see WorkflowFrame.save
    return True


def _is_written(
    frame: Any, names: list[str], place: str, where: str, values: Mapping[str, Any]
) -> bool:
    active, references = frame.active, frame.references
    journal, progress, subjects = active.journal, active.progress, active.subjects
    if (
        frame.complaints.culprits
        or active.pool
        or not active.secrets.are_none
        or subjects.state
        or progress.usage
        or active.steering.told is not None
        or active.inbox.kept()
        or frame.module.kept()
        or others_alive(active)
    ):
        return False
    began = time.perf_counter()
    kept, whole = {name: values[name] for name in names}, references.are_none
    try:
        payload = (dump_few if whole else dump_apart)(kept, frame.around)
    except MemoryError:
        return False  # save says so, if it happens again
    if payload is None:
        return False
    if whole:
        references.prepare_none()
    active.note_handled()
    ordinals, children = active.ordinals.kept()
    name = frame.checkpoints.usual_name(journal.position.last)
    if not name or children:
        return False
    needs, chunks = references.needs()
    with active.lock:
        step, at = progress.done, time.time()
        header = usual_text(
            place,
            step,
            journal.calls,
            ordinals,
            journal.position.kept(),
            at,
            subjects.last,
            thousandths(progress.seconds),
            needs.text(),
        )
    frame.guesses = False
    frame.checkpoints.write_usual(name, header, payload, needs, chunks)
    if not whole:
        references.stored(needs)
    if heard():
        active.tell("checkpoint_taken", detail=where, step=step)
    frame.note_taken(began, kept)
    return True
