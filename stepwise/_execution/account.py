"""The account of a run in progress: its counters, its unrecorded spending, its budget.

The journal counts recorded amounts (:mod:`stepwise._journal.records`).  The account knows the
amounts of calls in flight, the time since the last record, and the child runs in progress.  The
spending of a child run counts for every run around it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from stepwise._execution.flows import Flows
from stepwise._journal import records
from stepwise.errors import BudgetExceeded

if TYPE_CHECKING:
    from stepwise._execution.budget import Budget


SPENDS = "stepwise.spend"
"""The module of calls that only report spending."""

_NO_STEPS = (SPENDS, "stepwise")  # nor calls that wait
_TICK = 0.05  # the shortest time in seconds that is worth a record
_NOTHING: Mapping[str, Any] = {}


class _Clock:
    """The execution time of a run and its child runs, by the monotonic clock.

    The clock stops while something waits and no step is executed.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._before = 0.0
        self._since: float | None = time.monotonic()  # None while the clock is stopped
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds of execution so far."""
        since = self._since
        return self._before + (time.monotonic() - since if since is not None else 0.0)

    def look(self, works: Callable[[], bool], change: int = 0) -> None:
        """Stop or restart the clock.

        Args:
            works: returns whether a step is executed.
            change: the change of the number of waiting calls.
        """
        with self._lock:
            self.waiting += change
            stands = self.waiting > 0 and not works()
            if stands and self._since is not None:
                self._before, self._since = self.now(), None
            elif not stands and self._since is None:
                self._since = time.monotonic()


class _Amounts:
    """Growing amounts of a call in flight, or of a run."""

    __slots__ = ("cached_tokens", "steps", "tokens", "usd")

    def __init__(self) -> None:
        self.usd, self.tokens, self.cached_tokens, self.steps = 0.0, 0.0, 0.0, 0

    def add(self, usd: float, tokens: float, cached_tokens: float = 0, *, steps: int = 0) -> None:
        """Add further amounts."""
        self.usd += usd
        self.tokens += tokens
        self.cached_tokens += cached_tokens
        self.steps += steps

    def said(self) -> dict[str, float]:
        """Return the nonzero amounts of money and tokens, by unit."""
        named = ("usd", self.usd), ("tokens", self.tokens), ("cached", self.cached_tokens)
        return {unit: n for unit, n in named if n}


_COUNTED = ("input_tokens", "output_tokens", "cached_input_tokens", "cost_usd")


class Progress:
    """The progress of this attempt so far.

    Args:
        executed, skipped: the steps that this attempt executed, and the steps that were done
            before.
        resumed_from: the number of done steps where it resumed; ``None`` for a first attempt.
        seconds: the duration of the done steps of the run's own code.
        usage: the usage of the done model requests: tokens and US dollars, by name.
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
        """Count the time and usage of a done step."""
        self.seconds += seconds
        for name in _COUNTED if usage else ():
            if usage and usage.get(name):
                self.usage[name] = self.usage.get(name, 0) + usage[name]

    @property
    def done(self) -> int:
        """The number of done steps, in all attempts."""
        return self.executed + self.skipped


class Ordinals:
    """Ordinals of calls with the same name, and of child workflows with the same arguments.

    A branch of a graph counts its calls separately, under names with its prefix.
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
        """Return the ordinal that :meth:`of_child` will return next."""
        with self._lock:
            return self._children.get((name, digest), 0) + 1

    def count_anew(self, branch: str) -> None:
        """Restart the counts of a branch, so that its next calls are its first again."""
        with self._lock:
            for counted in [each for each in self._calls if each.startswith(f"{branch}\n")]:
                del self._calls[counted]

    def kept(self) -> tuple[dict[str, int], list[list[object]]]:
        """Return the counts for a checkpoint: calls by name, and children by name and digest.

        No branch of a graph is alive when a checkpoint is taken.
        """
        calls, children = self._calls.copy(), self._children.copy()
        if "\n" in "".join(calls):
            calls = {counted: n for counted, n in calls.items() if "\n" not in counted}
        return calls, [[*key, n] for key, n in children.items()] if children else []


class Account:
    """The account of a run in progress.

    Args:
        run_id: the id of the run.
        flows: the calls and threads of the run that are executed now.
        budget: the budget of the run; ``None`` for no limit.
        parent: the account of the calling run.

    Attributes:
        call: the number of the call in the parent run that started this run.
        limited: True if this run, or a run around it, has a budget.
        cut_off: True if a call ended without an outcome, so that its spending is not fully known.
        claims: the child runs, as the records know them.
        open: the spending of calls in flight.
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
        self.claims = records.Claims()
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
        self._rest = _Amounts()  # spending of calls that ended without an outcome
        self._leftover = False  # True if there is such a call
        self._requests: dict[int, _Amounts] = {}  # model requests made by bodies of calls in flight
        self._said = records.NO_SUMS  # the sums of this run in the parent's records
        # Maintained for a budget only:
        self._live = _Amounts()  # recorded, in flight, and of child runs in progress
        self._seconds = -self._recorded_at  # minus the clock's reading at the beginning
        self.begun: set[int] = set()
        self._in_flight = 0  # steps of child runs included

    def _lineage(self) -> list[Account]:
        found = [self]
        while found[-1]._parent is not None:
            found.append(found[-1]._parent)
        return found

    def take_over(self, entries: Iterable[records.Entry]) -> None:
        """Take the child runs from the records that may answer calls."""
        self.claims = records.Claims()
        for entry in entries:
            self.claims.take(entry.record)

    def resume(self, sums: records.Sums) -> None:
        """Continue the account of earlier attempts, whose records add up to these sums."""
        with self._lock:
            self._live.add(sums.usd, sums.tokens, steps=sums.steps)
            self._seconds += sums.seconds
            if self._parent is None:
                return
            self._said = self._parent.claims.said.get(self.call, sums)
            more = records.difference(sums, self._said)
            for each in self._parent._lineage():
                each._live.add(more.usd, more.tokens, steps=more.steps)

    def count(self, spent: Any) -> None:
        """Count the amounts (:class:`stepwise.Spent`) of a run before."""
        with self._lock:
            self._live.add(spent.usd, spent.tokens, steps=spent.steps)
            self._seconds += spent.seconds

    def close(self) -> None:
        """Note that the run is no longer in progress."""
        self._family.discard(self)

    # -- waiting -----------------------------------------------------------------------------------

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that something of the run waits: no time counts while no step is executed."""
        for each in list(self._family):
            each._watch()
        self.clock.look(self._works, 1)
        try:
            yield
        finally:
            self.clock.look(self._works, -1)

    def _watch(self) -> None:
        """Update the clock whenever a step begins or ends, from now on."""
        self._flows.worked = self._look

    def _look(self) -> None:
        self.clock.look(self._works)

    def _works(self) -> bool:
        """Return whether a step is executed, not counting the calls of child runs in progress."""
        family = list(self._family)
        return sum(each._flows.working for each in family) >= len(family)

    # -- what is spent -----------------------------------------------------------------------------

    def spend(self, number: int, usd: float, tokens: float, cached_tokens: float = 0) -> None:
        """Count spending of the call with this number."""
        with self._lock:
            if self._flows.executes(number):
                self.open.setdefault(number, _Amounts()).add(usd, tokens, cached_tokens)
            else:  # a thread outlives its call
                self._leave(usd, tokens, cached_tokens)
            for each in self._lineage() if self.limited else ():
                each._live.add(usd, tokens)

    def spend_usage(self, number: int, usage: Mapping[str, Any]) -> None:
        """Count the usage of a model request made by the body of a call."""
        spent = amounts_of_usage(usage)
        if any(spent):
            with self._lock:
                self._requests.setdefault(number, _Amounts()).add(*spent)
                self.spend(number, *spent)

    def spent_by(self, record: records.Outcome, child: records.Sums | None) -> Mapping[str, Any]:
        """Return the amounts to record with an outcome.

        Args:
            child: for a child run, its spending that no earlier outcome of the call reports.
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
                # An instrumented client may have counted the request of a framework's step already.
                usd, tokens, held = amounts_of_usage(record.usage)
                usd, tokens = max(0.0, usd - within.usd), max(0, tokens - within.tokens)
                total.add(usd, tokens, max(0, held - within.cached_tokens))
                for each in self._lineage() if self.limited else ():
                    each._live.add(usd, tokens)
            total.add(self._rest.usd, self._rest.tokens, self._rest.cached_tokens)
            self._rest, self._leftover = _Amounts(), False
            if child is not None:
                total.add(child.usd, child.tokens, child.cached_tokens)
            steps = 1
            if call.child:
                steps = child.steps if child is not None else 0
            elif call.module in _NO_STEPS or not record.attempts:  # the body did not run
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

    def settled(self, record: records.Settled) -> None:
        """Count a call that turned out to have happened in an earlier attempt."""
        with self._lock:
            for each in self._lineage() if self.limited else ():
                each._live.steps += int(record.spent.get("steps", 0))

    def _time(self) -> dict[str, float]:
        """Return the seconds since the last record with a time, and mark them as recorded."""
        seconds = round(self.clock.now() - self._recorded_at, 3)
        if seconds < _TICK:
            return {}
        self._recorded_at += seconds
        return {"seconds": seconds}

    def left(self, number: int) -> None:
        """Note that a call is over; the next record reports its spending if it has no outcome."""
        with self._lock:
            self._end(number)
            self._requests.pop(number, None)
            amounts = self.open.pop(number, None)
            if amounts is not None:
                self._leave(amounts.usd, amounts.tokens, amounts.cached_tokens)

    def _leave(self, usd: float, tokens: float, cached_tokens: float) -> None:
        self._rest.add(usd, tokens, cached_tokens)
        self._leftover = True

    def rest(self, *, unknown: bool) -> dict[str, float]:
        """Return the spending of the ending attempt that no outcome reports.

        Args:
            unknown: True if something in flight may have spent more.
        """
        with self._lock:
            total, self._rest = self._rest, _Amounts()
            for amounts in self.open.values():
                total.add(amounts.usd, amounts.tokens, amounts.cached_tokens)
            self.open.clear()
            said = {**total.said(), **self._time()}
        return {**said, "at_least": 1} if unknown or self.cut_off else said

    def unsaid(self) -> records.Sums:
        """Return the spending that no record reports yet."""
        with self._lock:
            open_, seconds = [self._rest, *self.open.values()], self.clock.now()
            usd, tokens = sum(each.usd for each in open_), sum(each.tokens for each in open_)
            return records.Sums(usd, tokens, 0, max(0.0, seconds - self._recorded_at))

    def of_child(self, sums: records.Sums) -> records.Sums:
        """Return the part of this child run's sums that the parent's records do not report yet."""
        return records.difference(sums, self._said)

    # -- the budget --------------------------------------------------------------------------------

    def begin(self, call: records.Call, *, limited: bool) -> BudgetExceeded | None:
        """Begin a call; return the error if a budget does not allow another step.

        A child run is not counted as a step; a wait costs nothing.

        Args:
            limited: False for the clean-up of a run that is about to end.
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


_pool: ContextVar[Account | None] = ContextVar("stepwise_pool", default=None)
"""The account that the runs which begin here have in common, if any."""
pool_here = _pool.get


@contextmanager
def pooled(name: str, budget: Budget | None, spent: Iterable[Any] = ()) -> Iterator[Account | None]:
    """Let the runs that begin in this block share a budget; time counts once for all of them.

    Yields their account, unless there is no budget.

    Args:
        name: of the runs together, for messages.
        spent: the amounts (:class:`stepwise.Spent`) of the runs before.
    """
    if budget is None:
        yield None
        return
    account = Account(name, Flows(), budget, None)
    account._family.discard(account)  # it executes nothing itself
    for each in spent:
        account.count(each)
    token = _pool.set(account)
    try:
        yield account
    finally:
        _pool.reset(token)


def amounts_of_usage(usage: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the US dollars, tokens and cached tokens of the usage of a model request."""
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    return usage.get("cost_usd") or 0.0, tokens, usage.get("cached_input_tokens") or 0
