"""For users of adenhq/hive: its graph executor, recorded, and its checkpoint store, durable.

:func:`executor_class` gives a subclass of hive's ``GraphExecutor`` that records each visit of a
node, and each result of a tool when it returns: killed and called again, it repeats neither.
:class:`CheckpointStore` takes the place of hive's class of that name.  hive's package ``framework``
is imported when one of them is asked for.

Imports: lifecycle, execute, steps, and what they import.
"""

from __future__ import annotations

import functools
from typing import Any, cast

from stepwise import _config, _digest, _identity
from stepwise._execute import execute_async
from stepwise._lifecycle import Invocation, Recall, open_run
from stepwise._process import memory as process
from stepwise.integrations._hive_execution import (
    HiveExecution,
    RecordedNode,
    RecordedValidator,
    UnfinishedError,
    recorded_tools,
)
from stepwise.integrations._hive_store import CheckpointStore, hive_module
from stepwise.rewrite import Source
from stepwise.stores import open_store

__all__ = ["CheckpointStore", "executor_class"]


@functools.cache
def executor_class() -> Any:
    """Hive's ``GraphExecutor``, recorded: it takes the same arguments, and these by name.

    Args of the class:
        store: a URL, a path or a store; by default the configured one, ``~/.stepwise``.
        run_id: by default made of the graph, the goal, the input and the session state.
        side_effects: whether repeating a tool would double something outside, so that a process
            that dies inside it leaves it in doubt.

    Raises:
        ConfigurationError: hive's package ``framework`` is not there.
    """
    base = hive_module("graph.executor").GraphExecutor
    return type("RecordedGraphExecutor", (_Recorded, base), {"__module__": __name__})


def _structure(graph: Any) -> str:
    """Digest of what leads where; prompts and the like are not part of it."""

    def facts(spec: Any, names: str) -> list[str]:
        return [str(getattr(spec, name, "")) for name in names.split()]

    nodes = [facts(each, "id node_type input_keys output_keys") for each in graph.nodes]
    edges = [
        facts(each, "source target condition condition_expr priority")
        for each in getattr(graph, "edges", ())
    ]
    return _digest.digest([facts(graph, "entry_node terminal_nodes pause_nodes"), nodes, edges])


class _Recorded:
    """What goes before hive's own class."""

    def __init__(
        self,
        *args: Any,
        store: Any = None,
        run_id: str | None = None,
        side_effects: bool = True,
        **kwargs: Any,
    ) -> None:
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
        """Execute a graph, or go on where a process was killed or an execution failed.

        Raises:
            StepInDoubtError: a tool may or may not have happened.
            RunOwnedError: the run is being executed.
        """
        store = open_store(self._store if self._store is not None else _config.store())
        # A goal holds the time when it was made: its id and text tell it apart.
        told = (goal.id, getattr(goal, "description", ""), input_data, session_state)
        digest, name = _digest.digest(told), f"hive:{graph.id}"
        base = _identity.derived_id(name, graph.id, digest)
        ordinal = process.ordinal(store.url, base)
        opened = open_run(
            Invocation(
                name=name,
                label=graph.id,
                function=_Recorded.execute,
                source=Source("", "", 0, []),
                bound={"input_data": input_data},
                instance=None,
                digest=digest,
                store=store,
                run_id=self._run_id or (f"{base}-{ordinal + 1}" if ordinal else base),
                explicit=self._run_id is not None,
                fsync=True,
                code=_structure(graph),
            )
        )
        if isinstance(opened, Recall):
            result = opened.value
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
            execution = HiveExecution(
                opened, call, _structure(graph), side_effects=self._side_effects
            )
            try:
                result = await execute_async(opened.executing(execution))
            except UnfinishedError as unfinished:
                return unfinished.result
        if self._run_id is None:
            process.completed(store.url, base, base)
        return result

    def _get_node_implementation(self, node_spec: Any, *args: Any, **kwargs: Any) -> Any:
        node = cast("Any", super())._get_node_implementation(node_spec, *args, **kwargs)
        return RecordedNode(node, node_spec)
