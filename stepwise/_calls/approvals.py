"""Approvals: a tool's calls that a person has to allow before they are made.

The call asks before its intent is written.  The question is a record with a random ticket, the
arguments, and the digests of everything that counts (see ``terms``).  An answer names the ticket.
So a yes is good for one call with these arguments: for its retries, and for another try after a
crash.  When the yes has come, the terms are compared again.  Equal: the call is made with copies of
the recorded arguments, so that nobody can change them in between.  Different: it asks anew.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator, Mapping
from typing import Any

from stepwise._calls.doubt import in_doubt
from stepwise._calls.driver import Attempt, Core, Result, Write, run, written
from stepwise._calls.perform import Performance
from stepwise._calls.recording import record_failure, record_settled
from stepwise._calls.terms import (
    Agreement,
    Asks,
    differing_parts,
    digested,
    load_arguments,
    terms_of,
)
from stepwise._calls.waiting import check_may_wait, waited
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Origin
from stepwise._execution.outcomes import settled
from stepwise._identity.parts import shown_part
from stepwise._journal.inbox import Message
from stepwise._journal.journal import Position, read_entries
from stepwise._journal.projection import RecordedCall
from stepwise._journal.questions import Asked, Questions
from stepwise._journal.records import Answered, Call, Waiting
from stepwise._matching.held import Watched
from stepwise._matching.pool import Match, Verdict
from stepwise._matching.rulings import differing
from stepwise._runtime import clock
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import notice, reports
from stepwise.errors import (
    ApprovalDenied,
    ConfigurationError,
    OutsideRunError,
    UnreadableValueError,
)

__all__ = [
    "ApprovedCall",
    "answer_in",
    "answered",
    "arefuse_outside",
    "denied",
    "new_ticket",
    "refuse_outside",
]


class _Permission(NamedTuple):
    """A call that may be made.

    Args:
        call: with copies of the arguments.
        asked: the question that was answered with yes; ``None`` if none was needed.
    """

    call: ApprovedCall
    asked: Asked | None


class ApprovedCall(Performance):
    """One call of a tool with ``approve=``."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Ask for the call, make it, and record its outcome."""
        active, answer = self.scope.run, (yield from self.decided(call, match))
        while answer is None:
            permission = yield from self._permission(call, match)
            if isinstance(permission, Result):
                inner = Scope(active, call, (*self.scope.around, call.number), 0, [])
                yield from record_failure(
                    self.scope,
                    inner,
                    permission,
                    None,
                    clean=True,
                    helper=origin.helper,
                )
                return permission
            yield from self._admit()  # SIGTERM may have come while it waited
            made, asked = permission
            ticket = asked.waiting.ticket if asked is not None else ""
            made.takes_off(call)
            try:
                answer = yield from made.announced(call, match, ticket)
                if answer is not None:
                    break
                if not made._changed(asked):
                    return (yield from made.carried_out(call, origin, match))
                # Other tasks had their turn while the intent was written.
                if match.verdict is Verdict.DOUBT:
                    raise active.stop(in_doubt(active, match.recorded[0]))
                yield from record_settled(
                    self.scope, call, settled(active.codec, call, landed=False)
                )
            finally:
                made.landed(call)
        return answer

    def watched(self) -> Watched:
        """Return the arguments, which are copies: the caller sees nothing of a change."""
        return (
            super()
            .watched()
            ._replace(
                unrecorded="which is a copy: a tool with approve= gets the arguments that were "
                "recorded with its question",
                copies=True,
            )
        )

    @property
    def _tool(self) -> Asks:
        tool: Any = self.performer
        return tool  # type: ignore[no-any-return]

    @property
    def _instance(self) -> Any:
        """The instance that the method is called on: the argument that is not bound by name."""
        first = self._tool.parameters.first
        return self.args[0] if self.args and first not in self.bound else None

    def _terms(self, active: ActiveRun) -> Agreement:
        return terms_of(self._tool, active.codec, self.bound, self._instance)

    def _with(self, arguments: Mapping[str, Any]) -> ApprovedCall:
        """Return the call with other objects as its arguments."""
        args, kwargs = self._tool.parameters.replaced(self.args, self.kwargs, arguments)
        return self._replace(bound={**self.bound, **arguments}, args=args, kwargs=kwargs)

    def _differs(self, asked: Asked, terms: Mapping[str, bytes]) -> list[str]:
        seal, waiting = self.scope.run.journal.seal, asked.waiting
        return differing_parts(waiting.digest, terms, seal, waiting.ticket)

    def _changed(self, asked: Asked | None) -> bool:
        """Return whether the call is no longer what was allowed."""
        return asked is not None and bool(
            self._differs(asked, digested(self._tool, self.bound, self._instance))
        )

    # -- the permission --------------------------------------------------------------------------

    def _permission(self, call: Call, match: Match) -> Generator[Any, Result, _Permission | Result]:
        """Return the call that may be made, or how it failed: by a no, by a cancellation."""
        active, recorded = self.scope.run, next(iter(match.recorded), None)
        doubtful = match.verdict is Verdict.DOUBT and self._tool.in_doubt == "retry"
        asked = _asked_before(active, recorded)
        current, terms = self, self._terms(active)
        if asked is None and not (yield from self._is_needed(terms)):
            return _Permission(self._with(terms.arguments), None)
        if asked is None:
            check_may_wait(self.scope, f"{call.name}, which needs an approval,")
        while True:
            why = self._differs(asked, terms.encoded) if asked is not None else []
            if doubtful and recorded is not None and (asked is None or why or asked.answer is None):
                raise active.stop(in_doubt(active, recorded, _no_yes(call, why)))
            if asked is None or why:
                _tell_changed(active, call, asked, why)
                asked, recorded = self._question(call, terms), None
            if asked.answer is None:
                got = yield from self._answer(call, asked, recorded)
                if not isinstance(got, Answered):
                    return got
                asked = asked._replace(answer=got)
            assert asked.answer is not None
            if not asked.answer.approved:
                return Result(error=denied(active.run_id, call, asked.answer))
            try:
                arguments = self._load(active, asked)
            except UnreadableValueError as problem:
                notice(f"run {active.run_id}: {call.name} asks again, since {problem}")
                asked, recorded = self._question(call, terms), None
                continue
            current = current._with(arguments)
            terms = current._terms(active)
            if not self._differs(asked, terms.encoded):
                return _Permission(current, asked)

    def _is_needed(self, terms: Agreement) -> Generator[Any, Result, bool]:
        approve, name, codec = self._tool.approve, self._tool.name, self.scope.run.codec
        if not callable(approve):
            return bool(approve)
        # With copies of its own: it may change what it is given.
        arguments = load_arguments(codec, self._tool, bytes(terms.stored.data), terms.stored.form)
        asking = self._with(arguments)
        result = yield Attempt(approve, asking.args, asking.kwargs, None, f"approve= of {name}")
        return _checked(self._tool, result.unwrap())

    def _question(self, call: Call, terms: Agreement) -> Asked:
        ticket, now = new_ticket(), clock.now()
        waiting = Waiting(
            call,
            "approval",
            f"make this call of {call.name}?",
            ticket=ticket,
            digest=terms.digest(self.scope.run.journal.seal, ticket),
            details=terms.details,
            form=terms.stored.form,
            at=now,
        )
        return Asked(waiting, bytes(terms.stored.data))

    def _answer(
        self, call: Call, asked: Asked, recorded: RecordedCall | None
    ) -> Generator[Any, Result, Answered | Result]:
        """Wait for the answer, and record it."""
        active = self.scope.run
        found = yield from waited(
            self.scope,
            call,
            asked.waiting,
            lambda waiting: answered(active, waiting.ticket),
            recorded,
            asked.payload,
        )
        assert found is not None  # it waits without end
        if found.error is not None:
            return found
        record = answer_in(found.value, call)
        _, cancelled = written(active, (yield Write(active, (record, b""))))
        return record if cancelled is None else Result(error=cancelled)

    def _load(self, active: ActiveRun, asked: Asked) -> dict[str, Any]:
        return load_arguments(active.codec, self._tool, asked.payload, asked.waiting.form)


def new_ticket() -> str:
    """Return a text that names one question, and that nobody can guess."""
    return os.urandom(8).hex()


def answered(active: ActiveRun, ticket: str) -> Result | None:
    """Return the first answer to a question, once it is there."""
    message = active.inbox.answer(ticket)
    return None if message is None else Result(message)


def answer_in(message: Message, call: Call) -> Answered:
    """Return the record of an answer that the call takes now."""
    said = message.approved, message.by, message.note, message.number, message.at
    return Answered(call.number, message.name, *said, clock.now())


def denied(run_id: str, call: Call, answer: Answered) -> ApprovalDenied:
    """Return the error of a call that a person denied."""
    why = f": {answer.note}" if answer.note else ""
    return ApprovalDenied(
        f"{answer.by or 'somebody'} denied step {call.number} of run {run_id!r}, "
        f"{call.name}({call.arguments}){why}",
        run_id=run_id,
        step=call.number,
        by=answer.by,
        note=answer.note,
    )


def _asked_before(active: ActiveRun, recorded: RecordedCall | None) -> Asked | None:
    """Return the question of a recorded call that still holds.

    That is one without an answer, or with an answer that the call has not acted on yet.  Of a call
    that was begun since, a yes holds until the call has happened.
    """
    if recorded is None:
        return None
    wait = recorded.wait
    if wait is not None:
        asked = Asked(wait, recorded.origin.payload, recorded.answer)
        return asked if wait.kind == "approval" and wait.ticket else None
    journal = active.journal
    start = Position(active.facts.pruned, None)
    known = Questions(read_entries(journal.store, journal.seal, active.run_id, start))
    last = known.asked.get(recorded.call.number)
    yes = last is not None and last.answer is not None and last.answer.approved
    return last if yes else None


def _no_yes(call: Call, why: list[str]) -> str:
    if not why:
        return f"{call.name} may have been made, and nobody has approved it"
    changed = " and ".join(map(shown_part, why))
    return f"{call.name} may have been made, and {changed} is not what was approved"


@reports
def _tell_changed(active: ActiveRun, call: Call, asked: Asked | None, why: list[str]) -> None:
    run_id, number = active.run_id, call.number
    if asked is not None:
        changed = " and ".join(map(shown_part, why))
        what = "were" if len(why) > 1 else "was"
        answer = "its answer was" if asked.answer else "an answer to that is"
        notice(
            f"run {run_id}: step {number} ({call.name}) asks again, since {changed} {what} "
            f"different when it asked ({answer} for other arguments)"
        )
        return
    other = active.pool.get(call.instead) if call.instead else None
    if other is not None and other.wait is not None:
        changed = " and ".join(map(shown_part, differing(call, other.call))) or "its arguments"
        notice(
            f"run {run_id}: {call.name} is called with other arguments than those of step "
            f"{call.instead}, which asked for an approval ({changed}): step {number} asks instead. "
            f"An answer to step {call.instead} does not count"
        )


# -- outside of runs -----------------------------------------------------------------------------


def refuse_outside(tool: Asks, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if a call that is made outside of any run needs an approval.

    Raises:
        OutsideRunError: nobody could be asked.
    """
    needed: Any = tool.approve
    if callable(needed):
        asking = Attempt(needed, args, kwargs, None, f"approve= of {tool.name}")
        needed = _checked(tool, run(asking).unwrap())
    if needed:
        raise _outside(tool)


async def arefuse_outside(tool: Asks, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise as :func:`refuse_outside`, in an event loop."""
    needed: Any = tool.approve
    if callable(needed):
        needed = needed(*args, **kwargs)
        needed = _checked(tool, await needed if inspect.isawaitable(needed) else needed)
    if needed:
        raise _outside(tool)


def _outside(tool: Asks) -> OutsideRunError:
    return OutsideRunError(
        f"{tool.what} needs an approval, and was called outside of any run, so that nobody could "
        "be asked: call it in a function with @workflow. In a test, the function itself is "
        f"{tool.name}.__wrapped__",
        run_id="",
    )


def _checked(tool: Asks, needed: Any) -> bool:
    if not isinstance(needed, bool):
        raise ConfigurationError(
            f"approve= of {tool.what} returned {needed!r}: it returns True if the call needs an "
            "approval, else False"
        )
    return needed
