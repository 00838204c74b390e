"""Records of an execution of hive's graph: its visits of nodes, and results of its tools.

The session state of a result that failed or paused gets a key of ours: the run, how many visits
had succeeded, and a digest of each value of its memory.  A call that brings it back executes the
graph from its beginning, with the first input: what is done is answered.  What was changed in the
memory is kept in the run, and written where it had stopped, now and in every later process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import wrapt  # type: ignore[import-untyped, unused-ignore]

from stepwise._runtime.messages import notice, shell_word
from stepwise._values import codec, digest
from stepwise._workflows import host
from stepwise._workflows.host import DamagedError, HostedRun, HostStore, Step
from stepwise.errors import ConfigurationError, CorruptStoreError, DigestError, RunStopped
from stepwise.stores import Store

__all__ = [
    "Continued",
    "HiveExecution",
    "RecordedNode",
    "RecordedValidator",
    "Session",
    "UnfinishedError",
    "current_execution",
    "recorded_tools",
    "session_of",
    "structure",
]

_KEY = "stepwise"
_BEGAN = "hive/began"
_CHANGED = "hive/changed"


# -- session states ------------------------------------------------------------------------------


@dataclass
class Continued:
    """A run that a session state continues.

    Args:
        input_data, session_state: those of its first call.
        visits: how many had succeeded when it stopped.
        changed: what has another value in the memory since, by key.
    """

    run_id: str
    input_data: Any
    session_state: Any
    visits: int
    changed: dict[str, Any] = field(default_factory=dict)


def session_of(store: Store, given: Any, input_data: Any) -> Continued | None:
    """Return the run that a session state continues; ``None`` if it is the beginning of one.

    Raises:
        ConfigurationError: the store does not hold the run, or not how it began.
        CorruptStoreError: how it began does not verify.
    """
    noted = given.get(_KEY) if isinstance(given, Mapping) else None
    if not noted:
        return None
    run_id = noted["run_id"]
    if HostStore(store).facts(run_id) is None:
        raise ConfigurationError(
            f"the session_state continues run {run_id!r}, which store {store.url!r} does not hold: "
            "give the executor the store of that run, or, to begin anew with its memory, remove "
            f"the key {_KEY!r} from the session_state"
        )
    began = _read(store, run_id, _BEGAN)
    if began is None:
        raise ConfigurationError(
            f"store {store.url!r} lacks the record of how run {run_id!r} began; call it with its "
            "first input, and without the session_state"
        )
    first, state = began
    changed = _changed(given.get("memory"), noted["memory"])
    if not given.get("paused_at"):  # without it, hive also writes the input to the memory
        changed.update(_changed(input_data, {key: _print(value) for key, value in first.items()}))
    return Continued(run_id, first, state, noted["visits"], changed)


def _changed(values: Any, prints: Mapping[str, str]) -> dict[str, Any]:
    """Return what has another value; what has no digest counts as it was."""
    if not isinstance(values, Mapping):
        return {}
    return {
        key: value
        for key, value in values.items()
        if (now := _print(value)) and now != prints.get(key)
    }


def _print(value: Any) -> str:
    with contextlib.suppress(DigestError):
        return digest.digest(value)
    return ""


def _read(store: Store, run_id: str, name: str) -> Any:
    """Return an object stored beside the records of a run, or ``None`` if it is missing.

    Raises:
        CorruptStoreError: it does not verify.
    """
    try:
        header, payload = HostStore(store).get(run_id, name)
    except DamagedError as error:
        if store.get(run_id, name) is None:
            return None
        raise CorruptStoreError(
            f"the session state of run {run_id!r} in store {store.url!r} is damaged ({name}: "
            f"{error}). Restore it from a backup, or start over: "
            f"stepwise forget {shell_word(run_id)}",
            path=store.url,
            errno=None,
        ) from None
    return codec.decode(payload, header["form"])


class Session:
    """The session states of a run, as one execution knows them."""

    def __init__(
        self,
        run: HostedRun,
        input_data: Any,
        session_state: Any,
        going_on: Continued | None,
    ) -> None:
        self._run = run
        self._input_data, self._session_state = input_data, session_state
        self._going_on = going_on
        self._pending: dict[int, dict[str, Any]] = {}

    def go_on(self) -> None:
        """Store the changes since the run stopped, together with earlier changes.

        Raises:
            CorruptStoreError: what was changed before does not verify.
            NotRecordableError: what was changed cannot be kept.
        """
        run, going_on = self._run, self._going_on
        self._pending = _read(run.call.store, run.run_id, _CHANGED) or {}
        if going_on is not None and going_on.changed:
            earlier = self._pending.get(going_on.visits, {})
            self._pending[going_on.visits] = {**earlier, **going_on.changed}
            self._put(_CHANGED, self._pending)

    def begin(self) -> None:
        """Store the input with which the run began."""
        self._put(_BEGAN, (dict(self._input_data or {}), self._session_state), durable=False)

    def _put(self, name: str, value: Any, *, durable: bool = True) -> None:
        encoded = codec.encode(value, "the session state")
        self._run.put(name, {"form": encoded.form}, encoded.data, durable=durable)

    def changes(self, visits: int) -> Iterator[tuple[str, Any]]:
        """Apply the changes that were made when so many visits, or fewer, had succeeded."""
        for each in sorted(self._pending):
            if each <= visits:
                yield from self._pending.pop(each).items()

    def noted(self, result: Any, visits: int) -> Any:
        """Return a result whose session state continues this run."""
        state = getattr(result, "session_state", None)
        if isinstance(state, dict):
            memory = state.get("memory")
            held = memory if isinstance(memory, Mapping) else {}
            prints = {key: _print(value) for key, value in held.items()}
            state[_KEY] = {"run_id": self._run.run_id, "visits": visits, "memory": prints}
        return result


# -- executions ----------------------------------------------------------------------------------


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
        if self.stopped is not None:
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

    @contextlib.contextmanager
    def noting_stops(self) -> Iterator[None]:
        """Remember what stops the run: hive makes an error result of any exception."""
        try:
            yield
        except RunStopped as error:
            self.stopped = error
            raise

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
            with self.noting_stops():
                record = await host.call(step, (at.key,), {"attempt": place[1]}, branch=at.key)
        except RunStopped:
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
        except Exception as error:
            await self._run.retry_attempt(error)  # what its tools have done is done
            raise
        finally:
            at.ctx.memory = memory
            _visit.reset(token)
        if self.stopped is not None:
            raise self.stopped
        if not result.success:
            failure = _Failed(result)
            await self._run.retry_attempt(failure)
            raise failure
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
            with execution.noting_stops():
                execution.returned[key] = step(tool_use.input, key[1])
        return _answered(execution.returned[key], tool_use)

    async def arecorded(tool_use: Any) -> Any:
        execution, key, step = call(tool_use)
        if execution is None:
            return await executor(tool_use)
        if key not in execution.returned:
            with execution.noting_stops():
                execution.returned[key] = await step.acall(tool_use.input, key[1])
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
