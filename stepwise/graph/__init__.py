"""Graphs of functions with checkpoints, by the classic names.

For who arrives with nodes and edges instead of a workflow function.  A :class:`GraphExecutor` with
a :class:`CheckpointManager` records each node before the next one starts: killed anywhere and
called again, it resumes where it stopped.  Without a manager nothing is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepwise._runtime import settings
from stepwise._runtime.options import check_kind, check_takes, check_values
from stepwise.errors import ConfigurationError, StepwiseError
from stepwise.graph._checkpoints import (
    CheckpointConfig,
    CheckpointManager,
    ExecutorType,
    GraphCheckpoint,
)
from stepwise.graph._execution import Execution, check_session, session_for
from stepwise.graph._model import Edge, ExecutionResult, Graph, Memory, Node

__all__ = [
    "AgentRunner",
    "CheckpointConfig",
    "CheckpointManager",
    "Edge",
    "ExecutionResult",
    "ExecutorType",
    "FlexibleGraphExecutor",
    "Graph",
    "GraphCheckpoint",
    "GraphExecutor",
    "Memory",
    "Node",
]


class GraphExecutor:
    """Executes graphs.

    Args:
        runtime: any object; nodes find it as ``memory.runtime``.
        checkpoint_manager: where executions are recorded; without one nothing is written.
    """

    executor_type = ExecutorType.GRAPH

    def __init__(
        self, runtime: Any = None, checkpoint_manager: CheckpointManager | None = None
    ) -> None:
        if checkpoint_manager is not None:
            check_kind(
                "checkpoint_manager",
                checkpoint_manager,
                CheckpointManager,
                "write CheckpointManager('disk:graphs', CheckpointConfig(...))",
            )
        self.runtime = runtime
        self.checkpoint_manager = checkpoint_manager

    async def execute(
        self,
        graph: Graph,
        goal: Any,
        input_data: Mapping[str, Any] | None = None,
        session_state: Mapping[str, Any] | None = None,
    ) -> ExecutionResult:
        """Execute a graph, or resume where an execution was cut off, failed or paused.

        With a checkpoint manager the same graph, goal and input are the same run: one that was cut
        off goes on, one that has completed gives what it gave.

        Args:
            goal: what it is for; nodes find it as ``memory.goal``.
            input_data: what the memory begins with; at a pause the human's answer.
            session_state: that of a paused or failed result, or of a checkpoint; or
                ``{"run_id": ...}`` to give the run an id.

        Returns:
            the outcome, also of a node that failed, whose exception is not raised here.

        Raises:
            RunConflictError: the run of that id has another graph, goal or input.
            RunBusyError: it is being executed.
            StepInDoubtError: a tool with side effects may or may not have happened.
        """
        check_kind(
            "the graph to execute", graph, Graph, "write Graph([Node(...), ...], [Edge(...)])"
        )
        if input_data is not None:
            check_kind("input_data", input_data, Mapping, "write {'name': value}")
        if session_state is not None:
            check_kind("session_state", session_state, Mapping, "write {'run_id': ...}")
            check_session(session_state)
        call = Execution(
            graph=graph,
            goal=goal,
            runtime=self.runtime,
            manager=self.checkpoint_manager,
            kind=self.executor_type,
            given=input_data,
            session=dict(session_state or {}),
        )
        return await call.run()


Judge = Callable[[Memory], Any]
Planner = Callable[[Memory], Any]
_VERDICTS = ("accept", "retry", "replan", "escalate")


class FlexibleGraphExecutor(GraphExecutor):
    """Executes plans: after each step a judge decides, and a planner may make another plan.

    Judge and planner are nodes as well, so that what they decide is recorded.

    Args:
        runtime, checkpoint_manager: as for :class:`GraphExecutor`.
        judge: plain or ``async``; gets the memory, in which ``"step"`` is the step that was done,
            and returns ``"accept"``, ``"retry"``, ``"replan"`` or ``"escalate"``: a human is then
            asked before the step is done again.  Without a judge every step is accepted.
        planner: plain or ``async``; gets the memory and returns the ids of the steps to do, in
            order.  Without one they are all done, in the order in which they are given.
        max_retries_per_step: how often the judge may have a step done again.
        max_steps: how many visits an execution may take, of the judge and the planner, too.
    """

    executor_type = ExecutorType.FLEXIBLE

    def __init__(
        self,
        runtime: Any = None,
        checkpoint_manager: CheckpointManager | None = None,
        *,
        judge: Judge | None = None,
        planner: Planner | None = None,
        max_retries_per_step: int = 3,
        max_steps: int = 1000,
    ) -> None:
        super().__init__(runtime, checkpoint_manager)
        for name, function in (("judge", judge), ("planner", planner)):
            if function is not None:
                check_takes(name, function, "memory")
        check_values(
            type(self).__name__, max_retries_per_step=max_retries_per_step, max_steps=max_steps
        )
        self.judge = judge
        self.planner = planner
        self.max_retries_per_step = max_retries_per_step
        self.max_steps = max_steps

    async def execute(  # type: ignore[override]
        self,
        plan: Iterable[Node],
        goal: Any,
        input_data: Mapping[str, Any] | None = None,
        session_state: Mapping[str, Any] | None = None,
    ) -> ExecutionResult:
        """Execute steps; see :meth:`GraphExecutor.execute`.

        Args:
            plan: the steps that there are.  In the memory ``"plan"`` is what is left to do.
        """
        graph = self._compile(tuple(plan))
        return await super().execute(graph, goal, input_data, session_state)

    def _compile(self, steps: tuple[Node, ...]) -> Graph:
        """The graph that does it: all that decides is in the memory, hence recorded."""
        for step in steps:
            check_kind("each step of a plan", step, Node, "write Node('name', function)")
            if step.id in ("planner", "judge", "human"):
                raise ConfigurationError(
                    f"a step of a plan cannot be called {step.id!r}: the executor has its own node "
                    "of that name. Give the step another id"
                )
        edges = [Edge("judge", "planner", when=lambda memory: memory["verdict"] == "replan")]
        edges.append(Edge("judge", "human", when=lambda memory: memory["verdict"] == "escalate"))
        for step in steps:
            is_next = _is_next(step.id)
            edges += [Edge("planner", step.id, when=is_next), Edge(step.id, "judge")]
            edges += [
                Edge("judge", step.id, when=is_next),
                Edge("human", step.id, when=_first(step)),
            ]
        planner = Node("planner", self._planned([step.id for step in steps]))
        nodes = [planner, *steps, Node("judge", self._judged), Node("human", pause=True)]
        return Graph(nodes, edges, name="plan", max_steps=self.max_steps)

    def _planned(self, ids: list[str]) -> Callable[[Memory], Any]:
        async def plan(memory: Memory) -> dict[str, Any]:
            planned = ids if self.planner is None else await _settled(self.planner(memory))
            unknown = [each for each in planned if each not in ids]
            if unknown:
                raise ConfigurationError(
                    f"the planner planned {unknown[0]!r}, which is not a step; there are {ids}"
                )
            return {"plan": list(planned), "verdict": None, "tries": 0}

        return plan

    async def _judged(self, memory: Memory) -> None:
        memory["step"] = step = memory["plan"][0]
        verdict = "accept" if self.judge is None else await _settled(self.judge(memory))
        if verdict not in _VERDICTS:
            raise ConfigurationError(
                f"the judge returned {verdict!r}; it must return one of {', '.join(_VERDICTS)}"
            )
        if verdict == "retry":
            memory["tries"] += 1
            if memory["tries"] > self.max_retries_per_step:
                verdict = "replan"
        elif verdict == "accept":
            memory["plan"], memory["tries"] = memory["plan"][1:], 0
        if verdict == "replan" and self.planner is None:
            raise StepwiseError(
                f"step {step!r} was not accepted ({memory.get('feedback', 'no feedback')}), and "
                "there is no planner to make another plan"
            )
        memory["verdict"] = verdict


def _is_next(step: str) -> Callable[[Memory], bool]:
    def is_next(memory: Memory) -> bool:
        decided = memory["verdict"] in (None, "accept", "retry")
        return decided and memory["plan"][:1] == [step]

    return is_next


def _first(step: Node) -> Callable[[Memory], bool]:
    def is_first(memory: Memory) -> bool:
        return bool(memory["plan"][:1] == [step.id])

    return is_first


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class AgentRunner:
    """Runs one graph, again and again if need be.

    Args:
        graph: to execute.
        checkpoint_config: when checkpoints are saved; given, or with a ``storage``, runs are
            recorded, and otherwise nothing is written.
        storage: a URL, a path or a store; by default the configured one, ``~/.stepwise``.
        goal: what it is for.
        runtime: for the nodes, as ``memory.runtime``.
    """

    def __init__(
        self,
        graph: Graph,
        checkpoint_config: CheckpointConfig | None = None,
        storage: Any = None,
        *,
        goal: Any = "",
        runtime: Any = None,
    ) -> None:
        check_kind("graph", graph, Graph, "write Graph([Node(...), ...], [Edge(...)])")
        if checkpoint_config is not None:
            way = "a CheckpointManager goes to GraphExecutor; here its storage and config are given"
            check_kind("checkpoint_config", checkpoint_config, CheckpointConfig, way)
        manager = None
        if checkpoint_config is not None or storage is not None:
            where = storage if storage is not None else settings.store()
            manager = CheckpointManager(where, checkpoint_config)
        self.graph = graph
        self.goal = goal
        self.checkpoint_manager = manager
        self.executor = GraphExecutor(runtime, manager)

    async def run(
        self, input_data: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> ExecutionResult:
        """Execute the graph, or resume the run of that id.

        Args:
            input_data: what the memory begins with.  For a run that paused, anything but its first
                input is the human's answer: look at ``paused_at`` before you give one.
            run_id: by default made of the graph, the goal and the input.
        """
        session = None
        if run_id is not None:
            check_values("run", run_id=run_id)
            session = {"run_id": run_id}
            if self.checkpoint_manager is not None and self.checkpoint_manager.config.enabled:
                session = session_for(self.checkpoint_manager, run_id, self.goal, input_data)
        return await self.executor.execute(self.graph, self.goal, input_data, session)
