"""The ledgers of limits: what each process has taken, and who is next; and how a store keeps them.

The state of a ledger does no input or output.

A request is *open* from its grant until the process that made it says that it is over.  An open
request counts in full; a request that is over counts for one more window, ``per`` seconds.  A grant
needs room for all of these together.  So no window of that length, by the clock of any provider,
sees more requests than the limit: take the request of the window that was granted last.  All others
of the window were granted before it.  At its grant, each of them was open, or over for less than
``per`` seconds, since it reached the provider inside the window.  Delays of the network, batches of
grants and late reports make a request count for longer, never for shorter.

The price: a call that takes a sixth of a window uses at most six sevenths of the limit.

Rejected: counting from the moment a request is sent.  A request that is slow to arrive shares a
window of the provider with requests that were granted after the window of its sending.

Rejected: a bucket of tokens that refills.  It lets twice the limit through in one window.

Times are seconds of one clock for all processes.  A clock that is set back makes requests count
for at most one more window.

Requests that are over are kept in slots of a hundredth of a window, each counted as over at its
slot's end.  So a ledger has at most about a hundred slots, whatever the limit is.

*Places* make the queue.  A run has one place, with the tokens that each of its waiting calls asks
for.  Grants go round: each run gets one call, the longest waiting run first, then each a second
one.  A run that was served and still waits moves to the end.  Room for a place of another process
is left free for that process.  If the first call does not fit, none behind it is granted, so that a
call with many tokens is served, too.

**In a store.**  A ledger is one sealed object under ``limit:NAME``.  A process changes it under the
lease of that name, which it holds for one write.  The write is atomic, so that a killed process
leaves a whole ledger.  A ledger need not survive a power cut, which ends all processes that hold a
part of it.

A process that has open requests holds the lease of ``limits:NUMBER``, the first one that is free.
The lease shows whether the process lives: on a disk the kernel frees it with the process, on
Postgres it lapses like the lease of a run.

The clock of a ledger is the clock of the store's server.  A store without a server is used on one
machine, and its clock counts since the start of the machine; nobody can set it.  After a restart of
the machine, the time of day tells how much time has passed.

Rejected: records instead of an object.  A reader needs the sum of all records, so that each grant
would read a whole window.

Rejected: new tables with a row for each request, and a sum by the server.  Only Postgres could do
that, and each call would write.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from stepwise._journal.lease import Lease
from stepwise._journal.logs import LogIndex, LogKind, SealedLog
from stepwise._journal.seal import Seal, named
from stepwise._runtime import clock
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import notice, reports
from stepwise.errors import RunBusyError
from stepwise.stores import Batch, Store

# -- the state ------------------------------------------------------------------------------------


_SLOTS = 100  # of a window
_FIRST_MEAN, _WEIGHT = 1000.0, 0.1  # tokens of a call about which nothing is known


class Figures(NamedTuple):
    """The figures of a limit; ``since`` is when a program stated them, in seconds since 1970."""

    requests: int | None = None
    tokens: int | None = None
    per: float = 60.0
    concurrent: int | None = None
    since: float = 0.0


class QueuePlace(NamedTuple):
    """The place of a run in the queue.

    Args:
        run: its id.
        since: when the run began to wait.
        holder: the process that executes the run.
        wants: the tokens of each waiting call, in order.
        seen: when the process last confirmed the place.
    """

    run: str
    since: float
    holder: str
    wants: tuple[int, ...]
    seen: float


class Over(NamedTuple):
    """A number of requests that are over, or a correction of their tokens."""

    at: float
    requests: int
    tokens: int


class Ledger:
    """The state of a limit.

    Attributes:
        figures: the newest figures.
        claims: the open requests and their tokens, by process.
        over: the requests that are over and their tokens, by slot.
        places: the queue.
        paused: until when nothing is granted, and for how long that was at the beginning.
        mean: the usual tokens of a call.
        at: the time of the last change.
    """

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.claims: dict[str, tuple[int, int]] = {}
        self.over: dict[int, tuple[int, int]] = {}
        self.places: list[QueuePlace] = []
        self.paused: tuple[float, float] = (0.0, 0.0)
        self.mean = _FIRST_MEAN
        self.at = 0.0

    # -- data ------------------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """Return the state in a form that JSON can hold."""
        return {
            "figures": list(self.figures),
            "claims": {holder: list(claim) for holder, claim in self.claims.items()},
            "over": [[slot, *spent] for slot, spent in self.over.items()],
            "places": [list(each) for each in self.places],
            "paused": list(self.paused),
            "mean": self.mean,
            "at": self.at,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Ledger:
        """Return the ledger that :meth:`to_data` gave."""
        made = cls(Figures(*data["figures"]))
        made.claims = {holder: (r, t) for holder, (r, t) in data["claims"].items()}
        made.over = {slot: (r, t) for slot, r, t in data["over"]}
        made.places = [QueuePlace(a, b, c, tuple(d), e) for a, b, c, d, e in data["places"]]
        made.paused = (data["paused"][0], data["paused"][1])
        made.mean, made.at = data["mean"], data["at"]
        return made

    # -- time ------------------------------------------------------------------------------------

    @property
    def _slot(self) -> float:
        return self.figures.per / _SLOTS

    def tick(self, now: float) -> None:
        """Drop the requests that no longer count; bring times that are still to come to now."""
        first, last = (now - self.figures.per) / self._slot, math.ceil(now / self._slot)
        kept: dict[int, tuple[int, int]] = {}
        for slot, spent in self.over.items():
            if slot > first:
                _add(kept, min(slot, last), *spent)
        self.over = kept
        self.places = [
            each._replace(since=min(each.since, now), seen=min(each.seen, now))
            for each in self.places
        ]
        until, length = self.paused
        ends = min(until, now + length)
        self.paused = (ends, length) if ends > now else (0.0, 0.0)
        self.at = now

    def shift(self, seconds: float) -> None:
        """Move all times, for another clock."""
        slots = math.ceil(seconds / self._slot)
        self.over = {slot + slots: spent for slot, spent in self.over.items()}
        self.places = [
            each._replace(since=each.since + seconds, seen=each.seen + seconds)
            for each in self.places
        ]
        self.paused = (self.paused[0] + seconds, self.paused[1])
        self.at += seconds

    def state(self, figures: Figures) -> bool:
        """Take figures, unless newer ones are known; return whether the figures differ from ours.

        Args:
            figures: the figures of a program.
        """
        ours = self.figures
        if figures[:4] == ours[:4]:
            return False
        if figures.since >= ours.since:
            old, self.figures = self._slot, figures
            over, self.over = self.over, {}
            for slot, spent in over.items():
                _add(self.over, math.ceil(slot * old / self._slot), *spent)
        return True

    # -- what is taken ---------------------------------------------------------------------------

    def room(self) -> tuple[float, float]:
        """Return how many requests and tokens are free now."""
        if self.paused[1]:
            return 0, 0
        requests, tokens = self._left()
        if self.figures.concurrent is not None:
            open_ = sum(requests for requests, _ in self.claims.values())
            requests = min(requests, self.figures.concurrent - open_)
        return requests, tokens

    def used(self) -> tuple[int, int]:
        """Return how many requests and tokens count now."""
        given = [*self.claims.values(), *self.over.values()]
        return sum(requests for requests, _ in given), sum(tokens for _, tokens in given)

    def is_idle(self) -> bool:
        """Return whether nothing counts and nobody waits, so that an empty ledger says the same."""
        return self.used() == (0, 0) and not self.claims and not self.places and not self.paused[1]

    def _left(self) -> tuple[float, float]:
        """Return how many requests and tokens the window has left."""
        figures, (requests, tokens) = self.figures, self.used()
        return (
            math.inf if figures.requests is None else figures.requests - requests,
            math.inf if figures.tokens is None else figures.tokens - tokens,
        )

    def report(self, holder: str, now: float, over: Iterable[Over], claim: tuple[int, int]) -> None:
        """Take the report of a process.

        Args:
            over: its requests that are over since its last report.
            claim: its open requests and their tokens.
        """
        for each in over:
            self._end(min(each.at, now), each.requests, each.tokens)
        self._claim(holder, *claim)

    def learn(self, tokens: int) -> None:
        """Note what a call took, for the estimates of later calls."""
        self.mean += _WEIGHT * (tokens - self.mean)

    def bury(self, holder: str, now: float) -> None:
        """End what a dead process has taken: it gives up its open requests and its places."""
        requests, tokens = self.claims.pop(holder, (0, 0))
        self._end(now, requests, tokens)
        self.places = [each for each in self.places if each.holder != holder]

    def _claim(self, holder: str, requests: int, tokens: int) -> None:
        self.claims.pop(holder, None)
        if requests:
            self.claims[holder] = (requests, tokens)

    def _end(self, at: float, requests: int, tokens: int) -> None:
        figures = self.figures
        if (requests or tokens) and (figures.requests is not None or figures.tokens is not None):
            _add(self.over, math.ceil(at / self._slot), requests, tokens)

    # -- the queue -------------------------------------------------------------------------------

    def queue(
        self, holder: str, now: float, waiting: Mapping[str, tuple[float, Sequence[int]]]
    ) -> None:
        """Replace the places of a process.

        Args:
            waiting: for each run, since when it waits and the tokens that its calls ask for.
        """
        known = {each.run: each for each in self.places if each.holder == holder}
        self.places = [each for each in self.places if each.holder != holder]
        for run, (since, wants) in waiting.items():
            before = known[run].since if run in known else since
            began = min(max(since, before), now)
            self.places.append(QueuePlace(run, began, holder, tuple(wants), now))

    def forget(self, now: float, patience: float) -> None:
        """Drop the places that their processes have not confirmed for long."""
        self.places = [each for each in self.places if now - each.seen <= patience]

    def grant(self, holder: str, now: float) -> dict[str, list[int]]:
        """Grant calls of a process; return the tokens of each, by run.

        Room for calls of other processes that are first is left free.
        """
        granted: dict[str, list[int]] = {}
        requests, tokens = self.room()
        most = math.inf if self.figures.tokens is None else self.figures.tokens
        line = deque((each, 0) for each in sorted(self.places, key=lambda each: each.since))
        while line:
            place, turn = line.popleft()
            want = int(min(place.wants[turn], most))
            if requests < 1 or tokens < want:
                break
            requests, tokens = requests - 1, tokens - want
            if place.holder == holder:
                granted.setdefault(place.run, []).append(want)
            if turn + 1 < len(place.wants):
                line.append((place, turn + 1))
        open_, of_open = self.claims.get(holder, (0, 0))
        more = [want for wants in granted.values() for want in wants]
        self._claim(holder, open_ + len(more), of_open + sum(more))
        served = [
            _served(each, granted, now) if each.holder == holder else each for each in self.places
        ]
        self.places = [each for each in served if each.wants]
        return granted

    def usual(self) -> int:
        """Return the usual tokens of a call; 0 if the limit does not count tokens."""
        return 0 if self.figures.tokens is None else math.ceil(self.mean)

    # -- corrections -----------------------------------------------------------------------------

    def pause(self, now: float, seconds: float) -> None:
        """Grant nothing for some seconds, since the provider said so."""
        if now + seconds > self.paused[0]:
            self.paused = (now + seconds, seconds)

    def correct(self, now: float, requests: int | None, tokens: int | None, seconds: float) -> None:
        """Take what the provider says is left: others may use the same account.

        Args:
            requests, tokens: what is left; ``None`` if the provider does not say.
            seconds: until it is whole again.
        """
        gone = [
            max(0, int(free - left)) if left is not None and free < math.inf else 0
            for free, left in zip(self._left(), (requests, tokens), strict=True)
        ]
        per = self.figures.per
        self._end(now - per + min(seconds, per), *gone)

    # -- outlook ---------------------------------------------------------------------------------

    def soonest(self, now: float) -> float:
        """Return when room appears by itself: as requests cease to count, or a pause ends."""
        if self.paused[0]:
            return self.paused[0]
        first = min(self.over, default=None)
        return math.inf if first is None else max(now, first * self._slot + self.figures.per)

    def expected(self, run: str, now: float) -> float | None:
        """Return when the next call of a run will probably be granted; ``None`` if unknown."""
        line = sorted(self.places, key=lambda each: each.since)
        ahead = next((n for n, each in enumerate(line) if each.run == run), None)
        if ahead is None:
            return None
        figures, start = self.figures, max(now, self.paused[0])
        slots = [(slot * self._slot + figures.per, *self.over[slot]) for slot in sorted(self.over)]
        ends = slots + [(now + figures.per, *claim) for claim in self.claims.values()]
        found = []
        if figures.requests is not None:
            parts = [(end, requests) for end, requests, _ in ends]
            found.append(_moment(start, figures.per, ahead + 1, figures.requests, parts))
        if figures.tokens is not None:
            parts = [(end, tokens) for end, _, tokens in ends]
            wanted = sum(each.wants[0] for each in line[: ahead + 1])
            found.append(_moment(start, figures.per, wanted, figures.tokens, parts))
        return max(found, default=start if self.paused[0] else None)


def _add(over: dict[int, tuple[int, int]], slot: int, requests: int, tokens: int) -> None:
    before = over.get(slot, (0, 0))
    over[slot] = before[0] + requests, before[1] + tokens


def _served(place: QueuePlace, granted: Mapping[str, Sequence[int]], now: float) -> QueuePlace:
    """Return the place of a run after its grants: behind all others, if the run has any."""
    many = len(granted.get(place.run, ()))
    return place._replace(wants=place.wants[many:], since=now) if many else place


def _moment(
    start: float, per: float, needed: int, limit: int, ends: Sequence[tuple[float, int]]
) -> float:
    """Return when a number of requests, or of tokens, will have fit."""
    cycles, needed = divmod(max(0, needed - 1), limit)
    free, at = limit - sum(many for _, many in ends), start
    for end, many in ends:
        if free >= needed + 1:
            break
        free, at = free + many, max(start, end)
    return at + cycles * per


# -- in a store -----------------------------------------------------------------------------------


LIMITS = LogKind("limit:", "limits:", "limit")
"""The names of the ledgers, and of their list."""

_LEDGER = "ledger"  # the name of the object
_PATIENCE = 1.0  # seconds to wait for the lease of a ledger that may be deleted
_CHECKED = 5.0  # seconds for which a lease that was held is taken to be held


def moment(store: Store) -> float:
    """Return the time of the clock that all processes of a store share."""
    now = getattr(store, "now", None)
    return float(now()) if now is not None else clock.elapsed()


@functools.cache
def _boot() -> str:
    """Return the id of this start of the machine, if the system gives one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class StoredLedger:
    """The ledger of one limit in a store.

    Args:
        figures: of the limit, as this program states them; ``None`` to look only.
    """

    def __init__(self, store: Store, seal: Seal, name: str, figures: Figures | None = None) -> None:
        self.store, self.name, self.figures = store, name, figures
        self._seal = seal
        self._log = SealedLog(store, seal, f"{LIMITS.prefix}{name}")

    def read(self) -> Ledger | None:
        """Return the ledger as it is now, or ``None`` if nobody has used the limit."""
        data, now = self.store.get(self._log.name, _LEDGER), moment(self.store)
        if data is None:
            return None
        opened = self._seal.opened(named(_LEDGER, self._log.name), data)
        if opened is None:
            return self._used_up(now)
        header = opened.header
        ledger = Ledger.from_data(header["ledger"])
        if header["boot"] != self._of_boot():
            passed = max(0.0, time.time() - header["wall"])
            ledger.shift(now - ledger.at - passed)
        ledger.tick(now)
        return ledger

    def _used_up(self, now: float) -> Ledger | None:
        """Return the ledger of a window that is used up: nobody knows what was taken."""
        if self.figures is None:
            return None
        _tell_damaged(self.name, self.store.url)
        ledger = Ledger(self.figures)
        used = Over(now, self.figures.requests or 0, self.figures.tokens or 0)
        ledger.report("", now, [used], (0, 0))
        ledger.at = now
        return ledger

    def _of_boot(self) -> str:
        return "" if hasattr(self.store, "now") else _boot()

    @contextmanager
    def changing(self) -> Iterator[Ledger]:
        """Yield the ledger as it is now, under its lease, and write it at the end of the block.

        Raises:
            RunBusyError: other processes have held the lease for a minute.
            StoreError: the store cannot be used.
        """
        with self._log.owned() as epoch:
            found = self.read()
            ledger = found or Ledger(self.figures or Figures())
            ledger.at = ledger.at or moment(self.store)
            yield ledger
            self._write(epoch, ledger)
        if found is None:
            LogIndex(self.store, self._seal, LIMITS).add(self.name)

    def _write(self, epoch: int, ledger: Ledger) -> None:
        header = {"ledger": ledger.to_data(), "boot": self._of_boot(), "wall": time.time()}
        data, _ = self._seal.close(named(_LEDGER, self._log.name), header)
        with Uninterrupted():
            self.store.write(self._log.name, epoch, Batch(put={_LEDGER: data}, durable=False))

    def drop_if_idle(self) -> None:
        """Delete the ledger if nothing counts any more, and nobody waits.

        What dead processes have taken counts for one more window.

        Raises:
            RunBusyError: another process has the lease.
        """
        with self._log.owned(_PATIENCE) as epoch:
            found = self.read()
            if found is None and self.store.get(self._log.name, _LEDGER) is not None:
                return  # damaged: it counts as used up for the processes that use it
            dead = self._dead(found) if found is not None else ()
            if found is not None and dead:
                for each in dead:
                    found.bury(each, found.at)
                self._write(epoch, found)
            elif found is None or found.is_idle():
                self._log.delete(epoch)
                LogIndex(self.store, self._seal, LIMITS).remove(self.name)

    def _dead(self, ledger: Ledger) -> list[str]:
        known = {*ledger.claims, *(each.holder for each in ledger.places)}
        return [each for each in known if is_dead(self.store, each)]


@reports
def _tell_damaged(name: str, url: str) -> None:
    notice(f"the ledger of limit {name!r} in {url} is damaged: it counts as used up for one window")


def ledgers(store: Store, seal: Seal) -> Iterator[tuple[str, Ledger]]:
    """Yield the limits that were used in a store, by name."""
    for name in sorted(filter(None, LogIndex(store, seal, LIMITS).ids())):
        ledger = StoredLedger(store, seal, name).read()
        if ledger is not None:
            yield name, ledger


def drop_idle_ledgers(store: Store, seal: Seal, goes_on: Callable[[], bool]) -> None:
    """Delete the ledgers of values of a ``key=`` that nobody uses any more.

    Args:
        goes_on: called before each; returns whether to go on.
    """
    for name in filter(None, LogIndex(store, seal, LIMITS).ids()):
        if not goes_on():
            return
        if name.endswith("]"):  # the others are few, and have learned the usual tokens of a call
            with suppress(RunBusyError):
                StoredLedger(store, seal, name).drop_if_idle()


class HolderLease:
    """A lease of this process, which shows the others that the process lives.

    Attributes:
        id: the name of the process in ledgers.
    """

    def __init__(self, store: Store) -> None:
        for number in itertools.count(1):
            self._lease = Lease(store, f"{LIMITS.list_name}{number}")
            try:
                self._lease.acquire()
                break
            except RunBusyError:
                continue
        self.id = f"{number}/{self._lease.since!r}"
        self._checked = clock.elapsed()

    def is_held(self) -> bool:
        """Return whether the lease is held: a machine that slept may have lost it on a server."""
        now = clock.elapsed()
        if now - self._checked < _CHECKED:
            return True
        self._checked = now
        return self._lease.is_ours()

    def release(self) -> None:
        """Release the lease: this process has nothing of any limit any more."""
        self._lease.release()


def is_dead(store: Store, holder: str) -> bool:
    """Return whether the process of a holder's id is gone."""
    number, _, since = holder.partition("/")
    owner = store.owner(f"{LIMITS.list_name}{number}")
    return owner is None or (bool(owner.since) and repr(owner.since) != since)
