"""Record that an attempt was stopped on purpose, so that nothing brings the run back by itself.

Ctrl-C, a cancellation and a consumer that takes no more items are decisions of somebody who is
there to call again.  An exit, SIGTERM, a kill and a closed event loop are not: nothing is recorded
then, and the run is shown as ``crashed``.
"""

from __future__ import annotations

import os
import sys
import time

from stepwise._execution.active_run import ActiveRun
from stepwise._journal.records import Interrupted
from stepwise._runtime import asyncio_state
from stepwise.errors import RunStopped

__all__ = ["record_interruption"]


def record_interruption(active: ActiveRun, error: BaseException) -> None:
    """Record what interrupted an attempt that ended with ``error``, if something did."""
    why = _what_interrupted(active, error)
    over = active.stopped is not None or active.facts.status != "running"
    if not why or over or os.getpid() != active.pid:
        return
    at = time.time()
    item = Interrupted(why, at), b""
    facts = active.facts._replace(status="interrupted", error=why, updated_at=at)
    try:
        active.written(active.journal.append(item, durable=False, head=facts), item)
    except RunStopped:
        return  # without a writable store the run counts as crashed, which loses nothing
    active.facts = facts
    active.tell("run_interrupted", detail=why)


def _what_interrupted(active: ActiveRun, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if sys.is_finalizing():
        return ""
    if asyncio_state.is_cancellation(error):
        root = active.root
        if root.detached and root.interrupted:  # its event loop ends: nothing else cancels it
            return "Ctrl-C" if isinstance(root.ending, KeyboardInterrupt) else ""
        return "a cancellation"
    if isinstance(error, GeneratorExit) and active.task is None:
        return "a caller that takes no more items"
    return ""  # an exit; or the event loop is gone, and its waiters with it
