"""The run behind the execution of a graph: which one it is, where it goes on, how it ends.

Imports: graph walk, visits, checkpoints and model; lifecycle, execute, resume, process memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepwise import _digest, _identity
from stepwise._classic import place_of
from stepwise._execute import execute_async
from stepwise._going_on import go_on_at, go_on_from_the_top, record_resumed
from stepwise._graph_checkpoints import CheckpointManager, ExecutorType, GraphCheckpoint
from stepwise._graph_model import Graph
from stepwise._graph_result import ExecutionResult
from stepwise._graph_tokens import Token, Written, copied
from stepwise._graph_visits import Visits
from stepwise._graph_walk import Answer, Paused, Walk
from stepwise._journal import facts_of, holds, seal_for
from stepwise._lifecycle import Invocation, Recall, open_run
from stepwise._notices import count, notice
from stepwise._opened import NothingGiven, Opened
from stepwise._process import memory as process
from stepwise._records import RunFacts
from stepwise._resume import Body
from stepwise._seal import DamagedError
from stepwise.errors import ConfigurationError
from stepwise.rewrite import Source

__all__ = ["Execution", "session_for"]

_PAUSE = "graph/pause"


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
        """Begin, or go on."""
        self.data = dict(self.given or {})
        visit = self.session.get("paused_visit") if self.given is not None else None
        self.answer = Answer(self.data, visit) if visit else None
        if self.manager is None or not self.manager.config.enabled:
            return await self._unrecorded()
        opened = self._open(self.manager)
        if isinstance(opened, Recall):
            result = ExecutionResult(**opened.value)
        else:
            result = await self._recorded(opened, self.manager)
        if result.status == "completed" and not self.session.get("run_id"):
            process.completed(self.manager.storage.url, self._base, result.run_id)
        if self.answer is not None and not self.answer.used and not isinstance(opened, Recall):
            notice(
                f"{result.run_id}: that pause was answered before, and what was answered then "
                "counts; look at paused_at before you answer"
            )
        return result

    def beginning(self) -> Written:
        """What a new execution begins with: a memory, or a state."""
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

    def _open(self, manager: CheckpointManager) -> Recall | Opened[Body]:
        store = manager.storage
        digest = digest_of(self.goal, self.data)
        function = next((n.function for n in self.graph.nodes if n.function is not None), None)
        module = getattr(function, "__module__", None) or __name__
        name = f"{_identity.place_of(module)}:{self.graph.name}"
        run_id = self.session.get("run_id", "")
        explicit = bool(run_id)
        if not explicit:
            self._base = run_id = _identity.derived_id(name, self.graph.name, digest)
            ordinal = process.ordinal(store.url, run_id)
            run_id += f"-{ordinal + 1}" if ordinal else ""
        facts = facts_of(store, seal_for(store), run_id)
        if facts is not None:
            self._check_recovery(facts, manager)
            if self.given is None or self.session.keys() - {"run_id"}:
                # It brings no input, but a state or an answer.
                digest = facts.digest
        return open_run(
            Invocation(
                name=name,
                label=self.graph.name,
                function=Execution.run,
                source=Source("", "", 0, []),
                code=self.graph.fingerprint,
                bound={"goal": self.goal, "input_data": self.data},
                instance=None,
                digest=digest,
                store=store,
                run_id=run_id,
                explicit=explicit,
                fsync=True,
            )
        )

    def _check_recovery(self, facts: RunFacts, manager: CheckpointManager) -> None:
        if manager.config.auto_recovery or facts.status == "completed" or self.session:
            return
        raise ConfigurationError(
            f"run {facts.run_id!r} is unfinished, and auto_recovery=False. To go on with it, call "
            "execute(..., session_state={'run_id': " + repr(facts.run_id) + "}), or with the "
            "to_session_state() of a checkpoint; to start over: stepwise forget " + facts.run_id
        )

    async def _recorded(self, opened: Opened[Any], manager: CheckpointManager) -> ExecutionResult:
        body = _Body(self, opened, manager)
        try:
            value = await execute_async(opened.executing(body))
        except Paused:
            return body.result()
        except Exception as error:
            return body.result(error)
        return ExecutionResult(**value)


def begin(walk: Walk, beginning: Written) -> None:
    """Be where an execution begins."""
    if "frontier" in beginning:
        walk.restore(beginning)
    else:
        walk.begin(beginning["memory"])


def result_of(
    walk: Walk, run_id: str, error: Exception | None, recovered: int | None = None
) -> ExecutionResult:
    """What came of an execution that has ended, or paused."""
    paused = walk.paused_at.node if walk.paused_at is not None and error is None else None
    status: Literal["completed", "failed", "paused"] = "paused" if paused else "completed"
    retries = walk.retries
    return ExecutionResult(
        success=error is None,
        status="failed" if error is not None else status,
        run_id=run_id,
        output=walk.memory,
        error=f"{type(error).__name__}: {error}" if error is not None else None,
        exception=error,
        path=walk.path,
        steps_executed=len(walk.path),
        paused_at=paused,
        session_state=session_of(walk, run_id) if paused or error is not None else {},
        recovered_from_step=recovered,
        total_tokens=walk.tokens,
        total_latency_ms=walk.latency_ms,
        total_retries=sum(retries.values()),
        retry_details=retries,
        nodes_with_failures=walk.failures,
    )


def session_of(walk: Walk, run_id: str) -> Written:
    """What another call goes on with."""
    paused = walk.paused_at
    return {
        **walk.state(),
        "run_id": run_id,
        "execution_path": walk.path,
        "resume_from": next(iter(walk.next_nodes), None),
        "paused_at": paused.node if paused is not None else None,
        "paused_visit": paused.key if paused is not None else None,
    }


class _Body(NothingGiven):
    """The body of a run: the walk, which goes on at the newest checkpoint.

    Its nodes get copies, so that they change nothing that it was given.
    """

    def __init__(self, call: Execution, opened: Opened[Any], manager: CheckpointManager) -> None:
        self._call, self._manager = call, manager
        self._active, self._is_new = opened.active, opened.is_new
        self._recovered: int | None = None
        self._visits = Visits(call.graph, call.goal, call.runtime, opened.active)
        self._walk = Walk(call.graph, self._visits, call.answer, self._visited)

    async def arun(self) -> Any:
        """Visit the nodes that have not been visited."""
        self._active.begun, self._active.idle = True, 1  # visits are made in tasks of their own
        if self._is_new or not self._recover():
            begin(self._walk, await self._visits.beginning(self._beginning))
        try:
            await self._walk.run()
        except Paused:
            self._note_pause()
            raise
        return dict(vars(self.result()))

    def result(self, error: Exception | None = None) -> ExecutionResult:
        """What came of it."""
        return result_of(self._walk, self._active.run_id, error, self._recovered)

    def _beginning(self) -> Written:
        if not self._is_new and self._call.answer is not None:
            raise ConfigurationError(
                f"the records of how run {self._active.run_id!r} began cannot be read; call it "
                "with its first input before you answer"
            )
        return self._call.beginning()

    # -- going on --------------------------------------------------------------------------------

    def _recover(self) -> bool:
        """Be where the newest checkpoint was taken; what is recorded since answers its visits."""
        active = self._active
        checkpoint = self._newest()
        if checkpoint is not None:
            self._walk.restore(checkpoint.to_session_state())
        self._recovered = step = checkpoint.step_number if checkpoint is not None else 0
        if checkpoint is not None:
            told = f"goes on after {count(step, 'node')}"
        else:
            answered = sum(each.answers for each in active.pool.all)
            told = f"goes on from its beginning, {count(answered, 'step')} answered by the journal"
        fingerprint = self._call.graph.fingerprint
        if active.facts.code != fingerprint:
            notice(
                f"{active.run_id}: the graph is not the one that it began with; what is done stays "
                "done, and what follows is the new graph"
            )
        record_resumed(active, told, step, code=fingerprint)
        notice(f"{active.run_id} {told}")
        return checkpoint is not None

    def _newest(self) -> GraphCheckpoint | None:
        active, journal = self._active, self._active.journal
        for checkpoint, place in self._manager.newest_first(active.run_id):
            if place is None:  # taken beside a node in progress: records from before are needed
                continue
            if holds(journal.store, journal.seal, journal.run_id, place.start):
                go_on_at(active, place, journal.load(place.start))
                self._visits.since = place.start
                return checkpoint
            notice(
                f"{active.run_id}: the journal before its checkpoint after "
                f"{count(checkpoint.step_number, 'node')} is damaged; the checkpoint is left out"
            )
        go_on_from_the_top(active)
        return None

    # -- checkpoints -----------------------------------------------------------------------------

    def _visited(self, walk: Walk, token: Token) -> None:
        config = self._manager.config
        if not self._manager.should_checkpoint(walk.steps):
            return
        if config.keep == 1 and not walk.quiet:
            return  # it would take the place of one at which the run can go on
        context = session_of(walk, self._active.run_id)
        memory, path = context.pop("memory"), context.pop("execution_path")
        graph = self._call.kind is ExecutorType.GRAPH
        checkpoint = GraphCheckpoint(
            id=os.urandom(16).hex(),
            run_id=self._active.run_id,
            executor_type=self._call.kind,
            current_node_id=token.node if graph else None,
            current_step_id=None if graph else token.node,
            next_node_id=context["resume_from"],
            memory_snapshot=memory,
            execution_path=path,
            step_number=len(path),
            total_tokens=walk.tokens,
            total_latency_ms=walk.latency_ms,
            context=context,
        )
        place = place_of(self._active) if walk.quiet else None
        if self._manager.save_if_possible(checkpoint, place) and place is not None:
            self._visits.since = self._active.journal.position

    def _note_pause(self) -> None:
        token = self._walk.paused_at
        assert token is not None
        pause = {"at": token.node, "visit": token.key}
        self._active.journal.put(_PAUSE, pause, b"", durable=True)


def session_for(
    manager: CheckpointManager, run_id: str, goal: Any, given: Mapping[str, Any] | None
) -> Written:
    """The session of a run by its id: if ``given`` is not its input, it answers its last pause."""
    session: Written = {"run_id": run_id}
    store, seal = manager.storage, seal_for(manager.storage)
    facts = facts_of(store, seal, run_id)
    if given is None or facts is None or facts.digest == digest_of(goal, given):
        return session
    try:
        pause = seal.open(f"{_PAUSE}/{run_id}", store.get(run_id, _PAUSE) or b"").header
    except DamagedError:  # it never paused: the input is another one
        return session
    return {**session, "paused_at": pause["at"], "paused_visit": pause["visit"]}


def digest_of(goal: Any, given: Mapping[str, Any]) -> str:
    """What tells two executions of a graph apart."""
    return _digest.combine(_digest.digest(goal), _digest.digest(dict(given)))
