"""The run behind the execution of a graph: which one it is, where it resumes, how it ends."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepwise._calls.options import check_values
from stepwise._execution.process_memory import memory as process
from stepwise._identity import identity
from stepwise._identity.held_parts import HeldParts
from stepwise._identity.module_names import file_of, other_names
from stepwise._journal.journal import facts_of, holds, seal_for
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import DamagedError
from stepwise._rewrite import Source
from stepwise._runtime.messages import count, notice
from stepwise._values import digest as _digest
from stepwise._values.preview import error_text
from stepwise._workflows.execute import execute_async
from stepwise._workflows.opened import NothingGiven, Opened
from stepwise._workflows.opening import Invocation, Recall, open_run
from stepwise._workflows.renamed import is_of_file
from stepwise._workflows.resume import Body
from stepwise._workflows.takeover import go_on_at, go_on_from_the_top, is_undone, record_resumed
from stepwise.agent._checkpoints import place_of
from stepwise.errors import ConfigurationError, DigestError
from stepwise.graph._checkpoints import CheckpointManager, ExecutorType, GraphCheckpoint
from stepwise.graph._model import Graph
from stepwise.graph._result import ExecutionResult
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
        opened = self._open(self.manager)
        if isinstance(opened, Recall):
            result = ExecutionResult(**opened.value)
        else:
            result = await self._recorded(opened, self.manager)
        if result.status == "completed" and not self.session.get("run_id"):
            process.completed(self.manager.storage.url, result.run_id, result.run_id)
        if self.answer is not None and not self.answer.used and not isinstance(opened, Recall):
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

    def _open(self, manager: CheckpointManager) -> Recall | Opened[Body]:
        store = manager.storage
        digest = digest_of(self.goal, self.data)
        self._parts = parts = HeldParts(self._functions(), set(self.graph.ignore))
        function = next((n.function for n in self.graph.nodes if n.function is not None), None)
        module = getattr(function, "__module__", None) or __name__
        self._module = module
        name = f"{identity.place_of(module)}:{self.graph.name}"
        run_id = self.session.get("run_id", "")
        explicit = bool(run_id)
        if not explicit:
            names = name, *other_names(module, self.graph.name)
            run_id = self._derived(names, digest)
        facts = facts_of(store, seal_for(store), run_id)
        if facts is not None:
            self._check_recovery(facts, manager)
            if self.given is None or self.session.keys() - {"run_id"}:
                # The call brings a state or an answer instead of an input.
                digest = facts.digest
        return open_run(
            Invocation(
                name=name,
                label=self.graph.name,
                function=Execution.run,
                source=Source(file_of(module), "", 0, []),
                other_names=other_names(module, self.graph.name),
                file=file_of(module),
                code=self.graph.fingerprint,
                bound={"goal": self.goal, "input_data": self.data},
                instance=None,
                digest=digest,
                parts=parts,
                store=store,
                run_id=run_id,
                explicit=explicit,
                fsync=True,
            )
        )

    def _functions(self) -> dict[str, Any]:
        functions = {f"node {node.id!r}": node.function for node in self.graph.nodes}
        for edge in self.graph.edges:
            functions[f"edge {f'{edge.source} -> {edge.target}'!r}"] = edge.when
        return {where: function for where, function in functions.items() if function is not None}

    def _derived(self, names: Sequence[str], digest: str) -> str:
        """The id of this run: the first one of this input that was not handed out here.

        It is made of the graph's name and the input.  Where that run is another's, whose nodes
        hold something else, it is made of what they hold, too.
        """
        assert self.manager is not None
        url, label = self.manager.storage.url, self.graph.name
        for nth in itertools.count(1):
            number = f"-{nth}" if nth > 1 else ""
            found = []
            for digests in dict.fromkeys([(digest,), (digest, *self._parts.digests())]):
                ids = [identity.derived_id(name, label, *digests) + number for name in names]
                found.append(self._known(names, ids))
            # An existing run comes first, then an id that no other run has.
            _, run_id = min(found, key=lambda each: _ORDER.index(each[0]))
            if not process.ordinal(url, run_id):
                return run_id
        raise AssertionError

    def _known(self, names: Sequence[str], ids: Sequence[str]) -> tuple[str, str]:
        """The one of these ids that the run has, else the first; before it, whose that is."""
        assert self.manager is not None
        store, whose = self.manager.storage, "nobody's"
        for name, run_id in zip(names, ids, strict=True):
            facts = facts_of(store, seal_for(store), run_id) if store.head(run_id) else None
            if facts is None:
                continue
            if self._parts.differing(facts.parts):
                whose = "another's" if name == names[0] else whose
            elif name == names[0] or is_of_file(
                store, seal_for(store), facts, names, file_of(self._module)
            ):
                return "its", run_id
        return whose, ids[0]

    def _check_recovery(self, facts: RunFacts, manager: CheckpointManager) -> None:
        if manager.config.auto_recovery or facts.status == "completed" or self.session:
            return
        raise ConfigurationError(
            f"run {facts.run_id!r} is unfinished, and auto_recovery=False. To resume it, call "
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
        finally:
            self._parts.note_assigned()
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
        session_state=session_of(walk, run_id) if paused or error is not None else {},
        recovered_from_step=recovered,
        total_tokens=walk.tokens,
        total_latency_ms=walk.latency_ms,
        total_retries=sum(retries.values()),
        retry_details=retries,
        nodes_with_failures=walk.failures,
    )


def session_of(walk: Walk, run_id: str) -> Written:
    """Return the session state from which another call continues."""
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
    """The body of a run: the walk, which resumes at the newest checkpoint.

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
        self._active.begun, self._active.idle = True, 1  # visits run in their own tasks
        if self._is_new or not self._recover():
            begin(self._walk, await self._visits.beginning(self._beginning))
        try:
            await self._walk.run()
        except Paused:
            self._note_pause()
            raise
        return dict(vars(self.result()))

    def result(self, error: Exception | None = None) -> ExecutionResult:
        """Return the result of the execution."""
        return result_of(self._walk, self._active.run_id, error, self._recovered)

    def _beginning(self) -> Written:
        if not self._is_new and self._call.answer is not None:
            raise ConfigurationError(
                f"the records of how run {self._active.run_id!r} began cannot be read; call it "
                "with its first input before you answer"
            )
        return self._call.beginning()

    # -- resuming --------------------------------------------------------------------------------

    def _recover(self) -> bool:
        """Move to the newest checkpoint; records after it answer the visits."""
        active = self._active
        checkpoint = self._newest()
        if checkpoint is not None:
            self._walk.restore(checkpoint.to_session_state())
        self._recovered = step = checkpoint.step_number if checkpoint is not None else 0
        if checkpoint is not None:
            told = f"resumes after {count(step, 'node')}"
        else:
            answered = sum(each.answers for each in active.pool.all)
            told = f"resumes from its beginning, {count(answered, 'step')} answered by the journal"
        fingerprint = self._call.graph.fingerprint
        if active.facts.code != fingerprint:
            notice(
                f"{active.run_id}: the graph has changed since the run began; done nodes stay "
                "done, and the new graph decides what follows"
            )
        record_resumed(active, told, step, code=fingerprint)
        notice(f"{active.run_id} {told}")
        return checkpoint is not None

    def _newest(self) -> GraphCheckpoint | None:
        active, journal = self._active, self._active.journal
        for checkpoint, place in self._manager.newest_first(active.run_id):
            if place is None:  # taken beside a node in progress: earlier records are needed
                continue
            if holds(journal.store, journal.seal, journal.run_id, place.start):
                entries = journal.load(place.start)
                if is_undone(place, entries):
                    continue
                go_on_at(active, place, entries)
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
            return  # it would replace a checkpoint at which the run can resume
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
    store, seal = manager.storage, seal_for(manager.storage)
    facts = facts_of(store, seal, run_id)
    if given is None or facts is None or facts.digest == digest_of(goal, given):
        return session
    try:
        pause = seal.open(f"{_PAUSE}/{run_id}", store.get(run_id, _PAUSE) or b"").header
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
