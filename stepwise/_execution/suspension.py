"""The suspension of a run that, with all its child runs, can only wait.

A run suspends together with the runs that called it and with its child runs.  A suspended run is
like a run stopped by Ctrl-C, except that it is known when, or after which message, it must resume.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepwise._execution.active_run import ActiveRun, live_runs
from stepwise._execution.tasks import tasks_within
from stepwise._journal.records import RunFacts, RunWait, WaitKind
from stepwise._runtime import settings
from stepwise._runtime.clock import elapsed
from stepwise._runtime.facts import PlainFacts, public
from stepwise._runtime.messages import hook_exits, shell_word
from stepwise.errors import RunSuspended

_AGAIN = 1.0  # seconds until the run checks again whether a step is in flight
_SETTLED = 1.0  # seconds without a call after which other tasks and threads count as waiting


@public
@dataclass(frozen=True)
class PendingWait(PlainFacts):
    """Something that a suspended run waits for.

    Args:
        run_id: the run, or the child run, that makes the call.
        step: the number of the call.
        kind: ``time``, ``signal``, ``approval``, ``limit``, or ``start`` for a submitted run, which
            has no call yet (``step`` is 0) and begins at ``until`` at the earliest.
        name: the name of the signal or limit, or the question of an approval.
        since: when the wait began, in seconds since 1970.
        until: when the wait times out, in seconds since 1970; ``None`` for never.
        ticket: the ticket of an approval's question; else empty.
    """

    run_id: str
    step: int
    kind: WaitKind
    name: str
    since: float
    until: float | None = None
    ticket: str = ""

    def __str__(self) -> str:
        what = RunWait(self.step, self.kind, self.name, self.until, self.since).text
        ends = "" if self.until is None else f", until {_moment(self.until)}"
        if self.kind == "start" and self.until is not None:
            ends = f", not before {_moment(self.until)}" if self.until > self.since else ""
        return f"{what}, since {_moment(self.since)}{ends}"


def _moment(at: float) -> str:
    """Return a moment as text, with its date unless that is today."""
    there, today = time.localtime(at), time.localtime()
    whole = there[:3] != today[:3]
    return time.strftime("%Y-%m-%d %H:%M:%S" if whole else "%H:%M:%S", there)


def pending(facts: RunFacts) -> list[PendingWait]:
    """Return the waits of a run, from its listing."""
    return [
        PendingWait(
            each.run or facts.run_id,
            each.number,
            each.kind,
            each.name,
            each.since,
            each.until,
            each.ticket,
        )
        for each in facts.waits
    ]


# -- whether it suspends -------------------------------------------------------------------------


def seconds_to_suspension(active: ActiveRun) -> float:
    """Return the seconds after which the run may suspend; 0 for now, infinite for never.

    A waiting call asks this each time it looks.
    """
    after, is_branch = settings.suspend_after(), active.is_branch
    if (after is None and not is_branch) or active.steering.unwinds is not None:
        return math.inf  # a clean-up is waited for
    soon = math.inf if after is None else after
    after = 0.0 if is_branch or after is None else after  # whoever branches waits for no person
    family = _family(active)
    parked = [each for run in family for each in run.waits.all]
    ends = [active.steering.left, *(each.end.left() for each in parked)]
    if any(left is not None and left < soon for left in ends):
        return math.inf  # a wait or a timeout ends soon
    asking = [each.since + after - elapsed() for each in parked if each.asks]
    seconds = max(asking, default=0.0)
    if any(run.flows.steps_in_flight() or run.open_streams() for run in family):
        return max(seconds, _AGAIN)
    if _others_alive(family, {each.flow for each in parked}):
        last = max(run.flows.moved_at for run in family)
        seconds = max(seconds, last + max(after, _SETTLED) - time.monotonic())
    return max(0.0, seconds)


def _family(active: ActiveRun) -> list[ActiveRun]:
    """Return the related runs in progress here, with the run that no other run called first."""
    root = active.root
    children = (run for run in list(live_runs) if run.parent is not None)
    return [root, *(run for run in children if run.root is root)]


def _others_alive(family: list[ActiveRun], parked: set[int]) -> bool:
    """Return whether a task or thread other than the waiting ones may make a call."""
    for run in family:
        if run.flows.others_than(parked):
            return True
        main = run.unwinding.main
        if run.task is None and not run.awaits and main not in parked:
            return True
    return any(not _only_waits(task, parked) for task, _ in tasks_within(family[0]))


def _only_waits(task: Any, parked: set[int]) -> bool:
    """Return whether a task waits, itself or only for such tasks."""
    todo, seen = [task], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in parked or id(each) in seen:
            continue
        seen.add(id(each))
        parts = [*getattr(each, "_children", ())]
        waiter = getattr(each, "_fut_waiter", None)
        if waiter is not None:
            parts.append(waiter)
        parts = [part for part in parts if not part.done()]
        if not parts:
            return False
        todo += parts
    return True


# -- suspending ----------------------------------------------------------------------------------


def suspend(active: ActiveRun) -> None:
    """Stop the run and its family, unless a message that it waits for has arrived."""
    family = _family(active)
    root = family[0]
    root.steering.look_soon()
    with root.lock:
        root.steering.look()
        if root.steering.asked is not None:
            return  # the waiting call is notified next
        if any(run.stopped is not None for run in family):
            return
        # The waits are noted first: any later message wakes the run, whichever thread reads the
        # inbox.
        waits = {run: tuple(_waits_of(run, family)) for run in family}
        if any(_has_come(run, each.wait) for run in family for each in run.waits.all):
            for run in family:
                run.flows.parked.ring()
            return
        for run in family:
            run.suspension = waits[run]
        found = pending(root.facts._replace(waits=root.suspension or ()))
        hook_exits()
        error = RunSuspended(_text(root.run_id, found), run_id=root.run_id, waits=found)
        for run in family:
            run.stop(error)


def _has_come(run: ActiveRun, wait: RunWait) -> bool:
    if wait.kind == "signal":
        return bool(run.inbox.signals(wait.name))
    return wait.kind == "approval" and run.inbox.answer(wait.ticket) is not None


def _waits_of(run: ActiveRun, family: list[ActiveRun]) -> Iterator[RunWait]:
    """Yield the waits of a run and its child runs."""
    for each in family:
        if run in each.lineage():
            child = each.run_id if each is not run else ""
            for parked in each.waits.all:
                ends = parked.wait.until, each.steering.deadline
                until = min((end for end in ends if end is not None), default=None)
                yield parked.wait._replace(run=child, seen=each.inbox.seen, until=until)


def _text(run_id: str, waits: list[PendingWait]) -> str:
    first = waits[0]
    how = {
        "time": "Start the program again then",
        "limit": "Start the program again then",
        "signal": f"stepwise send {shell_word(first.run_id)} {shell_word(first.name)} JSON, and "
        "start the program again",
        "approval": f"stepwise approve {shell_word(first.run_id)} {first.step} {first.ticket}, and "
        "start the program again",
    }[first.kind]
    return f"{suspended_text(run_id, waits)}. {how}: stepwise resume {shell_word(run_id)}"


def suspended_text(run_id: str, waits: list[PendingWait]) -> str:
    """Return what a suspended run waits for, in words."""
    others = len(waits) - 1
    more = f" (and {others} more)" if others else ""
    return f"run {run_id} is suspended: it waits {waits[0]}{more}"
