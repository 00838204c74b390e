"""What a store keeps of ended runs, as ``configure(retain=...)`` says, and idle limits.

``stepwise up`` deletes in small parts, so that no run is delayed.  A *pass* begins at the oldest
run.  It deletes one run after another, as ``stepwise prune`` does, each with its child runs.  A
process that is killed leaves runs that are whole, or whose deletion the next pass ends: the head
of a run goes last.  One process at a time makes a pass, under a lease.

Rejected: deleting where a run ends.  The run's own end would wait for it, and idle stores would
keep everything.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator

from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease
from stepwise._journal.limit_store import drop_idle_ledgers
from stepwise._journal.records import RunFacts
from stepwise._runs.run import Run, number_of_runs
from stepwise._runs.verify import ChildRuns, delete_held, delete_run, empty_streams, erase
from stepwise._runtime import settings
from stepwise._runtime.messages import count
from stepwise._runtime.retention import Retain
from stepwise.errors import (
    CorruptStoreError,
    JournalLostError,
    LeaseLostError,
    RunBusyError,
    RunStopped,
    StepwiseError,
)
from stepwise.stores import Head, Store

_NAME = "up:retention"  # of the lease
_COUNTED, _SWEPT = 60.0, 600.0  # seconds between two counts, and between two looks at all old runs
_AT_ONCE, _REST = 0.1, 0.4  # seconds of work, and of rest after it
_END = 5.0  # seconds to wait for the deletion in progress
_YOUNG = 1000  # runs in a row that are too young: all others are, too
_MEASURED = 4  # the size is measured again once this part of the excess is gone
_OF_ONE_RUN = (StepwiseError, CorruptStoreError, JournalLostError, LeaseLostError)
_ROW = 1000  # bytes of a run beside its records and objects, about


class Housekeeper:
    """Deletes what one store keeps for longer than wanted.

    Args:
        tell: called at the end of a pass with what it deleted, as text.
        retain: by default what is configured.
    """

    def __init__(
        self, store: Store, tell: Callable[[str], object], retain: Retain | None = None
    ) -> None:
        self._store, self._tell, self._retain = store, tell, retain
        self._seal = journals.seal_for(store)
        self._pass: Generator[None, None, None] | None = None
        self._counted = self._swept = -math.inf
        self._silent = 0.0  # streams of runs that were updated before this are empty
        self.deleted = 0

    def work(self, seconds: float) -> bool:
        """Work for some seconds; return whether there is more to do.

        Raises:
            StoreError: the store cannot be used; the next call begins anew.
        """
        until = time.monotonic() + seconds
        if self._pass is None:
            if time.monotonic() < self._counted + _COUNTED:
                return False
            self._pass = self._begin()
        try:
            while time.monotonic() < until:
                next(self._pass)
        except BaseException as error:
            self.close()
            if isinstance(error, (StopIteration, RunBusyError)):  # another process does it
                return False
            raise
        return True

    def close(self) -> None:
        """End the pass in progress."""
        if self._pass is not None:
            self._pass.close()
        self._pass, self._counted = None, time.monotonic()

    def _begin(self) -> Generator[None, None, None]:
        with Lease(self._store, _NAME).acquire():
            yield
            sweeps = time.monotonic() >= self._swept + _SWEPT
            retain = self._retain or settings.retain()
            if sweeps:
                yield from drop_idle_ledgers(self._store, self._seal)
            if retain is not None:
                yield from self._keep(retain, sweeps=sweeps)
            if sweeps:
                self._swept = time.monotonic()

    # -- runs ------------------------------------------------------------------------------------

    def _keep(self, retain: Retain, *, sweeps: bool) -> Iterator[None]:
        too_many = 0 if retain.runs is None else (number_of_runs(self._store) or 0) - retain.runs
        size = _Size(self._store, retain.bytes if sweeps else None)
        if too_many <= 0 and size.excess <= 0 and not sweeps:
            return
        now, young = time.time(), 0
        old, said = _before(now, retain.age), _before(now, retain.streams)
        children, deleted, emptied = ChildRuns(self._store, self._seal), 0, 0
        try:
            for head, facts in self._ended():
                yield
                if facts is None:
                    continue
                if too_many > 0 or size.excess > 0 or facts.updated_at <= old:
                    gone = self._delete(head, children, size)
                    deleted, too_many = deleted + gone, too_many - gone
                elif self._silent < facts.updated_at <= said:
                    emptied += self._empty(facts.run_id, children)
                young = young + 1 if facts.created_at > max(old, said) else 0
                if young >= _YOUNG and too_many <= 0 and size.excess <= 0:
                    break
            self._silent = said
        finally:
            self.deleted += deleted
            if deleted or emptied:
                erase(self._store)
                said_by = f"what {count(emptied, 'run')} said" if emptied else ""
                told = [count(deleted, "run")] * bool(deleted) + [said_by] * bool(emptied)
                self._tell(f"retention: deleted {' and '.join(told)}")

    def _ended(self) -> Iterator[tuple[Head, RunFacts | None]]:
        """Yield all heads, oldest first, with the facts of top-level runs that may be deleted."""
        for head in self._store.heads():
            facts = journals.open_head(self._seal, head) if head.finished else None
            yield head, None if facts is None or facts.parent or facts.undoing else facts

    def _delete(self, head: Head, children: ChildRuns, size: _Size) -> int:
        """Delete a run with its child runs; return their number, or 0 if it goes on."""
        store, run_id = self._store, head.run_id
        try:
            with Lease(store, run_id).acquire() as lease:
                if store.head(run_id) != head:
                    return 0
                ids = [*Run(store, run_id, self._seal)._with_children(children)]
                sizes = [size.of(each) for each in ids]
                for child in reversed(ids[1:]):
                    delete_run(store, self._seal, child)
                delete_held(store, self._seal, lease)
        except _OF_ONE_RUN:
            return 0
        size.gone(sum(sizes))
        return len(ids)

    def _empty(self, run_id: str, children: ChildRuns) -> bool:
        """Delete what a run and its child runs have said; return whether there was something."""
        try:
            ids = [*Run(self._store, run_id, self._seal)._with_children(children)]
            return sum(empty_streams(self._store, self._seal, each) for each in ids) > 0
        except _OF_ONE_RUN:
            return False


def _before(now: float, seconds: object) -> float:
    return now - seconds if isinstance(seconds, float | int) else -math.inf


class _Size:
    """By how many bytes a store is too large.

    Args:
        most: the allowed bytes; ``None`` for any number.
    """

    def __init__(self, store: Store, most: int | None) -> None:
        self._store, self._most = store, most
        self.excess = self._measured()

    def _measured(self) -> int:
        self._freed, used = 0, getattr(self._store, "used", None)
        return 0 if used is None or self._most is None else max(0, used(self._most) - self._most)

    def of(self, run_id: str) -> int:
        """Return about how many bytes the deletion of a run frees."""
        if not self.excess:
            return 0
        objects = (self._store.get(run_id, name) for name in self._store.names(run_id))
        records = (data for _, data in self._store.read(run_id))
        return sum(map(len, itertools.chain(records, filter(None, objects)))) + _ROW

    def gone(self, size: int) -> None:
        """Note that a run was deleted."""
        self._freed += size
        if self._freed * _MEASURED >= self.excess > 0:
            self.excess = self._measured()


class RetentionThread:
    """The thread of ``stepwise up`` that deletes, from :meth:`begin` to :meth:`end`.

    Args:
        tell: called with what was deleted, or why nothing can be.
    """

    def __init__(self, stores: Iterable[Store], tell: Callable[[str], object]) -> None:
        self._keepers = [Housekeeper(store, tell) for store in stores]
        self._tell, self._problem = tell, ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="stepwise retention", daemon=True)

    @property
    def deleted(self) -> int:
        """The number of runs that this process has deleted."""
        return sum(each.deleted for each in self._keepers)

    def begin(self) -> None:
        """Begin to work."""
        self._thread.start()

    def work(self, seconds: float) -> None:
        """Work in each store for some seconds, in the current thread."""
        for each in self._keepers:
            try:
                each.work(seconds)
                self._problem = ""
            except (StepwiseError, RunStopped) as error:
                if self._problem != str(error):
                    self._problem = str(error)
                    self._tell(f"retention: {error}")

    def end(self) -> None:
        """End after the deletion in progress."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END)
        if not self._thread.is_alive():
            self.close()

    def _loop(self) -> None:
        while not self._ended.wait(_REST):
            self.work(_AT_ONCE)

    def close(self) -> None:
        """Give up what is in progress."""
        for each in self._keepers:
            each.close()
