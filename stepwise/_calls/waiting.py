"""Calls that wait for a time, a signal or a person: ``sleep``, ``sleep_until``, ``wait_for``.

The record :class:`Waiting` is durable before the wait begins, so that a resumed run keeps the end
and the ticket of the wait.  A run that can only wait for long suspends.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import inspect
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepwise import errors
from stepwise._calls.awaitables import hand_out
from stepwise._calls.call import Performance, Performer, record_failure, record_outcome
from stepwise._calls.driver import Core, Result, Unfinished, Wait, Write, drive, start, written
from stepwise._execution.active_run import ActiveRun, Scope, current_scope, live_runs
from stepwise._execution.location import Origin
from stepwise._execution.outcomes import outcome
from stepwise._execution.suspension import PendingWait, pending, suspended_text
from stepwise._execution.tasks import tasks_within, warn_if_unseen
from stepwise._execution.waits import Parked, waits
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import WAITS, Call, Refused, RunWait, Waiting
from stepwise._matching.pool import Match
from stepwise._matching.subjects import Identity
from stepwise._runtime import asyncio_state, clock, settings
from stepwise._runtime.clock import End, elapsed
from stepwise._runtime.messages import caller, fold, hook_exits, notice, shell_word
from stepwise._runtime.options import check_signal
from stepwise._values import data, digest
from stepwise._values.preview import NO_HIDING
from stepwise._values.unpickling import Data

if TYPE_CHECKING:
    from stepwise._execution.message_watcher import RunWatch
    from stepwise._journal.logs import Message


# -- waiting --------------------------------------------------------------------------------------


Look = Callable[[Waiting], Result | None]
"""A function of the wait as it began that returns the awaited result, or None until it is there."""

_LONGEST = 15.0  # seconds until a waiting call looks at the clock again: somebody may have set it
_INSIDE = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>", "<lambda>")


def check_may_wait(scope: Scope, what: str) -> None:
    """Refuse a waiting call inside a step.

    Raises:
        ConfigurationError: the call is made inside a step.
    """
    if scope.call is not None:
        raise errors.ConfigurationError(
            f"{what} was called inside {scope.call.name!r}, whose body would run again as a whole: "
            "a step cannot wait. Call it in the workflow's own code, between two steps"
        )


def waited(
    scope: Scope,
    call: Call,
    waiting: Waiting,
    look: Look,
    recorded: RecordedCall | None = None,
    payload: Data = b"",
) -> Generator[Wait | Write, Result, Result | None]:
    """Wait until ``look`` returns a result; return ``None`` if the time is over before.

    A cancellation or a Ctrl-C is a result with that error.

    Args:
        waiting: the wait as it begins now.  A wait in progress since an earlier attempt keeps its
            beginning, its ticket, and its end, unless the end would be earlier now.
        look: called at the beginning, and each time the call was woken: by a message for the run,
            by the clock, or by ``active.flows.change()``.
        recorded: the recorded call that this call continues.
        payload: the payload of the record.
    """
    active, known = scope.run, recorded.wait if recorded is not None else None
    if known is not None:
        waiting = _continued(waiting, known)
    if known is None or waiting != known:
        _, cancelled = written(active, (yield Write(active, (waiting, payload))))
        if cancelled is not None:
            return Result(error=cancelled)
    end, bell = End.of(waiting.until, waiting.seconds), active.flows.parked
    wait = RunWait(
        call.number, waiting.kind, waiting.name, waiting.until, waiting.at, waiting.ticket
    )
    parked = Parked(wait, end, asyncio_state.who())
    with active.waits.parked(parked, lambda: _watch(active)), active.account.waiting():
        active.tell("step_waiting", call, wait.text)
        while True:
            seen = bell.changes
            active.check(call.name)
            found = look(waiting)
            if found is not None:
                return found
            left = end.left()
            if left is not None and left <= 0:
                return None
            staying = seconds_to_suspension(active)
            if staying <= 0:
                suspend(active)
                continue
            ahead = min(_LONGEST, staying, _LONGEST if left is None else left)
            woken = yield Wait(bell, seen, active.steering.patience(ahead))
            if woken.error is not None:
                return woken


def _watch(active: ActiveRun) -> RunWatch:
    """Wake the waiting calls when a message for the run may have arrived."""
    from stepwise._execution.message_watcher import watcher  # on use: few programs wait

    def ring() -> None:
        active.inbox.ring()
        active.steering.look_soon()
        active.flows.parked.ring()

    journal = active.journal
    return watcher.watch(journal.store, journal.seal, active.run_id, ring)


def _continued(waiting: Waiting, known: Waiting) -> Waiting:
    """Return the wait in progress, with an earlier end if the code asks for one now."""
    ends = [each.until for each in (known, waiting) if each.until is not None]
    lengths = [each.seconds for each in (known, waiting) if each.seconds is not None]
    return known._replace(
        until=min(ends, default=None),
        seconds=min(lengths, default=None),
        ticket=known.ticket or waiting.ticket,  # a fork asks anew
        schema=waiting.schema,
        approvers=waiting.approvers,
    )


# -- whether the run suspends ---------------------------------------------------------------------
#
# A run that can only wait, with all its child runs, suspends together with the runs that called it.


_AGAIN = 1.0  # seconds until the run checks again whether a step is in flight
_SETTLED = 1.0  # seconds without a call after which other tasks and threads count as waiting


def seconds_to_suspension(active: ActiveRun) -> float:
    """Return the seconds after which the run may suspend; 0 for now, infinite for never.

    A waiting call asks this each time it looks.
    """
    after, is_branch = settings.suspend_after(), active.is_branch
    if (after is None and not is_branch) or active.steering.unwinds is not None:
        return math.inf  # a clean-up is waited for
    soon = math.inf if after is None else after
    after = 0.0 if is_branch or after is None else after  # whoever branches waits for no person
    family = _family(active)
    parked = [each for run in family for each in run.waits.all]
    ends = [active.steering.left, *(each.end.left() for each in parked)]
    if any(left is not None and left < soon for left in ends):
        return math.inf  # a wait or a timeout ends soon
    asking = [each.since + after - elapsed() for each in parked if each.asks]
    seconds = max(asking, default=0.0)
    if seconds > 0:
        return seconds  # what follows only makes it later
    if any(run.flows.steps_in_flight() or run.open_streams() for run in family):
        return _AGAIN
    if _others_alive(family, {each.flow for each in parked}):
        last = max(run.flows.moved_at for run in family)
        return max(0.0, last + max(after, _SETTLED) - time.monotonic())
    return 0.0


def _family(active: ActiveRun) -> list[ActiveRun]:
    """Return the related runs in progress here, with the run that no other run called first."""
    root = active.root
    children = (run for run in list(live_runs) if run.parent is not None)
    return [root, *(run for run in children if run.root is root)]


def _others_alive(family: list[ActiveRun], parked: set[int]) -> bool:
    """Return whether a task or thread other than the waiting ones may make a call."""
    for run in family:
        if run.flows.others_than(parked):
            return True
        main = run.unwinding.main
        if run.task is None and not run.awaits and main not in parked:
            return True
    return any(not _only_waits(task, parked) for task, _ in tasks_within(family[0]))


def _only_waits(task: Any, parked: set[int]) -> bool:
    """Return whether a task waits, itself or only for such tasks."""
    todo, seen = [task], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in parked or id(each) in seen:
            continue
        seen.add(id(each))
        parts = [*getattr(each, "_children", ())]
        waiter = getattr(each, "_fut_waiter", None)
        if waiter is not None:
            parts.append(waiter)
        parts = [part for part in parts if not part.done()]
        if not parts:
            return False
        todo += parts
    return True


# -- suspending ----------------------------------------------------------------------------------


def suspend(active: ActiveRun) -> None:
    """Stop the run and its family, unless a message that it waits for has arrived."""
    family = _family(active)
    root = family[0]
    root.steering.look_soon()
    with root.lock:
        root.steering.look()
        if root.steering.asked is not None:
            return  # the waiting call is notified next
        if any(run.stopped is not None for run in family):
            return
        # The waits are noted first: any later message wakes the run, whichever thread reads the
        # inbox.
        waits = {run: tuple(_waits_of(run, family)) for run in family}
        if any(_has_come(run, each.wait) for run in family for each in run.waits.all):
            for run in family:
                run.flows.parked.ring()
            return
        for run in family:
            run.suspension = waits[run]
        found = pending(root.facts._replace(waits=root.suspension or ()))
        hook_exits()
        error = errors.RunSuspended(_text(root.run_id, found), run_id=root.run_id, waits=found)
        for run in family:
            run.stop(error)


def _has_come(run: ActiveRun, wait: RunWait) -> bool:
    if wait.kind == "signal":
        return bool(run.inbox.signals(wait.name))
    return wait.kind == "approval" and run.inbox.answer(wait.ticket) is not None


def _waits_of(run: ActiveRun, family: list[ActiveRun]) -> Iterator[RunWait]:
    """Yield the waits of a run and its child runs."""
    for each in family:
        if run in each.lineage():
            child = each.run_id if each is not run else ""
            for parked in each.waits.all:
                ends = parked.wait.until, each.steering.deadline
                until = min((end for end in ends if end is not None), default=None)
                yield parked.wait._replace(run=child, seen=each.inbox.seen, until=until)


def _text(run_id: str, waits: list[PendingWait]) -> str:
    first = waits[0]
    how = {
        "time": "Start the program again then",
        "limit": "Start the program again then",
        "signal": f"stepwise send {shell_word(first.run_id)} {shell_word(first.name)} JSON, and "
        "start the program again",
        "approval": f"stepwise approve {shell_word(first.run_id)} {first.step} {first.ticket}, and "
        "start the program again",
    }[first.kind]
    return f"{suspended_text(run_id, waits)}. {how}: stepwise resume {shell_word(run_id)}"


# -- for users -----------------------------------------------------------------------------------


@waits
def sleep(seconds: float | dt.timedelta) -> Any:
    """Wait for a time; a resumed run continues the wait instead of starting it again.

    In a coroutine function the call is awaited; elsewhere it blocks.  Outside a run it just sleeps.
    A wait of more than ``configure(suspend_after=60)`` seconds suspends the run; see
    :class:`RunSuspended`.

    Args:
        seconds: the duration: seconds, or a ``timedelta``.

    Raises:
        ConfigurationError: the duration is invalid, or the call is made inside a step.
    """
    length = in_seconds(seconds, "sleep")
    return paused(_TimeWait("sleep", {"seconds": seconds}, None, length))


@waits
def sleep_until(when: dt.datetime) -> Any:
    """Wait until a moment; otherwise like :func:`sleep`.

    Args:
        when: the moment, with its time zone.  A moment in the past is over at once.

    Raises:
        ConfigurationError: the moment has no time zone, or the call is made inside a step.
    """
    if not isinstance(when, dt.datetime) or when.utcoffset() is None:
        what = "has no time zone" if isinstance(when, dt.datetime) else "is no datetime"
        raise errors.ConfigurationError(
            f"stepwise.sleep_until({when!r}): {what}, so that the moment is not known. Write "
            "datetime.now(timezone.utc) + timedelta(hours=1), or "
            'datetime(2030, 1, 31, 9, 0, tzinfo=ZoneInfo("Europe/Berlin"))'
        )
    return paused(_TimeWait("sleep_until", {"when": when}, when.timestamp(), None))


@waits
def wait_for(
    name: str,
    type: Any = None,  # noqa: A002 -- the public name
    timeout: float | dt.timedelta | None = None,
) -> Any:
    """Wait for a value that somebody sends to this run, and return it.

    ``Run.send(name, value)`` or ``stepwise send RUN NAME JSON`` sends a value.  A value that
    arrives before the run waits for it is kept.  Each value is taken by one call, once.  In a
    coroutine function the call is awaited; elsewhere it blocks.

    Args:
        name: the name of the signal.
        type: the type of the value, for pydantic (``pip install 'stepwise-agents[json]'``).  A
            value that does not fit is refused, and the wait continues.  ``None`` for any JSON.
        timeout: seconds, or a ``timedelta``, after which the call stops waiting; ``None`` to wait
            without limit.

    Raises:
        WaitTimeoutError: nothing came in time.
        OutsideRunError: the call was made outside a run, where nobody could send anything.
        ConfigurationError: an argument is invalid, or the call is made inside a step.
    """
    check_signal(name)
    length = None if timeout is None else in_seconds(timeout, "wait_for", "timeout=")
    return paused(_SignalWait(name, type, length))


def in_seconds(given: Any, what: str, option: str = "") -> float:
    """Return a duration in seconds.

    Raises:
        ConfigurationError: the value is not a duration.
    """
    import numbers  # on use, for number types of other libraries

    seconds = given.total_seconds() if isinstance(given, dt.timedelta) else given
    if isinstance(seconds, numbers.Real) and not isinstance(seconds, bool):
        seconds = float(seconds)
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    instead = "leave it out to wait without end" if option else "sleep(3600), sleep(timedelta(1))"
    raise errors.ConfigurationError(
        f"stepwise.{what}({option}{given!r}): give a number of seconds that is not negative, or a "
        f"timedelta; {instead}"
    )


# -- their calls ---------------------------------------------------------------------------------


class Waiter(Performer):
    """The callee of a waiting call.

    Args:
        name: the name of the public function.
        bound: its arguments, as they are shown.
        identity: the arguments that distinguish the call from others.
    """

    module = WAITS
    effect = False
    timeout = None
    hiding = NO_HIDING
    returns: Any = Any

    def __init__(self, name: str, bound: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        self.name = f"{WAITS}.{name}"
        self.bound = bound
        self._identity = identity

    def identity(self) -> Identity:
        """Return the identity of the call."""
        parts = {name: digest.digest(value)[:8] for name, value in self._identity.items()}
        return Identity(digest.combine(*parts, *parts.values()), parts)

    def waiting(self, call: Call) -> Waiting:
        """Return the record of the wait, as it begins now."""
        raise NotImplementedError

    def look(self, active: ActiveRun, waiting: Waiting) -> Result | None:
        """Return the message that the call takes and its value, or None until it arrives.

        Args:
            waiting: the wait as it began.
        """

    def is_over(self, active: ActiveRun, call: Call) -> Result:
        """Return the result for a wait whose time is over."""
        raise NotImplementedError

    def outside(self) -> Any:
        """Do what the call does outside a run."""
        raise NotImplementedError


class _TimeWait(Waiter):
    by_turn = True  # a recomputed moment still counts as the same call

    def __init__(
        self, name: str, bound: Mapping[str, Any], until: float | None, seconds: float | None
    ) -> None:
        super().__init__(name, bound, {"until": until, "seconds": seconds})
        self._until, self._length = until, seconds

    def waiting(self, call: Call) -> Waiting:
        now, until, length = clock.now(), self._until, self._length
        if length is not None:
            until = now + length
        return Waiting(call, "time", until=until, seconds=length, at=now)

    def is_over(self, active: ActiveRun, call: Call) -> Result:
        return Result()

    def outside(self) -> Any:
        left = self._length if self._until is None else max(0.0, self._until - clock.now())
        assert left is not None
        if _is_awaited():
            import asyncio

            return asyncio.sleep(left)
        time.sleep(left)
        return None


class MessageWait(Waiter):
    """The callee of a call that waits for a message.

    Attributes:
        about: the name of the signal, or the question.
        length: the seconds after which the call stops waiting; ``None`` to wait without limit.
        missing: what did not happen if it stops, in words.
        act: what nobody can do outside of a run, in words.
    """

    about: str
    length: float | None
    missing: str
    act: str

    def is_over(self, active: ActiveRun, call: Call) -> Result:
        """Return the error for a message that did not come in time."""
        what = f"{self.name.removeprefix(f'{WAITS}.')}({self.about!r}) of run {active.run_id!r}"
        return Result(
            error=errors.WaitTimeoutError(
                f"{self.missing} {what} within {self.length:g} s",
                run_id=active.run_id,
                step=call.number,
                name=self.about,
            )
        )

    def outside(self) -> Any:
        """Refuse the call outside of any run."""
        raise errors.OutsideRunError(
            f"{self.name}({self.about!r}) was called outside of any run, so that nobody could "
            f"{self.act}: call it in a function with @workflow",
            run_id="",
        )


class _SignalWait(MessageWait):
    missing = "nothing came for"
    act = "send anything"

    def __init__(self, signal: str, kind: Any, length: float | None) -> None:
        bound = {"name": signal, "type": kind, "timeout": length}
        shown = {name: value for name, value in bound.items() if value is not None}
        super().__init__("wait_for", shown, {"name": signal})
        self.about, self.length = signal, length
        self._schema = data.json_schema(kind, f"type= of stepwise.wait_for({signal!r})")
        self.returns = Any if kind is None else kind

    def waiting(self, call: Call) -> Waiting:
        if self._schema and importlib.util.find_spec("jsonschema") is None:
            notice(
                f"wait_for({self.about!r}, type=...) waits for a value that nobody can send from "
                "here: stepwise send checks it with jsonschema, which is not installed. pip "
                "install 'stepwise-agents[json]'"
            )
        now, length = clock.now(), self.length
        until = None if length is None else now + length
        return Waiting(call, "signal", self.about, until, length, schema=self._schema, at=now)

    def look(self, active: ActiveRun, waiting: Waiting) -> Result | None:
        while (message := _take(active, self.about)) is not None:
            try:
                return Result((message, data.checked_json(message.value, self.returns)))
            except ValueError as error:
                self._refuse(active, waiting.call, message, str(error))
            except BaseException:
                active.inbox.give_back(message)
                raise
        return None

    def _refuse(self, active: ActiveRun, call: Call, message: Message, why: str) -> None:
        record = Refused(message.number, call.number, self.about, why, clock.now())
        active.write((record, b""), durable=False)
        active.inbox.recorded(message)
        notice(
            f"run {active.run_id}: message {message.number} is no value for "
            f"wait_for({self.about!r}), and was refused: {why}. The run waits for another one"
        )


def _take(active: ActiveRun, signal: str) -> Message | None:
    try:
        return active.inbox.take(signal)
    except errors.RunStopped as error:  # messages are lost, or the store cannot be read
        raise active.stop(error) from error.__cause__


class _Pausing(Performance):
    """One waiting call."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Wait, and record the outcome."""
        scope, waiter = self.scope, self.performer
        active, recorded = scope.run, match.recorded[0] if match.recorded else None
        assert isinstance(waiter, Waiter)
        if recorded is not None and recorded.status == "failed" and not recorded.retry:
            # The time was over before; a crash prevented the workflow from acting on the outcome.
            answer = yield from self.recalled(recorded)
            if answer is not None:
                return answer
        if recorded is not None and recorded.wait is not None:
            call = call._replace(at=recorded.wait.at)  # when the wait that it continues began
        active.tell("step_started", call)
        look = functools.partial(waiter.look, active)
        result = yield from waited(scope, call, waiter.waiting(call), look, recorded)
        if result is None:
            result = waiter.is_over(active, call)
        message: Message | None = None
        if result.error is None and result.value is not None:
            message, value = result.value
            result = Result(value)
        inner = Scope(active, call, (*scope.around, call.number), 1, scope.branch)
        if result.error is None:
            looked = active.look(scope, result.value)
            try:
                record, payload = outcome(
                    active.codec,
                    call,
                    "completed",
                    result.value,
                    inner=(),
                    attempts=1,
                    kind=waiter.returns,
                )
            except BaseException as error:
                if message is not None:
                    active.inbox.give_back(message)
                if not isinstance(error, errors.NotRecordableError):
                    raise
                result = Result(error=error)
            else:
                number = message.number if message is not None else 0
                item = record._replace(message=number), payload
                yield from record_outcome(scope, item, looked=looked, helper=origin.helper)
                if message is not None:
                    active.inbox.recorded(message)
                return result
        yield from record_failure(scope, inner, result, None, clean=True, helper=origin.helper)
        return result


def paused(callee: Waiter) -> Any:
    """Make a waiting call; return an awaitable where the run's code can await it.

    Raises:
        ConfigurationError: the call is made inside a step.
    """
    what, scope = f"{callee.name}()", current_scope()
    try:
        if scope is None:
            warn_if_unseen(what)
            return callee.outside()
        active = scope.run
        check_may_wait(scope, what)
        core = _Pausing(callee, scope, callee.identity(), callee.bound).core(asks_first=True)
        if not (active.awaits and asyncio_state.loop_runs()):
            return drive(core).unwrap()
        operation = start(core)
        ending = operation if isinstance(operation, Result) else Unfinished(core, operation)
        return hand_out(active, what, ending)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _is_awaited() -> bool:
    """Return whether the calling code is part of a coroutine function."""
    frame = caller() if asyncio_state.loop_runs() else None
    while frame is not None and frame.f_code.co_name in _INSIDE:
        frame = frame.f_back
    awaits = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return frame is not None and bool(frame.f_code.co_flags & awaits)
