"""The straight way of a plain call: recorded as ``perform`` records it, in a third of the time.

Almost every call is plain: the workflow's own code calls a function without options that change
what a call does, in a run of which nothing is asked, where no record could answer the call and no
failure is being handled.  Then the questions that ``perform`` asks always have the same answers,
and :func:`call` does what remains, in the same order: number the call, execute the body, seal and
write the outcome.  The records are the same to the byte, and so are the events.

Whether a call is plain is decided here, before anything is done.  Where its *end* is not plain (it
raised, returned an awaitable, changed an argument, cannot be recorded), ``perform`` continues at
that point.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from stepwise._calls.driver import Result, Unfinished, drive_on
from stepwise._calls.perform import Performance
from stepwise._execution.active_run import ActiveRun, Scope, branches, scope_variable
from stepwise._execution.location import Origin
from stepwise._execution.outcomes import Watches, outcome
from stepwise._identity.parts import FUNCTION
from stepwise._journal.counters import apart
from stepwise._journal.records import Call
from stepwise._matching.subjects import Identity
from stepwise._runtime import tracing
from stepwise._runtime.interrupts import ending, sigterms
from stepwise.errors import NotRecordableError

__all__ = ["call"]

_CALLER = 3  # frames up from call(): Step.__call__, the decorated function, its caller


def call(
    step: Any, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result | Unfinished | None:
    """Make a call if it is plain; return its result, or ``None`` if ``perform`` has to make it.

    A test replaces this by a function that returns ``None``.
    """
    active = scope.run
    if not step.is_plain or step.has_siblings or not _is_usual(active, scope):
        return None
    site = active.direct_site(sys._getframe(_CALLER))
    if not site or (args and step.binds(args[0])):
        return None
    bound = step.parameters.bind(args, kwargs)
    try:
        digest, parts = step.parameters.identify(bound, (args, kwargs), one_module=True)
    except MemoryError:
        return None
    if step.qualname != step.name:
        parts[FUNCTION] = step.qualname
    shown = step.hiding.shown(bound, active.secrets)
    ordinal = active.ordinals.of_call(step.name)
    begun = time.time()
    number = active.journal.next_call()
    made = Call(  # by position: names take longer
        number,
        step.name,
        step.module,
        digest,
        ordinal,
        "",
        None,
        "",
        site,
        shown,
        False,
        "",
        "",
        begun,
        "",
        0,
        parts,
    )
    if active.pool.taken:
        made = apart(made, active.run_id, active.facts.undone, active.pool.taken)
    return _perform(Performance(step, scope, Identity(digest, parts), bound, args, kwargs), made)


def _is_usual(active: ActiveRun, scope: Scope) -> bool:
    """Return whether the workflow's own code makes a call in a run of which nothing is asked."""
    return (
        scope.call is None
        and not scope.branch
        and branches.name is None
        and active.frame is not None
        and active.pid == os.getpid()
        and active.stopped is None
        and not active.ended
        and active.parent is None
        and active.task is None
        and active.waiter is None
        and not active.pool
        and not active.streams
        and not active.account.limited
        and active.unwinding.is_quiet
        and active.steering.is_calm
        and not sigterms.draining
        and not (ending.by_ctrl_c and active.detached)
        and not tracing.is_on()
    )


def _perform(performance: Performance, call: Call) -> Result | Unfinished:
    """Execute the body of a call, and record that it returned; see :meth:`Performance.conduct`."""
    step, scope, _, bound, args, kwargs = performance
    active, function = scope.run, step.body(call)
    unusual = False
    try:
        performance.takes_off(call)
        active.tell("step_started", call)
        active.flows.begin(call.number)
        watch = step.watch(bound)
        inner = Scope(active, call, (*scope.around, call.number), 1, [], "")
        token = scope_variable.set(inner)
        try:
            result = Result(function(*args, **kwargs))
        except BaseException as error:  # raised by the step's wrapper
            result = Result(error=error)
        finally:
            scope_variable.reset(token)
        if _is_recorded(performance, call, watch, inner, result):
            return result
        unusual = True
    except MemoryError as error:
        raise performance.out_of_memory(error) from error
    finally:
        if not unusual:
            active.flows.done(call.number)
            performance.landed(call)
    return drive_on(performance.after_body(call, Origin(call.site), watch, inner), result)


def _is_recorded(
    performance: Performance, call: Call, watch: Watches, inner: Scope, result: Result
) -> bool:
    """Record a call that returned; return False if its ending is not plain."""
    active, value = inner.run, result.value
    if result.error is not None or hasattr(type(value), "__await__") or watch.changed():
        return False
    looked = active.look(performance.scope, value)
    try:
        record, payload = outcome(
            active.codec,
            call,
            "completed",
            value,
            inner=inner.inner,
            attempts=1,
            kind=performance.performer.returns,
        )
    except NotRecordableError:
        return False
    spent = active.account.spent_by(record, None)
    if spent:
        record = record._replace(spent=spent)
    (number,) = active.write((record, payload))
    active.recorded(performance.scope, number, record, looked=looked)
    return True
