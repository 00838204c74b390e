"""The questions of a run that wait for a person, and the answers to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwise._calls.terms import load_arguments
from stepwise._display.asked import buttons, question_text, questions_html
from stepwise._journal.inbox import Inbox, Message, this_person
from stepwise._journal.journal import Position, facts_of, read_entries
from stepwise._journal.projection import Calls
from stepwise._journal.questions import Asked, Questions, open_questions
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runs.sending import ENDED, deliver, ended_error
from stepwise._runtime.public_names import public
from stepwise._values.codec import Codec
from stepwise.errors import ConfigurationError, RunNotFoundError, StepNotFoundError, StepwiseError
from stepwise.stores import Store

__all__ = ["Question", "give_answer", "questions_of"]

_KEY = "answer"  # of every answer: the first one to a question is the only one


@public
@dataclass(frozen=True, slots=True)
class Question:
    """A question of a run that waits for a person's answer.

    Args:
        run_id: the run that asks; a run's questions include those of its child runs.
        step: the number of the call that asks; what the command line calls STEP.
        name: of the tool, or ``stepwise.approve``.
        text: the question.
        details: everything that a yes is bound to, in full: of a tool, all arguments.
        asked_at: when it was asked, in seconds since 1970.
        until: when the call gives up waiting; ``None`` for never.
        ticket: of this question; a call that asks again has another one.
        site: ``file:line`` of the call.
    """

    run_id: str
    step: int
    name: str
    text: str
    details: str
    asked_at: float
    until: float | None
    ticket: str
    site: str
    _asked: Any = field(repr=False)  # an Asked: hints of a public class name what is public
    _where: Any = field(repr=False)  # the store and its seal

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that the call will be made with, by name; loaded when they are asked for.

        Secrets, what a framework injects, and arguments at their default are not among them.

        Raises:
            UnreadableValueError: they need a class that this program does not have.
        """
        if not self._asked.payload:
            return {}
        store, seal = self._where
        facts = _facts(store, seal, self.run_id)
        return load_arguments(
            Codec(facts.codec), None, self._asked.payload, self._asked.waiting.form
        )

    def approve(self, note: str = "") -> None:
        """Answer with yes; see :meth:`Run.approve`."""
        self._answer(approved=True, note=note)

    def deny(self, reason: str) -> None:
        """Answer with no; see :meth:`Run.deny`."""
        self._answer(approved=False, note=reason)

    def _answer(self, *, approved: bool, note: str) -> None:
        store, seal = self._where
        give_answer(store, seal, self.run_id, self.step, approved=approved, note=note, of=self)

    def __str__(self) -> str:
        return question_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(question_text(self))

    def _repr_html_(self) -> str:
        return questions_html([self])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return buttons("", [self])

    def to_dict(self) -> dict[str, Any]:
        """Its attributes as plain data, for JSON; nothing is unpickled."""
        names = ("run_id", "step", "name", "text", "details", "asked_at", "until", "ticket", "site")
        return {name: getattr(self, name) for name in names}


def questions_of(store: Store, seal: Seal, facts: RunFacts) -> list[Question]:
    """Return the questions that a run and its child runs wait with."""
    entries = [*read_entries(store, seal, facts.run_id, Position(facts.pruned, None))]
    asked = open_questions(entries, facts)
    given = _answers(store, seal, facts.run_id) if asked else {}
    found = [
        _question(store, seal, facts.run_id, each)
        for each in asked
        if each.waiting.ticket not in given  # or the run has not taken the answer yet
    ]
    for child in _unfinished_children(store, seal, entries):
        found += questions_of(store, seal, child)
    return found


def _unfinished_children(store: Store, seal: Seal, entries: list[Any]) -> Iterator[RunFacts]:
    for each in Calls(entries):
        if each.call.child and not each.answers:
            facts = facts_of(store, seal, each.call.child)
            if facts is not None:
                yield facts


def _question(store: Store, seal: Seal, run_id: str, asked: Asked) -> Question:
    waiting = asked.waiting
    call = waiting.call
    return Question(
        run_id,
        call.number,
        call.name,
        waiting.name,
        waiting.details,
        waiting.at,
        waiting.until,
        waiting.ticket,
        call.site,
        asked,
        (store, seal),
    )


def _facts(store: Store, seal: Seal, run_id: str) -> RunFacts:
    facts = facts_of(store, seal, run_id)
    if facts is None:
        raise RunNotFoundError(f"run {run_id!r} is gone from {store.url}", run_id=run_id)
    return facts


# -- answering -----------------------------------------------------------------------------------


def give_answer(
    store: Store,
    seal: Seal,
    run_id: str,
    step: int | str,
    *,
    approved: bool,
    note: str,
    of: Question | None = None,
) -> None:
    """Answer the question of a step; durable when this returns.

    Args:
        step: its number; or the name of the tool, if one call of it asks.
        note: of a no, the reason.
        of: the question that the person has seen; ``None`` for the one that is open now.

    Raises:
        StepNotFoundError: the step does not wait for an answer, or not any more.
        RunEndedError: the run has ended.
        RunNotFoundError: there is no such run any more.
        ConfigurationError: a no without a reason.
    """
    if not isinstance(note, str) or not (approved or note.strip()):
        raise ConfigurationError(
            f"a no needs a reason, and {note!r} is none: the workflow gets it, and so does whoever "
            'looks at the run: deny(step, "too expensive")'
        )
    facts = _facts(store, seal, run_id)
    found = questions_of(store, seal, facts)
    number = int(step) if str(step).isdecimal() else None
    named = [e for e in found if e.run_id == run_id and (e.step == number or e.name == step)]
    question = named[0] if len(named) == 1 else None
    if question is None or (of is not None and of.ticket != question.ticket):
        raise _not_asked(store, seal, facts, step if number is None else number, found, of)
    ticket, by = question.ticket, this_person()
    said: Any = {"step": question.step, "approved": approved, "note": note, "by": by}
    _, before = deliver(store, seal, facts, "answer", ticket, key=_KEY, **said)
    if before is not None:  # another person was faster
        raise _not_asked(store, seal, facts, question.step, found, question)


def _not_asked(
    store: Store,
    seal: Seal,
    facts: RunFacts,
    step: int | str,
    found: list[Question],
    of: Question | None,
) -> StepwiseError:
    """Return the error for an answer to a step that does not ask."""
    run_id, asking = facts.run_id, ", ".join(map(_named, found)) or "none"
    entries = read_entries(store, seal, run_id, Position(facts.pruned, None))
    known = Questions(entries)
    asked = known.asked.get(step) if isinstance(step, int) else None
    ticket = of.ticket if of is not None else asked.waiting.ticket if asked is not None else ""
    given = _answers(store, seal, run_id).get(ticket)
    if given is not None:
        said = "yes" if given.approved else "no"
        note = f" ({given.note})" if given.note else ""
        why = f"{given.by} has answered that already, with {said}{note}: the first answer counts"
    elif facts.status in ENDED:
        return ended_error(facts)
    elif asked is not None and ticket != asked.waiting.ticket:
        why = "it has asked again since, as what it is about has changed: look at it anew"
    elif asked is not None and step in known.instead:
        other = known.instead[asked.waiting.call.number]
        why = f"its call is made with other arguments now, for which step {other} asks"
    elif [each.name for each in found].count(str(step)) > 1:
        why = "several calls of that name ask; give the number of one"
    else:
        why = "it does not wait for an approval"
    return StepNotFoundError(
        f"step {step!r} of run {run_id!r} cannot be answered: {why}. Steps that wait for an "
        f"answer: {asking}",
        run_id=run_id,
        step=step,
    )


def _named(question: Question) -> str:
    return f"{question.step} ({question.name}) of run {question.run_id!r}"


def _answers(store: Store, seal: Seal, run_id: str) -> dict[str, Message]:
    """Return the first answer to each question, by its ticket."""
    found: dict[str, Message] = {}
    for message in Inbox(store, seal, run_id).look():
        if message.kind == "answer":
            found.setdefault(message.name, message)
    return found
