"""The waits of a suspended run, as users see them.

A suspended run is like a run stopped by Ctrl-C, except that it is known when, or after which
message, it must resume.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from stepwise._journal.records import RunFacts, RunWait, WaitKind
from stepwise._runtime.facts import PlainFacts, public


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


def suspended_text(run_id: str, waits: list[PendingWait]) -> str:
    """Return what a suspended run waits for, in words."""
    others = len(waits) - 1
    more = f" (and {others} more)" if others else ""
    return f"run {run_id} is suspended: it waits {waits[0]}{more}"
