"""A stand-in for hive's ``Orchestrator``: it starts worker agents, and waits for their reports."""

import asyncio
from types import SimpleNamespace

from framework.graph.executor import ExecutionResult, Memory
from framework.orchestrator.node_worker import NodeWorker


class Orchestrator:
    """The nodes in a row, or those of ``graph.fan`` side by side before the last one.

    As with hive, agents that end before the report of another one was heard look like the end.
    """

    def __init__(self, runtime, tool_executor=None, node_registry=None, run_id=""):
        self.tool_executor = tool_executor
        self.node_registry = node_registry or {}
        self._run_id = run_id

    async def execute(self, graph, goal, input_data=None, session_state=None):
        buffer, ended, error = Memory(), asyncio.Event(), []
        buffer.data.update((session_state or {}).get("data_buffer", {}))
        buffer.data.update(input_data or {})
        stages = [[spec.id] for spec in graph.nodes]
        if getattr(graph, "fan", False):
            stages = [stages[0], [name for each in stages[1:-1] for name in each], stages[-1]]
        done = set()

        def reported(event):
            worker = event.data
            if worker.lifecycle == "failed":
                error.append(f"{worker.node_spec.id}: {worker._last_result.error}")
                ended.set()
                return
            done.add(worker.node_spec.id)
            stage = next(each for each in stages if worker.node_spec.id in each)
            following = stages[stages.index(stage) + 1 :][:1]
            if following and done.issuperset(stage):
                for name in following[0]:
                    workers[name].activate()
            elif not any(each.lifecycle == "running" for each in workers.values()):
                if done != workers.keys():
                    error.append("worker execution ended before terminal nodes completed")
                ended.set()

        context = SimpleNamespace(
            buffer=buffer, path=[], node_registry=self.node_registry, reported=reported
        )
        workers = {spec.id: NodeWorker(spec, context) for spec in graph.nodes}
        workers[stages[0][0]].activate()
        await ended.wait()
        return ExecutionResult(
            not error,
            buffer.data,
            "; ".join(error) or None,
            context.path,
            len(context.path),
            session_state={"data_buffer": dict(buffer.data), "run_id": self._run_id},
        )
