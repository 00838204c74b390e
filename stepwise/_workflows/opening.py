"""How a call of a workflow takes its run over, whatever form its function has.

:func:`open_run` gives either what a completed run returned or the run to execute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stepwise._execution.active_run import ActiveRun, current_scope, live_runs
from stepwise._execution.inputs import record_inputs
from stepwise._execution.location import Locator
from stepwise._execution.mutation import record_arguments, surroundings
from stepwise._execution.outcomes import reached
from stepwise._execution.process_memory import command as process_command
from stepwise._execution.process_memory import memory
from stepwise._identity.call_parts import Parts, spoken
from stepwise._journal.journal import Journal, facts_of, read_one, seal_for
from stepwise._journal.lease import Lease
from stepwise._journal.marks import is_another_history, newest_mark
from stepwise._journal.records import Ended, RunFacts, Started
from stepwise._journal.seal import Seal
from stepwise._rewrite import Points, Rewritten, Source
from stepwise._runtime.messages import notice
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec
from stepwise._values.data import returned_type
from stepwise._values.hidden_arguments import NO_HIDING, Hiding
from stepwise._values.secrets import Secrets
from stepwise._workflows.opened import Opened
from stepwise._workflows.renamed import is_call_of, is_of_file
from stepwise._workflows.reports import tell_of_unfinished
from stepwise._workflows.resume import Body, CheckpointPolicy
from stepwise.errors import (
    RunBusyError,
    RunConflictError,
    RunOwnedError,
)
from stepwise.stores import Store

__all__ = ["Invocation", "NotUnfinishedError", "Recall", "open_run"]

_NOTHING: Mapping[str, Any] = {}


class Invocation(NamedTuple):
    """A workflow, called.

    Args:
        name, label: of the workflow, full and short.
        function: the plain function.
        source: where it is defined.
        bound: the arguments by parameter name, without ``self``.
        instance: the object or class that a method is bound to.
        digest: of the arguments.
        run_id: of the run that is meant.
        explicit: the run id was chosen by the user.
        fsync: whether an acknowledged record must survive a power cut.
        parent: the run that calls it as a child workflow.
        args, kwargs: the call as it was made, ``self`` included.
        rewritten: the function that can be entered in the middle.
        arguments_changed: by an attempt that stopped, in this process.
        compensates: its side effects are undone when it fails.
        codec: how its values are recorded; see :class:`stepwise._values.codec.Codec`.
        code: fingerprint of what it executes; empty if that is not known.
        cut_off: a crash came before its caller acted on how it ended, if it ended.
        waited: until somebody else had executed it.
        promised: somebody is told its id at once, and relies on it.
        method: the parameter that gets ``instance``; empty if the workflow is no method.
        hiding: what of its arguments is not stored, or not shown.
        secret: its secrets by name.
        parts: what tells the call apart; ``None`` if it has no parts.
        only_unfinished: it is not meant any more if it has been completed or deleted.
        other_names, file: the workflow's names where its file is started or imported otherwise.
    """

    name: str
    label: str
    function: Callable[..., Any]
    source: Source
    bound: Mapping[str, Any]
    instance: Any
    digest: str
    store: Store
    run_id: str
    explicit: bool
    fsync: bool
    parent: ActiveRun | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = _NOTHING
    rewritten: Rewritten | None = None
    policy: CheckpointPolicy = CheckpointPolicy()
    arguments_changed: bool = False
    compensates: bool = False
    cut_off: bool = False
    codec: str = ""
    code: str = ""
    waited: bool = False
    promised: bool = False
    method: str = ""
    hiding: Hiding = NO_HIDING
    secret: Mapping[str, Any] = _NOTHING
    parts: Parts | None = None
    only_unfinished: bool = False
    other_names: Sequence[str] = ()
    file: str = ""

    @property
    def returns(self) -> Any:
        """The type that the function is annotated to return."""
        return returned_type(self.function)


class Recall(NamedTuple):
    """The recorded result of a completed run.

    Args:
        changed: it changed the objects it was given, and so did the recalling.
    """

    value: Any
    changed: bool = False


class NotUnfinishedError(Exception):
    """The run that is meant only while it is unfinished has been completed, or deleted."""


def open_run(call: Invocation) -> Recall | Opened[Body]:
    """Take a run up: recall its result, resume it, or start it.

    Raises:
        RunBusyError, RunOwnedError: somebody is executing it.
        RunConflictError: its id belongs to a run with other arguments.
        JournalLostError: records of side effects are gone.
        NotUnfinishedError: only an unfinished run was meant.
    """
    seal = seal_for(call.store)
    recall = _recall(call, seal)
    if recall is not None:
        return recall
    lease = Lease(call.store, call.run_id)
    try:
        _acquire(lease, child=current_scope() is not None)
        recall = _recall(call, seal)  # the owner may have completed the run a moment ago
        if recall is None:
            return _take_up(call, seal, lease)
    except BaseException:
        lease.release()
        raise
    lease.release()
    return recall


def _acquire(lease: Lease, *, child: bool) -> None:
    try:
        lease.acquire(child=child)
    except (RunBusyError, RunOwnedError):
        # A Ctrl-C just as an attempt began or ended may have left its lease held.
        for active in list(live_runs):
            if active.run_id == lease.run_id and active.is_over():
                active.close()
                lease.acquire(child=child)
                return
        raise


# -- a completed run -----------------------------------------------------------------------------


def _recall(call: Invocation, seal: Seal) -> Recall | None:
    facts = facts_of(call.store, seal, call.run_id)
    if call.only_unfinished and (facts is None or facts.status == "completed"):
        raise NotUnfinishedError
    if facts is None:
        return None
    if call.explicit:
        _check_conflict(call, seal, facts)
    if facts.status != "completed":
        return None
    entry = read_one(call.store, seal, call.run_id, facts.end)
    if entry is None or not isinstance(entry.record, Ended) or not entry.record.recorded:
        return None  # the result could not be recorded or read: a replay computes it again
    marked = newest_mark(call.store, seal, call.run_id)
    if marked.last > facts.end or is_another_history(call.store, seal, call.run_id, marked):
        return None  # an older database: loading its journal reports the loss
    around = surroundings(call.bound, call.instance, call.function, call.secret)
    value = reached(
        Codec(call.codec),
        entry.payload,
        entry.record.form,
        failed=False,
        around=around if entry.record.changed else None,
        kind=call.returns,
    ).value
    if call.parent is None and not call.waited:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.record.at))
        change = ", and its code has changed since" if _has_changed(call, facts.code) else ""
        ways = ".options(fresh=True), .options(run_id=...), STEPWISE_FRESH=1"
        if call.parts is None:  # no @workflow is behind it
            ways = "another run_id"
        first = memory.is_first(f"recalled {call.name}")  # once per loop over calls
        notice(
            f"{call.run_id} already completed at {when}{change}; this is its recorded result"
            f"{f'. To run it afresh: {ways}, or: {_forget(call.run_id)}' if first else ''}"
        )
    return Recall(value, bool(entry.record.changed))


def _has_changed(call: Invocation, code: str) -> bool:
    return bool(code and call.code) and code != call.code


def _check_conflict(call: Invocation, seal: Seal, facts: RunFacts) -> None:
    is_call = is_call_of(facts, call.name, call.digest, call.code) or (
        facts.digest == call.digest
        and is_of_file(call.store, seal, facts, call.other_names, call.file)
    )
    # A list that the instance holds may have grown since; the run id chose everything else.
    differing = call.parts.differing(facts.parts, growing=False) if call.parts is not None else []
    if is_call and not differing:
        return
    given = f"{call.label}({call.hiding.shown(call.bound, _secrets_of(call))})"
    recorded = f"{facts.label}({facts.arguments})"
    detail = "" if is_call or facts.workflow == call.name else f" of {facts.workflow}"
    option = call.parts.left_out_by(differing) if call.parts is not None else ""
    leave = f"leave the differing parts out of the identity ({option}), " if option else ""
    raise RunConflictError(
        f"run id {call.run_id!r} belongs to another call{detail}:\n"
        f"  recorded  {recorded}\n"
        f"  given     {given}\n"
        f"{f'  differing {spoken(differing)}{chr(10)}' if differing else ''}"
        f"Give this call another run id, {leave}or delete that run: {_forget(call.run_id)}",
        run_id=call.run_id,
        recorded=recorded,
        given=given,
    )


def _forget(run_id: str) -> str:
    """The command that deletes a run."""
    import shlex  # on use: only these messages need it

    return f"stepwise forget {shlex.quote(run_id)}"


# -- taking a run over ---------------------------------------------------------------------------


def _take_up(call: Invocation, seal: Seal, lease: Lease) -> Opened[Body]:
    journal = Journal(call.store, seal, call.run_id, lease.epoch, fsync=call.fsync)
    facts = facts_of(call.store, seal, call.run_id)
    is_new = facts is None
    secrets = _secrets_of(call)
    around = surroundings(call.bound, call.instance, secret=call.secret)
    before = bytes(record_arguments(around))
    began: tuple[Started, Data] | None = None
    if facts is None:
        journal.load()  # an empty run, or an error that names the loss
        facts, began = _start(call, journal, secrets)
    facts = facts._replace(codec=call.codec)
    node = call.source.node()
    function = call.rewritten.function if call.rewritten is not None else call.function
    active = ActiveRun(
        lease=lease,
        journal=journal,
        facts=facts,
        locator=Locator(function.__code__, Points(node) if node is not None else None),
        parent=call.parent,
        secrets=secrets,
    )
    if began is not None:
        active.written([1], began)
    body = Body(
        active,
        plain=lambda: call.function(*call.args, **call.kwargs),
        rewritten=call.rewritten if Codec(facts.codec).trusting else None,
        source=call.source,
        call=(call.args, call.kwargs),
        bound=call.bound,
        instance=call.instance,
        function=call.function,
        secret=call.secret,
        policy=call.policy,
        is_new=is_new,
        code=call.code,
        arguments_changed=call.arguments_changed,
        cut_off=call.cut_off,
    )
    return Opened(active, body, before, is_new, call.compensates, returns=call.returns)


def _secrets_of(call: Invocation) -> Secrets:
    """Return the secrets of a call, with those of its parent run."""
    secrets = call.parent.secrets if call.parent is not None else Secrets()
    secrets.add(call.secret)
    return secrets


def _start(
    call: Invocation, journal: Journal, secrets: Secrets
) -> tuple[RunFacts, tuple[Started, Data]]:
    now = time.time()
    codec = Codec(call.codec)
    payload, form = record_inputs(
        codec, call.function, call.bound, call.method, call.instance, call.secret
    )
    facts = RunFacts(
        run_id=call.run_id,
        workflow=call.name,
        label=call.label,
        status="running",
        arguments=call.hiding.shown(call.bound, secrets),
        digest=call.digest,
        code=call.code,
        parent=call.parent.run_id if call.parent is not None else "",
        codec=call.codec,
        created_at=now,
        updated_at=now,
        secrets=" ".join(sorted(n for n, v in call.secret.items() if v is not None)),
        hidden=" ".join(call.hiding.names(call.bound)),
        parts=call.parts.recorded if call.parts is not None else None,
        restored=call.parent is not None and call.parent.facts.restored,
    )
    if call.parent is None:
        module = call.function.__module__
        tell_of_unfinished(call.store, journal.seal, facts, module, call.parts)
    command, cwd = process_command(secrets.mask) if call.parent is None else ((), "")
    started = Started(
        workflow=call.name,
        digest=call.digest,
        arguments=facts.arguments,
        code=call.code,
        file=call.source.filename,
        parent=facts.parent,
        at=now,
        command=command,
        cwd=cwd,
        form=form,
        secrets=facts.secrets,
        hidden=facts.hidden,
        parts=facts.parts,
    )
    if secrets.found_in(payload):
        payload = b""
    # Usually not durable: losing it costs nothing, and the first step's commit includes it.
    journal.append((started, payload), durable=call.promised, head=facts)
    return facts, (started, payload)
