"""The classic checkpoint objects: a step loop that recovers, on the journal of a run.

For users of a function that is called once per step, instead of a workflow function.  A
:class:`RecoverableAgent` calls the function and saves a :class:`Checkpoint` every few steps. After
an exception or a killed process the agent resumes at the newest checkpoint that verifies, with the
results of all tools that have returned since.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from stepwise._runtime.facts import public
from stepwise._runtime.options import check_kind, check_takes, check_values
from stepwise._values import digest
from stepwise._values.preview import error_text
from stepwise._workflows import host
from stepwise._workflows.host import ClassicRetention, HostedRun, Recall, Step
from stepwise.agent._checkpoints import WHEN_SAVED, Checkpoint, CheckpointStore
from stepwise.errors import ConfigurationError, DigestError, NotRecordableError, OutsideRunError

__all__ = ["Checkpoint", "CheckpointStore", "RecoverableAgent", "StepContext"]


@dataclass
class StepContext:
    """The argument of a step function.

    Args:
        task: the agent's task.
        run_id: id of the run.
        step: number of the current step, from 1.
        state, messages: free for the agent's use; they are part of the next checkpoint.
        tool_results: results of the agent's tools, by name; further calls as ``name#2``,
            ``name#3``.
    """

    task: str
    run_id: str
    step: int
    state: dict[str, Any]
    messages: list[dict[str, Any]]
    tool_results: dict[str, Any]

    async def tool(
        self, function: Callable[..., Any], /, *args: Any, side_effect: bool = True, **kwargs: Any
    ) -> Any:
        """Call a tool: its result is recorded on return, and answered from the journal after that.

        Args:
            function: plain or ``async``; a function with ``@tool`` or ``@step`` keeps its own
                options.
            args: passed to the function.
            side_effect: repeating the call would double something outside, so a call during which
                the process dies is left in doubt.
            kwargs: passed to the function.

        Raises:
            ConfigurationError: ``function`` is not a function.
            OutsideRunError: the agent is not being executed here.
        """
        if not callable(function):
            raise ConfigurationError(
                f"ctx.tool calls a function, and {digest.class_name(type(function))!r} cannot be "
                "called: write ctx.tool(search, 'word'), not ctx.tool(search('word'))"
            )
        if not host.is_in_run():
            raise OutsideRunError(
                f"ctx.tool({host.label_of(function)}) was called after run {self.run_id!r} "
                "had ended, or in a thread that does not carry it",
                run_id=self.run_id,
            )
        recorded, instance = host.step_of(function), None
        if inspect.ismethod(function):
            instance, function = function.__self__, function.__func__
            args = (instance, *args)
        if recorded is None:
            recorded = Step(function, kind="tool", side_effect=side_effect)
        value = await host.call(recorded, args, kwargs, instance=instance)
        name = recorded.name.rpartition(".")[2]
        count = sum(key == name or key.startswith(f"{name}#") for key in self.tool_results)
        self.tool_results[f"{name}#{count + 1}" if count else name] = value
        return value


host.uncounted[StepContext] = "tool_results"  # concurrent tools that captured the context change it

AgentFunction = Callable[[StepContext], Any]

_MISTAKES = (ConfigurationError, DigestError, NotRecordableError, OutsideRunError)
"""Errors of the program, which every attempt would repeat."""


class RecoverableAgent:
    """An agent that calls a step function until it returns a result, and recovers from failures.

    Args:
        agent_fn: plain or ``async``; gets a :class:`StepContext` and returns the result, or
            ``None`` to continue with the next step.
        checkpoint_store: where the run and its checkpoints are kept.
        checkpoint_every_n: the number of steps between checkpoints.
        max_recoveries: how many exceptions of one call are recovered from; the next one propagates.
            Mistakes in the program (a ``ConfigurationError``, a state that cannot be kept)
            propagate at once, since every further attempt would repeat them.
        retention, keep: see :meth:`CheckpointStore.prune`.
        ignore: names of captured variables, defaults and attributes of ``agent_fn`` that may differ
            when a run resumes.  Other strings, numbers, functions and classes among them may not.

    Raises:
        ConfigurationError: an argument is invalid; the message names it, and says what it takes.

    Attributes:
        store: the checkpoint store.
        recovery_count: how many exceptions the last call has recovered from.
    """

    def __init__(
        self,
        agent_fn: AgentFunction,
        checkpoint_store: CheckpointStore,
        checkpoint_every_n: int = 3,
        max_recoveries: int = 3,
        *,
        retention: ClassicRetention = "prune_old",
        keep: int = 10,
        ignore: Iterable[str] = (),
    ) -> None:
        check_takes("agent_fn", agent_fn, "ctx")
        check_kind(
            "checkpoint_store",
            checkpoint_store,
            CheckpointStore,
            "give CheckpointStore('disk:runs'), or CheckpointStore() for memory alone",
        )
        check_values(
            "RecoverableAgent",
            checkpoint_every_n=checkpoint_every_n,
            max_recoveries=max_recoveries,
            retention=retention,
            keep=keep,
        )
        self.agent_fn = agent_fn
        self.store = checkpoint_store
        self.checkpoint_every_n = checkpoint_every_n
        self.max_recoveries = max_recoveries
        self.retention: ClassicRetention = retention
        self.keep = keep
        self.ignore = {ignore} if isinstance(ignore, str) else set(ignore)
        self.recovery_count = 0

    async def run_with_recovery(self, task: str, run_id: str) -> dict[str, Any]:
        """Run the agent on a task, or resume where a run of that id stopped.

        The result is a dictionary with these keys; a completed run returns the recorded dictionary:

        - ``result``, ``run_id``, ``recovery_count``;
        - ``recovered_from_step``, the step of the checkpoint at which the run last resumed: 0 for
          the beginning, ``None`` if nothing was recovered;
        - ``steps``, the number of steps;
        - ``state``, ``messages`` and ``tool_results`` at the end.

        Raises:
            RunConflictError: the run of that id has another task, or an agent function that holds
                other values.
            RunBusyError: the run is being executed.
            DigestError, NotRecordableError: the state or a tool's result cannot be kept.
            StepInDoubtError: a tool with side effects may or may not have happened.
        """
        check_values("run_with_recovery", run_id=run_id)
        self.recovery_count = 0
        return await self._start(task, run_id, None)

    async def _start(self, task: str, run_id: str, at: Checkpoint | None) -> dict[str, Any]:
        function: Any = self.agent_fn
        if not hasattr(function, "__code__"):  # a callable object
            function = type(function).__call__
        run = host.open_run(
            host.program_of(function, host.label_of(function)),
            self.store.store,
            run_id,
            {"task": task},
            digest.combine(digest.digest(task, digest.Numbering())),
            parts=host.HeldParts({"the agent function": self.agent_fn}, self.ignore),
        )
        if isinstance(run, Recall):
            recalled: dict[str, Any] = run.value
            return recalled
        done: dict[str, Any] = await run.execute(_Recoveries(self, run, task, at).execute)
        return done

    async def _run_from_checkpoint(
        self, checkpoint: Checkpoint | None, task: str
    ) -> dict[str, Any]:
        """Call the step function to its end, starting after a checkpoint.

        Args:
            checkpoint: where to resume; ``None`` for the beginning.
            task: the agent's task.
        """
        recoveries = _recoveries.get()
        if recoveries is None:
            run_id = checkpoint.run_id if checkpoint is not None else uuid4().hex
            return await self._start(task, run_id, checkpoint)
        ctx = StepContext(task, recoveries.run_id, 0, {}, [], {})
        if checkpoint is not None:
            ctx.step = checkpoint.step_number
            ctx.state, ctx.messages = checkpoint.state, checkpoint.messages
            ctx.tool_results = checkpoint.tool_results
        return await self._loop(ctx, recoveries)

    async def _loop(self, ctx: StepContext, recoveries: _Recoveries) -> dict[str, Any]:
        result = None
        while result is None:
            ctx.step += 1
            result = self.agent_fn(ctx)
            if isinstance(result, Awaitable):
                result = await result
            if result is None and self._should_checkpoint(ctx.step):
                self._checkpoint(ctx)
        return {
            "result": result,
            "run_id": ctx.run_id,
            "recovered_from_step": recoveries.recovered_from,
            "recovery_count": self.recovery_count,
            "steps": ctx.step,
            "state": ctx.state,
            "messages": ctx.messages,
            "tool_results": ctx.tool_results,
        }

    def _should_checkpoint(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        return step % self.checkpoint_every_n == 0

    def _checkpoint(self, ctx: StepContext) -> None:
        store, held = self.store, (ctx.state, ctx.messages, ctx.tool_results)
        store.save(Checkpoint("", ctx.run_id, ctx.step, *held, checksum=WHEN_SAVED))
        store.prune(ctx.run_id, self.retention, self.keep)


class _Recoveries:
    """The step loop of one run, begun again after each exception."""

    def __init__(
        self, agent: RecoverableAgent, run: HostedRun, task: str, at: Checkpoint | None
    ) -> None:
        self.run_id = run.run_id
        self.recovered_from: int | None = None
        self._agent, self._run, self._task, self._at = agent, run, task, at

    async def execute(self) -> Any:
        """Run the steps; after an exception, resume at the newest checkpoint."""
        agent = self._agent
        checkpoint = self._at
        if not self._run.is_new:
            checkpoint = self._recover() or checkpoint
        token = _recoveries.set(self)
        try:
            while True:
                try:
                    with self._run.attempt():
                        return await agent._run_from_checkpoint(checkpoint, self._task)
                except _MISTAKES:
                    raise
                except Exception as error:
                    if self._run.interrupted or agent.recovery_count >= agent.max_recoveries:
                        raise
                    agent.recovery_count += 1
                    failure = error
                checkpoint = self._recover(failure)
        finally:
            _recoveries.reset(token)

    def _recover(self, error: Exception | None = None) -> Checkpoint | None:
        """Move to the newest checkpoint and return it; later records answer the calls after it.

        After an exception, plain calls since the last side effect are made again.
        """
        run = self._run
        found = self._agent.store._newest_first(self.run_id)
        checkpoint: Checkpoint | None = run.resume_at_newest(found, "step")
        if checkpoint is None:
            run.resume_from_start()
        run.retry_loop(error)
        self.recovered_from = checkpoint.step_number if checkpoint is not None else 0
        why = f" from {type(error).__name__}: {error_text(error)}" if error is not None else ""
        told = f"recovers at step {self.recovered_from}{why}"
        run.record_resumed(told, self.recovered_from)
        return checkpoint


_recoveries: contextvars.ContextVar[_Recoveries | None] = contextvars.ContextVar(
    "stepwise_recoveries", default=None
)

for _class in (Checkpoint, CheckpointStore, RecoverableAgent):
    public(_class)
