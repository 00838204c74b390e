"""For users of adenhq/hive: its graph executor, recorded, and its checkpoint store, durable.

:func:`executor_class` gives a subclass of hive's ``GraphExecutor`` that records each visit of a
node, and each result of a tool when it returns: killed and called again, it repeats neither.
:class:`CheckpointStore` takes the place of hive's class of that name.  hive's package ``framework``
is imported when one of them is asked for.

Imports: lifecycle, execute, steps, and what they import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import time
from collections import Counter
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, cast

import wrapt  # type: ignore[import-untyped, unused-ignore]

from stepwise import _config, _digest, _identity
from stepwise._adrive import adrive
from stepwise._execute import execute_async
from stepwise._journal import Position
from stepwise._lifecycle import Invocation, Recall, open_run
from stepwise._matching import Pool
from stepwise._opened import NothingGiven, Opened
from stepwise._process import memory as process
from stepwise._records import Forgotten
from stepwise._run import current_scope
from stepwise._steps import Step, known_steps
from stepwise.errors import ConfigurationError, RunStopped
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
            this.tool_executor = _tools(this.tool_executor)

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
            execution = _Execution(opened, call, side_effects=self._side_effects)
            try:
                result = await execute_async(opened.executing(execution))
            except _Unfinished as unfinished:
                return unfinished.result
        if self._run_id is None:
            process.completed(store.url, base, base)
        return result

    def _get_node_implementation(self, node_spec: Any, *args: Any, **kwargs: Any) -> Any:
        node = cast("Any", super())._get_node_implementation(node_spec, *args, **kwargs)
        return _Node(node, node_spec)


class _Unfinished(Exception):  # noqa: N818
    """hive says that the execution failed: the run is not completed, and can go on."""

    def __init__(self, result: Any) -> None:
        super().__init__(str(getattr(result, "error", "")))
        self.result = result


class _Node(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """A node whose visits are recorded."""

    def __init__(self, node: Any, spec: Any) -> None:
        super().__init__(node)
        self._self_spec = spec

    async def execute(self, ctx: Any) -> Any:
        execution = _execution.get()
        if execution is None:
            return await self.__wrapped__.execute(ctx)
        return await execution.visit(self.__wrapped__, self._self_spec, ctx)


class _Memory(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """The memory a node gets: what is written is noted, to be written again on resume."""

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self._self_written: list[Any] = []

    def write(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.__wrapped__.write(key, value, *args, **kwargs)
        self._self_written.append(("write", (key, value, *args), kwargs))

    async def write_async(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        await self.__wrapped__.write_async(key, value, *args, **kwargs)
        self._self_written.append(("write_async", (key, value, *args), kwargs))


class _Visit:
    """One attempt at a node."""

    def __init__(self, node: Any, ctx: Any, key: str) -> None:
        self.node, self.ctx, self.key = node, ctx, key
        self.called: Counter[str] = Counter()
        self.executed = False
        self.number = 0


class _Execution(NothingGiven):
    """The body of a run: hive's own loop, whose nodes and tools ask the journal first."""

    def __init__(self, opened: Opened[Any], call: Any, *, side_effects: bool) -> None:
        self.active, self._is_new, self._call = opened.active, opened.is_new, call
        self.side_effects = side_effects
        self.stopped: RunStopped | None = None
        self.returned: dict[tuple[str, str], Any] = {}
        self._steps: dict[str, Step] = {}
        self._attempts: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._open: dict[tuple[str, int], _Visit] = {}

    async def arun(self) -> Any:
        """Run hive's loop from its entry; nodes that are done are answered."""
        active = self.active
        active.begun = True
        if not self._is_new:
            active.go_on_from_the_top(Pool(active.journal.load(Position()), known_steps))
        token = _execution.set(self)
        try:
            result = await self._call()
        finally:
            _execution.reset(token)
        if self.stopped is not None:  # hive makes an error result of any exception
            raise self.stopped
        if not result.success:
            raise _Unfinished(result)
        return result

    async def visit(self, node: Any, spec: Any, ctx: Any) -> Any:
        """One attempt at a node: recorded if it succeeds."""
        scope = current_scope()
        if scope is None:
            return await node.execute(ctx)
        visit = self._visits[spec.id] + 1
        self._attempts[spec.id] += 1
        at = _Visit(node, ctx, f"{spec.id}#{visit}")
        place = (at.key, self._attempts[spec.id])
        self._open[place] = at
        step = self._steps.setdefault(spec.id, Step(self._visited, kind="step", name=spec.id))
        try:
            core = step.core(scope._replace(branch=at.key), (at.key,), {"attempt": place[1]})
            record = (await adrive(core)).unwrap()
        except RunStopped as error:
            self.stopped = error
            raise
        except Exception as error:
            if at.number:  # the process that goes on makes the attempt anew
                forgotten = Forgotten((at.number,), time.time())
                self.active.write((forgotten, b""), durable=False)
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
        self._attempts[spec.id] = 0
        return record["result"]

    async def _visited(self, visit: str, attempt: int) -> Any:
        at = self._open[visit, attempt]
        scope = current_scope()
        assert scope is not None
        assert scope.call is not None
        at.executed, at.number = True, scope.call.number
        memory, token = at.ctx.memory, _visit.set(at)
        at.ctx.memory = noted = _Memory(memory)
        try:
            result = await at.node.execute(at.ctx)
        except Exception:
            scope.inner.clear()  # what its tools returned answers the next attempt
            raise
        finally:
            at.ctx.memory = memory
            _visit.reset(token)
        if self.stopped is not None:
            raise self.stopped
        if not result.success:
            scope.inner.clear()
            raise _Failed(result)
        return {"result": result, "written": noted._self_written}


class _Failed(Exception):  # noqa: N818
    """A node said that it failed: nothing of it is kept but what its tools returned."""

    def __init__(self, result: Any) -> None:
        super().__init__(str(result.error))
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.result,)


def _tools(executor: Any) -> Any:
    """Hive's ``tool_executor``, recorded by visit, tool and input: the ids are the LLM's whim."""

    def call(tool_use: Any) -> tuple[Any, tuple[str, str], Step]:
        execution, at = _execution.get(), _visit.get()
        if execution is None or at is None:
            return None, ("", ""), Step(executor, kind="tool")
        same = f"{tool_use.name}\n{_digest.digest(tool_use.input)}"
        at.called[same] += 1
        count = at.called[same]

        async def acalled(arguments: Any, call: str) -> Any:  # noqa: ARG001
            return await executor(tool_use)

        def called(arguments: Any, call: str) -> Any:  # noqa: ARG001
            value = executor(tool_use)
            if inspect.iscoroutine(value):
                value.close()
                raise ConfigurationError(
                    f"the tool {tool_use.name!r} is async, and the tool_executor is not: give "
                    "an `async def` that awaits what it returns"
                )
            return value

        step = Step(
            acalled if inspect.iscoroutinefunction(executor) else called,
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
    if not dataclasses.is_dataclass(value):  # what somebody said that a tool in doubt returned
        from framework.llm.provider import ToolResult

        content = value if isinstance(value, str) else json.dumps(value)
        return ToolResult(tool_use_id=tool_use.id, content=content)
    return dataclasses.replace(cast("Any", value), tool_use_id=tool_use.id)


_execution: ContextVar[_Execution | None] = ContextVar("stepwise_hive", default=None)
_visit: ContextVar[_Visit | None] = ContextVar("stepwise_hive_visit", default=None)
