"""``stepwise up``: the supervisor of unfinished runs, which decides which run continues, and when.

An engine executes the run; see :mod:`.engines`.

A process continues runs with the code that it imported, and reports that a source file has changed.
Rejected: importing an edited module anew.  Objects of two versions of a class would meet in one
process.

One thread decides, and every event reaches this thread as news: a run that ended, a signal.  The
thread reads the heads of all unfinished runs now and then.  In between, it looks at the bell of
each store and waits for the next due moment.  The records alone say what a run waits for, and how
often its process died.  Any number of supervisors therefore come to the same decisions; the lease
lets only one of them act.

Rejected: executing a run that kills its process while nothing else runs (a run of hours would block
all others).  Rejected: reading every inbox each 15 seconds (4,000 reads a minute for 1,000 runs).

A *plan* says when a run continues.  Runs that were submitted wait in the queue of their workflow,
of which only the next are planned, and begin after those that are in progress.  Runs of a workflow
with ``concurrent=`` also need a turn.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import os
import queue
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from stepwise import errors
from stepwise._calls.limited import Turn, ask_for_run
from stepwise._execution.process_memory import (
    known_workflow,
    known_workflows,
    memory,
    names_of,
    workflows_named,
)
from stepwise._execution.suspension import pending
from stepwise._execution.tasks import drained
from stepwise._journal.journal import newest_mark, read_head
from stepwise._journal.lease import Lease, describe_owner, supervisor_name
from stepwise._journal.logs import QUEUE, Bell
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import DEADLY, deaths_of
from stepwise._runs.maintenance import Retention
from stepwise._runs.run import Run
from stepwise._runs.steps import error_line
from stepwise._runtime import clock, settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import AFTER_SIGTERM
from stepwise._runtime.messages import EX_TEMPFAIL, count
from stepwise._values.preview import error_text, preview
from stepwise._workflows import handles
from stepwise._workflows.definition import Definition, TakesOptions
from stepwise._workflows.engines import WAIT_HERE, Engine, OwnProcess, RunOutput, Threads, Underway
from stepwise._workflows.execute import record_end_of_process
from stepwise._workflows.handles import Backlog, UnfinishedRun
from stepwise._workflows.schedules import Timetable
from stepwise.stores import Store

# -- plans, queues, turns --------------------------------------------------------------------------


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


# -- module files ---------------------------------------------------------------------------------


class ModuleFiles(dict[str, tuple[int, int, int]]):
    """The imported modules' files, watched for changes since the first look: their versions."""

    def look(self) -> list[str]:
        """Return the files that have changed since the last look.

        A missing file, as in the middle of a deployment, is checked again at the next look.
        """
        changed = []
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not file.endswith(".py"):
                continue
            try:
                found = os.stat(file)
            except (OSError, ValueError):
                continue
            version = found.st_mtime_ns, found.st_size, found.st_ino
            if self.setdefault(file, version) != version:
                self[file] = version
                changed.append(file)
        return changed


# -- supervisor -----------------------------------------------------------------------------------


_DRAW_AGAIN = 0.25  # seconds after a ring; a submission may follow another one without a ring
_SCAN = 5.0  # seconds between two looks at all unfinished runs
_BELL = 0.1  # seconds between two looks at the bells
_SET_BACK = 2.0  # seconds by which the clock may be corrected without a new look at everything
_SWEPT = 20  # inboxes that are looked into at each scan, since a ring may be lost
_NAMED = 20  # runs of unknown workflows that are named, beside the first of each workflow
_OWN_TASK = 60.0  # seconds for the task of a submitted run to begin it
_LONGEST = 300.0  # seconds after a death, at most
_RETENTION = 1.0  # seconds for deletions in each store, with ``once``
Kind = Literal[
    "ready", "begun", "ended", "left", "changed", "draining", "problem", "pruned", "schedule"
]


class Happening(NamedTuple):
    """An action or a discovery of the supervisor.

    Args:
        kind: what happened; for ``ended`` and ``left``, ``status`` says more.
        facts: of the run, as it was when the supervisor looked: it may be deleted meanwhile.
        status: of the run at that moment.
        detail: as text.
        command: the command that continues a run that is left, as a list of words.
    """

    kind: Kind
    facts: RunFacts | None = None
    status: str = ""
    detail: str = ""
    command: tuple[str, ...] = ()


class Terms(NamedTuple):
    """The terms on which the supervisor executes runs.

    Args:
        most: how many runs are executed at the same time.
        once: execute only the runs that are due now.
        only: execute only the runs with these ids, even if they died too often; empty for all.
        alone: returns the command that executes one run in its own process.
        continuing: returns the command that continues a run of another program; raises
            :class:`ConfigurationError` if there is none.
        engine: executes the runs; ``None`` for threads of this process.
        until_edited: end once the file of an imported module has changed.
    """

    most: int = 8
    once: bool = False
    only: frozenset[str] = frozenset()
    alone: Callable[[Run], Sequence[str]] = lambda _: ()
    continuing: Callable[[Run], Sequence[str]] = lambda _: ()
    engine: Engine | None = None
    until_edited: bool = False


def stores_for(modules: Sequence[str]) -> list[Store]:
    """Return the stores that may hold runs of the workflows in imported modules.

    Raises:
        ConfigurationError: a module has no workflow; or the store does not outlive a process.
    """
    known = known_workflows()
    for name in modules:
        # Not by an attribute: the proxies of web frameworks raise outside of a request.
        held = any(
            issubclass(type(each), TakesOptions) for each in vars(sys.modules[name]).values()
        )
        places = (f"{each.function.__module__}." for each in known)
        if not held and not any(place.startswith(f"{name}.") for place in places):
            raise errors.ConfigurationError(
                f"module {name!r} has no workflows: name the modules with functions that are "
                "decorated with @workflow"
            )
    first, *others = handles.stores_of(known)
    if not first.persistent:
        raise errors.ConfigurationError(
            f"the store {first.url} is in the memory of one process, so no other process has left "
            "runs there: choose another one with --store or STEPWISE_STORE"
        )
    return [first, *(each for each in others if each.persistent)]


class _LeftAlone(NamedTuple):
    """A run that the supervisor leaves alone until something about the run changes."""

    run: UnfinishedRun
    last: int  # number of its last record; 0 if only its head counts


class Supervisor:
    """The executor of due runs: until it is stopped, or with ``once`` until all due runs ended.

    Args:
        stores: the stores to look for unfinished runs in.
        report: called with each :class:`Happening`; by several threads.
        output: where the runs print.

    Attributes:
        ends: the status of each run that was executed, by run id.
        deaths: how often the process of a run was found dead, by workflow.
        looked: when the supervisor last looked for due runs, by the monotonic clock.
        most: how many runs are executed at the same time, at most.
    """

    def __init__(
        self,
        stores: Iterable[Store],
        terms: Terms,
        report: Callable[[Happening], None],
        output: RunOutput,
    ) -> None:
        self._backlogs = {store.url: handles.Backlog(store) for store in stores}
        self._queues = [
            Queue(backlog, names)
            for backlog in self._backlogs.values()
            for names in {names_of(each) for each in known_workflows()}
        ]
        self._draws: list[float] = []  # moments, by the monotonic clock, of looks at the queues
        self._terms, self._report = terms, report
        self._bells: dict[str, Bell] = {}
        self._agenda = Agenda()
        self._jobs: dict[Key, Underway] = {}
        self._left: dict[Key, _LeftAlone] = {}
        self._strange: set[str] = set()  # workflows that are not known here
        self._said: set[tuple[Key, str]] = set()
        self._faults: dict[Key, int] = {}  # times in a row that the store failed a run
        self._swept: deque[Key] = deque()
        self._here = Threads(output)
        self._engine: Engine = terms.engine or self._here
        self._apart: Engine = terms.engine or OwnProcess(terms.alone)
        # Not a condition or event: a signal handler of the same thread may put an item.
        self._news: queue.SimpleQueue[Underway | None] = queue.SimpleQueue()
        self._turns = Turns(functools.partial(self._news.put, None), _behind())
        self._announced: dict[Key, Lease] = {}
        self._timetable = Timetable(
            (each.store for each in self._backlogs.values()), self._tell_of_schedule
        )
        self._files = ModuleFiles()
        self._is_edited = False
        self._stops = 0
        self._by_ctrl_c = False
        self._horizon = math.inf
        self._failed = 0
        self._noted = math.inf
        self._died: dict[Key, float] = {}
        self.ends: dict[str, str] = {}
        self.deaths: Counter[str] = Counter()
        self.looked, self.most = time.monotonic(), terms.most
        stores = [each.store for each in self._backlogs.values()]
        self.retention = Retention(stores, lambda what: self._say("pruned", None, what))

    # -- the loop --------------------------------------------------------------------------------

    def stop(self, by: int = signal.SIGTERM) -> None:
        """Begin no further run, and end when the runs in progress have reached a safe point.

        Call again to end at once.  Signal handlers may call this; ``by`` is the signal.
        """
        self._stops += 1
        self._by_ctrl_c = by == signal.SIGINT
        self._news.put(None)

    @property
    def is_stopped(self) -> bool:
        """True if the supervisor begins no further run."""
        return self._is_ending

    @property
    def is_stopped_twice(self) -> bool:
        """True if the supervisor no longer waits for anything."""
        return self._stops > 1

    @property
    def is_executing(self) -> bool:
        """True if runs are still in progress that did not reach a safe point in time."""
        return bool(self._jobs)

    @property
    def slots_in_use(self) -> int:
        """How many runs are being executed."""
        return len(self._jobs)

    def note_due(self, at: float) -> None:
        """Note a moment, in seconds since 1970, at which this command should run again."""
        self._noted = min(self._noted, at)

    @property
    def wake(self) -> float | None:
        """When the next start is due, in seconds since 1970; ``None`` if nothing waits for a time.

        Runs that other processes execute are not considered.
        """
        at = min([self._noted, *(plan.at for plan in self._agenda.plans.values())])
        if not self._terms.only:
            at = min(at, self._timetable.next)
        return None if math.isinf(at) else at

    @property
    def exit_code(self) -> int:
        """The exit code of the process: with ``once``, 1 if a run failed.

        After Ctrl-C the code is 130.  SIGTERM is the usual end of a service, and no failure of it.
        75 asks for a restart, since a module has changed.
        """
        if self._is_edited and not self._by_ctrl_c:
            return EX_TEMPFAIL
        if self._stops and (self._by_ctrl_c or not self._terms.once):
            return 130 if self._by_ctrl_c else 0
        if self._stops:
            return AFTER_SIGTERM
        return int(bool(self._failed))

    @property
    def _is_ending(self) -> bool:
        return self._is_edited or bool(self._stops)

    def run(self) -> None:
        """Execute runs until :meth:`stop`; with ``once``, until all due runs are done."""
        memory.is_executor = True
        settings.suspend_soon(WAIT_HERE)
        self._files.look()
        self._scan()
        self._begin_scheduled(look=True)
        if self._terms.once:
            self._horizon = clock.now() + _SCAN
        if not self._terms.only:
            now, plans = clock.now(), self._agenda.plans.values()
            waiting = sum(p.at > now and p.run.facts.status == "suspended" for p in plans)
            due = count(len(plans) - waiting, "run")
            more = ", and more" if any(each.has_more for each in self._queues) else ""
            self._say("ready", None, f"{due} to continue, {waiting} waiting{more}")
            if not self._terms.once:
                self.retention.begin()
        scanned, behind = time.monotonic(), _behind()
        while not self._is_ending:
            self.looked = time.monotonic()
            self._begin_scheduled()
            self._begin_due()
            if self._terms.once and not self._has_due():
                self._draw()  # these runs may have submitted others
                if not self._has_due():
                    break
            self._take_news(self._pause(scanned + _SCAN - time.monotonic()))
            set_back = _behind() > behind + _SET_BACK
            if set_back:  # moments by the old clock would come too late
                self._forget_plans()
            if set_back or time.monotonic() >= scanned + _SCAN:
                self._look_for_edits()
                self._begin_scheduled(look=True)
                self._scan()
                scanned, behind = time.monotonic(), _behind()
            else:
                self._hear()
                if self._draws and time.monotonic() >= self._draws[0]:
                    del self._draws[0]
                    self._draw()
        self._end()

    def _has_due(self) -> bool:
        is_due = any(plan.at <= self._horizon for plan in self._agenda.plans.values())
        return bool(self._jobs or self._turns.asked or is_due)

    def _end(self) -> None:
        """End in order: first what others may take over."""
        self._turns.leave()
        for url in self._backlogs:
            self._withdraw(url)
        self._drain()
        for job in self._jobs.values():
            self.note_due(clock.now())
            self.ends[job.run.facts.run_id] = "crashed"
        if self._terms.once:
            self._tell_of_others()
            if not (self._is_ending or self._terms.only):
                self.retention.work(_RETENTION)
        self.retention.end()

    def _forget_plans(self) -> None:
        """Forget when runs continue; the next scan plans all of them."""
        self._agenda.clear()
        for each in self._queues:
            each.planned.clear()

    def _pause(self, to_scan: float) -> float:
        ahead = self._agenda.next - clock.now()
        if len(self._jobs) >= self._terms.most:
            ahead = math.inf
        return max(0.0, min(to_scan, ahead, _BELL))

    def _take_news(self, pause: float) -> None:
        """Wait for news, and handle all that has arrived."""
        with contextlib.suppress(queue.Empty):
            job = self._news.get(timeout=pause)
            while True:
                if job is not None:
                    self._note_end(job)
                job = self._news.get_nowait()

    def _look_for_edits(self) -> None:
        """Report changed modules; end if the terms say so."""
        files = self._files.look()
        if files:
            self._is_edited = self._terms.until_edited
            many = count(len(files) - 1, "other file") if len(files) > 1 else ""
            named = f"{files[0]}{f' and {many}' if many else ''} changed since the import"
            todo = (
                "ends, to be started again"
                if self._is_edited
                else "goes on with the old code until it is started again"
            )
            self._say("changed", None, f"{named}; up {todo}")

    # -- looking ---------------------------------------------------------------------------------

    def _scan(self) -> None:
        for url, backlog in self._backlogs.items():
            try:
                self._announce(backlog.store)
                self._renew_bell(url)
                found = backlog.look()
                for run in [*found, *filter(None, map(backlog.look_at, self._terms.only))]:
                    self._consider(run)
                self._name_unserved(backlog)
            except (errors.StepwiseError, errors.RunStopped) as error:
                if self._terms.once:
                    raise
                self._withdraw(url)
                self._say("problem", None, f"the runs in {url} cannot be looked at: {error}")
                continue
            there = {run.key for run in found}
            there |= {key for key, left in self._left.items() if left.run.facts.is_submitted}
            there |= {key for each in self._queues for key in each.planned}
            for known in (self._agenda.plans, self._left, self._faults, self._died):
                for key in [key for key in known if key[0] == url and key not in there]:
                    del known[key]
        self._draw()
        self._draws = [time.monotonic() + _DRAW_AGAIN]  # a ring before this look may cover others
        self._sweep()

    def _name_unserved(self, backlog: handles.Backlog) -> None:
        """Name a submitted run of each workflow that is not known here, once for each workflow."""
        known = {name for each in known_workflows() for name in names_of(each)}
        for run in backlog.first_of_others(known):
            if run.facts.workflow not in self._strange:
                self._consider(run)

    def _draw(self) -> None:
        """Plan the submitted runs that are next."""
        if self._terms.only:
            return
        for each in self._queues:
            if not each.is_full():
                # The next scan reports an error of the store.
                with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
                    self._refill(each)

    def _draw_soon(self) -> None:
        """Look for submitted runs now, and again a moment later."""
        soon = time.monotonic()
        self._draws = [soon, soon + _DRAW_AGAIN]

    def _refill(self, line: Queue) -> None:
        before = line.planned
        underway = self._jobs.keys() | self._turns.asked.keys()
        line.draw(lambda run: run.key not in underway and not self._is_left(run))
        for key in before.keys() - line.planned.keys():
            self._agenda.plans.pop(key, None)
        for run in line.planned.values():
            self._consider(run)

    def _announce(self, store: Store) -> None:
        """Take a lease for each workflow, so that others see who continues its runs.

        A lease that was lost, since this machine slept or the server was away for long, is taken
        again.
        """
        if self._terms.once or self._terms.only:
            return
        known = known_workflows()
        names = {
            supervisor_name(each.full_name, code) for each in known for code in ("", each.code)
        }
        names |= self._timetable.leases(store.url)
        for key in ((store.url, name) for name in sorted(names)):
            if key in self._announced and not self._announced[key].is_ours():
                self._announced.pop(key).release()
            if key not in self._announced:
                with contextlib.suppress(errors.RunBusyError):  # of another supervisor
                    self._announced[key] = Lease(store, key[1]).acquire()

    def _withdraw(self, url: str) -> None:
        """Release these leases: a store that was replaced opens again only without any."""
        for key in [key for key in self._announced if key[0] == url]:
            self._announced.pop(key).release()

    def _renew_bell(self, url: str) -> None:
        """Renew the bell of a store, since the store may have been restored from a backup."""
        backlog, before = self._backlogs[url], self._bells.get(url)
        fresh = Bell(backlog.store, backlog.seal)
        fresh.look()
        for run_id in before.look() if before is not None else ():
            self._look_at(url, run_id)
        self._bells[url] = fresh

    def _hear(self) -> None:
        """Look at the runs whose bell rang."""
        for url, bell in self._bells.items():
            with contextlib.suppress(
                errors.StepwiseError, errors.RunStopped
            ):  # the next scan reports it
                for run_id in bell.look():
                    if run_id == QUEUE:
                        self._draw_soon()
                    else:
                        self._look_at(url, run_id)

    def _look_at(self, url: str, run_id: str) -> None:
        run = self._backlogs[url].look_at(run_id)
        if run is not None and (run.key in self._agenda.plans or not run.facts.is_submitted):
            self._agenda.plans.pop(run.key, None)
            self._consider(run)

    def _sweep(self) -> None:
        """Read a few inboxes, since a ring may have been lost."""
        if not self._swept:
            self._swept.extend(
                key
                for key, plan in self._agenda.plans.items()
                if plan.run.facts.status == "suspended"
            )
        for _ in range(min(_SWEPT, len(self._swept))):
            key = self._swept.popleft()
            plan = self._agenda.plans.get(key)
            if plan is not None and plan.at > clock.now():
                with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
                    self._look_at(*key)

    # -- schedules -------------------------------------------------------------------------------

    def _begin_scheduled(self, *, look: bool = False) -> None:
        """Submit the runs of schedules that are due; with ``once``, only at first."""
        once = self._terms.once
        if self._terms.only or (once and self._horizon < math.inf):
            return
        found = self._timetable.begin_due(look=look)
        while once and self._timetable.next <= clock.now():  # many instants were missed
            found |= self._timetable.begin_due()
        if found:
            self._draw()

    def _tell_of_schedule(self, kind: Literal["problem", "schedule"], text: str) -> None:
        self._failed += kind == "problem"
        self._say(kind, None, text)

    # -- deciding --------------------------------------------------------------------------------

    def _consider(self, run: UnfinishedRun) -> None:
        """Plan when a run continues, or leave it; an unreadable run must not stop the others."""
        try:
            self._decide(run)
        except (errors.StepwiseError, errors.RunStopped) as error:
            self._failed += 1
            self._say("problem", run, f"it cannot be read: {error}")

    def _decide(self, run: UnfinishedRun) -> None:
        key, facts, only = run.key, run.facts, self._terms.only
        if (
            key in self._jobs
            or key in self._turns.asked
            or (only and facts.run_id not in only)
            or self._is_left(run)
        ):
            return
        known = self._agenda.plans.get(key)
        if known is not None and known.run.facts == facts:
            return
        why = run.why()
        if why is None and facts.status == "running":
            self._agenda.plans.pop(key, None)  # a process executes the run
            return
        try:
            definition = known_workflow(facts.workflow)
        except errors.ConfigurationError as error:
            self._leave_strange(run, error)
            return
        if why == "crashed":
            self._plan_after_death(run, definition.code)
        else:
            is_due = why is not None and not facts.is_submitted  # those keep their order
            self._agenda.add(Plan(run, clock.now() if is_due else run.until))

    def _leave_strange(self, run: UnfinishedRun, error: errors.ConfigurationError) -> None:
        """Leave a run whose workflow is unknown here; report the first of them by name."""
        unknown = run.facts.workflow not in self._strange
        self._strange.add(run.facts.workflow)
        self._left[run.key] = _LeftAlone(run, 0)
        if unknown or len(self._left) <= _NAMED:
            command = tuple[str, ...]()
            is_here = workflows_named(run.facts.workflow)  # several of one name
            why = str(error) if is_here else "its workflow is not in these modules"
            try:
                command = tuple(self._terms.continuing(run.run))
            except errors.StepwiseError as problem:
                why = f"{why}; {problem}"
            self._say("left", run, why, command=command)

    def _plan_after_death(self, run: UnfinishedRun, code: str) -> None:
        deaths = deaths_of(*run, code)
        if deaths.attempts and self._died.get(run.key) != deaths.at:
            self._died[run.key] = deaths.at
            self.deaths[run.facts.workflow] += 1
        if self._terms.only:
            self._agenda.add(Plan(run, clock.now()))
        elif deaths.are_deadly:
            why = f"its process died {deaths.stuck} times at the same step"
            self._failed += 1
            self._leave(run, why, self._terms.alone(run.run), status="stuck")
        else:
            wait = min(_LONGEST, 2.0 ** (deaths.attempts - 1)) if deaths.attempts else 0.0
            if not deaths.attempts and handles.is_submitted(run):
                wait = _OWN_TASK
            alone = deaths.stuck >= DEADLY - 1 and bool(self._terms.alone(run.run))
            self._agenda.add(Plan(run, deaths.at + wait, alone))

    def _is_left(self, run: UnfinishedRun) -> bool:
        left = self._left.get(run.key)
        if left is None:
            return False
        if left.run.facts == run.facts and left.last in (0, _last(run)):
            return True
        del self._left[run.key]
        return False

    def _leave(
        self,
        run: UnfinishedRun,
        detail: str,
        command: Sequence[str] = (),
        *,
        last: int = 0,
        status: str = "",
    ) -> None:
        """Leave a run until something about it changes, and report that once."""
        self._left[run.key] = _LeftAlone(run, last)
        self._say("left", run, detail, command=command, status=status)

    def _say(
        self,
        kind: Kind,
        run: UnfinishedRun | None,
        detail: str = "",
        *,
        status: str = "",
        command: Sequence[str] = (),
    ) -> None:
        about = run.key if run is not None else ("", "")
        if kind in ("left", "problem"):
            if (about, detail) in self._said:
                return
            self._said.add((about, detail))
        if run is not None and not status:
            status = "crashed" if run.facts.status == "running" else run.facts.status
        facts = run.facts if run is not None else None
        self._report(Happening(kind, facts, status, detail, tuple(command)))

    def _tell_of_others(self) -> None:
        """Report the runs that were not due when the supervisor ends."""
        for plan in sorted(self._agenda.plans.values(), key=lambda each: each.at):
            if plan.run.facts.status == "suspended":
                self._say("left", plan.run, _waits_for(plan.run))
            else:
                ahead = max(0.0, plan.at - clock.now())
                why = "it was submitted" if handles.is_submitted(plan.run) else "its process died"
                detail = f"{why}; it is tried again in {ahead:.0f} s"
                self._say("left", plan.run, detail)

    # -- executing -------------------------------------------------------------------------------

    def _begin_due(self) -> None:
        """Begin the runs whose moment has come, the longest due first."""
        self._begin_in_turn()
        latest = min(clock.now(), self._horizon)
        while len(self._jobs) < self._terms.most and not self._is_ending:
            plan = self._agenda.take(latest)
            if plan is None:
                return
            if plan.run.key in self._jobs or self._is_held(plan):
                continue
            del self._agenda.plans[plan.run.key]
            if self._is_ours(plan.run):
                self._begin(plan)

    def _is_ours(self, run: UnfinishedRun) -> bool:
        """Return whether to begin a run whose moment has come."""
        return self._is_still_next(run) and not self._is_left_to_another_version(run)

    def _is_held(self, plan: Plan) -> bool:
        """Ask for the turn of a run whose workflow has ``concurrent=``; return whether it waits."""
        workflow = known_workflow(plan.run.facts.workflow)
        is_free = workflow.options.concurrent is None
        if is_free or plan.alone or self._engine is not self._here:
            return False  # another process asks itself
        if self._turns.ask(plan, workflow, self._terms.most):
            del self._agenda.plans[plan.run.key]
        return True

    def _begin_in_turn(self) -> None:
        """Begin the runs that have got their turn."""
        for plan, turn in self._turns.decided():
            if turn.error is not None:
                self._agenda.add(plan._replace(at=clock.now() + self._pause_after_fault(plan.run)))
                self._say("problem", plan.run, error_text(turn.error))
            elif len(self._jobs) >= self._terms.most:  # others took the places here meanwhile
                turn.desk.leave(turn)
                self._agenda.add(plan)
            elif self._is_ours(plan.run):
                self._begin(plan, turn)
            else:
                turn.desk.leave(turn)
            for each in self._turns.held():
                if self._agenda.plans.get(each.run.key) is each:
                    self._agenda.add(each)

    def _is_still_next(self, run: UnfinishedRun) -> bool:
        """Return whether nobody has begun a submitted run meanwhile; plan the next ones in time."""
        if not run.facts.is_submitted:
            return True
        line = next((each for each in self._queues if each.planned.pop(run.key, None)), None)
        # The execution reports an error.
        with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
            if line is not None and line.has_more and len(line.planned) < self._terms.most:
                self._refill(line)
            found = read_head(run.store, run.seal, run.facts.run_id)
            return found is not None and found[0] == run.facts
        return True

    def _is_left_to_another_version(self, run: UnfinishedRun) -> bool:
        """Return whether another supervisor has the code that last executed the run.

        The next scan considers the run again.  A run that dies with that code again and again is
        not left to the other supervisor: our code may be the mended one.
        """
        facts = run.facts
        if facts.run_id in self._terms.only or not facts.code:
            return False
        if facts.code == known_workflow(facts.workflow).code:
            return False
        # The execution reports an error.
        with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
            owner = run.store.owner(supervisor_name(facts.workflow, facts.code))
            if owner is not None and not (run.why() == "crashed" and deaths_of(*run).are_deadly):
                self._say("left", run, f"stepwise up, {describe_owner(owner)}, has its code")
                return True
        return False

    def _begin(self, plan: Plan, turn: Turn | None = None) -> None:
        job = self._jobs[plan.run.key] = Underway(plan.run, self._news.put, turn)
        engine = self._apart if plan.alone else self._engine
        if engine is self._here:
            self._say("begun", plan.run)
            engine.begin(job)
        else:
            self._say("begun", plan.run, engine.begin(job))

    # -- how it ended ----------------------------------------------------------------------------

    def _note_end(self, job: Underway) -> None:
        """Handle the end of a run; retry the run later if the store is not available."""
        try:
            self._ended(job)
        except errors.StoreError as error:
            if self._terms.once or self._is_ending:
                raise
            self._agenda.add(Plan(job.run, clock.now() + self._pause_after_fault(job.run)))
            self._say("problem", None, f"{job.run.facts.run_id}: {error_text(error)}")

    def _pause_after_fault(self, run: UnfinishedRun) -> float:
        """Return the seconds to wait before the retry of a run that the store failed."""
        number = self._faults[run.key] = self._faults.get(run.key, 0) + 1
        return min(_LONGEST, 2.0**number)

    def _ended(self, job: Underway) -> None:
        """Handle the end of a run's execution: report it, and plan or leave the run."""
        run, error = job.run, job.error
        if job.permit is not None:
            job.permit.desk.over(job.permit)  # if the run was not even taken up
        del self._jobs[run.key]
        if isinstance(error, errors.RunBusyError) and run.facts.is_submitted:
            return  # another process was faster
        if isinstance(error, errors.RunBusyError) or (
            isinstance(error, errors.LeaseLostError)
            and run.store.owner(run.facts.run_id) is not None
        ):
            self._say("ended", run, "another process executes it", status="running")
            return
        now, status = None, "completed"
        if error is not None or job.lost:
            now = self._backlogs[run.store.url].look_at(run.facts.run_id)
            status = now.facts.status if now is not None else _status_of(run)
        self.ends[run.facts.run_id] = "crashed" if status == "running" else status
        waits = now is not None and status == "suspended" and now.facts != run.facts
        if now is None or waits:
            self._faults.pop(run.key, None)
            self._failed += status in ("failed", "interrupted")
            if not (job.told or (job.lost and self._is_ending)):
                how = error_line(preview(error)) if error is not None else ""
                self._say("ended", run, _waits_for(now) if now is not None else how, status=status)
        elif not job.lost and not self._is_ending:
            self._stopped(now, error, refused=job.refused)
            return
        elif not job.told:
            why = "its process died" if error is None else error_text(error)
            detail = "it goes on at the next start" if self._is_ending else why
            self._say("ended", run, detail, status="crashed")
        if now is None:
            return
        if self._is_ending:
            self.note_due(now.until if waits else clock.now())
            return
        if waits and now.facts.waits == run.facts.waits:  # the run was woken in vain
            self._agenda.add(Plan(now, max(clock.now() + 1.0, now.until)))
        else:
            self._consider(now)

    def _stopped(self, run: UnfinishedRun, error: BaseException | None, *, refused: bool) -> None:
        """Decide what becomes of a run that stopped without an end."""
        self._failed += 1
        lost = isinstance(error, (errors.CorruptStoreError, errors.JournalLostError))
        if isinstance(error, (errors.StoreError, errors.LeaseLostError, MemoryError)) and not lost:
            self._agenda.add(Plan(run, clock.now() + self._pause_after_fault(run)))
            self._say("problem", run, error_text(error))
            return
        text = "" if error is None else error_text(error) or type(error).__name__
        why = "it cannot be called" if refused else "it stopped"
        self._leave(run, f"{why}: {text}", last=_last(run))

    def _drain(self) -> None:
        """Give the runs in progress time to reach a safe point."""
        if not self._jobs:
            return
        self._say("draining", None, f"{count(len(self._jobs), 'run')} in progress")
        with drained():
            for engine in {id(each): each for each in (self._engine, self._apart)}.values():
                engine.drain()
            until = time.monotonic() + settings.grace()
            while self._jobs and self._stops < 2 and time.monotonic() < until:
                self._take_news(min(1.0, until - time.monotonic()))
        record_end_of_process()


def _behind() -> float:
    """Return how many seconds the time of day is behind the monotonic clock."""
    return clock.elapsed() - clock.now()


def _status_of(run: UnfinishedRun) -> str:
    """Return the status that a run has now, or ``deleted``."""
    try:
        return run.run.status
    except errors.RunNotFoundError:
        return "deleted"


def _waits_for(run: UnfinishedRun) -> str:
    return f"waits {'; '.join(map(str, pending(run.facts)))}"


def _last(run: UnfinishedRun) -> int:
    return newest_mark(run.store, run.seal, run.facts.run_id).last
