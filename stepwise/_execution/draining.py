"""SIGTERM in a program without a handler: no step begins, those in flight may end, then it ends.

What unwinds the workflows: in the main thread ``SystemExit``, raised at once where no step is in
flight, else by the next call; in other threads by their next call; for an asynchronous run, its
caller is cancelled once no step of it is in flight, and calls that come before wait for that.  The
process ends with the last run, by the signal, as it would have without us: no ``atexit`` callback
runs, and no code around the calls of the workflows either.  (Letting the exception end the program
was rejected: code that swallows it would go on, and the exit status would be another.)
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Iterator

from stepwise._execution.active_run import ActiveRun, live_runs
from stepwise._runtime import asyncio_state, settings
from stepwise._runtime.interrupts import AFTER_SIGTERM, sigterms
from stepwise._runtime.messages import count, notice, reports

__all__ = ["drained", "end_if_drained", "let_go"]

_SOON = 0.1  # seconds that the code between two steps has to reach the next one, or its end
_IGNORED = 1.0  # seconds after which a signal to oneself has not ended the process: it is init


def _drain() -> None:
    """Called by the signal handler, in the main thread, between any two of its instructions."""
    grace = settings.grace()
    if not live_runs or not grace:
        _end_process()
    watch = threading.Thread(target=_end_late, args=(grace,), name="stepwise drain", daemon=True)
    contextvars.Context().run(watch.start)
    _report(grace)
    _let_all_go()
    if _executes_here() and not asyncio_state.loop_runs():
        raise SystemExit(AFTER_SIGTERM)


sigterms.drain = _drain


def _let_all_go() -> None:
    for run in list(live_runs):
        run.flows.change()  # calls that wait look whether they still may
        if run.parent is None:
            let_go(run)


@contextlib.contextmanager
def drained() -> Iterator[None]:
    """Let no step begin while the block lasts: a program with its own handler ends by itself."""
    sigterms.count += 1  # what is cancelled from now on was not given up by anybody
    sigterms.draining, sigterms.ends_process = True, False
    _let_all_go()
    try:
        yield
    finally:
        if not live_runs:
            sigterms.draining, sigterms.ends_process = False, True


@reports
def _report(grace: float) -> None:
    flying = sum(len(run.in_flight) for run in list(live_runs))
    if flying:
        notice(
            f"SIGTERM: no step begins any more; {count(flying, 'step')} in flight may end within "
            f"{grace:g} s. A second SIGTERM ends the program at once"
        )


def _executes_here() -> bool:
    """Return whether this thread executes a plain workflow, and no step of it."""
    here, runs = threading.get_ident(), list(live_runs)
    if any(here in run.in_flight.values() for run in runs):
        return False
    return any(run.home == here and run.task is None and run.waiter is None for run in runs)


def let_go(run: ActiveRun, *, later: bool = False) -> None:
    """Cancel the caller of an asynchronous run, if no step of the run is in flight.

    Args:
        later: its code may first go on to its next step, or to its end.
    """
    root = run.root
    if root.waiter is None or root.waiter.done() or _in_flight(root):
        return
    loop = root.waiter.get_loop()
    with contextlib.suppress(RuntimeError):  # the loop is closed
        if later:
            loop.call_soon_threadsafe(loop.call_later, _SOON, let_go, root)
        else:
            loop.call_soon_threadsafe(root.waiter.cancel)


def _in_flight(root: ActiveRun) -> bool:
    return any(run.in_flight for run in list(live_runs) if run.root is root)


def end_if_drained() -> None:
    """End the process, if SIGTERM came and no run is in progress any more."""
    if sigterms.draining and sigterms.ends_process and not live_runs:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _end_process()


def _end_late(grace: float) -> None:
    _wait(grace)
    sigterms.at_end()
    _end_process()


def _end_process() -> None:
    """End as SIGTERM does: its handler is the default one by now."""
    os.kill(os.getpid(), signal.SIGTERM)
    _wait(_IGNORED)
    # The first process of a container ignores signals that it does not handle.
    os._exit(AFTER_SIGTERM)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)  # a program may have replaced time.sleep
