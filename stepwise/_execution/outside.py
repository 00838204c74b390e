"""Threads that take their run along, and code that does not see the run it may belong to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stepwise._execution.active_run import Scope, live_runs, scope_variable
from stepwise._execution.concurrency import Worker
from stepwise._execution.other_tasks import joins
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import reports, warn
from stepwise._runtime.thread_context import Carrier, works_for_a_run
from stepwise.errors import UnrecordedCallWarning

__all__ = ["background", "carrier", "warn_if_unseen"]


def _begin_thread(scope: Scope | None, name: str, daemon: bool) -> Worker | None:
    """Register a thread that the workflow's own code starts; ignore threads of steps."""
    if scope is None or scope.call is not None:
        return None
    return scope.run.flows.start(name, daemon=daemon)


carrier = Carrier(scope_variable, _begin_thread)

_NOWHERE = object()


@reports
def warn_if_unseen(what: str) -> None:
    """A step is called where no run is visible: say so, if it may belong to one in progress.

    In a task it does not: tasks inherit the context.  Nor where the variable is set, to ``None``:
    in a thread that was started outside, in the background, in a reconcile function.  That leaves
    threads that were there before the run, calls in an emptied context, and worker processes.
    """
    if works_for_a_run() and scope_variable.get(_NOWHERE) is _NOWHERE:
        warn(
            f"{what} was called in a worker process, while a run is in progress in the process "
            "that started this one: it ran without being recorded. Call it there, in tasks or "
            "threads, or make the worker's whole job one step; if it does not belong to the "
            "run, put it under `with stepwise.background():`",
            UnrecordedCallWarning,
        )
    if not live_runs or scope_variable.get(_NOWHERE) is not _NOWHERE:
        return
    here = threading.get_ident()
    for run in list(live_runs):
        if run.thread == here or threading.current_thread() is not threading.main_thread():
            break
    else:
        return
    if asyncio_state.current() is None:
        warn(
            f"{what} was called where no run is visible, while run {run.run_id!r} is in progress: "
            "it ran without being recorded. If it belongs to the run, call it with "
            "contextvars.copy_context().run(...), or start the thread inside the workflow; if not, "
            "put it under `with stepwise.background():`",
            UnrecordedCallWarning,
        )


@contextmanager
def background() -> Iterator[None]:
    """Keep code, tasks and threads that are started in this block out of the run.

    For a tracer, a client's keep-alive, a metrics thread: steps called there are plain functions,
    and nobody waits for them.
    """
    token = scope_variable.set(None)
    try:
        yield
    finally:
        scope_variable.reset(token)
        joins()  # it may have been looked at meanwhile
