"""``approve``: a call that waits for a person's yes and returns what the person said."""

from __future__ import annotations

import datetime as dt
from typing import Any

from stepwise._calls.approvals import answer_in, answered, denied, new_ticket
from stepwise._calls.driver import Result
from stepwise._calls.pauses import Waiter, in_seconds, paused
from stepwise._calls.terms import in_full
from stepwise._execution.active_run import ActiveRun, current_scope
from stepwise._execution.waits import waits
from stepwise._journal.records import Call, Waiting
from stepwise._matching.subjects import Identity
from stepwise._runtime import clock
from stepwise._values import digest
from stepwise.errors import ConfigurationError, OutsideRunError, WaitTimeoutError

__all__ = ["approve"]


@waits
def approve(
    question: str,
    details: Any = None,
    timeout: float | dt.timedelta | None = None,
) -> Any:
    """Ask a person, and return the note of the one who says yes.

    It is answered by ``stepwise approve RUN STEP`` or ``Run.approve(step)``, from any process, and
    in a notebook.  In a coroutine function the call is awaited; elsewhere it blocks.  For the call
    of a tool, ``@tool(side_effect=True, approve=True)`` binds the yes to the arguments.

    Args:
        question: what the person is asked.
        details: what the person is shown with it, as text: any value.  With other details it is
            another question, which an earlier yes does not answer.
        timeout: seconds, or a ``timedelta``, after which nobody answered in time; ``None`` for
            never.

    Returns:
        the note, a text; empty if there was none.

    Raises:
        ApprovalDenied: a person said no.
        WaitTimeoutError: nobody answered in time.
        OutsideRunError: it was called outside of any run, so that nobody could answer.
        ConfigurationError: an argument cannot mean anything, or the call is made inside a step.
    """
    if not isinstance(question, str) or not question.strip():
        raise ConfigurationError(
            f"stepwise.approve({question!r}): the question is a text that is not empty: "
            'approve("Send the letter?", details=letter)'
        )
    length = None if timeout is None else in_seconds(timeout, "approve", "timeout=")
    return paused(_Approval(question, details, length))


class _Approval(Waiter):
    returns = str

    def __init__(self, question: str, details: Any, length: float | None) -> None:
        given = {"question": question, "details": details, "timeout": length}
        shown = {name: value for name, value in given.items() if value is not None}
        scope = current_scope()
        self._details = ""
        if details is not None:
            mask = scope.run.secrets.mask if scope is not None else str
            self._details = in_full(details, mask)
        super().__init__("approve", shown, {})
        self._question, self._length = question, length

    def identity(self) -> Identity:
        # All of the digests: a yes is for these very details.
        asked = {"question": self._question, "details": self._details}
        parts = {name: digest.digest(text) for name, text in asked.items()}
        return Identity(digest.combine(*parts.values()), parts)

    def waiting(self, call: Call) -> Waiting:
        now, length = clock.now(), self._length
        return Waiting(
            call,
            "approval",
            self._question,
            None if length is None else now + length,
            length,
            new_ticket(),
            details=self._details,
            at=now,
        )

    def look(self, active: ActiveRun, waiting: Waiting) -> Result | None:
        found = answered(active, waiting.ticket)
        if found is None:
            return None
        message, call = found.value, waiting.call
        answer = answer_in(message, call)
        active.write((answer, b""))
        if message.approved:
            return Result((None, message.note))
        return Result(error=denied(active.run_id, call, answer))

    def is_over(self, active: ActiveRun, call: Call) -> Result:
        return Result(
            error=WaitTimeoutError(
                f"nobody answered approve({self._question!r}) of run {active.run_id!r} within "
                f"{self._length:g} s",
                run_id=active.run_id,
                step=call.number,
                name=self._question,
            )
        )

    def outside(self) -> Any:
        raise OutsideRunError(
            f"stepwise.approve({self._question!r}) was called outside of any run, so that nobody "
            "could answer: call it in a function with @workflow",
            run_id="",
        )
