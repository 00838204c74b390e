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
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import inspect
import os
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stepwise._calls.driver import Attempt, Core, Operation, Result, Wait, Write, drive, is_body
from stepwise._calls.rate_limits import LeftOfLimit, refused_for
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.flows import Gong
from stepwise._execution.limit_turns import Turn, ask
from stepwise._execution.suspension import seconds_to_suspension, suspend
from stepwise._execution.waits import Parked
from stepwise._journal.journal import seal_for, shown_call, shown_waiting
from stepwise._journal.ledger import Figures
from stepwise._journal.records import Call, Outcome, RunWait, Waiting
from stepwise._matching.pool import Match
from stepwise._runtime import asyncio_state, clock, settings
from stepwise._runtime.clock import End
from stepwise._runtime.facts import public
from stepwise._runtime.retries import is_seconds
from stepwise.errors import ConfigurationError
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
        made = replace(self, name=self.name, key=None)
        object.__setattr__(made, "name", f"{self.name}[{key}]")
        object.__setattr__(made, "_since", self._since)
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
        turn = ask_for(self, active, bell.ring, self.estimate)

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


def ask_for(
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
    ask(place, limit.name, figures_of(limit), turn)
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
    ask(place, workflow, Figures(concurrent=concurrent, since=_SINCE), turn)
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
        self.turn = ask_for(limit, active, active.flows.parked.ring, tokens, waited)
        self.limit = limit
        if self.turn.granted:
            return
        since = clock.now() - waited
        wait = RunWait(call.number, "limit", limit.name, None, since)
        with _standing(active, call, wait) as parked:
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

    def __init__(self, active: ActiveRun, call: Call, wait: RunWait) -> None:
        self._active, self._call, self._wait = active, call, wait

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
        active.tell("step_waiting", call, self._wait.text)
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
