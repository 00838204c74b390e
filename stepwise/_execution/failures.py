"""The failures that the workflow is handling now, and those that it has handled.

A recorded failure is an outcome only once the workflow has gone on from it.  That is seen without
any help from the workflow: at a later call in the same flow of control, the exception is no longer
among those being handled (``sys.exc_info`` and its contexts).  Each exception that leaves a step
carries the number of the call in an attribute.
"""

from __future__ import annotations

import sys

from stepwise._journal.records import ANY_ERROR
from stepwise._runtime import asyncio_state
from stepwise._runtime.tracebacks import chain

__all__ = ["Unwinding"]

_ATTRIBUTE = "_stepwise_calls"
# From Python 3.11 on; a quarter of the instructions of exc_info(), which makes a tuple.
_handled = getattr(sys, "exception", None) or (lambda: sys.exc_info()[1])


class Unwinding:
    """The failures of one run in progress.

    Args:
        run_id: whose calls the exceptions' attributes name.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.main = asyncio_state.who()
        # Exceptions that the caller was handling when it called the workflow do not count.
        self._ambient = _handled()
        self._pending: dict[int, int] = {}  # number of a failed call -> flow it failed in
        self._cancelled: set[int] = set()  # the cancelled calls among them
        # flow -> calls made while handling, with the errors that were being handled
        self._made: dict[int, list[tuple[int, list[BaseException]]]] = {}

    def enter(self) -> None:
        """Mark this flow of control as the one that runs the workflow's code."""
        self.main = asyncio_state.who()
        self._ambient = _handled()

    def failed(self, number: int, error: BaseException, *, pending: bool = True) -> None:
        """Note that a call failed with ``error``; ``pending`` while its outcome is unknown."""
        calls = error.__dict__.get(_ATTRIBUTE, ())
        error.__dict__[_ATTRIBUTE] = (*calls, (self._run_id, number))
        if pending:
            self._pending[number] = asyncio_state.who()
            if asyncio_state.is_cancellation(error):
                self._cancelled.add(number)

    def tried_again(self, error: BaseException) -> None:
        """Mark the calls that raised ``error`` for retry."""
        for number in self.numbers(error):
            self._pending.pop(number, None)

    def numbers(self, error: BaseException | None) -> list[int]:
        """The calls that failed with an exception of this chain, the nearest first."""
        return [
            number
            for each in chain(error, self._ambient)
            for run_id, number in reversed(each.__dict__.get(_ATTRIBUTE, ()))
            if run_id == self._run_id
        ]

    def handling(self) -> BaseException | None:
        """The exception being handled in this flow of control, if it arose in the workflow."""
        error = _handled()
        return None if error is self._ambient else error

    @property
    def is_quiet(self) -> bool:
        """True if nothing is being handled here, and no earlier failure can turn out handled."""
        return not self._pending and not self._made and _handled() is self._ambient

    def label(self) -> int | None:
        """Return the failure that a call made now belongs to; see ``Call.unwinding``."""
        error = self.handling()
        if error is None:
            return None
        numbers = self.numbers(error)
        return numbers[0] if numbers else ANY_ERROR

    def interrupt(self) -> BaseException | None:
        """The Ctrl-C, exit or closing that is unwinding this flow of control."""
        handling = self.handling()
        if handling is None:
            return None
        for error in chain(handling, self._ambient):
            if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                return error
        return None

    def cut_off(self) -> int:
        """Return this flow of control if an exception is unwinding it; 0 if none is.

        That a generator is closed, because its reader left it, is none.
        """
        errors = chain(self.handling(), self._ambient)
        return 0 if all(isinstance(each, GeneratorExit) for each in errors) else asyncio_state.who()

    def has_gone_on(self, flow: int) -> bool:
        """Return whether this is the flow of control, or the workflow's own, and handles nothing.

        Args:
            flow: as ``cut_off`` returned it.
        """
        return self.handling() is None and (not flow or asyncio_state.who() in (flow, self.main))

    def gone_on(self) -> tuple[int, ...]:
        """Return the failed calls that the workflow turns out to have handled, each only once.

        A failure in a task or thread of its own is told when the workflow's own flow goes on.
        """
        if not self._pending and not self._made:
            return ()
        here = asyncio_state.who()
        handling = self.handling()
        current = {id(error) for error in chain(handling, self._ambient)}
        if here in self._made:
            self._made[here] = [
                each for each in self._made[here] if not current.isdisjoint(map(id, each[1]))
            ]
            if not self._made[here]:
                del self._made[here]
        still = set(self.numbers(handling))
        handled = tuple(
            number
            for number, flow in self._pending.items()
            if number not in still
            and here in (flow, self.main)
            # Tasks that a failing task group cancels are not part of its error, nor handled.
            and (number not in self._cancelled or flow == here or handling is None)
        )
        for number in handled:
            del self._pending[number]
        return handled

    def made(self, number: int) -> None:
        """Note a call that was made or answered while an exception is being handled.

        With it, those during whose handling that one arose: the run may yet end with one of them.
        """
        handling = _handled()
        if handling is not None and handling is not self._ambient:
            errors = list(chain(handling, self._ambient))
            self._made.setdefault(asyncio_state.who(), []).append((number, errors))

    def spent(self, error: BaseException) -> tuple[int, ...]:
        """Return the calls that were made while the run's final ``error`` unwound."""
        ending = {id(each) for each in chain(error, self._ambient)}
        return tuple(
            sorted(
                number
                for calls in self._made.values()
                for number, errors in calls
                if not ending.isdisjoint(map(id, errors))
            )
        )

    def end(self, error: BaseException | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """At the end of the run: the calls to try again, and those that were handled."""
        again = set(self.numbers(error))
        if error is not None:
            # Other cancellations were caused by the failure; and nothing shows that the workflow
            # went on from what failed beside it, in another task or thread (of a gather, a map).
            beside = (
                n for n, at in self._pending.items() if at != self.main or n in self._cancelled
            )
            again |= {*beside}
        retry = tuple(sorted(again))
        handled = tuple(number for number in self._pending if number not in retry)
        self._pending.clear()
        return retry, handled
