"""The group commit of a store: writes of tasks, threads and runs share one transaction.

A *share* is one caller's write.  The first caller leads: it writes its own share at once.  Shares
that arrive meanwhile wait; then one of their callers leads, and writes all of them in the order of
their arrival.  So all shares that arrive during one flush share the next flush, and a single caller
never waits for another.

The batches of a run form a *chain*: each batch was sealed on the previous one.  So a failed batch
fails all batches that were sealed on it, and ends the chain.  The run then reads what the store
holds before it seals another batch.

An event loop must not stand still during a flush while other tasks could run.  So another thread,
the store's *writer*, writes the shares of event loops and then notifies each loop.  No caller
continues before its own share is written.

Rejected (measured): each caller waits for a lock, and finds its share already written behind the
lock.  Callers whose shares are written queue with callers that bring new ones, and each new share
gets a flush of its own.

Rejected, too: a pool of threads, one for each run that writes.  Each thread is woken for each
write, waits for the thread that flushes, and notifies the loop.  The writer does all of this once
for all runs.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import functools
import os
import sys
import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stepwise._runtime.forks import process_lock
from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import RunStopped, StoreError
from stepwise.stores.base import Batch, Store

Wanted = tuple[str, int, Batch]  # run id, epoch, batch
WriteAll = Callable[[Sequence[Wanted]], Sequence[BaseException | None]]
T = TypeVar("T")
_NOBODY, _ELSEWHERE = 0, -1  # never identifiers of threads


class WriteTimes:
    """The number of writes of this process, by the time that they took, for its metrics.

    Attributes:
        counts: the number of writes up to each of ``BOUNDS``, and of those that took longer.
        seconds: the time of all writes.
    """

    BOUNDS = 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0

    def __init__(self) -> None:
        self.counts, self.seconds = [0] * (len(self.BOUNDS) + 1), 0.0
        self._mutex = process_lock()

    def add(self, seconds: float) -> None:
        """Count a write, whether or not it succeeded."""
        with self._mutex:
            self.counts[bisect_left(self.BOUNDS, seconds)] += 1
            self.seconds += seconds


write_times = WriteTimes()


class Chain:
    """The batches of one run, each sealed on the previous one.

    Attributes:
        error: the error that ended the chain; no further batch is written.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class Share:
    """One caller's part of a group commit: a batch of a run.

    Args:
        future: the future to resolve when an event loop waits for the share.

    Attributes:
        wanted: the run, the epoch and the batch to write.
        chain: the chain of the run, once the batch is sealed.
        error: the error that the write raised.
        done: True once the share is written or has failed.
        leads: True if the caller must write the share, and all shares that wait with it.
        left: True if the caller was interrupted while other shares rely on this one.
        bell: the lock at which the caller waits.
        thread: the caller's thread; -1 for an event loop, whose shares the writer writes.
    """

    __slots__ = ("bell", "chain", "done", "error", "future", "leads", "left", "thread", "wanted")
    wanted: Wanted

    def __init__(self, future: Any = None) -> None:
        self.future = future
        self.chain: Chain | None = None
        self.error: BaseException | None = None
        self.done = self.leads = self.left = False
        self.bell: Any = None  # a lock, once its thread waits
        self.thread = threading.get_ident() if future is None else _ELSEWHERE

    def join(self, commits: Commits) -> None:
        """Add the share to the waiting shares of a store."""
        commits.join(self)

    def ended(self) -> None:
        """End the chain if the share has failed; called when the share is done."""
        if self.error is not None and self.chain is not None:
            self.chain.error = self.chain.error or self.error

    def ring(self) -> None:
        """Wake the caller's thread when the share is done, or when the caller must lead."""
        if self.bell is not None and self.bell.locked():
            self.bell.release()


class Commits:
    """The waiting shares of a store, and the thread that writes them: the *leader*.

    An error that the store raises for a run goes to all shares of the run in the write.  Any other
    exception, such as ``KeyboardInterrupt``, is raised in the leader alone, and the other shares
    keep waiting.

    Wherever a signal handler raises, leadership passes on: only plain ``with`` and ``try`` stand
    between taking the lead and giving it up.

    Args:
        store: the store that writes the shares.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock: Any = threading.RLock()
        self._writing = False
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._waiting: list[Share] = []
        self._leader = _NOBODY  # the thread
        self._writer = _WriterThread()

    def alone(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function while no other thread writes.

        Raises:
            StoreError: this thread is in the middle of a write already.
        """
        with self._lock:
            if self._writing:
                raise refused(self._store.url)
            try:
                self._writing = True
                return function(*args)
            finally:
                self._writing = False

    def write(self, share: Share) -> None:
        """Write a share, or wait until another thread has written it; raise its error."""
        with Uninterrupted():
            try:
                self._check(share)
                share.join(self)
                if not share.leads:
                    share.bell.acquire()  # until its share is written, or it becomes the leader
                if not share.done:
                    self.alone(self._write_waiting)
            except BaseException:
                self._leave(share)
                raise
            finally:
                if share.leads and self._hand_over():
                    self._writer.serve(self._serve)
        if share.error is not None:
            raise share.error

    def submit(self, share: Share) -> None:
        """Have another thread write a share and then resolve the share's future."""
        with Uninterrupted():
            try:
                self._check(share)
                share.join(self)
            except (Exception, RunStopped) as error:
                share.error = error
                _end([share])
            finally:
                if share.leads:
                    self._writer.serve(self._serve)

    def _check(self, share: Share) -> None:
        """Raise ``StoreError`` if the share's thread is in the middle of a write already."""
        if self._leader == share.thread and share.future is None:
            raise refused(self._store.url)

    def join(self, share: Share) -> None:
        """Add a share to the waiting shares; its caller leads if no thread does."""
        with self._mutex:
            if self._leader != _NOBODY:
                self._check(share)  # a waiting thread may lead by now, and run a signal handler
            self._waiting.append(share)
            if self._leader == _NOBODY:
                share.leads, self._leader = True, share.thread
            else:
                share.bell = _thread.allocate_lock()
                share.bell.acquire()

    def _leave(self, share: Share) -> None:
        """Drop the share of an interrupted caller, unless other shares of the run rely on it."""
        with self._mutex:
            if share.done:
                return
            others = (each for each in self._waiting if each is not share and not each.done)
            if any(each.chain is share.chain for each in others):
                share.left, share.thread = True, _ELSEWHERE
            else:
                share.error = share.error or interrupted(self._store.url)
                share.done = True
                share.ended()

    def _hand_over(self) -> bool:
        """Hand leadership to another waiter. Return whether the writer has to lead for it."""
        with self._mutex:
            self._waiting = [share for share in self._waiting if not share.done]
            if not self._waiting:
                self._leader = _NOBODY
                return False
            # Choose the last share: a thread with two waiting shares, one of them from a signal
            # handler, waits for the later one.
            following = self._waiting[-1]
            self._leader = following.thread
            following.leads = True
            following.ring()
            return following.future is not None or following.left

    def _serve(self) -> None:
        """Lead for event loops and interrupted callers, until a waiting thread can take over."""
        while True:
            with self._mutex:
                waiting = list(self._waiting)
            try:
                self.alone(self._write_waiting)
            except BaseException as error:  # no other thread would report it
                left = [share for share in waiting if not share.done]
                for share in left:
                    share.error = share.error or error
                _end(left)
            if not self._hand_over():
                return

    def _write_waiting(self) -> None:
        began = time.perf_counter()
        shares = [share for share in self._waiting if not share.done]
        runs: dict[tuple[str, int], list[Share]] = {}
        for share in shares:
            if share.chain is not None and share.chain.error is not None:
                share.error = share.chain.error
            else:
                runs.setdefault(share.wanted[:2], []).append(share)
        write_all = write_all_of(self._store) if len(runs) > 1 else None
        if write_all is not None:
            self._write_runs(write_all, runs)
        else:
            for (run_id, epoch), them in runs.items():
                error = error_of(self._store.write, run_id, epoch, _merged(them))
                for share in them:
                    share.error = error
        write_times.add(time.perf_counter() - began)
        _end(shares)

    def _write_runs(self, write_all: WriteAll, runs: dict[tuple[str, int], list[Share]]) -> None:
        try:
            errors = write_all([(*run, _merged(them)) for run, them in runs.items()])
        except (Exception, RunStopped) as error:
            errors = [error] * len(runs)
        for them, of_run in zip(runs.values(), errors, strict=True):
            for share in them:
                share.error = of_run


def refused(where: str) -> StoreError:
    """Return the error for code that uses a store in the middle of a write of its own thread."""
    return StoreError(
        "a signal handler or a finalizer called stepwise in the middle of a write; "
        "call it from ordinary code",
        path=where,
        errno=errno.EDEADLK,
    )


def interrupted(where: str) -> StoreError:
    """Return the error for a write that was interrupted, or that follows such a write."""
    return StoreError(
        f"a write to {where} was interrupted; run again", path=where, errno=errno.EINTR
    )


def _merged(shares: Sequence[Share]) -> Batch:
    """Merge consecutive batches of one run into one batch."""
    if len(shares) == 1:
        return shares[0].wanted[2]
    batches = [share.wanted[2] for share in shares]
    records = tuple(record for batch in batches for record in batch.records)
    heads = [batch.head for batch in batches if batch.head is not None]
    return batches[-1]._replace(
        records=records,
        put={name: data for batch in batches for name, data in batch.put.items()},
        head=heads[-1] if heads else None,
        mark=next((batch.mark for batch in reversed(batches) if batch.mark), b""),
        durable=any(batch.durable for batch in batches),
    )


def _end(shares: Sequence[Share]) -> None:
    """Mark shares as done, wake the waiting threads, and notify each event loop once."""
    loops: dict[Any, list[Any]] = {}
    for share in shares:
        share.done = True
        share.ended()
    for share in shares:
        if share.future is not None:
            loops.setdefault(share.future.get_loop(), []).append(share.future)
        elif share.bell is not None:
            share.ring()
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # a closed loop has no waiters
            loop.call_soon_threadsafe(_settle, futures)


def _settle(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


# -- the writer ----------------------------------------------------------------------------------

_IDLE = 1.0  # seconds without work after which a writer's thread ends: stores come and go


class _WriterThread:
    """The thread that leads for event loops.

    A sleeping thread holds no reference to a store or a run.  The thread ends when it has had no
    work for a while, and does not keep the process alive.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._jobs: list[Callable[[], None]] = []
        self._lives = self._sleeps = False
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def serve(self, job: Callable[[], None]) -> None:
        """Queue a job for the thread, and start or wake the thread."""
        with self._mutex:
            self._jobs.append(job)
            starts, self._lives = not self._lives, True
            if self._sleeps:
                self._sleeps = False
                self._bell.release()
        if sys.is_finalizing():  # all other threads have stopped
            self._do_jobs()
        elif starts:
            try:
                # Not a threading.Thread: the loop would wait until the thread has begun.
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # too many threads, or Python is about to end
                self._lives = False
                self._do_jobs()

    def _work(self) -> None:
        while True:
            self._do_jobs()
            with self._mutex:
                if self._jobs:
                    continue
                self._sleeps = True
            if self._bell.acquire(timeout=_IDLE):
                continue
            with self._mutex:
                if self._sleeps:
                    self._lives = self._sleeps = False
                    return
            self._bell.acquire()  # serve() has just released the bell

    def _do_jobs(self) -> None:
        while True:
            with self._mutex:
                if not self._jobs:
                    return
                job = self._jobs.pop(0)
            job()
            del job  # the job refers to a store


# -- the commits of stores -----------------------------------------------------------------------


def error_of(write: Callable[..., None], *wanted: Any) -> BaseException | None:
    """Call a function that writes, and return its error, or ``None`` if it succeeds."""
    try:
        write(*wanted)
    except (Exception, RunStopped) as error:
        return error
    return None


_commits: weakref.WeakValueDictionary[tuple[int, bool], Commits] = weakref.WeakValueDictionary()
"""The group commits, by the id of the store and by whether the writes wait for the disk.

Writes that need not wait for the disk have a group commit of their own, so no flush delays them.
"""


def commits_of(store: Store, *, fsync: bool) -> Commits:
    """Return the group commit of a store.

    A store that writes only one batch at a time, such as a user's own or one that a test wraps,
    gets a separate group commit for each caller.
    """
    if write_all_of(store) is None:
        return Commits(store)
    _watch_forks()
    return _commits.setdefault((id(store), fsync), Commits(store))


Method = TypeVar("Method", bound=Callable[..., Any])


def for_several(write: Callable[..., None]) -> Callable[[Method], Method]:
    """Mark a store's method that does for several runs what ``write`` does for one.

    If a subclass, a test or a wrapper replaces ``write`` alone, the replacement is called for each
    run instead of the marked method.
    """

    def mark(method: Method) -> Method:
        method.one = write  # type: ignore[attr-defined]
        return method

    return mark


def write_all_of(store: object) -> WriteAll | None:
    """Return a store's method that writes for several runs at once, or ``None``."""
    every: Any = getattr(type(store), "write_all", None)
    one = getattr(getattr(store, "write", None), "__func__", None)
    if every is None or one is None or getattr(every, "one", None) is not one:
        return None
    method: WriteAll = every.__get__(store)
    return method


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_commits.clear)
