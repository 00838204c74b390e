"""Group commit: what several tasks and threads want written goes in one transaction.

A *share* is what one caller wants written: records of a run, for its journal, or the batch of a
run, for its store.  The first to come writes it, and leads: what comes meanwhile waits, and then
one of those writes all of it, in the order in which it came.  So what comes in during one flush
shares the next, and a caller who is alone waits for nobody.

An event loop must not stand still for a flush while other tasks could run: its shares are written
in another thread, and the loop is told.  Each store has one such thread, the *writer*, for all runs
that it keeps; it gives the store at once what all of them want written.  A store that takes only
one batch at a time (a user's own, one that a test wraps) gets a thread for each run that writes.
Nobody goes on before his own share is written.

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
from typing import Any, Generic, Protocol, TypeVar

from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import RunStopped, StoreError

__all__ = ["Group", "Halves", "Share", "for_several", "write_all_of"]


class Share:
    """One caller's part of a group commit; a subclass defines its contents.

    Args:
        future: of the event loop that waits for it, if one does.

    Attributes:
        error: what came of it instead.
        done: it is written, or there is an error.
        leads: who brought it is to write it, and all that waits with it.
        bell: what who brought it waits at.
        thread: of who brought it; an event loop's writes are made in no thread of the program.
    """

    __slots__ = ("bell", "done", "error", "future", "leads", "thread")

    def __init__(self, future: Any = None) -> None:
        self.future = future
        self.error: BaseException | None = None
        self.done = self.leads = False
        self.bell: Any = None  # a lock, once its thread waits
        self.thread = threading.get_ident() if future is None else _ELSEWHERE

    def ring(self) -> None:
        """Wake the thread of a share that is done, or that is to lead."""
        if self.bell is not None and self.bell.locked():
            self.bell.release()


ShareT = TypeVar("ShareT", bound=Share)
WriteAll = Callable[[Sequence[Any]], Sequence[BaseException | None]]
T = TypeVar("T")
_NOBODY, _ELSEWHERE = 0, -1  # never identifiers of threads


class Halves(Protocol[ShareT]):
    """How to write shares, in halves before and after the store does."""

    @property
    def store(self) -> object:
        """Return the store that writes."""

    def prepare(self, shares: list[ShareT]) -> Any:
        """Return what the store is to write, ``None`` for nothing.

        A share that cannot be written gets its error.
        """

    def settle(self) -> None:
        """Note that the store has written it."""


class Group(Generic[ShareT]):
    """The waiting shares, and the thread that writes them: the *leader*.

    What is given to :meth:`write` and :meth:`submit` writes shares in one transaction.  If it stops
    the run, each of them gets the error; anything else that it raises is for who called it, and the
    shares of the others still wait.  It is not kept: a journal would refer to itself, and live on.

    Whatever a signal handler raises, and where, the next one leads: only plain ``with`` and ``try``
    stand between taking the lead and giving it up.

    Args:
        where: the store, for an error message.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock: Any = threading.RLock()
        self._writing = False
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._waiting: list[ShareT] = []
        self._leader = _NOBODY  # the thread
        self._writer: _StoreWriter | None = None

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

    def at_once(self, function: Callable[..., T], *args: Any) -> T | None:
        """Call a function without a share if nobody writes or waits; ``None`` otherwise.

        Who comes meanwhile leads, and waits for the lock with all who come after it.
        """
        if self._lock._is_owned():  # else a signal handler would wait for what it interrupted
            raise self.refused()
        if self._writing or self._leader != _NOBODY:
            return None
        with self._lock:
            try:
                self._writing = True
                return function(*args)
            finally:
                self._writing = False

    def write(
        self,
        share: ShareT,
        write: Callable[[list[ShareT]], None],
        before: Sequence[ShareT] = (),
    ) -> None:
        """Have a share written, and wait for it; raises its error.

        Args:
            before: shares of this thread that are written with it.
        """
        with Uninterrupted():
            try:
                self._join(share, before)
                if not share.leads:
                    share.bell.acquire()  # until its share is written, or it becomes the leader
                if not share.done:
                    self.alone(self._write_waiting, write)
            except BaseException as error:
                _mark([each for each in before if not each.done], error)
                raise
            finally:
                share.done = True
                if share.leads and self._hand_over():
                    self._serve_elsewhere(write)
        if share.error is not None:
            raise share.error

    def write_all(
        self, shares: Sequence[ShareT], write: Callable[[list[ShareT]], None]
    ) -> list[BaseException | None]:
        """Have shares of this thread, a writer, written together; return the error of each."""
        *before, share = shares
        try:
            self.write(share, write, before)
        except BaseException as error:
            share.error = share.error or error
        return [each.error for each in shares]

    def submit(
        self,
        share: ShareT,
        write: Callable[[list[ShareT]], None],
        halves: Halves[ShareT] | None = None,
    ) -> None:
        """Write a share in another thread, which then resolves its future.

        Args:
            halves: how to do what ``write`` does together with other groups.
        """
        with Uninterrupted():
            self._join(share)
            if not share.leads:
                return
            write_all = write_all_of(halves.store) if halves is not None else None
            if halves is None or write_all is None:
                self._serve_elsewhere(write)
                return
            if self._writer is None:
                self._writer = _writer_of(halves.store)
            self._writer.serve(_Turn(self, halves, write_all))

    def _join(self, share: ShareT, before: Sequence[ShareT] = ()) -> None:
        with self._mutex:
            if self._leader == share.thread and share.future is None:
                raise self.refused()
            self._waiting += (*before, share)  # in its order: the last one is woken to lead
            if self._leader == _NOBODY:
                share.leads, self._leader = True, share.thread
            else:
                share.bell = _thread.allocate_lock()
                share.bell.acquire()

    def _hand_over(self) -> bool:
        """Hand leadership to another waiter. Return whether it has to be woken."""
        with self._mutex:
            if not self._waiting:
                self._leader = _NOBODY
                return False
            self._waiting = [share for share in self._waiting if not share.done]
            # The last share: a thread that waits for two (one in a signal handler) waits for this.
            following = self._waiting[-1] if self._waiting else None
            self._leader = following.thread if following is not None else _NOBODY
            if following is None:
                return False
            following.leads = True
            following.ring()
            return following.future is not None

    def _serve_elsewhere(self, write: Callable[[list[ShareT]], None]) -> None:
        try:
            # Not a threading.Thread: the loop would wait until the thread has begun.
            _thread.start_new_thread(self._serve, (write,))
        except RuntimeError:  # too many threads, or Python is about to end
            self._serve(write)

    def _serve(self, write: Callable[[list[ShareT]], None]) -> None:
        """Lead for those that do not do so by themselves."""
        while True:
            with self._mutex:
                waiting = list(self._waiting)
            try:
                self.alone(self._write_waiting, write)
            except BaseException as error:  # no other thread would report it
                _end([share for share in waiting if not share.done], error)
            if not self._hand_over():
                return

    def enter(self) -> list[ShareT]:
        """Let nobody else write, up to :meth:`leave`; the shares that wait."""
        self._lock.acquire()
        self._writing = True
        return self._undone()

    def leave(self) -> bool:
        """Let others write; return whether shares of event loops wait."""
        self._writing = False
        self._lock.release()
        return self._hand_over()

    def _undone(self) -> list[ShareT]:
        with self._mutex:
            return [share for share in self._waiting if not share.done]

    def _write_waiting(self, write: Callable[[list[ShareT]], None]) -> None:
        shares = self._undone()
        stop: RunStopped | None = None
        try:
            write(shares)
        except RunStopped as error:
            stop = error
        _end(shares, stop)

    def refused(self) -> StoreError:
        """Return the error for code that writes in the middle of a write of its own thread."""
        return StoreError(
            "a signal handler or a finalizer called stepwise in the middle of a write; "
            "call it from ordinary code",
            path=self._where,
            errno=errno.EDEADLK,
        )


# -- writers -------------------------------------------------------------------------------------

_IDLE = 1.0  # seconds after which a writer's thread ends: stores come and go


class _Turn:
    """The work of a writer for one group, which it leads.

    Attributes:
        shares: of the group; nobody else writes to its journal until they are done.
        is_prepared: the store is to write something for it.
        error: what came of it instead.
    """

    __slots__ = ("error", "group", "halves", "is_prepared", "shares", "write_all")

    def __init__(self, group: Group[Any], halves: Halves[Any], write_all: WriteAll) -> None:
        self.group, self.halves, self.write_all = group, halves, write_all
        self.shares: list[Any] = []
        self.is_prepared = False
        self.error: BaseException | None = None

    def begin(self) -> Any:
        """Return what the store is to write; ``None`` for nothing."""
        self.shares = self.group.enter()
        wanted = None
        try:
            wanted = self.halves.prepare(self.shares)
        except BaseException as error:  # no other thread would report it
            self.error = error
        self.is_prepared = wanted is not None
        return wanted

    def again(self) -> _Turn:
        """Return the turn for what has come meanwhile."""
        return _Turn(self.group, self.halves, self.write_all)

    def end(self) -> bool:
        """Mark the shares as done; return whether more have come."""
        if self.is_prepared and self.error is None:
            self.halves.settle()
        _mark(self.shares, self.error)
        return self.group.leave()


class _StoreWriter:
    """The thread that writes for event loops into one store.

    It holds nothing of a store or a run while it sleeps, ends when nobody has needed it for a
    while, and does not keep the process alive.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._turns: list[_Turn] = []
        self._lives = self._sleeps = False
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def serve(self, turn: _Turn) -> None:
        """Have a turn written soon."""
        with self._mutex:
            self._turns.append(turn)
            starts, self._lives = not self._lives, True
            if self._sleeps:
                self._sleeps = False
                self._bell.release()
        if sys.is_finalizing():  # all other threads have stopped
            self._write_turns()
        elif starts:
            try:
                # Not a threading.Thread: the loop would wait until the thread has begun.
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # too many threads, or Python is about to end
                self._lives = False
                self._write_turns()

    def _work(self) -> None:
        while True:
            self._write_turns()
            with self._mutex:
                if self._turns:
                    continue
                self._sleeps = True
            if self._bell.acquire(timeout=_IDLE):
                continue
            with self._mutex:
                if self._sleeps:
                    self._lives = self._sleeps = False
                    return
            self._bell.acquire()  # it was rung just now

    def _write_turns(self) -> None:
        """Write what waits, in one call of the store, until nothing waits."""
        while True:
            with self._mutex:
                turns, self._turns = self._turns, []
            if not turns:
                return
            wanted = [(turn, what) for turn in turns if (what := turn.begin()) is not None]
            _have_written(wanted)
            following = [turn.again() for turn in turns if turn.end()]
            _wake([share for turn in turns for share in turn.shares])
            with self._mutex:
                self._turns += following


def _have_written(wanted: list[tuple[_Turn, Any]]) -> None:
    if not wanted:
        return
    try:
        errors = wanted[0][0].write_all([what for _, what in wanted])
    except BaseException as error:  # no other thread would report it
        errors = [error] * len(wanted)
    for (turn, _), each in zip(wanted, errors, strict=True):
        turn.error = each


_writers: weakref.WeakKeyDictionary[Any, _StoreWriter] = weakref.WeakKeyDictionary()


def _writer_of(store: object) -> _StoreWriter:
    _watch_forks()
    return _writers.setdefault(store, _StoreWriter())


@functools.cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for writer in _writers.values():
        writer.begin_anew()


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


# -- the end of shares ---------------------------------------------------------------------------


def _end(shares: Sequence[Share], error: BaseException | None) -> None:
    _mark(shares, error)
    _wake(shares)


def _mark(shares: Sequence[Share], error: BaseException | None) -> None:
    for share in shares:
        share.error = share.error or error
        share.done = True


def _wake(shares: Sequence[Share]) -> None:
    """Wake the threads that wait, and notify the event loops, each once."""
    for share in shares:
        share.ring()
    loops: dict[Any, list[Any]] = {}
    for share in shares:
        if share.future is not None:
            loops.setdefault(share.future.get_loop(), []).append(share.future)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # a closed loop has no waiters
            loop.call_soon_threadsafe(_settle, futures)


def _settle(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
