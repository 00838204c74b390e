"""The retention of ended runs in a store, as ``configure(retain=...)`` says, and idle limits.

A *pass* begins at the oldest run.  It deletes one run after another, as ``stepwise prune`` does,
each with its child runs, and rests in between so that no run is delayed.  A process that is killed
leaves runs that are whole, or whose deletion the next pass ends: the head of a run goes last.  One
process at a time makes a pass, under a lease.

Rejected: deleting where a run ends.  The run's own end would wait for it, and idle stores would
keep everything.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from stepwise import errors
from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease
from stepwise._journal.limit_store import drop_idle_ledgers
from stepwise._journal.records import RunFacts
from stepwise._runs.run import number_of_runs
from stepwise._runs.verify import Deleter, is_over
from stepwise._runtime import settings
from stepwise._runtime.messages import count
from stepwise.stores import Store

_NAME = "up:retention"  # of the lease
_COUNTED, _SWEPT = 60.0, 600.0  # seconds between two counts, and between two looks at all old runs
_AT_ONCE, _REST = 0.1, 0.3  # seconds of work, and of rest after it
_END = 5.0  # seconds to wait for the deletion in progress
_YOUNG = 1000  # runs in a row that are too young: all others are, too
_MEASURED = 4  # the size is measured again once this part of the excess is gone
_ROW = 1000  # bytes of a run beside its records and objects, about


class Retention:
    """Deletes what stores keep for longer than wanted; the thread of ``stepwise up`` that does so.

    Args:
        tell: called with what was deleted, or why nothing can be.
    """

    def __init__(self, stores: Iterable[Store], tell: Callable[[str], object]) -> None:
        self._keepers, self._tell, self._problem = [_Keeper(each) for each in stores], tell, ""
        self._ended, self._until = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._loop, name="stepwise retention", daemon=True)

    @property
    def deleted(self) -> int:
        """The number of runs that this process has deleted."""
        return sum(each.deleted for each in self._keepers)

    def begin(self) -> None:
        """Begin the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread after the deletion in progress."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END)

    def work(self, seconds: float = math.inf) -> None:
        """Make a pass through each store, in the current thread.

        Args:
            seconds: work for that long at most; by default as long as it takes, with rests.
        """
        self._until = time.monotonic() + min(seconds, _AT_ONCE)
        ends = time.monotonic() + seconds
        for each in self._keepers:
            try:
                told = each.make_pass(lambda: self._goes_on(ends))
                self._problem = ""
            except errors.RunBusyError:  # another process does it
                told = ""
            except (errors.StepwiseError, errors.RunStopped) as error:
                told = str(error) if str(error) != self._problem else ""
                self._problem = str(error)
            if told:
                self._tell(f"retention: {told}")

    def _goes_on(self, ends: float) -> bool:
        """Rest if it is time to do so; return whether the pass goes on."""
        now = time.monotonic()
        if ends == math.inf and now >= self._until:
            self._ended.wait(_REST)
            self._until = time.monotonic() + _AT_ONCE
        return now < ends and not self._ended.is_set()

    def _loop(self) -> None:
        while not self._ended.is_set():
            self.work()
            self._ended.wait(_COUNTED)


class _Keeper:
    """Deletes what one store keeps for longer than wanted."""

    def __init__(self, store: Store) -> None:
        self._store, self._seal = store, journals.seal_for(store)
        self._swept = -math.inf
        self._silent = 0.0  # streams of runs that were updated before this are empty
        self.deleted = self._excess = self._freed = 0

    def make_pass(self, goes_on: Callable[[], bool]) -> str:
        """Make a pass; return what was deleted, as text.

        Raises:
            RunBusyError: another process makes a pass.
            StoreError: the store cannot be used.
        """
        retain, before, began = settings.retain(), self.deleted, time.monotonic()
        sweeps, emptied = began >= self._swept + _SWEPT, 0
        if retain is None and not sweeps:
            return ""
        with Lease(self._store, _NAME).acquire():
            if sweeps:
                drop_idle_ledgers(self._store, self._seal, goes_on)
            if retain is not None:
                deleter = Deleter(self._store, self._seal)
                try:
                    emptied = self._keep(retain, deleter, goes_on, sweeps=sweeps)
                finally:
                    deleter.erase()
        self._swept = began if sweeps and goes_on() else self._swept
        said = [f"what {count(emptied, 'run')} said"] * bool(emptied)
        runs = [count(self.deleted - before, "run")] * (self.deleted > before)
        return f"deleted {' and '.join(runs + said)}" if runs + said else ""

    def _keep(
        self,
        retain: settings.Retain,
        deleter: Deleter,
        goes_on: Callable[[], bool],
        *,
        sweeps: bool,
    ) -> int:
        """Delete runs; return the number of other runs whose streams were emptied."""
        most = math.inf if retain.runs is None else retain.runs
        too_many = (number_of_runs(self._store) or 0) - most
        self._excess = self._measured(retain) if sweeps else 0
        if too_many <= 0 and not sweeps:
            return 0
        now, young, emptied, before = time.time(), 0, 0, self.deleted
        old, said = _before(now, retain.age), _before(now, retain.streams)
        for head in self._store.heads():  # oldest first
            if not goes_on():
                return emptied
            facts = journals.open_head(self._seal, head) if head.finished else None
            if facts is None or not is_over(facts):
                continue
            exceeds = self.deleted - before < too_many or self._excess > 0
            if exceeds or facts.updated_at <= old:
                self.deleted += self._delete(facts, deleter, retain)
            elif self._silent < facts.updated_at <= said:
                emptied += self._empty(facts.run_id, deleter)
            young = 0 if exceeds or facts.created_at <= max(old, said) else young + 1
            if young >= _YOUNG:
                break
        self._silent = said
        return emptied

    def _delete(self, facts: RunFacts, deleter: Deleter, retain: settings.Retain) -> int:
        """Delete a run with its child runs; return their number, or 0 if the run goes on."""
        try:
            below = deleter.children.below(facts.run_id)
            freed = sum(map(self._weight, below)) if self._excess else 0
            deleted = deleter.delete(facts)
        except _OF_ONE_RUN:
            return 0
        self._freed += freed if deleted else 0
        if self._freed * _MEASURED >= self._excess > 0:
            self._excess = self._measured(retain)
        return deleted

    def _empty(self, run_id: str, deleter: Deleter) -> bool:
        """Delete what a run and its child runs have said; return whether there was something."""
        try:
            return deleter.empty(run_id)
        except _OF_ONE_RUN:
            return False

    def _measured(self, retain: settings.Retain) -> int:
        """Return by how many bytes the store is too large."""
        self._freed, used = 0, getattr(self._store, "used", None)
        most = retain.bytes
        return 0 if used is None or most is None else max(0, used(most) - most)

    def _weight(self, run_id: str) -> int:
        """Return about how many bytes the deletion of a run frees."""
        objects = (self._store.get(run_id, name) or b"" for name in self._store.names(run_id))
        records = (data for _, data in self._store.read(run_id))
        return sum(map(len, itertools.chain(records, objects))) + _ROW


def _before(now: float, seconds: Any) -> float:
    return -math.inf if seconds is None else now - seconds


_OF_ONE_RUN = (
    *(errors.StepwiseError, errors.CorruptStoreError),
    *(errors.JournalLostError, errors.LeaseLostError),
)
