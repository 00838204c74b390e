"""The straight way of a plain call: recorded as ``perform`` records it, with far fewer questions.

Almost every call is plain: the workflow's code, outside of any step, calls a function without
options that change what a call does, in a run of which nothing is asked, where no record could
answer the call and no failure is being handled.  Then the questions that ``perform`` asks always
have the same answers, and this module does what remains, in the same order: number the call,
execute the body, seal and write the outcome.  The records are the same to the byte, and so are the
events.

Whether a call is plain is decided here, before anything is done.  Where its *end* is not plain (it
raised, returned an awaitable, changed an argument, cannot be recorded), ``perform`` continues at
that point.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from stepwise._calls.driver import Result, Unfinished, drive_on, start
from stepwise._calls.perform import Performance, land
from stepwise._execution.active_run import ActiveRun, Scope, branches, scope_variable
from stepwise._execution.location import Origin
from stepwise._execution.outcomes import Watches
from stepwise._identity.parts import FUNCTION
from stepwise._journal.counters import apart, counted_as
from stepwise._journal.records import Call, Outcome
from stepwise._matching.subjects import Identity
from stepwise._runtime import tracing
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import ending, sigterms
from stepwise._values.preview import preview
from stepwise.errors import NotRecordableError

__all__ = ["acall", "call", "hosted"]

_CALLER = 4  # frames up from _begin(): call(), Step.__call__, the decorated function, its caller
_UNCHANGING = frozenset({str, bytes, int, float, bool, type(None)})
_NOTHING: Mapping[str, Any] = {}


class _PlainCall(NamedTuple):
    """A plain call that has a number.

    Args:
        step, scope, bound, args, kwargs: as of :class:`Performance`.
    """

    call: Call
    origin: Origin
    step: Any
    scope: Scope
    bound: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def rest(self) -> Performance:
        """Return what ``perform`` needs to continue the call."""
        identity = Identity(self.call.digest, {**self.call.parts})
        return Performance(self.step, self.scope, identity, self.bound, self.args, self.kwargs)


def call(
    step: Any, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result | Unfinished | None:
    """Make a call if it is plain; return its result, or ``None`` if ``perform`` has to make it."""
    begun = _begin(step, scope, args, kwargs)
    return _perform(begun) if begun is not None else None


async def acall(
    step: Any, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result | None:
    """Await a call of a coroutine function if it is plain; as :func:`call` otherwise."""
    begun = _begin(step, scope, args, kwargs)
    return await _aperform(begun) if begun is not None else None


async def hosted(
    step: Any, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result | None:
    """Await a call that a host makes, a graph for example, in a branch of its own; as `acall`."""
    begun = _begin(step, scope, args, kwargs, hosted=True)
    return await _aperform(begun) if begun is not None else None


def _begin(
    step: Any,
    scope: Scope,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    hosted: bool = False,
) -> _PlainCall | None:
    """Give a call a number if it is plain.

    A test replaces this by a function that returns ``None``.
    """
    active = scope.run
    if not step.is_plain or step.has_siblings or not _is_usual(active, scope, hosted=hosted):
        return None
    if args and step.binds(args[0]):
        return None
    parameters, name = step.parameters, step.name
    bound = parameters.bind(args, kwargs)
    try:
        digest, parts = parameters.identify(bound, (args, kwargs), one_module=True)
    except MemoryError:
        return None  # perform says what ran out, if it does so again
    if step.qualname != name:
        parts[FUNCTION] = step.qualname
    shown = step.hiding.shown(bound, active.secrets)
    site = active.direct_site(sys._getframe(_CALLER)) if not hosted else ""
    origin = Origin(site) if site else active.origin_of_plain(helped=not hosted)
    branch, journal = scope.branch, active.journal
    ordinal = active.ordinals.of_call(counted_as(name, branch))
    began = time.time()
    made = Call(
        *(journal.next_call(), name, step.module, digest, ordinal, "", None, "", origin.site),
        *(shown, False, "", "", began, branch, 0, parts),
    )
    if active.pool.taken:
        made = apart(made, active.run_id, active.facts.undone, active.pool.taken)
    return _PlainCall(made, origin, step, scope, bound, args, kwargs)


def _is_usual(active: ActiveRun, scope: Scope, *, hosted: bool) -> bool:
    """Return whether the workflow's own code makes a call in a run of which nothing is asked.

    A host has no frame, and names the branch.
    """
    return (
        scope.call is None
        and (hosted or not (scope.branch or branches.name is not None))
        and (active.frame is None) is hosted
        and active.pid == os.getpid()
        and active.stopped is None
        and not active.ended
        and active.parent is None
        and (active.waiter is None or not active.waiter.cancelled())
        and not active.pool
        and not active.streams
        and not active.secrets
        and not active.account.limited
        and active.unwinding.is_quiet
        and active.steering.is_calm
        and not sigterms.draining
        and not (ending.by_ctrl_c and active.detached)
        and not tracing.is_on()
    )


def _perform(begun: _PlainCall) -> Result | Unfinished:
    """Execute the body of a call, and record that it returned; see :meth:`Performance.conduct`."""
    call, origin, step, scope, bound, args, kwargs = begun
    active, number = scope.run, call.number
    inner = Scope(active, call, (*scope.around, number), 1, [], scope.branch)
    unusual = False
    active.in_flight[number] = threading.get_ident()
    try:
        watch = _take_off(active, call, step, bound)
        function = step.body(call)
        token = scope_variable.set(inner)
        try:
            result = Result(function(*args, **kwargs))
        except BaseException as error:  # raised by the step's wrapper
            result = Result(error=error)
        finally:
            scope_variable.reset(token)
        if (
            result.error is None
            and not hasattr(type(result.value), "__await__")
            and not active.secrets  # no step within the body was given one
            and active.unwinding.is_quiet  # no step within the body has failed
            and (watch is None or not watch.changed())
            and _is_recorded(begun, inner, result.value)
        ):
            return result
        unusual = True
    except MemoryError as error:
        raise begun.rest().out_of_memory(error) from error
    finally:
        if not unusual:  # else that is done when the call has ended
            active.flows.done(number)
            land(active, number)
    core = begun.rest().after_body(call, origin, watch or step.watch(bound), inner)
    return drive_on(core, result)


async def _aperform(begun: _PlainCall) -> Result:
    """Await the body of a call, and record that it returned; see :func:`_perform`."""
    from stepwise._calls.async_driver import aresume, many  # a synchronous program lacks asyncio

    call, origin, step, scope, bound, args, kwargs = begun
    active, number = scope.run, call.number
    inner = Scope(active, call, (*scope.around, number), 1, [], scope.branch)
    unusual = False
    active.in_flight[number] = threading.get_ident()
    try:
        watch = _take_off(active, call, step, bound)
        function = step.body(call)
        token = scope_variable.set(inner)
        try:
            result = Result(await function(*args, **kwargs))
        except BaseException as error:  # raised by the step's wrapper
            result = Result(error=error)
        finally:
            scope_variable.reset(token)
        if (
            result.error is None
            and not many(active)
            and not active.secrets  # no step within the body was given one
            and active.unwinding.is_quiet  # an attempt of a node that failed, and is retried
            and (watch is None or not watch.changed())
            and _is_recorded(begun, inner, result.value)
        ):
            return result
        unusual = True
    except MemoryError as error:
        raise begun.rest().out_of_memory(error) from error
    finally:
        if not unusual:
            active.flows.done(number)
            land(active, number)
    core = begun.rest().after_body(call, origin, watch or step.watch(bound), inner)
    return await aresume(core, start(core), result)


def _take_off(active: ActiveRun, call: Call, step: Any, bound: Mapping[str, Any]) -> Watches | None:
    """Tell that a body begins; return what watches its arguments, if they can change."""
    active.tell("step_started", call)
    active.flows.begin(call.number)
    return None if _UNCHANGING.issuperset(map(type, bound.values())) else step.watch(bound)


def _is_recorded(begun: _PlainCall, inner: Scope, value: Any) -> bool:
    """Record a call that returned; return False if its value cannot be recorded.

    As ``outcome`` and ``record_outcome`` do it for other calls.
    """
    call, origin, step, scope, *_ = begun
    active, account = scope.run, scope.run.account
    looked = active.look(scope, value)
    try:
        payload, form = active.codec.encode(
            value, f"the value returned by {call.name!r}", step.returns
        )
    except NotRecordableError:
        return False
    inside, shown = tuple(inner.inner), step.shown_value(value) if active.frame is None else None
    text = preview(value) if shown is None else shown.preview
    record = Outcome(*(call, "completed", 1, False, inside, text, "", _NOTHING, form, time.time()))
    if not account.is_even:
        spent = account.spent_by(record, None)
        record = record._replace(spent=spent) if spent else record
    (number,) = active.write((record, payload))
    active.recorded(scope, number, record, looked=looked, helper=origin.helper)
    return True
