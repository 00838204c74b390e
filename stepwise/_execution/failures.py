"""The failures that the workflow is handling now, and the failures that it has handled.

A recorded failure is an outcome only once the workflow has continued after it.  This is detected
without help from the workflow.  At a later call in the same flow of control, the exception is no
longer being handled: it is missing in ``sys.exc_info`` and its contexts.  Each exception that
leaves a step carries the number of the call in an attribute.

Rejected: checking whether a statement outside the ``try`` was reached.  That check fails in
functions without boundaries.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType

from stepwise._journal.records import ANY_ERROR
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import chain, is_ours

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
