"""Group commit: what several tasks and threads want written goes in one transaction.

A *share* is what one caller wants written: records of a run, for its journal, or the batch of a
run, for its store.  The first to come writes it, and leads: what comes meanwhile waits, and then
one of those writes all of it, in the order in which it came.  So what comes in during one flush
shares the next, and a caller who is alone waits for nobody.

An event loop must not stand still for a flush while other tasks could run: its shares are written
in a thread, which lives as long as there are any, and the loop is told.  Nobody goes on before his
own share is written.

Waiting for a lock instead, and finding one's share done behind it, was rejected (measured): those
whose shares are done stand in line with those who bring new ones, and each gets a flush of its own.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import RunStopped, StoreError

__all__ = ["Group", "Share"]


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


class _Turn:
    """The turn of a caller who leads without a share."""

    leads = False


ShareT = TypeVar("ShareT", bound=Share)
P = ParamSpec("P")
T = TypeVar("T")
_NOBODY, _ELSEWHERE = 0, -1  # never identifiers of threads


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
        self._lock = threading.RLock()
        self._writing = False
        self._mutex = threading.RLock()  # a finalizer may enter anywhere
        self._waiting: list[ShareT] = []
        self._leader = _NOBODY  # the thread

    def alone(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function while nobody else writes."""
        with self._lock:
            if self._writing:
                raise self.refused()
            try:
                self._writing = True
                return function(*args, **kwargs)
            finally:
                self._writing = False

    def at_once(
        self,
        write: Callable[[list[ShareT]], None],
        function: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Call a function as the leader, without a share; ``None`` if another one leads.

        Called where Ctrl-C is held back.

        Args:
            write: writes the shares that come meanwhile.
        """
        turn = _Turn()
        try:
            with self._mutex:
                if self._leader != _NOBODY:
                    return None
                turn.leads, self._leader = True, threading.get_ident()
            with self._lock:  # as in alone()
                if self._writing:
                    raise self.refused()
                try:
                    self._writing = True
                    return function(*args, **kwargs)
                finally:
                    self._writing = False
        finally:
            if turn.leads and self._hand_over():
                self._serve_elsewhere(write)

    def write(self, share: ShareT, write: Callable[[list[ShareT]], None]) -> None:
        """Have a share written, and wait for it; raises its error."""
        with Uninterrupted():
            try:
                self._join(share)
                if not share.leads:
                    share.bell.acquire()  # until its share is written, or it becomes the leader
                if not share.done:
                    self.alone(self._write_waiting, write)
            finally:
                share.done = True
                if share.leads and self._hand_over():
                    self._serve_elsewhere(write)
        if share.error is not None:
            raise share.error

    def submit(self, share: ShareT, write: Callable[[list[ShareT]], None]) -> None:
        """Write a share in another thread, which then resolves its future."""
        with Uninterrupted():
            self._join(share)
            if share.leads:
                self._serve_elsewhere(write)

    def _join(self, share: ShareT) -> None:
        with self._mutex:
            if self._leader == share.thread and share.future is None:
                raise self.refused()
            self._waiting.append(share)
            if self._leader == _NOBODY:
                share.leads, self._leader = True, share.thread
            else:
                share.bell = _thread.allocate_lock()
                share.bell.acquire()

    def _hand_over(self) -> bool:
        """Hand leadership to another waiter. Return whether it has to be woken."""
        with self._mutex:
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

    def _write_waiting(self, write: Callable[[list[ShareT]], None]) -> None:
        with self._mutex:
            shares = [share for share in self._waiting if not share.done]
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


def _end(shares: Sequence[Share], error: BaseException | None) -> None:
    for share in shares:
        share.error = share.error or error
        share.done = True
    for share in shares:
        share.ring()
    _tell(shares)


def _tell(shares: Sequence[Share]) -> None:
    """Notify the event loops that wait, each once."""
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
