"""An error that stops a run is seen, though what executes the workflow may swallow it.

Agent frameworks catch ``BaseException`` in their tasks and threads, or lose it there: the program
would wait for ever, or ask the model again and again.  So the error is told in one line where it is
raised (the whole text arrives with the exception); and where the run has not ended a moment later,
its own task is cancelled, or the tasks of a workflow that is no coroutine function.  The run then
ends with the error, not with the cancellation.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._execution.cleanup import task_cleans_up
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import notice, shell_word
from stepwise.errors import BudgetExceeded, RunStopped, RunSuspended, StepInDoubtError

if TYPE_CHECKING:
    from stepwise._execution.concurrency import Flows

    class Stopping(Protocol):
        """A run that no other one called, and that has been stopped."""

        run_id: str
        stopped: RunStopped | None
        ended: bool
        task: Any
        flows: Flows

        def holds(self, task: Any) -> bool:
            """Return whether a task belongs to the run."""


__all__ = ["Surfacing"]

_MANY = 3  # calls that got the error, after which nobody waits for it to arrive by itself
_PATIENCE = 1.0  # seconds in which an error arrives by itself, and between two looks


class Surfacing:
    """Watches that a run ends after it was stopped."""

    def __init__(self, run: Stopping) -> None:
        self._run = run
        self._timer: threading.Timer | None = None
        self._told = False
        self._refused = 0  # calls
        self._cancelled: set[asyncio_state.TaskReference] = set()

    def begin(self, error: RunStopped) -> None:
        """Tell the error, and see to it that the run ends; a suspension does both itself.

        Programs catch a budget that is used up: that is told only if it does not arrive.
        """
        if isinstance(error, RunSuspended):
            return
        if not isinstance(error, BudgetExceeded):
            self._tell(error)
        self._wait()

    def _tell(self, error: RunStopped) -> None:
        if not self._told:
            self._told = True
            _tell(self._run.run_id, error)

    def refused(self) -> None:
        """Note that another call got the error: somebody swallows it, and calls on and on."""
        self._refused += 1
        if self._refused == _MANY and self._timer is not None:
            self._timer.cancel()
            self._wait(0.0)

    def close(self) -> None:
        """Stop watching; the run is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, seconds: float = _PATIENCE) -> None:
        self._timer = threading.Timer(seconds, self._look_again)
        self._timer.daemon = True
        contextvars.Context().run(self._timer.start)

    def _look_again(self) -> None:
        with contextlib.suppress(ReferenceError):  # the run is over, and gone
            self._look()

    def _look(self) -> None:
        """Cancel what still goes on, unless it cleans up; called in a thread of its own."""
        run = self._run
        if run.ended:
            return
        # What is in flight when a budget is used up is paid for, and waited for.
        if not (isinstance(run.stopped, BudgetExceeded) and run.flows.steps_in_flight()):
            if run.stopped is not None:
                self._tell(run.stopped)
            if run.task is not None:
                tasks = {asyncio_state.reference_to(run.task)}
            else:  # event loops of other threads may have tasks that nobody has looked at yet
                tasks = {*run.flows.tasks, *asyncio_state.known_references()}
            for reference in tasks - self._cancelled:
                self._end(reference)
        self._wait()

    def _end(self, reference: asyncio_state.TaskReference) -> None:
        def end() -> None:
            task = reference()
            if task is None or task.done() or self._run.ended:
                return
            if not task_cleans_up(task):
                self._cancelled.add(reference)
                task.cancel()

        task = reference()
        if task is not None and self._run.holds(task):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio_state.loop_of(task).call_soon_threadsafe(end)


def _tell(run_id: str, error: RunStopped) -> None:
    again = f"each later call of it raises {type(error).__name__}"
    if isinstance(error, StepInDoubtError):
        how = f"To settle it: stepwise show {shell_word(run_id)}"
        notice(f"{run_id} stops: {error.name} is in doubt, and {again}. {how}")
    else:
        what = str(error).partition("\n")[0]
        notice(f"{run_id} stops, and {again}: {what}")
