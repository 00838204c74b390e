"""The execution of a graph: branches, visits of nodes, the walk along the edges, its run.

*Tokens* say where each branch of an execution is, and carry the memory of the branch.

*Visits* execute nodes: each attempt is one recorded step of a run, or a plain call without a run.
The record of an attempt holds its changes to the memory and the nodes that follow.  So a resumed
run takes the same way without asking the conditions again.  A failed attempt is recorded as well: a
process that dies between two attempts resumes with the next one.

The *walk* moves the branches along the edges, side by side.  A branch's view depends on the way it
took, never on the speed of other branches.  Each branch carries its own memory, and a join merges
the branches that meet.  So a resumed execution sees what an undisturbed one would have seen.

The *execution* decides which run a call belongs to, where the run resumes, and how it ends.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import copy
import inspect
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from stepwise import errors
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, notice, shell_word
from stepwise._runtime.options import check_values
from stepwise._runtime.retries import Attempts
from stepwise._values import codec
from stepwise._values import digest as _digest
from stepwise._values.preview import NO_SECRETS, error_text
from stepwise._workflows import host
from stepwise.graph._checkpoints import CheckpointManager, ExecutorType, now
from stepwise.graph._model import ExecutionResult, Graph, Memory, Node

# -- tokens ---------------------------------------------------------------------------------------


Written = dict[str, Any]
_NOTHING: dict[str, int] = {}


class Token(NamedTuple):
    """The position of a branch of an execution, and its memory.

    Args:
        node: the node to visit.
        key: tells visits apart.  The key is derived from the way that led to the visit, so it does
            not depend on the speed of the branches.
        origin: the previous node.
        memory: as the branch left it.  The memory is never changed, only replaced.
        stamps: when each key was written, in visits along the way; deleted keys included.
        clock: the length of the way, in visits.
        visits: how often the way visited each node.
        entered: the visit has begun.
        paused: the visit is done, and its answer is missing.
    """

    node: str
    key: str
    memory: Written
    origin: str = ""
    stamps: dict[str, int] = _NOTHING
    clock: int = 0
    visits: dict[str, int] = _NOTHING
    entered: bool = False
    paused: bool = False

    def wrote(self, record: Mapping[str, Any], *, paused: bool = False) -> Token:
        """Return the branch as it is after a visit."""
        gone, written = record["deleted"], record["set"]
        memory = {**self.memory, **written}
        for key in gone:
            memory.pop(key, None)
        stamps = {**self.stamps, **dict.fromkeys([*gone, *written], self.clock)}
        return self._replace(memory=memory, stamps=stamps, paused=paused)

    def to(self, target: str) -> Token:
        """Return the branch that continues from here to another node."""
        return Token(target, self.key, self.memory, self.node, self.stamps, self.clock, self.visits)

    def enter(self, others: Sequence[Token] = ()) -> Token:
        """Return the branch as it visits its node now, merged with the branches that joined it."""
        if self.entered:
            return self
        node, memory, stamps, clock = self.node, self.memory, self.stamps, self.clock
        visits, way = dict(self.visits), [f"{self.origin}>{self.key}"]
        if others:
            memory, stamps = merged([self, *others])
        for token in others:
            clock = max(clock, token.clock)
            way.append(f"{token.origin}>{token.key}")
            for name, times in token.visits.items():
                visits[name] = max(visits.get(name, 0), times)
        visits[node] = visits.get(node, 0) + 1
        key = f"{visits[node]}-{_digest.combine(node, *sorted(way))[:16]}"
        return Token(node, key, memory, self.origin, stamps, clock + 1, visits, entered=True)


def merged(tokens: list[Token]) -> tuple[Written, dict[str, int]]:
    """Merge the memory of several branches: for each key the last write, counted in visits.

    If two writes have the same stamp, the write of the later token wins.
    """
    if len(tokens) == 1:
        return tokens[0].memory, tokens[0].stamps
    memory: Written = {}
    stamps: dict[str, int] = {}
    for token in tokens:
        for key in dict.fromkeys([*token.memory, *token.stamps]):
            stamp = token.stamps.get(key, 0)
            if stamp < stamps.get(key, -1):
                continue
            stamps[key] = stamp
            memory.pop(key, None)
            if key in token.memory:
                memory[key] = token.memory[key]
    return memory, stamps


# -- values ----------------------------------------------------------------------------------------


def copied(items: Mapping[str, Any]) -> Written:
    """Return a deep copy; a value that cannot be copied (a client, a lock) is kept as it is."""
    if _FIXED.issuperset(map(type, items.values())) and _FIXED.issuperset(map(type, items)):
        return dict(items)
    with contextlib.suppress(Exception):
        return copy.deepcopy(dict(items))
    return {key: _copied(value) for key, value in items.items()}


def _copied(value: Any) -> Any:
    with contextlib.suppress(Exception):
        return copy.deepcopy(value)
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; values of different types never are."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) in _ATOMS:
        return bool(one == other)
    return _print_of(one) == _print_of(other)


_ATOMS = (str, bytes, int, bool)
_FIXED = frozenset({*_ATOMS, float, type(None)})  # types of values that need no copy


def _print_of(value: Any) -> object:
    """Return a key that equal values share, or a new object if equality is unknown."""
    with contextlib.suppress(errors.DigestError):
        return _digest.digest(value)
    with contextlib.suppress(errors.NotRecordableError):
        return codec.encode(value, "").data
    return object()


# -- visits ---------------------------------------------------------------------------------------


_UNSEEN = Memory({})  # for nodes whose edges have no conditions


class NodeFailedError(Exception):
    """A node has failed for good; users see the node's own exception instead.

    Args:
        error: the node's own exception.
        calls: the attempts that are to run again when the run resumes.
    """

    def __init__(self, error: Exception, calls: list[int]) -> None:
        super().__init__(error_text(error))
        self.error = error
        self.calls = calls


class _Visit:
    """A visit in progress.

    Attributes:
        answer: the human's answer, at a pause.
        error: the exception of the last attempt, if this process made the attempt.
    """

    def __init__(self, node: Node, token: Token, answer: Written | None = None) -> None:
        self.node, self.token, self.answer = node, token, answer
        self.error: Exception | None = None

    @cached_property
    def attempts(self) -> Attempts:
        """The attempts allowed for the visit, counted from the first failure."""
        node = self.node
        return Attempts(node.retries, node.retry_on, node.backoff, f"node {node.id!r}")


class _NodeStep(host.Step):
    """The step of a node: a listing shows what the node wrote, or how it failed.

    Attributes:
        run: the run that makes the step.
    """

    run: host.HostedRun | None = None
    is_plain = True
    has_siblings = False  # another execution, earlier or parallel, is another run

    def shown_value(self, value: Written) -> host.ShownValue | None:
        """Return what the node wrote, or its error, on one line."""
        shown = value["error"] or value["set"]
        return host.ShownValue(self.run.codec.secrets.preview(shown), {}) if self.run else None


class Visits:
    """Performer of the visits of one execution.

    Args:
        graph: the graph that is executed.
        goal, runtime: passed to the nodes.
        run: ``None`` if nothing is recorded.

    Attributes:
        retries: how many attempts followed failed ones, by node.
    """

    def __init__(self, graph: Graph, goal: Any, runtime: Any, run: host.HostedRun | None) -> None:
        self.retries: dict[str, int] = {}
        self._graph, self._goal, self._runtime = graph, goal, runtime
        self._run = run
        self._open: dict[str, _Visit] = {}
        self._steps: dict[str, host.Step] = {}
        self._pattern = _NodeStep(self._execute, kind="step")
        self._pattern.run = run
        self._answers: dict[str, host.Step] = {}
        if run is not None and not run.is_new:  # the versions of completed nodes are compared
            for node in graph.nodes:
                self._step_of(node.id)

    async def visit(self, token: Token) -> Written:
        """Execute a node until an attempt succeeds; return its writes and the nodes that follow.

        Raises:
            NodeFailedError: no attempt is left, and no ``on_failure`` edge leads on.
        """
        visit = self._open[token.key] = _Visit(self._node(token.node), token)
        calls, failed = list[int](), Written()
        try:
            while True:
                record: Written = await self._attempt(token, len(calls) + 1)
                if failed:  # failed attempts count as well
                    costs = {cost: failed[cost] + record[cost] for cost in ("tokens", "ms")}
                    record = {**record, **costs}
                if record["error"] is None:
                    return record
                calls.append(record["call"])
                error = visit.error or self._met_again(visit, record)
                if record["until"] is None:
                    if record["next"]:
                        return record
                    raise NodeFailedError(error, calls)
                self.retries[token.node] = self.retries.get(token.node, 0) + 1
                await asyncio.sleep(max(0.0, record["until"] - time.time()))
                visit.error, failed = None, record
        finally:
            del self._open[token.key]

    def _node(self, node_id: str) -> Node:
        node = self._graph.get_node(node_id)
        if node is None:
            run_id = self._run.run_id if self._run is not None else ""
            raise errors.CodeChangedError(
                f"run {run_id!r} is to resume at node {node_id!r}, which graph "
                f"{self._graph.name!r} no longer has. Bring it back, or start over: "
                f"stepwise forget {shell_word(run_id)}",
                run_id=run_id,
            )
        return node

    async def _attempt(self, token: Token, number: int) -> Any:
        if self._run is None:
            return await self._execute(token.key, number)
        step = self._steps.get(token.node) or self._step_of(token.node)
        try:
            return await host.call(step, (token.key, number), branch=token.key)
        finally:
            # Each attempt numbers its calls from 1, as if another process made the attempt.
            self._run.count_anew(token.key)

    def _step_of(self, node_id: str) -> host.Step:
        """Return the step of a node; all nodes share one function, which is examined once."""
        step = copy.copy(self._pattern)
        step.name, step.coded_by = node_id, self._node(node_id).function
        step.returns, step._bindings = self._pattern.returns, self._pattern._bindings
        step._make_known()
        self._steps[node_id] = step
        return step

    async def _execute(self, visit: str, attempt: int) -> Any:
        """Make one attempt, on a copy of the memory."""
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
        """Return the next nodes, or ``None`` if a condition raises although the node succeeded."""
        if not self._graph.asks(token.node):
            return self._graph.following(token.node, _UNSEEN)
        try:
            return self.follow(token.wrote(record))
        except Exception:  # follow() evaluates the condition again, and raises
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
        secrets = self._run.codec.secrets if self._run is not None else NO_SECRETS
        told = f"{type(error).__name__}: {secrets.cleaned_text(error_text(error))}"
        record["error"] = told
        record["until"] = time.time() + delay if delay is not None else None
        record["call"] = 0
        if delay is None:
            record["next"] = self._graph.following_failure(visit.node.id)
            record["set"] = {"failure": {"node": visit.node.id, "error": told}}
        run = self._run
        if run is not None:
            encoded = run.codec.encode_error(error)
            record["raised"], record["call"] = (encoded.data, encoded.form), host.call_number()
            if not record["next"]:  # retried: finished tool calls stay done
                await run.retry_attempt(error)
        return record

    def _met_again(self, visit: _Visit, record: Written) -> Exception:
        """Return the exception of an attempt in an earlier process; count the attempt as made."""
        assert self._run is not None
        error = self._run.codec.decode_error(*record["raised"])
        assert isinstance(error, Exception)
        if record["until"] is not None:
            visit.attempts.next_delay(error)
        return error

    def forget(self, calls: list[int]) -> None:
        """Forget these attempts as the run ends, so that a resume makes them again."""
        if self._run is not None:
            self._run.retry_calls(*calls)

    # -- answers ---------------------------------------------------------------------------------

    async def answer(self, token: Token, answer: Written | None) -> Written | None:
        """Return a human's answer at a pause, or ``None`` if the answer is missing.

        Args:
            answer: the answer offered now; a recorded answer takes precedence.
        """
        node = self._node(token.node)
        self._open[token.key] = _Visit(node, token, answer)
        try:
            if self._run is None:
                return self._answered(token.key) if answer is not None else None
            step = self._answers.get(node.id)
            if step is None:
                name = f"{node.id}: answer"
                step = self._answers[node.id] = host.Step(self._answered, kind="step", name=name)
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
        self._make = make  # a captured variable would be part of the call
        step = host.Step(self._began_with, kind="step", name="began_with")
        return await host.call(step, ())

    def _began_with(self) -> Any:
        return self._make()


# -- walk -----------------------------------------------------------------------------------------


class Paused(BaseException):
    """A human has to answer first.  The run does not end, hence this is no ``Exception``."""


class Answer:
    """A human's answer, and the key of the visit whose pause it answers."""

    def __init__(self, data: Written, visit: str) -> None:
        self.data, self.visit = data, visit
        self.used = False


class _Finished(NamedTuple):
    """The result of a visit: its writes, its answer, its exception, and whether it pauses."""

    record: Written | None = None
    answer: Written | None = None
    error: BaseException | None = None
    pauses: bool = False


class Walk:
    """The branches of one execution, and the work done so far.

    Args:
        graph: the graph to walk.
        visits: performs the visits.
        answer: the human's answer, if there is one.
        visited: called after each visit; a checkpoint can be taken in the call.

    Attributes:
        run_id: id of the run; empty if nothing is recorded.
        recovered: number of nodes at the checkpoint where the run resumed; ``None`` if it did not.
    """

    run_id = ""
    recovered: int | None = None

    def __init__(
        self,
        graph: Graph,
        visits: Visits,
        answer: Answer | None,
        visited: Callable[[Walk, Token], None],
    ) -> None:
        self._graph, self.visits = graph, visits
        self._answer = answer
        self._visited = visited
        self._ready: list[Token] = []  # arrived, not entered; or entered by an earlier process
        self._joining: list[Token] = []  # arrived at a join
        self._paused: list[Token] = []
        self._ended: list[Token] = []
        self._failed: list[tuple[Token, Exception]] = []
        self._halted: list[Token] = []  # by an exit, a Ctrl-C, or another end of the run
        self._calls: list[int] = []
        self._tasks: dict[asyncio.Task[_Finished], Token] = {}
        self._bell: asyncio.Future[None] | None = None  # rung when a task ends
        self._stopped: BaseException | None = None
        self._trail: list[tuple[int, int, str]] = []  # clock, place in the graph, node; sorted
        self.path: list[str] = []  # the nodes of the trail
        self._straight = True  # there was one branch: the path alone tells the order
        self._failures: list[str] = []
        self.tokens = 0
        self.latency_ms = 0

    # -- where it is -----------------------------------------------------------------------------

    def begin(self, state: Mapping[str, Any]) -> None:
        """Place the walk at the entry of the graph, or where it was at :meth:`session`."""
        if "frontier" not in state:
            self._ready = [Token(self._graph.entry, "", state["memory"], stamps={}, visits={})]
            return
        self._ready = [
            Token(**{**each, "memory": state["memory"]} if each["memory"] is None else each)
            for each in state["frontier"]
        ]
        self._ended = [Token(**each) for each in state["ended"]]
        trail = state["trail"]
        if trail is None:
            trail = enumerate(state["execution_path"], 1)
        self._trail, self.path, self._straight = [], [], True
        for clock, node in trail:
            self._note(clock, node)
        self.visits.retries = dict(state["retries"])
        self._failures = list(state["failures"])
        self.tokens, self.latency_ms = state["total_tokens"], state["total_latency_ms"]

    def session(self) -> Written:
        """Return the session state from which another call continues.

        A visit that has not ended counts as not made.
        """
        tokens = self._frontier()
        frontier = [token._asdict() for token in tokens]
        if len(frontier) == 1 and not self._ended:
            frontier[0]["memory"] = None  # equal to the whole memory
        paused = self.paused_at
        return {
            "memory": self._merged([*self._ended, *tokens]),
            "frontier": frontier,
            "ended": [token._asdict() for token in self._ended],
            "trail": None if self._straight else [[c, node] for c, _, node in self._trail],
            "retries": dict(self.visits.retries),
            "failures": list(self._failures),
            "total_tokens": self.tokens,
            "total_latency_ms": self.latency_ms,
            "run_id": self.run_id,
            "execution_path": list(self.path),
            "resume_from": next((token.node for token in tokens if not token.paused), None),
            "paused_at": paused.node if paused is not None else None,
            "paused_visit": paused.key if paused is not None else None,
        }

    def _frontier(self) -> list[Token]:
        stopped = [*(token for token, _ in self._failed), *self._halted]
        return [*stopped, *self._tasks.values(), *self._ready, *self._joining, *self._paused]

    @property
    def quiet(self) -> bool:
        """True if the state is complete: no visit has begun without ending."""
        return not (self._tasks or self._failed or self._halted)

    @property
    def paused_at(self) -> Token | None:
        """The first pause without an answer, or ``None``."""
        return self._paused[0] if self._paused else None

    @property
    def failures(self) -> list[str]:
        """The nodes that have failed at least once."""
        failed = {
            *self._failures,
            *self.visits.retries,
            *(token.node for token, _ in self._failed),
        }
        return sorted(failed, key=self._graph.order)

    @property
    def memory(self) -> Written:
        """The merged memory of all branches."""
        return self._merged([*self._ended, *self._frontier()])

    def _merged(self, tokens: list[Token]) -> Written:
        if len(tokens) > 1:
            tokens.sort(key=self._place)
        return dict(merged(tokens)[0]) if tokens else {}

    def _place(self, token: Token) -> tuple[int, int, str]:
        order = self._graph.order
        return order(token.origin), order(token.node), token.key

    # -- moving ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Visit nodes until nothing more can be done.

        Raises:
            Paused: a human has to answer first.
            Exception: of the first node that failed for good, after the other branches have ended.
        """
        try:
            while True:
                if self._stopped is None:
                    self._start()
                if not self._tasks:
                    break
                # asyncio.wait would take another turn of the event loop.
                self._bell = asyncio.get_running_loop().create_future()
                await self._bell
                done = [task for task in self._tasks if task.done()]
                if done[1:]:
                    done.sort(key=lambda each: self._place(self._tasks[each]))
                for task in done:
                    self._finish(self._tasks.pop(task), task.result())
        finally:
            await self._cancel()
        if self._stopped is not None:
            raise self._stopped
        if self._failed:
            self.visits.forget(self._calls)
            raise self._failed[0][1]
        if self._paused:
            raise Paused

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        ready, self._ready = self._ready, []
        for token in ready:
            node = self._graph.get_node(token.node)
            if node is not None and node.join and not token.entered:
                self._joining.append(token)
            else:
                self._spawn(token.enter())
        if not self._joining:
            return
        for target in sorted({token.node for token in self._joining}, key=self._graph.order):
            others = [token for token in self._frontier() if token.node != target]
            if not any(self._graph.reaches(token.node, target) for token in others):
                self._join(target)
        if self._joining and not (self._tasks or self._paused or self._failed):
            # These joins wait for one another: the first in the order of the graph goes first.
            self._join(min((token.node for token in self._joining), key=self._graph.order))

    def _join(self, target: str) -> None:
        met = sorted((t for t in self._joining if t.node == target), key=self._place)
        self._joining = [token for token in self._joining if token.node != target]
        self._spawn(met[0].enter(met[1:]))

    def _spawn(self, token: Token) -> None:
        if not token.paused and len(self._trail) + len(self._tasks) >= self._graph.max_steps:
            error = errors.StepwiseError(
                f"graph {self._graph.name!r} has taken its {self._graph.max_steps} steps and is "
                f"not done; next would be {token.node!r}. If that is no endless loop, give it a "
                "higher max_steps"
            )
            self._failed.append((token, error))
            return
        task = asyncio.get_running_loop().create_task(self._visit(token), name=token.node)
        task.add_done_callback(self._over)
        self._tasks[task] = token

    def _over(self, task: asyncio.Task[_Finished]) -> None:
        """Wake the walk for a task that was cancelled before it began."""
        if task in self._tasks:
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _visit(self, token: Token) -> _Finished:
        """Visit a node in a separate task, so that a failing branch disturbs no other."""
        record: Written | None = None
        pauses = False
        try:
            if not token.paused:
                record = await self.visits.visit(token)
            node, is_done = self._graph.get_node(token.node), not (record and record["error"])
            pauses = node is not None and node.pause and is_done
            if not pauses:
                return _Finished(record)
            if record is not None:
                token = token.wrote(record)
            offered = self._answer
            mine = offered.data if offered is not None and offered.visit == token.key else None
            return _Finished(record, await self.visits.answer(token, mine), pauses=True)
        except BaseException as error:  # raised by run(), once the other branches have ended
            return _Finished(record, error=error, pauses=pauses)
        finally:
            self._ring()  # the task is done by the time run() looks

    def _finish(self, token: Token, finished: _Finished) -> None:
        record, error = finished.record, finished.error
        if record is not None:
            self._note(token.clock, token.node)
            self.tokens += record["tokens"]
            self.latency_ms += record["ms"]
            if record["error"] is not None:
                self._failures.append(token.node)
            token = token.wrote(record, paused=finished.pauses)
        if isinstance(error, NodeFailedError):
            self._calls += error.calls
            self._failed.append((token, error.error))
        elif isinstance(error, Exception):
            self._failed.append((token, error))
        elif error is not None:
            self._halted.append(token)
            self._stop(error)
        else:
            self._go_on(token, finished)

    def _note(self, clock: int, node_id: str) -> None:
        self._straight = self._straight and clock == len(self._trail) + 1
        place = (clock, self._graph.order(node_id), node_id)
        at = bisect.bisect(self._trail, place)
        self._trail.insert(at, place)
        self.path.insert(at, node_id)

    def _go_on(self, token: Token, finished: _Finished) -> None:
        last = finished.answer if token.paused else finished.record
        if last is None:
            self._paused.append(token)
        else:
            if finished.answer is not None:
                token = token.wrote(finished.answer)
                if self._answer is not None and self._answer.visit == token.key:
                    self._answer.used = same(finished.answer["set"], self._answer.data)
            try:
                following = last["next"]
                if following is None:
                    following = self.visits.follow(token)
            except Exception as error:
                self._failed.append((token, error))
                return
            self._ready += [token.to(target) for target in following]
            if not following:
                self._ended.append(token)
        self._visited(self, token)

    def _stop(self, error: BaseException) -> None:
        if self._stopped is None:
            self._stopped = error
        if isinstance(error, (KeyboardInterrupt, SystemExit, asyncio.CancelledError)):
            for task in self._tasks:
                task.cancel()


# -- execution ------------------------------------------------------------------------------------


_PAUSE = "graph/pause"
_ORDER = "its", "nobody's", "another's"
_SESSION = ("run_id", "memory", "frontier", "paused_visit")


@dataclass
class Execution:
    """One call of an executor.

    Args:
        graph, goal, runtime, manager: as the caller gave them.
        kind: the kind of executor.
        given: the input, or the answer of a human.
        session: the ``session_state`` of an earlier call.
    """

    graph: Graph
    goal: Any
    runtime: Any
    manager: CheckpointManager | None
    kind: ExecutorType
    given: Mapping[str, Any] | None
    session: Mapping[str, Any]

    async def run(self) -> ExecutionResult:
        """Begin the execution, or resume it."""
        self.data = dict(self.given or {})
        visit = self.session.get("paused_visit") if self.given is not None else None
        self.answer = Answer(self.data, visit) if visit else None
        if self.manager is None or not self.manager.config.enabled:
            visits = Visits(self.graph, self.goal, self.runtime, None)
            walk = Walk(self.graph, visits, self.answer, lambda *_: None)
            walk.begin(self.beginning())
            return await result_of(walk, walk.run())
        run = self._open(self.manager)
        if isinstance(run, host.Recall):
            result = ExecutionResult(**run.value)
        else:
            result = await _RecordedWalk(self, run, self.manager).execute()
        if result.status == "completed" and not self.session.get("run_id"):
            host.count_completed(self.manager.storage, result.run_id)
        if self.answer is not None and not self.answer.used and not isinstance(run, host.Recall):
            notice(
                f"{result.run_id}: that pause was answered before, and the first answer counts; "
                "check paused_at before you answer"
            )
        return result

    def beginning(self) -> Written:
        """Return the initial data of a new execution: a memory, or a session state."""
        if self.session.get("frontier") is not None:
            return dict(self.session)
        return {"memory": copied({**self.session.get("memory", {}), **self.data})}

    # -- which run -------------------------------------------------------------------------------

    def _open(self, manager: CheckpointManager) -> host.Recall | host.HostedRun:
        digest = digest_of(self.goal, self.data)
        graph, parts = self.graph, host.HeldParts(self._functions(), set(self.graph.ignore))
        function = next((n.function for n in graph.nodes if n.function is not None), None)
        module = getattr(function, "__module__", None) or __name__
        program = host.program_of(Execution.run, graph.name, module=module, code=graph.fingerprint)
        store = host.HostStore(manager.storage)
        run_id = given = self.session.get("run_id", "")
        if not given:
            run_id = _derived(store, program, parts, digest)
        facts = store.facts(run_id)
        if facts is not None:
            recovers = manager.config.auto_recovery or facts.status == "completed" or self.session
            if not recovers:
                raise errors.ConfigurationError(
                    f"run {run_id!r} is unfinished, and auto_recovery=False. To resume it, call "
                    "execute(..., session_state={'run_id': " + repr(run_id) + "}), or with "
                    "the to_session_state() of a checkpoint; to start over: stepwise forget "
                    + shell_word(run_id)
                )
            if self.given is None or self.session.keys() - {"run_id"}:
                # The call brings a state or an answer instead of an input.
                digest = facts.digest
        bound = {"goal": self.goal, "input_data": self.data}
        return host.open_run(
            program, manager.storage, run_id, bound, digest, parts=parts, explicit=bool(given)
        )

    def _functions(self) -> dict[str, Any]:
        functions = {f"node {node.id!r}": node.function for node in self.graph.nodes}
        for edge in self.graph.edges:
            functions[f"edge {f'{edge.source} -> {edge.target}'!r}"] = edge.when
        return {where: function for where, function in functions.items() if function is not None}


def _derived(
    store: host.HostStore, program: host.HostProgram, parts: host.HeldParts, digest: str
) -> str:
    """Return the id of a run: the first id of this input that was not handed out here.

    The id is derived from the graph's name and the input.  If that run belongs to a graph whose
    nodes hold other values, these values become part of the id as well.
    """
    names = program.full_name, *program.other_names
    for nth in itertools.count(1):
        number = f"-{nth}" if nth > 1 else ""
        found = []
        for digests in dict.fromkeys([(digest,), (digest, *parts.digests())]):
            ids = [host.derived_id(name, program.label, *digests) + number for name in names]
            found.append(_known(store, program, parts, ids))
        # An existing run comes first, then an id that no other run has.
        _, run_id = min(found, key=lambda each: _ORDER.index(each[0]))
        if not host.completed_here(store.store, run_id):
            return run_id
    raise AssertionError


def _known(
    store: host.HostStore, program: host.HostProgram, parts: host.HeldParts, ids: Sequence[str]
) -> tuple[str, str]:
    """Return the id under which the run exists, else the first id, after a word for its owner.

    The word says whether the run under the id is this graph's (``its``), nobody's or another's.
    """
    names, whose = (program.full_name, *program.other_names), "nobody's"
    for name, run_id in zip(names, ids, strict=True):
        facts = store.facts(run_id) if store.store.head(run_id) else None
        if facts is None:
            continue
        if parts.differing(facts.parts):
            whose = "another's" if name == names[0] else whose
        elif name == names[0] or store.is_of_file(facts, names, program.file):
            return "its", run_id
    return whose, ids[0]


async def result_of(walk: Walk, walking: Awaitable[Any]) -> ExecutionResult:
    """Await a walk; return the result, also if it paused or a node failed for good."""
    try:
        await walking
    except Paused:
        return _result(walk)
    except Exception as error:
        return _result(walk, error)
    return _result(walk)


def _result(walk: Walk, error: Exception | None = None) -> ExecutionResult:
    paused = walk.paused_at.node if walk.paused_at is not None and error is None else None
    status: Literal["completed", "failed", "paused"] = "paused" if paused else "completed"
    retries = dict(walk.visits.retries)
    return ExecutionResult(
        success=error is None,
        status="failed" if error is not None else status,
        run_id=walk.run_id,
        output=walk.memory,
        error=f"{type(error).__name__}: {error_text(error)}" if error is not None else None,
        exception=error,
        path=list(walk.path),
        steps_executed=len(walk.path),
        paused_at=paused,
        session_state=walk.session() if paused or error is not None else {},
        recovered_from_step=walk.recovered,
        total_tokens=walk.tokens,
        total_latency_ms=walk.latency_ms,
        total_retries=sum(retries.values()),
        retry_details=retries,
        nodes_with_failures=walk.failures,
    )


class _RecordedWalk:
    """A walk that is recorded, and resumes at the newest checkpoint.

    Nodes get copies of the memory, so they cannot change the caller's values.
    """

    def __init__(self, call: Execution, run: host.HostedRun, manager: CheckpointManager) -> None:
        self._call, self._run, self._manager = call, run, manager
        self._visits = Visits(call.graph, call.goal, call.runtime, run)
        self._walk = Walk(call.graph, self._visits, call.answer, self._visited)
        self._walk.run_id = run.run_id

    async def execute(self) -> ExecutionResult:
        """Execute the walk to its end, or to its next pause."""
        walking = self._run.execute(self._walk_on, idle=1)  # visits are separate tasks
        return await result_of(self._walk, walking)

    async def _walk_on(self) -> Any:
        """Visit the remaining nodes."""
        if self._run.is_new or not self._recover():
            self._walk.begin(await self._visits.beginning(self._beginning))
        try:
            await self._walk.run()
        except Paused:
            token = self._walk.paused_at
            assert token is not None
            self._run.put(_PAUSE, {"at": token.node, "visit": token.key}, durable=True)
            raise
        return dict(vars(_result(self._walk)))

    def _beginning(self) -> Written:
        if not self._run.is_new and self._call.answer is not None:
            raise errors.ConfigurationError(
                f"the records of how run {self._run.run_id!r} began cannot be read; call it "
                "with its first input before you answer"
            )
        return self._call.beginning()

    # -- resuming --------------------------------------------------------------------------------

    def _recover(self) -> bool:
        """Move to the newest checkpoint; later records answer the visits after the checkpoint."""
        run = self._run
        # A checkpoint without a place was taken beside a node in progress, and needs earlier
        # records.
        found = (each for each in self._manager.newest_first(run.run_id) if each[1] is not None)
        checkpoint = run.resume_at_newest(found, "node")
        if checkpoint is not None:
            self._walk.begin(checkpoint.to_session_state())
            told = f"resumes after {count(checkpoint.step_number, 'node')}"
        else:
            told = run.resume_from_start()
        self._walk.recovered = done = checkpoint.step_number if checkpoint is not None else 0
        run.record_resumed(
            told,
            done,
            if_changed="the graph has changed since the run began; done nodes stay done, and the "
            "new graph decides what follows",
        )
        return checkpoint is not None

    # -- checkpoints -----------------------------------------------------------------------------

    def _visited(self, walk: Walk, token: Token) -> None:
        config = self._manager.config
        if not self._manager.should_checkpoint(len(walk.path)):
            return
        if config.keep == 1 and not walk.quiet:
            return  # must not replace a checkpoint that can resume
        run_id = self._run.run_id
        context = walk.session()
        memory, path = context.pop("memory"), context.pop("execution_path")
        graph = self._call.kind is ExecutorType.GRAPH
        checkpoint = {  # the fields of a GraphCheckpoint, in their order
            "id": os.urandom(16).hex(),
            "run_id": run_id,
            "created_at": now(),
            "executor_type": "graph" if graph else "flexible",
            "current_node_id": token.node if graph else None,
            "current_step_id": None if graph else token.node,
            "next_node_id": context["resume_from"],
            "memory_snapshot": memory,
            "execution_path": path,
            "step_number": len(path),
            "total_tokens": walk.tokens,
            "total_latency_ms": walk.latency_ms,
            "context": context,
        }
        place = self._run.state() if walk.quiet else None
        self._manager.save_if_possible(checkpoint, place)


def check_session(session: Mapping[str, Any]) -> None:
    """Refuse a session state without a known key.

    Raises:
        ConfigurationError: the state has no known key, or its run id is not a string.
    """
    if session and not any(key in session for key in _SESSION):
        raise errors.ConfigurationError(
            f"session_state has the keys {', '.join(map(repr, session))}, and none is known: "
            "give the session_state of a result, the to_session_state() of a checkpoint, or "
            "{'run_id': ...}"
        )
    if session.get("run_id"):  # empty in results of executions without a manager
        check_values("session_state", run_id=session["run_id"])


def session_for(
    manager: CheckpointManager, run_id: str, goal: Any, given: Mapping[str, Any] | None
) -> Written:
    """Return the session of a run by its id.

    If ``given`` is not the run's input, it answers the run's last pause.
    """
    session: Written = {"run_id": run_id}
    store = host.HostStore(manager.storage)
    facts = store.facts(run_id)
    if given is None or facts is None or facts.digest == digest_of(goal, given):
        return session
    try:
        pause, _ = store.get(run_id, _PAUSE)
    except host.DamagedError:  # the run never paused: the input differs
        return session
    return {**session, "paused_at": pause["at"], "paused_visit": pause["visit"]}


def digest_of(goal: Any, given: Mapping[str, Any]) -> str:
    """Return the digest that tells two executions of a graph apart.

    Raises:
        DigestError: the goal or the input holds a value that is no data; the message says where.
    """
    numbering, parts = _digest.Numbering(), []
    for name, each in (("goal", goal), ("input_data", dict(given))):
        try:
            parts.append(_digest.digest(each, numbering))
        except errors.DigestError as error:
            raise errors.DigestError(
                f"{name}{error.path}: {str(error).rpartition(' (at ')[0] or error}. Give clients "
                "and the like as runtime= to the executor; nodes find them as memory.runtime",
                path=f"{name}{error.path}",
                type_name=error.type_name,
            ) from None
    return _digest.combine(*parts)
