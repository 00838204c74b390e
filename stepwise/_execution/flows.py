"""The flows of control of one run: the calls that each executes or waits in, and its failures.

A *flow* is an asyncio task or, outside a task, a thread.

Rejected: holding an answer back until all earlier records were taken, so that a replayed race has
the same winner.  A task that the new code never starts would block all others.

A recorded failure is an outcome only once the workflow has continued after it.  This is detected
without help from the workflow.  At a later call in the same flow, the exception is no longer being
handled: it is missing in ``sys.exc_info`` and its contexts.  Each exception that leaves a step
carries the number of the call in an attribute.

Rejected: checking whether a statement outside the ``try`` was reached.  That check fails in
functions without boundaries.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import count, islice
from time import monotonic
from types import FrameType
from typing import Any

from stepwise._journal.records import ANY_ERROR
from stepwise._runtime import asyncio_state
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import chain, is_ours, notice

_TELL_AFTER = 5.0  # seconds
_DEPTH = 4  # the usual maximum of calls inside each other
_changes = count(1)


class Worker:
    """A thread that the workflow's own code started, or a job that it gave to a pool.

    Args:
        daemon: True for a thread that its starter does not wait for, as libraries start them.

    Attributes:
        flow: the flow in which the worker runs; 0 before it begins.
    """

    def __init__(self, flows: Flows, name: str, daemon: bool) -> None:
        self.flows = flows
        self.name = name
        self.daemon = daemon
        self.flow = 0

    def __enter__(self) -> None:
        """Mark the worker as running in this flow."""
        self.flow = asyncio_state.who()

    def __exit__(self, *_: object) -> None:
        """Mark the worker as finished, so that it makes no more calls."""
        self.flows.end(self)


class Unawaited(NamedTuple):
    """A call that nobody has awaited yet.

    Args:
        what: the text that names the call.
        site: the place in the code where the call was made.
        give_up: ends the call if nobody awaits it.
    """

    what: str
    site: str
    give_up: Callable[[], None]


class Gong:
    """A signal that wakes all its waiters."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._rings: tuple[Callable[[], None], ...] = ()
        self.changes = 0
        """A number that changes whenever something happens that a waiter may wait for."""

    def ring(self) -> None:
        """Note a change, and wake all waiters."""
        self.changes = next(_changes)  # without a lock: no other ring gets this number
        for ring in self._rings:
            ring()

    @contextmanager
    def watching(self, ring: Callable[[], None]) -> Iterator[None]:
        """Call ``ring`` at every change while the block runs."""
        with self._mutex:
            self._rings = (*self._rings, ring)
        try:
            yield
        finally:
            with self._mutex:
                at = self._rings.index(ring)
                self._rings = self._rings[:at] + self._rings[at + 1 :]


class Flows:
    """The calls of a run that are being executed, and the calls that wait.

    Attributes:
        claims: rings for calls that wait for the work of others.
        parked: rings for calls that wait for a time, a signal or a person.
        tasks: weak references to the tasks of a top-level run and of its child runs.  Some of the
            tasks may be over, or have left the run; see :mod:`.tasks`.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._working: dict[int, int] = {}  # number of a call being executed -> its flow
        self._children: set[int] = set()  # the calls in _working that are child runs
        self._workers: set[Worker] = set()
        self.tasks: set[asyncio_state.TaskReference] = set()
        # For each waiting call: its flow, the calls around it, itself, and what it waits for.
        self._blocked: dict[int, tuple[int, tuple[int, ...], Any, Any]] = {}
        self.moved_at = monotonic()
        self.claims = Gong()
        self.parked = Gong()
        self.worked: Callable[[], None] | None = None  # called when a body begins or ends

    def moved(self) -> None:
        """Note that the work of the run has made progress."""
        self.moved_at = monotonic()
        self.claims.ring()

    def change(self) -> None:
        """Wake all calls that wait, since something happened to the run."""
        self.claims.ring()
        self.parked.ring()

    def begin(self, number: int, *, child: bool = False) -> None:
        """Note that this flow begins to execute the body of a call; ``child`` for a child run."""
        flow = asyncio_state.who()
        with self._mutex:
            self._working[number] = flow
            if child:
                self._children.add(number)
        self.moved_at = monotonic()
        if self.worked is not None:
            self.worked()

    @property
    def are_none(self) -> bool:
        """True if no call is being executed, and no thread or job may make one."""
        return not (self._working or self._workers)

    @property
    def working(self) -> int:
        """The number of calls that are being executed."""
        return len(self._working)

    def executes(self, number: int) -> bool:
        """Return whether the call of a number is being executed."""
        return number in self._working

    def done(self, number: int) -> None:
        """Note that the body of a call is no longer executed."""
        with self._mutex:
            self._working.pop(number, None)
            self._children.discard(number)
        if self.worked is not None:
            self.worked()
        self.moved_at = monotonic()  # as moved() does it
        self.claims.ring()

    def start(self, name: str, *, daemon: bool) -> Worker:
        """Return the worker of a thread or job that begins; it may make calls until it leaves."""
        worker = Worker(self, name, daemon)
        with self._mutex:
            self._workers.add(worker)
        self.moved()
        return worker

    def end(self, worker: Worker) -> None:
        """Remove a thread or job that makes no more calls."""
        with self._mutex:
            self._workers.discard(worker)
        self.moved()

    def block(self, call: object, around: tuple[int, ...], match: object = None) -> None:
        """Mark a call as waiting, in this flow, for the work of others.

        Other waiting calls are woken once, since they may now be waiting for one another.

        Args:
            around: the numbers of the calls around it.
            match: what the call waits for.
        """
        with self._mutex:
            known = id(call) in self._blocked
            self._blocked[id(call)] = (asyncio_state.who(), around, call, match)
        if not known:
            self.moved()

    def blocked(self) -> list[tuple[Any, Any]]:
        """Return the calls that wait, and the calls that they wait for."""
        with self._mutex:
            return [(call, match) for _, _, call, match in self._blocked.values()]

    def unblock(self, call: object) -> None:
        """Mark a call as no longer waiting."""
        with self._mutex:
            self._blocked.pop(id(call), None)

    def others_working(self, among: Container[int] | None = None) -> bool:
        """Return whether another flow executes a body that is not waiting for calls inside itself.

        Args:
            among: the flows to consider; ``None`` for all.
        """
        if not self._working:
            return False
        here = asyncio_state.who()
        with self._mutex:
            waiting = {number for _, around, *_ in self._blocked.values() for number in around}
            return any(
                flow != here and number not in waiting and (among is None or flow in among)
                for number, flow in self._working.items()
            )

    def steps_in_flight(self) -> bool:
        """Return whether a body is being executed that is not a child run."""
        with self._mutex:
            return not self._children.issuperset(self._working)

    def others_than(self, flows: Container[int]) -> bool:
        """Return whether a thread or job other than these flows may make calls."""
        with self._mutex:
            return any(each.flow not in flows and not each.daemon for each in self._workers)

    def busy(self, enough: int) -> bool:
        """Return whether at least ``enough`` flows execute bodies, judging by the oldest calls.

        The time does not depend on the number of calls.  One flow has several calls if its steps
        call steps.
        """
        oldest: set[int] = set()
        with self._mutex:
            for flow in islice(self._working.values(), _DEPTH * enough):
                oldest.add(flow)
                if len(oldest) >= enough:
                    return True
        return False

    def others(self, *, claiming: bool = False) -> list[str]:
        """Return the names of threads and jobs, other than this flow, that may still make calls.

        Args:
            claiming: True before this flow's call does anything.  Waiting flows are then left out,
                since they make no call.  Daemons are included, since nothing else waits for them.
        """
        if not self._workers:
            return []
        not_these = self.idle() if claiming else {asyncio_state.who()}
        with self._mutex:
            return [
                each.name
                for each in self._workers
                if each.flow not in not_these and (claiming or not each.daemon)
            ]

    def idle(self) -> set[int]:
        """Return the flows that cannot make a call now: this flow, and the flows that wait."""
        with self._mutex:
            return {asyncio_state.who(), *(flow for flow, *_ in self._blocked.values())}

    def join(self, whose: str) -> None:
        """Wait until no other thread executes a body; all tasks have ended before.

        Args:
            whose: the subject of the notice if the wait is long.
        """
        if not self._working:
            return
        bell, told = threading.Event(), False
        with self.claims.watching(bell.set):
            while self._threads_working():
                bell.clear()
                if self._threads_working() and not bell.wait(_TELL_AFTER) and not told:
                    told = True
                    notice(f"{whose} waits for steps that are still running in threads")

    def _threads_working(self) -> bool:
        return self.others_working(sys._current_frames())


# -- the failures that are being handled, and those that were --------------------------------------


_ATTRIBUTE = "_stepwise_calls"
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# Available from Python 3.11 on; a quarter of the instructions of exc_info(), which makes a tuple.
handled = getattr(sys, "exception", None) or (lambda: sys.exc_info()[1])


class Unwinding:
    """The failures of one run in progress.

    Args:
        run_id: the run whose calls are named by attributes of exceptions.

    Attributes:
        ambient: the exception that the caller was handling when it called the workflow.
        pending: the failed calls whose outcome is not known yet, each with the flow it failed in.
        handling_calls: by flow, the calls made while exceptions were handled, with these
            exceptions.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.main = asyncio_state.who()
        self.ambient = handled()
        self.pending: dict[int, int] = {}
        self._cancelled: set[int] = set()  # the cancelled ones of the pending calls
        self.handling_calls: dict[int, list[tuple[int, list[BaseException]]]] = {}

    def enter(self) -> None:
        """Mark this flow of control as the one that runs the workflow's code."""
        self.main = asyncio_state.who()
        self.ambient = handled()

    def failed(self, number: int, error: BaseException, *, pending: bool = True) -> None:
        """Note that a call failed with ``error``; ``pending`` while its outcome is unknown."""
        calls = error.__dict__.get(_ATTRIBUTE, ())
        error.__dict__[_ATTRIBUTE] = (*calls, (self._run_id, number))
        if pending:
            self.pending[number] = asyncio_state.who()
            if asyncio_state.is_cancellation(error):
                self._cancelled.add(number)

    def tried_again(self, error: BaseException) -> None:
        """Mark the calls that raised ``error`` for retry."""
        for number in self.numbers(error):
            self.pending.pop(number, None)

    def numbers(self, error: BaseException | None) -> list[int]:
        """Return the calls that failed with an exception of this chain, nearest first."""
        return [
            number
            for each in chain(error, self.ambient)
            for run_id, number in reversed(each.__dict__.get(_ATTRIBUTE, ()))
            if run_id == self._run_id
        ]

    def handling(self) -> BaseException | None:
        """Return the exception handled in this flow of control, if it arose in the workflow."""
        error = handled()
        return None if error is self.ambient else error

    def label(self) -> int | None:
        """Return the failure that a call made now belongs to; see ``Call.unwinding``."""
        error = self.handling()
        if error is None or isinstance(error, GeneratorExit):
            return None
        numbers = self.numbers(error)
        return numbers[0] if numbers else ANY_ERROR

    def interrupt(self) -> BaseException | None:
        """Return the Ctrl-C, exit or closing that is unwinding this flow of control."""
        interrupts = KeyboardInterrupt, SystemExit, GeneratorExit
        errors = chain(self.handling(), self.ambient)
        return next((error for error in errors if isinstance(error, interrupts)), None)

    def refusal(self) -> BaseException | None:
        """Return the interrupt, unless it only closes a generator that its reader left.

        Such a generator may still make calls to clean up.
        """
        for error in chain(self.handling(), self.ambient):
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                return error
            if isinstance(error, GeneratorExit) and not _is_left(error):
                return error
        return None

    def cut_off(self) -> int:
        """Return this flow of control if an exception is unwinding it, else 0.

        The closing of a generator that its reader left does not count.
        """
        errors = chain(self.handling(), self.ambient)
        return 0 if all(isinstance(each, GeneratorExit) for each in errors) else asyncio_state.who()

    def has_gone_on(self, flow: int) -> bool:
        """Return whether the given flow, or the workflow's own, has continued and handles nothing.

        Args:
            flow: the result of ``cut_off``.
        """
        return self.handling() is None and (not flow or asyncio_state.who() in (flow, self.main))

    def gone_on(self) -> tuple[int, ...]:
        """Return the failed calls that the workflow turns out to have handled, each only once.

        A failure in another task or thread is reported when the workflow's own flow continues.
        """
        here = asyncio_state.who()
        handling = self.handling()
        current = {id(error) for error in chain(handling, self.ambient)}
        if here in self.handling_calls:
            made = self.handling_calls.pop(here)
            made = [each for each in made if not current.isdisjoint(map(id, each[1]))]
            if made:
                self.handling_calls[here] = made
        still = set(self.numbers(handling))
        handled = tuple(
            number
            for number, flow in self.pending.items()
            if number not in still
            and here in (flow, self.main)
            # Tasks that a failing task group cancels are not part of its error, nor handled.
            and (number not in self._cancelled or flow == here or handling is None)
        )
        for number in handled:
            del self.pending[number]
        return handled

    def made(self, number: int) -> None:
        """Note a call that was made or answered while an exception is being handled.

        The exceptions in whose handling this one arose are noted, too: the run may yet end with one
        of them.
        """
        handling = self.handling()
        if handling is not None:
            errors = list(chain(handling, self.ambient))
            self.handling_calls.setdefault(asyncio_state.who(), []).append((number, errors))

    def spent(self, error: BaseException) -> tuple[int, ...]:
        """Return the calls that were made while the run's final ``error`` unwound."""
        ending = {id(each) for each in chain(error, self.ambient)}
        return tuple(
            sorted(
                number
                for calls in self.handling_calls.values()
                for number, errors in calls
                if not ending.isdisjoint(map(id, errors))
            )
        )

    def end(self, error: BaseException | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return, at the end of the run, the calls to retry and the calls that were handled."""
        again = set(self.numbers(error))
        if error is not None:
            # Other cancellations were caused by the failure.  Nothing shows that the workflow
            # continued after failures beside it, in another task or thread (of a gather, a map).
            beside = (
                n for n, at in self.pending.items() if at != self.main or n in self._cancelled
            )
            again |= {*beside}
        retry = tuple(sorted(again))
        handled = tuple(number for number in self.pending if number not in retry)
        self.pending.clear()
        return retry, handled


def _is_left(error: GeneratorExit) -> bool:
    """Return whether a generator is closed in the middle of its reader's code.

    A coroutine that is closed cannot await anything.  The garbage collector runs at any place, even
    where our own code holds a lock.  It leaves asynchronous generators to the event loop.
    """
    flags, trace = 0, error.__traceback__
    frame: FrameType | None = trace.tb_frame if trace is not None else None
    while trace is not None:
        flags |= trace.tb_frame.f_code.co_flags
        trace = trace.tb_next
    if flags & _COROUTINE or sys.is_finalizing():
        return False
    if flags & inspect.CO_ASYNC_GENERATOR:
        return asyncio_state.current() is not None
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
        if is_ours(code.co_filename):
            if not code.co_flags & _GENERATOR:
                return False
        elif not code.co_flags & _GENERATOR and not (
            module in sys.stdlib_module_names or "-packages" in code.co_filename
        ):
            break
        frame = frame.f_back
    return True
