"""The run behind the execution of a graph: which one it is, where it resumes, how it ends."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepwise._runtime.messages import count, notice, shell_word
from stepwise._runtime.options import check_values
from stepwise._values import digest as _digest
from stepwise._values.preview import error_text
from stepwise._workflows import host
from stepwise._workflows.host import (
    DamagedError,
    HeldParts,
    HostedRun,
    HostProgram,
    HostStore,
    Recall,
)
from stepwise.errors import ConfigurationError, DigestError
from stepwise.graph._checkpoints import CheckpointManager, ExecutorType, now
from stepwise.graph._model import ExecutionResult, Graph
from stepwise.graph._tokens import Token, Written, copied
from stepwise.graph._visits import Visits
from stepwise.graph._walk import Answer, Paused, Walk

__all__ = ["Execution", "check_session", "session_for"]

_PAUSE = "graph/pause"
_ORDER = "its", "nobody's", "another's"
_SESSION = ("run_id", "memory", "frontier", "paused_visit")


@dataclass
class Execution:
    """One call of an executor.

    Args:
        given: the input, or the answer of a human.
        session: what an earlier call gave as ``session_state``.
    """

    graph: Graph
    goal: Any
    runtime: Any
    manager: CheckpointManager | None
    kind: ExecutorType
    given: Mapping[str, Any] | None
    session: Mapping[str, Any]

    async def run(self) -> ExecutionResult:
        """Begin, or resume."""
        self.data = dict(self.given or {})
        visit = self.session.get("paused_visit") if self.given is not None else None
        self.answer = Answer(self.data, visit) if visit else None
        if self.manager is None or not self.manager.config.enabled:
            return await self._unrecorded()
        run = self._open(self.manager)
        if isinstance(run, Recall):
            result = ExecutionResult(**run.value)
        else:
            result = await _RecordedWalk(self, run, self.manager).execute()
        if result.status == "completed" and not self.session.get("run_id"):
            host.count_completed(self.manager.storage, result.run_id)
        if self.answer is not None and not self.answer.used and not isinstance(run, Recall):
            notice(
                f"{result.run_id}: that pause was answered before, and the first answer counts; "
                "check paused_at before you answer"
            )
        return result

    def beginning(self) -> Written:
        """Return the initial data of a new execution: a memory, or a state."""
        if self.session.get("frontier") is not None:
            return dict(self.session)
        return {"memory": copied({**self.session.get("memory", {}), **self.data})}

    async def _unrecorded(self) -> ExecutionResult:
        visits = Visits(self.graph, self.goal, self.runtime, None)
        walk = Walk(self.graph, visits, self.answer, lambda *_: None)
        begin(walk, self.beginning())
        error: Exception | None = None
        try:
            await walk.run()
        except Paused:
            pass
        except Exception as failure:
            error = failure
        return result_of(walk, "", error)

    # -- which run -------------------------------------------------------------------------------

    def _open(self, manager: CheckpointManager) -> Recall | HostedRun:
        digest = digest_of(self.goal, self.data)
        graph, parts = self.graph, HeldParts(self._functions(), set(self.graph.ignore))
        function = next((n.function for n in graph.nodes if n.function is not None), None)
        module = getattr(function, "__module__", None) or __name__
        program = host.program_of(Execution.run, graph.name, module=module, code=graph.fingerprint)
        store = HostStore(manager.storage)
        run_id = given = self.session.get("run_id", "")
        if not given:
            run_id = _derived(store, program, parts, digest)
        facts = store.facts(run_id)
        if facts is not None:
            recovers = manager.config.auto_recovery or facts.status == "completed" or self.session
            if not recovers:
                raise ConfigurationError(
                    f"run {run_id!r} is unfinished, and auto_recovery=False. To resume it, call "
                    "execute(..., session_state={'run_id': " + repr(run_id) + "}), or with "
                    "the to_session_state() of a checkpoint; to start over: stepwise forget "
                    + shell_word(run_id)
                )
            if self.given is None or self.session.keys() - {"run_id"}:
                # The call brings a state or an answer instead of an input.
                digest = facts.digest
        bound = {"goal": self.goal, "input_data": self.data}
        return host.open_run(
            program, manager.storage, run_id, bound, digest, parts=parts, explicit=bool(given)
        )

    def _functions(self) -> dict[str, Any]:
        functions = {f"node {node.id!r}": node.function for node in self.graph.nodes}
        for edge in self.graph.edges:
            functions[f"edge {f'{edge.source} -> {edge.target}'!r}"] = edge.when
        return {where: function for where, function in functions.items() if function is not None}


def _derived(store: HostStore, program: HostProgram, parts: HeldParts, digest: str) -> str:
    """The id of a run: the first one of this input that was not handed out here.

    It is made of the graph's name and the input.  Where that run is another's, whose nodes hold
    something else, it is made of what they hold, too.
    """
    names = program.full_name, *program.other_names
    for nth in itertools.count(1):
        number = f"-{nth}" if nth > 1 else ""
        found = []
        for digests in dict.fromkeys([(digest,), (digest, *parts.digests())]):
            ids = [host.derived_id(name, program.label, *digests) + number for name in names]
            found.append(_known(store, program, parts, ids))
        # An existing run comes first, then an id that no other run has.
        _, run_id = min(found, key=lambda each: _ORDER.index(each[0]))
        if not host.completed_here(store.store, run_id):
            return run_id
    raise AssertionError


def _known(
    store: HostStore, program: HostProgram, parts: HeldParts, ids: Sequence[str]
) -> tuple[str, str]:
    """The one of these ids that the run has, else the first; before it, whose that is."""
    names, whose = (program.full_name, *program.other_names), "nobody's"
    for name, run_id in zip(names, ids, strict=True):
        facts = store.facts(run_id) if store.store.head(run_id) else None
        if facts is None:
            continue
        if parts.differing(facts.parts):
            whose = "another's" if name == names[0] else whose
        elif name == names[0] or store.is_of_file(facts, names, program.file):
            return "its", run_id
    return whose, ids[0]


def begin(walk: Walk, beginning: Written) -> None:
    """Be where an execution begins."""
    if "frontier" in beginning:
        walk.restore(beginning)
    else:
        walk.begin(beginning["memory"])


def result_of(
    walk: Walk, run_id: str, error: Exception | None, recovered: int | None = None
) -> ExecutionResult:
    """Build the result of an execution that has ended or paused."""
    paused = walk.paused_at.node if walk.paused_at is not None and error is None else None
    status: Literal["completed", "failed", "paused"] = "paused" if paused else "completed"
    retries = walk.retries
    return ExecutionResult(
        success=error is None,
        status="failed" if error is not None else status,
        run_id=run_id,
        output=walk.memory,
        error=f"{type(error).__name__}: {error_text(error)}" if error is not None else None,
        exception=error,
        path=walk.path,
        steps_executed=len(walk.path),
        paused_at=paused,
        session_state=walk.session(run_id) if paused or error is not None else {},
        recovered_from_step=recovered,
        total_tokens=walk.tokens,
        total_latency_ms=walk.latency_ms,
        total_retries=sum(retries.values()),
        retry_details=retries,
        nodes_with_failures=walk.failures,
    )


class _RecordedWalk:
    """A walk that is recorded, and resumes at the newest checkpoint.

    Its nodes get copies, so that they change nothing that it was given.
    """

    def __init__(self, call: Execution, run: HostedRun, manager: CheckpointManager) -> None:
        self._call, self._run, self._manager = call, run, manager
        self._recovered: int | None = None
        self._visits = Visits(call.graph, call.goal, call.runtime, run)
        self._walk = Walk(call.graph, self._visits, call.answer, self._visited)

    async def execute(self) -> ExecutionResult:
        """Execute it to its end, or its next pause."""
        try:
            value = await self._run.execute(self._walk_on, idle=1)  # visits are tasks of their own
        except Paused:
            return self.result()
        except Exception as error:
            return self.result(error)
        return ExecutionResult(**value)

    async def _walk_on(self) -> Any:
        """Visit the nodes that have not been visited."""
        if self._run.is_new or not self._recover():
            begin(self._walk, await self._visits.beginning(self._beginning))
        try:
            await self._walk.run()
        except Paused:
            token = self._walk.paused_at
            assert token is not None
            self._run.put(_PAUSE, {"at": token.node, "visit": token.key}, durable=True)
            raise
        return dict(vars(self.result()))

    def result(self, error: Exception | None = None) -> ExecutionResult:
        """Return the result of the execution."""
        return result_of(self._walk, self._run.run_id, error, self._recovered)

    def _beginning(self) -> Written:
        if not self._run.is_new and self._call.answer is not None:
            raise ConfigurationError(
                f"the records of how run {self._run.run_id!r} began cannot be read; call it "
                "with its first input before you answer"
            )
        return self._call.beginning()

    # -- resuming --------------------------------------------------------------------------------

    def _recover(self) -> bool:
        """Move to the newest checkpoint; records after it answer the visits."""
        run = self._run
        # Without a state it was taken beside a node in progress: records from before are needed.
        found = (each for each in self._manager.newest_first(run.run_id) if each[1] is not None)
        checkpoint = run.resume_at_newest(found, "node")
        if checkpoint is not None:
            self._walk.restore(checkpoint.to_session_state())
            told = f"resumes after {count(checkpoint.step_number, 'node')}"
        else:
            told = run.resume_from_start()
        self._recovered = checkpoint.step_number if checkpoint is not None else 0
        run.record_resumed(
            told,
            self._recovered,
            if_changed="the graph has changed since the run began; done nodes stay done, and the "
            "new graph decides what follows",
        )
        return checkpoint is not None

    # -- checkpoints -----------------------------------------------------------------------------

    def _visited(self, walk: Walk, token: Token) -> None:
        config = self._manager.config
        if not self._manager.should_checkpoint(walk.steps):
            return
        if config.keep == 1 and not walk.quiet:
            return  # it would replace a checkpoint at which the run can resume
        run_id = self._run.run_id
        context = walk.session(run_id)
        memory, path = context.pop("memory"), context.pop("execution_path")
        graph = self._call.kind is ExecutorType.GRAPH
        checkpoint = {  # the fields of a GraphCheckpoint, in their order
            "id": os.urandom(16).hex(),
            "run_id": run_id,
            "created_at": now(),
            "executor_type": "graph" if graph else "flexible",
            "current_node_id": token.node if graph else None,
            "current_step_id": None if graph else token.node,
            "next_node_id": context["resume_from"],
            "memory_snapshot": memory,
            "execution_path": path,
            "step_number": len(path),
            "total_tokens": walk.tokens,
            "total_latency_ms": walk.latency_ms,
            "context": context,
        }
        run, state = self._run, self._run.state() if walk.quiet else None
        if self._manager.save_if_possible(checkpoint, state, run.journal) and state is not None:
            run.newest = state


def check_session(session: Mapping[str, Any]) -> None:
    """Refuse a session state that says nothing.

    Raises:
        ConfigurationError: it has none of the keys that count, or a run id that is no text.
    """
    if session and not any(key in session for key in _SESSION):
        raise ConfigurationError(
            f"session_state has the keys {', '.join(map(repr, session))}, and none is known: "
            "give the session_state of a result, the to_session_state() of a checkpoint, or "
            "{'run_id': ...}"
        )
    if session.get("run_id"):  # results of executions without a manager have none
        check_values("session_state", run_id=session["run_id"])


def session_for(
    manager: CheckpointManager, run_id: str, goal: Any, given: Mapping[str, Any] | None
) -> Written:
    """The session of a run by its id: if ``given`` is not its input, it answers its last pause."""
    session: Written = {"run_id": run_id}
    store = HostStore(manager.storage)
    facts = store.facts(run_id)
    if given is None or facts is None or facts.digest == digest_of(goal, given):
        return session
    try:
        pause, _ = store.get(run_id, _PAUSE)
    except DamagedError:  # it never paused: the input is a different one
        return session
    return {**session, "paused_at": pause["at"], "paused_visit": pause["visit"]}


def digest_of(goal: Any, given: Mapping[str, Any]) -> str:
    """Return what tells two executions of a graph apart.

    Raises:
        DigestError: the goal or the input holds what is no data; says where.
    """
    numbering, parts = _digest.Numbering(), []
    for name, each in (("goal", goal), ("input_data", dict(given))):
        try:
            parts.append(_digest.digest(each, numbering))
        except DigestError as error:
            raise DigestError(
                f"{name}{error.path}: {str(error).rpartition(' (at ')[0] or error}. Give clients "
                "and the like as runtime= to the executor; nodes find them as memory.runtime",
                path=f"{name}{error.path}",
                type_name=error.type_name,
            ) from None
    return _digest.combine(*parts)
