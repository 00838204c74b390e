"""The group commit of a store: what tasks, threads and runs want written goes in one transaction.

A *share* is what one caller wants written.  The first to come writes it, and leads: what comes
meanwhile waits, and then one of those writes all of it, in the order in which it came.  So what
comes in during one flush shares the next, and a caller who is alone waits for nobody.

The batches of a run follow each other in a *chain*: each was sealed on the one before.  So one that
fails fails all that were sealed on it, and the chain is at its end; its run looks at what is there
before it seals another batch.

An event loop must not stand still for a flush while other tasks could run: its shares are written
by another thread, the store's *writer*, and the loop is told.  Nobody goes on before his own share
is written.

Waiting for a lock instead, and finding one's share done behind it, was rejected (measured): those
whose shares are done stand in line with those who bring new ones, and each gets a flush of its own.
So was a pool of threads, one for each run that writes: each of them is woken for each write, waits
for the one that flushes, and tells the loop, while the writer does all of it once for all runs.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import RunStopped, StoreError
from stepwise.stores.base import Batch, Store

Wanted = tuple[str, int, Batch]  # run id, epoch, batch
WriteAll = Callable[[Sequence[Wanted]], Sequence[BaseException | None]]
T = TypeVar("T")
_NOBODY, _ELSEWHERE = 0, -1  # never identifiers of threads


class Chain:
    """The batches of a run that follow each other.

    Attributes:
        error: why no further one is written.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class Share:
    """One caller's part of a group commit: a batch of a run.

    Args:
        future: of the event loop that waits for it, if one does.

    Attributes:
        wanted: what the store is to write.
        chain: of the run, once the batch is sealed.
        error: what came of it instead.
        done: it is written, or there is an error.
        leads: who brought it is to write it, and all that waits with it.
        left: its caller was interrupted, and others rely on it.
        bell: what who brought it waits at.
        thread: of who brought it; an event loop's writes are made in no thread of the program.
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
        """Get in line."""
        commits.join(self)

    def ended(self) -> None:
        """Take note that it is written, or that there is an error; called while nobody writes."""
        if self.error is not None and self.chain is not None:
            self.chain.error = self.chain.error or self.error

    def ring(self) -> None:
        """Wake the thread of a share that is done, or that is to lead."""
        if self.bell is not None and self.bell.locked():
            self.bell.release()


class Commits:
    """The waiting shares of a store, and the thread that writes them: the *leader*.

    Anything but an error of the store that a write raises is for the leader alone, and the shares
    of the others still wait.

    Whatever a signal handler raises, and where, the next one leads: only plain ``with`` and ``try``
    stand between taking the lead and giving it up.

    Args:
        store: that writes.
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
        """Call a function while nobody else writes."""
        with self._lock:
            if self._writing:
                raise self.refused()
            try:
                self._writing = True
                return function(*args)
            finally:
                self._writing = False

    def write(self, share: Share) -> None:
        """Have a share written, and wait for it; raises its error."""
        with Uninterrupted():
            try:
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
        """Write a share in another thread, which then resolves its future."""
        with Uninterrupted():
            try:
                share.join(self)
            except (Exception, RunStopped) as error:
                share.error = error
                _end([share])
            finally:
                if share.leads:
                    self._writer.serve(self._serve)

    def check(self, share: Share) -> None:
        """Raise in code that the share's thread runs in the middle of a write."""
        if self._leader == share.thread and share.future is None:
            raise self.refused()

    def join(self, share: Share) -> None:
        """Put a share in line."""
        with self._mutex:
            if self._leader != _NOBODY:
                self.check(share)  # lead may have come to a thread that waits, and runs a handler
            self._waiting.append(share)
            if self._leader == _NOBODY:
                share.leads, self._leader = True, share.thread
            else:
                share.bell = _thread.allocate_lock()
                share.bell.acquire()

    def _leave(self, share: Share) -> None:
        """Drop the share of a caller who was interrupted, unless others rely on it."""
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
            # The last share: a thread that waits for two (one in a signal handler) waits for this.
            following = self._waiting[-1]
            self._leader = following.thread
            following.leads = True
            following.ring()
            return following.future is not None or following.left

    def _serve(self) -> None:
        """Lead for those that do not do so by themselves."""
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
        with self._mutex:
            shares = [share for share in self._waiting if not share.done]
        runs: dict[tuple[str, int], list[Share]] = {}
        for share in shares:
            if share.chain is not None and share.chain.error is not None:
                share.error = share.chain.error
            else:
                runs.setdefault(share.wanted[:2], []).append(share)
        wanted = [(*run, _merged(them)) for run, them in runs.items()]
        for them, error in zip(runs.values(), self._written(wanted), strict=True):
            for share in them:
                share.error = error
        _end(shares)

    def _written(self, wanted: list[Wanted]) -> Sequence[BaseException | None]:
        write_all = write_all_of(self._store) if len(wanted) > 1 else None
        if write_all is None:
            return [error_of(self._store.write, *each) for each in wanted]
        try:
            return write_all(wanted)
        except (Exception, RunStopped) as error:
            return [error] * len(wanted)

    def refused(self) -> StoreError:
        """Return the error for code that writes in the middle of a write of its own thread."""
        return refused(self._store.url)


def refused(where: str) -> StoreError:
    """Return the error for code that uses a store in the middle of a write of its own thread."""
    return StoreError(
        "a signal handler or a finalizer called stepwise in the middle of a write; "
        "call it from ordinary code",
        path=where,
        errno=errno.EDEADLK,
    )


def interrupted(where: str) -> StoreError:
    """Return the error for what was to be written after a write that was interrupted."""
    return StoreError(
        f"a write to {where} was interrupted; run again", path=where, errno=errno.EINTR
    )


def _merged(shares: Sequence[Share]) -> Batch:
    """Return the batches of a run, which follow each other, as one."""
    if len(shares) == 1:
        return shares[0].wanted[2]
    batches = [share.wanted[2] for share in shares]
    records = tuple(record for batch in batches for record in batch.records)
    heads = [batch.head for batch in batches if batch.head is not None]
    return batches[-1]._replace(
        records=records,
        head=heads[-1] if heads else None,
        mark=next((batch.mark for batch in reversed(batches) if batch.mark), b""),
        durable=any(batch.durable for batch in batches),
    )


def _end(shares: Sequence[Share]) -> None:
    """Mark shares as done, wake the threads that wait, and notify the event loops, each once."""
    for share in shares:
        share.done = True
        share.ended()
    loops: dict[Any, list[Any]] = {}
    for share in shares:
        share.ring()
        if share.future is not None:
            loops.setdefault(share.future.get_loop(), []).append(share.future)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # a closed loop has no waiters
            loop.call_soon_threadsafe(_settle, futures)


def _settle(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


# -- the writer ----------------------------------------------------------------------------------

_IDLE = 1.0  # seconds after which a writer's thread ends: stores come and go


class _WriterThread:
    """The thread that leads for event loops.

    It holds nothing of a store or a run while it sleeps, ends when nobody has needed it for a
    while, and does not keep the process alive.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._jobs: list[Callable[[], None]] = []
        self._lives = self._sleeps = False
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def serve(self, job: Callable[[], None]) -> None:
        """Have a job done soon."""
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
            self._bell.acquire()  # it was rung just now

    def _do_jobs(self) -> None:
        while True:
            with self._mutex:
                if not self._jobs:
                    return
                job = self._jobs.pop(0)
            job()
            del job  # it holds a store


# -- the commits of stores -----------------------------------------------------------------------


def error_of(write: Callable[..., None], *wanted: Any) -> BaseException | None:
    """Call a function that writes; return the error that it raises, if any."""
    try:
        write(*wanted)
    except (Exception, RunStopped) as error:
        return error
    return None


_commits: weakref.WeakValueDictionary[tuple[int, bool], Commits] = weakref.WeakValueDictionary()
"""By the id of a store, and whether it waits for the disk: who need not wait does not."""


def commits_of(store: Store, *, fsync: bool) -> Commits:
    """Return the group commit of a store.

    A store that takes only one batch at a time (a user's own, one that a test wraps) gets one for
    each caller.
    """
    if write_all_of(store) is None:
        return Commits(store)
    _watch_forks()
    return _commits.setdefault((id(store), fsync), Commits(store))


Method = TypeVar("Method", bound=Callable[..., Any])


def for_several(write: Callable[..., None]) -> Callable[[Method], Method]:
    """Mark a store's method that does for several runs what ``write`` does for one.

    A subclass, a test or a wrapper may change ``write`` alone: then it is called for each run.
    """

    def mark(method: Method) -> Method:
        method.one = write  # type: ignore[attr-defined]
        return method

    return mark


def write_all_of(store: object) -> WriteAll | None:
    """Return the method of a store that writes for several runs at once, if it has one."""
    every: Any = getattr(type(store), "write_all", None)
    one = getattr(getattr(store, "write", None), "__func__", None)
    if every is None or one is None or getattr(every, "one", None) is not one:
        return None
    method: WriteAll = every.__get__(store)
    return method


@functools.cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_commits.clear)
