"""The order in which a supervisor begins runs: their moments, queues and turns.

A *plan* says when a run continues.  Runs that were submitted wait in the queue of their workflow,
of which only the next are planned, and begin after those that are in progress.  Runs of a workflow
with ``concurrent=`` also need a turn.  Nothing here decides whether a run begins at all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator

from stepwise._calls.limited import Turn, ask_for_run
from stepwise._runtime import clock
from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.definition import Definition
from stepwise._workflows.handles import Backlog, UnfinishedRun

_DRAWN = 100  # submitted runs of a workflow that are planned; the others stay in the store
Key = tuple[str, str]


class Plan(NamedTuple):
    """The moment at which a run continues.

    Args:
        at: in seconds since 1970; infinite if only a message wakes the run.
        alone: whether the run gets its own process, since it may kill the process.
    """

    run: UnfinishedRun
    at: float
    alone: bool = False


class Agenda:
    """The plans of a supervisor, in the order of their moments; submitted runs come last.

    Attributes:
        plans: the plans, by the key of the run.
    """

    def __init__(self) -> None:
        self.plans: dict[Key, Plan] = {}
        self._continued: list[tuple[float, float, Key]] = []  # a heap: moment, age of the run, run
        self._submitted: list[tuple[float, float, Key]] = []  # the same
        self._moments: set[tuple[float, Key]] = set()  # the moments and runs in the heaps

    @property
    def next(self) -> float:
        """The earliest moment, in seconds since 1970; infinite if there is none."""
        heaps = (heap[0][0] for heap in (self._continued, self._submitted) if heap)
        return min(heaps, default=math.inf)

    def add(self, plan: Plan) -> None:
        """Add a plan, in place of the one that the run has."""
        key = plan.run.key
        self.plans[key] = plan
        if plan.at < math.inf and (plan.at, key) not in self._moments:
            self._moments.add((plan.at, key))
            heap = self._submitted if plan.run.facts.is_submitted else self._continued
            heapq.heappush(heap, (plan.at, plan.run.facts.created_at, key))

    def take(self, latest: float) -> Plan | None:
        """Return the next plan whose moment has come, once; the run stays planned."""
        for heap in (self._continued, self._submitted):
            while heap and heap[0][0] <= latest:
                at, _, key = heapq.heappop(heap)
                self._moments.discard((at, key))
                plan = self.plans.get(key)
                if plan is not None and plan.at == at:
                    return plan
        return None

    def clear(self) -> None:
        """Remove all plans."""
        self.plans.clear()
        self._continued.clear()
        self._submitted.clear()
        self._moments.clear()


class Queue:
    """The submitted runs of one workflow in one store, of which only the next are planned.

    Attributes:
        planned: the runs that are planned.
        has_more: whether there may be others behind them.
    """

    def __init__(self, backlog: Backlog, names: tuple[str, ...]) -> None:
        self._backlog, self._names = backlog, names
        self.planned: dict[Key, UnfinishedRun] = {}
        self.has_more = False

    def is_full(self) -> bool:
        """Return whether as many runs as are planned are due, so that others need no look."""
        last = next(reversed(self.planned.values()), None)
        return self.has_more and last is not None and last.until <= clock.now()

    def draw(self, is_planned: Callable[[UnfinishedRun], bool]) -> None:
        """Look for the next runs.

        Args:
            is_planned: returns whether a run is to be planned at all.
        """
        found = filter(is_planned, self._backlog.submitted(self._names))
        self.planned = {run.key: run for run in itertools.islice(found, _DRAWN)}
        self.has_more = len(self.planned) == _DRAWN


class Turns:
    """The runs that wait for the turn of their workflow, which has ``concurrent=``.

    Args:
        ring: called when a turn is decided; by another thread.
        behind: how many seconds the time of day is behind the monotonic clock; fixed, so that the
            order of moments stays.

    Attributes:
        asked: the runs that have asked, with their plans and turns.
    """

    def __init__(self, ring: Callable[[], None], behind: float) -> None:
        self._ring, self._behind = ring, behind
        self.asked: dict[Key, tuple[Plan, Turn]] = {}
        self._held: list[Plan] = []  # runs that ask for their turn once others have theirs

    def ask(self, plan: Plan, workflow: Definition, most: int) -> bool:
        """Ask for the turn of a run; return ``False``, and hold the plan, if enough others ask.

        Args:
            most: how many runs of the workflow ask at the same time.
        """
        run, at_once = plan.run, workflow.options.concurrent
        assert at_once is not None
        names = (each.run.facts.workflow for each, _ in self.asked.values())
        if sum(name == run.facts.workflow for name in names) >= most:
            self._held.append(plan)
            return False
        since, place = plan.at + self._behind, (run.store, run.seal)
        turn = ask_for_run(place, workflow.full_name, at_once, run.facts.run_id, self._ring, since)
        self.asked[run.key] = plan, turn
        return True

    def decided(self) -> Iterator[tuple[Plan, Turn]]:
        """Yield the runs whose turn is granted or has failed, and remove them."""
        for key, (plan, turn) in list(self.asked.items()):
            if turn.granted or turn.error:
                del self.asked[key]
                yield plan, turn

    def held(self) -> list[Plan]:
        """Return the plans that were held, and remove them: these runs may ask now."""
        held, self._held = self._held, []
        return held

    def leave(self) -> None:
        """Give up all turns that were asked for."""
        for _, turn in self.asked.values():
            turn.desk.leave(turn)
