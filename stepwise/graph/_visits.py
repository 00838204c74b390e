"""Visits of nodes: each attempt is one recorded step of a run, or a plain call without one.

The record of an attempt holds what it changed in the memory and which nodes follow, so a resumed
run takes the same way without asking the conditions again.  A failed attempt is recorded as well:
a process that dies between two attempts goes on with the next one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from stepwise._runtime.messages import shell_word
from stepwise._runtime.retries import Attempts
from stepwise._values.preview import error_text
from stepwise._workflows import host
from stepwise._workflows.host import HostedRun, ShownValue, Step
from stepwise.errors import CodeChangedError
from stepwise.graph._model import Graph, Memory, Node
from stepwise.graph._tokens import Token, Written, copied, same

__all__ = ["NodeFailedError", "Visits"]

_UNSEEN = Memory({})  # where no condition looks


class NodeFailedError(Exception):
    """A node has failed for good; users never see this, but the node's own exception.

    Args:
        calls: the attempts that are to run again when the run resumes.
    """

    def __init__(self, error: Exception, calls: list[int]) -> None:
        super().__init__(error_text(error))
        self.error = error
        self.calls = calls


class _Visit:
    """A visit in progress.

    Attributes:
        answer: of a human, at a pause.
        error: of the last attempt, if this process made it.
    """

    def __init__(self, node: Node, token: Token, answer: Written | None = None) -> None:
        self.node, self.token, self.answer = node, token, answer
        self.error: Exception | None = None

    @cached_property
    def attempts(self) -> Attempts:
        """The attempts that the visit may have, from the first that failed."""
        node = self.node
        return Attempts(node.retries, node.retry_on, node.backoff, f"node {node.id!r}")


class _NodeStep(Step):
    """The step of a node: a listing shows what the node wrote, or how it failed.

    Attributes:
        run: that makes it.
    """

    run: HostedRun | None = None
    is_plain = True
    has_siblings = False  # an execution before it, or beside it, has its nodes in another run

    def shown_value(self, value: Written) -> ShownValue | None:
        """Return what the node wrote, or its error, on one line."""
        shown = value["error"] or value["set"]
        return ShownValue(self.run.codec.secrets.preview(shown), {}) if self.run else None


class Visits:
    """Performs the visits of one execution.

    Args:
        goal, runtime: for the nodes.
        run: ``None`` if nothing is recorded.

    Attributes:
        retries: how many attempts followed failed ones, by node.
    """

    def __init__(self, graph: Graph, goal: Any, runtime: Any, run: HostedRun | None) -> None:
        self.retries: dict[str, int] = {}
        self._graph, self._goal, self._runtime = graph, goal, runtime
        self._run = run
        self._open: dict[str, _Visit] = {}
        self._steps: dict[str, Step] = {}
        self._pattern = _NodeStep(self._execute, kind="step")
        self._pattern.run = run
        self._answers: dict[str, Step] = {}

    async def visit(self, token: Token) -> Written:
        """Execute a node until an attempt succeeds; return what it wrote, and what follows.

        Raises:
            NodeFailedError: no more attempts, and no edge to follow then.
        """
        visit = self._open[token.key] = _Visit(self._node(token.node), token)
        try:
            record = await self._attempt(token, 1)
            return record if record["error"] is None else await self._tried_again(visit, record)
        finally:
            del self._open[token.key]
            if self._run is not None:
                # Calls are numbered from 1 in each attempt, as when another process makes it.
                self._run.count_anew(token.key)

    async def _tried_again(self, visit: _Visit, record: Written) -> Written:
        """Execute a node again whose first attempt has failed; see :meth:`visit`."""
        token, name = visit.token, visit.node.id
        calls: list[int] = []
        while record["error"] is not None:
            calls.append(record["call"])
            error = visit.error or self._met_again(visit, record)
            if record["until"] is None:
                if record["next"]:
                    return record
                raise NodeFailedError(error, calls)
            self.retries[name] = self.retries.get(name, 0) + 1
            if self._run is not None:
                self._run.count_anew(token.key)
            await asyncio.sleep(max(0.0, record["until"] - time.time()))
            visit.error = None
            failed, record = record, await self._attempt(token, len(calls) + 1)
            costs = {cost: failed[cost] + record[cost] for cost in ("tokens", "ms")}
            record = {**record, **costs}  # failed attempts count, too
        return record

    def _node(self, node_id: str) -> Node:
        node = self._graph.get_node(node_id)
        if node is None:
            run_id = self._run.run_id if self._run is not None else ""
            raise CodeChangedError(
                f"run {run_id!r} is to resume at node {node_id!r}, which graph "
                f"{self._graph.name!r} no longer has. Bring it back, or start over: "
                f"stepwise forget {shell_word(run_id)}",
                run_id=run_id,
            )
        return node

    def _attempt(self, token: Token, number: int) -> Awaitable[Written]:
        if self._run is None:
            return self._execute(token.key, number)
        step = self._steps.get(token.node) or self._step_of(token.node)
        return host.call(step, (token.key, number), branch=token.key)

    def _step_of(self, node_id: str) -> Step:
        """The step of a node: all nodes share one function, which is examined once."""
        step = copy.copy(self._pattern)
        step.name = node_id
        step.returns, step._bindings = self._pattern.returns, self._pattern._bindings
        step._make_known()
        self._steps[node_id] = step
        return step

    async def _execute(self, visit: str, attempt: int) -> Any:
        """One attempt, on a copy of the memory."""
        opened = self._open[visit]
        node, token = opened.node, opened.token
        before = token.memory
        memory = self._memory(token, copied(token.memory))
        memory.attempt = attempt
        begun = time.perf_counter()
        try:
            value = node.function(memory) if node.function is not None else None
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            if self._run is not None and self._run.interrupted:
                raise
            return await self._failed(opened, error, attempt, memory, begun)
        if isinstance(value, Mapping):
            memory.update(value)
        elif value is not None:
            memory[node.id] = value
        record = self._record(memory, begun)
        record["set"] = copied(
            {
                key: held
                for key, held in memory.items()
                if key not in before or not same(held, before[key])
            }
        )
        record["deleted"] = [key for key in before if key not in memory]
        if not node.pause:
            record["next"] = self._following(token, record)
        return record

    def _memory(self, token: Token, items: Mapping[str, Any]) -> Memory:
        visit = token.visits.get(token.node, 1)
        return Memory(items, self._goal, self._runtime, token.node, visit)

    def _record(self, memory: Memory, begun: float) -> Written:
        return {
            "set": {},
            "deleted": [],
            "next": None,
            "error": None,
            "tokens": memory.tokens,
            "ms": int((time.perf_counter() - begun) * 1000),
        }

    def _following(self, token: Token, record: Written) -> list[str] | None:
        """Return the next nodes, or ``None`` if a condition raises although the node is done."""
        if not self._graph.asks(token.node):
            return self._graph.following(token.node, _UNSEEN)
        try:
            return self.follow(token.wrote(record))
        except Exception:  # follow() evaluates it again, and raises
            return None

    def follow(self, token: Token) -> list[str]:
        """Evaluate the conditions after a visit and return the next nodes."""
        return self._graph.following(token.node, self._memory(token, token.memory))

    # -- failures --------------------------------------------------------------------------------

    async def _failed(
        self, visit: _Visit, error: Exception, attempt: int, memory: Memory, begun: float
    ) -> Written:
        delay = visit.attempts.next_delay(error)
        record = self._record(memory, begun)
        visit.error = error
        record["error"] = told = f"{type(error).__name__}: {error_text(error)}"
        record["until"] = time.time() + delay if delay is not None else None
        record["call"] = 0
        if delay is None:
            record["next"] = self._graph.following_failure(visit.node.id)
            record["set"] = {"failure": {"node": visit.node.id, "error": told}}
        run = self._run
        if run is not None:
            encoded = run.codec.encode_error(error)
            record["raised"], record["call"] = (encoded.data, encoded.form), host.call_number()
            if not record["next"]:  # retried: what its tools have done is done
                await run.retry_attempt(error)
        return record

    def _met_again(self, visit: _Visit, record: Written) -> Exception:
        """The exception of an attempt that an earlier process made; it counts as made."""
        assert self._run is not None
        error = self._run.codec.decode_error(*record["raised"])
        assert isinstance(error, Exception)
        if record["until"] is not None:
            visit.attempts.next_delay(error)
        return error

    def forget(self, calls: list[int]) -> None:
        """Forget these attempts as the run ends: on resume they are made again."""
        if self._run is not None:
            self._run.retry_calls(*calls)

    # -- answers ---------------------------------------------------------------------------------

    async def answer(self, token: Token, answer: Written | None) -> Written | None:
        """Return a human's answer at a pause, or ``None`` if it is missing.

        Args:
            answer: what is offered now; one that is recorded goes before.
        """
        node = self._node(token.node)
        self._open[token.key] = _Visit(node, token, answer)
        try:
            if self._run is None:
                return self._answered(token.key) if answer is not None else None
            step = self._answers.get(node.id)
            if step is None:
                name = f"{node.id}: answer"
                step = self._answers[node.id] = Step(self._answered, kind="step", name=name)
            record: Written | None = await host.call(
                step, (token.key,), only_recorded=answer is None
            )
            return record
        finally:
            del self._open[token.key]

    def _answered(self, visit: str) -> Any:
        opened = self._open[visit]
        assert opened.answer is not None
        record = self._record(Memory({}), time.perf_counter())
        record["set"] = copied(opened.answer)
        record["next"] = self._following(opened.token, record)
        return record

    async def beginning(self, make: Callable[[], Any]) -> Any:
        """Return the recorded initial data; later calls bring answers instead."""
        if self._run is None:
            return make()
        self._make = make  # as a captured variable it would be a part of the call
        step = Step(self._began_with, kind="step", name="began_with")
        return await host.call(step, ())

    def _began_with(self) -> Any:
        return self._make()
