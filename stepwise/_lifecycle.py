"""How a call of a workflow takes its run up, whatever form its function has.

:func:`open_run` gives either what a completed run returned or the run to execute.

Imports: run, renamed, runs, opened, resume, mutation, journal, origin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stepwise._codec import Codec
from stepwise._data import returned_type
from stepwise._journal import Journal, facts_of, read_one, seal_for
from stepwise._lease import Lease
from stepwise._mutation import (
    record_arguments,
    replay_changed,
    surroundings,
)
from stepwise._notices import notice
from stepwise._opened import Opened
from stepwise._origin import Locator
from stepwise._pieces import Data
from stepwise._previews import preview_arguments
from stepwise._process import command as process_command
from stepwise._records import Ended, RunFacts, Started
from stepwise._renamed import is_call_of
from stepwise._reports import tell_of_unfinished
from stepwise._resume import Body, CheckpointPolicy
from stepwise._run import ActiveRun, live_runs
from stepwise._seal import Seal
from stepwise.errors import (
    RunConflictError,
    RunOwnedError,
)
from stepwise.rewrite import Points, Rewritten, Source
from stepwise.stores import Store

__all__ = ["Invocation", "Recall", "open_run"]

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
        codec: how its values are recorded; see :class:`stepwise._codec.Codec`.
        code: fingerprint of what it executes; empty if that is not known.
        cut_off: a crash came before its caller acted on how it ended, if it ended.
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


def open_run(call: Invocation) -> Recall | Opened[Body]:
    """Take a run up: recall its result, resume it, or start it.

    Raises:
        RunOwnedError: somebody is executing it.
        RunConflictError: its id belongs to a run with other arguments.
        JournalLostError: records of side effects are gone.
    """
    seal = seal_for(call.store)
    recall = _recall(call, seal)
    if recall is not None:
        return recall
    lease = Lease(call.store, call.run_id)
    try:
        _acquire(lease)
        recall = _recall(call, seal)  # its owner may have completed it a moment ago
        if recall is None:
            return _take_up(call, seal, lease)
    except BaseException:
        lease.release()
        raise
    lease.release()
    return recall


def _acquire(lease: Lease) -> None:
    try:
        lease.acquire()
    except RunOwnedError:
        # A Ctrl-C in the very moment in which an attempt began or ended may have kept its lease.
        for active in list(live_runs):
            if active.run_id == lease.run_id and active.is_over():
                active.close()
                lease.acquire()
                return
        raise


# -- a completed run -----------------------------------------------------------------------------


def _recall(call: Invocation, seal: Seal) -> Recall | None:
    facts = facts_of(call.store, seal, call.run_id)
    if facts is None:
        return None
    if call.explicit:
        _check_conflict(call, facts)
    if facts.status != "completed":
        return None
    entry = read_one(call.store, seal, call.run_id, facts.end)
    if entry is None or not isinstance(entry.record, Ended) or not entry.record.recorded:
        return None  # the result could not be recorded, or read: its journal makes it again
    if entry.record.changed:
        around = surroundings(call.bound, call.instance)
        Codec(call.codec).check(entry.record.form)
        value = replay_changed(entry.payload, entry.record.form, around)
    else:
        value = Codec(call.codec).decode(entry.payload, entry.record.form, call.returns)
    if call.parent is None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.record.at))
        change = ", and its code has changed since" if _has_changed(call, facts.code) else ""
        notice(
            f"{call.run_id} already completed at {when}{change}; here is its recorded result. "
            f"To run it afresh: .options(fresh=True), .options(run_id=...), STEPWISE_FRESH=1, or: "
            f"{_forget(call.run_id)}"
        )
    return Recall(value, bool(entry.record.changed))


def _has_changed(call: Invocation, code: str) -> bool:
    return bool(code and call.code) and code != call.code


def _check_conflict(call: Invocation, facts: RunFacts) -> None:
    if is_call_of(facts, call.name, call.digest, call.code):
        return
    given = f"{call.label}({preview_arguments(call.bound)})"
    recorded = f"{facts.label}({facts.arguments})"
    detail = "" if facts.workflow == call.name else f" of {facts.workflow}"
    raise RunConflictError(
        f"run id {call.run_id!r} belongs to another call{detail}:\n"
        f"  recorded  {recorded}\n"
        f"  given     {given}\n"
        "Give this one another run id, leave out of the identity what may differ "
        f"(@workflow(ignore=...)), or delete that run: {_forget(call.run_id)}",
        run_id=call.run_id,
        recorded=recorded,
        given=given,
    )


def _forget(run_id: str) -> str:
    """The command that deletes a run."""
    import shlex  # on use: only these messages need it

    return f"stepwise forget {shlex.quote(run_id)}"


# -- taking a run up -----------------------------------------------------------------------------


def _take_up(call: Invocation, seal: Seal, lease: Lease) -> Opened[Body]:
    journal = Journal(call.store, seal, call.run_id, lease.epoch, fsync=call.fsync)
    facts = facts_of(call.store, seal, call.run_id)
    is_new = facts is None
    before = bytes(record_arguments(surroundings(call.bound, call.instance)))
    began: tuple[Started, Data] | None = None
    if facts is None:
        journal.load()  # there is nothing, or it says what is lost
        facts, began = _start(call, journal, before)
    facts = facts._replace(codec=call.codec)
    node = call.source.node()
    function = call.rewritten.function if call.rewritten is not None else call.function
    active = ActiveRun(
        lease=lease,
        journal=journal,
        facts=facts,
        locator=Locator(function.__code__, Points(node) if node is not None else None),
        parent=call.parent,
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
        policy=call.policy,
        is_new=is_new,
        code=call.code,
        arguments_changed=call.arguments_changed,
        cut_off=call.cut_off,
    )
    return Opened(active, body, before, is_new, call.compensates, returns=call.returns)


def _start(
    call: Invocation, journal: Journal, arguments: bytes
) -> tuple[RunFacts, tuple[Started, Data]]:
    now = time.time()
    facts = RunFacts(
        run_id=call.run_id,
        workflow=call.name,
        label=call.label,
        status="running",
        arguments=preview_arguments(call.bound),
        digest=call.digest,
        code=call.code,
        parent=call.parent.run_id if call.parent is not None else "",
        codec=call.codec,
        created_at=now,
        updated_at=now,
    )
    if call.parent is None:
        tell_of_unfinished(call.store, journal.seal, facts, call.function.__module__)
    command, cwd = process_command() if call.parent is None else ((), "")
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
    )
    # Not durable: nothing is lost with it, and the first step's commit takes it along.
    payload = b"" if Codec(call.codec).data_only else arguments
    journal.append((started, payload), durable=False, head=facts)
    return facts, (started, payload)
