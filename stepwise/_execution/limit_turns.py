"""The turns of this process at limits: its waiting calls, its open ones, and the thread that asks.

A *desk* stands for one limit in one store.  A call asks the desk for a turn.  One thread of the
process asks the ledger in the store for all waiting calls at once, and reports the calls that are
over.  So a burst of calls is one write, and no event loop waits for a store.

A waiting desk reads the ledger ten times a second, and as soon as room appears by itself.  It
writes only if a call would be granted, if a process with a part of the limit has died, or to
confirm its places in the queue.

Rejected: turns that are granted in advance to a process whose calls are quick.  They save such a
call two milliseconds, and took a second way to a turn.

Rejected: a write by each call.  A hundred calls in a second would then be a hundred transactions.

Rejected: telling other processes of free room through the bell.  A process that finds no room has
to look again anyway, since a killed process tells nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable

from stepwise._journal.ledger import Figures, Ledger, Over
from stepwise._journal.limit_store import HolderLease, StoredLedger, is_dead
from stepwise._journal.seal import Seal
from stepwise._runtime.clock import elapsed
from stepwise._runtime.forks import start_apart
from stepwise._runtime.messages import Once, notice, reports
from stepwise.errors import StoreError
from stepwise.stores import Store

_LOOK, _LOOK_AT_SERVER = 0.1, 0.25  # seconds between two looks at a ledger
_PACE, _SOONEST = 0.05, 0.005  # seconds between two writes while calls wait, and until a look
_REPORT, _REPORT_SOON = 0.25, 0.01  # seconds after which calls that are over are reported
_CONFIRM, _PATIENCE = 2.0, 10.0  # seconds: places are confirmed, and dropped if they are not
_MOST = 100  # waiting calls of a run that the ledger knows
_AT_EXIT = 2.0  # seconds that the end of the program waits for a round in progress
_NEVER = float("inf")
_is_first = Once()


class Turn:
    """The turn of one call.

    Args:
        run: the run that makes the call; any other text outside runs.
        tokens: an estimate of what the call takes; ``None`` if nobody knows.
        waited: the seconds that the call has waited before, in another process.
        ring: called by another thread when the turn is granted, or failed.

    Attributes:
        granted: whether the call may begin.
        error: the error of the store that the limit is kept in.
        expected: when the turn is probably granted, by :func:`elapsed`; ``None`` if unknown.
    """

    __slots__ = ("_over", "asked", "desk", "error", "expected", "granted", "ring", "run", "tokens")
    desk: Desk

    def __init__(
        self, run: str, tokens: int | None, waited: float, ring: Callable[[], object]
    ) -> None:
        self.run, self.tokens, self.ring = run, tokens, ring
        self.asked = elapsed() - waited
        self.granted = False
        self.error: BaseException | None = None
        self.expected: float | None = None
        self._over: float | None = None


class Desk:
    """The desk of one limit in one store.

    Args:
        figures: of the limit, as this program states them.
    """

    def __init__(self, store: Store, seal: Seal, name: str, figures: Figures) -> None:
        self.store, self.name, self.figures = store, name, figures
        self.due = _NEVER
        self._pid = os.getpid()
        self._ledger = StoredLedger(store, seal, name, figures)
        self._lock = threading.RLock()
        self._waiting: dict[str, deque[Turn]] = {}
        self._open: dict[Turn, int] = {}  # the open turns, with their tokens
        self._over: list[tuple[float, int, int]] = []  # when, requests, tokens
        self._said: list[Callable[[Ledger], None]] = []  # what the provider said
        self._left: Callable[[Ledger], None] | None = None
        self._is_new = False  # calls wait that the ledger does not know
        self._wrote = -_NEVER

    # -- for calls -------------------------------------------------------------------------------

    def ask(self, turn: Turn) -> None:
        """Let a turn wait for the next round, which may grant it."""
        with self._lock:
            pace = _PACE if self._waiting else 0.0
            self._waiting.setdefault(turn.run, deque()).append(turn)
            self._is_new = True
        self._need(max(elapsed(), self._wrote + pace))

    def leave(self, turn: Turn) -> None:
        """Give a turn back that was not used, or give up waiting for it."""
        with self._lock:
            self._open.pop(turn, None)
            line = self._waiting.get(turn.run, ())
            if turn in line:
                line.remove(turn)  # type: ignore[union-attr]
                if not line:
                    del self._waiting[turn.run]
        self._need(elapsed() + _REPORT)

    def over(self, turn: Turn, tokens: int | None = None) -> None:
        """Note that the request of a turn is over.

        Args:
            tokens: what the request has taken, if that is known by now.
        """
        with self._lock:
            estimate = self._open.pop(turn, None)
            if estimate is None:
                return
            turn._over, turn.tokens = elapsed(), estimate
            self._over.append((turn._over, 1, estimate))
        self.correct(turn, tokens)
        soon = self.figures.concurrent is not None
        self._need(elapsed() + (_REPORT_SOON if soon else _REPORT))

    def correct(self, turn: Turn, tokens: int | None) -> None:
        """Replace the estimate of a turn that is over by what its request has taken."""
        if tokens is None or turn._over is None or self.figures.tokens is None:
            return
        with self._lock:
            self._over.append((turn._over, 0, tokens - (turn.tokens or 0)))
            turn.tokens = tokens
            if tokens:
                self._said.append(lambda ledger: ledger.learn(tokens))

    def pause(self, seconds: float) -> None:
        """Let nobody have a turn for some seconds, since the provider said so."""
        with self._lock:
            self._said.append(lambda ledger: ledger.pause(ledger.at, seconds))
        self._need(elapsed())

    def left(self, requests: int | None, tokens: int | None, seconds: float) -> None:
        """Note what the provider says is left, and the seconds until it is whole again.

        The next report has it.  Nothing left is reported at once.
        """
        self._left = lambda ledger: ledger.correct(ledger.at, requests, tokens, seconds)
        if 0 in (requests, tokens):
            self._need(elapsed())

    def take_over(self, other: Desk) -> None:
        """Report what an earlier desk of the limit was told after its last report."""
        with other._lock:
            over, said = other._over, other._said
            other._over, other._said = [], []
        with self._lock:
            self._over += over
            self._said += said

    def _need(self, at: float) -> None:
        if self._pid == os.getpid():  # the turns of a parent are its own
            _clerk.need(self, at)

    # -- for the thread --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if nothing waits, is open, or is to be reported."""
        return not (self._waiting or self._open or self._over or self._said)

    def work(self) -> None:
        """Ask the ledger for what waits, if that may change anything."""
        self.due, now = _NEVER, elapsed()
        try:
            if self._must_write(now) or self._may_get():
                self._round()
        except BaseException as error:  # raised where somebody waits
            self._fail(error)
        with self._lock:
            if self._waiting and self.due == _NEVER:
                self.due = elapsed() + self._pause

    @property
    def _pause(self) -> float:
        return _LOOK_AT_SERVER if hasattr(self.store, "now") else _LOOK

    def _must_write(self, now: float) -> bool:
        with self._lock:
            told = self._is_new or self._over or self._said or not self._waiting
            return bool(told) or now - self._wrote >= _CONFIRM

    def _may_get(self) -> bool:
        """Return whether a write would change anything for a waiting call, by one look."""
        ledger = self._ledger.read()
        if ledger is None:
            return True
        me = _clerk.holder(self.store).id
        self._outlook(ledger)
        return bool(self._dead(ledger) or ledger.grant(me, ledger.at))

    def _dead(self, ledger: Ledger) -> list[str]:
        """Return the processes that are gone, and have a part of the limit or a place."""
        known = {*ledger.claims, *(each.holder for each in ledger.places)}
        known.discard(_clerk.holder(self.store).id)
        return [each for each in known if is_dead(self.store, each)]

    def _round(self) -> None:
        holder, began = _clerk.holder(self.store), elapsed()
        with self._lock:
            self._is_new = False
            over, self._over = self._over, []
            said, self._said = self._said, []
            left, self._left = self._left, None
            claim = len(self._open), sum(self._open.values())
            waits = {run: (line[0].asked, [*line]) for run, line in self._waiting.items()}
        try:
            with self._ledger.changing() as ledger:
                now = ledger.at
                if ledger.state(self.figures):
                    _tell_figures(self.name, self.store.url, self.figures, ledger.figures)
                ended = [Over(now - (began - at), many, spent) for at, many, spent in over]
                ledger.report(holder.id, now, ended, claim)
                for each in (*said, left) if left is not None else said:
                    each(ledger)
                usual = ledger.usual()
                wanted = {
                    run: (now - (began - asked), [_tokens(each, usual) for each in turns[:_MOST]])
                    for run, (asked, turns) in waits.items()
                }
                granted = self._granted(ledger, holder.id, wanted)
        except BaseException:
            with self._lock:
                self._over, self._said = over + self._over, said + self._said
            raise
        self._take(granted)
        self._wrote = elapsed()
        self._outlook(ledger)

    def _granted(
        self, ledger: Ledger, me: str, wanted: dict[str, tuple[float, list[int]]]
    ) -> dict[str, list[int]]:
        ledger.forget(ledger.at, _PATIENCE)
        ledger.queue(me, ledger.at, wanted)
        granted = ledger.grant(me, ledger.at)
        if any(each.holder == me for each in ledger.places):
            dead = self._dead(ledger)
            for each in dead:
                ledger.bury(each, ledger.at)
            for run, more in (ledger.grant(me, ledger.at) if dead else {}).items():
                granted.setdefault(run, []).extend(more)
        return granted

    def _take(self, granted: dict[str, list[int]]) -> None:
        """Give the granted turns to their calls; what nobody wants any more is given back."""
        ready = []
        with self._lock:
            for run, each in granted.items():
                line = self._waiting.get(run, deque())
                for tokens in each[: len(line)]:
                    turn = line.popleft()
                    turn.granted, self._open[turn] = True, tokens
                    ready.append(turn)
                if not line:
                    self._waiting.pop(run, None)
        for turn in ready:
            turn.ring()
        if sum(map(len, granted.values())) > len(ready):
            self._need(elapsed())

    def _outlook(self, ledger: Ledger) -> None:
        """Note when the waiting calls are probably granted, and look again when room appears."""
        now = elapsed()
        with self._lock:
            for run, line in self._waiting.items():
                expected = ledger.expected(run, ledger.at)
                for turn in line:
                    turn.expected = None if expected is None else now + expected - ledger.at
            if self._waiting:
                ahead = ledger.soonest(ledger.at) - ledger.at
                self.due = min(self.due, now + min(self._pause, max(_SOONEST, ahead)))

    def _fail(self, error: BaseException) -> None:
        """Raise an error in all calls that wait; the next report says what is over."""
        with self._lock:
            turns = [turn for line in self._waiting.values() for turn in line]
            self._waiting.clear()
        for turn in turns:
            turn.error = error
            turn.ring()

    def settle(self) -> None:
        """Report all that is over, at the end of the program or of the use of a store."""
        with self._lock:
            self._waiting.clear()
        self._round()


def _tokens(turn: Turn, usual: int) -> int:
    return usual if turn.tokens is None else turn.tokens


@reports
def _tell_figures(name: str, url: str, ours: Figures, theirs: Figures) -> None:
    if _is_first((name, url, ours, theirs)):
        who = "this program states" if ours[:4] == theirs[:4] else "another program states"
        notice(
            f"limit {name!r} has other figures in another program on {url}: "
            f"the newest count, which {who}: {figures_text(theirs)}"
        )


def figures_text(figures: Figures) -> str:
    """Return the figures of a limit in words."""
    rates = [
        f"{limit:,} {what}"
        for limit, what in ((figures.requests, "requests"), (figures.tokens, "tokens"))
        if limit is not None
    ]
    told = [f"{' and '.join(rates)} in {figures.per:g} s"] if rates else []
    if figures.concurrent is not None:
        told.append(f"{figures.concurrent:,} at a time")
    return ", ".join(told)


# -- the thread -----------------------------------------------------------------------------------


class Clerk:
    """The thread that works at the desks of this process while any of them is due."""

    def __init__(self) -> None:
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Have no desks: the state at first and in a forked child, which lacks the thread."""
        self._changed = threading.Condition(threading.RLock())
        self._desks: dict[tuple[int, str], Desk] = {}
        self._holders: dict[int, HolderLease] = {}  # by id() of the store
        self._thread: threading.Thread | None = None
        self._working = threading.RLock()  # held during a round

    def ask(self, place: tuple[Store, Seal], name: str, figures: Figures, turn: Turn) -> None:
        """Ask for a turn at a limit; it has its ``desk`` then, and is granted or waits.

        Args:
            place: the store, and the seal of its records.
            name: of the limit.
            figures: of the limit, as this program states them.
        """
        with self._changed:
            key = id(place[0]), name
            desk = self._desks.get(key)
            if desk is None:
                desk = self._desks[key] = Desk(*place, name, figures)
            elif figures.since > desk.figures.since:
                desk.figures = figures
            turn.desk = desk
            desk.ask(turn)

    def need(self, desk: Desk, at: float) -> None:
        """Work at a desk at a time, by :func:`elapsed`, or earlier."""
        with self._changed:
            current = self._desks.setdefault((id(desk.store), desk.name), desk)
            if current is not desk:
                current.take_over(desk)
            if at < current.due:
                current.due = at
                self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                _settle_at_exit()
                self._thread = threading.Thread(target=self._work, name="stepwise limits")
                start_apart(self._thread)

    def holder(self, store: Store) -> HolderLease:
        """Return the lease that shows that this process lives; take it if it is not held."""
        holder = self._holders.get(id(store))
        if holder is None or not holder.is_held():
            holder = self._holders[id(store)] = HolderLease(store)
        return holder

    def _work(self) -> None:
        while True:
            with self._changed:
                due = min((desk.due for desk in self._desks.values()), default=_NEVER)
                if due == _NEVER or threading.current_thread() is not self._thread:
                    self._thread = None
                    return
                ahead = due - elapsed()
                if ahead > 0:
                    self._changed.wait(ahead)
                    continue
                desks = [desk for desk in self._desks.values() if desk.due <= elapsed()]
            with self._working:
                for desk in desks:
                    desk.work()
                    self._tidy(desk.store)

    def _tidy(self, store: Store) -> None:
        """Forget the desks of a store that are idle, and the lease with the last of them."""
        with self._changed:
            for key, desk in list(self._desks.items()):
                if key[0] == id(store) and desk.idle and desk.due == _NEVER:
                    del self._desks[key]
            left = any(key[0] == id(store) for key in self._desks)
            holder = None if left else self._holders.pop(id(store), None)
        if holder is not None:
            with contextlib.suppress(StoreError):  # a lease that stays costs nothing
                holder.release()

    def settle(self, store: Store | None = None) -> None:
        """Report all that is over, and forget the desks: of a store that is closed next, or all."""
        if not self._working.acquire(timeout=_AT_EXIT):
            return
        try:
            for key, desk in list(self._desks.items()):
                if store is None or desk.store is store:
                    if not desk.idle or desk.due < _NEVER:  # a turn that was left is reported
                        _settle(desk)
                    with self._changed:
                        self._desks.pop(key, None)
                        desk.due = _NEVER
                        self._changed.notify_all()
            for each in [id(store)] if store is not None else [*self._holders]:
                holder = self._holders.pop(each, None)
                if holder is not None:
                    holder.release()
        finally:
            self._working.release()


@reports
def _settle(desk: Desk) -> None:
    desk.settle()


_clerk = Clerk()


@functools.cache
def _settle_at_exit() -> None:
    atexit.register(_clerk.settle)


ask, settle = _clerk.ask, _clerk.settle
