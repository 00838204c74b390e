"""The straight way of a plain call: recorded as ``perform`` records it, with far fewer questions.

Almost every call is plain: the workflow's code, outside of any step, calls a function without
options that change what a call does, in a run of which nothing is asked, where no record could
answer the call and no failure is being handled.  Then the questions that ``perform`` asks always
have the same answers, and this module does what remains, in the same order: number the call,
announce it if it is a side effect, execute the body, seal and write the outcome.  The records are
the same to the byte, and so are the events.

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

from stepwise._calls.driver import Core, Result, Unfinished, drive_on, start
from stepwise._calls.perform import Performance, land
from stepwise._execution.active_run import ActiveRun, Scope, branches, scope_variable
from stepwise._execution.location import Origin
from stepwise._execution.other_tasks import many
from stepwise._identity.identity import idempotency_key
from stepwise._identity.parts import FUNCTION
from stepwise._journal.counters import apart, counted_as
from stepwise._journal.records import Call, Intent, Outcome
from stepwise._matching.subjects import Identity
from stepwise._runtime import tracing
from stepwise._runtime.events import heard
from stepwise._runtime.interrupts import ending, sigterms
from stepwise._values.preview import preview
from stepwise.errors import NotRecordableError

__all__ = ["acall", "call"]

_CALLER = 4  # frames up from _begin(): call(), Step.__call__, the decorated function, its caller
_UNCHANGING = frozenset({str, bytes, int, float, bool, type(None)})
_NOTHING: Mapping[str, Any] = {}


_Begun = tuple[Call, Origin, Scope, Mapping[str, Any]]
"""A plain call that has a number, its place, the scope of its body, the arguments by name."""


def call(
    step: Any, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Result | Unfinished | None:
    """Make a call if it is plain; return its result, or ``None`` if ``perform`` has to make it."""
    begun = _begin(step, scope, args, kwargs)
    if begun is None:
        return None
    made, _, inner, bound = begun
    goes_on = False
    identity: Identity | None = None
    try:
        identity = _take_off(step, scope, made, bound)
        token = scope_variable.set(inner)
        try:
            result = Result(step.function(*args, **kwargs))
        except BaseException as error:  # raised by the step's wrapper
            result = Result(error=error)
        finally:
            scope_variable.reset(token)
        kind = type(result.value)
        is_value = kind in _UNCHANGING or not hasattr(kind, "__await__")
        if is_value and _is_recorded(step, scope, begun, identity, result):
            return result
        goes_on = True
    except MemoryError as error:  # ours: an error of the body is in its result
        raise _rest(step, scope, begun, args, kwargs, identity).out_of_memory(error) from error
    finally:
        if not goes_on:  # else that is done when the call has ended
            if identity is not None:
                scope.run.subjects.end(identity)
            scope.run.flows.done(made.number)
            land(scope.run, made.number)
    return drive_on(_after_body(step, scope, begun, args, kwargs, identity), result)


async def acall(
    step: Any,
    scope: Scope,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    hosted: bool = False,
) -> Result | None:
    """Await a call of a coroutine function if it is plain; as :func:`call` otherwise.

    Args:
        hosted: a host makes it, a graph for example, in a branch of its own.
    """
    if step.effect and many(scope.run):
        return None  # its announcement shares a flush
    begun = _begin(step, scope, args, kwargs, hosted=hosted)
    if begun is None:
        return None
    made, _, inner, bound = begun
    goes_on = False
    identity: Identity | None = None
    try:
        identity = _take_off(step, scope, made, bound)
        token = scope_variable.set(inner)
        try:
            result = Result(await step.function(*args, **kwargs))
        except BaseException as error:  # raised by the step's wrapper
            result = Result(error=error)
        finally:
            scope_variable.reset(token)
        if not many(scope.run) and _is_recorded(step, scope, begun, identity, result):
            return result
        goes_on = True
    except MemoryError as error:
        raise _rest(step, scope, begun, args, kwargs, identity).out_of_memory(error) from error
    finally:
        if not goes_on:
            if identity is not None:
                scope.run.subjects.end(identity)
            scope.run.flows.done(made.number)
            land(scope.run, made.number)
    from stepwise._calls.async_driver import aresume  # a synchronous program does not load asyncio

    core = _after_body(step, scope, begun, args, kwargs, identity)
    return await aresume(core, start(core), result)


def _begin(
    step: Any,
    scope: Scope,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    hosted: bool = False,
) -> _Begun | None:
    """Give a call a number if it is plain.

    A test replaces this by a function that returns ``None``.
    """
    active = scope.run
    if not step.is_plain or step.has_siblings or not _is_usual(active, scope, hosted=hosted):
        return None
    parameters, name, effect = step.parameters, step.name, step.effect
    if effect and not _may_announce(active, step):
        return None
    if args and type(args[0]) not in _UNCHANGING and step.binds(args[0]):
        return None
    bound = parameters.bind(args, kwargs)
    try:
        digest, parts, unknown = parameters.identify(bound, (args, kwargs), one_module=True)
    except MemoryError:
        return None  # perform says what ran out, if it does so again
    if unknown:
        return None
    if step.qualname != name:
        parts[FUNCTION] = step.qualname
    locator, origin = active.locator, None
    if not hosted:
        origin = locator.direct_origin(sys._getframe(_CALLER), effect=effect)
    if origin is None:
        origin = locator.origin(effect=effect, helped=not hosted, plain=True)
    branch, journal = scope.branch, active.journal
    counted = counted_as(name, branch) if branch else name
    ordinal, key = active.ordinals.of_call(counted), ""
    if effect:
        key = idempotency_key(active.run_id, counted, digest, ordinal, active.facts.undone)
    shown, began = step.hiding.shown(bound, active.secrets), time.time()
    site, place, _, _ = origin
    facts = (
        journal.next_call(), name, step.module, digest, ordinal, "", None, place, site, shown,
        effect, key, "", began, branch, 0, parts, 0, step.code, scope.around,
    )  # fmt: skip
    made = tuple.__new__(Call, facts)  # the constructor is a Python function
    if active.pool.taken:
        made = apart(made, active.run_id, active.facts.undone, active.pool.taken)
    inner = tuple.__new__(Scope, (active, made, (*scope.around, made.number), 1, [], branch, scope))
    return made, origin, inner, bound


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
        and not (active.inner.over and id(scope.inner) in active.inner.over)
        and active.secrets.are_none
        and not active.account.limited
        and active.unwinding.is_quiet
        and active.steering.is_calm
        and not sigterms.draining
        and not (ending.by_ctrl_c and active.detached)
        and not tracing.is_on()
    )


def _may_announce(active: ActiveRun, step: Any) -> bool:
    """Return whether nothing has to be settled or said before a side effect."""
    return (
        step.looked_for_caches
        and step.compensate is None
        and not active.journal.unknown_effects
        and not active.facts.restored
    )


def _take_off(step: Any, scope: Scope, call: Call, bound: Mapping[str, Any]) -> Identity | None:
    """Announce a side effect, and tell that the body begins.

    Returns:
        the identity of the call, under which its arguments are watched, if they can change.
    """
    active = scope.run
    number = call.number
    active.in_flight[number] = threading.get_ident()
    if step.effect:
        active.write((Intent(call), b""))
    if heard():
        active.tell("step_started", call)
    active.flows.begin(number)
    defaults = step.parameters.changeable_defaults
    if not defaults and _UNCHANGING.issuperset(map(type, bound.values())):
        return None
    identity = Identity(call.digest, {**call.parts})
    active.subjects.watch(identity, step.watched(bound), scope.around)
    identity.began(number)
    return identity


def _is_recorded(
    step: Any, scope: Scope, begun: _Begun, identity: Identity | None, result: Result
) -> bool:
    """Record a call that returned; return False if its end is not plain.

    As ``outcome`` and ``record_outcome`` do it for other calls.
    """
    call, origin, inner, _ = begun
    active, value = scope.run, result.value
    if (
        result.error is not None
        or not active.unwinding.is_quiet  # a step within the body has failed
        or not active.secrets.are_none  # one within it was given some
        or (identity is not None and scope.run.subjects.changes(identity) is not None)
    ):
        return False
    frame = active.frame
    looked = frame.look(value) if frame is not None else None
    try:
        payload, form = active.codec.encode(
            value, f"the value returned by {step.name!r}", step.returns
        )
    except NotRecordableError:
        return False
    shown = step.shown_value(value) if frame is None else None  # what a node shows
    text = preview(value) if shown is None else shown.preview
    facts = (
        call, "completed", 1, False, tuple(inner.inner), text, "", _NOTHING, form, time.time(),
        (), "", _NOTHING, 0, _NOTHING,
    )  # fmt: skip
    record = tuple.__new__(Outcome, facts)
    if not active.account.is_even:
        spent = active.account.spent_by(record, None)
        record = record._replace(spent=spent) if spent else record
    (number,) = active.write((record, payload))
    active.recorded(scope, number, record, looked=looked, helper=origin.helper)
    return True


def _rest(
    step: Any,
    scope: Scope,
    begun: _Begun,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    identity: Identity | None,
) -> Performance:
    """Return what ``perform`` needs to continue a call."""
    call, _, _, bound = begun
    identity = identity or Identity(call.digest, {**call.parts})
    return Performance(step, scope, identity, bound, args, kwargs)


def _after_body(
    step: Any,
    scope: Scope,
    begun: _Begun,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    identity: Identity | None,
) -> Core:
    """Return the core that continues a call, whose body was executed."""
    call, origin, inner, _ = begun
    rest = _rest(step, scope, begun, args, kwargs, identity)
    return rest.after_body(call, origin, inner)
