"""Graphs of functions with checkpoints, by the classic names.

For users of nodes and edges instead of a workflow function.  A :class:`GraphExecutor` with a
:class:`CheckpointManager` records each node before the next one starts.  An execution killed
anywhere resumes where it stopped when it is called again.  Without a manager nothing is written.
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
    """An executor of graphs.

    Args:
        runtime: any object; nodes find it as ``memory.runtime``.
        checkpoint_manager: records executions; without a manager nothing is written.
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
        """Execute a graph, or resume an execution that was cut off, failed or paused.

        With a checkpoint manager the same graph, goal and input are the same run.  A run that was
        cut off resumes; a completed run returns its recorded result.

        Args:
            graph: the graph to execute.
            goal: the purpose of the execution; nodes find it as ``memory.goal``.
            input_data: the initial content of the memory; at a pause, the human's answer.
            session_state: the session state of a paused or failed result, or of a checkpoint; or
                ``{"run_id": ...}`` to give the run an id.

        Returns:
            the outcome, even if a node failed: its exception is not raised here.

        Raises:
            RunConflictError: the run of that id has another graph, goal or input.
            RunBusyError: the run is being executed.
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
    """An executor of plans: a judge decides after each step, and a planner may make a new plan.

    Judge and planner are nodes as well, so their decisions are recorded.

    Args:
        runtime, checkpoint_manager: as for :class:`GraphExecutor`.
        judge: plain or ``async``; gets the memory, in which ``"step"`` is the finished step.  It
            returns ``"accept"``, ``"retry"``, ``"replan"`` or ``"escalate"``, which asks a human
            before the step is repeated.  Without a judge every step is accepted.
        planner: plain or ``async``; gets the memory and returns the ids of the steps to do, in
            order. Without a planner all steps are done, in the given order.
        max_retries_per_step: how often the judge may have a step repeated.
        max_steps: how many visits an execution may make, judge and planner included.
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
        """Execute the steps of a plan; see :meth:`GraphExecutor.execute`.

        Args:
            plan: the available steps.  In the memory, ``"plan"`` lists the steps left to do.
        """
        graph = self._compile(tuple(plan))
        return await super().execute(graph, goal, input_data, session_state)

    def _compile(self, steps: tuple[Node, ...]) -> Graph:
        """Return the graph that executes the plan; decisions are in the memory, hence recorded."""
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
    """A runner of one graph, as often as needed.

    Args:
        graph: the graph to execute.
        checkpoint_config: when checkpoints are saved.  With a config or a ``storage`` runs are
            recorded; otherwise nothing is written.
        storage: a URL, a path or a store; by default the configured one, ``~/.stepwise``.
        goal: the purpose of the executions.
        runtime: any object for the nodes, as ``memory.runtime``.
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
            input_data: the initial content of the memory.  For a paused run, any input other than
                its first one is the human's answer: look at ``paused_at`` before you answer.
            run_id: by default derived from the graph, the goal and the input.
        """
        session = None
        if run_id is not None:
            check_values("run", run_id=run_id)
            session = {"run_id": run_id}
            if self.checkpoint_manager is not None and self.checkpoint_manager.config.enabled:
                session = session_for(self.checkpoint_manager, run_id, self.goal, input_data)
        return await self.executor.execute(self.graph, self.goal, input_data, session)
