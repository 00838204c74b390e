"""How a call takes its run up: what a completed run returned, or the run to execute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from stepwise._calls.driver import Core, Result
from stepwise._checkpoints.surroundings import Surroundings
from stepwise._execution.active_run import ActiveRun, current_scope, live_runs
from stepwise._execution.location import Locator
from stepwise._execution.outcomes import (
    encode_changed,
    load_outcome,
    record_arguments,
    surroundings,
)
from stepwise._execution.process_memory import command as process_command
from stepwise._execution.process_memory import memory
from stepwise._execution.steering import ENDINGS
from stepwise._identity.call_parts import spoken
from stepwise._journal.heads import check_key
from stepwise._journal.journal import (
    Journal,
    facts_of,
    is_another_history,
    newest_mark,
    read_end,
    seal_for,
)
from stepwise._journal.lease import Lease
from stepwise._journal.records import RunFacts, Started
from stepwise._journal.seal import Seal
from stepwise._rewrite import Points, Rewritten
from stepwise._runtime import asyncio_state, tracing
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import notice, shell_word, warn
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec, Encoded
from stepwise._values.preview import preview
from stepwise._values.secrets import Secrets
from stepwise._workflows.definition import Callee, Definition
from stepwise.errors import (
    NotRecordableError,
    RunBusyError,
    RunCancelled,
    RunConflictError,
    RunOwnedError,
    RunWarning,
)
from stepwise.stores import Store

__all__ = ["Invocation", "NoLongerMeantError", "OpenedRun", "Recall", "open_run", "recall_run"]


class Invocation(NamedTuple):
    """A call, and the run that is meant by it.

    Args:
        explicit: the run id was chosen by the user.
        fsync: whether an acknowledged record must survive a power cut.
        parent: the run that calls it as a child workflow.
        codec: how its values are recorded; see :class:`stepwise._values.codec.Codec`.
        rewritten: the function that can be entered in the middle; ``None`` if there is none.
        arguments_changed: by an attempt that stopped, in this process.
        meant: says, by the run's facts as they are now (``None`` if it was deleted), whether it is
            still meant; ``None`` if it is, whatever became of it.
        cut_off: if it ended as failed, its caller had not acted on that when the crash came: it
            goes on to the same end, and is not tried again.
        waited: until somebody else had executed it.
        resumes: it is taken up even if it was cancelled.
        timeout: seconds that the run may take since it began.
        anew: somebody asked for a new run.
    """

    callee: Callee
    store: Store
    run_id: str
    explicit: bool
    fsync: bool
    parent: ActiveRun | None = None
    codec: str = ""
    rewritten: Rewritten | None = None
    arguments_changed: bool = False
    meant: Callable[[RunFacts | None], bool] | None = None
    cut_off: bool = False
    waited: bool = False
    resumes: bool = False
    timeout: float | None = None
    anew: bool = False


class Recall(NamedTuple):
    """The recorded result of a completed run.

    Args:
        changed: it changed the objects it was given, and so did the recalling.
    """

    value: Any
    changed: bool = False


class NoLongerMeantError(Exception):
    """The run is not meant any more: another process executed, completed or deleted it."""


class OpenedRun:
    """A run that was taken up, to be executed by ``execute``.

    Args:
        before: the contents of the arguments, encoded.
        is_new: nothing of it had been recorded.

    Attributes:
        changed: it turned out to change the arguments.
    """

    def __init__(self, call: Invocation, active: ActiveRun, before: bytes, is_new: bool) -> None:
        self.call = call
        self.active = active
        self.before = before
        self.is_new = is_new
        self.changed = False

    def run(self) -> Any:
        """Execute the function, from where the run stopped; a generator function gives its items.

        Not if it is a coroutine function: that is awaited, by :meth:`arun`.
        """
        raise NotImplementedError

    async def arun(self) -> Any:
        """Execute a coroutine function."""
        raise NotImplementedError

    def arguments(self) -> Surroundings:
        """The mutable objects that it was called with."""
        callee = self.call.callee
        return surroundings(callee.bound, callee.instance, callee.workflow.function, callee.secret)

    def changed_arguments(self) -> dict[str, str]:
        """Their kinds by name, if they do not hold what they held before; else nothing."""
        around = self.arguments()
        # ``before`` does not cover changes that an earlier attempt made to the same objects.
        changed = self.call.arguments_changed or record_arguments(around) != self.before
        return around.kinds() if changed else {}

    def undo_first(self) -> Core:
        """Finish the undoing at which an attempt before died, so that no half of it stays."""
        active = self.active
        if active.facts.undoing:
            from stepwise._calls.compensation import compensate  # on use: hardly a run is undone

            notice(
                f"{active.run_id}: its side effects were being undone when it stopped; that is "
                "finished first"
            )
            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                raise result.error
            active.facts = active.facts._replace(undoing=False)
            if active.facts.status == "cancelled" and not self.call.resumes:
                store, seal = active.journal.store, active.journal.seal
                return Result(error=_cancelled(store, seal, active.facts, says_how=True))
        return Result()

    def undo_after(self) -> Core:
        """Undo the side effects of a run that failed or was cancelled, if its workflow asks."""
        active, ended = self.active, ("failed", "cancelled")
        if self.call.callee.compensates and active.facts.status in ended:
            from stepwise._calls.compensation import compensate  # on use

            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                warn(
                    f"run {active.run_id!r} {active.facts.status}, and undoing its side effects "
                    f"failed too: {preview(result.error)}. To undo the others: "
                    f"stepwise.get_run({active.run_id!r}).compensate()",
                    RunWarning,
                )
        return Result()

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record how the attempt ended.

        Args:
            again: what it gave cannot be recalled, only made again (the items of a generator).

        Raises:
            RunStopped: the workflow went on although the run had stopped.
            SystemExit, KeyboardInterrupt: it went on although the process ends, and a call was
                refused for that.
        """
        active = self.active
        if active.stopped is not None:
            if error is active.stopped:
                raise error
            raise active.stopped from error
        refused = active.refused
        if refused is not None and not isinstance(error, type(refused)):
            raise refused from error
        try:
            self.changed = bool(self._record_end(value, error, again=again))
        except MemoryError as problem:
            doing = f"the end of {active.facts.label!r} was recorded"
            raise active.stop(stopped(doing, problem)) from (error or problem)

    def raise_ending(self, error: BaseException) -> None:
        """Raise what the caller gets instead of the error of an attempt that was to end.

        A cancelled task stays one, up to the call of the run that was to end.
        """
        steering = self.active.steering
        ending = steering.ending(error)
        if ending not in (None, error) and (self.active.parent is None or ending is steering.asked):
            assert ending is not None
            raise ending from error

    def _record_end(
        self, value: Any, error: BaseException | None, *, again: bool
    ) -> dict[str, str]:
        """Record the end; return which of its arguments the run changed."""
        active, changed = self.active, dict[str, str]()
        if error is None:
            encoded, changed, why = self._encode(value, again=again)
            active.finish("completed", value, encoded, changed=changed, again=why)
        elif (ending := active.steering.ending(error)) is not None and active.begun:
            if ending is not error and ending.__cause__ is None:
                ending.__cause__ = error
            status: Any = "failed"
            if isinstance(ending, RunCancelled):
                from stepwise._workflows.cancelling import with_doubts  # on use

                status, ending = "cancelled", with_doubts(active, ending)
            active.finish(status, ending, active.codec.encode_error(ending))
        elif isinstance(error, (Exception, *ENDINGS)) and active.begun and not active.interrupted:
            active.finish("failed", error, active.codec.encode_error(error))
            if active.parent is not None:  # an answer with this error repeats its changes to them
                changed = self.changed_arguments()
        # Otherwise it was interrupted (Ctrl-C, exit, cancelled from outside): no end to record.
        return changed

    def _encode(self, value: Any, *, again: bool) -> tuple[Encoded | None, dict[str, str], str]:
        """Encode the result, with the objects that the run was given and changed.

        Where those cannot be recorded, the result is recorded apart from them: for who looks.

        Returns:
            the result, ``None`` if it cannot be recorded; the changed objects that are recorded
            with it; and why a call of the run makes both anew.
        """
        codec, changed = self.active.codec, {} if again else self.changed_arguments()
        label = self.active.facts.label
        why = "a generator makes its items anew" if again else ""

        def plainly() -> Encoded:
            return codec.encode(
                value, f"the result of {label!r}", self.call.callee.workflow.returns
            )

        if changed:
            try:
                around = self.arguments()
                return encode_changed(codec, value, plainly, around, repr(label)), changed, ""
            except (NotRecordableError, MemoryError) as problem:
                why = str(problem)
        try:
            encoded = plainly()
        except (NotRecordableError, MemoryError) as problem:
            encoded, why = None, str(problem)
        if why and not again:
            warn(
                f"{why}. The run is complete; when it is called again, its journal makes the "
                "result anew",
                RunWarning,
            )
        return encoded, {} if why else changed, why


RunT = TypeVar("RunT", bound=OpenedRun)


def open_run(
    call: Invocation, kind: Callable[[Invocation, ActiveRun, bytes, bool], RunT]
) -> Recall | RunT:
    """Take a run up: recall its result, resume it, or start it.

    Args:
        kind: the class of what executes it.

    Raises:
        RunBusyError, RunOwnedError: somebody is executing it.
        RunConflictError: its id belongs to a run with other arguments.
        JournalLostError: records of side effects are gone.
        NoLongerMeantError: it is not what was meant any more.
    """
    seal = seal_for(call.store)
    recall = recall_run(call, seal)
    if recall is not None:
        return recall
    lease = Lease(call.store, call.run_id)
    try:
        _acquire(lease, child=current_scope() is not None)
        recall = recall_run(call, seal)  # the owner may have completed the run a moment ago
        if recall is None:
            return kind(call, *_take_up(call, seal, lease))
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


def recall_run(call: Invocation, seal: Seal) -> Recall | None:
    """Return the recorded result of a completed run; ``None`` if there is none to recall.

    Raises:
        RunConflictError, RunCancelled, NoLongerMeantError: as of :func:`open_run`.
    """
    facts = facts_of(call.store, seal, call.run_id)
    if call.meant is not None and not call.meant(facts):
        raise NoLongerMeantError
    if facts is None:
        return None
    if call.explicit:
        _check_conflict(call, seal, facts)
    if facts.status == "cancelled":
        _refuse_cancelled(call, seal, facts)
    if facts.status != "completed":
        return None
    end = read_end(call.store, seal, facts)
    ended = end.ended if end is not None else None
    if end is None or ended is None or not ended.answers:
        return None  # what the run returned or changed is not recorded: a replay makes it again
    marked = newest_mark(call.store, seal, call.run_id)
    if marked.last > facts.end or is_another_history(call.store, seal, call.run_id, marked):
        return None  # an older database: loading its journal reports the loss
    callee = call.callee
    function = callee.workflow.function
    around = surroundings(callee.bound, callee.instance, function, callee.secret)
    value = load_outcome(Codec(call.codec), end, around, callee.workflow.returns).value
    if call.parent is None and not call.waited:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.at))
        change = ", and its code has changed since" if _has_changed(call, facts.code) else ""
        ways = ".options(fresh=True), .options(run_id=...), STEPWISE_FRESH=1"
        if callee.parts is None:  # no @workflow is behind it
            ways = "another run_id"
        first = memory.is_first(f"recalled {callee.workflow.full_name}")  # of a loop over calls
        forget = first and f"stepwise forget {shell_word(call.run_id)}"
        notice(
            f"{call.run_id} already completed at {when}{change}; this is its recorded result"
            f"{f'. To run it afresh: {ways}, or: {forget}' if first else ''}"
        )
    return Recall(value, bool(ended.changed))


def _refuse_cancelled(call: Invocation, seal: Seal, facts: RunFacts) -> None:
    """Raise for a cancelled run, unless it is asked for, or its caller was resumed."""
    if call.parent is None:
        if not (call.resumes or facts.undoing):
            raise _cancelled(call.store, seal, facts, says_how=True)
    elif call.parent.steering.unwinds is not None:
        error: BaseException = _cancelled(call.store, seal, facts, says_how=False)
        if call.parent.task is not None and asyncio_state.current() is not None:
            error = asyncio_state.cancellation()
        raise error


def _cancelled(store: Store, seal: Seal, facts: RunFacts, *, says_how: bool) -> RunCancelled:
    from stepwise._workflows.cancelling import cancelled_before  # on use: few runs are cancelled

    return cancelled_before(store, seal, facts, says_how=says_how)


def _has_changed(call: Invocation, recorded: str) -> bool:
    code = recorded and call.callee.workflow.code
    return bool(code) and recorded != code


def _check_conflict(call: Invocation, seal: Seal, facts: RunFacts) -> None:
    from stepwise._workflows.other_runs import is_call_of  # on use: for runs with an explicit id

    callee, workflow = call.callee, call.callee.workflow
    is_call = is_call_of(call.store, seal, facts, callee)
    # A list that the instance holds may have grown since; the run id chose everything else.
    parts = callee.parts
    differing = parts.differing(facts.parts, growing=False) if parts is not None else []
    if is_call and not differing:
        return
    given = f"{workflow.label}({callee.hiding.shown(callee.bound, _secrets_of(call))})"
    recorded = f"{facts.label}({facts.arguments})"
    other = is_call or facts.workflow == workflow.full_name
    detail = "" if other else f" of {facts.workflow}"
    option = parts.left_out_by(differing) if parts is not None else ""
    leave = f"leave the differing parts out of the identity ({option}), " if option else ""
    raise RunConflictError(
        f"run id {call.run_id!r} belongs to another call{detail}:\n"
        f"  recorded  {recorded}\n"
        f"  given     {given}\n"
        f"{f'  differing {spoken(differing)}{chr(10)}' if differing else ''}"
        f"Give this call another run id, {leave}or delete that run: "
        f"stepwise forget {shell_word(call.run_id)}",
        run_id=call.run_id,
        recorded=recorded,
        given=given,
    )


# -- taking a run over ---------------------------------------------------------------------------


_same_key: set[tuple[str, bytes]] = set()  # stores in which this process began a run


def _take_up(call: Invocation, seal: Seal, lease: Lease) -> tuple[ActiveRun, bytes, bool]:
    callee = call.callee
    journal = Journal(call.store, seal, call.run_id, lease.epoch, fsync=call.fsync)
    facts = facts_of(call.store, seal, call.run_id)
    is_new = facts is None
    secrets = _secrets_of(call)
    around = surroundings(callee.bound, callee.instance, secret=callee.secret)
    before = bytes(record_arguments(around))
    began: tuple[Started, Data] | None = None
    if facts is None:
        journal.load()  # an empty run, or an error that names the loss
        if call.parent is None and (call.store.url, seal.key_id) not in _same_key:
            check_key(call.store, seal)
            _same_key.add((call.store.url, seal.key_id))
        facts, began = _start(call, journal, secrets)
    node = callee.workflow.source.node()
    function = call.rewritten.function if call.rewritten is not None else callee.workflow.function
    if not is_new:
        trace = tracing.begin(facts, facts.trace, current_scope())
        facts = facts._replace(trace=trace)
    active = ActiveRun(
        lease=lease,
        journal=journal,
        facts=facts._replace(codec=call.codec),
        locator=Locator(function.__code__, Points(node) if node is not None else None),
        parent=call.parent,
        secrets=secrets,
        budget=callee.budget,
        is_new=is_new,
    )
    if call.timeout is not None:
        active.steering.limit(call.timeout)
    if began is not None:
        active.written([1], began)
    return active, before, is_new


def _secrets_of(call: Invocation) -> Secrets:
    """Return the secrets of a call, with those of its parent run."""
    secrets = call.parent.secrets if call.parent is not None else Secrets()
    secrets.add(call.callee.secret)
    return secrets


def _start(
    call: Invocation, journal: Journal, secrets: Secrets
) -> tuple[RunFacts, tuple[Started, Data]]:
    # On use: a resume, which a start should not make dearer, needs none of these.
    from stepwise._execution.inputs import record_inputs
    from stepwise._journal.run_facts import facts_at_start
    from stepwise._workflows.other_runs import look_beside

    parent = call.parent
    callee, workflow = call.callee, call.callee.workflow
    bound, secret = callee.bound, callee.secret
    payload, form = record_inputs(
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
        hidden=" ".join(callee.hiding.names(bound)),
        parts=callee.parts.recorded if callee.parts is not None else None,
        tags={name: secrets.mask(text) for name, text in callee.tags},
    )
    facts = facts_at_start(call.run_id, started)._replace(
        label=workflow.label,
        codec=call.codec,
        restored=parent is not None and parent.facts.restored,
    )
    if parent is None:
        asked = call.explicit or call.anew or not isinstance(workflow, Definition)
        look_beside(call.store, journal.seal, facts, callee, is_asked_for=asked)
    if secrets.found_in(payload):
        payload = b""
    trace = tracing.begin(facts, facts.trace, current_scope())
    started, facts = started._replace(trace=trace), facts._replace(trace=trace)
    # Usually not durable: losing it costs nothing, and the first step's commit includes it.
    journal.append((started, payload), durable=callee.promised, head=facts)
    return facts, (started, payload)
