"""The watcher thread of a process: it notices messages for runs, and moments that arrive.

The thread reads the bell of each watched store, once for all runs, and calls the callbacks of the
watched runs.  From time to time it calls all of them, a few at a time, since a ring may be lost.
The thread exists only while something is watched, and never keeps the process alive.
"""

from __future__ import annotations

import atexit
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from stepwise._journal.logs import Bell
from stepwise._journal.seal import Seal
from stepwise._runtime.forks import process_lock, start_apart
from stepwise._runtime.messages import reports
from stepwise.errors import RunStopped
from stepwise.stores import Store

POLL = 0.1  # seconds between two readings of a bell
SLOW_POLL = 15.0  # seconds between two rounds, in which every watch is called
_SWEPT = 2  # watches of a round that are called at each look
_LONGEST_PAUSE = 5.0  # seconds between two readings of a store that cannot be read
_DONE_AT_EXIT = 1.0  # seconds that the end of the program waits for a look in progress
_SPARE = 64  # moments of closed watches that may stay in the heap


class RunWatch:
    """A watch on a run, until it is closed; also a context manager.

    Args:
        ring: called by the watcher's thread when there may be news for the run, and when the moment
            arrives.  May also be called without a reason, especially at the beginning.  It must
            neither block nor take long.
    """

    __slots__ = ("_watcher", "ring", "run_id", "until")

    def __init__(
        self, run_id: str, ring: Callable[[], object], until: float | None, watcher: Watcher
    ) -> None:
        self.run_id, self.ring, self.until, self._watcher = run_id, ring, until, watcher

    def close(self) -> None:
        """Stop watching; may be called again.  A callback in progress may end later."""
        self._watcher._close(self)

    def __enter__(self) -> RunWatch:  # noqa: PYI034
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _WatchedStore:
    """A store, its bell, and the watches on its runs; only the thread uses the bell."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self.store, self.seal = store, seal
        self.watches: dict[str, list[RunWatch]] = {}
        self.new: list[RunWatch] = []  # watches that were not called yet
        self.round: deque[RunWatch] = deque()  # watches to call in case a ring was lost
        self.bell: Bell | None = None
        self.failures, self.pause_until = 0, 0.0

    @property
    def all(self) -> list[RunWatch]:
        return [watch for watches in list(self.watches.values()) for watch in list(watches)]

    def take_new(self) -> list[RunWatch]:
        """Return the watches that were added since the last call."""
        new, self.new = self.new, []
        return new

    def look(self, new: list[RunWatch], now: float, everything: bool) -> list[RunWatch]:
        """Return the watches to call: new ones, rung ones, and a part of the round in progress.

        Args:
            everything: True to begin a round, unless one is in progress.
        """
        if now < self.pause_until:
            return []
        try:
            before = self.bell
            if before is None or (everything and not self.round):
                # A new bell, since a store restored from a backup counts from a lower number.
                self.bell = Bell(self.store, self.seal)
                self.bell.look()
                if before is None:
                    return self.all
                self.round = deque(self.all)
            rung = before.look()
        except (Exception, RunStopped):  # the runs themselves report problems of a store
            self.failures += 1
            self.bell = None
            pause = min(POLL * 2**self.failures, _LONGEST_PAUSE)
            self.pause_until = time.monotonic() + pause  # a failure may have taken long
            return []
        self.failures = 0
        swept = [self.round.popleft() for _ in range(min(_SWEPT, len(self.round)))]
        rung_for = (watch for run_id in rung for watch in list(self.watches.get(run_id, ())))
        return [*new, *rung_for, *swept]


class Watcher:
    """A watcher of runs for this process, in one thread."""

    def __init__(self) -> None:
        self._mutex = process_lock()
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Watch nothing: the state at first and in a forked child, which lacks the thread."""
        self._stores: dict[int, _WatchedStore] = {}  # by id() of the store
        self._moments: list[tuple[float, int, RunWatch]] = []  # a heap
        self._open: set[RunWatch] = set()
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._looking = threading.Lock()  # held while the thread reads a store

    def finish_look(self) -> None:
        """Wait until no unwatched store is being read, so that the caller can close it.

        A reading in progress would reopen the store, and create its folder again.
        """
        with self._looking:
            pass

    def watch(
        self,
        store: Store,
        seal: Seal,
        run_id: str,
        ring: Callable[[], object],
        *,
        until: float | None = None,
    ) -> RunWatch:
        """Call ``ring`` soon, and whenever there may be news for a run, until the watch is closed.

        Args:
            until: a moment for another call, in seconds since 1970 by the wall clock.
        """
        watch = RunWatch(run_id, ring, until, self)
        try:
            with self._mutex:
                self._add(store, seal, watch)
        except BaseException:  # a Ctrl-C
            watch.close()
            raise
        self._wake.set()
        return watch

    def _add(self, store: Store, seal: Seal, watch: RunWatch) -> None:
        watched = self._stores.get(id(store))
        if watched is None:
            watched = self._stores[id(store)] = _WatchedStore(store, seal)
        self._open.add(watch)
        watched.watches.setdefault(watch.run_id, []).append(watch)
        watched.new.append(watch)
        if watch.until is not None:
            self._add_moment(watch.until, watch)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="stepwise watcher")
            start_apart(self._thread)
            atexit.register(self._end_with_program, self._thread)

    def _close(self, watch: RunWatch) -> None:
        with self._mutex:
            if watch not in self._open:
                return
            self._open.discard(watch)
            for key, watched in list(self._stores.items()):
                if watch in watched.watches.get(watch.run_id, ()):
                    watched.watches[watch.run_id].remove(watch)
                    if not watched.watches[watch.run_id]:
                        del watched.watches[watch.run_id]
                    if not watched.watches:
                        del self._stores[key]
        self._wake.set()  # after the last watch is closed, the thread ends

    def _add_moment(self, until: float, watch: RunWatch) -> None:
        if len(self._moments) > 2 * len(self._open) + _SPARE:
            self._moments = [each for each in self._moments if each[2] in self._open]
            heapq.heapify(self._moments)
        heapq.heappush(self._moments, (until, next(self._numbers), watch))

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        slow_poll = time.monotonic() + SLOW_POLL
        while True:
            wake, now = self._wake, time.monotonic()
            wake.clear()
            with self._mutex:
                if not self._open or threading.current_thread() is not self._thread:
                    self._leave()
                    return
                stores = [(each, each.take_new()) for each in self._stores.values()]
                due = self._due()
            everything = now >= slow_poll
            if everything:
                slow_poll = now + SLOW_POLL
            for watched, new in stores:
                with self._looking:
                    if watched.watches:
                        due += watched.look(new, now, everything)
            for watch in dict.fromkeys(due):
                if watch in self._open:
                    _call(watch)
            wake.wait(self._pause())

    def _due(self) -> list[RunWatch]:
        found, now = [], time.time()
        while self._moments and self._moments[0][0] <= now:
            found.append(heapq.heappop(self._moments)[2])
        return found

    def _pause(self) -> float:
        with self._mutex:
            ahead = self._moments[0][0] - time.time() if self._moments else POLL
        return max(0.0, min(POLL, ahead))

    def _leave(self) -> None:
        if self._thread is threading.current_thread():
            atexit.unregister(self._end_with_program)
            self._thread = None

    def _end_with_program(self, thread: threading.Thread) -> None:
        """End the thread before the interpreter stops it, perhaps inside a store's lock."""
        if self._thread is thread:
            self._thread = None
            self._wake.set()
            thread.join(_DONE_AT_EXIT)


@reports
def _call(watch: RunWatch) -> None:
    watch.ring()


watcher = Watcher()
"""The watcher of this process."""
