"""``Limit``: what a provider allows, shared by all runs, processes and machines of a store.

A limited call waits for its turn after the journal was asked, and before its intent is written: an
answered call takes nothing, and a side effect that waits has not begun.  Each attempt takes a turn.
A wait that becomes long is recorded and suspends the run, like ``sleep``; the resumed call keeps
the time at which it began to wait, and so its place in the queue.

The class of a limited call is chosen when its step is decorated, so that other calls do not ask
whether they are limited.

A refusal (429) pauses the limit for all processes.  The attempt is made again in place if nothing
inside it was recorded, since it was no attempt of the body's own: the provider did nothing.

Rejected: retries of ``tenacity`` for refusals.  Each process would find out alone, and the waits of
many processes end at the same moment.

Rejected: a turn for a whole step with its inner calls, which would count a model call inside it
twice.

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
import contextvars
import datetime as dt
import functools
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepwise._calls.driver import Attempt, Core, Operation, Result, Wait, Write, drive, is_body
from stepwise._calls.rate_limits import LeftOfLimit, refused_for
from stepwise._calls.waiting import seconds_to_suspension, suspend
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.flows import Gong
from stepwise._execution.waits import Parked
from stepwise._journal.journal import seal_for, shown_call, shown_waiting
from stepwise._journal.ledger import Figures, HolderLease, Ledger, Over, StoredLedger, is_dead
from stepwise._journal.records import Call, Outcome, RunWait, Waiting
from stepwise._journal.seal import Seal
from stepwise._matching.pool import Match
from stepwise._runtime import asyncio_state, clock, settings
from stepwise._runtime.clock import End, elapsed
from stepwise._runtime.facts import public
from stepwise._runtime.forks import start_apart
from stepwise._runtime.messages import Once, notice, reports
from stepwise._runtime.retries import is_seconds
from stepwise.errors import ConfigurationError, StoreError
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    from stepwise._calls.call import Performer
    from stepwise._execution.location import Origin
    from stepwise._journal.seal import Seal

_LONGEST = 15.0  # seconds until a waiting call looks whether its run must end
_REFUSED = 600.0  # seconds for which refused attempts of a step without a timeout are made again
_NAME = 100  # characters
_SINCE = time.time()  # when this program stated how many runs of its workflows may execute at once


# -- the limit -----------------------------------------------------------------------------------


@public
@dataclass(frozen=True)
class Limit:
    """A provider's limit: requests and tokens in a window of time, and requests at a time.

    All processes whose runs are in one store share the limit, by its name.  In no window of ``per``
    seconds are there more requests than ``requests``.  Tokens exceed ``tokens`` at most by the
    error of the estimates of the requests in flight.

    A limit is given to a step (``@step(limit=...)``), to model requests
    (``instrument(limits={...})``), or surrounds any code: ``with limit:``, ``async with limit:``.

    Args:
        name: the name, such as ``"openai"``.
        requests: requests in a window; ``None`` for any number.
        tokens: tokens in a window; ``None`` for any number.
        per: the window, in seconds or as a ``timedelta``.
        concurrent: requests at a time; ``None`` for any number.
        key: a function whose parameters are named like parameters of the step; each value that it
            returns has a limit of its own.  Elsewhere, :meth:`of` chooses the value.
        estimate: the tokens of a request before it is made; ``None`` for the usual number, which is
            learned, or for a model request an estimate from its text.

    Raises:
        ConfigurationError: an argument is invalid, or nothing is limited.
    """

    name: str
    requests: int | None = None
    tokens: int | None = None
    per: float | dt.timedelta = 60
    concurrent: int | None = None
    key: Callable[..., object] | None = None
    estimate: int | None = None
    _since: float = field(default_factory=time.time, init=False, repr=False, compare=False)
    _base: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        what = f"Limit({self.name!r:.200})"
        good = isinstance(self.name, str) and self.name.isprintable()
        if not good or not 0 < len(self.name.strip()) == len(self.name) <= _NAME:
            raise ConfigurationError(
                f"{what}: the name is a text of 1 to {_NAME} printable characters, without spaces "
                "around it, such as 'openai'"
            )
        for option in ("requests", "tokens", "concurrent", "estimate"):
            value = getattr(self, option)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not is_count:
                raise ConfigurationError(
                    f"{option}={value!r} of {what}: it must be a number, 1 or more; leave it out "
                    "for no limit"
                )
        per = self.per.total_seconds() if isinstance(self.per, dt.timedelta) else self.per
        if not is_seconds(per) or per <= 0:
            raise ConfigurationError(
                f"per={self.per!r} of {what}: it must be seconds, above 0, or a timedelta"
            )
        if self.requests is self.tokens is self.concurrent is None:
            raise ConfigurationError(
                f"{what} limits nothing: give it requests=, tokens= or concurrent="
            )
        if self.key is not None and not callable(self.key):
            raise ConfigurationError(
                f"key={self.key!r} of {what}: it must be a function of parameters of the step, "
                "such as lambda customer: customer"
            )

    def of(self, key: object) -> Limit:
        """Return the limit of one value of ``key``, such as a customer."""
        return self._changed(name=f"{self.name}[{key}]", key=None, _base=self._base_name)

    @property
    def _base_name(self) -> str:
        """The name, without the value of a key."""
        return self._base or self.name

    def _changed(self, **facts: object) -> Limit:
        """Return a copy with other facts, which are not checked."""
        made = copy(self)
        vars(made).update(facts)
        return made

    # -- around a block --------------------------------------------------------------------------

    def __enter__(self) -> Permit:
        permit: Permit = drive(self._entered()).unwrap()
        return permit

    def __exit__(self, *exception: object) -> None:
        self._leave()

    async def __aenter__(self) -> Permit:
        from stepwise._calls.async_driver import adrive  # on use: it loads asyncio

        permit: Permit = (await adrive(self._entered())).unwrap()
        return permit

    async def __aexit__(self, *exception: object) -> None:
        self._leave()

    def _entered(self) -> Core:
        if self.key is not None:
            raise ConfigurationError(
                f"Limit({self.name!r}) has a key=, whose value a block does not say: write "
                f"with {self.name}.of(customer):"
            )
        scope, bell = current_scope(), Gong()
        _refuse_inside(self.name, scope)
        active = scope.run if scope is not None else None
        turn = _ask_for(self, active, bell.ring, self.estimate)

        def check() -> None:
            if scope is not None:
                scope.run.check(f"Limit({self.name!r})", scope.call)

        yield from granted(turn, bell, check)
        permit = Permit(self.name, turn)
        _blocks.set((*_blocks.get(), permit))
        return Result(permit)

    def _leave(self) -> None:
        blocks = _blocks.get()
        at = max(n for n, permit in enumerate(blocks) if permit.name == self.name)
        _blocks.set(blocks[:at] + blocks[at + 1 :])
        blocks[at].end()


def granted(turn: Turn, bell: Gong, check: Callable[[], object]) -> Core:
    """Wait until a turn is granted; give it up if the wait ends with an error.

    Args:
        bell: rung when the turn is granted, or has failed.
        check: called at least once a second; an exception ends the wait.
    """
    try:
        while not turn.granted:
            seen = bell.changes
            _raise_error(turn)
            check()
            if not turn.granted:
                (yield Wait(bell, seen, 1.0)).unwrap()
    except BaseException:
        turn.desk.leave(turn)
        raise
    return Result()


def chosen_by_key(limit: Limit, key: Callable[..., object], bound: Mapping[str, Any]) -> Limit:
    """Return the limit of a call with these arguments."""
    return limit.of(key(**{name: bound[name] for name in inspect.signature(key).parameters}))


def check_key(
    limit: Limit, key: Callable[..., object], what: str, function: Callable[..., Any]
) -> None:
    """Refuse a ``key=`` with parameters that a step does not have.

    Raises:
        ConfigurationError: the message names the parameter, and the parameters of the step.
    """
    known = [*inspect.signature(function).parameters]
    for name in inspect.signature(key).parameters:
        if name not in known:
            raise ConfigurationError(
                f"key= of Limit({limit.name!r}) takes {name!r}, which is no parameter of "
                f"{what}: it has {', '.join(known) or 'none'}"
            )


def _ask_for(
    limit: Limit,
    active: ActiveRun | None,
    ring: Callable[[], object],
    tokens: int | None,
    waited: float = 0.0,
) -> Turn:
    """Ask for a turn, which is granted at once or waits.

    Args:
        active: the run that asks; ``None`` outside runs.
        ring: called when the turn is granted.
        tokens: an estimate; ``None`` if nobody knows.
        waited: seconds that the call has waited in an earlier attempt.
    """
    if active is not None:
        place, run = (active.journal.store, active.journal.seal), active.root.run_id
    else:
        store = open_store(settings.store())
        place, run = (store, seal_for(store)), f"process {os.getpid()} on {os.uname().nodename}"
    turn = Turn(run, tokens, waited, ring)
    _clerk.ask(place, limit.name, figures_of(limit), turn)
    return turn


def ask_for_run(
    place: tuple[Store, Seal],
    workflow: str,
    concurrent: int,
    run_id: str,
    ring: Callable[[], object],
    since: float | None = None,
) -> Turn:
    """Ask for the turn of a run, whose workflow has ``concurrent=``.

    Args:
        place: the store, and the seal of its records.
        workflow: the full name of the workflow, which is the name of the limit.
        ring: called when the turn is granted.
        since: when the run began to wait, by :func:`clock.elapsed`, if that was before.
    """
    turn = Turn(run_id, None, 0.0, ring)
    turn.asked = min(turn.asked, turn.asked if since is None else since)
    _clerk.ask(place, workflow, Figures(concurrent=concurrent, since=_SINCE), turn)
    return turn


def figures_of(limit: Limit) -> Figures:
    """Return the figures of a limit, with the time at which this program stated them."""
    per = limit.per.total_seconds() if isinstance(limit.per, dt.timedelta) else float(limit.per)
    return Figures(limit.requests, limit.tokens, per, limit.concurrent, limit._since)


class Permit:
    """The turn of a block; ``with limit as permit:`` gives it."""

    __slots__ = ("_turn", "_used", "name")

    def __init__(self, name: str, turn: Turn) -> None:
        self.name = name
        self._turn = turn
        self._used: int | None = None

    def used(self, tokens: int | None) -> None:
        """Say how many tokens the block has taken, instead of the estimate."""
        self._used = tokens

    def pause(self, seconds: float) -> None:
        """Let nobody have a turn for some seconds, since the provider said so."""
        self._turn.desk.pause(seconds)

    def left(self, requests: int | None, tokens: int | None, seconds: float) -> None:
        """Say what the provider says is left, and the seconds until it is whole again."""
        self._turn.desk.left(requests, tokens, seconds)

    def end(self) -> None:
        """Note that the block is over."""
        self._turn.desk.over(self._turn, self._used)


_blocks: contextvars.ContextVar[tuple[Permit, ...]] = contextvars.ContextVar(
    "stepwise_limits", default=()
)
"""The turns of the blocks that are being executed."""

_attempts: dict[tuple[int, int], str] = {}
"""The limits of the attempts in progress: by the id of the run's object, and number of the call."""


def _refuse_inside(name: str, scope: Scope | None) -> None:
    """Refuse a turn inside another turn of the same limit.

    Raises:
        ConfigurationError: such a turn would wait for the other one, or be counted twice.
    """
    inside = any(each.name == name for each in _blocks.get())
    if scope is not None and _attempts:
        inside = inside or any(_attempts.get((id(scope.run), n)) == name for n in scope.around)
    if inside:
        raise ConfigurationError(
            f"Limit({name!r}) is taken inside a step or a block that has it: the outer turn would "
            "wait for the inner one, or count for nothing. Limit the innermost call only"
        )


def _raise_error(turn: Turn) -> None:
    if turn.error is not None:
        raise turn.error


# -- a limited call -------------------------------------------------------------------------------


class LimitedCall:
    """One call of a step with ``limit=``, mixed into the class of its calls.

    Attributes:
        turn: the turn of the attempt that is next or in progress.
        last: the turn of the attempt before.
    """

    performer: Any
    scope: Any
    bound: Mapping[str, Any]
    turn: Turn | None = None
    last: Turn | None = None
    limit: Limit | None = None
    since = 0.0  # when the call began, if it has waited

    def announced(self, call: Call, match: Match, ticket: str = "") -> Any:
        """Wait for a turn, and announce the side effect."""
        yield from self._await_turn(call, match)
        kind: Any = super()
        return (yield from kind.announced(self._begun(call), match, ticket))

    def carried_out(self, call: Call, origin: Origin, match: Match) -> Core:
        """Execute the call, each attempt in its turn, and record its outcome."""
        yield from self._await_turn(call, match)
        kind: Any = super()
        return (yield from self._in_turn(call, kind.carried_out(self._begun(call), origin, match)))

    def landed(self, call: Call) -> None:
        """Mark the call as no longer in flight, and give back a turn that was not used."""
        kind: Any = super()
        kind.landed(call)
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.desk.leave(turn)

    def _begun(self, call: Call) -> Call:
        """Return the call, which began when its wait ended."""
        return call._replace(at=self.since) if self.since else call

    # -- attempts --------------------------------------------------------------------------------

    def _in_turn(self, call: Call, core: Core) -> Core:
        """Pass on the operations of a call; each attempt of its body waits for a turn."""
        result: Result | None = None
        try:
            while True:
                operation: Operation = next(core) if result is None else core.send(result)
                if is_body(operation):
                    assert isinstance(operation, Attempt)
                    result = yield from self._attempted(call, operation)
                    continue
                if isinstance(operation, Write) and isinstance(operation.item[0], Outcome):
                    self._correct(operation.item[0])
                result = yield operation
        except StopIteration as stop:
            value: Result = stop.value
            return value
        finally:
            core.close()

    def _attempted(self, call: Call, attempt: Attempt) -> Core:
        began = clock.elapsed()
        while True:
            yield from self._await_turn(call, None)
            turn, self.turn = self.turn, None
            result = yield from self._counted(call, attempt, turn)
            self.last = turn
            seconds = self._refused(result, turn)
            most = _REFUSED if attempt.timeout is None else attempt.timeout
            if seconds is None or not self._repeats(call, attempt, result):
                return result
            if clock.elapsed() - began + seconds >= most:
                return result

    def _counted(self, call: Call, attempt: Attempt, turn: Turn | None) -> Core:
        """Make an attempt, whose request is over with it."""
        if turn is None or self.limit is None:
            return (yield attempt)
        key = id(self.scope.run), call.number
        _attempts[key] = self.limit.name
        try:
            return (yield attempt)
        finally:
            del _attempts[key]
            turn.desk.over(turn)

    def _refused(self, result: Result, turn: Turn | None) -> float | None:
        """Tell the limit what the provider says; return for how long it refuses requests."""
        if turn is None:
            return None
        if result.error is None:
            left: LeftOfLimit | None = self.performer.left_of_limit(self.bound)
            if left is not None:
                turn.desk.left(*left)
            return None
        seconds = refused_for(result.error)
        if seconds is not None:
            turn.desk.pause(seconds)
            turn.desk.correct(turn, 0)  # the provider has counted none
        return seconds

    def _repeats(self, call: Call, attempt: Attempt, result: Result) -> bool:
        """Return whether a refused attempt may be made again in place."""
        performer: Performer = self.performer
        clean = isinstance(result.error, performer.fails_cleanly) or performer.idempotent
        made = attempt.scope is not None and bool(attempt.scope.inner)
        whole: bool = self.performer.repeats_refused(self.bound)
        return whole and not made and (clean or not call.effect)

    def _correct(self, record: Outcome) -> None:
        tokens = record.spent.get("tokens") if record.spent else None
        if self.last is not None and tokens is not None and record.status == "completed":
            self.last.desk.correct(self.last, int(tokens))

    # -- waiting ---------------------------------------------------------------------------------

    def _await_turn(self, call: Call, match: Match | None) -> Generator[Operation, Result, None]:
        """Wait until this call has a turn, if its step is limited."""
        active: ActiveRun = self.scope.run
        if self.turn is not None:
            return
        limit: Limit | None = self.performer.limit_of(self.bound)
        if limit is None:
            return
        known = match.recorded[0].wait if match is not None and match.recorded else None
        waited = max(0.0, clock.now() - known.at) if known is not None else 0.0
        tokens = self.performer.tokens_of(self.bound)
        _refuse_inside(limit.name, self.scope)
        self.turn = _ask_for(limit, active, active.flows.parked.ring, tokens, waited)
        self.limit = limit
        if self.turn.granted:
            return
        since = clock.now() - waited
        wait = RunWait(call.number, "limit", limit.name, None, since)
        with _standing(active, call, wait, limit._base_name) as parked:
            yield from self._wait(call, parked, is_known=known is not None)
        self.since = clock.now()

    def _wait(
        self, call: Call, parked: Parked, *, is_known: bool
    ) -> Generator[Operation, Result, None]:
        active, turn = self.scope.run, self.turn
        kind: Any = self
        assert turn is not None
        while not turn.granted:
            seen = active.flows.parked.changes
            _raise_error(turn)
            yield from kind._admit()
            active.check(call.name, self.scope.call)
            expected = clock.elapsed() if turn.expected is None else turn.expected
            until = clock.now() + expected - clock.elapsed()
            parked.end, parked.wait = End(passed=expected), parked.wait._replace(until=until)
            staying = seconds_to_suspension(active)
            if staying <= 0:
                if not is_known:
                    record = Waiting(call, "limit", parked.wait.name, until, at=parked.wait.since)
                    (yield Write(active, (record, b""))).unwrap()
                    is_known = True
                suspend(active)
                continue
            if not turn.granted:
                ahead = active.steering.patience(min(_LONGEST, max(0.05, staying)))
                (yield Wait(active.flows.parked, seen, ahead)).unwrap()


class _standing:  # noqa: N801 -- a block
    """A block in which a call stands still, for displays, budgets, SIGTERM and suspension.

    Not a generator, whose frame would stay alive with a Ctrl-C.
    """

    def __init__(self, active: ActiveRun, call: Call, wait: RunWait, limit: str) -> None:
        self._active, self._call, self._wait, self._limit = active, call, wait, limit

    def __enter__(self) -> Parked:
        active, call = self._active, self._call
        parked = Parked(self._wait, End(passed=clock.elapsed()), asyncio_state.who())
        self._thread = active.in_flight.pop(call.number, None)
        self._executes = active.flows.executes(call.number)
        if self._executes:
            active.flows.done(call.number)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(active.waits.parked(parked))
        self._stack.enter_context(active.account.waiting())
        active.tell("step_waiting", call, self._wait.text, limit=self._limit)
        if active.journal.note is not None:
            active.doing[call.number] = shown_waiting(call, self._wait.name)
            active.journal.note(active.doing)
        return parked

    def __exit__(self, *exception: object) -> None:
        active, number = self._active, self._call.number
        self._stack.close()
        active.doing.pop(number, None)
        if self._thread is not None:
            active.in_flight[number] = self._thread
        if self._executes:
            active.flows.begin(number)
            if active.journal.note is not None:
                active.doing[number] = shown_call(self._call)
                active.journal.note(active.doing)


# -- turns -----------------------------------------------------------------------------------------


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
    desk: _Desk

    def __init__(
        self, run: str, tokens: int | None, waited: float, ring: Callable[[], object]
    ) -> None:
        self.run, self.tokens, self.ring = run, tokens, ring
        self.asked = elapsed() - waited
        self.granted = False
        self.error: BaseException | None = None
        self.expected: float | None = None
        self._over: float | None = None


class _Desk:
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

    def take_over(self, other: _Desk) -> None:
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


class _Clerk:
    """The thread that works at the desks of this process while any of them is due."""

    def __init__(self) -> None:
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Have no desks: the state at first and in a forked child, which lacks the thread."""
        self._changed = threading.Condition(threading.RLock())
        self._desks: dict[tuple[int, str], _Desk] = {}
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
                desk = self._desks[key] = _Desk(*place, name, figures)
            elif figures.since > desk.figures.since:
                desk.figures = figures
            turn.desk = desk
            desk.ask(turn)

    def need(self, desk: _Desk, at: float) -> None:
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
def _settle(desk: _Desk) -> None:
    desk.settle()


_clerk = _Clerk()


@functools.cache
def _settle_at_exit() -> None:
    atexit.register(_clerk.settle)


settle = _clerk.settle
