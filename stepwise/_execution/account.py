"""The account of a run in progress: its counters, what it has spent beyond its records, its budget.

The journal counts what is recorded (:mod:`stepwise._journal.records`).  The account knows the
amounts of calls in flight, the time since the last record, and the child runs in progress, whose
spending counts for every run around them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepwise._execution.concurrency import Flows
from stepwise._journal.records import (
    NO_SUMS,
    Call,
    Claims,
    Entry,
    Outcome,
    Settled,
    Sums,
    difference,
)
from stepwise.errors import BudgetExceeded

if TYPE_CHECKING:
    from stepwise._execution.budget import Budget


SPENDS = "stepwise.spend"
"""The module of the calls that only say what was spent."""

_NO_STEPS = (SPENDS, "stepwise")  # and of the calls that wait
_TICK = 0.05  # seconds that are worth a record
_NOTHING: Mapping[str, Any] = {}


class _Clock:
    """The time in which a run and its child runs are executed, by the monotonic clock.

    It stands still while something waits and no step is executed.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._before = 0.0
        self._since: float | None = time.monotonic()  # None while it stands still
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds so far."""
        since = self._since
        return self._before + (time.monotonic() - since if since is not None else 0.0)

    def look(self, works: Callable[[], bool], change: int = 0) -> None:
        """Stand still or run on.

        Args:
            works: whether a step is executed.
            change: how many things more or less wait now.
        """
        with self._lock:
            self.waiting += change
            stands = self.waiting > 0 and not works()
            if stands and self._since is not None:
                self._before, self._since = self.now(), None
            elif not stands and self._since is None:
                self._since = time.monotonic()


class _Amounts:
    """Amounts that grow: of a call in flight, or of a run."""

    __slots__ = ("steps", "tokens", "usd")

    def __init__(self, usd: float = 0.0, tokens: float = 0, steps: int = 0) -> None:
        self.usd, self.tokens, self.steps = usd, tokens, steps

    def add(self, usd: float, tokens: float, steps: int = 0) -> None:
        """Add these."""
        self.usd += usd
        self.tokens += tokens
        self.steps += steps

    def said(self) -> dict[str, float]:
        """Return money and tokens by unit, if there are any."""
        return {unit: n for unit, n in (("usd", self.usd), ("tokens", self.tokens)) if n}


_COUNTED = ("input_tokens", "output_tokens", "cached_input_tokens", "cost_usd")


class Progress:
    """The progress of this attempt so far.

    Args:
        executed, skipped: steps that it executed; that it did not, since they were done.
        resumed_from: how many were done where it resumed; ``None`` for a first attempt.
        seconds: that the done steps of the run's own code have taken.
        usage: what the done model requests have used: tokens and US dollars, by name.
    """

    def __init__(
        self,
        executed: int = 0,
        skipped: int = 0,
        resumed_from: int | None = None,
        seconds: float = 0.0,
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.executed = executed
        self.skipped = skipped
        self.resumed_from = resumed_from
        self.seconds = seconds
        self.usage = dict(usage or {})

    def add(self, seconds: float, usage: Mapping[str, Any] | None) -> None:
        """Count what a done step has taken."""
        self.seconds += seconds
        for name in _COUNTED if usage else ():
            if usage and usage.get(name):
                self.usage[name] = self.usage.get(name, 0) + usage[name]

    @property
    def done(self) -> int:
        """Return the number of done steps, in all attempts."""
        return self.executed + self.skipped


class Ordinals:
    """The ordinals of calls among calls of their name, and of child workflows among equals.

    A branch of a graph counts its own calls, under names of its own.
    """

    def __init__(
        self,
        calls: Mapping[str, int] | None = None,
        children: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._calls = dict(calls or {})
        self._children = dict(children or {})
        self._lock = threading.Lock()

    def of_call(self, counted: str) -> int:
        """Count one more call of a name; see :func:`counted_as`."""
        with self._lock:
            ordinal = self._calls[counted] = self._calls.get(counted, 0) + 1
        return ordinal

    def of_child(self, name: str, digest: str) -> int:
        """Count one more call of a child workflow with these arguments."""
        with self._lock:
            ordinal = self._children[name, digest] = self._children.get((name, digest), 0) + 1
        return ordinal

    def next_child(self, name: str, digest: str) -> int:
        """Return what :meth:`of_child` will give."""
        with self._lock:
            return self._children.get((name, digest), 0) + 1

    def count_anew(self, branch: str) -> None:
        """The next calls of a branch are its first again."""
        with self._lock:
            for counted in [each for each in self._calls if each.startswith(f"{branch}\n")]:
                del self._calls[counted]

    def kept(self) -> tuple[dict[str, int], list[list[object]]]:
        """Return the counts for a checkpoint: calls by name, and children by name and digest.

        No branch of a graph is alive where one is taken.
        """
        with self._lock:
            calls, children = self._calls.copy(), self._children.copy()
        if "\n" in "".join(calls):
            calls = {counted: n for counted, n in calls.items() if "\n" not in counted}
        return calls, [[*key, n] for key, n in children.items()] if children else []


class Account:
    """The account of a run in progress.

    Args:
        run_id: of the run.
        flows: what of it is executed now.
        budget: what it may spend; ``None`` for no limit.
        parent: the account of the run that called it.

    Attributes:
        call: the number of its call in that run.
        limited: its budget, or one of a run around it, is to be kept.
        cut_off: a call ended without an outcome: what it spent outside is not known.
        claims: its child runs, as its records know them.
        open: what calls in flight have spent.
        begun: with a budget, the steps in flight.
    """

    def __init__(
        self, run_id: str, flows: Flows, budget: Budget | None, parent: Account | None
    ) -> None:
        self.run_id = run_id
        self.budget = budget
        self.call = 0
        self.limited: bool = budget is not None or (parent is not None and parent.limited)
        self.cut_off = False
        self.claims = Claims()
        self.clock: _Clock = parent.clock if parent is not None else _Clock()
        self._flows = flows
        self._parent = parent
        self._family: set[Account] = parent._family if parent is not None else set()
        self._family.add(self)
        if self.clock.waiting:
            self._watch()
        self._lock: threading.RLock = parent._lock if parent is not None else threading.RLock()
        self._recorded_at = self.clock.now()
        self.open: dict[int, _Amounts] = {}
        self._rest = _Amounts()  # of calls that ended without an outcome
        self._leftover = False  # there is such a call
        self._requests: dict[int, _Amounts] = {}  # that bodies of calls in flight have made
        self._said = NO_SUMS  # by the parent's records, of this run
        # Kept for a budget only:
        self._live = _Amounts()  # recorded, in flight, and of child runs in progress
        self._seconds = -self._recorded_at  # before the clock began
        self.begun: set[int] = set()
        self._in_flight = 0  # those of child runs included

    def _lineage(self) -> list[Account]:
        found = [self]
        while found[-1]._parent is not None:
            found.append(found[-1]._parent)
        return found

    def take_over(self, entries: Iterable[Entry]) -> None:
        """Take the records that may answer calls."""
        self.claims = Claims()
        for entry in entries:
            self.claims.take(entry.record)

    def resume(self, sums: Sums) -> None:
        """Continue the account of earlier attempts, whose records say these sums."""
        with self._lock:
            self._live.add(sums.usd, sums.tokens, sums.steps)
            self._seconds += sums.seconds
            if self._parent is None:
                return
            self._said = self._parent.claims.said.get(self.call, sums)
            more = difference(sums, self._said)
            for each in self._parent._lineage():
                each._live.add(more.usd, more.tokens, more.steps)

    def close(self) -> None:
        """Note that the run is not in progress any more."""
        self._family.discard(self)

    # -- waiting -----------------------------------------------------------------------------------

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that something of the run waits: while no step is executed, no time is spent."""
        for each in list(self._family):
            each._watch()
        self.clock.look(self._works, 1)
        try:
            yield
        finally:
            self.clock.look(self._works, -1)

    def _watch(self) -> None:
        """Look at the clock whenever a step begins or ends, from now on."""
        self._flows.worked = self._look

    def _look(self) -> None:
        self.clock.look(self._works)

    def _works(self) -> bool:
        """Return whether a step is executed; the call of a child run in progress is none."""
        family = list(self._family)
        return sum(each._flows.working for each in family) >= len(family)

    # -- what is spent -----------------------------------------------------------------------------

    def spend(self, number: int, usd: float, tokens: float) -> None:
        """Count what the call of a number spends."""
        with self._lock:
            if self._flows.executes(number):
                self.open.setdefault(number, _Amounts()).add(usd, tokens)
            else:  # a thread that outlives its call
                self._leave(usd, tokens)
            for each in self._lineage() if self.limited else ():
                each._live.add(usd, tokens)

    def spend_usage(self, number: int, usage: Mapping[str, Any]) -> None:
        """Count the usage of a model request that the body of a call makes."""
        usd, tokens = amounts_of_usage(usage)
        if usd or tokens:
            with self._lock:
                self._requests.setdefault(number, _Amounts()).add(usd, tokens)
                self.spend(number, usd, tokens)

    def spent_by(self, record: Outcome, child: Sums | None) -> Mapping[str, Any]:
        """Return what an outcome that is about to be recorded says was spent.

        Args:
            child: of a child run: what it has spent that no earlier outcome of the call says.
        """
        call = record.call
        plain = record.attempts and not (record.usage or self.open or call.child or self.limited)
        plain = plain and call.module not in _NO_STEPS and not self._leftover
        if plain and self.clock.now() - self._recorded_at < _TICK:
            return _NOTHING
        with self._lock:
            total = self.open.pop(call.number, None) or _Amounts()
            within = self._requests.pop(call.number, None) or _Amounts()
            if record.usage:
                # An instrumented client may have counted the request that a framework's step is.
                usd, tokens = amounts_of_usage(record.usage)
                usd, tokens = max(0.0, usd - within.usd), max(0, tokens - within.tokens)
                total.add(usd, tokens)
                for each in self._lineage() if self.limited else ():
                    each._live.add(usd, tokens)
            total.add(self._rest.usd, self._rest.tokens)
            self._rest, self._leftover = _Amounts(), False
            if child is not None:
                total.add(child.usd, child.tokens)
            steps = 1
            if call.child:
                steps = child.steps if child is not None else 0
            elif call.module in _NO_STEPS or not record.attempts:  # it was not made after all
                steps = 0
            if self.limited:
                self._end(call.number)
                if not call.child:
                    for each in self._lineage():
                        each._live.steps += steps
            said: dict[str, Any] = {**total.said(), **self._time()}
        if steps != 1 or call.child:
            said["steps"] = steps
        if child is not None and child.at_least:
            said["at_least"] = 1
        return said

    def settled(self, record: Settled) -> None:
        """Count a call that turned out to have happened in an earlier attempt."""
        with self._lock:
            for each in self._lineage() if self.limited else ():
                each._live.steps += int(record.spent.get("steps", 0))

    def _time(self) -> dict[str, float]:
        """Return the seconds since the last record that says how many passed."""
        seconds = round(self.clock.now() - self._recorded_at, 3)
        if seconds < _TICK:
            return {}
        self._recorded_at += seconds
        return {"seconds": seconds}

    def left(self, number: int) -> None:
        """Note that a call is over; what it spent without an outcome is recorded with the next."""
        with self._lock:
            self._end(number)
            self._requests.pop(number, None)
            amounts = self.open.pop(number, None)
            if amounts is not None:
                self._leave(amounts.usd, amounts.tokens)

    def _leave(self, usd: float, tokens: float) -> None:
        self._rest.add(usd, tokens)
        self._leftover = True

    def rest(self, *, unknown: bool) -> dict[str, float]:
        """Return what the attempt, which ends, has spent that no outcome says.

        Args:
            unknown: something in flight may have spent more.
        """
        with self._lock:
            total, self._rest = self._rest, _Amounts()
            for amounts in self.open.values():
                total.add(amounts.usd, amounts.tokens)
            self.open.clear()
            said = {**total.said(), **self._time()}
        return {**said, "at_least": 1} if unknown or self.cut_off else said

    def unsaid(self) -> Sums:
        """Return what is spent that no record says yet."""
        with self._lock:
            open_, seconds = [self._rest, *self.open.values()], self.clock.now()
            usd, tokens = sum(each.usd for each in open_), sum(each.tokens for each in open_)
            return Sums(usd, tokens, 0, max(0.0, seconds - self._recorded_at))

    def of_child(self, sums: Sums) -> Sums:
        """Return how much of the sums of this child run its parent's records do not say yet."""
        return difference(sums, self._said)

    # -- the budget --------------------------------------------------------------------------------

    def begin(self, call: Call, *, limited: bool) -> BudgetExceeded | None:
        """Begin a call, unless a budget does not allow another step: then return the error.

        A child run is no step itself; a wait costs nothing.

        Args:
            limited: false for the clean-up of a run that is to end.
        """
        if call.module in _NO_STEPS:
            return None
        with self._lock:
            for each in self._lineage() if limited else ():
                error = each._exceeded()
                if error is not None:
                    return error
            if not call.child:
                self.begun.add(call.number)
                for each in self._lineage():
                    each._in_flight += 1
        return None

    def _end(self, number: int) -> None:
        if number in self.begun:
            self.begun.discard(number)
            for each in self._lineage():
                each._in_flight -= 1

    def _exceeded(self) -> BudgetExceeded | None:
        if self.budget is None:
            return None
        from stepwise._execution.budget import Spent, exceeded  # on use: for runs with a budget

        live, seconds = self._live, self._seconds + self.clock.now()
        spent = Spent(live.usd, int(live.tokens), live.steps + self._in_flight, seconds)
        return exceeded(self.run_id, self.budget, spent)


def amounts_of_usage(usage: Mapping[str, Any]) -> tuple[float, float]:
    """Return the dollars and tokens of the usage of a model request."""
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    return usage.get("cost_usd") or 0.0, tokens
