"""One execution of a graph: branches that move along its edges, side by side.

What a branch sees is made by the way it took, never by how fast the others were: it carries its own
memory, and a join merges those that meet.  So an execution that is resumed sees what an undisturbed
one would have seen.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Mapping
from typing import Any

from stepwise.errors import StepwiseError
from stepwise.graph._model import Graph
from stepwise.graph._tokens import Token, Written, merged, same
from stepwise.graph._visits import NodeFailedError, Visits

__all__ = ["Answer", "Paused", "Walk"]


class Paused(BaseException):
    """A human is to answer first.  Not an end of the run, hence no ``Exception``."""


class Answer:
    """A human's answer, and the key of the pause's visit that it is meant for."""

    def __init__(self, data: Written, visit: str) -> None:
        self.data, self.visit = data, visit
        self.used = False

    def take(self, token: Token) -> Written | None:
        """The answer, if it is meant for this pause."""
        return self.data if self.visit == token.key else None


class _Finished:
    """The result of a visit: its writes, its answer, its exception."""

    record: Written | None = None
    answer: Written | None = None
    error: BaseException | None = None


class Walk:
    """The branches of one execution, and what it has done so far.

    Args:
        visits: performs them.
        answer: of a human, if there is one.
        visited: called after each visit; a checkpoint can be taken in it.
    """

    def __init__(
        self,
        graph: Graph,
        visits: Visits,
        answer: Answer | None,
        visited: Callable[[Walk, Token], None],
    ) -> None:
        self._graph, self._visits = graph, visits
        self._answer = answer
        self._visited = visited
        self._ready: list[Token] = []  # arrived, not entered; or entered by an earlier process
        self._joining: list[Token] = []  # arrived at a join
        self._paused: list[Token] = []
        self._ended: list[Token] = []
        self._failed: list[tuple[Token, Exception]] = []
        self._halted: list[Token] = []  # by an exit, a Ctrl-C, or what stops the run
        self._calls: list[int] = []
        self._tasks: dict[asyncio.Task[_Finished], Token] = {}
        self._bell: asyncio.Future[None] | None = None  # rung when a task ends
        self._stopped: BaseException | None = None
        self._trail: list[tuple[int, int, str]] = []  # clock, place in the graph, node; sorted
        self._path: list[str] = []  # its nodes
        self._straight = True  # there was one branch: its path says it all
        self._failures: list[str] = []
        self.tokens = 0
        self.latency_ms = 0

    # -- where it is -----------------------------------------------------------------------------

    def begin(self, memory: Written) -> None:
        """Be at the entry."""
        self._ready = [Token(self._graph.entry, "", memory, stamps={}, visits={})]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be where :meth:`session` was asked."""
        self._ready = [
            Token(**{**each, "memory": state["memory"]} if each["memory"] is None else each)
            for each in state["frontier"]
        ]
        self._ended = [Token(**each) for each in state["ended"]]
        trail = state["trail"]
        if trail is None:
            trail = enumerate(state["execution_path"], 1)
        self._trail, self._path, self._straight = [], [], True
        for clock, node in trail:
            self._note(clock, node)
        self._visits.retries = dict(state["retries"])
        self._failures = list(state["failures"])
        self.tokens, self.latency_ms = state["total_tokens"], state["total_latency_ms"]

    def session(self, run_id: str) -> Written:
        """Return the session state from which another call continues.

        A visit that has not ended counts as not made.
        """
        tokens = self._frontier()
        frontier = [token._asdict() for token in tokens]
        if len(frontier) == 1 and not self._ended:
            frontier[0]["memory"] = None  # it is all the memory that there is
        paused = self.paused_at
        return {
            "memory": self._merged([*self._ended, *tokens]),
            "frontier": frontier,
            "ended": [token._asdict() for token in self._ended],
            "trail": None if self._straight else [[c, node] for c, _, node in self._trail],
            "retries": dict(self._visits.retries),
            "failures": list(self._failures),
            "total_tokens": self.tokens,
            "total_latency_ms": self.latency_ms,
            "run_id": run_id,
            "execution_path": self.path,
            "resume_from": next((token.node for token in tokens if not token.paused), None),
            "paused_at": paused.node if paused is not None else None,
            "paused_visit": paused.key if paused is not None else None,
        }

    def _frontier(self) -> list[Token]:
        stopped = [*(token for token, _ in self._failed), *self._halted]
        return [*stopped, *self._tasks.values(), *self._ready, *self._joining, *self._paused]

    @property
    def quiet(self) -> bool:
        """True if the state holds all that was done: no visit has begun without an end."""
        return not (self._tasks or self._failed or self._halted)

    @property
    def steps(self) -> int:
        """Return the number of visits."""
        return len(self._trail)

    @property
    def path(self) -> list[str]:
        """Return the visited nodes; those of several branches in the order of the graph."""
        return list(self._path)

    @property
    def paused_at(self) -> Token | None:
        """The first pause without an answer."""
        return self._paused[0] if self._paused else None

    @property
    def failures(self) -> list[str]:
        """The nodes that have failed at least once."""
        failed = {
            *self._failures,
            *self._visits.retries,
            *(token.node for token, _ in self._failed),
        }
        return sorted(failed, key=self._graph.order)

    @property
    def retries(self) -> dict[str, int]:
        """Return how many attempts followed failed ones, by node."""
        return dict(self._visits.retries)

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

    def _place_of(self, task: asyncio.Task[_Finished]) -> tuple[int, int, str]:
        return self._place(self._tasks[task])

    # -- moving ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Visit node after node until nothing more can be done.

        Raises:
            Paused: a human is asked.
            Exception: of the first node that failed for good, after the other branches have ended.
        """
        try:
            while True:
                if self._stopped is None:
                    self._start()
                if not self._tasks:
                    break
                # Not asyncio.wait, which takes another turn of the event loop.
                self._bell = asyncio.get_running_loop().create_future()
                await self._bell
                done = [task for task in self._tasks if task.done()]
                for task in sorted(done, key=self._place_of) if done[1:] else done:
                    self._finish(self._tasks.pop(task), task.result())
        finally:
            await self._cancel()
        if self._stopped is not None:
            raise self._stopped
        if self._failed:
            self._visits.forget(self._calls)
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
            # Joins that wait for one another: the first of the graph goes first.
            self._join(min((token.node for token in self._joining), key=self._graph.order))

    def _join(self, target: str) -> None:
        met = sorted((t for t in self._joining if t.node == target), key=self._place)
        self._joining = [token for token in self._joining if token.node != target]
        self._spawn(met[0].enter(met[1:]))

    def _spawn(self, token: Token) -> None:
        if not token.paused and len(self._trail) + len(self._tasks) >= self._graph.max_steps:
            error = StepwiseError(
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
        """Have a task looked at that was cancelled before it began."""
        if task in self._tasks:
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _visit(self, token: Token) -> _Finished:
        """In a task of its own, so that a branch that fails disturbs no other."""
        finished = _Finished()
        try:
            if not token.paused:
                finished.record = await self._visits.visit(token)
                if finished.record["error"] is not None:
                    return finished
            node = self._graph.get_node(token.node)
            if node is not None and node.pause:
                if finished.record is not None:
                    token = token.wrote(finished.record)
                offered = self._answer.take(token) if self._answer is not None else None
                finished.answer = await self._visits.answer(token, offered)
        except BaseException as error:  # raised by run(), once the others have ended
            finished.error = error
        self._ring()  # the task is done when run() looks
        return finished

    def _finish(self, token: Token, finished: _Finished) -> None:
        record, error = finished.record, finished.error
        if record is not None:
            token = self._visited_once(token, record)
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

    def _visited_once(self, token: Token, record: Written) -> Token:
        self._note(token.clock, token.node)
        self.tokens += record["tokens"]
        self.latency_ms += record["ms"]
        if record["error"] is not None:
            self._failures.append(token.node)
        node = self._graph.get_node(token.node)
        pauses = node is not None and node.pause and record["error"] is None
        return token.wrote(record, paused=pauses)

    def _note(self, clock: int, node_id: str) -> None:
        self._straight = self._straight and clock == len(self._trail) + 1
        place = (clock, self._graph.order(node_id), node_id)
        at = bisect.bisect(self._trail, place)
        self._trail.insert(at, place)
        self._path.insert(at, node_id)

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
                    following = self._visits.follow(token)
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
