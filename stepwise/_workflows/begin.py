"""Calls of a workflow: which run a call means, and how the run is taken up.

A call inside a run is a child run, which is a step of the outer run.  A call from outside means a
top-level run.  A run id given by the user names the run.  Otherwise ``start=`` chooses the run of
these arguments (``"same"``), the newest unfinished run (``"unfinished"``), or a new run
(``"new"``).  ``run_id_for`` uses the same code.

A run belongs to a workflow by the script's path or the module's name, and the function's name (see
``other_runs``).

If another thread or process executes the run, the call is refused or waits.  The wait yields
operations like the call of a step, so that a thread sleeps and a task awaits.  An owner in another
process does not notify this process, so the lease is polled at growing intervals.

A run is taken up in three steps (:func:`open_run`).  Without the lease its head is read: a
completed run gives its result, and the run of another call is refused.  Under the lease the facts
are read again, since the owner may have ended the run meanwhile.  Then ``resume`` chooses a
checkpoint, and reads the records after it.

Rejected: one read of head, records, names and marks into one value under the lease.  Only the head
is read twice, once on each side of the lease.  Which records are needed is known when a checkpoint
fits, and a longer run would read more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepwise import errors
from stepwise._calls.call import Performance, Performer
from stepwise._calls.driver import Core, Result, Sleep, drive
from stepwise._checkpoints.checkpoints import spent_so_far
from stepwise._checkpoints.variables import Surroundings, dump_arguments
from stepwise._execution.active_run import (
    ActiveRun,
    Scope,
    branch_around,
    current_scope,
    debugged,
    live_runs,
)
from stepwise._execution.flows import Gong
from stepwise._execution.location import Locator
from stepwise._execution.outcomes import load_outcome, record_inputs
from stepwise._execution.process_memory import Given, memory
from stepwise._execution.process_memory import command as process_command
from stepwise._identity import identity as _identity
from stepwise._identity.identity import Parameters, captured, shown_parts
from stepwise._identity.module_names import canonical_module
from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease, describe_owner
from stepwise._journal.records import Call, RunFacts, Started, Sums, difference
from stepwise._journal.seal import Seal, anchor_of
from stepwise._matching.subjects import Identity, Watched
from stepwise._rewrite.source import Points
from stepwise._runtime import asyncio_state, observers, settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import count, notice, reports, shell_word, warn
from stepwise._values import digest as _digest
from stepwise._values.codec import Codec
from stepwise._values.digest import dotted
from stepwise._values.preview import Secrets
from stepwise._values.unpickling import Data, check_trust
from stepwise._workflows.definition import BoundCall, Definition, Start, is_defined
from stepwise._workflows.execute import (
    Invocation,
    OpenedRun,
    Recall,
    cancelled_before,
    execute,
    execute_async,
)
from stepwise._workflows.other_runs import counted_here, is_call_of, look_beside
from stepwise._workflows.resume import WorkflowRun
from stepwise.stores import Head, Store, open_store

if TYPE_CHECKING:
    from stepwise._calls.limited import Turn
    from stepwise._display.progress import Display
    from stepwise._runs.run import Run


# -- opening --------------------------------------------------------------------------------------


RunT = TypeVar("RunT", bound=OpenedRun)


class NoTurnError(Exception):
    """A run has to wait for its turn, and is not taken up."""


class SupersededError(errors.RunConflictError):
    """A branch of the run was adopted, and goes on instead; or the run is one, half adopted."""


def check_may_begin(label: str) -> None:
    """Refuse to begin or resume a run in a process that only looks at runs."""
    if memory.only_looks:
        raise errors.ConfigurationError(
            f"{label!r} is called while its module is imported, and this command only imports it: "
            "put the call under  if __name__ == '__main__':"
        )


def open_run(
    call: Invocation, kind: Callable[[Invocation, ActiveRun, bytes, bool], RunT]
) -> Recall | RunT:
    """Take a run up: recall its result, resume it, or start it.

    Args:
        kind: the class of the object that executes the run.

    Raises:
        RunBusyError, RunOwnedError: another thread or process is executing the run, or the run is
            no longer the intended one.
        RunNotFoundError: the call continues a recorded run, which was deleted since.
        RunConflictError: its id belongs to a run with other arguments.
        SupersededError: its adopted branch goes on instead.
        JournalLostError: records of side effects are missing.
        ConfigurationError: the run would be recorded as pickles, which this process refuses to
            load.
        NoTurnError: the run is free, and has to wait for its turn.
    """
    check_may_begin(call.callee.workflow.label)
    if not call.codec:
        check_trust(f"run {call.run_id!r} would be recorded as pickles")
    seal = journals.seal_for(call.store)
    if call.parent is None and (debugged.look is not None or settings.DEBUGGED in os.environ):
        opens: Any = _open_to_compare if debugged.compares else _open_for_debugger
        opened: Any = opens(call, seal)
        return opened  # type: ignore[no-any-return]
    # There is no result yet of a run that is expected as unfinished, or that is new.
    head = call.store.head(call.run_id) if call.meant is None else None
    if head is None:
        is_known = call.recorded and call.meant is None
    else:  # a call with other arguments leaves the run to its last owner
        is_known = head.finished or call.explicit
    facts, recall = recall_run(call, seal, head) if is_known else (None, None)
    if recall is not None:  # a result needs no lease
        return recall
    if call.parent is None and branch_around():
        _refuse_in_branch(call, seal)
    lease = Lease(call.store, call.run_id)
    try:
        _acquire(lease, child=current_scope() is not None)
        journal = _journal_of(call, seal, lease)
        # Nobody else writes now; the owner may have completed the run meanwhile, or its head be
        # lost, or the lease as well.
        is_known = call.recorded or head is not None or lease.epoch > 1
        if is_known or journal.load():
            facts, recall = recall_run(call, seal)
            if facts is None:  # it was deleted meanwhile
                journal.load()
        if recall is None:
            if call.needs_turn:
                raise NoTurnError  # noqa: TRY301
            return kind(call, *_take_up(call, journal, lease, facts))
    except BaseException:
        lease.release()
        raise
    lease.release()
    return recall


def _refuse_in_branch(call: Invocation, seal: Seal) -> None:
    """Refuse to begin or resume a run in the process of a branch, unless it is that branch."""
    facts = journals.facts_of(call.store, seal, call.run_id)
    if facts is None or not facts.is_branch:
        from stepwise._runs.messages import refuse_in_branch  # on use: few processes have branches

        refuse_in_branch(f"begins or resumes no other run, such as {call.run_id!r}")


def _open_for_debugger(call: Invocation, seal: Seal) -> Recall | WorkflowRun:
    """Open a run to be looked at: without its lease, and without writing.

    Raises:
        ConfigurationError: the call means another run, or one that cannot be opened like that.
    """
    from stepwise._workflows.debugged import DebuggedRun, check_call, request_here  # on use

    request, facts = request_here(), journals.facts_of(call.store, seal, call.run_id)
    is_asked = call.run_id == request.run_id and (debugged.look is None or not debugged.look.live)
    if not is_asked and facts is not None and facts.status == "completed":
        facts, recall = recall_run(call, seal)
        if recall is not None:
            return recall
    check_call(call, facts, request)
    if call.explicit and facts is not None:
        check_conflict(call, seal, facts)
    call = DebuggedRun.prepared(call)
    lease = Lease(call.store, call.run_id)
    return DebuggedRun(call, *_take_up(call, _journal_of(call, seal, lease), lease, facts))


def _open_to_compare(call: Invocation, seal: Seal) -> WorkflowRun:
    """Open the copy of a run that is executed again.

    Raises:
        ConfigurationError: the call means another run.
    """
    look = debugged.look
    assert look is not None
    look.check(call)
    lease, call = Lease(call.store, call.run_id).acquire(), call._replace(timeout=None)
    facts = journals.facts_of(call.store, seal, call.run_id)
    journal = _journal_of(call, seal, lease)
    if facts is None:
        journal.load()
    opened: WorkflowRun = look.opened(call, *_take_up(call, journal, lease, facts))
    return opened


def _acquire(lease: Lease, *, child: bool) -> None:
    try:
        lease.acquire(child=child)
    except (errors.RunBusyError, errors.RunOwnedError):
        # A Ctrl-C at the beginning or the end of an attempt may have left its lease held.
        for active in list(live_runs):
            if active.run_id == lease.run_id and active.is_over():
                active.close()
                lease.acquire(child=child)
                return
        raise


# -- a completed run -----------------------------------------------------------------------------


def recall_run(
    call: Invocation, seal: Seal, head: Head | None = None
) -> tuple[RunFacts | None, Recall | None]:
    """Return a run's facts, or ``None`` if it is new, and its result if it has completed.

    Args:
        head: the head of the run, if it was read just now.

    Raises:
        RunBusyError, RunConflictError, RunNotFoundError, SupersededError, RunCancelled: as in
            :func:`open_run`.
    """
    facts = journals.facts_of(call.store, seal, call.run_id, head)
    if facts is None:
        if call.recorded:
            raise errors.RunNotFoundError(
                f"run {call.run_id!r} is not continued: it was deleted from {call.store.url}. To "
                "begin it anew, call its workflow again",
                run_id=call.run_id,
            )
        return None, None
    if call.meant is not None and not call.meant(facts):
        raise errors.RunBusyError(
            f"run {call.run_id!r} is not continued here: another process did so",
            run_id=call.run_id,
            owner=None,
        )
    kept = anchor_of(call.store, call.run_id)
    if kept is not None and kept.deleted and facts.created_at < kept.at:
        raise errors.JournalLostError(
            f"run {call.run_id!r} was deleted, and {call.store.url} holds it again, as it was "
            "before. If somebody put it back from a backup, run stepwise restore; to begin anew: "
            f"stepwise forget {shell_word(call.run_id)}",
            run_id=call.run_id,
            path=call.store.url,
        )
    if call.explicit:
        check_conflict(call, seal, facts)
    _check_namesakes(call, facts)
    branch = facts.superseded
    if branch or journals.is_half_adopted(call.store, seal, facts):
        raise SupersededError(
            f"run {call.run_id!r} is not continued here: its branch {branch!r} was adopted, and "
            f"goes on instead. Call that: .options(run_id={branch!r})"
            if branch
            else f"branch {call.run_id!r} is not continued here: its adoption was cut off. Finish "
            f"it first: stepwise adopt {shell_word(call.run_id)}",
            run_id=call.run_id,
            recorded=f"the branch {branch or call.run_id}",
            given=call.run_id,
        )
    if facts.status == "cancelled":
        _refuse_cancelled(call, seal, facts)
    if facts.forked_from and not facts.is_branch and facts.status != "completed":
        from stepwise._runs.fork import refuse_undone_since  # on use: few runs are forks

        refuse_undone_since(call.store, seal, facts)
    return facts, _result(call, seal, facts) if facts.status == "completed" else None


def _result(call: Invocation, seal: Seal, facts: RunFacts) -> Recall | None:
    end = journals.read_end(call.store, seal, facts)
    ended = end.ended if end is not None else None
    if end is None or ended is None or not ended.answers:
        return None  # the result or the changes are not recorded: a replay computes them again
    marked = journals.newest_mark(call.store, seal, call.run_id)
    if marked.last > facts.end or journals.is_another_history(
        call.store, seal, call.run_id, marked
    ):
        return None  # an older database: loading its journal reports the loss
    if _runs_again(call, seal):
        return None
    callee = call.callee
    function = callee.workflow.function
    around = Surroundings.of_call(callee.bound, callee.instance, function, callee.secret)
    value = load_outcome(Codec(call.codec), end, around, callee.workflow.returns).value
    if call.parent is None and not call.waited:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.at))
        code = callee.workflow.code
        edited = bool(code and facts.code) and facts.code != code
        change = ", and its code has changed since" if edited else ""
        ways = ".options(fresh=True), .options(run_id=...), STEPWISE_FRESH=1"
        if callee.parts is None:  # the call has no @workflow
            ways = "another run_id"
        first = memory.is_first(f"recalled {callee.workflow.full_name}")  # first call of a loop
        forget = first and f"stepwise forget {shell_word(call.run_id)}"
        notice(
            f"{call.run_id} already completed at {when}{change}; this is its recorded result"
            f"{f'. To run it afresh: {ways}, or: {forget}' if first else ''}"
        )
    return Recall(value, bool(ended.changed))


def _runs_again(call: Invocation, seal: Seal) -> bool:
    """Return whether steps of a completed run run again, since they were edited; else report them.

    Raises:
        CodeChangedError: a person has to say what becomes of their results.
    """
    from stepwise._calls.edits import asks, edits_in, tell  # on use: few runs have completed

    edits = edits_in(call.store, seal, call.run_id)
    error = asks(call.run_id, edits)
    if error is not None or any(each.policy == "rerun" for each in edits):
        return True  # taken up, the run records the question, or makes the calls again
    tell(call.run_id, edits)
    return False


def _refuse_cancelled(call: Invocation, seal: Seal, facts: RunFacts) -> None:
    """Raise for a cancelled run, unless its resumption was requested or its caller was resumed."""
    if call.parent is None:
        if not (call.resumes or facts.undoing):
            raise cancelled_before(call.store, seal, facts, says_how=True)
    elif call.parent.steering.unwinds is not None:
        error: BaseException = cancelled_before(call.store, seal, facts, says_how=False)
        if call.parent.task is not None and asyncio_state.current() is not None:
            error = asyncio_state.cancellation()
        raise error


def _check_namesakes(call: Invocation, facts: RunFacts) -> None:
    """Refuse a run of another workflow that has the same name.

    Raises:
        RunConflictError: the run is, or may be, that of the other workflow.
    """
    workflow = call.callee.workflow
    made = workflow.made(facts.code) if isinstance(workflow, Definition) else True
    if made or (made is None and (call.explicit or call.parent is not None)):
        return  # the caller of a child run has compared their records
    run_id, given = (
        call.run_id,
        f"{workflow.label}({call.callee.hiding.shown(call.callee.bound, secrets_of(call))})",
    )
    own = f". If it is a run of this one: .options(run_id={run_id!r})" if made is None else ""
    raise errors.RunConflictError(
        f"run {run_id!r} {'may belong' if made is None else 'belongs'} to another workflow of the "
        f"name {workflow.label!r} in {workflow.file or 'its program'}: give each a name, "
        f"@workflow(name=...){own}. For a new run: .options(run_id=...) with another id, or "
        ".options(fresh=True)",
        run_id=run_id,
        recorded=f"{facts.label}({facts.arguments})",
        given=given,
    )


def check_conflict(call: Invocation, seal: Seal, facts: RunFacts) -> None:
    """Refuse a run id that belongs to another call.

    Raises:
        RunConflictError: the message names the parts that differ.
    """
    callee, workflow = call.callee, call.callee.workflow
    facts = counted_here(call.store, seal, facts, callee)
    is_call = is_call_of(call.store, seal, facts, callee)
    # A list in the instance may have grown since; the run id covers everything else.
    parts = callee.parts
    differing = parts.differing(facts.parts, growing=False) if parts is not None else []
    if is_call and not differing:
        return
    given = f"{workflow.label}({callee.hiding.shown(callee.bound, secrets_of(call))})"
    recorded = f"{facts.label}({facts.arguments})"
    other = is_call or facts.workflow == workflow.full_name
    detail = "" if other else f" of {facts.workflow}"
    option = parts.left_out_by(differing) if parts is not None else ""
    leave = f"leave the differing parts out of the identity ({option}), " if option else ""
    raise errors.RunConflictError(
        f"run id {call.run_id!r} belongs to another call{detail}:\n"
        f"  recorded  {recorded}\n"
        f"  given     {given}\n"
        f"{f'  differing {shown_parts(differing)}{chr(10)}' if differing else ''}"
        f"Give this call another run id, {leave}or delete that run: "
        f"stepwise forget {shell_word(call.run_id)}",
        run_id=call.run_id,
        recorded=recorded,
        given=given,
    )


# -- taking a run over ---------------------------------------------------------------------------


_same_key: set[tuple[str, bytes]] = set()  # stores in which this process began a run


def _journal_of(call: Invocation, seal: Seal, lease: Lease) -> journals.Journal:
    return journals.Journal(call.store, seal, call.run_id, lease.epoch, fsync=call.fsync)


def _take_up(
    call: Invocation, journal: journals.Journal, lease: Lease, facts: RunFacts | None
) -> tuple[ActiveRun, bytes, bool]:
    """Return the run in progress, the contents of its arguments, and whether it is new.

    Args:
        journal: loaded if there are no facts.
    """
    callee, is_new = call.callee, facts is None
    secrets = secrets_of(call)
    around = Surroundings.of_call(callee.bound, callee.instance, secret=callee.secret)
    before = bytes(dump_arguments(around))
    began: tuple[Started, Data] | None = None
    if facts is None:
        if call.parent is None:
            check_key(call.store, journal.seal)
        facts, began = _start(call, journal, secrets)
    if facts.is_submitted:
        facts = facts._replace(created_at=time.time())  # now it begins
    node = callee.workflow.source.node()
    function = call.rewritten.function if call.rewritten is not None else callee.workflow.function
    if not is_new:
        trace = observers.begin_trace(facts, facts.trace, current_scope())
        facts = facts._replace(trace=trace, codec=call.codec)
    active = ActiveRun(
        lease=lease,
        journal=journal,
        facts=facts,
        locator=Locator(function.__code__, _points_of(node) if node is not None else None),
        parent=call.parent,
        secrets=secrets,
        budget=callee.options.budget,
        is_new=is_new,
    )
    if call.timeout is not None:
        active.steering.limit(call.timeout)
    if began is not None:
        active.summary.note([1], (began,))
    return active, before, is_new


_points_of = functools.lru_cache(256)(Points)  # many runs have the same tree


def check_key(store: Store, seal: Seal) -> None:
    """Refuse, once in a process, to begin a run in a store that was written with another key."""
    if (store.url, seal.key_id) not in _same_key:
        journals.check_key(store, seal)
        _same_key.add((store.url, seal.key_id))


def secrets_of(call: Invocation) -> Secrets:
    """Return the secrets of a call, including those of its parent run."""
    secrets = call.parent.secrets if call.parent is not None else Secrets()
    secrets.add(call.callee.secret)
    return secrets


def _start(
    call: Invocation, journal: journals.Journal, secrets: Secrets
) -> tuple[RunFacts, tuple[Started, Data]]:
    started, payload, facts = beginning(call, secrets)
    if call.parent is None:
        asked = call.explicit or call.anew or not isinstance(call.callee.workflow, Definition)
        look_beside(call.store, journal.seal, facts, call.callee, is_asked_for=asked)
    trace = observers.begin_trace(facts, facts.trace, current_scope())
    started, facts = started._replace(trace=trace), facts._replace(trace=trace)
    # Usually not durable: losing the record costs nothing, and the first step's commit includes it.
    journal.append((started, payload), durable=call.callee.promised, head=facts)
    return facts, (started, payload)


def beginning(call: Invocation, secrets: Secrets) -> tuple[Started, Data, RunFacts]:
    """Return the first record of a new run, with its payload, and the facts of the run."""
    from stepwise._journal.run_facts import facts_at_start  # on use: a resume needs it not

    parent = call.parent
    callee, workflow = call.callee, call.callee.workflow
    bound, secret = callee.bound, callee.secret
    payload, form, made = record_inputs(
        Codec(call.codec), workflow.function, bound, callee.method, callee.instance, secret
    )
    command, cwd = process_command(secrets.mask) if parent is None else ((), "")
    started = Started(
        workflow=workflow.full_name,
        digest=callee.digest,
        arguments=callee.hiding.shown(bound, secrets),
        code=workflow.code,
        file=workflow.source.filename,
        parent=parent.run_id if parent is not None else "",
        at=time.time(),
        command=command,
        cwd=cwd,
        form=form,
        secrets=" ".join(sorted(n for n, v in secret.items() if v is not None)),
        hidden=" ".join(callee.hiding.variables(bound)),
        parts=callee.parts.recorded if callee.parts is not None else None,
        tags={name: secrets.mask(text) for name, text in callee.options.tags},
        made=made,
    )
    facts = facts_at_start(call.run_id, started)._replace(
        label=workflow.label,
        codec=call.codec,
        restored=parent is not None and parent.facts.restored,
    )
    return started, b"" if secrets.found_in(payload) else payload, facts


# -- turns ----------------------------------------------------------------------------------------


OnOwned = Literal["raise", "wait", "skip"]

_SHORTEST, _LONGEST = 0.01, 0.5  # seconds between two polls
_TELL_OF_TURN = 0.9  # seconds after which a call says that it waits for its turn

_waiting: list[tuple[ActiveRun, str]] = []  # runs that wait for another run, with its id


def when_free(
    take: Callable[[bool], Any],
    store: Store,
    run_id: str,
    on_owned: OnOwned,
    *,
    blocks: bool,
    waits: Callable[[], None] | None = None,
) -> Core:
    """Take a run up as soon as no other thread or process executes it.

    Args:
        take: takes the run up; the argument is True if the call waited for another execution.
        blocks: True if the thread sleeps meanwhile, together with an event loop running in it.
        waits: called before each pause.

    Raises:
        RunSkipped: the run is being executed, and ``on_owned`` is ``"skip"``.
        RunBusyError, RunOwnedError: the run is being executed and ``on_owned`` is ``"raise"``, or
            the owner waits for this caller.
        BaseException: the exception with which the owner's execution failed.
    """
    before, waited = None, False
    while True:
        if on_owned == "wait" and not waited:  # first: the owner may end before it is waited for
            before = journals.facts_of(store, journals.seal_for(store), run_id)
        try:
            return Result(take(waited))
        except (errors.RunBusyError, errors.RunOwnedError) as error:
            if error.run_id != run_id or on_owned == "raise":
                raise
            busy = error
        if on_owned == "skip":
            raise errors.RunSkipped(
                f"run {run_id!r} is being executed {describe_owner(busy.owner)}, and "
                "on_owned='skip' leaves the run alone",
                run_id=run_id,
                owner=busy.owner,
            ) from None
        seal = journals.seal_for(store)
        if not waited:
            waited = True
            notice(f"{run_id}: waits, since it is being executed {describe_owner(busy.owner)}")
        with _noted(run_id):
            for pause in _until_free(store, run_id, busy, blocks=blocks):
                if waits is not None:
                    waits()
                yield Sleep(pause)
        after = journals.facts_of(store, seal, run_id)
        same_end = before and after and (before.status, before.end) == (after.status, after.end)
        if after is not None and after.status == "failed" and not same_end:
            from stepwise._execution.viewer import error_of  # on use: few programs wait

            failure = error_of(store, seal, after)
            if failure is not None:
                raise failure


def _until_free(
    store: Store, run_id: str, busy: errors.RunBusyError | errors.RunOwnedError, *, blocks: bool
) -> Iterator[float]:
    pause = _SHORTEST
    while True:
        if _waits_for_caller(store, run_id, blocks=blocks):
            raise type(busy)(
                f"run {run_id!r} is being executed {describe_owner(busy.owner)}, which waits for "
                "the caller: on_owned='wait' would wait forever. Call another run there: "
                ".options(run_id=...)",
                run_id=run_id,
                owner=busy.owner,
            )
        if store.owner(run_id) is None:
            return
        yield pause
        pause = min(1.5 * pause, _LONGEST)


# -- the owner may be waiting for the caller -----------------------------------------------------


@contextmanager
def _noted(run_id: str) -> Iterator[None]:
    """Note that the caller's run waits for another run while the block runs."""
    scope = current_scope()
    entry = (scope.run, run_id) if scope is not None else None
    if entry is not None:
        _waiting.append(entry)
    try:
        yield
    finally:
        if entry is not None:
            _waiting.remove(entry)


def _waits_for_caller(store: Store, run_id: str, *, blocks: bool) -> bool:
    owner = live_run(store, run_id)
    if owner is None:
        return False  # the owner is in another process
    scope = current_scope()
    mine = set(scope.run.lineage()) if scope is not None else set()
    if mine and any(run in mine for run in _held_up_by(owner)):
        return True
    here = threading.get_ident()
    if owner.home == here and (blocks or owner.unwinding.main == asyncio_state.who()):
        return True
    me = asyncio_state.current()
    return me is not None and _awaits(owner.task, me)


def live_run(store: Store, run_id: str) -> ActiveRun | None:
    pid = os.getpid()  # runs inherited by a fork are not alive here
    for active in list(live_runs):
        if (active.run_id, active.pid) == (run_id, pid) and active.journal.store is store:
            return active
    return None


def _held_up_by(owner: ActiveRun) -> Iterator[ActiveRun]:
    """Yield the run, the runs that it or its child runs wait for, and so on."""
    todo, seen = [owner], set[ActiveRun]()
    while todo:
        run = todo.pop()
        if run in seen:
            continue
        seen.add(run)
        yield run
        for waiting, run_id in _waiting:
            awaited = live_run(waiting.journal.store, run_id)
            if awaited is not None and run in waiting.lineage():
                todo.append(awaited)


def _awaits(future: Any, task: Any) -> bool:
    """Return whether an asyncio future waits for a task, directly or through ``gather``."""
    while future is not None and future is not task:
        if any(_awaits(each, task) for each in getattr(future, "_children", ())):
            return True
        future = getattr(future, "_fut_waiter", None)
    return future is not None


# -- starts ---------------------------------------------------------------------------------------


_MOST_EXAMINED = 300  # unfinished runs of one name that are examined


class Meant(NamedTuple):
    """A run that a call may mean.

    Args:
        explicit: True if the user chose its id; a run of another call is then a conflict.
        stopped: True if an attempt of it stopped in this process, and may have changed its
            arguments.
        unfinished: True if the run counts only while it is unfinished and not being executed;
            otherwise the call means the next run.
        resumed: True if ``STEPWISE_RESUME`` names the run.
        later: True if the process has made an equal call before.
        generated: True if its id was generated now.
        told: the notice to show when the run is taken up.
        recorded: see :class:`Invocation`.
    """

    run_id: str
    explicit: bool = False
    stopped: bool = False
    unfinished: bool = False
    resumed: bool = False
    later: bool = False
    generated: bool = False
    told: str = ""
    recorded: bool = False


class Starting:
    """A call that is about to be made.

    Args:
        given: the objects of the call.

    Attributes:
        resumed: the id of the run that ``STEPWISE_RESUME`` names; empty if it names none.
        said: the start mode that was set explicitly; ``None`` for the default.
        mode: the start mode, which chooses the run for a call without a run id.
    """

    said: Start | None
    mode: Start

    def __init__(self, callee: BoundCall, given: Given, store: Store) -> None:
        self._callee = callee
        self._workflow = callee.workflow
        self._parts = callee.parts
        self._given = given
        self._store = store
        # The id of the call's first run; a call with a given id needs none.
        workflow = self._workflow
        is_named = workflow.options.run_id is not None
        self._first = "" if is_named else self._parts.base(given.name, workflow.label)
        self.resumed = settings.resume()
        self.said = self._workflow.options.start or settings.start() or None  # type: ignore[assignment]
        self.mode = "new" if settings.fresh() else self.said or "same"

    @cached
    def _older(self) -> list[str]:
        """The ids that this call had when the workflow had fewer parts."""
        return self._parts.bases(self._workflow.full_name, self._workflow.label)[1:]

    def _bases(self) -> Iterator[str]:
        """Yield the ids that this call has or had; most calls need only the first."""
        yield self._first
        yield from self._older

    @cached
    def _seal(self) -> Seal:
        # Creates the key, which a caller that only asks for an id does not need.
        return journals.seal_for(self._store)

    @property
    def base(self) -> str:
        """The key by which equal calls are counted, and the prefix of their run ids."""
        return self._workflow.options.run_id or self._first

    def runs(self) -> Iterator[Meant]:
        """Yield the intended run, then further runs if it is no longer unfinished or free.

        Raises:
            RunConflictError: a fork is to be resumed, and the call means the fork's source.
        """
        for meant in self._chosen():
            if meant.run_id not in self._sources:
                yield meant
            elif not meant.unfinished:
                fork, label = self.resumed, self._workflow.label
                raise errors.RunConflictError(
                    f"the fork {fork!r} is to be resumed, and this call of {label!r} means run "
                    f"{meant.run_id!r}, from which the fork was made: it is not executed in the "
                    "fork's place. Call the workflow with the arguments of the fork, or with "
                    f".options(run_id={fork!r}); without STEPWISE_RESUME the call resumes "
                    f"{meant.run_id!r}",
                    run_id=meant.run_id,
                    recorded=fork,
                    given=meant.run_id,
                )

    def _chosen(self) -> Iterator[Meant]:
        run_id, mode = self._workflow.options.run_id, self.mode
        known = self._stopped() if run_id is not None or mode != "new" else None
        if run_id is not None and run_id in self._sources:
            run_id = self.resumed  # the program names a source run, which the fork replaces
        if run_id is not None:
            resumed = run_id == self.resumed != self._workflow.options.run_id
            yield Meant(run_id, explicit=known != run_id, stopped=known == run_id, resumed=resumed)
        elif self._is_resumed():
            yield Meant(self.resumed, stopped=known == self.resumed, resumed=True)
        elif mode == "new":
            yield self._new()
        elif mode == "unfinished":
            if known is not None:
                yield Meant(known, stopped=True, unfinished=True)
            yield from self._unfinished()
        elif known is not None:
            yield Meant(known, stopped=True)
        else:
            yield from self._same()

    def _new(self) -> Meant:
        run_id = _identity.random_id(self._workflow.label)
        return Meant(
            run_id,
            generated=True,
            told=f"a fresh run: {run_id}; if it stops, "
            f".options(run_id={run_id!r}) with the same arguments resumes it",
        )

    def _stopped(self) -> str | None:
        parts = self._parts
        return memory.recognise(
            self._store.url, self._given, lambda: _digest.combine(parts.arguments, parts.instance)
        )

    def _is_resumed(self) -> bool:
        """Return whether the environment names this call's run as the one to resume.

        A run with a derived id is found in the usual way, by its number among equal calls.
        """
        run_id = self.resumed
        if run_id in ("", memory.resumed) or (self.mode == "same" and self.is_derived(run_id)):
            return False
        facts = self._glance(run_id)
        if facts is None:  # misspelled, or of a workflow with another store
            url = self._store.url
            if memory.is_first(f"unknown {run_id} {url}"):
                notice(
                    f"STEPWISE_RESUME={run_id} is ignored by {self._workflow.label}: there is no "
                    f"such run in {url}. Whole ids are listed by: stepwise runs"
                )
            return False
        facts = counted_here(self._store, self._seal, facts, self._callee)
        if self._parts.differing(facts.parts, growing=False):
            return False
        return is_call_of(self._store, self._seal, facts, self._callee)

    @cached
    def _sources(self) -> list[str]:
        """The run from which the fork to be resumed was made, and that run's own sources."""
        found: list[str] = []
        facts = self._glance(self.resumed) if self.resumed else None
        while facts is not None and facts.forked_from not in ("", self.resumed, *found):
            found.append(facts.forked_from)
            facts = self._glance(facts.forked_from)
        return found

    def id_to_go_on(self, run_id: str) -> str:
        """Return the id of a run, or of the adopted branch that goes on instead of it."""
        facts = self._glance(run_id)
        is_superseded = facts is not None and facts.superseded
        return run_of(self._store, run_id)._to_go_on().id if is_superseded else run_id

    def is_derived(self, run_id: str) -> bool:
        """Return whether an id belongs to a call that is counted together with this call."""
        return any(_is_numbered(run_id, base) for base in self._bases())

    def _is_of_file(self, facts: RunFacts) -> bool:
        workflow = self._workflow
        return facts.digest == self._parts.arguments and journals.is_of_file(
            self._store,
            self._seal,
            facts,
            [workflow.full_name, *workflow.other_names],
            workflow.file,
        )

    def remember(self, run_id: str) -> None:
        """Reserve the run for this call alone, unless the run id is derived from the call."""
        said = self._workflow.options.run_id is not None or self.mode != "same"
        if not said and not _is_numbered(run_id, self._first):
            memory.takes(self._store.url, run_id, self._first)

    @reports
    def warn_of_another(self, run_id: str) -> None:
        """Warn, once, that a later call was answered by a run that another process completed."""
        if self.said or not memory.is_first(f"another {self._workflow.full_name}"):
            return
        label = self._workflow.label
        warn(
            f"a later call of {label!r} with equal arguments was answered by {run_id}, which "
            "another process completed: the n-th equal call of a process is the n-th such run, so "
            "that a script that stopped can resume. To make every call a new run: start='new'. To "
            "resume unfinished runs only: start='unfinished'. For one run per request: "
            ".options(run_id=...). To keep this behaviour: start='same'",
            errors.RunWarning,
        )

    # -- the run with these arguments ------------------------------------------------------------

    def _same(self) -> Iterator[Meant]:
        first = self._first
        ordinal = memory.ordinal(self._store.url, first)
        found = self._look_up(first, ordinal)
        if found is None and not self._parts.is_certain:
            yield from self._nearly_same()
        yield Meant(found or _numbered(first, ordinal), later=ordinal > 0)

    def _look_up(self, first: str, ordinal: int) -> str | None:
        """Return the id of an existing run that this call means, or meant under another name."""
        for base in self._bases():
            run_id = self._free_number(base, first, ordinal)
            facts = self._glance(run_id)
            if facts is not None and (base == first or not self._parts.differing(facts.parts)):
                return run_id
        for base in self._other_bases():
            run_id = self._free_number(base, first, ordinal)
            facts = self._glance(run_id)
            if facts is not None and self._is_of_file(facts):
                return run_id
        return None

    def _glance(self, run_id: str) -> RunFacts | None:
        """Return the facts of a run, or ``None``; a missing run costs no read of a journal."""
        head = self._store.head(run_id)
        if head is None:
            return None
        return journals.facts_of(self._store, self._seal, run_id, head)

    def _free_number(self, base: str, first: str, ordinal: int) -> str:
        """Return the numbered id that no other call of this process has been given."""
        while memory.is_taken(self._store.url, _numbered(base, ordinal), first):
            ordinal += 1
        return _numbered(base, ordinal)

    def _other_bases(self) -> list[str]:
        """Return the ids of this call if the workflow's file is started or imported another way."""
        workflow, parts = self._workflow, self._parts
        names = [*workflow.other_names, workflow.full_name]
        places = [name.removesuffix(f":{workflow.label}") for name in names]
        found: list[str] = []
        for name, place in zip(names, places, strict=True):
            started = dotted(workflow.file) if workflow.file else "__main__"
            modules: list[str | None] = [None]
            if parts.of_instance_of(workflow.function.__module__):
                modules = [started] if place == workflow.file else [started, place]
            found += [parts.base(name, workflow.label, module) for module in modules]
        known = [*self._bases()]
        return [base for base in dict.fromkeys(found) if base not in known]

    def _nearly_same(self) -> Iterator[Meant]:
        """Yield unfinished runs that differ only in times and random ids.

        Runs that this process executed are left out: two such calls in one process are two runs.
        """
        for facts in self._found():
            executed = memory.has_executed(self._store.url, facts.run_id)
            if not (executed or self.is_derived(facts.run_id)):
                yield Meant(facts.run_id, unfinished=True, told=self._difference(facts))

    def _difference(self, facts: RunFacts) -> str:
        differing = self._parts.differing(facts.parts, momentary=True)
        if not differing:
            return ""
        return (
            f"{facts.run_id} is taken over, although it differs in {shown_parts(differing)}: "
            "unfinished runs do not differ by times or random ids. If this should be a new run: "
            "@workflow(key=...), .options(run_id=...), .options(start='new')"
        )

    # -- the newest unfinished run ---------------------------------------------------------------

    def _unfinished(self) -> Iterator[Meant]:
        found = self._found()
        for place, facts in enumerate(found):
            others = ", ".join(other.run_id for other in found[place + 1 :][:5])
            told = self._difference(facts)
            if others:
                told = (
                    f"{facts.run_id} is the newest unfinished run of these arguments; there are "
                    f"others: {others}. The next start takes over the newest of them; "
                    "stepwise forget deletes one"
                )
            yield Meant(facts.run_id, unfinished=True, told=told)
        yield self._new()._replace(told="")

    def _found(self) -> list[RunFacts]:
        """Return the unfinished runs of this call that nobody executes, newest first."""
        workflow = self._workflow
        found: list[RunFacts] = []
        for name in (workflow.full_name, *workflow.other_names):
            heads = journals.unfinished_heads(self._store, self._seal, name)
            for head in itertools.islice(heads, _MOST_EXAMINED):
                facts = journals.open_head(self._seal, head)
                if facts is not None and self._could_be(facts, name):
                    facts = journals.facts_of(self._store, self._seal, facts.run_id)
                    if facts is not None and facts.status not in ("completed", "cancelled"):
                        found.append(facts)
        return sorted(found, key=lambda facts: facts.created_at, reverse=True)

    def _could_be(self, facts: RunFacts, name: str) -> bool:
        return (
            facts.digest == self._parts.arguments
            and not (facts.parent or facts.is_branch)
            and not journals.is_ready(facts)
            and not self._parts.differing(facts.parts)
            and bool(self._workflow.made(facts.code))
            and (name == self._workflow.full_name or self._is_of_file(facts))
            and self._store.owner(facts.run_id) is None
        )


def _numbered(base: str, ordinal: int) -> str:
    return f"{base}-{ordinal + 1}" if ordinal else base


def _is_numbered(run_id: str, base: str) -> bool:
    return run_id == base or run_id.removeprefix(f"{base}-").isdecimal()


# -- calls ----------------------------------------------------------------------------------------


_ROOM = 100  # frames that recording a call may need


def _recurse(depth: int) -> None:
    if depth:
        _recurse(depth - 1)


class WorkflowCall(BoundCall):
    """One call of a workflow, which takes a run up."""

    def invocation(
        self, store: Store, run_id: str, *, parent: ActiveRun | None = None, **how: Any
    ) -> Invocation:
        """Return this call with the run that it means; ``how`` as for :class:`Invocation`."""
        data_only = settings.trusts_data_only()
        outer = "json" if data_only else parent.facts.codec if parent is not None else ""
        # Checkpoints are pickles: where only data is trusted, every run replays from the top.
        rewritten = None if data_only else self.workflow.rewritten()
        return Invocation(
            self,
            store,
            run_id,
            parent=parent,
            codec=self.options.recording(outer),
            rewritten=rewritten,
            timeout=self.options.timeout,
            **how,
        )


class ChildCall(WorkflowCall, Performer):
    """A call inside a run, which is performed like the call of a step."""

    effect = True
    timeout = None
    child: str
    child_digest: str
    opened: Recall | WorkflowRun | None = None

    def prepare(self, scope: Scope, *, asks_first: bool = False) -> Core:
        """Return the core that executes the call, or answers it from the caller's journal.

        Args:
            asks_first: see :meth:`Performance.core`.
        """
        self.parent = parent = scope.run
        try:
            _recurse(_ROOM)
        except RecursionError:
            depth = sum(1 for _ in parent.lineage())
            raise RecursionError(
                f"workflow {self.workflow.label!r} is called {depth} workflows deep, and a call of "
                f"one takes some 16 frames of the {sys.getrecursionlimit()} that Python allows: "
                "call it in a loop, make the inner ones steps or plain functions, or allow more "
                "with sys.setrecursionlimit() before the first workflow begins"
            ) from None
        parent.secrets.add(self.secret)
        self.name = self.workflow.label
        self.module = canonical_module(self.workflow.function.__module__)
        digest = self._digest(parent)
        self.child = self._id(parent, digest, parent.ordinals.of_child(self.name, digest))
        self.child_digest = digest
        made = Performance(self, scope, self._identity(scope, digest), self.bound)
        return made.core(asks_first=asks_first)

    def _identity(self, scope: Scope, digest: str) -> Identity:
        parameters, function = self.workflow.parameters, self.workflow.function
        _, parts, unknown = parameters.identify(self.bound, (self.args, self.kwargs))
        identity = Identity(digest, parts)
        identity.made = self._made
        if unknown:
            scope.run.subjects.give(identity, unknown, self.bound)
        subject = self.instance is not None or captured(function)
        if subject and not parameters.is_computed:
            scope.run.subjects.complete(
                identity, self.name, self.function, self.parameters, self.instance
            )
        return identity

    def _made(self, recorded: Call) -> bool | None:
        """Return whether a recorded call is one of this function; the child run knows its code."""
        module = recorded.module
        if self.module not in (module, canonical_module(module)) and is_defined(module, self.name):
            return False
        if not self.workflow.has_namesakes:
            return True
        store = self._store()
        facts = journals.facts_of(store, journals.seal_for(store), recorded.child)
        return self.workflow.made(facts.code if facts is not None else "")

    @property
    def function(self) -> Callable[..., Any]:
        """The undecorated function."""
        return self.workflow.function

    @property
    def parameters(self) -> Parameters:
        return self.workflow.parameters

    def _digest(self, parent: ActiveRun) -> str:
        """Return the digest of the call, as the caller's journal records it."""
        digests = self.parts.of_child()
        known = (digest for digest in digests if parent.pool.holds(self.name, digest))
        return next(known, digests[0])

    def _id(self, parent: ActiveRun, digest: str, ordinal: int) -> str:
        if self.options.run_id is not None:
            return self.options.run_id
        if self.options.start == "new":
            return _identity.random_id(self.name)
        return _identity.child_id(parent.run_id, self.name, digest, ordinal)

    def new_child(self, taken: Container[str]) -> str:
        """Return the id of a new child run, which no recorded call has.

        The id of this ordinal may be taken: by an equal call of another instance, if the calls came
        in another order then.
        """
        parent, count = self.parent, self.parent.ordinals.of_child
        while self.options.run_id is None and self.child in taken:
            self.child = self._id(parent, self.child_digest, count(self.name, self.child_digest))
        return self.child

    def answered(self, call: Call) -> None:
        """Remember the child run that answers the call."""
        self.child = call.child

    def child_spent(self, call: Call) -> Sums | None:
        """Return the child run's spending that no earlier outcome of its call reports.

        A new call of a run that had already ended executed nothing, and so spent nothing.
        """
        opened, claims = self.opened, self.parent.account.claims
        if isinstance(opened, WorkflowRun):
            active = opened.active
            return active.account.of_child(active.journal.position.sums)
        said = claims.said.get(call.number)
        if opened is None or said is None:
            return None
        return difference(spent_so_far(self._store(), self.child), said)

    def _store(self) -> Store:
        given = self.options.store
        return self.parent.journal.store if given is None else open_store(given)

    def next_id(self, parent: ActiveRun) -> str:
        """Return the id that the child run would have if the call were made now."""
        name = self.workflow.label
        self.name = name
        digest = self._digest(parent)
        if self.options.run_id is None and self.options.start == "new":
            raise no_id_yet(name)
        return self._id(parent, digest, parent.ordinals.next_child(name, digest))

    def handle(self) -> Run:
        """Return the child run."""
        return run_of(self._store(), self.child)

    @property
    def returns(self) -> Any:
        """The annotated return type of the workflow."""
        return self.workflow.returns

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return the arguments that the child run may change, as a step may."""
        # The child's own journal has the changes, too, but a record that answers the call opens no
        # run.
        given = {**self.parameters.changeable_defaults, **bound}
        hidden = self.parameters.hiding.hidden_in(given)
        return Watched(given, hidden, function=self.function)

    def body(self, call: Call) -> Callable[..., Any]:
        """Return the function that executes the child run."""
        return lambda: self._execute(call)

    def _execute(self, call: Call) -> Any:
        options, parent = self.options, self.parent
        journal = parent.journal
        self.child = call.child
        store = self._store()

        def take(waited: bool) -> Recall | WorkflowRun:
            meant = self.invocation(
                store,
                call.child,
                explicit=options.run_id is not None,
                fsync=journal.fsync if options.durability is None else options.durability != "os",
                parent=parent,
                cut_off=call.number in parent.cut_off,
                waited=waited,
            )
            opened = open_run(meant, WorkflowRun)
            if isinstance(opened, WorkflowRun):
                opened.active.account.call = call.number
            return opened

        blocks = not self.workflow.is_coroutine
        taking = when_free(take, store, call.child, options.on_owned, blocks=blocks)
        if not blocks:
            return self._execute_async(taking)
        self.opened = opened = drive(taking).unwrap()
        return opened.value if isinstance(opened, Recall) else execute(opened)

    async def _execute_async(self, taking: Core) -> Any:
        from stepwise._calls.async_driver import adrive  # synchronous programs do not load asyncio

        self.opened = opened = (await adrive(taking)).unwrap()
        return opened.value if isinstance(opened, Recall) else await execute_async(opened)


def run_of(store: Store, run_id: str) -> Run:
    """Return the run, for inspection."""
    from stepwise._runs.run import Run  # on use: most programs look at no run

    return Run(store, run_id)


def no_id_yet(label: str) -> errors.ConfigurationError:
    """Return the error for asking the id of a run that will be new."""
    return errors.ConfigurationError(
        f"the next call of {label!r} will be a new run, whose id is generated when it starts: give "
        "it an id, .options(run_id=...), or use the Run that execute() returns"
    )


# -- from outside of any run ---------------------------------------------------------------------


class TopLevel(WorkflowCall):
    """A call from outside any run; as a context manager, it remembers how the call ended.

    Args:
        skips: True if a run in execution elsewhere need not be taken up, since the caller wants
            only the ``Run``.

    Attributes:
        meant: see :class:`Invocation`; only for a run that is named.
        permit: the turn of the run, if its workflow has ``concurrent=``.
        counts: whether the run needs such a turn.
    """

    display: Display | None = None
    run_id = ""  # empty until chosen
    resumes = False  # True to resume a cancelled run, too
    taken: Recall | WorkflowRun | None = None
    meant: Callable[[RunFacts], bool] | None = None
    joined = False  # True if another thread or process executed the run, or executes it
    opened = False
    _meant: Meant
    _runs: Iterator[Meant]
    _starting: Starting | None = None  # None once the run has suspended
    continues = False  # True if the run was suspended by a call of this object
    permit: Turn | None = None
    counts = True
    unheard = False  # True if the run is woken after its call has ended, and the result is unused

    def __init__(self, *call: Any, skips: bool = False) -> None:
        super().__init__(*call)
        self.skips = skips
        self._turn: Core | None = None

    def __enter__(self) -> Recall | WorkflowRun:
        self.begin_here()
        assert self.taken is not None
        return self.taken

    def begin_here(self, waits: Callable[[], None] | None = None) -> None:
        """Take the run up in this thread; call ``waits`` before each pause if that has to wait."""
        if self.taken is None:
            drive(self.turn(blocks=True, waits=waits))

    def begin_now(self) -> None:
        """Take the run up, unless that has to wait; then :meth:`begin` continues."""
        self._turn = self.turn(blocks=False)
        with contextlib.suppress(StopIteration):
            next(self._turn)

    async def begin(self) -> None:
        """Take the run up, as entering does, but without blocking the event loop."""
        if self.taken is None:
            from stepwise._calls.async_driver import adrive

            await adrive(self._turn or self.turn(blocks=False))

    def turn(self, *, blocks: bool, waits: Callable[[], None] | None = None) -> Core:
        """Take up the intended run as soon as no other thread or process executes it.

        The steps are: choose the run, take it up (recall its result, resume it, or begin it), and
        remember which run it is.
        """
        try:
            return (yield from self._turns(blocks=blocks, waits=waits))
        except BaseException:
            self.leave_turn()
            raise

    def _turns(self, *, blocks: bool, waits: Callable[[], None] | None) -> Core:
        if not self.run_id:
            self.choose()
        while self.taken is None:
            on_owned = "raise" if self._meant.unfinished else self.options.on_owned
            on_owned = "wait" if self.continues else on_owned
            try:
                taking = when_free(
                    self._take, self.store, self.run_id, on_owned, blocks=blocks, waits=waits
                )
                opened = (yield from taking).unwrap()
            except errors.RunSkipped:
                if not self.skips:
                    raise
                self.joined, self.taken = True, Recall(None)
                break
            except NoTurnError:
                yield from self._await_turn(waits)
                continue
            except SupersededError:
                self._follow()
                continue
            except (errors.RunBusyError, errors.RunOwnedError, errors.RunNotFoundError):
                if not self._meant.unfinished:
                    raise
                self._choose_next()  # another process was faster
                continue
            try:
                self._note(opened)
            except BaseException:  # a warning that is turned into an error
                if isinstance(opened, WorkflowRun):
                    opened.active.close()
                raise
            self.taken = opened
        return Result()

    def _await_turn(self, waits: Callable[[], None] | None) -> Core:
        """Wait until as few other runs of the workflow are executed as ``concurrent=`` says."""
        from stepwise._calls.limited import ask_for_run, granted  # on use: few workflows have it

        name, most = self.workflow.full_name, self.options.concurrent
        place, bell, began = (self.store, journals.seal_for(self.store)), Gong(), time.monotonic()
        assert most is not None
        is_told = False

        def look() -> None:
            nonlocal is_told
            if waits is not None:
                waits()
            if not is_told and time.monotonic() - began >= _TELL_OF_TURN:
                is_told = True
                notice(
                    f"{self.run_id}: waits for its turn, since at most {count(most, 'run')} of "
                    f"{name} may be executed at once"
                )

        permit = ask_for_run(place, name, most, self.run_id, bell.ring)
        yield from granted(permit, bell, look)
        self.permit = permit
        return Result()

    def _follow(self) -> None:
        """Mean the adopted branch that goes on instead of the run.

        Raises:
            RunNotFoundError: the branch was deleted.
        """
        from stepwise._runs.branching import adopted_instead  # on use: few runs have branches

        branch = adopted_instead(run_of(self.store, self.run_id))
        if branch.id != self.run_id and memory.is_first(
            f"superseded {self.store.url} {self.run_id}"
        ):
            notice(f"{self.run_id}: its branch {branch.id} was adopted, and goes on instead")
        self.leave_turn()
        self.run_id = branch.id
        self._meant = self._meant._replace(run_id=branch.id)
        if self.meant is not None:  # adopting it was a change
            self.meant = None

    def leave_turn(self) -> None:
        """Give the turn of the run to another one."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.desk.over(permit)

    def starting(self) -> Starting:
        """Return the object that chooses the run of this call."""
        check_may_begin(self.workflow.label)
        options = self.options
        self.store = open_store(options.store if options.store is not None else settings.store())
        self.given = Given(self.workflow.full_name, self.bound, self.instance)
        self._starting = starting = Starting(self, self.given, self.store)
        self.base = starting.base
        return starting

    def again(self) -> None:
        """Prepare another call of the same suspended run, and release everything else."""
        explicit = self._meant.explicit
        self._meant = Meant(self.run_id, explicit=explicit, stopped=True, recorded=True)
        self.taken, self.opened, self._turn, self.continues = None, False, None, True
        self._starting, self._runs, self.display = None, iter(()), None
        if self.meant is not None:  # a further attribute would make CPython's dict 6 times as large
            self.meant = None

    def choose(self) -> None:
        """Choose the run that the call means."""
        self._runs = self.starting().runs()
        self._choose_next()

    def mean(self, run_id: str, *, explicit: bool, recorded: bool = False) -> None:
        """Set the run to a run chosen by another process or by its id.

        Args:
            explicit: True if the user chose its id; see :class:`Meant`.
            recorded: see :class:`Invocation`.
        """
        self.starting()
        self._meant, self.run_id = Meant(run_id, explicit=explicit, recorded=recorded), run_id

    @property
    def is_explicit(self) -> bool:
        """True if the user chose the id of the run."""
        return self._meant.explicit

    def recall(self) -> Recall | None:
        """Return the recorded result once another process has completed the run."""
        explicit = self.is_explicit
        call = self.invocation(self.store, self.run_id, explicit=explicit, fsync=True, waited=True)
        try:
            return recall_run(call, journals.seal_for(self.store))[1]
        except SupersededError:
            self._follow()
            return self.recall()

    def _choose_next(self) -> None:
        self._meant = next(self._runs)
        self.run_id = run_id = self._meant.run_id
        if self._starting is not None and run_id == self._starting.resumed:
            self.resumes = self.resumes or memory.is_first(f"resumed {self.store.url} {run_id}")

    def _take(self, waited: bool) -> Recall | WorkflowRun:
        meant = self._meant
        if meant.generated and meant.told and not waited:
            notice(meant.told)
        if meant.resumed:
            memory.resumed = settings.resume()  # an adopted branch may go on instead
        call = self.invocation(
            self.store,
            meant.run_id,
            explicit=meant.explicit,
            fsync=self.options.durability != "os",
            arguments_changed=meant.stopped,
            meant=_is_unfinished if meant.unfinished else self.meant,
            recorded=meant.recorded or meant.unfinished,
            waited=waited,
            resumes=self.resumes,
            anew=meant.generated and bool(meant.told),
            needs_turn=self.permit is None and self.counts and self.options.concurrent is not None,
        )
        opened = open_run(call, WorkflowRun)
        self.opened = True
        # The result of an awaited run belongs to that run's own call, so it is not counted here.
        self.joined = waited and isinstance(opened, Recall)
        return opened

    def _note(self, opened: Recall | WorkflowRun) -> None:
        """Remember which run it is, and report an unexpected one."""
        meant, store = self._meant, self.store.url
        starting = self._starting
        if starting is not None:
            starting.remember(meant.run_id)
        if meant.told and not meant.generated:
            notice(meant.told)
        # A generator's items are computed again, not recalled.
        is_over = isinstance(opened, Recall) or opened.active.facts.status == "completed"
        again = is_over and meant.later and not self.joined
        if again and starting is not None and not memory.has_executed(store, meant.run_id):
            starting.warn_of_another(meant.run_id)
        if isinstance(opened, WorkflowRun):
            memory.executes(store, meant.run_id)
            facts = opened.active.facts
            title = f"{facts.label}({facts.arguments})"
            shows = self.options.progress if debugged.look is None else False
            if settings.progress() if shows is None else shows:
                self.display = _display(meant.run_id, title)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.display is not None:
            self.display.close()
        self.leave_turn()
        if self.joined:
            return
        if error is None and not self.unheard:  # otherwise the next equal call means this run, too
            memory.completed(self.store.url, self.base, self.run_id)
        elif error is not None and self.opened:
            memory.stopped(self.store.url, self.run_id, self.given, self._digest_again)

    def _digest_again(self) -> str:
        parts = self.look()
        return _digest.combine(parts.arguments, parts.instance)


def _is_unfinished(facts: RunFacts) -> bool:
    return facts.status not in ("completed", "cancelled")


def next_run_id(
    workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return the id of the run that the next such call, made here and now, will be.

    Raises:
        ConfigurationError: the run will be a new one, whose id is generated when it starts.
    """
    scope = current_scope()
    if scope is not None:
        if workflow.is_generator or workflow.is_async_generator:
            return scope.run.run_id  # the workflow's steps belong to the caller's run
        return ChildCall(workflow, instance, args, kwargs).next_id(scope.run)
    starting = TopLevel(workflow, instance, args, kwargs).starting()
    meant = next(starting.runs())
    if meant.generated:
        raise no_id_yet(workflow.label)
    return starting.id_to_go_on(meant.run_id)


@reports
def _display(run_id: str, title: str) -> Display | None:
    """Show the progress of a run, if there is a place for it."""
    from stepwise._display.progress import Display, Doing  # on use: few runs show it

    return Display.of(Doing(run_id, title), True)
