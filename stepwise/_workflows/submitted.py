"""``submit()``: runs that are recorded now, and begun later by whoever serves their workflow.

A submitted run is a suspended run that waits for its start.  Its journal holds the beginning and
that wait, written in one batch.  So listings, ``cancel``, ``forget`` and a call of the workflow by
the run's id need no second form of a run, and a lease lets only one process begin it.  A head with
a ``due`` keeps these runs apart from those in progress: whoever serves the workflow reads the next
ones in order, and no look at the unfinished runs becomes slower.

Rejected: a queue beside the runs.  A submission would write twice, and a kill in between leaves an
entry without a run.

Rejected: a ring of the bell for each submission, which takes as long as the submission.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from collections.abc import Mapping
from typing import Any

from stepwise import errors
from stepwise._calls.steps import step
from stepwise._execution.active_run import current_scope
from stepwise._execution.loadable import Loadable
from stepwise._execution.outcomes import inputs_in
from stepwise._identity.identity import random_id
from stepwise._identity.module_names import file_of
from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease
from stepwise._journal.logs import QUEUE, Bell
from stepwise._journal.records import RunFacts, RunWait, Started, Suspended
from stepwise._runs.messages import refuse_in_branch
from stepwise._runs.run import Run, current_step
from stepwise._runtime import settings
from stepwise._runtime.clock import elapsed, now
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import Once, notice, reports
from stepwise._runtime.options import check
from stepwise._values.codec import JSON
from stepwise._workflows.begin import (
    WorkflowCall,
    beginning,
    check_conflict,
    check_key,
    check_may_begin,
    secrets_of,
)
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import Invocation
from stepwise._workflows.handles import refuse_generator
from stepwise.stores import Store, open_store

At = dt.datetime | dt.timedelta | None

_PATIENCE = 10.0  # seconds that another process may take to record a run of the same id
_BETWEEN_RINGS = 0.1  # seconds; whoever hears a ring looks twice, with a longer pause

_is_first = Once()
_lock = process_lock()
_last = 0.0  # the time of the last submission of this process
_rung: dict[str, float] = {}  # by the URL of the store: when the bell was rung


def submit(
    at: At,
    run_id: str | None,
    workflow: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Run:
    """Record a run that is begun later; see :meth:`stepwise.Workflow.submit`."""
    what = f"{workflow.label}.submit()"
    refuse_in_branch(f"submits no run of {workflow.label!r}")
    refuse_generator(workflow, what)
    check_may_begin(workflow.label)
    _refuse_ambiguous(workflow, instance, args, {"at": at, "run_id": run_id})
    check("workflow", workflow.label, {"run_id": run_id})
    due = _moment(at, what)
    run_id = workflow.options.run_id if run_id is None else run_id
    if current_scope() is not None:
        given = workflow.full_name, instance, args, kwargs, run_id
        url, found = _submit_once(workflow, due, *given)
        return Run(open_store(url), found)
    return _submitted(workflow, instance, args, kwargs, due, run_id)


def _submitted(
    workflow: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    due: float,
    run_id: str | None,
) -> Run:
    given = workflow.options.store
    store = open_store(given if given is not None else settings.store())
    call = WorkflowCall(workflow, instance, args, kwargs).invocation(
        store,
        random_id(workflow.label) if run_id is None else run_id,
        explicit=run_id is not None,
        fsync=workflow.options.durability != "os",
    )
    seal = journals.seal_for(store)
    check_key(store, seal)
    _record(call, seal, due, limited=workflow.options.concurrent is not None)
    _ring(store, seal)
    if not store.persistent:
        _tell_of_memory(workflow.label, store.url)
    run = Run(store, call.run_id, seal)
    return run._to_go_on() if call.explicit else run


@reports
def _tell_of_memory(label: str, url: str) -> None:
    if _is_first(url):
        notice(
            f"runs that {label}.submit() records in {url} end with this process, and stepwise up "
            "cannot begin them: only recover() in this process can. Choose another store with "
            "STEPWISE_STORE or stepwise.configure(store=...)"
        )


def _refuse_ambiguous(
    workflow: Definition, instance: Any, args: tuple[Any, ...], own: Mapping[str, Any]
) -> None:
    """Refuse ``at=`` and ``run_id=`` that may be meant for parameters of that name."""
    names = workflow.parameters.names
    by_place = names[: len(args) + (instance is not None)]
    for name, value in own.items():
        if value is not None and name in names and name not in by_place:
            raise errors.ConfigurationError(
                f"{workflow.label}.submit({name}=...): {name!r} is a parameter of the workflow, "
                f"and submit() has one of that name. Give the workflow's by position; or rename it"
            )


def _moment(at: Any, what: str) -> float:
    """Return when a run is to begin, in seconds since 1970: now, or later.

    Two submissions of a process never have the same time, so that they begin in their order.
    """
    global _last  # noqa: PLW0603
    with _lock:
        submitted = _last = max(now(), _last + 1e-6)
    if at is None:
        return submitted
    if isinstance(at, dt.timedelta):
        return max(submitted, submitted + at.total_seconds())
    if isinstance(at, dt.datetime) and at.utcoffset() is not None:
        return max(submitted, at.timestamp())
    raise errors.ConfigurationError(
        f"at={at!r} of {what}: it must be a timedelta, or a datetime with a time zone, such as "
        "datetime.now(timezone.utc) + timedelta(hours=1)"
    )


# -- recording -----------------------------------------------------------------------------------


def _record(call: Invocation, seal: Any, due: float, *, limited: bool) -> None:
    """Record a submitted run, unless there is one with its id and its arguments.

    Args:
        limited: whether the workflow has ``concurrent=``.

    Raises:
        RunConflictError: the id belongs to another call.
        RunBusyError: another process has begun a run of that id, and records nothing.
        NotRecordableError: an argument cannot be recorded.
    """
    until = elapsed() + _PATIENCE
    while True:
        try:
            with Lease(call.store, call.run_id).acquire() as lease:
                if not _is_there(call, seal):
                    _append(call, seal, lease.epoch, due, limited=limited)
                return
        except errors.RunBusyError:
            if _is_there(call, seal):
                return
            if elapsed() > until:
                raise
            time.sleep(0.01)


def _is_there(call: Invocation, seal: Any) -> bool:
    facts = journals.facts_of(call.store, seal, call.run_id) if call.explicit else None
    if facts is not None:
        check_conflict(call, seal, facts)
    return facts is not None


def _append(call: Invocation, seal: Any, epoch: int, due: float, *, limited: bool) -> None:
    started, payload, facts = beginning(call, secrets_of(call))
    started = started._replace(command=())  # the submitter's program does not continue the run
    try:
        inputs_in(started, bytes(payload), facts).whole()
    except errors.UnreadableValueError as error:
        raise errors.NotRecordableError(
            f"{facts.label}.submit({facts.arguments}): another process begins the run, with its "
            f"recorded arguments: {error}",
            type_name="",
        ) from error
    _check_code_of_script(call, started, bytes(payload), facts)
    store, fsync = call.store, call.fsync
    journal = journals.Journal(store, seal, call.run_id, epoch, fsync=fsync, marks=False)
    if call.explicit:
        journal.load()  # an empty run, or an error that names the loss
    waits = [RunWait(0, "start", "", due, started.at)]
    if limited:
        waits.append(RunWait(0, "limit", facts.workflow, None, started.at))
    journal.append(
        (started, payload),
        (Suspended((*waits,), at=started.at), b""),
        head=facts._replace(status="suspended", waits=(*waits,)),
    )


def _check_code_of_script(
    call: Invocation, started: Started, payload: bytes, facts: RunFacts
) -> None:
    """Refuse arguments that need code of the submitting script: another process has another one.

    A workflow of the script itself is begun by ``recover()`` in that script all the same.
    """
    if b"__main__" not in payload or started.form == JSON:
        return
    seen = Loadable("")
    seen.look(payload)
    if not seen.of_script:
        return
    lacks = ", ".join(seen.of_script)
    if call.callee.workflow.function.__module__ == "__main__":
        if file_of("__main__"):  # a notebook's runs are begun in the notebook anyway
            _tell_of_script(facts.label, lacks)
        return
    raise errors.NotRecordableError(
        f"{facts.label}.submit({facts.arguments}): another process begins the run, and lacks "
        f"{lacks} of this script. Define what the arguments need in a module that both import, or "
        "give plain data",
        type_name="",
    )


@reports
def _tell_of_script(label: str, lacks: str) -> None:
    if _is_first((label, lacks)):
        notice(
            f"{label}.submit() recorded a run that needs {lacks} of this script, which stepwise up "
            "lacks: only recover() in this script can begin it. Define that in a module instead"
        )


def _ring(store: Store, seal: Any) -> None:
    """Ring the bell, but not for each of many submissions; the next scan of ``up`` finds them."""
    with _lock:
        at = elapsed()
        if at - _rung.get(store.url, -1.0) < _BETWEEN_RINGS:
            return
        _rung[store.url] = math.inf  # meanwhile no other thread rings
    try:
        Bell(store, seal).ring(QUEUE)
    finally:
        _rung[store.url] = at


# -- inside a run ----------------------------------------------------------------------------------


@step(name="submit", ignore=("workflow", "due"))
def _submit_once(
    workflow: Definition,
    due: float,
    name: str,  # noqa: ARG001 -- a part of the call's identity
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    run_id: str | None,
) -> tuple[str, str]:
    """Submit a run, as a step of the current run; return the URL of the store and the id.

    The id follows from the step's idempotency key: a step that was killed before it was recorded
    finds its run, and submits no second one.
    """
    if run_id is None:
        key = current_step().idempotency_key.encode()
        run_id = f"{workflow.label}-{hashlib.blake2b(key, digest_size=6).hexdigest()}"
    run = _submitted(workflow, instance, args, kwargs, due, run_id)
    return run.store.url, run.id
