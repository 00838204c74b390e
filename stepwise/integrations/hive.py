"""For users of adenhq/hive: its graph executor, recorded, and its checkpoint store, durable.

:func:`executor_class` gives a subclass of hive's ``GraphExecutor`` that records each visit of a
node, and each result of a tool when it returns: killed and called again, it repeats neither.
:class:`HiveCheckpointStore` takes the place of hive's ``CheckpointStore``.  hive's package
``framework`` is imported when one of them is asked for.
"""

from __future__ import annotations

import functools
from typing import Any, cast

from stepwise._runtime import settings
from stepwise._runtime.options import check_values
from stepwise._values import digest as _digest
from stepwise._workflows import host
from stepwise._workflows.host import HostedRun, HostProgram, Recall
from stepwise.errors import ConfigurationError
from stepwise.integrations._hive_execution import (
    Continued,
    HiveExecution,
    RecordedNode,
    RecordedValidator,
    Session,
    UnfinishedError,
    current_execution,
    recorded_tools,
    session_of,
    structure,
)
from stepwise.integrations._hive_store import HiveCheckpointStore, hive_module
from stepwise.stores import Store, open_store

__all__ = ["HiveCheckpointStore", "executor_class"]

CheckpointStore = HiveCheckpointStore  # hive's name, for programs that take it from here


@functools.cache
def executor_class() -> Any:
    """Return hive's ``GraphExecutor``, recorded: it takes the same arguments, and these by name.

    - ``store``: a URL, a path or a store; by default the configured one, ``~/.stepwise``.
    - ``run_id``: by default made of the graph, the goal, the input and the session state.
    - ``side_effects``: whether repeating a tool would double something outside, so that a process
      that dies inside it leaves it in doubt.

    Raises:
        ConfigurationError: hive's package ``framework`` is not there, or of a version whose
            executor cannot be recorded.
    """
    base = hive_module("graph.executor").GraphExecutor
    if "_get_node_implementation" not in base.execute.__code__.co_names:
        raise ConfigurationError(
            "this hive is v0.9.0 or later: its executor starts worker agents, which look up nodes "
            "themselves. None of their work could be recorded, and after a crash every side effect "
            "would be repeated. Install hive v0.5.1 to v0.8.0, or write the agent with @workflow, "
            "@step and @tool"
        )
    return type("RecordedGraphExecutor", (_RecordingMixin, base), {"__module__": __name__})


class _RecordingMixin:
    """The mixin that precedes hive's own class."""

    def __init__(
        self,
        *args: Any,
        store: Any = None,
        run_id: str | None = None,
        side_effects: bool = True,
        **kwargs: Any,
    ) -> None:
        if run_id is not None:
            check_values("GraphExecutor", run_id=run_id)
        cast("Any", super()).__init__(*args, **kwargs)
        self._store, self._run_id, self._side_effects = store, run_id, side_effects
        this: Any = self
        if this.tool_executor is not None:
            this.tool_executor = recorded_tools(this.tool_executor)
        if getattr(this, "validator", None) is not None:
            this.validator = RecordedValidator(this.validator)

    async def execute(
        self,
        graph: Any,
        goal: Any,
        input_data: Any = None,
        session_state: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Execute a graph, or resume where a process was killed or an execution stopped.

        Args:
            session_state: that of a result that failed or was paused by ``request_pause()``
                continues its run: what is done is answered, and what was changed in its
                ``"memory"``, or in ``input_data``, is in the memory from there on.

        Raises:
            StepInDoubtError: a tool may or may not have happened.
            RunBusyError: the run is being executed.
            ConfigurationError: the store does not hold the run that the session state names.
        """
        store = open_store(self._store if self._store is not None else settings.store())
        this: Any = self
        going_on = session_of(store, session_state, input_data)
        if going_on is not None:
            input_data, session_state = going_on.input_data, going_on.session_state
            if hasattr(this, "_pause_requested"):
                this._pause_requested.clear()  # the request was for the paused execution
        run, base = self._open(store, graph, goal, input_data, session_state, going_on)
        if isinstance(run, Recall):
            result = run.value
        else:
            call = functools.partial(
                cast("Any", super()).execute,
                graph,
                goal,
                input_data,
                session_state,
                *args,
                **kwargs,
            )
            session = Session(run, input_data, session_state, going_on)
            execution = HiveExecution(run, call, graph, session, side_effects=self._side_effects)
            try:
                result = await run.execute(execution.execute)
            except UnfinishedError as unfinished:
                return session.noted(unfinished.result, execution.done)
        if self._run_id is None:
            host.count_completed(store, base)
        return result

    def _open(
        self,
        store: Store,
        graph: Any,
        goal: Any,
        input_data: Any,
        session_state: Any,
        going_on: Continued | None,
    ) -> tuple[Recall | HostedRun, str]:
        """Take over the run of a call; return it, and the id derived from the call."""
        # A goal holds the time when it was made, so only its id and text count.
        told = (goal.id, getattr(goal, "description", ""), input_data, session_state)
        digest, name = _digest.digest(told), f"hive:{graph.id}"
        base = host.derived_id(name, graph.id, digest)
        ordinal = host.completed_here(store, base)
        run_id = going_on.run_id if going_on is not None else self._run_id
        run = host.open_run(
            HostProgram(name, graph.id, _RecordingMixin.execute, code=structure(graph)),
            store,
            run_id or (f"{base}-{ordinal + 1}" if ordinal else base),
            {"input_data": input_data},
            digest,
            explicit=run_id is not None,
        )
        return run, base

    def _build_context(self, node_spec: Any, memory: Any, *args: Any, **kwargs: Any) -> Any:
        execution = current_execution()
        if execution is not None:
            execution.change(memory)
        return cast("Any", super())._build_context(node_spec, memory, *args, **kwargs)

    def _get_node_implementation(self, node_spec: Any, *args: Any, **kwargs: Any) -> Any:
        node = cast("Any", super())._get_node_implementation(node_spec, *args, **kwargs)
        return RecordedNode(node, node_spec)
