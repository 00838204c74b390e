"""``emit``: a run says something while it works."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from stepwise._calls.call import admit_attempt
from stepwise._execution.active_run import ActiveRun, Scope, current_scope, debugged
from stepwise._execution.emissions import Emissions
from stepwise._execution.tasks import warn_if_unseen
from stepwise._journal.journal import entries_of, is_begun, stream_name
from stepwise._journal.projection import Calls, RecordedCall
from stepwise._runtime.messages import fold, notice
from stepwise._runtime.options import check_stream
from stepwise.errors import NotRecordableError


def emit(value: Any, stream: str = "main") -> None:
    """Append a value to a stream of the run, for readers in any process: ``Run.stream``.

    The call returns at once: emissions are written together, every 50 ms and before the next
    record.  What a resumed run says again, and what a failed attempt of a step has said, is said
    once.  Outside a run the function does nothing, so that tools work there, too.

    Args:
        value: texts and other plain data are best; anything that a step may return.
        stream: the name of the stream.

    Raises:
        NotRecordableError: the value cannot be recorded, which is said with its part; or the
            streams of the run have reached ``configure(stream_limit=)``.
        OutsideRunError: the run has ended, or this attempt of a step has.
    """
    check_stream(stream)
    scope = current_scope()
    try:
        if scope is None:
            warn_if_unseen("emit()")
            return
        if _admit(scope):
            emissions_of(scope.run).emit(value, stream, scope.around)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _admit(scope: Scope) -> bool:
    """Return whether an emission is recorded here.

    Raises:
        OutsideRunError: it comes too late.
    """
    run, look = scope.run, debugged.look
    if look is not None and look.holds(run.root.run_id):
        return False
    if run.ended or run.pid != os.getpid():
        run.check("emit()", scope.call)
    run.refuse_if_stopped()
    admit_attempt(scope, "emit()")
    return True


def emit_item(run: ActiveRun, item: Any) -> None:
    """Say an item that a generator workflow yields; report one that cannot be recorded once."""
    look = debugged.look
    if look is not None and look.holds(run.root.run_id):
        return
    try:
        emissions_of(run).emit(item, "main", ())
    except NotRecordableError as problem:
        if run.is_first("items that cannot be recorded"):
            notice(f"run {run.run_id}: items that it yields are not in its stream: {problem}")


def emissions_of(run: ActiveRun) -> Emissions:
    """Return the emissions of a run; its first emission begins them."""
    if run.emissions is None:
        with run.lock:
            if run.emissions is None and is_begun(run.journal.store, stream_name(run.run_id)):
                take_over(run, (), replays=False)
            if run.emissions is None:
                run.emissions = Emissions(run.journal, run.codec, run.in_flight)
    return run.emissions


def take_over(run: ActiveRun, state: Sequence[Any], *, replays: bool) -> None:
    """Continue the streams of a run, which has some, where earlier processes left them.

    Args:
        state, replays: see :meth:`.Emissions.take_over`.
    """
    journal, answering = run.journal, set[int]()
    calls: Iterable[RecordedCall] = run.pool.all
    if not replays:
        calls = Calls(entries_of(journal.store, journal.seal, run.facts))
    for each in calls:
        if each.answers:
            answering.update((each.call.number, *(each.outcome.inner if each.outcome else ())))
    found = run.emissions or Emissions(journal, run.codec, run.in_flight)
    found.take_over(state, answering, replays=replays)
    run.emissions = found
