"""A stand-in for hive's worker agents: one for each node, each a task that reports its end."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from framework.graph.executor import NodeResult


@dataclass
class Context:
    buffer: Any


class NodeWorker:
    def __init__(self, node_spec, graph_context):
        self.node_spec, self._gc = node_spec, graph_context
        self.lifecycle, self._last_result = "pending", None

    def activate(self):
        self.lifecycle = "running"
        self._task = asyncio.ensure_future(self._execute_self())

    async def _execute_self(self):
        try:
            self._gc.path.append(self.node_spec.id)
            node = self._gc.node_registry[self.node_spec.id]
            result = await self._execute_with_retries(node, self._build_node_context())
            self._gc.buffer.data.update(result.output)
        except Exception as error:
            result = NodeResult(False, error=str(error))
        self.lifecycle = "completed" if result.success else "failed"
        self._last_result = result
        await self._report()

    def _build_node_context(self):
        return Context(self._gc.buffer)

    async def _execute_with_retries(self, node_impl, ctx):
        for _ in range(self.node_spec.max_retries):
            try:
                result = await node_impl.execute(ctx)
            except Exception as error:
                result = NodeResult(False, error=str(error))
            if result.success:
                break
        return result

    async def _report(self):
        for _ in range(3):  # the bus takes its lock, writes its log and calls its handlers
            await asyncio.sleep(0)
        self._gc.reported(SimpleNamespace(data=self))
