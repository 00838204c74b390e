"""Records of an execution of hive's graph: its visits of nodes, and results of its tools."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections import Counter
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, cast

import wrapt  # type: ignore[import-untyped, unused-ignore]

from stepwise._runtime.messages import notice
from stepwise._values import digest
from stepwise._workflows import host
from stepwise._workflows.host import HostedRun, Step
from stepwise.errors import ConfigurationError, RunStopped
from stepwise.integrations._hive_session import Session

__all__ = [
    "HiveExecution",
    "RecordedNode",
    "RecordedValidator",
    "UnfinishedError",
    "current_execution",
    "recorded_tools",
    "structure",
]


class UnfinishedError(Exception):
    """hive reports that the execution failed: the run is not completed, and can resume."""

    def __init__(self, result: Any, why: str = "") -> None:
        super().__init__(why or str(result.error))
        self.result = result


class RecordedNode(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """A node whose visits are recorded."""

    def __init__(self, node: Any, spec: Any) -> None:
        super().__init__(node)
        self._self_spec = spec

    async def execute(self, ctx: Any) -> Any:
        execution = _execution.get()
        if execution is None:
            return await self.__wrapped__.execute(ctx)
        return await execution.visit(self.__wrapped__, self._self_spec, ctx)


class RecordedValidator(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """Hive's validator: a node whose output it rejects is visited again, as if it had failed."""

    def validate_all(self, output: Any, *args: Any, **kwargs: Any) -> Any:
        validation = self.__wrapped__.validate_all(output, *args, **kwargs)
        execution = _execution.get()
        if execution is not None and not validation.success:
            execution.rejected(output)
        return validation


class _NodeMemory(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """The memory of a node: its writes are noted, to be repeated on resume."""

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self._self_written: list[Any] = []

    def write(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.__wrapped__.write(key, value, *args, **kwargs)
        self._self_written.append(("write", (key, value, *args), kwargs))

    async def write_async(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        await self.__wrapped__.write_async(key, value, *args, **kwargs)
        self._self_written.append(("write_async", (key, value, *args), kwargs))


class _NodeVisit:
    """One attempt at a node."""

    def __init__(self, node: Any, ctx: Any, key: str) -> None:
        self.node, self.ctx, self.key = node, ctx, key
        self.called: Counter[str] = Counter()
        self.executed = False
        self.number = 0


def structure(graph: Any) -> str:
    """Return the digest of what leads where; prompts and the like are not part of it."""

    def facts(spec: Any, names: str) -> list[str]:
        return [str(getattr(spec, name, "")) for name in names.split()]

    nodes = [facts(each, "id node_type input_keys output_keys") for each in graph.nodes]
    edges = [
        facts(each, "source target condition condition_expr priority")
        for each in getattr(graph, "edges", ())
    ]
    return digest.digest([facts(graph, "entry_node terminal_nodes pause_nodes"), nodes, edges])


class HiveExecution:
    """One execution of hive's own loop, whose nodes and tools ask the journal first.

    Attributes:
        done: how many visits have succeeded.
    """

    def __init__(
        self, run: HostedRun, call: Any, graph: Any, session: Session, *, side_effects: bool
    ) -> None:
        self._run, self._call = run, call
        self._graph, self._session = graph, session
        self.done = 0
        self.side_effects = side_effects
        self.stopped: RunStopped | None = None
        self.returned: dict[tuple[str, str], Any] = {}
        self._steps: dict[str, Step] = {}
        self._attempts: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._open: dict[tuple[str, int], _NodeVisit] = {}
        self._ended: dict[str, tuple[Any, int, bool]] = {}  # output, call, executed here; by node

    async def execute(self) -> Any:
        """Run hive's loop from its entry; nodes that are done are answered."""
        run = self._run
        if run.is_new:
            self._session.begin()
        else:
            self._session.go_on()
            run.record_resumed(
                run.resume_from_start(),
                0,
                if_changed="the graph has changed since the run began; done nodes are answered by "
                "their ids, and the new graph decides what follows",
            )
        token = _execution.set(self)
        try:
            result = await self._call()
        finally:
            _execution.reset(token)
            await _saved()
        if self.stopped is not None:  # hive makes an error result of any exception
            raise self.stopped
        if not result.success:
            raise UnfinishedError(result)
        if self._cut_short(result):
            why = f"has used all {self._graph.max_steps} steps of its graph, and may not be done"
            notice(f"{run.run_id} {why}: called again with a higher max_steps, it continues")
            raise UnfinishedError(result, why)
        return result

    def _cut_short(self, result: Any) -> bool:
        """Return whether hive may have stopped for its steps alone, which it calls a success."""
        most = getattr(self._graph, "max_steps", None)
        if most is None or result.paused_at or result.steps_executed < most:
            return False
        return result.path[-1:] != [] and result.path[-1] not in self._graph.terminal_nodes

    def change(self, memory: Any) -> None:
        """Write to hive's memory what a session state changed, where the run had stopped."""
        for key, value in self._session.changes(self.done):
            memory.write(key, value, validate=False)

    async def visit(self, node: Any, spec: Any, ctx: Any) -> Any:
        """One attempt at a node: recorded if it succeeds."""
        if not host.is_in_run():
            return await node.execute(ctx)
        visit = self._visits[spec.id] + 1
        self._attempts[spec.id] += 1
        at = _NodeVisit(node, ctx, f"{spec.id}#{visit}")
        place = (at.key, self._attempts[spec.id])
        self._open[place] = at
        step = self._steps.get(spec.id)
        if step is None:  # the number of the attempt does not matter: the successful one counts
            step = Step(self._visited, kind="step", name=spec.id, ignore=("attempt",))
            self._steps[spec.id] = step
        try:
            record = await host.call(step, (at.key,), {"attempt": place[1]}, branch=at.key)
        except RunStopped as error:
            self.stopped = error
            raise
        except Exception as error:
            if at.number:  # the resuming process repeats the attempt
                self._run.retry_calls(at.number)
            if isinstance(error, _Failed):
                return error.result
            raise
        finally:
            del self._open[place]
        if not at.executed:
            for name, args, kwargs in record["written"]:
                done = getattr(ctx.memory, name)(*args, **kwargs)
                if isinstance(done, Awaitable):
                    await done
        self._visits[spec.id] += 1
        self.done += 1
        self._attempts[spec.id] = 0
        result = record["result"]
        self._ended[spec.id] = (result.output, record["call"], at.executed)
        return result

    def rejected(self, output: Any) -> None:
        """Note that hive rejected a node's result: the visit has not succeeded."""
        for node, (held, call, executed) in list(self._ended.items()):
            if held is output:
                del self._ended[node]
                self._visits[node] -= 1
                self.done -= 1
                self._run.retry_calls(call)
                if not executed:  # but by an earlier process
                    self._run.give_back(inside=call)

    async def _visited(self, visit: str, attempt: int) -> Any:
        at = self._open[visit, attempt]
        at.executed, at.number = True, host.call_number()
        memory, token = at.ctx.memory, _visit.set(at)
        at.ctx.memory = noted = _NodeMemory(memory)
        try:
            result = await at.node.execute(at.ctx)
        except Exception:
            host.release_inner_calls()  # what its tools returned answers the next attempt
            raise
        finally:
            at.ctx.memory = memory
            _visit.reset(token)
        if self.stopped is not None:
            raise self.stopped
        if not result.success:
            host.release_inner_calls()
            raise _Failed(result)
        return {"result": result, "written": noted._self_written, "call": at.number}


class _Failed(Exception):  # noqa: N818
    """A node reported a failure: only the results of its tools are kept."""

    def __init__(self, result: Any) -> None:
        super().__init__(str(result.error))
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.result,)


class _Use:
    """A caller of a tool; not a function, whose captured variables would be part of the call."""

    def __init__(self, executor: Any, tool_use: Any) -> None:
        self._executor, self._tool_use = executor, tool_use

    async def acalled(self, arguments: Any, call: str) -> Any:
        return await self._executor(self._tool_use)

    def called(self, arguments: Any, call: str) -> Any:
        value = self._executor(self._tool_use)
        if inspect.iscoroutine(value):
            value.close()
            raise ConfigurationError(
                f"the tool {self._tool_use.name!r} is async, and the tool_executor is not: give "
                "an `async def` that awaits the tool's result"
            )
        return value


def recorded_tools(executor: Any) -> Any:
    """Hive's ``tool_executor``, recorded by visit, tool and input: the ids are the LLM's whim."""

    def call(tool_use: Any) -> tuple[Any, tuple[str, str], Step]:
        execution, at = _execution.get(), _visit.get()
        if execution is None or at is None:
            return None, ("", ""), Step(executor, kind="tool")
        same = f"{tool_use.name}\n{digest.digest(tool_use.input)}"
        at.called[same] += 1
        count = at.called[same]

        use = _Use(executor, tool_use)
        step = Step(
            use.acalled if inspect.iscoroutinefunction(executor) else use.called,
            kind="tool",
            name=tool_use.name,
            side_effect=execution.side_effects,
            fails_cleanly=ConfigurationError,
        )
        return execution, (same, f"{at.key}, {count}"), step

    def recorded(tool_use: Any) -> Any:
        execution, key, step = call(tool_use)
        if execution is None:
            return executor(tool_use)
        if key not in execution.returned:
            try:
                execution.returned[key] = step(tool_use.input, key[1])
            except RunStopped as error:
                execution.stopped = error
                raise
        return _answered(execution.returned[key], tool_use)

    async def arecorded(tool_use: Any) -> Any:
        execution, key, step = call(tool_use)
        if execution is None:
            return await executor(tool_use)
        if key not in execution.returned:
            try:
                execution.returned[key] = await step.acall(tool_use.input, key[1])
            except RunStopped as error:
                execution.stopped = error
                raise
        return _answered(execution.returned[key], tool_use)

    return arecorded if inspect.iscoroutinefunction(executor) else recorded


def _answered(value: Any, tool_use: Any) -> Any:
    if not dataclasses.is_dataclass(value):  # the landed value of a tool in doubt
        from framework.llm.provider import ToolResult

        content = value if isinstance(value, str) else json.dumps(value)
        return ToolResult(tool_use_id=tool_use.id, content=content)
    return dataclasses.replace(cast("Any", value), tool_use_id=tool_use.id)


async def _saved() -> None:
    """Wait for the checkpoints that hive saves beside its loop: the run's tasks end with it."""
    saving = [
        task
        for task in asyncio.all_tasks()
        if getattr(task.get_coro(), "__name__", "") in ("save_checkpoint", "prune_checkpoints")
    ]
    if saving:
        await asyncio.wait(saving)


def current_execution() -> HiveExecution | None:
    """Return the execution around the caller, if there is one."""
    return _execution.get()


_execution: ContextVar[HiveExecution | None] = ContextVar("stepwise_hive", default=None)
_visit: ContextVar[_NodeVisit | None] = ContextVar("stepwise_hive_visit", default=None)
